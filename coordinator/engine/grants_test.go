package engine

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"substrate/coordinator"
	"substrate/coordinator/grant"
	"substrate/coordinator/store"
)

const (
	coreAndUser = "version: v1\nname: both\njobs:\n  core: {command: [x]}\n  user: {command: [x]}\n"
	noPolicies  = plainConfig + "      # nobody may\n    policy: \"false\"\n"
)

// granted is a store of a cluster whose work waits, with grants that its own may be mistaken for.
type granted struct {
	store                 *store.Memory
	key                   string
	work                  coordinator.WorkflowID
	newest, older         []byte
	otherOrg, otherSystem []byte
}

func newGranted(t *testing.T) granted {
	t.Helper()
	get := func(st store.Store, key string) []byte {
		entry, err := st.Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		return entry.Value
	}
	far := store.NewMemory()
	elsewhere := newCluster(t, far)
	elsewhere.set(plainConfig)
	g := granted{store: store.NewMemory(), otherSystem: get(far, prefixGrant+string(elsewhere.admin.Organization))}
	c := newCluster(t, g.store)
	c.set(plainConfig)
	other, err := c.engine.CreateOrganization(t.Context(), c.admin, "other", 0)
	if err != nil {
		t.Fatal(err)
	}
	g.key = prefixGrant + string(c.admin.Organization)
	g.older, g.otherOrg = get(g.store, g.key), get(g.store, prefixGrant+string(other.ID))
	later := plainConfig + strings.Replace(strings.TrimPrefix(plainConfig, "\ndefinitions:\n"), "id: small", "id: later", 1)
	if _, err := c.engine.SetConfig(t.Context(), c.admin, SetConfig{YAML: []byte(later), File: "c", AppendGrants: true}); err != nil {
		t.Fatal(err)
	}
	if g.newest = get(g.store, g.key); bytes.Equal(g.newest, g.older) {
		t.Fatal("there is no second grant")
	}
	g.work = c.start(coreAndUser).ID
	c.close()
	return g
}

// edit is something that somebody who can write to the store does to a grant, and the state that it has then.
func (g granted) edit(t *rapid.T) (value []byte, state string) {
	switch kind := rapid.SampledFrom([]string{"byte", "cut", "added", "mixed", "rolled back", "organisation", "cluster", "removed", "nothing"}).Draw(t, "edit"); kind {
	case "byte":
		value = slices.Clone(g.newest)
		value[rapid.IntRange(0, len(value)-1).Draw(t, "at")] ^= rapid.ByteRange(1, 255).Draw(t, "bits")
		return value, "altered"
	case "cut":
		return g.newest[:rapid.IntRange(1, len(g.newest)-1).Draw(t, "length")], "altered"
	case "added":
		return append(slices.Clone(g.newest), rapid.SliceOfN(rapid.Byte(), 1, 8).Draw(t, "more")...), "altered"
	case "mixed": // parts of two that are good
		mine, old := bytes.Split(g.newest, []byte(".")), bytes.Split(g.older, []byte("."))
		if rapid.Bool().Draw(t, "signature") {
			mine[2] = old[2]
		} else {
			mine[1] = old[1]
		}
		return bytes.Join(mine, []byte(".")), "altered"
	case "rolled back":
		return g.older, "rolled-back"
	case "organisation":
		return g.otherOrg, "foreign-organisation"
	case "cluster":
		return g.otherSystem, "altered" // signed by a key that is none of this cluster's
	case "removed":
		return nil, "missing"
	}
	return g.newest, ""
}

// TestDamagedGrantsPlaceNothing: whatever is done to a stored grant, no work of users is submitted or placed, with the
// reason; the cluster's own work goes on, with a warning that says why it should not have.
func TestDamagedGrantsPlaceNothing(t *testing.T) {
	g := newGranted(t)
	rapid.Check(t, func(rt *rapid.T) {
		value, state := g.edit(rt)
		st := g.store.Clone()
		if _, err := st.Commit(t.Context(), []store.Group{{Ops: []store.Op{{Key: g.key, Value: value, Delete: value == nil}}}}); err != nil {
			rt.Fatal(err)
		}
		c := newCluster(t, st)
		defer c.close()
		c.makeInternal(g.work, "core")
		leave := c.join(newHost("n1", 4, succeed))
		defer leave()
		v := c.awaitEnd(rt, g.work, "core")
		seen := describe(c.events(g.work))
		if state == "" {
			c.awaitEnd(rt, g.work, "user")
			if strings.Contains(seen, "without restriction") {
				rt.Errorf("a good grant: %s", seen)
			}
			return
		}
		if user := jobOf(v, "user"); user.Status != coordinator.StatusQueued || user.Attempt != 0 {
			rt.Errorf("work of a user is %s, attempt %d", user.Status, user.Attempt)
		}
		if !strings.Contains(seen, "warning core placed without restriction, the fallback of internal and system work: ") || !strings.Contains(seen, state) ||
			strings.Contains(seen, "warning user") {
			rt.Errorf("events, state %s:\n%s", state, seen)
		}
		_, err := c.engine.StartWorkflow(t.Context(), c.admin, StartWorkflow{File: "w", YAML: []byte(oneJob)})
		if coordinator.ErrorKindOf(err) != coordinator.ErrDenied || !strings.Contains(err.Error(), "refused by grant") || !strings.Contains(err.Error(), state) {
			rt.Errorf("a submission: %v", err)
		}
		if view, err := c.engine.Grant(t.Context(), c.admin, ""); err != nil || view.State != state {
			rt.Errorf("state %q, want %q, %v", view.State, state, err)
		}
	})
}

// TestInternalWorkThatNoPolicyAdmits runs with a warning too, users' does not.
func TestInternalWorkThatNoPolicyAdmits(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	c.set(plainConfig)
	work := c.start(coreAndUser).ID
	c.set(noPolicies)
	c.makeInternal(work, "core")
	c.join(newHost("n1", 4, succeed))
	v := c.awaitEnd(t, work, "core")
	if user := jobOf(v, "user"); user.Status != coordinator.StatusQueued {
		t.Errorf("work of a user is %s", user.Status)
	}
	if seen := describe(c.events(work)); !strings.Contains(seen, `warning core placed without restriction, the fallback of internal and system work: no policy admits "internal"`) {
		t.Error(seen)
	}
}

// makeInternal makes a job one of the coordinator's own: files cannot.
func (c *cluster) makeInternal(id coordinator.WorkflowID, job string) {
	c.t.Helper()
	c.inLoop(func(t *tx) {
		for _, j := range t.state.workflows[id].jobs {
			if j.spec.Name == job {
				j.spec.Kind, j.admission = coordinator.KindInternal, nil
			}
		}
	})
}

func jobOf(v WorkflowView, name string) JobView {
	i := slices.IndexFunc(v.Jobs, func(j JobView) bool { return j.Name == name })
	return v.Jobs[i]
}

func (c *cluster) awaitEnd(t interface{ Fatalf(string, ...any) }, id coordinator.WorkflowID, job string) WorkflowView {
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		v, err := c.engine.Workflow(c.t.Context(), c.admin, string(id))
		if err == nil && jobOf(v, job).Status == coordinator.StatusFinished {
			return v
		}
		if time.Now().After(end) {
			t.Fatalf("job %s does not end: %+v, %v", job, v, err)
		}
	}
}

// TestGrantHistoryProvesTheChain: read in pages of any size, it is what the grants were, and their chain holds.
func TestGrantHistoryProvesTheChain(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	c.set(plainConfig)
	for i := range 6 {
		ids := [][]string{nil, {"small"}}[i%2]
		if _, err := c.engine.SetGrant(t.Context(), c.admin, firstOrg, ids); err != nil {
			t.Fatal(err)
		}
	}
	for _, size := range []int{1, 3, 7, 100} {
		var all grant.Export
		token, pages := "", 0
		for {
			page, next, err := c.engine.GrantHistory(t.Context(), c.admin, firstOrg, Page{Size: size, Token: token})
			if err != nil || len(page.History) == 0 || len(page.History) > size || (next == "") != (page.Newest != "") {
				t.Fatalf("%d steps, next %q, %v", len(page.History), next, err)
			}
			page.History = append(all.History, page.History...)
			if all, token = page, next; next == "" {
				break
			}
			if pages++; pages > 10 {
				t.Fatal("it does not end")
			}
		}
		doc, err := all.Verify(nil)
		if err != nil || doc.Serial != 7 || len(all.History) != 7 || doc.OrganizationID != c.admin.Organization || len(doc.IDs()) != 1 {
			t.Errorf("pages of %d: %+v, %d steps, %v", size, doc, len(all.History), err)
		}
	}
	if _, _, err := c.engine.GrantHistory(t.Context(), c.admin, firstOrg, Page{Token: "x"}); coordinator.ErrorKindOf(err) != coordinator.ErrInvalid {
		t.Error(err)
	}
}

// TestGrantKeyRotates: later grants are of the new key, earlier ones stay valid, and only the newest private key is kept; also after a restart.
func TestGrantKeyRotates(t *testing.T) {
	st := store.NewMemory()
	c := newCluster(t, st)
	c.set(plainConfig)
	var keys []grant.KeyID
	for i := range 3 {
		k, err := c.engine.RotateGrantKey(t.Context(), c.admin)
		if err != nil || k.ID == k.Previous || i > 0 && k.Previous != keys[i-1] {
			t.Fatalf("rotation %d: %+v, %v", i, k, err)
		}
		keys = append(keys, k.ID)
		if i == 2 {
			c.close()
			c = newCluster(t, st)
		}
		v, err := c.engine.Grant(t.Context(), c.admin, firstOrg)
		if err != nil || v.State != "valid" {
			t.Fatalf("after rotation %d the grant is %+v, %v", i, v, err)
		}
		if _, err := c.engine.SetGrant(t.Context(), c.admin, firstOrg, [][]string{nil, {"small"}}[i%2]); err != nil {
			t.Fatal(err)
		}
	}
	all, _, err := c.engine.GrantHistory(t.Context(), c.admin, firstOrg, Page{Size: 100})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := all.Verify(nil); err != nil || len(all.History) != 4 {
		t.Errorf("%d grants, %v", len(all.History), err)
	}
	ring, err := grant.ParseRing(all.Keys)
	if err != nil || len(ring.IDs()) != 4 {
		t.Errorf("grants are verified with %v, %v", ring.IDs(), err)
	}
	private, err := st.List(t.Context(), prefixGrantKey, "", 10)
	if err != nil || len(private) != 1 || private[0].Key != prefixGrantKey+string(keys[2]) {
		t.Errorf("%d private keys are kept, %v", len(private), err)
	}
}
