package coordinator

import (
	"fmt"
	"strings"
)

// words is the text form of an enum; index 0 is the zero value.
type words []string

func (w words) text(v uint8) string {
	if int(v) < len(w) {
		return w[v]
	}
	return fmt.Sprintf("unknown(%d)", v)
}

func (w words) parse(noun, text string) (uint8, error) {
	for i, word := range w {
		if word != "" && strings.EqualFold(word, text) {
			return uint8(i), nil
		}
	}
	var known []string
	for _, word := range w {
		if word != "" {
			known = append(known, word)
		}
	}
	return 0, fmt.Errorf("unknown %s %q, expected one of %s", noun, text, strings.Join(known, ", "))
}

func classWords() words { return words{"", "reserved", "on-demand", "batch"} }
func kindWords() words  { return words{"", "job", "service", "internal", "system"} }
func statusWords() words {
	return words{"", "pending", "queued", "starting", "running", "preempting", "preempted",
		"finished", "failed", "cancelled", "lost"}
}
func affinityWords() words  { return words{"none", "core", "socket", "numa"} }
func exclusiveWords() words { return words{"none", "job", "workflow"} }
func restartWords() words   { return words{"never", "on-node-fault", "always"} }
func roleWords() words      { return words{"member", "owner"} }

func (c Class) String() string         { return classWords().text(uint8(c)) }
func (k Kind) String() string          { return kindWords().text(uint8(k)) }
func (s Status) String() string        { return statusWords().text(uint8(s)) }
func (a Affinity) String() string      { return affinityWords().text(uint8(a)) }
func (e Exclusive) String() string     { return exclusiveWords().text(uint8(e)) }
func (r RestartPolicy) String() string { return restartWords().text(uint8(r)) }

func (r Role) String() string { return roleWords().text(uint8(r)) }

func (c Class) MarshalText() ([]byte, error)         { return []byte(c.String()), nil }
func (k Kind) MarshalText() ([]byte, error)          { return []byte(k.String()), nil }
func (s Status) MarshalText() ([]byte, error)        { return []byte(s.String()), nil }
func (a Affinity) MarshalText() ([]byte, error)      { return []byte(a.String()), nil }
func (e Exclusive) MarshalText() ([]byte, error)     { return []byte(e.String()), nil }
func (r RestartPolicy) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

func (c *Class) UnmarshalText(b []byte) error {
	v, err := classWords().parse("class", string(b))
	*c = Class(v)
	return err
}

func (k *Kind) UnmarshalText(b []byte) error {
	v, err := kindWords().parse("kind", string(b))
	*k = Kind(v)
	return err
}

func (s *Status) UnmarshalText(b []byte) error {
	v, err := statusWords().parse("status", string(b))
	*s = Status(v)
	return err
}

func (a *Affinity) UnmarshalText(b []byte) error {
	v, err := affinityWords().parse("affinity", string(b))
	*a = Affinity(v)
	return err
}

func (e *Exclusive) UnmarshalText(b []byte) error {
	v, err := exclusiveWords().parse("exclusive", string(b))
	*e = Exclusive(v)
	return err
}

func (r *RestartPolicy) UnmarshalText(b []byte) error {
	v, err := restartWords().parse("restart policy", string(b))
	*r = RestartPolicy(v)
	return err
}

func (r Role) MarshalText() ([]byte, error) { return []byte(r.String()), nil }
func (r *Role) UnmarshalText(b []byte) error {
	v, err := roleWords().parse("role", string(b))
	*r = Role(v)
	return err
}

// ShellWord makes one word of a POSIX shell's of any text without NUL.
func ShellWord(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
