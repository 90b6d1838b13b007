package simflags

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"substrate/coordinator"
)

func TestFlags(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want Flags
		err  string
	}{
		"durations in days": {[]string{"--skip", "7d", "--until=30d"}, Flags{Skip: 7 * 24 * time.Hour, Until: 30 * 24 * time.Hour}, ""},
		"maps": {[]string{"--class", "1=batch", "--priority", "physics=40", "--preempts", "physics=a,b", "--preempts", "physics=c"},
			Flags{Classes: map[string]coordinator.Class{"1": coordinator.ClassBatch}, Priorities: map[string]int32{"physics": 40},
				Preempts: map[string][]string{"physics": {"a", "b", "c"}}}, ""},
		"reservations":     {[]string{"--reserve", "a=4", "--reserve", "b=peak@gpu"}, Flags{Reserve: []Reserve{{Group: "a", Size: 4}, {Group: "b", Definition: "gpu"}}}, ""},
		"nothing reserved": {[]string{"--reserve", "a=0"}, Flags{}, `"0" is neither a number from 1 nor peak`},
		"no class":         {[]string{"--class", "1=fast"}, Flags{}, "fast"},
		"no pair":          {[]string{"--priority", "physics"}, Flags{}, "expected GROUP=NUMBER"},
		"no number":        {[]string{"--priority", "physics=much"}, Flags{}, `"much" is not a whole number`},
		"bare number":      {[]string{"--skip", "7"}, Flags{}, "7"},
		"nobody to kill":   {[]string{"--preempts", "a="}, Flags{}, "expected GROUP=GROUP"},
	} {
		t.Run(name, func(t *testing.T) {
			var got Flags
			fs := pflag.NewFlagSet("x", pflag.ContinueOnError)
			got.Add(fs)
			err := fs.Parse(c.args)
			switch {
			case c.err == "" && (err != nil || !reflect.DeepEqual(got, c.want)):
				t.Errorf("got %+v, %v", got, err)
			case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
				t.Errorf("got the error %v", err)
			}
		})
	}
}
