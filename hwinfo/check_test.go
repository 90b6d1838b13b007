package hwinfo

import (
	"math"
	"testing"
)

// TestCheckHoldsForAnyFiles: one absurd number loses that number; the coordinator must not refuse the rest for it.
func TestCheckHoldsForAnyFiles(t *testing.T) {
	root := t.TempDir()
	gpu := pciDir + "/0000:01:00.0/"
	for name, text := range map[string]string{
		"proc/cpuinfo":                              "processor\t: 0\nvendor_id\t: X\ncpu family\t: 2147483647\nmodel\t\t: -3\nphysical id\t: 0\ncore id\t\t: 0\n",
		"proc/meminfo":                              "MemTotal: 18014398509481983 kB\nHugePages_Total: 18446744073709551615\nHugepagesize: 2048 kB\n",
		nodeDir + "/node7/cpulist":                  "0\n",
		nodeDir + "/node7/distance":                 "255\n",
		nodeDir + "/node7/meminfo":                  "Node 7 MemTotal: 18014398509481983 kB\n",
		cpuDir + "cpufreq/policy0/cpuinfo_max_freq": "4294967295\n",
		gpu + "modalias":                            "pci:v000010DEd00002330sv00000000sd00000000bc03sc02i00\n",
		gpu + "numa_node":                           "2147483647\n",
		probeDir + "/" + AnswerNVML:                 `{"version":1,"gpus":[{"index":0,"address":"00000000:01:00.0","memory_bytes":18446744073709551615}]}`,
	} {
		put(t, root, name, []byte(text))
	}
	f, w := Read(root)
	if err := f.Check(); err != nil {
		t.Errorf("%v: %s", err, asJSON(t, f))
	}
	if f.Memory.Total != nil || f.NUMA[0].Memory != nil || len(f.GPUs) != 1 || f.GPUs[0].Memory != nil || deref(f.CPU.Cores) != 1 {
		t.Errorf("got %s, %v", asJSON(t, f), w)
	}
}

func TestCheck(t *testing.T) {
	for name, f := range map[string]Facts{
		"a clock that is no number": {CPU: CPU{MHzMax: ptr(math.NaN())}},
		"an endless limit":          {Limits: Limits{CPUs: ptr(math.Inf(1))}},
		"too much memory":           {Memory: Memory{Usable: ptr(uint64(maxBytes + 1))}},
		"nodes out of order":        {NUMA: []NUMA{{ID: 1}, {ID: 0}}},
		"a negative index":          {GPUs: []GPU{{Address: "a", Index: ptr(-1)}}},
		"a negative node":           {GPUs: []GPU{{Address: "a", NUMANode: ptr(-1)}}},
		"fewer links than none":     {GPULinks: []GPULink{{XGMI: -1}}},
	} {
		if f.Check() == nil {
			t.Errorf("%s passes", name)
		}
	}
	if err := (&Facts{}).Check(); err != nil {
		t.Errorf("nothing known: %v", err)
	}
}
