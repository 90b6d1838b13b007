package expr

import (
	"strings"
	"unicode/utf8"
)

// Limits of one expression. The library has no time limit and cannot be cancelled, so every
// cost must be bounded before the first run.
const (
	maxSource  = 16 << 10 // bytes
	maxNesting = 100      // brackets, and prefix operators in a row
	maxNodes   = 1000     // parts of the tree, after `let` is replaced by its value
	maxGlob    = 512      // bytes of one modalias pattern
	maxPattern = 5000     // states of all regular expressions of one expression
	perClosure = 25       // how much dearer a regular expression is that a whole list is held against
	maxMemory  = 20_000   // elements that one run may make
)

// guard refuses what the parser itself could not survive: a million open brackets overflow the
// stack of the process, which no recover can catch.
func guard(src string) *Error {
	if len(src) > maxSource {
		return errorAt("", 0, "the expression has %d bytes, more than %d", len(src), maxSource)
	}
	if !utf8.ValidString(src) {
		at := 0
		for at < len(src) {
			r, size := utf8.DecodeRuneInString(src[at:])
			if r == utf8.RuneError && size == 1 {
				break
			}
			at += size
		}
		return errorAt(src, runeOffset(src, at), "the expression is not valid UTF-8")
	}
	return guardNesting(src)
}

// guardNesting follows the lexer's rules for texts and comments; where the two could differ the
// lexer stops with an error of its own.
func guardNesting(src string) *Error {
	depth, prefixes := 0, 0
	for i := 0; i < len(src); {
		c := src[i]
		switch {
		case c == '"' || c == '\'' || c == '`':
			i = skipText(src, i)
			prefixes = 0
			continue
		case strings.HasPrefix(src[i:], "//"), strings.HasPrefix(src[i:], "/*"):
			i = skipComment(src, i)
			continue
		case c == '(' || c == '[' || c == '{':
			depth++
		case c == ')' || c == ']' || c == '}':
			depth = max(0, depth-1)
		case c == '!' || c == '-' || c == '+':
			prefixes++
		case strings.HasPrefix(src[i:], "not"):
			prefixes++
			i += 2
		case c != ' ' && c != '\t' && c != '\n' && c != '\r':
			prefixes = 0
		}
		if depth > maxNesting || prefixes > maxNesting {
			return errorAt(src, runeOffset(src, i), "the expression is nested deeper than %d levels", maxNesting)
		}
		i++
	}
	return nil
}

// skipText returns the offset behind a text literal that starts at i.
func skipText(src string, i int) int {
	quote := src[i]
	for i++; i < len(src); i++ {
		switch {
		case quote == '`' && strings.HasPrefix(src[i:], "``"):
			i++ // an escaped backtick
		case src[i] == quote:
			return i + 1
		case quote != '`' && src[i] == '\\':
			i++
		}
	}
	return i
}

// skipComment returns the offset behind a comment that starts at i.
func skipComment(src string, i int) int {
	end := "\n"
	if src[i+1] == '*' {
		end = "*/"
	}
	n := strings.Index(src[i+2:], end)
	if n < 0 {
		return len(src)
	}
	return i + 2 + n + len(end)
}

// blank reports whether a source holds nothing but space and comments.
func blank(src string) bool {
	for i := 0; i < len(src); {
		switch {
		case strings.HasPrefix(src[i:], "//"), strings.HasPrefix(src[i:], "/*"):
			i = skipComment(src, i)
		case strings.ContainsRune(" \t\r\n", rune(src[i])):
			i++
		default:
			return false
		}
	}
	return true
}
