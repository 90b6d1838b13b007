// Package fleet holds a configuration against known machines: who belongs where, what overlaps or differs,
// what a change would do, and which definitions a fleet suggests. It takes values and gives values; who
// reads machines and who sets configurations is elsewhere.
package fleet

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"substrate/coordinator"
	"substrate/coordinator/config"
	"substrate/expr"
	"substrate/hwinfo"
)

// Node is one machine.
type Node struct {
	ID         coordinator.NodeID
	Facts      hwinfo.Facts
	Known      bool                     // a report is there
	Definition coordinator.DefinitionID // where it belongs now, "" nowhere
	// Capacity and Keys are what jobs may use there and the annotations that its report gives; only Try reads them.
	Capacity *coordinator.Hardware // nil is unknown
	Keys     map[string]string
}

// Judgement is what every condition of a configuration says of every node.
type Judgement struct {
	Config *config.Checked
	Nodes  []Node // by id

	order      []coordinator.DefinitionID // static ones, in file order
	conditions []*expr.Condition
	verdicts   []verdict // one for each of Nodes
	envs       []*expr.NodeEnv
	models     map[coordinator.DefinitionID]int // the node that the others of a definition are compared with
	differs    []string                         // from the model, in words
}

// verdict holds places in Judgement.order, ascending.
type verdict struct {
	matched   []int32
	uncertain []int32 // unknown, or failed at run time
}

// kind is a group of nodes that differ in nothing a condition can see but their names.
type kind struct {
	verdict
	open []int32 // conditions that the names decide
	env  *expr.NodeEnv
}

// Judge evaluates the static conditions. Those that the hardware alone decides are evaluated once for each
// kind of machine. It ends early with the context's error.
func Judge(ctx context.Context, c *config.Checked, nodes []Node) (*Judgement, error) {
	j := &Judgement{Config: c, Nodes: slices.Clone(nodes)}
	slices.SortFunc(j.Nodes, func(a, b Node) int { return cmp.Compare(a.ID, b.ID) })
	var named []bool // the condition reads the node's names
	for i := range c.Config.Definitions {
		d := &c.Config.Definitions[i]
		if condition := c.Conditions[d.ID]; condition != nil {
			names := condition.Names()
			j.order, j.conditions = append(j.order, d.ID), append(j.conditions, condition)
			named = append(named, slices.Contains(names, "hostname()") || slices.Contains(names, "fqdn()"))
		}
	}
	keys := make([][sha256.Size]byte, len(j.Nodes))
	parallel(ctx, len(j.Nodes), func(i int) { keys[i] = kindKey(j.Nodes[i]) })
	kinds := map[[sha256.Size]byte]*kind{}
	var list []*kind
	of := make([]*kind, len(j.Nodes))
	for i, n := range j.Nodes {
		if kinds[keys[i]] == nil {
			facts := n.Facts
			facts.Hostname, facts.FQDN = "", ""
			kinds[keys[i]] = &kind{env: expr.NewNodeEnv(facts)}
			list = append(list, kinds[keys[i]])
		}
		of[i] = kinds[keys[i]]
	}
	parallel(ctx, len(list), func(i int) { list[i].judge(j.conditions, named) })
	j.verdicts = make([]verdict, len(j.Nodes))
	j.envs = make([]*expr.NodeEnv, len(j.Nodes))
	parallel(ctx, len(j.Nodes), func(i int) { j.judge(i, of[i]) })
	j.compare(ctx)
	return j, ctx.Err()
}

// compare holds the nodes of each definition against the first one by id whose hardware is known, as the
// coordinator does.
func (j *Judgement) compare(ctx context.Context) {
	j.models, j.differs = map[coordinator.DefinitionID]int{}, make([]string, len(j.Nodes))
	for i, n := range j.Nodes {
		if id := j.Assigned(i); id != "" && measured(n.Facts) {
			if _, ok := j.models[id]; !ok {
				j.models[id] = i
			}
		}
	}
	parallel(ctx, len(j.Nodes), func(i int) {
		if model, ok := j.models[j.Assigned(i)]; ok && model != i && measured(j.Nodes[i].Facts) {
			j.differs[i] = strings.Join(hwinfo.Drift(j.Nodes[model].Facts, j.Nodes[i].Facts), "; ")
		}
	})
}

// kindKey identifies all that a condition sees of a node but its names.
func kindKey(n Node) [sha256.Size]byte {
	seen := struct {
		Known, Named, Qualified bool
		CPU                     hwinfo.CPU
		OS                      hwinfo.OSRelease
		Uname                   hwinfo.Uname
		Devices                 []string
		Listed                  bool
	}{n.Known, n.Facts.Hostname != "", n.Facts.FQDN != "", n.Facts.CPU, n.Facts.OSRelease, n.Facts.Uname,
		n.Facts.Modaliases(), n.Facts.PCI != nil}
	text, err := json.Marshal(seen)
	if err != nil {
		text = []byte(n.ID) // infinities from elsewhere: a kind of its own
	}
	return sha256.Sum256(text)
}

// judge settles what needs no names. A condition that is false with its names unknown is true with no name;
// one that is true then may still fail on a name.
func (k *kind) judge(conditions []*expr.Condition, named []bool) {
	for i, c := range conditions {
		switch value := c.Match(k.env); {
		case value == expr.False:
		case named[i]:
			k.open = append(k.open, int32(i))
		case value == expr.True:
			k.matched = append(k.matched, int32(i))
		default:
			k.uncertain = append(k.uncertain, int32(i))
		}
	}
}

func (j *Judgement) judge(i int, k *kind) {
	j.verdicts[i], j.envs[i] = k.verdict, k.env
	if len(k.open) == 0 {
		return
	}
	env := expr.NewNodeEnv(j.Nodes[i].Facts)
	var matched, uncertain []int32
	for _, at := range k.open {
		switch j.conditions[at].Match(env) {
		case expr.True:
			matched = append(matched, at)
		case expr.False:
		default:
			uncertain = append(uncertain, at)
		}
	}
	j.envs[i] = env
	j.verdicts[i] = verdict{merge(k.matched, matched), merge(k.uncertain, uncertain)}
}

// merge joins two ascending lists; the first may be shared and stays as it is.
func merge(shared, own []int32) []int32 {
	if len(own) == 0 {
		return shared
	}
	out := slices.Concat(shared, own)
	slices.Sort(out)
	return out
}

// parallel calls f for 0 to n-1 on all processors and returns when all is done, or the context is.
func parallel(ctx context.Context, n int, f func(int)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), 16, n) {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				f(i)
			}
		})
	}
	wg.Wait()
}

// Assigned is the definition that a node gets, the first true one in file order; "" is none.
func (j *Judgement) Assigned(node int) coordinator.DefinitionID {
	if m := j.verdicts[node].matched; len(m) > 0 {
		return j.order[m[0]]
	}
	return ""
}

// Conflicts are the other definitions that are true on a node.
func (j *Judgement) Conflicts(node int) []coordinator.DefinitionID {
	m := j.verdicts[node].matched
	if len(m) < 2 {
		return nil
	}
	out := make([]coordinator.DefinitionID, 0, len(m)-1)
	for _, at := range m[1:] {
		out = append(out, j.order[at])
	}
	return out
}

// members lists the nodes of each definition, by place in Nodes.
func (j *Judgement) members() map[coordinator.DefinitionID][]int {
	out := map[coordinator.DefinitionID][]int{}
	for i := range j.Nodes {
		if id := j.Assigned(i); id != "" {
			out[id] = append(out[id], i)
		}
	}
	return out
}
