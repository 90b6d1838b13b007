package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/catalogue"
	"substrate/coordinator/config"
	"substrate/coordinator/grant"
	"substrate/coordinator/inventory"
	"substrate/coordinator/provision"
	"substrate/coordinator/sched"
	"substrate/coordinator/store"
)

const (
	schemaVersion = 1
	firstAdmin    = "admin"
	firstOrg      = "default"
	verifiedCache = 4096 // verified grants kept in memory
)

// defaultYAML stands in until a configuration is set.
const defaultYAML = "definitions: []\n"

// reload replaces the working state by what the store holds.
func (e *Engine) reload(ctx context.Context) error {
	s, err := e.load(ctx)
	if err != nil {
		return err
	}
	e.state = s
	if s.cluster.ID == "" {
		if err := e.foundCluster(ctx); err != nil {
			return err
		}
	}
	if err := e.noteLifetime(ctx); err != nil {
		return err
	}
	e.credentials.reset(s)
	e.peers.reset(s)
	return nil
}

func (e *Engine) newState() (*state, error) {
	checked, diags := e.parse("built-in configuration", []byte(defaultYAML), nil)
	if err := diags.Err(); err != nil {
		return nil, err
	}
	active := activate(checked)
	return &state{
		config: active, verified: grant.NewCache(verifiedCache),
		directory: newDirectory(), tokens: map[string]auth.UserToken{}, joinTokens: map[string]auth.JoinToken{},
		revoked:   map[coordinator.NodeID]auth.Revocation{},
		workflows: map[coordinator.WorkflowID]*submission{}, idempotency: map[string]coordinator.WorkflowID{},
		queued: map[coordinator.AllocationID]*allocation{}, active: map[coordinator.AllocationID]*allocation{},
		deferred: map[coordinator.AllocationID]*allocation{}, nodes: map[coordinator.NodeID]*node{},
		absent: map[coordinator.NodeID]*node{}, yielding: map[coordinator.AllocationID]*allocation{}, holds: map[coordinator.AllocationID]*holdRecord{}, dirty: true, now: e.opt.Now,
		reservations: map[sched.ReservationID]*reservation{}, reservationKeys: map[string]sched.ReservationID{},
		windows: map[string]*window{}, windowKeys: map[string]string{},
		launches: map[provision.LaunchID]*launch{}, offers: map[coordinator.DefinitionID]*offer{}, reports: map[catalogue.Key][]*catalogue.Report{}, discoveries: map[string]*discoveryRecord{},
		unjoined: map[coordinator.DefinitionID]*unjoinedRecord{},
		provided: map[string]*catalogue.Provided{}, catalogueTrouble: map[string]catalogueTrouble{},
		federation: newFederationState(), kinds: e.opt.Provisioners.Kinds,
	}, nil
}

// load reads the whole state. Order matters: owners before workflows, workflows before allocations.
func (e *Engine) load(ctx context.Context) (*state, error) {
	s, err := e.newState()
	if err != nil {
		return nil, err
	}
	if err := e.getJSON(ctx, keyCluster, &s.cluster); err != nil || s.cluster.ID == "" {
		return s, err
	}
	if s.cluster.Federate != e.opt.Federate {
		return nil, fmt.Errorf("cannot change the role of a cluster: this one was founded %s", role(s.cluster.Federate))
	}
	if s.cluster.Schema > schemaVersion {
		return nil, fmt.Errorf("cannot read the state: it was written by a newer version (schema %d, this one knows %d)", s.cluster.Schema, schemaVersion)
	}
	steps := []func(context.Context, *state) error{
		e.loadSecrets, e.loadOwners, e.loadGrants, e.loadCatalogues, e.loadConfig, e.loadReports, e.loadNodes, e.loadLaunches, e.loadWorkflows, e.loadAllocations, e.loadHolds, e.loadReservations, e.loadMaintenance, e.loadEvents, e.loadFederation,
	}
	for _, step := range steps {
		if err := step(ctx, s); err != nil {
			return nil, fmt.Errorf("cannot load the state: %w", err)
		}
	}
	s.config.regroup(s.nodes)
	s.fence = e.newest
	return s, nil
}

// scan visits records and remembers the newest revision: the fence of this life, before its first write.
func (e *Engine) scan(ctx context.Context, prefix string, visit func(store.Entry) error) error {
	return walk(ctx, e.opt.Store, prefix, loadPage, func(entry store.Entry) error {
		e.newest = max(e.newest, uint64(entry.Revision))
		return visit(entry)
	})
}

const loadPage = 1000

func (e *Engine) getJSON(ctx context.Context, key string, into any) error {
	entry, err := e.opt.Store.Get(ctx, key)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot read %s: %w", key, err)
	}
	e.newest = max(e.newest, uint64(entry.Revision))
	return decode(entry, into)
}

func decode(entry store.Entry, into any) error {
	if err := json.Unmarshal(entry.Value, into); err != nil {
		return fmt.Errorf("cannot read record %s: %w", entry.Key, err)
	}
	return nil
}

// each decodes every record under a prefix.
func each[T any](ctx context.Context, e *Engine, prefix string, visit func(id string, v T) error) error {
	return e.scan(ctx, prefix, func(entry store.Entry) error {
		var v T
		if err := decode(entry, &v); err != nil {
			return err
		}
		return visit(strings.TrimPrefix(entry.Key, prefix), v)
	})
}

func (e *Engine) loadSecrets(ctx context.Context, s *state) error {
	entry, err := e.opt.Store.Get(ctx, keyCA)
	if err != nil {
		return err
	}
	if s.ca, err = auth.ParseCA(entry.Value); err != nil {
		return err
	}
	return e.loadGrantKeys(ctx, s)
}

func (e *Engine) loadOwners(ctx context.Context, s *state) error {
	err := each(ctx, e, prefixOrg, func(_ string, o coordinator.Organization) error {
		s.addOrganization(&organization{Organization: o})
		return nil
	})
	return errors.Join(err,
		each(ctx, e, prefixGroup, func(_ string, g coordinator.Group) error { s.addGroup(&g); return nil }),
		each(ctx, e, prefixUser, func(_ string, u coordinator.User) error { s.addUser(&u); return nil }),
		each(ctx, e, prefixToken, func(_ string, t auth.UserToken) error { s.tokens[t.ID] = t; return nil }),
		each(ctx, e, prefixJoin, func(_ string, t auth.JoinToken) error { s.joinTokens[t.ID] = t; return nil }),
		each(ctx, e, prefixRevoked, func(_ string, r auth.Revocation) error { s.revoked[r.Node] = r; return nil }))
}

func (e *Engine) loadGrants(ctx context.Context, s *state) error {
	err := each(ctx, e, prefixSerial, func(id string, n newestGrant) error {
		if o := s.orgs[coordinator.OrganizationID(id)]; o != nil {
			o.newest = n
		}
		return nil
	})
	return errors.Join(err, e.scan(ctx, prefixGrant, func(entry store.Entry) error {
		if o := s.orgs[coordinator.OrganizationID(strings.TrimPrefix(entry.Key, prefixGrant))]; o != nil {
			o.jws = string(entry.Value)
		}
		return nil
	}))
}

// loadConfig activates the newest revision. A stored revision was checked when it was set; one that no
// longer passes (a stricter release) stops the start rather than running without its rules.
func (e *Engine) loadConfig(ctx context.Context, s *state) error {
	err := each(ctx, e, prefixConfig, func(_ string, r ConfigRevision) error {
		s.revisions = append(s.revisions, r)
		return nil
	})
	if err != nil || len(s.revisions) == 0 {
		return err
	}
	newest := s.revisions[len(s.revisions)-1]
	entry, err := e.opt.Store.Get(ctx, yamlKey(newest.Revision))
	if err != nil {
		return err
	}
	checked, diags := e.parseWith(fmt.Sprintf("revision %d", newest.Revision), entry.Value, config.Options{Catalogues: e.catalogues.Load(), Stored: true})
	if err := diags.Err(); err != nil {
		return err
	}
	active := activate(checked)
	active.Revision, active.forNodes.Revision = newest.Revision, newest.Revision
	s.config = active
	return nil
}

func (e *Engine) loadNodes(ctx context.Context, s *state) error {
	err := each(ctx, e, prefixNode, func(id string, rec nodeRecord) error {
		n := newNode(coordinator.NodeID(id))
		n.record, n.lastSeen = rec, e.opt.Now().UTC() // the loss window starts anew with the coordinator
		n.lost = rec.Lost
		s.nodes[n.id] = n
		if !n.lost {
			s.absent[n.id] = n
		}
		return nil
	})
	if err != nil {
		return err
	}
	return e.scan(ctx, prefixFacts, func(entry store.Entry) error {
		n := s.nodes[coordinator.NodeID(strings.TrimPrefix(entry.Key, prefixFacts))]
		if n == nil {
			return nil
		}
		facts, err := inventory.DecodeFacts(entry.Value)
		if err != nil {
			e.opt.Log.Warn("stored hardware report cannot be read; the node reports again when it connects", "node", n.id, "err", err)
			return nil
		}
		n.learn(facts, entry.Value, nil)
		return nil
	})
}

func (e *Engine) loadReports(ctx context.Context, s *state) error {
	return errors.Join(e.getJSON(ctx, keySpent, &s.spent),
		each(ctx, e, prefixDiscovery, func(id string, rec discoveryRecord) error { s.discoveries[id] = &rec; return nil }),
		each(ctx, e, prefixUnjoined, func(_ string, rec unjoinedRecord) error { s.unjoined[rec.Definition] = &rec; return nil }),
		each(ctx, e, prefixHardware, func(_ string, r catalogue.Report) error { s.addReport(&r); return nil }))
}

// loadLaunches follows nodes: who of them has arrived.
func (e *Engine) loadLaunches(ctx context.Context, s *state) error {
	return each(ctx, e, prefixLaunch, func(_ string, rec launchRecord) error {
		l := &launch{record: rec, arrived: map[coordinator.NodeID]bool{}}
		for _, id := range rec.Joined {
			n := s.nodes[id]
			if n == nil {
				continue
			}
			s.launches[rec.ID] = l
			if l.isSlot() {
				s.attachSlot(e, l, n)
				continue
			}
			s.confine(n)
			s.quarantine(n)
			if n.known && n.record.Definition == rec.Definition {
				l.arrived[id] = true
			}
			n.released, n.leaves, n.looked = rec.Release, leaves(l, s.config.checked), rec.Discovery
		}
		s.launches[rec.ID] = l
		return nil
	})
}

func (e *Engine) loadWorkflows(ctx context.Context, s *state) error {
	return each(ctx, e, prefixWorkflow, func(id string, rec workflowRecord) error {
		w := newWorkflow(coordinator.WorkflowID(id), rec)
		s.workflows[w.id] = w
		s.open += w.open
		if rec.Idempotency != "" {
			s.idempotency[rec.Idempotency] = w.id
		}
		return nil
	})
}

// loadAllocations puts every allocation back into the state its record tells.
func (e *Engine) loadAllocations(ctx context.Context, s *state) error {
	gone := map[string]bool{} // workflows that are being erased
	if err := each(ctx, e, prefixExpired, func(id string, _ time.Time) error { gone[id] = true; return nil }); err != nil {
		return err
	}
	return each(ctx, e, prefixAlloc, func(id string, rec allocRecord) error {
		if wf, _, _ := strings.Cut(id, "/"); gone[wf] {
			return nil
		}
		a := s.allocation(coordinator.AllocationID(id))
		if a == nil {
			e.opt.Log.Warn("record of an unknown allocation is left alone", "alloc", id)
			return nil
		}
		j := a.job
		j.counts[a.record.Status]--
		j.counts[rec.Status]++
		a.record = rec
		if !rec.Started.IsZero() || a.ranBefore() {
			j.started++
		}
		if rec.Status.Ended() {
			j.workflow.open--
			s.open--
			j.workflow.ended = j.workflow.open == 0
		}
		s.index(a)
		if rec.Status.Holds() {
			for _, r := range rec.Ranks {
				if n := s.nodes[r.Node]; n != nil {
					n.active[a.id] = a
				}
			}
		}
		return nil
	})
}

func (e *Engine) loadHolds(ctx context.Context, s *state) error {
	return each(ctx, e, prefixHold, func(id string, rec holdRecord) error {
		s.holds[coordinator.AllocationID(id)] = &rec
		return nil
	})
}

func (e *Engine) loadReservations(ctx context.Context, s *state) error {
	return each(ctx, e, prefixReservation, func(id string, rec reservationRecord) error {
		r := &reservation{id: sched.ReservationID(id), record: rec}
		s.reservations[r.id] = r
		if rec.Idempotency != "" {
			s.reservationKeys[rec.Idempotency] = r.id
		}
		return nil
	})
}

func (e *Engine) loadMaintenance(ctx context.Context, s *state) error {
	err := each(ctx, e, prefixWindow, func(id string, rec windowRecord) error {
		s.windows[id] = &window{id: id, record: rec}
		if rec.Idempotency != "" {
			s.windowKeys[rec.Idempotency] = id
		}
		return nil
	})
	if err == nil {
		err = each(ctx, e, prefixStatus, func(_ string, entry StatusEntry) error {
			s.history = append(s.history, entry)
			return nil
		})
	}
	s.planCalendar()
	return err
}

// loadEvents finds the number of the last event. Followers of older ones read the store.
func (e *Engine) loadEvents(ctx context.Context, s *state) error {
	var deleted time.Time
	var lifetime longestLifetime
	err := errors.Join(e.getJSON(ctx, keySequence, &s.seq), e.getJSON(ctx, keyFence, &deleted), e.getJSON(ctx, keyLifetime, &lifetime))
	if err != nil {
		return err
	}
	if s.longest = time.Duration(lifetime.Seconds) * time.Second; s.longest == 0 {
		s.longest = legacyLifetime
	}
	e.events.reset(s.seq)
	return nil
}

// foundCluster writes a new cluster: its id, authority, grant key, first organisation and administrator.
func (e *Engine) foundCluster(ctx context.Context) error {
	now := e.opt.Now().UTC()
	t := &tx{engine: e, state: e.state, now: now}
	id, err := e.newID()
	if err != nil {
		return err
	}
	s := e.state
	s.cluster = clusterRecord{ID: id, Created: now, Schema: schemaVersion, Federate: e.opt.Federate}
	if s.ca, err = auth.NewCA(id, now, e.opt.Rand); err != nil {
		return err
	}
	ca, err := s.ca.Marshal()
	if err != nil {
		return err
	}
	if s.signer, err = grant.Generate(e.opt.Rand); err != nil {
		return err
	}
	s.ring = grant.NewRing(s.signer.Public())
	key, err := s.signer.Marshal()
	if err != nil {
		return err
	}
	t.current.Guards = []store.Guard{{Key: keyCluster, Revision: 0}}
	t.put(keyCluster, s.cluster)
	t.putBytes(keyCA, ca)
	t.putBytes(prefixGrantKey+string(s.signer.ID()), key)
	s.longest = e.opt.CertificateLifetime
	t.put(keyLifetime, longestLifetime{int64(s.longest / time.Second)})
	org, err := e.found(t, firstOrg, 0) // closes the group: all of this is there, or nothing
	if err != nil {
		return err
	}
	userID, err := e.newID()
	if err != nil {
		return err
	}
	admin := &coordinator.User{ID: coordinator.UserID(userID), Organization: org.ID, Name: firstAdmin, Admin: true, Created: now}
	for _, g := range s.groups {
		admin.Groups = append(admin.Groups, g.ID)
	}
	s.addUser(admin)
	t.groups[0].Ops = append(t.groups[0].Ops, opJSON(prefixUser+userID, admin))
	return t.commit(ctx)
}

func opJSON(key string, v any) store.Op {
	data, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("cannot encode %s: %v", key, err)) // own record types only
	}
	return store.Op{Key: key, Value: data}
}

// role is a cluster's in words.
func role(federate bool) string {
	if federate {
		return "as a Federate"
	}
	return "to run work itself"
}
