package main

// option is one that was given.
type option struct {
	flag  byte
	value string
}

// getopt takes arguments apart as C's getopt does with a leading "+": options end at the first operand or at --.
// spec names the flags, those with a value followed by a colon. bad is the first unknown flag, or one that lacks
// its value.
func getopt(args []string, spec string) (opts []option, rest []string, dashes bool, bad []byte) {
	for len(args) > 0 {
		a := args[0]
		if a == "--" {
			return opts, args[1:], true, bad
		}
		if len(a) < 2 || a[0] != '-' {
			break
		}
		args = args[1:]
		for i := 1; i < len(a); i++ {
			known, valued := flagOf(spec, a[i])
			if !known {
				bad = append(bad, a[i])
				continue
			}
			if !valued {
				opts = append(opts, option{flag: a[i]})
				continue
			}
			value := a[i+1:]
			if value == "" {
				if len(args) == 0 {
					return opts, nil, false, append(bad, a[i])
				}
				value, args = args[0], args[1:]
			}
			opts = append(opts, option{a[i], value})
			break
		}
	}
	return opts, args, false, bad
}

func flagOf(spec string, flag byte) (known, valued bool) {
	if flag == ':' {
		return false, false
	}
	for i := range len(spec) {
		if spec[i] == flag {
			return true, i+1 < len(spec) && spec[i+1] == ':'
		}
	}
	return false, false
}

// badOptions says what C's getopt says.
func (c *call) badOptions(bad []byte) {
	for _, b := range bad {
		c.eprintf("%s: invalid option -- '%c'\n", c.name, b)
	}
}
