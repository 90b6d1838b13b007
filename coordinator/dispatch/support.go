package dispatch

import (
	"encoding/json"
	"fmt"
	"time"
)

// Answer is yes, no, or that nobody knows.
type Answer uint8

const (
	Unknown Answer = iota
	Yes
	No
)

// Source is where an answer comes from. One that was probed stays probed when it is read from a cache.
type Source uint8

const (
	SourceNone Source = iota
	Declared          // by the adapter, for every cluster
	Probed            // tried on this cluster
)

// Support is an answer with its source and reason.
type Support struct {
	Answer Answer `json:"answer"`
	Source Source `json:"source"`
	Reason string `json:"reason,omitempty"`
}

// Capability is something that batch systems differ in.
type Capability uint8

const (
	ContainerImage       Capability = iota // runs a job in a container image
	NativeRequeue                          // the system itself runs a job again after a node's loss or a preemption
	NativeRestart                          // the system itself restarts a job's program
	Hold                                   // holds as the contract describes them
	PreTerminationSignal                   // a signal before the kill
	AccountingHistory                      // can tell of what the system's memory has lost
	AttemptInjection                       // a script knows its submission, attempt and execution
	ReadmissionGate                        // an execution that the system starts by itself waits behind the gate again
	WorkingDirectory
	ProcsPerNode
	OutputPath     // each execution's output has a file of its own
	OutputRead     // which can be read
	OutputFollow   // while it is written
	OutputRetained // and after the object is forgotten
)

// AllCapabilities lists them in the order in which they are shown.
func AllCapabilities() []Capability {
	all := make([]Capability, len(capabilityNames()))
	for i := range all {
		all[i] = Capability(i)
	}
	return all
}

// Capabilities is the answer for each.
type Capabilities map[Capability]Support

// Evidence is something that can be read of an execution that has ended.
type Evidence uint8

const (
	EvidenceState Evidence = iota
	EvidenceCause
	EvidenceExitCode
	EvidenceExecution // of an execution that another has replaced
)

// AllEvidence lists them in the order in which they are shown.
func AllEvidence() []Evidence {
	return []Evidence{EvidenceState, EvidenceCause, EvidenceExitCode, EvidenceExecution}
}

// Window is for how long something can be read after the end. 0 is never.
type Window time.Duration

// Unbounded is no length of time: what has it is not lost.
const Unbounded Window = -1

// Declarations are what a backend promises about time.
type Declarations struct {
	// NodeLossWindow is how long an object may be running with cause node-lost before its execution counts as over.
	NodeLossWindow time.Duration `json:"nodeLossWindow"`
	// CallBound is how long after its deadline a hold, release or requeue may still land; 0 when nobody knows.
	CallBound time.Duration `json:"callBound"`
	// PolledLoss is how long each piece of evidence lasts for somebody who polls.
	PolledLoss map[Evidence]Window `json:"polledLoss"`
}

// ShortestWindow is the longest interval at which nothing bounded is missed; ok is false when nothing is bounded. What is always lost (0)
// counts as little as what never is.
func (d Declarations) ShortestWindow() (shortest time.Duration, ok bool) {
	for _, w := range d.PolledLoss {
		if w > 0 && (!ok || time.Duration(w) < shortest) {
			shortest, ok = time.Duration(w), true
		}
	}
	return shortest, ok
}

// Interface is one of the optional interfaces.
type Interface uint8

const (
	InterfaceHolder Interface = iota
	InterfaceRequeuer
	InterfaceCessationSignal
	InterfaceOutputReader
	InterfaceMultiFinder
)

// AllInterfaces lists them in the order in which they are shown.
func AllInterfaces() []Interface {
	return []Interface{InterfaceHolder, InterfaceRequeuer, InterfaceCessationSignal, InterfaceOutputReader, InterfaceMultiFinder}
}

func answerNames() enum { return enum{"unknown", "yes", "no"} }
func sourceNames() enum { return enum{"none", "declared", "probed"} }
func capabilityNames() enum {
	return enum{"ContainerImage", "NativeRequeue", "NativeRestart", "Hold", "PreTerminationSignal", "AccountingHistory", "AttemptInjection",
		"ReadmissionGate", "WorkingDirectory", "ProcsPerNode", "OutputPath", "OutputRead", "OutputFollow", "OutputRetained"}
}
func evidenceNames() enum { return enum{"state", "cause", "exit-code", "execution"} }
func interfaceNames() enum {
	return enum{"Holder", "Requeuer", "CessationSignal", "OutputReader", "MultiFinder"}
}

func (a Answer) String() string     { return answerNames().text("answer", uint8(a)) }
func (s Source) String() string     { return sourceNames().text("source", uint8(s)) }
func (c Capability) String() string { return capabilityNames().text("capability", uint8(c)) }
func (e Evidence) String() string   { return evidenceNames().text("evidence", uint8(e)) }
func (i Interface) String() string  { return interfaceNames().text("interface", uint8(i)) }

func (a Answer) MarshalText() ([]byte, error) { return answerNames().marshal("answer", uint8(a)) }
func (s Source) MarshalText() ([]byte, error) { return sourceNames().marshal("source", uint8(s)) }
func (c Capability) MarshalText() ([]byte, error) {
	return capabilityNames().marshal("capability", uint8(c))
}
func (e Evidence) MarshalText() ([]byte, error) { return evidenceNames().marshal("evidence", uint8(e)) }
func (i Interface) MarshalText() ([]byte, error) {
	return interfaceNames().marshal("interface", uint8(i))
}

func (a *Answer) UnmarshalText(b []byte) error {
	v, err := answerNames().parse("answer", b)
	*a = Answer(v)
	return err
}

func (s *Source) UnmarshalText(b []byte) error {
	v, err := sourceNames().parse("source", b)
	*s = Source(v)
	return err
}

func (c *Capability) UnmarshalText(b []byte) error {
	v, err := capabilityNames().parse("capability", b)
	*c = Capability(v)
	return err
}

func (e *Evidence) UnmarshalText(b []byte) error {
	v, err := evidenceNames().parse("evidence", b)
	*e = Evidence(v)
	return err
}

func (i *Interface) UnmarshalText(b []byte) error {
	v, err := interfaceNames().parse("interface", b)
	*i = Interface(v)
	return err
}

// String is the length as time.Duration writes it, or "unbounded".
func (w Window) String() string {
	if w == Unbounded {
		return "unbounded"
	}
	return time.Duration(w).String()
}

func (w Window) MarshalText() ([]byte, error) {
	if w < Unbounded {
		return nil, fmt.Errorf("cannot encode a window of %d ns: it is negative", w)
	}
	return []byte(w.String()), nil
}

func (w *Window) UnmarshalText(b []byte) error {
	if string(b) == "unbounded" {
		*w = Unbounded
		return nil
	}
	d, err := time.ParseDuration(string(b))
	if err != nil || d < 0 {
		return fmt.Errorf("cannot read window %q: expected a duration or unbounded", b)
	}
	*w = Window(d)
	return nil
}

// MarshalJSON writes durations as text, like windows.
func (d Declarations) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		NodeLossWindow Window              `json:"nodeLossWindow"`
		CallBound      Window              `json:"callBound"`
		PolledLoss     map[Evidence]Window `json:"polledLoss"`
	}{Window(d.NodeLossWindow), Window(d.CallBound), d.PolledLoss})
}

func (d *Declarations) UnmarshalJSON(b []byte) error {
	var v struct {
		NodeLossWindow, CallBound Window
		PolledLoss                map[Evidence]Window
	}
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	*d = Declarations{NodeLossWindow: time.Duration(v.NodeLossWindow), CallBound: time.Duration(v.CallBound), PolledLoss: v.PolledLoss}
	return nil
}
