package expr

import (
	"slices"
	"strings"
)

// glob is a shell pattern with the meaning of fnmatch(3) with flags 0 in the C locale, as kmod
// uses it on modaliases: the whole text, `*` passes `/`, `[!x]` and `[^x]` negate, an unclosed
// bracket is a plain character.
type glob struct {
	prefix string  // literal text before the first wildcard
	tokens []token // of the rest
	never  bool    // the pattern itself is malformed and matches nothing
}

type token struct {
	kind  tokenKind
	char  byte
	stars uint16 // anyText tokens from here on
	set   *[4]uint64
}

type tokenKind uint8

const (
	literal tokenKind = iota
	anyChar
	anyText
	oneOf
)

func (t *token) accepts(c byte) bool {
	switch t.kind {
	case literal:
		return t.char == c
	case oneOf:
		return t.set[c>>6]&(1<<(c&63)) != 0
	}
	return true
}

func parseGlob(pattern string) *glob {
	g := &glob{tokens: make([]token, 0, len(pattern))}
	for i := 0; i < len(pattern); i++ {
		switch c := pattern[i]; c {
		case '*':
			if n := len(g.tokens); n == 0 || g.tokens[n-1].kind != anyText {
				g.tokens = append(g.tokens, token{kind: anyText})
			}
		case '?':
			g.tokens = append(g.tokens, token{kind: anyChar})
		case '\\':
			i++
			if i == len(pattern) { // nothing can match a lone backslash at the end
				return &glob{never: true}
			}
			g.tokens = append(g.tokens, token{char: pattern[i]})
		case '[':
			set, next, ok := parseBracket(pattern, i)
			switch {
			case next < 0:
				g.tokens = append(g.tokens, token{char: '['})
			case !ok:
				return &glob{never: true}
			default:
				g.tokens = append(g.tokens, token{kind: oneOf, set: set})
				i = next - 1
			}
		default:
			g.tokens = append(g.tokens, token{char: c})
		}
	}
	// Most patterns begin with a long literal: as text it takes a sixteenth of the place.
	n := 0
	for n < len(g.tokens) && g.tokens[n].kind == literal {
		n++
	}
	prefix := make([]byte, n)
	for i := range prefix {
		prefix[i] = g.tokens[i].char
	}
	g.prefix, g.tokens = string(prefix), slices.Clone(g.tokens[n:])
	stars := uint16(0)
	for i := len(g.tokens) - 1; i >= 0; i-- {
		if g.tokens[i].kind == anyText {
			stars++
		}
		g.tokens[i].stars = stars
	}
	return g
}

// parseBracket reads the bracket expression that opens at i. next is the offset behind it, -1
// when it is never closed; ok is false for an unknown character class.
func parseBracket(p string, i int) (set *[4]uint64, next int, ok bool) {
	set, i, ok = new([4]uint64), i+1, true
	negate := i < len(p) && (p[i] == '!' || p[i] == '^')
	if negate {
		i++
	}
	for first := true; ; first = false {
		if i >= len(p) {
			return nil, -1, false
		}
		if p[i] == ']' && !first {
			break
		}
		if name, n := bracketClass(p[i:]); n > 0 {
			ok = addClass(set, name) && ok
			i += n
			continue
		}
		low, n := bracketChar(p[i:])
		if n == 0 {
			return nil, -1, false
		}
		i += n
		high := low
		if i+1 < len(p) && p[i] == '-' && p[i+1] != ']' {
			high, n = bracketChar(p[i+1:])
			if n == 0 {
				return nil, -1, false
			}
			i += 1 + n
		}
		for c := int(low); c <= int(high); c++ {
			set[c>>6] |= 1 << (c & 63)
		}
	}
	if negate {
		for k := range set {
			set[k] = ^set[k]
		}
	}
	return set, i + 1, ok
}

// bracketChar reads one character of a bracket expression: plain, escaped, [.c.] or [=c=].
func bracketChar(p string) (c byte, length int) {
	switch {
	case p == "":
		return 0, 0
	case p[0] == '\\':
		if len(p) < 2 {
			return 0, 0
		}
		return p[1], 2
	case len(p) >= 5 && p[0] == '[' && (p[1] == '.' || p[1] == '=') && p[3] == p[1] && p[4] == ']':
		return p[2], 5
	}
	return p[0], 1
}

// bracketClass reads "[:name:]" at the start of p; length 0 when there is none.
func bracketClass(p string) (name string, length int) {
	if !strings.HasPrefix(p, "[:") {
		return "", 0
	}
	end := strings.Index(p, ":]")
	if end < 2 {
		return "", 0
	}
	for _, c := range p[2:end] {
		if c < 'a' || c > 'z' {
			return "", 0
		}
	}
	return p[2:end], end + 2
}

func addClass(set *[4]uint64, name string) bool {
	ranges, ok := map[string]string{
		"alpha": "azAZ", "digit": "09", "alnum": "azAZ09", "upper": "AZ", "lower": "az", "xdigit": "09afAF",
		"space": "\t\r  ", "blank": "\t\t  ", "punct": "!/:@[`{~", "print": " ~", "graph": "!~", "cntrl": "\x00\x1f\x7f\x7f",
	}[name]
	for i := 0; i+1 < len(ranges); i += 2 {
		for c := ranges[i]; c <= ranges[i+1]; c++ {
			set[c>>6] |= 1 << (c & 63)
		}
	}
	return ok
}

// least is how many characters the tokens from one on take at least.
func (g *glob) least(from int) int { return len(g.tokens) - from - int(g.tokens[from].stars) }

// match holds two positions only, so its cost is at most len(pattern)·len(text).
func (g *glob) match(text string) bool {
	if g.never || !strings.HasPrefix(text, g.prefix) {
		return false
	}
	p, i := 0, len(g.prefix)
	star, mark := -1, 0
	for i < len(text) {
		switch {
		case p < len(g.tokens) && g.tokens[p].kind == anyText:
			star, mark = p, i
			p++
		case p < len(g.tokens) && g.tokens[p].accepts(text[i]):
			p++
			i++
		case star >= 0:
			if mark++; len(text)-mark < g.least(star) {
				return false
			}
			p, i = star+1, mark
		default:
			return false
		}
	}
	for p < len(g.tokens) && g.tokens[p].kind == anyText {
		p++
	}
	return p == len(g.tokens)
}
