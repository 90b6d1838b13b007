package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/federation"
)

// Bounds of federation.
const (
	withdrawnFor       = 30 * 24 * time.Hour
	maxWithdrawn       = 100_000
	federateLifetime   = 90 * 24 * time.Hour // of its certificate, which it renews
	defaultFederateTTL = time.Hour
)

// federationState is what the loop knows of other clusters.
type federationState struct {
	federate  *federateRecord // nil: none
	tokens    map[string]auth.JoinToken
	withdrawn map[string]time.Time // by idempotency key
	clock     uint64               // newest revision given to an attribute

	clusters map[string]*remoteRecord // by name
	routes   map[coordinator.WorkflowID]*routeRecord
	byKey    map[string]coordinator.WorkflowID // "<user>/<key>"
	pushes   map[string]*pushRecord
}

func newFederationState() federationState {
	return federationState{tokens: map[string]auth.JoinToken{}, withdrawn: map[string]time.Time{}, clusters: map[string]*remoteRecord{},
		routes: map[coordinator.WorkflowID]*routeRecord{}, byKey: map[string]coordinator.WorkflowID{}, pushes: map[string]*pushRecord{}}
}

// loadFederation follows owners: revisions are theirs.
func (e *Engine) loadFederation(ctx context.Context, s *state) error {
	f := &s.federation
	for _, o := range s.orgs {
		f.clock = max(f.clock, o.Set)
	}
	for _, g := range s.groups {
		f.clock = max(f.clock, g.Set)
	}
	for _, u := range s.users {
		f.clock = max(f.clock, u.Set)
	}
	var rec federateRecord
	if err := e.getJSON(ctx, keyFederate, &rec); err != nil {
		return err
	}
	if rec.ID != "" {
		f.federate = &rec
	}
	return errors.Join(
		each(ctx, e, prefixFederation, func(_ string, t auth.JoinToken) error { f.tokens[t.ID] = t; return nil }),
		each(ctx, e, prefixWithdrawn, func(key string, at time.Time) error { f.withdrawn[key] = at; return nil }),
		each(ctx, e, prefixRemote, func(_ string, m remoteRecord) error { f.clusters[m.Name] = &m; return nil }),
		each(ctx, e, prefixPush, func(id string, p pushRecord) error { f.pushes[id] = &p; return nil }),
		each(ctx, e, prefixRoute, func(id string, r routeRecord) error {
			f.routes[coordinator.WorkflowID(id)] = &r
			if r.Idempotency != "" {
				f.byKey[r.Idempotency] = coordinator.WorkflowID(id)
			}
			return nil
		}))
}

// revision is what the next change of an attribute is numbered with.
func (t *tx) revision(created time.Time) uint64 {
	f := &t.state.federation
	f.clock = federation.Clock(max(f.clock, revisionOf(0, created)), t.now.UnixMicro())
	return f.clock
}

// revisionOf numbers what was never changed by when it was made.
func revisionOf(set uint64, created time.Time) uint64 {
	if set > 0 {
		return set
	}
	return uint64(max(created.UnixMicro(), 1))
}

// peers is what requests on the federation port are checked against, outside the loop.
type peers struct {
	mu       sync.RWMutex
	federate *federateRecord
	tokens   map[string]auth.JoinToken
	fresh    map[[sha256.Size]byte]Caller // requests whose attributes are durable here
	last     time.Time
	schema   uint32
}

// maxFresh bounds what is remembered; beyond it all is asked anew.
const maxFresh = 100_000

func (p *peers) reset(s *state) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.federate, p.fresh, p.tokens = s.federation.federate, nil, map[string]auth.JoinToken{}
	for id, t := range s.federation.tokens {
		p.tokens[id] = t
	}
}

func (p *peers) issued(shown auth.JoinText) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	t, ok := p.tokens[shown.ID]
	return ok && t.Issued(shown)
}

func (p *peers) known(digest [sha256.Size]byte) (Caller, bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	c, ok := p.fresh[digest]
	return c, ok
}

func (p *peers) remember(digest [sha256.Size]byte, c Caller) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fresh == nil || len(p.fresh) >= maxFresh {
		p.fresh = map[[sha256.Size]byte]Caller{}
	}
	p.fresh[digest] = c
}

// forget has every request looked at again: a replica was changed here.
func (p *peers) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fresh = nil
}

func (p *peers) heard(now time.Time, schema uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last, p.schema = now, schema
}

// FederatePeer is the other end of a verified connection to the federation port.
type FederatePeer struct {
	ID  string
	Key auth.KeyID
}

// checkPeer tells the registered Federate from one that was, or from an earlier key of it.
func (e *Engine) checkPeer(p FederatePeer) (federateRecord, error) {
	e.peers.mu.RLock()
	defer e.peers.mu.RUnlock()
	f := e.peers.federate
	if f == nil || f.ID != p.ID || f.Key != p.Key {
		return federateRecord{}, coordinator.Errorf(coordinator.ErrUnauthenticated, "identify the Federate", "this cluster does not belong to it, or not by this key").
			WithHint("register the cluster again: `substrate cluster federation token create` here, `substrate cluster register` on the Federate")
	}
	return *f, nil
}

// CheckFederate tells whether the other end of a connection is the Federate that this cluster belongs to.
func (e *Engine) CheckFederate(p FederatePeer) error {
	_, err := e.checkPeer(p)
	return err
}

// FederateView is the Federate that this cluster belongs to.
type FederateView struct {
	ID, Name, URL    string
	Registered, Last time.Time
	Schema           uint32 // of the newest request's attributes; 0: none
}

// Federate shows whom this cluster belongs to.
func (e *Engine) Federate(_ context.Context, c Caller) (FederateView, error) {
	const op = "show the Federate"
	if err := c.authorize(auth.PermissionAdminCluster, op, auth.Target{}); err != nil {
		return FederateView{}, err
	}
	e.peers.mu.RLock()
	defer e.peers.mu.RUnlock()
	f := e.peers.federate
	if f == nil {
		return FederateView{}, coordinator.Errorf(coordinator.ErrNotFound, op, "this cluster belongs to none").
			WithHint("`substrate cluster federation token create` here, then `substrate cluster register` on the Federate")
	}
	return FederateView{f.ID, f.Name, f.URL, f.Registered, e.peers.last, e.peers.schema}, nil
}

// CreateFederationToken makes the token with which one Federate enrols once.
func (e *Engine) CreateFederationToken(ctx context.Context, c Caller, ttl time.Duration) (text string, expires time.Time, err error) {
	const op = "create federation token"
	if err := c.authorize(auth.PermissionAdminCluster, op, auth.Target{}); err != nil {
		return "", expires, err
	}
	if e.opt.Federate {
		return "", expires, coordinator.Errorf(coordinator.ErrUnsupported, op, "this is a Federate itself").WithHint("make it on the Orchestrate cluster that is to be registered")
	}
	if ttl == 0 {
		ttl = defaultFederateTTL
	}
	err = e.do(ctx, func(t *tx) error {
		var rec auth.JoinToken
		text, rec, err = auth.NewJoinToken(auth.Pin(t.state.ca), 1, t.now, ttl, e.opt.Rand)
		if err != nil {
			return err
		}
		expires = rec.Expires
		tokens := t.state.federation.tokens
		for id, old := range tokens {
			if old.Done(t.now) {
				delete(tokens, id)
				t.delete(prefixFederation + id)
			}
		}
		tokens[rec.ID] = rec
		t.put(prefixFederation+rec.ID, rec)
		t.group()
		t.then(func(int64) { e.peers.reset(t.state) })
		t.event(Event{Kind: "federation-token-created", Subject: rec.ID, Message: "by " + c.Name})
		return nil
	})
	return text, expires, err
}

// Enrolment is a Federate's request to be taken in.
type Enrolment struct {
	Token       string
	Federate    string // its cluster id
	Name        string // what it calls this cluster
	URL         string
	CSR         []byte
	CA          []byte // of the answer
	Certificate []byte // of the answer
	Cluster     string // of the answer
}

// Enrol trades a federation token for a certificate. The use, and whom the cluster belongs to from now on, are
// durable before the certificate leaves.
func (e *Engine) Enrol(ctx context.Context, in *Enrolment) error {
	const op = "enrol the Federate"
	denied := coordinator.Errorf(coordinator.ErrUnauthenticated, op, "the federation token is not valid here").
		WithHint("make a new one with `substrate cluster federation token create`")
	shown, err := auth.ParseJoinToken(in.Token)
	if err != nil || !e.peers.issued(shown) {
		return denied
	}
	req, err := auth.ParseRequest(in.CSR)
	if err != nil {
		return coordinator.Errorf(coordinator.ErrInvalid, op, "%w", err)
	}
	if len(in.Name) > 253 || len(in.URL) > 2048 || strings.ContainsAny(in.Name+in.URL, "\x00\n\r") {
		return coordinator.Errorf(coordinator.ErrInvalid, op, "its name or its address is not one")
	}
	return e.do(ctx, func(t *tx) error {
		f := &t.state.federation
		rec, ok := f.tokens[shown.ID]
		if !ok {
			return denied
		}
		if f.federate != nil && f.federate.ID != in.Federate {
			return coordinator.Errorf(coordinator.ErrConflict, op, "this cluster belongs to the Federate %s", f.federate.URL).
				WithHint("deregister it there, or run `substrate cluster federation forget` here")
		}
		next, again, err := rec.Redeem(shown.Secret, coordinator.NodeID(in.Federate), req.Key, t.now)
		if err != nil {
			return err
		}
		in.Certificate, err = t.state.ca.SignFederate(in.CSR, in.Federate, t.now, federateLifetime, e.opt.Rand)
		if err != nil {
			return err
		}
		in.CA, in.Cluster = t.state.ca.CertificatePEM(), t.state.cluster.ID
		if again && f.federate != nil && f.federate.Key == req.Key {
			return nil
		}
		f.tokens[shown.ID] = next
		f.federate = &federateRecord{ID: in.Federate, Name: in.Name, URL: in.URL, Key: req.Key, Registered: t.now}
		t.put(prefixFederation+shown.ID, next)
		t.put(keyFederate, f.federate)
		t.group()
		t.then(func(int64) { e.peers.reset(t.state) })
		t.event(Event{Kind: "federate-registered", Subject: in.Federate, Message: fmt.Sprintf("by %s as %s, with token %s", in.URL, in.Name, shown.ID)})
		return nil
	})
}

// RenewFederate issues a certificate for the registered key anew.
func (e *Engine) RenewFederate(_ context.Context, p FederatePeer, csr []byte) ([]byte, error) {
	const op = "renew the Federate's certificate"
	if _, err := e.checkPeer(p); err != nil {
		return nil, err
	}
	req, err := auth.ParseRequest(csr)
	if err != nil || req.Key != p.Key {
		return nil, coordinator.Errorf(coordinator.ErrInvalid, op, "the request is not for the key that it was registered with")
	}
	return e.ca.SignFederate(csr, p.ID, e.opt.Now().UTC(), federateLifetime, e.opt.Rand)
}

// ForgetFederate ends the cluster's belonging to a Federate. Replicas stay as they are, and can be changed here.
func (e *Engine) ForgetFederate(ctx context.Context, c Caller) error {
	if err := c.authorize(auth.PermissionAdminCluster, "forget the Federate", auth.Target{}); err != nil {
		return err
	}
	return e.leave(ctx, "by "+c.Name, "")
}

// LeaveFederate is the same at the Federate's wish.
func (e *Engine) LeaveFederate(ctx context.Context, p FederatePeer) error {
	if _, err := e.checkPeer(p); err != nil {
		return err
	}
	return e.leave(ctx, "by the Federate", p.ID)
}

func (e *Engine) leave(ctx context.Context, why, only string) error {
	return e.do(ctx, func(t *tx) error {
		f := &t.state.federation
		if f.federate == nil || only != "" && f.federate.ID != only {
			return coordinator.Errorf(coordinator.ErrNotFound, "forget the Federate", "this cluster belongs to none")
		}
		id := f.federate.ID
		f.federate = nil
		t.delete(keyFederate)
		t.group()
		t.then(func(int64) { e.peers.reset(t.state) })
		t.event(Event{Kind: "federate-forgotten", Subject: id, Message: why})
		return nil
	})
}

// ClusterDescription is what a cluster tells its Federate of itself.
type ClusterDescription struct {
	Cluster           string
	Schema            uint32 // of attributes: the newest it understands; 0: none
	PrioritySHA256    string
	Priority          string
	Revision          coordinator.Revision
	Definitions       []string
	Status            StatusView
	PreemptionEnabled bool
	Version           string // set by the server
}

// Describe answers a Federate; schema is that of the attributes it sends.
func (e *Engine) Describe(ctx context.Context, p FederatePeer) (d ClusterDescription, err error) {
	if _, err := e.checkPeer(p); err != nil {
		return d, err
	}
	if d.Status, err = e.Status(ctx); err != nil {
		return d, err
	}
	err = e.view(ctx, func(s *state) {
		d.Cluster, d.Schema, d.Revision = s.cluster.ID, federation.Schema, s.config.Revision
		d.Priority, d.PrioritySHA256 = s.config.Scheduler.Priority, s.prioritySum()
		d.PreemptionEnabled = s.config.Scheduler.PreemptionEnabled
		for i := range s.config.Config.Definitions {
			d.Definitions = append(d.Definitions, string(s.config.Config.Definitions[i].ID))
		}
	})
	return d, err
}

// prioritySum names the priority expression in force, so that clusters whose expressions differ are seen.
func (s *state) prioritySum() string {
	sum := sha256.Sum256([]byte(strings.Join(strings.Fields(s.config.Scheduler.Priority), " ")))
	return hex.EncodeToString(sum[:])
}

// FederatedWorkflows tells how far workflows of federated organisations are, without jobs.
func (e *Engine) FederatedWorkflows(ctx context.Context, p FederatePeer, ids []coordinator.WorkflowID) (out []WorkflowView, err error) {
	if _, err := e.checkPeer(p); err != nil {
		return nil, err
	}
	err = e.view(ctx, func(s *state) {
		for _, id := range ids {
			if w := s.workflows[id]; w != nil && s.ownedBy(p.ID, w.record.Owner.Organization) {
				out = append(out, w.view(s, false))
			}
		}
	})
	return out, err
}

func (s *state) ownedBy(federate string, org coordinator.OrganizationID) bool {
	o := s.orgs[org]
	return o != nil && o.Replica != nil && o.Replica.Federate == federate
}

// Withdraw makes sure that a submission does not arrive any more, durably, or names the workflow that it became.
func (e *Engine) Withdraw(ctx context.Context, p FederatePeer, user coordinator.UserID, key string) (arrived coordinator.WorkflowID, err error) {
	const op = "withdraw the submission"
	if _, err := e.checkPeer(p); err != nil {
		return "", err
	}
	if key == "" || len(key) > 256 || len(user) > 64 || strings.Contains(string(user), "/") {
		return "", coordinator.Errorf(coordinator.ErrInvalid, op, "it names none")
	}
	full := idempotencyKey(Caller{Principal: auth.Principal{User: user}}, key)
	err = e.do(ctx, func(t *tx) error {
		f := &t.state.federation
		if w := t.state.workflows[t.state.idempotency[full]]; w != nil {
			arrived = w.id
			return nil
		}
		for old, at := range f.withdrawn {
			if t.now.Sub(at) > withdrawnFor {
				delete(f.withdrawn, old)
				t.delete(prefixWithdrawn + old)
			}
		}
		if len(f.withdrawn) >= maxWithdrawn {
			return coordinator.Errorf(coordinator.ErrExhausted, op, "%d were withdrawn of late", len(f.withdrawn))
		}
		f.withdrawn[full] = t.now
		t.put(prefixWithdrawn+full, t.now)
		t.group()
		return nil
	})
	return arrived, err
}
