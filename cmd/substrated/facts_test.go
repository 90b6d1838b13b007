package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// box is a root of a virtual machine with four CPUs, two of which its own group may use.
func box(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	var cpuinfo strings.Builder
	for _, n := range []string{"0", "1", "2", "3"} {
		cpuinfo.WriteString("processor\t: " + n + "\nvendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Xeon(R)\nphysical id\t: 0\ncore id\t\t: " + n + "\nflags\t\t: fpu hypervisor\n\n")
	}
	for name, text := range map[string]string{
		"proc/cpuinfo":                    cpuinfo.String(),
		"proc/meminfo":                    "MemTotal: 8388608 kB\n",
		"proc/self/cgroup":                "0::/\n",
		"sys/fs/cgroup/cpu.max":           "200000 100000\n",
		"sys/devices/system/cpu/online":   "0-3\n",
		"sys/class/dmi/id/sys_vendor":     "Amazon EC2\n",
		"sys/class/dmi/id/product_name":   "m5.xlarge\n",
		"sys/class/dmi/id/product_serial": "ec2-secret\n",
		"etc/os-release":                  "ID=rocky\nPRETTY_NAME=\"Rocky Linux 9\"\n",
		"conditions": "// by processor\ncpuinfo.cpu_cores == 4 && osrelease.id == \"rocky\"\n\n" +
			"  cpuinfo.cpu_cores >= 32  \r\ncpuinfo.microcode == \"0x1\"\n",
		"broken": "true\n\ncpuinfo.cpu_core > 3\n",
	} {
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestInspectTable(t *testing.T) {
	root := box(t)
	code, out, errOut := invoke("inspect", "--root", root, "--conditions", filepath.Join(root, "conditions"))
	if code != exitOK {
		t.Fatalf("%d: %s", code, errOut)
	}
	got := map[string]string{}
	for line := range strings.Lines(out) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "  ")
		got[name] += strings.TrimSpace(value) + "\n"
	}
	for name, want := range map[string]string{
		"os": "Rocky Linux 9\n", "machine": "Amazon EC2 m5.xlarge\n", "virtualization": "amazon\n", "cloud": "aws m5.xlarge\n",
		"cores": "4\n", "cpus within limits": "2\n", "memory": "8.0 GiB\n",
		"condition true":    "cpuinfo.cpu_cores == 4 && osrelease.id == \"rocky\"\n",
		"condition false":   "cpuinfo.cpu_cores >= 32\n",
		"condition unknown": "cpuinfo.microcode == \"0x1\"\n",
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
	if strings.Contains(out, "secret") {
		t.Errorf("it tells a serial number: %s", out)
	}
}

func TestInspectConditionsAsJSON(t *testing.T) {
	root := box(t)
	code, out, errOut := invoke("inspect", "--root", root, "-o", "json", "--conditions", filepath.Join(root, "conditions"))
	if code != exitOK {
		t.Fatalf("%d: %s", code, errOut)
	}
	var got struct {
		Conditions []struct {
			Source, Value string
			Parts         []struct {
				Seen map[string]string
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Conditions) != 3 || got.Conditions[0].Value != "true" || len(got.Conditions[0].Parts) != 0 ||
		got.Conditions[1].Value != "false" || len(got.Conditions[1].Parts) != 1 || got.Conditions[1].Parts[0].Seen["cpuinfo.cpu_cores"] != "4" ||
		got.Conditions[2].Value != "unknown" {
		t.Errorf("got %+v", got.Conditions)
	}
}

func TestInspectRefuses(t *testing.T) {
	root := box(t)
	broken := filepath.Join(root, "broken")
	tests := []struct {
		name, file, message, hint string
	}{
		{"a name that is none", broken, "substrated: cannot evaluate condition: " + broken + ":3:9: unknown name cpu_core\n", "cpuinfo.cpu_cores"},
		{"no such file", filepath.Join(root, "nowhere"), "substrated: cannot read conditions: open ", ""},
		{"a directory", root, "substrated: cannot read conditions: read ", ""},
		{"a file without end", "/dev/zero", "substrated: cannot read conditions: /dev/zero is longer than ", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			code, out, errOut := invoke("inspect", "--root", root, "--conditions", tt.file)
			if code != exitFailed || out != "" || !strings.HasPrefix(errOut, tt.message) || !strings.Contains(errOut, tt.hint) {
				t.Errorf("%d, %q, %q", code, out, errOut)
			}
		})
	}
}
