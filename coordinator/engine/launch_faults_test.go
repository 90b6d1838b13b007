package engine

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/provision"
	"substrate/coordinator/store"
	"substrate/tests/fakecloud"
)

// TestLateJoiner: the provider says that it could not, and the instance comes up all the same. Nothing runs there, and it is ended.
func TestLateJoiner(t *testing.T) {
	p := newProvider(t)
	var refused atomic.Int32
	var late coordinator.NodeID
	p.joined = func(_ provision.Request, _ string, node coordinator.NodeID, err error) {
		if node == late && err != nil {
			refused.Add(1)
		}
	}
	p.after = func(r provision.Request, _ provision.Instance) error {
		if late == "" {
			late = coordinator.NodeID(r.Boot.Node)
			return provision.Errorf(provision.FaultNoCapacity, "launch "+string(r.ID), "it took too long")
		}
		return nil
	}
	c := newDynamic(t, store.NewMemory(), p, 600, 4)
	w := c.start(pilotJob)
	c.eventually("it is ended", func() bool { return refused.Load() == 1 && len(p.handles()) == 0 })
	c.ahead.Add(int64(4 * time.Minute))
	done := c.awaitStatus(w.ID, coordinator.StatusFinished)
	if nodes := done.Jobs[0].Nodes; len(nodes) != 1 || nodes[0] == late {
		t.Errorf("the job ran on %v; %s came late", nodes, late)
	}
}

// TestNoSpotCapacity: work that may run on spot instances alone waits and says so; where another definition admits it too, that one is launched.
func TestNoSpotCapacity(t *testing.T) {
	t.Parallel()
	l := newLab(t, "c5.large")
	l.hardware["c5.large"] = always(small())
	c := l.start(store.NewMemory(), "definitions:\n"+strings.Replace(ofType("spot", "c5.large", ", spot: true"), "costPerHour: 1", "costPerHour: 0.3", 1)+
		strings.Replace(ofType("demand", "c5.large"), "provisionerSpec", "policy: 'request.job_resource.mem.bytes > 1073741824', provisionerSpec", 1))
	l.cloud.Empty("c5.large", "", fakecloud.Spot, true)
	alone := c.start(asks("cpu: {cores: 1}, memory: {size: 1GiB}"))
	c.waitsFor(alone.ID, "no spot capacity")
	both := c.start(asks("cpu: {cores: 1}, memory: {size: 2GiB}"))
	done := c.awaitStatus(both.ID, coordinator.StatusFinished)
	if n := string(done.Jobs[0].Nodes[0]); !strings.HasPrefix(n, "demand-") {
		t.Errorf("it ran on %s", n)
	}
	if text := c.explainAnyhow(alone.ID); !strings.Contains(text, "no spot capacity") {
		t.Errorf("what only spot admits waits for %q", text)
	}
}

// TestWriteOff: a launch whose provider never says that it is gone is forgotten when an administrator says so, and not before it was given up.
func TestWriteOff(t *testing.T) {
	t.Parallel()
	l := newLab(t, "c5.large")
	l.hardware["c5.large"] = always(small())
	c := l.start(store.NewMemory(), "definitions:\n"+ofType("a", "c5.large"))
	c.awaitStatus(c.start(asks("cpu: {cores: 1}, memory: {size: 1GiB}")).ID, coordinator.StatusFinished)
	var faults []fakecloud.Fault
	for range 2000 {
		faults = append(faults, fakecloud.Fault{Refuse: fakecloud.Denied})
	}
	list, _, err := c.engine.Launches(t.Context(), c.admin, Page{})
	if err != nil || len(list) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	id := list[0].ID
	if err := c.engine.WriteOffLaunch(t.Context(), c.admin, id); list[0].State == "joined" && coordinator.ErrorKindOf(err) != coordinator.ErrConflict {
		t.Errorf("while it is up: %v", err)
	}
	l.cloud.Fail(fakecloud.OpRelease, faults...)
	c.eventually("it is given up and cannot be released", func() bool {
		c.ahead.Add(int64(100 * time.Millisecond))
		list, _, err := c.engine.Launches(t.Context(), c.admin, Page{})
		return err == nil && len(list) == 1 && list[0].State == "releasing" && strings.Contains(list[0].Detail, "as told")
	})
	if err := c.engine.WriteOffLaunch(t.Context(), c.admin, id); err != nil {
		t.Fatal(err)
	}
	if list, _, err := c.engine.Launches(t.Context(), c.admin, Page{}); err != nil || len(list)+len(c.nodes()) != 0 || !c.told("launch-written-off", "nobody here ends it") {
		t.Errorf("left: %v, nodes %v, %v", list, c.nodes(), err)
	}
}
