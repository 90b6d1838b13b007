package engine

import (
	"crypto/rand"
	"path/filepath"
	"testing"
	"time"

	"substrate/coordinator/auth"
	"substrate/coordinator/federation"
	"substrate/coordinator/store"
)

// BenchmarkReplicaRefresh is what a request of the Federate costs before it is carried out, on the store that
// coordinators have: with the attributes that are here already, and with new ones, which are made durable.
func BenchmarkReplicaRefresh(b *testing.B) {
	st, err := store.OpenEmbedded(b.Context(), store.EmbeddedOptions{Dir: filepath.Join(b.TempDir(), "store")})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = st.Close() })
	c := newCluster(b, st)
	token, _, err := c.engine.CreateFederationToken(b.Context(), c.admin, time.Hour)
	if err != nil {
		b.Fatal(err)
	}
	key, err := auth.NewFederateKey(rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	csr, err := key.CSR(rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	req, err := auth.ParseRequest(csr)
	if err != nil {
		b.Fatal(err)
	}
	const fed = "00000000-0000-4000-8000-000000000009"
	if err := c.engine.Enrol(b.Context(), &Enrolment{Token: token, Federate: fed, Name: "x", URL: "https://x", CSR: csr}); err != nil {
		b.Fatal(err)
	}
	group := federation.Entity{ID: "00000000-0000-4000-8000-000000000002", Name: "team"}
	id := &federation.Identity{Organization: federation.Entity{ID: "00000000-0000-4000-8000-000000000001", Name: "lab"}, Group: group,
		User: federation.Entity{ID: "00000000-0000-4000-8000-000000000003", Name: "una"}, Groups: []federation.Entity{group}}
	revision := uint64(1)
	deliver := func(b *testing.B) {
		attrs := &federation.Attributes{Schema: 1, Group: federation.Value{Priority: int32(revision % 100), Revision: revision}}
		if _, err := c.engine.OnBehalf(b.Context(), FederatePeer{ID: fed, Key: req.Key}, id, attrs); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("same", func(b *testing.B) {
		deliver(b)
		for b.Loop() {
			deliver(b)
		}
	})
	b.Run("changed", func(b *testing.B) {
		for b.Loop() {
			revision++
			deliver(b)
		}
	})
}
