package expr

import (
	"cmp"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"

	"github.com/expr-lang/expr/ast"
)

// Finding is something that compiles but hardly means what was meant. Codes are stable.
type Finding struct {
	Code         string
	Line, Column int // from 1, within the source
	Message      string
	Hint         string
}

// Codes of findings.
const (
	LintNumericRange      = "numeric-range-in-class"
	LintUnanchoredHost    = "unanchored-hostname"
	LintMatchesAll        = "pattern-matches-everything"
	LintShellPattern      = "shell-pattern-in-matches"
	LintLowercaseModalias = "modalias-lowercase-hex"
	LintShortModaliasID   = "modalias-short-id"
	LintOpenModalias      = "modalias-no-trailing-star"
	LintModaliasBus       = "modalias-no-bus"
	LintAnyModalias       = "modalias-matches-everything"
	LintVersionAsText     = "version-compared-as-text"
	LintNeverNil          = "comparison-with-nil"
	LintEmptyNeedle       = "needle-may-be-empty"
	LintContradiction     = "contradicts-itself"
	LintSwallowedRest     = "comment-swallows-rest"
)

// LintRule is a code of findings, what it stands for and what to do about it.
type LintRule struct{ Code, Meaning, Fix string }

// LintRules are all codes that this package gives.
func LintRules() []LintRule {
	return []LintRule{
		{LintNumericRange, "`[01-20]` in a pattern is one character out of a set, not a number from 01 to 20", "write the numbers out: `(0[1-9]|1[0-9]|20)`"},
		{LintUnanchoredHost, "a pattern on a host name may match in the middle of a longer name", "anchor both ends: `^…$`"},
		{LintMatchesAll, "a pattern matches every text", "remove the comparison, or name what it should find"},
		{LintShellPattern, "a shell pattern stands where a regular expression is asked: `node-*` is `node`, then any number of `-`", "write `.*` for any text, or `startsWith`, `contains`"},
		{LintLowercaseModalias, "ids in a modalias are upper case and matching looks at the case", "write `10DE`; `i*` for the last byte, which old kernels write in lower case"},
		{LintShortModaliasID, "an id in a modalias pattern has not 8 digits", "fill up with zeros: `v000010DE`"},
		{LintOpenModalias, "a modalias pattern ends early, and it must cover the whole modalias", "end it with `*`"},
		{LintModaliasBus, "a modalias pattern names no bus: device ids mean something behind their vendor only", "start with `pci:v`"},
		{LintAnyModalias, "a modalias pattern matches every device", "name a vendor: `pci:v000010DEd*`"},
		{LintVersionAsText, "texts compare character by character: `22.04` comes before `9`", "`float(osrelease.version_id) >= 22`, or a list of versions"},
		{LintNeverNil, "a comparison with `nil`: nothing in these rules is ever nil", "a missing annotation reads as `\"\"`, a missing device as 0"},
		{LintEmptyNeedle, "`contains`, `startsWith` or `endsWith` with a key that may be missing: every text contains the empty one", "also ask for `… != \"\"`"},
		{LintContradiction, "two comparisons joined by `and` exclude each other, so the rule is never true", "join them with `or`, or split the definition"},
		{LintSwallowedRest, "a comment ends the source and looks like a part of the rule: a folded block (`>-`) joins lines", "a literal block (`|-`), or `/* … */`"},
	}
}

// LintCondition finds what is suspicious in a condition; nothing in one that does not compile.
func LintCondition(src string) []Finding {
	_, found, _ := NewCache(nil).LintCondition(src)
	return found
}

// LintPolicy finds what is suspicious in a policy; nothing in one that does not compile.
func LintPolicy(src string) []Finding {
	_, found, _ := NewCache(nil).LintPolicy(src)
	return found
}

type linter struct {
	*dialect
	src   string
	found []Finding
}

// findings are those of the whole source, by place.
func (w *linter) findings() []Finding {
	w.comments()
	if w.found == nil {
		return nil
	}
	slices.SortStableFunc(w.found, func(a, b Finding) int {
		return cmp.Or(a.Line-b.Line, a.Column-b.Column, strings.Compare(a.Code, b.Code))
	})
	return slices.Compact(w.found) // `let` may bring one place twice
}

func (w *linter) add(code string, offset int, message, hint string) {
	line, column := position(w.src, offset)
	w.found = append(w.found, Finding{Code: code, Line: line, Column: column, Message: message, Hint: hint})
}

// walk looks at a leaf and all below it.
func (w *linter) walk(n ast.Node) {
	children(n, w.walk)
	switch n := n.(type) {
	case *ast.BinaryNode:
		w.binary(n)
	case *ast.CallNode:
		if f := w.step(n.Callee, false); f != nil && f.name.devices && len(n.Arguments) == 1 {
			if p, ok := n.Arguments[0].(*ast.StringNode); ok {
				w.modalias(p)
			}
		}
	}
}

func (w *linter) binary(n *ast.BinaryNode) {
	at := n.Location().From
	switch n.Operator {
	case "matches":
		if p, ok := n.Right.(*ast.StringNode); ok {
			if re, err := syntax.Parse(p.Value, syntax.Perl); err == nil {
				w.pattern(w.input(n.Left, false), p, re)
			}
		}
	case "<", "<=", ">", ">=":
		if isVersion(w.nameOf(n.Left)) && isText(n.Right) || isVersion(w.nameOf(n.Right)) && isText(n.Left) {
			w.add(LintVersionAsText, at, `texts compare character by character: "22.04" comes before "9"`,
				`compare numbers, float(osrelease.version_id) >= 22, or name the versions: osrelease.version_id in ["22.04", "24.04"]`)
		}
	case "==", "!=":
		_, l := n.Left.(*ast.NilNode)
		_, r := n.Right.(*ast.NilNode)
		if l || r {
			w.add(LintNeverNil, at, "nothing here is ever nil", `a missing annotation reads as "", a missing device as 0`)
		}
	case "contains", "startsWith", "endsWith":
		if strings.HasSuffix(w.nameOf(n.Right), "]") {
			w.add(LintEmptyNeedle, at, "where the key is missing the text is empty, and every text "+n.Operator+" the empty text",
				`also ask for `+w.nameOf(n.Right)+` != ""`)
		}
	}
}

// nameOf is the input that an expression is, "" for other expressions.
func (w *linter) nameOf(n ast.Node) string {
	if found := w.input(n, false); found != nil {
		return found.text
	}
	return ""
}

func isText(n ast.Node) bool {
	_, ok := n.(*ast.StringNode)
	return ok
}

func isVersion(name string) bool {
	switch name {
	case "osrelease.version_id", "osrelease.version", "uname.release", "uname.version", "cpuinfo.microcode":
		return true
	}
	return false
}

// numericRange is a class such as [01-20], by someone who meant the numbers 01 to 20.
func numericRange(pattern string) string {
	for from := range len(pattern) {
		if pattern[from] != '[' {
			continue
		}
		rest := strings.TrimPrefix(pattern[from+1:], "^")
		low := digits(rest)
		if low == 0 || low == len(rest) || rest[low] != '-' {
			continue
		}
		high := digits(rest[low+1:])
		if end := low + 1 + high; high > 0 && low+high > 2 && strings.HasPrefix(rest[end:], "]") {
			return pattern[from : len(pattern)-len(rest)+end+1]
		}
	}
	return ""
}

// digits is how many digits a text begins with.
func digits(s string) int { return len(s) - len(strings.TrimLeft(s, "0123456789")) }

func (w *linter) pattern(of *name, p *ast.StringNode, re *syntax.Regexp) {
	at := p.Location().From
	if class := numericRange(p.Value); class != "" {
		w.add(LintNumericRange, at, class+" is one character out of a set, not a range of numbers",
			"write the numbers out: (0[1-9]|1[0-9]|20) is 01 to 20")
	}
	if re.Op == syntax.OpEmptyMatch || p.Value == ".*" {
		w.add(LintMatchesAll, at, "the pattern matches every text", "remove the comparison or name what it should find")
		return
	}
	if isShellPattern(p.Value) {
		w.add(LintShellPattern, at, "matches takes a regular expression: in "+strconv.Quote(p.Value)+" a * repeats the character before it", globHint(p.Value))
	}
	if of != nil && (of.text == "hostname()" || of.text == "fqdn()") && !(anchored(re, true) && anchored(re, false)) {
		w.add(LintUnanchoredHost, at, "the pattern may match in the middle of a longer name",
			"anchor both ends: "+strconv.Quote(anchorBoth(p.Value, re)))
	}
}

// isShellPattern reports whether a valid regular expression is most likely a shell pattern: words,
// dashes and dots with a star that repeats a character.
func isShellPattern(pattern string) bool {
	star := false
	for i, c := range pattern {
		switch {
		case c == '*':
			star = star || pattern[i-1] != '.' // valid, so something stands before it
		case strings.ContainsRune("-_. ", c), 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		default:
			return false
		}
	}
	return star
}

// anchorBoth is the pattern for whole texts only.
func anchorBoth(pattern string, re *syntax.Regexp) string {
	start, end := "^", "$"
	if strings.Contains(pattern, "|") { // parsing may have merged the alternatives
		start, end = "^(", ")$"
	}
	if anchored(re, true) {
		start = strings.TrimPrefix(start, "^")
	}
	if anchored(re, false) {
		end = strings.TrimSuffix(end, "$")
	}
	return start + pattern + end
}

// anchored reports whether every match touches the start (or the end) of the text.
func anchored(re *syntax.Regexp, start bool) bool {
	switch re.Op {
	case syntax.OpBeginText:
		return start
	case syntax.OpEndText:
		return !start
	case syntax.OpCapture, syntax.OpPlus:
		return anchored(re.Sub[0], start)
	case syntax.OpRepeat:
		return re.Min > 0 && anchored(re.Sub[0], start)
	case syntax.OpAlternate:
		return !slices.ContainsFunc(re.Sub, func(s *syntax.Regexp) bool { return !anchored(s, start) })
	case syntax.OpConcat:
		return slices.ContainsFunc(re.Sub, func(s *syntax.Regexp) bool { return anchored(s, start) })
	}
	return false
}

// modalias looks at a pattern such as pci:v000010DEd*sv*sd*bc03sc*i*.
func (w *linter) modalias(p *ast.StringNode) {
	at, pattern := p.Location().From, p.Value
	if strings.Trim(pattern, "*") == "" {
		w.add(LintAnyModalias, at, "the pattern matches every device", "name a vendor: pci:v000010DEd*")
		return
	}
	rest, isPCI := strings.CutPrefix(pattern, "pci:")
	if !isPCI {
		w.add(LintModaliasBus, at, "device ids only mean something behind their vendor and bus", "start the pattern with pci:v")
		return
	}
	if !strings.HasSuffix(pattern, "*") && len(pattern) < 54 {
		w.add(LintOpenModalias, at, "the pattern must cover the whole modalias, and this one ends early", "end it with *")
	}
	for _, f := range aliasFields(rest) {
		if strings.ContainsAny(f.digits, "abcdef") {
			w.add(LintLowercaseModalias, at, "the kernel writes ids in upper case and matching looks at the case: "+f.digits+" does not match",
				"write "+strings.ToUpper(f.digits)+" (old kernels write the last byte in lower case: use i*)")
		}
		if f.width == 8 && f.chars > 0 && f.chars < 8 && (f.chars == 4 || !f.star) {
			w.add(LintShortModaliasID, at, "ids of vendors and devices have 8 digits, "+f.digits+" has not", "fill up with zeros: v000010DE")
		}
	}
}

// aliasField is one field of a PCI modalias pattern: v, d, sv, sd of 8 digits, bc, sc, i of 2.
type aliasField struct {
	digits string
	chars  int  // a bracket is one
	width  int  // that the field should have
	star   bool // followed by *
}

// aliasFields splits what follows "pci:". d, b, c, e and f are field letters and hexadecimal
// digits alike, so an id is read up to its width.
func aliasFields(rest string) []aliasField {
	var out []aliasField
	for rest != "" {
		width, skip := 0, 1
		for _, name := range []string{"sv", "sd", "v", "d", "bc", "sc", "i"} {
			if strings.HasPrefix(rest, name) {
				width, skip = 8, len(name)
				if strings.HasSuffix(name, "c") || name == "i" {
					width = 2
				}
				break
			}
		}
		rest = rest[skip:]
		if width == 0 {
			continue
		}
		f := aliasField{width: width}
		n := 0
		for n < len(rest) && f.chars < width && !strings.HasPrefix(rest[n:], "d*") {
			size := 1
			if rest[n] == '[' {
				size = strings.IndexByte(rest[n:], ']') + 1
			} else if strings.IndexByte("0123456789ABCDEFabcdef?", rest[n]) < 0 {
				size = 0
			}
			if size == 0 {
				break
			}
			n += size
			f.chars++
		}
		f.digits, rest = rest[:n], rest[n:]
		f.star = strings.HasPrefix(rest, "*")
		out = append(out, f)
	}
	return out
}

// comments finds a comment that ends the source and looks like code: a folded YAML block joins
// lines, so a comment between two lines takes the second with it.
func (w *linter) comments() {
	if !strings.Contains(w.src, "//") {
		return
	}
	for i := 0; i < len(w.src); {
		switch c := w.src[i]; {
		case c == '"' || c == '\'' || c == '`':
			i = skipText(w.src, i)
		case strings.HasPrefix(w.src[i:], "//"):
			end := skipComment(w.src, i)
			if text := w.src[i:end]; strings.TrimSpace(w.src[end:]) == "" && looksLikeCode(text) {
				w.add(LintSwallowedRest, runeOffset(w.src, i), "the comment takes all that follows with it, and that looks like a part of the rule",
					"use a literal block (|-) instead of a folded one (>-), or /* … */")
			}
			i = end
		case strings.HasPrefix(w.src[i:], "/*"):
			i = skipComment(w.src, i)
		default:
			i++
		}
	}
}

func looksLikeCode(comment string) bool {
	return regexp.MustCompile(`&&|\|\||==|!=|[<>]=? ?["\d]|\b(?:matches|contains|startsWith|endsWith)\s+["'` + "`" + `]|\bin\s*\[|\b(?:modalias|cpuinfo|osrelease|uname|request|definition)\.|\bhostname\(`).MatchString(comment)
}
