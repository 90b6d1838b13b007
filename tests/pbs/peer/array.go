package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// find is one job by its key. Subjobs that have not started exist for the one who asks.
func (s *server) find(key string, old bool) (*job, *fail) {
	if j := s.jobs[key]; j != nil {
		if !j.active() && j.State == 'F' && !old {
			return nil, &fail{Code: jobFinished}
		}
		return j, nil
	}
	seq, index, ok := splitKey(key)
	if ok {
		if parent := s.jobs[fmt.Sprintf("%d[]", seq)]; parent != nil && parent.Array.has(index) {
			return s.subjob(parent, index), nil
		}
	}
	return nil, &fail{Code: unknownJob}
}

// splitKey reads 12[3].
func splitKey(key string) (seq, index int, ok bool) {
	a, b, found := strings.Cut(strings.TrimSuffix(key, "]"), "[")
	seq, err := strconv.Atoi(a)
	index, err2 := strconv.Atoi(b)
	return seq, index, found && err == nil && err2 == nil
}

// chosen are the jobs of an id, which may be a range of subjobs.
func (s *server) chosen(key string, subs bool) ([]*job, *fail) {
	number, inside, ok := strings.Cut(strings.TrimSuffix(key, "]"), "[")
	if ok && strings.ContainsAny(inside, "-") {
		inside, step, _ := strings.Cut(inside, ":")
		first, last, _ := strings.Cut(inside, "-")
		a, err := strconv.Atoi(first)
		b, err2 := strconv.Atoi(last)
		by, err3 := strconv.Atoi(or(step, "1"))
		parent := s.jobs[number+"[]"]
		if err != nil || err2 != nil || err3 != nil || by < 1 || parent == nil {
			return nil, &fail{Code: unknownJob, Extra: key + "." + s.cfg.Host}
		}
		var out []*job
		for i := a; i <= min(b, parent.Array.Last); i += by {
			if parent.Array.has(i) {
				out = append(out, s.subjob(parent, i))
			}
		}
		if len(out) > 0 {
			return out, nil
		}
	}
	j, f := s.find(key, true)
	if f != nil {
		return nil, &fail{Code: f.Code, Extra: key + "." + s.cfg.Host}
	}
	out := []*job{j}
	if subs && j.Array != nil {
		out = append(out, s.subjobs(j)...)
	}
	return out, nil
}

func (s *server) subjobs(parent *job) []*job {
	var out []*job
	for _, i := range parent.Array.indices() {
		out = append(out, s.subjob(parent, i))
	}
	return out
}

// subjob is the one with an index: as it is, or as it will be before it started.
func (s *server) subjob(parent *job, index int) *job {
	if j := s.jobs[fmt.Sprintf("%d[%d]", parent.Seq, index)]; j != nil {
		if j.State == 'X' && parent.Deleted != "" && parent.active() {
			return placeholder(parent, index)
		}
		return j
	}
	if !slices.Contains(parent.Array.Remaining, index) {
		return placeholder(parent, index)
	}
	j := s.newSubjob(parent, index)
	j.State, j.Substate = 'Q', 10
	if parent.State == 'H' {
		j.State, j.Substate = 'H', 20
	}
	return j
}

// placeholder is what is left of a subjob that ended, once its array was deleted.
func placeholder(parent *job, index int) *job {
	p := *parent
	p.Array, p.Index, p.Placeholder = nil, index, true
	p.State, p.Comment = 'X', "Subjob finished"
	return &p
}

func (s *server) newSubjob(parent *job, index int) *job {
	j := *parent
	j.Array, j.Index, j.Depend = nil, index, nil
	j.Comment, j.Stageout, j.Exit, j.Stime, j.Obit, j.RunCount = "", known{}, known{}, 0, 0, 0
	j.Resources = slices.Clone(parent.Resources)
	at := strconv.Itoa(index)
	j.OutPath = strings.ReplaceAll(parent.OutPath, "^array_index^", at)
	j.ErrPath = strings.ReplaceAll(parent.ErrPath, "^array_index^", at)
	return &j
}

// runningSubs counts an array's subjobs that hold nodes.
func (s *server) runningSubs(parent *job) int {
	n := 0
	for _, j := range s.jobs {
		if j.Seq == parent.Seq && j.Index >= 0 && j.running() {
			n++
		}
	}
	return n
}

func (s *server) arrayCount(parent *job) string {
	running, exiting, expired := 0, 0, 0
	for _, i := range parent.Array.indices() {
		j := s.jobs[fmt.Sprintf("%d[%d]", parent.Seq, i)]
		switch {
		case j == nil && !slices.Contains(parent.Array.Remaining, i):
			expired++
		case j == nil:
		case j.State == 'E':
			exiting++
		case j.running():
			running++
		case j.State == 'X':
			expired++
		}
	}
	if parent.State == 'F' {
		expired = 0
	}
	return fmt.Sprintf("Queued:%d Running:%d Exiting:%d Expired:%d", len(parent.Array.Remaining), running, exiting, expired)
}

// began makes a subjob of an array start.
func (s *server) began(parent *job, index int) *job {
	j := s.newSubjob(parent, index)
	parent.Array.Remaining = slices.DeleteFunc(parent.Array.Remaining, func(i int) bool { return i == index })
	if parent.State != 'B' {
		parent.State, parent.Substate, parent.Stime = 'B', 70, s.clock()
		parent.Comment = "Job Array Began at " + s.stamp()
		s.settle(parent)
	}
	s.jobs[j.key()] = j
	s.touch(parent)
	return j
}

// subEnded takes a subjob's end into its array, and ends the array with its last one.
func (s *server) subEnded(j *job) {
	parent := s.jobs[fmt.Sprintf("%d[]", j.Seq)]
	if parent == nil {
		return
	}
	status := 1
	if j.Exit == is(0) {
		status = 0
	}
	parent.Array.Ended[j.Index] = status
	parent.Exit, parent.Stageout = is(status), is(1)
	s.touch(parent)
	s.endArray(parent)
}

func (s *server) endArray(parent *job) {
	if len(parent.Array.Remaining) > 0 || s.runningSubs(parent) > 0 || !parent.active() {
		return
	}
	worst := 0
	for _, status := range parent.Array.Ended {
		worst = max(worst, status)
	}
	for _, i := range parent.Array.indices() {
		if sub := s.jobs[fmt.Sprintf("%d[%d]", parent.Seq, i)]; sub != nil && sub.State == 'X' {
			sub.State = 'F'
			if s.history() {
				s.save(sub)
			} else {
				s.forget(sub)
			}
		}
	}
	parent.Obit = s.clock()
	substate := 92
	if len(parent.Array.Ended) > 0 {
		parent.Exit = is(worst)
	}
	switch {
	case parent.Deleted != "":
		substate = 91
	case worst != 0:
		substate = 93
		parent.Comment += " and failed"
	default:
		parent.Comment += " and finished"
	}
	s.finish(parent, substate)
}

func (s *server) outcomeFile(key string) string {
	return filepath.Join(s.cfg.Dir, "mom", "outcome."+fileName(key))
}

// fileName is a key without brackets, which shells and patterns would take for theirs.
func fileName(key string) string { return strings.NewReplacer("[", "_", "]", "").Replace(key) }
