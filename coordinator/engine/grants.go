package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/grant"
)

// GrantView is an organisation's grant as it stands.
type GrantView struct {
	Organization coordinator.OrganizationID
	Slug         string
	Serial       uint64
	IssuedAt     time.Time
	Definitions  []string
	Orphans      []string
	State        string // valid, missing, altered, rolled-back, foreign-cluster, foreign-organisation
	JWS          string
}

// AppendResult is the outcome for one definition and organisation.
type AppendResult struct {
	Definition     string
	Organization   string
	AlreadyExisted bool
}

// grantDocument verifies an organisation's grant as it is stored now. Verified grants are remembered
// by digest, so that a placement costs a look-up.
func (s *state) grantDocument(o *organization) (grant.Document, error) {
	return s.verified.Check(s.ring, o.jws, grant.Want{
		Cluster: s.cluster.ID, Organization: o.ID, NewestSerial: o.newest.Serial, NewestDigest: o.newest.Digest,
	})
}

// previousGrant is what the next grant follows: the one that counts, or none yet. A grant that is there
// but does not count is not silently replaced.
func (s *state) previousGrant(o *organization) (grant.Document, error) {
	if o.newest.Serial == 0 {
		return grant.New(s.cluster.ID, o.ID), nil
	}
	return s.grantDocument(o)
}

// signedGrant is the next grant of an organisation, ready to be stored: nothing about it can fail any more.
type signedGrant struct {
	org     *organization
	jws     string
	newest  newestGrant
	delta   grant.Delta
	results []grant.Appended
	changed bool
}

// sign makes the next grant of an organisation without changing anything.
func (s *state) sign(o *organization, previous, next grant.Document) (signedGrant, error) {
	jws, err := grant.Sign(s.signer, next)
	if err != nil {
		return signedGrant{}, err
	}
	delta, err := grant.NewDelta(previous, next, jws)
	if err != nil {
		return signedGrant{}, err
	}
	return signedGrant{org: o, jws: jws, delta: delta, changed: true,
		newest: newestGrant{Serial: next.Serial, Digest: grant.DigestOf(jws)}}, nil
}

// signAppends makes the next grants of organisations, all or none.
func (s *state) signAppends(orgs []*organization, add []grant.Entry, now time.Time) ([]signedGrant, error) {
	out := make([]signedGrant, 0, len(orgs))
	for _, o := range orgs {
		previous, err := s.previousGrant(o)
		if err != nil {
			return nil, err
		}
		next, results, changed, err := grant.Append(previous, o.newest.Digest, add, now)
		if err != nil {
			return nil, err
		}
		signed := signedGrant{org: o}
		if changed {
			if signed, err = s.sign(o, previous, next); err != nil {
				return nil, err
			}
		}
		signed.results = results
		out = append(out, signed)
	}
	return out, nil
}

// grant stores a signed grant: the grant, the newest serial apart from it, and the step from the one
// before, in one group.
func (t *tx) grant(g signedGrant, kind, message string) {
	if !g.changed {
		return
	}
	g.org.jws, g.org.newest = g.jws, g.newest
	id := g.org.ID
	t.putBytes(prefixGrant+string(id), []byte(g.jws))
	t.put(prefixSerial+string(id), g.newest)
	t.put(historyKey(id, uint64(g.newest.Serial)), g.delta)
	t.group()
	t.event(Event{Kind: kind, Subject: g.org.Slug, Message: message})
	t.state.admission++
	t.state.changedWaiting()
}

// backfillGrants gives organisations that never had a grant one with every definition that exists: after an
// upgrade from a store without grants, or a crash while an organisation was created.
func (t *tx) backfillGrants() {
	if len(t.state.revisions) == 0 {
		return
	}
	var without []*organization
	for _, o := range t.state.sortedOrganizations() {
		if o.newest.Serial == 0 && o.jws == "" {
			without = append(without, o)
		}
	}
	signed, err := t.state.signAppends(without, grant.Entries(t.state.config.Definitions), t.now)
	if err != nil {
		t.event(Event{Kind: "warning", Subject: "grants", Message: "cannot backfill grants: " + err.Error()})
		return
	}
	for _, g := range signed {
		t.grant(g, "grant-appended", "backfilled")
	}
}

// Grant shows an organisation's grant and whether it counts.
func (e *Engine) Grant(ctx context.Context, c Caller, organization string) (view GrantView, err error) {
	verr := e.view(ctx, func(s *state) {
		if o, perr := s.permitted(c, auth.PermissionReadOrg, "show grant", organization); perr != nil {
			err = perr
		} else {
			view = s.grantView(o)
		}
	})
	return view, errors.Join(verr, err)
}

func (s *state) grantView(o *organization) GrantView {
	v := GrantView{Organization: o.ID, Slug: o.Slug, State: "valid", JWS: o.jws}
	doc, err := s.grantDocument(o)
	if err != nil {
		v.State = grant.RefusalOf(err).String()
		return v
	}
	v.Serial, v.IssuedAt, v.Definitions = uint64(doc.Serial), doc.IssuedAt, doc.IDs()
	for _, orphan := range grant.Orphans(doc, grant.Entries(s.config.Definitions)) {
		if !slices.Contains(v.Orphans, orphan.ID) {
			v.Orphans = append(v.Orphans, orphan.ID)
		}
	}
	return v
}

// SetGrant replaces what an organisation may place work on. Running work is not touched.
func (e *Engine) SetGrant(ctx context.Context, c Caller, organization string, definitions []string) (view GrantView, err error) {
	if err := c.authorize(auth.PermissionAdminCluster, "set grant", auth.Target{}); err != nil {
		return view, err
	}
	err = e.doView(ctx, func(t *tx) error {
		o := t.state.organization(organization, c)
		if o == nil {
			return noSuch("set grant", "organisation", organization)
		}
		entries, err := grant.Resolve(definitions, t.state.config.Definitions)
		if err != nil {
			return err
		}
		previous, err := t.state.previousGrant(o)
		if err != nil {
			return err
		}
		next, changed, err := grant.Set(previous, o.newest.Digest, entries, t.now)
		if err != nil || !changed {
			return err
		}
		signed, err := t.state.sign(o, previous, next)
		if err != nil {
			return err
		}
		t.grant(signed, "grant-set", "replaced by "+c.Name)
		return nil
	}, func(s *state) {
		if o := s.organization(organization, c); o != nil {
			view = s.grantView(o)
		}
	})
	return view, err
}

// AppendDefinitions adds configured definitions to the grants of organisations, or of all. It is
// additive and idempotent.
func (e *Engine) AppendDefinitions(ctx context.Context, c Caller, definitions, organizations []string, all bool) (results []AppendResult, err error) {
	const op = "append definitions to grants"
	if err := c.authorize(auth.PermissionAdminCluster, op, auth.Target{}); err != nil {
		return nil, err
	}
	if all == (len(organizations) > 0) {
		return nil, coordinator.Errorf(coordinator.ErrInvalid, op, "name organisations or ask for all of them, not both and not neither")
	}
	err = e.do(ctx, func(t *tx) error {
		entries, err := grant.Resolve(definitions, t.state.config.Definitions)
		if err != nil {
			return err
		}
		var targets []*organization
		if all {
			targets = t.state.sortedOrganizations()
		}
		for _, ref := range organizations {
			o := t.state.organization(ref, c)
			if o == nil {
				return noSuch(op, "organisation", ref)
			}
			if !slices.Contains(targets, o) {
				targets = append(targets, o)
			}
		}
		signed, err := t.state.signAppends(targets, entries, t.now)
		if err != nil {
			return err
		}
		for _, g := range signed {
			t.grant(g, "grant-appended", "definitions were added by "+c.Name)
			for _, d := range g.results {
				results = append(results, AppendResult{Definition: d.ID, Organization: g.org.Slug, AlreadyExisted: d.AlreadyExisted})
			}
		}
		return nil
	})
	return results, err
}

// ungranted lists configured definitions that some organisation cannot use yet.
func (s *state) ungranted() []Ungranted {
	missing := map[string][]string{}
	var ids []string
	current := grant.Entries(s.config.Definitions)
	for _, o := range s.sortedOrganizations() {
		doc, err := s.grantDocument(o)
		lacking := current
		if err == nil {
			lacking = grant.Ungranted(doc, current)
		}
		for _, entry := range lacking {
			if missing[entry.ID] == nil {
				ids = append(ids, entry.ID)
			}
			if !slices.Contains(missing[entry.ID], o.Slug) {
				missing[entry.ID] = append(missing[entry.ID], o.Slug)
			}
		}
	}
	slices.Sort(ids)
	out := make([]Ungranted, 0, len(ids))
	for _, id := range ids {
		out = append(out, Ungranted{Definition: id, Organizations: missing[id], All: len(missing[id]) == len(s.orgs)})
	}
	return out
}
