package strictyaml

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// scan indexes the lines and refuses what must not reach the parser.
func (d *Document) scan() bool {
	d.lines = make([]int, 1, 1+bytes.Count(d.src, []byte{'\n'}))
	if off := firstInvalid(d.src); off >= 0 {
		line, col := 1+bytes.Count(d.src[:off], []byte{'\n'}), 0
		start := bytes.LastIndexByte(d.src[:off], '\n') + 1
		col = 1 + utf8.RuneCount(d.src[start:off])
		d.add(Diagnostic{Code: CodeEncoding, Line: line, Column: col,
			Message: fmt.Sprintf("the byte 0x%02X is not valid UTF-8", d.src[off]), Hint: encodingHint(d.src)})
		return false
	}
	nodes := 1
	for i := 0; i < len(d.src); i++ {
		c := d.src[i]
		switch {
		case c == '\n':
			d.lines = append(d.lines, i+1)
		case c == ':' || c == ',' || c == '[' || c == '{':
			nodes += 2
		case (c == '-' || c == '?') && (i+1 == len(d.src) || d.src[i+1] <= ' '):
			nodes += 2
		case c == '\r' && i+1 < len(d.src) && d.src[i+1] == '\n':
		case c < ' ' && c != '\t' || c == 0x7f:
			return d.refuseCharacter(i, rune(c))
		case c == 0xc2 && d.src[i+1] < 0xa0:
			return d.refuseCharacter(i, rune(d.src[i+1]))
		case c == 0xe2 && d.src[i+1] == 0x80 && (d.src[i+2] == 0xa8 || d.src[i+2] == 0xa9):
			return d.refuseCharacter(i, 0x2000+rune(d.src[i+2]-0x80))
		}
	}
	if nodes > d.limits.MaxNodes {
		d.add(Diagnostic{Code: CodeTooLarge,
			Message: fmt.Sprintf("the file may hold %d values, more than the limit of %d", nodes, d.limits.MaxNodes)})
		return false
	}
	return true
}

func firstInvalid(b []byte) int {
	if utf8.Valid(b) {
		return -1
	}
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return -1
}

func encodingHint(b []byte) string {
	if bytes.HasPrefix(b, []byte{0xff, 0xfe}) || bytes.HasPrefix(b, []byte{0xfe, 0xff}) {
		return "the file looks like UTF-16; save it as UTF-8"
	}
	return "save the file as UTF-8"
}

func (d *Document) refuseCharacter(off int, r rune) bool {
	line, col := d.place(off)
	d.add(Diagnostic{Code: CodeEncoding, Line: line, Column: col,
		Message: fmt.Sprintf("the character U+%04X may not stand in the file", r), Hint: "remove it, or write it as an escape in double quotes"})
	return false
}

// place turns an offset on the last line indexed so far into line and column.
func (d *Document) place(off int) (line, col int) {
	line = len(d.lines)
	return line, 1 + utf8.RuneCount(d.src[d.lines[line-1]:off])
}

// line is the text of a line (from 1) without its break.
func (d *Document) line(n int) []byte {
	if n < 1 || n > len(d.lines) {
		return nil
	}
	end := len(d.src)
	if n < len(d.lines) {
		end = d.lines[n] - 1
	}
	return bytes.TrimSuffix(d.src[d.lines[n-1]:end], []byte{'\r'})
}

// syntax reports an error of the YAML library. The library names the line where the
// surrounding structure began, or none, so the place where reading stopped is found by
// reading again line by line.
func (d *Document) syntax(err error) {
	text := syntaxText(err)
	line := d.stop(text)
	f := Diagnostic{Code: CodeSyntax, Line: line, Column: firstColumn(d.line(line)), Message: "not valid YAML: " + text}
	body := d.line(line)
	switch {
	case strings.Contains(text, "max depth"):
		f.Code, f.Message = CodeNesting, fmt.Sprintf("maps and lists are nested more than %d deep", d.limits.MaxDepth)
	case strings.Contains(text, "unknown anchor"):
		f.Code, f.Hint = CodeAlias, "a value that begins with * must be quoted"
	case strings.Contains(text, "tab character") || hasTabIndent(body):
		f.Code, f.Message, f.Hint = CodeTab, "a tab may not indent or separate", "use spaces"
		f.Column = 1 + max(0, bytes.IndexByte(body, '\t'))
	default:
		f.Hint = syntaxHint(body)
	}
	d.add(f)
}

func firstColumn(line []byte) int {
	return 1 + len(line) - len(bytes.TrimLeft(line, " "))
}

func hasTabIndent(line []byte) bool {
	return bytes.IndexByte(line[:len(line)-len(bytes.TrimLeft(line, " \t"))], '\t') >= 0
}

// syntaxHint guesses from the line what a person most likely meant.
func syntaxHint(line []byte) string {
	text := strings.TrimSpace(string(line))
	text = strings.TrimPrefix(text, "- ")
	_, value, ok := strings.Cut(text, ": ")
	if !ok {
		value = text
	}
	value = strings.TrimSpace(value)
	if value == "" {
		return ""
	}
	switch {
	case strings.ContainsRune("*&!%@`", rune(value[0])):
		return fmt.Sprintf("a value that begins with %c must be quoted", value[0])
	case value[0] == '{':
		return "{ begins a map; quote the text if it is one"
	case value[0] == '[':
		return "[ begins a list; quote the text if it is one"
	case ok && strings.Contains(value, ": "):
		return "quote a text that holds a colon and a space"
	}
	return "check the indentation of this line and of the lines above"
}

// stop is the line that the parser was reading when it failed. The parser may have looked
// ahead, so lines that do not change the failure are taken off the end.
func (d *Document) stop(text string) int {
	r := &lineReader{doc: d, limit: len(d.lines)}
	failure(r)
	line := max(1, min(r.given, len(d.lines)))
	for range 3 {
		if line == 1 || failure(&lineReader{doc: d, limit: line - 1}) != text {
			break
		}
		line--
	}
	return line
}

// failure is the message for the first two documents of r, "" without one.
func failure(r io.Reader) string {
	dec := yaml.NewDecoder(r)
	for range 2 {
		var n yaml.Node
		if err := decode(dec, &n); err != nil && !errors.Is(err, io.EOF) {
			return syntaxText(err)
		}
	}
	return ""
}

// syntaxText is the library's message without its place.
func syntaxText(err error) string {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	return regexp.MustCompile(`^line \d+: `).ReplaceAllString(text, "")
}

// lineReader gives one line for each Read, so that the count says how far a reader went.
type lineReader struct {
	doc   *Document
	limit int // lines to give in all
	given int
	rest  []byte
}

func (r *lineReader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, errors.New("cannot read into an empty buffer")
	}
	if len(r.rest) == 0 {
		if r.given >= r.limit {
			return 0, io.EOF
		}
		end := len(r.doc.src)
		if r.given+1 < len(r.doc.lines) {
			end = r.doc.lines[r.given+1]
		}
		r.rest = r.doc.src[r.doc.lines[r.given]:end]
		r.given++
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}
