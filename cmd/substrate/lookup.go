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

// ofAnother adds to an unknown user where else to look.
func ofAnother(organization string, err error) error {
	if f, ok := err.(*failure); ok && f.code == exitNotFound && organization == "" && f.hint == "" {
		f.hint = "a user of another organization: add --organization NAME, or give the id"
	}
	return err
}
