package engine

import (
	"strings"
	"testing"
	"time"

	"substrate/coordinator"
)

// What administrators are promised of priorities and of preemption between groups on one cluster, one test for each
// sentence of it.

// groups makes two groups with a member each; research may take room from spare once it is told to.
func (s *stage) groups() (research, spare Caller) {
	s.t.Helper()
	for _, slug := range []string{"research", "spare"} {
		if _, err := s.engine.CreateGroup(s.t.Context(), s.admin, slug, firstOrg, 0); err != nil {
			s.t.Fatal(err)
		}
	}
	_, research = s.user(NewUser{Name: "rita", Organization: firstOrg, Groups: []string{"research"}})
	_, spare = s.user(NewUser{Name: "sam", Organization: firstOrg, Groups: []string{"spare"}})
	return research, spare
}

func (s *stage) update(group string, priority int32, change UpdateGroup) {
	s.t.Helper()
	change.Group, change.Organization, change.Priority = group, firstOrg, &priority
	if _, err := s.engine.UpdateGroup(s.t.Context(), s.admin, change); err != nil {
		s.t.Fatal(err)
	}
}

const (
	long      = "command: [run, 20h], resource: {cpu: {cores: 4}}"
	allows    = "preemptionEnabled: true, preemptionNotice: 1s"
	preempted = coordinator.StatusPreempted
)

func TestPrioritiesOfOrganizationGroupAndUserOrderTheQueue(t *testing.T) {
	raise := map[string]func(*stage, UserView){
		"organization": func(s *stage, u UserView) {
			p := int32(5)
			if _, err := s.engine.UpdateOrganization(s.t.Context(), s.admin, string(u.Organization), &p); err != nil {
				s.t.Fatal(err)
			}
		},
		"group": func(s *stage, u UserView) {
			p := int32(5)
			if _, err := s.engine.UpdateGroup(s.t.Context(), s.admin, UpdateGroup{Group: "team", Organization: string(u.Organization), Priority: &p}); err != nil {
				s.t.Fatal(err)
			}
		},
		"user": func(s *stage, u UserView) {
			p := int32(5)
			if _, err := s.engine.UpdateUser(s.t.Context(), s.admin, UpdateUser{User: string(u.ID), Priority: &p}); err != nil {
				s.t.Fatal(err)
			}
		},
	}
	for name, up := range raise {
		t.Run(name, func(t *testing.T) {
			onStage(t, func(t *testing.T, s *stage) {
				s.node("n1", 4, 0)
				if _, err := s.engine.CreateOrganization(t.Context(), s.admin, "other", 0); err != nil {
					t.Fatal(err)
				}
				if _, err := s.engine.CreateGroup(t.Context(), s.admin, "team", "other", 0); err != nil {
					t.Fatal(err)
				}
				if _, err := s.engine.SetGrant(t.Context(), s.admin, "other", []string{"small"}); err != nil {
					t.Fatal(err)
				}
				u, caller := s.user(NewUser{Name: "una", Organization: "other", Groups: []string{"team"}})
				s.job(s.admin, long)
				first, second := s.job(s.admin, long), s.job(caller, long)
				if v := s.is(second, queued); v.Position != 2 {
					t.Errorf("all start with priority 0: position %d", v.Position)
				}
				up(s, u)
				s.pass(2 * time.Second)
				// What waits follows the change.
				if v := s.is(second, queued); v.Position != 1 {
					t.Errorf("position %d", v.Position)
				}
				if v := s.is(first, queued); v.Position != 2 {
					t.Errorf("position %d", v.Position)
				}
			})
		})
	}
}

// preemption plays one attempt of research to take room from spare.
type preemption struct {
	scheduler string
	list      []string
	priority  int32
	victim    string // attributes of the victim's workflow
	aged      time.Duration
}

func (p preemption) play(t *testing.T, want coordinator.Status) {
	t.Helper()
	onStage(t, func(t *testing.T, s *stage) {
		s.configure(p.scheduler)
		s.node("n1", 4, 0)
		research, spare := s.groups()
		s.update("research", p.priority, UpdateGroup{Preempt: p.list})
		victim := s.submit(spare, p.victim)
		s.pass(p.aged + time.Second)
		s.is(victim, running)
		taker := s.job(research, long)
		s.pass(5 * time.Second)
		s.is(victim, want)
		if want == preempted {
			s.is(taker, running)
		} else {
			s.is(taker, queued)
		}
	})
}

const mayGo = "preemptible: true\njobs: {j: {" + long + "}}"

func TestAGroupPreemptsTheGroupsOnItsList(t *testing.T) {
	preemption{allows, []string{"spare"}, 50, mayGo, 0}.play(t, preempted)
}

func TestPreemptionIsOffUnlessTheClusterEnablesIt(t *testing.T) {
	preemption{"preemptionNotice: 1s", []string{"spare"}, 50, mayGo, 0}.play(t, running)
}

func TestTheVictimsGroupMustBeOnThePreemptingGroupsList(t *testing.T) {
	preemption{allows, nil, 50, mayGo, 0}.play(t, running)
}

func TestThePermissionCanBeRevoked(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.configure(allows)
		s.node("n1", 4, 0)
		research, spare := s.groups()
		s.update("research", 50, UpdateGroup{Preempt: []string{"spare"}})
		s.update("research", 50, UpdateGroup{NoPreempt: []string{"spare"}})
		victim := s.submit(spare, mayGo)
		s.job(research, long)
		s.pass(5 * time.Second)
		s.is(victim, running)
	})
}

func TestOnlyWorkMarkedPreemptibleIsEvicted(t *testing.T) {
	tests := map[string]struct {
		victim string
		want   coordinator.Status
	}{
		"not marked":             {"jobs: {j: {" + long + "}}", running},
		"the workflow":           {mayGo, preempted},
		"the job":                {"jobs: {j: {preemptible: true, " + long + "}}", preempted},
		"the job over the whole": {"preemptible: true\njobs: {j: {preemptible: false, " + long + "}}", running},
		"a service":              {"services: {j: {preemptible: true, command: [run, 900h], resource: {cpu: {cores: 4}}}}", preempted},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			preemption{allows, []string{"spare"}, 50, tt.victim, 0}.play(t, tt.want)
		})
	}
}

func TestPreemptibleCanBeGivenAtTheStart(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.configure(allows)
		s.node("n1", 4, 0)
		research, spare := s.groups()
		s.update("research", 50, UpdateGroup{Preempt: []string{"spare"}})
		yes := true
		res, err := s.engine.StartWorkflow(t.Context(), spare, StartWorkflow{File: "w.yaml", Preemptible: &yes,
			YAML: []byte("version: v1\nname: w\njobs: {j: {" + long + "}}\n")})
		if err != nil {
			t.Fatal(err)
		}
		taker := s.job(research, long)
		s.pass(5 * time.Second)
		s.is(res.Workflow.ID, preempted)
		s.is(taker, running)
	})
}

func TestTheGapMustBeAtLeastTenByDefault(t *testing.T) {
	const noAge = allows + ", priority: group_priority"
	preemption{noAge, []string{"spare"}, 10, mayGo, 0}.play(t, preempted)
	preemption{noAge, []string{"spare"}, 9, mayGo, 0}.play(t, running)
}

func TestThresholdAndRuntimeApply(t *testing.T) {
	preemption{allows + ", preemptionThreshold: 60", []string{"spare"}, 50, mayGo, 0}.play(t, running)
	preemption{allows + ", preemptionThreshold: 40", []string{"spare"}, 50, mayGo, 0}.play(t, preempted)
	preemption{allows + ", minPreemptionRuntime: 1h", []string{"spare"}, 50, mayGo, 0}.play(t, running)
	preemption{allows + ", minPreemptionRuntime: 1h", []string{"spare"}, 50, mayGo, time.Hour}.play(t, preempted)
}

func TestADeltaEqualToTheGapMissesOnceTheVictimHasAged(t *testing.T) {
	preemption{allows, []string{"spare"}, 10, mayGo, time.Hour}.play(t, running)
	preemption{allows, []string{"spare"}, 20, mayGo, time.Hour}.play(t, preempted)
	preemption{allows, []string{"spare"}, 20, mayGo, 11 * time.Hour}.play(t, running)
}

func TestAWorkflowKeepsTheListItWasSubmittedWith(t *testing.T) {
	for name, before := range map[string]bool{"on the list at the submission": true, "added later": false} {
		t.Run(name, func(t *testing.T) {
			onStage(t, func(t *testing.T, s *stage) {
				s.configure(allows + ", minPreemptionRuntime: 1h")
				s.node("n1", 4, 0)
				research, spare := s.groups()
				s.update("research", 50, UpdateGroup{})
				if before {
					s.update("research", 50, UpdateGroup{Preempt: []string{"spare"}})
				}
				victim := s.submit(spare, mayGo)
				s.job(research, long)
				s.pass(time.Minute)
				s.is(victim, running) // too young yet
				if before {
					s.update("research", 50, UpdateGroup{NoPreempt: []string{"spare"}})
				} else {
					s.update("research", 50, UpdateGroup{Preempt: []string{"spare"}})
				}
				s.pass(2 * time.Hour)
				if before {
					s.is(victim, preempted)
				} else {
					s.is(victim, running)
				}
			})
		})
	}
}

func TestAChangedPriorityCountsForWhatWaits(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.configure(allows)
		s.node("n1", 4, 0)
		research, spare := s.groups()
		s.update("research", 5, UpdateGroup{Preempt: []string{"spare"}})
		victim := s.submit(spare, mayGo)
		taker := s.job(research, long)
		s.pass(time.Minute)
		s.is(victim, running)
		s.update("research", 50, UpdateGroup{})
		s.pass(5 * time.Second)
		s.is(victim, preempted)
		s.is(taker, running)
	})
}

func TestPreemptionsAreStageEventsThatNameWhoAndWhere(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.configure(allows)
		s.node("n1", 4, 0)
		research, spare := s.groups()
		s.update("research", 50, UpdateGroup{Preempt: []string{"spare"}})
		victim := s.submit(spare, mayGo)
		taker := s.job(research, long)
		s.pass(5 * time.Second)
		s.is(victim, preempted)
		status, err := s.engine.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, ev := range s.events(victim) {
			if ev.Kind != "preempt-initiated" {
				continue
			}
			found = true
			if !strings.HasPrefix(ev.Metadata["preemptor"], string(taker)) || ev.Metadata["cluster"] != status.ClusterID {
				t.Errorf("metadata %v", ev.Metadata)
			}
		}
		if !found {
			t.Errorf("events: %s", describe(s.events(victim)))
		}
	})
}
