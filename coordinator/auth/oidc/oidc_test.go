package oidc

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"
	"golang.org/x/oauth2"

	"substrate/coordinator"
	"substrate/coordinator/auth"
)

const redirect = "http://localhost:9999/auth/callback"

// realProvider runs an OpenID provider with two users, test-user@127.0.0.1 and test-user2.
func realProvider(t *testing.T) *httptest.Server {
	t.Helper()
	var handler http.Handler
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handler.ServeHTTP(w, r) }))
	t.Cleanup(srv.Close)
	storage.RegisterClients(storage.WebClient("pages", "a secret", redirect), storage.DeviceClient("terminal", "another"))
	handler = exampleop.SetupServer(srv.URL, storage.NewStorage(storage.NewUserStore(srv.URL)), nil, false)
	return srv
}

func provider(t *testing.T, issuer, client, secret string) *Provider {
	t.Helper()
	p, err := New(Config{Issuer: issuer, ClientID: client, ClientSecret: secret, Scopes: []string{"profile", "email"}}, nil, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// browser follows a login to where it sends the browser back.
func browser(t *testing.T, at, user string) url.Values {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	var back *url.URL
	c := &http.Client{Jar: jar, CheckRedirect: func(r *http.Request, _ []*http.Request) error {
		if strings.HasPrefix(r.URL.String(), redirect) {
			back = r.URL
			return http.ErrUseLastResponse
		}
		return nil
	}}
	res, err := c.Get(at)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	login := *res.Request.URL
	form := url.Values{"id": {login.Query().Get("authRequestID")}, "username": {user}, "password": {"verysecure"}}
	login.RawQuery = ""
	res, err = c.PostForm(login.String(), form)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if back == nil {
		t.Fatalf("the login ended at %s with %s", res.Request.URL, res.Status)
	}
	return back.Query()
}

// TestBrowserLogin goes through the code flow with a real provider.
func TestBrowserLogin(t *testing.T) {
	srv := realProvider(t)
	p := provider(t, srv.URL, "pages", "a secret")
	to, attempt, err := p.Begin(t.Context(), redirect)
	if err != nil {
		t.Fatal(err)
	}
	answer := browser(t, to, "test-user2")
	id, err := p.Finish(t.Context(), redirect, answer.Get("state"), answer.Get("code"), attempt)
	if err != nil {
		t.Fatal(err)
	}
	want := auth.External{Issuer: srv.URL, Subject: "id2", Username: "test-user2", Email: "test-user2@zitadel.ch"}
	if id.Issuer != want.Issuer || id.Subject != want.Subject || id.Username != want.Username || id.Email != want.Email {
		t.Errorf("%+v, want %+v", id, want)
	}
	if _, err := p.Finish(t.Context(), redirect, answer.Get("state"), answer.Get("code"), attempt); coordinator.ErrorKindOf(err) != coordinator.ErrUnauthenticated {
		t.Errorf("a code that was used: %v", err)
	}
	for name, change := range map[string]func(*Attempt, url.Values){
		"another state":    func(a *Attempt, _ url.Values) { a.State = "x" },
		"another nonce":    func(a *Attempt, _ url.Values) { a.Nonce = "x" },
		"another verifier": func(a *Attempt, _ url.Values) { a.Verifier = oauth2.GenerateVerifier() },
		"another code":     func(_ *Attempt, v url.Values) { v.Set("code", "x") },
		"no state":         func(a *Attempt, v url.Values) { a.State = ""; v.Set("state", "") },
	} {
		t.Run(name, func(t *testing.T) {
			to, attempt, err := p.Begin(t.Context(), redirect)
			if err != nil {
				t.Fatal(err)
			}
			answer := browser(t, to, "test-user2")
			change(&attempt, answer)
			if id, err := p.Finish(t.Context(), redirect, answer.Get("state"), answer.Get("code"), attempt); coordinator.ErrorKindOf(err) != coordinator.ErrUnauthenticated {
				t.Errorf("%+v, %v", id, err)
			}
		})
	}
}

// forger is an issuer of our own, to say what a real one would not.
type forger struct {
	*httptest.Server
	key  *rsa.PrivateKey
	info map[string]any

	mu   sync.Mutex
	down bool
}

func newForger(t *testing.T) *forger {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	f := &forger{key: key, info: map[string]any{}}
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, v any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v)
	}
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{"issuer": f.URL, "authorization_endpoint": f.URL + "/a", "token_endpoint": f.URL + "/t", "jwks_uri": f.URL + "/k",
			"userinfo_endpoint": f.URL + "/u", "id_token_signing_alg_values_supported": []string{"RS256"}})
	})
	mux.HandleFunc("/k", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "k", Algorithm: "RS256", Use: "sig"}}})
	})
	mux.HandleFunc("/u", func(w http.ResponseWriter, _ *http.Request) { answer(w, f.info) })
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		down := f.down
		f.mu.Unlock()
		if down {
			http.Error(w, "down", http.StatusServiceUnavailable)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(f.Close)
	return f
}

func (f *forger) sign(t *testing.T, key any, alg jose.SignatureAlgorithm, claims map[string]any) string {
	t.Helper()
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, (&jose.SignerOptions{}).WithHeader("kid", "k"))
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	o, err := s.Sign(data)
	if err != nil {
		t.Fatal(err)
	}
	text, err := o.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// claims are good ones, changed; nil takes one away.
func (f *forger) claims(now time.Time, more map[string]any) map[string]any {
	c := map[string]any{"iss": f.URL, "aud": "cli", "sub": "s1", "iat": now.Unix(), "exp": now.Add(time.Minute).Unix(), "preferred_username": "ann",
		"email": "ann@example.org", "email_verified": true}
	for k, v := range more {
		if c[k] = v; v == nil {
			delete(c, k)
		}
	}
	return c
}

func TestVerify(t *testing.T) {
	f := newForger(t)
	other, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	good := func(more map[string]any) map[string]any { return f.claims(now, more) }
	tests := map[string]struct {
		claims map[string]any
		want   string // of the error, "" accepted
	}{
		"good":              {good(nil), ""},
		"several audiences": {good(map[string]any{"aud": []string{"x", "cli"}}), ""},
		"given to us":       {good(map[string]any{"aud": []string{"x", "cli"}, "azp": "cli"}), ""},
		"given to another":  {good(map[string]any{"aud": []string{"x", "cli"}, "azp": "x"}), "another program"},
		"given to a number": {good(map[string]any{"azp": 7}), "another program"},
		"another audience":  {good(map[string]any{"aud": "web"}), "audience"},
		"another issuer":    {good(map[string]any{"iss": "https://evil.example"}), "different provider"},
		"expired":           {good(map[string]any{"exp": now.Add(-time.Minute).Unix()}), "expired"},
		"old":               {good(map[string]any{"iat": now.Add(-time.Hour).Unix()}), "too long ago"},
		"not yet":           {good(map[string]any{"nbf": now.Add(time.Hour).Unix()}), "before the nbf"},
		"no subject":        {good(map[string]any{"sub": nil}), "no subject"},
		"a nonce":           {good(map[string]any{"nonce": "n"}), "another login"},
		"a long subject":    {good(map[string]any{"sub": strings.Repeat("s", 300)}), "no subject"},
		"a list for a name": {good(map[string]any{"preferred_username": []string{"a"}}), "preferred_username"},
		"a long name":       {good(map[string]any{"preferred_username": strings.Repeat("s", 300)}), "preferred_username"},
		"groups":            {good(map[string]any{"teams": []string{"b", "a", "b"}}), ""},
		"groups as text":    {good(map[string]any{"teams": "a"}), ""},
		"groups as a map":   {good(map[string]any{"teams": map[string]any{"a": 1}}), "groups"},
		"a number of them":  {good(map[string]any{"teams": []any{1}}), "group"},
	}
	p, err := New(Config{Issuer: f.URL, ClientID: "cli", GroupsClaim: "teams"}, nil, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			id, err := p.Verify(t.Context(), f.sign(t, f.key, jose.RS256, tt.claims), "", "")
			if tt.want == "" {
				if err != nil || id.Subject != "s1" || id.Username != "ann" || id.Email != "ann@example.org" {
					t.Errorf("%+v, %v", id, err)
				}
				return
			}
			if coordinator.ErrorKindOf(err) != coordinator.ErrUnauthenticated || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
	for name, token := range map[string]string{
		"another key":      f.sign(t, other, jose.RS256, good(nil)),
		"a shared secret":  f.sign(t, []byte("0123456789abcdef0123456789abcdef"), jose.HS256, good(nil)),
		"no signature":     strings.Join(append(strings.Split(f.sign(t, f.key, jose.RS256, good(nil)), ".")[:2], ""), "."),
		"nothing":          "",
		"too long":         strings.Repeat("a", maxToken+1),
		"a token of ours":  "sbt_abc_def",
		"a changed letter": f.sign(t, f.key, jose.RS256, good(nil))[1:],
	} {
		if id, err := p.Verify(t.Context(), token, "", ""); coordinator.ErrorKindOf(err) != coordinator.ErrUnauthenticated {
			t.Errorf("%s: %+v, %v", name, id, err)
		}
	}
	verifyGroups(t, p, func(claims map[string]any) string { return f.sign(t, f.key, jose.RS256, good(claims)) })
	if id, err := p.Verify(t.Context(), f.sign(t, f.key, jose.RS256, good(map[string]any{"email_verified": false})), "", ""); err != nil || id.Email != "" {
		t.Errorf("an address that nobody has verified: %+v, %v", id, err)
	}
}

// verifyGroups: what a provider does not say is not "in none".
func verifyGroups(t *testing.T, p *Provider, token func(map[string]any) string) {
	t.Helper()
	for name, tt := range map[string]struct {
		claims map[string]any
		want   []string // nil is not "in none"
	}{
		"not said": {nil, nil}, "null": {map[string]any{"teams": nil}, nil}, "in none": {map[string]any{"teams": []string{}}, []string{}},
		"some": {map[string]any{"teams": []string{"b", "a", "b"}}, []string{"a", "b"}}, "a text": {map[string]any{"teams": "a b"}, []string{"a b"}},
	} {
		id, err := p.Verify(t.Context(), token(tt.claims), "", "")
		if err != nil || !slices.Equal(id.Groups, tt.want) || (id.Groups == nil) != (tt.want == nil) {
			t.Errorf("groups, %s: %#v, %v", name, id.Groups, err)
		}
	}
}

// TestUserInfo: what the token does not hold is asked for; of somebody else it is refused.
func TestUserInfo(t *testing.T) {
	f := newForger(t)
	p, err := New(Config{Issuer: f.URL, ClientID: "cli", UnixUserClaim: "unix"}, nil, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	raw := f.sign(t, f.key, jose.RS256, map[string]any{"iss": f.URL, "aud": "cli", "sub": "s1", "iat": time.Now().Unix(), "exp": time.Now().Add(time.Minute).Unix(), "preferred_username": "ann"})
	f.info = map[string]any{"sub": "s1", "unix": "ann1", "preferred_username": "eve"}
	if id, err := p.Verify(t.Context(), raw, "access", ""); err != nil || id.UnixUser != "ann1" || id.Username != "ann" {
		t.Errorf("%+v, %v", id, err)
	}
	f.info = map[string]any{"sub": "s2", "unix": "root"}
	if id, err := p.Verify(t.Context(), raw, "access", ""); coordinator.ErrorKindOf(err) != coordinator.ErrUnauthenticated {
		t.Errorf("%+v, %v", id, err)
	}
}

// TestProviderIsAway: a provider that cannot be reached is said to be so, is not asked in a loop, and is used when it is back.
func TestProviderIsAway(t *testing.T) {
	f := newForger(t)
	f.down = true
	at := time.Now()
	p, err := New(Config{Issuer: f.URL, ClientID: "cli"}, nil, func() time.Time { return at })
	if err != nil {
		t.Fatal(err)
	}
	raw := f.sign(t, f.key, jose.RS256, map[string]any{"iss": f.URL, "aud": "cli", "sub": "s1", "iat": at.Unix(), "exp": at.Add(time.Minute).Unix()})
	if _, err := p.Verify(t.Context(), raw, "", ""); coordinator.ErrorKindOf(err) != coordinator.ErrUnavailable {
		t.Errorf("away: %v", err)
	}
	f.mu.Lock()
	f.down = false
	f.mu.Unlock()
	if _, err := p.Verify(t.Context(), raw, "", ""); coordinator.ErrorKindOf(err) != coordinator.ErrUnavailable {
		t.Errorf("asked again at once: %v", err)
	}
	at = at.Add(again)
	if _, err := p.Verify(t.Context(), raw, "", ""); err != nil {
		t.Errorf("back: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Verify(ended, raw, "", ""); err != nil && coordinator.ErrorKindOf(err) != coordinator.ErrUnavailable {
		t.Errorf("a caller that gave up: %v", err)
	}
}

func TestBadConfig(t *testing.T) {
	for name, c := range map[string]Config{
		"no issuer":  {ClientID: "c"},
		"plain http": {Issuer: "http://login.example.org", ClientID: "c"},
		"a password": {Issuer: "https://a:b@login.example.org", ClientID: "c"},
		"a query":    {Issuer: "https://login.example.org?x=1", ClientID: "c"},
		"no client":  {Issuer: "https://login.example.org"},
	} {
		if _, err := New(c, nil, time.Now); coordinator.ErrorKindOf(err) != coordinator.ErrInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzVerify(f *testing.F) {
	f.Add("a.b.c", "n")
	f.Add("eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0.", "")
	f.Add("sbt_x_y", "")
	p := &Provider{cfg: Config{Issuer: "http://127.0.0.1:1", ClientID: "c"}, client: &http.Client{Transport: offline{}}, now: time.Now}
	f.Fuzz(func(t *testing.T, token, nonce string) {
		if _, err := p.Verify(t.Context(), token, "", nonce); err == nil {
			t.Errorf("accepted %q", token)
		}
	})
}

// offline answers with a provider that has no keys.
type offline struct{}

func (offline) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	w.Header().Set("Content-Type", "application/json")
	if strings.HasSuffix(r.URL.Path, "openid-configuration") {
		_, _ = w.WriteString(`{"issuer":"http://127.0.0.1:1","jwks_uri":"http://127.0.0.1:1/k"}`)
	} else {
		_, _ = w.WriteString(`{"keys":[]}`)
	}
	res := w.Result()
	res.Request = r
	return res, nil
}
