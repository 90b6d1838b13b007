package engine

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"substrate/coordinator"
	"substrate/coordinator/logs"
	"substrate/coordinator/store"
)

const gangOfThree = `
version: v1
name: gang
jobs:
  mesh:
    command: [x]
    policy: {restart: on-node-fault}
    multinode: {nodes: 3}
`

// live returns the sessions of the nodes, by node.
func (c *cluster) live(ids ...coordinator.NodeID) map[coordinator.NodeID]*Session {
	c.t.Helper()
	out := map[coordinator.NodeID]*Session{}
	err := c.engine.view(c.t.Context(), func(s *state) {
		for _, id := range ids {
			out[id] = s.nodes[id].session
		}
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

// output reads a job's output, by stream and rank.
func (c *cluster) output(req LogRequest) map[string]string {
	c.t.Helper()
	out := map[string]string{}
	err := c.engine.Log(c.t.Context(), c.admin, req, func(p LogPart) error {
		out[fmt.Sprintf("%s %d of %d", p.Stream, p.Rank, p.Ranks)] += string(p.Data)
		return nil
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

// TestOutputOfAGang: every rank counts its own bytes from 0, and all of them are kept apart, in the
// running attempt and in one that was sent back to the queue.
func TestOutputOfAGang(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	c.set(plainConfig)
	nodes := []coordinator.NodeID{"n1", "n2", "n3"}
	for _, id := range nodes {
		c.join(newHost(string(id), 4, nil))
	}
	w := c.awaitStatus(c.start(gangOfThree).ID, coordinator.StatusRunning)
	run := w.Jobs[0].ID.Run(1)
	sessions := c.live(nodes...)
	want := map[string]string{}
	for rank, id := range nodes {
		for n, stream := range []string{"stdout", "stderr"} {
			text := strings.Repeat(fmt.Sprintf("%s of rank %d\n", stream, rank), 1+(rank+n)%3)
			next, half := uint64(0), len(text)/2
			for _, piece := range []string{text[:half], text[half:]} {
				var err error
				at := next
				if next, err = sessions[id].AppendLog(run, stream, at, []byte(piece), false); err != nil || next != at+uint64(len(piece)) {
					t.Fatalf("rank %d: next %d after %d, %v", rank, next, at, err)
				}
			}
			want[fmt.Sprintf("%s %d of 3", stream, rank)] = text
		}
	}
	request := LogRequest{Workflow: string(w.ID), Job: "mesh"}
	if got := c.output(request); !maps.Equal(got, want) {
		t.Errorf("read %q, want %q", got, want)
	}
	request.Stream = "stderr"
	only := maps.Clone(want)
	maps.DeleteFunc(only, func(key, _ string) bool { return !strings.HasPrefix(key, "stderr") })
	if got := c.output(request); !maps.Equal(got, only) {
		t.Errorf("read of standard error %q, want %q", got, only)
	}
	for rank, id := range nodes { // what the welcome of a stream that comes back says
		s := &Session{engine: c.engine, node: id, hello: []coordinator.RunID{run, "elsewhere/x#1"}}
		offsets := []LogOffset{
			{Run: run, Stream: "stdout", Offset: uint64(len(want[fmt.Sprintf("stdout %d of 3", rank)]))},
			{Run: run, Stream: "stderr", Offset: uint64(len(want[fmt.Sprintf("stderr %d of 3", rank)]))},
		}
		if got := s.Offsets(); !slices.Equal(got, offsets) {
			t.Errorf("rank %d is told %v, want %v", rank, got, offsets)
		}
	}

	if _, err := c.engine.SetScheduling(t.Context(), c.admin, "n2", "drain", "", true); err != nil {
		t.Fatal(err)
	}
	c.awaitStatus(w.ID, coordinator.StatusQueued)
	const late = "late\n"
	key := "stdout 2 of 3"
	fresh := &Session{engine: c.engine, node: "n3", ranks: map[coordinator.RunID]int{}}
	if _, err := fresh.AppendLog(run, "stdout", uint64(len(want[key])), []byte(late), true); err != nil {
		t.Fatal(err)
	}
	want[key] += late
	if got := c.output(LogRequest{Workflow: string(w.ID), Job: "mesh", Attempt: 1, Follow: true}); !maps.Equal(got, want) {
		t.Errorf("read of the first attempt %q, want %q", got, want)
	}
}

// TestEndOfAGangsOutput: a reader who follows gets what each rank wrote to its last byte, however late
// the bytes come.
func TestEndOfAGangsOutput(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	c.set(plainConfig)
	nodes := []coordinator.NodeID{"n1", "n2", "n3"}
	for i, id := range nodes {
		c.join(newHost(string(id), 4, func(StartRun) *RunStatus {
			return &RunStatus{State: RunEnded, Cause: CauseExited, StdoutBytes: uint64(10 * (3 - i))}
		}))
	}
	w := c.awaitStatus(c.start(gangOfThree).ID, coordinator.StatusFinished)
	sessions := c.live(nodes...)
	read := make(chan map[string]string)
	go func() { read <- c.output(LogRequest{Workflow: string(w.ID), Follow: true}) }()
	want := map[string]string{}
	for i, id := range nodes {
		text := strings.Repeat(fmt.Sprint(i), 10*(3-i))
		want[fmt.Sprintf("stdout %d of 3", i)] = text
		if _, err := sessions[id].AppendLog(w.Jobs[0].ID.Run(1), "stdout", 0, []byte(text), true); err != nil {
			t.Fatal(err)
		}
	}
	if got := <-read; !maps.Equal(got, want) {
		t.Errorf("read %q, want %q", got, want)
	}
}

// TestALogDiskThatFails: the piece is not counted as stored, and is when it comes again later.
func TestALogDiskThatFails(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	c.set(plainConfig)
	c.join(newHost("n1", 4, nil))
	w := c.awaitStatus(c.start("version: v1\nname: w\njobs: {a: {command: [x]}}\n").ID, coordinator.StatusRunning)
	run := w.Jobs[0].ID.Run(1)
	session := c.live("n1")["n1"]
	dir := filepath.Join(t.TempDir(), "logs")
	broken, err := logs.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	good := c.engine.opt.Logs
	c.engine.opt.Logs = broken
	if err := errors.Join(os.Remove(dir), os.WriteFile(dir, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := session.AppendLog(run, "stdout", 0, []byte("text"), true); coordinator.ErrorKindOf(err) != coordinator.ErrInternal {
		t.Errorf("a disk that fails gave %v", err)
	}
	if err := broken.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := session.AppendLog(run, "stdout", 0, []byte("text"), true); coordinator.ErrorKindOf(err) != coordinator.ErrUnavailable {
		t.Errorf("closed logs gave %v", err)
	}
	c.engine.opt.Logs = good
	if next, err := session.AppendLog(run, "stdout", 0, []byte("text"), true); err != nil || next != 4 {
		t.Errorf("sent again: %d, %v", next, err)
	}
}
