package simulate

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"substrate/coordinator"
)

// Bounds of what a trace may say. They are far beyond any cluster and keep sums from overflowing.
const (
	maxJobs  = 1_000_000
	maxLine  = 1 << 20
	maxTime  = 50 * 365 * 24 * time.Hour
	maxCount = 1_000_000
)

// Trace is work that was once submitted somewhere, by submission.
type Trace struct {
	Name    string
	Jobs    []Job
	Skipped map[string]int // records that are not replayed, by reason
	Cores   int            // of the cluster that it was recorded on, 0 where the trace does not tell
}

// Job is one record.
type Job struct {
	ID     string
	Line   int           // in the file
	Submit time.Duration // since the beginning of the trace
	Run    time.Duration
	Walled time.Duration  // the walltime that was asked for; 0: none
	Waited *time.Duration // how long it waited where it was recorded
	Procs  int            // cores of all nodes together; 0 where Cores tells
	Nodes  int            // 0: as many as Procs need
	Cores  int            // of each node
	GPUs   int            // of each node
	Memory coordinator.Bytes
	Queue  string // decides the class, see Options.Classes
	Class  coordinator.Class
	User   string
	Group  string
	// Priority is the submitter's own, at most 0.
	Priority    int32
	Preemptible bool
	Service     bool // it has no walltime, whatever the configuration says of its class
}

// InputError is a place in a trace and what is wrong there.
type InputError struct {
	File string
	Line int
	Err  error
}

func (e *InputError) Error() string { return fmt.Sprintf("%s:%d: %v", e.File, e.Line, e.Err) }
func (e *InputError) Unwrap() error { return e.Err }

// sorted brings the jobs into the order in which they are submitted.
func (t *Trace) sorted() { // records of one second keep the order of the file
	slices.SortStableFunc(t.Jobs, func(a, b Job) int { return cmp.Or(cmp.Compare(a.Submit, b.Submit), cmp.Compare(a.Line, b.Line)) })
}

func (t *Trace) skip(reason string) {
	if t.Skipped == nil {
		t.Skipped = map[string]int{}
	}
	t.Skipped[reason]++
}

// Between leaves only what was submitted from a time on and before another one; until 0 is the end. The first
// submission that is left is at the beginning.
func (t *Trace) Between(from, until time.Duration) {
	t.Jobs = slices.DeleteFunc(t.Jobs, func(j Job) bool { return j.Submit < from || until > 0 && j.Submit >= until })
	if len(t.Jobs) == 0 {
		return
	}
	first := t.Jobs[0].Submit
	for i := range t.Jobs {
		t.Jobs[i].Submit -= first
	}
}

// seconds makes a duration of a number of seconds.
func seconds(v float64) (time.Duration, error) {
	if math.IsNaN(v) || v < 0 || v > maxTime.Seconds() {
		return 0, fmt.Errorf("a time must lie between 0 and %.0f seconds", maxTime.Seconds())
	}
	return time.Duration(math.Round(v * float64(time.Second))), nil
}

// slug is a name that the engine takes for groups and users.
func slug(prefix, name string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(name) {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.' {
			b.WriteRune(r)
		} else {
			b.WriteByte('-')
		}
	}
	text := b.String()
	if text == "" || !(text[0] >= 'a' && text[0] <= 'z') {
		text = prefix + text
	}
	return text[:min(len(text), 63)]
}
