package clouds

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"substrate/tests/cluster"
	"substrate/tests/fakecloud"
)

// namespaces boots instances as processes of this machine in namespaces of their own: each runs its user data as a script, sees no process of
// another, has a /var/lib of its own, and is off when it says poweroff.
type namespaces struct {
	t     *testing.T
	dir   string
	cloud *fakecloud.Cloud
	off   func(id string) // what becomes of one that has switched itself off; nil: it is over

	mu  sync.Mutex
	ran map[string]*exec.Cmd
}

// boot is what an instance's first process does: user data once, then nothing until it is switched off.
const boot = `mount -t tmpfs tmpfs /var/lib && /bin/sh "$1"; until [ -e /var/lib/off ]; do sleep 0.05; done`

func newNamespaces(t *testing.T) *namespaces {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("instances in namespaces take root, which this test has not")
		}
		t.Skip("NOT TESTED: instances in namespaces take root")
	}
	n := &namespaces{t: t, dir: t.TempDir(), ran: map[string]*exec.Cmd{}}
	if err := os.WriteFile(filepath.Join(n.dir, "poweroff"), []byte("#!/bin/sh\ntouch /var/lib/off\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return n
}

// Boot starts an instance.
func (n *namespaces) Boot(i fakecloud.Instance) error {
	file := filepath.Join(n.dir, i.ID)
	if err := os.WriteFile(file, i.UserData, 0o600); err != nil {
		return err
	}
	log, err := os.Create(file + ".log")
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", boot, "sh", file)
	cmd.Env = []string{"PATH=" + strings.Join([]string{n.dir, filepath.Dir(cluster.Program("substrated")), "/usr/sbin:/usr/bin:/sbin:/bin"}, ":")}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	n.mu.Lock()
	n.ran[i.ID] = cmd
	n.mu.Unlock()
	go func() {
		_ = cmd.Wait()
		if n.off != nil {
			n.off(i.ID)
			return
		}
		n.cloud.Break(i.ID, fakecloud.PoweredOff)
	}()
	return nil
}

// Halt ends it and all that runs in it.
func (n *namespaces) Halt(id string) {
	n.mu.Lock()
	cmd := n.ran[id]
	n.mu.Unlock()
	if cmd != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
}

// said is all that instances wrote.
func (n *namespaces) said() string {
	var b strings.Builder
	files, _ := filepath.Glob(filepath.Join(n.dir, "*.log"))
	for _, f := range files {
		text, _ := os.ReadFile(f)
		fmt.Fprintf(&b, "%s:\n%s", filepath.Base(f), text)
	}
	return b.String()
}
