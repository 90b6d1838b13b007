package bench

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"substrate/tests/cluster"
)

// BenchmarkOneShot times whole processes, in turns so that all meet the same load: the agent's program that reads this
// machine and evaluates 100 conditions, beside Slurm's agent printing what it found and a program of the ghw library alone.
// The figures to look at are the ratios of the medians: at most 4 of slurmd, at most 0.5 of ghw.
func BenchmarkOneShot(b *testing.B) {
	slurmd, err := exec.LookPath("slurmd")
	if err != nil {
		slurmd, err = exec.LookPath("/usr/sbin/slurmd") // not on everybody's path
	}
	if err != nil {
		b.Fatal("slurmd is not installed: make deps installs it")
	}
	ghw := filepath.Join(b.TempDir(), "ghwonly")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", ghw, "./ghwonly")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("cannot build: %v\n%s", err, out)
	}
	conditions := hundredConditions(b)
	programs := []struct {
		name string
		args []string
	}{
		{"fork", []string{"/bin/true"}},
		{"slurmd", []string{slurmd, "-C"}},
		{"ghw", []string{ghw}},
		{"inspect", []string{cluster.Program("substrated"), "inspect", "-o", "json", "--conditions", conditions}},
	}
	const rounds = 20
	wall, cpu := map[string][]float64{}, map[string][]float64{}
	for b.Loop() {
		for range rounds {
			for _, p := range programs {
				took, used := oneShot(b, p.args)
				wall[p.name] = append(wall[p.name], took)
				cpu[p.name] = append(cpu[p.name], used)
			}
		}
	}
	median := func(list []float64) float64 {
		slices.Sort(list)
		return list[len(list)/2]
	}
	for _, p := range programs {
		b.ReportMetric(median(wall[p.name]), p.name+"-ms")
		b.ReportMetric(median(cpu[p.name]), p.name+"-cpu-ms")
	}
	b.ReportMetric(median(wall["inspect"])/median(wall["slurmd"]), "of-slurmd")
	b.ReportMetric(median(wall["inspect"])/median(wall["ghw"]), "of-ghw")
}

// oneShot runs a program and returns its time and what it used of the processors, in milliseconds.
func oneShot(b *testing.B, args []string) (wall, cpu float64) {
	b.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	var out bytes.Buffer
	cmd.Stdout = &out
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/", "GHW_DISABLE_WARNINGS=1"}
	began := time.Now()
	err := cmd.Run()
	took := time.Since(began)
	if err != nil || args[0] != "/bin/true" && out.Len() == 0 {
		b.Fatalf("%v: %v, %d bytes", args, err, out.Len())
	}
	usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		b.Fatal("the system counts no usage")
	}
	return took.Seconds() * 1000, float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e6
}

// hundredConditions writes conditions as sites write them, all different.
func hundredConditions(b *testing.B) string {
	b.Helper()
	var text bytes.Buffer
	for n := range 20 {
		fmt.Fprintf(&text, "cpuinfo.vendor_id == \"GenuineIntel\" && cpuinfo.cpu_cores >= %d\n", n)
		fmt.Fprintf(&text, "cpuinfo.model_name contains \"EPYC\" && cpuinfo.sockets == %d\n", n)
		fmt.Fprintf(&text, "hostname() matches \"^gpu-%d[0-9]{2}$\"\n", n)
		fmt.Fprintf(&text, "modalias.match(\"pci:v000010DEd000020%02X*\") && osrelease.id in [\"rocky\", \"rhel\"]\n", n)
		fmt.Fprintf(&text, "modalias.count(\"pci:v000010DE*bc03sc02*\") == %d || \"avx512f\" in cpuinfo.flags\n", n)
	}
	name := filepath.Join(b.TempDir(), "conditions")
	if err := os.WriteFile(name, text.Bytes(), 0o644); err != nil {
		b.Fatal(err)
	}
	return name
}
