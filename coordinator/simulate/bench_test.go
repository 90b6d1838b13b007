package simulate

import (
	"testing"
	"time"
)

// BenchmarkReplay is the whole replay of 3,013 jobs in 54 days, estimates included.
func BenchmarkReplay(b *testing.B) {
	trace := hpc2n(b)
	for _, nodes := range []string{"1x240c", "240x1c"} {
		b.Run(nodes, func(b *testing.B) {
			list := nodesOf(b, nodes)
			span := 0.0
			for b.Loop() {
				r, err := Run(b.Context(), Options{Trace: trace, Nodes: list, Config: arrival("easy")})
				if err != nil {
					b.Fatal(err)
				}
				span += r.Span
			}
			b.ReportMetric(span/b.Elapsed().Seconds(), "times-real")
			b.ReportMetric(b.Elapsed().Seconds()/float64(b.N), "s/replay")
			b.ReportMetric((time.Duration(span/float64(b.N))*time.Second).Hours()/24, "days")
		})
	}
}
