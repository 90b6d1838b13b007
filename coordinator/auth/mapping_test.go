package auth

import (
	"strings"
	"testing"

	"substrate/coordinator"
)

func TestParseMapping(t *testing.T) {
	for text, want := range map[string]Mapping{
		"phys=lab/research":                  {Claim: "phys", Organization: "lab", Group: "research"},
		"phys=lab/research:owner":            {Claim: "phys", Organization: "lab", Group: "research", Role: coordinator.RoleOwner},
		"phys=lab":                           {Claim: "phys", Organization: "lab"},
		"phys=lab:owner":                     {Claim: "phys", Organization: "lab", Role: coordinator.RoleOwner},
		"ops=cluster-admin":                  {Claim: "ops", Admin: true},
		"cn=phys,ou=groups,dc=x=lab":         {Claim: "cn=phys,ou=groups,dc=x", Organization: "lab"},
		"a group with spaces/:=lab/research": {Claim: "a group with spaces/:", Organization: "lab", Group: "research"},
	} {
		got, err := ParseMapping(text)
		if err != nil || got != want || got.String() != text {
			t.Errorf("%s: %+v %q, %v", text, got, got, err)
		}
	}
	for _, text := range []string{"", "=", "phys", "phys=", "=lab", "phys=/g", "phys=lab/", "phys=lab/a/b", "phys=lab:member", "phys=lab:", "phys=lab/g:admin",
		"phys=cluster-admin:owner/", "phys=lab x", "a\nb=lab", strings.Repeat("x", 2000) + "=lab"} {
		if got, err := ParseMapping(text); coordinator.ErrorKindOf(err) != coordinator.ErrInvalid {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}

// FuzzParseMapping: what is read is read again from how it is written, and only the one word makes administrators.
func FuzzParseMapping(f *testing.F) {
	for _, s := range []string{"phys=lab/research:owner", "ops=cluster-admin", "cn=a=lab", "=", "a=b/c/d", "a=:owner"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		m, err := ParseMapping(text)
		if err != nil {
			return
		}
		if again, err := ParseMapping(m.String()); err != nil || again != m {
			t.Errorf("%q: %+v, then %+v, %v", text, m, again, err)
		}
		if m.Admin != strings.HasSuffix(text, "=cluster-admin") || m.Claim == "" || !m.Admin && m.Organization == "" {
			t.Errorf("%q: %+v", text, m)
		}
	})
}
