package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/config"
	"substrate/coordinator/config/access"
	"substrate/coordinator/grant"
)

// AuditPolicies asks which owners reach which definitions.
type AuditPolicies struct {
	Organization string // slug or id, "": all
	Group        string // slug or id in it
	access.Filter
	Page
}

// maxAudited bounds how many pairs of owner and definition one page looks at.
const maxAudited = 100_000

// AuditPolicies lists rows by organisation, group and the order of the file. A page may be short, or empty, and not the last.
func (e *Engine) AuditPolicies(ctx context.Context, c Caller, in AuditPolicies) (rows []access.Row, next string, err error) {
	const op = "audit the policies"
	if err := c.authorize(auth.PermissionAdminCluster, op, auth.Target{}); err != nil {
		return nil, "", err
	}
	from, err := auditPlace(in.Token)
	if err != nil {
		return nil, "", err
	}
	var owners []access.Owner
	var checked *config.Checked
	grants := map[coordinator.OrganizationID]func(*coordinator.Definition) string{}
	var verr error
	err = e.view(ctx, func(s *state) {
		checked = s.config.checked
		if owners, verr = s.owners(c, op, in.Organization, in.Group); verr != nil {
			return
		}
		for _, o := range owners {
			if grants[o.Organization] == nil {
				grants[o.Organization] = s.grantsOf(s.orgs[o.Organization])
			}
		}
	})
	if err = cmp.Or(err, verr); err != nil {
		return nil, "", err
	}
	if in.Definition != "" && !slices.ContainsFunc(checked.Config.Definitions, func(d coordinator.Definition) bool {
		return string(d.ID) == string(in.Definition) || string(d.Configured) == string(in.Definition)
	}) {
		return nil, "", noSuch(op, "definition", string(in.Definition)).WithHint("see `substrate node provisioner list`")
	}
	audit := access.New(checked, func(o coordinator.OrganizationID, d *coordinator.Definition) string { return grants[o](d) })
	return walkAudit(ctx, audit, owners, from, in)
}

// auditPlace is where a page begins: "<organization>/<group>/<definition's place>".
type auditedAt struct {
	organization, group string
	definition          int
}

func auditPlace(token string) (auditedAt, error) {
	if token == "" {
		return auditedAt{}, nil
	}
	parts := strings.Split(token, "/")
	if len(parts) == 3 {
		if n, err := strconv.Atoi(parts[2]); err == nil && n >= 0 {
			return auditedAt{parts[0], parts[1], n}, nil
		}
	}
	return auditedAt{}, coordinator.Errorf(coordinator.ErrInvalid, "audit the policies", "%.80q is not a page token", token)
}

// compare orders a place among owners.
func (p auditedAt) compare(o access.Owner) int {
	return cmp.Or(cmp.Compare(p.organization, o.OrganizationSlug), cmp.Compare(p.group, o.GroupSlug))
}

func walkAudit(ctx context.Context, audit *access.Audit, owners []access.Owner, from auditedAt, in AuditPolicies) (rows []access.Row, next string, err error) {
	looked := 0
	total := len(audit.Config.Config.Definitions)
	for _, o := range owners {
		at := 0
		switch order := from.compare(o); {
		case in.Token != "" && order > 0:
			continue
		case in.Token != "" && order == 0:
			at = from.definition
		}
		for at < total {
			if ctx.Err() != nil {
				return nil, "", ctx.Err()
			}
			if len(rows) >= in.size() || looked >= maxAudited {
				return rows, fmt.Sprintf("%s/%s/%d", o.OrganizationSlug, o.GroupSlug, at), nil
			}
			some, reached := audit.Rows(o, at, min(in.size()-len(rows), maxAudited-looked), in.Filter)
			rows, looked, at = append(rows, some...), looked+reached-at, reached
		}
	}
	return rows, "", nil
}

// owners are the groups of the organisations asked for, by slug: work always counts for a group, if only for the default one.
func (s *state) owners(c Caller, op, orgRef, groupRef string) ([]access.Owner, error) {
	var out []access.Owner
	add := func(o *organization, g *coordinator.Group) {
		out = append(out, access.Owner{Organization: o.ID, OrganizationSlug: o.Slug, Group: g.ID, GroupSlug: g.Slug})
	}
	var only *organization
	if orgRef != "" {
		if only = s.organization(orgRef, c); only == nil {
			return nil, noSuch(op, "organisation", orgRef)
		}
	}
	if groupRef != "" {
		if only == nil {
			return nil, coordinator.Errorf(coordinator.ErrInvalid, op, "a group is named without its organisation").WithHint("name the organisation, too: --organization")
		}
		g := s.group(only.ID, groupRef)
		if g == nil {
			return nil, noSuch(op, "group", groupRef)
		}
		add(only, g)
		return out, nil
	}
	for _, g := range s.groups {
		if o := s.orgs[g.Organization]; o != nil && (only == nil || o == only) {
			add(o, g)
		}
	}
	slices.SortFunc(out, func(a, b access.Owner) int {
		return cmp.Or(cmp.Compare(a.OrganizationSlug, b.OrganizationSlug), cmp.Compare(a.GroupSlug, b.GroupSlug), cmp.Compare(a.Group, b.Group))
	})
	return out, nil
}

// grantsOf answers for an organisation from its grant as it is stored now.
func (s *state) grantsOf(o *organization) func(*coordinator.Definition) string {
	doc, err := s.grantDocument(o)
	if err != nil {
		return func(*coordinator.Definition) string { return err.Error() }
	}
	named := map[grant.Entry]bool{}
	return func(d *coordinator.Definition) string {
		e := grant.Entry{ID: d.Configured, Fingerprint: d.Fingerprint}
		known, ok := named[e]
		if !ok {
			known = doc.Names(e.ID, e.Fingerprint)
			named[e] = known
		}
		if known {
			return ""
		}
		return fmt.Sprintf("the grant (serial %d) does not name %s", doc.Serial, d.Configured)
	}
}
