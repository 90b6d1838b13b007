package server

import (
	"slices"
	"testing"
	"time"

	"substrate/coordinator/engine"
	"substrate/proto/agentv1"
)

// TestLookAtHardware: a node that was launched for a look hears what to wait for, and that its last report is stored.
func TestLookAtHardware(t *testing.T) {
	f := &fakeAgents{session: newSession()}
	f.session.look = &engine.Look{Devices: map[string]uint32{"nvidia.com/gpu": 8}, Some: []string{"amd.com/gpu"}, Within: 20 * time.Minute}
	a := startAgents(t, f)
	s := a.connect("node-7", &agentv1.Hello{Discovers: true})
	w := receive(t, s).GetWelcome().GetLook()
	if w.GetDevices()["nvidia.com/gpu"] != 8 || !slices.Equal(w.GetSome(), []string{"amd.com/gpu"}) || w.GetWithin().AsDuration() != 20*time.Minute {
		t.Errorf("it waits for %v", w)
	}
	if err := s.Send(&agentv1.FromAgent{Message: &agentv1.FromAgent_Hardware{Hardware: &agentv1.HardwareReport{Digest: []byte("d"), FactsJson: []byte("{}"), Final: true}}}); err != nil {
		t.Fatal(err)
	}
	f.session.orders <- []engine.ToNode{{Taken: []byte("d")}}
	if m := receive(t, s); string(m.GetAck().GetHardware()) != "d" {
		t.Errorf("it hears %v", m)
	}
	eventually(t, "the last report", func() bool {
		f.session.mu.Lock()
		defer f.session.mu.Unlock()
		return len(f.session.reports) == 1 && f.session.reports[0].(engine.HardwareReport).Final && f.hellos[0].Discovers
	})
}
