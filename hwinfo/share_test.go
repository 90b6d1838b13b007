package hwinfo

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func environment(lines string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for line := range strings.FieldsSeq(lines) {
			if key, value, ok := strings.Cut(line, "="); ok && key == name {
				return value, true
			}
		}
		return "", false
	}
}

func TestShareOf(t *testing.T) {
	for name, tt := range map[string]struct {
		env  string
		want Share
	}{
		"nothing":                                      {"", Share{}},
		"slurm, devices are constrained":               {"SLURM_JOB_ID=7 SLURM_JOB_GPUS=2,3 CUDA_VISIBLE_DEVICES=0,1 GPU_DEVICE_ORDINAL=0,1", Share{[]int{2, 3}, true}},
		"slurm, devices are not constrained":           {"SLURM_JOB_ID=7 SLURM_JOB_GPUS=2,3 CUDA_VISIBLE_DEVICES=2,3 GPU_DEVICE_ORDINAL=2,3", Share{[]int{2, 3}, false}},
		"slurm, the first two":                         {"SLURM_JOB_ID=7 SLURM_JOB_GPUS=0,1 CUDA_VISIBLE_DEVICES=0,1", Share{[]int{0, 1}, false}},
		"slurm, a step on another node":                {"SLURM_JOB_ID=7 SLURM_JOB_GPUS=2,3 SLURM_STEP_ID=0 SLURM_STEP_GPUS=4,5 CUDA_VISIBLE_DEVICES=4,5", Share{[]int{4, 5}, false}},
		"slurm, a step that is not told":               {"SLURM_JOB_ID=7 SLURM_JOB_GPUS=2,3 SLURM_STEP_ID=0", Share{}},
		"slurm before 21, a job without GPUs":          {"SLURM_JOB_ID=7 CUDA_VISIBLE_DEVICES=NoDevFiles", Share{GPUs: []int{}}},
		"slurm, out of order":                          {"SLURM_JOB_GPUS=3,1", Share{GPUs: []int{1, 3}}},
		"slurm on AMD":                                 {"SLURM_JOB_GPUS=4,5 ROCR_VISIBLE_DEVICES=0,1", Share{[]int{4, 5}, true}},
		"pbs with its hook for control groups, names":  {"PBS_JOBID=9.vm CUDA_VISIBLE_DEVICES=GPU-0c2b1f6e-0000-0000-0000-000000000000", Share{}},
		"pbs with its hook for control groups, number": {"PBS_JOBID=9.vm CUDA_VISIBLE_DEVICES=1", Share{GPUs: []int{1}}},
		"twice the same":                               {"SLURM_JOB_GPUS=1,1", Share{}},
		"slices of a GPU":                              {"CUDA_VISIBLE_DEVICES=MIG-1/2/0", Share{}},
	} {
		if got := ShareOf(environment(tt.env)); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
	}
}

// box is a machine with two sockets of 8 cores with two threads each, and GPUs 0 to 3, two at each socket.
func box(indexes ...int) Facts {
	cores, logical, threads, sockets, nodes := 16, 32, 2, 2, 2
	f := Facts{CPU: CPU{Cores: &cores, LogicalCPUs: &logical, ThreadsPerCore: &threads, Sockets: &sockets, NUMANodes: &nodes}}
	for node := range 2 {
		n := NUMA{ID: node, Distances: []int{10, 21}}
		if node == 1 {
			n.Distances = []int{21, 10}
		}
		for c := range 8 {
			n.CPUs = append(n.CPUs, node*8+c, 16+node*8+c)
		}
		slices.Sort(n.CPUs)
		f.NUMA = append(f.NUMA, n)
	}
	for i := range 4 {
		g := GPU{Address: fmt.Sprintf("0000:%d0:00.0", i+1), Vendor: "nvidia", Resource: "nvidia.com/gpu", Driver: true, NUMANode: ptr(i / 2)}
		if at := slices.Index(indexes, i); at >= 0 {
			g.Index = ptr(at)
		}
		f.GPUs = append(f.GPUs, g)
	}
	f.GPULinks = []GPULink{{A: "0000:10:00.0", B: "0000:20:00.0", NVLinks: 4}, {A: "0000:20:00.0", B: "0000:30:00.0", NVLinks: 4}, {A: "0000:30:00.0", B: "0000:40:00.0", NVLinks: 4}}
	return f
}

// TestWithinGPUs: the numbers in each case are those that the driver's tools give in the job; a hidden GPU has none.
func TestWithinGPUs(t *testing.T) {
	for name, tt := range map[string]struct {
		visible []int // to the driver's tools, in their order
		env     string
		want    string
		links   int
		warned  bool
	}{
		"constrained":                        {[]int{2, 3}, "SLURM_JOB_GPUS=2,3 CUDA_VISIBLE_DEVICES=0,1", "30=0 40=1", 1, false},
		"constrained, without a word of it":  {[]int{1}, "CUDA_VISIBLE_DEVICES=GPU-5b", "20=0", 0, false},
		"not constrained":                    {[]int{0, 1, 2, 3}, "SLURM_JOB_GPUS=1,3 CUDA_VISIBLE_DEVICES=1,3", "20=1 40=3", 0, false},
		"all of them":                        {[]int{0, 1, 2, 3}, "SLURM_JOB_GPUS=0,1,2,3", "10=0 20=1 30=2 40=3", 3, false},
		"none of them":                       {[]int{0, 1, 2, 3}, "CUDA_VISIBLE_DEVICES=NoDevFiles", "", 0, false},
		"not told":                           {[]int{0, 1, 2, 3}, "", "10=0 20=1 30=2 40=3", 3, false},
		"nobody numbers them":                {nil, "SLURM_JOB_GPUS=1,3", "10 20 30 40", 3, true},
		"nobody numbers them, all are given": {nil, "SLURM_JOB_GPUS=0,1,2,3", "10 20 30 40", 3, false},
		"a number that is none":              {[]int{0, 1, 2, 3}, "SLURM_JOB_GPUS=1,7", "10=0 20=1 30=2 40=3", 3, true},
		"the tools see others":               {[]int{0, 1, 2}, "SLURM_JOB_GPUS=2,3 CUDA_VISIBLE_DEVICES=0,1", "10=0 20=1 30=2 40", 3, true},
	} {
		before := box(tt.visible...)
		f, warnings := before.Within(ShareOf(environment(tt.env)))
		var got []string
		for _, g := range f.GPUs {
			one := g.Address[5:7]
			if g.Index != nil {
				one += fmt.Sprintf("=%d", *g.Index)
			}
			got = append(got, one)
		}
		if s := strings.Join(got, " "); s != tt.want || len(f.GPULinks) != tt.links || (len(warnings) > 0) != tt.warned {
			t.Errorf("%s: GPUs %s with %d links, warnings %v; want %s with %d, %v", name, s, len(f.GPULinks), warnings, tt.want, tt.links, tt.warned)
		}
		if !reflect.DeepEqual(before, box(tt.visible...)) {
			t.Errorf("%s: the facts that were given have changed", name)
		}
	}
}

func TestWithinCPUs(t *testing.T) {
	for name, tt := range map[string]struct {
		set   []int
		want  string
		cores int
	}{
		"everything":             {nil, "0:16[10 21] 1:16[21 10]", 16},
		"a socket":               {[]int{8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31}, "1:16[10]", 8},
		"two cores of each":      {[]int{0, 1, 8, 9, 16, 17, 24, 25}, "0:4[10 21] 1:4[21 10]", 4},
		"a thread is not a core": {[]int{3}, "0:16[10 21] 1:16[21 10]", 16},
	} {
		f := box()
		f.Limits.CPUSet = tt.set
		f, _ = f.Within(Share{})
		var got []string
		for _, n := range f.NUMA {
			got = append(got, fmt.Sprintf("%d:%d%v", n.ID, len(n.CPUs), n.Distances))
		}
		if s := strings.Join(got, " "); s != tt.want || *f.CPU.Cores != tt.cores {
			t.Errorf("%s: %s with %d cores, want %s with %d", name, s, *f.CPU.Cores, tt.want, tt.cores)
		}
	}
}

// TestWithinIsAPart: whatever the environment and the control group say, what comes out is a part of the machine, and a report that is accepted.
func TestWithinIsAPart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := box(rapid.SliceOfNDistinct(rapid.IntRange(0, 3), 0, 4, rapid.ID[int]).Draw(t, "visible")...)
		f.Limits.CPUSet = rapid.SliceOfNDistinct(rapid.IntRange(0, 31), 0, 31, rapid.ID[int]).Draw(t, "set")
		slices.Sort(f.Limits.CPUSet)
		text := rapid.StringMatching(`[0-9]?(,[0-9]){0,3}|GPU-[a-f]|NoDevFiles|[ ,-]*`)
		lookup := func(name string) (string, bool) { return text.Draw(t, name), rapid.Bool().Draw(t, "has "+name) }
		part, _ := f.Within(ShareOf(lookup))
		if err := part.Check(); err != nil {
			t.Fatal(err)
		}
		for _, g := range part.GPUs {
			if !slices.ContainsFunc(f.GPUs, func(o GPU) bool { return reflect.DeepEqual(o, g) }) {
				t.Fatalf("GPU %+v is not the machine's", g)
			}
		}
		if *part.CPU.Cores > *f.CPU.Cores || *part.CPU.Cores < 1 {
			t.Fatalf("%d cores", *part.CPU.Cores)
		}
		for _, n := range part.NUMA {
			if len(n.Distances) != len(part.NUMA) {
				t.Fatalf("node %d has distances %v to %d nodes", n.ID, n.Distances, len(part.NUMA))
			}
		}
	})
}
