package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// load reads what an earlier keeper left: ended runs to tell about, and runs whose processes may
// still be there. Those are no children of this process, so only their end can be seen.
func (k *keeper) load() error {
	root := filepath.Join(k.dir, runsDir)
	if err := os.MkdirAll(root, 0o711); err != nil {
		return fmt.Errorf("cannot make run directory: %w", err)
	}
	if err := os.Chmod(root, 0o711); err != nil { // the umask took the passage away
		return fmt.Errorf("cannot make run directory: %w", err)
	}
	j, runs, lost, err := openJournal(filepath.Join(k.dir, journalFile))
	if err != nil {
		return err
	}
	k.journal = j
	if lost > 0 {
		k.log.Warn("passed over unreadable parts of the journal", "bytes", lost)
	}
	if err := sweepRuns(k.dir, runs); err != nil {
		k.log.Warn("cannot sweep run directory", "error", err)
	}
	k.loadRuns(runs)
	return nil
}

func (k *keeper) loadRuns(runs map[RunID]*kept) {
	open, inGroup := 0, map[string]int{}
	for _, r := range runs {
		if r.record == nil || r.record.Status.State != StateEnded {
			open++
		}
		if r.record != nil && r.record.Status.State != StateEnded && r.record.Group != "" {
			inGroup[r.record.Group]++
			k.groups.reserve(r.record.Group)
		}
	}
	var tagged map[RunID][]procStat
	if open > 0 {
		tagged = taggedProcesses()
	}
	for id, r := range runs {
		if r.record != nil && inGroup[r.record.Group] > 1 {
			r.record.Group = "" // damage; whose the processes in it are is not known
		}
		k.loadRun(id, r, tagged[id])
	}
}

// loadRun takes over a run with what is there of its processes.
func (k *keeper) loadRun(id RunID, was *kept, there []procStat) {
	r := &run{files: filesOf(k.dir, id), killAfter: was.Spec.KillAfter, status: Status{ID: id, State: StateRunning}}
	k.runs[id] = r
	if rec := was.record; rec != nil {
		r.status, r.pid, r.start = rec.Status, rec.PID, rec.Start
		if r.status.State == StateEnded {
			return
		}
		if rec.BootID != k.boot { // numbers of another life of the node
			r.pid = 0
		} else if r.group = k.groups.reopen(rec.Group); r.group != nil {
			r.group.thaw()
		}
	} else if first := firstOf(there); first.PID != 0 {
		// The keeper died between fork and record.
		r.pid, r.start, r.status.Started = first.PID, first.Start, time.Now()
	}
	r.adopted = true
	if (r.pid == 0 || !alive(r.pid, r.start)) && len(there) == 0 && !r.group.busy() {
		k.finish(r, outcome{lost: true})
		return
	}
	if was.Spec.Walltime > 0 {
		k.armWalltime(r, was.Spec.Walltime-time.Since(r.status.Started))
	}
	select { // where only its first process is gone, the rest is ended there
	case k.adopted <- struct{}{}:
	default:
	}
}

// taggedProcesses are those whose environment names a run, by run.
func taggedProcesses() map[RunID][]procStat {
	tagged := map[RunID][]procStat{}
	for _, p := range processes() {
		if p.State == 'Z' || p.State == 'X' {
			continue
		}
		if id := taggedRun(p.PID); id != "" {
			tagged[id] = append(tagged[id], p)
		}
	}
	return tagged
}

// firstOf finds the first process of a run: the session leader if it lives.
func firstOf(processes []procStat) procStat {
	for _, p := range processes {
		if p.Session == p.PID {
			return p
		}
	}
	return procStat{}
}

func (k *keeper) askStart(ctx context.Context, c *keeperConn, s startRequest) {
	id := s.Spec.ID
	k.mu.Lock()
	if k.leaving { // the agent asks the next keeper again
		k.mu.Unlock()
		return
	}
	known := k.runs[id]
	if known != nil {
		c.dirty[id] = struct{}{}
		c.poke()
	} else {
		k.runs[id] = &run{
			status: Status{ID: id, State: StateStarting}, files: filesOf(k.dir, id), killAfter: s.Spec.KillAfter,
		}
	}
	k.mu.Unlock()
	if known != nil {
		return
	}
	select {
	case k.starts <- s:
	case <-ctx.Done():
		// The agent left with the queue full: it will ask again, so the run must not look known.
		k.mu.Lock()
		delete(k.runs, id)
		k.mu.Unlock()
	}
}

// spawnLoop starts runs, a few at a time where many wait: the thread that forks then goes from one
// control group to the next, and home only once.
func (k *keeper) spawnLoop(ctx context.Context) {
	batch := make([]*launch, 0, maxForks)
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-k.starts:
			batch = k.ready(batch[:0], s)
		}
		for more := true; more && len(batch) < maxForks; {
			select {
			case s := <-k.starts:
				batch = k.ready(batch, s)
			default:
				more = false
			}
		}
		k.forkAll(batch)
	}
}

// ready adds a run to the batch, or ends it if it cannot start.
func (k *keeper) ready(batch []*launch, s startRequest) []*launch {
	k.mu.Lock()
	r := k.runs[s.Spec.ID]
	stopped := r.cause
	k.mu.Unlock()
	stored := storedSpec{Spec: s.Spec, Account: s.Account}
	err := k.journal.append(entry{ID: s.Spec.ID, Spec: &stored})
	switch {
	case err != nil:
	case stopped != "":
		err = errors.New("cannot start run: it was stopped before")
	case s.Refusal != "":
		err = errors.New(s.Refusal)
	}
	if err == nil {
		var l *launch
		if l, err = prepare(stored, r, k.null); err == nil {
			return append(batch, l)
		}
	}
	k.finish(r, outcome{failed: err})
	return batch
}

func (k *keeper) forkAll(batch []*launch) {
	for _, l := range batch {
		g, err := k.groups.create(l.spec.Memory, l.spec.CPUs, l.attr.Sys)
		if err != nil {
			k.log.Warn("cannot limit run", "run", l.spec.ID, "error", err)
		}
		l.group = g
	}
	goruntime.LockOSThread()
	defer goruntime.UnlockOSThread()
	defer k.groups.leave()
	for _, l := range batch {
		if err := k.fork(l); err != nil {
			l.close()
			k.groups.release(l.group)
			k.finish(l.run, outcome{failed: err})
		}
	}
}

func (k *keeper) fork(l *launch) error {
	r, g := l.run, l.group
	k.forkMu.Lock()
	defer k.forkMu.Unlock()
	g.enter()
	pid, err := syscall.ForkExec(l.path, l.argv, &l.attr)
	if err != nil {
		return explainFork(l, err)
	}
	// Until it is in byPID the child is not reaped, so /proc knows it even if it has ended.
	g.attach(pid)
	stat, _ := readStat(pid)
	k.mu.Lock()
	r.pid, r.start, r.group = pid, stat.Start, g
	r.status.State, r.status.Started = StateRunning, time.Now()
	rec := record{Status: r.status, PID: pid, Start: stat.Start, BootID: k.boot, Group: g.id()}
	k.mu.Unlock()
	if err := k.journal.append(entry{ID: r.status.ID, Record: &rec}); err != nil {
		k.log.Warn("cannot record run", "run", r.status.ID, "error", err)
	}
	adjustOOM(pid)
	k.mu.Lock()
	k.byPID[pid] = r
	if l.spec.Walltime > 0 {
		k.armWalltime(r, l.spec.Walltime)
	}
	if r.cause != "" { // stopped between the request and the fork
		syscall.Kill(-pid, syscall.SIGTERM)
	}
	k.publish(r)
	k.mu.Unlock()
	l.close()
	select {
	case k.spawned <- struct{}{}:
	default:
	}
	return nil
}

func adjustOOM(pid int) {
	// Best effort: an unprivileged keeper may raise, and nobody else cares.
	_ = writeFile("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", strconv.Itoa(runOOMAdjust))
}

// siginfo is the head of siginfo_t for SIGCHLD on 64-bit Linux.
type siginfo struct {
	signo, errno, code, _ int32
	pid                   int32
	uid                   uint32
	status                int32
}

// reapLoop waits for children in two steps: it sees the end, settles the run while the zombie still
// holds pid, group and session, and only then lets it go. So no signal can meet a stranger.
func (k *keeper) reapLoop(ctx context.Context) {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOWAIT, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil: // ECHILD
			select {
			case <-k.spawned:
				continue
			case <-ctx.Done():
				return
			}
		}
		k.reap(int((*siginfo)(unsafe.Pointer(&info)).pid))
	}
}

func (k *keeper) reap(pid int) {
	k.mu.Lock()
	r := k.byPID[pid]
	k.mu.Unlock()
	if r == nil {
		// An orphan, or a child so fresh that its fork has not finished.
		k.forkMu.Lock()
		k.mu.Lock()
		r = k.byPID[pid]
		k.mu.Unlock()
		k.forkMu.Unlock()
	}
	var ws syscall.WaitStatus
	if r == nil {
		_, _ = syscall.Wait4(pid, &ws, syscall.WNOHANG, nil)
		return
	}
	_ = syscall.Kill(-pid, syscall.SIGKILL)
	rest := r.group.busy() || len(k.leftovers(r)) > 0
	k.mu.Lock()
	_, err := syscall.Wait4(pid, &ws, syscall.WNOHANG, nil)
	delete(k.byPID, pid)
	k.disarm(r)
	k.mu.Unlock()
	o := outcome{status: ws, lost: err != nil, at: time.Now()}
	if !rest {
		k.finish(r, o)
		return
	}
	k.ends.Go(func() {
		k.killLeftovers(r)
		k.finish(r, o)
	})
}

// outcome is how a run ended: one of failed, lost and status.
type outcome struct {
	failed error
	lost   bool
	status syscall.WaitStatus
	at     time.Time // when the first process ended, zero for now
}

// finish makes the end durable, then known.
func (k *keeper) finish(r *run, o outcome) {
	k.mu.Lock()
	k.disarm(r)
	s := r.status
	cause, reason, pid, start := r.cause, r.reason, r.pid, r.start
	k.mu.Unlock()
	s.State, s.Ended = StateEnded, o.at
	if o.at.IsZero() {
		s.Ended = time.Now()
	}
	s.Stdout, s.Stderr = r.files.outputSize(Stdout), r.files.outputSize(Stderr)
	oom := r.group.oomKilled()
	judge(&s, o, cause, reason, oom)
	rec := record{Status: s, PID: pid, Start: start, BootID: k.boot}
	if err := k.journal.append(entry{ID: s.ID, Record: &rec}); err != nil {
		k.log.Warn("cannot record the end of a run yet", "run", s.ID, "error", err)
	}
	k.groups.release(r.group) // not before: the next keeper must not take the next run in it for this one
	k.mu.Lock()
	r.status = s
	k.publish(r)
	k.mu.Unlock()
}

func judge(s *Status, o outcome, decided Cause, reason string, oom bool) {
	switch {
	case o.failed != nil && decided != "":
		s.Cause, s.Message = decided, reason+"; it had not started"
		return
	case o.failed != nil:
		s.Cause, s.Message = CauseStartFailed, o.failed.Error()
		return
	case o.lost && decided != "":
		s.Cause, s.Message = decided, reason+"; nobody saw how it ended"
		return
	case o.lost:
		s.Cause, s.Message = CauseLostStatus, "the run is over; its keeper died before it, so nobody saw how it ended"
		return
	}
	how := fmt.Sprintf("exit code %d", o.status.ExitStatus())
	if o.status.Signaled() {
		how = fmt.Sprintf("signal %d (%s)", o.status.Signal(), unix.SignalName(o.status.Signal()))
	}
	switch {
	case decided != "":
		s.Cause, s.Message = decided, how
		if reason != "" {
			s.Message = reason + "; " + how
		}
	case oom && o.status.Signaled() && o.status.Signal() == syscall.SIGKILL:
		s.Cause, s.Message = CauseOOM, "the run needed more memory than it asked for"
	case o.status.Signaled():
		s.Cause, s.Signal = CauseSignalled, int32(o.status.Signal())
	default:
		s.Cause, s.ExitCode = CauseExited, int32(o.status.ExitStatus())
	}
}

// watchAdopted looks after runs that are nobody's children here.
func (k *keeper) watchAdopted(ctx context.Context) {
	const every = 200 * time.Millisecond
	for {
		var left int
		for _, r := range k.adoptedRuns() {
			if alive(r.pid, r.start) {
				left++
				continue
			}
			k.killLeftovers(r)
			k.finish(r, outcome{lost: true})
		}
		var tick <-chan time.Time
		if left > 0 {
			tick = time.After(every)
		}
		select {
		case <-tick:
		case <-k.adopted:
		case <-ctx.Done():
			return
		}
	}
}

func (k *keeper) adoptedRuns() []*run {
	k.mu.Lock()
	defer k.mu.Unlock()
	var rs []*run
	for _, r := range k.runs {
		if r.adopted && r.status.State != StateEnded {
			rs = append(rs, r)
		}
	}
	return rs
}

func (k *keeper) forget(ctx context.Context, id RunID) {
	k.mu.Lock()
	r := k.runs[id]
	if r == nil || r.forgotten || r.status.State != StateEnded {
		k.mu.Unlock()
		return
	}
	r.forgotten = true
	k.mu.Unlock()
	select {
	case k.removes <- r:
	case <-ctx.Done(): // asked again by the next agent
		k.mu.Lock()
		r.forgotten = false
		k.mu.Unlock()
	}
}

func (k *keeper) removeLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-k.removes:
			if err := k.journal.append(entry{ID: r.status.ID, Gone: true}); err != nil {
				k.log.Warn("cannot forget run", "run", r.status.ID, "error", err)
			}
			if err := r.files.remove(); err != nil {
				k.log.Warn("cannot remove a run's files", "run", r.status.ID, "error", err)
			}
			k.mu.Lock()
			delete(k.runs, r.status.ID)
			k.mu.Unlock()
		}
	}
}
