package inventory

import (
	"slices"
	"testing"

	"substrate/coordinator"
	"substrate/hwinfo"
)

func ptr[T any](v T) *T { return &v }

func TestCapacity(t *testing.T) {
	gpu := hwinfo.GPU{Resource: "nvidia.com/gpu", Driver: true, Model: "H100"}
	dark := hwinfo.GPU{Resource: "nvidia.com/gpu"}
	split := hwinfo.GPU{Resource: "nvidia.com/gpu", Driver: true, Model: "H100", Split: &hwinfo.GPUSplit{Mode: "mig", Instances: 7}}
	tests := map[string]struct {
		facts hwinfo.Facts
		want  coordinator.Hardware
		ok    bool
	}{
		"nothing known": {hwinfo.Facts{}, coordinator.Hardware{}, false},
		"cores without memory": {
			hwinfo.Facts{CPU: hwinfo.CPU{Cores: ptr(4)}}, coordinator.Hardware{}, false},
		"plain": {
			hwinfo.Facts{CPU: hwinfo.CPU{Cores: ptr(4), LogicalCPUs: ptr(8), Sockets: ptr(1)}, Memory: hwinfo.Memory{Total: ptr(uint64(100))}},
			coordinator.Hardware{Cores: 4, Threads: 8, Sockets: 1, Memory: 100}, true},
		"coherent GPU memory is left out": {
			hwinfo.Facts{CPU: hwinfo.CPU{Cores: ptr(72)}, Memory: hwinfo.Memory{Total: ptr(uint64(358162944)), Host: ptr(uint64(263791104))}},
			coordinator.Hardware{Cores: 72, Threads: 72, Memory: 263791104}, true},
		"huge pages are not memory for jobs": {
			hwinfo.Facts{CPU: hwinfo.CPU{Cores: ptr(2)}, Memory: hwinfo.Memory{Total: ptr(uint64(264110532 << 10)), Usable: ptr(uint64(251527620 << 10))}},
			coordinator.Hardware{Cores: 2, Threads: 2, Memory: 251527620 << 10}, true},
		"nor on a coherent platform": {
			hwinfo.Facts{CPU: hwinfo.CPU{Cores: ptr(2)}, Memory: hwinfo.Memory{Total: ptr(uint64(100)), Host: ptr(uint64(60)), Usable: ptr(uint64(90))}},
			coordinator.Hardware{Cores: 2, Threads: 2, Memory: 50}, true},
		"a split GPU is not offered": {
			hwinfo.Facts{CPU: hwinfo.CPU{Cores: ptr(1)}, Memory: hwinfo.Memory{Total: ptr(uint64(1))}, GPUs: []hwinfo.GPU{gpu, split, gpu}},
			coordinator.Hardware{Cores: 1, Threads: 1, Memory: 1, Devices: map[string]uint32{"nvidia.com/gpu": 2}}, true},
		"a GPU without a driver is not offered": {
			hwinfo.Facts{CPU: hwinfo.CPU{Cores: ptr(1)}, Memory: hwinfo.Memory{Total: ptr(uint64(1))}, GPUs: []hwinfo.GPU{gpu, dark, gpu}},
			coordinator.Hardware{Cores: 1, Threads: 1, Memory: 1, Devices: map[string]uint32{"nvidia.com/gpu": 2}}, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, ok := Capacity(tt.facts)
			if ok != tt.ok || got.Cores != tt.want.Cores || got.Threads != tt.want.Threads ||
				got.Memory != tt.want.Memory || got.Devices["nvidia.com/gpu"] != tt.want.Devices["nvidia.com/gpu"] {
				t.Errorf("got %+v %v, want %+v %v", got, ok, tt.want, tt.ok)
			}
		})
	}
}

func TestAssignFirstInFileOrderWins(t *testing.T) {
	order := []coordinator.DefinitionID{"a", "b", "c"}
	def, conflicts := Assign(order, map[coordinator.DefinitionID]bool{"b": true, "c": true, "zz": true})
	if def != "b" || !slices.Equal(conflicts, []coordinator.DefinitionID{"c"}) {
		t.Errorf("got %q with conflicts %v", def, conflicts)
	}
	if def, conflicts = Assign(order, nil); def != "" || conflicts != nil {
		t.Errorf("nothing matched, got %q %v", def, conflicts)
	}
}

func TestAnnotationsOfMixedModelsAreLeftOut(t *testing.T) {
	a := hwinfo.GPU{Resource: "nvidia.com/gpu", Model: "A100"}
	b := hwinfo.GPU{Resource: "nvidia.com/gpu", Model: "H100"}
	if got := Annotations(hwinfo.Facts{GPUs: []hwinfo.GPU{a, a}}); got["nvidia.com/gpu.model"] != "A100" {
		t.Errorf("got %v", got)
	}
	if got := Annotations(hwinfo.Facts{GPUs: []hwinfo.GPU{a, b, a}}); len(got) != 0 {
		t.Errorf("mixed models gave %v", got)
	}
}

func TestDrift(t *testing.T) {
	facts := func(cores int, memory uint64, gpus int) hwinfo.Facts {
		f := hwinfo.Facts{CPU: hwinfo.CPU{Cores: &cores}, Memory: hwinfo.Memory{Total: &memory}}
		for range gpus {
			f.GPUs = append(f.GPUs, hwinfo.GPU{Resource: "nvidia.com/gpu", Model: "H100", Driver: true})
		}
		return f
	}
	base := facts(32, 100<<30, 2)
	dark := facts(32, 100<<30, 2)
	dark.GPUs[1].Driver = false
	for name, tt := range map[string]struct {
		got  hwinfo.Facts
		want string
	}{
		"same":                         {base, ""},
		"memory within 2 %":            {facts(32, 99<<30, 2), ""},
		"memory beyond 2 %":            {facts(32, 97<<30, 2), "memory: 104152956928 bytes, expected 107374182400 bytes"},
		"a core is missing":            {facts(31, 100<<30, 2), "topology: ? sockets, 31 cores, ? CPUs, expected ? sockets, 32 cores, ? CPUs"},
		"a GPU is missing":             {facts(32, 100<<30, 1), "gpus: 1 × nvidia.com/gpu H100, expected 2 × nvidia.com/gpu H100"},
		"a driver is missing":          {dark, "gpus without a driver: 1 × nvidia.com/gpu H100, expected none"},
		"more than one thing":          {facts(31, 97<<30, 2), "topology: ? sockets, 31 cores, ? CPUs, expected ? sockets, 32 cores, ? CPUs; memory: 104152956928 bytes, expected 107374182400 bytes"},
		"memory is not known any more": {func() hwinfo.Facts { f := facts(32, 0, 2); f.Memory.Total = nil; return f }(), "memory: unknown, expected 107374182400 bytes"},
	} {
		if got := Drift(base, tt.got); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

func FuzzDecodeFacts(f *testing.F) {
	f.Add([]byte(`{"cpu":{"cpu_cores":4},"memory":{"total_bytes":1}}`))
	f.Add([]byte(`{"gpus":[{}]}`))
	f.Add([]byte(`{"cpu":{"cpu_cores":4294967296},"memory":{"total_bytes":1}}`))
	f.Add([]byte(`{"cpu":{"cpu_cores":4,"logical_cpus":4294967296},"memory":{"total_bytes":9,"host_bytes":5,"usable_bytes":2}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		facts, err := DecodeFacts(data)
		if err != nil {
			return
		}
		if hw, ok := Capacity(facts); ok && (hw.Cores == 0 || hw.Threads == 0 || hw.Memory == 0 || uint64(hw.Memory) > *facts.Memory.Total) {
			t.Errorf("capacity promised without cores or memory, or more than there is: %+v", hw)
		}
		Annotations(facts)
		Drift(facts, hwinfo.Facts{})
		hwinfo.Fingerprint(facts)
	})
}
