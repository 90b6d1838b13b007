package slurm

import (
	"strings"
	"testing"
	"time"

	"substrate/coordinator/dispatch"
)

// TestOpenRowsInRecordings: which of accounting's rows are of jobs that it believes to go on, and which of those had started; and when a real
// controller says that it began.
func TestOpenRowsInRecordings(t *testing.T) {
	all := recordings(t)
	for name, want := range map[string]struct{ open, begun bool }{
		"running": {true, true}, "running-node-silent": {true, true}, "suspended": {true, true}, "pending-partition-node-limit": {true, false}, "requeued": {true, false},
		"requeue-hold": {}, "special-exit": {}, "running-gpus": {true, true}, "completed": {}, "cancelled-pending": {}, "node-fail": {},
	} {
		rows, err := parseHistory(recordedHistory(t, all[name], "q"), "q")
		if err != nil || len(rows) != 1 {
			t.Errorf("%s: %d rows, %v", name, len(rows), err)
			continue
		}
		r := rows[0]
		if r.open() != want.open || want.open && r.begun() != want.begun {
			t.Errorf("%s: open %v, begun %v: %+v", name, r.open(), r.begun(), r)
		}
		if want.open && want.begun {
			r.forgotten = true
			o := observe(r, nobody)
			if o.State != dispatch.StateFailed || o.Cause != dispatch.CauseNodeLost || !o.Ended.IsZero() || o.Started.IsZero() || len(o.Nodes) == 0 || o.ExitCode != nil || o.Signal != nil {
				t.Errorf("%s, forgotten: %+v", name, o)
			}
		}
	}
	a, _ := all["list-config"].Answer("scontrol.config")
	if got, err := parseBoot(a.Stdout); err != nil || got.at.Unix() != 1796065729 || got.ran < 0 || got.ran > time.Hour {
		t.Errorf("it began %v, %v", got, err)
	}
	without := strings.ReplaceAll(a.Stdout, "BOOT_TIME", "STARTED")
	if got, err := parseBoot(without); err != nil || !got.at.IsZero() {
		t.Errorf("a release that does not say: %v, %v", got, err)
	}
	if _, err := parseBoot(strings.ReplaceAll(a.Stdout, "= 1796065729", "= 2026-11-30T20:00:00")); err == nil {
		t.Error("another form of time is read")
	}
}
