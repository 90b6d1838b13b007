package agent

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"substrate/expr"
	"substrate/hwinfo"
	"substrate/proto"
	"substrate/proto/agentv1"
)

const maxExplained = 256 // definitions of one report whose parts are told

// node is what this node is, and what the newest configuration says about it.
type node struct {
	root  string
	share *hwinfo.Share // of the machine; nil: all of it

	wake chan struct{} // there are news for the stream
	work chan struct{} // there is a configuration to evaluate

	reading sync.Mutex // held while the hardware is read, so that the newest reading is the one that stays

	mu        sync.Mutex
	asked     asked // about GPUs
	wanted    *agentv1.Configuration
	env       *expr.NodeEnv
	threads   int // per core, at least 1
	hardware  *agentv1.HardwareReport
	results   *agentv1.ConditionResults
	evaluated uint64
	limits    []string // what the runtime may not do here
	reports   nodeReports
	// devices are those that work can use; driverless is how many GPUs it cannot for want of a driver.
	devices    map[string]uint32
	driverless int
	reclaim    *agentv1.Reclaim // nil: nobody has said anything of it
	// final: nothing more will be reported, and notes is what there is to say of that.
	final bool
	notes []hwinfo.Warning
}

// nodeReports counts the reports made; a stream compares with what it has sent.
type nodeReports struct{ hardware, conditions, reclaim uint64 }

func newNode(root string, share *hwinfo.Share) *node {
	return &node{root: root, share: share, wake: make(chan struct{}, 1), work: make(chan struct{}, 1), threads: 1}
}

// read reads the hardware and makes a report of it if it is another one than before.
func (n *node) read() *expr.NodeEnv {
	n.reading.Lock()
	defer n.reading.Unlock()
	n.mu.Lock()
	told := n.asked
	n.mu.Unlock()
	facts, warnings := hwinfo.ReadWith(n.root, told.answers)
	if n.share != nil {
		var more []hwinfo.Warning
		facts, more = facts.Within(*n.share)
		warnings = append(warnings, more...)
	}
	warnings = append(warnings, told.warnings...)
	report, err := proto.HardwareReport(facts, warnings)
	if err != nil {
		// What is too large to tell is still true: conditions are evaluated, the report says why.
		report.Warnings = append(report.Warnings, &agentv1.Warning{Source: ".", Message: err.Error()})
	}
	env := expr.NewNodeEnv(facts)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.env, n.threads = env, 1
	n.devices, n.driverless = facts.Devices(), 0
	for _, c := range facts.CountGPUs() {
		n.driverless += c.NoDriver
	}
	if t := facts.CPU.ThreadsPerCore; t != nil && *t > 1 {
		n.threads = *t
	}
	same := func(a, b *agentv1.Warning) bool { return a.Source == b.Source && a.Message == b.Message }
	if n.hardware == nil || string(n.hardware.Digest) != string(report.Digest) || !slices.EqualFunc(n.hardware.Warnings, report.Warnings, same) {
		n.reports.hardware++
		poke(n.wake)
	}
	n.hardware = report
	return env
}

// limited takes the runtime's warnings; new ones make a new report.
func (n *node) limited(warnings []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if slices.Equal(n.limits, warnings) {
		return
	}
	n.limits = slices.Clone(warnings)
	n.reports.hardware++
	poke(n.wake)
}

func (n *node) revision() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.evaluated
}

// logicalCPUs is what a request for cores, or for threads, may use.
func (n *node) logicalCPUs(cores uint32, threads bool) float64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	if threads {
		return float64(cores)
	}
	return float64(cores) * float64(n.threads)
}

// configure hands a configuration to evaluate; only the newest counts.
func (n *node) configure(c *agentv1.Configuration) {
	n.mu.Lock()
	n.wanted = c
	n.mu.Unlock()
	poke(n.work)
}

// evaluate evaluates configurations until ctx ends, on freshly read hardware. Compiled conditions are
// kept from one revision to the next.
func (n *node) evaluate(ctx context.Context) {
	var cache *expr.Cache
	for {
		select {
		case <-n.work:
		case <-ctx.Done():
			return
		}
		n.mu.Lock()
		c := n.wanted
		n.mu.Unlock()
		env := n.read()
		cache = expr.NewCache(cache)
		results := evaluate(c, cache, env)
		cache.Settle()
		n.mu.Lock()
		n.results, n.evaluated = results, c.GetRevision()
		n.reports.conditions++
		n.mu.Unlock()
		poke(n.wake)
	}
}

// evaluate answers for every definition, in file order. A condition that this build cannot compile is
// an error of that definition alone.
func evaluate(c *agentv1.Configuration, cache *expr.Cache, env *expr.NodeEnv) *agentv1.ConditionResults {
	out := &agentv1.ConditionResults{Revision: c.GetRevision(), Results: make([]*agentv1.ConditionResult, 0, len(c.GetDefinitions()))}
	explained := 0
	for _, d := range c.GetDefinitions() {
		r := &agentv1.ConditionResult{Definition: d.GetId()}
		out.Results = append(out.Results, r)
		condition, err := cache.Condition(d.GetCondition())
		if err != nil {
			r.Value, r.Error = expr.Failed.String(), err.Error()
			continue
		}
		value := condition.Match(env)
		r.Value = value.String()
		if value == expr.True || explained == maxExplained {
			continue
		}
		explained++
		why := condition.Eval(env)
		r.Error = why.Err
		for _, p := range why.Parts {
			r.Parts = append(r.Parts, &agentv1.ConditionPart{Source: p.Source, Value: p.Value.String(), Seen: p.Seen})
		}
	}
	return out
}

// unsent is where a new stream begins: it hears of the hardware as it is, and of conditions once it
// has brought its configuration.
func (n *node) unsent() nodeReports {
	n.mu.Lock()
	defer n.mu.Unlock()
	return nodeReports{conditions: n.reports.conditions}
}

// news are the reports that a stream has not sent yet; sent is what it has.
func (n *node) news(sent *nodeReports) []*agentv1.FromAgent {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []*agentv1.FromAgent
	if n.hardware != nil && sent.hardware != n.reports.hardware {
		h := &agentv1.HardwareReport{Digest: n.hardware.Digest, FactsJson: n.hardware.FactsJson, Final: n.final}
		h.Warnings = append(h.Warnings, n.hardware.Warnings...)
		for _, w := range n.notes {
			h.Warnings = append(h.Warnings, &agentv1.Warning{Source: w.Source, Message: w.Message})
		}
		for _, w := range n.limits {
			h.Warnings = append(h.Warnings, &agentv1.Warning{Source: "runtime", Message: w})
		}
		out = append(out, &agentv1.FromAgent{Message: &agentv1.FromAgent_Hardware{Hardware: h}})
	}
	if n.results != nil && sent.conditions != n.reports.conditions {
		out = append(out, &agentv1.FromAgent{Message: &agentv1.FromAgent_Conditions{Conditions: n.results}})
	}
	if n.reclaim != nil && sent.reclaim != n.reports.reclaim {
		out = append(out, &agentv1.FromAgent{Message: &agentv1.FromAgent_Reclaim{Reclaim: n.reclaim}})
	}
	*sent = n.reports
	return out
}

// taken notes when the machine is taken back, zero for not any more.
func (n *node) taken(at time.Time, text string) {
	m := &agentv1.Reclaim{Text: text}
	if !at.IsZero() {
		m.At = timestamppb.New(at)
	}
	n.mu.Lock()
	n.reclaim = m
	n.reports.reclaim++
	n.mu.Unlock()
	poke(n.wake)
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
