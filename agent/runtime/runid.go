package runtime

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode/utf8"
)

const (
	maxRunID     = 512 // bytes of an id
	maxEncodedID = 200 // bytes of a directory name before it becomes a hash; NAME_MAX is 255
)

// CheckRunID refuses ids that could not have come from a coordinator.
func CheckRunID(id RunID) error {
	switch {
	case id == "":
		return fmt.Errorf("cannot use run id: it is empty")
	case len(id) > maxRunID:
		return fmt.Errorf("cannot use run id %.40q…: it has %d bytes, at most %d are allowed", id, len(id), maxRunID)
	case !utf8.ValidString(string(id)):
		return fmt.Errorf("cannot use run id %q: it is not UTF-8", id)
	case strings.ContainsRune(string(id), 0):
		return fmt.Errorf("cannot use run id %q: it contains a NUL byte", id)
	}
	return nil
}

// EncodeRunID is the id's directory name: letters, digits, '-', '_' and inner dots stay, any other
// byte becomes %XX. Names that would be too long are "~" and the id's SHA-256. No two ids share a name.
func EncodeRunID(id RunID) string {
	var b strings.Builder
	for i := 0; i < len(id); i++ {
		c := id[i]
		if plainIDByte(c) && (c != '.' || i > 0) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	if b.Len() > maxEncodedID {
		sum := sha256.Sum256([]byte(id))
		return "~" + hex.EncodeToString(sum[:])
	}
	return b.String()
}

// DecodeRunID is EncodeRunID's inverse. It is false for hashed names and for any text that
// EncodeRunID never returns.
func DecodeRunID(name string) (RunID, bool) {
	if name == "" || len(name) > maxEncodedID {
		return "", false
	}
	raw := make([]byte, 0, len(name))
	for i := 0; i < len(name); i++ {
		c := name[i]
		if c != '%' {
			raw = append(raw, c)
			continue
		}
		if i+2 >= len(name) {
			return "", false
		}
		one, err := hex.DecodeString(name[i+1 : i+3])
		if err != nil {
			return "", false
		}
		raw = append(raw, one[0])
		i += 2
	}
	id := RunID(raw)
	return id, EncodeRunID(id) == name
}

func plainIDByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.'
}
