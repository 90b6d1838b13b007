package strictyaml

import (
	"cmp"
	"slices"
	"strings"
)

// Nearest gives up to n of the known words that are so close to the given one that a person
// may have meant them, closest first, then by name.
func Nearest(word string, known []string, n int) []string {
	type near struct {
		word string
		far  int
	}
	var found []near
	w := plain(word)
	if len(w) > 64 {
		return nil
	}
	for _, k := range known {
		p := plain(k)
		limit := max(1, max(len(w), len(p))/3)
		if d := len(p) - len(w); d > limit || -d > limit {
			continue
		}
		if far := distance(w, p); far <= limit {
			found = append(found, near{k, far})
		}
	}
	slices.SortFunc(found, func(a, b near) int {
		return cmp.Or(cmp.Compare(a.far, b.far), cmp.Compare(a.word, b.word))
	})
	out := make([]string, 0, min(n, len(found)))
	for _, f := range found[:min(n, len(found))] {
		out = append(out, f.word)
	}
	return out
}

// plain removes what people confuse: case, - and _.
func plain(s string) string {
	return strings.ToLower(strings.NewReplacer("-", "", "_", "").Replace(s))
}

// distance counts insertions, deletions, replacements and swaps of neighbours.
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
