package engine

import (
	"strings"
	"testing"
	"time"

	"substrate/coordinator"
)

// What users of the three plans are promised of reservations and maintenance, one test for each sentence of it.

// teams makes a second organisation beside the first, with a user and a grant.
func (s *stage) teams() (other Caller) {
	s.t.Helper()
	if _, err := s.engine.CreateOrganization(s.t.Context(), s.admin, "other", 0); err != nil {
		s.t.Fatal(err)
	}
	_, other = s.user(NewUser{Name: "otto", Organization: "other"})
	return other
}

func TestReservedJobsComeFirst(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.node("n1", 16, 2)
		s.reserve("spring", 1, 0, 10*time.Hour)
		s.job(s.admin, batch1)
		s.job(s.admin, reserved1)
		s.job(s.admin, demand1)
		waits := map[coordinator.Class]coordinator.WorkflowID{
			coordinator.ClassBatch:    s.job(s.admin, batch1),
			coordinator.ClassOnDemand: s.job(s.admin, demand1),
			coordinator.ClassReserved: s.job(s.admin, reserved1),
		}
		s.pass(90 * time.Second)
		jobs, _, _, err := s.engine.Queue(t.Context(), s.admin, false, 0, Page{})
		if err != nil {
			t.Fatal(err)
		}
		var order []coordinator.Class
		for _, j := range jobs {
			if j.Workflow == waits[j.Class] {
				order = append(order, j.Class)
			}
		}
		if len(order) != 3 || order[0] != coordinator.ClassReserved || order[1] != coordinator.ClassOnDemand || order[2] != coordinator.ClassBatch {
			t.Errorf("the queue has %v", order)
		}
	})
}

func TestNobodyElseIsPlacedOnReservedGPUsWhileTheReservationIsActive(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.node("n1", 16, 2)
		other := s.teams()
		s.reserve("spring", 2, 0, 2*time.Hour)
		demand := s.job(other, demand1)
		if v := s.is(demand, queued); v.Reason == nil || v.Reason.Code != "blocked-by-reservation" {
			t.Errorf("reason %+v", v.Reason)
		}
		own := s.job(s.admin, demand1)
		s.is(own, queued)
		if _, err := s.engine.StartWorkflow(t.Context(), other, StartWorkflow{File: "w.yaml",
			YAML: []byte("version: v1\nname: w\njobs: {j: {" + reserved1 + "}}\n")}); err == nil {
			t.Error("a reserved job of an organisation without a reservation was accepted")
		}
		s.pass(2*time.Hour + 2*time.Second)
		s.is(demand, running)
	})
}

func TestOnDemandJobsGetWhateverIsLeftAfterReservations(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.node("n1", 16, 4)
		s.reserve("spring", 3, 0, 10*time.Hour)
		first, second := s.job(s.admin, demand1), s.job(s.admin, demand1)
		s.is(first, running)
		s.is(second, queued)
	})
}

func TestBatchJobsRunOnReservedGPUsThatAreIdle(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.node("n1", 16, 2)
		s.reserve("spring", 2, 0, 10*time.Hour)
		other := s.teams()
		s.is(s.job(other, batch1), running)
		s.is(s.job(other, batch1), running)
	})
}

func TestWhenTheOwnerSubmitsTheBatchJobThereGetsSixtySeconds(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.node("n1", 16, 1)
		s.reserve("spring", 1, 0, 10*time.Hour)
		other := s.teams()
		batch := s.job(other, "command: [ignore, 5h], class: batch, resource: {devices: {nvidia.com/gpu: 1}}")
		s.pass(time.Minute)
		owner := s.job(s.admin, reserved1)
		s.pass(59 * time.Second)
		p := s.process(batch, "j", 1)
		if p.terminated.IsZero() || p.grace != time.Minute || !p.ended.IsZero() {
			t.Errorf("SIGTERM %s with %s, ended %s", p.terminated, p.grace, p.ended)
		}
		s.is(batch, coordinator.StatusPreempting)
		s.is(owner, queued)
		s.pass(3 * time.Second)
		if p.signal != 9 {
			t.Errorf("signal %d", p.signal)
		}
		s.is(owner, running)
	})
}

func TestReservedJobsAreNeverPreempted(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.configure(allows)
		s.node("n1", 16, 1)
		s.reserve("spring", 1, 0, 10*time.Hour)
		first := s.job(s.admin, reserved1+", max-minutes: 60")
		research, _ := s.groups()
		s.update("research", 1000, UpdateGroup{Preempt: []string{"default"}})
		s.job(research, reserved1)
		s.job(research, demand1)
		s.pass(9 * time.Minute)
		s.is(first, running)
		s.pass(2 * time.Minute)
		s.is(first, finished)
	})
}

func TestReservedJobsEndAtMaxMinutes(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.node("n1", 16, 1)
		s.reserve("spring", 1, 0, 10*time.Hour)
		j := s.job(s.admin, "command: [run, 5h], class: reserved, max-minutes: 15, resource: {devices: {nvidia.com/gpu: 1}}")
		s.pass(16 * time.Minute)
		if v := s.is(j, coordinator.StatusFailed); v.Ended.Sub(v.Started) != 15*time.Minute {
			t.Errorf("it ran for %s", v.Ended.Sub(v.Started))
		}
	})
}

// maintain announces maintenance of everything.
func (s *stage) maintain(in, lasts time.Duration, emergency bool) (MaintenanceView, error) {
	v, _, err := s.engine.AnnounceMaintenance(s.t.Context(), s.admin, NewMaintenance{
		From: s.now().Add(in), Until: s.now().Add(in + lasts), Message: "new switches", Emergency: emergency})
	return v, err
}

func TestInMaintenanceNothingIsPlacedRunningJobsFinishAndBatchIsPreempted(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.node("n1", 16, 4)
		s.reserve("spring", 1, 0, 1000*time.Hour)
		reserved := s.job(s.admin, "command: [run, 119m], class: reserved, max-minutes: 120, resource: {devices: {nvidia.com/gpu: 1}}")
		demand := s.job(s.admin, "command: [run, 119m], max-minutes: 120, resource: {devices: {nvidia.com/gpu: 1}}")
		batch := s.job(s.admin, "command: [ignore, 5h], class: batch, retry-on-preempt: true, resource: {devices: {nvidia.com/gpu: 1}}")
		if _, err := s.maintain(0, 3*time.Hour, true); err != nil {
			t.Fatal(err)
		}
		s.pass(2 * time.Second)
		s.is(batch, coordinator.StatusPreempting)
		late := s.job(s.admin, demand1)
		s.pass(90 * time.Second)
		s.is(batch, queued) // preempted, and not placed again
		if v := s.is(late, queued); v.Reason == nil || v.Reason.Rule != 26 && v.Reason.Rule != 25 {
			t.Errorf("reason %+v", v.Reason)
		}
		s.is(reserved, running)
		s.is(demand, running)
		s.pass(2 * time.Hour)
		s.is(reserved, finished)
		s.is(demand, finished)
		s.is(late, queued)
		s.pass(time.Hour)
		s.is(late, running)
		s.is(batch, running)
	})
}

func TestWindowsAreAnnouncedSevenDaysAheadAndListedInTheStatusHistory(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		if _, err := s.maintain(6*24*time.Hour, time.Hour, false); err == nil || !strings.Contains(err.Error(), "7 days") && !strings.Contains(err.Error(), "168h") && !strings.Contains(err.Error(), "7d") {
			t.Errorf("six days ahead: %v", err)
		}
		v, err := s.maintain(7*24*time.Hour, time.Hour, false)
		if err != nil {
			t.Fatal(err)
		}
		_, reader := s.user(NewUser{Name: "rosa", Organization: firstOrg})
		list, _, err := s.engine.StatusHistory(t.Context(), reader, Page{})
		if err != nil || len(list) != 1 || list[0].Kind != StatusAnnounced || list[0].Window != v.ID || !list[0].From.Equal(v.From) {
			t.Errorf("history %+v, %v", list, err)
		}
	})
}
