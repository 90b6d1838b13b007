package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"substrate/coordinator/auth"
	"substrate/coordinator/config"
	"substrate/coordinator/provision"
	"substrate/coordinator/spec"
	"substrate/strictyaml"
)

const (
	askedAtOnce = 8                // places
	setWithin   = 90 * time.Second // for all places that a configuration is the first to need
)

// notAsked is why a place's types could not be had, and what to do.
type notAskedPlace struct{ why, hint string }

// parseAsking reads a configuration. Places whose types it needs and nobody has told yet are asked; of those that cannot be, it is refused with why, and what
// to do, where the pattern stands.
func (e *Engine) parseAsking(ctx context.Context, file string, yaml []byte, previous *config.Checked) (*config.Checked, strictyaml.Diagnostics) {
	missing := map[string]spec.Backend{}
	o := config.Options{Catalogues: e.catalogues.Load(), Previous: previous}
	o.Unknown = func(b spec.Backend) (string, string) { missing[placeOf(b)] = b; return "", "" }
	checked, diags := e.parseWith(file, yaml, o)
	if len(missing) == 0 {
		return checked, diags
	}
	limited, cancel := context.WithTimeout(ctx, setWithin)
	defer cancel()
	refused := e.askPlaces(limited, missing)
	o.Catalogues = e.catalogues.Load()
	o.Unknown = func(b spec.Backend) (string, string) {
		no := refused[placeOf(b)]
		return no.why, no.hint
	}
	return e.parseWith(file, yaml, o)
}

// askPlaces asks several places at a time, and says which have not answered.
func (e *Engine) askPlaces(ctx context.Context, places map[string]spec.Backend) map[string]notAskedPlace {
	var mu sync.Mutex
	out := map[string]notAskedPlace{}
	var all sync.WaitGroup
	free := make(chan struct{}, askedAtOnce)
	for _, place := range slices.Sorted(maps.Keys(places)) {
		free <- struct{}{}
		all.Go(func() {
			defer func() { <-free }()
			if no := e.askPlace(ctx, places[place]); no.why != "" {
				mu.Lock()
				defer mu.Unlock()
				out[place] = no
			}
		})
	}
	all.Wait()
	return out
}

func (e *Engine) askPlace(ctx context.Context, b spec.Backend) notAskedPlace {
	const exact = "name one exact type for each definition"
	if !slices.Contains(e.opt.Provisioners.Kinds, b.Kind) {
		return notAskedPlace{"backend not in this build", exact}
	}
	name := idOf(b).String()
	again := fmt.Sprintf("set it again when backend %s answers, or %s", name, exact)
	_, err := e.askBackend(ctx, b)
	switch {
	case err == nil:
		return notAskedPlace{}
	case provision.FaultOf(err) == provision.FaultUnsupported:
		return notAskedPlace{err.Error(), exact}
	}
	return notAskedPlace{fmt.Sprintf("backend %s could not be asked: %v", name, err), again}
}

// askBackend asks a backend for its types through its open connection, or through one for the occasion.
func (e *Engine) askBackend(ctx context.Context, b spec.Backend) (string, error) {
	p := e.provisioners.openOf(idOf(b))
	if p == nil {
		var err error
		if p, err = e.opt.Provisioners.Open(ctx, b, false); err != nil {
			return "", err
		}
		if c, ok := provision.As[provision.Closer](p); ok {
			defer func() {
				if err := c.Close(); err != nil {
					e.opt.Log.Warn("cannot close a backend", "backend", idOf(b), "err", err)
				}
			}()
		}
	}
	typer, ok := provision.As[provision.Typer](p)
	if !ok {
		return "", provision.Errorf(provision.FaultUnsupported, "ask backend "+idOf(b).String()+" for its types", "backends of kind %s tell of none", b.Kind)
	}
	change, err := e.askTypes(ctx, b, typer)
	return change.String(), err
}

func (p *provisioners) openOf(b backendID) provision.Provisioner {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open[b]
}

// CatalogueView is what is known of the types of one place.
type CatalogueView struct {
	Backend        string
	Kind           string
	Source         string // provider, catalogue; "" where nothing is known
	Version        uint64
	Types, Missing int
	Asked, Changed time.Time
	Trouble        string // why the last question had no answer
	Since          time.Time
	Text           string // of a refresh: what has changed
}

// Catalogues lists what is known of the types of the running configuration's clouds, by backend.
func (e *Engine) Catalogues(ctx context.Context, c Caller) (out []CatalogueView, err error) {
	if err := c.authorize(auth.PermissionAdminCluster, "list catalogues", auth.Target{}); err != nil {
		return nil, err
	}
	err = e.view(ctx, func(s *state) { out = s.catalogueViews(e) })
	return out, err
}

func (s *state) catalogueViews(e *Engine) (out []CatalogueView) {
	backends := s.clouds()
	for _, id := range slices.SortedFunc(maps.Keys(backends), compareBackends) {
		b := backends[id]
		v := CatalogueView{Backend: id.String(), Kind: id.Kind}
		if c := e.catalogues.Load().At(b.Kind, b.Target()); c != nil {
			v.Source, v.Types = "catalogue", c.Len()
		}
		if told := s.provided[placeOf(b)]; told != nil {
			v.Source, v.Version, v.Asked, v.Changed, v.Types = "provider", told.Version, told.Asked, told.Changed, 0
			for _, t := range told.Types {
				if t.Missing.IsZero() {
					v.Types++
				} else {
					v.Missing++
				}
			}
		}
		trouble := s.catalogueTrouble[placeOf(b)]
		v.Trouble, v.Since = trouble.why, trouble.since
		out = append(out, v)
	}
	return out
}

// clouds are the running configuration's backends whose nodes have types.
func (s *state) clouds() map[backendID]spec.Backend {
	out := map[backendID]spec.Backend{}
	for _, b := range s.config.checked.Backends {
		if b.Kind != spec.KindStatic && !spec.Batch(b.Kind) {
			out[idOf(b)] = b
		}
	}
	seen := map[[2]string]bool{}
	for i := range s.config.Definitions {
		d := &s.config.Definitions[i]
		if d.Kind == spec.KindStatic || spec.Batch(d.Kind) || seen[[2]string{d.Kind, d.Backend}] {
			continue
		}
		seen[[2]string{d.Kind, d.Backend}] = true
		id, b := connectionOf(s.config.checked, d)
		out[id] = b
	}
	return out
}

// RefreshCatalogues asks backends for their types now, all of them where none is named, and says what has changed.
func (e *Engine) RefreshCatalogues(ctx context.Context, c Caller, names []string) ([]CatalogueView, error) {
	const op = "refresh catalogues"
	if err := c.authorize(auth.PermissionAdminCluster, op, auth.Target{}); err != nil {
		return nil, err
	}
	var backends map[backendID]spec.Backend
	if err := e.view(ctx, func(s *state) { backends = s.clouds() }); err != nil {
		return nil, err
	}
	for _, name := range names {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(backends)), func(id backendID) bool { return id.String() == name }) {
			return nil, noSuch(op, "backend with instance types", name)
		}
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	texts := map[string]string{}
	free := make(chan struct{}, askedAtOnce)
	for id, b := range backends {
		if len(names) > 0 && !slices.Contains(names, id.String()) {
			continue
		}
		free <- struct{}{}
		all.Go(func() {
			defer func() { <-free }()
			text, err := "backend not in this build", error(nil)
			if slices.Contains(e.opt.Provisioners.Kinds, id.Kind) {
				if text, err = e.askBackend(ctx, b); err != nil {
					text = err.Error()
				}
			}
			mu.Lock()
			defer mu.Unlock()
			texts[id.Kind+"/"+id.String()] = text
		})
	}
	all.Wait()
	var out []CatalogueView
	err := e.view(ctx, func(s *state) { out = s.catalogueViews(e) })
	out = slices.DeleteFunc(out, func(v CatalogueView) bool { _, asked := texts[v.Kind+"/"+v.Backend]; return !asked })
	for i := range out {
		out[i].Text = texts[out[i].Kind+"/"+out[i].Backend]
	}
	return out, err
}
