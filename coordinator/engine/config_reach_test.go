package engine

import (
	"fmt"
	"slices"
	"testing"

	"substrate/coordinator"
	"substrate/coordinator/config/access"
	"substrate/coordinator/store"
)

// TestAuditPolicies: rows by organisation, group and place in the file, in pages of any size, from the grants as they are.
func TestAuditPolicies(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	c.set(plainConfig + `
  - {id: theirs, provisioner: static, policy: 'request.owner.group_id == "optics"', provisionerSpec: {condition: cpuinfo.cpu_cores > 2}}
`)
	if _, err := c.engine.CreateOrganization(t.Context(), c.admin, "physics", 0); err != nil {
		t.Fatal(err)
	}
	if _, err := c.engine.CreateGroup(t.Context(), c.admin, "optics", "physics", 0); err != nil {
		t.Fatal(err)
	}
	if _, err := c.engine.SetGrant(t.Context(), c.admin, firstOrg, []string{"theirs"}); err != nil {
		t.Fatal(err)
	}
	list := func(in AuditPolicies) (got []string) {
		for pages := 0; ; pages++ {
			rows, next, err := c.engine.AuditPolicies(t.Context(), c.admin, in)
			if err != nil || pages > 20 || len(rows) > in.size() {
				t.Fatalf("page %d of %d rows: %v", pages, len(rows), err)
			}
			for _, r := range rows {
				got = append(got, fmt.Sprintf("%s/%s %s %s %s", r.Owner.OrganizationSlug, r.Owner.GroupSlug, r.Definition, r.Reach, r.Policy))
			}
			if next == "" {
				return got
			}
			in.Token = next
		}
	}
	want := []string{
		"default/default small never none", "default/default theirs never never",
		"physics/default small always none", "physics/default theirs never never",
		"physics/optics small always none", "physics/optics theirs always always",
	}
	for size := 1; size <= 7; size++ {
		if got := list(AuditPolicies{Page: Page{Size: size}}); !slices.Equal(got, want) {
			t.Errorf("pages of %d: %q", size, got)
		}
	}
	for name, tt := range map[string]struct {
		in   AuditPolicies
		want []string
	}{
		"organization": {AuditPolicies{Organization: firstOrg}, want[:2]},
		"group":        {AuditPolicies{Organization: "physics", Group: "optics"}, want[4:]},
		"reachable":    {AuditPolicies{Filter: access.Filter{Reachable: true}}, []string{want[2], want[4], want[5]}},
		"flagged":      {AuditPolicies{Filter: access.Filter{Flagged: true}}, []string{want[1], want[3]}},
	} {
		if got := list(tt.in); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
	for name, in := range map[string]AuditPolicies{
		"no such organisation": {Organization: "biology"}, "no such group": {Organization: "physics", Group: "x"},
		"a group of nobody": {Group: "optics"}, "not a token": {Page: Page{Token: "what"}}, "a negative place": {Page: Page{Token: "a/b/-1"}},
	} {
		if _, _, err := c.engine.AuditPolicies(t.Context(), c.admin, in); coordinator.ErrorKindOf(err) != coordinator.ErrInvalid && coordinator.ErrorKindOf(err) != coordinator.ErrNotFound {
			t.Errorf("%s: %v", name, err)
		}
	}
}
