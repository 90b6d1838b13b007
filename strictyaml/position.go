package strictyaml

import (
	"bytes"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// mark says where in the file a run of a scalar's value begins: from offset off of the
// value on, characters follow each other as they do on the line, until the next mark.
type mark struct{ off, line, column int }

// position maps a place inside a scalar's value to the file. Both count from 1, columns in
// characters. What cannot be traced gives the place where the scalar begins.
func (d *Document) position(n *yaml.Node, line, column int) (int, int) {
	marks, ok := d.trace(n)
	if !ok || len(marks) == 0 {
		return n.Line, n.Column
	}
	off := valueOffset(n.Value, line, column)
	i := sort.Search(len(marks), func(i int) bool { return marks[i].off > off }) - 1
	if i < 0 {
		i = 0
	}
	m := marks[i]
	if off < m.off {
		return m.line, m.column
	}
	run, _, _ := strings.Cut(n.Value[m.off:off], "\n") // a place on an empty line: the end of the run
	return m.line, m.column + utf8.RuneCountInString(run)
}

// valueOffset is the byte offset of a line and column, clamped to the text.
func valueOffset(s string, line, column int) int {
	off := 0
	for ; line > 1; line-- {
		i := strings.IndexByte(s[off:], '\n')
		if i < 0 {
			break
		}
		off += i + 1
	}
	for ; column > 1 && off < len(s) && s[off] != '\n'; column-- {
		_, w := utf8.DecodeRuneInString(s[off:])
		off += w
	}
	return off
}

// trace rebuilds a scalar's value from the source the way YAML does and notes where each
// part came from. It is false when the result is not the value that the parser found.
func (d *Document) trace(n *yaml.Node) ([]mark, bool) {
	switch {
	case n.Kind != yaml.ScalarNode:
		return nil, false
	case n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0:
		return d.traceBlock(n)
	default:
		return d.traceFlow(n)
	}
}

// begin is the place of a scalar's first character, behind an anchor if it has one.
func (d *Document) begin(n *yaml.Node) (line, at int, ok bool) {
	line, at = n.Line, runeOffset(d.line(n.Line), n.Column-1)
	if n.Anchor == "" {
		return line, at, at < len(d.line(line))
	}
	at += 1 + len(n.Anchor)
	for ; line <= len(d.lines); line, at = line+1, 0 {
		text := d.line(line)
		if at > len(text) {
			return 0, 0, false
		}
		rest := bytes.TrimLeft(text[at:], " ")
		if len(rest) > 0 && rest[0] != '#' {
			return line, len(text) - len(rest), true
		}
	}
	return 0, 0, false
}

func runeOffset(text []byte, runes int) int {
	off := 0
	for ; runes > 0 && off < len(text); runes-- {
		_, w := utf8.DecodeRune(text[off:])
		off += w
	}
	return off
}

// block describes a block scalar: its header's line, its content's indentation and last line.
type block struct {
	header, indent, end int
	keep, clip          bool
}

func (d *Document) block(n *yaml.Node) (block, bool) {
	line, at, ok := d.begin(n)
	if !ok {
		return block{}, false
	}
	head := d.line(line)[at:]
	if head[0] != '|' && head[0] != '>' {
		return block{}, false
	}
	if i := bytes.IndexByte(head, '#'); i >= 0 {
		head = head[:i]
	}
	b := block{header: line, end: line, keep: bytes.IndexByte(head, '+') >= 0, clip: bytes.IndexAny(head, "+-") < 0}
	want, ok := leadOfFirst(n.Value)
	first := line + 1
	for first <= len(d.lines) && len(bytes.TrimSpace(d.line(first))) == 0 {
		first++
	}
	if !ok || first > len(d.lines) {
		b.end = first - 1
		return b, true // nothing but line breaks
	}
	b.indent = lead(d.line(first)) - want
	if b.indent < 0 {
		return block{}, false
	}
	b.end = first
	for l := first + 1; l <= len(d.lines); l++ {
		text := d.line(l)
		if lead(text) < b.indent && len(bytes.TrimLeft(text, " ")) > 0 {
			break
		}
		b.end = l
	}
	return b, true
}

func (d *Document) blockEnd(n *yaml.Node) int {
	b, ok := d.block(n)
	if !ok {
		return n.Line
	}
	return b.end
}

func lead(text []byte) int { return len(text) - len(bytes.TrimLeft(text, " ")) }

// leadOfFirst counts the spaces before the first visible character's line of a value.
func leadOfFirst(value string) (int, bool) {
	for line := range strings.SplitSeq(value, "\n") {
		if strings.TrimSpace(line) != "" {
			return lead([]byte(line)), true
		}
	}
	return 0, false
}

func (d *Document) traceBlock(n *yaml.Node) ([]mark, bool) {
	b, ok := d.block(n)
	if !ok {
		return nil, false
	}
	folded := n.Style&yaml.FoldedStyle != 0
	var marks []mark
	var value strings.Builder
	lineBreak, more, wasBlank := "", "", false
	for l := b.header + 1; l <= b.end; l++ {
		text := d.line(l)
		if len(text) <= b.indent && len(bytes.TrimLeft(text, " ")) == 0 {
			more += "\n"
			continue
		}
		body := text[b.indent:]
		isBlank := body[0] == ' ' || body[0] == '\t'
		switch {
		case folded && lineBreak != "" && !wasBlank && !isBlank:
			if more == "" {
				value.WriteByte(' ')
			}
		default:
			value.WriteString(lineBreak)
		}
		value.WriteString(more)
		marks = append(marks, mark{value.Len(), l, b.indent + 1})
		value.Write(body)
		lineBreak, more, wasBlank = "\n", "", isBlank
	}
	if b.keep || b.clip {
		value.WriteString(lineBreak)
	}
	if b.keep {
		value.WriteString(more)
	}
	return marks, strings.TrimRight(value.String(), "\n") == strings.TrimRight(n.Value, "\n")
}

// flow walks the source of a plain or quoted scalar beside its value.
type flow struct {
	d        *Document
	line, at int
	quote    byte
	value    string
	off      int
	marks    []mark
}

func (d *Document) traceFlow(n *yaml.Node) ([]mark, bool) {
	line, at, ok := d.begin(n)
	if !ok {
		return nil, false
	}
	f := &flow{d: d, line: line, at: at, value: n.Value}
	switch {
	case n.Style&yaml.DoubleQuotedStyle != 0:
		f.quote = '"'
	case n.Style&yaml.SingleQuotedStyle != 0:
		f.quote = '\''
	}
	if f.quote != 0 {
		f.at++
	}
	f.mark()
	for f.off < len(f.value) {
		if !f.step() {
			return nil, false
		}
	}
	return f.marks, true
}

func (f *flow) mark() {
	f.marks = append(f.marks, mark{f.off, f.line, 1 + utf8.RuneCount(f.d.line(f.line)[:f.at])})
}

// step consumes one character, escape or line break.
func (f *flow) step() bool {
	text := f.d.line(f.line)
	rest := text[f.at:]
	if len(bytes.TrimLeft(rest, " \t")) == 0 {
		return f.fold()
	}
	switch {
	case f.quote == '\'' && rest[0] == '\'':
		if len(rest) < 2 || rest[1] != '\'' || !f.take("'") {
			return false
		}
		f.at += 2
		f.mark()
		return true
	case f.quote == '"' && rest[0] == '\\':
		return f.escape(rest)
	}
	_, w := utf8.DecodeRune(rest)
	if !f.take(string(rest[:w])) {
		return false
	}
	f.at += w
	return true
}

func (f *flow) take(s string) bool {
	if !strings.HasPrefix(f.value[f.off:], s) {
		return false
	}
	f.off += len(s)
	return true
}

// fold goes to the next line with text: one break is a space, n+1 breaks are n newlines.
func (f *flow) fold() bool {
	breaks := 0
	for {
		f.line++
		breaks++
		if f.line > len(f.d.lines) {
			return false
		}
		text := f.d.line(f.line)
		if rest := bytes.TrimLeft(text, " \t"); len(rest) > 0 {
			f.at = len(text) - len(rest)
			break
		}
	}
	want := " "
	if breaks > 1 {
		want = strings.Repeat("\n", breaks-1)
	}
	if !f.take(want) {
		return false
	}
	f.mark()
	return true
}

func (f *flow) escape(rest []byte) bool {
	if len(rest) == 1 { // an escaped line break: nothing in the value
		f.line++
		f.at = lead(f.d.line(f.line))
		f.mark()
		return f.line <= len(f.d.lines)
	}
	width := 2
	switch rest[1] {
	case 'x':
		width = 4
	case 'u':
		width = 6
	case 'U':
		width = 10
	}
	if len(rest) < width {
		return false
	}
	_, w := utf8.DecodeRuneInString(f.value[f.off:])
	if width > 2 {
		code, err := strconv.ParseUint(string(rest[2:width]), 16, 32)
		if err != nil {
			return false
		}
		if r, _ := utf8.DecodeRuneInString(f.value[f.off:]); uint64(r) != code {
			return false
		}
	}
	f.off += w
	f.at += width
	f.mark()
	return true
}
