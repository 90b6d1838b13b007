package hwinfo

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// readOSRelease reads etc/os-release, or usr/lib/os-release where that one is missing; never both.
func (r *reader) readOSRelease() OSRelease {
	for _, source := range []string{"etc/os-release", "usr/lib/os-release"} {
		data, err := r.t.readRaw(source, maxSmall)
		if absent(err) {
			continue
		}
		if err != nil {
			r.warn(source, err)
			return OSRelease{}
		}
		vars, problems, err := parseOSRelease(bytes.NewReader(data))
		if err != nil {
			r.warn(source, err)
			return OSRelease{}
		}
		for _, p := range problems {
			r.warn(source, p)
		}
		if r.t.rec != nil {
			r.t.rec.files[source] = formatOSRelease(vars)
		}
		return osRelease(vars)
	}
	r.warn("etc/os-release", errAbsent)
	return OSRelease{}
}

// osRelease picks the fields and applies the defaults of os-release(5).
func osRelease(vars map[string]string) OSRelease {
	get := func(key, fallback string) string {
		if v := clean(vars[key]); v != "" {
			return v
		}
		return fallback
	}
	return OSRelease{
		ID:              get("ID", "linux"),
		IDLike:          cleanFields(vars["ID_LIKE"], maxFlags),
		VersionID:       get("VERSION_ID", ""),
		Version:         get("VERSION", ""),
		VersionCodename: get("VERSION_CODENAME", ""),
		Name:            get("NAME", "Linux"),
		PrettyName:      get("PRETTY_NAME", "Linux"),
		VariantID:       get("VARIANT_ID", ""),
		PlatformID:      get("PLATFORM_ID", ""),
		BuildID:         get("BUILD_ID", ""),
	}
}

// osReleaseKeys are the ones that facts hold.
func osReleaseKeys() []string {
	return []string{"ID", "ID_LIKE", "VERSION_ID", "VERSION", "VERSION_CODENAME", "NAME", "PRETTY_NAME", "VARIANT_ID", "PLATFORM_ID", "BUILD_ID"}
}

// formatOSRelease writes the keys that facts hold so that parseOSRelease reads the same values.
func formatOSRelease(vars map[string]string) []byte {
	var b bytes.Buffer
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "`", "\\`", `$`, `\$`)
	for _, key := range osReleaseKeys() {
		if v, ok := vars[key]; ok {
			fmt.Fprintf(&b, "%s=\"%s\"\n", key, escape.Replace(v))
		}
	}
	return b.Bytes()
}

// parseOSRelease reads environment-like assignments by the rules of systemd's reader (basic/env-file.c), with two
// differences that only keep more: a byte order mark is dropped, and an assignment that is not
// UTF-8 is left out and returned as a problem where systemd refuses the file.
func parseOSRelease(r io.Reader) (map[string]string, []error, error) {
	data, err := readLimited(r, maxSmall)
	if err != nil {
		return nil, nil, err
	}
	p := envParser{vars: map[string]string{}}
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	for _, c := range data {
		p.next(c)
	}
	p.end()
	slices.SortFunc(p.problems, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return p.vars, p.problems, nil
}

type envState int

const (
	envPreKey envState = iota
	envKey
	envPreValue
	envValue
	envValueEscape
	envSingle
	envDouble
	envDoubleEscape
	envComment
	envCommentEscape
)

// envParser is the state machine; value bytes that are quoted or escaped are never trimmed.
type envParser struct {
	state    envState
	key      []byte
	value    []byte
	trim     int // end of the value without trailing unquoted blanks, -1: nothing to trim
	vars     map[string]string
	problems []error
}

func isNewline(c byte) bool { return c == '\n' || c == '\r' }
func isBlank(c byte) bool   { return c == ' ' || c == '\t' || isNewline(c) }

func (p *envParser) next(c byte) {
	switch p.state {
	case envPreKey:
		if c == '#' || c == ';' {
			p.state = envComment
		} else if !isBlank(c) {
			p.state, p.key = envKey, append(p.key[:0], c)
		}
	case envKey:
		if isNewline(c) {
			p.state = envPreKey // a line without "="
		} else if c == '=' {
			p.state, p.value, p.trim = envPreValue, p.value[:0], -1
		} else {
			p.key = append(p.key, c)
		}
	case envPreValue:
		p.preValue(c)
	case envValue:
		p.plain(c)
	case envValueEscape:
		p.state = envValue
		if !isNewline(c) { // an escaped newline joins lines
			p.value = append(p.value, c)
		}
	case envSingle:
		if c == '\'' {
			p.state = envPreValue
		} else {
			p.value = append(p.value, c)
		}
	case envDouble:
		if c == '"' {
			p.state = envPreValue
		} else if c == '\\' {
			p.state = envDoubleEscape
		} else {
			p.value = append(p.value, c)
		}
	case envDoubleEscape:
		p.state = envDouble
		if strings.IndexByte("\"\\`$", c) >= 0 {
			p.value = append(p.value, c)
		} else if c != '\n' {
			p.value = append(p.value, '\\', c)
		}
	case envComment:
		if c == '\\' {
			p.state = envCommentEscape
		} else if isNewline(c) {
			p.state = envPreKey
		}
	case envCommentEscape: // since systemd 254 the line after it is not swallowed
		p.state = envComment
		if isNewline(c) {
			p.state = envPreKey
		}
	}
}

func (p *envParser) preValue(c byte) {
	switch {
	case isNewline(c):
		p.push()
	case c == '\'':
		p.state = envSingle
	case c == '"':
		p.state = envDouble
	case c == '\\':
		p.state = envValueEscape
	case !isBlank(c):
		p.state, p.value = envValue, append(p.value, c)
	}
}

func (p *envParser) plain(c byte) {
	switch {
	case isNewline(c):
		p.push()
	case c == '\\':
		p.state, p.trim = envValueEscape, -1
	default:
		if !isBlank(c) {
			p.trim = -1
		} else if p.trim < 0 {
			p.trim = len(p.value)
		}
		p.value = append(p.value, c)
	}
}

func (p *envParser) end() {
	switch p.state {
	case envPreValue, envValue, envValueEscape, envSingle, envDouble, envDoubleEscape:
		p.push()
	}
}

// push stores an assignment; the last one of a key wins.
func (p *envParser) push() {
	if p.state == envValue && p.trim >= 0 {
		p.value = p.value[:p.trim]
	}
	p.state = envPreKey
	key := strings.TrimRight(string(p.key), " \t")
	switch {
	case !utf8.ValidString(key):
		p.problems = append(p.problems, errors.New("a key is not UTF-8"))
	case !utf8.Valid(p.value):
		delete(p.vars, key)
		p.problems = append(p.problems, fmt.Errorf("the value of %s is not UTF-8", short(key)))
	default:
		p.vars[key] = string(p.value)
	}
}
