// Package oidc says who somebody is by the word of one OpenID Connect provider. It knows no users of ours and keeps no
// sessions; who logs in with it gets a token of ours.
package oidc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"substrate/coordinator"
	"substrate/coordinator/auth"
)

// Config is what has to be known of a provider.
type Config struct {
	Issuer   string // https URL; http for loopback addresses only
	ClientID string
	// ClientSecret belongs to the coordinator's own pages and to providers that ask the command line for one: whoever
	// may log in sees the latter.
	ClientSecret string
	Scopes       []string // beyond openid
	// Claims that hold what we want to know. Empty: preferred_username, and none for the others.
	UsernameClaim, UnixUserClaim, GroupsClaim string
}

// Bounds of what a provider may say and how long it may take.
const (
	maxToken  = 64 << 10 // bytes
	maxClaim  = 256      // bytes
	maxGroups = 200
	answerIn  = 10 * time.Second
	again     = 5 * time.Second // between attempts to reach a provider
	freshFor  = 15 * time.Minute
)

// Provider verifies what one issuer has signed. It is safe for concurrent use.
type Provider struct {
	cfg    Config
	client *http.Client
	now    func() time.Time

	mu      sync.Mutex
	known   *oidc.Provider
	lastErr error
	retry   time.Time // not asked again before
}

// New checks the configuration; the provider itself is asked when it is needed first. A nil client is a default one.
func New(cfg Config, client *http.Client, now func() time.Time) (*Provider, error) {
	const op = "use the identity provider"
	u, err := url.Parse(cfg.Issuer)
	switch {
	case err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, coordinator.Errorf(coordinator.ErrInvalid, op, "the issuer %.200q is no URL", cfg.Issuer).
			WithHint("as the provider spells it, like https://login.example.org/realms/site")
	case u.Scheme != "https" && (u.Scheme != "http" || !loopback(u.Hostname())):
		return nil, coordinator.Errorf(coordinator.ErrInvalid, op, "the issuer %.200q is not https", cfg.Issuer).
			WithHint("tokens that come over plain http can be forged by anybody on the way")
	case cfg.ClientID == "":
		return nil, coordinator.Errorf(coordinator.ErrInvalid, op, "no client id is configured")
	}
	if client == nil {
		client = &http.Client{Timeout: answerIn}
	}
	if cfg.UsernameClaim == "" {
		cfg.UsernameClaim = "preferred_username"
	}
	return &Provider{cfg: cfg, client: client, now: now}, nil
}

func loopback(host string) bool { return host == "localhost" || host == "127.0.0.1" || host == "::1" }

// Config is what the provider was made with.
func (p *Provider) Config() Config { return p.cfg }

// scopes are what a login asks for.
func (p *Provider) scopes() []string {
	out := []string{oidc.ScopeOpenID}
	for _, s := range p.cfg.Scopes {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// discovered asks the provider for its endpoints and keys, once it works. After a failure it is left alone for a moment.
func (p *Provider) discovered(ctx context.Context) (*oidc.Provider, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known != nil {
		return p.known, nil
	}
	if p.lastErr != nil && p.now().Before(p.retry) {
		return nil, p.lastErr
	}
	// The context goes on living in the set of keys: it is not that of a request.
	long := oidc.ClientContext(context.WithoutCancel(ctx), p.client)
	known, err := oidc.NewProvider(long, p.cfg.Issuer)
	if err != nil {
		p.lastErr = coordinator.Errorf(coordinator.ErrUnavailable, "reach the identity provider "+p.cfg.Issuer, "%w", err).
			WithHint("tokens of ours work without it; see the coordinator's oidc settings")
		p.retry = p.now().Add(again)
		return nil, p.lastErr
	}
	p.known, p.lastErr = known, nil
	return known, nil
}

// Verify checks an ID token and says who it is about. Claims that it does not hold are asked of the provider with
// the access token, if there is one. nonce is that of the login, "" where the flow has none.
func (p *Provider) Verify(ctx context.Context, idToken, accessToken, nonce string) (auth.External, error) {
	if len(idToken) > maxToken || len(accessToken) > maxToken {
		return auth.External{}, refused(errors.New("the token is too long"))
	}
	known, err := p.discovered(ctx)
	if err != nil {
		return auth.External{}, err
	}
	ctx, cancel := context.WithTimeout(oidc.ClientContext(ctx, p.client), answerIn)
	defer cancel()
	token, err := known.VerifierContext(context.WithoutCancel(ctx), &oidc.Config{ClientID: p.cfg.ClientID, Now: p.now}).Verify(ctx, idToken)
	switch {
	case err != nil && ctx.Err() != nil:
		return auth.External{}, coordinator.Errorf(coordinator.ErrUnavailable, "reach the identity provider "+p.cfg.Issuer, "%w", err)
	case err != nil:
		return auth.External{}, refused(err)
	case token.Nonce != nonce:
		return auth.External{}, refused(errors.New("it belongs to another login"))
	case p.now().Sub(token.IssuedAt) > freshFor:
		return auth.External{}, refused(fmt.Errorf("it was issued at %s, too long ago for a login", token.IssuedAt.UTC().Format(time.RFC3339)))
	}
	if token.AccessTokenHash != "" && accessToken != "" {
		if err := token.VerifyAccessToken(accessToken); err != nil {
			return auth.External{}, refused(err)
		}
	}
	claims := map[string]any{}
	if err := token.Claims(&claims); err != nil {
		return auth.External{}, refused(err)
	}
	if party, said := claims["azp"]; said && party != p.cfg.ClientID {
		// Ours may be among the audiences of what another program was given; that program does not log in here.
		return auth.External{}, refused(errors.New("it was given to another program"))
	}
	if accessToken != "" && p.lacks(claims) {
		if err := p.ask(ctx, known, accessToken, token.Subject, claims); err != nil {
			return auth.External{}, err
		}
	}
	return p.identity(token, claims)
}

// lacks reports whether a claim that is wanted is not in the token.
func (p *Provider) lacks(claims map[string]any) bool {
	for _, name := range []string{p.cfg.UsernameClaim, p.cfg.UnixUserClaim, p.cfg.GroupsClaim, "email"} {
		if _, ok := claims[name]; name != "" && !ok {
			return true
		}
	}
	return false
}

// ask adds what the provider tells of the user to what the token holds; the token's own word stands.
func (p *Provider) ask(ctx context.Context, known *oidc.Provider, accessToken, subject string, claims map[string]any) error {
	info, err := known.UserInfo(ctx, oauth2.StaticTokenSource(&oauth2.Token{AccessToken: accessToken}))
	if err != nil {
		return coordinator.Errorf(coordinator.ErrUnavailable, "ask the identity provider who logs in", "%w", err)
	}
	if info.Subject != subject {
		return refused(errors.New("the access token belongs to somebody else"))
	}
	more := map[string]any{}
	if err := info.Claims(&more); err != nil {
		return refused(err)
	}
	for name, v := range more {
		if _, ok := claims[name]; !ok {
			claims[name] = v
		}
	}
	return nil
}

func (p *Provider) identity(token *oidc.IDToken, claims map[string]any) (auth.External, error) {
	id := auth.External{Issuer: token.Issuer, Subject: token.Subject}
	if id.Subject == "" || len(id.Subject) > maxClaim {
		return auth.External{}, refused(errors.New("it names no subject that can be kept"))
	}
	var err error
	text := func(name string) string {
		v, ok := claims[name]
		if name == "" || !ok || v == nil {
			return ""
		}
		s, ok := v.(string)
		if !ok || len(s) > maxClaim {
			err = refused(fmt.Errorf("its claim %s is not a text of at most %d bytes", name, maxClaim))
			return ""
		}
		return s
	}
	id.Username, id.UnixUser = text(p.cfg.UsernameClaim), text(p.cfg.UnixUserClaim)
	if verified, _ := claims["email_verified"].(bool); verified {
		id.Email = text("email")
	}
	if err != nil {
		return auth.External{}, err
	}
	if p.cfg.GroupsClaim != "" {
		id.Groups, err = groups(claims[p.cfg.GroupsClaim])
	}
	return id, err
}

func groups(v any) ([]string, error) {
	if v == nil {
		return nil, nil
	}
	if one, ok := v.(string); ok {
		v = []any{one} // some providers do not make a list of one
	}
	list, ok := v.([]any)
	if !ok || len(list) > maxGroups {
		return nil, refused(fmt.Errorf("its groups are not a list of at most %d", maxGroups))
	}
	out := make([]string, 0, len(list))
	for _, g := range list {
		s, ok := g.(string)
		if !ok || len(s) > maxClaim {
			return nil, refused(errors.New("a group in it is not a text"))
		}
		out = append(out, s)
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

func refused(cause error) *coordinator.Error {
	return coordinator.Errorf(coordinator.ErrUnauthenticated, "log in with the identity provider's token", "%w", cause).
		WithHint("log in again")
}
