package engine

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/store"
)

// noticed is a cluster of two nodes in which room on both is held for a gang of two, and two victims have notice.
type noticed struct {
	*cluster
	t              *testing.T
	store          *store.Memory
	hosts          [2]*host
	leave          [2]func()
	victims, taker coordinator.WorkflowID
}

const noticeConfig = "scheduler: {preemptionNotice: 1h, nodeLossWindow: 1s}\n"

func newNoticed(t *testing.T) *noticed {
	n := &noticed{t: t, store: store.NewMemory()}
	n.cluster = newCluster(t, n.store)
	n.set(plainConfig + noticeConfig)
	for i := range n.hosts {
		n.hosts[i] = newHost(fmt.Sprint("n", i), 4, nil)
		n.hosts[i].deaf = true
		n.leave[i] = n.join(n.hosts[i])
		awaitNode(t, n.cluster, fmt.Sprint("n", i), NodeReady)
	}
	n.victims = n.start(`version: v1
name: fills
jobs:
  a: {command: [x], class: batch, retry-on-preempt: true, policy: {restart: on-node-fault}, resource: {cpu: {cores: 4}}}
  b: {command: [x], class: batch, retry-on-preempt: true, policy: {restart: on-node-fault}, resource: {cpu: {cores: 4}}}
`).ID
	n.all(n.victims, coordinator.StatusRunning)
	n.taker = n.start("version: v1\nname: comes\njobs: {d: {command: [x], resource: {cpu: {cores: 3}}, multinode: {nodes: 2}}}\n").ID
	n.all(n.victims, coordinator.StatusPreempting)
	return n
}

func (n *noticed) all(id coordinator.WorkflowID, want coordinator.Status) WorkflowView {
	n.t.Helper()
	return n.await(id, "everything to be "+want.String(), func(v WorkflowView) bool {
		for _, j := range v.Jobs {
			if j.Status != want {
				return false
			}
		}
		return true
	})
}

func (n *noticed) noHold() {
	n.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		left := keysWith(n.cluster, n.store, prefixHold)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			n.t.Fatalf("holds stay: %v", left)
		}
	}
}

// obey has the victims on a host end, as they would when the notice is over.
func (n *noticed) obey(i int) {
	h := n.hosts[i]
	n.leave[i]()
	h.mu.Lock()
	h.deaf = false
	h.mu.Unlock()
	n.leave[i] = n.join(h)
}

func (n *noticed) cancel(id coordinator.WorkflowID, job string) {
	n.t.Helper()
	if _, err := n.engine.CancelWorkflow(n.t.Context(), n.admin, string(id), job); err != nil {
		n.t.Fatal(err)
	}
}

// ofWork is what users do meanwhile.
func ofWork() map[string]func(*noticed) {
	return map[string]func(*noticed){
		"nothing": func(n *noticed) {
			n.obey(0)
			n.obey(1)
			n.all(n.taker, coordinator.StatusRunning)
		},
		"the taker is cancelled": func(n *noticed) {
			n.cancel(n.taker, "")
			n.noHold()
			n.obey(0)
			n.obey(1)
			n.all(n.victims, coordinator.StatusRunning)
		},
		"the taker is cancelled with half of the room": func(n *noticed) {
			n.obey(0)
			n.cancel(n.taker, "")
			n.noHold()
			n.obey(1)
			n.all(n.victims, coordinator.StatusRunning)
		},
		"a victim is cancelled": func(n *noticed) {
			n.cancel(n.victims, "a")
			n.obey(0)
			n.obey(1)
			n.all(n.taker, coordinator.StatusRunning)
			v := n.await(n.victims, "the other to wait", func(v WorkflowView) bool { return v.Jobs[1].Status == coordinator.StatusQueued })
			if v.Jobs[0].Status != coordinator.StatusCancelled {
				n.t.Errorf("the cancelled victim is %v", v.Jobs[0].Status)
			}
		},
	}
}

// ofNodes is what happens to nodes and configuration meanwhile.
func ofNodes() map[string]func(*noticed) {
	return map[string]func(*noticed){
		"a node is lost": func(n *noticed) {
			n.leave[0]()
			awaitNode(n.t, n.cluster, "n0", NodeOffline)
			n.noHold()
			n.obey(1)
			n.obey(0)
			awaitNode(n.t, n.cluster, "n0", NodeReady)
			n.all(n.taker, coordinator.StatusRunning)
		},
		"both nodes are lost": func(n *noticed) {
			n.leave[0]()
			n.leave[1]()
			awaitNode(n.t, n.cluster, "n0", NodeOffline)
			awaitNode(n.t, n.cluster, "n1", NodeOffline)
			n.noHold()
			n.obey(0)
			n.obey(1)
			n.all(n.taker, coordinator.StatusRunning)
		},
		"the definition goes and comes": func(n *noticed) {
			n.set("definitions: [{id: other, provisioner: static, provisionerSpec: {condition: \"true\"}}]\n" + noticeConfig)
			n.noHold()
			n.set(plainConfig + noticeConfig)
			n.obey(0)
			n.obey(1)
			n.all(n.taker, coordinator.StatusRunning)
		},
		"no definition is left": func(n *noticed) {
			n.set("definitions: []\n" + noticeConfig)
			n.noHold()
			n.obey(0)
			n.obey(1)
			n.all(n.victims, coordinator.StatusQueued)
			n.set(plainConfig + noticeConfig)
			n.all(n.taker, coordinator.StatusRunning)
		},
		"a node is drained": func(n *noticed) {
			n.schedule("n0", "drain")
			n.noHold()
			n.obey(0)
			n.obey(1)
			n.await(n.victims, "one victim to go on", func(v WorkflowView) bool {
				return v.Jobs[0].Status == coordinator.StatusRunning || v.Jobs[1].Status == coordinator.StatusRunning
			})
			n.schedule("n0", "uncordon")
			n.all(n.taker, coordinator.StatusRunning)
		},
	}
}

// TestMidNotice: whatever comes between a notice and the start that it is for, the work goes on and nothing stays held.
func TestMidNotice(t *testing.T) {
	tests := ofWork()
	maps.Copy(tests, ofNodes())
	for name, f := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNoticed(t)
			f(n)
			n.noHold()
			for _, h := range n.hosts {
				h.mu.Lock()
				for run, times := range h.begun {
					if times != 1 {
						t.Errorf("run %s began %d times", run, times)
					}
				}
				h.mu.Unlock()
			}
			asked := map[string]int{}
			for _, ev := range n.events(n.victims) {
				if ev.Kind == "preempt-initiated" && ev.Metadata["victim"] != "" {
					asked[ev.Metadata["victim"]]++
				}
			}
			for run, times := range asked {
				if times != 1 || !strings.HasPrefix(run, string(n.victims)) {
					t.Errorf("%s was given notice %d times", run, times)
				}
			}
		})
	}
}

func (n *noticed) schedule(node, action string) {
	n.t.Helper()
	if _, err := n.engine.SetScheduling(context.Background(), n.admin, coordinator.NodeID(node), action, "", false); err != nil {
		n.t.Fatal(err)
	}
}

// TestHoldAwaitsItsNodes: a coordinator that comes back to a promise waits a moment for the nodes of it instead of
// taking them for gone.
func TestHoldAwaitsItsNodes(t *testing.T) {
	n := newNoticed(t)
	n.cluster.close()
	n.leave[0]()
	n.leave[1]()
	n.cluster = newCluster(t, n.store)
	time.Sleep(300 * time.Millisecond)
	if left := keysWith(n.cluster, n.store, prefixHold); len(left) != 1 {
		t.Errorf("before the nodes are back: holds %v", left)
	}
	for i, h := range n.hosts {
		h.mu.Lock()
		h.deaf = false
		h.mu.Unlock()
		n.leave[i] = n.join(h)
	}
	n.all(n.taker, coordinator.StatusRunning)
	for _, ev := range n.events(n.taker) {
		if ev.Kind == "hold-dropped" {
			t.Errorf("%s", ev.Message)
		}
	}
}

// TestRunThatDoesNotEnd: a victim that outlives its kill loses the plan, not its books: who waited goes elsewhere, nothing
// new comes to that node and no second copy of the victim starts, until it has really ended (rule 21).
func TestRunThatDoesNotEnd(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	c.set(plainConfig + "scheduler: {preemptionNotice: 100ms, killTimeout: 1s}\n")
	hosts := map[string]*host{}
	leave := map[string]func(){}
	for _, id := range []string{"n0", "n1"} {
		hosts[id] = newHost(id, 4, nil)
		leave[id] = c.join(hosts[id])
		awaitNode(t, c, id, NodeReady)
	}
	n := &noticed{t: t, cluster: c}
	n.schedule("n1", "cordon")
	hosts["n0"].deaf = true
	victim := c.start("version: v1\nname: fills\njobs: {a: {command: [x], class: batch, retry-on-preempt: true, resource: {cpu: {cores: 4}}}}\n").ID
	n.all(victim, coordinator.StatusRunning)
	taker := c.start(comes).ID
	n.all(victim, coordinator.StatusPreempting)

	awaitNode(t, c, "n0", NodeNotReady)
	v, err := c.engine.Node(t.Context(), c.admin, "n0")
	if err != nil || !strings.Contains(v.Reason, string(victim)+"/a#1") {
		t.Errorf("why is %q, %v", v.Reason, err)
	}
	n.all(taker, coordinator.StatusQueued)
	n.schedule("n1", "uncordon")
	moved := n.all(taker, coordinator.StatusRunning)
	if got := moved.Jobs[0].Nodes; len(got) != 1 || got[0] != "n1" {
		t.Errorf("the taker runs on %v", got)
	}
	if w := n.all(victim, coordinator.StatusPreempting); len(w.Jobs[0].Nodes) != 1 || w.Jobs[0].Nodes[0] != "n0" {
		t.Errorf("the victim is on %v", w.Jobs[0].Nodes)
	}

	leave["n0"]()
	hosts["n0"].mu.Lock()
	hosts["n0"].deaf = false
	hosts["n0"].mu.Unlock()
	leave["n0"] = c.join(hosts["n0"])
	awaitNode(t, c, "n0", NodeReady)
	if again := n.all(victim, coordinator.StatusRunning); again.Jobs[0].Attempt != 2 {
		t.Errorf("attempt %d", again.Jobs[0].Attempt)
	}
}
