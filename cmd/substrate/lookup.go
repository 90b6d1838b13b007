package main

import (
	"context"

	"substrate/proto/apiv1"
)

// ownOrganization tells an administrator, who may see others too, whose list a list without --organization is.
func (a *app) ownOrganization(ctx context.Context, what, chosen string) {
	if chosen != "" || a.quiet || (a.output != "table" && a.output != "wide") {
		return
	}
	me, err := get(ctx, a, "asking who you are", (*connection).whoAmI, &apiv1.WhoAmIRequest{})
	if err != nil || !me.GetUser().GetAdmin() {
		return // the list is shown already, and is all there is
	}
	a.flush()
	a.warn("these are the %s of organization %s; for another one give --organization", what, me.GetOrganization().GetName())
}

// userID is the id of a user of an organization, given by name or id; without one the coordinator looks it up.
func (a *app) userID(ctx context.Context, organization, user string) (string, error) {
	if organization == "" {
		return user, nil
	}
	r, err := get(ctx, a, "listing the users", (*connection).listUsers, &apiv1.ListUsersRequest{Organization: organization})
	if err != nil {
		return "", err
	}
	for _, u := range r.GetUsers() {
		if u.GetId() == user || u.GetName() == user {
			return u.GetId(), nil
		}
	}
	return "", failf(exitNotFound, "see `substrate user list --organization "+shellWord(organization)+"`",
		"cannot find user %q: organization %s has none of this name or id", user, organization)
}

// ofAnother adds to an unknown user where else to look.
func ofAnother(organization string, err error) error {
	if f, ok := err.(*failure); ok && f.code == exitNotFound && organization == "" && f.hint == "" {
		f.hint = "a user of another organization: add --organization NAME, or give the id"
	}
	return err
}
