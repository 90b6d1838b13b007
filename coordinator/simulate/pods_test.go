package simulate

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"substrate/coordinator/engine"
)

var enginePage = engine.Page{Size: 100}

// TestPods replays pods with the columns and about the mix of Alibaba's trace, on so few GPUs that classes meet.
func TestPods(t *testing.T) {
	trace, err := ReadCSV("pods.csv", strings.NewReader(somePods(1500, 7)))
	if err != nil {
		t.Fatal(err)
	}
	r := pods(t, trace, "5x8gpu,64c,1TiB,2numa")
	if r.Preemptions["class"] == 0 || r.Preemptions["reservation"] == 0 {
		t.Errorf("classes never met: %v", r.Preemptions)
	}
	if r.All.WastedGPUs <= 0 || r.Utilisation.GPUs < 0.3 {
		t.Errorf("%g GPU-hours wasted, %g of the GPUs used", r.All.WastedGPUs, r.Utilisation.GPUs)
	}
}

// somePods writes a table of pods: half of them latency-sensitive, a third best effort, a few with guarantees; most
// with one GPU, some with two, four or eight; run times from seconds to days.
func somePods(n int, seed uint64) string {
	r := rand.New(rand.NewPCG(seed, seed))
	var b strings.Builder
	b.WriteString("name,cpu_milli,memory_mib,num_gpu,qos,creation_time,deletion_time,scheduled_time\n")
	at := 0.0
	for i := range n {
		at += r.ExpFloat64() * 400
		qos, scale := "LS", 3000.0
		switch p := r.Float64(); {
		case p < 0.36:
			qos, scale = "BE", 4000
		case p < 0.40:
			qos, scale = "Burstable", 6000
		case p < 0.42:
			qos, scale = "Guaranteed", 6000
		}
		gpus := 1
		switch p := r.Float64(); {
		case p < 0.13:
			gpus = 0
		case p > 0.995:
			gpus = 8
		case p > 0.98:
			gpus = 4
		case p > 0.94:
			gpus = 2
		}
		lasts := math.Min(scale*math.Exp(1.2*r.NormFloat64()), 400_000)
		fmt.Fprintf(&b, "pod-%d,%d,%d,%d,%s,%.0f,%.0f,%.0f\n", i, 2000+1000*r.IntN(6)*max(gpus, 1)/2, 4096*max(gpus, 1), gpus, qos, at, at+lasts+5, at+5)
	}
	return b.String()
}
