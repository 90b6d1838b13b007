package main

import (
	"encoding/json"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode"
)

// master is the value of config.Client for the client after the release, which prints through cJSON.
const master = "master"

// laterLeaf types a value as that client does: whatever parses as JSON is taken for it, save what users name.
func laterLeaf(key, value string) branch {
	switch key {
	case "Job_Name", "Account_Name", "project":
		return branch{key: key, text: value}
	}
	if n, ok := laterNumber(value); ok {
		return branch{key: key, text: n, raw: true}
	}
	t := strings.TrimSpace(value)
	switch {
	case t == "true" || t == "false" || t == "null":
		return branch{key: key, text: t, raw: true}
	case strings.HasPrefix(t, "[") || strings.HasPrefix(t, "{"):
		if text, ok := compact(t); ok {
			return branch{key: key, text: text, raw: true}
		}
	}
	return branch{key: key, text: value}
}

// compact reprints a JSON array or object whose numbers went through a double.
func compact(s string) (string, bool) {
	d := json.NewDecoder(strings.NewReader(s))
	var v any
	if err := d.Decode(&v); err != nil {
		return "", false
	}
	if _, err := d.Token(); err != io.EOF {
		return "", false
	}
	out, err := json.Marshal(v)
	return string(out), err == nil
}

// laterNumber reads a number as cJSON does and prints it as cJSON does, which loses digits.
func laterNumber(s string) (string, bool) {
	t := strings.TrimLeftFunc(s, unicode.IsSpace)
	if t == "" || (t[0] != '-' && (t[0] < '0' || t[0] > '9')) || strings.Trim(t, "0123456789+-.eE") != "" {
		return "", false
	}
	f, err := strconv.ParseFloat(t, 64)
	if err != nil && !math.IsInf(f, 0) {
		return "", false
	}
	if math.IsInf(f, 0) {
		return "null", true
	}
	if f == 0 && math.Signbit(f) {
		return "-0", true
	}
	if f == math.Trunc(f) && math.Abs(f) < 1<<31 {
		return strconv.FormatInt(int64(f), 10), true
	}
	for _, precision := range []int{15, 17} {
		out := cFloat(f, precision)
		if back, err := strconv.ParseFloat(out, 64); err == nil && back == f {
			return out, true
		}
	}
	return cFloat(f, 17), true
}

// cFloat is C's %.*g.
func cFloat(f float64, precision int) string {
	exp := int(math.Floor(math.Log10(math.Abs(f))))
	if exp >= -5 && exp < precision {
		s := strconv.FormatFloat(f, 'f', max(precision-1-exp, 0), 64)
		if strings.Contains(s, ".") {
			s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
		}
		return s
	}
	s := strconv.FormatFloat(f, 'e', precision-1, 64)
	mantissa, power, _ := strings.Cut(s, "e")
	if strings.Contains(mantissa, ".") {
		mantissa = strings.TrimRight(strings.TrimRight(mantissa, "0"), ".")
	}
	return mantissa + "e" + power
}

// later prints a document with tabs, as cJSON does.
func later(b *strings.Builder, n branch, depth int) {
	if depth > 0 {
		b.WriteString(strings.Repeat("\t", depth))
		b.WriteString(laterString(n.key) + ":\t")
	}
	laterValue(b, n, depth)
}

func laterValue(b *strings.Builder, n branch, depth int) {
	switch n.inside {
	case 0:
		if n.raw {
			b.WriteString(n.text)
		} else {
			b.WriteString(laterString(n.text))
		}
	case '[':
		b.WriteByte('[')
		for i, s := range n.sub {
			if i > 0 {
				b.WriteString(", ")
			}
			laterValue(b, s, depth+1)
		}
		b.WriteByte(']')
	default:
		b.WriteString("{\n")
		for i, s := range n.sub {
			later(b, s, depth+1)
			if i < len(n.sub)-1 {
				b.WriteByte(',')
			}
			b.WriteByte('\n')
		}
		b.WriteString(strings.Repeat("\t", depth) + "}")
	}
}

// laterString escapes what JSON demands and leaves other bytes alone, valid UTF-8 or not.
func laterString(s string) string {
	const hex = "0123456789abcdef"
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\t':
			b.WriteString(`\t`)
		case c == '\r':
			b.WriteString(`\r`)
		case c == '\f':
			b.WriteString(`\f`)
		case c == '\b':
			b.WriteString(`\b`)
		case c < 0x20:
			b.WriteString(`\u00` + string(hex[c>>4]) + string(hex[c&15]))
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}
