package strictyaml

import (
	"encoding"
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Value is a place in the document that knows its path. Its readers report what is not as
// expected to the document and then return false.
type Value struct {
	doc  *Document
	node *yaml.Node
	path *step
}

// step is one link of a path, innermost first.
type step struct {
	parent *step
	key    string
	index  int // of a list when key is ""
}

// Path reads `definitions[3].provisionerSpec.condition`.
func (v Value) Path() string { return v.path.String() }

func (s *step) String() string {
	var parts []string
	for ; s != nil; s = s.parent {
		switch {
		case s.key == "":
			parts = append(parts, "["+strconv.Itoa(s.index)+"]")
		case plainKey(s.key):
			parts = append(parts, "."+s.key)
		default:
			parts = append(parts, "["+strconv.Quote(s.key)+"]")
		}
	}
	var b strings.Builder
	for i := len(parts) - 1; i >= 0; i-- {
		b.WriteString(parts[i])
	}
	return strings.TrimPrefix(b.String(), ".")
}

func plainKey(key string) bool {
	for _, r := range key {
		if r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') {
			return false
		}
	}
	return key != ""
}

// Valid is false for the zero Value, which stands for an absent key.
func (v Value) Valid() bool { return v.node != nil }

// Position is the line and column where the value begins.
func (v Value) Position() (line, column int) { return v.node.Line, v.node.Column }

// PositionIn maps a line and column inside a text, both from 1, to the file: through the
// indentation of block texts, folding, quotes and escapes.
func (v Value) PositionIn(line, column int) (int, int) { return v.doc.position(v.node, line, column) }

// Source gives the lines of a block text as they stand in the file, without indentation,
// and the line number of the first; nil for other values.
func (v Value) Source() (lines []string, first int) {
	if v.node.Style&(yaml.LiteralStyle|yaml.FoldedStyle) == 0 {
		return nil, 0
	}
	b, ok := v.doc.block(v.node)
	if !ok {
		return nil, 0
	}
	for l := b.header + 1; l <= b.end; l++ {
		text := v.doc.line(l)
		lines = append(lines, string(text[min(len(text), b.indent):]))
	}
	return lines, b.header + 1
}

// Errorf refuses the value.
func (v Value) Errorf(code, format string, args ...any) {
	v.Report(SeverityError, code, fmt.Sprintf(format, args...), "")
}

// Report adds a finding at the value's place.
func (v Value) Report(s Severity, code, message, hint string) {
	v.doc.add(Diagnostic{Severity: s, Code: code, Line: v.node.Line, Column: v.node.Column,
		Path: v.Path(), Message: message, Hint: hint})
}

// ReportIn adds a finding at a line and column inside the value's text.
func (v Value) ReportIn(line, column int, s Severity, code, message, hint string) {
	l, c := v.PositionIn(line, column)
	v.doc.add(Diagnostic{Severity: s, Code: code, Line: l, Column: c,
		Path: v.Path(), Message: message, Hint: hint})
}

func (v Value) child(n *yaml.Node, key string, index int) Value {
	return Value{doc: v.doc, node: target(n), path: &step{parent: v.path, key: key, index: index}}
}

// wrongType reports what was expected and what was found instead.
func (v Value) wrongType(expected, hint string) {
	v.Report(SeverityError, CodeType, "expected "+expected+", found "+v.describe(), hint)
}

func (v Value) describe() string {
	n := v.node
	switch n.Kind {
	case yaml.MappingNode:
		return "a map"
	case yaml.SequenceNode:
		return "a list"
	}
	switch n.Tag {
	case "!!null":
		return "nothing"
	case "!!int", "!!float":
		return "the number " + n.Value
	case "!!bool":
		return "the truth value " + n.Value
	case "!!timestamp":
		return "the date " + n.Value
	}
	return "the text " + quoted(n.Value)
}

func quoted(s string) string {
	if r := []rune(s); len(r) > 40 {
		s = string(r[:37]) + "..."
	}
	return strconv.Quote(s)
}

// IsText, IsMap and IsList say what the value is, without a finding.
func (v Value) IsText() bool { return v.node.Kind == yaml.ScalarNode && v.node.Tag == "!!str" }
func (v Value) IsMap() bool  { return v.node.Kind == yaml.MappingNode }
func (v Value) IsList() bool { return v.node.Kind == yaml.SequenceNode }

// List gives the elements of a list.
func (v Value) List() ([]Value, bool) {
	if !v.IsList() {
		v.wrongType("a list", listHint(v))
		return nil, false
	}
	out := make([]Value, len(v.node.Content))
	for i, n := range v.node.Content {
		out[i] = v.child(n, "", i)
	}
	return out, true
}

func listHint(v Value) string {
	switch {
	case v.node.Kind != yaml.ScalarNode || v.node.Tag == "!!null":
		return ""
	case v.node.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0: // without quotes it may be something else
		return "write [" + strconv.Quote(v.node.Value) + "]"
	}
	return "write [" + v.node.Value + "]"
}

// Entry is a key of a map with free keys. Key's path is that of the value.
type Entry struct {
	Name       string
	Key, Value Value
}

// Entries gives the keys of a map with free keys in file order, duplicates refused.
func (v Value) Entries() ([]Entry, bool) {
	if !v.IsMap() {
		v.wrongType("a map", "")
		return nil, false
	}
	n := len(v.node.Content) / 2
	out, seen, ok := make([]Entry, 0, n), make(map[string]int, n), true
	for i := 0; i+1 < len(v.node.Content); i += 2 {
		name, good := v.key(v.node.Content[i])
		if !good {
			ok = false
			continue
		}
		val := v.child(v.node.Content[i+1], name, 0)
		key := Value{doc: v.doc, node: target(v.node.Content[i]), path: val.path}
		if first, dup := seen[name]; dup {
			key.Errorf(CodeDuplicate, "the key %s is given twice, first on line %d", quoted(name), first)
			ok = false
			continue
		}
		seen[name] = key.node.Line
		out = append(out, Entry{Name: name, Key: key, Value: val})
	}
	return out, ok
}

// key reads a map key, which must be a text.
func (v Value) key(n *yaml.Node) (string, bool) {
	k := Value{doc: v.doc, node: target(n), path: v.path}
	if k.IsText() && k.node.Value != "" {
		return k.node.Value, true
	}
	if k.IsText() {
		k.Errorf(CodeValue, "a key may not be empty")
		return "", false
	}
	k.wrongType("a text as key", quoteHint(k))
	return "", false
}

func quoteHint(v Value) string {
	if v.node.Kind == yaml.ScalarNode && v.node.Tag != "!!null" {
		return "quote it: " + strconv.Quote(v.node.Value)
	}
	return ""
}

// Enum reads a text through the type's own UnmarshalText.
func Enum[T any, P interface {
	*T
	encoding.TextUnmarshaler
}](v Value) (T, bool) {
	var out T
	text, ok := v.Text()
	if !ok {
		return out, false
	}
	if err := P(&out).UnmarshalText([]byte(text)); err != nil {
		v.Errorf(CodeValue, "%s", err)
		return out, false
	}
	return out, true
}

// Quiet is the same value whose findings go nowhere: for reading once more what has been
// judged already, such as defaults that many entries take over.
func (v Value) Quiet() Value {
	q := *v.doc
	q.found, q.soft, q.dropped, q.quiet = nil, 0, 0, true
	return Value{doc: &q, node: v.node, path: v.path}
}

// IsQuiet reports whether findings about the value go nowhere.
func (v Value) IsQuiet() bool { return v.doc.quiet }
