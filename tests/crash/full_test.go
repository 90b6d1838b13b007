package crash

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"substrate/proto/apiv1"
	"substrate/tests/cluster"
)

// smallDisk mounts a small file system, which only root may.
func smallDisk(t *testing.T, dir string, size string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED: a small file system can only be mounted by root")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size="+size+",mode=755"); err != nil {
		t.Skipf("NOT TESTED: cannot mount a small file system here: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
}

// fill takes all room that is left; the file's removal gives it back.
func fill(t *testing.T, dir string) (free func()) {
	t.Helper()
	path := filepath.Join(dir, "filler")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, size := range []int{1 << 16, 1 << 12, 1} {
		for block := make([]byte, size); err == nil; {
			_, err = f.Write(block)
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
		err = nil
	}
	return func() {
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	}
}

// TestNodesDiskFull: work that runs when the disk of a node fills up ends as it ended, whatever dies meanwhile once
// there is room again; work that cannot start says why, and the next can.
func TestNodesDiskFull(t *testing.T) {
	c := cluster.Start(t, cluster.Options{Machine: wide()})
	dir := filepath.Join(c.Dir, "node-1")
	smallDisk(t, dir, "2m")
	b := &bench{Cluster: c, t: t, dir: t.TempDir()}
	agent := c.AddNode("node-1", quick()...)
	id := b.run(job{name: "ends", script: wait("ends") + "exit 3\n"}, job{name: "more", script: wait("more") + "exit 4\n"})
	pids := []int{b.pid("ends", 1), b.pid("more", 1)}
	b.AwaitJob(10*time.Second, id, "ends", "running")
	b.AwaitJob(10*time.Second, id, "more", "running")
	free := fill(t, dir)
	late := b.run(job{name: "late"})
	j := b.AwaitJob(20*time.Second, late, "late", "finished", "failed", "lost")
	if j.GetStatus() != "failed" || j.GetMessage() == "" {
		t.Errorf("a job that had no room: %v", j)
	}
	t.Logf("it says: %s", j.GetMessage())
	b.say("ends")
	b.awaitGone(pids[0], 10*time.Second)
	b.check(id, "ends", "failed", 3, 0)
	agent.Kill() // with the disk full, and again with room
	b.start(agent)
	b.AwaitNode(agent.Name)
	b.say("more")
	b.awaitGone(pids[1], 10*time.Second)
	b.check(id, "more", "failed", 4, 0)
	free()
	after := b.run(job{name: "after", script: "exit 5\n"})
	b.check(after, "after", "failed", 5, 0)
	awaitForgotten(t, agent)
	cluster.Until(t, 30*time.Second, "an empty journal", func(context.Context) error {
		info, err := os.Stat(filepath.Join(dir, "journal"))
		if err == nil && info.Size() > 0 {
			err = fmt.Errorf("%d bytes", info.Size())
		}
		return err
	})
}

// TestCoordinatorsDiskFull: with little room left the coordinator refuses what is new and lives; with room again it has
// what it accepted, and the work that ended meanwhile ended once.
func TestCoordinatorsDiskFull(t *testing.T) {
	c := cluster.Start(t, cluster.Options{Machine: wide(), Nodes: 1, AgentArgs: quick()})
	b := &bench{Cluster: c, t: t, dir: t.TempDir()}
	id := b.run(job{name: "ends", script: wait("ends") + "exit 3\n"})
	pid := b.pid("ends", 1)
	b.AwaitJob(10*time.Second, id, "ends", "running")
	stopWell(t, c.Coordinator.Process)
	kept := c.Coordinator.Dir + ".kept"
	if err := os.Rename(c.Coordinator.Dir, kept); err != nil {
		t.Fatal(err)
	}
	smallDisk(t, c.Coordinator.Dir, "512m")
	if err := exec.Command("cp", "-a", kept+"/.", c.Coordinator.Dir).Run(); err != nil {
		t.Fatal(err)
	}
	b.start(c.Coordinator)
	b.AwaitNode("node-1")
	filler := filepath.Join(c.Coordinator.Dir, "filler")
	leave(t, filler, 64<<20)
	cluster.Until(t, 30*time.Second, "a refusal", func(ctx context.Context) error { // it looks from time to time
		_, err := c.Client().Workflows.StartWorkflow(ctx, &apiv1.StartWorkflowRequest{File: "w", Yaml: []byte("version: v1\nname: w\njobs: {j: {command: [\"true\"]}}\n")})
		if status.Code(err) != codes.ResourceExhausted {
			return fmt.Errorf("the answer is %v", err)
		}
		return nil
	})
	b.say("ends")
	b.awaitGone(pid, 10*time.Second)
	time.Sleep(2 * time.Second) // its end is told, and cannot be written
	if !c.Coordinator.Running() {
		t.Error("the coordinator died of a full disk")
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	cluster.Until(t, 30*time.Second, "work to be taken again", func(ctx context.Context) error {
		_, err := c.Client().Workflows.StartWorkflow(ctx, &apiv1.StartWorkflowRequest{File: "w", Yaml: []byte("version: v1\nname: w\njobs: {j: {command: [\"true\"]}}\n")})
		return err
	})
	b.check(id, "ends", "failed", 3, 0)
	b.check(b.run(job{name: "after", script: "exit 6\n"}), "after", "failed", 6, 0)
	awaitForgotten(t, c.Nodes[0])
}

// leave makes a file that leaves so much room.
func leave(t *testing.T, path string, room int64) {
	t.Helper()
	var st syscall.Statfs_t
	if err := syscall.Statfs(filepath.Dir(path), &st); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := syscall.Fallocate(int(f.Fd()), 0, 0, int64(st.Bavail)*st.Bsize-room); err != nil {
		t.Fatal(err)
	}
}
