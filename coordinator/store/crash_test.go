package store_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"substrate/coordinator/store"
)

const (
	crashDir = "SUBSTRATE_STORE_CRASH_DIR"
	idleDir  = "SUBSTRATE_STORE_IDLE_DIR"
)

// TestMain turns the test binary into the process that is killed.
func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDir); dir != "" {
		writeUntilKilled(dir)
		return
	}
	if dir := os.Getenv(idleDir); dir != "" {
		idle(dir)
		return
	}
	os.Exit(m.Run())
}

// writeUntilKilled commits numbered groups, some with a large value, and prints each number once
// it is acknowledged.
func writeUntilKilled(dir string) {
	ctx := context.Background()
	s, err := store.OpenEmbedded(ctx, store.EmbeddedOptions{Dir: dir})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	last, err := s.Get(ctx, "last")
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		fmt.Println("error", err)
		os.Exit(1)
	}
	n, _ := strconv.Atoi(string(last.Value))
	for {
		n++
		value := []byte(fmt.Sprintf("value %d", n))
		if n%40 == 0 {
			value = largeValue(n)
		}
		groups := []store.Group{
			{Ops: []store.Op{{Key: "last", Value: []byte(strconv.Itoa(n))}, {Key: crashKey(n), Value: value}}},
			{Ops: []store.Op{{Key: fmt.Sprintf("pair/%d", n%7), Value: []byte(strconv.Itoa(n))}, {Key: fmt.Sprintf("riap/%d", n%7), Value: []byte(strconv.Itoa(n))}}},
		}
		if n%40 == 1 {
			groups[1].Ops = append(groups[1].Ops, store.Op{Key: crashKey(n - 41), Delete: n > 41, Value: []byte("-")})
		}
		if _, err := s.Commit(ctx, groups); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		fmt.Println(n)
	}
}

func crashKey(n int) string { return fmt.Sprintf("key/%09d", n) }

func largeValue(n int) []byte {
	return bytes.Repeat([]byte(fmt.Sprintf("%08d", n)), store.PieceSize/4+n%1000)
}

func TestKill(t *testing.T) {
	const cycles, floor = 20, 100
	dir := t.TempDir()
	acked := 0
	for cycle := range cycles {
		n := killOnce(t, dir, acked)
		checkAfterKill(t, dir, n, cycle)
		acked = n
	}
	if acked < floor {
		t.Fatalf("only %d writes in %d cycles: too quiet to prove anything", acked, cycles)
	}
	t.Logf("%d acknowledged writes over %d kills", acked, cycles)
}

// killOnce returns the last number the child acknowledged.
func killOnce(t *testing.T, dir string, acked int) int {
	t.Helper()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), crashDir+"="+dir)
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	// One kill in five hits the start; the others come a random time after the first write.
	started := false
	timer := time.AfterFunc(time.Hour, func() { _ = child.Process.Kill() })
	if rand.IntN(5) == 0 {
		timer.Reset(time.Duration(rand.IntN(400)) * time.Millisecond)
		started = true
	}
	for lines.Scan() {
		if cause, failed := strings.CutPrefix(lines.Text(), "error "); failed {
			t.Fatalf("child: %s", cause)
		}
		n, err := strconv.Atoi(lines.Text())
		if err != nil {
			break // the last line may be cut off
		}
		acked = n
		if !started {
			started = true
			timer.Reset(time.Duration(rand.IntN(150)) * time.Millisecond)
		}
	}
	timer.Stop()
	_ = child.Process.Kill()
	_ = child.Wait() // killed: always an error
	return acked
}

func checkAfterKill(t *testing.T, dir string, acked, cycle int) {
	t.Helper()
	s, err := store.OpenEmbedded(t.Context(), store.EmbeddedOptions{Dir: dir})
	if err != nil {
		t.Fatalf("cycle %d: %v", cycle, err)
	}
	defer s.Close()
	last := 0
	if e, err := s.Get(t.Context(), "last"); err == nil {
		last, _ = strconv.Atoi(string(e.Value))
	} else if acked > 0 {
		t.Fatalf("cycle %d: %v", cycle, err)
	}
	if last < acked || last > acked+2 { // one may be written and not acknowledged, or its line lost
		t.Fatalf("cycle %d: last is %d, acknowledged were %d", cycle, last, acked)
	}
	entries, err := s.List(t.Context(), "key/", "", 1_000_000)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]byte{}
	for _, e := range entries {
		found[e.Key] = e.Value
	}
	for n := 1; n <= last; n++ {
		want := []byte(fmt.Sprintf("value %d", n))
		if n%40 == 0 {
			want = largeValue(n)
			if _, ok := found[crashKey(n)]; !ok && n+41 <= last+1 {
				continue // deleted
			}
		}
		if !bytes.Equal(found[crashKey(n)], want) {
			t.Fatalf("cycle %d: %s has %d bytes, want %d", cycle, crashKey(n), len(found[crashKey(n)]), len(want))
		}
	}
	for i := range 7 {
		a, _ := s.Get(t.Context(), fmt.Sprintf("pair/%d", i))
		b, _ := s.Get(t.Context(), fmt.Sprintf("riap/%d", i))
		if string(a.Value) != string(b.Value) || a.Revision != b.Revision {
			t.Fatalf("cycle %d: half a group: %s and %s", cycle, a.Value, b.Value)
		}
	}
}

// idle opens the store, waits, and prints the process's memory as the kernel counts it.
func idle(dir string) {
	s, err := store.OpenEmbedded(context.Background(), store.EmbeddedOptions{Dir: dir})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	time.Sleep(2 * time.Second)
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Printf("%s", text)
	_ = s.Close() // its error does not change what was measured
}

// TestIdleMemory holds a coordinator's store, with 20,000 jobs in it, to its memory goal.
func TestIdleMemory(t *testing.T) {
	const goal = 150 << 10 // KiB
	dir := t.TempDir()
	s := openEmbedded(t, dir)
	var groups []store.Group
	for i := range 20_000 {
		groups = append(groups, put(fmt.Sprintf("job/%06d", i), strings.Repeat("v", 1000)))
	}
	mustCommit(t, s, groups...)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), idleDir+"="+dir)
	out, err := child.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	found := false
	for line := range strings.Lines(string(out)) {
		switch f := strings.Fields(line); f[0] {
		case "VmRSS:", "RssAnon:", "RssFile:":
			t.Log(strings.TrimSpace(line))
			n, err := strconv.Atoi(f[1])
			if err != nil {
				t.Fatal(err)
			}
			if f[0] == "VmRSS:" {
				found = true
				if n > goal {
					t.Errorf("%d KiB resident, the goal is %d", n, goal)
				}
			}
		}
	}
	if !found {
		t.Fatalf("no VmRSS in %s", out)
	}
}
