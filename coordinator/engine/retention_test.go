package engine

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
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

// keysOf lists what the store holds of a workflow.
func keysOf(c *cluster, st store.Store, id coordinator.WorkflowID) []string {
	c.t.Helper()
	var keys []string
	if err := walk(c.t.Context(), st, "", loadPage, func(entry store.Entry) error {
		if strings.Contains(entry.Key, string(id)) {
			keys = append(keys, entry.Key)
		}
		return nil
	}); err != nil {
		c.t.Fatal(err)
	}
	return keys
}

// TestFinishedWorkflowsExpire: archived, gone from sight, from the store and from the disk; what is younger or
// still open stays, also over a restart.
func TestFinishedWorkflowsExpire(t *testing.T) {
	st := store.NewMemory()
	c := newCluster(t, st)
	dir := t.TempDir()
	c.set(plainConfig + "retention: {finishedWorkflows: 24h, archive: " + dir + "}\n")
	c.join(newHost("n1", 8, func(m StartRun) *RunStatus {
		if m.Job.Name == "endless" {
			return nil
		}
		return succeed(m)
	}))
	old := c.awaitStatus(c.start("version: v1\nname: old\njobs: {a: {command: [x]}, b: {command: [x], task-array: {start: 1, end: 200}}}\n").ID, coordinator.StatusFinished)
	open := c.awaitStatus(c.start("version: v1\nname: open\njobs: {endless: {command: [x]}}\n").ID, coordinator.StatusRunning)
	run := old.Jobs[0].ID.Run(1)
	if _, err := c.logs.Append(run, "stdout", 0, []byte("text\n")); err != nil {
		t.Fatal(err)
	}
	c.ahead.Store(int64(30 * time.Hour))
	young := c.awaitStatus(c.start("version: v1\nname: young\njobs: {a: {command: [x]}}\n").ID, coordinator.StatusFinished)
	records := len(keysOf(c, st, old.ID))
	if err := c.engine.sweepOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.engine.Workflow(t.Context(), c.admin, string(old.ID)); coordinator.ErrorKindOf(err) != coordinator.ErrNotFound {
		t.Errorf("the old workflow: %v", err)
	}
	if left := keysOf(c, st, old.ID); len(left) != 0 {
		t.Errorf("left in the store: %v", left)
	}
	if n, _ := c.logs.Size(run, "stdout"); n != 0 {
		t.Errorf("%d bytes of output are left", n)
	}
	c.close()
	c = newCluster(t, st.Clone())
	for _, w := range []WorkflowView{open, young} {
		if _, err := c.engine.Workflow(t.Context(), c.admin, string(w.ID)); err != nil {
			t.Errorf("%s: %v", w.Name, err)
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "workflows-*.jsonl"))
	if err != nil || len(files) != 1 {
		t.Fatalf("archive files %v, %v", files, err)
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{}
	for line := range strings.Lines(string(text)) {
		var a archived
		if err := json.Unmarshal([]byte(line), &a); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		kinds[a.Kind]++
	}
	if kinds["workflow"] != 1 || kinds["end"] != 1 || kinds["allocation"] != 201 || records != kinds["workflow"]+kinds["allocation"]+kinds["events"] {
		t.Errorf("%d records, archived %v", records, kinds)
	}
}

// TestErasingGoesOn: a coordinator that dies while it erases a workflow neither brings it back nor leaves its records.
func TestErasingGoesOn(t *testing.T) {
	st := store.NewMemory()
	c := newCluster(t, st)
	c.set(plainConfig + "retention: {finishedWorkflows: 1h}\n")
	c.join(newHost("n1", 8, succeed))
	w := c.awaitStatus(c.start("version: v1\nname: w\njobs: {b: {command: [x], task-array: {start: 1, end: 200}}}\n").ID, coordinator.StatusFinished)
	c.ahead.Store(int64(2 * time.Hour))
	total := st.Commits()
	if err := c.engine.sweepOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	writes := st.Commits() - total
	c.close()
	if writes < 2 {
		t.Fatalf("%d writes erase a workflow of 200 tasks", writes)
	}
	for cut := range writes {
		st := store.NewMemory()
		c := newCluster(t, st)
		c.set(plainConfig + "retention: {finishedWorkflows: 1h}\n")
		c.join(newHost("n1", 8, succeed))
		w = c.awaitStatus(c.start("version: v1\nname: w\njobs: {b: {command: [x], task-array: {start: 1, end: 200}}}\n").ID, coordinator.StatusFinished)
		c.ahead.Store(int64(2 * time.Hour))
		st.FailCommit(cut+1, store.Fault{Apply: 1})
		_ = c.engine.sweepOnce(t.Context())
		c.close()
		st = st.Clone()
		c = newCluster(t, st)
		c.ahead.Store(int64(2 * time.Hour))
		if list, _, err := c.engine.Workflows(t.Context(), c.admin, "", Page{}); err != nil || len(list) > 1 || len(list) == 1 && list[0].Status != coordinator.StatusFinished {
			t.Errorf("cut at write %d: %+v, %v", cut, list, err)
		}
		if err := c.engine.sweepOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		if left := keysOf(c, st, w.ID); len(left) != 0 {
			t.Errorf("cut at write %d: left in the store %v", cut, left)
		}
		c.close()
	}
}

func TestOldRevisionsAndEventsExpire(t *testing.T) {
	st := store.NewMemory()
	c := newCluster(t, st)
	for i := range 5 {
		c.set(plainConfig + strings.Repeat("# again\n", i))
	}
	c.ahead.Store(int64(48 * time.Hour))
	c.set(plainConfig + "retention: {configRevisions: 2, events: 24h}\n")
	before := len(c.events(""))
	if err := c.engine.sweepOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	revs, _, err := c.engine.ConfigRevisions(t.Context(), c.admin, Page{})
	if err != nil || len(revs) != 2 || revs[0].Revision != 6 || revs[1].Revision != 5 {
		t.Errorf("revisions %+v, %v", revs, err)
	}
	c.close()
	c = newCluster(t, st.Clone()) // followers are served from memory as long as they can be
	c.ahead.Store(int64(48 * time.Hour))
	if revs, _, err := c.engine.ConfigRevisions(t.Context(), c.admin, Page{}); err != nil || len(revs) != 2 {
		t.Errorf("after a restart: revisions %+v, %v", revs, err)
	}
	after := c.events("")
	if len(after) == 0 || len(after) >= before {
		t.Errorf("%d events of %d are left", len(after), before)
	}
	for _, ev := range after {
		if ev.Time.Before(c.engine.opt.Now().Add(-24 * time.Hour)) {
			t.Errorf("old event %+v", ev)
		}
	}
}
