package runtime

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// BenchmarkSpawnFloor is what the machine can do: fork, exec and wait, nothing else.
func BenchmarkSpawnFloor(b *testing.B) {
	for b.Loop() {
		pid, err := syscall.ForkExec("/bin/true", []string{"true"}, &syscall.ProcAttr{Sys: &syscall.SysProcAttr{Setsid: true}})
		if err != nil {
			b.Fatal(err)
		}
		var ws syscall.WaitStatus
		if _, err := syscall.Wait4(pid, &ws, 0, nil); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
}

// BenchmarkRuns is the runtime alone: ask, directories, fork, wait, statuses, forget.
func BenchmarkRuns(b *testing.B) {
	for _, groups := range []string{noCgroups, defaultCgroupRoot} {
		b.Run("cgroups="+groups, func(b *testing.B) {
			b.Setenv("SUBSTRATE_TEST_CGROUPS", groups)
			h := newHarness(b, stateDir(b), true)
			h.run(Spec{ID: "warm", Command: []string{"true"}})
			b.ResetTimer()
			go func() {
				for i := range b.N {
					if err := h.rt.Start(b.Context(), Spec{ID: RunID("0190c1b2-0000-7000-8000-000000000000/job/" + strconv.Itoa(i) + "#1"), Command: []string{"true"}, CPUs: 1}); err != nil {
						return
					}
				}
			}()
			for ended := 0; ended < b.N; {
				for _, s := range h.updates() {
					if s.State != StateEnded || s.ID == "warm" {
						continue
					}
					ended++
					if s.Cause != CauseExited || s.ExitCode != 0 {
						b.Fatalf("%+v", s)
					}
					_ = h.rt.Forget(b.Context(), s.ID)
					delete(h.seen, s.ID)
				}
			}
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
			b.ReportMetric(float64(rss(b, h.keeperPID()))/1024, "keeper-MiB")
		})
	}
}

func rss(b *testing.B, pid int) int {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		b.Fatal(err)
	}
	for _, line := range strings.Split(string(text), "\n") {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "VmRSS:" {
			kib, _ := strconv.Atoi(f[1])
			return kib
		}
	}
	return 0
}
