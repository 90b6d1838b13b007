package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// passNodes notices what happened to nodes.
func (s *server) passNodes(at time.Time) {
	ms := s.millis()
	for _, v := range s.st.Nodes {
		if v.CutAt > 0 && !v.Down && ms-v.CutAt >= s.cfg.wait(59).Milliseconds() {
			s.goDown(v)
		}
		if v.Unknown && at.Sub(s.started) >= s.cfg.wait(10) {
			v.Unknown = false
			v.Down = v.Dead
		}
		if state := s.stateOf(v); state != v.Last {
			v.Last, v.Changed = state, s.clock()
			s.saveState()
		}
	}
}

func (s *server) goDown(v *vnode) {
	v.Down, v.DownAt = true, s.millis()
	if v.Comment == "" {
		v.Comment = "node down: communication closed"
	}
}

// passLost ends the patience with a mom that leads a job.
func (s *server) passLost(j *job, v *vnode) {
	patience := s.settingInt("node_fail_requeue", 310)
	if patience <= 0 || s.millis()-v.DownAt < s.cfg.wait(patience).Milliseconds() {
		return
	}
	if j.Rerunnable {
		s.again(j, -20)
		return
	}
	j.Exit, j.Obit, j.Usage = is(-20), s.clock(), nil
	s.end(j, 93)
}

// recover is a mom that came back: it tells the server about the jobs that it had.
func (s *server) recover(v *vnode, keep bool) {
	cut := v.CutAt > 0
	v.Down, v.Dead, v.CutAt, v.Unknown = false, false, 0, false
	if v.Comment == "node down: communication closed" {
		v.Comment = ""
	}
	for _, j := range s.sorted() {
		lead := len(j.Places) > 0 && j.Places[0].Vnode == v.Name
		if j.running() && lead && !keep && !cut {
			s.killRun(j, syscall.SIGKILL)
			s.again(j, -4)
		}
	}
	s.reap(v)
	s.saveState()
}

// reap kills what still runs on a node although the server gave the job up.
func (s *server) reap(v *vnode) {
	for _, o := range s.orphans() {
		if o.vnode == v.Name {
			signalSession(o.session, syscall.SIGKILL)
		}
	}
}

func (s *server) nodeEntries(req request) reply {
	var r reply
	if len(req.IDs) > 0 {
		for _, id := range req.IDs {
			r.Entries = append(r.Entries, s.namedNode(id, req.Sub))
		}
		return r
	}
	var hosts []string
	for _, v := range s.st.Nodes {
		if req.Sub {
			r.Entries = append(r.Entries, s.nodeEntry(v))
		} else if !slices.Contains(hosts, v.Host) {
			hosts = append(hosts, v.Host)
			r.Entries = append(r.Entries, s.hostEntry(v.Host))
		}
	}
	return r
}

func (s *server) namedNode(id string, vnode bool) entry {
	if v := s.node(id); v != nil && (vnode || v.Host != id || len(s.onHost(id)) == 1) {
		return s.nodeEntry(v)
	}
	if !vnode && len(s.onHost(id)) > 0 {
		return s.hostEntry(id)
	}
	return entry{ID: id, Error: failText(unknownNode)}
}

func (s *server) onHost(host string) []*vnode {
	var out []*vnode
	for _, v := range s.st.Nodes {
		if v.Host == host {
			out = append(out, v)
		}
	}
	return out
}

// hostEntry is a host with all its vnodes in one: amounts are summed, what differs is <various>.
func (s *server) hostEntry(host string) entry {
	vnodes := s.onHost(host)
	e := s.nodeEntry(vnodes[0])
	if len(vnodes) == 1 {
		return e
	}
	e.ID = host
	l := &listing{}
	sum := func(name string) []pair {
		var out []pair
		for _, v := range vnodes {
			for _, a := range s.nodeEntry(v).Attrs {
				if a.Name == name {
					out = setPair(out, a.Res, merge(s, a.Res, getPair(out, a.Res), a.Value))
				}
			}
		}
		return out
	}
	for _, a := range e.Attrs {
		v := a
		for _, o := range vnodes[1:] {
			if x := s.nodeEntry(o).get(a.Name, ""); a.Res == "" && x != a.Value && a.Name != "pcpus" && a.Name != "state" && x != "" {
				v.Value, v.Epoch = "<various>", false
			}
		}
		if a.Res == "" {
			l.attrs = append(l.attrs, v)
		}
	}
	l.res("resources_available", sum("resources_available"))
	for _, p := range []pair{{"accelerator_memory", "0kb"}, {"hbmem", "0kb"}, {"naccelerators", "0"}, {"vmem", "0kb"}} {
		l.attrs = append(l.attrs, attr{Name: "resources_available", Res: p.Name, Value: p.Value})
	}
	l.res("resources_assigned", sum("resources_assigned"))
	e.Attrs = l.attrs
	return e
}

func merge(s *server, name, a, b string) string {
	if a == "" {
		return b
	}
	r, _ := s.lookup(name)
	switch r.Kind {
	case kindSize:
		return fmt.Sprintf("%dkb", amount(a)+amount(b))
	case kindLong:
		return strconv.FormatInt(amount(a)+amount(b), 10)
	}
	if a != b {
		return "<various>"
	}
	return a
}

// mark is pbsnodes -o, -r and -C.
func (s *server) mark(req request) reply {
	v := s.node(req.IDs[0])
	if req.User != "root" {
		return reply{Fail: &fail{Code: notPermitted}}
	}
	if v == nil {
		return reply{Fail: &fail{Code: unknownNode}}
	}
	switch req.Text {
	case "offline":
		v.Offline = true
	case "clear":
		v.Offline = false
		s.dirty = true
	}
	if req.Sub {
		v.Comment = req.More
	}
	s.saveState()
	return reply{}
}

// control is what tests do to the complex. It is not part of what it imitates.
func (s *server) control(req request) reply {
	switch req.Text {
	case "slow":
		s.st.Slow = time.Duration(req.Number)
	case "lose":
		if s.st.Lose == nil {
			s.st.Lose = map[string]int{}
		}
		s.st.Lose[req.More] = int(req.Number)
	case "ahead":
		s.st.Ahead += req.Number
		s.dirty = true
	case "purge":
		for _, j := range s.sorted() {
			if j.State == 'F' {
				s.forget(j)
			}
		}
	case "seq":
		s.st.Seq = int(req.Number)
	case "epilogue":
		s.st.Epilogue = int(req.Number)
	case "prologue":
		s.st.Prologue = int(req.Number)
	case "slot":
		s.st.Slots = append(s.st.Slots, req.More)
	case "reject":
		s.st.Reject = req.More
	case "scheduler":
		s.st.SchedDead = req.Number == 0
		s.dirty = true
	case "cycle":
		s.dirty = true
	case "stop-node", "cut-node", "start-node":
		return s.controlNode(req)
	default:
		return reply{Fail: &fail{Code: badRequest, Extra: strings.TrimSpace(req.Text)}}
	}
	s.saveState()
	return reply{}
}

func (s *server) controlNode(req request) reply {
	for _, v := range s.st.Nodes {
		if v.Host != req.More {
			continue
		}
		switch req.Text {
		case "stop-node":
			v.Dead = true
			s.goDown(v)
		case "cut-node":
			v.CutAt = s.millis()
		case "start-node":
			s.recover(v, req.Force)
		}

	}
	if len(s.onHost(req.More)) == 0 {
		return reply{Fail: &fail{Code: unknownNode}}
	}
	s.saveState()
	return reply{}
}
