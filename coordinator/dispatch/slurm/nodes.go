package slurm

import (
	"fmt"
	"strconv"
	"strings"
)

// nodesLimit is how many names a list of nodes may stand for; Slurm itself ends at 64k.
const nodesLimit = 1 << 16

// expandNodes reads a list like n[1-4,07],gpu1 or r[1-2]n[1-9].
func expandNodes(list string) ([]string, error) {
	if list == "" {
		return nil, nil
	}
	var names []string
	for _, part := range splitOutside(list) {
		expanded, err := expandOne(part, nodesLimit-len(names))
		if err != nil {
			return nil, fmt.Errorf("%.100q is no list of nodes: %w", list, err)
		}
		names = append(names, expanded...)
	}
	return names, nil
}

// splitOutside splits at commas that stand outside of brackets.
func splitOutside(list string) (parts []string) {
	depth, from := 0, 0
	for i := range len(list) {
		switch list[i] {
		case '[':
			depth++
		case ']':
			depth--
		case ',':
			if depth == 0 {
				parts = append(parts, list[from:i])
				from = i + 1
			}
		}
	}
	return append(parts, list[from:])
}

// expandOne expands the brackets of one part, the rightmost fastest, into at most limit names.
func expandOne(part string, limit int) ([]string, error) {
	names := []string{""}
	for rest := part; rest != ""; {
		plain, bracket, has := strings.Cut(rest, "[")
		if strings.Contains(plain, "]") {
			return nil, fmt.Errorf("a ] without its [")
		}
		names = product(names, []string{plain})
		if !has {
			break
		}
		ranges, after, ok := strings.Cut(bracket, "]")
		if !ok {
			return nil, fmt.Errorf("a [ without its ]")
		}
		numbers, err := expandRanges(ranges, limit/len(names))
		if err != nil {
			return nil, err
		}
		names, rest = product(names, numbers), after
	}
	if part == "" || len(names) > limit {
		return nil, fmt.Errorf("no name, or more than %d", nodesLimit)
	}
	return names, nil
}

func product(names, tails []string) []string {
	out := make([]string, 0, len(names)*len(tails))
	for _, n := range names {
		for _, t := range tails {
			out = append(out, n+t)
		}
	}
	return out
}

// expandRanges reads 1-4,07: numbers keep the width of a range's first.
func expandRanges(text string, limit int) (numbers []string, err error) {
	for _, r := range strings.Split(text, ",") {
		first, last, is := strings.Cut(r, "-")
		if !is {
			last = first
		}
		if !isNumber(first) || !isNumber(last) {
			return nil, fmt.Errorf("%.20q is no range", r)
		}
		from, _ := strconv.Atoi(first)
		to, _ := strconv.Atoi(last)
		if to < from || to-from >= limit-len(numbers) {
			return nil, fmt.Errorf("the range %.20q is empty, or the list has more than %d names", r, nodesLimit)
		}
		for n := from; n <= to; n++ {
			text := strconv.Itoa(n)
			numbers = append(numbers, strings.Repeat("0", max(len(first)-len(text), 0))+text)
		}
	}
	return numbers, nil
}
