package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// alter is qalter: options as of qsub, one after the other.
func (s *server) alter(j *job, req request) *fail {
	changed := *j
	changed.Resources = slices.Clone(j.Resources)
	for _, p := range req.Pairs {
		if f := s.alterOne(&changed, p, req.User); f != nil {
			return f
		}
	}
	*j = changed
	s.touch(j)
	s.dirty = true
	return nil
}

func (s *server) alterOne(j *job, p pair, user string) *fail {
	switch p.Name {
	case "N":
		j.Name = p.Value
	case "A":
		j.Account = p.Value
	case "P":
		j.Project = p.Value
	case "p":
		n, err := strconv.Atoi(p.Value)
		if err != nil {
			return &fail{Code: badValue, Extra: "Priority"}
		}
		j.Priority = n
	case "r":
		j.Rerunnable = p.Value != "n"
	case "o":
		j.OutPath = p.Value
	case "e":
		j.ErrPath = p.Value
	case "h":
		j.Holds = addHold("", strings.Trim(p.Value, "n"))
	case "a":
		at, ok := startTime(p.Value, s.clock(), zoneOf(""))
		if !ok {
			return &fail{Code: badValue, Extra: "Execution_Time"}
		}
		j.Start = at
		if j.State == 'Q' {
			j.State, j.Substate, j.Etime = 'W', 30, 0
		}
	case "l":
		return s.alterResources(j, p.Value, user)
	case "W":
		for _, f := range attributeList(p.Value) {
			if name, value, _ := strings.Cut(f, "="); name == "comment" {
				if user != "root" {
					return &fail{Code: readOnly, Extra: "comment"}
				}
				j.Comment = value
			}
		}
	}
	return nil
}

func (s *server) alterResources(j *job, text, user string) *fail {
	for _, f := range splitOutside(text) {
		name, value, _ := strings.Cut(f, "=")
		r, ok := s.lookup(name)
		if !ok {
			return &fail{Code: unknownResource, Extra: "Resource_List." + name}
		}
		v, ok := r.parse(value)
		if !ok {
			return &fail{Code: badValue, Extra: "Resource_List." + name}
		}
		if j.running() {
			if name != "walltime" && name != "cput" {
				return &fail{Code: notWhileRunning, Extra: "Resource_List." + name}
			}
			if user != "root" && exceeds(v, j.res(name)) {
				return &fail{Code: notPermitted}
			}
		}
		j.Resources = setPair(j.Resources, name, v)
		if name == "select" {
			if f := s.shape(j, []pair{{"select", v}, {"place", j.res("place")}}); f != nil {
				return f
			}
		}
	}
	return nil
}

// directive is one line for qmgr: a verb, an object, its name, and what to set.
type directive struct {
	verb, kind, name string
	sets             []setting
}

type setting struct {
	name, res, op, value string
}

// parseDirective reads a line of qmgr.
func parseDirective(line string) (directive, bool) {
	var d directive
	words := fields(strings.NewReplacer("+=", " += ", "-=", " -= ").Replace(line))
	if len(words) == 0 {
		return d, false
	}
	d.verb, words = expand(words[0], "create", "delete", "set", "unset", "list", "print", "active"), words[1:]
	if d.verb == "" || len(words) == 0 {
		return d, false
	}
	d.kind, words = expand(words[0], "server", "queue", "node", "resource", "sched", "hook", "vnode"), words[1:]
	if d.kind == "" {
		return d, false
	}
	// The scheduler needs no name, as there is one.
	if d.kind != "server" && len(words) > 0 && (d.kind != "sched" || words[0] == "default") {
		d.name, words = words[0], words[1:]
	}
	for rest := strings.Join(words, " "); rest != ""; {
		var one setting
		rest = one.read(rest)
		if one.name == "" {
			return d, false
		}
		d.sets = append(d.sets, one)
	}
	return d, true
}

func expand(word string, known ...string) string {
	for _, k := range known {
		if word == k || (len(word) < len(k) && strings.HasPrefix(k, word)) || word == k+"s" {
			return k
		}
	}
	return ""
}

// read takes "name[.res] [op value]" off the front and returns what lies behind its comma.
func (one *setting) read(text string) string {
	text = strings.TrimLeft(text, " ,")
	end := strings.IndexAny(text, " =,+")
	if end < 0 {
		end = len(text)
	}
	one.name, one.res, _ = strings.Cut(text[:end], ".")
	rest := strings.TrimLeft(text[end:], " ")
	for _, op := range []string{"+=", "-=", "="} {
		if after, ok := strings.CutPrefix(rest, op); ok {
			one.op = op
			one.value, rest, _ = strings.Cut(strings.TrimLeft(after, " "), ",")
			one.value = strings.TrimSpace(one.value)
			return rest
		}
	}
	return rest
}

func (s *server) manage(req request) reply {
	d, ok := parseDirective(req.Text)
	if !ok {
		return reply{Fail: &fail{Code: badRequest}}
	}
	switch d.verb {
	case "print":
		return reply{Text: s.print(d)}
	case "list":
		return reply{Text: s.listObject(d)}
	}
	if req.User != "root" {
		return reply{Fail: &fail{Code: notPermitted}, ID: d.name}
	}
	f := s.change(d)
	s.saveState()
	s.dirty = true
	return reply{Fail: f, ID: d.name}
}

func (s *server) change(d directive) *fail {
	switch d.kind {
	case "server":
		s.st.Settings = apply(s.st.Settings, d, serverOrder())
		return nil
	case "sched":
		s.st.Sched = apply(s.st.Sched, d, nil)
		return nil
	case "resource":
		return s.changeResource(d)
	case "queue":
		q := s.queue(d.name)
		switch {
		case d.verb == "create":
			q = &queue{Name: d.name, Attrs: []attr{{Name: "enabled", Value: "False"}, {Name: "started", Value: "False"}}}
			s.st.Queues = append(s.st.Queues, q)
		case q == nil:
			return &fail{Code: unknownQueue}
		case d.verb == "delete":
			s.st.Queues = slices.DeleteFunc(s.st.Queues, func(o *queue) bool { return o == q })
			return nil
		}
		q.Attrs = apply(q.Attrs, d, queueOrder())
		return nil
	case "node", "vnode":
		return s.changeNode(d)
	}
	return &fail{Code: badRequest}
}

func (s *server) changeNode(d directive) *fail {
	v := s.node(d.name)
	switch {
	case d.verb == "create":
		v = &vnode{Name: d.name, Host: d.name, Sharing: "default_shared", CPUs: 2, Changed: s.clock()}
		v.Avail = []pair{{"arch", "linux"}, {"host", d.name}, {"ncpus", "1"}, {"vnode", d.name}}
		s.st.Nodes = append(s.st.Nodes, v)
	case v == nil:
		return &fail{Code: unknownNode}
	case d.verb == "delete":
		s.st.Nodes = slices.DeleteFunc(s.st.Nodes, func(o *vnode) bool { return o == v })
		return nil
	}
	for _, one := range d.sets {
		switch {
		case one.name == "comment":
			v.Comment = one.value
		case one.name == "resources_available" && d.verb == "unset":
			v.Avail = slices.DeleteFunc(v.Avail, func(p pair) bool { return p.Name == one.res })
		case one.name == "resources_available":
			v.Avail = setPair(v.Avail, one.res, one.value)
		case one.name == "state":
			v.Offline = one.value == "offline"
		default:
			v.Attrs = apply(v.Attrs, directive{verb: d.verb, sets: []setting{one}}, nodeOrder())
		}
	}
	return nil
}

func (s *server) changeResource(d directive) *fail {
	at := slices.IndexFunc(s.st.Resources, func(r resource) bool { return r.Name == d.name })
	if d.verb == "create" {
		at = len(s.st.Resources)
		s.st.Resources = append(s.st.Resources, resource{Name: d.name, Kind: kindString})
	}
	if at < 0 {
		return &fail{Code: unknownResource}
	}
	if d.verb == "delete" {
		s.st.Resources = slices.Delete(s.st.Resources, at, at+1)
		return nil
	}
	r := &s.st.Resources[at]
	for _, one := range d.sets {
		switch one.name {
		case "type":
			switch one.value {
			case "long":
				r.Kind = kindLong
			case "float":
				r.Kind = kindFloat
			case "size":
				r.Kind = kindSize
			default:
				r.Kind = kindString
			}
		case "flag":
			r.Flags = one.value
		}
	}
	slices.SortFunc(s.st.Resources, func(a, b resource) int { return strings.Compare(a.Name, b.Name) })
	return nil
}

func apply(attrs []attr, d directive, table []string) []attr {
	for _, one := range d.sets {
		at := slices.IndexFunc(attrs, func(a attr) bool { return a.Name == one.name && a.Res == one.res })
		switch {
		case d.verb == "unset":
			attrs = slices.DeleteFunc(attrs, func(a attr) bool { return a.Name == one.name && (one.res == "" || a.Res == one.res) })
		case at < 0:
			attrs = append(attrs, attr{Name: one.name, Res: one.res, Value: one.value})
		case one.op == "+=":
			attrs[at].Value += "," + one.value
		default:
			attrs[at].Value = one.value
		}
	}
	return order(attrs, table)
}

// print is qmgr's form that could be fed back to it.
func (s *server) print(d directive) string {
	var b strings.Builder
	switch d.kind {
	case "server":
		if len(s.st.Resources) > 0 {
			b.WriteString("#\n# Create resources and set their properties.\n#\n")
		}
		for _, r := range s.st.Resources {
			kind := []string{"string", "long", "float", "size", "string", "string"}[r.Kind]
			fmt.Fprintf(&b, "#\n# Create and define resource %s\n#\ncreate resource %s\nset resource %s type = %s\n", r.Name, r.Name, r.Name, kind)
			if r.Flags != "" {
				fmt.Fprintf(&b, "set resource %s flag = %s\n", r.Name, r.Flags)
			}
		}
		b.WriteString("#\n# Create queues and set their attributes.\n#\n")
		for _, q := range s.st.Queues {
			fmt.Fprintf(&b, "#\n# Create and define queue %s\n#\ncreate queue %s\n", q.Name, q.Name)
			printAttrs(&b, "queue "+q.Name, q.Attrs)
		}
		b.WriteString("#\n# Set server attributes.\n#\n")
		printAttrs(&b, "server", s.st.Settings)
	case "node":
		b.WriteString("#\n# Create nodes and set their properties.\n#\n")
		for _, v := range s.st.Nodes {
			if d.name != "@default" && d.name != v.Name {
				continue
			}
			fmt.Fprintf(&b, "#\n# Create and define node %s\n#\ncreate node %s\n", v.Name, v.Name)
			l := &listing{}
			l.text("state", s.stateOf(v))
			l.res("resources_available", v.Avail)
			l.text("comment", v.Comment)
			l.text("resv_enable", "True")
			printAttrs(&b, "node "+v.Name, l.attrs)
		}
	}
	return b.String()
}

func printAttrs(b *strings.Builder, object string, attrs []attr) {
	for _, a := range attrs {
		name := a.Name
		if a.Res != "" {
			name += "." + a.Res
		}
		if a.Name == "route_destinations" {
			for i, v := range strings.Split(a.Value, ",") {
				fmt.Fprintf(b, "set %s %s %s %s\n", object, name, []string{"=", "+="}[min(i, 1)], v)
			}
			continue
		}
		v := a.Value
		if strings.ContainsAny(v, " ,#") && name == "comment" {
			v = `"` + v + `"`
		}
		fmt.Fprintf(b, "set %s %s = %s\n", object, name, v)
	}
}

// listObject is qmgr's list; names limit what is shown, and what is not set is left out.
func (s *server) listObject(d directive) string {
	var b strings.Builder
	var e entry
	switch d.kind {
	case "server":
		e = s.serverEntry()
		fmt.Fprintf(&b, "Server %s\n", s.cfg.Host)
	case "sched":
		e = s.schedEntry()
		b.WriteString("Sched default\n")
	case "queue":
		r := s.queueEntries(request{IDs: []string{d.name}})
		if len(r.Entries) == 0 {
			return ""
		}
		e = r.Entries[0]
		fmt.Fprintf(&b, "Queue %s\n", d.name)
	case "resource":
		for _, r := range s.st.Resources {
			if r.Name == d.name {
				kind := []string{"string", "long", "float", "size", "string", "string"}[r.Kind]
				fmt.Fprintf(&b, "Resource %s\n    type = %s\n    flag = %s\n\n", r.Name, kind, r.Flags)
			}
		}
		return b.String()
	case "node":
		v := s.node(d.name)
		if v == nil {
			return ""
		}
		e = s.nodeEntry(v)
		fmt.Fprintf(&b, "Node %s\n", d.name)
	}
	for _, a := range e.Attrs {
		wanted := func(one setting) bool { return one.name == a.Name && (one.res == "" || one.res == a.Res) }
		if len(d.sets) > 0 && !slices.ContainsFunc(d.sets, wanted) {
			continue
		}
		name := a.Name
		if a.Res != "" {
			name += "." + a.Res
		}
		fmt.Fprintf(&b, "    %s = %s\n", name, a.text(zoneOf("")))
	}
	b.WriteString("\n")
	return b.String()
}

func (s *server) schedEntry() entry {
	l := &listing{}
	defaults := []pair{{"sched_host", s.cfg.Host}, {"sched_cycle_length", "00:20:00"}, {"throughput_mode", "True"},
		{"job_run_wait", "runjob_hook"}, {"partition", "pbs-default"}, {"sched_priv", "/var/spool/pbs/sched_priv"},
		{"sched_log", "/var/spool/pbs/sched_logs"}, {"scheduling", s.setting("scheduling", "True")},
		{"scheduler_iteration", s.setting("scheduler_iteration", "600")}, {"state", "idle"}, {"preempt_queue_prio", "150"},
		{"preempt_prio", "express_queue, normal_jobs"}, {"preempt_order", "SCR"}, {"preempt_sort", "min_time_since_start"},
		{"log_events", "767"}, {"server_dyn_res_alarm", "30"}}
	for _, p := range defaults {
		v, ok := find(s.st.Sched, p.Name, "")
		if !ok {
			v = p.Value
		}
		l.text(p.Name, v)
	}
	return entry{ID: "default", Attrs: l.attrs}
}
