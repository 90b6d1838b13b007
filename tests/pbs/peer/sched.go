package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// schedule is one cycle: every queued job is started or told why not.
func (s *server) schedule(at time.Time) {
	s.dirty, s.cycled = false, at
	s.stopped = at.Unix() + s.st.Ahead
	defer func() { s.stopped = 0 }()
	if s.setting("scheduling", "True") != "True" || s.st.SchedDead {
		return
	}
	s.resumeSuspended()
	for _, j := range s.waiting() {
		if j.Array != nil {
			s.scheduleArray(j)
			continue
		}
		why, places := s.judge(j)
		if why == "" {
			s.start(j, places)
		} else if j.Comment != why {
			j.Comment = why
			s.save(j)
		}
	}
}

// waiting are the jobs to look at: by the priority of their queue, then in their order.
func (s *server) waiting() []*job {
	var out []*job
	for _, j := range s.jobs {
		if j.State == 'Q' || (j.State == 'B' && len(j.Array.Remaining) > 0) {
			out = append(out, j)
		}
	}
	slices.SortFunc(out, func(a, b *job) int {
		return cmp.Or(s.queuePriority(b)-s.queuePriority(a), a.Rank-b.Rank, a.Seq-b.Seq, a.Index-b.Index)
	})
	return out
}

func (s *server) scheduleArray(j *job) {
	for _, i := range slices.Clone(j.Array.Remaining) {
		if j.Array.Limit > 0 && s.runningSubs(j) >= j.Array.Limit {
			return
		}
		why, places := s.judge(j)
		if why != "" {
			if j.State == 'Q' && j.Comment != why {
				j.Comment = why
				s.save(j)
			}
			return
		}
		s.start(s.began(j, i), places)
	}
}

// resumeSuspended lets jobs on whose room is free again.
func (s *server) resumeSuspended() {
	for _, j := range s.sorted() {
		if j.State != 'S' || j.Substate != 45 {
			continue
		}
		fits := true
		for _, p := range j.Places {
			v := s.node(p.Vnode)
			fits = fits && v != nil && s.holds(p.Uses, s.freeOf(v, j))
		}
		if fits {
			s.resume(j)
		} else if why := "Not Running: Not enough free nodes available"; j.Comment != why {
			j.Comment = why
			s.save(j)
		}
	}
}

func (s *server) node(name string) *vnode {
	for _, v := range s.st.Nodes {
		if v.Name == name {
			return v
		}
	}
	return nil
}

// judge finds room for a job, or says in the scheduler's words why there is none.
func (s *server) judge(j *job) (string, []place) {
	q := s.queue(j.Queue)
	if q == nil || q.get("started") != "True" {
		return "Not Running: Queue not started.", nil
	}
	if limit := q.perUser("max_run"); limit >= 0 {
		n := 0
		for _, o := range s.jobs {
			if o.running() && o.Queue == j.Queue && o.User == j.User {
				n++
			}
		}
		if n >= limit {
			return "Not Running: User has reached queue " + j.Queue + " running job limit.", nil
		}
	}
	if why := s.atServer(j); why != "" {
		return why, nil
	}
	parts, f := parseSelect(j.res("select"), s.lookup)
	if f != nil {
		return "Can Never Run: " + f.text(), nil
	}
	if why := s.never(parts); why != "" {
		return why, nil
	}
	if places, ok := s.placeJob(j, s.st.Nodes); ok {
		return "", places
	}
	if places, ok := s.preempt(j); ok {
		return "", places
	}
	return s.notNow(parts), nil
}

// atServer looks at what is counted at the server, such as licences.
func (s *server) atServer(j *job) string {
	for _, p := range j.Resources {
		r, ok := s.lookup(p.Name)
		if !ok || !strings.Contains(r.Flags, "q") || strings.Contains(r.Flags, "h") {
			continue
		}
		total := 0.0
		if v, ok := find(s.st.Settings, "resources_available", p.Name); ok {
			total, _ = strconv.ParseFloat(v, 64)
		}
		used := 0.0
		for _, o := range s.jobs {
			if o.running() {
				n, _ := strconv.ParseFloat(o.res(p.Name), 64)
				used += n
			}
		}
		want, _ := strconv.ParseFloat(p.Value, 64)
		if want <= total-used {
			continue
		}
		word := "Not Running"
		if want > total {
			word = "Can Never Run"
		}
		return fmt.Sprintf("%s: Insufficient amount of server resource: %s (R: %g A: %g T: %g)", word, p.Name, want, total-used, total)
	}
	return ""
}

// never says what no state of the complex could give.
func (s *server) never(parts []part) string {
	for _, p := range totals(parts, s.lookup) {
		if p.Name == "nodect" || p.Name == "mpiprocs" || p.Name == "ompthreads" {
			continue
		}
		total := int64(0)
		for _, v := range s.st.Nodes {
			total += amount(getPair(v.Avail, p.Name))
		}
		if want := amount(p.Value); want > total {
			return fmt.Sprintf("Can Never Run: Insufficient amount of resource: %s (R: %s A: %s T: %s)", p.Name, shown(p, want), shown(p, total), shown(p, total))
		}
	}
	for _, p := range parts {
		for _, w := range p.Wants {
			if r, _ := s.lookup(strings.ToLower(w.Name)); r.Kind != kindString {
				continue
			}
			var have []string
			for _, v := range s.st.Nodes {
				if x := getPair(v.Avail, strings.ToLower(w.Name)); x != "" && !slices.Contains(have, x) {
					have = append(have, x)
				}
			}
			if !slices.Contains(have, w.Value) {
				return fmt.Sprintf("Can Never Run: Insufficient amount of resource: %s (%s != %s)", w.Name, w.Value, strings.Join(have, ","))
			}
		}
	}
	for _, p := range parts {
		if !slices.ContainsFunc(s.st.Nodes, func(v *vnode) bool { return s.matches(v, p) && s.holds(s.uses(p), s.total(v)) }) {
			return "Can Never Run: Not enough total nodes available"
		}
	}
	return ""
}

func shown(p pair, n int64) string {
	if _, err := strconv.Atoi(p.Value); err == nil {
		return strconv.FormatInt(n, 10)
	}
	return strconv.FormatInt(n, 10) + "kb"
}

// amount is a count, or a size in kB.
func amount(v string) int64 {
	if n, err := strconv.ParseInt(v, 10, 64); err == nil {
		return n
	}
	s, _ := parseSize(v)
	return s.kb()
}

// notNow names the first wish that only nodes out of use could fulfil.
func (s *server) notNow(parts []part) string {
	for _, p := range parts {
		for _, name := range []string{"host", "vnode"} {
			w := p.get(name)
			if w != "" && !slices.ContainsFunc(s.st.Nodes, func(v *vnode) bool { return getPair(v.Avail, name) == w && s.usable(v) }) {
				return "Not Running: Insufficient amount of resource: " + name + " "
			}
		}
	}
	return "Not Running: Not enough free nodes available"
}

func (s *server) usable(v *vnode) bool {
	state := s.stateOf(v)
	return state == "free" || state == "job-busy"
}

// uses are the consumable wishes of a chunk as nodes count them.
func (s *server) uses(p part) []pair {
	out := []pair{}
	wants := p.Wants
	if p.get("ncpus") == "" {
		wants = append([]pair{{"ncpus", "1"}}, wants...)
	}
	for _, w := range wants {
		name := strings.ToLower(w.Name)
		r, _ := s.lookup(name)
		switch {
		case !r.consumable() || name == "mpiprocs" || name == "ompthreads":
		case r.Kind == kindSize:
			out = append(out, pair{name, strconv.FormatInt(amount(w.Value+"b"), 10) + "kb"})
			if v, ok := parseSize(w.Value); ok {
				out[len(out)-1].Value = strconv.FormatInt(v.kb(), 10) + "kb"
			}
		default:
			out = append(out, pair{name, w.Value})
		}
	}
	return out
}

func (s *server) matches(v *vnode, p part) bool {
	for _, w := range p.Wants {
		name := strings.ToLower(w.Name)
		if r, _ := s.lookup(name); r.Kind == kindString && getPair(v.Avail, name) != w.Value {
			return false
		}
	}
	return true
}

func (s *server) total(v *vnode) map[string]int64 {
	out := map[string]int64{}
	for _, a := range v.Avail {
		if r, _ := s.lookup(a.Name); r.consumable() {
			out[a.Name] = amount(a.Value)
		}
	}
	return out
}

func (s *server) freeOf(v *vnode, not *job) map[string]int64 {
	out := s.total(v)
	used, _ := s.usedOn(v, not)
	for n, u := range used {
		out[n] -= u
	}
	return out
}

func (s *server) holds(uses []pair, free map[string]int64) bool {
	for _, u := range uses {
		if amount(u.Value) > free[u.Name] {
			return false
		}
	}
	return true
}

// packing is one attempt to lay a job's chunks.
type packing struct {
	s     *server
	free  map[string]map[string]int64
	slots map[string][]int // taken on each host
	place placement
	used  map[string]bool // hosts of this job
}

// placeJob lays every chunk on the first node that has room, in the order of the nodes.
func (s *server) placeJob(j *job, nodes []*vnode) ([]place, bool) {
	parts, f := parseSelect(j.res("select"), s.lookup)
	arrangement, ok := parsePlace(or(j.res("place"), "free"))
	if f != nil || !ok {
		return nil, false
	}
	if arrangement.arrange != "pack" {
		return s.lay(parts, arrangement, nodes)
	}
	for _, v := range nodes {
		var same []*vnode
		for _, o := range nodes {
			if o.Host == v.Host {
				same = append(same, o)
			}
		}
		if places, ok := s.lay(parts, arrangement, same); ok {
			return places, true
		}
	}
	return nil, false
}

func (s *server) lay(parts []part, arrangement placement, nodes []*vnode) ([]place, bool) {
	k := packing{s: s, free: map[string]map[string]int64{}, slots: map[string][]int{}, place: arrangement, used: map[string]bool{}}
	for _, v := range nodes {
		k.free[v.Name] = s.freeOf(v, nil)
	}
	for _, o := range s.jobs {
		if o.running() && o.State != 'S' {
			for _, p := range o.Places {
				k.slots[p.Host] = append(k.slots[p.Host], p.Slot)
			}
		}
	}
	var out []place
	for _, p := range parts {
		for range p.Count {
			at, ok := k.chunk(p, nodes)
			if !ok {
				return nil, false
			}
			out = append(out, at)
		}
	}
	return out, true
}

func (k *packing) chunk(p part, nodes []*vnode) (place, bool) {
	uses := k.s.uses(p)
	for _, v := range nodes {
		scattered := k.place.arrange == "scatter" || k.place.arrange == "vscatter"
		alone := strings.HasPrefix(k.place.sharing, "excl") || (v.Sharing == "default_excl" && k.place.sharing != "shared")
		busy := len(k.slots[v.Host]) > 0 && !k.used[v.Host]
		if !k.s.usable(v) || !k.s.matches(v, p) || (scattered && k.used[v.Host]) || (alone && busy) || !k.s.holds(uses, k.free[v.Name]) {
			continue
		}
		for _, u := range uses {
			k.free[v.Name][u.Name] -= amount(u.Value)
		}
		k.used[v.Host] = true
		slot := 0
		for slices.Contains(k.slots[v.Host], slot) {
			slot++
		}
		k.slots[v.Host] = append(k.slots[v.Host], slot)
		procs, err := strconv.Atoi(or(p.get("mpiprocs"), "1"))
		if err != nil {
			procs = 1
		}
		return place{Vnode: v.Name, Host: v.Host, Slot: slot, Uses: uses, Procs: procs}, true
	}
	return place{}, false
}

// execTexts are exec_host and exec_vnode.
func execTexts(places []place) (hosts, vnodes string) {
	var h, v []string
	for _, p := range places {
		one := fmt.Sprintf("%s/%d", p.Host, p.Slot)
		if n := getPair(p.Uses, "ncpus"); n != "1" && n != "" && n != "0" {
			one += "*" + n
		}
		h = append(h, one)
		two := "(" + p.Vnode
		for _, u := range p.Uses {
			two += ":" + u.Name + "=" + u.Value
		}
		v = append(v, two+")")
	}
	return strings.Join(h, "+"), strings.Join(v, "+")
}

// stamp is the time in the scheduler's comments.
func (s *server) stamp() string {
	return time.Unix(s.clock(), 0).UTC().Format("Mon Jan 02 at 15:04")
}
