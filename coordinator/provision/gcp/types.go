package gcp

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/api/compute/v1"

	"substrate/coordinator/catalogue"
	"substrate/coordinator/provision"
	"substrate/coordinator/spec"
)

// Types tells of the machine types of the backend's region, and of all zones where it names none. What is obsolete cannot be launched and is left out.
func (p *Provisioner) Types(ctx context.Context) ([]catalogue.Type, error) {
	const op = "tell of machine types"
	found, err := p.listTypes(ctx, "")
	if err != nil {
		return nil, p.explain(op, err)
	}
	known := map[string]*catalogue.Type{}
	slices.SortFunc(found, func(a, b *compute.MachineType) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Zone, b.Zone))
	})
	var names []string
	for _, t := range found {
		if p.region != "" && !strings.HasPrefix(t.Zone, p.region+"-") || retired(t) {
			continue
		}
		if known[t.Name] == nil {
			of := typeOf(t, spec.GCP{})
			if d := t.Deprecated; d != nil && d.State != "" && d.State != "ACTIVE" {
				of.Ends = "the provider calls it deprecated"
				if d.Replacement != "" {
					of.Ends += ", in favour of " + last(d.Replacement)
				}
			}
			known[t.Name] = &of
			names = append(names, t.Name)
		}
		if of := known[t.Name]; !slices.Contains(of.Zones, t.Zone) {
			of.Zones = append(of.Zones, t.Zone)
		}
	}
	if len(names) > provision.MostTypes {
		return nil, provision.Errorf(provision.FaultUnsupported, op, "there are more than %d", provision.MostTypes)
	}
	out := make([]catalogue.Type, len(names))
	for i, name := range names {
		out[i] = *known[name]
	}
	return out, nil
}

func retired(t *compute.MachineType) bool {
	return t.Deprecated != nil && (t.Deprecated.State == "OBSOLETE" || t.Deprecated.State == "DELETED")
}

// listTypes asks all zones about types, in pages. Who asks for all of them wants no answer without one of the zones: what it has would read as gone.
func (p *Provisioner) listTypes(ctx context.Context, filter string) ([]*compute.MachineType, error) {
	var out []*compute.MachineType
	next := ""
	for range mostPages {
		page, err := p.gcp.types(ctx, p.project, filter, next)
		if err != nil {
			return nil, err
		}
		dark := page.Unreachables
		for scope, scoped := range page.Items {
			if w := scoped.Warning; w != nil && w.Code != "NO_RESULTS_ON_PAGE" {
				dark = append(dark, scope)
			}
			for _, t := range scoped.MachineTypes {
				t.Zone = last(t.Zone)
				out = append(out, t)
			}
		}
		if filter == "" && len(dark) > 0 {
			return nil, fmt.Errorf("cannot list machine types: %v did not answer", dark)
		}
		if next = page.NextPageToken; next == "" {
			return out, nil
		}
	}
	return nil, fmt.Errorf("cannot list machine types: more than %d pages", mostPages)
}
