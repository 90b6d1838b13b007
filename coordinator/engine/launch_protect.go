package engine

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/provision"
	"substrate/coordinator/spec"
)

// protectAfter launches of a definition in a row that ran at the provider and never joined, none more is launched: its image, role or network
// is wrong, and each further one would cost as much for as little.
const protectAfter = 3

// unjoinedRecord counts a definition's launches that ran and never joined, since the last one that did.
type unjoinedRecord struct {
	Definition coordinator.DefinitionID `json:"definition"`
	Spec       string                   `json:"spec"` // digest of what was launched: another one is another try
	Count      int                      `json:"count"`
	Last       time.Time                `json:"last"`
	Why        string                   `json:"why"`               // of the last
	Instance   provision.Handle         `json:"instance"`          // the last
	Console    string                   `json:"console,omitempty"` // a command that shows what it wrote while it booted
}

func unjoinedKey(id coordinator.DefinitionID) string { return prefixUnjoined + string(id) }

// neverJoined counts a launch that ran and never joined.
func (t *tx) neverJoined(l *launch, why string) {
	s := t.state
	if d := s.definition(l.record.Definition); l.isSlot() || d == nil || specDigest(d) != l.record.Spec {
		return // what is launched now is something else
	}
	rec := s.unjoined[l.record.Definition]
	if rec == nil || rec.Spec != l.record.Spec {
		rec = &unjoinedRecord{Definition: l.record.Definition, Spec: l.record.Spec}
		s.unjoined[l.record.Definition] = rec
	}
	rec.Count++
	rec.Last, rec.Why, rec.Instance, rec.Console = t.now, why, l.record.Handle, l.console
	t.put(unjoinedKey(rec.Definition), rec)
	t.group()
	s.core.offers, s.dirty = true, true
	if rec.Count == protectAfter {
		t.event(Event{Kind: "definition-protected", Subject: string(rec.Definition), Message: rec.text(),
			Metadata: map[string]string{"definition": string(rec.Definition), "backend": l.record.Backend.String(), "instance": string(rec.Instance)}})
	}
}

// cause is why a launch came to nothing whose provider gives a reason or none: what ran and ended by itself before its agent came might as well
// have stayed without one.
func (l *launch) cause(given provision.Fault) provision.Fault {
	if !l.record.Running.IsZero() && (given == provision.FaultNone || given == provision.FaultTransient) {
		return provision.FaultUnreachable
	}
	return given
}

// unprotect lets a definition be launched again. It reports whether there was anything to forget.
func (t *tx) unprotect(id coordinator.DefinitionID) bool {
	s := t.state
	if s.unjoined[id] == nil {
		return false
	}
	delete(s.unjoined, id)
	t.delete(unjoinedKey(id))
	t.group()
	s.core.offers, s.dirty = true, true
	return true
}

// forgetUnjoined drops what is counted of definitions that are gone or launch something else now.
func (t *tx) forgetUnjoined() {
	for id, rec := range t.state.unjoined {
		if d := t.state.definition(id); d == nil || specDigest(d) != rec.Spec {
			t.unprotect(id)
		}
	}
}

// protected says why nothing is launched of a definition until somebody says so, "" if it may be.
func (s *state) protected(d *coordinator.Definition) string {
	rec := s.unjoined[d.ID]
	if rec == nil || rec.Count < protectAfter || rec.Spec != specDigest(d) {
		return ""
	}
	return rec.text()
}

func (r *unjoinedRecord) text() string {
	text := fmt.Sprintf("protected: %d launches in a row ran and never joined, the last at %s: %s", r.Count, moment(r.Last), r.Why)
	if r.Console != "" {
		text += "; `" + r.Console + "` shows what it wrote"
	}
	return text + fmt.Sprintf("; `substrate node provisioner resume %s` once that is mended", r.Definition)
}

// ResumeDefinition lets a protected definition be launched again, and one whose launches failed without waiting longer.
func (e *Engine) ResumeDefinition(ctx context.Context, c Caller, id coordinator.DefinitionID) error {
	op := "resume definition " + string(id)
	if err := c.authorize(auth.PermissionAdminCluster, op, auth.Target{}); err != nil {
		return err
	}
	return e.do(ctx, func(t *tx) error {
		s := t.state
		d := s.definition(id)
		if d == nil {
			return noSuch(op, "definition", string(id))
		}
		if d.Kind == spec.KindStatic {
			return coordinator.Errorf(coordinator.ErrInvalid, op, "its nodes are not launched: they are there")
		}
		was := t.unprotect(id)
		if o := s.offers[id]; o != nil && (o.failures > 0 || !o.until.IsZero()) {
			o.failures, o.until, o.why, was = 0, time.Time{}, "", true
			s.core.offers, s.dirty = true, true
		}
		if was {
			t.event(Event{Kind: "definition-resumed", Subject: string(id), Message: "by " + cmp.Or(c.Name, "an administrator"), Metadata: map[string]string{"definition": string(id)}})
		}
		return nil
	})
}
