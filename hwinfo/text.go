package hwinfo

import (
	"fmt"
	"iter"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// clean makes text fit for a report: valid UTF-8, no control characters, of bounded length, trimmed.
func clean(s string) string {
	if len(s) > maxText {
		s = s[:maxText] // a rune cut in two is dropped below
	}
	s = strings.ToValidUTF8(s, "")
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s)
	return strings.TrimSpace(s)
}

// cleanFields splits at blanks, at most limit of them.
func cleanFields(s string, limit int) []string {
	if len(s) > maxWords {
		s = s[:maxWords]
	}
	f := strings.Fields(strings.ToValidUTF8(s, ""))
	if len(f) > limit {
		f = f[:limit]
	}
	for i := range f {
		f[i] = clean(f[i])
	}
	if len(f) == 0 {
		return nil
	}
	return f
}

// lines yields lines of any length without their ends.
func lines(data []byte) iter.Seq[string] {
	return func(yield func(string) bool) {
		for line := range strings.Lines(string(data)) {
			if !yield(strings.TrimRight(line, "\r\n")) {
				return
			}
		}
	}
}

// keyValue splits at the first colon: values hold colons too.
func keyValue(line string) (key, value string, ok bool) {
	key, value, ok = strings.Cut(line, ":")
	return strings.TrimSpace(key), strings.TrimSpace(value), ok
}

// parseList reads a kernel list such as "0-3,8,10-11"; an empty one is an empty set. The order is ascending.
func parseList(s string, limit int) ([]int, error) {
	s = strings.TrimSpace(s)
	if s == "" {
		return nil, nil
	}
	var out []int
	for part := range strings.SplitSeq(s, ",") {
		lo, hi, ranged := strings.Cut(strings.TrimSpace(part), "-")
		first, err := strconv.ParseUint(lo, 10, 31)
		if err != nil {
			return nil, fmt.Errorf("cannot parse list %q", short(s))
		}
		end := first
		if ranged {
			if end, err = strconv.ParseUint(hi, 10, 31); err != nil || end < first {
				return nil, fmt.Errorf("cannot parse list %q", short(s))
			}
		}
		if end-first >= uint64(limit) || len(out)+int(end-first)+1 > limit {
			return nil, fmt.Errorf("list %q has more than %d entries", short(s), limit)
		}
		for n := first; n <= end; n++ {
			if len(out) > 0 && int(n) <= out[len(out)-1] {
				return nil, fmt.Errorf("list %q is not ascending", short(s))
			}
			out = append(out, int(n))
		}
	}
	return out, nil
}

// formatList is the inverse of parseList for ascending numbers.
func formatList(ns []int) string {
	var b strings.Builder
	for i := 0; i < len(ns); {
		j := i
		for j+1 < len(ns) && ns[j+1] == ns[j]+1 {
			j++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(ns[i]))
		if j > i {
			b.WriteString("-" + strconv.Itoa(ns[j]))
		}
		i = j + 1
	}
	return b.String()
}

// short bounds a quoted value in a message.
func short(s string) string {
	if len(s) > 64 {
		s = s[:64]
	}
	return strings.ToValidUTF8(s, "")
}

// parseInt takes a decimal or 0x number that fits an int32; identifiers in these files are no larger.
func parseInt(s string) (*int, error) {
	digits, base := s, 10 // not base 0: a leading zero is no octal here
	if hex, ok := strings.CutPrefix(s, "0x"); ok {
		digits, base = hex, 16
	}
	n, err := strconv.ParseInt(digits, base, 32)
	if err != nil {
		return nil, fmt.Errorf("%q is not a number", short(s))
	}
	v := int(n)
	return &v, nil
}

// parseKiB reads "16313396 kB" as bytes.
func parseKiB(s string) (uint64, error) {
	f := strings.Fields(s)
	if len(f) != 2 || f[1] != "kB" {
		return 0, fmt.Errorf("%q is not a size in kB", short(s))
	}
	n, err := strconv.ParseUint(f[0], 10, 64)
	if err != nil || n > maxBytes>>10 {
		return 0, fmt.Errorf("%q is not a size in kB", short(s))
	}
	return n << 10, nil
}

// parseHex reads a PCI id such as "0x10de".
func parseHex(s string, bits int) (uint64, error) {
	digits, ok := strings.CutPrefix(s, "0x")
	n, err := strconv.ParseUint(digits, 16, bits)
	if !ok || err != nil {
		return 0, fmt.Errorf("%q is not a hexadecimal number of %d bits", short(s), bits)
	}
	return n, nil
}

func ptr[T any](v T) *T { return &v }

// validName keeps names from directories usable in paths and reports.
func validName(s string) bool {
	return s != "" && len(s) <= 255 && utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}
