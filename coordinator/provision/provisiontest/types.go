package provisiontest

import (
	"slices"
	"strings"

	"substrate/coordinator"
	"substrate/coordinator/catalogue"
	"substrate/coordinator/provision"
	"substrate/coordinator/spec"
)

// What a provisioner that is a Typer must do. Of one that is none, nothing is asked.
func typeChecks() []check {
	typer := func(run func(s *session, typer provision.Typer)) func(s *session) {
		return func(s *session) {
			t, ok := provision.As[provision.Typer](s.p)
			switch {
			case !ok:
				s.Log("it tells of no types")
			case s.a.Has == nil:
				s.Fatal("it is a Typer, and the account does not say what there is")
			default:
				run(s, t)
			}
		}
	}
	return []check{
		{name: "types/all", run: typer(typesAll)},
		{name: "types/known", run: typer(typesKnown)},
		{name: "types/no answer", run: typer(typesFail)},
		{name: "types/asked anew", run: typer(typesAnew)},
	}
}

func (s *session) types(t provision.Typer) []catalogue.Type {
	s.Helper()
	list, err := t.Types(s.ctx())
	if err != nil {
		s.Fatalf("types: %v", err)
	}
	return list
}

// typesAll: each once, by name, and nothing that cannot be had.
func typesAll(s *session, t provision.Typer) {
	var got []string
	for _, typ := range s.types(t) {
		got = append(got, typ.Name)
	}
	if want := s.a.Has(); !slices.Equal(got, want) {
		s.Errorf("it tells of %v, the provider has %v", got, want)
	}
	if c, err := catalogue.New(s.types(t), true); err != nil || c.Len() != len(got) {
		s.Errorf("they are no catalogue: %v", err)
	}
	if s.a.Absent != nil && slices.Contains(got, typeName(*s.a.Absent)) {
		s.Error("it tells of a type that the provider does not have")
	}
}

func typeName(d coordinator.Definition) string {
	name, _ := spec.TypeOf(d.Spec)
	name, _, _ = strings.Cut(name, " ")
	return name
}

// typesKnown: what is said of a type holds together, and what nobody knows is not nothing.
func typesKnown(s *session, t provision.Typer) {
	list := s.types(t)
	for _, d := range s.a.Definitions {
		if !slices.ContainsFunc(list, func(t catalogue.Type) bool { return t.Name == typeName(d) }) {
			s.Errorf("%s can be launched and is not told of", typeName(d))
		}
	}
	for _, t := range list {
		if t.CostPerHour != nil && *t.CostPerHour <= 0 {
			s.Errorf("the cost of %s is %g: what nobody knows is not nothing", t.Name, *t.CostPerHour)
		}
		for what, n := range map[string]*uint32{"vCPUs": t.VCPUs, "cores": t.Cores, "threads of a core": t.ThreadsPerCore, "GPUs": t.GPUs} {
			if n != nil && *n == 0 && (what != "GPUs" || t.GPUVendor != "") {
				s.Errorf("%s has 0 %s: what nobody knows is not nothing", t.Name, what)
			}
		}
		if t.VCPUs != nil && t.Cores != nil && *t.Cores > *t.VCPUs {
			s.Errorf("%s has %d cores and %d vCPUs", t.Name, *t.Cores, *t.VCPUs)
		}
		if t.Memory != nil && *t.Memory == 0 || t.Arch != "" && t.Arch != "amd64" && t.Arch != "arm64" || t.Fraction && t.GPUs != nil {
			s.Errorf("%s is %+v", t.Name, t)
		}
		if t.Seen != nil || t.Shortfall != nil {
			s.Errorf("%s: what nodes have is not the provider's to say", t.Name)
		}
		if !slices.IsSorted(t.Zones) {
			s.Errorf("the zones of %s are %v", t.Name, t.Zones)
		}
	}
}

// typesFail: a list that a part is missing of is no list.
func typesFail(s *session, t provision.Typer) {
	if s.a.Fail == nil {
		s.Fatal("the account has no way to fail")
	}
	s.types(t)
	for range 12 { // more than a client's own retries
		s.a.Fail(CallOffers, provision.FaultDenied)
	}
	list, err := t.Types(s.ctx())
	if err == nil {
		s.Fatalf("a question that was refused is answered with %d types", len(list))
	}
	s.wants("tell of types", err, provision.FaultDenied)
}

// typesAnew: what was heard before is not told again.
func typesAnew(s *session, t provision.Typer) {
	if s.a.Asked == nil {
		s.Fatal("the account does not count calls")
	}
	s.types(t)
	before := s.a.Asked(CallOffers)
	s.types(t)
	if s.a.Asked(CallOffers) == before {
		s.Error("the provider was not asked")
	}
}
