package engine

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/auth"
)

// LogIn is somebody for whom an identity provider has vouched.
type LogIn struct {
	auth.External
	CreateIn string // organisation for who is not known yet and whose groups say none; "" refuses them
	Mappings []auth.Mapping
	TTL      time.Duration // of the token
}

// LogIn gives out a token that expires, to the user that the provider's subject stands for. At its first log-in a
// subject becomes the one user that has its verified address and belongs to no subject yet, or a new user.
func (e *Engine) LogIn(ctx context.Context, in LogIn) (text string, out TokenView, err error) {
	const op = "log in"
	if in.Issuer == "" || in.Subject == "" || in.TTL <= 0 {
		return "", TokenView{}, coordinator.Errorf(coordinator.ErrInvalid, op, "issuer, subject or lifetime missing")
	}
	if err := checkUnixUser(op, in.UnixUser); err != nil {
		return "", TokenView{}, err
	}
	err = e.do(ctx, func(t *tx) error {
		u, err := e.vouchedFor(t, op, in)
		if err != nil {
			return err
		}
		if u.Disabled {
			return coordinator.Errorf(coordinator.ErrUnauthenticated, op, "the account of user %s is disabled", u.Name).
				WithHint("ask an owner of your organisation, or a cluster administrator")
		}
		if err := t.state.roomForToken(op, u, t.now); err != nil {
			return err
		}
		t.link(u, in)
		t.follow(u, &in)
		text, out, err = e.newToken(t, u, NewToken{TTL: in.TTL})
		return err
	})
	return text, out, err
}

// vouchedFor finds the user, or makes one that is nowhere yet. Nothing is changed.
func (e *Engine) vouchedFor(t *tx, op string, in LogIn) (*coordinator.User, error) {
	if u := t.state.externals[coordinator.ExternalID{Issuer: in.Issuer, Subject: in.Subject}]; u != nil {
		return u, nil
	}
	u, err := t.state.addressed(op, in.Email)
	if u != nil || err != nil {
		return u, err
	}
	return e.newcomer(t, op, in)
}

// link takes over what the provider says of the user.
func (t *tx) link(u *coordinator.User, in LogIn) {
	known := u.External != nil && (in.UnixUser == "" || in.UnixUser == u.UnixUser)
	if known {
		return
	}
	if u.External == nil {
		if t.state.users[u.ID] == nil {
			t.event(Event{Kind: "user-created", Subject: t.state.orgs[u.Organization].Slug + "/" + u.Name})
		}
		u.External = &coordinator.ExternalID{Issuer: in.Issuer, Subject: in.Subject}
		t.state.addUser(u)
		t.event(Event{Kind: "user-linked", Subject: u.Name, Message: fmt.Sprintf("logs in as %s of %s", in.Subject, in.Issuer)})
	}
	if in.UnixUser != "" {
		u.UnixUser = in.UnixUser
	}
	t.putUser(u)
	t.group()
}

// addressed is the one user with an address that belongs to no subject yet, nil when there is none.
func (s *state) addressed(op, email string) (*coordinator.User, error) {
	if email == "" {
		return nil, nil
	}
	var found *coordinator.User
	for _, u := range s.users {
		switch {
		case u.External != nil || u.Replica != nil || !strings.EqualFold(u.Email, email):
		case found != nil:
			return nil, coordinator.Errorf(coordinator.ErrDenied, op, "several users have the address %s", email).
				WithHint("a cluster administrator has to give each its own address")
		default:
			found = u
		}
	}
	return found, nil
}

// maxSameName bounds the numbers that tell newcomers of one name apart.
const maxSameName = 100

// newcomer makes a user for somebody who is not known, where the cluster takes such.
func (e *Engine) newcomer(t *tx, op string, in LogIn) (*coordinator.User, error) {
	s := t.state
	home, err := s.home(op, &in)
	if err != nil {
		return nil, err
	}
	if in.CreateIn = cmp.Or(home, in.CreateIn); in.CreateIn == "" {
		return nil, coordinator.Errorf(coordinator.ErrDenied, op, "nobody here is %s", orNone(coordinator.DefinitionID(in.Username))).
			WithHint("a cluster administrator can make a user with the address %q: `substrate user create NAME --email %s`", in.Email, in.Email)
	}
	o := s.organization(in.CreateIn, Caller{Principal: auth.Principal{Admin: true}})
	if o == nil {
		return nil, coordinator.Errorf(coordinator.ErrDenied, op, "the organisation for newcomers, %s, does not exist", in.CreateIn)
	}
	if err := t.editable(Caller{}, op, o.Replica); err != nil {
		return nil, err
	}
	var groups []coordinator.GroupID
	if len(s.wanted(&coordinator.User{Organization: o.ID}, in.mapped()).Groups) == 0 { // else those alone
		g := s.group(o.ID, defaultGroup)
		if g == nil {
			return nil, coordinator.Errorf(coordinator.ErrDenied, op, "organisation %s has no group %s", o.Slug, defaultGroup)
		}
		groups = append(groups, g.ID)
	}
	base := slugOf(in.Username)
	name := base
	for n := 2; s.user(o.ID, name) != nil || checkSlug(op, name) != nil; n++ {
		if name = fmt.Sprintf("%s-%d", base, n); n > maxSameName {
			return nil, coordinator.Errorf(coordinator.ErrExists, op, "no name is left for %s", base)
		}
	}
	id, err := e.newID()
	if err != nil {
		return nil, err
	}
	return &coordinator.User{ID: coordinator.UserID(id), Organization: o.ID, Name: name, Email: in.Email, Groups: groups, Created: t.now}, nil
}

// slugOf makes a user's name of what a provider calls somebody: the part before an @, in small letters.
func slugOf(name string) string {
	name, _, _ = strings.Cut(strings.ToLower(name), "@")
	name = strings.Map(func(r rune) rune {
		if strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789-_.", r) {
			return r
		}
		return '-'
	}, name)
	name = strings.Trim(name, "-_.")
	if len(name) > 50 {
		name = strings.TrimRight(name[:50], "-_.")
	}
	if name == "" {
		return "user"
	}
	return name
}
