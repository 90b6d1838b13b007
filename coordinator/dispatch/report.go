package dispatch

import "time"

// Outcome is how a step of a preflight went.
type Outcome uint8

const (
	StepSkipped Outcome = iota
	StepPassed
	StepFailed
)

func outcomeNames() enum { return enum{"skipped", "passed", "failed"} }

func (o Outcome) String() string               { return outcomeNames().text("outcome", uint8(o)) }
func (o Outcome) MarshalText() ([]byte, error) { return outcomeNames().marshal("outcome", uint8(o)) }
func (o *Outcome) UnmarshalText(b []byte) error {
	v, err := outcomeNames().parse("outcome", b)
	*o = Outcome(v)
	return err
}

// Report is how a backend came to its answers.
type Report struct {
	Kind     string    `json:"kind"`    // slurm, pbs
	Cluster  string    `json:"cluster"` // the system's own name of it
	Version  string    `json:"version"`
	Account  string    `json:"account"` // the calls are made as
	ReadOnly bool      `json:"readOnly"`
	Cached   bool      `json:"cached"` // the probe's answers come from an earlier preflight
	At       time.Time `json:"at"`     // of the probe, or of the preflight without one
	Steps    []Step    `json:"steps"`
	// Settings are those of the cluster that the answers depend on, by name.
	Settings map[string]string `json:"settings"`
}

// Step is one thing that was looked at or tried.
type Step struct {
	Name    string        `json:"name"`
	Outcome Outcome       `json:"outcome"`
	Detail  string        `json:"detail,omitempty"`
	Took    time.Duration `json:"tookNs"`
}
