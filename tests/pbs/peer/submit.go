package main

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

// submit takes a job in. The number is spent before the job is judged, as in a real server.
func (s *server) submit(sub submission) reply {
	if sub.Unknown {
		return reply{Fail: &fail{Code: noAttribute}}
	}
	name := or(sub.Queue, s.setting("default_queue", "workq"))
	q := s.queue(name)
	if q == nil {
		return reply{Fail: &fail{Code: unknownQueue}}
	}
	j, f := s.build(sub, q)
	if f == nil {
		f = s.admit(j, sub, q)
	}
	if f != nil {
		s.saveState()
		return reply{Fail: f}
	}
	if q.get("queue_type") == "Route" && sub.Holds == "" {
		if q = s.route(j, q); q == nil {
			s.saveState()
			return reply{ID: j.key() + "." + s.cfg.Host} // taken, and thrown away
		}
		j.Queue = q.Name
		s.defaults(j, q)
	}
	s.enter(j)
	if err := writeFile(s.scriptFile(j.Seq), sub.Script); err != nil {
		return reply{Fail: &fail{Code: 15010, Whole: "System error"}}
	}
	s.saveState()
	s.save(j)
	s.register(j)
	s.dirty = true
	return reply{ID: j.key() + "." + s.cfg.Host}
}

// build makes a job of a submission; defaults of the queue and the server fill it up.
func (s *server) build(sub submission, q *queue) (*job, *fail) {
	j := &job{Seq: s.st.Seq, Index: -1, Name: sub.Name, User: sub.User, Host: sub.Host, Queue: q.Name, Account: sub.Account,
		Project: sub.Project, Start: sub.Start, Join: sub.Join, Keep: sub.Keep, Mail: sub.Mail, Priority: sub.Priority,
		Rerunnable: sub.Rerun != "n", Holds: sub.Holds, Shell: sub.Shell, StageIn: sub.StageIn, Umask: strings.TrimLeft(sub.Umask, "0"),
		SubmitArgs: sub.Args, Argv: sub.Argv, Block: sub.Block, Sandbox: sub.Sandbox, Array: sub.Array, Depend: sub.Depend, Rank: s.st.Seq}
	if limit := s.settingInt("max_array_size", 10000); j.Array != nil && len(j.Array.indices()) > limit {
		s.st.Seq++
		return nil, &fail{Code: arrayTooLong}
	}
	if f := s.shape(j, sub.Resources); f != nil {
		s.st.Seq++
		return nil, f
	}
	s.defaults(j, q)
	j.Vars = strings.Join([]string{sub.Vars, "PBS_O_QUEUE=" + q.Name, "PBS_O_HOST=" + sub.Host}, ",")
	number := strconv.Itoa(j.Seq)
	suffix := number
	if j.Array != nil {
		suffix += ".^array_index^"
		j.Array.Remaining = j.Array.indices()
		j.Array.Ended = map[int]int{}
	}
	where := func(given, letter string) string {
		if given != "" {
			return given
		}
		return sub.Host + ":" + path.Join(or(sub.Dir, "/"), sub.Name+"."+letter+suffix)
	}
	j.OutPath, j.ErrPath = where(sub.Out, "o"), where(sub.Err, "e")
	if len(sub.Argv) > 0 {
		j.Exec = "<jsdl-hpcpa:Executable>" + xml(sub.Argv[0]) + "</jsdl-hpcpa:Executable>"
		for _, a := range sub.Argv[1:] {
			j.Args += "<jsdl-hpcpa:Argument>" + xml(a) + "</jsdl-hpcpa:Argument>"
		}
	}
	if s.st.Seq++; s.st.Seq > 9999999 {
		s.st.Seq = 0
	}
	return j, nil
}

func xml(s string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;", "'", "&apos;").Replace(s)
}

// shape works out the selection and what it sums to.
func (s *server) shape(j *job, asked []pair) *fail {
	selection, place := getPair(asked, "select"), getPair(asked, "place")
	for _, p := range asked {
		if p.Name == "select" || p.Name == "place" {
			continue
		}
		r, ok := s.lookup(p.Name)
		if !ok {
			return &fail{Code: unknownResource, Extra: "Resource_List." + p.Name}
		}
		if selection+place != "" && (p.Name == "nodes" || (r.Flags != "" && strings.Contains(r.Flags, "h"))) {
			return &fail{Code: selectWithOld, Whole: `"-lresource=" cannot be used with "select" or "place", resource is: ` + p.Name}
		}
		v, ok := r.parse(p.Value)
		if !ok {
			return &fail{Code: badValue, Extra: "Resource_List." + p.Name}
		}
		j.Resources = setPair(j.Resources, p.Name, v)
	}
	switch nodes := getPair(asked, "nodes"); {
	case nodes != "":
		selection, place = oldNodes(nodes), "scatter"
	case selection == "":
		selection, place = s.plain(j), or(place, "pack")
	default:
		place = or(place, "free")
	}
	if _, ok := parsePlace(place); !ok {
		return &fail{Code: badValue, Extra: "Resource_List.place"}
	}
	parts, f := parseSelect(selection, s.lookup)
	if f != nil {
		return f
	}
	for _, p := range totals(parts, s.lookup) {
		j.Resources = setPair(j.Resources, p.Name, p.Value)
	}
	j.Resources = setPair(j.Resources, "select", selection)
	j.Resources = setPair(j.Resources, "place", place)
	return nil
}

// plain makes a selection of resources that were asked for without one.
func (s *server) plain(j *job) string {
	out := "1:ncpus=" + or(j.res("ncpus"), "1")
	for _, p := range j.Resources {
		if r, _ := s.lookup(p.Name); strings.Contains(r.Flags, "h") && p.Name != "ncpus" && p.Name != "nodes" {
			out += ":" + p.Name + "=" + p.Value
		}
	}
	return out
}

// oldNodes turns nodes=N:ppn=M into a selection.
func oldNodes(spec string) string {
	var out []string
	for part := range strings.SplitSeq(spec, "+") {
		f := strings.Split(part, ":")
		text, ppn := f[0], "1"
		if _, err := strconv.Atoi(f[0]); err != nil {
			text = "1:host=" + f[0]
		}
		for _, p := range f[1:] {
			if n, ok := strings.CutPrefix(p, "ppn="); ok {
				ppn = n
			}
		}
		out = append(out, text+":ncpus="+ppn+":mpiprocs="+ppn)
	}
	return strings.Join(out, "+")
}

func (s *server) defaults(j *job, q *queue) {
	for _, a := range slices.Concat(q.Attrs, s.st.Settings) {
		if a.Name == "resources_default" && j.res(a.Res) == "" {
			j.Resources = setPair(j.Resources, a.Res, a.Value)
		}
	}
}

// admit is what the server and the queue have against a job.
func (s *server) admit(j *job, sub submission, q *queue) *fail {
	if s.st.Reject != "" {
		if s.st.Reject == "-" {
			return &fail{Code: hookRejected, Whole: "queuejob request rejected by 'policy'"}
		}
		return &fail{Code: hookRejected, Whole: s.st.Reject}
	}
	if sub.User == "root" || (sub.Users != "" && sub.Users != sub.User) {
		return &fail{Code: badUser}
	}
	if q.get("enabled") != "True" {
		return &fail{Code: queueDisabled}
	}
	return s.welcome(j, q)
}

// welcome is what a queue has against a job, routed there or not.
func (s *server) welcome(j *job, q *queue) *fail {
	if q.get("acl_user_enable") == "True" && !slices.Contains(strings.Split(q.get("acl_users"), ","), j.User) {
		return &fail{Code: notPermitted}
	}
	for _, a := range q.Attrs {
		if a.Name == "resources_max" && exceeds(j.res(a.Res), a.Value) {
			return &fail{Code: overLimits}
		}
	}
	if limit := q.perUser("max_queued"); limit >= 0 {
		n := 0
		for _, o := range s.jobs {
			if o.active() && o.Index < 0 && o.Queue == q.Name && o.User == j.User {
				n++
			}
		}
		if n >= limit {
			return &fail{Code: queueFull, Whole: "would exceed queue generic's per-user limit"}
		}
	}
	return nil
}

// exceeds compares two values of one resource.
func exceeds(have, limit string) bool {
	if have == "" {
		return false
	}
	if a, ok := parseDuration(have); ok {
		b, ok := parseDuration(limit)
		return ok && a > b
	}
	a, ok := parseSize(have)
	b, ok2 := parseSize(limit)
	return ok && ok2 && a.bytes() > b.bytes()
}

// route finds the first destination that takes a job.
func (s *server) route(j *job, q *queue) *queue {
	for name := range strings.SplitSeq(q.get("route_destinations"), ",") {
		d := s.queue(name)
		if d != nil && d.get("enabled") == "True" && s.welcome(j, d) == nil {
			return d
		}
	}
	return nil
}

// enter gives a job its first state.
func (s *server) enter(j *job) {
	at := s.clock()
	j.Ctime, j.Mtime, j.Qtime = at, at, at
	s.jobs[j.key()] = j
	switch {
	case j.Holds != "":
		j.State, j.Substate = 'H', 20
	case j.Start > at:
		j.State, j.Substate = 'W', 30
	default:
		j.State, j.Substate, j.Etime = 'Q', 10, at
		j.Start = 0
	}
}

// register connects a job with those it depends on, or ends it if that cannot come true any more.
func (s *server) register(j *job) {
	met := func(d dependency) bool { return d.Type == "" }
	for i, d := range j.Depend {
		parent := s.jobs[d.Key]
		reverse, ok := strings.CutPrefix(d.Type, "after")
		if !ok {
			continue
		}
		if parent == nil {
			s.drop(j)
			return
		}
		switch verdict(d.Type, parent) {
		case 1:
			j.Depend[i].Type = ""
		case -1:
			s.drop(j)
			return
		default:
			parent.Depend = append(parent.Depend, dependency{"before" + reverse, j.key()})
			s.save(parent)
		}
	}
	j.Depend = slices.DeleteFunc(j.Depend, met)
	if slices.ContainsFunc(j.Depend, waits) {
		j.Holds = addHold(j.Holds, "s")
		j.State, j.Substate, j.Etime = 'H', 22, 0
	}
	s.save(j)
}

func waits(d dependency) bool { return strings.HasPrefix(d.Type, "after") }

// verdict tells whether a dependency came true (1), cannot any more (-1) or is open (0).
func verdict(kind string, parent *job) int {
	ran := parent.RunCount > 0 || parent.State == 'B'
	if kind == "after" {
		if ran {
			return 1
		}
		if parent.State == 'F' {
			return -1
		}
		return 0
	}
	if parent.State != 'F' {
		return 0
	}
	good := parent.Exit == is(0) && parent.Substate == 92
	ok := kind == "afterany" || (kind == "afterok" && good) || (kind == "afternotok" && !good)
	if !parent.Exit.Set && kind == "afterok" {
		ok = false
	}
	if ok {
		return 1
	}
	return -1
}

// drop ends a job whose dependency failed: finished, substate 92, without a status.
func (s *server) drop(j *job) {
	j.Holds = addHold(j.Holds, "s")
	j.Etime = 0
	s.finish(j, 92)
}

// settle tells the jobs that wait for another one.
func (s *server) settle(parent *job) {
	for _, d := range slices.Clone(parent.Depend) {
		kind, ok := strings.CutPrefix(d.Type, "before")
		child := s.jobs[d.Key]
		if !ok || child == nil || !child.active() {
			continue
		}
		switch verdict("after"+kind, parent) {
		case 1:
			s.fulfil(child, parent.key())
		case -1:
			child.Doomed = s.millis() // it is seen for another moment
			s.save(child)
		default:
			continue
		}
		parent.Depend = slices.DeleteFunc(parent.Depend, func(o dependency) bool { return o == d })
	}
}

func (s *server) fulfil(j *job, parent string) {
	j.Depend = slices.DeleteFunc(j.Depend, func(d dependency) bool { return waits(d) && d.Key == parent })
	if !slices.ContainsFunc(j.Depend, waits) {
		j.Holds = dropHold(j.Holds, "s")
		if j.State == 'H' && j.Holds == "" {
			s.queued(j)
			return
		}
		if j.State == 'H' {
			j.Substate = 20
		}
	}
	s.touch(j)
}

// queued makes a job eligible.
func (s *server) queued(j *job) {
	if j.Start > s.clock() {
		j.State, j.Substate = 'W', 30
	} else {
		j.State, j.Substate, j.Etime = 'Q', 10, s.clock()
	}
	s.touch(j)
	s.dirty = true
}

// finish ends a job's life in the queue: it goes into the history, or is gone.
func (s *server) finish(j *job, substate int) {
	j.State, j.Substate = 'F', substate
	j.Deleting = 0
	at := s.clock()
	j.History, j.Mtime = at, at
	if j.Index < 0 {
		s.settle(j)
	}
	s.dirty = true
	if !s.history() {
		s.forget(j)
		return
	}
	s.save(j)
}

// list answers qstat and qselect.
func (s *server) list(req request) reply {
	r := reply{History: s.history()}
	if req.Old && !r.History {
		r.Notice = "PBS is not configured to maintain job history"
	}
	if len(req.IDs) == 1 {
		jobs, f := s.chosen(req.IDs[0], req.Sub)
		switch {
		case f != nil && r.Notice != "":
			return r
		case f != nil:
			r.Fail = f
			return r
		case jobs[0].State == 'F' && !req.Old:
			r.Fail = &fail{Code: jobFinished}
			return r
		}
		for _, j := range jobs {
			r.Entries = append(r.Entries, s.jobEntry(j))
		}
		r.Notice = ""
		return r
	}
	if req.Text != "" && s.queue(req.Text) == nil {
		return reply{Fail: &fail{Code: unknownQueue, Whole: "Unknown queue destination " + req.Text}}
	}
	for _, j := range s.sorted() {
		if (j.Index >= 0 && !req.Sub) || (!req.Old && j.State == 'F') || (req.Text != "" && j.Queue != req.Text) {
			continue
		}
		if j.Index >= 0 {
			continue // shown behind the parent
		}
		r.Entries = append(r.Entries, s.jobEntry(j))
		if req.Sub && j.Array != nil {
			for _, sub := range s.subjobs(j) {
				r.Entries = append(r.Entries, s.jobEntry(sub))
			}
		}
	}
	return r
}

func (s *server) jobEntry(j *job) entry {
	e := j.entry(s.cfg.Host)
	if j.Array != nil {
		e.Attrs = append(e.Attrs, attr{Name: "array_state_count", Value: s.arrayCount(j)})
		order(e.Attrs, jobOrder())
	}
	return e
}

// outcome is for qsub -W block=true.
func (s *server) outcome(req request) reply {
	key, _ := parseID(req.IDs[0], s.cfg.Host)
	j := s.jobs[key]
	if j == nil {
		data, err := os.ReadFile(s.outcomeFile(key))
		n, bad := strconv.Atoi(string(data))
		return reply{Done: true, Status: n, Text: fmt.Sprint(err, bad)}
	}
	if j.active() {
		return reply{}
	}
	if !j.Exit.Set {
		return reply{Done: true, Status: 3}
	}
	return reply{Done: true, Status: j.Exit.N}
}
