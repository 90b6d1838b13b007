package engine

import (
	"context"
	"maps"
	"sync"

	"substrate/coordinator"
	"substrate/coordinator/auth"
)

// credentials is what a secret is checked against, outside the loop: a wrong one must cost nothing, and
// every request brings one. It follows what is durable.
type credentials struct {
	mu     sync.RWMutex
	tokens map[string]auth.UserToken // by public id
	owners map[coordinator.UserID]Caller
	joins  map[string]auth.JoinToken
}

// reset takes over what the store holds.
func (k *credentials) reset(s *state) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tokens, k.joins = maps.Clone(s.tokens), maps.Clone(s.joinTokens)
	k.owners = make(map[coordinator.UserID]Caller, len(s.users))
	for id, u := range s.users {
		k.owners[id] = Caller{Principal: auth.PrincipalOf(*u)}
	}
}

func (k *credentials) issue(t auth.UserToken, owner Caller) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tokens[t.ID], k.owners[owner.User] = t, owner
}

func (k *credentials) issueJoin(t auth.JoinToken) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.joins[t.ID] = t
}

func (k *credentials) token(id string) (t auth.UserToken, owner Caller, ok bool) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	t, ok = k.tokens[id]
	owner, known := k.owners[t.User]
	return t, owner, ok && known
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
	shown, err := auth.ParseUserToken(token)
	if err == nil {
		rec, caller, ok := e.credentials.token(shown.ID)
		if ok && rec.Check(shown, e.opt.Now()) == nil {
			return caller, nil
		}
	}
	return Caller{}, coordinator.Errorf(coordinator.ErrUnauthenticated, "authenticate", "the token is not known here")
}

// CreateUserToken makes an API token; only its hash is kept.
func (e *Engine) CreateUserToken(ctx context.Context, c Caller, user string) (text string, err error) {
	err = e.do(ctx, func(t *tx) error {
		u, err := t.state.permittedUser(c, auth.PermissionManageUser, "create token", user)
		if err != nil {
			return err
		}
		text, err = e.newToken(t, u)
		return err
	})
	return text, err
}

func (e *Engine) newToken(t *tx, u *coordinator.User) (string, error) {
	text, rec, err := auth.NewUserToken(u.ID, t.now, e.opt.Rand)
	if err != nil {
		return "", err
	}
	t.state.tokens[rec.ID] = rec
	t.put(prefixToken+rec.ID, rec)
	t.group()
	caller := Caller{Principal: auth.PrincipalOf(*u)}
	t.then(func(int64) { e.credentials.issue(rec, caller) })
	t.event(Event{Kind: "token-created", Subject: u.Name})
	return text, nil
}

// AdminToken makes a token for the first administrator; the daemon keeps it in a file of its own.
func (e *Engine) AdminToken(ctx context.Context) (text string, err error) {
	err = e.do(ctx, func(t *tx) error {
		for _, u := range t.state.users {
			if u.Admin && u.Name == firstAdmin {
				text, err = e.newToken(t, u)
				return err
			}
		}
		return noSuch("create token", "user", firstAdmin)
	})
	return text, err
}
