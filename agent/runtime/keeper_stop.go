package runtime

import (
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	defaultKillAfter = 10 * time.Second
	scanFresh        = 20 * time.Millisecond // many stops at once share one look at /proc
	maxKillRounds    = 200
	maxChildLists    = 16
	reasonPreempted  = "preempted" // of a stop whose grace is a notice
)

type scanCache struct {
	mu   sync.Mutex
	at   time.Time
	seen []procStat
}

func (c *scanCache) get() []procStat {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.at) > scanFresh {
		c.seen, c.at = processes(), time.Now()
	}
	return c.seen
}

// unknownRun answers for a run the keeper never had, or forgot. keeper.mu is held.
func (c *keeperConn) unknownRun(id RunID) {
	c.unknown[id] = Status{ID: id, State: StateEnded, Cause: CauseLostStatus, Message: "this node knows no such run"}
	c.poke()
}

func (k *keeper) signal(c *keeperConn, req signalRequest) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.runs[req.ID]
	switch {
	case r == nil:
		c.unknownRun(req.ID)
	case r.status.State == StateEnded:
		c.dirty[req.ID] = struct{}{}
		c.poke()
	case r.pid > 0:
		if !req.Notice.Ends.IsZero() {
			writeNotice(r.files, req.Notice.Ends)
		}
		if r.adopted && !alive(r.pid, r.start) {
			return
		}
		_ = syscall.Kill(r.pid, req.Signal)
	}
}

// writeNotice tells a run until when it may tidy up. A run that asks for the file finds all of it: a
// handler of the signal reads it at once.
func writeNotice(files runFiles, ends time.Time) {
	tmp := files.newNotice()
	if err := os.WriteFile(tmp, []byte(ends.UTC().Format(time.RFC3339)+"\n"), 0o644); err != nil {
		return
	}
	_ = os.Chmod(tmp, 0o644) // the umask is 077; the run may read it
	_ = os.Rename(tmp, files.notice())
}

func (k *keeper) stop(c *keeperConn, req stopRequest) {
	k.mu.Lock()
	r := k.runs[req.ID]
	if r == nil {
		c.unknownRun(req.ID)
		k.mu.Unlock()
		return
	}
	if r.status.State == StateEnded {
		c.dirty[req.ID] = struct{}{}
		c.poke()
		k.mu.Unlock()
		return
	}
	started := r.pid > 0
	k.mu.Unlock()
	if started && req.Reason == reasonPreempted && req.Grace > 0 {
		writeNotice(r.files, time.Now().Add(req.Grace))
	}
	k.end(r, CauseStopped, req.Reason, req.Grace)
}

// armWalltime is called with keeper.mu held, or before the run is published.
func (k *keeper) armWalltime(r *run, left time.Duration) {
	r.walltime = time.AfterFunc(max(left, 0), func() {
		grace := r.killAfter
		if grace <= 0 {
			grace = defaultKillAfter
		}
		k.end(r, CauseWalltime, "the walltime is over", grace)
	})
}

func (k *keeper) disarm(r *run) {
	for _, t := range []*time.Timer{r.walltime, r.kill} {
		if t != nil {
			t.Stop()
		}
	}
}

// end asks a run's processes to go and arms the kill. The first reason stays; the earliest kill wins.
func (k *keeper) end(r *run, cause Cause, reason string, grace time.Duration) {
	k.mu.Lock()
	if r.status.State == StateEnded {
		k.mu.Unlock()
		return
	}
	if r.cause == "" {
		r.cause, r.reason = cause, reason
	}
	at := time.Now().Add(grace)
	if r.kill == nil || at.Before(r.killAt) {
		if r.kill != nil {
			r.kill.Stop()
		}
		r.killAt = at
		r.kill = time.AfterFunc(grace, func() { k.signalAll(r, syscall.SIGKILL) })
	}
	k.mu.Unlock()
	if grace > 0 {
		k.signalAll(r, syscall.SIGTERM)
	}
}

// signalAll reaches the first process's group, the other groups of its session and every
// descendant that made a session of its own.
func (k *keeper) signalAll(r *run, sig syscall.Signal) {
	k.mu.Lock()
	running := r.pid > 0 && r.status.State == StateRunning && (k.byPID[r.pid] == r || r.adopted && alive(r.pid, r.start))
	if running {
		// Under the lock the first process cannot be reaped, so the group is still its own.
		_ = syscall.Kill(-r.pid, sig)
	}
	k.mu.Unlock()
	if !running {
		return
	}
	if sig == syscall.SIGKILL && r.group.kill() {
		return
	}
	for _, p := range family(k.scans.get(), r.pid) {
		if p.Group != r.pid {
			_ = syscall.Kill(p.PID, sig)
		}
	}
}

// family is the session of a process and its descendants in other sessions, without itself.
func family(all []procStat, leader int) []procStat {
	children := map[int][]procStat{}
	for _, p := range all {
		children[p.PPID] = append(children[p.PPID], p)
	}
	var found []procStat
	seen := map[int]bool{leader: true}
	queue := []int{leader}
	add := func(p procStat) {
		if !seen[p.PID] {
			seen[p.PID] = true
			found = append(found, p)
			queue = append(queue, p.PID)
		}
	}
	for _, p := range all {
		if p.Session == leader {
			add(p)
		}
	}
	for len(queue) > 0 {
		pid := queue[0]
		queue = queue[1:]
		for _, p := range children[pid] {
			add(p)
		}
	}
	return found
}

// leftovers are processes of a run whose first process is gone. Their parents are gone too, so each
// tree of them hangs on this process; those that left the session are known by their environment.
func (k *keeper) leftovers(r *run) []procStat {
	if r.adopted {
		return k.strayed(r, processes())
	}
	// An orphan that dies between the list and the look at it leaves its children to a later list: so
	// the list is read until it names nobody new.
	var orphans []procStat
	seen := map[int]bool{}
	for range maxChildLists {
		pids, err := threadChildren(os.Getpid())
		if err != nil { // a kernel without CONFIG_PROC_CHILDREN
			return k.strayed(r, processes())
		}
		known := len(seen)
		for _, pid := range pids {
			if seen[pid] {
				continue
			}
			seen[pid] = true
			if s, err := readStat(pid); err == nil {
				orphans = append(orphans, s)
			}
		}
		if len(seen) == known {
			break
		}
	}
	return k.strayed(r, orphans)
}

func (k *keeper) strayed(r *run, among []procStat) []procStat {
	k.mu.Lock()
	var suspects []procStat
	for _, p := range among {
		if p.State == 'Z' || p.State == 'X' || p.PID == r.pid {
			continue
		}
		if owner := k.byPID[p.Session]; owner == nil || owner == r {
			suspects = append(suspects, p)
		}
	}
	k.mu.Unlock()
	var found []procStat
	for _, p := range suspects {
		if !r.adopted && p.Session == r.pid || taggedRun(p.PID) == r.status.ID {
			found = append(found, p)
		}
	}
	return found
}

// killLeftovers returns when none is left, or when killing does not help.
func (k *keeper) killLeftovers(r *run) {
	pause := time.Millisecond
	for range maxKillRounds {
		r.group.kill()
		rest := k.leftovers(r)
		if len(rest) == 0 && !r.group.busy() {
			return
		}
		all := processes()
		for _, p := range rest {
			_ = syscall.Kill(p.PID, syscall.SIGKILL)
			for _, child := range family(all, p.PID) {
				_ = syscall.Kill(child.PID, syscall.SIGKILL)
			}
		}
		time.Sleep(pause)
		pause = min(2*pause, 100*time.Millisecond)
	}
	k.log.Warn("processes of an ended run do not go away", "run", r.status.ID)
}
