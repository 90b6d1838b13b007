package engine

import (
	"fmt"
	"testing"

	"substrate/coordinator"
	"substrate/coordinator/store"
)

// TestHalfATurn lets a coordinator die between the groups of one turn: what was kept must go on, and be
// told once.
func TestHalfATurn(t *testing.T) {
	const tasks = 2*allocationsPerGroup + 20 // three groups
	yaml := fmt.Sprintf("version: v1\nname: wide\njobs:\n  many: {command: [x], task-array: {start: 1, end: %d}, resource: {memory: {size: 1MiB}}}\n"+
		"  after: {command: [x], depends-on: [{name: many, status: FINISHED}], resource: {memory: {size: 1MiB}}}\n"+
		"  never: {command: [x], depends-on: [{name: many, status: FAILED}], task-array: {start: 1, end: 150}}\n", tasks)
	memory := store.NewMemory()
	memory.Record()
	c := newCluster(t, memory)
	c.set(plainConfig)
	started := len(memory.Clones())
	w := c.start(yaml)
	c.join(newHost("n1", 64, succeed))
	c.awaitStatus(w.ID, coordinator.StatusCancelled)
	c.close()
	states := memory.Clones()[started:]
	if len(states) < 10 {
		t.Fatalf("only %d states between two groups", len(states))
	}
	for i, st := range states {
		if i > 8 && i < len(states)-12 && i%7 != 0 {
			continue // a sample of the middle
		}
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			c := newCluster(t, st)
			c.join(newHost("n2", 64, succeed))
			c.join(newHost("n1", 64, succeed)) // it has kept nothing: what ran there is given up
			if _, err := c.engine.Workflow(t.Context(), c.admin, string(w.ID)); coordinator.ErrorKindOf(err) == coordinator.ErrNotFound {
				return
			}
			c.await(w.ID, "ended", func(v WorkflowView) bool { return v.Status.Ended() })
			told := map[string]int{}
			for _, ev := range c.events(w.ID) {
				told[ev.Kind+" "+ev.Job]++
			}
			for what, n := range told {
				if n != 1 {
					t.Errorf("%q is told %d times", what, n)
				}
			}
			if told["submitted "] != 1 || told["ready many"] != 1 || told["ready after"]+told["cancelled after"] != 1 || told["cancelled never"]+told["ready never"] != 1 {
				t.Errorf("told %v", told)
			}
		})
	}
}
