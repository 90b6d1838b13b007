package engine

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"substrate/coordinator"
)

// What users of the three plans are promised, one test for each sentence of it, in its order. Those about
// reservations and maintenance are in promises_times_test.go.

const (
	batch1   = "command: [run, 10m], class: batch, resource: {devices: {nvidia.com/gpu: 1}}"
	demand1  = "command: [run, 10m], resource: {devices: {nvidia.com/gpu: 1}}"
	queued   = coordinator.StatusQueued
	running  = coordinator.StatusRunning
	finished = coordinator.StatusFinished
)

// gpu asks for n GPUs.
func gpu(n int, rest string) string {
	return fmt.Sprintf("command: [run, 10m], resource: {devices: {nvidia.com/gpu: %d}}%s", n, rest)
}

func TestSchedulerDecidesWhichJobRunsOnWhichGPUAndWhen(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.node("n1", 16, 2)
		a, b, c := s.job(s.admin, demand1), s.job(s.admin, demand1), s.job(s.admin, demand1)
		pa, pb := s.process(a, "j", 1), s.process(b, "j", 1)
		if slices.Equal(pa.gpus(), pb.gpus()) || len(pa.gpus()) != 1 || len(pb.gpus()) != 1 {
			t.Errorf("GPUs %v and %v", pa.gpus(), pb.gpus())
		}
		s.is(c, queued)
		s.pass(10*time.Minute + time.Second)
		s.is(c, running)
	})
}

func TestOneQueuePerClusterAndThreePlans(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.node("n1", 4, 0)
		s.job(s.admin, "command: [run, 10m], resource: {cpu: {cores: 4}}")
		s.job(s.admin, "command: [run, 10m], class: batch, resource: {cpu: {cores: 4}}")
		s.job(s.admin, "command: [run, 10m], resource: {cpu: {cores: 4}}")
		jobs, total, _, err := s.engine.Queue(t.Context(), s.admin, false, 0, Page{})
		if err != nil || total != 2 || jobs[0].Class != coordinator.ClassOnDemand || jobs[1].Class != coordinator.ClassBatch {
			t.Errorf("queue of %d: %+v, %v", total, jobs, err)
		}
		if jobs[0].Position != 1 || jobs[1].Position != 1 {
			t.Errorf("positions %d and %d", jobs[0].Position, jobs[1].Position)
		}
	})
}

func TestOnDemandJobsTakeFreeGPUs(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.node("n1", 16, 4)
		for range 4 {
			s.is(s.job(s.admin, demand1), running)
		}
	})
}

func TestWithoutAFreeGPUAJobWaitsInSubmissionOrder(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.node("n1", 16, 1)
		ids := []coordinator.WorkflowID{s.job(s.admin, demand1), s.job(s.admin, demand1), s.job(s.admin, demand1)}
		for i := range ids {
			for k, id := range ids {
				want := queued
				switch {
				case k < i:
					want = finished
				case k == i:
					want = running
				}
				if v := s.is(id, want); want == queued && v.Position != k-i {
					t.Errorf("position of %d after %d ends: %d", k, i, v.Position)
				}
			}
			s.pass(10*time.Minute + time.Second)
		}
	})
}

func TestExpectedWaitOfEachPlanIsOnTheCapacityEndpoint(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.node("n1", 16, 1)
		s.job(s.admin, demand1+", max-minutes: 30")
		v, err := s.engine.Capacity(t.Context(), s.admin)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range v.Classes {
			if c.Class == coordinator.ClassReserved {
				continue
			}
			if c.WaitMinutes == nil || *c.WaitMinutes < 29 || *c.WaitMinutes > 32 {
				t.Errorf("%s: %v minutes", c.Class, c.WaitMinutes)
			}
		}
	})
}

func TestBatchJobsRunOnAnyGPUThatIsIdle(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.node("n1", 16, 4)
		// Two on-demand GPUs are idle behind a blocked job of four: batch fills them.
		s.job(s.admin, gpu(2, ""))
		blocked := s.job(s.admin, gpu(4, ""))
		b1, b2 := s.job(s.admin, batch1), s.job(s.admin, batch1)
		s.is(blocked, queued)
		s.is(b1, running)
		s.is(b2, running)
	})
}

func TestBatchJobsComeLast(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.node("n1", 16, 1)
		first := s.job(s.admin, demand1)
		batch := s.job(s.admin, batch1)
		later := s.job(s.admin, demand1)
		s.pass(10*time.Minute + time.Second)
		s.is(first, finished)
		s.is(later, running)
		s.is(batch, queued)
	})
}

func TestBatchJobsYieldToOnDemandJobs(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.node("n1", 16, 1)
		batch := s.job(s.admin, batch1)
		s.is(batch, running)
		demand := s.job(s.admin, demand1)
		s.pass(2 * time.Second)
		s.is(batch, coordinator.StatusPreempted)
		s.is(demand, running)
	})
}

func TestNGPUsAreOnOneFabricWhichIsOneNode(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.node("n1", 16, 4)
		s.node("n2", 16, 4)
		s.job(s.admin, gpu(2, ""))
		s.job(s.admin, gpu(3, ""))
		// Three are free, two on one node and one on the other: a job of three waits.
		waits := s.job(s.admin, gpu(3, ""))
		s.is(waits, queued)
		s.is(s.job(s.admin, gpu(2, ", class: batch")), running)
	})
}

func TestAPairOnTheSameSwitchIsPreferred(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.node("n1", 16, 4)
		single, pair := s.job(s.admin, gpu(1, "")), s.job(s.admin, gpu(2, ""))
		one, two := s.process(single, "j", 1).gpus(), s.process(pair, "j", 1).gpus()
		if !slices.Equal(two, []string{"0", "1"}) && !slices.Equal(two, []string{"2", "3"}) {
			t.Errorf("the pair is %v, the single one %v", two, one)
		}
	})
}

func TestAJobIsNotSplitAcrossTime(t *testing.T) {
	for _, class := range []string{"on-demand", "batch"} {
		t.Run(class, func(t *testing.T) {
			onStage(t, func(t *testing.T, s *stage) {
				s.node("n1", 16, 4)
				first := s.job(s.admin, demand1)
				four := s.job(s.admin, gpu(4, ", class: "+class))
				s.pass(5 * time.Minute)
				s.is(first, running)
				if v := s.is(four, queued); len(v.Nodes) != 0 || v.Attempt != 0 {
					t.Errorf("started in part: %+v", v)
				}
				s.pass(5*time.Minute + time.Second)
				s.is(four, running)
				if got := s.process(four, "j", 1).gpus(); len(got) != 4 {
					t.Errorf("has %v", got)
				}
			})
		})
	}
}

func TestWithinAPlanJobsAreOrderedBySubmission(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.node("n1", 16, 1)
		s.job(s.admin, demand1)
		var want, got []coordinator.AllocationID
		for range 5 {
			s.pass(time.Second)
			want = append(want, coordinator.AllocationID(s.job(s.admin, demand1))+"/j")
		}
		jobs, _, _, err := s.engine.Queue(t.Context(), s.admin, false, 0, Page{})
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range jobs {
			got = append(got, j.ID)
		}
		if !slices.Equal(got, want) {
			t.Errorf("queue %v, want %v", got, want)
		}
	})
}

func TestFiftyBatchJobsOfATeamRunInOrderAndOthersQueueBehind(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.node("n1", 16, 1)
		_, team := s.user(NewUser{Name: "team", Organization: firstOrg})
		_, other := s.user(NewUser{Name: "other", Organization: firstOrg})
		var ids []coordinator.WorkflowID
		for range 50 {
			ids = append(ids, s.job(team, "command: [run, 1m], class: batch, resource: {devices: {nvidia.com/gpu: 1}}"))
		}
		last := s.job(other, "command: [run, 1m], class: batch, resource: {devices: {nvidia.com/gpu: 1}}")
		if v := s.is(last, queued); v.Position != 50 {
			t.Errorf("position %d", v.Position)
		}
		s.pass(51*time.Minute + 30*time.Second)
		var before time.Time
		for i, id := range append(ids, last) {
			v := s.is(id, finished)
			if v.Started.Before(before) {
				t.Errorf("job %d started at %s, before the end of the one ahead at %s", i, v.Started, before)
			}
			before = v.Ended
		}
	})
}

func TestOnlyBatchJobsArePreemptedByTheirPlan(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.node("n1", 16, 2)
		demand, batch := s.job(s.admin, demand1), s.job(s.admin, batch1)
		next, after := s.job(s.admin, demand1), s.job(s.admin, demand1)
		s.pass(3 * time.Minute)
		s.is(demand, running)
		s.is(batch, coordinator.StatusPreempted)
		s.is(next, running)
		s.is(after, queued)
	})
}

func TestTheNoticeIsSixtySeconds(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.node("n1", 16, 1)
		batch := s.job(s.admin, "command: [ignore, 10m], class: batch, resource: {devices: {nvidia.com/gpu: 1}}")
		s.pass(10 * time.Second)
		demand := s.job(s.admin, demand1)
		s.pass(time.Second)
		v := s.is(batch, coordinator.StatusPreempting)
		p := s.process(batch, "j", 1)
		if p.grace != 60*time.Second {
			t.Errorf("grace %s", p.grace)
		}
		if d := v.NoticeEnds.Sub(p.terminated); d < 59*time.Second || d > 61*time.Second {
			t.Errorf("the notice that is told ends %s after SIGTERM", d)
		}
		s.pass(time.Minute)
		if p.signal != 9 || p.ended.Sub(p.terminated) != 60*time.Second {
			t.Errorf("signal %d after %s", p.signal, p.ended.Sub(p.terminated))
		}
		s.is(demand, running)
	})
}

func TestTheStatusBecomesPreempted(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.node("n1", 16, 1)
		batch := s.job(s.admin, "command: [tidy, 10m, 20s], class: batch, resource: {devices: {nvidia.com/gpu: 1}}")
		s.job(s.admin, demand1)
		s.pass(30 * time.Second)
		if v := s.is(batch, coordinator.StatusPreempted); v.Preempted != 1 || v.Failures != 0 {
			t.Errorf("it ended with code 0 in its notice: %+v", v)
		}
	})
}

func TestRetryOnPreemptRequeuesAtTheFrontOfTheBatchQueue(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.node("n1", 16, 1)
		batch := s.job(s.admin, batch1+", retry-on-preempt: true")
		others := []coordinator.WorkflowID{s.job(s.admin, batch1), s.job(s.admin, batch1)}
		demand := s.job(s.admin, demand1)
		s.pass(2 * time.Second)
		s.is(demand, running)
		if v := s.is(batch, queued); v.Position != 1 {
			t.Errorf("position %d", v.Position)
		}
		s.pass(10 * time.Minute)
		v := s.is(batch, running)
		for _, id := range others {
			s.is(id, queued)
		}
		// From the start of its command, for as long as at first.
		if v.Attempt != 2 || v.Preempted != 1 {
			t.Errorf("attempt %d, preempted %d", v.Attempt, v.Preempted)
		}
		p := s.process(batch, "j", 2)
		if !slices.Equal(p.order.Job.Command, []string{"run", "10m"}) || p.status.Started.IsZero() {
			t.Errorf("second run %+v", p.order)
		}
	})
}

func TestOnDemandJobsEndByTheirCommandOrMaxMinutes(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.node("n1", 16, 2)
		exits := s.job(s.admin, demand1+", max-minutes: 60")
		runsOn := s.job(s.admin, "command: [run, 10h], max-minutes: 20, resource: {devices: {nvidia.com/gpu: 1}}")
		for range 3 {
			s.job(s.admin, demand1)
		}
		s.pass(10*time.Minute + time.Second)
		s.is(exits, finished)
		s.is(runsOn, running)
		s.pass(10 * time.Minute)
		v := s.is(runsOn, coordinator.StatusFailed)
		if d := v.Ended.Sub(v.Started); d != 20*time.Minute {
			t.Errorf("it ran for %s", d)
		}
	})
}

func TestCapacityReturnsFreeGPUsOfEachPlan(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.node("n1", 16, 4)
		s.job(s.admin, demand1)
		v, err := s.engine.Capacity(t.Context(), s.admin)
		if err != nil {
			t.Fatal(err)
		}
		free := map[coordinator.Class]uint32{}
		for _, c := range v.Classes {
			free[c.Class] = c.FreeGPUs
		}
		if free[coordinator.ClassOnDemand] != 3 || free[coordinator.ClassBatch] != 3 {
			t.Errorf("free %v", free)
		}
	})
}

func TestAJobTellsItsPositionInTheQueue(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.node("n1", 16, 1)
		s.job(s.admin, demand1)
		s.job(s.admin, demand1)
		id := s.job(s.admin, demand1)
		v, err := s.engine.Job(t.Context(), s.admin, coordinator.AllocationID(id)+"/j")
		if err != nil || v.Position != 2 || v.Ahead != 1 || v.Reason == nil || v.Reason.Rule == 0 || v.EstimatedStart.IsZero() {
			t.Errorf("%+v, %v", v, err)
		}
	})
}
