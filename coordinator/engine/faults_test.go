package engine

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/store"
)

// TestAbandonedCommandsAreNotCarriedOut: a caller that gave up while its command waited hears its context's
// error, and the command changes nothing later.
func TestAbandonedCommandsAreNotCarriedOut(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	c.set(plainConfig)
	block, entered := make(chan struct{}), make(chan struct{})
	go func() { _ = c.engine.view(context.Background(), func(*state) { close(entered); <-block }) }()
	<-entered
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	go func() { _, err := c.engine.Connect(ctx, "ghost", Hello{}); done <- err }()
	go func() { _, err := c.engine.CreateOrganization(ctx, c.admin, "ghosts", 0); done <- err }()
	for len(c.engine.commands) < 2 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	for range 2 {
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	}
	close(block)
	if _, err := c.engine.Node(t.Context(), c.admin, "ghost"); coordinator.ErrorKindOf(err) != coordinator.ErrNotFound {
		t.Errorf("the abandoned stream made a node: %v", err)
	}
	orgs, _, err := c.engine.Organizations(t.Context(), c.admin, Page{})
	if err != nil || len(orgs) != 1 {
		t.Errorf("organisations %v, %v", orgs, err)
	}
}

// TestReconnectKeepsTheNotice: a stream that flaps during a notice does not shorten it.
func TestReconnectKeepsTheNotice(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	c.set(plainConfig + "scheduler: {preemptionNotice: 10m}\n")
	first, err := c.engine.Connect(t.Context(), "n1", Hello{})
	if err != nil {
		t.Fatal(err)
	}
	h := newHost("n1", 4, nil)
	leave := c.join(h) // takes the stream over
	if _, err := first.Next(t.Context()); err == nil {
		if _, err = first.Next(t.Context()); coordinator.ErrorKindOf(err) != coordinator.ErrUnavailable {
			t.Errorf("the first stream goes on: %v", err)
		}
	}
	w := c.start("version: v1\nname: w\njobs: {j: {command: [x], class: batch}}\n")
	c.await(w.ID, "running", func(v WorkflowView) bool { return v.Counts[coordinator.StatusRunning] == 1 })
	leave()
	if _, err := c.engine.SetScheduling(t.Context(), c.admin, "n1", "drain", "", false); err != nil {
		t.Fatal(err)
	}
	s, err := c.engine.Connect(t.Context(), "n1", h.hello())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for {
		messages, err := s.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range messages {
			if m.Stop != nil {
				if m.Stop.Grace < 9*time.Minute {
					t.Errorf("the notice of 10m became %s", m.Stop.Grace)
				}
				return
			}
		}
	}
}

// TestReportsThatCannotBeRead leave the node without capacity and with a warning; the stream goes on.
func TestReportsThatCannotBeRead(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	c.set(plainConfig)
	s, err := c.engine.Connect(t.Context(), "n1", Hello{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	good := []byte(`{"cpu":{"cpu_cores":4},"memory":{"total_bytes":1073741824}}`)
	digest := sha256.Sum256(good)
	for _, tt := range []struct {
		name   string
		report HardwareReport
		cores  coordinator.Cores
		warn   string
	}{
		{"good", HardwareReport{Facts: good, Digest: digest[:]}, 4, ""},
		{"the same by digest", HardwareReport{Digest: digest[:]}, 4, ""},
		{"too large", HardwareReport{Facts: bytes.Repeat([]byte(" "), 2<<20)}, 0, "at most"},
		{"good again", HardwareReport{Facts: good, Digest: digest[:]}, 4, ""},
		{"not JSON", HardwareReport{Facts: []byte("{")}, 0, "cannot read hardware report"},
		{"left out", HardwareReport{Warnings: []NodeWarning{{Source: "report", Message: "too large to send"}}}, 0, "too large to send"},
	} {
		if err := s.Hardware(t.Context(), tt.report); err != nil {
			t.Errorf("%s: the stream ends: %v", tt.name, err)
		}
		v, err := c.engine.Node(t.Context(), c.admin, "n1")
		if err != nil || v.Capacity.Cores != tt.cores {
			t.Errorf("%s: capacity %+v, %v", tt.name, v.Capacity, err)
		}
		if text := fmt.Sprint(v.Warnings); tt.warn != "" && !strings.Contains(text, tt.warn) {
			t.Errorf("%s: warnings %s", tt.name, text)
		}
	}
}

// TestFollowersMissNothingAfterAFailedWrite: a write whose outcome was unknown but which stands is told to
// those who follow.
func TestFollowersMissNothingAfterAFailedWrite(t *testing.T) {
	st := store.NewMemory()
	c := newCluster(t, st)
	c.set(plainConfig)
	got := make(chan uint64, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.engine.Events(ctx, c.admin, "", 0, true, func(evs []Event) error {
			for _, ev := range evs {
				got <- ev.Sequence
			}
			return nil
		})
	}()
	defer func() { cancel(); <-done }()
	st.FailCommit(1, store.Fault{Apply: -1})
	if _, err := c.engine.CreateOrganization(t.Context(), c.admin, "unsure", 0); err == nil {
		t.Fatal("the write was to fail")
	}
	if _, err := c.engine.CreateOrganization(t.Context(), c.admin, "sure", 0); err != nil {
		t.Fatal(err)
	}
	want := c.events("")
	var seen []uint64
	for range want {
		select {
		case seq := <-got:
			seen = append(seen, seq)
		case <-time.After(5 * time.Second):
			t.Fatalf("saw %v of %s", seen, describe(want))
		}
	}
	for i, ev := range want {
		if seen[i] != ev.Sequence {
			t.Fatalf("saw %v, stored are\n%s", seen, describe(want))
		}
	}
	if !slices.ContainsFunc(want, func(ev Event) bool { return ev.Subject == "unsure" }) {
		t.Errorf("the standing write's event is not stored:\n%s", describe(want))
	}
}

func TestPages(t *testing.T) {
	items := []string{"a", "b", "c", "d", "e"}
	key := func(s string) string { return s }
	passed := func(s, token string) bool { return s <= token }
	first, next := page(items, Page{Size: 2}, key, passed)
	if !slices.Equal(first, []string{"a", "b"}) || next != "b" {
		t.Fatalf("first page %v, next %q", first, next)
	}
	gone := []string{"a", "c", "d", "e"} // b has left the list
	second, next := page(gone, Page{Size: 2, Token: next}, key, passed)
	if !slices.Equal(second, []string{"c", "d"}) || next != "d" {
		t.Errorf("second page %v, next %q", second, next)
	}
	if last, next := page(gone, Page{Size: 2, Token: next}, key, passed); !slices.Equal(last, []string{"e"}) || next != "" {
		t.Errorf("last page %v, next %q", last, next)
	}
}

// TestWorkThatLosesItsNodesIsGivenUp: what takes one node after the other down is not sent round for ever.
func TestWorkThatLosesItsNodesIsGivenUp(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	c.set(plainConfig)
	c.join(newHost("n1", 4, func(StartRun) *RunStatus { return &RunStatus{Cause: CauseLostStatus, Message: "boom"} }))
	w := c.start("version: v1\nname: w\njobs: {j: {command: [x], policy: {restart: on-node-fault}}}\n")
	v := c.await(w.ID, "lost", func(v WorkflowView) bool {
		c.ahead.Add(int64(time.Minute)) // past every back-off
		c.engine.poke(t.Context())
		return v.Status == coordinator.StatusLost
	})
	if j := v.Jobs[0]; j.Attempt != maxNodeFaults+1 || j.Failures != 0 {
		t.Errorf("%d attempts, %d failures: %s", j.Attempt, j.Failures, j.Message)
	}
}

// poke lets the loop look at its clock.
func (e *Engine) poke(ctx context.Context) { _ = e.do(ctx, func(*tx) error { return nil }) }

// TestAppendGrantsAgain: the same bytes with AppendGrants mend a grant that was forgotten.
func TestAppendGrantsAgain(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	c.set(plainConfig)
	later := plainConfig + strings.Replace(strings.TrimPrefix(plainConfig, "\ndefinitions:\n"), "id: small", "id: large", 1)
	if res := c.set(later); len(res.Ungranted) != 1 {
		t.Fatalf("ungranted %+v", res.Ungranted)
	}
	res, err := c.engine.SetConfig(t.Context(), c.admin, SetConfig{YAML: []byte(later), File: "f", AppendGrants: true})
	if err != nil || !res.Unchanged || len(res.Ungranted) != 0 {
		t.Errorf("%+v, %v", res, err)
	}
}

// TestBackfill: organisations of a store without grants get one with what exists, once.
func TestBackfill(t *testing.T) {
	st := store.NewMemory()
	c := newCluster(t, st)
	c.set(plainConfig)
	org := string(c.admin.Organization)
	c.close()
	old := st.Clone()
	ops := []store.Op{{Key: prefixGrant + org, Delete: true}, {Key: prefixSerial + org, Delete: true}}
	if _, err := old.Commit(t.Context(), []store.Group{{Ops: ops}}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		c := newCluster(t, old)
		c.engine.poke(t.Context())
		g, err := c.engine.Grant(t.Context(), c.admin, "")
		if err != nil || g.State != "valid" || g.Serial != 1 || !slices.Equal(g.Definitions, []string{"small"}) {
			t.Errorf("grant %+v, %v", g, err)
		}
		c.close()
		old = old.Clone()
	}
}

// TestARefusedWriteCostsNoNodeItsStream: the store is full for one request; nodes stay connected and go on.
func TestARefusedWriteCostsNoNodeItsStream(t *testing.T) {
	for name, fault := range map[string]store.Fault{"full": {Err: store.ErrFull}, "unknown, applied": {Apply: -1}} {
		t.Run(name, func(t *testing.T) {
			st := store.NewMemory()
			c := newCluster(t, st)
			c.set(plainConfig)
			h := newHost("n1", 4, nil)
			ctx, cancel := context.WithCancel(t.Context())
			streams := make(chan struct{})
			go func() { defer close(streams); h.serve(ctx, t, c.engine) }() // one stream, no reconnect
			defer func() { cancel(); <-streams }()
			awaitNode(t, c, "n1", NodeReady)
			st.FailCommit(1, fault)
			if _, err := c.engine.StartWorkflow(t.Context(), c.admin, StartWorkflow{File: "w", YAML: []byte(chain)}); err == nil {
				t.Fatal("the write was to fail")
			}
			awaitNode(t, c, "n1", NodeReady)
			w := c.start("version: v1\nname: after\njobs: {j: {command: [x]}}\n")
			c.awaitStatus(w.ID, coordinator.StatusRunning)
			list, _, err := c.engine.Workflows(t.Context(), c.admin, "running", Page{})
			want := 1
			if fault.Apply == -1 {
				want = 2 // it stands, and its first job was ordered though nobody heard
			}
			if err != nil || len(list) != want {
				t.Errorf("%d workflows run, want %d (%v)", len(list), want, err)
			}
			select {
			case <-streams:
				t.Error("the stream ended")
			default:
			}
		})
	}
}

// TestAFullStoreHoldsReports: while nothing can be written a node keeps its stream and its news, users are
// refused at once, and what ended meanwhile counts as it ended.
func TestAFullStoreHoldsReports(t *testing.T) {
	st := store.NewMemory()
	c := newCluster(t, st)
	c.set(plainConfig + "scheduler: {nodeLossWindow: 1s}\n")
	full := make(chan struct{})
	h := newHost("n1", 4, func(StartRun) *RunStatus {
		for n := range 2 {
			st.FailCommit(n+1, store.Fault{Err: store.ErrFull})
		}
		close(full)
		return &RunStatus{Cause: CauseExited, ExitCode: 3}
	})
	ctx, cancel := context.WithCancel(t.Context())
	streams := make(chan struct{})
	go func() { defer close(streams); h.serve(ctx, t, c.engine) }() // one stream, no reconnect
	defer func() { cancel(); <-streams }()
	awaitNode(t, c, "n1", NodeReady)
	w := c.start("version: v1\nname: w\njobs: {j: {command: [x]}}\n")
	<-full
	deadline := time.Now().Add(20 * time.Second)
	for refused := false; !refused; time.Sleep(time.Millisecond) {
		_, err := c.engine.StartWorkflow(t.Context(), c.admin, StartWorkflow{File: "w", YAML: []byte(chain)})
		refused = coordinator.ErrorKindOf(err) == coordinator.ErrExhausted
		if time.Now().After(deadline) {
			t.Fatalf("a user's write in a full store: %v", err)
		}
	}
	c.awaitStatus(w.ID, coordinator.StatusFailed)
	for _, ev := range c.events("") {
		if ev.Kind == "lost" || ev.Kind == "node-returned" {
			t.Errorf("event %s: %s", ev.Kind, ev.Message)
		}
	}
	select {
	case <-streams:
		t.Error("the stream ended")
	default:
	}
}
