package engine

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/grant"
	"substrate/coordinator/store"
)

// request is a node's certificate request.
func request(t testing.TB) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func (c *cluster) inLoop(f func(*tx)) {
	c.t.Helper()
	if err := c.engine.do(c.t.Context(), func(t *tx) error { f(t); return nil }); err != nil {
		c.t.Fatal(err)
	}
}

// signWith changes the key that signs grants, nil for one that cannot, and returns the one before.
func (c *cluster) signWith(k *grant.Key) (before grant.Key) {
	c.t.Helper()
	c.inLoop(func(t *tx) {
		before = t.state.signer
		if t.state.signer = (grant.Key{}); k != nil {
			t.state.signer = *k
		}
	})
	return before
}

// shape is everything about identity, nodes and events that a command could have changed.
func (c *cluster) shape(st store.Store) string {
	c.t.Helper()
	var b strings.Builder
	if err := c.engine.view(c.t.Context(), func(s *state) {
		fmt.Fprintln(&b, len(s.groups), len(s.users), len(s.tokens), len(s.nodes), len(s.workflows), len(s.idempotency), s.open, s.seq, s.config.Revision, len(s.revisions), s.admission)
		for _, o := range s.sortedOrganizations() {
			fmt.Fprintln(&b, o.Slug, o.newest, len(o.jws))
		}
		joins, err := json.Marshal(s.joinTokens)
		fmt.Fprintln(&b, string(joins), err)
	}); err != nil {
		c.t.Fatal(err)
	}
	if err := walk(c.t.Context(), st, "", loadPage, func(entry store.Entry) error {
		_, err := fmt.Fprintln(&b, entry.Key, entry.Revision)
		return err
	}); err != nil {
		c.t.Fatal(err)
	}
	return b.String()
}

func TestAuthenticate(t *testing.T) {
	st := store.NewMemory()
	c := newCluster(t, st)
	u, ann := c.user(NewUser{Name: "ann"})
	if ann.User != u.ID || ann.Name != "ann" || ann.Organization != c.admin.Organization || ann.Admin || len(ann.Groups) != 1 {
		t.Errorf("%+v", ann)
	}
	text, err := c.token(ann, "ann")
	if err != nil {
		t.Fatal(err)
	}
	other, err := c.token(c.admin, firstAdmin)
	if err != nil {
		t.Fatal(err)
	}
	id, secret := text[:21], text[21:]
	wrong := map[string]string{
		"none": "", "cut": text[:len(text)-1], "another's secret": id + other[21:], "unknown id": "sbt_0000000000000000_" + secret,
		"a word": "token", "a join token's form": "0123456789abcdef." + secret,
	}
	check := func(when string, e *Engine) {
		t.Helper()
		if got, err := e.Authenticate(t.Context(), text); err != nil || got.User != u.ID {
			t.Errorf("%s: %+v, %v", when, got, err)
		}
		for name, token := range wrong {
			if got, err := e.Authenticate(t.Context(), token); coordinator.ErrorKindOf(err) != coordinator.ErrUnauthenticated || got.User != "" {
				t.Errorf("%s, %s: %+v, %v", when, name, got, err)
			}
		}
	}
	check("at once", c.engine)
	c.inLoop(func(*tx) { check("while the loop is busy", c.engine) }) // a flood of guesses must not need it
	c.close()
	check("after a restart", newCluster(t, st).engine)
}

// TestTokensOfFailedWrites: a token whose write failed opens nothing; one whose write stands after all does.
func TestTokensOfFailedWrites(t *testing.T) {
	for _, stands := range []bool{false, true} {
		st := store.NewMemory()
		c := newCluster(t, st)
		var text string
		fault := store.Fault{}
		if stands {
			fault.Apply = -1
		}
		st.FailCommit(1, fault)
		err := c.engine.do(t.Context(), func(tx *tx) (err error) {
			text, _, err = c.engine.newToken(tx, tx.state.users[c.admin.User], NewToken{})
			return err
		})
		if err == nil {
			t.Fatal("the write was to fail")
		}
		c.inLoop(func(*tx) {}) // the state has been read again
		if _, err := c.engine.Authenticate(t.Context(), text); (err == nil) != stands {
			t.Errorf("the write stands: %v, and the token: %v", stands, err)
		}
	}
}

func TestJoin(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	token, expires, err := c.engine.CreateJoinToken(t.Context(), c.admin, NewJoinToken{TTL: time.Hour, Uses: 1})
	if err != nil || !expires.Expires.After(c.now()) {
		t.Fatalf("%v, %v", expires, err)
	}
	csr := request(t)
	shown, err := auth.ParseJoinToken(token)
	if err != nil {
		t.Fatal(err)
	}
	other, _, err := c.engine.CreateJoinToken(t.Context(), c.admin, NewJoinToken{TTL: time.Hour, Uses: 1})
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := auth.ParseJoinToken(other)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		token, node string
		csr         []byte
		kind        coordinator.ErrorKind
	}{
		"no token":          {"", "n1", csr, coordinator.ErrUnauthenticated},
		"another's secret":  {shown.ID + "." + foreign.Secret, "n1", csr, coordinator.ErrUnauthenticated},
		"wrong token first": {shown.ID + "." + foreign.Secret, "Bad Name", nil, coordinator.ErrUnauthenticated},
		"bad name":          {token, "Bad Name", csr, coordinator.ErrInvalid},
		"bad request":       {token, "n1", []byte("csr"), coordinator.ErrInvalid},
	} {
		if _, _, err := c.engine.Join(t.Context(), JoinRequest{Token: tt.token, Node: tt.node, CSR: tt.csr}); coordinator.ErrorKindOf(err) != tt.kind {
			t.Errorf("%s: %v", name, err)
		}
	}
	s, err := c.engine.Connect(t.Context(), "busy", Hello{})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.engine.Join(t.Context(), JoinRequest{Token: token, Node: "busy", CSR: csr}); coordinator.ErrorKindOf(err) != coordinator.ErrConflict {
		t.Errorf("the name of a connected node: %v", err)
	}
	s.Close()
	certificate, ca, err := c.engine.Join(t.Context(), JoinRequest{Token: token, Node: "n1", CSR: csr})
	if err != nil || len(certificate) == 0 || len(ca) == 0 {
		t.Fatalf("%v", err)
	}
	if _, _, err := c.engine.Join(t.Context(), JoinRequest{Token: token, Node: "n1", CSR: csr}); err != nil {
		t.Errorf("the same request once more, as after a lost answer: %v", err)
	}
	if _, _, err := c.engine.Join(t.Context(), JoinRequest{Token: token, Node: "n2", CSR: request(t)}); coordinator.ErrorKindOf(err) != coordinator.ErrUnauthenticated {
		t.Errorf("a second node with one use: %v", err)
	}
	if v, err := c.engine.Node(t.Context(), c.admin, "n1"); err != nil || v.Status != NodeNotReady {
		t.Errorf("%+v, %v", v, err)
	}
}

// TestExpiredTokensStayInTheList until they are removed, or for thirty days; of one user at most ten.
func TestExpiredTokensStayInTheList(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	_, mia := c.user(NewUser{Name: "mia"})
	tokens := func() (live, expired []string) {
		t.Helper()
		list, err := c.engine.UserTokens(t.Context(), mia, "", "")
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range list {
			if v.Expired {
				expired = append(expired, v.Name)
			} else if v.Name != "" {
				live = append(live, v.Name)
			}
		}
		return live, expired
	}
	create := func(name string) {
		t.Helper()
		if _, _, err := c.engine.CreateUserToken(t.Context(), mia, NewToken{Name: name, TTL: time.Hour}); err != nil {
			t.Fatal(err)
		}
	}
	create("old")
	c.ahead.Add(int64(2 * time.Hour))
	create("new")
	create("old") // the name is free again
	if live, expired := tokens(); len(live) != 2 || len(expired) != 1 || expired[0] != "old" {
		t.Errorf("%v, expired %v", live, expired)
	}
	if err := c.engine.RevokeUserToken(t.Context(), mia, "", "", "old"); err != nil {
		t.Fatal(err)
	}
	if live, expired := tokens(); len(live) != 1 || len(expired) != 1 {
		t.Errorf("of two of a name the one that counts goes first: %v, expired %v", live, expired)
	}
	if err := c.engine.RevokeUserToken(t.Context(), mia, "", "", "old"); err != nil {
		t.Fatal(err)
	}
	for i := range 15 {
		create(fmt.Sprintf("t%02d", i))
		c.ahead.Add(int64(2 * time.Hour))
	}
	create("last")
	if live, expired := tokens(); len(live) != 1 || len(expired) != keptExpired || expired[0] != "t05" {
		t.Errorf("%v, expired %v", live, expired)
	}
	c.ahead.Add(int64(expiredStay - 10*time.Hour))
	if err := c.engine.sweepOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, expired := tokens(); len(expired) >= keptExpired || len(expired) == 0 {
		t.Errorf("some are older than that, some not: %v", expired)
	}
	c.ahead.Add(int64(expiredStay))
	if err := c.engine.sweepOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if live, expired := tokens(); len(live)+len(expired) != 0 {
		t.Errorf("%v, expired %v", live, expired)
	}
}
