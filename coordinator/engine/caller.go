package engine

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"substrate/coordinator"
	"substrate/coordinator/auth"
)

// Caller is the authenticated user on whose behalf a method acts; the server fills it.
type Caller struct {
	auth.Principal
	Token     string // public id of the token that was shown
	TokenName string // what its user calls it
	From      string // remote address, for events
	// Federate is the cluster id of the Federate that makes the request for the user; "" is the user directly.
	Federate string
	Force    bool // change replicas, which the next refresh overwrites
}

// authorize is how every method that acts for a caller asks whether it may. The server has asked before
// where no target is needed; it is asked again here, so that no other way in can forget it.
func (c Caller) authorize(permission auth.Permission, op string, target auth.Target) error {
	return auth.Authorize(c.Principal, permission, op, target)
}

// sees reports whether the caller may see a workflow.
func (c Caller) sees(w *submission) bool {
	return auth.Allowed(c.Principal, auth.PermissionReadWork, w.target())
}

func (w *submission) target() auth.Target {
	o := w.record.Owner
	return auth.Target{Organization: o.Organization, Group: o.Group, Owner: o.User}
}

func (o *organization) target() auth.Target { return auth.Target{Organization: o.ID} }

// WhoAmI shows the caller's own records. The organisation is empty for a user without one.
func (e *Engine) WhoAmI(ctx context.Context, c Caller) (u UserView, o coordinator.Organization, err error) {
	if err := c.authorize(auth.PermissionUser, "show user", auth.Target{}); err != nil {
		return u, o, err
	}
	verr := e.view(ctx, func(s *state) {
		rec := s.users[c.User]
		if rec == nil {
			err = noSuch("show user", "user", string(c.User))
			return
		}
		u = s.userView(rec)
		if org := s.orgs[rec.Organization]; org != nil {
			o = org.Organization
		}
	})
	if verr != nil {
		return u, o, verr
	}
	return u, o, err
}

func (t *tx) prioritySet(subject string, p int32) {
	t.state.changedWaiting()
	t.event(Event{Kind: "priority-set", Subject: subject, Message: fmt.Sprintf("priority %d", p)})
}

// newID makes a random UUID of the engine's chance.
func (e *Engine) newID() (string, error) {
	u, err := uuid.NewRandomFromReader(e.opt.Rand)
	if err != nil {
		return "", fmt.Errorf("cannot make an id: %w", err)
	}
	return u.String(), nil
}
