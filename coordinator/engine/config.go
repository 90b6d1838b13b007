package engine

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/catalogue"
	"substrate/coordinator/config"
	"substrate/coordinator/config/fleet"
	"substrate/coordinator/grant"
	"substrate/coordinator/sched"
	"substrate/coordinator/spec"
	"substrate/coordinator/store"
	"substrate/expr"
	"substrate/strictyaml"
)

// SetConfig is one request to replace the configuration.
type SetConfig struct {
	YAML         []byte
	File         string                // name for messages
	IfRevision   *coordinator.Revision // nil: whatever runs now
	AppendGrants bool
}

// SetConfigResult tells what a set did. Diagnostics hold warnings even when it succeeded.
type SetConfigResult struct {
	Revision    ConfigRevision
	Unchanged   bool
	Diagnostics strictyaml.Diagnostics
	Ungranted   []Ungranted
}

// Ungranted names organisations (slugs) whose grant does not name a configured definition.
type Ungranted struct {
	Definition    string
	Organizations []string
	All           bool // there are no others
}

// activeConfig is the running configuration with everything worked out once.
type activeConfig struct {
	*coordinator.Config
	checked     *config.Checked
	policies    map[coordinator.DefinitionID]*expr.Policy
	priority    *expr.Priority
	annotations map[coordinator.DefinitionID]map[string]string // nodeAnnotations under the definition's own
	order       []coordinator.DefinitionID                     // static ones, in file order
	byCost      []*coordinator.Definition                      // cheapest first, then file order (rule 6)
	candidates  []sched.Definition
	types       map[coordinator.DefinitionID]catalogue.Key         // of those that are launched
	exclusive   map[coordinator.DefinitionID]coordinator.Exclusive // where it is not none
	nodesOf     map[coordinator.DefinitionID][]*node               // by node id
	models      map[coordinator.DefinitionID]model                 // what their nodes are compared with
	forNodes    *NodeConfiguration
	shared      map[*expr.Policy]int                       // numbers of the policies that do not read the definition
	index       map[coordinator.OrganizationID]*namedIndex // what grants let organisations use

	priorityWarned bool
}

// activate works out of a checked configuration what placement needs.
func activate(checked *config.Checked) *activeConfig {
	cfg := &checked.Config
	a := &activeConfig{
		Config:      cfg,
		checked:     checked,
		policies:    checked.Policies,
		priority:    checked.Priority,
		annotations: map[coordinator.DefinitionID]map[string]string{},
		nodesOf:     map[coordinator.DefinitionID][]*node{},
		exclusive:   map[coordinator.DefinitionID]coordinator.Exclusive{},
		models:      map[coordinator.DefinitionID]model{},
		forNodes:    &NodeConfiguration{},
		shared:      map[*expr.Policy]int{},
		index:       map[coordinator.OrganizationID]*namedIndex{},
		types:       map[coordinator.DefinitionID]catalogue.Key{},
	}
	for _, p := range checked.Policies {
		if _, ok := a.shared[p]; !ok && !slices.ContainsFunc(p.Names(), func(n string) bool { return strings.HasPrefix(n, "definition") }) {
			a.shared[p] = len(a.shared) + 1
		}
	}
	for i := range cfg.Definitions {
		d := &cfg.Definitions[i]
		a.annotations[d.ID] = cfg.DefinitionAnnotations(d)
		if d.Kind == "static" {
			a.order = append(a.order, d.ID)
			a.forNodes.Definitions = append(a.forNodes.Definitions, NodeDefinition{ID: d.ID, Condition: d.Condition})
		}
		if d.Kind != spec.KindStatic {
			a.types[d.ID] = typeKey(d)
		}
		if d.Exclusive != coordinator.ExclusiveNone {
			a.exclusive[d.ID] = d.Exclusive
		}
		a.candidates = append(a.candidates, sched.Definition{ID: d.ID, Order: i, CostPerHour: orInfinite(d.CostPerHour), Exclusive: d.Exclusive})
	}
	a.sortByCost()
	return a
}

func (a *activeConfig) sortByCost() {
	order := slices.Clone(a.candidates)
	slices.SortStableFunc(order, func(x, y sched.Definition) int { return cmp.Compare(x.CostPerHour, y.CostPerHour) })
	a.byCost = a.byCost[:0]
	for i := range order {
		a.byCost = append(a.byCost, &a.Definitions[order[i].Order])
	}
}

// parse checks a configuration file. previous lends its compiled expressions.
func (e *Engine) parse(file string, yaml []byte, previous *config.Checked) (*config.Checked, strictyaml.Diagnostics) {
	return e.parseWith(file, yaml, config.Options{Catalogues: e.catalogues.Load(), Previous: previous})
}

func (e *Engine) parseWith(file string, yaml []byte, o config.Options) (*config.Checked, strictyaml.Diagnostics) {
	o.Federate = e.opt.Federate
	return config.Parse(file, yaml, o)
}

// orInfinite puts unknown costs last.
func orInfinite(cost *float64) float64 {
	if cost == nil {
		return math.Inf(1)
	}
	return *cost
}

// regroup files nodes under their definitions and compares them there; what it finds is no news.
func (a *activeConfig) regroup(nodes map[coordinator.NodeID]*node) {
	clear(a.nodesOf)
	for _, n := range nodes {
		if n.record.Definition != "" {
			a.nodesOf[n.record.Definition] = append(a.nodesOf[n.record.Definition], n)
		}
	}
	for _, list := range a.nodesOf {
		slices.SortFunc(list, func(x, y *node) int { return cmp.Compare(x.id, y.id) })
	}
	for _, n := range nodes {
		if n.record.Definition == "" {
			n.drift = ""
		}
	}
	for id := range a.nodesOf {
		a.rejudge(id, a.modelOf(id))
	}
}

// move files one node under its definition instead of an earlier one.
func (a *activeConfig) move(n *node, from coordinator.DefinitionID) {
	a.nodesOf[from] = slices.DeleteFunc(a.nodesOf[from], func(x *node) bool { return x == n })
	if to := n.record.Definition; to != "" {
		list := a.nodesOf[to]
		i, _ := slices.BinarySearchFunc(list, n, func(x, y *node) int { return cmp.Compare(x.id, y.id) })
		a.nodesOf[to] = slices.Insert(list, i, n)
	}
}

// SetConfig makes a new revision of the given bytes, or refuses them and leaves the running one alone.
func (e *Engine) SetConfig(ctx context.Context, c Caller, in SetConfig) (res SetConfigResult, err error) {
	op := "set configuration " + in.File
	if err := c.authorize(auth.PermissionAdminCluster, op, auth.Target{}); err != nil {
		return res, err
	}
	for range acceptTries {
		if res, err = e.setConfig(ctx, c, in, op); err != errExpandedAnew {
			return res, err
		}
	}
	return res, coordinator.Errorf(coordinator.ErrUnavailable, op, "catalogues change all the time")
}

// errExpandedAnew: while a configuration was read, what its patterns stand for has changed.
var errExpandedAnew = errors.New("a catalogue has changed")

func (e *Engine) setConfig(ctx context.Context, c Caller, in SetConfig, op string) (res SetConfigResult, err error) {
	var previous *config.Checked
	var nodes []fleet.Node
	var generation uint64
	if err := e.view(ctx, func(s *state) { previous, nodes, generation = s.config.checked, s.fleetNodes(), s.generation }); err != nil {
		return res, err
	}
	checked, diags := e.parseAsking(ctx, in.File, in.YAML, previous)
	if diags.Err() != nil {
		return res, &coordinator.Error{Kind: coordinator.ErrInvalid, Op: op, Err: slices.Concat(diags.Errors(), diags.Warnings())}
	}
	res.Diagnostics = slices.Concat(diags, e.fleetLints(ctx, in.File, checked, nodes))
	res.Diagnostics.Sort()
	active := activate(checked)
	digest := sha256.Sum256(in.YAML)
	sum := hex.EncodeToString(digest[:])
	err = e.doView(ctx, func(t *tx) error {
		s := t.state
		if s.generation != generation {
			return errExpandedAnew
		}
		if in.IfRevision != nil && *in.IfRevision != s.config.Revision {
			return coordinator.Errorf(coordinator.ErrConflict, op, "revision %d runs, not %d", s.config.Revision, *in.IfRevision).
				WithHint("look at the difference with `substrate cluster config get`, then set again")
		}
		if n := len(s.revisions); n > 0 && s.revisions[n-1].SHA256 == sum {
			res.Revision, res.Unchanged = s.revisions[n-1], true
			if in.AppendGrants {
				return t.grantAll(s.config)
			}
			return nil
		}
		rev := ConfigRevision{Revision: s.config.Revision + 1, SetAt: t.now, SetBy: c.Name, SHA256: sum, Bytes: len(in.YAML)}
		if err := t.setConfig(active, rev, in, len(s.revisions) == 0); err != nil {
			return err
		}
		res.Revision = rev
		return nil
	}, func(s *state) { res.Ungranted = s.ungranted() })
	return res, err
}

// grantAll appends a configuration's definitions to every organisation's grant.
func (t *tx) grantAll(cfg *activeConfig) error {
	signed, err := t.state.signAppends(t.state.sortedOrganizations(), grant.Entries(cfg.Definitions), t.now)
	if err != nil {
		return err
	}
	for _, g := range signed {
		t.grant(g, "grant-appended", "with the configuration")
	}
	return nil
}

// setConfig writes and activates a revision. The first configuration of a cluster is granted to the
// organisations that exist; later definitions only where AppendGrants asks for it. Grants are written before
// the configuration: cut short between them, they name definitions that are not there yet, which is harmless.
func (t *tx) setConfig(active *activeConfig, rev ConfigRevision, in SetConfig, first bool) error {
	s := t.state
	if first || in.AppendGrants {
		if err := t.grantAll(active); err != nil {
			return err
		}
	}
	old := s.config
	s.revisions = append(s.revisions, rev)
	t.put(configKey(rev.Revision), rev)
	t.putBytes(yamlKey(rev.Revision), in.YAML)
	t.group()
	t.event(Event{Kind: "config-set", Subject: "revision " + strconv.FormatUint(uint64(rev.Revision), 10),
		Message:  fmt.Sprintf("by %s", rev.SetBy),
		Metadata: map[string]string{"sha256": rev.SHA256, "before": fmt.Sprint(old.Revision)}})
	t.use(active, rev.Revision)
	t.autoDiscover(nil)
	t.then(func(int64) {
		for _, n := range s.nodes {
			if n.session != nil {
				n.session.push(ToNode{Configuration: active.forNodes})
			}
		}
	})
	return nil
}

// use makes definitions the ones that count from now on. Nodes keep theirs until they have answered with new conditions, unless it is gone.
func (t *tx) use(active *activeConfig, revision coordinator.Revision) {
	s := t.state
	active.Revision, active.forNodes.Revision = revision, revision
	s.config = active
	for _, n := range s.sortedNodes() {
		launched := n.record.Launch != "" && n.record.Bound == n.record.Definition && s.definition(n.record.Bound) != nil
		if n.record.Definition != "" && !slices.Contains(active.order, n.record.Definition) && !launched {
			n.record.Definition = ""
			t.put(prefixNode+string(n.id), n.record)
			t.group()
		}
	}
	active.regroup(s.nodes)
	t.leaveAll()
	s.admission++
	s.changedAll()
	s.reprice()
	t.forgetUnjoined()
	t.then(func(int64) { t.engine.provisioners.configured.Add(1) })
	t.wakeProvisioners()
}

// ValidateConfig checks bytes without setting them.
func (e *Engine) ValidateConfig(_ context.Context, file string, yaml []byte) strictyaml.Diagnostics {
	_, diags := e.parse(file, yaml, nil)
	return diags
}

// Config returns the bytes of a revision as they were given; nil is the running one.
func (e *Engine) Config(ctx context.Context, c Caller, rev *coordinator.Revision) (meta ConfigRevision, yaml []byte, err error) {
	const op = "get configuration"
	if err := c.authorize(auth.PermissionAdminCluster, op, auth.Target{}); err != nil {
		return meta, nil, err
	}
	found := false
	verr := e.view(ctx, func(s *state) {
		for i := len(s.revisions) - 1; i >= 0 && !found; i-- {
			if rev == nil || s.revisions[i].Revision == *rev {
				meta, found = s.revisions[i], true
			}
		}
	})
	switch {
	case verr != nil:
		return meta, nil, verr
	case !found && rev == nil:
		return meta, nil, coordinator.Errorf(coordinator.ErrNotFound, op, "none is set yet").
			WithHint("set one with `substrate cluster config set FILE`")
	case !found:
		return meta, nil, coordinator.Errorf(coordinator.ErrNotFound, op, "there is no revision %d", *rev).
			WithHint("list them with `substrate cluster config get --list-revisions`")
	}
	entry, err := e.opt.Store.Get(ctx, yamlKey(meta.Revision))
	if err != nil {
		return meta, nil, coordinator.Errorf(storeKind(err), op, "revision %d: %w", meta.Revision, err)
	}
	return meta, entry.Value, nil
}

func storeKind(err error) coordinator.ErrorKind {
	if errors.Is(err, store.ErrUnknown) || errors.Is(err, store.ErrClosed) {
		return coordinator.ErrUnavailable
	}
	return coordinator.ErrInternal
}

// ConfigRevisions lists revisions, newest first.
func (e *Engine) ConfigRevisions(ctx context.Context, c Caller, p Page) (list []ConfigRevision, next string, err error) {
	if err := c.authorize(auth.PermissionAdminCluster, "list configuration revisions", auth.Target{}); err != nil {
		return nil, "", err
	}
	err = e.view(ctx, func(s *state) {
		newest := slices.Clone(s.revisions)
		slices.Reverse(newest)
		list, next = page(newest, p,
			func(r ConfigRevision) string { return strconv.FormatUint(uint64(r.Revision), 10) },
			func(r ConfigRevision, token string) bool {
				last, err := strconv.ParseUint(token, 10, 64)
				return err != nil || uint64(r.Revision) >= last
			})
	})
	return list, next, err
}
