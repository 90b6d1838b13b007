package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	defaultSeeds = 50
	seedWithin   = 10 * time.Minute
)

// chosen are the seeds of -seeds: so many from 1, or from a first to a last.
func chosen(text string) (first, last uint64, err error) {
	if text == "" {
		return 1, defaultSeeds, nil
	}
	a, b, span := strings.Cut(text, "-")
	if !span {
		a, b = "1", text
	}
	if first, err = strconv.ParseUint(a, 10, 64); err == nil {
		last, err = strconv.ParseUint(b, 10, 64)
	}
	if err == nil && (first == 0 || last < first) {
		err = errors.New("expected a number or FIRST-LAST, from 1 on")
	}
	return first, last, err
}

// child simulates a seed in a process of its own, which has one thread.
func child(t *testing.T, seed uint64, hours int) (r result, err error) {
	file := filepath.Join(t.TempDir(), "result")
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSeed$", "-test.timeout="+seedWithin.String(),
		fmt.Sprint("-seed=", seed), fmt.Sprint("-hours=", hours), "-result="+file)
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1", "GODEBUG=asyncpreemptoff=1")
	out, runErr := cmd.CombinedOutput()
	data, err := os.ReadFile(file)
	if err != nil { // it did not come to an end
		return r, fmt.Errorf("seed %d: %w\n%s", seed, runErr, tail(out))
	}
	return r, json.Unmarshal(data, &r)
}

// tail keeps the end of what a process said.
func tail(out []byte) []byte {
	const most = 16 << 10
	return out[max(0, len(out)-most):]
}

// TestSeeds simulates many seeds, a day each. What comes of all must be busy enough to mean something.
func TestSeeds(t *testing.T) {
	if *seedFlag != 0 {
		t.Skip("-seed simulates one")
	}
	first, last, err := chosen(*seedsFlag)
	if err != nil {
		t.Fatalf("-seeds %s: %v", *seedsFlag, err)
	}
	var mu sync.Mutex
	counts := map[string]int{}
	next, done := first, 0
	var workers sync.WaitGroup
	for range runtime.NumCPU() {
		workers.Go(func() {
			for {
				mu.Lock()
				seed := next
				next++
				mu.Unlock()
				if seed > last {
					return
				}
				r, err := child(t, seed, *hoursFlag)
				mu.Lock()
				if err != nil {
					t.Error(err)
				}
				r.report(t)
				for what, n := range r.Counts {
					counts[what] += n
				}
				done++
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	t.Logf("%d seeds: %s", done, listed(counts))
	if n := int(last - first + 1); n >= busyFrom && *hoursFlag >= busyHours {
		for what, least := range floor() {
			if counts[what] < least*n {
				t.Errorf("%d seeds had %d %s, fewer than %d each: this says nothing", n, counts[what], what, least)
			}
		}
	}
}

// busyFrom and busyHours are how much must be simulated before its traffic is held against the floor.
const (
	busyFrom  = 10
	busyHours = 22
)

// floor is what a seed has at least, on average.
func floor() map[string]int {
	return map[string]int{
		"workflows": 120, "starts": 300, "plans": 3, "victims": 6, "notices": 6, "kills": 20, "crashes": 5, "unknown writes": 3,
		"refused writes": 5, "lost nodes": 5, "streams": 80, "agent crashes": 10, "power losses": 2, "configurations": 2,
		"drains": 3, "cancels": 10, "queued at audits": 50,
	}
}

// TestSameSeedSameDay: a seed takes the same way each time. Who runs first of what is due at one instant is the Go
// scheduler's, and on a machine that is busy with other things that may show, so one repetition of three may differ.
func TestSameSeedSameDay(t *testing.T) {
	if *seedFlag != 0 || *seedsFlag != "" {
		t.Skip("-seed or -seeds was given")
	}
	const seed, hours, times = 7, 6, 3
	seen := map[uint64]int{}
	var log []string
	for range times {
		r, err := child(t, seed, hours)
		if err != nil {
			t.Fatal(err)
		}
		r.report(t)
		if seen[r.Digest]++; seen[r.Digest] == 2 {
			return
		}
		log = append(log, fmt.Sprintf("%016x after %d steps", r.Digest, r.Steps))
	}
	t.Errorf("seed %d took another way each time: %s", seed, strings.Join(log, ", "))
}

func TestChosenSeeds(t *testing.T) {
	for text, want := range map[string][2]uint64{"": {1, defaultSeeds}, "7": {1, 7}, "5-9": {5, 9}, "3-3": {3, 3}} {
		first, last, err := chosen(text)
		if err != nil || [2]uint64{first, last} != want {
			t.Errorf("%q is %d to %d, %v", text, first, last, err)
		}
	}
	for _, text := range []string{"0", "9-5", "x", "1-", "-1"} {
		if _, _, err := chosen(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}
