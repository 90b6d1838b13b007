package federation

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"substrate/coordinator"
)

const (
	id1 = "0b6c6a55-3c53-4c0e-9a0e-0d2c2f0f7a11"
	id2 = "1b6c6a55-3c53-4c0e-9a0e-0d2c2f0f7a11"
	id3 = "2b6c6a55-3c53-4c0e-9a0e-0d2c2f0f7a11"
)

func TestCheckIdentity(t *testing.T) {
	good := func() Identity {
		return Identity{Organization: Entity{id1, "lab"}, Group: Entity{id2, "team"}, User: Entity{id3, "una"}, Groups: []Entity{{id2, "team"}}}
	}
	for name, spoil := range map[string]func(*Identity){
		"no organization":     func(i *Identity) { i.Organization = Entity{} },
		"a name with a slash": func(i *Identity) { i.User.Name = "a/b" },
		"an id in capitals":   func(i *Identity) { i.User.ID = strings.ToUpper(id3) },
		"not a member":        func(i *Identity) { i.Groups = []Entity{{id1, "other"}} },
		"no groups":           func(i *Identity) { i.Groups = nil },
		"too many groups":     func(i *Identity) { i.Groups = make([]Entity, MaxGroups+1) },
		"a long actor":        func(i *Identity) { i.Actor = strings.Repeat("x", 300) },
	} {
		id := good()
		spoil(&id)
		if id.Check() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if id := good(); id.Check() != nil {
		t.Error(id.Check())
	}
	if (&Attributes{Preempts: make([]Entity, MaxPreempts+1)}).Check() == nil || (&Attributes{Preempts: []Entity{{}}}).Check() == nil {
		t.Error("a bad list is accepted")
	}
}

func TestLocalName(t *testing.T) {
	e := Entity{id1, "default"}
	for taken, want := range map[string]string{"": "default", "default": "default-0b6c6a55", "default default-0b6c6a55": "default-" + id1} {
		if got := LocalName(e, func(s string) bool { return strings.Contains(" "+taken+" ", " "+s+" ") }); got != want {
			t.Errorf("with %q taken: %s, want %s", taken, got, want)
		}
	}
	long := Entity{id1, strings.Repeat("x", 63)}
	for range 2 {
		seen := map[string]bool{}
		for range 3 {
			name := LocalName(long, func(s string) bool { return seen[s] })
			if len(name) > 63 {
				t.Errorf("%q has %d bytes", name, len(name))
			}
			seen[name] = true
		}
	}
}

// TestRevisionsOnlyGrow: whatever the clock does.
func TestRevisionsOnlyGrow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		last := uint64(0)
		for _, now := range rapid.SliceOf(rapid.Int64()).Draw(t, "clock") {
			if last > 1<<62 {
				return
			}
			next := Clock(last, min(now, 1<<61))
			if next <= last {
				t.Fatalf("%d after %d", next, last)
			}
			last = next
		}
	})
}

func TestNewer(t *testing.T) {
	for _, tt := range []struct {
		revision, have uint64
		forced, want   bool
	}{{1, 0, false, true}, {5, 5, false, false}, {5, 5, true, true}, {4, 5, true, false}, {6, 5, false, true}} {
		if got := Newer(tt.revision, &coordinator.Replica{Revision: tt.have, Forced: tt.forced}); got != tt.want {
			t.Errorf("%+v: %v", tt, got)
		}
	}
}
