package engine

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/store"
)

// Request is what the engine is told about a request from outside. Every command that the request leads to is
// audited: whatever it writes stands in the store together with an entry that says who wanted it.
type Request struct {
	ID        string // unique; also in the answer and in the log
	Method    string // "Identity.CreateGroup"
	From      string // address
	Caller    auth.Principal
	Token     string             // public id of the token that was shown
	TokenName string             // what its user calls it
	Node      coordinator.NodeID // where a node asks instead of a user
}

type requestKey struct{}

// WithRequest has what is done with the context audited as the request's.
func WithRequest(ctx context.Context, r Request) context.Context {
	return context.WithValue(ctx, requestKey{}, &r)
}

func requestFrom(ctx context.Context) *Request {
	r, _ := ctx.Value(requestKey{}).(*Request)
	return r
}

// Outcomes of an audited request.
const (
	OutcomeDone    = "done"
	OutcomeRefused = "refused"
)

// AuditEntry is one change, or one attempt at it that was refused.
type AuditEntry struct {
	Time          time.Time                    `json:"time"`
	Request       string                       `json:"request"`
	User          coordinator.UserID           `json:"user,omitempty"`
	UserName      string                       `json:"user_name,omitempty"`
	Node          coordinator.NodeID           `json:"node,omitempty"`
	Token         string                       `json:"token,omitempty"`
	TokenName     string                       `json:"token_name,omitempty"`
	From          string                       `json:"from,omitempty"`
	Method        string                       `json:"method"`
	Object        string                       `json:"object,omitempty"` // "group/<id>"
	Name          string                       `json:"name,omitempty"`   // the object's, as it was called then
	Organizations []coordinator.OrganizationID `json:"organizations,omitempty"`
	Records       []AuditRecord                `json:"records,omitempty"`
	More          int                          `json:"more,omitempty"` // records beyond those listed
	Outcome       string                       `json:"outcome"`
	Action        string                       `json:"action,omitempty"` // what was done, in the words of its events
	Message       string                       `json:"message,omitempty"`
}

// AuditRecord is one stored record that a request changed, by the sha256 of its bytes; "" where it was not there
// before, or is not afterwards.
type AuditRecord struct {
	Key    string `json:"key"`
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
}

// Bounds of one entry.
const (
	maxAuditRecords       = 16
	maxAuditOrganizations = 64
	maxAuditText          = 500
)

// audit gathers the entries of one turn.
type audit struct {
	request *Request // of the command that is being carried out
	did     []string // by it
	events  int      // of the turn, before it
	touched []*allocation
	pending []*pendingEntry
	entries map[coordinator.WorkflowID][]store.Op // to be written with a workflow's change
}

// pendingEntry is an entry that waits for what its allocations look like at the end of the turn.
type pendingEntry struct {
	entry       AuditEntry
	allocations []*allocation
	workflow    coordinator.WorkflowID // to be written with this one's change; "" with group
	group       int
}

func (a *audit) begin(r *Request, events int) {
	a.request, a.touched, a.did, a.events = r, nil, nil, events
}

func (a *audit) drop() { a.request, a.touched, a.did = nil, nil, nil }

// did says what the command does where no event does.
func (t *tx) did(format string, args ...any) {
	t.audit.did = append(t.audit.did, fmt.Sprintf(format, args...))
}

// maxAuditActions bounds how many events an entry repeats.
const maxAuditActions = 8

// action is what the command that is being audited has done.
func (t *tx) action() string {
	did := slices.Clone(t.audit.did)
	for _, ev := range t.events[min(t.audit.events, len(t.events)):] {
		if len(did) == maxAuditActions {
			did = append(did, "…")
			break
		}
		did = append(did, strings.TrimSpace(ev.Kind+" "+ev.Message))
	}
	return bounded(strings.Join(did, "; "))
}

func bounded(text string) string {
	if len(text) > maxAuditText {
		return strings.ToValidUTF8(text[:maxAuditText], "") + "…"
	}
	return text
}

func (a *audit) touch(x *allocation) {
	if a.request != nil && !slices.Contains(a.touched[max(len(a.touched)-maxAuditRecords, 0):], x) {
		a.touched = append(a.touched, x)
	}
}

// note makes the entry of a command that has been carried out: its writes are the groups from first on, the
// workflows it filed and the allocations it touched. A command that changed nothing leaves none.
func (t *tx) note(ctx context.Context, first int) {
	r, touched, action := t.audit.request, t.audit.touched, t.action()
	t.audit.drop()
	filed := t.filed[t.audited:]
	t.audited = len(t.filed)
	if r == nil || len(t.groups) == first && len(filed) == 0 && len(touched) == 0 {
		return
	}
	p := &pendingEntry{entry: r.entry(t.now, OutcomeDone), allocations: touched, group: first}
	e := &p.entry
	e.Action = action
	for i := first; i < len(t.groups); i++ {
		for _, op := range t.groups[i].Ops {
			t.noteOp(ctx, e, op, first)
		}
	}
	for _, w := range filed {
		e.concern(prefixWorkflow+string(w.id), w.record.Spec.Name, w.record.Owner.Organization)
		if data, err := json.Marshal(w.record); err == nil {
			e.record(AuditRecord{Key: prefixWorkflow + string(w.id), After: digest(data)})
		}
		p.workflow = w.id
	}
	for _, a := range touched[:min(len(touched), maxAuditRecords)] {
		w := a.job.workflow
		e.concern(prefixWorkflow+string(w.id), w.record.Spec.Name, w.record.Owner.Organization)
		if p.workflow == "" {
			p.workflow = w.id
		}
		e.record(AuditRecord{Key: a.key(), Before: digest(t.former(ctx, a.key(), 0))})
	}
	e.More += max(len(touched)-maxAuditRecords, 0)
	if len(t.groups) > first {
		p.workflow = ""
	}
	t.audit.pending = append(t.audit.pending, p)
}

func (r *Request) entry(now time.Time, outcome string) AuditEntry {
	return AuditEntry{Time: now, Request: r.ID, User: r.Caller.User, UserName: r.Caller.Name, Node: r.Node, Token: r.Token, TokenName: r.TokenName,
		From: r.From, Method: r.Method, Outcome: outcome}
}

// noteOp adds one write to an entry.
func (t *tx) noteOp(ctx context.Context, e *AuditEntry, op store.Op, first int) {
	if op.Key == keyFence || op.Key == keySequence {
		return
	}
	if len(e.Records) >= maxAuditRecords {
		e.More++
		if e.More > 10*maxAuditRecords {
			return // a rollout to a thousand organisations need not look up each of them
		}
	}
	old := t.former(ctx, op.Key, first)
	value, rec := op.Value, AuditRecord{Key: op.Key, Before: digest(old)}
	if op.Delete {
		value = old
	} else {
		rec.After = digest(op.Value)
	}
	if len(e.Records) < maxAuditRecords {
		e.record(rec)
	}
	name, org := t.subject(op.Key, value)
	e.concern(op.Key, name, org)
}

func (e *AuditEntry) record(r AuditRecord) {
	if len(e.Records) >= maxAuditRecords {
		e.More++
		return
	}
	e.Records = append(e.Records, r)
}

// concern names what an entry is about: the first is the object, and all count for whose it is.
func (e *AuditEntry) concern(key, name string, org coordinator.OrganizationID) {
	if e.Object == "" {
		e.Object, e.Name = key, name
	}
	if org != "" && !slices.Contains(e.Organizations, org) && len(e.Organizations) < maxAuditOrganizations {
		e.Organizations = append(e.Organizations, org)
	}
}

// subject is what a record calls its object, and the organisation it belongs to.
func (t *tx) subject(key string, value []byte) (name string, org coordinator.OrganizationID) {
	noun, id, _ := strings.Cut(key, "/")
	var rec struct {
		Slug         string                     `json:"slug"`
		Name         string                     `json:"name"`
		Organization coordinator.OrganizationID `json:"organization"`
		User         coordinator.UserID         `json:"user"`
	}
	switch noun + "/" {
	case prefixOrg, prefixGroup, prefixUser, prefixToken:
		if json.Unmarshal(value, &rec) != nil {
			return "", ""
		}
	case prefixGrant, prefixSerial, prefixHistory:
		owner, _, _ := strings.Cut(id, "/")
		rec.Organization = coordinator.OrganizationID(owner)
	}
	if noun+"/" == prefixOrg {
		rec.Organization = coordinator.OrganizationID(id)
	}
	if u := t.state.users[rec.User]; u != nil {
		rec.Organization, rec.Name = u.Organization, cmp.Or(rec.Name, u.Name)
	}
	return cmp.Or(rec.Slug, rec.Name), rec.Organization
}

// former is a record as it was before the groups from first on: written earlier in this turn, or stored.
func (t *tx) former(ctx context.Context, key string, first int) []byte {
	for i := first - 1; i >= 0; i-- {
		for j := len(t.groups[i].Ops) - 1; j >= 0; j-- {
			if op := t.groups[i].Ops[j]; op.Key == key {
				return op.Value // nil when it was deleted
			}
		}
	}
	entry, err := t.engine.opt.Store.Get(ctx, key)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		t.engine.opt.Log.Warn("cannot read what a record was before a change", "key", key, "err", err)
	}
	return entry.Value
}

// digest is the sha256 of a record's bytes, "" of none.
func digest(data []byte) string {
	if len(data) == 0 {
		return ""
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// finishAudit encodes the turn's entries and puts each with what it is about: a change and its entry are one write.
// Of a command that needs several, the first write has it: there is no change without an entry.
func (t *tx) finishAudit() {
	for _, p := range t.audit.pending {
		after := map[string]string{}
		for _, a := range p.allocations[:min(len(p.allocations), maxAuditRecords)] {
			if data, err := json.Marshal(&a.record); err == nil {
				after[a.key()] = digest(data)
			}
		}
		for i, r := range p.entry.Records {
			if sum, ok := after[r.Key]; ok {
				p.entry.Records[i].After = sum
			}
		}
		op := opJSON(t.auditKey(p.entry.Request), p.entry)
		if p.workflow != "" {
			if t.audit.entries == nil {
				t.audit.entries = map[coordinator.WorkflowID][]store.Op{}
			}
			t.audit.entries[p.workflow] = append(t.audit.entries[p.workflow], op)
			continue
		}
		t.groups[p.group].Ops = append(t.groups[p.group].Ops, op)
	}
	t.audit.pending = nil
}

// entriesBeside is how many entries a group of a workflow has room for.
const entriesBeside = 4

// putEntries puts the entries about a workflow into the group that is being made; those that have no room stand in
// the group before it.
func (t *tx) putEntries(id coordinator.WorkflowID) {
	ops := t.audit.entries[id]
	for len(ops) > entriesBeside {
		n := min(len(ops)-entriesBeside, recordsAtOnce)
		t.current.Ops = append(t.current.Ops, ops[:n]...)
		t.group()
		ops = ops[n:]
	}
	t.current.Ops = append(t.current.Ops, ops...)
	delete(t.audit.entries, id)
}

// auditKey sorts by time and is unique: no two entries of this life share their nanosecond, and those of another
// life were of another request.
func (t *tx) auditKey(request string) string {
	t.state.audited = max(t.state.audited+1, t.now.UnixNano())
	return fmt.Sprintf("%s%020d/%s", prefixAudit, t.state.audited, request)
}

// NoteRefused writes down that a request was refused. The server bounds how often that happens.
func (e *Engine) NoteRefused(ctx context.Context, refused error) error {
	r := requestFrom(ctx)
	if r == nil {
		return nil
	}
	apply := func(t *tx) error {
		entry := r.entry(t.now, OutcomeRefused)
		entry.Message = bounded(refused.Error())
		if r.Caller.Organization != "" {
			entry.Organizations = []coordinator.OrganizationID{r.Caller.Organization}
		}
		t.put(t.auditKey(r.ID), entry)
		return nil
	}
	return e.send(ctx, &command{apply: apply, done: make(chan struct{})})
}

// AuditFilter chooses entries; what is empty lets all pass.
type AuditFilter struct {
	Since, Until time.Time
	User         string // id or name; or a node
	Object       string // key, beginning of one, id or name of the object
	Method       string // "CreateGroup", "Identity.CreateGroup" or a part of it, in any case
}

func (f AuditFilter) matches(e *AuditEntry) bool {
	switch {
	case !f.Until.IsZero() && !e.Time.Before(f.Until):
	case f.User != "" && string(e.User) != f.User && e.UserName != f.User && string(e.Node) != f.User:
	case f.Method != "" && !strings.Contains(strings.ToLower(e.Method), strings.ToLower(f.Method)):
	case f.Object != "" && !e.about(f.Object):
	default:
		return true
	}
	return false
}

func (e *AuditEntry) about(object string) bool {
	is := func(key string) bool { return strings.HasPrefix(key, object) || strings.HasSuffix(key, "/"+object) }
	return e.Name == object || is(e.Object) || slices.ContainsFunc(e.Records, func(r AuditRecord) bool { return is(r.Key) })
}

// auditScan bounds how many entries are read for one page; a page may be short and go on all the same.
const auditScan = 10_000

// Audit lists entries, oldest first: all of them for administrators, for the owners of an organisation those about
// it and its members' refused requests.
func (e *Engine) Audit(ctx context.Context, c Caller, f AuditFilter, p Page) (out []AuditEntry, next string, err error) {
	const op = "show the audit log"
	all := auth.Allowed(c.Principal, auth.PermissionAdminCluster, auth.Target{})
	if !all {
		if err := c.authorize(auth.PermissionManageOrg, op, auth.Target{Organization: c.Organization}); err != nil {
			return nil, "", err
		}
	}
	after := p.Token
	if after == "" && !f.Since.IsZero() {
		after = fmt.Sprintf("%s%020d", prefixAudit, max(f.Since.UnixNano(), 0))
	} else if after != "" && !strings.HasPrefix(after, prefixAudit) {
		return nil, "", coordinator.Errorf(coordinator.ErrInvalid, op, "the page token is not one")
	}
	for scanned := 0; scanned < auditScan; {
		entries, err := e.opt.Store.List(ctx, prefixAudit, after, loadPage)
		if err != nil {
			return nil, "", coordinator.Errorf(storeKind(err), op, "%w", err)
		}
		for _, entry := range entries {
			var rec AuditEntry
			if err := decode(entry, &rec); err != nil {
				return nil, "", err
			}
			after = entry.Key
			if f.matches(&rec) && (all || slices.Contains(rec.Organizations, c.Organization)) {
				if out = append(out, rec); len(out) == p.size() {
					return out, after, nil
				}
			}
		}
		if scanned += len(entries); len(entries) < loadPage {
			return out, "", nil
		}
	}
	return out, after, nil
}

// expireAudit forgets entries that are older than retention.audit.
func (e *Engine) expireAudit(ctx context.Context) error {
	return expireOld(ctx, e, prefixAudit, "audit", func(r retention) time.Duration { return r.Audit },
		func(entry AuditEntry) []any { return []any{entry} }, func(entry AuditEntry) time.Time { return entry.Time })
}
