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

// ofAnotherUser adds to an unknown token where it may be.
func ofAnotherUser(req *apiv1.RevokeUserTokenRequest, err error) error {
	f, ok := err.(*failure)
	switch {
	case !ok || f.code != exitNotFound || f.hint != "":
	case req.GetUser() == "":
		f.hint = "see `substrate user token list`; of another user: add --user NAME, and --organization NAME where that is another one too"
	default:
		f.hint = "see `substrate user token list " + shellWord(req.GetUser()) + inOrganization(req.GetOrganization()) + "`"
	}
	return err
}

// inOrganization is the flag as it would be typed.
func inOrganization(name string) string {
	if name == "" {
		return ""
	}
	return " --organization " + shellWord(name)
}

// ofAnother adds to an unknown user where else to look.
func ofAnother(organization string, err error) error {
	if f, ok := err.(*failure); ok && f.code == exitNotFound && organization == "" && f.hint == "" {
		f.hint = "a user of another organization: add --organization NAME, or give the id"
	}
	return err
}
