package engine

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/catalogue"
	"substrate/coordinator/provision"
	"substrate/coordinator/spec"
	"substrate/hwinfo"
)

// A discovery is one instance of a type that is launched for a look at its hardware: its agent joins with a token for that launch alone, its first report
// becomes what is known of the type, nothing is ever placed on it, and it is released. What is to be looked at is stored, and so is what that
// has cost today.

// Outcomes of asking for a discovery.
const (
	DiscoveryStarted   = "started" // or waits for its turn
	DiscoveryRunning   = "running" // was asked for before
	DiscoveryKnown     = "known"   // a node of the type has reported
	DiscoveryNotNeeded = "not-needed"
	DiscoveryRefused   = "refused"
)

// DiscoveryView is what became of asking for one definition.
type DiscoveryView struct {
	Definition  coordinator.DefinitionID
	Type, Image string
	Outcome     string
	Text        string
	CostPerHour *float64
	AtMost      *float64 // USD, if everything takes as long as it may
}

func wantedKey(id string) string { return prefixDiscovery + id }

// keyID names a type and image in keys of the store.
func keyID(k catalogue.Key) string { return (&catalogue.Report{Key: k}).ID() }

// discoverable reports whether a look finds out more than is known: batch systems give what they are asked for.
func discoverable(kind string) bool { return kind != spec.KindStatic && !spec.Batch(kind) }

// longestLook is how long a discovery of a definition may last, from the first call to its report.
func (s *state) longestLook(d *coordinator.Definition) time.Duration {
	return joinDeadline(d) + s.config.checked.Discovery.SettleTimeout
}

// atMost is what a discovery may cost, nil where nobody knows the price.
func (s *state) atMost(d *coordinator.Definition) *float64 {
	price := s.price(d)
	if price == nil {
		return nil
	}
	most := *price * s.longestLook(d).Hours()
	return &most
}

// Discover has the hardware of definitions looked at, of all that need it where none is named. It returns at once; launches follow as the limits allow.
func (e *Engine) Discover(ctx context.Context, c Caller, ids []coordinator.DefinitionID) (out []DiscoveryView, err error) {
	const op = "discover hardware"
	if err := c.authorize(auth.PermissionAdminCluster, op, auth.Target{}); err != nil {
		return nil, err
	}
	err = e.do(ctx, func(t *tx) error {
		s := t.state
		for _, id := range ids {
			if !slices.ContainsFunc(s.config.Definitions, func(d coordinator.Definition) bool { return d.ID == id || d.Configured == string(id) }) {
				return noSuch(op, "definition", string(id))
			}
		}
		out = nil
		for i := range s.config.Definitions {
			d := &s.config.Definitions[i]
			named := slices.ContainsFunc(ids, func(id coordinator.DefinitionID) bool { return d.ID == id || d.Configured == string(id) })
			switch {
			case named:
				out = append(out, t.discover(d, c.Name))
			case len(ids) > 0:
			case d.Kind == spec.KindCoreWeave:
				v := s.discoveryView(d)
				v.Outcome, v.Text = DiscoveryNotNeeded, "it is looked at only when it is named: "+s.costText(d)+", and it takes about 20 minutes"
				out = append(out, v)
			default:
				out = append(out, t.discover(d, c.Name))
			}
		}
		t.wakeProvisioners()
		return nil
	})
	return out, err
}

func (s *state) discoveryView(d *coordinator.Definition) DiscoveryView {
	v := DiscoveryView{Definition: d.ID, CostPerHour: s.price(d)}
	v.Type, v.Image = spec.TypeOf(d.Spec)
	if discoverable(d.Kind) {
		v.AtMost = s.atMost(d)
	}
	return v
}

func (s *state) costText(d *coordinator.Definition) string {
	price, most := s.price(d), s.atMost(d)
	if price == nil {
		return "nobody knows what it costs"
	}
	return fmt.Sprintf("%.4g USD per hour, at most %.2g USD", *price, *most)
}

// discover notes that a definition's type is to be looked at, if that is of use.
func (t *tx) discover(d *coordinator.Definition, by string) DiscoveryView {
	s := t.state
	v := s.discoveryView(d)
	key := s.config.types[d.ID]
	id := keyID(key)
	switch {
	case d.Kind == spec.KindStatic:
		v.Outcome, v.Text = DiscoveryNotNeeded, "static nodes report themselves"
	case spec.Batch(d.Kind):
		v.Outcome, v.Text = DiscoveryNotNeeded, fmt.Sprintf("%s gives a node what the definition asks for: %s", d.Kind, hardwareText(d.Hardware))
	case !s.provides(d.Kind):
		v.Outcome, v.Text = DiscoveryRefused, "backend not in this build"
	case s.reportOf(d) != nil:
		v.Outcome, v.Text = DiscoveryKnown, fmt.Sprintf("a node has reported at %s: %s", moment(s.reportOf(d).Last), hardwareText(s.reportOf(d).Hardware()))
	case s.discoveries[id] != nil:
		v.Outcome, v.Text = DiscoveryRunning, cmp.Or(s.discoveries[id].Waits, "it was asked for before")
	default:
		rec := &discoveryRecord{Key: key, Definition: d.ID, By: by, At: t.now}
		s.discoveries[id] = rec
		t.put(wantedKey(id), rec)
		t.group()
		v.Outcome, v.Text = DiscoveryStarted, s.costText(d)
	}
	return v
}

// autoDiscover notes what a configuration has that nobody has seen, where definitions say so: of all, or of those that were not there before.
func (t *tx) autoDiscover(before map[string]bool) {
	s := t.state
	for i := range s.config.Definitions {
		if d := &s.config.Definitions[i]; d.AutoDiscover && !before[string(d.ID)] && discoverable(d.Kind) && d.Kind != spec.KindCoreWeave {
			t.discover(d, "autoDiscover")
		}
	}
}

// startDiscoveries launches what is to be looked at through a backend, as far as the limits allow.
func (t *tx) startDiscoveries(b backendID) {
	s := t.state
	if len(s.discoveries) == 0 {
		return
	}
	running := 0
	for _, l := range s.launches {
		if l.record.Discovery {
			running++
		}
	}
	for _, id := range slices.Sorted(maps.Keys(s.discoveries)) {
		rec := s.discoveries[id]
		d := s.definition(rec.Definition)
		switch {
		case d == nil || s.config.types[d.ID] != rec.Key:
			t.forgetDiscovery(id, "its definition is gone or has changed")
		case s.reportOf(d) != nil:
			t.forgetDiscovery(id, "")
		case s.backendOf(d) != b || t.launching(rec.Key):
		default:
			if rec.Waits = s.whyLater(d, running, t.now); rec.Waits == "" {
				t.launchDiscovery(id, d)
				running++
			}
		}
	}
}

// launching reports whether an instance of a type is on its way, or not gone yet: it will report, or its end is waited for.
func (t *tx) launching(key catalogue.Key) bool {
	for _, l := range t.state.launches {
		if l.record.Type == key && (l.record.Discovery || l.record.Release == "") {
			return true
		}
	}
	return false
}

// whyLater is what keeps a discovery from being launched now.
func (s *state) whyLater(d *coordinator.Definition, running int, now time.Time) string {
	limits := s.config.checked.Discovery
	o := s.offers[d.ID]
	switch {
	case o == nil:
		return "its backend has not answered yet"
	case s.unavailable(d) != "":
		return s.unavailable(d)
	case now.Before(o.until):
		return fmt.Sprintf("not launched before %s: %s", moment(o.until), o.why)
	case running >= limits.Concurrency:
		return fmt.Sprintf("%d discoveries are under way, as many as discovery.concurrency allows", running)
	case limits.BudgetPerDay == nil:
		return ""
	}
	most := s.atMost(d)
	switch spent := s.spentOn(now); {
	case most == nil:
		return "nobody knows what it costs, and discovery.budgetPerDay is set"
	case spent.USD+*most > *limits.BudgetPerDay:
		return fmt.Sprintf("it may cost %.2g USD, and of discovery.budgetPerDay, %.4g USD, %.2g are spent or set aside today", *most, *limits.BudgetPerDay, spent.USD)
	}
	return ""
}

// spentOn is what discoveries have cost on a day, what is under way counted with the most that it may cost.
func (s *state) spentOn(now time.Time) discoverySpent {
	if day := now.UTC().Format(time.DateOnly); s.spent.Day != day {
		return discoverySpent{Day: day}
	}
	return s.spent
}

func (t *tx) launchDiscovery(id string, d *coordinator.Definition) {
	s := t.state
	backend, connection := connectionOf(s.config.checked, d)
	l := &launch{record: launchRecord{
		ID: launchID(fmt.Sprintf("discovery.%s.%d", id, t.now.UnixNano())), Definition: d.ID, Backend: backend, Connection: connection, Spec: specDigest(d),
		Type: s.config.types[d.ID], Nodes: 1, Since: t.now, Until: t.now.Add(s.offers[d.ID].Launch), Discovery: true,
	}, arrived: map[coordinator.NodeID]bool{}}
	if price := s.price(d); price != nil {
		l.record.CostPerHour, l.record.SetAside = *price, *s.atMost(d)
	}
	spent := s.spentOn(t.now)
	spent.USD += l.record.SetAside
	spent.Boots++
	s.spent = spent
	s.launches[l.record.ID] = l
	t.put(keySpent, spent)
	t.putLaunch(l)
	t.event(Event{Kind: "discovery-started", Subject: l.record.Type.Type, Metadata: map[string]string{"definition": string(d.ID), "launch": string(l.record.ID)},
		Message: fmt.Sprintf("for definition %s: %s; %.2g USD are spent or set aside today", d.ID, s.costText(d), spent.USD)})
}

// forgetDiscovery ends a wish, with the reason where it came to nothing.
func (t *tx) forgetDiscovery(id, why string) {
	rec := t.state.discoveries[id]
	if rec == nil {
		return
	}
	delete(t.state.discoveries, id)
	t.delete(wantedKey(id))
	t.group()
	if why != "" {
		t.event(Event{Kind: "discovery-failed", Subject: rec.Key.Type, Message: why, Metadata: map[string]string{"definition": string(rec.Definition)}})
	}
}

// lookSlack is for what an agent says at the last moment.
const lookSlack = 30 * time.Second

// lookOf is what the agent of a node waits for before it reports for good, nil where the node is for work.
func (t *tx) lookOf(n *node) *Look {
	s := t.state
	l := s.launchOf(n)
	if l == nil || !l.record.Discovery {
		return nil
	}
	d := s.definition(l.record.Definition)
	if d == nil {
		return &Look{}
	}
	out := &Look{Within: max(s.settledBy(n, l, d).Sub(t.now), 0)}
	if h, _ := s.expected(d); h != nil {
		out.Devices = maps.Clone(h.Devices)
		if len(h.Unknown) == 1 { // of several, one is there: whose the GPUs are is unknown too
			out.Some = slices.Clone(h.Unknown)
		}
		for _, kind := range h.Unknown {
			delete(out.Devices, kind)
		}
	}
	return out
}

// settledBy is when a node's hardware counts as it is, so that there is time left to hear of it before the look is given up.
func (s *state) settledBy(n *node, l *launch, d *coordinator.Definition) time.Time {
	by, last := n.record.Created.Add(s.config.checked.Discovery.SettleTimeout), l.record.Since.Add(s.longestLook(d)-lookSlack)
	if by.After(last) {
		return last
	}
	return by
}

// whole reports whether a node has all that is expected of its type, and a driver for each GPU.
func (s *state) whole(n *node, d *coordinator.Definition) bool {
	if !n.known || slices.ContainsFunc(n.facts.GPUs, func(g hwinfo.GPU) bool { return !g.Driver }) {
		return false
	}
	h, _ := s.expected(d)
	if h == nil {
		return true
	}
	for kind, want := range h.Devices {
		if n.capacity.Devices[kind] < want {
			return false
		}
	}
	return len(h.Unknown) == 0 || slices.ContainsFunc(h.Unknown, func(kind string) bool { return n.capacity.Devices[kind] > 0 })
}

// looked takes in a report of a node that was launched for a look. The last one counts, as drivers may come late; of an agent that marks none, what
// has all that is expected, or what there is when the time for it is over.
func (t *tx) looked(n *node, final bool, digest []byte) {
	s := t.state
	l := s.launchOf(n)
	if l == nil || !l.record.Discovery {
		return
	}
	if final && len(digest) <= sha256.Size {
		t.then(func(int64) {
			if n.session != nil {
				n.session.push(ToNode{Taken: digest})
			}
		})
	}
	d := s.definition(l.record.Definition)
	if l.record.Release != "" || d == nil {
		return
	}
	switch {
	case final && !n.known:
		t.giveUp(l, "its report does not tell cores and memory", provision.FaultUnreachable)
	case final, n.known && (n.session == nil || !n.session.discovers) && s.whole(n, d), n.known && !t.now.Before(s.settledBy(n, l, d).Add(lookSlack)):
		t.takeReport(n)
		t.giveUp(l, "its hardware is known", provision.FaultNone)
	}
}

// discoveryOver accounts for a look whose instance is gone.
func (t *tx) discoveryOver(l *launch, why string) {
	s := t.state
	if !l.record.Discovery {
		return
	}
	cost := 0.0
	if !l.record.Asked.IsZero() {
		cost = min(l.record.CostPerHour*t.now.Sub(l.record.Asked).Hours(), max(l.record.SetAside, 0))
	}
	if s.spent.Day == s.spentOn(l.record.Since).Day {
		s.spent.USD = max(s.spent.USD-l.record.SetAside+cost, 0)
		t.put(keySpent, s.spent)
		t.group()
	}
	id := keyID(l.record.Type)
	if len(s.reports[l.record.Type]) == 0 {
		t.forgetDiscovery(id, fmt.Sprintf("%s; about %.2g USD were spent on it", why, cost))
		return
	}
	t.forgetDiscovery(id, "")
	t.event(Event{Kind: "discovery-finished", Subject: l.record.Type.Type, Message: fmt.Sprintf("it has cost about %.2g USD", cost),
		Metadata: map[string]string{"definition": string(l.record.Definition), "launch": string(l.record.ID)}})
}

// reviewDiscovery gives up a look that has lasted too long, wherever it hangs.
func (t *tx) reviewDiscovery(l *launch, d *coordinator.Definition) {
	for _, id := range l.record.Joined {
		if n := t.state.nodes[id]; n != nil {
			t.looked(n, false, nil)
		}
	}
	if within := t.state.longestLook(d); t.now.Sub(l.record.Since) > within {
		t.giveUp(l, fmt.Sprintf("no hardware report has come within %s", within), provision.FaultUnreachable)
	}
}

// ResetHardware forgets what nodes of a definition's type have reported.
func (e *Engine) ResetHardware(ctx context.Context, c Caller, id coordinator.DefinitionID) error {
	op := "reset the hardware of definition " + string(id)
	if err := c.authorize(auth.PermissionAdminCluster, op, auth.Target{}); err != nil {
		return err
	}
	return e.do(ctx, func(t *tx) error {
		s := t.state
		d := s.definition(id)
		if d == nil {
			return noSuch(op, "definition", string(id))
		}
		key := s.config.types[id]
		if len(s.reports[key]) == 0 {
			return coordinator.Errorf(coordinator.ErrNotFound, op, "no launched node of its type has reported")
		}
		for _, r := range s.reports[key] {
			t.delete(prefixHardware + r.ID())
		}
		t.group()
		delete(s.reports, key)
		s.admission++
		s.core.offers, s.dirty = true, true
		t.quarantineAll(key)
		t.event(Event{Kind: "hardware-reset", Subject: key.Type, Message: "by " + c.Name, Metadata: map[string]string{"definition": string(id)}})
		return nil
	})
}
