package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/sched"
)

// window's id is the number of the entry of the status history that announced it.
type window struct {
	id     string
	record windowRecord
}

// StatusKind is what an entry of the status history tells. Append only.
type StatusKind string

const (
	StatusAnnounced StatusKind = "announced"
	StatusBegun     StatusKind = "begun"
	StatusEnded     StatusKind = "ended"
	StatusCancelled StatusKind = "cancelled"
	StatusNote      StatusKind = "note"
)

const (
	maxWindows       = 1_000                // that are not over
	maxWindowNodes   = 10_000               // named by one
	longestWindow    = 366 * 24 * time.Hour //
	maxStatusMessage = 2_000                // bytes
	noticeSlack      = 5 * time.Minute      // clocks differ, and an announcement takes a moment to arrive
	maxCrossing      = 10                   // jobs that an announcement names
	nodesInHistory   = 1_000                // of a window, listed in an entry
)

func (w *window) key() string { return prefixWindow + w.id }
func (w *window) over() bool  { return !w.record.Ended.IsZero() }

// active reports whether it lasts now.
func (w *window) active(now time.Time) bool {
	return !w.over() && !now.Before(w.record.From) && now.Before(w.record.Until)
}

// covers reports whether a node is in maintenance while the window lasts.
func (w *window) covers(n *node) bool {
	r := &w.record
	if len(r.Nodes) == 0 && r.Definition == "" {
		return true
	}
	_, named := slices.BinarySearch(r.Nodes, n.id) // they are sorted
	return named || r.Definition != "" && n.record.Definition == r.Definition
}

// scope says in words what it is about.
func (r *windowRecord) scope() string {
	switch {
	case len(r.Nodes) > 0 && r.Definition != "":
		return fmt.Sprintf("%s and the nodes of %s", listed(r.Nodes), r.Definition)
	case len(r.Nodes) > 0:
		return listed(r.Nodes)
	case r.Definition != "":
		return "the nodes of " + string(r.Definition)
	}
	return "all nodes"
}

// NewMaintenance is an announcement. A From of zero is now.
type NewMaintenance struct {
	Nodes          []coordinator.NodeID
	Definition     coordinator.DefinitionID
	From, Until    time.Time
	Message        string
	Emergency      bool
	IdempotencyKey string `json:"-"`
}

// MaintenanceView is maintenance as users see it.
type MaintenanceView struct {
	ID          string
	Nodes       []coordinator.NodeID
	Definition  coordinator.DefinitionID
	From, Until time.Time
	Message     string
	Emergency   bool
	State       string // planned, active, ended, cancelled
	Announced   time.Time
	AnnouncedBy string
	Ended       time.Time
	CancelledBy string
}

func (w *window) view(now time.Time) MaintenanceView {
	r := &w.record
	v := MaintenanceView{ID: w.id, Nodes: slices.Clone(r.Nodes), Definition: r.Definition, From: r.From, Until: r.Until, Message: r.Message,
		Emergency: r.Emergency, State: "planned", Announced: r.Announced, AnnouncedBy: r.AnnouncedBy, Ended: r.Ended, CancelledBy: r.CancelledBy}
	switch {
	case r.CancelledBy != "":
		v.State = "cancelled"
	case w.over():
		v.State = "ended"
	case w.active(now):
		v.State = "active"
	}
	return v
}

// AnnounceMaintenance tells everybody that nodes will be in maintenance; only cluster administrators do.
func (e *Engine) AnnounceMaintenance(ctx context.Context, c Caller, in NewMaintenance) (view MaintenanceView, warnings []string, err error) {
	const op = "announce maintenance"
	if err := c.authorize(auth.PermissionAdminCluster, op, auth.Target{}); err != nil {
		return view, nil, err
	}
	id := ""
	err = e.doView(ctx, func(t *tx) error {
		s, key, digest := t.state, "", ""
		if in.IdempotencyKey != "" {
			key, digest = idempotencyKey(c, in.IdempotencyKey), digestOf(in)
			if known := s.windows[s.windowKeys[key]]; known != nil {
				if known.record.Digest != digest {
					return coordinator.Errorf(coordinator.ErrConflict, op, "idempotency key %q was used for another announcement", in.IdempotencyKey)
				}
				id = known.id
				return nil
			}
		}
		rec, err := s.newWindow(op, c, in, t.now)
		if err != nil {
			return err
		}
		rec.Idempotency, rec.Digest = key, digest
		id = strconv.FormatUint(s.nextStatus(), 10)
		w := &window{id: id, record: *rec}
		s.windows[id] = w
		if key != "" {
			s.windowKeys[key] = id
		}
		t.tell(w, StatusAnnounced, c.Name)
		warnings = s.crossing(w)
		return nil
	}, func(s *state) { view = s.windows[id].view(e.opt.Now().UTC()) })
	return view, warnings, err
}

// newWindow checks an announcement.
func (s *state) newWindow(op string, c Caller, in NewMaintenance, now time.Time) (*windowRecord, error) {
	invalid := func(format string, args ...any) *coordinator.Error {
		return coordinator.Errorf(coordinator.ErrInvalid, op, format, args...)
	}
	rec := &windowRecord{Nodes: slices.Compact(slices.Sorted(slices.Values(in.Nodes))), Definition: in.Definition, From: in.From.UTC(), Until: in.Until.UTC(),
		Message: strings.TrimSpace(in.Message), Announced: now, AnnouncedBy: c.Name}
	if in.From.IsZero() || rec.From.Before(now) {
		rec.From = now
	}
	notice := s.config.Scheduler.MaintenanceNotice
	late := rec.From.Before(now.Add(notice - noticeSlack))
	switch {
	case rec.Message == "":
		return nil, invalid("it has no message").WithHint("say what users should know; everybody reads it")
	case len(rec.Message) > maxStatusMessage:
		return nil, invalid("the message has %d bytes, more than %d", len(rec.Message), maxStatusMessage)
	case in.Until.IsZero():
		return nil, invalid("it has no end").WithHint("say when it ends")
	case !rec.Until.After(rec.From):
		return nil, invalid("it ends at %s, which is not after its beginning at %s", moment(rec.Until), moment(rec.From))
	case rec.Until.Sub(rec.From) > longestWindow:
		return nil, invalid("it lasts longer than a year").WithHint("cordon the nodes instead")
	case rec.From.After(now.Add(farthest)):
		return nil, invalid("it begins at %s, more than ten years from now", moment(rec.From))
	case late && !in.Emergency:
		return nil, invalid("it begins at %s, and maintenance is announced %s before", moment(rec.From), inDays(notice)).
			WithHint("choose %s or later, or say that it is an emergency with --emergency", moment(now.Add(notice)))
	case len(rec.Nodes) > maxWindowNodes:
		return nil, invalid("it names %d nodes, more than %d", len(rec.Nodes), maxWindowNodes)
	}
	rec.Emergency = late
	for _, id := range rec.Nodes {
		if s.nodes[id] == nil {
			return nil, noSuch(op, "node", string(id)).WithHint("see `substrate node list`")
		}
	}
	if rec.Definition != "" && s.definition(rec.Definition) == nil {
		return nil, noSuch(op, "definition", string(rec.Definition))
	}
	if open := len(s.openWindows); open >= maxWindows {
		return nil, coordinator.Errorf(coordinator.ErrExhausted, op, "%d are announced already", open)
	}
	return rec, nil
}

// inDays writes whole days as such.
func inDays(d time.Duration) string {
	if days := d / (24 * time.Hour); days > 0 && d%(24*time.Hour) == 0 {
		return countOf(int(days), "day", "days")
	}
	return d.String()
}

// crossing names work that may run on into the window: it is not stopped (rule 26).
func (s *state) crossing(w *window) []string {
	var out []string
	more := 0
	for _, a := range sortedAllocations(s.active) {
		if a.job.spec.Class == coordinator.ClassBatch || !slices.ContainsFunc(a.record.Ranks, func(r rankRecord) bool { return s.nodes[r.Node] != nil && w.covers(s.nodes[r.Node]) }) {
			continue
		}
		end := a.endsBy()
		if !end.IsZero() && !end.After(w.record.From) {
			continue
		}
		if len(out) == maxCrossing {
			more++
			continue
		}
		until := "and has no walltime"
		if !end.IsZero() {
			until = "until " + moment(end)
		}
		out = append(out, fmt.Sprintf("%s may run on %s, past the beginning, %s", a.id, listed(a.nodeIDs()), until))
	}
	if more > 0 {
		out = append(out, fmt.Sprintf("and %d more", more))
	}
	return out
}

// endsBy is when an allocation that has a place is over at the latest by its walltime, zero without one.
func (a *allocation) endsBy() time.Time {
	started := a.record.Started
	if started.IsZero() {
		started = a.record.Placed
	}
	if a.job.spec.Walltime <= 0 || started.IsZero() {
		return time.Time{}
	}
	return started.Add(a.job.spec.Walltime)
}

// nextStatus is the number of the next entry of the status history.
func (s *state) nextStatus() uint64 {
	if len(s.history) == 0 {
		return 1
	}
	return s.history[len(s.history)-1].Number + 1
}

// tell writes a window as it stands now, and the entry of the status history that says what has become of it, as one.
func (t *tx) tell(w *window, kind StatusKind, who string) {
	r := &w.record
	t.put(w.key(), r)
	t.addStatus(StatusEntry{Kind: kind, Window: w.id, Nodes: r.Nodes[:min(len(r.Nodes), nodesInHistory)], Definition: r.Definition,
		From: r.From, Until: r.Until, Emergency: r.Emergency, Message: r.Message, By: who})
	word := string(kind)
	if r.Emergency && kind == StatusAnnounced {
		word = "announced as an emergency"
	}
	message := fmt.Sprintf("%s: %s from %s to %s: %s", word, r.scope(), moment(r.From), moment(r.Until), r.Message)
	if who != "" {
		message += ", by " + who
	}
	t.event(Event{Kind: "maintenance-" + string(kind), Subject: w.id, Message: message})
	t.state.core.windows, t.state.dirty = true, true
	t.state.planCalendar()
}

// addStatus appends to the status history, and closes the group.
func (t *tx) addStatus(entry StatusEntry) {
	entry.Number, entry.Time = t.state.nextStatus(), t.now
	t.state.history = append(t.state.history, entry)
	t.put(statusKey(entry.Number), entry)
	t.group()
}

// tellWindows is what is announced and not over, as the scheduler wants it.
func (s *state) tellWindows() []sched.Window {
	var out []sched.Window
	for _, w := range s.openWindows {
		r := &w.record
		x := sched.Window{ID: w.id, From: r.From, Until: r.Until, Emergency: r.Emergency}
		if len(r.Nodes) > 0 || r.Definition != "" {
			x.Nodes = slices.Concat([]coordinator.NodeID{}, r.Nodes)
			for _, n := range s.config.nodesOf[r.Definition] {
				x.Nodes = append(x.Nodes, n.id)
			}
			slices.Sort(x.Nodes)
			x.Nodes = slices.Compact(x.Nodes)
		}
		out = append(out, x)
	}
	return out
}

// sortedWindows lists all by beginning, then id.
func (s *state) sortedWindows() []*window {
	out := make([]*window, 0, len(s.windows))
	for _, w := range s.windows {
		out = append(out, w)
	}
	slices.SortFunc(out, func(a, b *window) int { return cmp.Compare(a.token(), b.token()) })
	return out
}

func (w *window) token() string {
	return fmt.Sprintf("%s %20s", w.record.From.UTC().Format("2006-01-02T15:04:05.000000000"), w.id)
}

// Maintenance lists what is announced and not over, by its beginning, or all that is known.
func (e *Engine) Maintenance(ctx context.Context, c Caller, all bool, p Page) (list []MaintenanceView, next string, err error) {
	if err := c.authorize(auth.PermissionUser, "list maintenance", auth.Target{}); err != nil {
		return nil, "", err
	}
	err = e.view(ctx, func(s *state) {
		seen := slices.DeleteFunc(s.sortedWindows(), func(w *window) bool { return w.over() && !all })
		var chosen []*window
		chosen, next = page(seen, p, (*window).token, func(w *window, token string) bool { return w.token() <= token })
		for _, w := range chosen {
			list = append(list, w.view(e.opt.Now().UTC()))
		}
	})
	return list, next, err
}

// CancelMaintenance calls a window off, or ends one that has begun.
func (e *Engine) CancelMaintenance(ctx context.Context, c Caller, id string) (view MaintenanceView, err error) {
	op := "cancel maintenance " + id
	if err := c.authorize(auth.PermissionAdminCluster, op, auth.Target{}); err != nil {
		return view, err
	}
	err = e.doView(ctx, func(t *tx) error {
		w := t.state.windows[id]
		if w == nil {
			return noSuch(op, "maintenance", id)
		}
		if w.over() {
			return coordinator.Errorf(coordinator.ErrConflict, op, "it has been over since %s", moment(w.record.Ended))
		}
		w.record.Ended, w.record.CancelledBy = t.now, cmp.Or(c.Name, "an administrator")
		t.tell(w, StatusCancelled, c.Name)
		return nil
	}, func(s *state) { view = s.windows[id].view(e.opt.Now().UTC()) })
	return view, err
}

// StatusHistory lists what was told about the cluster, the newest first.
func (e *Engine) StatusHistory(ctx context.Context, c Caller, p Page) (list []StatusEntry, next string, err error) {
	if err := c.authorize(auth.PermissionUser, "show the status history", auth.Target{}); err != nil {
		return nil, "", err
	}
	err = e.view(ctx, func(s *state) {
		newest := slices.Clone(s.history)
		slices.Reverse(newest)
		list, next = page(newest, p, func(x StatusEntry) string { return strconv.FormatUint(x.Number, 10) },
			func(x StatusEntry, token string) bool {
				last, err := strconv.ParseUint(token, 10, 64)
				return err != nil || x.Number >= last
			})
	})
	return list, next, err
}

// AddStatusNote adds a note of an administrator to the status history.
func (e *Engine) AddStatusNote(ctx context.Context, c Caller, message string) (entry StatusEntry, err error) {
	const op = "add to the status history"
	if err := c.authorize(auth.PermissionAdminCluster, op, auth.Target{}); err != nil {
		return entry, err
	}
	message = strings.TrimSpace(message)
	if message == "" || len(message) > maxStatusMessage {
		return entry, coordinator.Errorf(coordinator.ErrInvalid, op, "the message has %d bytes, expected 1 to %d", len(message), maxStatusMessage)
	}
	err = e.do(ctx, func(t *tx) error {
		t.addStatus(StatusEntry{Kind: StatusNote, Message: message, By: c.Name})
		entry = t.state.history[len(t.state.history)-1]
		t.event(Event{Kind: "status-note", Message: message + ", by " + c.Name})
		return nil
	})
	return entry, err
}

// maintenanceOf is the window that a node is in now, else the next one that it will be in; nil for none.
func (s *state) maintenanceOf(n *node, now time.Time) (w *window, active bool) {
	for _, x := range s.openWindows {
		if now.Before(x.record.Until) && x.covers(n) {
			return x, x.active(now)
		}
	}
	return nil, false
}
