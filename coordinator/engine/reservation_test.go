package engine

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/sched"
	"substrate/coordinator/store"
	"substrate/hwinfo"
)

const (
	preempting = coordinator.StatusPreempting
	reserved1  = "command: [run, 10m], class: reserved, resource: {devices: {nvidia.com/gpu: 1}}"
)

// reserve makes a reservation of GPUs of "small" for the first organisation.
func (c *cluster) reserve(name string, gpus uint32, from, until time.Duration) ReservationView {
	c.t.Helper()
	v, _, err := c.engine.CreateReservation(c.t.Context(), c.admin, NewReservation{Name: name, Organization: firstOrg, Definition: "small",
		GPUs: gpus, From: c.now().Add(from), Until: c.now().Add(until)})
	if err != nil {
		c.t.Fatal(err)
	}
	return v
}

func TestReservedJobStartsAtOnceOnItsIdleGPU(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.node("n1", 16, 4)
		s.reserve("spring", 2, 0, time.Hour)
		began := time.Now()
		j := s.job(s.admin, reserved1)
		s.pass(time.Second) // a turn or two
		v := s.is(j, running)
		if took := v.Started.Sub(began); took > 2*time.Second {
			t.Errorf("started after %s, promised are 2 s", took)
		}
		if v.Reservation != "spring" {
			t.Errorf("it runs in reservation %q", v.Reservation)
		}
	})
}

func TestBatchLeavesTheReservedGPUAfterItsNotice(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.configure("preemptionNotice: 60s")
		s.node("n1", 16, 2)
		s.reserve("spring", 2, 0, time.Hour)
		b := s.job(s.admin, "command: [ignore, 50m], class: batch, retry-on-preempt: true, resource: {devices: {nvidia.com/gpu: 2}}")
		s.is(b, running)
		asked := time.Now()
		j := s.job(s.admin, reserved1)
		s.pass(2 * time.Second)
		s.is(b, preempting)
		s.pass(63 * time.Second)
		v := s.is(j, running)
		if took := v.Started.Sub(asked); took > 65*time.Second {
			t.Errorf("started after %s, promised are notice + 5 s", took)
		}
		s.is(b, queued)
	})
}

func TestNobodyElseIsPlacedOnReservedGPUs(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.node("n1", 16, 4)
		s.reserve("spring", 3, 0, time.Hour)
		first, second := s.job(s.admin, demand1), s.job(s.admin, demand1)
		s.is(first, running)
		if r := s.is(second, queued).Reason; r == nil || r.Rule != 11 || r.Code != "blocked-by-reservation" {
			t.Errorf("reason %+v", r)
		}
		_, other := s.user(NewUser{Name: "eva", Organization: firstOrg})
		if _, err := s.engine.CreateGroup(t.Context(), s.admin, "lab", firstOrg, 0); err != nil {
			t.Fatal(err)
		}
		s.is(s.job(other, "command: [run, 10m], class: batch, resource: {devices: {nvidia.com/gpu: 3}}"), running) // batch may
		s.pass(time.Hour)
		s.is(second, finished)
	})
}

func TestAReservationThatComesIsKeptFree(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.node("n1", 16, 2)
		v := s.reserve("spring", 2, time.Hour, 2*time.Hour)
		if v.State != ReservationPlanned {
			t.Errorf("state %s", v.State)
		}
		short := s.job(s.admin, "command: [run, 10m], max-minutes: 10, resource: {devices: {nvidia.com/gpu: 1}}")
		long := s.job(s.admin, "command: [run, 1m], max-minutes: 90, resource: {devices: {nvidia.com/gpu: 1}}")
		wait := s.job(s.admin, reserved1)
		s.is(long, queued)
		s.is(short, running)
		if r := s.is(wait, queued).Reason; r == nil || r.Rule != 10 || !strings.Contains(r.Text, "reservation spring begins at ") {
			t.Errorf("reason %+v", r)
		}
		s.pass(time.Hour + 2*time.Second)
		s.is(wait, running)
		got, err := s.engine.Reservation(t.Context(), s.admin, "spring")
		if err != nil || got.State != ReservationActive || len(got.Parts) != 1 || got.Parts[0].Count != 2 || got.Running != 1 || got.Idle != 1 {
			t.Errorf("%+v, %v", got, err)
		}
		s.pass(time.Hour)
		if got, err = s.engine.Reservation(t.Context(), s.admin, "spring"); err != nil || got.State != ReservationEnded {
			t.Errorf("%+v, %v", got, err)
		}
		s.is(long, running)
	})
}

// TestDeletedReservation: what runs in it runs on, what waits for it is told and waits for another one.
func TestDeletedReservation(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.node("n1", 16, 1)
		s.reserve("spring", 1, 0, 2*time.Hour)
		runs, waits := s.job(s.admin, reserved1), s.job(s.admin, reserved1+", reservation: spring")
		s.is(runs, running)
		s.is(waits, queued)
		v, err := s.engine.DeleteReservation(t.Context(), s.admin, "spring")
		if err != nil || v.State != ReservationDeleted || v.Running != 1 {
			t.Fatalf("%+v, %v", v, err)
		}
		s.pass(2 * time.Second)
		s.is(runs, running)
		if r := s.is(waits, queued).Reason; r == nil || !strings.Contains(r.Text, "no reservation spring any more") {
			t.Errorf("reason %+v", r)
		}
		if got := describe(s.events(waits)); !strings.Contains(got, "warning j reservation spring: deleted by admin") {
			t.Errorf("the owner is told:\n%s", got)
		}
		if _, err := s.engine.DeleteReservation(t.Context(), s.admin, "spring"); coordinator.ErrorKindOf(err) != coordinator.ErrConflict {
			t.Errorf("a second time: %v", err)
		}
		s.pass(10 * time.Minute)
		s.is(runs, finished)
		s.is(waits, queued)
		s.reserve("spring", 1, 0, time.Hour)
		s.pass(2 * time.Second)
		s.is(waits, running)
	})
}

// TestReservedWorkNobodyCouldEverRun: it is refused when it is submitted, with the reason.
func TestReservedWorkNobodyCouldEverRun(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.node("n1", 16, 4)
		if _, err := s.engine.CreateGroup(t.Context(), s.admin, "lab", firstOrg, 0); err != nil {
			t.Fatal(err)
		}
		_, other := s.user(NewUser{Name: "eva", Organization: firstOrg, Groups: []string{"lab"}})
		if _, _, err := s.engine.CreateReservation(t.Context(), s.admin, NewReservation{Name: "spring", Organization: firstOrg, Group: "default",
			Definition: "small", GPUs: 2, Until: time.Now().Add(time.Hour)}); err != nil {
			t.Fatal(err)
		}
		for name, tt := range map[string]struct {
			who  Caller
			job  string
			want string // in the error; "" is accepted
		}{
			"fits":             {s.admin, reserved1, ""},
			"too large":        {s.admin, "command: [x], class: reserved, resource: {devices: {nvidia.com/gpu: 3}}", "it wants 3 × nvidia.com/gpu, reservation spring has 2"},
			"too many nodes":   {s.admin, "command: [x], class: reserved, multinode: {nodes: 3}, resource: {devices: {nvidia.com/gpu: 1}}", "it wants 3 × nvidia.com/gpu, reservation spring has 2"},
			"of another group": {other, reserved1, "neither group lab nor organisation default has a reservation"},
			"not there":        {s.admin, reserved1 + ", reservation: autumn", "neither group default nor organisation default has a reservation autumn"},
			"no node like it":  {s.admin, "command: [x], class: reserved, resource: {cpu: {cores: 17}}", "definition small of reservation spring is refused by resources: wants 17 cores"},
			"preemptible":      {s.admin, reserved1 + ", preemptible: true", "reserved work is never preempted"},
			"class":            {s.admin, "command: [x], class: batch, reservation: spring", "work of class batch does not run in a reservation"},
		} {
			_, err := s.engine.StartWorkflow(t.Context(), tt.who, StartWorkflow{YAML: []byte("version: v1\nname: w\njobs: {j: {" + tt.job + "}}\n"), File: "w.yaml"})
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("%s: %v", name, err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("%s: %v, want %q", name, err, tt.want)
			}
		}
	})
}

// TestBadReservations: what is refused, and as what.
func TestBadReservations(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.node("n1", 16, 4)
		s.reserve("taken", 3, time.Hour, 2*time.Hour)
		good := NewReservation{Name: "spring", Organization: firstOrg, Definition: "small", GPUs: 2, Until: time.Now().Add(90 * time.Minute)}
		for name, tt := range map[string]struct {
			change func(*NewReservation)
			kind   coordinator.ErrorKind
			want   string
		}{
			"no name":            {func(r *NewReservation) { r.Name = "" }, coordinator.ErrInvalid, "has the wrong length"},
			"capitals":           {func(r *NewReservation) { r.Name = "Spring" }, coordinator.ErrInvalid, "a character that is not allowed"},
			"name is taken":      {func(r *NewReservation) { r.Name = "taken" }, coordinator.ErrExists, "there is one of this name until"},
			"organisation":       {func(r *NewReservation) { r.Organization = "nobody" }, coordinator.ErrNotFound, `there is no organisation "nobody"`},
			"group":              {func(r *NewReservation) { r.Group = "nobody" }, coordinator.ErrNotFound, `there is no group "nobody"`},
			"definition":         {func(r *NewReservation) { r.Definition = "large" }, coordinator.ErrNotFound, `there is no definition "large"`},
			"no end":             {func(r *NewReservation) { r.Until = time.Time{} }, coordinator.ErrInvalid, "it has no end"},
			"ends before":        {func(r *NewReservation) { r.From = r.Until }, coordinator.ErrInvalid, "which is not after its beginning"},
			"over already":       {func(r *NewReservation) { r.Until = time.Now().Add(-time.Minute) }, coordinator.ErrInvalid, "which is not after its beginning"},
			"far away":           {func(r *NewReservation) { r.Until = time.Now().Add(11 * 365 * 24 * time.Hour) }, coordinator.ErrInvalid, "more than ten years"},
			"nothing":            {func(r *NewReservation) { r.GPUs = 0 }, coordinator.ErrInvalid, "one of them"},
			"GPUs and nodes":     {func(r *NewReservation) { r.Nodes = 1 }, coordinator.ErrInvalid, "one of them"},
			"a device of nodes":  {func(r *NewReservation) { r.GPUs, r.Nodes, r.Device = 0, 1, "nvidia.com/gpu" }, coordinator.ErrInvalid, "whole nodes come with all"},
			"unknown device":     {func(r *NewReservation) { r.Device = "amd.com/gpu" }, coordinator.ErrInvalid, "the nodes of small have no amd.com/gpu"},
			"more than there is": {func(r *NewReservation) { r.GPUs = 5 }, coordinator.ErrExhausted, "it asks for 5 nvidia.com/gpu, definition small has 4"},
			"more than is left":  {func(r *NewReservation) {}, coordinator.ErrExhausted, "3 of them are reserved at that time by taken"},
			"nodes":              {func(r *NewReservation) { r.GPUs, r.Nodes = 0, 2 }, coordinator.ErrExhausted, "it asks for 2 nodes, definition small has 1"},
		} {
			in := good
			tt.change(&in)
			_, _, err := s.engine.CreateReservation(t.Context(), s.admin, in)
			if err == nil || coordinator.ErrorKindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: %v, want %q", name, err, tt.want)
			}
		}
		good.Until, good.IdempotencyKey = time.Now().Add(59*time.Minute), "k"
		first, _, err := s.engine.CreateReservation(t.Context(), s.admin, good)
		if err != nil {
			t.Fatal(err)
		}
		if again, _, err := s.engine.CreateReservation(t.Context(), s.admin, good); err != nil || again.ID != first.ID {
			t.Errorf("the same key and request: %+v, %v", again, err)
		}
		good.GPUs = 1
		if _, _, err := s.engine.CreateReservation(t.Context(), s.admin, good); coordinator.ErrorKindOf(err) != coordinator.ErrConflict {
			t.Errorf("the same key, another request: %v", err)
		}
	})
}

// TestCapacityKnowsReservations: what is free for each class, and the owner's own wait.
func TestCapacityKnowsReservations(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.node("n1", 16, 8)
		s.reserve("spring", 5, 0, 2*time.Hour)
		s.job(s.admin, demand1)
		s.job(s.admin, reserved1)
		s.pass(time.Second)
		if _, err := s.engine.CreateOrganization(t.Context(), s.admin, "other", 0); err != nil {
			t.Fatal(err)
		}
		_, stranger := s.user(NewUser{Name: "cid", Organization: "other"})
		for _, tt := range []struct {
			who  Caller
			want string
		}{{s.admin, "reserved 4 0.0, on-demand 2 0.0, batch 6 0.0"}, {stranger, "reserved 0 nil, on-demand 2 0.0, batch 6 0.0"}} {
			v, err := s.engine.Capacity(t.Context(), tt.who)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, k := range v.Classes {
				wait := "nil"
				if k.WaitMinutes != nil {
					wait = fmt.Sprintf("%.1f", *k.WaitMinutes)
				}
				got = append(got, fmt.Sprintf("%s %d %s", k.Class, k.FreeGPUs, wait))
			}
			if text := strings.Join(got, ", "); text != tt.want {
				t.Errorf("%s: %s, want %s", tt.who.Name, text, tt.want)
			}
		}
	})
}

// TestWholeNodesReserved: a node without devices that is reserved is its owner's.
func TestWholeNodesReserved(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.node("n1", 8, 0)
		s.node("n2", 8, 0)
		if _, _, err := s.engine.CreateReservation(t.Context(), s.admin, NewReservation{Name: "week", Organization: firstOrg, Definition: "small",
			Nodes: 1, Until: time.Now().Add(time.Hour)}); err != nil {
			t.Fatal(err)
		}
		eight := "command: [run, 10m], resource: {cpu: {cores: 8}}"
		s.is(s.job(s.admin, eight), running)
		s.is(s.job(s.admin, eight), queued)
		s.is(s.job(s.admin, eight+", class: reserved"), running)
		v, err := s.engine.Capacity(t.Context(), s.admin)
		if err != nil || v.Classes[0].FreeCores != 0 || v.Classes[1].FreeCores != 0 {
			t.Errorf("%+v, %v", v.Classes, err)
		}
	})
}

// TestReservationsOutliveTheCoordinator: after a restart the same devices are reserved, and work in them is known to be.
func TestReservationsOutliveTheCoordinator(t *testing.T) {
	st := store.NewMemory()
	c := newCluster(t, st)
	c.set(plainConfig)
	h := newHost("n1", 8, nil)
	c.join(h)
	awaitNode(t, c, "n1", NodeReady)
	if _, _, err := c.engine.CreateReservation(t.Context(), c.admin, NewReservation{Name: "week", Organization: firstOrg, Definition: "small",
		Nodes: 1, Until: c.now().Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	w := c.start("version: v1\nname: w\njobs: {j: {command: [x], class: reserved}}\n")
	c.awaitStatus(w.ID, running)
	before, err := c.engine.Reservation(t.Context(), c.admin, "week")
	if err != nil || len(before.Parts) != 1 {
		t.Fatalf("%+v, %v", before, err)
	}
	c.close()
	c = newCluster(t, st)
	c.join(h)
	awaitNode(t, c, "n1", NodeReady)
	after, err := c.engine.Reservation(t.Context(), c.admin, "week")
	if err != nil || fmt.Sprint(after.Parts) != fmt.Sprint(before.Parts) || after.Running != 1 || after.From != before.From || after.ID != before.ID {
		t.Errorf("%+v\n%+v, %v", before, after, err)
	}
	if j := c.awaitStatus(w.ID, running).Jobs[0]; j.Reservation != "week" || j.Attempt != 1 {
		t.Errorf("%+v", j)
	}
}

// TestReservationOverCrashes: a coordinator that dies at any write of a reservation's beginning or end neither gives its devices
// away nor places its work twice.
func TestReservationOverCrashes(t *testing.T) {
	for cut := 1; cut <= 6; cut++ {
		for apply := range 2 {
			t.Run(fmt.Sprintf("write %d applied %d", cut, apply), func(t *testing.T) {
				t.Parallel()
				st := store.NewMemory()
				c := newCluster(t, st)
				c.set(plainConfig + "scheduler: {preemptionNotice: 1s}\n")
				h := newHost("n1", 4, nil)
				c.join(h)
				awaitNode(t, c, "n1", NodeReady)
				batch := c.awaitStatus(c.start(fills).ID, running)
				if _, _, err := c.engine.CreateReservation(t.Context(), c.admin, NewReservation{Name: "week", Organization: firstOrg, Definition: "small",
					Nodes: 1, From: c.now().Add(time.Hour), Until: c.now().Add(3 * time.Hour)}); err != nil {
					t.Fatal(err)
				}
				st.FailCommit(cut, store.Fault{Apply: apply})
				owner := c.startAnyhow("version: v1\nname: owner\njobs: {d: {command: [x], class: reserved, resource: {cpu: {cores: 3}}}}\n")
				c.ahead.Store(int64(time.Hour + time.Second)) // it begins
				c.awaitStatus(owner, running)
				if j := c.awaitStatus(batch.ID, queued).Jobs[0]; j.Preempted != 1 {
					t.Errorf("the victim: %+v", j)
				}
				v, err := c.engine.Reservation(t.Context(), c.admin, "week")
				if err != nil || len(v.Parts) != 1 || v.Parts[0].Node != "n1" || v.Running != 1 {
					t.Errorf("%+v, %v", v, err)
				}
				st.FailCommit(1, store.Fault{Apply: apply})
				for range 100 { // deleted once, whatever the write came to
					if _, err = c.engine.DeleteReservation(t.Context(), c.admin, "week"); err == nil || coordinator.ErrorKindOf(err) == coordinator.ErrConflict {
						break
					}
					time.Sleep(5 * time.Millisecond)
				}
				if v, err = c.engine.Reservation(t.Context(), c.admin, "week"); err != nil || v.State != ReservationDeleted {
					t.Errorf("%+v, %v", v, err)
				}
				c.awaitStatus(owner, running)
				begun := 0
				for _, ev := range c.clusterEvents() {
					if ev.Kind == "reservation-placed" {
						begun++
					}
				}
				if begun != 1 {
					t.Errorf("it was placed %d times", begun)
				}
				for run, n := range h.begun {
					if n != 1 {
						t.Errorf("%s began %d times", run, n)
					}
				}
			})
		}
	}
}

func (c *cluster) clusterEvents() []Event {
	c.t.Helper()
	var out []Event
	if err := c.engine.Events(c.t.Context(), c.admin, "", 0, false, func(evs []Event) error {
		out = append(out, evs...)
		return nil
	}); err != nil {
		c.t.Fatal(err)
	}
	return slices.DeleteFunc(out, func(ev Event) bool { return ev.Workflow != "" })
}

// TestWorkThatDoesNotCareHowItsGPUsAreJoined: it runs where the links could not be read, and other work waits.
func TestWorkThatDoesNotCareHowItsGPUsAreJoined(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	c.set(plainConfig)
	h := newHost("n1", 4, nil)
	h.more = func(f *hwinfo.Facts) {
		for i := range 2 {
			f.GPUs = append(f.GPUs, hwinfo.GPU{Address: fmt.Sprintf("0000:%02x:00.0", i+1), Vendor: "nvidia", Resource: "nvidia.com/gpu", Driver: true, Index: &i})
		}
	}
	c.join(h)
	awaitNode(t, c, "n1", NodeReady)
	const pair = "version: v1\nname: w\njobs: {j: {command: [x], resource: {devices: {nvidia.com/gpu: 2}%s}}}\n"
	cares := c.start(fmt.Sprintf(pair, ""))
	c.await(cares.ID, "waiting for the links", func(v WorkflowView) bool { r := v.Jobs[0].Reason; return r != nil && r.Code == "hardware-unknown" })
	if _, err := c.engine.CancelWorkflow(t.Context(), c.admin, string(cares.ID), ""); err != nil {
		t.Fatal(err)
	}
	c.awaitStatus(c.start(fmt.Sprintf(pair, ", gpu-topology: any")).ID, running)
}

// TestReservedWorkThatItsDefinitionRefuses: policy and grant hold in a reservation too.
func TestReservedWorkThatItsDefinitionRefuses(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.node("n1", 16, 4)
		s.reserve("spring", 2, 0, time.Hour)
		start := func() error {
			_, err := s.engine.StartWorkflow(t.Context(), s.admin, StartWorkflow{YAML: []byte("version: v1\nname: w\njobs: {j: {" + reserved1 + "}}\n"), File: "w.yaml"})
			return err
		}
		s.set(strings.Replace(plainConfig, "    provisioner: static\n", "    provisioner: static\n    policy: request.job_class != \"reserved\"\n", 1))
		s.pass(time.Second)
		if err := start(); err == nil || !strings.Contains(err.Error(), "definition small of reservation spring is refused by policy: the policy is false: request.job_class") {
			t.Errorf("policy: %v", err)
		}
		s.set(plainConfig)
		s.pass(time.Second)
		if _, err := s.engine.SetGrant(t.Context(), s.admin, firstOrg, nil); err != nil {
			t.Fatal(err)
		}
		if err := start(); err == nil || !strings.Contains(err.Error(), "definition small of reservation spring is refused by grant: ") {
			t.Errorf("grant: %v", err)
		}
		if _, warnings, err := s.engine.CreateReservation(t.Context(), s.admin, NewReservation{Name: "autumn", Organization: firstOrg, Definition: "small", GPUs: 1,
			Until: s.now().Add(time.Hour)}); err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], "does not name small") {
			t.Errorf("a reservation that nobody could use: %v, %v", warnings, err)
		}
	})
}

// TestReservedDevicesByAddress: what is stored names devices by their address, whatever number a later report gives them.
func TestReservedDevicesByAddress(t *testing.T) {
	gpus := func(addresses ...string) *node {
		n := newNode("n1")
		for _, a := range addresses {
			n.detail.gpus = append(n.detail.gpus, sched.GPU{ID: a, Kind: "nvidia.com/gpu"})
		}
		return n
	}
	two := reservedRecord{Node: "n1", Devices: []string{"a", "c"}, Count: 2}
	for name, tt := range map[string]struct {
		node *node
		rec  reservedRecord
		want string
	}{
		"as they were":        {gpus("a", "b", "c"), two, "[0 2] true"},
		"in another order":    {gpus("c", "b", "a"), two, "[0 2] true"},
		"one is gone":         {gpus("b", "c"), two, "[1] true"},
		"all are gone":        {gpus("b"), two, "[] false"},
		"only counted by now": {gpus(), two, "[0 1] true"},
		"counted":             {gpus(), reservedRecord{Node: "n1", Count: 3}, "[0 1 2] true"},
		"a whole node":        {gpus("a"), reservedRecord{Node: "n1"}, "[] true"},
		"a node that is gone": {nil, reservedRecord{Node: "n1"}, "[] false"},
	} {
		s := &state{nodes: map[coordinator.NodeID]*node{}}
		if tt.node != nil {
			s.nodes["n1"] = tt.node
		}
		share, ok := s.reserved(&tt.rec)
		if got := fmt.Sprint(share.Devices, " ", ok); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}
