package dispatch

import (
	"context"
	"encoding"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestEnumsAreText: every value of every enumeration is encoded as its name and read back, and no other text is read.
func TestEnumsAreText(t *testing.T) {
	for name, list := range map[string]struct {
		names enum
		fresh func() encoding.TextUnmarshaler
		value func(uint8) encoding.TextMarshaler
	}{
		"state":      {stateNames(), func() encoding.TextUnmarshaler { return new(State) }, func(v uint8) encoding.TextMarshaler { return State(v) }},
		"cause":      {causeNames(), func() encoding.TextUnmarshaler { return new(Cause) }, func(v uint8) encoding.TextMarshaler { return Cause(v) }},
		"answer":     {answerNames(), func() encoding.TextUnmarshaler { return new(Answer) }, func(v uint8) encoding.TextMarshaler { return Answer(v) }},
		"source":     {sourceNames(), func() encoding.TextUnmarshaler { return new(Source) }, func(v uint8) encoding.TextMarshaler { return Source(v) }},
		"capability": {capabilityNames(), func() encoding.TextUnmarshaler { return new(Capability) }, func(v uint8) encoding.TextMarshaler { return Capability(v) }},
		"evidence":   {evidenceNames(), func() encoding.TextUnmarshaler { return new(Evidence) }, func(v uint8) encoding.TextMarshaler { return Evidence(v) }},
		"interface":  {interfaceNames(), func() encoding.TextUnmarshaler { return new(Interface) }, func(v uint8) encoding.TextMarshaler { return Interface(v) }},
		"action":     {actionNames(), func() encoding.TextUnmarshaler { return new(Action) }, func(v uint8) encoding.TextMarshaler { return Action(v) }},
		"outcome":    {outcomeNames(), func() encoding.TextUnmarshaler { return new(Outcome) }, func(v uint8) encoding.TextMarshaler { return Outcome(v) }},
	} {
		t.Run(name, func(t *testing.T) {
			seen := map[string]bool{}
			for i, want := range list.names {
				if want == "" || seen[want] {
					t.Errorf("value %d has the name %q", i, want)
				}
				seen[want] = true
				text, err := list.value(uint8(i)).MarshalText()
				if err != nil || string(text) != want {
					t.Errorf("value %d is %q, %v, want %q", i, text, err, want)
				}
				v := list.fresh()
				if err := v.UnmarshalText(text); err != nil || !reflect.DeepEqual(reflect.ValueOf(v).Elem().Interface(), list.value(uint8(i))) {
					t.Errorf("%q is read as %v, %v", text, v, err)
				}
			}
			for _, text := range []string{"", "NODE LOST", strings.ToUpper(list.names[0]), list.names[0] + " "} {
				if err := list.fresh().UnmarshalText([]byte(text)); err == nil {
					t.Errorf("%q is read", text)
				}
			}
			if text, err := list.value(uint8(len(list.names))).MarshalText(); err == nil {
				t.Errorf("a value without a name is written as %q", text)
			}
		})
	}
}

func TestDeclarationsAsJSON(t *testing.T) {
	d := Declarations{NodeLossWindow: 11 * time.Minute, CallBound: 5 * time.Minute, PolledLoss: map[Evidence]Window{
		EvidenceState: Window(time.Minute), EvidenceExitCode: 0, EvidenceExecution: Unbounded,
	}}
	b, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"nodeLossWindow":"11m0s","callBound":"5m0s","polledLoss":{"execution":"unbounded","exit-code":"0s","state":"1m0s"}}`
	if string(b) != want {
		t.Errorf("got  %s\nwant %s", b, want)
	}
	var back Declarations
	if err := json.Unmarshal(b, &back); err != nil || !reflect.DeepEqual(d, back) {
		t.Errorf("read back as %+v, %v", back, err)
	}
}

func TestShortestWindow(t *testing.T) {
	for name, c := range map[string]struct {
		loss map[Evidence]Window
		want time.Duration
		ok   bool
	}{
		"nothing is bounded":               {map[Evidence]Window{EvidenceState: Unbounded}, 0, false},
		"what is always lost sets no pace": {map[Evidence]Window{EvidenceExecution: 0, EvidenceState: Window(time.Minute)}, time.Minute, true},
		"the shortest":                     {map[Evidence]Window{EvidenceCause: Window(2 * time.Minute), EvidenceState: Window(time.Minute), EvidenceExecution: Unbounded}, time.Minute, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got, ok := (Declarations{PolledLoss: c.loss}).ShortestWindow(); got != c.want || ok != c.ok {
				t.Errorf("got %v, %v, want %v, %v", got, ok, c.want, c.ok)
			}
		})
	}
}

func TestMarkIsReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := Ref{
			Job:        JobID(rapid.StringMatching(`[A-Za-z0-9]([A-Za-z0-9._/:-]{0,40}[A-Za-z0-9._:-])?`).Draw(t, "job")),
			Submission: rapid.Uint32Range(1, EpochBound-1).Draw(t, "submission"), Attempt: rapid.Uint32Range(1, EpochBound-1).Draw(t, "attempt"),
		}
		note := rapid.String().Draw(t, "note")
		if err := r.Check(); err != nil {
			t.Fatal(err)
		}
		got, text, ok := ParseMark(r.Mark(note))
		if !ok || got != r || text != note {
			t.Fatalf("%q is read as %v, %q, %v", r.Mark(note), got, text, ok)
		}
	})
}

func FuzzParseMark(f *testing.F) {
	f.Add("dispatch/1 job=a sub=1 att=1")
	f.Add("dispatch/1 job=a/b sub=1 att=12 note=x\ny")
	f.Add("dispatch/1 job=a sub=01 att=1")
	f.Fuzz(func(t *testing.T, text string) {
		r, note, ok := ParseMark(text)
		if ok && (r.Check() != nil || r.Mark(note) != text) {
			t.Errorf("%q is read as %v, %q", text, r, note)
		}
	})
}

// everything implements all optional interfaces.
type everything struct {
	Backend
	Holder
	Requeuer
	CessationSignal
	OutputReader
	MultiFinder
	can      Capabilities
	declared Declarations
	refuses  map[Interface]bool
}

func (e *everything) Capabilities(context.Context, Spec) (Capabilities, error) { return e.can, nil }
func (e *everything) Declarations() Declarations                               { return e.declared }
func (e *everything) Offers(i Interface) bool                                  { return !e.refuses[i] }
func (e *everything) Preflight() Report                                        { return Report{Cluster: "all"} }

// TestOpenNarrows: each set of interfaces that a cluster can support is what the opened backend implements, no more and no less.
func TestOpenNarrows(t *testing.T) {
	for set := range 1 << len(AllInterfaces()) {
		e := &everything{can: Capabilities{}, refuses: map[Interface]bool{}}
		var want []Interface
		for _, i := range AllInterfaces() {
			has := set>>i&1 == 1
			switch {
			case has:
				want = append(want, i)
			case i > InterfaceRequeuer:
				e.refuses[i] = true
			}
			if has && i == InterfaceHolder {
				e.can[Hold] = Support{Answer: Yes}
			}
			if has && i == InterfaceRequeuer {
				e.declared.CallBound = time.Minute
			}
		}
		b, err := Open(t.Context(), func(context.Context) (Backend, error) { return e, nil })
		if err != nil {
			t.Fatal(err)
		}
		if got := InterfacesOf(b); !reflect.DeepEqual(got, want) {
			t.Errorf("set %05b: implements %v, want %v", set, got, want)
		}
		if r, ok := ReportOf(b); !ok || r.Cluster != "all" {
			t.Errorf("set %05b: the preflight is %+v, %v", set, r, ok)
		}
	}
}

func TestOpenWithoutAnAnswer(t *testing.T) {
	for name, hold := range map[string]Support{"unknown": {Answer: Unknown}, "no": {Answer: No}} {
		b, err := Open(t.Context(), func(context.Context) (Backend, error) {
			return &everything{can: Capabilities{Hold: hold}, refuses: map[Interface]bool{}}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := b.(Holder); ok {
			t.Errorf("%s: it holds", name)
		}
		if _, ok := b.(Requeuer); ok {
			t.Errorf("%s: it requeues though nobody knows when a call may land", name)
		}
	}
	want := errors.New("no such cluster")
	if _, err := Open(t.Context(), func(context.Context) (Backend, error) { return nil, want }); !errors.Is(err, want) {
		t.Errorf("got %v", err)
	}
}

func TestPolicyDecides(t *testing.T) {
	p := Policy{Rules: []Rule{{CausePreempted, ActionResubmit, 2}, {CausePreempted, ActionEscalate, 0}, {CauseNodeLost, ActionResubmit, 0}}}
	end := func(s State, c Cause) Observation { return Observation{State: s, Cause: c} }
	for name, c := range map[string]struct {
		o       Observation
		applied map[int]uint32
		want    Action
		rule    int
	}{
		"first that matches":          {end(StateFailed, CausePreempted), nil, ActionResubmit, 0},
		"a rule is used up":           {end(StateFailed, CausePreempted), map[int]uint32{0: 2}, ActionEscalate, 1},
		"nothing matches":             {end(StateFailed, CauseExitCode), nil, ActionNone, -1},
		"running on a lost node":      {end(StateRunning, CauseNodeLost), nil, ActionNone, -1},
		"given up with its lost node": {end(StateFailed, CauseNodeLost), nil, ActionResubmit, 2},
	} {
		t.Run(name, func(t *testing.T) {
			if got, rule := p.Decide(c.o, c.applied); got != c.want || rule != c.rule {
				t.Errorf("got %v by rule %d, want %v by %d", got, rule, c.want, c.rule)
			}
		})
	}
}
