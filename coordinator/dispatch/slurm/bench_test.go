package slurm

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"substrate/coordinator/dispatch"
)

// BenchmarkParse2000 reads what a poll of 2,000 jobs answers, with comments of a usual length.
func BenchmarkParse2000(b *testing.B) {
	var out strings.Builder
	sep := separator("ABCDEFGHIJKL")
	for i := range 2000 {
		ref := dispatch.Ref{Job: dispatch.JobID(fmt.Sprintf("organisation/workflow-%d/job", i)), Submission: 1, Attempt: 1}
		out.WriteString(strings.Join([]string{strconv.Itoa(i + 1), "RUNNING", "None", "1796066080", "1796066081", "1796066082", "1796069682", "0", "0",
			fmt.Sprintf("n[%d-%d]", i, i+3), "train", ref.Mark("a note of some words")}, sep) + rowEnd("ABCDEFGHIJKL") + "\n")
	}
	text := out.String()
	b.SetBytes(int64(len(text)))
	began := processorTime(b)
	for b.Loop() {
		rows, err := parseQueue(text, "ABCDEFGHIJKL")
		if err != nil || len(rows) != 2000 {
			b.Fatal(len(rows), err)
		}
		for _, r := range rows {
			if o := observe(r, nobody); o.State != dispatch.StateRunning || o.Ref.Submission != 1 {
				b.Fatal(o)
			}
		}
	}
	b.ReportMetric(float64((processorTime(b)-began).Microseconds())/1000/float64(b.N), "cpu-ms/op")
}

// processorTime is what this process has used; on a busy machine it says more than the clock.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
