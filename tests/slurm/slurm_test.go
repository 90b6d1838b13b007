package slurm

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"substrate/tests/cluster"
)

// awaitAccount waits until sacct, as User, tells of a job what is wanted.
func awaitAccount(t *testing.T, c *Cluster, id, format, want string) {
	t.Helper()
	cluster.Until(t, time.Minute, "sacct to show job "+id, func(ctx context.Context) error {
		out, err := output(c.CommandAs(ctx, c.User, "sacct", "-n", "-P", "-X", "-j", id, "-o", format))
		if err == nil && strings.TrimSpace(out) != want {
			err = fmt.Errorf("it says %q, wanted %q", out, want)
		}
		return err
	})
}

// TestCluster takes one cluster with accounting through what the harness promises.
func TestCluster(t *testing.T) {
	began := time.Now()
	c := Start(t, Options{Accounting: true, Nodes: 3})
	t.Logf("Slurm %s is up after %s", c.Version, time.Since(began).Round(time.Millisecond))
	for _, step := range []struct {
		name string
		run  func(*testing.T, *Cluster)
	}{
		{"a job runs as User and is accounted for", jobRuns},
		{"a command of root is one of User", rootIsUser},
		{"GPUs are given", gpusAreGiven},
		{"others have no rights", othersHaveNoRights},
		{"the queue outlives the controller", queueOutlivesController},
		{"a frozen controller answers later", controllerFreezes},
		{"a node is down", nodeDown},
		{"the database is away", accountingAway},
		{"replies are lost", repliesAreLost},
		{"calls are counted", callsAreCounted},
	} {
		t.Run(step.name, func(t *testing.T) {
			step.run(t, c.with(t))
		})
	}
}

func jobRuns(t *testing.T, c *Cluster) {
	id := c.Submit("id -un; exit 3", "--comment=a comment", "--output=out")
	c.AwaitJob(id, "FAILED")
	if out := c.Run("cat", "out"); out != c.User.Name+"\n" {
		t.Errorf("the job ran as %q, wanted %s", out, c.User.Name)
	}
	awaitAccount(t, c, id, "State,ExitCode,User,Comment", "FAILED|3:0|"+c.User.Name+"|a comment")
}

func rootIsUser(t *testing.T, c *Cluster) {
	cmd := exec.Command(c.path("bin", "sbatch"), "--parsable", "-H", "--wrap=true") // as a transport would, in this process's directory
	cmd.Env = c.Env()
	out, err := output(cmd)
	if err != nil {
		t.Fatal(err)
	}
	id := strings.TrimSpace(out)
	if user := c.Run("squeue", "-h", "-j", id, "-o", "%u"); user != c.User.Name+"\n" {
		t.Errorf("the job is %q's", user)
	}
	c.Run("scancel", id)
}

func gpusAreGiven(t *testing.T, c *Cluster) {
	id := c.Submit("echo $CUDA_VISIBLE_DEVICES", "--gres=gpu:2", "--output=gpus")
	c.AwaitJob(id, "COMPLETED")
	if out := c.Run("cat", "gpus"); out != "0,1\n" {
		t.Errorf("the job sees GPUs %q, wanted two", out)
	}
	c.Submit("true", "--gres=gpu:test:1", "--test-only")
	if out, err := output(c.Command(t.Context(), "sbatch", "--gres=gpu:3", "--wrap=true")); err == nil {
		t.Errorf("a job for three GPUs was taken: %s", out)
	}
}

func othersHaveNoRights(t *testing.T, c *Cluster) {
	id := c.Submit("sleep 60", "-H")
	out, err := output(c.CommandAs(t.Context(), c.Other, "scancel", id))
	if err == nil || !strings.Contains(err.Error(), "Access/permission denied") {
		t.Errorf("%s cancels a job of %s: %q, %v", c.Other.Name, c.User.Name, out, err)
	}
	c.Run("scancel", id)
}

func queueOutlivesController(t *testing.T, c *Cluster) {
	runs, gated := c.Submit("sleep 60"), c.Submit("true", "-H", "--job-name=gated")
	c.AwaitJob(runs, "RUNNING")
	c.AwaitSaved("gated")
	c.KillController()
	if out, err := output(c.Command(t.Context(), "scontrol", "ping")); err == nil || !strings.Contains(out, "DOWN") {
		t.Errorf("the controller was killed and says %q, %v", out, err)
	}
	c.StartController()
	c.EndController()
	c.StartController()
	c.AwaitJob(gated, "PENDING")
	c.AwaitJob(runs, "RUNNING")
	c.Run("scontrol", "release", gated)
	c.AwaitJob(gated, "COMPLETED")
	c.Run("scancel", runs)
	c.AwaitJob(runs, "CANCELLED")
}

func controllerFreezes(t *testing.T, c *Cluster) {
	c.StopController()
	began := time.Now()
	submitted := make(chan error, 1)
	go func() {
		_, err := output(c.Command(context.Background(), "sbatch", "-H", "--job-name=frozen", "--wrap=true"))
		submitted <- err
	}()
	select {
	case err := <-submitted:
		t.Errorf("a frozen controller answered after %s: %v", time.Since(began), err)
	case <-time.After(time.Second):
	}
	c.ContinueController()
	if err := <-submitted; err != nil {
		t.Error(err)
	}
	c.Run("scancel", "--name=frozen")
}

func nodeDown(t *testing.T, c *Cluster) {
	id := c.Submit("sleep 60", "-w", "n2", "--no-requeue")
	c.AwaitJob(id, "RUNNING")
	c.NodeDown("n2")
	c.AwaitJob(id, "NODE_FAIL")
	c.AwaitNode("n2", "down")
	c.Resume("n2")
	c.AwaitNode("n2", "idle")
	c.KillNode("n3")
	c.StartNode("n3")
}

func accountingAway(t *testing.T, c *Cluster) {
	c.KillAccounting()
	if out, err := output(c.Command(t.Context(), "sacct")); err == nil || !strings.Contains(err.Error(), "Problem talking to the database") {
		t.Errorf("sacct without slurmdbd: %q, %v", out, err)
	}
	id := c.Submit("true")
	c.AwaitJob(id, "COMPLETED")
	c.StartAccounting()
	awaitAccount(t, c, id, "State", "COMPLETED") // the controller kept it
}

func repliesAreLost(t *testing.T, c *Cluster) {
	c.LoseReply("sbatch", 1)
	cmd := c.Command(t.Context(), "sbatch", "-H", "--job-name=lost", "--wrap=true")
	out, err := cmd.Output()
	if exit := new(exec.ExitError); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL || len(out) > 0 {
		t.Errorf("the reply was not lost: %q, %v", out, err)
	}
	if ids := strings.Fields(c.Run("squeue", "-h", "--name=lost", "-o", "%i")); len(ids) != 1 {
		t.Errorf("the lost submission left jobs %v, wanted one", ids)
	}
	c.KillCall("scancel", 1)
	if err := c.Command(t.Context(), "scancel", "--name=lost").Run(); err == nil {
		t.Error("the call was not killed")
	}
	if ids := strings.Fields(c.Run("squeue", "-h", "--name=lost", "-o", "%i")); len(ids) != 1 {
		t.Errorf("a killed call left jobs %v, wanted the one that was there", ids)
	}
	c.DenyReply("scancel", 1, 7, "no such luck")
	if _, err := output(c.Command(t.Context(), "scancel", "--name=lost")); err == nil || !strings.Contains(err.Error(), "exit status 7: no such luck") {
		t.Errorf("the denied call says %v", err)
	}
	if ids := strings.Fields(c.Run("squeue", "-h", "--name=lost", "-o", "%i")); len(ids) != 0 {
		t.Errorf("the denied call left %v", ids)
	}
	c.RefuseCall("squeue", 1, 1, "slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
	if _, err := output(c.Command(t.Context(), "squeue")); err == nil || !strings.Contains(err.Error(), "connect failure") {
		t.Errorf("the refused call says %v", err)
	}
	c.DelayReply("sinfo", 1, 300*time.Millisecond)
	began := time.Now()
	if c.Run("sinfo", "-h") == "" || time.Since(began) < 300*time.Millisecond {
		t.Errorf("the delayed reply came after %s", time.Since(began))
	}
	c.HangReply("sinfo", 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if out, err := c.Command(ctx, "sinfo").Output(); err == nil || len(out) > 0 {
		t.Errorf("the reply that hangs is %q, %v", out, err)
	}
	c.LoseReply("sacct", 2)
	if left := c.ClearFaults(); left["sacct"] != 2 || len(left) != 1 {
		t.Errorf("faults left: %v, wanted two for sacct", left)
	}
	c.Run("sacct", "-n")
}

func callsAreCounted(t *testing.T, c *Cluster) {
	c.ForgetCalls()
	c.Run("squeue", "-h", "-o", "%i %T")
	c.Run("squeue", "-h", "--name", "a\nb")
	c.Run("sinfo")
	if got := fmt.Sprintf("%q", c.CallArgs("squeue")); got != `[["-h" "-o" "%i %T"] ["-h" "--name" "a\nb"]]` {
		t.Errorf("squeue was called with %s", got)
	}
	if c.Calls("sinfo") != 1 || c.Calls("sbatch") != 0 {
		t.Errorf("sinfo was called %d times, sbatch %d, wanted once and never", c.Calls("sinfo"), c.Calls("sbatch"))
	}
}

// TestSideBySide: two clusters at once know nothing of one another.
func TestSideBySide(t *testing.T) {
	a := Start(t, Options{Nodes: 1, GPUs: -1, Name: "left"})
	b := Start(t, Options{Nodes: 1, GPUs: -1, Name: "right"})
	a.Submit("true", "-H")
	if out := b.Run("squeue", "-h"); out != "" {
		t.Errorf("the other cluster has %q", out)
	}
	b.KillController()
	if out := a.Run("squeue", "-h", "-o", "%i"); out != "1\n" {
		t.Errorf("the first cluster's queue is %q", out)
	}
}
