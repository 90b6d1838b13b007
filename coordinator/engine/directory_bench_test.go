package engine

import (
	"fmt"
	"testing"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/store"
)

// BenchmarkDirectory: lists and permission checks with 100,000 users, 10,000 groups and 1,000 organisations.
func BenchmarkDirectory(b *testing.B) {
	c := newCluster(b, store.NewMemory())
	text, err := c.token(c.admin, firstAdmin)
	if err != nil {
		b.Fatal(err)
	}
	c.inLoop(func(t *tx) {
		for i := range 1000 {
			t.state.addOrganization(&organization{Organization: coordinator.Organization{ID: coordinator.OrganizationID(fmt.Sprint("o", i)), Slug: fmt.Sprint("org-", i)}})
		}
		for i := range 10_000 {
			t.state.addGroup(&coordinator.Group{ID: coordinator.GroupID(fmt.Sprint("g", i)), Organization: c.admin.Organization, Slug: fmt.Sprint("group-", i)})
		}
		for i := range 100_000 {
			u := &coordinator.User{ID: coordinator.UserID(fmt.Sprint("u", i)), Organization: c.admin.Organization, Name: fmt.Sprint("user-", i), Groups: []coordinator.GroupID{"g1"}}
			t.state.addUser(u)
			c.engine.credentials.know(auth.PrincipalOf(*u), false)
		}
	})
	page := Page{Size: 1000, Token: "user-5"}
	b.Run("users", func(b *testing.B) {
		for b.Loop() {
			if list, _, err := c.engine.Users(b.Context(), c.admin, UserFilter{}, page); err != nil || len(list) != 1000 {
				b.Fatal(len(list), err)
			}
		}
	})
	b.Run("groups", func(b *testing.B) {
		for b.Loop() {
			if list, _, err := c.engine.Groups(b.Context(), c.admin, "", Page{Size: 1000, Token: "group-5"}); err != nil || len(list) != 1000 {
				b.Fatal(len(list), err)
			}
		}
	})
	b.Run("organisations", func(b *testing.B) {
		for b.Loop() {
			if _, _, err := c.engine.Organizations(b.Context(), c.admin, Page{Size: 1000}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("token and permission", func(b *testing.B) {
		for b.Loop() {
			who, err := c.engine.Authenticate(b.Context(), text)
			if err != nil || !auth.Allowed(who.Principal, auth.PermissionManageGroup, auth.Target{Organization: "o1", Group: "g1"}) {
				b.Fatal(err)
			}
		}
	})
}
