package runtime

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	goruntime "runtime"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	keeperIdle      = time.Minute
	keeperMemory    = 64 << 20 // soft limit; a keeper of a thousand runs stays far below
	keeperGC        = 50
	maxQueuedStarts = 4096
	maxForks        = 8 // with one visit to control groups
	maxConns        = 8
)

// KeeperOptions configure Keep.
type KeeperOptions struct {
	Dir string // state directory
	Log *slog.Logger
	// Idle is how long a keeper without runs and agent stays; 0 is a minute.
	Idle time.Duration
	// CgroupRoot is where control groups are mounted; "" is /sys/fs/cgroup, "none" uses none.
	CgroupRoot string
}

// keeper is the parent of all runs of one state directory. It lives in a process of its own, so that
// an agent may die or be replaced while runs go on.
type keeper struct {
	dir    string
	log    *slog.Logger
	boot   string
	groups *cgroups
	null   *os.File // standard input of every run

	journal *journal

	starts  chan startRequest
	removes chan *run
	spawned chan struct{} // there may be a child to wait for again
	adopted chan struct{} // there may be an adopted run to watch again
	forkMu  sync.Mutex    // held from fork until the child is in byPID
	ends    sync.WaitGroup
	scans   scanCache

	mu    sync.Mutex
	runs  map[RunID]*run
	byPID map[int]*run // children only
	conns map[*keeperConn]struct{}
	quiet time.Time // since when there is no connection

	leaving bool // no run is taken any more
}

// run is guarded by keeper.mu, but for the fields set before it is published.
type run struct {
	status    Status
	files     runFiles
	pid       int
	start     uint64
	adopted   bool  // a child of a keeper that died: it can be watched, not waited for
	cause     Cause // decided before the end, by Stop or the walltime
	reason    string
	killAfter time.Duration
	walltime  *time.Timer
	kill      *time.Timer
	killAt    time.Time
	group     *group
	forgotten bool
}

// Keep runs a keeper until it has been idle for long enough. The process must be its own: all its
// children are waited for, its umask and signal handling change. Call it from the main goroutine.
func Keep(ctx context.Context, opts KeeperOptions) error {
	// Orphans of runs become children of the main thread. It never forks, so its children are
	// just the orphans; see leftovers.
	goruntime.LockOSThread()
	told := make(chan os.Signal, 1)
	if err := becomeKeeper(opts.Log, told); err != nil {
		return err
	}
	lock, err := lockState(opts.Dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return fmt.Errorf("cannot open standard input of runs: %w", err)
	}
	defer null.Close()
	k := &keeper{
		dir: opts.Dir, log: opts.Log, boot: bootID(), groups: openCgroups(opts.CgroupRoot, opts.Dir), null: null,
		starts: make(chan startRequest, maxQueuedStarts), removes: make(chan *run, maxQueuedStarts),
		spawned: make(chan struct{}, 1), adopted: make(chan struct{}, 1),
		runs: map[RunID]*run{}, byPID: map[int]*run{}, conns: map[*keeperConn]struct{}{}, quiet: time.Now(),
	}
	defer k.groups.close()
	if err := k.load(); err != nil {
		return err
	}
	defer k.journal.close()
	k.groups.sweep()
	listener, err := listenUnix(opts.Dir)
	if err != nil {
		return err
	}
	idle := opts.Idle
	if idle == 0 {
		idle = keeperIdle
	}
	return k.serve(ctx, listener, idle, told)
}

func becomeKeeper(log *slog.Logger, told chan os.Signal) error {
	debug.SetGCPercent(keeperGC)
	debug.SetMemoryLimit(keeperMemory)
	syscall.Umask(0o077)
	// Notify and not Ignore: an ignored signal stays ignored in the runs, a caught one does not.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT)
	signal.Notify(told, syscall.SIGTERM)
	if err := unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		log.Warn("cannot mark inherited files close-on-exec", "error", err)
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("cannot become the reaper of runs: %w", err)
	}
	return nil
}

// lockState waits a moment for a keeper that is on its way out.
func lockState(dir string) (*os.File, error) {
	var err error
	for range 100 {
		var f *os.File
		if f, err = tryLock(dir); err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, err
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil, fmt.Errorf("cannot lock state directory %s: another keeper holds it: %w", dir, err)
}

// tryLock takes the keeper's place, unless there is a keeper.
func tryLock(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open keeper lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot take keeper lock: %w", err)
	}
	return f, nil
}

// shortPath names a file through an open directory: socket addresses hold 107 bytes, state
// directories may be longer.
func shortPath(dir, name string) (string, *os.File, error) {
	d, err := os.Open(dir)
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), name), d, nil
}

func listenUnix(dir string) (*net.UnixListener, error) {
	if err := os.Remove(filepath.Join(dir, socketFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("cannot remove old keeper socket: %w", err)
	}
	path, d, err := shortPath(dir, socketFile)
	if err != nil {
		return nil, fmt.Errorf("cannot open state directory: %w", err)
	}
	defer d.Close()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("cannot listen on keeper socket: %w", err)
	}
	l.SetUnlinkOnClose(false) // the name leads through a closed directory by then
	return l, nil
}

// serve returns once the keeper is idle, or is told to go while nothing runs. Nothing is lost when
// an agent asks just then: it sees the connection close and starts the next keeper.
func (k *keeper) serve(ctx context.Context, listener *net.UnixListener, idle time.Duration, told <-chan os.Signal) error {
	ctx, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	tasks.Go(func() { k.spawnLoop(ctx) })
	// Not awaited: a stray process that no run can be blamed for may hold it in waitid for ever, and
	// the next keeper must not wait for that. It ends with the process.
	go k.reapLoop(ctx)
	tasks.Go(func() { k.watchAdopted(ctx) })
	tasks.Go(func() { k.removeLoop(ctx) })
	tasks.Go(func() { k.accept(ctx, listener, &tasks) })
	k.log.Info("keeper started", "pid", os.Getpid(), "dir", k.dir, "runs", len(k.runs))
	tick := time.NewTicker(max(idle/4, 10*time.Millisecond))
	defer tick.Stop()
	for ended := false; !ended; {
		select {
		case <-ctx.Done():
			ended = true
		case <-tick.C:
			ended = k.leave(false, idle)
			if !ended {
				k.journal.retry()
			}
		case <-told:
			if ended = k.leave(true, 0); !ended {
				k.log.Info("told to end, and stays for the runs there are")
			}
		}
	}
	os.Remove(filepath.Join(k.dir, socketFile))
	listener.Close()
	cancel()
	k.closeConns()
	tasks.Wait()
	k.ends.Wait()
	k.log.Info("keeper ended", "pid", os.Getpid())
	return nil
}

// leave ends the keeper's service if no run goes on and, unless it is told to go, no agent was here
// for a while. Runs that have ended need no keeper: the journal tells the next one.
func (k *keeper) leave(told bool, idle time.Duration) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !told && (len(k.conns) > 0 || time.Since(k.quiet) < idle) {
		return false
	}
	for _, r := range k.runs {
		if r.status.State != StateEnded {
			return false
		}
	}
	k.leaving = k.journal.retry() // the next keeper must know how all of them ended
	return k.leaving
}

func (k *keeper) accept(ctx context.Context, l *net.UnixListener, tasks *sync.WaitGroup) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			k.log.Warn("cannot accept agent", "error", err)
			time.Sleep(10 * time.Millisecond)
			continue
		}
		conn := &keeperConn{k: k, c: c, dirty: map[RunID]struct{}{}, unknown: map[RunID]Status{}, wake: make(chan struct{}, 1)}
		if !k.admit(conn) {
			c.Close()
			continue
		}
		tasks.Go(func() { conn.serve(ctx) })
	}
}

func (k *keeper) admit(conn *keeperConn) bool {
	if uid, err := peerUID(conn.c); err != nil || uid != 0 && uid != uint32(os.Geteuid()) {
		k.log.Warn("refused a connection of another account", "uid", uid, "error", err)
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.conns) >= maxConns {
		return false
	}
	k.conns[conn] = struct{}{}
	for id := range k.runs {
		conn.dirty[id] = struct{}{}
	}
	return true
}

func peerUID(c *net.UnixConn) (uint32, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, err
	}
	if credErr != nil {
		return 0, credErr
	}
	return cred.Uid, nil
}

func (k *keeper) closeConns() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for c := range k.conns {
		c.c.Close()
	}
}

// keeperConn is one agent. What it has yet to hear is a set of ids, so a slow agent costs no
// more than the runs there are.
type keeperConn struct {
	k       *keeper
	c       *net.UnixConn
	wake    chan struct{}
	dirty   map[RunID]struct{} // guarded by keeper.mu
	unknown map[RunID]Status   // answers about runs the keeper does not know
}

func (c *keeperConn) serve(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var writer sync.WaitGroup
	writer.Go(func() {
		if err := c.write(ctx); err != nil && ctx.Err() == nil {
			c.k.log.Info("agent left", "error", err)
		}
		c.c.Close()
	})
	r := bufio.NewReaderSize(c.c, 64<<10)
	for {
		var req request
		if err := readFrame(r, &req); err != nil {
			break
		}
		c.k.handle(ctx, c, req)
	}
	cancel()
	c.c.Close()
	writer.Wait()
	c.k.mu.Lock()
	delete(c.k.conns, c)
	c.k.quiet = time.Now()
	c.k.mu.Unlock()
}

func (c *keeperConn) write(ctx context.Context) error {
	h := &hello{Protocol: keeperProtocol, PID: os.Getpid(), Warnings: c.k.groups.warnings}
	if err := writeFrame(c.c, reply{Hello: h}); err != nil {
		return err
	}
	for snapshot := true; ; {
		batch := c.take()
		if len(batch) > 0 {
			if err := writeFrame(c.c, reply{Statuses: batch}); err != nil {
				return err
			}
			continue
		}
		if snapshot {
			if err := writeFrame(c.c, reply{Snapshot: true}); err != nil {
				return err
			}
			snapshot = false
		}
		select {
		case <-c.wake:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (c *keeperConn) take() []Status {
	c.k.mu.Lock()
	defer c.k.mu.Unlock()
	var batch []Status
	for id := range c.dirty {
		if len(batch) == maxBatch {
			return batch
		}
		delete(c.dirty, id)
		if r := c.k.runs[id]; r != nil {
			batch = append(batch, r.status)
		}
	}
	for id, s := range c.unknown {
		if len(batch) == maxBatch {
			return batch
		}
		delete(c.unknown, id)
		batch = append(batch, s)
	}
	return batch
}

func (c *keeperConn) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// publish tells every agent about a run. keeper.mu is held.
func (k *keeper) publish(r *run) {
	for c := range k.conns {
		c.dirty[r.status.ID] = struct{}{}
		c.poke()
	}
}

func (k *keeper) handle(ctx context.Context, c *keeperConn, req request) {
	for _, s := range req.Start {
		k.askStart(ctx, c, s)
	}
	if req.Signal != nil {
		k.signal(c, *req.Signal)
	}
	if req.Stop != nil {
		k.stop(c, *req.Stop)
	}
	for _, id := range req.Forget {
		k.forget(ctx, id)
	}
}
