package engine

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"substrate/coordinator"
	"substrate/coordinator/federation"
)

// Push is a change of grants under way to clusters.
type Push struct {
	ID            string
	Definitions   []string
	Organizations []federation.Entity
	All           bool
	By            string
	Waiting       []string
}

func (p *pushRecord) view(id string) Push {
	return Push{id, slices.Clone(p.Definitions), slices.Clone(p.Organizations), p.All, p.By, slices.Clone(p.Waiting)}
}

// maxPushes bounds what waits for clusters that are down.
const maxPushes = 10_000

// IntendPush keeps a change of grants, durably, until each registered cluster has answered it.
func (e *Engine) IntendPush(ctx context.Context, c Caller, definitions, organizations []string, all bool) (p Push, err error) {
	const op = "append definitions to grants"
	if err := e.federateOnly(c, op); err != nil {
		return p, err
	}
	err = e.do(ctx, func(t *tx) error {
		s := t.state
		rec := &pushRecord{Definitions: definitions, All: all, By: c.Name, At: t.now, Waiting: []string{}}
		for _, ref := range organizations {
			o := s.organization(ref, c)
			if o == nil {
				return noSuch(op, "organisation", ref)
			}
			rec.Organizations = append(rec.Organizations, federation.Entity{ID: string(o.ID), Name: o.Slug})
		}
		for _, name := range slices.Sorted(maps.Keys(s.federation.clusters)) {
			if len(s.federation.clusters[name].Credentials.Certificate) > 0 {
				rec.Waiting = append(rec.Waiting, name)
			}
		}
		if len(rec.Waiting) == 0 {
			return coordinator.Errorf(coordinator.ErrNotFound, op, "no cluster is registered").WithHint("`substrate cluster register`")
		}
		if len(s.federation.pushes) >= maxPushes {
			return coordinator.Errorf(coordinator.ErrExhausted, op, "%d wait for clusters that are down", len(s.federation.pushes))
		}
		id, err := e.newID()
		if err != nil {
			return err
		}
		s.federation.pushes[id] = rec
		t.put(prefixPush+id, rec)
		t.group()
		t.event(Event{Kind: "grants-pushed", Subject: joined(definitions), Message: "by " + c.Name + " to " + joined(rec.Waiting)})
		p = rec.view(id)
		return nil
	})
	return p, err
}

// SettlePush notes that a cluster has answered; refused is why it did not take it, "" when it did.
func (e *Engine) SettlePush(ctx context.Context, id, cluster, refused string) error {
	return e.do(ctx, func(t *tx) error {
		t.pushed(id, cluster, refused)
		return nil
	})
}

func (t *tx) pushed(id, cluster, refused string) {
	old := t.state.federation.pushes[id]
	if old == nil || !slices.Contains(old.Waiting, cluster) {
		return
	}
	next := *old
	next.Waiting = slices.DeleteFunc(slices.Clone(old.Waiting), func(n string) bool { return n == cluster })
	if len(next.Waiting) == 0 {
		delete(t.state.federation.pushes, id)
		t.delete(prefixPush + id)
	} else {
		t.state.federation.pushes[id] = &next
		t.put(prefixPush+id, &next)
	}
	t.group()
	if refused != "" {
		t.event(Event{Kind: "warning", Subject: cluster, Message: "refused definitions for grants: " + refused})
	}
}

// Pushes lists what clusters have not answered yet, by id.
func (e *Engine) Pushes(ctx context.Context) (out []Push, err error) {
	err = e.view(ctx, func(s *state) {
		for id, p := range s.federation.pushes {
			out = append(out, p.view(id))
		}
		slices.SortFunc(out, func(a, b Push) int { return cmp.Compare(a.ID, b.ID) })
	})
	return out, err
}

func joined(list []string) string {
	if len(list) > 10 {
		return joined(list[:10]) + ", …"
	}
	text := ""
	for i, s := range list {
		if i > 0 {
			text += ", "
		}
		text += s
	}
	return text
}
