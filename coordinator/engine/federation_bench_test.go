package engine

import (
	"context"
	"crypto/rand"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/federation"
	"substrate/coordinator/store"
)

// benchFederate calls one cluster, on the store that coordinators have, for one user.
type benchFederate struct {
	*cluster
	b        *testing.B
	peer     FederatePeer
	identity federation.Identity
	revision uint64
}

func newBenchFederate(b *testing.B) *benchFederate {
	b.Helper()
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
	f := &benchFederate{cluster: c, b: b, peer: FederatePeer{ID: fed, Key: req.Key}}
	f.identity = federation.Identity{Organization: benchEntity(1, 0, "lab"), Group: benchEntity(2, 0, "team"), User: benchEntity(3, 0, "una")}
	f.identity.Groups = []federation.Entity{f.identity.Group}
	return f
}

func benchEntity(noun, n int, name string) federation.Entity {
	return federation.Entity{ID: fmt.Sprintf("00000000-0000-4000-8%03d-%012d", noun, n), Name: name}
}

// crowd makes replicas of 1,000 organisations, 10,000 groups and 100,000 users, in memory.
func (f *benchFederate) crowd() {
	replica := &coordinator.Replica{Federate: f.peer.ID}
	f.inLoop(func(t *tx) {
		for i := range 1000 {
			e := benchEntity(1, i+1, fmt.Sprint("org-", i))
			t.state.addOrganization(&organization{Organization: coordinator.Organization{ID: coordinator.OrganizationID(e.ID), Slug: e.Name, Replica: replica}})
		}
		for i := range 10_000 {
			e := benchEntity(2, i+1, fmt.Sprint("group-", i))
			t.state.addGroup(&coordinator.Group{ID: coordinator.GroupID(e.ID), Slug: e.Name, Replica: replica,
				Organization: coordinator.OrganizationID(benchEntity(1, i%1000+1, "").ID)})
		}
		for i := range 100_000 {
			e := benchEntity(3, i+1, fmt.Sprint("user-", i))
			u := &coordinator.User{ID: coordinator.UserID(e.ID), Name: e.Name, Replica: replica,
				Organization: coordinator.OrganizationID(benchEntity(1, i%1000+1, "").ID), Groups: []coordinator.GroupID{coordinator.GroupID(benchEntity(2, i%10_000+1, "").ID)}}
			t.state.addUser(u)
			f.engine.credentials.know(auth.PrincipalOf(*u), false)
		}
	})
}

// attributes are those of now; changed makes them others than before.
func (f *benchFederate) attributes(changed bool) *federation.Attributes {
	if changed {
		f.revision++
	}
	v := federation.Value{Priority: int32(f.revision % 100), Revision: f.revision}
	return &federation.Attributes{Schema: 1, Organization: v, Group: v, User: v}
}

// submit is what a routed submission asks of the cluster that gets it: its score, and then the submission.
func (f *benchFederate) submit(attrs *federation.Attributes) coordinator.WorkflowID {
	f.b.Helper()
	in := StartWorkflow{YAML: []byte("version: v1\nname: w\njobs: {j: {command: [x]}}\n"), File: "w"}
	f.call(attrs, func(ctx context.Context, c Caller) error { _, err := f.engine.ScoreWorkflow(ctx, c, in); return err })
	var id coordinator.WorkflowID
	f.call(attrs, func(ctx context.Context, c Caller) error {
		res, err := f.engine.StartWorkflow(ctx, c, in)
		id = res.Workflow.ID
		return err
	})
	return id
}

func (f *benchFederate) call(attrs *federation.Attributes, do func(context.Context, Caller) error) {
	f.b.Helper()
	ctx, c, err := f.engine.OnBehalf(f.b.Context(), f.peer, &f.identity, attrs)
	if err == nil {
		err = do(ctx, c)
	}
	if err == nil {
		err = f.engine.Carried(ctx)
	}
	if err != nil {
		f.b.Fatal(err)
	}
}

// BenchmarkReplicaRefresh is what bringing replicas up to a request adds to a routed submission: submissions whose
// attributes are here already and those that bring new ones take turns, and the difference of their medians is told. All three values
// are new each time.
func BenchmarkReplicaRefresh(b *testing.B) {
	for name, crowd := range map[string]bool{"one user": false, "100000 users": true} {
		b.Run(name, func(b *testing.B) {
			f := newBenchFederate(b)
			f.set(plainConfig)
			f.join(newHost("n1", 4, nil))
			if crowd {
				f.crowd()
			}
			var spent [2][]time.Duration
			measure := func(i int) {
				attrs := f.attributes(i == 1)
				began := time.Now()
				id := f.submit(attrs)
				spent[i] = append(spent[i], time.Since(began))
				if _, err := f.engine.CancelWorkflow(b.Context(), f.admin, string(id), ""); err != nil {
					b.Fatal(err)
				}
				time.Sleep(2 * maxPace) // so that each finds the loop at rest
			}
			measure(1)
			spent = [2][]time.Duration{}
			for b.Loop() {
				measure(0)
				measure(1)
			}
			var ms [2]float64
			for i, list := range spent {
				slices.Sort(list)
				ms[i] = float64(list[len(list)/2].Microseconds()) / 1000
			}
			b.ReportMetric(ms[0], "ms/unrefreshed")
			b.ReportMetric(ms[1], "ms/refreshed")
			b.ReportMetric(ms[1]-ms[0], "ms/added")
			b.ReportMetric(0, "ns/op")
		})
	}
	b.Run("unchanged", func(b *testing.B) { // what every request costs
		f := newBenchFederate(b)
		attrs := f.attributes(true)
		nothing := func(context.Context, Caller) error { return nil }
		f.call(attrs, nothing)
		for b.Loop() {
			f.call(attrs, nothing)
		}
	})
}
