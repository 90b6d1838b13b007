package expr

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/expr-lang/expr/file"
)

// Error is why an expression was refused. Line and Column count from 1 within the source,
// columns in characters. Message holds nothing of the library's insides.
type Error struct {
	Line, Column int
	Message      string
	Hint         string // what to write instead; may be empty
}

func (e *Error) Error() string {
	text := fmt.Sprintf("cannot compile expression: line %d, column %d: %s", e.Line, e.Column, e.Message)
	if e.Hint != "" {
		text += " (" + e.Hint + ")"
	}
	return text
}

// errorAt places a message at a character offset of the source.
func errorAt(src string, offset int, format string, args ...any) *Error {
	line, column := position(src, offset)
	return &Error{Line: line, Column: column, Message: fmt.Sprintf(format, args...)}
}

func (e *Error) hint(format string, args ...any) *Error {
	e.Hint = fmt.Sprintf(format, args...)
	return e
}

// position turns a character offset into line and column, both from 1.
func position(src string, offset int) (line, column int) {
	line, column = 1, 1
	for _, r := range src {
		if offset <= 0 {
			break
		}
		offset--
		if r == '\n' {
			line++
			column = 1
		} else {
			column++
		}
	}
	return line, column
}

// runeOffset is the character offset of a byte offset.
func runeOffset(src string, at int) int { return utf8.RuneCountInString(src[:at]) }

// fromLibrary turns an error of the library into one that a person can act on.
func (d *dialect) fromLibrary(src string, err error) *Error {
	e := &Error{Line: 1, Column: 1, Message: err.Error()}
	at := -1
	var fe *file.Error
	if errors.As(err, &fe) {
		e.Line, e.Column = position(src, fe.From)
		e.Message = fe.Message
		at = fe.From
	}
	e.Message = cleaned(e.Message)
	e.Hint = d.hintFor(e.Message, src, at)
	if word := unknownWord(e.Message); word != "" {
		e.Message = "unknown name " + word
	}
	return e
}

// cleaning is a part of the library's messages and what a reader sees instead.
type cleaning struct {
	pattern *regexp.Regexp
	with    string
}

var cleanings = [...]cleaning{
	{regexp.MustCompile(`(?:Operator|Identifier|Number|String|Bracket|Bytes)\((".*")\)`), "$1"},
	{regexp.MustCompile(`unexpected token EOF`), "the expression ends too early"},
	{regexp.MustCompile(`expression exceeds maximum allowed nodes`), fmt.Sprintf("the expression has more than %d parts", maxNodes)},
	{regexp.MustCompile(`\*?expr\.\w+`), "group"},
	{regexp.MustCompile(`\bmap\[string\](?:string|uint32)\b`), "map"},
	{regexp.MustCompile(`\[\](?:string|interface \{\})`), "list"},
	{regexp.MustCompile(`\b(?:u?int(?:8|16|32|64)?|float(?:32|64))\b`), "number"},
	{regexp.MustCompile(`\bstring\b`), "text"},
	{regexp.MustCompile(`\bfunc\([^)]*\) ?\S*`), "function"},
	{regexp.MustCompile(`\binterface \{\}`), "any"},
}

// unknownWords are the messages about a name that is not there.
var unknownWords = [...]*regexp.Regexp{
	regexp.MustCompile(`^unknown (?:name|field) (\S+)`), regexp.MustCompile(`has no (?:field|method) (\S+)`),
}

// cleaned drops stack traces, Go type names and token kinds from a library message.
func cleaned(message string) string {
	message, _, _ = strings.Cut(message, "\n")
	message = strings.TrimPrefix(message, "compilation failed: ")
	for _, c := range cleanings {
		message = c.pattern.ReplaceAllString(message, c.with)
	}
	return strings.TrimSpace(message)
}

// unknownWord is the name that a library message does not know, or "".
func unknownWord(message string) string {
	for _, p := range unknownWords {
		if m := p.FindStringSubmatch(message); m != nil {
			return m[1]
		}
	}
	return ""
}

// hintFor knows the slips that people make; at is the character the library pointed to, or -1.
func (d *dialect) hintFor(message, src string, at int) string {
	if word := unknownWord(message); word != "" {
		return d.suggest(word, groupBefore(src, at))
	}
	has := func(part string) bool { return strings.Contains(message, part) }
	switch {
	case has(`unexpected token "#"`):
		return "comments start with //"
	case has(`unexpected token "="`):
		return "== compares"
	case has(`unexpected token "&"`):
		return "&& or and joins conditions"
	case has(`unexpected token "AND"`), has(`unexpected token "OR"`), has(`unexpected token "NOT"`), has(`unexpected token "IN"`):
		return "operators are written in lower case: and, or, not, in"
	case has("invalid char escape"), has("unable to unescape"):
		return "write the backslash twice (\"\\\\d\") or put the pattern into backticks (`\\d`)"
	case has("mismatched types text and number"):
		if strings.Contains(src, "version") {
			return `a version is text: quote it, or compare the number with float(osrelease.version_id) >= 22`
		}
		return "put the value into quotes, or turn the text into a number with float(…)"
	case has("mismatched types number and text"):
		if size := sizeHint(literalAt(src, at)); size != "" {
			return size
		}
		return "write the number without quotes"
	case has("mismatched types function and"), has("mismatched types text and function"):
		return "call the function: hostname()"
	case has("error parsing regexp"):
		return globHint(literalAt(src, at))
	}
	return ""
}

// literalAt is the quoted text that starts at or after a character offset; only for hints.
func literalAt(src string, at int) string {
	if at < 0 {
		return ""
	}
	rest := string([]rune(src)[min(at, utf8.RuneCountInString(src)):])
	if m := regexp.MustCompile("[\"'`]([^\"'`]*)[\"'`]").FindStringSubmatch(rest); m != nil {
		return m[1]
	}
	return ""
}

// sizeHint tells how to write a size such as 128GiB; "" for other texts.
func sizeHint(literal string) string {
	number := strings.TrimSpace(strings.TrimRight(literal, "KMGTPiB"))
	unit := strings.TrimSpace(literal[len(strings.TrimRight(literal, "KMGTPiB")):])
	power := strings.IndexByte("KMGTP", (unit + " ")[0]) + 1
	if power == 0 || digits(number) != len(number) || number == "" {
		return ""
	}
	factor := " * 1000"
	if strings.Contains(unit, "i") {
		factor = " * 1024"
	}
	return "sizes are numbers of bytes: " + number + strings.Repeat(factor, power)
}

// globHint tells how to write what a shell pattern was meant to say.
func globHint(pattern string) string {
	core := strings.Trim(pattern, "*?")
	if core == "" || core == pattern {
		return "matches takes a regular expression (RE2)"
	}
	if strings.ContainsAny(core, "*?") {
		return fmt.Sprintf("matches takes a regular expression, not a shell pattern: use %q", ".*"+strings.ReplaceAll(core, "*", ".*")+".*")
	}
	return fmt.Sprintf("matches takes a regular expression, not a shell pattern: use %q or contains %q", ".*"+core+".*", core)
}

// groupBefore is the dotted path in front of a field at a character offset, "" without one.
func groupBefore(src string, at int) string {
	if at < 0 {
		return ""
	}
	before := string([]rune(src)[:min(at, utf8.RuneCountInString(src))])
	if m := regexp.MustCompile(`(\w+(?:\.\w+)*)\s*\.\s*$`).FindStringSubmatch(before); m != nil {
		return m[1]
	}
	return ""
}

// suggest names what is nearest to an unknown word, else what there is.
func (d *dialect) suggest(word, group string) string {
	if group != "" && !d.isGroup(group) {
		return ""
	}
	var known, candidates []string
	for _, n := range d.names {
		if rest, ok := strings.CutPrefix(n, group+"."); ok && group != "" {
			first, _, _ := strings.Cut(rest, ".")
			known = append(known, first)
		}
		candidates = append(candidates, n)
	}
	if group == "" {
		known = d.groups
		candidates = append(candidates, d.groups...)
	} else {
		candidates = slices.DeleteFunc(candidates, func(n string) bool { return !strings.HasPrefix(n, group+".") })
	}
	if best := nearest(word, candidates); best != "" {
		return "did you mean " + best + "?"
	}
	return "known here: " + strings.Join(slices.Compact(known), ", ")
}

// nearest is the candidate whose last part is most like word, "" when none is.
func nearest(word string, candidates []string) string {
	word = strings.ToLower(word)
	best, bestScore := "", 1<<30
	for _, c := range candidates {
		last := strings.TrimSuffix(c[strings.LastIndexByte(c, '.')+1:], "()")
		score := 10 * distance(word, last)
		switch {
		case score <= 10*max(2, len(word)/3):
		case len(word) > 2 && strings.Contains(last, word):
			score = 100 + len(last)
		default:
			continue
		}
		if score < bestScore {
			best, bestScore = c, score
		}
	}
	return best
}

// distance is the Levenshtein distance of two short words.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 64
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			diagonal, row[j] = row[j], min(row[j]+1, row[j-1]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
