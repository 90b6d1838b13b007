package vm

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"substrate/tests/fakecloud"
)

// Gateway is this machine's loopback as machines see it.
const Gateway = "169.254.169.1"

// Options is what machines are made of.
type Options struct {
	Agent string // the program, static
	// Other answers what is asked for of an instance's metadata beyond its ids and user data; nil: nothing is there.
	Other func(i fakecloud.Instance) http.Handler
	// Memory is what a machine of a type gets, in MiB; nil: what is sold.
	Memory func(t fakecloud.Type) uint64
}

// Machines boots instances as virtual machines. It is a fakecloud.Machine.
type Machines struct {
	Cloud *fakecloud.Cloud // told when a machine is off; set before the first boot

	t         testing.TB
	opt       Options
	dir       string
	initramfs string
	all       sync.WaitGroup

	mu  sync.Mutex
	ran map[string]*machine
}

type machine struct {
	cmd *exec.Cmd
	imd *httptest.Server
}

// New makes machines bootable. The test is skipped where they are not, and fails when that is CI.
func New(t testing.TB, opt Options) *Machines {
	t.Helper()
	if why := Missing(); why != "" {
		if os.Getenv("CI") != "" {
			t.Fatalf("virtual machines cannot be had: %s; packaging/deps.sh installs what they take", why)
		}
		t.Skipf("NOT TESTED: virtual machines cannot be had: %s; `make deps` installs what they take", why)
	}
	m := &Machines{t: t, opt: opt, dir: t.TempDir(), ran: map[string]*machine{}}
	var err error
	if m.initramfs, err = initramfs(m.dir, opt.Agent); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.mu.Lock()
		var ids []string
		for id := range m.ran {
			ids = append(ids, id)
		}
		m.mu.Unlock()
		for _, id := range ids {
			m.Halt(id)
		}
		m.all.Wait()
		if t.Failed() {
			t.Log(m.Consoles())
		}
	})
	return m
}

// Boot starts a machine with the processors and memory of the instance's type.
func (m *Machines) Boot(i fakecloud.Instance) error {
	typ, ok := m.Cloud.Type(i.Type)
	if !ok {
		return fmt.Errorf("cannot boot %s: no such type %s", i.ID, i.Type)
	}
	imd := &metadata{Instance: i, token: "token-of-" + i.ID}
	if m.opt.Other != nil {
		imd.other = m.opt.Other(i)
	}
	srv := httptest.NewServer(imd)
	memory := typ.Memory
	if m.opt.Memory != nil {
		memory = m.opt.Memory(typ)
	}
	host, port, _ := strings.Cut(srv.Listener.Addr().String(), ":")
	cmd := exec.Command("qemu-system-x86_64", "-accel", "tcg", "-cpu", "max", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-m", fmt.Sprint(memory), "-smp", fmt.Sprintf("%d,sockets=1,cores=%[1]d", typ.VCPUs), // the emulation shows no threads of a core
		"-kernel", filepath.Join(KernelDir, "vmlinuz"), "-initrd", m.initramfs, "-append", "console=ttyS0 rdinit=/sbin/init panic=-1 quiet",
		"-smbios", "type=1,manufacturer=Amazon EC2,product="+i.Type+",uuid="+uuidOf(i.ID),
		"-serial", "file:"+m.console(i.ID),
		"-netdev", "user,id=n,net=169.254.0.0/16,host="+Gateway+",dns=169.254.169.2,guestfwd=tcp:169.254.169.254:80-cmd:busybox nc "+host+" "+port,
		"-device", "virtio-net-pci,netdev=n,romfile=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	started := make(chan error, 1)
	m.all.Go(func() {
		runtime.LockOSThread() // a thread's end would be the death that the machine is killed at
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		if err == nil {
			m.mu.Lock()
			m.ran[i.ID] = &machine{cmd, srv}
			m.mu.Unlock()
		}
		started <- err
		if err == nil {
			_ = cmd.Wait()
			if said.Len() > 0 {
				m.t.Logf("machine %s: %s", i.ID, said.String())
			}
			m.mu.Lock()
			delete(m.ran, i.ID)
			m.mu.Unlock()
			m.Cloud.Break(i.ID, fakecloud.PoweredOff)
		}
		srv.CloseClientConnections()
		srv.Close()
	})
	return <-started
}

// uuidOf is a machine's as firmware tells it, which is the same each time.
func uuidOf(id string) string {
	h := fmt.Sprintf("%032x", id)
	h = "ec2" + h[len(h)-29:]
	return fmt.Sprintf("%s-%s-%s-%s-%s", h[:8], h[8:12], h[12:16], h[16:20], h[20:])
}

// Halt takes a machine's power away.
func (m *Machines) Halt(id string) { m.signal(id, syscall.SIGKILL) }

// Freeze stops a machine as a host that hangs would, until Thaw.
func (m *Machines) Freeze(id string) { m.signal(id, syscall.SIGSTOP) }

// Thaw lets a machine go on.
func (m *Machines) Thaw(id string) { m.signal(id, syscall.SIGCONT) }

func (m *Machines) signal(id string, sig syscall.Signal) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if one := m.ran[id]; one != nil {
		_ = syscall.Kill(-one.cmd.Process.Pid, sig)
	}
}

// Running is how many machines are on.
func (m *Machines) Running() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.ran)
}

func (m *Machines) console(id string) string {
	return filepath.Join(m.dir, strings.ReplaceAll(id, "/", "-")+".console")
}

// Consoles is all that machines wrote.
func (m *Machines) Consoles() string {
	var b strings.Builder
	files, _ := filepath.Glob(filepath.Join(m.dir, "*.console"))
	for _, f := range files {
		text, _ := os.ReadFile(f)
		fmt.Fprintf(&b, "%s:\n%s\n", filepath.Base(f), text)
	}
	return b.String()
}
