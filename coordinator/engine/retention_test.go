package engine

import (
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/store"
)

func TestOldOutputGoesUnlessItsWorkflowIsOpen(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	c.set(plainConfig + "retention: {logs: 1h}\n")
	h := newHost("n1", 4, func(m StartRun) *RunStatus {
		if m.Job.Name == "endless" {
			return nil
		}
		return succeed(m)
	})
	c.join(h)
	over := c.awaitStatus(c.start("version: v1\nname: over\njobs: {short: {command: [x]}}\n").ID, coordinator.StatusFinished)
	open := c.awaitStatus(c.start("version: v1\nname: open\njobs: {endless: {command: [x]}}\n").ID, coordinator.StatusRunning)
	runs := []coordinator.RunID{over.Jobs[0].ID.Run(1), open.Jobs[0].ID.Run(1)}
	for _, run := range runs {
		if _, err := c.logs.Append(run, "stdout", 0, []byte("text\n")); err != nil {
			t.Fatal(err)
		}
	}
	size := func(run coordinator.RunID) uint64 {
		n, _ := c.logs.Size(run, "stdout") // not found is 0
		return n
	}
	if err := c.engine.sweepOnce(t.Context()); err != nil || size(runs[0]) != 5 || size(runs[1]) != 5 {
		t.Fatalf("young output went: %v", err)
	}
	c.ahead.Store(int64(2 * time.Hour))
	c.set(plainConfig + "retention: {logs: 0}\n")
	if err := c.engine.sweepOnce(t.Context()); err != nil || size(runs[0]) != 5 {
		t.Fatalf("output that is to be kept for ever went: %v", err)
	}
	c.set(plainConfig + "retention: {logs: 1h}\n# again\n")
	if err := c.engine.sweepOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if size(runs[0]) != 0 || size(runs[1]) != 5 {
		t.Errorf("ended workflow keeps %d bytes, open one %d", size(runs[0]), size(runs[1]))
	}
}
