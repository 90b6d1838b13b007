// Package yunikorn compares first placements with the core of Apache YuniKorn on the same nodes and requests, in the same
// run. It is a module of its own, so that the product does not depend on what it is measured against.
package yunikorn

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/yunikorn-core/pkg/entrypoint"
	"github.com/apache/yunikorn-core/pkg/log"
	"github.com/apache/yunikorn-scheduler-interface/lib/go/si"

	"substrate/coordinator"
	"substrate/coordinator/sched"
)

// The sizes of YuniKorn's own BenchmarkScheduling: each pod wants one core and ten bytes, and all of them fit.
const pods = 10_000

var nodeCounts = []int{500, 1000, 2000, 5000}

func BenchmarkScheduling(b *testing.B) {
	for _, nodes := range nodeCounts {
		b.Run(fmt.Sprintf("substrate/nodes=%d", nodes), func(b *testing.B) { measure(b, nodes, substrate) })
		b.Run(fmt.Sprintf("yunikorn/nodes=%d", nodes), func(b *testing.B) { measure(b, nodes, yunikorn) })
	}
}

// measure reports placements a second, from the moment at which everything is known to the scheduler.
func measure(b *testing.B, nodes int, place func(*testing.B, int) time.Duration) {
	spent := time.Duration(0)
	for b.Loop() {
		spent += place(b, nodes)
	}
	b.ReportMetric(float64(pods*b.N)/spent.Seconds(), "placements/s")
}

func substrate(b *testing.B, nodes int) time.Duration {
	now := time.Date(2026, 1, 5, 8, 0, 0, 0, time.UTC)
	each := pods/nodes + 1
	s := sched.New()
	s.Configure(sched.Config{}, []sched.Definition{{ID: "pool"}}, nil)
	for i := range nodes {
		s.SetNode(sched.Node{ID: coordinator.NodeID(fmt.Sprintf("node-%d", i)), Definition: "pool",
			Cores: coordinator.Cores(each), Threads: uint32(each), Memory: coordinator.Bytes(10 * each), Schedulable: true})
	}
	start := time.Now()
	for i := range pods { // YuniKorn places while it is still being told, so telling counts here too
		workflow := coordinator.WorkflowID([]string{"app-1", "app-2"}[i*2/pods])
		s.Submit(sched.Request{ID: coordinator.AllocationID(fmt.Sprintf("%s/%d", workflow, i)), Workflow: workflow, Class: coordinator.ClassOnDemand,
			Submitted: now, Order: uint64(i), Nodes: 1, Admissible: []coordinator.DefinitionID{"pool"},
			Resources: coordinator.Resources{Cores: 1, Memory: 10}})
	}
	if got := len(s.Decide(now).Starts); got != pods {
		b.Fatalf("%d of %d placed", got, pods)
	}
	return time.Since(start)
}

// manager is the resource manager that YuniKorn talks to.
type manager struct {
	apps, nodes, allocations atomic.Int64
}

func (m *manager) UpdateAllocation(r *si.AllocationResponse) error {
	m.allocations.Add(int64(len(r.New)))
	return nil
}

func (m *manager) UpdateApplication(r *si.ApplicationResponse) error {
	m.apps.Add(int64(len(r.Accepted)))
	return nil
}

func (m *manager) UpdateNode(r *si.NodeResponse) error {
	m.nodes.Add(int64(len(r.Accepted)))
	return nil
}

func (m *manager) Predicates(*si.PredicatesArgs) error { return nil }
func (m *manager) PreemptionPredicates(*si.PreemptionPredicatesArgs) *si.PreemptionPredicatesResponse {
	return nil
}
func (m *manager) SendEvent([]*si.EventRecord)                                              {}
func (m *manager) UpdateContainerSchedulingState(*si.UpdateContainerSchedulingStateRequest) {}
func (m *manager) GetStateDump() (string, error)                                            { return "{}", nil }

func reach(b *testing.B, n *atomic.Int64, want int64) {
	for end := time.Now().Add(5 * time.Minute); n.Load() < want; time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			b.Fatalf("%d of %d after five minutes", n.Load(), want)
		}
	}
}

const queues = `
partitions:
  - name: default
    queues:
      - name: root
        submitacl: "*"
        queues:
          - {name: a, resources: {guaranteed: {memory: 100000, vcore: 10000}}}
          - {name: b, resources: {guaranteed: {memory: 1000000, vcore: 10000}}}
`

func yunikorn(b *testing.B, nodes int) time.Duration {
	log.UpdateLoggingConfig(map[string]string{"log.level": "FATAL"})
	services := entrypoint.StartAllServices()
	defer services.StopAll()
	rm, m := services.RMProxy, &manager{}
	must := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	_, err := rm.RegisterResourceManager(&si.RegisterResourceManagerRequest{RmID: "rm", PolicyGroup: "group", Version: "1", Config: queues,
		BuildInfo: map[string]string{}, ExtraConfig: map[string]string{"log.level": "FATAL"}}, m)
	must(err)
	apps := []*si.AddApplicationRequest{}
	for i, queue := range []string{"root.a", "root.b"} {
		apps = append(apps, &si.AddApplicationRequest{ApplicationID: fmt.Sprintf("app-%d", i+1), QueueName: queue, PartitionName: "",
			Ugi: &si.UserGroupInformation{User: "user"}})
	}
	must(rm.UpdateApplication(&si.ApplicationRequest{New: apps, RmID: "rm"}))
	reach(b, &m.apps, 2)
	each := int64(pods/nodes + 1)
	infos := make([]*si.NodeInfo, nodes)
	for i := range infos {
		infos[i] = &si.NodeInfo{NodeID: fmt.Sprintf("node-%d", i), Attributes: map[string]string{}, Action: si.NodeInfo_CREATE,
			SchedulableResource: amounts(10*each, each)}
	}
	must(rm.UpdateNode(&si.NodeRequest{RmID: "rm", Nodes: infos}))
	reach(b, &m.nodes, int64(nodes))
	start := time.Now()
	for app := range 2 {
		asks := make([]*si.Allocation, pods/2)
		for i := range asks {
			asks[i] = &si.Allocation{AllocationKey: fmt.Sprintf("alloc-%d-%d", app, i), ApplicationID: fmt.Sprintf("app-%d", app+1), ResourcePerAlloc: amounts(10, 1)}
		}
		must(rm.UpdateAllocation(&si.AllocationRequest{Allocations: asks, RmID: "rm"}))
	}
	reach(b, &m.allocations, pods)
	return time.Since(start)
}

func amounts(memory, cores int64) *si.Resource {
	return &si.Resource{Resources: map[string]*si.Quantity{"memory": {Value: memory}, "vcore": {Value: cores}}}
}
