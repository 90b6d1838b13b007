package logs

import (
	"fmt"
	"strings"
	"testing"
)

// TestRanksAreSeparate: every rank of a gang counts its own bytes from 0, in the pack and beyond it.
func TestRanksAreSeparate(t *testing.T) {
	dir := t.TempDir()
	ranks := []uint32{0, 1, 2, 10, 12, maxRank}
	text := func(stream string, rank uint32, n int) string {
		return strings.Repeat(fmt.Sprintf("%s of rank %d\n", stream, rank), n)
	}
	for _, lines := range []int{2, packLimit / 10} { // the second outgrows the pack
		r := run("gang", lines)
		l := open(t, dir, Options{})
		for _, rank := range ranks {
			for _, stream := range streams() {
				mustAppend(t, l, r, Stream(stream, rank), 0, text(stream, rank, lines+int(rank%7)))
			}
		}
		for range 2 { // the same process, then the next
			for _, rank := range ranks {
				for _, stream := range streams() {
					if got := content(t, l, r, Stream(stream, rank)); got != text(stream, rank, lines+int(rank%7)) {
						t.Fatalf("%s of rank %d holds %d bytes that are not its own", stream, rank, len(got))
					}
				}
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			l = open(t, dir, Options{})
		}
	}
}

func TestEachRankHasItsCap(t *testing.T) {
	l := open(t, t.TempDir(), Options{RunCap: 8})
	mustAppend(t, l, run("gang", 1), "stdout", 0, "1234567890")
	mustAppend(t, l, run("gang", 1), "stdout.1", 0, "abc")
	if got := content(t, l, run("gang", 1), "stdout.1"); got != "abc" {
		t.Errorf("rank 1 holds %q after rank 0 met its cap", got)
	}
}
