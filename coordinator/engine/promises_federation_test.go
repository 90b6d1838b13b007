package engine

import (
	"slices"
	"strings"
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/federation"
	"substrate/coordinator/store"
)

// What administrators and users are promised of a Federate's attributes on the clusters where work runs, one test for
// each sentence of it. The Federate and the cluster are engines; what the wire carries between them is handed over.

func TestTheFederateIsTheSourceOfTruthForAllAttributes(t *testing.T) {
	allied(t, func(t *testing.T, a *alliance) {
		a.raise("organization", "", 5)
		a.raise("group", "research", 10)
		a.raise("user", "rita", 2)
		a.list(UpdateGroup{Preempt: []string{"spare"}})
		a.request("rita")
		a.wants("organization", "", 5)
		a.wants("group", "research", 10)
		a.wants("user", "rita", 2)
		groups, _, err := a.engine.Groups(t.Context(), a.request("rita"), "", Page{})
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(groups, func(g GroupView) bool { return g.Slug == "research" })
		if i < 0 || strings.Join(groups[i].PreemptNames, ",") != "spare" {
			t.Errorf("%+v", groups)
		}
		a.list(UpdateGroup{NoPreempt: []string{"spare"}})
		groups, _, err = a.engine.Groups(t.Context(), a.request("rita"), "", Page{})
		if err != nil || len(groups[i].Preempts) != 0 {
			t.Errorf("%+v, %v", groups, err)
		}
	})
}

// An organisation's priority arrives with any member, a group's with a member of it, a user's with the user alone.
func TestAChangeTakesEffectWithTheNextRequestThatCarriesIt(t *testing.T) {
	for _, tt := range []struct {
		noun, name  string
		without     []string // whose requests do not carry it
		with        string
		neverBefore bool
	}{
		{noun: "organization", with: "sam"},
		{noun: "group", name: "research", without: []string{"sam"}, with: "ron"},
		{noun: "user", name: "rita", without: []string{"sam", "ron"}, with: "rita"},
	} {
		t.Run(tt.noun, func(t *testing.T) {
			allied(t, func(t *testing.T, a *alliance) {
				for _, everybody := range []string{"rita", "ron", "sam"} {
					a.request(everybody)
				}
				a.raise(tt.noun, tt.name, 7)
				a.wants(tt.noun, tt.name, 0) // nothing is pushed
				for _, who := range tt.without {
					a.request(who)
					a.wants(tt.noun, tt.name, 0)
				}
				a.request(tt.with)
				a.wants(tt.noun, tt.name, 7)
			})
		})
	}
}

func TestASubmissionCarriesTheSubmittersLatestAttributes(t *testing.T) {
	allied(t, func(t *testing.T, a *alliance) {
		a.node("n1", 4, 0)
		a.job(a.request("sam"), long)
		for p := int32(1); p <= 3; p++ {
			a.raise("user", "rita", p)
			id := a.job(a.request("rita"), long)
			if err := a.engine.view(t.Context(), func(s *state) {
				if got := s.workflows[id].record.Priorities.User; got != p {
					t.Errorf("submitted with %d, want %d", got, p)
				}
			}); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestPriorityChangesReorderWhatWaitsOnTheCluster(t *testing.T) {
	allied(t, func(t *testing.T, a *alliance) {
		a.node("n1", 4, 0)
		a.job(a.request("sam"), long)
		first, second := a.job(a.request("sam"), long), a.job(a.request("rita"), long)
		if v := a.is(second, queued); v.Position != 2 {
			t.Fatalf("position %d", v.Position)
		}
		a.raise("group", "research", 10)
		a.pass(5 * time.Second)
		if v := a.is(second, queued); v.Position != 2 {
			t.Errorf("position %d before any request carried the change", v.Position)
		}
		a.request("ron") // a member of the group, who submits nothing
		a.pass(2 * time.Second)
		if v := a.is(second, queued); v.Position != 1 {
			t.Errorf("position %d", v.Position)
		}
		a.is(first, queued)
	})
}

func TestAWorkflowKeepsThePreemptionListItWasSubmittedWith(t *testing.T) {
	for name, tt := range map[string]struct {
		before, after UpdateGroup
		want          coordinator.Status
	}{
		"allowed later":  {UpdateGroup{}, UpdateGroup{Preempt: []string{"spare"}}, running},
		"revoked later":  {UpdateGroup{Preempt: []string{"spare"}}, UpdateGroup{NoPreempt: []string{"spare"}}, preempted},
		"allowed before": {UpdateGroup{Preempt: []string{"spare"}}, UpdateGroup{}, preempted},
	} {
		t.Run(name, func(t *testing.T) {
			allied(t, func(t *testing.T, a *alliance) {
				a.configure(allows)
				a.node("n1", 4, 0)
				a.raise("group", "research", 5) // less than the gap yet
				a.list(tt.before)
				victim := a.submit(a.request("sam"), mayGo)
				a.pass(time.Second)
				a.job(a.request("rita"), long)
				a.list(tt.after)
				a.raise("group", "research", 50)
				a.request("rita")
				a.pass(5 * time.Second)
				a.is(victim, tt.want)
			})
		})
	}
}

func TestAGroupOnAListIsCreatedOnDemand(t *testing.T) {
	allied(t, func(t *testing.T, a *alliance) {
		a.list(UpdateGroup{Preempt: []string{"spare"}})
		if _, known := a.priority("group", "spare"); known {
			t.Fatal("it is known before")
		}
		a.request("rita") // no member of spare has ever come here
		a.wants("group", "spare", 0)
		a.configure(allows)
		a.node("n1", 4, 0)
		a.raise("group", "research", 50)
		victim := a.submit(a.request("sam"), mayGo)
		a.pass(time.Second)
		taker := a.job(a.request("rita"), long)
		a.pass(5 * time.Second)
		a.is(victim, preempted)
		a.is(taker, running)
	})
}

// victimOf plays a preemption between the Federate's groups under a cluster's own settings.
func victimOf(t *testing.T, scheduler string, list []string, priority int32, work string, aged time.Duration, want coordinator.Status) {
	t.Helper()
	allied(t, func(t *testing.T, a *alliance) {
		a.configure(scheduler)
		a.node("n1", 4, 0)
		a.raise("group", "research", priority)
		a.list(UpdateGroup{Preempt: list})
		victim := a.submit(a.request("sam"), work)
		a.pass(aged + time.Second)
		a.job(a.request("rita"), long)
		a.pass(5 * time.Second)
		a.is(victim, want)
	})
}

func TestFederatedPreemptionNeedsTheClustersOwnSetting(t *testing.T) {
	victimOf(t, allows, []string{"spare"}, 50, mayGo, 0, preempted)
	victimOf(t, "preemptionNotice: 1s", []string{"spare"}, 50, mayGo, 0, running)
}

func TestFederatedPreemptionNeedsTheListOnTheFederate(t *testing.T) {
	victimOf(t, allows, nil, 50, mayGo, 0, running)
}

func TestFederatedPreemptionNeedsAPreemptibleVictim(t *testing.T) {
	victimOf(t, allows, []string{"spare"}, 50, "jobs: {j: {"+long+"}}", 0, running)
	victimOf(t, allows, []string{"spare"}, 50, "jobs: {j: {preemptible: true, "+long+"}}", 0, preempted)
	victimOf(t, allows, []string{"spare"}, 50, "preemptible: true\njobs: {j: {preemptible: false, "+long+"}}", 0, running)
}

func TestTheClustersThresholdsApplyToFederatedWork(t *testing.T) {
	victimOf(t, allows+", preemptionThreshold: 60", []string{"spare"}, 50, mayGo, 0, running)
	victimOf(t, allows+", minPreemptionRuntime: 1h", []string{"spare"}, 50, mayGo, 0, running)
	victimOf(t, allows, []string{"spare"}, 9, mayGo, 0, running)
	// A delta equal to the gap misses once the victim has aged: both grow alike only while both wait.
	victimOf(t, allows, []string{"spare"}, 10, mayGo, time.Hour, running)
	victimOf(t, allows, []string{"spare"}, 12, mayGo, time.Hour, preempted)
}

func TestClustersWithDifferentExpressionsWeighTheSameInputsDifferently(t *testing.T) {
	scores := map[string]float64{}
	for _, expression := range []string{"group_priority * 100.0 + user_priority", "organization_priority - group_priority"} {
		allied(t, func(t *testing.T, a *alliance) {
			a.configure("priority: " + expression)
			a.node("n1", 4, 0)
			a.raise("organization", "", 1)
			a.raise("group", "research", 3)
			a.raise("user", "rita", 4)
			v, err := a.engine.ScoreWorkflow(t.Context(), a.request("rita"), StartWorkflow{YAML: []byte(oneJob), File: "w"})
			if err != nil {
				t.Fatal(err)
			}
			scores[expression] = v.Score.Score
		})
	}
	if scores["group_priority * 100.0 + user_priority"] != 304 || scores["organization_priority - group_priority"] != -2 {
		t.Errorf("%v", scores)
	}
}

func TestACandidateReportsWhatWaitsWithAHigherScore(t *testing.T) {
	allied(t, func(t *testing.T, a *alliance) {
		a.node("n1", 4, 0)
		a.node("n2", 4, 0)
		a.job(a.admin, "command: [run, 20h], resource: {cpu: {cores: 4}}")
		a.job(a.admin, "command: [run, 20h], resource: {cpu: {cores: 4}}")
		for range 3 {
			a.job(a.admin, long)
		}
		a.raise("user", "ron", -5)
		for who, want := range map[string]uint32{"rita": 3, "ron": 3} { // those that have waited score higher by their age
			a.pass(time.Minute)
			v, err := a.engine.ScoreWorkflow(t.Context(), a.request(who), StartWorkflow{YAML: []byte("version: v1\nname: w\njobs: {j: {" + long + "}}"), File: "w"})
			if err != nil || v.Ahead != want || v.Ready != 3 || v.Running != 2 || v.UsableNodes != 2 || v.Startable || v.UsableCores != 8 || v.FreeCores != 0 {
				t.Errorf("%s: %+v, %v", who, v, err)
			}
		}
		a.raise("group", "research", 1)
		v, err := a.engine.ScoreWorkflow(t.Context(), a.request("rita"), StartWorkflow{YAML: []byte(oneJob), File: "w"})
		if err != nil || v.Ahead != 0 || v.Reason != "" {
			t.Errorf("%+v, %v", v, err)
		}
		v, err = a.engine.ScoreWorkflow(t.Context(), a.request("rita"), StartWorkflow{File: "w",
			YAML: []byte("version: v1\nname: w\njobs: {j: {command: [x], resource: {cpu: {cores: 400}}}}")})
		if err != nil || v.Reason == "" || v.Startable {
			t.Errorf("what fits nowhere: %+v, %v", v, err)
		}
		if err := a.engine.view(t.Context(), func(s *state) {
			if n := len(s.workflows); n != 5 {
				t.Errorf("%d workflows: a score has started one", n)
			}
		}); err != nil {
			t.Fatal(err)
		}
	})
}

func TestAReplicaIsReadOnlyOnTheCluster(t *testing.T) {
	allied(t, func(t *testing.T, a *alliance) {
		a.request("rita")
		ctx, five := t.Context(), int32(5)
		for name, try := range map[string]func(Caller) error{
			"organization": func(c Caller) error {
				_, err := a.engine.UpdateOrganization(ctx, c, "lab", &five)
				return err
			},
			"group": func(c Caller) error {
				_, err := a.engine.UpdateGroup(ctx, c, UpdateGroup{Group: "research", Organization: "lab", Priority: &five})
				return err
			},
			"user": func(c Caller) error {
				_, err := a.engine.UpdateUser(ctx, c, UpdateUser{User: string(a.users["rita"].ID), Priority: &five})
				return err
			},
			"new group": func(c Caller) error {
				_, err := a.engine.CreateGroup(ctx, c, "made-here", "lab", 0)
				return err
			},
		} {
			err := try(a.admin)
			if coordinator.ErrorKindOf(err) != coordinator.ErrDenied || !strings.Contains(err.Error(), "https://federate.example") {
				t.Errorf("%s: %v", name, err)
			}
			forced := a.admin
			forced.Force = true
			if err := try(forced); err != nil {
				t.Errorf("%s, forced: %v", name, err)
			}
		}
	})
}

// TestNobodyJoinsOrLeavesAReplicaOnTheCluster: a user of a federated organisation is removed at the Federate, and is not
// made by a log-in here.
func TestNobodyJoinsOrLeavesAReplicaOnTheCluster(t *testing.T) {
	allied(t, func(t *testing.T, a *alliance) {
		a.request("rita")
		err := a.engine.DeleteUser(t.Context(), a.admin, "lab", string(a.users["rita"].ID), false)
		if coordinator.ErrorKindOf(err) != coordinator.ErrDenied {
			t.Errorf("removed: %v", err)
		}
		in := external("s", "newcomer", "")
		in.CreateIn = "lab"
		if _, _, err := a.engine.LogIn(t.Context(), in); coordinator.ErrorKindOf(err) != coordinator.ErrDenied || !strings.Contains(err.Error(), "https://federate.example") {
			t.Errorf("logged in: %v", err)
		}
	})
}

func TestAChangeMadeOnTheClusterIsOverwrittenByTheNextRefresh(t *testing.T) {
	allied(t, func(t *testing.T, a *alliance) {
		a.raise("group", "research", 3)
		a.request("rita")
		forced, fifty := a.admin, int32(50)
		forced.Force = true
		if _, err := a.engine.UpdateGroup(t.Context(), forced, UpdateGroup{Group: "research", Organization: "lab", Priority: &fifty}); err != nil {
			t.Fatal(err)
		}
		a.wants("group", "research", 50)
		a.request("sam") // does not carry it
		a.wants("group", "research", 50)
		a.request("rita")
		a.wants("group", "research", 3)
	})
}

func TestAnOlderFederateLeavesReplicasAsTheyAre(t *testing.T) {
	allied(t, func(t *testing.T, a *alliance) {
		a.raise("group", "research", 10)
		a.list(UpdateGroup{Preempt: []string{"spare"}})
		c := a.older("rita") // never synced: priority 0, an empty list
		a.wants("organization", "", 0)
		a.wants("group", "research", 0)
		a.node("n1", 4, 0)
		id := a.job(c, long)
		if err := a.engine.view(t.Context(), func(s *state) {
			if rec := s.workflows[id].record; rec.Priorities != (priorities{}) || len(rec.Preempts) != 0 {
				t.Errorf("%+v", rec)
			}
		}); err != nil {
			t.Fatal(err)
		}
		a.request("rita") // upgraded
		a.wants("group", "research", 10)
		a.raise("group", "research", 20)
		a.older("rita") // downgraded: values persist
		a.wants("group", "research", 10)
	})
}

func TestAttributesOlderThanThoseHereAreIgnored(t *testing.T) {
	allied(t, func(t *testing.T, a *alliance) {
		id, old, err := a.fed.BehalfOf(t.Context(), a.users["rita"].ID, "")
		if err != nil {
			t.Fatal(err)
		}
		a.raise("group", "research", 10)
		a.raise("user", "rita", 4)
		a.request("rita")
		for range 2 { // on its way since before the change
			a.deliver(id, &old)
			a.wants("group", "research", 10)
			a.wants("user", "rita", 4)
		}
	})
}

func TestAttributesOfANewerSchemaCountAsFarAsTheyAreKnown(t *testing.T) {
	allied(t, func(t *testing.T, a *alliance) {
		a.raise("user", "rita", 4)
		id, attrs, err := a.fed.BehalfOf(t.Context(), a.users["rita"].ID, "")
		if err != nil {
			t.Fatal(err)
		}
		attrs.Schema = federation.Schema + 5
		a.deliver(id, &attrs)
		a.wants("user", "rita", 4)
		if v, err := a.engine.Federate(t.Context(), a.admin); err != nil || v.Schema != federation.Schema+5 {
			t.Errorf("%+v, %v", v, err)
		}
	})
}

func TestOnlyTheRegisteredFederateIsHeard(t *testing.T) {
	allied(t, func(t *testing.T, a *alliance) {
		id, attrs, err := a.fed.BehalfOf(t.Context(), a.users["rita"].ID, "")
		if err != nil {
			t.Fatal(err)
		}
		for name, p := range map[string]FederatePeer{
			"another": {ID: a.engine.ClusterID(), Key: a.peer.Key}, "an earlier key": {ID: a.peer.ID, Key: "other"}, "nobody": {},
		} {
			if _, err := a.engine.brought(t.Context(), p, &id, &attrs); coordinator.ErrorKindOf(err) != coordinator.ErrUnauthenticated {
				t.Errorf("%s: %v", name, err)
			}
		}
		a.request("rita")
		if err := a.engine.ForgetFederate(t.Context(), a.admin); err != nil {
			t.Fatal(err)
		}
		if _, err := a.engine.brought(t.Context(), a.peer, &id, &attrs); coordinator.ErrorKindOf(err) != coordinator.ErrUnauthenticated {
			t.Errorf("after it was forgotten: %v", err)
		}
		five := int32(5) // and what it owned can be changed here
		if _, err := a.engine.UpdateOrganization(t.Context(), a.admin, "lab", &five); err != nil {
			t.Error(err)
		}
	})
}

// TestAReplicaNeverTakesAnothersPlace: names that are taken here stay whose they were, ids too.
func TestAReplicaNeverTakesAnothersPlace(t *testing.T) {
	allied(t, func(t *testing.T, a *alliance) {
		if _, err := a.engine.CreateOrganization(t.Context(), a.admin, "lab", 3); err != nil {
			t.Fatal(err)
		}
		c := a.request("rita")
		_, o, err := a.engine.WhoAmI(t.Context(), c)
		if err != nil || o.Slug != "lab-"+string(o.ID)[:8] || o.ID != a.users["rita"].Organization || c.Admin {
			t.Errorf("%+v, %v", o, err)
		}
		id, attrs, err := a.fed.BehalfOf(t.Context(), a.users["rita"].ID, "")
		if err != nil {
			t.Fatal(err)
		}
		id.User.ID = string(a.admin.User) // the cluster's own administrator
		if _, err := a.engine.brought(t.Context(), a.peer, &id, &attrs); coordinator.ErrorKindOf(err) != coordinator.ErrConflict {
			t.Errorf("a local user's id: %v", err)
		}
	})
}

// TestReplicasSurviveARestart: what was refreshed is durable before the request is carried out.
func TestReplicasSurviveARestart(t *testing.T) {
	st := store.NewMemory()
	c := newCluster(t, st)
	c.set(plainConfig)
	fed, boss := startFederate(t, store.NewMemory())
	a := &alliance{stage: &stage{t: t, cluster: c}, fed: fed, boss: boss, users: map[string]UserView{}}
	a.enrol()
	u, err := fed.CreateUser(t.Context(), boss, NewUser{Name: "rita"})
	if err != nil {
		t.Fatal(err)
	}
	a.users["rita"] = u
	a.raise("user", "rita", 9)
	a.request("rita")
	c.close()
	next := newCluster(t, st)
	a.cluster = next
	a.wants("user", "rita", 9)
	if _, err := next.engine.Federate(t.Context(), next.admin); err != nil {
		t.Error(err)
	}
	a.request("rita") // the registration is durable too
}

// TestSwitchingToAGroupCarriesThatGroup: whatever is asked then counts for it, and brings its values.
func TestSwitchingToAGroupCarriesThatGroup(t *testing.T) {
	allied(t, func(t *testing.T, a *alliance) {
		u, err := a.fed.CreateUser(t.Context(), a.boss, NewUser{Name: "uma", Organization: "lab", Groups: []string{"research", "spare"}})
		if err != nil {
			t.Fatal(err)
		}
		a.raise("group", "research", 3)
		a.raise("group", "spare", 4)
		for group, want := range map[string]int32{"research": 3, "spare": 4} {
			id, attrs, err := a.fed.BehalfOf(t.Context(), u.ID, group)
			if err != nil {
				t.Fatal(err)
			}
			c := a.deliver(id, &attrs)
			a.wants("group", group, want)
			if len(c.Groups) != 2 {
				t.Errorf("%v", c.Groups)
			}
		}
		if _, _, err := a.fed.BehalfOf(t.Context(), a.users["sam"].ID, "research"); coordinator.ErrorKindOf(err) != coordinator.ErrDenied {
			t.Errorf("a group that the user is not in: %v", err)
		}
	})
}
