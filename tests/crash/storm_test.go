package crash

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"substrate/proto/apiv1"
	"substrate/tests/cluster"
)

// wide is a machine on which everything that is ready runs at once.
func wide() cluster.Machine { return cluster.Machine{Cores: 64, MemoryMiB: 64 << 10} }

// quick keeps agents from waiting long for a coordinator that is back.
func quick() []string { return []string{"--reconnect-max", "300ms"} }

// storm submits workflows while something is killed again and again.
type storm struct {
	t       *testing.T
	c       *cluster.Cluster
	rng     *rand.Rand
	records string // every job appends its run to a file of its own

	mu        sync.Mutex
	ids       map[string]string // idempotency key → workflow
	files     map[string][]byte
	attempts  int // submissions tried
	existed   int // answers to a repeated key
	submitted sync.WaitGroup
}

func newStorm(t *testing.T, opt cluster.Options) *storm {
	s := &storm{t: t, rng: chance(t), records: t.TempDir(), ids: map[string]string{}, files: map[string][]byte{}}
	opt.Machine, opt.AgentArgs = wide(), quick()
	s.c = cluster.Start(t, opt)
	return s
}

// workflow draws a file of two or three jobs: one after the other, or two after the first. Each job
// takes a moment, so that some run at any instant.
func (s *storm) workflow(key string) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "version: v1\nname: %s\njobs:\n", key)
	job := func(name, after string) {
		fmt.Fprintf(&b, "  %s:\n    resource: {memory: {size: 1MiB}}\n    env: [%q]\n", name, "FILE="+filepath.Join(s.records, key+"."+name))
		if after != "" {
			fmt.Fprintf(&b, "    depends-on: [{name: %s, status: FINISHED}]\n", after)
		}
		fmt.Fprintf(&b, "    script: |\n      echo \"$SUBSTRATE_RUN_ID $SUBSTRATE_ATTEMPT\" >> \"$FILE\"\n      echo began %s\n      sleep 0.%03d\n      echo done %s\n",
			name, s.rng.IntN(400), name)
	}
	job("a", "")
	job("b", "a")
	switch s.rng.IntN(3) {
	case 0:
		job("c", "a")
	case 1:
		job("c", "b")
	}
	return []byte(b.String())
}

// submit files workflows one after the other in the background, each until it is answered.
func (s *storm) submit(from, to int, pause time.Duration) {
	for i := from; i < to; i++ {
		key := fmt.Sprintf("w%03d", i)
		file := s.workflow(key)
		s.mu.Lock()
		s.files[key] = file
		s.mu.Unlock()
	}
	s.submitted.Go(func() {
		for i := from; i < to; i++ {
			key := fmt.Sprintf("w%03d", i)
			err := cluster.Poll(cluster.UpWithin, func(context.Context) error { return s.try(key) })
			if err != nil {
				s.t.Errorf("workflow %s was not accepted: %v", key, err)
				return
			}
			time.Sleep(pause)
		}
	})
}

func (s *storm) try(key string) error {
	s.mu.Lock()
	s.attempts++
	file := s.files[key]
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	r, err := s.c.Client().Workflows.StartWorkflow(ctx, &apiv1.StartWorkflowRequest{Yaml: file, File: key, IdempotencyKey: key})
	if err != nil {
		if code := status.Code(err); code != codes.Unavailable && code != codes.DeadlineExceeded && code != codes.Canceled {
			s.t.Errorf("workflow %s: the coordinator refuses: %v", key, err)
		}
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ids[key] = r.GetWorkflow().GetId()
	if r.GetExisted() {
		s.existed++
	}
	return nil
}

// ran counts the jobs that have begun.
func (s *storm) ran() int {
	names, err := os.ReadDir(s.records)
	if err != nil {
		s.t.Fatal(err)
	}
	return len(names)
}

// awaitWork is for before the last kill: on a slow machine it waits for work that the kills could have hurt.
func (s *storm) awaitWork(least int) {
	cluster.Until(s.t, cluster.UpWithin, fmt.Sprintf("%d jobs to begin", least), func(context.Context) error {
		if n := s.ran(); n < least {
			return fmt.Errorf("%d have", n)
		}
		return nil
	})
}

func (s *storm) drawn(most time.Duration) time.Duration {
	return time.Duration(s.rng.Int64N(int64(most)))
}

// settle waits until every workflow has ended, and checks all of them.
func (s *storm) settle(want int) {
	t := s.t
	began := time.Now()
	s.submitted.Wait()
	accepted := time.Now()
	if len(s.ids) != want || t.Failed() {
		t.Fatalf("%d of %d workflows were accepted", len(s.ids), want)
	}
	cluster.Until(t, 2*time.Minute, "every workflow to end", func(ctx context.Context) error {
		st, err := s.c.Client().Identity.GetStatus(ctx, &apiv1.GetStatusRequest{})
		if err == nil && st.GetWaiting()+st.GetRunning() > 0 {
			err = fmt.Errorf("%d wait, %d run", st.GetWaiting(), st.GetRunning())
		}
		return err
	})
	ended := time.Now()
	s.checkListing(want)
	byWorkflow := s.checkAllEvents()
	for key, id := range s.ids {
		s.checkWorkflow(key, id, byWorkflow[id])
	}
	checked := time.Now()
	for _, n := range s.c.Nodes {
		awaitForgotten(t, n)
	}
	t.Logf("after the last restart: all accepted after %s, ended after %s, checked in %s, forgotten after %s", accepted.Sub(began).Round(time.Millisecond),
		ended.Sub(began).Round(time.Millisecond), checked.Sub(ended).Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
}

// checkListing: there are exactly the accepted workflows, one for each key.
func (s *storm) checkListing(want int) {
	t := s.t
	accepted := map[string]string{}
	for key, id := range s.ids {
		if other, ok := accepted[id]; ok {
			t.Errorf("keys %s and %s were answered with the same workflow", key, other)
		}
		accepted[id] = key
	}
	var listed int
	for token := ""; ; {
		r, err := s.c.Client().Workflows.ListWorkflows(t.Context(), &apiv1.ListWorkflowsRequest{PageSize: 100, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range r.GetWorkflows() {
			listed++
			if accepted[w.GetId()] == "" {
				t.Errorf("workflow %s (%s) exists and no key was answered with it", w.GetId(), w.GetName())
			}
		}
		if token = r.GetNextPageToken(); token == "" {
			break
		}
	}
	if listed != want {
		t.Errorf("%d workflows are listed, wanted %d", listed, want)
	}
	for _, key := range []string{"w000", fmt.Sprintf("w%03d", want-1)} {
		id := s.ids[key]
		if err := s.try(key); err != nil || s.ids[key] != id {
			t.Errorf("key %s is answered with %s, before with %s: %v", key, s.ids[key], id, err)
		}
	}
}

// checkAllEvents: sequences of the cluster ascend strictly. It returns them by workflow.
func (s *storm) checkAllEvents() map[string][]*apiv1.Event {
	all, err := s.c.Client().Events(s.t.Context(), "")
	if err != nil {
		s.t.Fatal(err)
	}
	out := map[string][]*apiv1.Event{}
	for i, ev := range all {
		if i > 0 && ev.GetSequence() <= all[i-1].GetSequence() {
			s.t.Errorf("event %d follows event %d", ev.GetSequence(), all[i-1].GetSequence())
		}
		if ev.GetWorkflow() != "" {
			out[ev.GetWorkflow()] = append(out[ev.GetWorkflow()], ev)
		}
	}
	return out
}

// checkWorkflow: every job ran once, in order, to its end, and told so once.
func (s *storm) checkWorkflow(key, id string, events []*apiv1.Event) {
	t := s.t
	w, err := s.c.Client().Workflows.GetWorkflow(t.Context(), &apiv1.GetWorkflowRequest{Id: id})
	if err != nil {
		t.Errorf("accepted workflow %s: %v", key, err)
		return
	}
	if w.GetStatus() != "finished" {
		t.Errorf("workflow %s is %s: %v", key, w.GetStatus(), w.GetJobs())
	}
	told := map[string][]string{}
	for i, ev := range events {
		told[ev.GetJob()] = append(told[ev.GetJob()], ev.GetKind())
		if last := i == len(events)-1; last != (ev.GetSubject() == "workflow" && ev.GetKind() == "finished") {
			t.Errorf("workflow %s: event %d of %d is %v", key, i+1, len(events), ev)
		}
	}
	if !slices.Equal(told[""], []string{"submitted", "finished"}) {
		t.Errorf("workflow %s: its own events are %v", key, told[""])
	}
	ended := map[string]time.Time{}
	for _, j := range w.GetJobs() {
		ended[j.GetName()] = j.GetEnded().AsTime()
		if j.GetStatus() != "finished" || j.GetAttempt() != 1 || j.ExitCode == nil || j.GetExitCode() != 0 {
			t.Errorf("workflow %s: job %v", key, j)
		}
		if kinds := told[j.GetName()]; !slices.Equal(kinds, []string{"ready", "started", "finished"}) {
			t.Errorf("workflow %s: events of job %s are %v", key, j.GetName(), kinds)
		}
		record, err := os.ReadFile(filepath.Join(s.records, key+"."+j.GetName()))
		if want := j.GetId() + "#1 1\n"; err != nil || string(record) != want {
			t.Errorf("workflow %s: job %s left %q (%v), wanted %q", key, j.GetName(), record, err, want)
		}
		for _, on := range j.GetDependsOn() {
			if j.GetStarted().AsTime().Before(ended[on]) {
				t.Errorf("workflow %s: %s started %s, before %s ended %s", key, j.GetName(), j.GetStarted().AsTime(), on, ended[on])
			}
		}
		out, err := s.c.Client().Output(t.Context(), id, j.GetName(), "stdout")
		if want := fmt.Sprintf("began %s\ndone %s\n", j.GetName(), j.GetName()); err != nil || string(out) != want {
			t.Errorf("workflow %s: output of %s is %q (%v), wanted %q", key, j.GetName(), out, err, want)
		}
	}
}

// awaitForgotten: a node keeps nothing of runs whose end and output the coordinator has.
func awaitForgotten(t *testing.T, n *cluster.Node) {
	t.Helper()
	cluster.Until(t, 40*time.Second, n.Name+" to forget its runs", func(context.Context) error {
		left, err := os.ReadDir(filepath.Join(n.Dir, "runs"))
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("it keeps %d, such as %s", len(left), left[0].Name())
		}
		return err
	})
}

// TestCoordinatorKilled: two hundred workflows, ten kills, each at a drawn instant of submission and work;
// some of them hit a coordinator that has not come up yet.
func TestCoordinatorKilled(t *testing.T) {
	const workflows, kills, least = 200, 10, 50
	s := newStorm(t, cluster.Options{Nodes: 1})
	var ran, early int
	for kill := range kills {
		s.submit(kill*workflows/kills, (kill+1)*workflows/kills, 15*time.Millisecond)
		if kill == kills-1 {
			s.awaitWork(least)
		}
		time.Sleep(s.drawn(800 * time.Millisecond))
		ran = s.ran()
		s.c.Coordinator.Kill()
		if s.rng.IntN(3) == 0 {
			early++
			if err := s.c.Coordinator.Launch(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(s.drawn(300 * time.Millisecond))
			s.c.Coordinator.Kill()
		}
		if err := s.c.Coordinator.Start(); err != nil {
			t.Fatal(err)
		}
	}
	if ran < least {
		t.Fatalf("only %d jobs had begun before the last kill: the run says nothing", ran)
	}
	s.settle(workflows)
	t.Logf("%d jobs had begun before the last kill, %d in all; %d further kills came before it was up; %d submissions tried, %d answered again",
		ran, s.ran(), early, s.attempts, s.existed)
}

// TestCoordinatorTerminated: by SIGTERM, while many submit: each caller is answered or told to come again.
func TestCoordinatorTerminated(t *testing.T) {
	const rounds, callers, each, least = 5, 6, 2, 20
	s := newStorm(t, cluster.Options{Nodes: 1})
	var ran int
	for round := range rounds {
		for caller := range callers {
			from := (round*callers + caller) * each
			s.submit(from, from+each, s.drawn(20*time.Millisecond))
		}
		if round == rounds-1 {
			s.awaitWork(least)
		}
		time.Sleep(s.drawn(150 * time.Millisecond))
		ran = s.ran()
		stopWell(t, s.c.Coordinator.Process)
		if err := s.c.Coordinator.Start(); err != nil {
			t.Fatal(err)
		}
	}
	s.settle(rounds * callers * each)
	t.Logf("%d jobs had begun before the last stop, %d in all; %d submissions tried, %d answered again", ran, s.ran(), s.attempts, s.existed)
}

// TestAgentKilled: the same with the agent; runs go on under their keeper.
func TestAgentKilled(t *testing.T) {
	const workflows, kills, least = 60, 10, 20
	s := newStorm(t, cluster.Options{Nodes: 1})
	var ran int
	for kill := range kills {
		s.submit(kill*workflows/kills, (kill+1)*workflows/kills, 15*time.Millisecond)
		if kill == kills-1 {
			s.awaitWork(least)
		}
		time.Sleep(s.drawn(500 * time.Millisecond))
		ran = s.ran()
		s.c.Nodes[0].Kill()
		time.Sleep(s.drawn(100 * time.Millisecond))
		if err := s.c.Nodes[0].Start(); err != nil {
			t.Fatal(err)
		}
	}
	if ran < least {
		t.Fatalf("only %d jobs had begun before the last kill: the run says nothing", ran)
	}
	s.settle(workflows)
	t.Logf("%d jobs had begun before the last kill, %d in all", ran, s.ran())
}

// TestBothKilled: coordinator and agent die together and come back in a drawn order; now and then by SIGTERM.
func TestBothKilled(t *testing.T) {
	const workflows, kills, least = 60, 8, 20
	s := newStorm(t, cluster.Options{Nodes: 1})
	coordinator, agent := s.c.Coordinator, s.c.Nodes[0]
	var ran int
	for kill := range kills {
		s.submit(kill*workflows/kills, (kill+1)*workflows/kills, 15*time.Millisecond)
		if kill == kills-1 {
			s.awaitWork(least)
		}
		time.Sleep(s.drawn(600 * time.Millisecond))
		ran = s.ran()
		ends := []func(){coordinator.Kill, agent.Kill}
		if s.rng.IntN(4) == 0 {
			ends[s.rng.IntN(2)] = func() { stopWell(t, agent.Process); stopWell(t, coordinator.Process) }
		}
		starts := []func() error{coordinator.Launch, agent.Start}
		if s.rng.IntN(2) == 0 {
			slices.Reverse(ends)
		}
		if s.rng.IntN(2) == 0 {
			slices.Reverse(starts)
		}
		for _, f := range ends {
			f()
		}
		for _, f := range starts {
			if err := f(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(s.drawn(100 * time.Millisecond))
		}
		if err := coordinator.AwaitReady(cluster.UpWithin); err != nil {
			t.Fatal(err)
		}
	}
	if ran < least {
		t.Fatalf("only %d jobs had begun before the last kill: the run says nothing", ran)
	}
	s.settle(workflows)
	t.Logf("%d jobs had begun before the last kill, %d in all", ran, s.ran())
}
