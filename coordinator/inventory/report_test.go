package inventory

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func many(item func(i int) string, n int) string {
	parts := make([]string, n)
	for i := range parts {
		parts[i] = item(i)
	}
	return strings.Join(parts, ",")
}

// TestHostileReport: what no machine is, is refused with the reason and soon, whoever says it.
func TestHostileReport(t *testing.T) {
	tests := map[string]struct{ report, want string }{
		"too long":                            {`{"hostname":"` + strings.Repeat("x", MaxFacts) + `"}`, "at most 1048576"},
		"deep":                                {`{"cpu":` + strings.Repeat(`{"cpu":`, 100_000), "depth"},
		"deep in what nobody reads":           {`{"x":` + strings.Repeat("[", 500_000), "depth"},
		"not a number":                        {`{"cpu":{"cpu_mhz_max":NaN}}`, "invalid character"},
		"beyond a float":                      {`{"cpu":{"cpu_mhz_max":1e999}}`, "1e999"},
		"a list for a number":                 {`{"cpu":{"cpu_cores":[4]}}`, "array"},
		"half a core":                         {`{"cpu":{"cpu_cores":4.5}}`, "4.5"},
		"negative cores":                      {`{"cpu":{"cpu_cores":-5}}`, "cpu.cpu_cores is -5"},
		"no cores":                            {`{"cpu":{"cpu_cores":0}}`, "cpu.cpu_cores is 0"},
		"cores beyond their type":             {`{"cpu":{"cpu_cores":4294967297},"memory":{"total_bytes":1}}`, "cpu.cpu_cores is 4294967297"},
		"threads beyond their type":           {`{"cpu":{"cpu_cores":4,"logical_cpus":4294967296}}`, "cpu.logical_cpus"},
		"negative sockets":                    {`{"cpu":{"sockets":-1}}`, "cpu.sockets is -1"},
		"negative speed":                      {`{"cpu":{"cpu_mhz_max":-1}}`, "cpu.cpu_mhz_max is -1"},
		"negative memory":                     {`{"memory":{"total_bytes":-1}}`, "-1"},
		"all of memory":                       {`{"memory":{"total_bytes":18446744073709551615}}`, "memory.total_bytes"},
		"a second value wins, and is checked": {`{"cpu":{"cpu_cores":4},"cpu":{"cpu_cores":-4}}`, "cpu.cpu_cores is -4"},
		"many GPUs":                           {`{"gpus":[` + many(func(i int) string { return fmt.Sprintf(`{"address":"%d","driver":true,"resource":"r%d"}`, i, i) }, 10_000) + `]}`, "gpus has 10000"},
		"one GPU twice":                       {`{"gpus":[{"address":"a"},{"address":"a"}]}`, `gpus[1].address`},
		"many links":                          {`{"gpus":[{"address":"a"}],"gpu_links":[` + many(func(int) string { return `{}` }, 300_000) + `]}`, "gpu_links"},
		"many NUMA nodes":                     {`{"numa":[` + many(func(i int) string { return fmt.Sprintf(`{"id":%d,"cpus":[%d]}`, i, i) }, 20_000) + `]}`, "numa has 20000"},
		"a NUMA node twice":                   {`{"numa":[{"id":3},{"id":3}]}`, "numa[1].id is 3"},
		"a far NUMA node":                     {`{"numa":[{"id":0,"distances":[4000000]}]}`, "numa.distances is 4000000"},
		"less than no parts":                  {`{"gpus":[{"address":"a","split":{"mode":"mig","instances":-7}}]}`, "instances is -7"},
		"many functions":                      {`{"pci":[` + many(func(int) string { return `{}` }, 100_000) + `]}`, "pci has 100000"},
		"many words":                          {`{"cpu":{"flags":[` + many(func(int) string { return `"a"` }, 100_000) + `]}}`, "cpu.flags"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			f, err := DecodeFacts([]byte(tt.report))
			if err == nil || !strings.Contains(err.Error(), tt.want) || len(err.Error()) > 300 {
				t.Errorf("got %.400v, want %q", err, tt.want)
			}
			if f.CPU.Cores != nil || f.GPUs != nil || f.NUMA != nil {
				t.Errorf("a refused report left %+v", f)
			}
			if d := time.Since(start); d > time.Minute {
				t.Errorf("it took %s", d)
			}
		})
	}
}

// TestReportedTextIsFitToShow: a node's words do not steer a terminal, and are valid text on every wire.
func TestReportedTextIsFitToShow(t *testing.T) {
	report := "{\"hostname\":\"a\\u001b[31m\\u0000b\",\"cpu\":{\"model_name\":\"\xff\xfeX\\n\\u009bY  \",\"flags\":[\"\\u0007f\"]}," +
		`"pci":[{"address":"0000:01:00.0","interfaces":["e\u001b0"]}],"gpus":[{"address":"x","split":{"mode":"m\u001bg","instances":1,"profiles":["\u001b"]}}]}`
	f, err := DecodeFacts([]byte(report))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{f.Hostname, f.CPU.ModelName, f.CPU.Flags[0], f.PCI[0].Interfaces[0], f.GPUs[0].Split.Mode, f.GPUs[0].Split.Profiles[0]} {
		if !utf8.ValidString(s) || strings.ContainsAny(s, "\x00\x07\n\x1b\u009b") || strings.TrimSpace(s) != s {
			t.Errorf("got %q", s)
		}
	}
	if f.Hostname != "a [31m b" {
		t.Errorf("got host name %q", f.Hostname)
	}
}

// TestDistancesOfVeryManyNodes: their distances are unknown, the nodes themselves are not.
func TestDistancesOfVeryManyNodes(t *testing.T) {
	for _, n := range []int{maxDistances, maxDistances + 1} {
		f, err := DecodeFacts([]byte(`{"numa":[` + many(func(i int) string { return fmt.Sprintf(`{"id":%d,"distances":[10]}`, i) }, n) + `]}`))
		if err != nil || len(f.NUMA) != n || (f.NUMA[n-1].Distances != nil) != (n == maxDistances) {
			t.Errorf("%d nodes: %d nodes, last %+v, %v", n, len(f.NUMA), f.NUMA[len(f.NUMA)-1], err)
		}
	}
}
