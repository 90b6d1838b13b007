package runtime

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func begin(id RunID) entry {
	return entry{ID: id, Spec: &storedSpec{Spec: Spec{ID: id, Command: []string{"true"}}, Account: account{Caller: true}}}
}

func told(id RunID, state State) entry {
	return entry{ID: id, Record: &record{Status: Status{ID: id, State: state}, PID: 7, BootID: "b"}}
}

func reopened(t testing.TB, path string) (*journal, map[RunID]*kept, int64) {
	t.Helper()
	j, runs, lost, err := openJournal(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.close() })
	return j, runs, lost
}

// cutLastEntry is a writer that was killed one entry earlier.
func cutLastEntry(t testing.TB, path string) {
	t.Helper()
	j, _, _ := reopened(t, path)
	var last int64
	for at := int64(0); at < j.size; {
		_, n, err := j.entryAt(at, j.size)
		if err != nil {
			t.Fatal(err)
		}
		last, at = at, at+n
	}
	if err := os.Truncate(path, last); err != nil {
		t.Fatal(err)
	}
}

// Whatever byte a writer is killed at, the entries before it are there and more can be appended.
func TestJournalCutAnywhere(t *testing.T) {
	whole := filepath.Join(t.TempDir(), "journal")
	j, _, _ := reopened(t, whole)
	ends := []int64{0}
	for _, e := range []entry{begin("a"), told("a", StateRunning), begin("b"), told("a", StateEnded)} {
		if err := j.append(e); err != nil {
			t.Fatal(err)
		}
		ends = append(ends, j.size)
	}
	text, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	for n := range len(text) + 1 {
		complete := 0
		for complete+1 < len(ends) && ends[complete+1] <= int64(n) {
			complete++
		}
		path := filepath.Join(t.TempDir(), strconv.Itoa(n))
		if err := os.WriteFile(path, text[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		j, runs, lost := reopened(t, path)
		if lost != int64(n)-ends[complete] {
			t.Errorf("cut at %d: %d bytes lost, want %d", n, lost, int64(n)-ends[complete])
		}
		states := map[RunID]State{}
		for id, r := range runs {
			states[id] = StateStarting
			if r.record != nil {
				states[id] = r.record.Status.State
			}
		}
		want := []map[RunID]State{{}, {"a": StateStarting}, {"a": StateRunning}, {"a": StateRunning, "b": StateStarting}, {"a": StateEnded, "b": StateStarting}}
		if !maps.Equal(states, want[complete]) {
			t.Errorf("cut at %d: %v, want %v", n, states, want[complete])
		}
		if err := j.append(begin("c")); err != nil {
			t.Fatal(err)
		}
		if _, again, lost := reopened(t, path); lost != 0 || again["c"] == nil || len(again) != len(runs)+1 {
			t.Errorf("cut at %d: after another entry %d runs, %d bytes lost", n, len(again), lost)
		}
	}
}

func TestJournalDamage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j, _, _ := reopened(t, path)
	var at int64
	for _, id := range []RunID{"a", "b", "c"} {
		if id == "c" {
			at = j.size - 3 // in b's entry
		}
		if err := j.append(begin(id)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := j.f.WriteAt([]byte("#"), at); err != nil {
		t.Fatal(err)
	}
	if _, runs, lost := reopened(t, path); lost == 0 || len(runs) != 2 || runs["a"] == nil || runs["c"] == nil {
		t.Errorf("%d bytes lost, runs %v", lost, runs)
	}
}

// Wherever an entry is damaged, also in its length, only that entry is lost.
func TestJournalDamageAnywhere(t *testing.T) {
	whole := filepath.Join(t.TempDir(), "journal")
	j, _, _ := reopened(t, whole)
	ends := []int64{}
	for _, id := range []RunID{"a", "b", "c"} {
		if err := j.append(begin(id)); err != nil {
			t.Fatal(err)
		}
		ends = append(ends, j.size)
	}
	text, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	for at := ends[0]; at < ends[1]; at++ {
		for _, by := range []byte{0x01, 0x80, text[at]} { // the last makes a zero
			bad := slices.Clone(text)
			bad[at] ^= by
			if by == 0 {
				continue
			}
			path := filepath.Join(t.TempDir(), "journal")
			if err := os.WriteFile(path, bad, 0o600); err != nil {
				t.Fatal(err)
			}
			j, runs, lost := reopened(t, path)
			if lost != ends[1]-ends[0] || len(runs) != 2 || runs["a"] == nil || runs["c"] == nil {
				t.Errorf("byte %d changed by %#x: %d bytes lost, runs %v", at, by, lost, runs)
			}
			if err := j.append(begin("d")); err != nil {
				t.Fatal(err)
			}
			if _, runs, _ := reopened(t, path); len(runs) != 3 {
				t.Errorf("byte %d changed by %#x: after another entry %v", at, by, runs)
			}
		}
	}
}

// What a full disk kept out of the journal is written when there is room, before anything else.
func TestJournalOwes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j, _, _ := reopened(t, path)
	for _, e := range []entry{begin("a"), begin("b"), begin("c"), told("c", StateRunning)} {
		if err := j.append(e); err != nil {
			t.Fatal(err)
		}
	}
	good := j.f
	full, err := os.OpenFile(path, os.O_RDONLY, 0) // takes nothing
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	j.f = full
	for _, e := range []entry{told("a", StateRunning), told("a", StateEnded), {ID: "b", Gone: true}, begin("d")} {
		if err := j.append(e); err == nil {
			t.Fatalf("%+v was written", e)
		}
	}
	if j.retry() {
		t.Error("nothing is owed")
	}
	j.f = good
	if err := j.append(told("c", StateEnded)); err != nil {
		t.Fatal(err)
	}
	if !j.retry() {
		t.Error("something is still owed")
	}
	_, runs, lost := reopened(t, path)
	if lost != 0 || len(runs) != 2 || runs["a"].record == nil || runs["a"].record.Status.State != StateEnded || runs["c"].record.Status.State != StateEnded {
		t.Errorf("%d bytes lost, %+v", lost, runs)
	}
}

// A journal tells the same after any appends and rewritings, and does not grow without end.
func TestJournalKeeps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "journal-")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		path := filepath.Join(dir, "journal")
		j, _, _, err := openJournal(path)
		if err != nil {
			t.Fatal(err)
		}
		want := map[RunID]*kept{}
		ids := rapid.SampledFrom([]RunID{"a", "b", "c", "d"})
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			id := ids.Draw(t, "id")
			e := rapid.SampledFrom([]entry{begin(id), told(id, StateRunning), told(id, StateEnded), {ID: id, Gone: true}}).Draw(t, "entry")
			if e.Record != nil {
				e.Record.Status.Message = strings.Repeat("m", rapid.IntRange(0, 200).Draw(t, "length"))
			}
			if err := j.append(e); err != nil {
				t.Fatal(err)
			}
			keep(want, e)
			if len(j.live) > 0 && rapid.Bool().Draw(t, "rewrite") {
				if err := j.rewrite(); err != nil {
					t.Fatal(err)
				}
			}
			if len(want) == 0 && j.size != 0 {
				t.Fatalf("%d bytes tell nothing", j.size)
			}
		}
		j.close()
		j, got, lost, err := openJournal(path)
		if err != nil {
			t.Fatal(err)
		}
		j.close()
		if lost != 0 || !reflect.DeepEqual(got, want) {
			t.Fatalf("%v, want %v; %d bytes lost", got, want, lost)
		}
	})
}

func TestJournalStaysSmall(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j, _, _ := reopened(t, path)
	if err := j.append(begin("stays")); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 1<<10)
	for i := range 8000 {
		id := RunID("r" + strconv.Itoa(i))
		e := begin(id)
		e.Spec.Spec.Script = long
		for _, e := range []entry{e, {ID: id, Record: &record{Status: Status{ID: id, Ended: time.Unix(1, 0)}}}, {ID: id, Gone: true}} {
			if err := j.append(e); err != nil {
				t.Fatal(err)
			}
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Size() > 2*compactFrom {
		t.Errorf("%d bytes for one run, %v", info.Size(), err)
	}
	if _, runs, lost := reopened(t, path); lost != 0 || len(runs) != 1 || runs["stays"] == nil {
		t.Errorf("%d bytes lost, runs %v", lost, runs)
	}
}

func FuzzJournal(f *testing.F) {
	path := filepath.Join(f.TempDir(), "journal")
	j, _, _ := reopened(f, path)
	for _, e := range []entry{begin("a"), told("a", StateRunning), {ID: "a", Gone: true}, begin("b")} {
		if err := j.append(e); err != nil {
			f.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte("\x02\x00\x00\x00\x00\x00\x00\x00{}"))
	f.Add([]byte("\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(t.TempDir(), "journal")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		j, runs, _ := reopened(t, path)
		if err := j.append(begin("fresh")); err != nil {
			t.Fatal(err)
		}
		_, again, _ := reopened(t, path)
		delete(again, "fresh")
		delete(runs, "fresh")
		if !reflect.DeepEqual(runs, again) {
			t.Fatalf("%v, then %v", runs, again)
		}
	})
}
