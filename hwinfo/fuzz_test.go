package hwinfo

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/txtar"
)

// seed adds the files of the cases whose path ends in the name given.
func seed(f *testing.F, name string) {
	archives, err := filepath.Glob("testdata/cases/*.txtar")
	if err != nil {
		f.Fatal(err)
	}
	added := 0
	for _, a := range archives {
		data, err := os.ReadFile(a)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range txtar.Parse(data).Files {
			if filepath.Base(file.Name) == name {
				f.Add(file.Data)
				added++
			}
		}
	}
	if added == 0 {
		f.Fatalf("no case has a file %s", name)
	}
}

func FuzzCPUInfo(f *testing.F) {
	seed(f, "cpuinfo")
	f.Fuzz(func(t *testing.T, data []byte) {
		text, err := parseCPUInfo(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		c, _ := text.identity()
		c.count(text.logical(), text.places())
		if n := c.Cores; n != nil && (*n < 1 || *n > max(1, len(text.cpus))) {
			t.Errorf("%d cores of %d CPUs", *n, len(text.cpus))
		}
		checkText(t, Facts{CPU: c})
		scrubbed, err := parseCPUInfo(bytes.NewReader(scrubCPUInfo(data)))
		if err != nil || scrubbed.logical() != text.logical() {
			t.Errorf("scrubbing changed %d CPUs to %d", text.logical(), scrubbed.logical())
		}
	})
}

// checkText: facts are valid UTF-8, as protobuf and JSON want, and survive JSON.
func checkText(t *testing.T, facts Facts) {
	t.Helper()
	data, err := json.Marshal(facts)
	if err != nil || !utf8.Valid(data) || bytes.Contains(data, []byte(`\ufffd`)) {
		t.Errorf("not clean: %q, %v", data, err)
	}
	var back Facts
	if err := json.Unmarshal(data, &back); err != nil || back.Digest() != facts.Digest() {
		t.Errorf("JSON changed the facts: %v", err)
	}
}

func FuzzOSRelease(f *testing.F) {
	seed(f, "os-release")
	f.Fuzz(func(t *testing.T, data []byte) {
		vars, _, err := parseOSRelease(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		again, problems, err := parseOSRelease(bytes.NewReader(formatOSRelease(vars)))
		if err != nil || len(problems) > 0 {
			t.Fatalf("%v, %v", problems, err)
		}
		for _, key := range osReleaseKeys() {
			if vars[key] != again[key] {
				t.Errorf("%s=%q came back as %q", key, vars[key], again[key])
			}
		}
		for k, v := range vars {
			if k == "" || !utf8.ValidString(k) || !utf8.ValidString(v) {
				t.Errorf("%q=%q", k, v)
			}
		}
	})
}

func FuzzMemInfo(f *testing.F) {
	seed(f, "meminfo")
	f.Fuzz(func(t *testing.T, data []byte) {
		n, err := parseMemTotal(bytes.NewReader(data))
		if err == nil && (n == 0 || n%1024 != 0) {
			t.Errorf("%d bytes", n)
		}
		again, err2 := parseMemTotal(bytes.NewReader(keepLines(data, "MemTotal")))
		if again != n || (err == nil) != (err2 == nil) {
			t.Errorf("scrubbing changed %d to %d (%v, %v)", n, again, err, err2)
		}
	})
}

func FuzzCgroups(f *testing.F) {
	seed(f, "cgroup")
	f.Fuzz(func(t *testing.T, data []byte) {
		groups, err := parseCgroups(bytes.NewReader(data))
		if err != nil {
			return
		}
		for _, g := range groups {
			if g.path != filepath.Clean(g.path) || g.path[0] != '/' {
				t.Errorf("path %q", g.path)
			}
		}
	})
}

func FuzzList(f *testing.F) {
	f.Add("0-3,8,10-11\n")
	f.Add("")
	f.Add("0-4294967295")
	f.Add("3-1,2")
	f.Fuzz(func(t *testing.T, s string) {
		ns, err := parseList(s, maxCPUs)
		if err != nil {
			return
		}
		again, err := parseList(formatList(ns), maxCPUs)
		if err != nil || len(again) != len(ns) || len(ns) > maxCPUs {
			t.Errorf("%q is %v, %v", s, ns, again)
		}
	})
}

func FuzzPCI(f *testing.F) {
	f.Add("0000:2B:00.0", "pci:v000010DEd00001DB4sv000010DEsd00001214bc03sc02i00")
	f.Add("10001:8a:00.0", "pci:v00008086d00002921sv00001028sd00000236bc01sc01i8f")
	f.Add("2b:00.0", "pci:v000010DEd00001DB4sv000010DEsd0000")
	f.Fuzz(func(t *testing.T, address, modalias string) {
		if a, err := ParsePCIAddress(address); err == nil {
			if b, err := ParsePCIAddress(a.String()); err != nil || a.Compare(b) != 0 {
				t.Errorf("%q is %v, then %v, %v", address, a, b, err)
			}
		}
		if ids, err := parseModalias(modalias); err == nil && ids.class > 0xffffff {
			t.Errorf("class %x", ids.class)
		}
	})
}

func FuzzSmallFiles(f *testing.F) {
	for _, s := range []string{"400 Gb/sec (4X NDR)\n", "100 Gb/sec", "max 100000", "150000 100000", "Node:      255\n", "Model: \t NVIDIA A10\n",
		"machine: x86_64\n", "10.0.0.1 n1.example n1\n", "9223372036854771712", "65535", "DRIVER=mlx5_core\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var facts Facts
		rate, err := parseRate(bytes.NewReader(data))
		if err == nil {
			facts.RDMA = []RDMA{{Gbps: &rate.gbps, Lanes: rate.lanes, Speed: rate.speed}}
		}
		if q, err := parseQuota(string(data)); err == nil && q != nil && !(*q > 0) {
			t.Errorf("quota %v", *q)
		} else if err == nil {
			facts.Limits.CPUs = q
		}
		if node, ok, err := parseNUMAStatus(bytes.NewReader(data)); err == nil && ok && node < 0 {
			t.Errorf("node %d", node)
		}
		info, err := parseGPUInformation(bytes.NewReader(data))
		if err != nil {
			t.Error(err)
		}
		facts.GPUs = []GPU{{Model: info.model}}
		if facts.Uname, facts.Hostname, err = parseUname(bytes.NewReader(data)); err != nil {
			t.Error(err)
		}
		if facts.FQDN, err = parseHosts(bytes.NewReader(data), "n1"); err != nil {
			t.Error(err)
		}
		facts.NICs = []NIC{{Driver: ueventDriver(data), Mbps: parseSpeed(string(data))}}
		checkText(t, facts)
	})
}
