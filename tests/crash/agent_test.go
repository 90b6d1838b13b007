package crash

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"substrate/proto/apiv1"
	"substrate/tests/cluster"
)

// stopWithin is how long a daemon may take to end after SIGTERM.
const stopWithin = 5 * time.Second

// stopWell asks a daemon to end and expects that it does, cleanly and soon.
func stopWell(t *testing.T, p *cluster.Process) {
	t.Helper()
	if !p.Running() {
		return
	}
	e, err := p.Stop(stopWithin)
	if err != nil || e.Code != 0 {
		t.Errorf("%s after SIGTERM: %v, %v\n%s", p.Name, e, err, p.LastWords())
	}
	t.Logf("%s ended %s after SIGTERM", p.Name, e.After.Round(time.Millisecond))
}

// bench is a cluster of one node with a directory that jobs and test share: a job writes its process id
// to NAME.pid and goes on when NAME.go, or all.go, is there.
type bench struct {
	*cluster.Cluster
	t   *testing.T
	dir string
}

func newBench(t *testing.T, opt cluster.Options) *bench {
	opt.Machine = wide()
	opt.AgentArgs = append(opt.AgentArgs, quick()...)
	return &bench{Cluster: cluster.Start(t, opt), t: t, dir: t.TempDir()}
}

// job is one job of a workflow file. The script runs between "the process id is known" and the end.
type job struct{ name, policy, script string }

// run submits a workflow of independent jobs.
func (b *bench) run(jobs ...job) (workflow string) {
	b.t.Helper()
	var y strings.Builder
	y.WriteString("version: v1\nname: bench\njobs:\n")
	for _, j := range jobs {
		fmt.Fprintf(&y, "  %s:\n    resource: {memory: {size: 1MiB}}\n    env: [%q]\n", j.name, "DIR="+b.dir)
		if j.policy != "" {
			fmt.Fprintf(&y, "    policy: %s\n", j.policy)
		}
		// The name appears with its content: a reader must not see half of it.
		fmt.Fprintf(&y, "    script: |\n      echo $$ > $DIR/%[1]s.$SUBSTRATE_ATTEMPT.new\n      mv $DIR/%[1]s.$SUBSTRATE_ATTEMPT.new $DIR/%[1]s.$SUBSTRATE_ATTEMPT.pid\n", j.name)
		for line := range strings.Lines(j.script) {
			fmt.Fprintf(&y, "      %s\n", strings.TrimSuffix(line, "\n"))
		}
	}
	return b.StartWorkflow(y.String())
}

// wait is a script that waits for the test's word.
func wait(name string) string {
	return fmt.Sprintf("while ! [ -e $DIR/%s.go ] && ! [ -e $DIR/all.go ]; do sleep 0.05; done\n", name)
}

func (b *bench) say(name string) {
	b.t.Helper()
	if err := os.WriteFile(filepath.Join(b.dir, name+".go"), nil, 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// pid waits for the process of a job's attempt.
func (b *bench) pid(name string, attempt int) int {
	b.t.Helper()
	var pid int
	cluster.Until(b.t, cluster.UpWithin, "job "+name+" to run", func(context.Context) error {
		data, err := os.ReadFile(filepath.Join(b.dir, fmt.Sprintf("%s.%d.pid", name, attempt)))
		if err != nil {
			return err
		}
		pid, err = strconv.Atoi(strings.TrimSpace(string(data)))
		return err
	})
	return pid
}

// alive reports whether a process runs; a zombie does not.
func alive(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	rest := data[bytes.LastIndexByte(data, ')')+1:]
	return len(rest) > 1 && rest[1] != 'Z' && rest[1] != 'X'
}

func (b *bench) awaitGone(pid int, within time.Duration) {
	b.t.Helper()
	cluster.Until(b.t, within, fmt.Sprintf("process %d to end", pid), func(context.Context) error {
		if alive(pid) {
			return errors.New("it lives")
		}
		return nil
	})
}

func (b *bench) start(p interface{ Start() error }) {
	b.t.Helper()
	if err := p.Start(); err != nil {
		b.t.Fatal(err)
	}
}

// events counts a workflow's events of one kind and job.
func (b *bench) events(workflow, kind, job string) int {
	b.t.Helper()
	all, err := b.Client().Events(b.t.Context(), workflow)
	if err != nil {
		b.t.Fatal(err)
	}
	n := 0
	for _, ev := range all {
		if ev.GetKind() == kind && ev.GetJob() == job {
			n++
		}
	}
	return n
}

// TestJobsOutliveTheAgent: several deaths of the agent, one of them long, while jobs run, write and end.
func TestJobsOutliveTheAgent(t *testing.T) {
	const lines, walltime = 800_000, 3 * time.Second
	b := newBench(t, cluster.Options{Nodes: 1})
	rng, agent := chance(t), b.Nodes[0]
	id := b.run(
		job{name: "writes", script: "i=0\nwhile [ $i -lt 200 ]; do\n  seq $((i*4000)) $((i*4000+3999))\n  seq $((i*4000)) $((i*4000+999)) >&2\n  i=$((i+1))\n  sleep 0.02\ndone\n"},
		job{name: "zero", script: wait("zero")},
		job{name: "three", script: wait("three") + "exit 3\n"},
		job{name: "signal", script: wait("signal") + "kill -USR1 $$\nsleep 5\n"},
		job{name: "away", script: wait("away") + "exit 4\n"},
		job{name: "late", policy: fmt.Sprintf("{timeout: {execute: %s}}", walltime), script: "sleep 600\n"},
	)
	pids := map[string]int{}
	for _, name := range []string{"writes", "zero", "three", "signal", "away", "late"} {
		pids[name] = b.pid(name, 1)
	}
	for range 4 { // deaths while output is written
		time.Sleep(time.Duration(rng.IntN(600)) * time.Millisecond)
		agent.Kill()
		b.start(agent)
	}
	agent.Kill()
	b.say("away")
	b.awaitGone(pids["away"], 10*time.Second)
	b.awaitGone(pids["late"], walltime+10*time.Second) // nobody but the keeper is there to end it
	for _, name := range []string{"zero", "three", "signal"} {
		if !alive(pids[name]) {
			t.Errorf("job %s ended with the agent", name)
		}
	}
	b.start(agent)
	b.AwaitNode(agent.Name)
	b.say("all")
	b.check(id, "zero", "finished", 0, 0)
	b.check(id, "three", "failed", 3, 0)
	b.check(id, "away", "failed", 4, 0)
	b.check(id, "signal", "failed", -1, int32(syscall.SIGUSR1))
	late := b.AwaitJob(20*time.Second, id, "late", "failed", "finished", "lost")
	if late.GetStatus() != "failed" || late.ExitCode != nil || !strings.Contains(late.GetMessage(), "walltime") {
		t.Errorf("job beyond its walltime: %v", late)
	}
	b.check(id, "writes", "finished", 0, 0)
	b.checkOutput(id, "writes", "stdout", 200, 4000)
	b.checkOutput(id, "writes", "stderr", 200, 1000)
	for name := range pids {
		if n := b.events(id, "started", name); n != 1 {
			t.Errorf("job %s is told started %d times", name, n)
		}
	}
}

// check expects the end of a first attempt; code -1 is "none", signal 0 is "none".
func (b *bench) check(id, name, status string, code, signal int32) {
	b.t.Helper()
	j := b.AwaitJob(30*time.Second, id, name, "finished", "failed", "lost", "cancelled")
	has := int32(-1)
	if j.ExitCode != nil {
		has = j.GetExitCode()
	}
	if j.GetStatus() != status || has != code || j.GetSignal() != signal || j.GetAttempt() != 1 {
		b.t.Errorf("job %s: wanted %s with exit code %d, signal %d, attempt 1: %v", name, status, code, signal, j)
	}
}

// checkOutput expects numbered lines: so many of every step of 4000.
func (b *bench) checkOutput(id, name, stream string, steps, each int) {
	b.t.Helper()
	var want bytes.Buffer
	for i := range steps {
		for n := range each {
			fmt.Fprintln(&want, i*4000+n)
		}
	}
	got, err := b.Client().Output(b.t.Context(), id, name, stream)
	if err != nil || len(got) != want.Len() || sha256.Sum256(got) != sha256.Sum256(want.Bytes()) {
		b.t.Errorf("%s of %s has %d bytes, wanted %d, first difference at %d (%v)", stream, name, len(got), want.Len(), differ(got, want.Bytes()), err)
	}
}

func differ(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

// TestKeeperKilled: nobody saw how these runs ended, so nobody may say so.
func TestKeeperKilled(t *testing.T) {
	for _, with := range []string{"keeper alone", "keeper and agent"} {
		t.Run(with, func(t *testing.T) { keeperKilled(t, with != "keeper alone") })
	}
}

func keeperKilled(t *testing.T, agentToo bool) {
	b := newBench(t, cluster.Options{Nodes: 1})
	agent := b.Nodes[0]
	id := b.run(
		job{name: "dies", script: wait("dies") + "exit 5\n"},
		job{name: "again", policy: "{restart: on-node-fault}", script: wait("again") + "[ $SUBSTRATE_ATTEMPT = 2 ] || exit 6\n"},
		job{name: "ended", script: "exit 7\n"},
	)
	first := map[string]int{"dies": b.pid("dies", 1), "again": b.pid("again", 1)}
	b.check(id, "ended", "failed", 7, 0)
	for name := range first {
		b.AwaitJob(10*time.Second, id, name, "running")
	}
	if agentToo {
		agent.Kill()
	}
	keepers := agent.Keepers()
	if len(keepers) != 1 {
		t.Fatalf("keepers %v, wanted one", keepers)
	}
	if err := syscall.Kill(keepers[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if agentToo {
		b.start(agent)
	}
	cluster.Until(t, 20*time.Second, "another keeper", func(context.Context) error {
		if now := agent.Keepers(); len(now) != 1 || now[0] == keepers[0] {
			return fmt.Errorf("keepers %v", now)
		}
		return nil
	})
	for name, pid := range first {
		if !alive(pid) {
			t.Errorf("job %s ended with its keeper", name)
		}
	}
	b.say("dies")
	lost := b.AwaitJob(20*time.Second, id, "dies", "finished", "failed", "lost")
	if lost.GetStatus() != "lost" || lost.ExitCode != nil || lost.GetSignal() != 0 {
		t.Errorf("a run whose keeper died: %v", lost)
	}
	if n := b.events(id, "requeued", "again"); n != 0 {
		t.Errorf("requeued while the first attempt lives")
	}
	b.say("again")
	j := b.AwaitJob(20*time.Second, id, "again", "finished", "failed", "lost")
	if j.GetStatus() != "finished" || j.GetAttempt() != 2 || j.GetExitCode() != 0 {
		t.Errorf("restartable run whose keeper died: %v", j)
	}
	if alive(first["again"]) || b.pid("again", 2) == first["again"] {
		t.Errorf("the first attempt lives beside the second")
	}
	b.check(id, "ended", "failed", 7, 0)
}

// TestTerminated: SIGTERM ends both daemons cleanly and soon, whoever follows them; work goes on.
func TestTerminated(t *testing.T) {
	b := newBench(t, cluster.Options{Nodes: 1})
	agent := b.Nodes[0]
	id := b.run(
		job{name: "stays", script: "echo one\n" + wait("stays") + "echo two\nexit 3\n"},
		job{name: "next", script: wait("next")},
	)
	pid := b.pid("stays", 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 2)
	events, err := b.Client().Workflows.WatchEvents(ctx, &apiv1.WatchEventsRequest{Workflow: id, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	output, err := b.Client().Workflows.ReadLog(ctx, &apiv1.ReadLogRequest{Workflow: id, Job: "stays", Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	go func() { ended <- drain(func() error { _, err := events.Recv(); return err }) }()
	go func() { ended <- drain(func() error { _, err := output.Recv(); return err }) }()
	b.AwaitJob(10*time.Second, id, "stays", "running")
	stopWell(t, b.Coordinator.Process)
	for range cap(ended) {
		if err := <-ended; err == nil {
			t.Error("a follower was told that there is no more")
		}
	}
	stopWell(t, agent.Process)
	if !alive(pid) {
		t.Fatal("the job ended with the daemons")
	}
	b.start(b.Coordinator)
	b.start(agent)
	b.AwaitNode(agent.Name)
	if got := b.AwaitJob(5*time.Second, id, "stays", "running"); got.GetAttempt() != 1 || !alive(pid) {
		t.Errorf("after the restart: %v", got)
	}
	stopWell(t, agent.Process) // now the other order
	stopWell(t, b.Coordinator.Process)
	b.start(agent)
	b.start(b.Coordinator)
	b.AwaitNode(agent.Name)
	b.say("all")
	b.check(id, "stays", "failed", 3, 0)
	b.check(id, "next", "finished", 0, 0)
	if out, err := b.Client().Output(t.Context(), id, "stays", "stdout"); err != nil || string(out) != "one\ntwo\n" {
		t.Errorf("output %q, %v", out, err)
	}
}

// drain reads a stream to its end; nil is an end in good order.
func drain(next func() error) error {
	for {
		if err := next(); err != nil {
			if err.Error() == "EOF" {
				return nil
			}
			return err
		}
	}
}
