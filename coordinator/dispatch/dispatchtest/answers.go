package dispatchtest

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"substrate/coordinator/dispatch"
)

// answerChecks are about what a backend says of itself.
func answerChecks() []check {
	return []check{
		{name: "answers/capabilities", run: everyCapability},
		{name: "answers/interfaces", run: interfacesAgree},
		{name: "answers/declarations", run: declarationsSane},
		{name: "answers/rules", run: rulesAnswered},
		{name: "answers/poll interval", run: pollRefused},
		{name: "answers/read-only", needs: []need{given("ReadOnly", func(s System) bool { return s.ReadOnly != nil })}, run: readOnlyWritesNothing},
	}
}

func everyCapability(s *session) {
	for _, c := range dispatch.AllCapabilities() {
		got, has := s.can[c]
		switch {
		case !has:
			s.Errorf("%s has no answer", c)
		case got.Source == dispatch.SourceNone:
			s.Errorf("%s: the answer %s has no source", c, got.Answer)
		case got.Answer != dispatch.Yes && got.Reason == "":
			s.Errorf("%s: the answer %s has no reason", c, got.Answer)
		case got.Answer > dispatch.No || got.Source > dispatch.Probed:
			s.Errorf("%s: an answer without a name: %d by %d", c, got.Answer, got.Source)
		}
	}
	if len(s.can) != len(dispatch.AllCapabilities()) {
		s.Errorf("there are %d answers for %d capabilities", len(s.can), len(dispatch.AllCapabilities()))
	}
	image := s.long()
	image.Image = &dispatch.Image{Reference: "registry.example.org/a:1"}
	for name, spec := range map[string]dispatch.Spec{"a job": s.long(), "an image": image, "nothing": {}} {
		if got, err := s.b.Capabilities(s.Context(), spec); err != nil || !reflect.DeepEqual(got, s.can) {
			s.Errorf("for %s the answers are %v, %v, and not %v", name, got, err, s.can)
		}
	}
}

// interfacesAgree: what a capability says and what can be called are the same.
func interfacesAgree(s *session) {
	has := dispatch.InterfacesOf(s.b)
	for _, pair := range []struct {
		i dispatch.Interface
		c dispatch.Capability
	}{{dispatch.InterfaceHolder, dispatch.Hold}, {dispatch.InterfaceOutputReader, dispatch.OutputRead}} {
		if yes := s.can[pair.c].Answer == dispatch.Yes; yes != slices.Contains(has, pair.i) {
			s.Errorf("%s is %s, and the interfaces are %v", pair.c, s.can[pair.c].Answer, has)
		}
	}
	if slices.Contains(has, dispatch.InterfaceRequeuer) && s.decl.CallBound <= 0 {
		s.Error("it requeues though nobody knows how late a call may land")
	}
	for _, c := range []dispatch.Capability{dispatch.OutputFollow, dispatch.OutputRetained} {
		if s.can[c].Answer == dispatch.Yes && s.can[dispatch.OutputRead].Answer != dispatch.Yes {
			s.Errorf("%s is yes, and %s is not", c, dispatch.OutputRead)
		}
	}
}

func declarationsSane(s *session) {
	if s.decl.NodeLossWindow <= 0 {
		s.Errorf("the node loss window is %s: an object on a lost node would never be over", s.decl.NodeLossWindow)
	}
	if s.decl.CallBound < 0 {
		s.Errorf("the bound of a call is %s", s.decl.CallBound)
	}
	for _, e := range dispatch.AllEvidence() {
		if w, has := s.decl.PolledLoss[e]; !has || w < dispatch.Unbounded {
			s.Errorf("the window of %s is %s, %v", e, w, has)
		}
	}
	if s.decl.PolledLoss[dispatch.EvidenceState] == 0 {
		s.Error("the state of what is over can never be read: nobody could tell success from failure")
	}
	if !reflect.DeepEqual(s.decl, s.b.Declarations()) {
		s.Error("declarations differ from one time to the next")
	}
}

// rulesAnswered: each rule in its place, actions alike whatever the cause, the hold's answer that of the capability.
func rulesAnswered(s *session) {
	var p dispatch.Policy
	for a := dispatch.ActionNone; a <= dispatch.ActionHold; a++ {
		p.Rules = append(p.Rules, dispatch.Rule{Cause: dispatch.CausePreempted, Action: a, Limit: 3}, dispatch.Rule{Cause: dispatch.CauseExitCode, Action: a})
	}
	p.Rules = append(p.Rules, dispatch.Rule{Cause: dispatch.CausePreempted, Action: 77})
	got := s.b.Rules(p)
	if len(got) != len(p.Rules) {
		s.Fatalf("%d rules have %d answers", len(p.Rules), len(got))
	}
	byAction := map[dispatch.Action]dispatch.Support{}
	for i, r := range got {
		if r.Rule != p.Rules[i] {
			s.Errorf("rule %d is answered as %+v, not %+v", i, r.Rule, p.Rules[i])
		}
		if r.Support.Source == dispatch.SourceNone || r.Support.Answer != dispatch.Yes && r.Support.Reason == "" {
			s.Errorf("rule %+v: the answer %+v has no source or reason", r.Rule, r.Support)
		}
		if other, has := byAction[r.Rule.Action]; has && other != r.Support {
			s.Errorf("%s is %+v for one cause and %+v for another", r.Rule.Action, other, r.Support)
		}
		byAction[r.Rule.Action] = r.Support
	}
	for _, a := range []dispatch.Action{dispatch.ActionResubmit, dispatch.ActionEscalate} {
		if byAction[a].Answer != dispatch.Yes {
			s.Errorf("%s is %+v: its owner can always do that", a, byAction[a])
		}
	}
	if hold := s.can[dispatch.Hold]; byAction[dispatch.ActionHold] != hold {
		s.Errorf("the rule hold is %+v, the capability %+v", byAction[dispatch.ActionHold], hold)
	}
	if odd := byAction[77]; odd.Answer != dispatch.Unknown || odd.Source != dispatch.Declared || odd.Reason != "action 77" {
		s.Errorf("an action without a name is %+v", odd)
	}
	if got := s.b.Rules(dispatch.Policy{}); len(got) != 0 {
		s.Errorf("no rule has the answers %+v", got)
	}
}

// readOnlyWritesNothing: every call that would change something is refused as such, and nothing has changed.
func readOnlyWritesNothing(s *session) {
	id := s.submit(s.long())
	spec := s.long()
	before := s.inspect(id)
	ro := s.sys.ReadOnly(s.T)
	_, err := ro.Submit(s.Context(), spec)
	s.wants("submit", err, dispatch.ErrReadOnly)
	s.wants("open the gate", ro.OpenGate(s.Context(), id), dispatch.ErrReadOnly)
	s.wants("stop", ro.Stop(s.Context(), id), dispatch.ErrReadOnly)
	if h, ok := ro.(dispatch.Holder); ok {
		s.wants("hold", h.Hold(s.Context(), id, 1), dispatch.ErrReadOnly)
		s.wants("release", h.Release(s.Context(), id, 1), dispatch.ErrReadOnly)
	}
	if r, ok := ro.(dispatch.Requeuer); ok {
		s.wants("requeue", r.Requeue(s.Context(), id), dispatch.ErrReadOnly)
		s.wants("restore the requeue bit", r.RestoreRequeueBit(s.Context(), id), dispatch.ErrReadOnly)
	}
	seen, err := ro.Inspect(s.Context(), id)
	s.must("a read-only client inspects", err)
	if found, err := ro.Find(s.Context(), s.refs[id]); err != nil || !slices.Equal(objects(found), []dispatch.ObjectID{id}) {
		s.Errorf("a read-only client finds %v, %v", found, err)
	}
	s.stays(id, "gated", func(o dispatch.Observation) bool {
		return isPending(o) && o.Hold == 0 && o.Execution == before.Execution
	})
	if after := s.inspect(id); after.State != before.State || after.Cause != before.Cause || seen.Ref != before.Ref || seen.State != before.State {
		s.Errorf("it was %s, a read-only client saw %s, now it is %s", show(before), show(seen), show(after))
	}
	if list := s.find(spec.Ref); len(list) != 0 {
		s.Errorf("the submission of a read-only client is there: %v", list)
	}
}

// pollRefused: an interval longer than the shortest bounded window is refused in words, one of that length is not.
func pollRefused(s *session) {
	shortest, evidence, ok := time.Duration(0), []string{}, false
	for _, e := range dispatch.AllEvidence() {
		switch w := time.Duration(s.decl.PolledLoss[e]); {
		case w <= 0 || ok && w > shortest:
		case ok && w == shortest:
			evidence = append(evidence, e.String())
		default:
			shortest, evidence, ok = w, []string{e.String()}, true
		}
	}
	if !ok {
		if err := dispatch.CheckInterval(365*24*time.Hour, s.decl); err != nil {
			s.Errorf("nothing is lost, and a year is refused: %v", err)
		}
		return
	}
	if err := dispatch.CheckInterval(shortest, s.decl); err != nil {
		s.Errorf("the shortest window itself is refused: %v", err)
	}
	err := dispatch.CheckInterval(shortest+1, s.decl)
	if err == nil {
		s.Fatalf("%s is longer than the shortest window and not refused", shortest+1)
	}
	for _, part := range append(evidence, shortest.String(), fmt.Sprint(shortest+1)) {
		if !strings.Contains(err.Error(), part) {
			s.Errorf("the refusal %q does not name %s", err, part)
		}
	}
}
