package engine

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/provision"
	"substrate/coordinator/sched"
	"substrate/coordinator/spec"
)

func (b backendID) String() string { return cmp.Or(b.Name, b.Kind) }

// launch is a launch with what only memory knows of it.
type launch struct {
	record   launchRecord
	state    provision.State
	detail   string
	console  string    // a command that shows what its instance wrote
	trouble  string    // of the last call
	next     time.Time // of the next call
	tries    int
	unneeded time.Time // since when nothing waits that it would serve
	missing  int       // lists in a row that did not have it
	arrived  map[coordinator.NodeID]bool
}

// offer is how a definition's nodes can be had, as last heard.
type offer struct {
	provision.Offer
	until    time.Time // not launched before: the provider's word, or ours after launches that failed
	why      string
	failures int // launches in a row that came to nothing
}

func launchKey(id provision.LaunchID) string { return prefixLaunch + string(id) }

// keys are the scheduler's for all nodes that a launch brings.
func (l *launch) keys() []string {
	keys := slices.Clone(l.record.Keys)
	for i := len(keys); i < int(l.record.Nodes); i++ {
		keys = append(keys, fmt.Sprintf("%s+%d", l.record.ID, i))
	}
	return keys
}

// called reports whether the provider has been asked and has answered.
func (l *launch) called() bool { return l.record.Handle != "" }

// expires is the end of a launched node's life as the scheduler counts it: work there is over by then.
func (l *launch) expires(d *coordinator.Definition) time.Time {
	if l.isSlot() {
		return time.Time{} // each job has its own end
	}
	ends := l.record.Ends
	if ends.IsZero() && d.TTL > 0 {
		ends = l.record.Since.Add(d.TTL)
	}
	if ends.IsZero() {
		return ends
	}
	return ends.Add(-d.TTLBuffer)
}

// launchOf is the launch that a node came from, nil for one that was there.
func (s *state) launchOf(n *node) *launch {
	if n.record.Launch == "" {
		return nil
	}
	return s.launches[provision.LaunchID(n.record.Launch)]
}

func (s *state) backendOf(d *coordinator.Definition) backendID {
	id, _ := connectionOf(s.config.checked, d)
	return id
}

// specDigest tells launches of a definition apart when what they launch has changed.
func specDigest(d *coordinator.Definition) string {
	return digestOf([]any{d.Kind, d.Spec})[:16]
}

func launchID(key string) provision.LaunchID {
	return provision.LaunchID("l" + digest([]byte(key))[:16])
}

// launch writes down what the scheduler wants launched; the provider is called once that is durable.
func (t *tx) launch(list []sched.Launch) {
	s := t.state
	for len(list) > 0 {
		def := list[0].Definition
		o, d := s.offers[def], s.definition(def)
		n := 1
		for o != nil && n < int(o.Nodes) && n < len(list) && list[n].Definition == def {
			n++
		}
		group := list[:n]
		list = list[n:]
		if o == nil || d == nil {
			continue // the configuration has changed in this turn; the scheduler is told anew
		}
		backend, connection := connectionOf(s.config.checked, d)
		l := &launch{record: launchRecord{
			ID: launchID(group[0].Key), Definition: def, Backend: backend, Connection: connection, Spec: specDigest(d), Type: s.config.types[def], Nodes: o.Nodes, Since: t.now,
			Until: group[0].Until,
		}, arrived: map[coordinator.NodeID]bool{}}
		for _, g := range group {
			l.record.Keys = append(l.record.Keys, g.Key)
			l.record.For = append(l.record.For, g.For...)
		}
		if s.launches[l.record.ID] != nil { // that one is on its way out: it is asked for by another name
			t.spend(l)
			s.core.offers = true
			for _, key := range l.record.Keys {
				s.dropComing(key)
			}
			continue
		}
		s.launches[l.record.ID] = l
		s.core.offers = true // the nodes that it brings beyond those asked for
		t.event(Event{Kind: "node-launching", Subject: string(l.record.ID), Message: fmt.Sprintf("%s for %s", nodesOf(l), listed(l.record.For)),
			Metadata: map[string]string{"definition": string(def), "backend": l.record.Backend.String()}})
		if spec.Native(d) {
			t.openSlot(l, d)
			continue
		}
		t.putLaunch(l)
		t.wakeProvisioners()
	}
}

func nodesOf(l *launch) string {
	if l.isSlot() {
		return "a slot of definition " + string(l.record.Definition)
	}
	if l.record.Nodes == 1 {
		return "a node of definition " + string(l.record.Definition)
	}
	return fmt.Sprintf("%d nodes of definition %s", l.record.Nodes, l.record.Definition)
}

func (t *tx) putLaunch(l *launch) {
	t.put(launchKey(l.record.ID), l.record)
	t.group()
}

func (t *tx) wakeProvisioners() { t.then(func(int64) { t.engine.provisioners.wake() }) }

// giveUp writes that a launch is not wanted any more. The provider is called until the instance is gone.
func (t *tx) giveUp(l *launch, why string, failed provision.Fault) {
	if l.record.Release != "" {
		return
	}
	l.record.Release, l.record.Failed, l.record.GivenUp = why, failed, t.now
	l.next, l.tries = time.Time{}, 0
	t.putLaunch(l)
	t.spend(l)
	if failed != provision.FaultNone {
		t.launchFailed(l, why, failed)
	}
	if failed == provision.FaultUnreachable {
		t.neverJoined(l, why)
	}
	for _, key := range l.keys()[min(len(l.arrived), len(l.keys())):] {
		t.state.dropComing(key)
	}
	for _, id := range l.record.Joined {
		if n := t.state.nodes[id]; n != nil {
			n.released = why
			t.state.changedNode(n)
		}
	}
	t.dropLaunchToken(l)
	t.state.dirty = true
	t.event(Event{Kind: "node-releasing", Subject: string(l.record.ID), Message: why, Metadata: map[string]string{"definition": string(l.record.Definition)}})
	t.wakeProvisioners()
}

// release carries out the scheduler's releases: a launch is given up with its last node.
func (t *tx) release(list []sched.Release) {
	s := t.state
	for _, r := range list {
		n := s.nodes[r.Node]
		if n == nil || s.launchOf(n) == nil {
			continue
		}
		l := s.launchOf(n)
		n.released = map[sched.ReleaseReason]string{sched.ReleaseIdle: "idle", sched.ReleaseTTL: "its time is over"}[r.Why]
		s.changedNode(n)
		live := func(id coordinator.NodeID) bool { return s.nodes[id] != nil && s.nodes[id].released == "" }
		if !slices.ContainsFunc(l.record.Joined, live) {
			t.giveUp(l, n.released, provision.FaultNone)
		}
	}
}

// spend has what a launch was for ask for others: its id is not used again.
func (t *tx) spend(l *launch) {
	for _, id := range l.record.For {
		if a := t.state.queued[id]; a != nil {
			a.record.Launches++ // it is in the keys of later launches
			t.touch(a)
		}
	}
	t.state.dirty = true
}

// launchFailed lets a definition rest whose launch came to nothing.
func (t *tx) launchFailed(l *launch, why string, kind provision.Fault) {
	s := t.state
	if o := s.offers[l.record.Definition]; o != nil {
		o.failures++
		pause := kind.Pause()
		for i := 1; i < o.failures && pause < time.Hour; i++ {
			pause *= 2
		}
		if until := t.now.Add(min(pause, time.Hour)); until.After(o.until) {
			o.until, o.why = until, fmt.Sprintf("%s: %s", kind, why)
		}
		s.core.offers = true
	}
	s.dirty = true
	t.event(Event{Kind: "node-launch-failed", Subject: string(l.record.ID), Message: fmt.Sprintf("%s: %s", kind, why),
		Metadata: map[string]string{"definition": string(l.record.Definition), "backend": l.record.Backend.String()}})
}

// launchOver forgets a launch whose instance is gone, with its nodes.
func (t *tx) launchOver(l *launch, why string, kind provision.Fault) {
	s := t.state
	if l.record.Release == "" {
		t.spend(l)
	}
	if l.record.Release == "" && len(l.arrived) == 0 {
		kind = l.cause(kind)
		t.launchFailed(l, why, cmp.Or(kind, provision.FaultTransient))
		if kind == provision.FaultUnreachable {
			t.neverJoined(l, why)
		}
	}
	t.discoveryOver(l, why)
	t.delete(launchKey(l.record.ID))
	t.group()
	t.dropLaunchToken(l)
	for _, key := range l.keys() {
		s.dropComing(key)
	}
	for _, id := range l.record.Joined {
		switch n := s.nodes[id]; {
		case n == nil || n.record.Launch != string(l.record.ID):
		case l.isSlot():
			t.forgetSlot(n, "slot "+string(id)+" is gone: "+why)
		default:
			t.forget(n, t.revocation(id), "node "+string(id)+" is gone: "+why)
		}
	}
	delete(s.launches, l.record.ID)
	s.dirty = true
	t.event(Event{Kind: "node-released", Subject: string(l.record.ID), Message: why, Metadata: map[string]string{"definition": string(l.record.Definition)}})
}

// dropLaunchToken ends the join token of a launch that nothing is to join for any more.
func (t *tx) dropLaunchToken(l *launch) {
	for _, rec := range t.state.joinTokens {
		if rec.Launch == string(l.record.ID) {
			t.dropJoinToken(rec)
			t.group()
		}
	}
}

// arrive notes a launched node that is up for the first time.
func (s *state) arrive(l *launch, n *node) {
	if l.arrived[n.id] {
		return
	}
	keys := l.keys()
	if len(l.arrived) < len(keys) {
		s.dropComing(keys[len(l.arrived)])
	}
	l.arrived[n.id] = true
	o := s.offers[l.record.Definition]
	if o == nil {
		return
	}
	o.failures = 0
	s.core.offers = true
}

// confine holds a pilot to what its job was given: its report tells of the whole machine. What is less there counts as less.
func (s *state) confine(n *node) {
	l := s.launchOf(n)
	if l == nil || !n.known || l.isSlot() {
		return
	}
	d := s.definition(l.record.Definition)
	if d == nil || d.Hardware == nil || !spec.Batch(d.Kind) {
		return
	}
	has := n.capacity
	if has.Cores < d.Hardware.Cores && coordinator.Cores(has.Threads) >= d.Hardware.Cores { // batch systems count threads where machines have them
		has.Cores, n.detail.domains = d.Hardware.Cores, nil
		n.capacity = has
	}
	if !lessThan(d.Hardware, &has) {
		return
	}
	granted := lesser(&has, d.Hardware)
	granted.Sockets, granted.Arch = has.Sockets, has.Arch
	n.capacity = granted
	// An agent that was told reports the job's own devices and domains. Where it tells of more, which of them are the job's is not known.
	if !maps.Equal(granted.Devices, has.Devices) && len(granted.Devices)+len(has.Devices) > 0 {
		n.detail.gpus, n.detail.links, n.detail.linksKnown = nil, nil, false
	}
	if granted.Cores < has.Cores {
		n.detail.domains = nil
	}
}

func (s *state) dropComing(key string) {
	if s.core.scheduler != nil {
		s.core.scheduler.DropLaunching(key)
	}
}

func lessThan(a, b *coordinator.Hardware) bool {
	if a.Cores < b.Cores || a.Memory < b.Memory || a.Threads < b.Threads {
		return true
	}
	for kind, n := range b.Devices {
		if a.Devices[kind] < n {
			return true
		}
	}
	return false
}

func lesser(a, b *coordinator.Hardware) coordinator.Hardware {
	out := coordinator.Hardware{Cores: min(a.Cores, b.Cores), Threads: min(a.Threads, b.Threads), Memory: min(a.Memory, b.Memory), Devices: map[string]uint32{}}
	for kind, n := range b.Devices {
		out.Devices[kind] = min(n, a.Devices[kind])
	}
	return out
}

// tellOffers tells the scheduler what can be launched, and what is coming.
func (s *state) tellOffers() {
	c := s.core.scheduler
	for i := range s.config.Definitions {
		d := &s.config.Definitions[i]
		o := s.offers[d.ID]
		if d.Kind == spec.KindStatic {
			continue
		}
		hardware := (*coordinator.Hardware)(nil)
		if o != nil {
			hardware, _ = s.expected(d)
		}
		if hardware == nil {
			c.DropOffer(d.ID)
			continue
		}
		offer := sched.Offer{
			Definition: d.ID, MaxNodes: d.MaxNodes, IdleTimeout: idleTimeout(d), TTL: d.TTL, TTLBuffer: d.TTLBuffer, Launch: o.Launch,
			Node:             launchedNode(d.ID, hardware),
			UnavailableUntil: o.until, Why: o.why, Stopped: s.protected(d),
		}
		if why := s.unavailable(d); why != "" {
			offer.UnavailableUntil, offer.Why = s.now().Add(typesEvery), why
		}
		if spec.Native(d) {
			offer.TTL, offer.TTLBuffer = 0, 0 // each job has its own end
		}
		c.SetOffer(offer)
	}
	for _, id := range slices.Sorted(maps.Keys(s.launches)) {
		l := s.launches[id]
		if l.record.Release != "" || l.record.Discovery {
			continue
		}
		for i, key := range l.keys() {
			if i < len(l.arrived) {
				continue
			}
			coming := sched.Launch{Key: key, Definition: l.record.Definition, Since: l.record.Since, Until: l.record.Until}
			if i == len(l.arrived) {
				coming.For = l.record.For
			}
			c.SetLaunching(coming)
		}
	}
}

// launchedNode is a node of a definition as expected.
func launchedNode(def coordinator.DefinitionID, h *coordinator.Hardware) sched.Node {
	return sched.Node{Definition: def, Cores: h.Cores, Threads: cmp.Or(h.Threads, uint32(h.Cores)), Memory: h.Memory, Devices: h.Devices}
}

// idle is since when nothing has run on a launched node that is ready; zero while something does.
func (n *node) idle(now time.Time) time.Time {
	switch {
	case len(n.active) > 0 || n.status() != NodeReady:
		n.idleSince = time.Time{}
	case n.idleSince.IsZero():
		n.idleSince = now
	}
	return n.idleSince
}
