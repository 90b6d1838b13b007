package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// state is what the server holds beside its jobs: state.
type state struct {
	Seq       int
	Settings  []attr
	Sched     []attr
	Resources []resource
	Queues    []*queue
	Nodes     []*vnode
	// What tests do to a complex.
	Ahead     int64 // seconds that the clock was put forward
	Slow      time.Duration
	Lose      map[string]int
	SchedDead bool
	Epilogue  int      // seconds that a job's epilogue takes
	Prologue  int      // its exit code
	Reject    string   // what a queuejob hook says
	Slots     []string // NODE/SLOT where the next jobs of one chunk go
}

// queue is a queue with its attributes.
type queue struct {
	Name  string
	Attrs []attr
	Seen  []pair // resources that its jobs have used, all zero
}

// vnode is a node of the complex.
type vnode struct {
	Name, Host, Sharing string
	CPUs                int
	Avail               []pair
	Attrs               []attr // the queue and whatever a manager sets
	Comment             string
	Offline, Down       bool
	Unknown             bool
	DownAt              int64 // milliseconds
	CutAt               int64 // the cable was pulled; not yet noticed
	Dead                bool  // its mom died or is out of reach
	Changed, Used       int64
	Last                string // state at the last look
}

// fresh is a complex that was just installed, with the nodes of its config.
func fresh(cfg config) state {
	at := time.Now().Unix()
	st := state{Lose: map[string]int{}}
	set := func(name, res, value string) {
		st.Settings = append(st.Settings, attr{Name: name, Res: res, Value: value})
	}
	set("scheduling", "", "True")
	set("default_queue", "", "workq")
	set("log_events", "", "511")
	set("mailer", "", "/usr/sbin/sendmail")
	set("mail_from", "", "adm")
	set("query_other_jobs", "", "True")
	set("resources_default", "ncpus", "1")
	set("default_chunk", "ncpus", "1")
	set("scheduler_iteration", "", "600")
	set("resv_enable", "", "True")
	set("node_fail_requeue", "", "310")
	set("max_array_size", "", "10000")
	set("pbs_license_min", "", "0")
	set("pbs_license_max", "", "2147483647")
	set("pbs_license_linger_time", "", "31536000")
	set("eligible_time_enable", "", "False")
	set("max_concurrent_provision", "", "5")
	set("max_job_sequence_id", "", "9999999")
	if cfg.History {
		set("job_history_enable", "", "True")
		set("job_history_duration", "", "336:00:00")
	}
	st.Queues = []*queue{{Name: "workq", Attrs: []attr{{Name: "queue_type", Value: "Execution"},
		{Name: "enabled", Value: "True"}, {Name: "started", Value: "True"}}}}
	for _, n := range cfg.Nodes {
		v := &vnode{Name: n.Name, Host: n.Host, Sharing: n.Sharing, CPUs: 2, Changed: at, Last: "free"}
		if v.Host == "" {
			v.Host = n.Name
		}
		if v.Sharing == "" {
			v.Sharing = "default_shared"
		}
		v.Avail = setPair(v.Avail, "arch", "linux")
		v.Avail = setPair(v.Avail, "host", v.Host)
		v.Avail = setPair(v.Avail, "mem", n.Memory)
		v.Avail = setPair(v.Avail, "ncpus", strconv.Itoa(n.CPUs))
		v.Avail = setPair(v.Avail, "vnode", n.Name)
		for name, value := range n.Resources {
			v.Avail = setPair(v.Avail, name, value)
		}
		st.Nodes = append(st.Nodes, v)
	}
	return st
}

// lookup finds a resource that jobs may name.
func (s *server) lookup(name string) (resource, bool) {
	if r, ok := predefined(name); ok {
		return r, true
	}
	for _, r := range s.st.Resources {
		if r.Name == name {
			return r, true
		}
	}
	return resource{}, false
}

func find(attrs []attr, name, res string) (string, bool) {
	for _, a := range attrs {
		if a.Name == name && a.Res == res {
			return a.Value, true
		}
	}
	return "", false
}

func (s *server) setting(name, none string) string {
	if v, ok := find(s.st.Settings, name, ""); ok {
		return v
	}
	return none
}

func (s *server) settingInt(name string, none int) int {
	n, err := strconv.Atoi(s.setting(name, ""))
	if err != nil {
		return none
	}
	return n
}

func (s *server) history() bool { return s.setting("job_history_enable", "") == "True" }

func (s *server) queue(name string) *queue {
	for _, q := range s.st.Queues {
		if q.Name == name {
			return q
		}
	}
	return nil
}

func (q *queue) get(name string) string {
	v, _ := find(q.Attrs, name, "")
	return v
}

// perUser reads a limit such as [u:PBS_GENERIC=2]; none is -1.
func (q *queue) perUser(name string) int {
	v, ok := strings.CutPrefix(q.get(name), "[u:PBS_GENERIC=")
	if !ok {
		return -1
	}
	n, err := strconv.Atoi(strings.TrimSuffix(v, "]"))
	if err != nil {
		return -1
	}
	return n
}

func serverOrder() []string {
	return []string{"server_state", "server_host", "scheduling", "total_jobs", "state_count", "default_queue", "log_events",
		"mailer", "mail_from", "query_other_jobs", "resources_available", "resources_default", "default_chunk",
		"resources_assigned", "scheduler_iteration", "resv_enable", "node_fail_requeue", "max_array_size",
		"pbs_license_min", "pbs_license_max", "pbs_license_linger_time", "license_count", "pbs_version",
		"eligible_time_enable", "job_history_enable", "job_history_duration", "max_concurrent_provision", "max_job_sequence_id"}
}

func queueOrder() []string {
	return []string{"queue_type", "Priority", "total_jobs", "state_count", "max_queued", "acl_user_enable", "acl_users",
		"resources_max", "resources_default", "resources_assigned", "kill_delay", "max_run", "route_destinations", "enabled", "started"}
}

func nodeOrder() []string {
	return []string{"Mom", "ntype", "state", "pcpus", "queue", "jobs", "resources_available", "resources_assigned",
		"comment", "resv_enable", "sharing", "license", "last_state_change_time", "last_used_time"}
}

// stateCount is the line of counters of the jobs that a test lets through.
func (s *server) stateCount(in func(*job) bool) (string, int) {
	n := map[byte]int{}
	total := 0
	for _, j := range s.jobs {
		if j.Index >= 0 || !in(j) {
			continue
		}
		if j.active() {
			n[j.State]++
			total++
		}
	}
	return fmt.Sprintf("Transit:%d Queued:%d Held:%d Waiting:%d Running:%d Exiting:%d Begun:%d ",
		n['T'], n['Q'], n['H'], n['W'], n['R']+n['S'], n['E'], n['B']), total
}

// assigned sums what the running jobs of a queue, or of all, hold.
func (s *server) assigned(in func(*job) bool, seen []pair) []pair {
	sums := map[string]size{}
	plain := map[string]float64{}
	for _, p := range seen {
		if r, _ := s.lookup(p.Name); r.Kind == kindSize {
			sums[p.Name] = size{shift: 20}
		} else {
			plain[p.Name] = 0
		}
	}
	for _, j := range s.jobs {
		if !j.running() || !in(j) {
			continue
		}
		for _, p := range j.Resources {
			r, ok := s.lookup(p.Name)
			if !ok || (!r.consumable() && p.Name != "nodect") || r.Kind == kindTime {
				continue
			}
			if r.Kind == kindSize {
				v, _ := parseSize(p.Value)
				sums[p.Name] = sums[p.Name].add(v)
				continue
			}
			f, _ := strconv.ParseFloat(p.Value, 64)
			plain[p.Name] += f
		}
	}
	var out []pair
	for name, v := range sums {
		out = setPair(out, name, v.String())
	}
	for name, v := range plain {
		out = setPair(out, name, strconv.FormatFloat(v, 'f', -1, 64))
	}
	return out
}

func (s *server) serverEntry() entry {
	l := &listing{attrs: slices.Clone(s.st.Settings)}
	all := func(*job) bool { return true }
	count, total := s.stateCount(all)
	l.text("server_state", "Active")
	l.text("server_host", s.cfg.Host)
	l.number("total_jobs", total)
	l.text("state_count", count)
	l.res("resources_assigned", s.assigned(all, append([]pair{{"ncpus", "0"}, {"nodect", "0"}}, s.seen()...)))
	l.text("license_count", "Avail_Global:1000000 Avail_Local:1000000 Used:0 High_Use:0")
	l.text("pbs_version", version)
	return entry{ID: s.cfg.Host, Attrs: order(l.attrs, serverOrder())}
}

func (s *server) seen() []pair {
	var out []pair
	for _, q := range s.st.Queues {
		out = append(out, q.Seen...)
	}
	return out
}

func (s *server) queueEntries(req request) reply {
	var r reply
	for _, q := range s.st.Queues {
		if len(req.IDs) > 0 && !slices.Contains(req.IDs, q.Name) {
			continue
		}
		l := &listing{attrs: slices.Clone(q.Attrs)}
		in := func(j *job) bool { return j.Queue == q.Name }
		count, total := s.stateCount(in)
		l.number("total_jobs", total)
		l.text("state_count", count)
		if len(q.Seen) > 0 {
			l.res("resources_assigned", s.assigned(in, q.Seen))
		}
		r.Entries = append(r.Entries, entry{ID: q.Name, Attrs: order(l.attrs, queueOrder())})
	}
	for _, id := range req.IDs {
		if s.queue(id) == nil {
			r.Fail = &fail{Code: unknownQueue, Extra: id}
		}
	}
	return r
}

// stateOf is what a listing says of a node.
func (s *server) stateOf(v *vnode) string {
	var words []string
	if v.Unknown {
		words = append(words, "state-unknown")
	}
	if v.Down || v.Unknown {
		words = append(words, "down")
	}
	if v.Offline {
		words = append(words, "offline")
	}
	if len(words) > 0 {
		return strings.Join(words, ",")
	}
	used, exclusive := s.usedOn(v, nil)
	cpus, _ := strconv.ParseInt(getPair(v.Avail, "ncpus"), 10, 64)
	switch {
	case exclusive:
		return "job-exclusive"
	case cpus > 0 && used["ncpus"] >= cpus:
		return "job-busy"
	}
	return "free"
}

// usedOn sums what jobs hold of a node, sizes in kB, and tells whether one of them has it alone.
func (s *server) usedOn(v *vnode, not *job) (map[string]int64, bool) {
	used, exclusive := map[string]int64{}, false
	for _, j := range s.jobs {
		if !j.running() || j.State == 'S' || j == not {
			continue
		}
		for _, p := range j.Places {
			if p.Vnode != v.Name {
				continue
			}
			for _, u := range p.Uses {
				n, _ := strconv.ParseInt(strings.TrimSuffix(u.Value, "kb"), 10, 64)
				used[u.Name] += n
			}
			place, _ := parsePlace(or(j.res("place"), "free"))
			exclusive = exclusive || strings.HasPrefix(place.sharing, "excl") || (v.Sharing == "default_excl" && place.sharing != "shared")
		}
	}
	return used, exclusive
}

func (s *server) nodeEntry(v *vnode) entry {
	l := &listing{attrs: slices.Clone(v.Attrs)}
	l.text("Mom", v.Host)
	l.text("ntype", "PBS")
	l.text("state", s.stateOf(v))
	if v.Name == v.Host {
		l.number("pcpus", v.CPUs)
	}
	e := entry{ID: v.Name}
	for _, j := range s.sorted() {
		for _, p := range j.Places {
			if j.running() && j.State != 'S' && p.Vnode == v.Name {
				e.Jobs = append(e.Jobs, fmt.Sprintf("%s.%s/%d", j.key(), s.cfg.Host, p.Slot))
			}
		}
	}
	if len(e.Jobs) > 0 {
		l.text("jobs", strings.Join(e.Jobs, ", "))
	}
	l.res("resources_available", v.Avail)
	used, _ := s.usedOn(v, nil)
	held := []pair{}
	for _, n := range []string{"accelerator_memory", "hbmem", "mem", "vmem"} {
		held = setPair(held, n, fmt.Sprintf("%dkb", used[n]))
	}
	for _, n := range []string{"naccelerators", "ncpus"} {
		held = setPair(held, n, strconv.FormatInt(used[n], 10))
	}
	for n, u := range used {
		if getPair(held, n) == "" {
			held = setPair(held, n, strconv.FormatInt(u, 10))
		}
	}
	l.res("resources_assigned", held)
	l.text("comment", v.Comment)
	l.text("resv_enable", "True")
	l.text("sharing", v.Sharing)
	l.text("license", "l")
	l.time("last_state_change_time", v.Changed)
	l.time("last_used_time", v.Used)
	e.Attrs = order(l.attrs, nodeOrder())
	return e
}
