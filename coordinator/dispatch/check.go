package dispatch

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	// TextLimit is the length of a name or a note in bytes; adapters may take less.
	TextLimit = 1024
	// ScriptLimit is the length of a script in bytes, EnvLimit of a variable's value.
	ScriptLimit = 1 << 20
	EnvLimit    = 64 << 10
)

// Check returns an error that is ErrRefused for a spec that no batch system is given. Adapters refuse more.
func (s Spec) Check() error {
	for _, check := range []func() error{s.Ref.Check, s.checkText, s.checkScript, s.checkEnv, s.checkSize} {
		if err := check(); err != nil {
			return fmt.Errorf("cannot submit %s: %w: %w", s.Ref, ErrRefused, err)
		}
	}
	return nil
}

func (s Spec) checkText() error {
	for _, text := range []struct{ noun, value string }{{"name", s.Name}, {"note", s.Note}} {
		switch {
		case len(text.value) > TextLimit:
			return fmt.Errorf("the %s has %d bytes, more than %d", text.noun, len(text.value), TextLimit)
		case !utf8.ValidString(text.value) || strings.ContainsRune(text.value, 0):
			return fmt.Errorf("the %s is no text: it is not UTF-8 or holds a NUL", text.noun)
		}
	}
	if s.Workdir != "" && (s.Workdir[0] != '/' || strings.ContainsAny(s.Workdir, "\x00\n\r")) {
		return fmt.Errorf("the directory %q is not absolute, or holds a line's end", s.Workdir)
	}
	return nil
}

func (s Spec) checkScript() error {
	switch {
	case !strings.HasPrefix(s.Script, "#!/"):
		return fmt.Errorf("the script does not begin with an interpreter line")
	case len(s.Script) > ScriptLimit:
		return fmt.Errorf("the script has %d bytes, more than %d", len(s.Script), ScriptLimit)
	case strings.Contains(s.Script, "\r\n"):
		return fmt.Errorf("a line of the script ends with CR LF; its interpreter would not be found")
	case strings.ContainsRune(s.Script, 0):
		return fmt.Errorf("the script holds a NUL")
	}
	return nil
}

func (s Spec) checkEnv() error {
	for _, name := range slices.Sorted(maps.Keys(s.Env)) {
		value := s.Env[name]
		switch {
		case !validVariable(name):
			return fmt.Errorf("%q is no name of a variable: letters, digits and _ that do not begin with a digit", name)
		case strings.HasPrefix(name, EnvPrefix):
			return fmt.Errorf("the variable %s is taken: names that begin with %s tell a script about itself", name, EnvPrefix)
		case len(value) > EnvLimit:
			return fmt.Errorf("the variable %s has %d bytes, more than %d", name, len(value), EnvLimit)
		case strings.ContainsRune(value, 0):
			return fmt.Errorf("the variable %s holds a NUL", name)
		}
	}
	return nil
}

func (s Spec) checkSize() error {
	switch {
	case s.Nodes < 1:
		return fmt.Errorf("it asks for no node")
	case s.Walltime < 0:
		return fmt.Errorf("its walltime %s is negative", s.Walltime)
	case s.Image != nil && s.Image.Reference == "":
		return fmt.Errorf("its image has no name")
	}
	return nil
}

func validVariable(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}
