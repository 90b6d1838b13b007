package slurm

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"substrate/tests/cluster"
)

// victimEnv makes TestVictim the process that TestKilled kills.
const victimEnv = "TEST_SLURM_VICTIM"

// TestVictim is not a test of its own: it starts a cluster with a job and waits for its death.
func TestVictim(t *testing.T) {
	if os.Getenv(victimEnv) == "" {
		return
	}
	c := Start(t, Options{Nodes: 1, GPUs: -1})
	c.AwaitJob(c.Submit("exec sleep 3607", "--export=NONE", "--chdir=/", "--output=/dev/null"), "RUNNING")
	fmt.Println("victim", c.Dir)
	time.Sleep(time.Hour)
}

// TestKilled: when a test is killed, daemons, jobs and directory go too.
func TestKilled(t *testing.T) {
	need(t)
	victim := exec.Command(os.Args[0], "-test.run=^TestVictim$", "-test.v")
	victim.Env = append(os.Environ(), victimEnv+"=1")
	out, err := victim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = victim.Process.Kill() })
	var dir string
	for lines := bufio.NewScanner(out); dir == "" && lines.Scan(); {
		dir, _ = strings.CutPrefix(lines.Text(), "victim ")
		if dir == lines.Text() {
			dir = ""
		}
	}
	if dir == "" {
		t.Fatal("the victim came to nothing")
	}
	cluster.Until(t, 30*time.Second, "the victim's job to be seen", func(context.Context) error {
		if len(sleepers(t)) == 0 {
			return errors.New("it is not there")
		}
		return nil
	})
	if err := victim.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = victim.Wait() // killed
	cluster.Until(t, 30*time.Second, "all of the victim to be gone", func(context.Context) error {
		if exists(dir) {
			return errors.New("its directory is there")
		}
		if left := sleepers(t); len(left) > 0 {
			return fmt.Errorf("its job is there: %v", left)
		}
		return nil
	})
}

// sleepers are the processes of the victim's job.
func sleepers(t *testing.T) []string {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, name := range names {
		if data, err := os.ReadFile(name); err == nil && string(data) == "sleep\x003607\x00" {
			found = append(found, name)
		}
	}
	return found
}

// TestSweep: what was left by a test and a watchdog that are both gone is taken away; what is somebody's stays.
func TestSweep(t *testing.T) {
	need(t)
	t.Setenv("TMPDIR", t.TempDir())
	make := func(name, owner string, age time.Duration) string {
		dir := filepath.Join(os.TempDir(), dirPrefix+name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if owner != "" {
			if err := os.WriteFile(filepath.Join(dir, ownerFile), []byte(owner), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chtimes(dir, time.Time{}, time.Now().Add(-age)); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	born, err := bornAt(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	gone := make("gone", "1 12\n", 0)
	again := make("again", fmt.Sprintf("%d %s1\n", os.Getpid(), born), 0) // the id lives, as another process
	unowned := make("unowned", "", time.Hour)
	mine := make("mine", fmt.Sprintf("%d %s\n", os.Getpid(), born), time.Hour)
	new := make("new", "", 0)
	daemon := exec.Command("sleep", "600")
	daemon.Env = []string{"SLURM_CONF=" + gone + "/slurm.conf"}
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = daemon.Process.Kill() })
	sweep(t)
	for dir, stays := range map[string]bool{gone: false, again: false, unowned: false, mine: true, new: true} {
		if exists(dir) != stays {
			t.Errorf("%s: there is %v, wanted %v", filepath.Base(dir), !stays, stays)
		}
	}
	if err := daemon.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the daemon that was left ended with %v, wanted a kill", err)
	}
}
