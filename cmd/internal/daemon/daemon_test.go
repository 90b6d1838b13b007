package daemon

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func env(values map[string]string) Lookup {
	return func(name string) (string, bool) {
		v, ok := values[name]
		return v, ok
	}
}

func TestFromEnvironment(t *testing.T) {
	flags := pflag.NewFlagSet("run", pflag.ContinueOnError)
	dir := flags.String("data-dir", "/default", "")
	wait := flags.Duration("wait", time.Second, "")
	given := flags.String("given", "", "")
	empty := flags.String("empty", "x", "")
	if err := flags.Parse([]string{"--given", "flag"}); err != nil {
		t.Fatal(err)
	}
	err := FromEnvironment(flags, "T_", env(map[string]string{"T_DATA_DIR": "/env", "T_GIVEN": "env", "T_EMPTY": "", "WAIT": "9s"}))
	if err != nil || *dir != "/env" || *given != "flag" || *empty != "" || *wait != time.Second {
		t.Errorf("got %q %q %q %s, %v", *dir, *given, *empty, *wait, err)
	}
	err = FromEnvironment(flags, "T_", env(map[string]string{"T_WAIT": "soon"}))
	if err == nil || !strings.Contains(err.Error(), "cannot read environment variable T_WAIT: ") {
		t.Errorf("a bad value gave %v", err)
	}
}

func TestLogger(t *testing.T) {
	for name, tt := range map[string]struct {
		level, journal string
		want           []string
		not            []string
	}{
		"warn":    {"warn", "", []string{"time=", "msg=careful"}, []string{"msg=hello"}},
		"journal": {"info", "8:1234", []string{"msg=hello"}, []string{"time="}},
		"case":    {"DEBUG", "", []string{"msg=hello"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			log, err := Logger(&out, tt.level, env(map[string]string{"JOURNAL_STREAM": tt.journal}))
			if err != nil {
				t.Fatal(err)
			}
			log.Info("hello")
			log.Warn("careful")
			for _, text := range tt.want {
				if !strings.Contains(out.String(), text) {
					t.Errorf("no %q in\n%s", text, &out)
				}
			}
			for _, text := range tt.not {
				if strings.Contains(out.String(), text) {
					t.Errorf("%q in\n%s", text, &out)
				}
			}
		})
	}
	if _, err := Logger(&bytes.Buffer{}, "loud", env(nil)); err == nil || !strings.Contains(err.Error(), `unknown level "loud", expected debug`) {
		t.Errorf("a bad level gave %v", err)
	}
}
