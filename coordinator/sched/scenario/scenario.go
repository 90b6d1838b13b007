// Package scenario plays scenarios: short stories about one cluster, told line by line, and what each decision made of
// them. The text of a story is described in coordinator/sched/testdata/scenarios/README.md. It reads no files.
package scenario

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/sched"
)

// maxLines bounds a story.
const maxLines = 10_000

// Play tells a story and returns what its ticks decided. check, if there is one, looks at each plan and says what is
// wrong with it.
func Play(text string, check func(sched.Snapshot, sched.Plan) string) (string, error) {
	st := &story{
		s: sched.Snapshot{Now: time.Date(2026, 1, 5, 8, 0, 0, 0, time.UTC), Tokens: map[string]uint32{}}, check: check,
		arrays: map[string]int{}, known: map[coordinator.AllocationID]sched.Request{},
	}
	for i, line := range strings.Split(text, "\n") {
		if i >= maxLines {
			return "", &Error{Line: i + 1, Err: fmt.Errorf("a story has at most %d lines", maxLines)}
		}
		if err := st.do(line); err != nil {
			return st.out.String(), &Error{Line: i + 1, Err: err}
		}
	}
	return st.out.String(), nil
}

// Error is what is wrong with a line of a story.
type Error struct {
	Line int
	Err  error
}

func (e *Error) Error() string { return fmt.Sprintf("story line %d: %v", e.Line, e.Err) }
func (e *Error) Unwrap() error { return e.Err }

// story is the cluster as far as its story is told.
type story struct {
	s      sched.Snapshot
	check  func(sched.Snapshot, sched.Plan) string
	arrays map[string]int // limit of each
	known  map[coordinator.AllocationID]sched.Request
	out    strings.Builder
}

func (st *story) do(line string) error {
	line, _, _ = strings.Cut(line, "#")
	words := strings.Fields(line)
	if len(words) == 0 {
		return nil
	}
	arg, rest := "", []string(nil)
	if len(words) > 1 {
		arg, rest = words[1], words[2:]
	}
	switch words[0] {
	case "tick":
		return st.tick()
	case "advance":
		d, err := time.ParseDuration(arg)
		st.s.Now = st.s.Now.Add(d)
		return err
	case "config":
		return st.config(words[1:])
	case "token":
		if len(rest) != 1 {
			return fmt.Errorf("token wants a name and a number")
		}
		n, err := strconv.ParseUint(rest[0], 10, 32)
		st.s.Tokens[arg] = uint32(n)
		return err
	case "array":
		n, err := strconv.Atoi(strings.Join(rest, ""))
		st.arrays[arg] = n
		return err
	case "definition":
		return st.definition(arg, rest)
	case "node":
		return st.node(arg, rest)
	case "gpus":
		return st.gpus(arg, rest)
	case "domains":
		return st.domains(arg, rest)
	case "run", "ask":
		return st.work(words[0], arg, rest)
	case "reserve":
		return st.reserve(arg, rest)
	case "maintenance":
		return st.maintenance(arg, rest)
	case "end", "cancel", "return", "cordon", "stop", "drain", "resume", "vanish":
		return st.change(words[0], words[1:])
	case "set":
		return st.set(arg, rest)
	case "offer":
		return st.offer(arg, rest)
	case "arrive":
		return st.arrive(arg, rest)
	case "fail":
		return st.gone(arg)
	}
	return fmt.Errorf("unknown verb %q", words[0])
}

// tick decides, checks the plan, writes it down and carries it out.
func (st *story) tick() error {
	for i := range st.s.Requests {
		r := &st.s.Requests[i]
		r.ArrayLimit = st.arrays[r.Array]
		st.known[r.ID] = *r
	}
	if len(st.s.Offers) > 0 {
		st.idle()
	}
	plan := sched.Decide(st.s)
	if st.check != nil {
		if broken := st.check(st.s, plan); broken != "" {
			return fmt.Errorf("the plan is broken: %s", broken)
		}
	}
	fmt.Fprintf(&st.out, "%s\n", clock(st.s.Now))
	for _, p := range plan.Starts {
		fmt.Fprintf(&st.out, "  start %s on %s of %s, rule %d\n", p.ID, joined(p.Nodes), p.Definition, p.Rule)
		for _, share := range p.Shares {
			fmt.Fprintf(&st.out, "        has of %s GPUs %v, cores by domain %v\n", share.Node, share.Devices, share.Cores)
		}
	}
	st.writePreempts(plan)
	for _, l := range plan.Launches {
		fmt.Fprintf(&st.out, "  launch %s for %s, ready at %s\n", l.Key, joined(l.For), clock(l.Until))
	}
	for _, r := range plan.Releases {
		fmt.Fprintf(&st.out, "  release %s, %s\n", r.Node, r.Why)
	}
	for _, w := range plan.Waits {
		fmt.Fprintf(&st.out, "  wait  %s %s %d, %s, %s rule %d\n", w.ID, w.Class, w.Position,
			cmp.Or(expected(w.EstimatedStart), "no estimate"), w.Verdict.Reason, w.Verdict.Rule)
		fmt.Fprintf(&st.out, "        %s\n", w.Verdict.Text)
		if len(w.Verdict.Blocking) > 0 || w.Verdict.Nearest != "" {
			fmt.Fprintf(&st.out, "        blocking: %s; nearest: %s\n",
				cmp.Or(joined(w.Verdict.Blocking), "-"), cmp.Or(string(w.Verdict.Nearest), "-"))
		}
	}
	st.s = sched.Apply(st.s, plan)
	return nil
}

func joined[T ~string](ids []T) string {
	words := make([]string, len(ids))
	for i, id := range ids {
		words[i] = string(id)
	}
	return strings.Join(words, " ")
}

func clock(t time.Time) string { return t.Format("15:04:05") }

func expected(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return "expected " + clock(t)
}

// fields splits k=v words; a bare word has the value "true".
func fields(words []string, set func(key, value string) error) error {
	for _, word := range words {
		key, value, ok := strings.Cut(word, "=")
		if !ok {
			value = "true"
		}
		if err := set(key, value); err != nil {
			return fmt.Errorf("%s: %w", word, err)
		}
	}
	return nil
}

func (st *story) config(words []string) error {
	c := &st.s.Config
	return fields(words, func(key, value string) (err error) {
		switch key {
		case "backfill":
			return c.Backfill.UnmarshalText([]byte(value))
		case "notice":
			c.PreemptionNotice, err = time.ParseDuration(value)
		case "preempt":
			c.PreemptionEnabled = value == "true"
		case "threshold":
			c.PreemptionThreshold, err = strconv.ParseFloat(value, 64)
		case "gap":
			c.PreemptionGap, err = strconv.ParseFloat(value, 64)
		case "age":
			c.AgeRate, err = strconv.ParseFloat(value, 64)
		case "min-runtime":
			c.MinPreemptionRuntime, err = time.ParseDuration(value)
		case "depth":
			c.QueueDepth, err = strconv.Atoi(value)
		default:
			err = fmt.Errorf("unknown key")
		}
		return err
	})
}

func (st *story) definition(id string, words []string) error {
	d := sched.Definition{ID: coordinator.DefinitionID(id), Order: len(st.s.Definitions)}
	err := fields(words, func(key, value string) (err error) {
		switch key {
		case "cost":
			d.CostPerHour, err = strconv.ParseFloat(value, 64)
		case "exclusive":
			err = d.Exclusive.UnmarshalText([]byte(value))
		default:
			err = fmt.Errorf("unknown key")
		}
		return err
	})
	st.s.Definitions = append(st.s.Definitions, d)
	return err
}

func (st *story) node(id string, words []string) error {
	n := sched.Node{ID: coordinator.NodeID(id), Schedulable: true, Devices: map[string]uint32{}}
	err := fields(words, func(key, value string) error {
		switch key {
		case "def":
			n.Definition = coordinator.DefinitionID(value)
			return nil
		case "off":
			n.Schedulable, n.Why = false, value
			return nil
		}
		return capacity(&n, key, value)
	})
	st.s.Nodes = append(st.s.Nodes, n)
	return err
}

// capacity sets what a node has of something.
func capacity(n *sched.Node, key, value string) error {
	v, err := size(value)
	switch key {
	case "cores":
		n.Cores, n.Threads = coordinator.Cores(v), max(n.Threads, uint32(v))
	case "threads":
		n.Threads = uint32(v)
	case "memory":
		n.Memory = coordinator.Bytes(v)
	default:
		n.Devices[key] = uint32(v)
	}
	return err
}

// size reads a number, with GiB if it is an amount of memory.
func size(text string) (uint64, error) {
	number, gib := strings.CutSuffix(text, "GiB")
	v, err := strconv.ParseUint(number, 10, 64)
	if gib {
		v <<= 30
	}
	return v, err
}

func (st *story) set(id string, words []string) error {
	i := slices.IndexFunc(st.s.Requests, func(r sched.Request) bool { return string(r.ID) == id })
	if i < 0 {
		return fmt.Errorf("nobody waits as %q", id)
	}
	return fields(words, func(key, value string) error { return st.requestField(&st.s.Requests[i], key, value) })
}

// gpus says how the GPUs of a node are joined.
func (st *story) gpus(id string, words []string) error {
	i := slices.IndexFunc(st.s.Nodes, func(n sched.Node) bool { return string(n.ID) == id })
	if i < 0 || len(words) == 0 {
		return fmt.Errorf("gpus wants a node and a kind")
	}
	n := &st.s.Nodes[i]
	n.LinksKnown = true
	return fields(words[1:], func(key, value string) error {
		list, err := []int(nil), error(nil)
		if key == "domain" || key == "dead" {
			list, err = numbers(value)
		}
		switch key {
		case "domain":
			for _, d := range list {
				n.GPUs = append(n.GPUs, sched.GPU{ID: fmt.Sprint(len(n.GPUs)), Kind: words[0], Domain: d})
			}
		case "dead":
			for _, d := range list {
				if d < 0 || d >= len(n.GPUs) {
					return fmt.Errorf("there is no GPU %d", d)
				}
				n.GPUs[d].Dead = true
			}
		case "links":
			if n.LinksKnown = value != "unknown"; !n.LinksKnown {
				return nil
			}
			for _, text := range strings.Split(value, ",") {
				var l sched.Link
				if _, err := fmt.Sscanf(text, "%d-%d:%d", &l.A, &l.B, &l.Count); err != nil {
					return err
				}
				if l.A < 0 || l.B < 0 || l.A >= len(n.GPUs) || l.B >= len(n.GPUs) || l.A == l.B {
					return fmt.Errorf("the node has %d GPUs", len(n.GPUs))
				}
				n.Links = append(n.Links, l)
			}
		case "switched": // from-to, all with all
			var from, to int
			if _, err := fmt.Sscanf(value, "%d-%d", &from, &to); err != nil {
				return err
			}
			if from < 0 || to >= len(n.GPUs) {
				return fmt.Errorf("the node has %d GPUs", len(n.GPUs))
			}
			for a := from; a <= to; a++ {
				for b := a + 1; b <= to; b++ {
					n.Links = append(n.Links, sched.Link{A: a, B: b, Count: 18, Switched: true})
				}
			}
		default:
			return fmt.Errorf("gpus have no %q", key)
		}
		return err
	})
}

// domains says what the NUMA domains of a node are.
func (st *story) domains(id string, words []string) error {
	i := slices.IndexFunc(st.s.Nodes, func(n sched.Node) bool { return string(n.ID) == id })
	if i < 0 {
		return fmt.Errorf("domains wants a node")
	}
	n := &st.s.Nodes[i]
	return fields(words, func(key, value string) error {
		for d, text := range strings.Split(value, ",") {
			v, err := size(text)
			if err != nil {
				return err
			}
			if d == len(n.Domains) {
				n.Domains = append(n.Domains, sched.Domain{ID: d, Socket: d})
			}
			switch key {
			case "cores":
				n.Domains[d].Cores = coordinator.Cores(v)
			case "socket":
				n.Domains[d].Socket = int(v)
			case "memory":
				n.Domains[d].Memory = coordinator.Bytes(v)
			default:
				return fmt.Errorf("domains have no %q", key)
			}
		}
		return nil
	})
}

func numbers(text string) ([]int, error) {
	var list []int
	for _, word := range strings.Split(text, ",") {
		v, err := strconv.Atoi(word)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, nil
}

// work adds something that runs or that asks.
func (st *story) work(verb, id string, words []string) error {
	r := sched.Request{
		ID: coordinator.AllocationID(id), Workflow: coordinator.WorkflowID("of-" + id), Class: coordinator.ClassOnDemand,
		Submitted: st.s.Now, Nodes: 1, PreemptionsLeft: -1, Resources: coordinator.Resources{Devices: map[string]uint32{}, Tokens: map[string]uint32{}},
	}
	if verb == "ask" {
		err := fields(words, func(key, value string) error { return st.requestField(&r, key, value) })
		if !r.Unrestricted && r.Admissible == nil {
			for _, d := range st.s.Definitions {
				r.Admissible = append(r.Admissible, d.ID)
			}
		}
		st.s.Requests = append(st.s.Requests, r)
		return err
	}
	p := sched.Placement{}
	var started time.Time
	err := fields(words, func(key, value string) error {
		switch key {
		case "started":
			d, err := time.ParseDuration(value)
			started = st.s.Now.Add(-d)
			return err
		case "on":
			for _, n := range strings.Split(value, ",") {
				p.Nodes = append(p.Nodes, coordinator.NodeID(n))
			}
		case "ending":
			p.Ending = true
		case "devices":
			devices, err := numbers(value)
			if len(p.Nodes) == 0 {
				return fmt.Errorf("it stands after on=")
			}
			p.Shares = []sched.Share{{Node: p.Nodes[0], Devices: devices}}
			return err
		default:
			return st.requestField(&r, key, value)
		}
		return nil
	})
	nodes, shares, ending := p.Nodes, p.Shares, p.Ending
	if started.IsZero() {
		started = r.Submitted
	}
	p = sched.PlacementOf(r, sched.Start{}, started)
	if r.Admissible == nil {
		for _, d := range st.s.Definitions {
			r.Admissible = append(r.Admissible, d.ID)
		}
	}
	st.known[r.ID] = r
	p.Nodes, p.Shares, p.Ending = nodes, shares, ending
	st.s.Placements = append(st.s.Placements, p)
	return err
}

func (st *story) requestField(r *sched.Request, key, value string) (err error) {
	res := &r.Resources
	switch key {
	case "class":
		return r.Class.UnmarshalText([]byte(value))
	case "exclusive":
		return res.Exclusive.UnmarshalText([]byte(value))
	case "affinity":
		return res.Affinity.UnmarshalText([]byte(value))
	case "loose":
		r.Loose = true
	case "workflow":
		r.Workflow = coordinator.WorkflowID(value)
	case "array":
		r.Array = value
	case "priority":
		r.Priority, err = strconv.ParseFloat(value, 64)
	case "walltime":
		r.Walltime, err = time.ParseDuration(value)
	case "ago":
		var d time.Duration
		d, err = time.ParseDuration(value)
		r.Submitted = st.s.Now.Add(-d)
	case "defs":
		r.Admissible = []coordinator.DefinitionID{}
		for _, id := range strings.Split(value, ",") {
			if id != "" {
				r.Admissible = append(r.Admissible, coordinator.DefinitionID(id))
			}
		}
	case "exclude":
		for _, id := range strings.Split(value, ",") {
			r.Exclude = append(r.Exclude, coordinator.NodeID(id))
		}
	case "org":
		r.Organization = coordinator.OrganizationID(value)
	case "reservation":
		r.Reservation = sched.ReservationID(value)
	case "group":
		r.Group = coordinator.GroupID(value)
	case "preempts":
		for _, id := range strings.Split(value, ",") {
			r.Preempts = append(r.Preempts, coordinator.GroupID(id))
		}
	case "preemptible":
		r.Preemptible = true
	case "left":
		r.PreemptionsLeft, err = strconv.Atoi(value)
	case "returned":
		r.Returned = true
	case "unrestricted":
		r.Unrestricted = true
	case "by-thread":
		res.Threads = true
	case "by-core":
		res.ByCore = true
	default:
		return amountField(r, key, value)
	}
	return err
}

func amountField(r *sched.Request, key, value string) error {
	v, err := size(value)
	token, isToken := strings.CutPrefix(key, "token.")
	switch {
	case key == "nodes":
		r.Nodes = uint32(v)
	case key == "attempt":
		r.Attempt = uint32(v)
	case key == "sockets":
		r.Resources.Sockets = uint32(v)
	case key == "cores":
		r.Resources.Cores = coordinator.Cores(v)
	case key == "memory":
		r.Resources.Memory = coordinator.Bytes(v)
	case isToken:
		r.Resources.Tokens[token] = uint32(v)
	default:
		r.Resources.Devices[key] = uint32(v)
	}
	return err
}

// change ends work or changes nodes.
func (st *story) change(verb string, ids []string) error {
	for _, id := range ids {
		node := slices.IndexFunc(st.s.Nodes, func(n sched.Node) bool { return string(n.ID) == id })
		run := slices.IndexFunc(st.s.Placements, func(p sched.Placement) bool { return string(p.ID) == id })
		ask := slices.IndexFunc(st.s.Requests, func(r sched.Request) bool { return string(r.ID) == id })
		switch {
		case verb == "end" && run >= 0:
			st.s.Placements = slices.Delete(st.s.Placements, run, run+1)
		case verb == "return" && run >= 0:
			r := st.known[coordinator.AllocationID(id)]
			r.Returned = true
			if r.PreemptionsLeft > 0 {
				r.PreemptionsLeft--
			}
			st.s.Placements = slices.Delete(st.s.Placements, run, run+1)
			st.s.Requests = append(st.s.Requests, r)
		case verb == "stop" && run >= 0:
			st.s.Placements[run].Ending = true
		case verb == "cancel" && ask >= 0:
			st.s.Requests = slices.Delete(st.s.Requests, ask, ask+1)
		case verb == "drain" && node >= 0:
			st.s.Nodes[node].Schedulable, st.s.Nodes[node].Draining, st.s.Nodes[node].Why = false, true, "draining"
		case verb == "cordon" && node >= 0:
			st.s.Nodes[node].Schedulable, st.s.Nodes[node].Why = false, "cordoned"
		case verb == "resume" && node >= 0:
			st.s.Nodes[node].Schedulable, st.s.Nodes[node].Draining, st.s.Nodes[node].Why = true, false, ""
		case verb == "vanish" && node >= 0:
			st.s.Nodes = slices.Delete(st.s.Nodes, node, node+1)
		default:
			return fmt.Errorf("nothing to %s is called %q", verb, id)
		}
	}
	return nil
}
