package main

import (
	"cmp"
	"slices"
	"strconv"
	"syscall"
)

// express is the priority of a queue from which its jobs push others aside.
const express = 150

func (s *server) queuePriority(j *job) int {
	if q := s.queue(j.Queue); q != nil {
		n, _ := strconv.Atoi(q.get("Priority"))
		return n
	}
	return 0
}

// preempt makes room for a job of an express queue: jobs of other queues give way, those that started last first,
// and of these the oldest. It stops as soon as there is room.
func (s *server) preempt(j *job) ([]place, bool) {
	if s.queuePriority(j) < express {
		return nil, false
	}
	var victims []*job
	for _, o := range s.jobs {
		if o.State == 'R' && o.Index < 0 && s.queuePriority(o) < express && !s.exiting(o) {
			victims = append(victims, o)
		}
	}
	slices.SortFunc(victims, func(a, b *job) int {
		return cmp.Or(cmp.Compare(b.Stime, a.Stime), a.Seq-b.Seq)
	})
	for _, v := range victims {
		if !s.helps(j, v) {
			continue
		}
		s.giveWay(v)
		if places, ok := s.placeJob(j, s.st.Nodes); ok {
			return places, true
		}
	}
	return nil, false
}

// helps tells whether a job lies where the other could.
func (s *server) helps(j, victim *job) bool {
	parts, f := parseSelect(j.res("select"), s.lookup)
	if f != nil {
		return false
	}
	return slices.ContainsFunc(victim.Places, func(p place) bool {
		v := s.node(p.Vnode)
		return v != nil && slices.ContainsFunc(parts, func(w part) bool { return s.matches(v, w) && s.holds(s.uses(w), s.total(v)) })
	})
}

// giveWay does what preempt_order begins with: suspend, requeue or delete.
func (s *server) giveWay(j *job) {
	s.dirty = true
	how, _ := find(s.st.Sched, "preempt_order", "")
	switch {
	case how != "" && how[0] == 'D':
		j.Comment += " and terminated by Scheduler@" + s.cfg.Host
		j.Deleted, j.Obit, j.Exit, j.Stageout = "Scheduler@"+s.cfg.Host, s.clock(), is(256+15), is(1)
		s.killRun(j, syscall.SIGKILL)
		s.end(j, 91)
	case how != "" && how[0] == 'R' && j.Rerunnable:
		s.killRun(j, syscall.SIGKILL)
		s.again(j, -11)
	default:
		s.killRun(j, syscall.SIGSTOP)
		j.State, j.Substate = 'S', 45
		s.touch(j)
	}
}
