package access

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"substrate/coordinator"
	"substrate/coordinator/catalogue"
	"substrate/coordinator/config"
)

const file = `
nodeAnnotations: {site: north}
definitions:
  - {id: plain, provisioner: static, provisionerSpec: {condition: cpuinfo.cpu_cores > 1, costPerHour: 1}}
  - {id: dear, provisioner: static, provisionerSpec: {condition: cpuinfo.cpu_cores > 2, costPerHour: 90}}
  - {id: theirs, provisioner: static, policy: 'request.owner.organization_id == "physics"', provisionerSpec: {condition: cpuinfo.cpu_cores > 3, costPerHour: 90}}
  - {id: sized, provisioner: static, policy: 'request.owner.group_id == "research" && request.job_ttl <= 3600.0', provisionerSpec: {condition: cpuinfo.cpu_cores > 4}}
  - {id: routed, provisioner: static, policy: 'request.owner.group_id == "research" || request.job_annotations["gpu.type"] == "h100"', provisionerSpec: {condition: cpuinfo.cpu_cores > 5}}
  - {id: here, provisioner: static, policy: 'definition.annotations["site"] == "north" || request.preemptible', provisionerSpec: {condition: cpuinfo.cpu_cores > 6}}
  - {id: withheld, provisioner: static, policy: 'request.owner.organization_id == "physics"', provisionerSpec: {condition: cpuinfo.cpu_cores > 7}}
`

func checked(t testing.TB, yaml string) *config.Checked {
	t.Helper()
	ec2, err := catalogue.Embedded()
	if err != nil {
		t.Fatal(err)
	}
	c, diags := config.Parse("cluster.yaml", []byte(yaml), config.Options{Catalogues: ec2})
	if c == nil {
		t.Fatal(diags)
	}
	return c
}

func grants(_ coordinator.OrganizationID, d *coordinator.Definition) string {
	if d.ID == "withheld" {
		return "the grant does not name it"
	}
	return ""
}

func TestRows(t *testing.T) {
	a := New(checked(t, file), grants)
	tests := map[string]struct {
		owner Owner
		want  string // definition reach policy findings
	}{
		"research of physics": {Owner{"o1", "physics", "g1", "research"},
			"plain always none | dear always none open-and-costly | theirs always always | sized depends depends | routed always always | here always always always-true | withheld never always admitted-in-vain"},
		"spare of biology": {Owner{"o2", "biology", "g2", "spare"},
			"plain always none | dear always none open-and-costly | theirs never never granted-in-vain | sized never never granted-in-vain | routed depends depends free-annotation | here always always always-true | withheld never never"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			rows, next := a.Rows(tt.owner, 0, 100, Filter{})
			var got []string
			for _, r := range rows {
				words := []string{string(r.Definition), string(r.Reach), r.Policy}
				for _, f := range r.Findings {
					words = append(words, f.Code)
					if f.Message == "" || f.Fix == "" {
						t.Errorf("%s: finding without words", f.Code)
					}
				}
				got = append(got, strings.Join(words, " "))
			}
			if text := strings.Join(got, " | "); text != tt.want || next != 7 {
				t.Errorf("got  %s\nwant %s", text, tt.want)
			}
		})
	}
}

func TestFilterAndPages(t *testing.T) {
	a := New(checked(t, file), grants)
	owner := Owner{"o2", "biology", "g2", "spare"}
	count := func(f Filter) (ids []string) {
		for from := 0; from < 7; {
			var rows []Row
			if rows, from = a.Rows(owner, from, 2, f); len(rows) > 2 {
				t.Errorf("%d rows at once", len(rows))
			}
			for _, r := range rows {
				ids = append(ids, string(r.Definition))
			}
		}
		return ids
	}
	for name, tt := range map[string]struct {
		filter Filter
		want   []string
	}{
		"reachable":  {Filter{Reachable: true}, []string{"plain", "dear", "routed", "here"}},
		"flagged":    {Filter{Flagged: true}, []string{"dear", "theirs", "sized", "routed", "here"}},
		"definition": {Filter{Definition: "routed"}, []string{"routed"}},
		"both":       {Filter{Reachable: true, Flagged: true}, []string{"dear", "routed", "here"}},
	} {
		if got := count(tt.filter); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

func BenchmarkRows(b *testing.B) {
	var yaml strings.Builder
	yaml.WriteString("definitions:\n")
	for i := range 1000 {
		fmt.Fprintf(&yaml, "  - {id: d%d, provisioner: static, policy: 'request.owner.organization_id == \"o%d\" && request.job_ttl < %d.0', provisionerSpec: {condition: cpuinfo.cpu_cores > %d}}\n", i, i, 3600+i, i%200)
	}
	a := New(checked(b, yaml.String()), grants)
	for b.Loop() {
		if rows, _ := a.Rows(Owner{"o5", "o5", "", ""}, 0, 1000, Filter{}); len(rows) != 1000 {
			b.Fatal(len(rows))
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1000, "ns/row")
}
