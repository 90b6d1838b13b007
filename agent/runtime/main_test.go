package runtime

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// TestMain lets this test binary be a keeper and, for the tests that kill one, an agent.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[2] == "--dir" {
		switch os.Args[1] {
		case "keeper":
			os.Exit(keeperMain(os.Args[3]))
		case "agent":
			os.Exit(agentMain(os.Args[3]))
		}
	}
	os.Exit(m.Run())
}

func keeperMain(dir string) int {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	opts := KeeperOptions{Dir: dir, Log: log, Idle: 300 * time.Millisecond, CgroupRoot: os.Getenv("SUBSTRATE_TEST_CGROUPS")}
	if opts.CgroupRoot == "" {
		opts.CgroupRoot = noCgroups
	}
	if err := Keep(context.Background(), opts); err != nil {
		log.Error(err.Error())
		return 1
	}
	return 0
}

// agentMain starts one run whose script comes on stdin, says so, and waits to be killed.
func agentMain(dir string) int {
	text, _ := io.ReadAll(os.Stdin)
	p, err := NewProcess(ProcessOptions{Dir: dir, Log: slog.New(slog.DiscardHandler), Keeper: []string{os.Args[0], "keeper"}, RunsAsCaller: true})
	if err != nil {
		return 1
	}
	ctx := context.Background()
	go p.Run(ctx)
	if err := p.Start(ctx, Spec{ID: "w/j#1", Script: string(text)}); err != nil {
		return 1
	}
	for {
		batch, err := p.Updates(ctx)
		if err != nil {
			return 1
		}
		for _, s := range batch {
			if s.State == StateRunning {
				fmt.Println("running")
				os.Stdout.Close()
			}
		}
	}
}

// harness is an agent's side of a runtime: it remembers the newest status of each run.
type harness struct {
	t      testing.TB
	dir    string
	rt     *Process
	cancel context.CancelFunc
	tasks  *errgroup.Group
	seen   map[RunID]Status
	first  []Status
}

// stateDir is short-lived, passable for other accounts and, unlike t.TempDir, patient with keepers.
func stateDir(t testing.TB) string {
	dir, err := os.MkdirTemp("", "substrate-rt-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 200 {
			if os.RemoveAll(dir) == nil {
				if _, err := os.Stat(dir); err != nil {
					return
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Errorf("state directory %s does not go away", dir)
	})
	return filepath.Join(dir, "state")
}

func newHarness(t testing.TB, dir string, asCaller bool) *harness {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	rt, err := NewProcess(ProcessOptions{
		Dir: dir, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Keeper: []string{exe, "keeper"}, RunsAsCaller: asCaller,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	h := &harness{t: t, dir: dir, rt: rt, cancel: cancel, tasks: &errgroup.Group{}, seen: map[RunID]Status{}}
	h.tasks.Go(func() error { return rt.Run(ctx) })
	h.first = h.updates()
	t.Cleanup(h.close)
	return h
}

// close ends every run and leaves the keeper to its idle end.
func (h *harness) close() {
	if h.cancel == nil {
		return
	}
	for id, s := range h.seen {
		if s.State != StateEnded {
			_ = h.rt.Stop(context.Background(), id, 0, "test over")
		}
	}
	for id := range h.seen {
		h.wait(id, StateEnded)
		_ = h.rt.Forget(context.Background(), id)
	}
	deadline := time.Now().Add(10 * time.Second)
	for h.rt.hasRuns() && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
	}
	h.leave()
}

// leave is an agent that ends and lets its runs go on.
func (h *harness) leave() {
	h.cancel()
	if err := h.tasks.Wait(); err != nil {
		h.t.Error(err)
	}
	h.cancel = nil
}

func (h *harness) updates() []Status {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	batch, err := h.rt.Updates(ctx)
	if err != nil {
		h.t.Fatalf("no update: %v; seen %v; keeper: %s", err, h.seen, h.keeperLog())
	}
	for _, s := range batch {
		h.seen[s.ID] = s
	}
	return batch
}

func (h *harness) keeperLog() string {
	text, _ := os.ReadFile(filepath.Join(h.dir, keeperLog))
	return string(text)
}

func (h *harness) start(s Spec) {
	h.t.Helper()
	if err := h.rt.Start(context.Background(), s); err != nil {
		h.t.Fatal(err)
	}
}

func (h *harness) wait(id RunID, state State) Status {
	h.t.Helper()
	for {
		s, ok := h.seen[id]
		if ok && (s.State == state || s.State == StateEnded) {
			if s.State != state {
				h.t.Fatalf("run %s: %+v, state %s expected", id, s, state)
			}
			return s
		}
		h.updates()
	}
}

func (h *harness) run(s Spec) Status {
	h.t.Helper()
	h.start(s)
	return h.wait(s.ID, StateEnded)
}

func (h *harness) output(id RunID, stream Stream) string {
	h.t.Helper()
	f, err := h.rt.Output(id, stream)
	if err != nil {
		h.t.Fatal(err)
	}
	defer f.Close()
	text, err := io.ReadAll(f)
	if err != nil {
		h.t.Fatal(err)
	}
	return string(text)
}

func (h *harness) keeperPID() int {
	h.t.Helper()
	for _, p := range processes() {
		line, _ := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/cmdline")
		if args := strings.Split(string(line), "\x00"); len(args) > 3 && args[1] == "keeper" && args[3] == h.dir {
			return p.PID
		}
	}
	h.t.Fatal("no keeper runs")
	return 0
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("not within 10 s: %s", what)
}

func gone(pid int) func() bool {
	return func() bool {
		s, err := readStat(pid)
		return err != nil || s.State == 'Z'
	}
}

func readPID(t testing.TB, path string) int {
	t.Helper()
	var pid int
	eventually(t, "pid in "+path, func() bool {
		text, err := os.ReadFile(path)
		if err != nil || !strings.HasSuffix(string(text), "\n") {
			return false
		}
		pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
		return err == nil
	})
	return pid
}

func exists(pid int) bool { return syscall.Kill(pid, 0) == nil }
