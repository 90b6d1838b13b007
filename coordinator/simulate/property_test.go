package simulate

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"substrate/coordinator"
)

// TestPlainOnAnyTrace holds the coordinator against the plain simulator on traces of any shape: many jobs at one second,
// ends at the second of others, jobs that overrun, jobs of no time.
func TestPlainOnAnyTrace(t *testing.T) {
	const procs = 8
	shapes := map[string][]Node{}
	for _, spec := range []string{"1x8c", "8x1c"} {
		shapes[spec] = nodesOf(t, spec)
	}
	rapid.Check(t, func(rt *rapid.T) {
		trace := &Trace{Name: "any"}
		at := 0
		for i := range rapid.IntRange(1, 25).Draw(rt, "jobs") {
			at += rapid.SampledFrom([]int{0, 0, 1, 10, 60, 100}).Draw(rt, "after")
			trace.Jobs = append(trace.Jobs, Job{ID: fmt.Sprint(i), Line: i, Submit: time.Duration(at) * time.Second, Class: coordinator.ClassOnDemand,
				Run:    time.Duration(rapid.SampledFrom([]int{0, 1, 30, 60, 90, 200}).Draw(rt, "run")) * time.Second,
				Walled: time.Duration(rapid.SampledFrom([]int{30, 60, 90, 200, 500}).Draw(rt, "asked")) * time.Second,
				Procs:  rapid.IntRange(1, procs).Draw(rt, "procs")})
		}
		mode := rapid.SampledFrom([]string{"none", "easy"}).Draw(rt, "backfill")
		spec := rapid.SampledFrom([]string{"1x8c", "8x1c"}).Draw(rt, "nodes")
		plain := plainJobs(trace)
		plainEASY(procs, plain, mode == "easy")
		r, err := Run(t.Context(), Options{Trace: trace, Nodes: shapes[spec], Config: arrival(mode)})
		if err != nil {
			rt.Fatal(err)
		}
		for i, j := range plain {
			if got := int64(r.Jobs[i].Wait); got != j.start-j.submit {
				rt.Fatalf("job %d of %d processors, submitted at %d, waited %d s, in the plain simulator %d s: %+v", i, j.procs, j.submit, got, j.start-j.submit, plain)
			}
		}
	})
}
