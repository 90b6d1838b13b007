package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/sched"
)

// ReservationView is a reservation as users see it.
type ReservationView struct {
	ID                        sched.ReservationID
	Name, Organization, Group string // slugs
	Definition                coordinator.DefinitionID
	Device                    string
	GPUs, Nodes               uint32
	From, Until               time.Time
	Created                   time.Time
	CreatedBy                 string
	State                     ReservationState
	Reason                    string // why it has nothing though it has begun
	Ended                     time.Time
	DeletedBy                 string
	Parts                     []ReservedPart
	Idle                      uint32 // devices, or nodes, that no reserved work of it has
	Running, Waiting          int
}

// ReservedPart is what a reservation has of one node.
type ReservedPart struct {
	Node    coordinator.NodeID
	Devices []string // by PCI address, where they are known
	Count   uint32   // of devices; 0: the whole node
}

// ReservationState is the closed set of states that users see.
type ReservationState string

const (
	ReservationPlanned ReservationState = "planned"
	ReservationActive  ReservationState = "active"
	ReservationEnded   ReservationState = "ended"
	ReservationDeleted ReservationState = "deleted"
)

func (r *reservation) state(now time.Time) ReservationState {
	switch {
	case r.record.DeletedBy != "":
		return ReservationDeleted
	case r.over():
		return ReservationEnded
	case r.begun(now):
		return ReservationActive
	}
	return ReservationPlanned
}

// use is what work makes of a reservation.
type use struct {
	running, waiting int
	taken            uint32
}

// uses counts for all reservations at once.
func (s *state) uses() map[sched.ReservationID]*use {
	out := map[sched.ReservationID]*use{}
	of := func(id sched.ReservationID) *use {
		if out[id] == nil {
			out[id] = &use{}
		}
		return out[id]
	}
	for _, a := range s.active {
		if r := s.reservations[a.record.Reservation]; r != nil {
			u := of(r.id)
			u.running++
			u.taken += a.takes(&r.record)
		}
	}
	for _, a := range s.queued {
		if a.job.spec.Class == coordinator.ClassReserved {
			for _, r := range s.servers(a.job) {
				of(r.id).waiting++
			}
		}
	}
	return out
}

func (s *state) reservationView(r *reservation, uses map[sched.ReservationID]*use, now time.Time) ReservationView {
	rec := &r.record
	v := ReservationView{ID: r.id, Name: rec.Name, Organization: string(rec.Organization), Group: string(rec.Group),
		Definition: rec.Definition, Device: rec.Device, GPUs: rec.GPUs, Nodes: rec.Nodes, From: rec.From, Until: rec.Until,
		Created: rec.Created, CreatedBy: rec.CreatedBy, State: r.state(now), Ended: rec.Ended, DeletedBy: rec.DeletedBy}
	if o := s.orgs[rec.Organization]; o != nil {
		v.Organization = o.Slug
	}
	if g := s.groups[rec.Group]; g != nil {
		v.Group = g.Slug
	}
	for _, sh := range rec.Shares {
		v.Parts = append(v.Parts, ReservedPart{Node: sh.Node, Devices: slices.Clone(sh.Devices), Count: sh.Count})
	}
	if v.State == ReservationActive && len(v.Parts) == 0 {
		v.Reason = fmt.Sprintf("definition %s has not as many nodes in use", rec.Definition)
	}
	u := uses[r.id]
	if u == nil {
		u = &use{}
	}
	v.Running, v.Waiting = u.running, u.waiting
	if v.State == ReservationActive && len(v.Parts) > 0 {
		v.Idle = rec.GPUs + rec.Nodes - min(u.taken, rec.GPUs+rec.Nodes)
	}
	return v
}

// takes is how much of a reservation an allocation has.
func (a *allocation) takes(rec *reservationRecord) uint32 {
	nodes := max(a.job.spec.Nodes, 1)
	if rec.GPUs > 0 {
		return a.job.spec.Resources.Devices[rec.Device] * nodes
	}
	return nodes
}

// Reservations lists those that the caller may see, by their beginning; those that are over only if asked for.
func (e *Engine) Reservations(ctx context.Context, c Caller, of string, all bool, p Page) (list []ReservationView, next string, err error) {
	const op = "list reservations"
	if err := c.authorize(auth.PermissionUser, op, auth.Target{}); err != nil {
		return nil, "", err
	}
	verr := e.view(ctx, func(s *state) {
		var only *organization
		if of != "" {
			o, perr := s.permitted(c, auth.PermissionReadOrg, op, of)
			if perr != nil {
				err = perr
				return
			}
			only = o
		}
		var seen []*reservation
		for _, r := range s.reservations {
			target := auth.Target{Organization: r.record.Organization}
			if (all || !r.over()) && (only == nil || only.ID == r.record.Organization) && auth.Allowed(c.Principal, auth.PermissionReadOrg, target) {
				seen = append(seen, r)
			}
		}
		slices.SortFunc(seen, func(a, b *reservation) int { return cmp.Compare(a.token(), b.token()) })
		var chosen []*reservation
		chosen, next = page(seen, p, (*reservation).token, func(r *reservation, token string) bool { return r.token() <= token })
		uses := s.uses()
		for _, r := range chosen {
			list = append(list, s.reservationView(r, uses, e.opt.Now().UTC()))
		}
	})
	return list, next, cmp.Or(verr, err)
}

// token orders by beginning, then id.
func (r *reservation) token() string {
	return r.record.From.UTC().Format("2006-01-02T15:04:05.000000000") + " " + string(r.id)
}

// Reservation shows one.
func (e *Engine) Reservation(ctx context.Context, c Caller, ref string) (v ReservationView, err error) {
	verr := e.view(ctx, func(s *state) {
		r, ferr := s.findReservation(c, "show reservation "+ref, ref)
		if ferr != nil {
			err = ferr
			return
		}
		v = s.reservationView(r, s.uses(), e.opt.Now().UTC())
	})
	return v, cmp.Or(verr, err)
}

// servers are the reservations that are not over in which a job may run, the oldest first.
func (s *state) servers(j *job) []*reservation {
	var out []*reservation
	for _, r := range s.openReservations {
		if r.serves(&j.workflow.record.Owner) && (j.spec.Reservation == "" || r.called(j.spec.Reservation)) {
			out = append(out, r)
		}
	}
	return out
}

// named is the reservation that a job names, as the scheduler knows it. One that is not there any more goes by its name.
func (s *state) named(j *job) sched.ReservationID {
	if j.spec.Class != coordinator.ClassReserved || j.spec.Reservation == "" {
		return ""
	}
	if list := s.servers(j); len(list) > 0 {
		return list[0].id
	}
	return sched.ReservationID(j.spec.Reservation)
}

// reservationName is what users call a reservation.
func (s *state) reservationName(id sched.ReservationID) string {
	if r := s.reservations[id]; r != nil {
		return r.record.Name
	}
	return string(id)
}

// refuseUnreserved refuses a reserved job that no reservation of its owner could ever hold, with the reason of each (rule 10).
func (s *state) refuseUnreserved(op string, j *job) error {
	owner, denied := &j.workflow.record.Owner, func(format string, args ...any) *coordinator.Error {
		return coordinator.Errorf(coordinator.ErrDenied, op, "job %s is reserved work: "+format, append([]any{j.spec.Name}, args...)...)
	}
	list := s.servers(j)
	if len(list) == 0 && j.spec.Reservation != "" {
		return denied("neither group %s nor organisation %s has a reservation %s", owner.GroupSlug, owner.OrganizationSlug, j.spec.Reservation).
			WithHint("%s", s.ownReservations(owner))
	}
	if len(list) == 0 {
		return denied("neither group %s nor organisation %s has a reservation", owner.GroupSlug, owner.OrganizationSlug).
			WithHint("ask a cluster administrator for one, or choose the class on-demand or batch")
	}
	var reasons []string
	q := s.ask(j)
	for _, r := range list {
		why := s.unfit(r, j, q)
		if why == "" {
			return nil
		}
		if len(reasons) < maxReasons {
			reasons = append(reasons, why)
		}
	}
	return denied("%s", strings.Join(reasons, "; ")).WithHint("ask for less, or have a larger reservation made; see `substrate reservation list`")
}

const maxReasons = 10

// unfit says why a reservation could never hold a job, "" when it could.
func (s *state) unfit(r *reservation, j *job, q *question) string {
	rec := &r.record
	nodes := uint64(max(j.spec.Nodes, 1))
	if wants := uint64(j.spec.Resources.Devices[rec.Device]) * nodes; rec.GPUs > 0 && wants > uint64(rec.GPUs) {
		return fmt.Sprintf("it wants %d × %s, reservation %s has %d", wants, rec.Device, rec.Name, rec.GPUs)
	}
	if rec.Nodes > 0 && nodes > uint64(rec.Nodes) {
		return fmt.Sprintf("it wants %s, reservation %s has %d", countOf(int(nodes), "node", "nodes"), rec.Name, rec.Nodes)
	}
	d := s.definition(rec.Definition)
	if d == nil {
		return fmt.Sprintf("definition %s of reservation %s is not configured any more", rec.Definition, rec.Name)
	}
	if by, why := q.refusal(d); by != "" {
		return fmt.Sprintf("definition %s of reservation %s is refused by %s: %s", rec.Definition, rec.Name, by, why())
	}
	return ""
}

func (s *state) ownReservations(o *coordinator.Owner) string {
	var names []string
	for _, r := range s.openReservations {
		if r.serves(o) {
			names = append(names, r.record.Name)
		}
	}
	if len(names) == 0 {
		return "there is none; ask a cluster administrator for one, or choose the class on-demand or batch"
	}
	return "there are " + listed(names)
}
