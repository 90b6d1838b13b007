package crash

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"substrate/proto/apiv1"
	"substrate/tests/cluster"
)

// rivals are workflows of one job that want each other's room. A job holds a lock as long as any process of it
// lives, and says in a file of its own when it began, when it was done, and whether another had the lock.
type rivals struct {
	*storm
}

// rival draws a job: batch work that gives way, or work that takes its room; one in three on both nodes.
func (r *rivals) rival(key string) string {
	cores, nodes, class, length := 2+2*r.rng.IntN(2), 1, "batch\n    retry-on-preempt: true", 300+r.rng.IntN(900)
	if r.rng.IntN(2) == 0 {
		cores, class, length = 3, "on-demand", 50+r.rng.IntN(300)
	}
	if r.rng.IntN(3) == 0 {
		nodes = 2
	}
	ends := "" // of its own when it is asked to, or only when it is killed
	if r.rng.IntN(3) == 0 {
		ends = "trap '' TERM\n      "
	}
	return fmt.Sprintf(`version: v1
name: %[1]s
jobs:
  j:
    class: %[2]s
    resource: {cpu: {cores: %[3]d}, memory: {size: 1MiB}}
    multinode: {nodes: %[4]d}
    policy: {restart: on-node-fault}
    env: ["FILE=%[5]s"]
    script: |
      %[6]sexec 9>> "$FILE.$SUBSTRATE_RANK.lock"
      flock -n 9 || echo "twice $SUBSTRATE_RUN_ID" >> "$FILE"
      echo "began $SUBSTRATE_RUN_ID" >> "$FILE"
      sleep %.3[7]f
      echo "done $SUBSTRATE_RUN_ID $SUBSTRATE_RANK" >> "$FILE"
`, key, class, cores, nodes, filepath.Join(r.records, key), ends, float64(length)/1000)
}

// strike kills one of those that keep the work, or all, and starts it again.
func (r *rivals) strike() {
	t, c := r.t, r.c
	node := c.Nodes[r.rng.IntN(len(c.Nodes))]
	again := func(start func() error) {
		if err := start(); err != nil {
			t.Fatal(err)
		}
	}
	keeper := func() {
		for _, pid := range node.Keepers() {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may just have gone
		}
	}
	switch r.rng.IntN(6) {
	case 0:
		node.Kill()
		again(node.Start)
	case 1:
		keeper()
	case 2:
		node.Kill()
		keeper()
		again(node.Start)
	case 3:
		c.Coordinator.Kill()
		node.Kill()
		again(node.Start)
		again(c.Coordinator.Launch)
	default:
		c.Coordinator.Kill()
		time.Sleep(r.drawn(100 * time.Millisecond))
		again(c.Coordinator.Launch)
	}
}

// TestPreemptionStorm: work that takes the room of other work, gangs too, while all who keep it are killed at drawn
// instants: everything finishes, nothing runs twice at a time, and no room stays held.
func TestPreemptionStorm(t *testing.T) {
	const workflows, kills = 36, 10
	s := &storm{t: t, rng: chance(t), records: t.TempDir(), ids: map[string]string{}, files: map[string][]byte{}}
	s.c = cluster.Start(t, cluster.Options{Nodes: 2, Machine: cluster.Machine{Cores: 4, MemoryMiB: 8 << 10}, AgentArgs: quick(),
		Config: cluster.Anywhere + "scheduler: {preemptionNotice: 1s, killTimeout: 1s}\n"})
	r := &rivals{storm: s}
	for i := range workflows {
		key := fmt.Sprintf("w%03d", i)
		s.files[key] = []byte(r.rival(key))
	}
	s.submitted.Go(func() {
		for i := range workflows {
			key := fmt.Sprintf("w%03d", i)
			if err := cluster.Poll(cluster.UpWithin, func(context.Context) error { return s.try(key) }); err != nil {
				t.Errorf("workflow %s was not accepted: %v", key, err)
				return
			}
			time.Sleep(200 * time.Millisecond)
		}
	})
	for range kills {
		time.Sleep(300*time.Millisecond + s.drawn(600*time.Millisecond))
		r.strike()
	}
	s.submitted.Wait()
	if err := s.c.Coordinator.AwaitReady(cluster.UpWithin); err != nil {
		t.Fatal(err)
	}
	cluster.Until(t, time.Minute, "every workflow to end", func(ctx context.Context) error {
		st, err := s.c.Client().Identity.GetStatus(ctx, &apiv1.GetStatusRequest{})
		if err == nil && st.GetWaiting()+st.GetRunning() > 0 {
			err = fmt.Errorf("%d wait, %d run", st.GetWaiting(), st.GetRunning())
		}
		return err
	})
	told := s.checkAllEvents()
	var preempted int
	for key, id := range s.ids {
		preempted += r.check(key, id, told[id])
	}
	if preempted == 0 {
		t.Error("nothing was preempted: the run says nothing")
	}
	// Room that is still held for somebody would keep this from the start.
	all := s.c.StartWorkflow("version: v1\nname: all\njobs:\n  j: {class: batch, command: [\"true\"], resource: {cpu: {cores: 4}, memory: {size: 1MiB}}, multinode: {nodes: 2}}\n")
	s.c.AwaitJob(10*time.Second, all, "j", "finished")
	for _, n := range s.c.Nodes {
		awaitForgotten(t, n)
	}
	t.Logf("%d preempted attempts", preempted)
}

// check returns how often the workflow's job was preempted.
func (r *rivals) check(key, id string, events []*apiv1.Event) int {
	t := r.t
	j, err := r.c.Client().Job(t.Context(), id, "j")
	if err != nil {
		t.Fatal(err)
	}
	record, err := os.ReadFile(filepath.Join(r.records, key))
	if err != nil {
		t.Errorf("%s left no record: %v", key, err)
	}
	var kinds []string
	asked, yielded := map[string]int{}, map[string]int{}
	for _, ev := range events {
		kinds = append(kinds, ev.GetKind())
		switch run := ev.GetMetadata()["run"]; {
		case ev.GetKind() == "preempted":
			yielded[run]++
		case ev.GetKind() == "preempt-initiated" && strings.HasPrefix(ev.GetMetadata()["victim"], j.GetId()+"#"):
			asked[ev.GetMetadata()["victim"]]++
		}
	}
	text := string(record)
	done := fmt.Sprintf("done %s#%d ", j.GetId(), j.GetAttempt())
	switch {
	case j.GetStatus() != "finished" || j.ExitCode == nil || j.GetExitCode() != 0:
		t.Errorf("%s: %v, events %v", key, j, kinds)
	case strings.Contains(text, "twice") || !strings.Contains(text, done):
		t.Errorf("%s: it left\n%sevents %v", key, text, kinds)
	}
	for run, n := range asked {
		if n != 1 || yielded[run] != 1 {
			t.Errorf("%s: run %s was asked %d times and gave way %d times, events %v", key, run, n, yielded[run], kinds)
		}
	}
	for run, n := range yielded {
		if asked[run] == 0 {
			t.Errorf("%s: run %s gave way %d times and was not asked, events %v", key, run, n, kinds)
		}
	}
	return len(yielded)
}
