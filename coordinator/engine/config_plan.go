package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/config"
	"substrate/coordinator/config/fleet"
	"substrate/coordinator/grant"
	"substrate/strictyaml"
)

const (
	maxPlannedJobs = 20_000 // with open allocations, of which a plan says whether they keep a place
	maxNamedWork   = 8
	// lintWithin bounds what a set spends on comparing conditions with nodes.
	lintWithin = time.Second
)

// planned is what a plan copies out of the loop.
type planned struct {
	running   *config.Checked
	active    *activeConfig
	nodes     []fleet.Node
	machines  []node
	jobs      []plannedJob
	more      int // jobs that are not looked at
	documents map[coordinator.OrganizationID]grantOf
	first     bool     // no configuration has been set yet
	kinds     []string // that nodes are launched for
}

type grantOf struct {
	doc grant.Document
	err error
}

// plannedJob is a job with its open work.
type plannedJob struct {
	job      *job
	waiting  int
	names    []string // of the first ones that wait
	admitted bool     // some definition admits it now
	held     []held
}

type held struct {
	id         coordinator.AllocationID
	status     coordinator.Status
	definition coordinator.DefinitionID
	nodes      []coordinator.NodeID
	admitted   bool // by the definition that it runs on
}

// PlanConfig says what a configuration would do, and changes nothing. Of each wildcard it lists as many members as asked for, all for a negative number.
func (e *Engine) PlanConfig(ctx context.Context, c Caller, file string, yaml []byte, members int) (*fleet.Plan, error) {
	op := "plan configuration " + file
	if err := c.authorize(auth.PermissionAdminCluster, op, auth.Target{}); err != nil {
		return nil, err
	}
	var p planned
	if err := e.view(ctx, func(s *state) { p.copy(s) }); err != nil {
		return nil, err
	}
	checked, diags := e.parseAsking(ctx, file, yaml, p.running)
	if diags.Err() != nil {
		return nil, &coordinator.Error{Kind: coordinator.ErrInvalid, Op: op, Err: slices.Concat(diags.Errors(), diags.Warnings())}
	}
	j, err := fleet.Judge(ctx, checked, p.nodes)
	if err != nil {
		return nil, coordinator.Errorf(coordinator.ErrUnavailable, op, "%w", err)
	}
	running := p.running
	if p.first {
		running = nil
	}
	plan := fleet.Compare(running, j)
	plan.Wildcards = checked.Wildcards(members)
	if err := p.orphans(ctx, plan, j); err != nil {
		return nil, coordinator.Errorf(coordinator.ErrUnavailable, op, "%w", err)
	}
	if err := e.view(ctx, func(s *state) { diags = append(diags, s.drained(file, checked)...) }); err != nil {
		return nil, err
	}
	plan.Diagnostics = slices.Concat(diags, j.Lints(file), p.ungranted(file, checked))
	plan.Diagnostics.Sort()
	return plan, nil
}

// fleetNodes are the known machines as package fleet wants them.
func (s *state) fleetNodes() []fleet.Node {
	out := make([]fleet.Node, 0, len(s.nodes))
	for _, n := range s.sortedNodes() {
		out = append(out, fleet.Node{ID: n.id, Facts: n.facts, Known: len(n.raw) > 0, Definition: n.record.Definition})
	}
	return out
}

func (p *planned) copy(s *state) {
	p.running, p.active, p.nodes, p.first = s.config.checked, s.config, s.fleetNodes(), len(s.revisions) == 0
	p.kinds = s.kinds
	for _, n := range s.sortedNodes() {
		p.machines = append(p.machines, *n)
	}
	p.documents = map[coordinator.OrganizationID]grantOf{}
	for id, o := range s.orgs {
		doc, err := s.grantDocument(o)
		p.documents[id] = grantOf{doc, err}
	}
	for _, w := range s.openWorkflows() {
		for _, j := range w.jobs {
			if len(p.jobs) == maxPlannedJobs {
				p.more++
				continue
			}
			if x := s.plannedJob(j); x.waiting > 0 || len(x.held) > 0 {
				p.jobs = append(p.jobs, x)
			}
		}
	}
}

func (s *state) openWorkflows() []*submission {
	var out []*submission
	for _, w := range s.workflows {
		if w.open > 0 {
			out = append(out, w)
		}
	}
	slices.SortFunc(out, func(a, b *submission) int { return cmp.Compare(a.id, b.id) })
	return out
}

func (s *state) plannedJob(j *job) plannedJob {
	x := plannedJob{job: j}
	for _, a := range j.allocations {
		switch st := a.record.Status; {
		case st.Holds():
			x.held = append(x.held, held{id: a.id, status: st, definition: a.record.Definition, nodes: a.nodeIDs()})
		case !st.Ended():
			if x.waiting++; len(x.names) < maxNamedWork {
				x.names = append(x.names, string(a.id))
			}
		}
	}
	if x.waiting == 0 && len(x.held) == 0 {
		return x
	}
	adm := s.admit(j)
	x.admitted = len(adm.admissible) > 0 || adm.unrestricted
	for i := range x.held {
		x.held[i].admitted = adm.unrestricted || slices.Contains(adm.admissible, x.held[i].definition)
	}
	return x
}

// orphans looks for work that the planned configuration would leave without a place. It asks the same
// questions as a submission does, of a state in which the plan is carried out.
func (p *planned) orphans(ctx context.Context, plan *fleet.Plan, j *fleet.Judgement) error {
	after := &state{config: activate(j.Config), kinds: p.kinds}
	assigned := make(map[coordinator.NodeID]coordinator.DefinitionID, len(j.Nodes))
	for i, n := range j.Nodes {
		assigned[n.ID] = j.Assigned(i)
	}
	for i := range p.machines {
		n := &p.machines[i]
		if n.record.Definition = assigned[n.id]; n.record.Definition != "" {
			after.config.nodesOf[n.record.Definition] = append(after.config.nodesOf[n.record.Definition], n)
		}
	}
	groups := map[[3]string]*fleet.Orphan{}
	for i := range p.jobs {
		if err := ctx.Err(); err != nil {
			return err
		}
		p.orphansOf(&p.jobs[i], after, assigned, func(definition coordinator.DefinitionID, status, reason string, count int, names ...string) {
			key := [3]string{string(definition), status, reason}
			if groups[key] == nil {
				groups[key] = &fleet.Orphan{Definition: definition, Status: status, Reason: reason}
			}
			g := groups[key]
			g.Count += uint32(count)
			g.Jobs = append(g.Jobs, names[:min(len(names), maxNamedWork-len(g.Jobs))]...)
		})
	}
	list := make([]fleet.Orphan, 0, len(groups))
	for _, g := range groups {
		list = append(list, *g)
	}
	plan.AddOrphans(list)
	if p.more > 0 {
		plan.LeftOut["jobs"] = uint32(p.more)
	}
	return nil
}

func (p *planned) orphansOf(x *plannedJob, after *state, assigned map[coordinator.NodeID]coordinator.DefinitionID,
	tell func(coordinator.DefinitionID, string, string, int, ...string)) {
	owner := p.documents[x.job.workflow.record.Owner.Organization]
	if owner.err == nil && owner.doc.Serial == 0 {
		owner.err = errors.New("the organisation does not exist any more")
	}
	q := after.askWith(x.job, owner.doc, owner.err)
	for _, h := range x.held {
		reason := ""
		if i := slices.IndexFunc(after.config.Definitions, func(d coordinator.Definition) bool { return d.ID == h.definition }); i < 0 {
			reason = "the definition is gone"
		} else if o := q.outcome(&after.config.Definitions[i]); h.admitted && !o.Admissible {
			reason = fmt.Sprintf("refused by %s: %s", o.RefusedBy, o.Reason)
		}
		for _, id := range h.nodes {
			if to := assigned[id]; to != h.definition && reason == "" {
				reason = fmt.Sprintf("node %s gets definition %s", id, orNone(to))
			}
		}
		if reason != "" {
			tell(h.definition, h.status.String(), reason, 1, string(h.id))
		}
	}
	if x.waiting == 0 || !x.admitted {
		return
	}
	if a := q.admission(); len(a.admissible) == 0 && !a.unrestricted {
		reason := "no definition is left"
		if len(after.config.byCost) > 0 {
			reason = "fits no definition: " + outcomesText(q)
		}
		tell("", "waiting", reason, x.waiting, x.names...)
	}
}

// ungranted warns of definitions that no organisation may use. The first configuration is granted when it is set.
func (p *planned) ungranted(file string, checked *config.Checked) (out strictyaml.Diagnostics) {
	if p.first || len(p.documents) == 0 || slices.Contains(checked.Lints.Silence, config.LintUngranted) {
		return nil
	}
	entries := grant.Entries(checked.Config.Definitions)
	lacking := map[string]int{}
	for _, g := range p.documents {
		missing := entries
		if g.err == nil {
			missing = grant.Ungranted(g.doc, entries)
		}
		for _, e := range missing {
			lacking[e.ID]++
		}
	}
	told := map[string]bool{}
	for i := range checked.Config.Definitions {
		d := &checked.Config.Definitions[i]
		if lacking[d.Configured] < len(p.documents) || told[d.Configured] {
			continue
		}
		told[d.Configured] = true
		out = append(out, fleet.Finding(file, checked.Places[d.ID], config.LintUngranted,
			fmt.Sprintf("no organisation's grant names %s, so nobody may use it", d.Configured),
			"set with --append-grants, or afterwards `substrate grant append "+d.Configured+"`"))
	}
	return out
}

// fleetLints compares conditions with the known nodes, as long as that takes no time that a set would feel.
func (e *Engine) fleetLints(ctx context.Context, file string, checked *config.Checked, nodes []fleet.Node) strictyaml.Diagnostics {
	ctx, cancel := context.WithTimeout(ctx, lintWithin)
	defer cancel()
	j, err := fleet.Judge(ctx, checked, nodes)
	if err != nil {
		return strictyaml.Diagnostics{{Severity: strictyaml.SeverityNotice, Code: "fleet-not-compared", File: file,
			Message: "the conditions were not compared with the known nodes: that would take too long here", Hint: "see `substrate cluster config plan`"}}
	}
	return j.Lints(file)
}

// SuggestConfig drafts definitions for the nodes that none matches.
func (e *Engine) SuggestConfig(ctx context.Context, c Caller) (*fleet.Suggestion, error) {
	const op = "suggest configuration"
	if err := c.authorize(auth.PermissionAdminCluster, op, auth.Target{}); err != nil {
		return nil, err
	}
	var nodes []fleet.Node
	var taken []coordinator.DefinitionID
	if err := e.view(ctx, func(s *state) {
		nodes = s.fleetNodes()
		for i := range s.config.Definitions {
			taken = append(taken, s.config.Definitions[i].ID)
		}
	}); err != nil {
		return nil, err
	}
	return fleet.Suggest(nodes, taken), nil
}
