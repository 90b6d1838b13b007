package engine

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"substrate/coordinator"
	"substrate/coordinator/sched"
	"substrate/coordinator/store"
	"substrate/hwinfo"
)

// linkedGPUs is a node whose GPUs 0 and 2, and 1 and 3, are joined.
func linkedGPUs(f *hwinfo.Facts) {
	for i := range 4 {
		f.GPUs = append(f.GPUs, hwinfo.GPU{Address: fmt.Sprintf("0000:%d0:00.0", i+1), Vendor: "nvidia", Resource: "nvidia.com/gpu",
			Driver: true, Index: &i, LinksKnown: true})
	}
	for _, pair := range [][2]int{{0, 2}, {1, 3}} {
		f.GPULinks = append(f.GPULinks, hwinfo.GPULink{A: f.GPUs[pair[0]].Address, B: f.GPUs[pair[1]].Address, NVLinks: 12})
	}
}

// TestGPUsAreGivenOneByOne: a job is told which GPUs are its own, a pair is a linked one, nobody else gets them, and a
// coordinator that comes back still knows.
func TestGPUsAreGivenOneByOne(t *testing.T) {
	st := store.NewMemory()
	var mu sync.Mutex
	seen := map[string][]string{} // job → its GPU variables
	h := newHost("n1", 16, func(m StartRun) *RunStatus {
		mu.Lock()
		defer mu.Unlock()
		for _, kv := range m.Env {
			if strings.HasPrefix(kv, "CUDA_") || strings.HasPrefix(kv, "SUBSTRATE_GPUS=") {
				seen[m.Job.Name] = append(seen[m.Job.Name], kv)
			}
		}
		return nil
	})
	h.more = linkedGPUs
	c := newCluster(t, st)
	c.set(plainConfig)
	c.join(h)
	awaitNode(t, c, "n1", NodeReady)
	job := func(name string, gpus int) WorkflowView {
		return c.start(fmt.Sprintf("version: v1\nname: w\njobs: {%s: {command: [x], resource: {devices: {nvidia.com/gpu: %d}}}}\n", name, gpus))
	}
	c.awaitStatus(job("single", 1).ID, coordinator.StatusRunning)
	c.awaitStatus(job("pair", 2).ID, coordinator.StatusRunning)
	c.awaitStatus(job("none", 0).ID, coordinator.StatusRunning)
	c.close()
	c = newCluster(t, st.Clone())
	c.join(h)
	awaitNode(t, c, "n1", NodeReady)
	c.awaitStatus(job("last", 1).ID, coordinator.StatusRunning)
	mu.Lock()
	defer mu.Unlock()
	want := map[string][]string{
		"single": {"SUBSTRATE_GPUS=0000:10:00.0", "CUDA_VISIBLE_DEVICES=0", "CUDA_DEVICE_ORDER=PCI_BUS_ID"},
		"pair":   {"SUBSTRATE_GPUS=0000:20:00.0,0000:40:00.0", "CUDA_VISIBLE_DEVICES=1,3", "CUDA_DEVICE_ORDER=PCI_BUS_ID"},
		"none":   {"CUDA_VISIBLE_DEVICES=", "CUDA_DEVICE_ORDER=PCI_BUS_ID"},
		"last":   {"SUBSTRATE_GPUS=0000:30:00.0", "CUDA_VISIBLE_DEVICES=2", "CUDA_DEVICE_ORDER=PCI_BUS_ID"},
	}
	for name, vars := range want {
		if !slices.Equal(seen[name], vars) {
			t.Errorf("job %s saw %q, want %q", name, seen[name], vars)
		}
	}
}

func TestSocketsFromDistances(t *testing.T) {
	four := func(distances ...[]int) []hwinfo.NUMA {
		var out []hwinfo.NUMA
		for i, d := range distances {
			out = append(out, hwinfo.NUMA{ID: 2 * i, CPUs: []int{4 * i, 4*i + 1, 4*i + 2, 4*i + 3}, Distances: d})
		}
		return out
	}
	two, threads, cores := 2, 2, 8
	halves := four([]int{10, 12, 32, 32}, []int{12, 10, 32, 32}, []int{32, 32, 10, 12}, []int{32, 32, 12, 10})
	tests := map[string]struct {
		numa []hwinfo.NUMA
		want []int
	}{
		"two halves":   {halves, []int{0, 0, 1, 1}},
		"crossed":      {four([]int{10, 32, 12, 32}, []int{32, 10, 32, 12}, []int{12, 32, 10, 32}, []int{32, 12, 32, 10}), []int{0, 1, 0, 1}},
		"no distances": {four(nil, nil, nil, nil), []int{-1, -1, -1, -1}},
		"all alike":    {four([]int{10, 20, 20, 20}, []int{20, 10, 20, 20}, []int{20, 20, 10, 20}, []int{20, 20, 20, 10}), []int{-1, -1, -1, -1}},
		"one each":     {halves[:2], []int{0, 1}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			n := 2 * len(tt.numa)
			f := hwinfo.Facts{NUMA: tt.numa, CPU: hwinfo.CPU{Cores: &cores, ThreadsPerCore: &threads, Sockets: &two}}
			f.CPU.Cores = &n
			got := domainsOf(&f)
			sockets := make([]int, len(got))
			for i, d := range got {
				sockets[i] = d.Socket
				if d.Cores != 2 || d.ID != 2*i {
					t.Errorf("domain %+v", d)
				}
			}
			if !slices.Equal(sockets, tt.want) {
				t.Errorf("sockets %v, want %v", sockets, tt.want)
			}
		})
	}
	odd := hwinfo.Facts{NUMA: halves, CPU: hwinfo.CPU{Cores: &two, ThreadsPerCore: &threads, Sockets: &two}}
	if got := domainsOf(&odd); got != nil {
		t.Errorf("domains of a report that does not add up: %v", got)
	}
	if d := detailOf(&hwinfo.Facts{GPUs: []hwinfo.GPU{{Address: "a", Resource: "amd.com/gpu", Driver: true}}}); d.linksKnown || !slices.Equal(d.gpus, []sched.GPU{{ID: "a", Kind: "amd.com/gpu", Domain: -1}}) {
		t.Errorf("detail %+v", d)
	}
}
