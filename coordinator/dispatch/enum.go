package dispatch

import (
	"fmt"
	"slices"
	"strings"
)

// enum is the text form of an enumeration; index 0 is its zero value, and "" a gap. No text that is not in it is read.
type enum []string

func (e enum) text(noun string, v uint8) string {
	if int(v) < len(e) {
		return e[v]
	}
	return fmt.Sprintf("%s %d", noun, v)
}

func (e enum) marshal(noun string, v uint8) ([]byte, error) {
	if int(v) >= len(e) {
		return nil, fmt.Errorf("cannot encode %s %d: it has no name", noun, v)
	}
	return []byte(e[v]), nil
}

func (e enum) parse(noun string, text []byte) (uint8, error) {
	if i := slices.Index(e, string(text)); i >= 0 {
		return uint8(i), nil
	}
	return 0, fmt.Errorf("cannot read %s %q: expected one of %s", noun, text, strings.Join(e, ", "))
}
