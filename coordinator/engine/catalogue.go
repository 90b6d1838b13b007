package engine

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/catalogue"
	"substrate/coordinator/config"
	"substrate/coordinator/provision"
	"substrate/coordinator/spec"
	"substrate/coordinator/store"
)

// What a place's provider tells of its types is asked for at the start, daily and on demand, kept, and used until there is a later answer. It says
// what patterns in the configuration stand for: an answer that differs makes other definitions of the same revision.

const (
	typesWithin  = 2 * time.Minute // for all of a place's types
	typesEvery   = 24 * time.Hour
	typesJitter  = 10        // of that, a tenth more or less: not all clusters ask at one time
	typesSoon    = 5         // seconds after a start, at most
	typesFresh   = time.Hour // an answer so young is not asked for again at a start
	typesRetry   = time.Minute
	typesLongest = time.Hour
	// doubtsBelieved is how many answers in a row that look wrong are right.
	doubtsBelieved = 3
	// acceptTries bounds how often an answer is worked out again because the configuration has changed meanwhile.
	acceptTries = 5
)

// catalogueTrouble is why a place's types could not be had lately.
type catalogueTrouble struct {
	since  time.Time
	why    string
	doubts int // answers in a row that were not believed
}

func placeOf(b spec.Backend) string { return catalogue.PlaceOf(b.Kind, b.Target()) }

func catalogueKey(place string) string { return prefixCatalogue + digest([]byte(place))[:16] }

// loadCatalogues goes before the configuration, whose patterns they expand. One that cannot be read is asked for again.
func (e *Engine) loadCatalogues(ctx context.Context, s *state) error {
	set := e.builtIn
	err := e.scan(ctx, prefixCatalogue, func(entry store.Entry) error {
		p := &catalogue.Provided{}
		err := decode(entry, p)
		next := set
		if err == nil {
			next, err = set.With(p)
		}
		if err != nil {
			e.opt.Log.Warn("a stored catalogue cannot be used; its provider is asked again", "key", entry.Key, "err", err)
			return nil
		}
		set, s.provided[p.Place()] = next, p
		return nil
	})
	e.catalogues.Store(set)
	return err
}

// unavailable says why nothing may be launched of a definition whatever its backend offers: "" is that nothing speaks against it.
func (s *state) unavailable(d *coordinator.Definition) string {
	row, _ := s.config.checked.RowOf(d.ID)
	if gone := row.Type.Gone(); gone != "" {
		return d.Instance + " is not to be had: " + gone
	}
	return ""
}

// places gives the place of definitions with types, "" of others. Each backend is looked at once: there are far fewer than definitions.
func (s *state) places() func(d *coordinator.Definition) string {
	known := map[[2]string]string{}
	return func(d *coordinator.Definition) string {
		if d.Instance == "" {
			return ""
		}
		b, ok := s.config.checked.BackendOf(d.ID)
		if !ok {
			b = spec.Implicit(d.Kind)
		}
		key := [2]string{b.Kind, b.Name}
		place, ok := known[key]
		if !ok {
			place = placeOf(b)
			known[key] = place
		}
		return place
	}
}

// needed are the types of a place, of those that an answer lacks, that something here needs: the configuration names them, nodes or launches are
// of them, or work runs there or waits for them.
func (s *state) needed(place string, answer []catalogue.Type) map[string]bool {
	told := make(map[string]bool, len(answer))
	for _, t := range answer {
		told[t.Name] = true
	}
	out, ids, of := map[string]bool{}, map[coordinator.DefinitionID]string{}, s.places()
	for i := range s.config.Definitions {
		d := &s.config.Definitions[i]
		if told[d.Instance] || of(d) != place {
			continue
		}
		if row, _ := s.config.checked.RowOf(d.ID); !row.Wild || len(s.config.nodesOf[d.ID]) > 0 {
			out[d.Instance] = true
			continue
		}
		ids[d.ID] = d.Instance
	}
	if len(ids) == 0 {
		return out
	}
	need := func(id coordinator.DefinitionID) {
		if name, ok := ids[id]; ok {
			out[name] = true
		}
	}
	for _, l := range s.launches {
		need(l.record.Definition)
	}
	for _, a := range s.active {
		need(a.record.Definition)
	}
	asked := map[*job]bool{}
	for _, waiting := range []map[coordinator.AllocationID]*allocation{s.queued, s.deferred} {
		for _, a := range waiting {
			if asked[a.job] {
				continue
			}
			asked[a.job] = true
			for _, id := range s.admit(a.job).admissible {
				need(id)
			}
		}
	}
	return out
}

// takeTypes makes an answer what is known of a place. What it means for the configuration is worked out outside the loop, which takes it over if
// nothing has changed meanwhile.
func (e *Engine) takeTypes(ctx context.Context, b spec.Backend, answer []catalogue.Type) (catalogue.Change, error) {
	place, op := placeOf(b), "use the types of backend "+idOf(b).String()
	var change catalogue.Change
	for range acceptTries {
		var v seenCatalogue
		if err := e.view(ctx, func(s *state) { v = s.seenCatalogue(place, answer) }); err != nil {
			return change, err
		}
		if why := v.old.Doubtful(answer); why != "" && (len(answer) == 0 || v.doubts+1 < doubtsBelieved) {
			return change, coordinator.Errorf(coordinator.ErrUnavailable, op, "%s", why)
		}
		next, change, err := v.old.Merge(answer, e.builtIn.Of(b.Kind), func(name string) bool { return v.needed[name] }, e.opt.Now().UTC())
		if err != nil {
			return change, coordinator.Errorf(coordinator.ErrInvalid, op, "%w", err)
		}
		next.Kind, next.Target, next.Backend = b.Kind, b.Target(), idOf(b).String()
		set, err := e.catalogues.Load().With(next)
		if err != nil {
			return change, coordinator.Errorf(coordinator.ErrInvalid, op, "%w", err)
		}
		var active *activeConfig
		if v.used && (v.old == nil || !change.None()) {
			if active, err = e.expandAnew(ctx, v, set); err != nil {
				return change, coordinator.Errorf(coordinator.ErrInvalid, op, "%w", err)
			}
		}
		taken := false
		err = e.do(ctx, func(t *tx) error { taken = t.takeCatalogue(v, next, set, active, change); return nil })
		if err != nil || taken {
			return change, err
		}
	}
	return change, coordinator.Errorf(coordinator.ErrUnavailable, op, "the configuration changes all the time")
}

// seenCatalogue is what an answer is worked out from.
type seenCatalogue struct {
	place      string
	generation uint64
	revision   coordinator.Revision
	old        *catalogue.Provided
	checked    *config.Checked
	needed     map[string]bool
	doubts     int
	used       bool // by definitions
}

func (s *state) seenCatalogue(place string, answer []catalogue.Type) seenCatalogue {
	v := seenCatalogue{place: place, generation: s.generation, revision: s.config.Revision, old: s.provided[place], checked: s.config.checked,
		needed: s.needed(place, answer), doubts: s.catalogueTrouble[place].doubts}
	of := s.places()
	for i := 0; i < len(s.config.Definitions) && s.config.Revision > 0 && !v.used; i++ {
		v.used = of(&s.config.Definitions[i]) == place
	}
	return v
}

// expandAnew reads the running revision with other catalogues.
func (e *Engine) expandAnew(ctx context.Context, v seenCatalogue, set *catalogue.Set) (*activeConfig, error) {
	entry, err := e.opt.Store.Get(ctx, yamlKey(v.revision))
	if err != nil {
		return nil, err
	}
	checked, diags := e.parseWith(fmt.Sprintf("revision %d", v.revision), entry.Value, config.Options{Catalogues: set, Previous: v.checked, Stored: true})
	if err := diags.Err(); err != nil {
		return nil, fmt.Errorf("the running configuration does not go with them: %w", err)
	}
	return activate(checked), nil
}

// takeCatalogue writes an answer down, with the definitions that it makes of the running revision. It is false when that was worked out for a state that is
// not there any more.
func (t *tx) takeCatalogue(v seenCatalogue, next *catalogue.Provided, set *catalogue.Set, active *activeConfig, change catalogue.Change) bool {
	s := t.state
	if s.generation != v.generation || s.config.Revision != v.revision || s.config.checked != v.checked {
		return false
	}
	if active != nil && s.wouldMiss(v.place, next) {
		return false
	}
	if s.catalogueTrouble[v.place].why != "" {
		t.event(Event{Kind: "catalogue-answered", Subject: next.Backend, Message: "its types are told of again"})
	}
	delete(s.catalogueTrouble, v.place)
	s.generation++
	s.provided[v.place] = next
	t.put(catalogueKey(v.place), next)
	t.then(func(int64) { t.engine.catalogues.Store(set) })
	if v.old != nil && change.None() {
		t.group()
		return true
	}
	message := change.String()
	if active != nil {
		message += "; " + t.reexpand(active)
	}
	t.event(Event{Kind: "catalogue-changed", Subject: next.Backend, Message: message,
		Metadata: map[string]string{"kind": next.Kind, "version": strconv.FormatUint(next.Version, 10), "revision": fmt.Sprint(s.config.Revision)}})
	t.group()
	return true
}

// wouldMiss reports whether something needs a type that an answer, worked out a moment ago, has dropped.
func (s *state) wouldMiss(place string, next *catalogue.Provided) bool {
	needed, of := s.needed(place, next.Types), s.places()
	for i := range s.config.Definitions {
		d := &s.config.Definitions[i]
		if row, _ := s.config.checked.RowOf(d.ID); row.Wild && needed[d.Instance] && of(d) == place {
			return true
		}
	}
	return false
}

// reexpand makes the definitions of the running revision others, and says which.
func (t *tx) reexpand(active *activeConfig) string {
	s := t.state
	before, after := map[string]bool{}, map[string]bool{}
	for _, d := range s.config.Definitions {
		before[string(d.ID)] = true
	}
	var more, fewer, gone []string
	for i := range active.Definitions {
		d := &active.Definitions[i]
		after[string(d.ID)] = true
		if !before[string(d.ID)] {
			more = append(more, string(d.ID))
		}
		if row, _ := active.checked.RowOf(d.ID); row.Type.Gone() != "" {
			gone = append(gone, string(d.ID))
		}
	}
	for _, d := range s.config.Definitions {
		if !after[string(d.ID)] {
			fewer = append(fewer, string(d.ID))
		}
	}
	t.use(active, s.config.Revision)
	t.autoDiscover(before)
	text := fmt.Sprintf("revision %d has %d definitions now", s.config.Revision, len(active.Definitions))
	for _, p := range []struct {
		what  string
		names []string
	}{{"new", more}, {"removed", fewer}, {"unavailable", gone}} {
		if len(p.names) > 0 {
			text += fmt.Sprintf(", %s: %s", p.what, catalogue.Some(p.names))
		}
	}
	return text
}

// catalogueFailed notes that a place's types could not be had. What is known of it counts on.
func (t *tx) catalogueFailed(b spec.Backend, why string, doubt bool) {
	s := t.state
	place := placeOf(b)
	was, told := s.catalogueTrouble[place], s.provided[place]
	now := catalogueTrouble{since: was.since, why: why}
	if doubt {
		now.doubts = was.doubts + 1
	}
	if was.why == "" {
		now.since = t.now
		t.event(Event{Kind: "warning", Subject: idOf(b).String(), Message: fmt.Sprintf("its types could not be asked for: %s; %s", why, knownSince(told))})
	}
	s.catalogueTrouble[place] = now
}

func knownSince(told *catalogue.Provided) string {
	if told == nil {
		return "what is built in counts"
	}
	return "what was told at " + moment(told.Asked) + " counts"
}

// catalogueWarnings are about places whose types could not be had lately, by name.
func (s *state) catalogueWarnings() (out []string) {
	for place, trouble := range s.catalogueTrouble {
		name := place
		if told := s.provided[place]; told != nil {
			name = told.Backend
		}
		out = append(out, fmt.Sprintf("catalogue of %s: not to be had since %s (%s); %s", name, moment(trouble.since), trouble.why, knownSince(s.provided[place])))
	}
	slices.Sort(out)
	return out
}

// catalogueKeeper asks one place for its types.
type catalogueKeeper struct {
	engine *Engine
	of     spec.Backend
	typer  provision.Typer
	next   time.Time
	pause  time.Duration
	began  bool
}

// keepCatalogue asks for the types of an open backend from time to time, if it tells of them, until the function that it returns has returned.
func (e *Engine) keepCatalogue(ctx context.Context, b spec.Backend, p provision.Provisioner) (stop func()) {
	typer, ok := provision.As[provision.Typer](p)
	if !ok {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	k := &catalogueKeeper{engine: e, of: b, typer: typer}
	go func() { defer close(done); k.serve(ctx) }()
	return func() { cancel(); <-done }
}

func (k *catalogueKeeper) serve(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for ctx.Err() == nil {
		k.plan(ctx)
		if !k.next.IsZero() && !k.engine.opt.Now().Before(k.next) {
			if _, err := k.ask(ctx); err != nil && ctx.Err() == nil {
				k.pause = min(max(2*k.pause, typesRetry), typesLongest)
				k.next = k.engine.opt.Now().Add(k.pause)
				k.engine.opt.Log.Warn("a backend does not tell of its types", "backend", idOf(k.of), "err", err, "again", k.pause)
			} else {
				k.next, k.pause = time.Time{}, 0
			}
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// plan says when the place is asked next: soon after a start, unless it has answered lately, else a day after the last answer.
func (k *catalogueKeeper) plan(ctx context.Context) {
	if !k.next.IsZero() {
		return
	}
	e, place := k.engine, placeOf(k.of)
	var told *catalogue.Provided
	if e.view(ctx, func(s *state) { told = s.provided[place] }) != nil {
		return
	}
	k.next = e.opt.Now().Add(time.Duration(spread(place, typesSoon)) * time.Second)
	if told != nil && (k.began || e.opt.Now().Sub(told.Asked) < typesFresh) {
		tenth := int64(typesEvery / typesJitter / time.Second)
		due := told.Asked.Add(typesEvery + time.Duration(spread(place+told.Asked.String(), 2*tenth)-tenth)*time.Second)
		if due.After(k.next) {
			k.next = due
		}
	}
	k.began = true
}

// spread is a number below n that is the same for the same text, and another for most others.
func spread(text string, n int64) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text))
	return int64(h.Sum64() % uint64(n))
}

func (k *catalogueKeeper) ask(ctx context.Context) (catalogue.Change, error) {
	return k.engine.askTypes(ctx, k.of, k.typer)
}

// askTypes asks a place for its types and takes over what it says.
func (e *Engine) askTypes(ctx context.Context, b spec.Backend, typer provision.Typer) (catalogue.Change, error) {
	limited, cancel := context.WithTimeout(ctx, typesWithin)
	defer cancel()
	answer, err := typer.Types(limited)
	var change catalogue.Change
	if err == nil {
		change, err = e.takeTypes(limited, b, answer)
	}
	if err != nil && ctx.Err() == nil {
		doubt := answer != nil && coordinator.ErrorKindOf(err) == coordinator.ErrUnavailable
		why := err.Error()
		_ = e.do(ctx, func(t *tx) error { t.catalogueFailed(b, cmp.Or(why, "no answer"), doubt); return nil }) // it is asked again
	}
	return change, err
}

// sourceAt is when a source has said what a definition's nodes have; of gives places.
func (s *state) sourceAt(d *coordinator.Definition, source catalogue.Source, of func(*coordinator.Definition) string) time.Time {
	switch source {
	case catalogue.SourceReport:
		return s.reportOf(d).Last
	case catalogue.SourceProvider:
		if told := s.provided[of(d)]; told != nil {
			return told.Asked
		}
	}
	return time.Time{}
}
