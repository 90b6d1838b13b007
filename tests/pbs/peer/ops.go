package main

import (
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// owns: root manages, everybody else has jobs of his own.
func owns(user string, j *job) bool { return user == "root" || user == j.User }

// act does one of the requests about one job.
func (s *server) act(j *job, req request) *fail {
	if j.State == 'F' {
		return &fail{Code: jobFinished}
	}
	if !owns(req.User, j) {
		return &fail{Code: notPermitted}
	}
	switch req.Op {
	case "hold":
		return s.hold(j, req)
	case "release":
		return s.release(j, req)
	case "signal":
		return s.signal(j, req)
	case "rerun":
		return s.rerun(j, req)
	case "move":
		return s.move(j, req)
	case "message":
		if j.State != 'R' {
			return &fail{Code: badState}
		}
		return nil
	case "run":
		return s.runNow(j, req)
	case "alter":
		return s.alter(j, req)
	}
	return &fail{Code: badRequest}
}

func (s *server) hold(j *job, req request) *fail {
	if req.User != "root" && strings.Trim(req.Text, "un") != "" {
		return &fail{Code: notPermitted}
	}
	if j.Index >= 0 {
		return &fail{Code: badRequest}
	}
	refused := j.State == 'R' && s.exiting(j)
	j.Holds = addHold(j.Holds, req.Text)
	if j.State == 'Q' || j.State == 'W' {
		j.State, j.Substate, j.Etime = 'H', 20, 0
	}
	if j.Index < 0 && j.Substate != 22 {
		j.Comment = "Job held by " + req.User + " on " + zoneOf("").ctime(s.clock())
	}
	s.touch(j)
	if refused { // the hold stays all the same
		return &fail{Code: badState, Whole: "MOM rejected hold request: 15016"}
	}
	return nil
}

func (s *server) release(j *job, req request) *fail {
	if req.User != "root" && strings.Trim(req.Text, "un") != "" {
		return &fail{Code: notPermitted}
	}
	before := j.Holds
	j.Holds = dropHold(j.Holds, req.Text)
	if j.State == 'H' && j.Holds == "" && before != "" {
		j.Failed = 0
		s.queued(j)
		return nil
	}
	s.touch(j)
	return nil
}

// signalNumber reads a name with or without SIG, or a number. 0 and NULL only ask whether the job is there.
func signalNumber(name string) (syscall.Signal, bool) {
	if n, err := strconv.Atoi(name); err == nil {
		return syscall.Signal(n), n >= 0
	}
	switch strings.TrimPrefix(name, "SIG") {
	case "NULL":
		return 0, true
	case "HUP":
		return syscall.SIGHUP, true
	case "INT":
		return syscall.SIGINT, true
	case "QUIT":
		return syscall.SIGQUIT, true
	case "KILL":
		return syscall.SIGKILL, true
	case "TERM":
		return syscall.SIGTERM, true
	case "USR1":
		return syscall.SIGUSR1, true
	case "USR2":
		return syscall.SIGUSR2, true
	case "CONT":
		return syscall.SIGCONT, true
	case "STOP":
		return syscall.SIGSTOP, true
	case "TSTP":
		return syscall.SIGTSTP, true
	case "ALRM":
		return syscall.SIGALRM, true
	case "ABRT":
		return syscall.SIGABRT, true
	case "PIPE":
		return syscall.SIGPIPE, true
	}
	return 0, false
}

func (s *server) signal(j *job, req request) *fail {
	switch req.Text {
	case "suspend", "resume", "admin-suspend", "admin-resume":
		return s.suspend(j, req)
	}
	sig, ok := signalNumber(req.Text)
	if !ok {
		return &fail{Code: badSignal}
	}
	if j.State != 'R' || s.exiting(j) {
		return &fail{Code: badState}
	}
	if s.lost(j) {
		return &fail{Code: badState}
	}
	if sig > 0 && sig <= 64 {
		s.killRun(j, sig)
	}
	return nil
}

func (s *server) suspend(j *job, req request) *fail {
	if req.User != "root" {
		return &fail{Code: notPermitted}
	}
	if strings.HasSuffix(req.Text, "suspend") {
		if j.State != 'R' {
			return &fail{Code: badState}
		}
		s.killRun(j, syscall.SIGSTOP)
		j.State, j.Substate = 'S', 43
		s.touch(j)
		s.dirty = true
		return nil
	}
	if j.State != 'S' {
		return &fail{Code: badState}
	}
	j.Substate = 45
	s.touch(j)
	s.dirty = true
	return nil
}

// lost tells whether the mom that leads a job is away, noticed or not.
func (s *server) lost(j *job) bool {
	v := s.leader(j)
	return v != nil && (v.Down || v.Unknown)
}

func (s *server) leader(j *job) *vnode {
	if len(j.Places) == 0 {
		return nil
	}
	return s.node(j.Places[0].Vnode)
}

func (s *server) rerun(j *job, req request) *fail {
	switch {
	case req.User != "root":
		return &fail{Code: notPermitted}
	case !j.Rerunnable:
		return &fail{Code: notRerunnable}
	case j.State != 'R' && j.State != 'S':
		return &fail{Code: badState}
	case s.lost(j) && !req.Force:
		return &fail{Code: momUnreachable}
	}
	s.killRun(j, syscall.SIGKILL)
	s.again(j, -11)
	return nil
}

// awaitRerun keeps the caller of qrerun waiting as the real one is, until the job's processes are gone.
func (s *server) awaitRerun(request) { time.Sleep(s.cfg.wait(1)) }

// again puts a job back into the queue with the status of its lost run.
func (s *server) again(j *job, status int) {
	j.Exit, j.Obit = is(status), s.clock()
	s.requeue(j)
}

// requeue is the way back into the queue. Status, session and obittime stay, stale as they are.
func (s *server) requeue(j *job) {
	j.ExecHost, j.ExecVnode, j.Places, j.JobDir, j.Usage, j.Stime = "", "", nil, "", nil, 0
	j.Deleting, j.Killed, j.Limit, j.Suspended = 0, false, "", false
	if j.Index >= 0 {
		j.State, j.Substate = 'Q', 10
		s.touch(j)
		s.dirty = true
		return
	}
	if j.Holds != "" {
		j.State, j.Substate, j.Etime = 'H', 20, 0
		s.touch(j)
	} else {
		etime := j.Etime
		s.queued(j)
		j.Etime = etime
		s.save(j)
	}
	s.dirty = true
}

func (s *server) move(j *job, req request) *fail {
	name, _, _ := strings.Cut(req.Text, "@")
	q := s.queue(name)
	if q == nil {
		return &fail{Code: unknownQueue}
	}
	if j.running() || j.State == 'B' {
		return &fail{Code: badState}
	}
	if f := s.admit(j, submission{User: j.User}, q); f != nil {
		return f
	}
	j.Queue = q.Name
	s.defaults(j, q)
	s.touch(j)
	s.dirty = true
	return nil
}

func (s *server) reorder(req request) reply {
	a, f := s.find(req.IDs[0], false)
	if f != nil {
		return reply{Fail: f}
	}
	b, f := s.find(req.IDs[1], false)
	if f != nil {
		return reply{Fail: f}
	}
	if !owns(req.User, a) || !owns(req.User, b) {
		return reply{Fail: &fail{Code: notPermitted}}
	}
	a.Rank, b.Rank = b.Rank, a.Rank
	s.touch(a)
	s.touch(b)
	return reply{}
}

func (s *server) runNow(j *job, req request) *fail {
	if req.User != "root" {
		return &fail{Code: notPermitted}
	}
	if j.State != 'Q' && j.State != 'H' {
		return &fail{Code: badState}
	}
	places, ok := s.placeJob(j, s.st.Nodes)
	if !ok {
		return &fail{Code: badState}
	}
	s.start(j, places)
	return nil
}

// remove is qdel: the answers are in the order of the ids.
func (s *server) remove(req request) reply {
	r := reply{Fails: make([]fail, len(req.IDs))}
	for i, key := range req.IDs {
		if f := s.removeID(key, req); f != nil {
			r.Fails[i] = *f
		}
	}
	return r
}

func (s *server) removeID(key string, req request) *fail {
	j, f := s.find(key, true)
	switch {
	case f != nil:
		return f
	case !owns(req.User, j):
		return &fail{Code: notPermitted}
	case j.State == 'F' && req.Old:
		s.forgetAll(j)
		return nil
	case j.State == 'F' || j.State == 'X':
		return &fail{Code: jobFinished}
	case j.Array != nil:
		s.removeArray(j, req)
	default:
		f = s.removeOne(j, req)
	}
	if f == nil && req.Old && j.State == 'F' {
		s.forgetAll(j)
	}
	return f
}

func (s *server) forgetAll(j *job) {
	if j.Array != nil {
		for _, i := range j.Array.indices() {
			if sub := s.jobs[s.subjob(j, i).key()]; sub != nil {
				s.forget(sub)
			}
		}
	}
	s.forget(j)
}

func (s *server) removeOne(j *job, req request) *fail {
	who := req.User + "@" + s.cfg.Host
	if !j.running() {
		if j.Index >= 0 {
			return s.removeQueuedSub(j)
		}
		if j.Comment != "" && j.State != 'W' {
			j.Comment += " and terminated"
		}
		if j.State == 'F' {
			return nil
		}
		j.Deleted = who
		s.finish(j, 91)
		return nil
	}
	if req.Force {
		return s.removeForced(j, who)
	}
	if s.exiting(j) || j.State == 'E' {
		j.Deleted = who // and yet the job will be listed as deleted
		s.save(j)
		return &fail{Code: badState}
	}
	if s.lost(j) {
		return &fail{Code: momUnreachable}
	}
	if j.Deleted == "" {
		j.Comment += " and terminated by " + who
	}
	j.Deleted = who
	if j.State == 'S' {
		s.killRun(j, syscall.SIGCONT)
	}
	s.killRun(j, syscall.SIGTERM)
	if j.Deleting == 0 {
		j.Deleting = s.millis()
	}
	s.touch(j)
	return nil
}

// removeForced ends a job at once. Where the mom cannot be reached its processes live on.
func (s *server) removeForced(j *job, who string) *fail {
	j.Obit = s.clock()
	if s.lost(j) {
		j.Comment += " and terminated"
		j.Deleted = who
		s.end(j, 91)
		return nil
	}
	if j.Deleted == "" {
		j.Comment += " and terminated by " + who
	}
	j.Deleted = who
	s.killRun(j, syscall.SIGKILL)
	j.Exit, j.Stageout = is(256+9), is(1)
	s.end(j, 91)
	return nil
}

func (s *server) removeQueuedSub(j *job) *fail {
	parent := s.jobs[strconv.Itoa(j.Seq)+"[]"]
	if parent == nil {
		return &fail{Code: unknownJob}
	}
	parent.Array.Remaining = slices.DeleteFunc(parent.Array.Remaining, func(i int) bool { return i == j.Index })
	s.touch(parent)
	s.endArray(parent)
	return nil
}

func (s *server) removeArray(j *job, req request) {
	who := req.User + "@" + s.cfg.Host
	j.Array.Remaining = nil
	if j.State != 'B' {
		j.Deleted = who
		s.finish(j, 91)
		return
	}
	j.Deleted = who
	for _, i := range j.Array.indices() {
		sub := s.jobs[strconv.Itoa(j.Seq)+"["+strconv.Itoa(i)+"]"]
		if sub != nil && sub.running() {
			_ = s.removeOne(sub, req) // one whose mom is away stays, as the array does
		}
	}
	s.touch(j)
	s.endArray(j)
}
