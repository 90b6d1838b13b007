package slurm

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"substrate/tests/cluster"
)

var record = flag.Bool("record", false, "make testdata/recorded again, for the version of Slurm that is installed")

// squeueLine puts what may hold anything last. squeueColumns are wide enough for all that the recordings hold.
const (
	squeueLine    = "%i|%A|%T|%r|%Q|%P|%u|%D|%N|%V|%S|%e|%l|%Z|%j|%k"
	squeueColumns = "JobID:12,JobArrayID:20,ArrayJobID:12,ArrayTaskID:12,State:16,Reason:40,SubmitTime:24,EligibleTime:24,AccrueTime:24,StartTime:24," +
		"EndTime:24,TimeLimit:16,NodeList:32,NumNodes:8,exit_code:10,RestartCnt:10,Requeue:10,Name:80,Comment:1100"
	sacctLine = "JobIDRaw,JobID,State,ExitCode,DerivedExitCode,Reason,Submit,Eligible,Start,End,ElapsedRaw,TimelimitRaw,NodeList,User,Partition,DBIndex,JobName,Comment"
)

// scene is one recording. What takes minutes to come about begins early, before all others.
type scene struct {
	name, about string
	early       func(*recorder) string
	act         func(r *recorder, id string)
}

// recorder asks commands and writes down what they say.
type recorder struct {
	*Cluster
	t       *testing.T
	hooks   string // directory of what prolog and epilog wait for
	answers []Answer
	state   string // of the job that was asked for last, and its reason
	reason  string
}

// say asks a command as User.
func (r *recorder) say(name string, args ...string) {
	r.t.Helper()
	r.tell(name, r.CommandAs(context.Background(), r.User, args[0], args[1:]...))
}

// tell runs any command and writes down its words.
func (r *recorder) tell(name string, cmd *exec.Cmd) {
	r.t.Helper()
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.Env = append(cmd.Env, "SLURM_TIME_FORMAT=%s")
	err := cmd.Run()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		r.t.Fatal(err)
	}
	clean := func(text string) string {
		text = strings.ReplaceAll(text, r.hooks, RecordedDir+"/hooks")
		return regexp.MustCompile(regexp.QuoteMeta(filepath.Join(os.TempDir(), dirPrefix))+`\d+`).ReplaceAllString(text, RecordedDir)
	}
	a := Answer{Name: name, Stdout: clean(out.String()), Stderr: clean(errs.String()), Exit: cmd.ProcessState.ExitCode()}
	for _, arg := range cmd.Args {
		a.Args = append(a.Args, clean(arg))
	}
	a.Args[0] = filepath.Base(a.Args[0])
	r.answers = append(r.answers, a)
}

// job asks all that tells of a job.
func (r *recorder) job(id string) {
	r.t.Helper()
	r.say("squeue.line", "squeue", "-h", "-t", "all", "-j", id, "-o", squeueLine)
	if fields := strings.Split(r.answers[len(r.answers)-1].Stdout, "|"); len(fields) > 3 {
		r.state, r.reason = fields[2], fields[3]
	}
	r.say("squeue.columns", "squeue", "-h", "-t", "all", "-j", id, "-O", squeueColumns)
	r.say("scontrol.job", "scontrol", "-o", "show", "job", id)
	r.say("sacct.line", "sacct", "-n", "-P", "-D", "-j", id, "-o", sacctLine)
	r.say("sacct.newest", "sacct", "-n", "-P", "-X", "-j", id, "-o", sacctLine)
}

// ended waits until a job is in a state, and accounting has that too.
func (r *recorder) ended(id, state string) {
	r.t.Helper()
	r.AwaitJob(id, state)
	r.accounted(id, state)
	r.job(id)
}

// accounted waits until accounting has a job's state, which comes some seconds late.
func (r *recorder) accounted(id, state string) {
	r.t.Helper()
	cluster.Until(r.t, time.Minute, fmt.Sprintf("job %s to be accounted for as %s", id, state), func(ctx context.Context) error {
		out, err := output(r.CommandAs(ctx, r.User, "sacct", "-n", "-P", "-X", "-j", id, "-o", "State"))
		if err == nil && !strings.HasPrefix(out, state) {
			err = fmt.Errorf("it is %q", out)
		}
		return err
	})
}

// waits waits until a pending job shows a reason.
func (r *recorder) waits(id, reason string) {
	r.t.Helper()
	cluster.Until(r.t, time.Minute, fmt.Sprintf("job %s to wait for %s", id, reason), func(ctx context.Context) error {
		out, err := output(r.CommandAs(ctx, r.User, "squeue", "-h", "-j", id, "-o", "%T %r"))
		if err == nil && !strings.HasPrefix(out, "PENDING "+reason) {
			err = fmt.Errorf("it is %q", out)
		}
		return err
	})
	r.job(id)
}

// runs is a job that runs until it is told otherwise.
func (r *recorder) runs(args ...string) string {
	r.t.Helper()
	id := r.Submit("sleep 600", args...)
	r.AwaitJob(id, "RUNNING")
	return id
}

// hold makes prologs or epilogs wait until the scene is over.
func (r *recorder) hold(hook string) {
	r.t.Helper()
	if err := os.WriteFile(filepath.Join(r.hooks, hook), nil, 0o644); err != nil {
		r.t.Fatal(err)
	}
}

// tidy ends a scene: nothing runs but what began early.
func (r *recorder) tidy(early []string) {
	r.t.Helper()
	for _, hook := range []string{"prolog", "epilog"} {
		_ = os.Remove(filepath.Join(r.hooks, hook)) // it may not be there
	}
	cluster.Until(r.t, time.Minute, "the scene to be over", func(context.Context) error {
		out, err := r.admin("squeue", "-h", "-o", "%A")
		if err != nil {
			return err
		}
		left := slices.DeleteFunc(strings.Fields(out), func(id string) bool { return slices.Contains(early, id) })
		if len(left) == 0 {
			return nil
		}
		_, _ = r.admin("scancel", append([]string{"-f"}, left...)...) // asked again
		return fmt.Errorf("%v are left", left)
	})
}

// recorderConf lets every reason to wait come about. Early jobs have nodes of their own, n5 and n6.
func recorderConf(hooks string) string {
	return fmt.Sprintf(`Prolog=%[1]s/prolog.sh
PrologFlags=Alloc
Epilog=%[1]s/epilog.sh
Licenses=matlab:1
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
JobAcctGatherParams=OverMemoryKill
PartitionName=batch Nodes=n[1-4] Default=YES MaxTime=INFINITE DefaultTime=60 State=UP PriorityTier=10
PartitionName=urgent Nodes=n[1-4] MaxTime=INFINITE DefaultTime=60 State=UP PriorityTier=20
PartitionName=apart Nodes=n[5-6] MaxTime=INFINITE State=UP
PartitionName=small Nodes=n[1-4] MaxTime=1 MaxNodes=1 State=UP
PartitionName=closed Nodes=n[1-4] State=DOWN
`, hooks)
}

// TestRecord makes the recordings when asked to, and at length makes them aside to compare what states they show.
func TestRecord(t *testing.T) {
	if !*record && !cluster.FullPeers() {
		return // TestRecordings looks at those that are there
	}
	hooks := t.TempDir()
	for p := hooks; p != os.TempDir() && p != "/"; p = filepath.Dir(p) {
		if err := os.Chmod(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, hook := range []string{"prolog", "epilog"} {
		script := fmt.Sprintf("#!/bin/sh\nwhile [ -e %s/%s ]; do sleep 0.1; done\n", hooks, hook)
		if err := os.WriteFile(filepath.Join(hooks, hook+".sh"), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c := Start(t, Options{Nodes: 6, Accounting: true, MinJobAge: time.Hour, SlurmdTimeout: 10 * time.Second, ExtraConf: recorderConf(hooks)})
	scenes := slices.Concat(pendingScenes(), runningScenes(), endedScenes(), textScenes(), listScenes(), errorScenes(), awayScenes())
	early, all := map[string]string{}, []string{}
	for _, s := range scenes {
		if s.early != nil {
			early[s.name] = s.early(&recorder{Cluster: c.with(t), t: t, hooks: hooks})
			all = append(all, early[s.name])
		}
	}
	var made []Recording
	for _, s := range scenes {
		t.Run(s.name, func(t *testing.T) {
			r := &recorder{Cluster: c.with(t), t: t, hooks: hooks}
			defer r.tidy(all)
			s.act(r, early[s.name])
			rec := Recording{Name: s.name, About: s.about, State: r.state, Reason: r.reason, Answers: r.answers}
			made = append(made, rec)
		})
	}
	keepRecordings(t, c.Version, made)
}

// keepRecordings writes what was asked for, or compares it.
func keepRecordings(t *testing.T, version string, made []Recording) {
	t.Helper()
	parts := strings.SplitN(version, ".", 3)
	version = strings.Join(parts[:2], ".")
	dir := filepath.Join("testdata", "recorded", version)
	if *record {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		old, err := filepath.Glob(filepath.Join(dir, "*.txtar"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range old {
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
		}
		for _, r := range made {
			if err := os.WriteFile(filepath.Join(dir, r.Name+".txtar"), r.format(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		writeTable(t)
		return
	}
	kept, err := Recordings(version)
	if err != nil {
		t.Skipf("NOT TESTED: there are no recordings of this version: %v", err)
	}
	for _, r := range made {
		i := slices.IndexFunc(kept, func(k Recording) bool { return k.Name == r.Name })
		if i < 0 {
			t.Errorf("%s is not recorded: run go test ./tests/slurm -run TestRecord -record", r.Name)
			continue
		}
		if k := kept[i]; r.State != k.State || r.Reason != k.Reason {
			t.Errorf("%s is now %s %s, was %s %s", r.Name, r.State, r.Reason, k.State, k.Reason)
		}
		for _, a := range r.Answers {
			if was, ok := kept[i].Answer(a.Name); !ok || was.Exit != a.Exit {
				t.Errorf("%s: %s ends with %d now, ended with %d (there: %v)", r.Name, a.Name, a.Exit, was.Exit, ok)
			}
		}
	}
}
