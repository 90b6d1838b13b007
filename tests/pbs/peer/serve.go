package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"
)

// server is the daemon: the batch server, its scheduler and the moms of all nodes. Everything is done under mu.
type server struct {
	cfg     config
	mu      sync.Mutex
	st      state
	jobs    map[string]*job
	dirty   bool  // a scheduling cycle is due
	stopped int64 // the time of the cycle that is going on, which is one for all it starts; 0: none is
	cycled  time.Time
	polled  time.Time
	started time.Time
	done    sync.WaitGroup
}

// tick is how often the daemon looks at its jobs. A real server is told; the difference is not seen outside.
const tick = 10 * time.Millisecond

// serve runs the daemon of a directory until it is told to stop.
func serve(dir string) error {
	cfg, err := readConfig(dir)
	if err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("cannot serve %s: another daemon does: %w", dir, err)
	}
	s := &server{cfg: cfg, jobs: map[string]*job{}, started: time.Now()}
	if err := s.load(); err != nil {
		return err
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	_ = os.Remove(cfg.socket()) // left by a daemon that was killed; the lock says that none lives
	l, err := net.Listen("unix", cfg.socket())
	if err != nil {
		return err
	}
	s.done.Add(1)
	go s.loop(ctx)
	go func() {
		<-ctx.Done()
		l.Close()
	}()
	err = s.accept(l)
	cancel()
	s.done.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if errors.Is(err, net.ErrClosed) {
		err = writeFile(filepath.Join(dir, "clean"), nil)
	}
	return err
}

func (s *server) accept(l net.Listener) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		s.done.Add(1)
		go func() {
			defer s.done.Done()
			defer conn.Close()
			s.answer(conn)
		}()
	}
}

// answer does one request. What it changed is on disk before the reply goes out.
func (s *server) answer(conn net.Conn) {
	req, err := decodeRequest(conn)
	if err != nil {
		return
	}
	s.mu.Lock()
	slow := s.st.Slow
	s.mu.Unlock()
	if slow > 0 && req.Cmd != "" {
		time.Sleep(slow)
	}
	r := s.handle(req)
	_ = send(conn, &r) // a caller that went away does not want it
}

func (s *server) handle(req request) reply {
	if req.Op == "rerun" {
		defer s.awaitRerun(req)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.dispatch(req)
	if n := s.st.Lose[req.Cmd]; n > 0 && req.Cmd != "" {
		s.st.Lose[req.Cmd]--
		s.saveState()
		r.Lose = true
	}
	return r
}

func (s *server) dispatch(req request) reply {
	switch req.Op {
	case "submit":
		return s.submit(*req.Submit)
	case "jobs":
		return s.list(req)
	case "outcome":
		return s.outcome(req)
	case "server":
		return reply{Entries: []entry{s.serverEntry()}}
	case "queues":
		return s.queueEntries(req)
	case "nodes":
		return s.nodeEntries(req)
	case "mark":
		return s.mark(req)
	case "delete":
		return s.remove(req)
	case "qmgr":
		return s.manage(req)
	case "control":
		return s.control(req)
	case "order":
		return s.reorder(req)
	}
	if len(req.IDs) != 1 {
		return reply{Fail: &fail{Code: badRequest}}
	}
	j, f := s.find(req.IDs[0], true)
	if f == nil {
		f = s.act(j, req)
	}
	return reply{Fail: f}
}

// load reads what the last daemon left.
func (s *server) load() error {
	for _, d := range []string{"jobs", "mom", "undelivered"} {
		if err := os.MkdirAll(filepath.Join(s.cfg.Dir, d), 0o700); err != nil {
			return err
		}
	}
	clean := filepath.Join(s.cfg.Dir, "clean")
	_, missing := os.Stat(clean)
	err := readGob(filepath.Join(s.cfg.Dir, "state"), &s.st)
	if errors.Is(err, os.ErrNotExist) {
		s.st, missing = fresh(s.cfg), nil
	} else if err != nil {
		return err
	}
	_ = os.Remove(clean) // only there after an orderly stop
	paths, err := filepath.Glob(filepath.Join(s.cfg.Dir, "jobs", "*.job"))
	if err != nil {
		return err
	}
	for _, p := range paths {
		j := &job{}
		if err := readGob(p, j); err != nil {
			return fmt.Errorf("cannot read job %s: %w", p, err)
		}
		s.jobs[j.key()] = j
		s.st.Seq = max(s.st.Seq, j.Seq+1)
	}
	if missing != nil {
		s.st.Seq = (s.st.Seq/1000 + 1) * 1000 // numbers given out and not written down are not given twice
		for _, n := range s.st.Nodes {
			n.Unknown = true
		}
		s.rejoin()
	}
	s.saveState()
	s.dirty = true
	return nil
}

// rejoin is the start after a kill: a job whose mom had not confirmed it runs again.
func (s *server) rejoin() {
	for _, j := range s.sorted() {
		if j.State == 'R' && j.Substate == 41 {
			s.killRun(j, syscall.SIGKILL)
			j.Exit = known{}
			s.requeue(j)
		}
	}
}

func (s *server) saveState() {
	if err := writeGob(filepath.Join(s.cfg.Dir, "state"), s.st); err != nil {
		panic(fmt.Errorf("cannot keep the state: %w", err))
	}
}

// save writes a job down. A daemon that cannot has no right to accept it.
func (s *server) save(j *job) {
	if err := writeGob(s.jobFile(j), j); err != nil {
		panic(fmt.Errorf("cannot keep job %s: %w", j.key(), err))
	}
}

func (s *server) jobFile(j *job) string {
	return filepath.Join(s.cfg.Dir, "jobs", fileName(j.key())+".job")
}

func (s *server) scriptFile(seq int) string {
	return filepath.Join(s.cfg.Dir, "jobs", fmt.Sprintf("%d.SC", seq))
}

// forget takes a job out of the world.
func (s *server) forget(j *job) {
	delete(s.jobs, j.key())
	_ = os.Remove(s.jobFile(j))
	if j.Index < 0 {
		_ = os.Remove(s.scriptFile(j.Seq))
	}
}

func (s *server) clock() int64 {
	if s.stopped != 0 {
		return s.stopped
	}
	return time.Now().Unix() + s.st.Ahead
}

func (s *server) millis() int64 { return time.Now().UnixMilli() }

// sorted are all jobs in the order of their numbers, arrays before their subjobs.
func (s *server) sorted() []*job {
	out := make([]*job, 0, len(s.jobs))
	for _, j := range s.jobs {
		out = append(out, j)
	}
	slices.SortFunc(out, func(a, b *job) int {
		if a.Seq != b.Seq {
			return a.Seq - b.Seq
		}
		return a.Index - b.Index
	})
	return out
}

func (s *server) touch(j *job) {
	j.Mtime = s.clock()
	s.save(j)
}

// loop is the time that passes in the complex.
func (s *server) loop(ctx context.Context) {
	defer s.done.Done()
	t := time.NewTicker(tick)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			s.mu.Lock()
			s.pass()
			s.mu.Unlock()
		}
	}
}

func (s *server) pass() {
	at := time.Now()
	s.passNodes(at)
	poll := at.Sub(s.polled) >= s.cfg.wait(10)
	if poll {
		s.polled = at
	}
	for _, j := range s.sorted() {
		if s.jobs[j.key()] != j {
			continue // went away in this pass
		}
		switch {
		case j.Doomed > 0 && j.active():
			if s.millis()-j.Doomed >= s.cfg.wait(1).Milliseconds() {
				s.drop(j)
			}
		case j.State == 'W' && j.Substate == 30 && j.Start <= s.clock():
			j.Start = 0
			s.queued(j)
		case j.running():
			s.passRun(j, at, poll)
		case j.State == 'F' && j.History > 0 && j.History+s.historyDuration() < s.clock():
			s.forget(j)
		}
	}
	if at.Sub(s.cycled) >= s.cfg.wait(s.settingInt("scheduler_iteration", 600)) {
		s.dirty = true
	}
	if s.dirty {
		s.schedule(at)
	}
}

// historyDuration is how long finished jobs are kept, in seconds.
func (s *server) historyDuration() int64 {
	d, ok := parseDuration(s.setting("job_history_duration", ""))
	if !ok {
		d = 336 * 3600
	}
	return d
}
