package dispatch

// Action is what is done about work that has ended otherwise than it should.
type Action uint8

const (
	ActionNone     Action = iota
	ActionResubmit        // as a new object
	ActionEscalate        // tell somebody
	ActionRestart         // its program, in the same execution
	ActionRequeue         // the same object, as a new execution
	ActionHold            // keep what is pending from starting
)

func actionNames() enum {
	return enum{"none", "resubmit", "escalate", "restart", "requeue", "hold"}
}

func (a Action) String() string { return actionNames().text("action", uint8(a)) }

func (a Action) MarshalText() ([]byte, error) { return actionNames().marshal("action", uint8(a)) }

func (a *Action) UnmarshalText(b []byte) error {
	v, err := actionNames().parse("action", b)
	*a = Action(v)
	return err
}

// Policy is how an owner wants its work recovered, as data: the first rule that matches an end is taken, and none is ActionNone.
type Policy struct {
	Rules []Rule `json:"rules"`
}

// Rule matches an ended execution by its cause.
type Rule struct {
	Cause  Cause  `json:"cause"`
	Action Action `json:"action"`
	Limit  uint32 `json:"limit,omitempty"` // of times for one job; 0: no limit
}

// RuleSupport is whether a rule's action can be carried out.
type RuleSupport struct {
	Rule    Rule    `json:"rule"`
	Support Support `json:"support"`
}

// Decide is the action for an end by a policy, with how often each rule was applied to the job before, by the rule's place.
func (p Policy) Decide(o Observation, applied map[int]uint32) (Action, int) {
	for i, r := range p.Rules {
		if r.Cause == o.Cause && o.State.Ended() && (r.Limit == 0 || applied[i] < r.Limit) {
			return r.Action, i
		}
	}
	return ActionNone, -1
}
