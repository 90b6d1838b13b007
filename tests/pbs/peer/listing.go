package main

import (
	"slices"
	"strconv"
	"strings"
)

// attr is one line of a full listing: a name, the resource it is about if it is a list of resources, and the
// text of the value. Epoch values are times that the client prints in its zone where a text form is wanted.
type attr struct {
	Name  string
	Res   string
	Value string
	Epoch bool // Value is a number of seconds
	Plain bool // a time that stays a number in every form
}

// entry is one object of a listing: a job, queue, server or node.
type entry struct {
	ID    string
	Attrs []attr
	Jobs  []string // of a node, with their slots
	Error string
	Keys  rank
}

// rank is what selections look at without parsing attributes.
type rank struct {
	State byte
	Owner string
	Queue string
	Sub   bool
}

func (e entry) get(name, res string) string {
	for _, a := range e.Attrs {
		if a.Name == name && a.Res == res {
			return a.Value
		}
	}
	return ""
}

// value is the text of an attribute for a reader in a zone.
func (a attr) text(z zone) string {
	if a.Epoch && !a.Plain {
		if n, err := strconv.ParseInt(a.Value, 10, 64); err == nil {
			return z.ctime(n)
		}
	}
	return a.Value
}

// mangle is what the commands do to bytes that cannot be printed in the C locale.
func mangle(s string) string {
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if (c >= 0x20 && c < 0x7f) || (c >= '\t' && c <= '\r') {
			b.WriteByte(c)
			continue
		}
		b.WriteByte('^')
		b.WriteByte(c + 64)
	}
	return b.String()
}

// number decides as the release's client does whether a value is printed without quotes: what C's strtod takes
// whole, save those with a needless zero in front. Thus nan, inf, 00 and .5 come out as they are.
func number(s string) bool {
	const blank = " \t\n\v\f\r"
	t := strings.Trim(s, blank)
	zero, ok := strtod(strings.ToLower(strings.TrimLeft(t, "+-")))
	if !ok || len(t)-len(strings.TrimLeft(t, "+-")) > 1 {
		return false
	}
	return zero || s[0] != '0' || len(s) == 1 || s[1] == '.'
}

// strtod tells whether C would read the whole of an unsigned number in lower case, and whether it is zero.
func strtod(s string) (zero, ok bool) {
	if s == "nan" || s == "inf" || s == "infinity" {
		return false, true
	}
	digits, exponent := "0123456789", byte('e')
	if strings.HasPrefix(s, "0x") {
		s, digits, exponent = s[2:], "0123456789abcdef", 'p'
	}
	mantissa := s
	if i := strings.IndexByte(s, exponent); i >= 0 {
		mantissa = s[:i]
		power := s[i+1:]
		if power != "" && (power[0] == '+' || power[0] == '-') {
			power = power[1:]
		}
		if power == "" || strings.Trim(power, "0123456789") != "" {
			return false, false
		}
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	if whole+fraction == "" || strings.Trim(whole+fraction, digits) != "" {
		return false, false
	}
	return strings.Trim(whole+fraction, "0") == "", true
}

// escape writes a string into JSON as the release does. Whole: every backslash is doubled (nodes);
// otherwise backslashes stay single and save a quote behind them from its own, which is how listings break.
func escape(s string, whole bool) string {
	var b strings.Builder
	for i := range len(s) {
		switch c := s[i]; c {
		case '"':
			if whole || i == 0 || s[i-1] != '\\' {
				b.WriteByte('\\')
			}
			b.WriteByte(c)
		case '\\':
			if whole {
				b.WriteByte('\\')
			}
			b.WriteByte(c)
		case '\n':
			b.WriteString(`\n`)
		case '\t':
			b.WriteString(`\t`)
		case '\r':
			b.WriteString(`\r`)
		case '\f':
			b.WriteString(`\f`)
		case '\v':
			b.WriteString(`\v`)
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

// variable is one pair of a Variable_List.
type variable struct{ name, value string }

// variables takes a Variable_List apart as the client does: a comma behind a backslash belongs to the value, and
// the first byte of a value is never looked at, so that an empty one swallows its neighbour.
func variables(list string, empty bool) []variable {
	var out []variable
	for list != "" {
		name, rest, ok := strings.Cut(list, "=")
		if !ok {
			break
		}
		name = name[strings.LastIndexByte(name, ',')+1:]
		var v strings.Builder
		i := 0
		for ; i < len(rest); i++ {
			if rest[i] == '\\' && i+1 < len(rest) && rest[i+1] == ',' {
				v.WriteByte(',')
				i++
				continue
			}
			if rest[i] == ',' && (i > 0 || empty) {
				break
			}
			v.WriteByte(rest[i])
		}
		out = append(out, variable{name, v.String()})
		if i >= len(rest) {
			break
		}
		list = rest[i+1:]
	}
	return out
}

// unguard takes a Variable_List apart as the mom does, who must not lose anything: what guard wrote.
func unguard(list string) []variable {
	var out []variable
	var text strings.Builder
	take := func() {
		if name, value, ok := strings.Cut(text.String(), "="); ok {
			out = append(out, variable{name, value})
		}
		text.Reset()
	}
	for i := 0; i < len(list); i++ {
		switch {
		case strings.HasPrefix(list[i:], `\\\\`):
			text.WriteByte('\\')
			i += 3
		case strings.HasPrefix(list[i:], `\,`):
			text.WriteByte(',')
			i++
		case list[i] == ',':
			take()
		default:
			text.WriteByte(list[i])
		}
	}
	take()
	return out
}

// order sorts attributes as the server encodes them: by the table of their object, resources by name.
func order(attrs []attr, table []string) []attr {
	at := make(map[string]int, len(table))
	for i, n := range table {
		at[n] = i
	}
	place := func(n string) int {
		if i, ok := at[n]; ok {
			return i
		}
		return len(table)
	}
	slices.SortStableFunc(attrs, func(a, b attr) int {
		if d := place(a.Name) - place(b.Name); d != 0 {
			return d
		}
		if d := strings.Compare(a.Name, b.Name); d != 0 {
			return d
		}
		return strings.Compare(a.Res, b.Res)
	})
	return attrs
}
