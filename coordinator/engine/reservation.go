package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/sched"
)

type reservation struct {
	id     sched.ReservationID
	record reservationRecord
}

// Bounds of what is kept and asked for.
const (
	maxReservations = 10_000 // that are not over
	farthest        = 10 * 365 * 24 * time.Hour
)

func (r *reservation) key() string             { return prefixReservation + string(r.id) }
func (r *reservation) over() bool              { return !r.record.Ended.IsZero() }
func (r *reservation) begun(at time.Time) bool { return !r.over() && !at.Before(r.record.From) }

// serves reports whether work of an owner may run in it, if it says so.
func (r *reservation) serves(o *coordinator.Owner) bool {
	return r.record.Organization == o.Organization && (r.record.Group == "" || r.record.Group == o.Group)
}

func (r *reservation) called(ref string) bool { return ref == r.record.Name || ref == string(r.id) }

// size says how much it is in words.
func (r *reservation) size() string {
	if r.record.GPUs > 0 {
		return fmt.Sprintf("%d × %s of %s", r.record.GPUs, r.record.Device, r.record.Definition)
	}
	return countOf(int(r.record.Nodes), "node", "nodes") + " of " + string(r.record.Definition)
}

// NewReservation describes a reservation to make. A From of zero is now.
type NewReservation struct {
	Name, Organization, Group string
	Definition                coordinator.DefinitionID
	Device                    string // "": the only one of the definition's nodes
	GPUs, Nodes               uint32 // one of them
	From, Until               time.Time
	IdempotencyKey            string `json:"-"`
}

// digestOf tells one request from another under the same idempotency key.
func digestOf(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("cannot encode a request: %v", err)) // own types only
	}
	return digest(data)
}

// CreateReservation makes a reservation; only cluster administrators do.
func (e *Engine) CreateReservation(ctx context.Context, c Caller, in NewReservation) (view ReservationView, warnings []string, err error) {
	op := "create reservation " + in.Name
	if err := c.authorize(auth.PermissionAdminCluster, op, auth.Target{}); err != nil {
		return view, nil, err
	}
	var id sched.ReservationID
	err = e.doView(ctx, func(t *tx) error {
		s, key, digest := t.state, "", ""
		if in.IdempotencyKey != "" {
			key, digest = idempotencyKey(c, in.IdempotencyKey), digestOf(in)
			if known := s.reservations[s.reservationKeys[key]]; known != nil {
				if known.record.Digest != digest {
					return coordinator.Errorf(coordinator.ErrConflict, op, "idempotency key %q was used for another reservation", in.IdempotencyKey)
				}
				id = known.id
				return nil
			}
		}
		rec, err := s.newReservation(op, c, in, t.now)
		if err != nil {
			return err
		}
		if warnings, err = s.checkRoom(op, rec); err != nil {
			return err
		}
		text, err := newWorkflowID(t.now, e.opt.Rand)
		if err != nil {
			return err
		}
		rec.Idempotency, rec.Digest = key, digest
		r := &reservation{id: sched.ReservationID(text), record: *rec}
		id = r.id
		s.reservations[id] = r
		if key != "" {
			s.reservationKeys[key] = id
		}
		t.put(r.key(), &r.record)
		t.group()
		s.changedReservations()
		t.event(Event{Kind: "reservation-created", Subject: rec.Name, Message: fmt.Sprintf("%s for %s from %s to %s, by %s",
			r.size(), s.holderOf(r), moment(rec.From), moment(rec.Until), c.Name), Metadata: map[string]string{"id": string(id)}})
		return nil
	}, func(s *state) { view = s.reservationView(s.reservations[id], s.uses(), e.opt.Now().UTC()) })
	return view, warnings, err
}

func moment(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

// holderOf names who has a reservation: "research" or "research/vision".
func (s *state) holderOf(r *reservation) string {
	name := string(r.record.Organization)
	if o := s.orgs[r.record.Organization]; o != nil {
		name = o.Slug
	}
	if g := s.groups[r.record.Group]; g != nil {
		name += "/" + g.Slug
	}
	return name
}

// newReservation checks everything about a reservation to be, but for whether there is room.
func (s *state) newReservation(op string, c Caller, in NewReservation, now time.Time) (*reservationRecord, error) {
	invalid := func(format string, args ...any) *coordinator.Error {
		return coordinator.Errorf(coordinator.ErrInvalid, op, format, args...)
	}
	if err := checkSlug(op, in.Name); err != nil {
		return nil, err
	}
	o := s.organization(in.Organization, c)
	if o == nil {
		return nil, noSuch(op, "organisation", in.Organization)
	}
	rec := &reservationRecord{Name: in.Name, Organization: o.ID, Definition: in.Definition, GPUs: in.GPUs, Nodes: in.Nodes,
		From: in.From.UTC(), Until: in.Until.UTC(), Created: now, CreatedBy: c.Name}
	if in.Group != "" {
		g := s.group(o.ID, in.Group)
		if g == nil {
			return nil, noSuch(op, "group", in.Group)
		}
		rec.Group = g.ID
	}
	if in.From.IsZero() || rec.From.Before(now) {
		rec.From = now
	}
	switch {
	case in.Until.IsZero():
		return nil, invalid("it has no end").WithHint("say when it ends")
	case !rec.Until.After(rec.From):
		return nil, invalid("it ends at %s, which is not after its beginning at %s", moment(rec.Until), moment(rec.From))
	case rec.Until.After(now.Add(farthest)):
		return nil, invalid("it ends at %s, more than ten years from now", moment(rec.Until))
	case (in.GPUs == 0) == (in.Nodes == 0):
		return nil, invalid("it is of a number of devices or of a number of whole nodes, one of them").WithHint("give --gpus N or --nodes N")
	case in.Nodes > 0 && in.Device != "":
		return nil, invalid("whole nodes come with all their devices").WithHint("leave out --device, or give --gpus instead of --nodes")
	}
	for _, r := range s.openReservations {
		if r.record.Name == in.Name {
			return nil, coordinator.Errorf(coordinator.ErrExists, op, "there is one of this name until %s", moment(r.record.Until)).
				WithHint("choose another name, or delete that one first")
		}
	}
	if open := len(s.openReservations); open >= maxReservations {
		return nil, coordinator.Errorf(coordinator.ErrExhausted, op, "there are %d reservations already", open)
	}
	var err error
	rec.Device, err = s.deviceFor(op, in)
	return rec, err
}

// deviceFor finds the definition, and which device is meant.
func (s *state) deviceFor(op string, in NewReservation) (string, error) {
	d := s.definition(in.Definition)
	if d == nil {
		return "", noSuch(op, "definition", string(in.Definition)).WithHint("see `substrate node provisioner list`")
	}
	if in.GPUs == 0 {
		return "", nil
	}
	kinds := map[string]bool{}
	known := d.Hardware != nil
	if known {
		for name := range d.Hardware.Devices {
			kinds[name] = true
		}
	}
	for _, n := range s.config.nodesOf[d.ID] {
		known = known || n.known
		for name, count := range n.capacity.Devices {
			if count > 0 {
				kinds[name] = true
			}
		}
	}
	names := slices.Sorted(maps.Keys(kinds))
	gpus := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !isGPU(name) })
	switch {
	case in.Device != "" && known && !kinds[in.Device]:
		return "", coordinator.Errorf(coordinator.ErrInvalid, op, "the nodes of %s have no %s", d.ID, in.Device).
			WithHint("their devices: %s", cmp.Or(strings.Join(names, ", "), "none"))
	case in.Device != "":
		return in.Device, nil
	case len(gpus) == 1:
		return gpus[0], nil
	case len(gpus) > 1:
		return "", coordinator.Errorf(coordinator.ErrInvalid, op, "the nodes of %s have several kinds of GPUs: %s", d.ID, strings.Join(gpus, ", ")).
			WithHint("say which with --device")
	case known:
		return "", coordinator.Errorf(coordinator.ErrInvalid, op, "the nodes of %s have no GPUs", d.ID).
			WithHint("reserve whole nodes with --nodes, or another device with --device")
	}
	return "", coordinator.Errorf(coordinator.ErrInvalid, op, "no node of %s has told what devices it has", d.ID).
		WithHint("name the device with --device, as jobs do")
}

func (s *state) definition(id coordinator.DefinitionID) *coordinator.Definition {
	for i := range s.config.Definitions {
		if d := &s.config.Definitions[i]; d.ID == id {
			return d
		}
	}
	return nil
}

// checkRoom refuses a reservation that its definition could not hold beside those that are there already. What is
// not known yet never refuses.
func (s *state) checkRoom(op string, rec *reservationRecord) (warnings []string, err error) {
	total, nodes, known := uint64(0), uint64(0), false
	for _, n := range s.config.nodesOf[rec.Definition] {
		nodes++
		known = known || n.known
		total += uint64(n.capacity.Devices[rec.Device])
	}
	if !known {
		warnings = append(warnings, fmt.Sprintf("no node of %s is known yet: the reservation waits for nodes when it begins", rec.Definition))
	}
	if o := s.orgs[rec.Organization]; o != nil {
		if d := s.definition(rec.Definition); d != nil {
			if doc, gerr := s.grantDocument(o); gerr != nil || !doc.Names(d.Configured, d.Fingerprint) {
				warnings = append(warnings, fmt.Sprintf("the grant of organisation %s does not name %s, so none of its work could run there", o.Slug, d.Configured))
			}
		}
	}
	taken, who := s.reservedMost(rec)
	has, wants, what := nodes, uint64(rec.Nodes), "nodes"
	if rec.GPUs > 0 {
		has, wants, what = total, uint64(rec.GPUs), rec.Device
	}
	if !known || wants+taken <= has {
		return warnings, nil
	}
	e := coordinator.Errorf(coordinator.ErrExhausted, op, "it asks for %d %s, definition %s has %d", wants, what, rec.Definition, has)
	if taken > 0 {
		e = coordinator.Errorf(coordinator.ErrExhausted, op, "it asks for %d %s, definition %s has %d, and %d of them are reserved at that time by %s",
			wants, what, rec.Definition, has, taken, listed(who))
	}
	return warnings, e.WithHint("ask for less, or for another time; see `substrate reservation list`")
}

// reservedMost is the most that others of the same kind have reserved at one moment of a reservation.
func (s *state) reservedMost(rec *reservationRecord) (most uint64, who []string) {
	var with []*reservation
	for _, r := range s.openReservations {
		if o := &r.record; o.Definition == rec.Definition && o.Device == rec.Device && o.From.Before(rec.Until) && rec.From.Before(o.Until) {
			with = append(with, r)
		}
	}
	for _, at := range append([]*reservation{{record: *rec}}, with...) { // it is most where one begins
		sum := uint64(0)
		var names []string
		for _, r := range with {
			if from := at.record.From; !r.record.From.After(from) && r.record.Until.After(from) {
				sum += uint64(r.record.GPUs) + uint64(r.record.Nodes)
				names = append(names, r.record.Name)
			}
		}
		if sum > most {
			most, who = sum, names
		}
	}
	return most, who
}

// sortedReservations lists all, the oldest first.
func (s *state) sortedReservations() []*reservation {
	out := make([]*reservation, 0, len(s.reservations))
	for _, r := range s.reservations {
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b *reservation) int {
		return cmp.Or(a.record.Created.Compare(b.record.Created), cmp.Compare(a.id, b.id))
	})
	return out
}

// changedReservations has the scheduler told of all reservations, and reserved work looked at again.
func (s *state) changedReservations() {
	s.core.reservations, s.dirty = true, true
	s.planCalendar()
	for _, a := range s.queued {
		if a.job.spec.Class == coordinator.ClassReserved {
			s.changed(a)
		}
	}
}

// tellReservations is all that are not over, as the scheduler wants them.
func (s *state) tellReservations() []sched.Reservation {
	out := []sched.Reservation{}
	for _, r := range s.openReservations {
		rec := &r.record
		x := sched.Reservation{ID: r.id, Name: rec.Name, Organization: rec.Organization, Group: rec.Group, Definition: rec.Definition,
			Device: rec.Device, GPUs: rec.GPUs, Nodes: rec.Nodes, From: rec.From, Until: rec.Until, Created: rec.Created}
		for i := range rec.Shares {
			if share, ok := s.reserved(&rec.Shares[i]); ok {
				x.Shares = append(x.Shares, share)
			}
		}
		out = append(out, x)
	}
	return out
}

// reserved translates what is stored of one node: a device that the node does not report any more is missing.
func (s *state) reserved(r *reservedRecord) (share sched.Share, ok bool) {
	share.Node = r.Node
	n := s.nodes[r.Node]
	if n == nil || r.Count == 0 {
		return share, n != nil
	}
	if len(n.detail.gpus) == 0 || len(r.Devices) == 0 { // only counted
		for i := range int(r.Count) {
			share.Devices = append(share.Devices, i)
		}
		return share, true
	}
	for i, g := range n.detail.gpus {
		if slices.Contains(r.Devices, g.ID) {
			share.Devices = append(share.Devices, i)
		}
	}
	return share, len(share.Devices) > 0
}

// placeReservation writes what a reservation that begins consists of.
func (t *tx) placeReservation(p *sched.Reserve) {
	s := t.state
	r := s.reservations[p.ID]
	if r == nil || r.over() {
		return
	}
	r.record.Shares = nil
	var nodes []coordinator.NodeID
	for i := range p.Shares {
		share := &p.Shares[i]
		r.record.Shares = append(r.record.Shares, reservedRecord{Node: share.Node, Count: uint32(len(share.Devices)),
			Devices: recordOf(s.nodes[share.Node], share).Devices})
		nodes = append(nodes, share.Node)
	}
	t.put(r.key(), &r.record)
	t.group()
	t.event(Event{Kind: "reservation-placed", Subject: r.record.Name, Message: fmt.Sprintf("has %s on %s", r.size(), listed(nodes)),
		Metadata: map[string]string{"id": string(r.id)}})
}

// endReservation ends it; who is "" when its time is over. What runs in it runs on.
func (t *tx) endReservation(r *reservation, at time.Time, who string) {
	s := t.state
	r.record.Ended, r.record.DeletedBy = at, who
	t.put(r.key(), &r.record)
	t.group()
	s.changedReservations()
	runs := 0
	for _, a := range s.active {
		if a.record.Reservation == r.id {
			runs++
		}
	}
	kind, message := "reservation-ended", "its time is over"
	if who != "" {
		kind, message = "reservation-deleted", "deleted by "+who
	}
	if runs > 0 {
		message += fmt.Sprintf("; %s in it to the end", countOf(runs, "allocation runs", "allocations run"))
	}
	t.event(Event{Kind: kind, Subject: r.record.Name, Message: message, Metadata: map[string]string{"id": string(r.id)}})
	t.tellWaiting(r, message)
}

// tellWaiting warns the owners of work that waits for a reservation that is over, if it has no other.
func (t *tx) tellWaiting(r *reservation, why string) {
	told := map[*job]bool{}
	for _, a := range sortedAllocations(t.state.queued) {
		j := a.job
		if told[j] || j.spec.Class != coordinator.ClassReserved || !r.serves(&j.workflow.record.Owner) {
			continue
		}
		if ref := j.spec.Reservation; ref != "" && !r.called(ref) || len(t.state.servers(j)) > 0 {
			continue
		}
		if told[j] = true; len(told) > maxTold {
			return
		}
		t.event(Event{Kind: "warning", Workflow: j.workflow.id, Job: j.spec.Name, Subject: r.record.Name,
			Message: fmt.Sprintf("reservation %s: %s; the job waits until there is another one for it", r.record.Name, why)})
	}
}

const maxTold = 1000 // jobs that are warned at one time

// DeleteReservation ends a reservation before its time.
func (e *Engine) DeleteReservation(ctx context.Context, c Caller, ref string) (view ReservationView, err error) {
	op := "delete reservation " + ref
	if err := c.authorize(auth.PermissionAdminCluster, op, auth.Target{}); err != nil {
		return view, err
	}
	var id sched.ReservationID
	err = e.doView(ctx, func(t *tx) error {
		r, err := t.state.findReservation(c, op, ref)
		if err != nil {
			return err
		}
		if r.over() {
			return coordinator.Errorf(coordinator.ErrConflict, op, "it has been over since %s", moment(r.record.Ended))
		}
		id = r.id
		t.endReservation(r, t.now, cmp.Or(c.Name, "an administrator"))
		return nil
	}, func(s *state) { view = s.reservationView(s.reservations[id], s.uses(), e.opt.Now().UTC()) })
	return view, err
}

// findReservation finds one that the caller may see: by id, or by name, those that are not over first, then the newest.
func (s *state) findReservation(c Caller, op, ref string) (*reservation, error) {
	if err := c.authorize(auth.PermissionUser, op, auth.Target{}); err != nil {
		return nil, err
	}
	var found *reservation
	for _, r := range s.sortedReservations() {
		if !r.called(ref) || !auth.Allowed(c.Principal, auth.PermissionReadOrg, auth.Target{Organization: r.record.Organization}) {
			continue
		}
		if found == nil || found.over() {
			found = r
		}
	}
	if found == nil {
		return nil, noSuch(op, "reservation", ref)
	}
	return found, nil
}
