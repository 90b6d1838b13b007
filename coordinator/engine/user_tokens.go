package engine

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/federation"
)

// credentials is what a secret is checked against, outside the loop: a wrong one must cost nothing, and
// every request brings one. It follows what is durable.
type credentials struct {
	mu     sync.RWMutex
	tokens map[string]*credential // by public id
	owners map[coordinator.UserID]owner
	joins  map[string]auth.JoinToken
}

// credential is a token with when it was last used, in Unix seconds; 0 is not since the record was read.
type credential struct {
	auth.UserToken
	used atomic.Int64
}

type owner struct {
	auth.Principal
	disabled bool
}

// reset takes over what the store holds.
func (k *credentials) reset(s *state) {
	k.mu.Lock()
	defer k.mu.Unlock()
	before := k.tokens
	k.tokens, k.joins = make(map[string]*credential, len(s.tokens)), maps.Clone(s.joinTokens)
	for id, t := range s.tokens {
		k.tokens[id] = &credential{UserToken: t}
		if old := before[id]; old != nil {
			k.tokens[id].used.Store(old.used.Load())
		}
	}
	k.owners = make(map[coordinator.UserID]owner, len(s.users))
	for id, u := range s.users {
		k.owners[id] = owner{auth.PrincipalOf(*u), u.Disabled}
	}
}

// know takes over what has become of a user.
func (k *credentials) know(p auth.Principal, disabled bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.owners[p.User] = owner{p, disabled}
}

// forget ends a user's tokens with the user.
func (k *credentials) forget(id coordinator.UserID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.owners, id)
	maps.DeleteFunc(k.tokens, func(_ string, t *credential) bool { return t.User == id })
}

// onBehalf is the caller that a user of the Federate is before the replica has been brought up to the request: what is
// known here of it, with the groups that the request names.
func (k *credentials) onBehalf(id *federation.Identity) Caller {
	p := auth.Principal{User: coordinator.UserID(id.User.ID), Name: id.User.Name, Organization: coordinator.OrganizationID(id.Organization.ID)}
	for _, g := range id.Groups {
		p.Groups = append(p.Groups, coordinator.GroupID(g.ID))
	}
	k.mu.RLock()
	known, ok := k.owners[p.User]
	k.mu.RUnlock()
	if ok && known.Organization == p.Organization {
		p.Name, p.Owner = known.Name, known.Owner
		p.Owns = slices.DeleteFunc(slices.Clone(known.Owns), func(g coordinator.GroupID) bool { return !slices.Contains(p.Groups, g) })
	}
	return callerFor(p, id)
}

func (k *credentials) issue(t auth.UserToken) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tokens[t.ID] = &credential{UserToken: t}
}

func (k *credentials) revoke(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.tokens, id)
}

func (k *credentials) issueJoin(t auth.JoinToken) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.joins[t.ID] = t
}

func (k *credentials) revokeJoin(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.joins, id)
}

func (k *credentials) token(id string) (*credential, owner, bool) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	t := k.tokens[id]
	if t == nil {
		return nil, owner{}, false
	}
	o, known := k.owners[t.User]
	return t, o, known
}

// lastUsed is when a token was used last, as far as is known.
func (k *credentials) lastUsed(t auth.UserToken) time.Time {
	k.mu.RLock()
	defer k.mu.RUnlock()
	if c := k.tokens[t.ID]; c != nil {
		if used := c.used.Load(); used > max(0, t.Used.Unix()) { // 0: never, since this start
			return time.Unix(used, 0).UTC()
		}
	}
	return t.Used
}

// issued reports whether a join token of this secret was ever given out.
func (k *credentials) issued(shown auth.JoinText) bool {
	k.mu.RLock()
	defer k.mu.RUnlock()
	t, ok := k.joins[shown.ID]
	return ok && t.Issued(shown)
}

// Authenticate finds the user behind an API token.
func (e *Engine) Authenticate(_ context.Context, token string) (Caller, error) {
	refused := coordinator.Errorf(coordinator.ErrUnauthenticated, "authenticate", "the token is not known here")
	shown, err := auth.ParseUserToken(token)
	if err != nil {
		return Caller{}, refused
	}
	rec, owner, ok := e.credentials.token(shown.ID)
	if !ok {
		return Caller{}, refused
	}
	now := e.opt.Now()
	if err := rec.Check(shown, now); err != nil {
		if rec.UserToken.Expired(now) && rec.Issued(shown) { // who holds the secret may know why it does not count
			return Caller{}, coordinator.Errorf(coordinator.ErrUnauthenticated, "authenticate", "the token expired at %s", rec.Expires.Format(time.RFC3339)).
				WithHint("make another with `substrate user token create`, or ask a cluster administrator for one")
		}
		return Caller{}, refused
	}
	if owner.disabled {
		return Caller{}, coordinator.Errorf(coordinator.ErrUnauthenticated, "authenticate", "the account of user %s is disabled", owner.Name).
			WithHint("ask an owner of your organisation, or a cluster administrator")
	}
	rec.used.Store(now.Unix())
	return Caller{Principal: owner.Principal, Token: rec.ID, TokenName: rec.Name}, nil
}

// maxTokens bounds the tokens of one user that count.
const maxTokens = 50

// Tokens that have expired stay in the list, so that it says what has become of them: some of each user, for some time.
const (
	keptExpired = 10
	expiredStay = 30 * 24 * time.Hour
)

// TokenView is a token as its user may see it, without anything that opens a door.
type TokenView struct {
	ID, Name               string
	User                   coordinator.UserID
	UserName               string
	Created, Expires, Used time.Time // zero: never
	Expired                bool
}

// tokensOf are a user's tokens, oldest first.
func (s *state) tokensOf(id coordinator.UserID) []auth.UserToken {
	var out []auth.UserToken
	for _, t := range s.tokens {
		if t.User == id {
			out = append(out, t)
		}
	}
	slices.SortFunc(out, func(a, b auth.UserToken) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID)) })
	return out
}

// tokenOf finds a user's token by its id, or by its name: one that counts before those of the name that have expired.
func (s *state) tokenOf(id coordinator.UserID, ref string, now time.Time) (found *auth.UserToken) {
	for _, rec := range s.tokensOf(id) {
		if rec.ID == ref {
			return &rec
		}
		if rec.Name == ref && ref != "" && (found == nil || !rec.Expired(now)) {
			found = &rec
		}
	}
	return found
}

// forgetTokens drops the tokens that expired long ago.
func (e *Engine) forgetTokens(ctx context.Context) error {
	return e.do(ctx, func(t *tx) error {
		n := 0
		for _, id := range slices.Sorted(maps.Keys(t.state.tokens)) {
			if rec := t.state.tokens[id]; rec.Expired(t.now.Add(-expiredStay)) {
				t.dropToken(rec)
				if n++; n%recordsAtOnce == 0 {
					t.group()
				}
			}
		}
		return nil
	})
}

// NewToken asks for an API token. The user is named by id, or by name in the organisation; "" is the caller.
type NewToken struct {
	User, Organization, Name string
	TTL                      time.Duration // 0: for ever
}

// CreateUserToken makes an API token; only its hash is kept. Who holds it is that user, so only the user itself
// and administrators of the cluster make one.
func (e *Engine) CreateUserToken(ctx context.Context, c Caller, in NewToken) (text string, out TokenView, err error) {
	err = e.do(ctx, func(t *tx) error {
		u, err := t.state.permittedUser(c, auth.PermissionManageUser, "create token", in.Organization, cmp.Or(in.User, string(c.User)))
		if err != nil {
			return err
		}
		text, out, err = e.newToken(t, u, in)
		return err
	})
	return text, out, err
}

// roomForToken refuses one token too many.
func (s *state) roomForToken(op string, u *coordinator.User, now time.Time) error {
	live := slices.DeleteFunc(s.tokensOf(u.ID), func(k auth.UserToken) bool { return k.Expired(now) })
	if len(live) < maxTokens {
		return nil
	}
	return coordinator.Errorf(coordinator.ErrExhausted, op, "user %s has %d tokens", u.Name, maxTokens).
		WithHint("revoke one: `substrate user token list` names them")
}

func (e *Engine) newToken(t *tx, u *coordinator.User, in NewToken) (string, TokenView, error) {
	const op = "create token"
	have := t.state.tokensOf(u.ID)
	expired := slices.DeleteFunc(slices.Clone(have), func(k auth.UserToken) bool { return !k.Expired(t.now) })
	expired = expired[:max(len(expired)-keptExpired, 0)] // the oldest
	for _, k := range have {
		if in.Name != "" && k.Name == in.Name && !k.Expired(t.now) {
			return "", TokenView{}, coordinator.Errorf(coordinator.ErrExists, op, "user %s has one of name %q", u.Name, in.Name)
		}
	}
	if err := t.state.roomForToken(op, u, t.now); err != nil {
		return "", TokenView{}, err
	}
	text, rec, err := auth.NewUserToken(u.ID, in.Name, in.TTL, t.now, e.opt.Rand)
	if err != nil {
		return "", TokenView{}, err
	}
	t.state.tokens[rec.ID] = rec
	t.put(prefixToken+rec.ID, rec)
	for _, old := range expired {
		t.dropToken(old)
	}
	t.group()
	t.then(func(int64) { e.credentials.issue(rec) })
	t.event(Event{Kind: "token-created", Subject: u.Name, Message: rec.ID})
	return text, e.tokenView(rec, u, t.now), nil
}

func (t *tx) dropToken(rec auth.UserToken) {
	delete(t.state.tokens, rec.ID)
	t.delete(prefixToken + rec.ID)
	t.then(func(int64) { t.engine.credentials.revoke(rec.ID) })
}

func (e *Engine) tokenView(rec auth.UserToken, u *coordinator.User, now time.Time) TokenView {
	v := TokenView{ID: rec.ID, Name: rec.Name, User: u.ID, UserName: u.Name, Created: rec.Created, Expired: rec.Expired(now)}
	v.Used = e.credentials.lastUsed(rec)
	if rec.Expires != nil {
		v.Expires = *rec.Expires
	}
	return v
}

// UserTokens lists a user's tokens, oldest first.
func (e *Engine) UserTokens(ctx context.Context, c Caller, organization, user string) (out []TokenView, err error) {
	verr := e.view(ctx, func(s *state) {
		u, perr := s.permittedUser(c, auth.PermissionCurbUser, "list tokens", organization, cmp.Or(user, string(c.User)))
		if perr != nil {
			err = perr
			return
		}
		now := e.opt.Now()
		for _, t := range s.tokensOf(u.ID) {
			out = append(out, e.tokenView(t, u, now))
		}
	})
	if verr != nil {
		return nil, verr
	}
	return out, err
}

// RevokeUserToken ends a token, named by its id or its name.
func (e *Engine) RevokeUserToken(ctx context.Context, c Caller, organization, user, token string) error {
	op := "revoke token " + token
	return e.do(ctx, func(t *tx) error {
		u, err := t.state.permittedUser(c, auth.PermissionCurbUser, op, organization, cmp.Or(user, string(c.User)))
		if err != nil {
			return err
		}
		if u.Admin && u.ID != c.User {
			if err := c.authorize(auth.PermissionAdminCluster, op, auth.Target{}); err != nil {
				return err
			}
		}
		rec := t.state.tokenOf(u.ID, token, t.now)
		if rec == nil {
			return noSuch(op, "token", token)
		}
		t.dropToken(*rec)
		t.group()
		t.event(Event{Kind: "token-revoked", Subject: u.Name, Message: fmt.Sprintf("%s, by %s", rec.ID, c.Name)})
		return nil
	})
}

// AdminToken makes a token for the first administrator; the daemon keeps it in a file of its own.
func (e *Engine) AdminToken(ctx context.Context) (text string, err error) {
	err = e.do(ctx, func(t *tx) error {
		for _, u := range t.state.users {
			if u.Admin && u.Name == firstAdmin {
				text, _, err = e.newToken(t, u, NewToken{})
				return err
			}
		}
		return noSuch("create token", "user", firstAdmin)
	})
	return text, err
}

// noteUse writes when tokens were used last, so that a restart does not forget it: once an hour, not at each use.
func (e *Engine) noteUse(ctx context.Context) error {
	var used []auth.UserToken
	if err := e.view(ctx, func(s *state) {
		for _, t := range s.tokens {
			if last := e.credentials.lastUsed(t).Truncate(time.Hour); last.After(t.Used) {
				t.Used = last
				used = append(used, t)
			}
		}
	}); err != nil {
		return err
	}
	slices.SortFunc(used, func(a, b auth.UserToken) int { return cmp.Compare(a.ID, b.ID) })
	for part := range slices.Chunk(used, erasedAtOnce) {
		if err := e.do(ctx, func(t *tx) error {
			for _, rec := range part {
				if _, ok := t.state.tokens[rec.ID]; ok {
					t.state.tokens[rec.ID] = rec
					t.put(prefixToken+rec.ID, rec)
					t.group()
				}
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}
