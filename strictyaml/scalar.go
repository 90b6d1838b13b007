package strictyaml

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Text reads a text. Unquoted numbers, dates and truth values are refused, because YAML
// readers do not agree on them (22.10 becomes 22.1, 010 becomes 8).
func (v Value) Text() (string, bool) {
	if !v.IsText() {
		v.wrongType("a text", quoteHint(v))
		return "", false
	}
	return v.node.Value, true
}

// FilledText reads a text that holds more than white space.
func (v Value) FilledText() (string, bool) {
	s, ok := v.Text()
	if ok && strings.TrimSpace(s) == "" {
		v.Errorf(CodeValue, "the text is empty")
		return "", false
	}
	return s, ok
}

// Bool reads true or false; yes, no, on and off are refused.
func (v Value) Bool() (bool, bool) {
	if v.node.Kind == yaml.ScalarNode && v.node.Style == 0 {
		switch v.node.Value {
		case "true":
			return true, true
		case "false":
			return false, true
		}
	}
	v.wrongType("true or false", boolHint(v))
	return false, false
}

func boolHint(v Value) string {
	if v.node.Kind != yaml.ScalarNode {
		return ""
	}
	switch strings.ToLower(v.node.Value) {
	case "yes", "on", "y", "true", "1":
		return "write true"
	case "no", "off", "n", "false", "0":
		return "write false"
	}
	return ""
}

// isNumber reports an unquoted number of the given tags.
func (v Value) isNumber(tags ...string) bool {
	if v.node.Kind != yaml.ScalarNode || v.node.Style != 0 {
		return false
	}
	for _, t := range tags {
		if v.node.Tag == t {
			return true
		}
	}
	return false
}

// decimal refuses the spellings on which YAML readers differ.
func (v Value) decimal() bool {
	s := strings.TrimLeft(v.node.Value, "+-")
	switch {
	case len(s) > 1 && s[0] == '0' && s[1] >= '0' && s[1] <= '9':
		v.Report(SeverityError, CodeValue, "the number "+v.node.Value+" begins with 0, which some readers take as octal",
			"write "+strings.TrimLeft(s, "0"))
	case strings.Contains(s, "_"):
		v.Report(SeverityError, CodeValue, "the number "+v.node.Value+" holds _", "write "+strings.ReplaceAll(s, "_", ""))
	case len(s) > 1 && s[0] == '0' && strings.ContainsRune("xXoObB", rune(s[1])):
		v.Report(SeverityError, CodeValue, "the number "+v.node.Value+" is not decimal", "write it in decimal")
	default:
		return true
	}
	return false
}

func numberHint(v Value) string {
	if v.node.Kind == yaml.ScalarNode && v.node.Style != 0 {
		if _, err := strconv.ParseFloat(v.node.Value, 64); err == nil {
			return "remove the quotes"
		}
	}
	return ""
}

// Int reads a whole number within low and high, both included.
func (v Value) Int(low, high int64) (int64, bool) {
	if !v.isNumber("!!int") {
		v.wrongType("a whole number", numberHint(v))
		return 0, false
	}
	if !v.decimal() {
		return 0, false
	}
	n, err := strconv.ParseInt(v.node.Value, 10, 64)
	if err != nil || n < low || n > high {
		v.Errorf(CodeValue, "the number %s is outside %s", v.node.Value, bounds(low, high))
		return 0, false
	}
	return n, true
}

func bounds(low, high int64) string {
	switch {
	case low == math.MinInt64:
		return fmt.Sprintf("the range up to %d", high)
	case high == math.MaxInt64:
		return fmt.Sprintf("the range from %d", low)
	}
	return fmt.Sprintf("the range %d to %d", low, high)
}

// Ints makes a Reader for a range; T should hold it.
func Ints[T ~int | ~int32 | ~int64 | ~uint32 | ~uint64](low, high int64) Reader[T] {
	return func(v Value) (T, bool) {
		n, ok := v.Int(low, high)
		return T(n), ok
	}
}

// Float reads a finite number within low and high, both included.
func (v Value) Float(low, high float64) (float64, bool) {
	if !v.isNumber("!!int", "!!float") {
		v.wrongType("a number", numberHint(v))
		return 0, false
	}
	if !v.decimal() {
		return 0, false
	}
	f, err := strconv.ParseFloat(v.node.Value, 64)
	if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
		v.Errorf(CodeValue, "the number %s is not finite", v.node.Value)
		return 0, false
	}
	if f < low || f > high {
		v.Errorf(CodeValue, "the number %s is outside the range %s to %s", v.node.Value, numeral(low), numeral(high))
		return 0, false
	}
	return f, true
}

// numeral writes a number without an exponent where that is readable.
func numeral(f float64) string {
	if math.Abs(f) < 1e15 {
		return strconv.FormatFloat(f, 'f', -1, 64)
	}
	return fmt.Sprint(f)
}

// Floats makes a Reader for a range.
func Floats(low, high float64) Reader[float64] {
	return func(v Value) (float64, bool) { return v.Float(low, high) }
}

// Texts reads a list of texts.
func (v Value) Texts() ([]string, bool) {
	list, ok := v.List()
	out := make([]string, 0, len(list))
	for _, e := range list {
		s, good := e.Text()
		ok = ok && good
		out = append(out, s)
	}
	return out, ok
}

// TextMap reads a map of texts to texts.
func (v Value) TextMap() (map[string]string, bool) {
	return MapOf(Value.Text)(v)
}

// MapOf makes a Reader of maps with free keys.
func MapOf[T any](read Reader[T]) Reader[map[string]T] {
	return func(v Value) (map[string]T, bool) {
		entries, ok := v.Entries()
		out := make(map[string]T, len(entries))
		for _, e := range entries {
			val, good := read(e.Value)
			ok = ok && good
			out[e.Name] = val
		}
		return out, ok
	}
}

// ListOf makes a Reader of lists.
func ListOf[T any](read Reader[T]) Reader[[]T] {
	return func(v Value) ([]T, bool) {
		list, ok := v.List()
		out := make([]T, 0, len(list))
		for _, e := range list {
			val, good := read(e)
			ok = ok && good
			out = append(out, val)
		}
		return out, ok
	}
}

// Matching makes a Reader of texts that match; what describes them.
func Matching(match func(string) bool, what string) Reader[string] {
	return func(v Value) (string, bool) {
		s, ok := v.Text()
		if ok && !match(s) {
			v.Errorf(CodeValue, "%s is not %s", quoted(s), what)
			return "", false
		}
		return s, ok
	}
}

// OneOf makes a Reader of texts out of a closed set.
func OneOf(words ...string) Reader[string] {
	return func(v Value) (string, bool) {
		s, ok := v.Text()
		if !ok {
			return "", false
		}
		for _, w := range words {
			if s == w {
				return s, true
			}
		}
		hint := ""
		if near := Nearest(s, words, 1); len(near) > 0 {
			hint = "did you mean " + near[0] + "?"
		}
		v.Report(SeverityError, CodeValue, fmt.Sprintf("unknown word %s, expected one of %s", quoted(s), strings.Join(words, ", ")), hint)
		return "", false
	}
}
