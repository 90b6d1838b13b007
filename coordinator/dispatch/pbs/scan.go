package pbs

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// depthLimit is how deep an answer may nest.
const depthLimit = 32

var errTwice = errors.New("an entry stands there twice; somebody's text may have written it")

// scanner walks through what PBS calls JSON. Bare words and numbers of any form are scalars, bytes in strings are taken as they are; what is
// ambiguous about its structure is an error.
type scanner struct {
	data []byte
	at   int
}

func (s *scanner) fail(what string) error { return fmt.Errorf("at byte %d %s", s.at, what) }

func (s *scanner) next() byte {
	for s.at < len(s.data) {
		switch c := s.data[s.at]; c {
		case ' ', '\n', '\t', '\r':
			s.at++
		default:
			return c
		}
	}
	return 0
}

func (s *scanner) expect(c byte) error {
	if s.next() != c {
		return s.fail(fmt.Sprintf("%q is missing", c))
	}
	s.at++
	return nil
}

// quoted is the text between quotes, with its escapes.
func (s *scanner) quoted() ([]byte, error) {
	if err := s.expect('"'); err != nil {
		return nil, err
	}
	start := s.at
	for {
		i := bytes.IndexByte(s.data[s.at:], '"')
		if i < 0 {
			return nil, s.fail("a text does not end")
		}
		end := s.at + i
		s.at = end + 1
		slashes := 0
		for end-1-slashes >= start && s.data[end-1-slashes] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			return s.data[start:end], nil
		}
	}
}

// bare is a scalar without quotes: a number, true, or what a text became that looked like one.
func (s *scanner) bare() ([]byte, error) {
	start := s.at
scan:
	for ; s.at < len(s.data) && s.data[s.at] > ' '; s.at++ {
		switch s.data[s.at] {
		case ',', '}', ']', '{', '[', '"', ':':
			break scan
		}
	}
	if s.at == start {
		return nil, s.fail("a value is missing")
	}
	return s.data[start:s.at], nil
}

// scalar is a value as text; ok is false for what is none, which is skipped.
func (s *scanner) scalar() (text string, ok bool, err error) {
	switch s.next() {
	case '"':
		raw, err := s.quoted()
		return unescape(raw), err == nil, err
	case '{', '[':
		return "", false, s.skip(0)
	}
	raw, err := s.bare()
	return string(raw), err == nil, err
}

// object calls each for every key; each must take the value.
func (s *scanner) object(each func(key []byte) error) error {
	if err := s.expect('{'); err != nil {
		return err
	}
	if s.next() == '}' {
		s.at++
		return nil
	}
	for {
		s.next()
		key, err := s.quoted()
		if err != nil {
			return err
		}
		if err := s.expect(':'); err != nil {
			return err
		}
		if err := each(key); err != nil {
			return err
		}
		switch s.next() {
		case ',':
			s.at++
		case '}':
			s.at++
			return nil
		default:
			return s.fail("neither a comma nor a closing brace follows")
		}
	}
}

func (s *scanner) skip(depth int) error {
	if depth > depthLimit {
		return s.fail("it nests too deep")
	}
	switch s.next() {
	case '"':
		_, err := s.quoted()
		return err
	case '{':
		return s.object(func([]byte) error { return s.skip(depth + 1) })
	case '[':
		return s.list(depth)
	}
	_, err := s.bare()
	return err
}

func (s *scanner) list(depth int) error {
	s.at++
	if s.next() == ']' {
		s.at++
		return nil
	}
	for {
		if err := s.skip(depth + 1); err != nil {
			return err
		}
		switch s.next() {
		case ',':
			s.at++
		case ']':
			s.at++
			return nil
		default:
			return s.fail("neither a comma nor a closing bracket follows")
		}
	}
}

// whole reads one object that has nothing after it, and calls each for the entries of one of its members.
func (s *scanner) whole(member string, each func(key string) error) error {
	found := false
	err := s.object(func(key []byte) error {
		if string(key) != member {
			return s.skip(0)
		}
		if found {
			return errTwice
		}
		found = true
		return s.object(func(key []byte) error { return each(unescape(key)) })
	})
	if err == nil && s.next() != 0 {
		err = s.fail("something follows the end")
	}
	if err == nil && s.at < len(s.data) {
		err = s.fail("a NUL follows the end")
	}
	return err
}

// unescape keeps what is no escape as it stands, and makes the text UTF-8.
func unescape(raw []byte) string {
	if bytes.IndexByte(raw, '\\') < 0 {
		return valid(string(raw))
	}
	var b strings.Builder
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' || i+1 == len(raw) {
			b.WriteByte(raw[i])
			continue
		}
		i++
		switch c := raw[i]; c {
		case 'n':
			b.WriteByte('\n')
		case 't':
			b.WriteByte('\t')
		case 'r':
			b.WriteByte('\r')
		case '"', '\\', '/':
			b.WriteByte(c)
		default:
			b.WriteByte('\\')
			b.WriteByte(c)
		}
	}
	return valid(b.String())
}

func valid(text string) string {
	if utf8.ValidString(text) {
		return text
	}
	return strings.ToValidUTF8(text, "�")
}
