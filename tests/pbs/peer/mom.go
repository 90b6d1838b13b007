package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// task is what a shepherd needs to run a job once: spec in the run's directory.
type task struct {
	Argv    []string // of an executable; empty: the script SC
	Shell   string
	Env     []string
	Dir     string
	Umask   int
	Join    string
	CPU     int // seconds of processor time that the kernel allows; 0: any
	Failing int // the exit status of a start that must fail, as by a prologue
}

// runDir is where a run keeps its files.
func (s *server) runDir(j *job) string {
	return filepath.Join(s.cfg.Dir, "mom", fmt.Sprintf("%s.%d", fileName(j.key()), j.Ran))
}

// start sends a job to its nodes. The server believes in it (substate 41) until the mom has confirmed the session.
func (s *server) start(j *job, places []place) {
	j.Ran++
	if len(s.st.Slots) > 0 && len(places) == 1 {
		if host, slot, _ := strings.Cut(s.st.Slots[0], "/"); s.node(host) != nil {
			places[0].Vnode, places[0].Host = host, s.node(host).Host
			places[0].Slot, _ = strconv.Atoi(slot)
		}
		s.st.Slots = s.st.Slots[1:]
	}
	j.Places = places
	j.ExecHost, j.ExecVnode = execTexts(places)
	j.State, j.Substate = 'R', 41
	j.Stime = s.clock()
	j.RunCount++
	j.Started = s.millis()
	j.Comment = "Job run at " + s.stamp() + " on " + j.ExecVnode
	if q := s.queue(j.Queue); q != nil {
		for _, p := range j.Resources {
			r, _ := s.lookup(p.Name)
			if (r.consumable() || p.Name == "nodect") && r.Kind != kindTime && getPair(q.Seen, p.Name) == "" {
				q.Seen = setPair(q.Seen, p.Name, "0")
			}
		}
	}
	if j.StageIn != "" && !s.stageIn(j) {
		return
	}
	s.touch(j)
	s.saveState()
	if err := s.launch(j); err != nil {
		s.failedStart(j, -1)
	}
	s.settle(j)
}

func (s *server) launch(j *job) error {
	dir := s.runDir(j)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	t := s.task(j, dir)
	if len(t.Argv) == 0 {
		data, err := os.ReadFile(s.scriptFile(j.Seq))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "SC"), data, 0o700); err != nil {
			return err
		}
	}
	var lines, hosts strings.Builder
	for _, p := range j.Places {
		lines.WriteString(strings.Repeat(p.Host+"\n", max(p.Procs, 1)))
		hosts.WriteString(p.Host + "\n")
	}
	if err := errors.Join(writeFile(filepath.Join(dir, "nodes"), []byte(lines.String())),
		writeFile(filepath.Join(dir, "chunks"), []byte(hosts.String())),
		writeFile(filepath.Join(dir, "vnode"), []byte(j.Places[0].Vnode)),
		writeGob(filepath.Join(dir, "spec"), t)); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, "shepherd", dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Env = []string{"PATH=/usr/bin:/bin"}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }() // its result is in the run's directory
	return nil
}

func (s *server) task(j *job, dir string) task {
	home := s.cfg.real(s.cfg.homeOf(j.User))
	argv := slices.Clone(j.Argv)
	for i := range argv {
		argv[i] = s.cfg.real(argv[i])
	}
	t := task{Argv: argv, Shell: or(j.Shell, "/bin/bash"), Dir: home, Umask: 0o077, Join: j.Join, Failing: s.prologue()}
	if n, err := strconv.ParseInt(j.Umask, 8, 32); err == nil && j.Umask != "" {
		t.Umask = int(n)
	}
	if j.Sandbox {
		t.Dir = filepath.Join(home, "pbs."+j.key()+"."+s.cfg.Host+".x8z")
		_ = os.MkdirAll(t.Dir, 0o700) // the shepherd fails if it is not there
	}
	if _, err := os.Stat(home); err != nil {
		t.Failing = -2
	}
	if limit, ok := parseDuration(j.res("cput")); ok {
		t.CPU = int(limit)
	}
	cpus := or(getPair(j.Places[0].Uses, "ncpus"), "1")
	id := j.key() + "." + s.cfg.Host
	env := []string{"HOME=" + home, "LOGNAME=" + j.User, "USER=" + j.User, "SHELL=/bin/bash", "ENVIRONMENT=BATCH",
		"PBS_ENVIRONMENT=PBS_BATCH", "PBS_JOBID=" + id, "PBS_JOBNAME=" + j.Name, "PBS_QUEUE=" + j.Queue,
		"PBS_NODEFILE=" + filepath.Join(dir, "nodes"), "PBS_JOBDIR=" + t.Dir,
		"PBS_JOBCOOKIE=" + fmt.Sprintf("%032X", j.Started), "PBS_NODENUM=0", "PBS_TASKNUM=1", "PBS_MOMPORT=15003",
		"NCPUS=" + cpus, "OMP_NUM_THREADS=" + cpus, "TMPDIR=" + os.TempDir(),
		"PATH=" + filepath.Join(s.cfg.Dir, "bin/job") + ":/usr/local/bin:/usr/bin:/bin:" + filepath.Join(s.cfg.Dir, "bin")}
	if j.Index >= 0 {
		env = append(env, fmt.Sprintf("PBS_ARRAY_INDEX=%d", j.Index), fmt.Sprintf("PBS_ARRAY_ID=%d[].%s", j.Seq, s.cfg.Host))
	}
	for _, v := range unguard(j.Vars) {
		value := v.value
		if strings.HasPrefix(v.name, "PBS_O_") {
			value = s.cfg.real(value)
		}
		env = append(env, v.name+"="+value)
	}
	t.Env = env
	return t
}

// prologue turns the exit code of a node's prologue into the status of the start.
func (s *server) prologue() int {
	switch {
	case s.st.Prologue == 0:
		return 0
	case s.st.Prologue == 1:
		return -2
	}
	return -3
}

// passRun looks at one job that is on nodes.
func (s *server) passRun(j *job, at time.Time, poll bool) {
	v := s.leader(j)
	if j.Substate == 15 {
		s.passStageIn(j)
		return
	}
	if v == nil || v.Unknown || v.CutAt > 0 || v.Dead {
		if v != nil && v.Down {
			s.passLost(j, v)
		}
		return
	}
	if j.State == 'E' {
		if s.millis()-j.Deleting >= s.cfg.wait(34).Milliseconds() {
			j.Stageout = is(0)
			s.conclude(j)
		}
		return
	}
	if ended, status := s.ended(j); ended {
		s.obit(j, status, at)
		return
	}
	if j.Substate == 41 && s.millis()-j.Started >= s.cfg.wait(1).Milliseconds() {
		if session := s.session(j); session > 0 {
			j.Substate, j.Session, j.JobDir = 42, session, s.cfg.seen(s.jobDir(j))
			j.Usage = &usage{CPUs: s.cpus(j)}
			j.Failed = 0
			s.touch(j)
		}
	}
	if poll {
		s.pollRun(j)
	}
}

func (s *server) jobDir(j *job) string {
	home := s.cfg.real(s.cfg.homeOf(j.User))
	if j.Sandbox {
		return filepath.Join(home, "pbs."+j.key()+"."+s.cfg.Host+".x8z")
	}
	return home
}

func (s *server) cpus(j *job) int {
	n, _ := strconv.Atoi(j.res("ncpus"))
	return n
}

// pollRun is the mom's look every ten seconds: usage, limits, and the kill behind a TERM.
func (s *server) pollRun(j *job) {
	elapsed := s.elapsed(j)
	if j.Usage != nil {
		j.Usage.Wall = elapsed
		s.touch(j)
	}
	delay := s.killDelay(j)
	switch {
	case j.Deleting > 0 && s.millis()-j.Deleting >= delay.Milliseconds() && !j.Killed:
		j.Killed = true
		s.killRun(j, syscall.SIGKILL)
	case j.Deleting == 0 && j.res("walltime") != "" && j.State == 'R':
		limit, _ := parseDuration(j.res("walltime"))
		if elapsed <= limit || limit == 0 {
			return
		}
		j.Limit, j.Deleting = "walltime", s.millis()
		s.note(j, fmt.Sprintf("=>> PBS: job killed: walltime %d exceeded limit %d\n", elapsed, limit))
		s.killRun(j, syscall.SIGTERM)
		s.save(j)
	}
}

// elapsed is the walltime so far, in seconds as the job counts them.
func (s *server) elapsed(j *job) int64 {
	return (s.millis() - j.Started) / max(s.cfg.Walltime.Milliseconds(), 1)
}

func (s *server) killDelay(j *job) time.Duration {
	n := 10
	if q := s.queue(j.Queue); q != nil {
		if v, err := strconv.Atoi(q.get("kill_delay")); err == nil {
			n = v
		}
	}
	return s.cfg.wait(n)
}

// note appends a line of the mom to the job's errors.
func (s *server) note(j *job, text string) {
	name := "ER"
	if j.Join == "oe" {
		name = "OU"
	}
	f, err := os.OpenFile(filepath.Join(s.runDir(j), name), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return
	}
	defer f.Close()
	_, _ = f.WriteString(text) // a lost line of comment is no failure of the job
}

// ended reads what the shepherd wrote when the job ended; a shepherd that was killed is a mom's failure.
func (s *server) ended(j *job) (bool, int) {
	data, err := os.ReadFile(filepath.Join(s.runDir(j), "exit"))
	if err == nil {
		n, err := strconv.Atoi(strings.TrimSpace(string(data)))
		return err == nil, n
	}
	pid := s.number(j, "shepherd")
	if pid > 0 && syscall.Kill(pid, 0) != nil {
		if _, err := os.Stat(filepath.Join(s.runDir(j), "exit")); err != nil {
			return true, -4
		}
	}
	return false, 0
}

func (s *server) number(j *job, file string) int {
	data, err := os.ReadFile(filepath.Join(s.runDir(j), file))
	if err != nil {
		return 0
	}
	n, _ := strconv.Atoi(strings.TrimSpace(string(data)))
	return n
}

func (s *server) session(j *job) int { return s.number(j, "session") }

// exiting: the processes are gone, the epilogue still runs. The mom takes no orders for such a job.
func (s *server) exiting(j *job) bool {
	ended, _ := s.ended(j)
	return ended
}

// killRun signals every process of the job's session.
func (s *server) killRun(j *job, sig syscall.Signal) {
	if session := s.session(j); session > 0 {
		signalSession(session, sig)
	}
}

// obit takes in the end of a run.
func (s *server) obit(j *job, status int, at time.Time) {
	if s.st.Epilogue > 0 {
		st, err := os.Stat(filepath.Join(s.runDir(j), "exit"))
		if err == nil && at.Sub(st.ModTime()) < s.cfg.wait(s.st.Epilogue) {
			return
		}
	}
	switch status {
	case -4:
		s.again(j, -4)
		return
	case -3, -10:
		s.failedStart(j, status)
		return
	}
	if j.Limit == "walltime" {
		status = -29
	}
	j.Exit = is(status)
	s.account(j)
	if status == -2 {
		j.Usage = &usage{Bare: true}
	} else {
		j.JobDir = s.cfg.seen(s.jobDir(j))
	}
	if err := s.deliver(j); err != nil {
		j.State, j.Substate, j.Deleting = 'E', 51, s.millis()
		s.touch(j)
		return
	}
	j.Stageout = is(1)
	s.conclude(j)
}

// account is the usage of a run that is over. One too short to be confirmed used nothing.
func (s *server) account(j *job) {
	cpu := int64(s.number(j, "cput"))
	confirmed := j.Usage != nil
	j.Usage = &usage{CPUs: s.cpus(j), CPU: cpu}
	if confirmed {
		j.Usage.Wall = s.elapsed(j)
	}
	for _, p := range j.Places {
		if v := s.node(p.Vnode); v != nil {
			v.Used = s.clock()
		}
	}
}

// conclude is the job's last state, and the words behind its comment.
func (s *server) conclude(j *job) {
	j.Obit = s.clock()
	substate := 93
	switch {
	case j.Deleted != "":
		substate = 91
		if !strings.Contains(j.Comment, " and terminated by ") {
			j.Comment += " and terminated"
		}
	case j.Limit != "":
		j.Comment += " and exceeded resource " + j.Limit
	case j.Exit == is(0):
		substate = 92
		j.Comment += " and finished"
	default:
		j.Comment += " and failed"
	}
	s.end(j, substate)
}

// end is the last step of a job that ran, or of a subjob.
func (s *server) end(j *job, substate int) {
	if j.Exit.Set && j.Block {
		_ = writeFile(s.outcomeFile(j.key()), []byte(strconv.Itoa(j.Exit.N))) // for a qsub that waits
	}
	s.saveState()
	if j.Index < 0 {
		s.finish(j, substate)
		return
	}
	j.State, j.Substate, j.Deleting = 'X', substate, 0
	j.History = s.clock()
	s.touch(j)
	s.subEnded(j)
	s.dirty = true
}

// failedStart counts: a job that cannot be started is tried again and held by the system in the end.
func (s *server) failedStart(j *job, status int) {
	const tries = 21
	j.Exit, j.Obit = is(status), s.clock()
	j.Failed++
	if j.Failed < tries || j.Index >= 0 {
		s.requeue(j)
		return
	}
	stime := j.Stime
	j.Holds = addHold(j.Holds, "s")
	s.requeue(j)
	j.Stime = stime
	j.Comment = "job held, too many failed attempts to run"
	s.save(j)
}

// deliver brings the output from the spool to where it was wanted.
func (s *server) deliver(j *job) error {
	dir := s.runDir(j)
	id := j.key() + "." + s.cfg.Host
	bring := func(file, to string) error {
		_, path, _ := strings.Cut(to, ":")
		path = s.cfg.real(path)
		if st, err := os.Stat(path); strings.HasSuffix(path, "/") || (err == nil && st.IsDir()) {
			path = filepath.Join(path, id+"."+file)
		}
		data, err := os.ReadFile(filepath.Join(dir, file))
		if errors.Is(err, os.ErrNotExist) {
			return nil // the job never got that far
		}
		if err == nil {
			err = os.WriteFile(path, data, 0o600)
		}
		if err != nil {
			_ = os.WriteFile(filepath.Join(s.cfg.Dir, "undelivered", id+"."+file), data, 0o600) // the original stays too
		}
		return err
	}
	out, errs := error(nil), error(nil)
	if j.Join != "eo" {
		out = bring("OU", j.OutPath)
	}
	if j.Join != "oe" {
		errs = bring("ER", j.ErrPath)
	}
	return errors.Join(out, errs)
}

func (s *server) resume(j *job) {
	j.State, j.Substate = 'R', 42
	j.Comment = "Job run at " + s.stamp() + " on " + j.ExecVnode
	s.killRun(j, syscall.SIGCONT)
	s.touch(j)
}

// orphan is a run that the server gave up while its processes live.
type orphan struct {
	vnode   string
	session int
}

// orphans looks through the runs for those that are nobody's any more.
func (s *server) orphans() []orphan {
	dirs, err := filepath.Glob(filepath.Join(s.cfg.Dir, "mom", "*", "session"))
	if err != nil {
		return nil
	}
	current := map[string]bool{}
	for _, j := range s.jobs {
		if j.running() {
			current[s.runDir(j)] = true
		}
	}
	var out []orphan
	for _, path := range dirs {
		dir := filepath.Dir(path)
		if _, err := os.Stat(filepath.Join(dir, "exit")); err == nil || current[dir] {
			continue
		}
		session, err := os.ReadFile(path)
		vnode, err2 := os.ReadFile(filepath.Join(dir, "vnode"))
		n, err3 := strconv.Atoi(string(session))
		if errors.Join(err, err2, err3) == nil {
			out = append(out, orphan{string(vnode), n})
		}
	}
	return out
}
