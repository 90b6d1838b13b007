package engine

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/store"
)

const week = 7 * 24 * time.Hour

// announce makes maintenance of some nodes, or all.
func (c *cluster) announce(from, lasts time.Duration, nodes ...coordinator.NodeID) MaintenanceView {
	c.t.Helper()
	v, _, err := c.engine.AnnounceMaintenance(c.t.Context(), c.admin, NewMaintenance{Nodes: nodes, From: c.now().Add(from), Until: c.now().Add(from + lasts),
		Message: "new switch", Emergency: true})
	if err != nil {
		c.t.Fatal(err)
	}
	return v
}

// history is the status history in short, the oldest first.
func (c *cluster) history() string {
	c.t.Helper()
	list, _, err := c.engine.StatusHistory(c.t.Context(), c.admin, Page{Size: 1000})
	if err != nil {
		c.t.Fatal(err)
	}
	slices.Reverse(list)
	var out []string
	for _, x := range list {
		word := string(x.Kind)
		if x.Emergency {
			word += "!"
		}
		out = append(out, fmt.Sprintf("%d %s %s", x.Number, word, x.Window))
	}
	return strings.Join(out, ", ")
}

// TestMaintenanceDrainsTheCluster: nothing new when it would still run at the beginning; then batch gets notice, others finish; at the end
// the nodes are open again.
func TestMaintenanceDrainsTheCluster(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.configure("preemptionNotice: 60s")
		s.node("n1", 16, 4)
		v, _, err := s.engine.AnnounceMaintenance(t.Context(), s.admin, NewMaintenance{From: time.Now().Add(week), Until: time.Now().Add(week + 4*time.Hour), Message: "new switch"})
		if err != nil || v.Emergency || v.State != "planned" {
			t.Fatalf("%+v, %v", v, err)
		}
		if n, err := s.engine.Node(t.Context(), s.admin, "n1"); err != nil || n.Status != NodeReady || !strings.Contains(n.Reason, "maintenance 1 from ") {
			t.Errorf("%s %q, %v", n.Status, n.Reason, err)
		}
		s.pass(week - 30*time.Minute)
		long := s.job(s.admin, "command: [run, 1m], max-minutes: 40, resource: {devices: {nvidia.com/gpu: 1}}")
		if r := s.is(long, queued).Reason; r == nil || r.Rule != 26 || r.Code != "maintenance-window" {
			t.Errorf("reason %+v", r)
		}
		if v, err := s.engine.CancelMaintenance(t.Context(), s.admin, "1"); err != nil || v.State != "cancelled" {
			t.Fatalf("%+v, %v", v, err)
		}
		s.pass(2 * time.Second)
		s.is(long, running)
		demand := s.job(s.admin, "command: [run, 50m], resource: {devices: {nvidia.com/gpu: 1}}")
		batch := s.job(s.admin, "command: [tidy, 5h, 20s], class: batch, retry-on-preempt: true, resource: {devices: {nvidia.com/gpu: 1}}")
		s.is(demand, running)
		s.is(batch, running)
		if v := s.announce(30*time.Minute, 4*time.Hour, "n1"); !v.Emergency || v.ID != "3" {
			t.Errorf("%+v", v)
		}
		s.pass(30*time.Minute + time.Second)
		s.is(batch, preempting)
		if n, err := s.engine.Node(t.Context(), s.admin, "n1"); err != nil || n.Status != NodeDraining || len(n.Work) != 2 {
			t.Errorf("%s %q %+v, %v", n.Status, n.Reason, n.Work, err)
		}
		if v, err := s.engine.Capacity(t.Context(), s.admin); err != nil || v.Classes[2].FreeGPUs != 0 || v.Definitions[0].Ready != 0 {
			t.Errorf("%+v, %v", v, err)
		}
		s.pass(time.Minute)
		s.is(batch, queued)
		s.is(demand, running)
		s.pass(20 * time.Minute)
		s.is(demand, finished)
		s.is(batch, queued)
		s.pass(4 * time.Hour)
		s.is(batch, running)
		if got, want := s.history(), "1 announced 1, 2 cancelled 1, 3 announced! 3, 4 begun! 3, 5 ended! 3"; got != want {
			t.Errorf("history: %s, want %s", got, want)
		}
	})
}

// TestAnnouncements: what is refused, and as what.
func TestAnnouncements(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.node("n1", 16, 0)
		good := NewMaintenance{From: time.Now().Add(week), Until: time.Now().Add(week + time.Hour), Message: "m"}
		for name, tt := range map[string]struct {
			change func(*NewMaintenance)
			kind   coordinator.ErrorKind
			want   string // "": accepted
		}{
			"a week ahead":       {func(*NewMaintenance) {}, 0, ""},
			"a moment less":      {func(m *NewMaintenance) { m.From = m.From.Add(-time.Minute) }, 0, ""}, // it took a while to write
			"six days ahead":     {func(m *NewMaintenance) { m.From = m.From.Add(-24 * time.Hour) }, coordinator.ErrInvalid, "maintenance is announced 7 days before"},
			"an emergency":       {func(m *NewMaintenance) { m.From, m.Emergency = time.Time{}, true }, 0, ""},
			"no message":         {func(m *NewMaintenance) { m.Message = " " }, coordinator.ErrInvalid, "it has no message"},
			"a long message":     {func(m *NewMaintenance) { m.Message = strings.Repeat("x", 2001) }, coordinator.ErrInvalid, "more than 2000"},
			"no end":             {func(m *NewMaintenance) { m.Until = time.Time{} }, coordinator.ErrInvalid, "it has no end"},
			"ends before":        {func(m *NewMaintenance) { m.Until = m.From }, coordinator.ErrInvalid, "which is not after its beginning"},
			"longer than a year": {func(m *NewMaintenance) { m.Until = m.From.Add(400 * 24 * time.Hour) }, coordinator.ErrInvalid, "longer than a year"},
			"far away":           {func(m *NewMaintenance) { m.From, m.Until = m.From.Add(farthest), m.Until.Add(farthest) }, coordinator.ErrInvalid, "more than ten years"},
			"unknown node":       {func(m *NewMaintenance) { m.Nodes = []coordinator.NodeID{"n2"} }, coordinator.ErrNotFound, `there is no node "n2"`},
			"unknown definition": {func(m *NewMaintenance) { m.Definition = "large" }, coordinator.ErrNotFound, `there is no definition "large"`},
		} {
			in := good
			tt.change(&in)
			v, _, err := s.engine.AnnounceMaintenance(t.Context(), s.admin, in)
			switch {
			case tt.want == "" && (err != nil || v.Emergency != in.Emergency):
				t.Errorf("%s: %+v, %v", name, v, err)
			case tt.want != "" && (err == nil || coordinator.ErrorKindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("%s: %v, want %q", name, err, tt.want)
			}
		}
		good.IdempotencyKey = "k"
		first, _, err := s.engine.AnnounceMaintenance(t.Context(), s.admin, good)
		again, _, err2 := s.engine.AnnounceMaintenance(t.Context(), s.admin, good)
		if err != nil || err2 != nil || first.ID != again.ID {
			t.Errorf("the same key: %v %v, %v %v", first.ID, again.ID, err, err2)
		}
		good.Message = "other"
		if _, _, err := s.engine.AnnounceMaintenance(t.Context(), s.admin, good); coordinator.ErrorKindOf(err) != coordinator.ErrConflict {
			t.Errorf("the same key, another message: %v", err)
		}
	})
}

// TestMaintenanceOfADefinition: nodes that join while it lasts are in it too, those that leave it are not.
func TestMaintenanceOfADefinition(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	c.set("definitions:\n  - {id: a, provisioner: static, provisionerSpec: {condition: cpuinfo.cpu_cores >= 1}}\n  - {id: b, provisioner: static, provisionerSpec: {condition: cpuinfo.cpu_cores >= 1}}\n")
	if _, _, err := c.engine.AnnounceMaintenance(t.Context(), c.admin, NewMaintenance{Definition: "a", Until: c.now().Add(time.Hour), Message: "m", Emergency: true}); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"a", "b"} {
		h := newHost("n"+id, 4, nil)
		h.matches = func(d coordinator.DefinitionID) bool { return string(d) == id }
		c.join(h)
	}
	awaitNode(t, c, "nb", NodeReady)
	awaitNode(t, c, "na", NodeDraining)
	w := c.start("version: v1\nname: w\njobs: {j: {command: [x], resource: {cpu: {cores: 3}}}, k: {command: [x], resource: {cpu: {cores: 3}}}}\n")
	v := c.await(w.ID, "half running", func(v WorkflowView) bool { return v.Counts[running] == 1 })
	time.Sleep(100 * time.Millisecond)
	v = c.await(w.ID, "half running", func(v WorkflowView) bool { return v.Counts[running] == 1 })
	for _, j := range v.Jobs {
		if j.Status == running && j.Nodes[0] != "nb" {
			t.Errorf("it runs on %v", j.Nodes)
		}
	}
}

// TestMaintenanceOverCrashes: a coordinator that dies at any write of a window's beginning tells of it once, gives notice once, and opens
// the nodes again.
func TestMaintenanceOverCrashes(t *testing.T) {
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
				c.announce(time.Hour, time.Hour)
				st.FailCommit(cut, store.Fault{Apply: apply})
				c.ahead.Store(int64(time.Hour + time.Second)) // it begins
				waits := c.startAnyhow("version: v1\nname: waits\njobs: {j: {command: [x]}}\n")
				if j := c.awaitStatus(batch.ID, queued).Jobs[0]; j.Preempted != 1 {
					t.Errorf("the victim: %+v", j)
				}
				c.awaitStatus(waits, queued)
				c.ahead.Store(int64(2*time.Hour + 2*time.Second)) // it ends
				c.awaitStatus(waits, running)
				if got, want := c.history(), "1 announced! 1, 2 begun! 1, 3 ended! 1"; got != want {
					t.Errorf("history: %s, want %s", got, want)
				}
				told := 0
				for _, ev := range c.events(batch.ID) {
					if ev.Kind == "preempt-initiated" {
						told++
					}
				}
				if told != 1 {
					t.Errorf("%d notices", told)
				}
			})
		}
	}
}

// TestAnnouncedOnceOverCrashes: an announcement is there with its line in the history, or not at all.
func TestAnnouncedOnceOverCrashes(t *testing.T) {
	for apply := range 3 {
		st := store.NewMemory()
		c := newCluster(t, st)
		c.set(plainConfig)
		st.FailCommit(1, store.Fault{Apply: apply})
		in := NewMaintenance{From: c.now().Add(week), Until: c.now().Add(week + time.Hour), Message: "m", IdempotencyKey: "k"}
		for range 100 {
			if _, _, err := c.engine.AnnounceMaintenance(t.Context(), c.admin, in); err == nil {
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
		if got := c.history(); got != "1 announced 1" {
			t.Errorf("%d groups written: %s", apply, got)
		}
		list, _, err := c.engine.Maintenance(t.Context(), c.admin, true, Page{})
		if err != nil || len(list) != 1 {
			t.Errorf("%+v, %v", list, err)
		}
	}
}

// TestCalendarExpires: what is over is archived and forgotten after retention.events, and numbers go on.
func TestCalendarExpires(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		dir := t.TempDir()
		s.set(plainConfig + "retention: {events: 30d, archive: " + dir + "}\n")
		s.node("n1", 4, 0)
		if _, _, err := s.engine.CreateReservation(t.Context(), s.admin, NewReservation{Name: "old", Organization: firstOrg, Definition: "small", Nodes: 1, Until: time.Now().Add(time.Hour)}); err != nil {
			t.Fatal(err)
		}
		s.announce(0, time.Hour)
		s.pass(31 * 24 * time.Hour)
		s.announce(week, time.Hour)
		if err := s.engine.sweepOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := s.history(); got != "4 announced 4" {
			t.Errorf("history: %s", got)
		}
		if list, _, err := s.engine.Reservations(t.Context(), s.admin, "", true, Page{}); err != nil || len(list) != 0 {
			t.Errorf("%+v, %v", list, err)
		}
		if list, _, err := s.engine.Maintenance(t.Context(), s.admin, true, Page{}); err != nil || len(list) != 1 || list[0].ID != "4" {
			t.Errorf("%+v, %v", list, err)
		}
		lines := archivedLines(t, dir, "calendar")
		for _, want := range []string{`"id":"reservation/`, `"id":"maintenance/1"`, `"id":"status-history/00000000000000000001"`, `"id":"status-history/00000000000000000003"`} {
			if !strings.Contains(lines, want) {
				t.Errorf("the archive lacks %s:\n%s", want, lines)
			}
		}
	})
}

// TestActiveDrain: batch work gets notice and comes back by its policies, restartable work is moved, the rest stays and tells until when.
func TestActiveDrain(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.configure("preemptionNotice: 60s, killTimeout: 10s")
		s.node("n1", 16, 0)
		returns := s.job(s.admin, "command: [tidy, 5h, 20s], class: batch, retry-on-preempt: true")
		ends := s.job(s.admin, "command: [tidy, 5h, 20s], class: batch")
		moves := s.job(s.admin, "command: [tidy, 5h, 20s], class: batch, policy: {restart: on-node-fault}")
		goes := s.job(s.admin, "command: [tidy, 5h, 2s], policy: {restart: on-node-fault}")
		stays := s.job(s.admin, "command: [run, 20m], max-minutes: 30")
		began := s.is(stays, running).Started
		v, err := s.engine.SetScheduling(t.Context(), s.admin, "n1", "drain", "disk", true)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range v.Work {
			if w.Run == firstRun(stays) && (!w.EndsBy.Equal(began.Add(30*time.Minute)) || w.Class != coordinator.ClassOnDemand) {
				t.Errorf("%+v", w)
			}
		}
		s.pass(2 * time.Second)
		for _, id := range []coordinator.WorkflowID{returns, ends, moves} {
			s.is(id, preempting)
		}
		s.pass(3 * time.Second)
		s.is(goes, queued)
		s.pass(20 * time.Second)
		s.is(returns, queued)
		s.is(moves, queued)
		s.is(ends, preempted)
		s.is(stays, running)
		s.pass(20 * time.Minute)
		s.is(stays, finished)
		if v, err := s.engine.Node(t.Context(), s.admin, "n1"); err != nil || len(v.Work) != 0 {
			t.Errorf("%+v, %v", v.Work, err)
		}
		if _, err := s.engine.SetScheduling(t.Context(), s.admin, "n1", "uncordon", "", false); err != nil {
			t.Fatal(err)
		}
		s.pass(2 * time.Second)
		for _, id := range []coordinator.WorkflowID{returns, moves, goes} {
			s.is(id, running)
		}
	})
}

func firstRun(id coordinator.WorkflowID) coordinator.RunID { return coordinator.RunID(id + "/j#1") }

// TestNoSecondCopyAfterADrain: a node that is opened again while work on it is still told to leave starts no second copy of it.
func TestNoSecondCopyAfterADrain(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.configure("preemptionNotice: 60s")
		s.node("n1", 16, 0)
		j := s.job(s.admin, "command: [ignore, 5h], class: batch, retry-on-preempt: true")
		s.is(j, running)
		for _, action := range []string{"drain", "uncordon", "drain", "uncordon"} {
			if _, err := s.engine.SetScheduling(t.Context(), s.admin, "n1", action, "", true); err != nil {
				t.Fatal(err)
			}
			s.pass(5 * time.Second)
			if v := s.is(j, preempting); v.Attempt != 1 {
				t.Errorf("attempt %d while the first may live", v.Attempt)
			}
		}
		s.pass(45 * time.Second)
		v := s.is(j, running)
		first, second := s.process(j, "j", 1), s.process(j, "j", 2)
		if v.Attempt != 2 || first.ended.IsZero() || second.status.Started.Before(first.ended) {
			t.Errorf("attempt %d; the first ended %s, the second began %s", v.Attempt, first.ended, second.status.Started)
		}
	})
}

// archivedLines is all that an archive has of a kind.
func archivedLines(t *testing.T, dir, kind string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, kind+"-*.jsonl"))
	if err != nil || len(files) == 0 {
		t.Fatalf("archive files %v, %v", files, err)
	}
	var out strings.Builder
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(data)
	}
	return out.String()
}
