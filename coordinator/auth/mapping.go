package auth

import (
	"strings"

	"substrate/coordinator"
)

// Mapping is what an administrator declared that a group of an identity provider is here.
type Mapping struct {
	Claim               string // the group's name there
	Organization, Group string // a membership; without a group it is the organisation's
	Role                coordinator.Role
	Admin               bool // cluster-admin, and nothing else
}

// Bounds of what is declared.
const (
	MaxMappings = 1000
	maxMapping  = 1024 // bytes
)

// adminTarget is the role that no organisation has.
const adminTarget = "cluster-admin"

// ParseMapping reads CLAIM=ORGANISATION[/GROUP][:owner], or CLAIM=cluster-admin. What is claimed may hold "=" itself, as
// the names of a directory do.
func ParseMapping(text string) (Mapping, error) {
	fail := func(why string) (Mapping, error) {
		return Mapping{}, coordinator.Errorf(coordinator.ErrInvalid, "map a group of the identity provider", "%.80q %s", text, why).
			WithHint("write CLAIM=ORGANISATION/GROUP, CLAIM=ORGANISATION/GROUP:owner, CLAIM=ORGANISATION, CLAIM=ORGANISATION:owner or CLAIM=%s", adminTarget)
	}
	at := strings.LastIndexByte(text, '=')
	switch {
	case len(text) > maxMapping || strings.ContainsFunc(text, unprintable):
		return fail("is too long, or has characters that cannot be printed")
	case at <= 0:
		return fail("names no group of the provider")
	}
	m, target := Mapping{Claim: text[:at]}, text[at+1:]
	if target == adminTarget {
		m.Admin = true
		return m, nil
	}
	target, role, given := strings.Cut(target, ":")
	if given && role != coordinator.RoleOwner.String() {
		return fail("names a role that is not owner")
	}
	if given {
		m.Role = coordinator.RoleOwner
	}
	grouped := false
	m.Organization, m.Group, grouped = strings.Cut(target, "/")
	if m.Organization == "" || grouped && m.Group == "" || strings.ContainsAny(m.Group, "/: ") || strings.ContainsAny(m.Organization, " ") {
		return fail("names no organisation, or no group of one")
	}
	return m, nil
}

// String is what ParseMapping reads.
func (m Mapping) String() string {
	target := m.Organization
	if m.Group != "" {
		target += "/" + m.Group
	}
	if m.Role == coordinator.RoleOwner {
		target += ":" + m.Role.String()
	}
	if m.Admin {
		target = adminTarget
	}
	return m.Claim + "=" + target
}
