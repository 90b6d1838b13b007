package runtime

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	maxOutbox      = 8192 // requests between the agent and the keeper
	keeperStart    = 10 * time.Second
	keeperRetryMin = 100 * time.Millisecond
	keeperRetryMax = 5 * time.Second
)

// ProcessOptions configure NewProcess.
type ProcessOptions struct {
	Dir string // state directory, of this runtime alone
	Log *slog.Logger
	// Keeper is the command of a keeper; its state directory follows as --dir DIR. Empty is this
	// program with the argument "keeper".
	Keeper []string
	// RunsAsCaller runs everything as the agent's own account, root included. For development.
	RunsAsCaller bool
	// CgroupRoot is where the first look at control groups goes; "" is /sys/fs/cgroup. The keeper has
	// an option of its own.
	CgroupRoot string
}

// Process is the runtime of plain processes. A keeper process is their parent: it is started with
// the first run and found again by a later agent. Run must be running for anything to happen.
type Process struct {
	opts     ProcessOptions
	accounts accounts

	mu       sync.Mutex
	pending  map[RunID]startRequest // asked for, nothing heard yet: asked again of the next keeper
	stops    map[RunID]stopRequest  // asked for, no end heard yet: asked again of the next keeper
	seen     map[RunID]bool         // runs in the connected keeper's snapshot; nil once it is complete
	outbox   []request
	dirty    map[RunID]Status // to be told by Updates
	open     map[RunID]bool   // runs that have not ended: a lost keeper must be replaced
	warnings []string
	keeper   int           // pid, when this process started it
	room     chan struct{} // closed when the outbox was emptied
	work     chan struct{} // the outbox has something
	changed  chan struct{} // Updates has something
	known    chan struct{} // closed once all runs are known
	once     sync.Once
}

var (
	_ Runtime = (*Process)(nil)
	_ Outputs = (*Process)(nil)
)

// Outputs is a runtime whose runs' output can be read while it grows.
type Outputs interface {
	// Output opens one output of a run that is not forgotten. The caller closes it. The error is
	// fs.ErrNotExist for a run that never started.
	Output(id RunID, stream Stream) (*os.File, error)
}

// NewProcess prepares the state directory, and looks at what this node permits.
func NewProcess(opts ProcessOptions) (*Process, error) {
	if err := os.MkdirAll(filepath.Join(opts.Dir, runsDir), 0o711); err != nil {
		return nil, fmt.Errorf("cannot make runtime state directory: %w", err)
	}
	for _, dir := range []string{opts.Dir, filepath.Join(opts.Dir, runsDir)} {
		// Accounts pass through to their working directories, whatever the umask was.
		if err := os.Chmod(dir, 0o711); err != nil {
			return nil, fmt.Errorf("cannot make runtime state directory: %w", err)
		}
	}
	dir, err := filepath.Abs(opts.Dir)
	if err != nil {
		return nil, fmt.Errorf("cannot find runtime state directory: %w", err)
	}
	opts.Dir = dir
	if len(opts.Keeper) == 0 {
		exe, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("cannot find own program for the keeper: %w", err)
		}
		opts.Keeper = []string{exe, "keeper"}
	}
	return &Process{
		opts: opts, warnings: lookAtGroups(opts), accounts: accounts{runsAsCaller: opts.RunsAsCaller},
		pending: map[RunID]startRequest{}, stops: map[RunID]stopRequest{}, dirty: map[RunID]Status{}, open: map[RunID]bool{},
		room: make(chan struct{}), work: make(chan struct{}, 1), changed: make(chan struct{}, 1), known: make(chan struct{}),
	}, nil
}

// lookAtGroups tells what limits a keeper will not be able to set, and without a living keeper
// removes the empty groups that a killed one left.
func lookAtGroups(opts ProcessOptions) []string {
	c := probeCgroups(opts.CgroupRoot, opts.Dir)
	if lock, err := tryLock(opts.Dir); err == nil {
		c.close()
		lock.Close()
	}
	return c.warnings
}

// Warnings are what this node does not let the runtime do: first by the look of it, then in the
// words of the keeper, which has tried. A keeper's are there before its first status.
func (p *Process) Warnings() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.warnings
}

func (p *Process) Output(id RunID, stream Stream) (*os.File, error) {
	// O_NONBLOCK and the check: the file is the account's, but its name is not.
	f, err := os.OpenFile(filesOf(p.opts.Dir, id).output(stream), os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open output: %w", err)
	}
	return f, nil
}

func (p *Process) Start(ctx context.Context, spec Spec) error {
	if err := CheckRunID(spec.ID); err != nil {
		return err
	}
	s := startRequest{Spec: spec}
	acc, err := p.accounts.lookup(spec.Account)
	if err != nil {
		s.Refusal = fmt.Sprintf("cannot start run as account %q: %v", spec.Account, err)
		acc = account{Caller: true}
	}
	s.Account = acc
	return p.ask(ctx, request{Start: []startRequest{s}})
}

func (p *Process) Signal(ctx context.Context, id RunID, signal syscall.Signal, notice Notice) error {
	return p.ask(ctx, request{Signal: &signalRequest{ID: id, Signal: signal, Notice: notice}})
}

func (p *Process) Stop(ctx context.Context, id RunID, grace time.Duration, reason string) error {
	return p.ask(ctx, request{Stop: &stopRequest{ID: id, Grace: grace, Reason: reason}})
}

func (p *Process) Forget(ctx context.Context, ids ...RunID) error {
	for len(ids) > 0 {
		n := min(len(ids), maxBatch)
		if err := p.ask(ctx, request{Forget: ids[:n:n]}); err != nil {
			return err
		}
		ids = ids[n:]
	}
	return nil
}

// ask queues a request, and waits for room.
func (p *Process) ask(ctx context.Context, req request) error {
	for {
		p.mu.Lock()
		if len(p.outbox) < maxOutbox {
			p.outbox = append(p.outbox, req)
			for _, s := range req.Start {
				p.pending[s.Spec.ID] = s
			}
			if req.Stop != nil {
				p.stops[req.Stop.ID] = *req.Stop
			}
			p.mu.Unlock()
			poke(p.work)
			return nil
		}
		room := p.room
		p.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (p *Process) Updates(ctx context.Context) ([]Status, error) {
	select {
	case <-p.known:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	first := false
	p.once.Do(func() { first = true })
	for {
		p.mu.Lock()
		batch := make([]Status, 0, len(p.dirty))
		for _, s := range p.dirty {
			batch = append(batch, s)
		}
		clear(p.dirty)
		p.mu.Unlock()
		if len(batch) > 0 || first {
			return batch, nil
		}
		select {
		case <-p.changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Run keeps the connection to the keeper until ctx ends. Runs and keeper stay when it returns.
func (p *Process) Run(ctx context.Context) error {
	defer p.reapKeeper()
	retry := keeperRetryMin
	needed := p.hasRuns()
	if !needed {
		close(p.known)
	}
	for {
		if !needed {
			select {
			case <-p.work:
			case <-ctx.Done():
				return nil
			}
		}
		began := time.Now()
		err := p.connectAndServe(ctx)
		if ctx.Err() != nil {
			return nil
		}
		p.reapKeeper()
		needed = p.needed() || p.untold()
		if !needed {
			continue
		}
		p.opts.Log.Warn("the keeper is gone, starting another", "error", err)
		if time.Since(began) > time.Minute {
			retry = keeperRetryMin
		}
		select {
		case <-time.After(retry):
		case <-ctx.Done():
			return nil
		}
		retry = min(2*retry, keeperRetryMax)
	}
}

// hasRuns reports runs of an earlier agent: a journal without any is empty.
func (p *Process) hasRuns() bool {
	info, err := os.Stat(filepath.Join(p.opts.Dir, journalFile))
	return err == nil && info.Size() > 0
}

// untold reports runs of an earlier agent that no keeper has told about yet: the one that was found died first.
func (p *Process) untold() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.known:
		return false
	default:
	}
	if p.hasRuns() {
		return true
	}
	close(p.known)
	return false
}

func (p *Process) needed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.pending) > 0 || len(p.open) > 0 || len(p.outbox) > 0
}

func (p *Process) connectAndServe(ctx context.Context) error {
	conn, err := p.connect(ctx)
	if err != nil {
		return err
	}
	p.again()
	g, ctx := errgroup.WithContext(ctx)
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	g.Go(func() error { return p.read(conn) })
	g.Go(func() error { return p.write(ctx, conn) })
	err = g.Wait()
	conn.Close()
	return err
}

// connect finds the living keeper or starts one.
func (p *Process) connect(ctx context.Context) (net.Conn, error) {
	if conn, err := p.dial(); err == nil {
		return conn, nil
	}
	if err := p.startKeeper(); err != nil {
		return nil, err
	}
	deadline := time.Now().Add(keeperStart)
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		conn, err := p.dial()
		if err == nil {
			return conn, nil
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("cannot reach the keeper within %v, see %s: %w", keeperStart, filepath.Join(p.opts.Dir, keeperLog), err)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (p *Process) dial() (net.Conn, error) {
	path, d, err := shortPath(p.opts.Dir, socketFile)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
}

func (p *Process) startKeeper() error {
	log, err := os.OpenFile(filepath.Join(p.opts.Dir, keeperLog), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("cannot open keeper log: %w", err)
	}
	defer log.Close()
	argv := append(append([]string{}, p.opts.Keeper...), "--dir", p.opts.Dir)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("cannot start the keeper: %w", err)
	}
	p.mu.Lock()
	p.keeper = cmd.Process.Pid
	p.mu.Unlock()
	return cmd.Process.Release()
}

// reapKeeper takes note of a dead keeper that this process started. A living one is left alone.
func (p *Process) reapKeeper() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.keeper == 0 {
		return
	}
	if pid, err := syscall.Wait4(p.keeper, nil, syscall.WNOHANG, nil); pid == p.keeper || err != nil {
		p.keeper = 0
	}
}

// again puts the starts and stops that were not answered before everything else. The keeper knows
// which of them it has done.
func (p *Process) again() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = map[RunID]bool{}
	queued, stopping := map[RunID]bool{}, map[RunID]bool{}
	for _, req := range p.outbox {
		if req.Stop != nil {
			stopping[req.Stop.ID] = true
		}
		for _, s := range req.Start {
			queued[s.Spec.ID] = true
		}
	}
	var first []request
	for id, s := range p.pending {
		if !queued[id] {
			first = append(first, request{Start: []startRequest{s}})
		}
	}
	for id, s := range p.stops {
		if !stopping[id] {
			first = append(first, request{Stop: &s})
		}
	}
	p.outbox = append(first, p.outbox...)
	if len(p.outbox) > 0 {
		poke(p.work)
	}
}

func (p *Process) read(conn net.Conn) error {
	r := bufio.NewReaderSize(conn, 64<<10)
	for {
		var rep reply
		if err := readFrame(r, &rep); err != nil {
			return fmt.Errorf("cannot read from keeper: %w", err)
		}
		if rep.Hello != nil && rep.Hello.Protocol < 1 {
			return errors.New("cannot talk to the keeper: it speaks no protocol this agent knows")
		}
		p.take(rep)
	}
}

func (p *Process) take(rep reply) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if rep.Hello != nil {
		p.warnings = rep.Hello.Warnings
	}
	for _, s := range rep.Statuses {
		delete(p.pending, s.ID)
		p.dirty[s.ID] = s
		if p.seen != nil {
			p.seen[s.ID] = true
		}
		if s.State == StateEnded {
			delete(p.open, s.ID)
			delete(p.stops, s.ID)
		} else {
			p.open[s.ID] = true
		}
	}
	if rep.Snapshot {
		p.missing()
		p.seen = nil
		select {
		case <-p.known:
		default:
			close(p.known)
		}
	}
	if len(p.dirty) > 0 {
		poke(p.changed)
	}
}

// missing ends the runs that a new keeper found no trace of.
func (p *Process) missing() {
	for id := range p.open {
		if p.seen[id] {
			continue
		}
		delete(p.open, id)
		delete(p.stops, id)
		p.dirty[id] = Status{ID: id, State: StateEnded, Cause: CauseLostStatus, Ended: time.Now(), Message: "the run's directory is gone"}
	}
}

// write sends what is queued, starts and forgets that follow one another in one frame.
func (p *Process) write(ctx context.Context, conn net.Conn) error {
	if err := writeFrame(conn, request{Hello: &hello{Protocol: keeperProtocol, PID: os.Getpid()}}); err != nil {
		return fmt.Errorf("cannot write to keeper: %w", err)
	}
	for {
		p.mu.Lock()
		out := p.outbox
		p.outbox = nil
		close(p.room)
		p.room = make(chan struct{})
		p.mu.Unlock()
		for i := 0; i < len(out); {
			req, n := merge(out[i:])
			if err := writeFrame(conn, req); err != nil {
				p.putBack(out[i:])
				return fmt.Errorf("cannot write to keeper: %w", err)
			}
			i += n
		}
		select {
		case <-p.work:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (p *Process) putBack(rest []request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.outbox = append(append([]request{}, rest...), p.outbox...)
}

// merge joins the leading requests that are all starts, or all forgets, and says how many they were.
// Frames stay small: a start may carry a script of megabytes.
func merge(reqs []request) (request, int) {
	const enough = 1 << 20
	first := reqs[0]
	// The requests stay as they are: after a failed write they are sent again.
	first.Start, first.Forget = slices.Clip(first.Start), slices.Clip(first.Forget)
	n, size := 1, weight(first)
	for ; n < len(reqs) && n < maxBatch && size < enough; n++ {
		next := reqs[n]
		switch {
		case len(first.Start) > 0 && len(next.Start) > 0:
			first.Start = append(first.Start, next.Start...)
		case len(first.Forget) > 0 && len(next.Forget) > 0:
			first.Forget = append(first.Forget, next.Forget...)
		default:
			return first, n
		}
		size += weight(next)
	}
	return first, n
}

func weight(req request) int {
	size := 64 * (1 + len(req.Forget))
	for _, s := range req.Start {
		size += len(s.Spec.Script)
		for _, text := range [][]string{s.Spec.Command, s.Spec.Env, s.Spec.Nodes} {
			for _, t := range text {
				size += len(t)
			}
		}
	}
	return size
}
