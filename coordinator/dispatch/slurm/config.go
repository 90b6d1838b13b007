package slurm

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// configuration is what "scontrol show config" says: names as Slurm spells them.
type configuration struct {
	values map[string]string
	asOf   time.Time // by the controller's clock, to a second
}

const configLimit = 2000 // of settings; a cluster shows some 200

// parseConfig reads "scontrol show config", its times in seconds.
func parseConfig(out string) (configuration, error) {
	c := configuration{values: map[string]string{}}
	for line := range strings.Lines(out) {
		line = strings.TrimRight(line, "\n")
		if at, ok := strings.CutPrefix(line, "Configuration data as of "); ok {
			t, err := parseTime(strings.TrimSpace(at))
			if err != nil {
				return c, fmt.Errorf("cannot read the configuration: its time: %w", err)
			}
			c.asOf = t
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		name = strings.TrimSpace(name)
		if !ok || name == "" || strings.ContainsAny(name, " \t") {
			continue // a heading, a state of a controller
		}
		if _, twice := c.values[name]; !twice && len(c.values) < configLimit {
			c.values[name] = strings.TrimSpace(value)
		}
	}
	for _, name := range []string{"ClusterName", "SLURM_VERSION", "AuthType", "SlurmdTimeout", "MinJobAge", "MessageTimeout"} {
		if c.values[name] == "" {
			return c, fmt.Errorf("cannot read the configuration: it does not show %s", name)
		}
	}
	if c.asOf.IsZero() {
		return c, fmt.Errorf("cannot read the configuration: it does not show the controller's time")
	}
	return c, nil
}

// seconds reads "300 sec".
func (c configuration) seconds(name string) (time.Duration, error) {
	text, _, _ := strings.Cut(c.values[name], " ")
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("cannot read the configuration: %s is %.40q, and no number of seconds", name, c.values[name])
	}
	return time.Duration(n) * time.Second, nil
}

// authTTL is for how long a credential is good: the ttl of AuthInfo, or what the kind of authentication takes without; ok is false for kinds
// of which nobody knows.
func (c configuration) authTTL() (ttl time.Duration, ok bool) {
	switch c.values["AuthType"] {
	case "auth/munge":
		ttl = 300 * time.Second
	case "auth/slurm":
		ttl = 60 * time.Second
	default:
		return 0, false
	}
	for _, part := range strings.Split(c.values["AuthInfo"], ",") {
		if text, has := strings.CutPrefix(strings.TrimSpace(part), "ttl="); has {
			if n, err := strconv.ParseUint(text, 10, 31); err == nil && n > 0 {
				ttl = time.Duration(n) * time.Second
			}
		}
	}
	return ttl, true
}

// version is a release as numbers: 22.05.8 is 2205.
func (c configuration) version() (major int, err error) {
	parts := strings.SplitN(c.values["SLURM_VERSION"], ".", 3)
	if len(parts) >= 2 {
		year, err1 := strconv.Atoi(parts[0])
		month, err2 := strconv.Atoi(parts[1])
		if err1 == nil && err2 == nil && year > 0 && year < 100 && month > 0 && month <= 12 {
			return year*100 + month, nil
		}
	}
	return 0, fmt.Errorf("cannot read the configuration: the version %.40q is none", c.values["SLURM_VERSION"])
}
