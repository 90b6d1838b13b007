package engine

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/catalogue"
	"substrate/coordinator/spec"
)

// TypeView is one row of the catalogue: what one source says of a type.
type TypeView struct {
	Kind, Backend string
	catalogue.Type
	Image       string
	Source      catalogue.Source
	At          time.Time
	Hardware    *coordinator.Hardware // nil is unknown
	CostPerHour *float64
	Flags       []string
	Reports     uint32
}

// ListTypes asks for rows of the catalogue.
type ListTypes struct {
	Backend string // "" is all
	Pattern string // of names; "" is all
}

// id is what rows are in the order of.
func (v *TypeView) id() string {
	return strings.Join([]string{v.Kind, v.Backend, v.Name, v.Arch, v.Image, string(v.Source)}, "|")
}

// InstanceTypes lists what is known of the types of the running configuration's clouds: what providers and the built-in catalogue say, and what nodes have
// reported, each as a row of its own.
func (e *Engine) InstanceTypes(ctx context.Context, c Caller, in ListTypes, p Page) (out []TypeView, next string, err error) {
	if err := c.authorize(auth.PermissionAdminCluster, "list instance types", auth.Target{}); err != nil {
		return nil, "", err
	}
	set := e.catalogues.Load()
	var backends map[backendID]spec.Backend
	var provided map[string]*catalogue.Provided
	var reports []*catalogue.Report
	err = e.view(ctx, func(s *state) {
		backends, provided = s.clouds(), maps.Clone(s.provided)
		for _, list := range s.reports {
			reports = append(reports, list...)
		}
	})
	if err != nil {
		return nil, "", err
	}
	pattern := cmp.Or(in.Pattern, "*")
	var all []TypeView
	for id, b := range backends {
		known := set.At(b.Kind, b.Target())
		if known == nil || in.Backend != "" && id.String() != in.Backend {
			continue
		}
		for _, t := range known.Match(pattern) {
			all = append(all, rowOfType(id, t, provided[placeOf(b)]))
		}
	}
	for _, r := range reports {
		name, _, _ := strings.Cut(r.Type, " with ")
		if !catalogue.Matches(pattern, name) || spec.Batch(r.Kind) || in.Backend != "" {
			continue
		}
		all = append(all, TypeView{Kind: r.Kind, Type: catalogue.Type{Name: r.Type, Arch: r.Arch}, Image: r.Image, Source: catalogue.SourceReport, At: r.Last,
			Hardware: r.Hardware(), Reports: r.Nodes})
	}
	slices.SortFunc(all, func(a, b TypeView) int { return cmp.Compare(a.id(), b.id()) })
	out, next = page(all, p, func(v TypeView) string { return v.id() }, func(v TypeView, token string) bool { return v.id() <= token })
	return out, next, nil
}

func rowOfType(id backendID, t catalogue.Type, told *catalogue.Provided) TypeView {
	v := TypeView{Kind: id.Kind, Backend: id.String(), Type: t, Hardware: t.Hardware(), CostPerHour: t.CostPerHour, Flags: t.Flags(false), Source: catalogue.SourceEstimate}
	switch {
	case told != nil:
		v.Source, v.At = catalogue.SourceProvider, told.Asked
	case t.Measured():
		v.Source = catalogue.SourceListed
	}
	return v
}
