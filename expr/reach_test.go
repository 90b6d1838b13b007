package expr

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestReach(t *testing.T) {
	research := &RequestOwner{OrganizationID: "6a6c9f1e-0000-4000-8000-000000000001", OrganizationName: "physics",
		GroupID: "6a6c9f1e-0000-4000-8000-000000000002", GroupName: "research", AccountID: "6a6c9f1e-0000-4000-8000-000000000002"}
	def := &RequestDefinition{ID: "gpu-large", Annotations: map[string]string{"tier": "gold"}}
	tests := map[string]struct {
		policy  string
		owner   *RequestOwner
		want    Truth
		depends []string
	}{
		"the organisation":         {`request.owner.organization_id == "physics"`, research, True, nil},
		"another organisation":     {`request.owner.organization_id == "biology"`, research, False, nil},
		"anybody":                  {`request.owner.organization_id == "physics"`, nil, Unknown, []string{"request.owner.organization_id"}},
		"a user":                   {`request.owner.email == "ann@example.org"`, research, Unknown, []string{"request.owner.email"}},
		"the definition":           {`definition.annotations["tier"] == "gold"`, research, True, nil},
		"always":                   {`true || request.job_ttl > 5`, nil, True, nil},
		"never":                    {`false && request.job_ttl > 5`, nil, False, nil},
		"size":                     {`request.owner.group_id == "research" && request.job_resource.cpu.cores <= 4`, research, Unknown, []string{"request.job_resource.cpu.cores"}},
		"closed whatever the size": {`request.owner.group_id == "spare" && request.job_resource.cpu.cores <= 4`, research, False, nil},
		"open whatever the size":   {`request.owner.group_id == "research" || request.job_resource.cpu.cores <= 4`, research, True, nil},
		"an annotation":            {`request.owner.group_id == "spare" || request.job_annotations["gpu.type"] == "h100"`, research, Unknown, []string{`request.job_annotations["gpu.type"]`}},
		"a condition that is known": {`request.owner.group_id == "research" ? request.preemptible : request.nodes > 4`, research, Unknown,
			[]string{"request.preemptible"}},
		"nothing": {`!(request.owner.group_id == "research")`, research, False, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p, err := CompilePolicy(tt.policy)
			if err != nil {
				t.Fatal(err)
			}
			got := p.Reach(tt.owner, def)
			if got.Truth != tt.want || !slices.Equal(got.Depends, tt.depends) {
				t.Errorf("%+v, want %v %v", got, tt.want, tt.depends)
			}
		})
	}
}

// TestReachHoldsForRequests: what is said of all requests of an owner is true of each.
func TestReachHoldsForRequests(t *testing.T) {
	parts := []string{`request.owner.organization_id == "physics"`, `request.owner.group_id == "research"`, `request.nodes > 2`,
		`request.job_annotations["a"] == "x"`, `request.preemptible`, `definition.id == "d"`, `request.owner.email == "e"`}
	rapid.Check(t, func(t *rapid.T) {
		var tree func(depth int) string
		tree = func(depth int) string {
			if depth == 0 || rapid.IntRange(0, 3).Draw(t, "leaf") == 0 {
				return rapid.SampledFrom(parts).Draw(t, "part")
			}
			switch rapid.IntRange(0, 3).Draw(t, "op") {
			case 0:
				return "!(" + tree(depth-1) + ")"
			case 1:
				return "(" + tree(depth-1) + " && " + tree(depth-1) + ")"
			case 2:
				return "(" + tree(depth-1) + " || " + tree(depth-1) + ")"
			}
			return "(" + tree(depth-1) + " ? " + tree(depth-1) + " : " + tree(depth-1) + ")"
		}
		p, err := CompilePolicy(tree(3))
		if err != nil {
			t.Fatal(err)
		}
		env := NewRequestEnv()
		env.Request.Owner = &RequestOwner{OrganizationName: rapid.SampledFrom([]string{"physics", "biology"}).Draw(t, "org"),
			GroupName: rapid.SampledFrom([]string{"research", "spare"}).Draw(t, "group")}
		env.Definition = &RequestDefinition{ID: rapid.SampledFrom([]string{"d", "e"}).Draw(t, "definition")}
		reach := p.Reach(env.Request.Owner, env.Definition)
		anybody := p.Reach(nil, env.Definition)
		env.Request.Nodes = rapid.SampledFrom([]uint32{1, 5}).Draw(t, "nodes")
		env.Request.Preemptible = rapid.Bool().Draw(t, "preemptible")
		env.Request.JobAnnotations["a"] = rapid.SampledFrom([]string{"x", "y"}).Draw(t, "annotation")
		env.Request.Owner.Email = rapid.SampledFrom([]string{"e", "f"}).Draw(t, "email")
		admitted, err := p.Admit(env)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range []Reach{reach, anybody} {
			if r.Truth != Unknown && (r.Truth == True) != admitted {
				t.Fatalf("%s: reach %v, and a request is admitted: %v", p.Source(), r.Truth, admitted)
			}
		}
		if anybody.Truth != Unknown && reach.Truth != anybody.Truth {
			t.Fatalf("%s: anybody %v, an owner %v", p.Source(), anybody.Truth, reach.Truth)
		}
	})
}
