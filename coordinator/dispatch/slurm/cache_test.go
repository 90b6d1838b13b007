package slurm_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"substrate/coordinator/dispatch"
	"substrate/coordinator/dispatch/slurm"
	"substrate/coordinator/dispatch/transport"
)

func probes(f *fakeSlurm) int {
	n := 0
	for _, l := range f.calls {
		if strings.HasPrefix(l, "sbatch") {
			n++
		}
	}
	return n
}

// TestCacheIsTaken: when a probe's answers are kept, and when another one is made.
func TestCacheIsTaken(t *testing.T) {
	for name, c := range map[string]struct {
		first  func(f *fakeSlurm) // before the first preflight
		then   func(f *fakeSlurm, o *slurm.Options, file string)
		probes int // of both
	}{
		"the same cluster":    {nil, nil, 1},
		"another release":     {nil, func(f *fakeSlurm, _ *slurm.Options, _ string) { f.config["SLURM_VERSION"] = "22.05.9" }, 2},
		"another AuthType":    {nil, func(f *fakeSlurm, _ *slurm.Options, _ string) { f.config["AuthType"] = "auth/slurm" }, 2},
		"other flags":         {nil, func(f *fakeSlurm, _ *slurm.Options, _ string) { f.config["AccountingStoreFlags"] = "(null)" }, 2},
		"another account":     {nil, func(f *fakeSlurm, _ *slurm.Options, _ string) { f.user = "bob" }, 2},
		"another cluster":     {nil, func(f *fakeSlurm, _ *slurm.Options, _ string) { f.config["ClusterName"] = "elm" }, 2},
		"on request":          {nil, func(_ *fakeSlurm, o *slurm.Options, _ string) { o.Reprobe = true }, 2},
		"after a month":       {nil, func(f *fakeSlurm, _ *slurm.Options, _ string) { f.clock.now = f.clock.now.Add(31 * 24 * time.Hour) }, 2},
		"others may write it": {nil, func(_ *fakeSlurm, _ *slurm.Options, file string) { _ = os.Chmod(file, 0o666) }, 2},
		"it is damaged": {nil, func(_ *fakeSlurm, _ *slurm.Options, file string) {
			_ = os.WriteFile(file, []byte(`{"format":1`), 0o600)
		}, 2},
		"the database was away":        {func(f *fakeSlurm) { f.answer = on("sacct", exit(1, "", "Problem talking to the database"), nil) }, nil, 2},
		"no row came in time":          {func(f *fakeSlurm) { f.answer = on("sacct", exit(0, "", ""), nil) }, nil, 2},
		"the hold's call was lost":     {func(f *fakeSlurm) { f.answer = on("scontrol update", exit(137, "", ""), nil) }, nil, 2},
		"accounting is not configured": {func(f *fakeSlurm) { f.answer = on("sacct", exit(1, "", "Slurm accounting storage is disabled"), nil) }, nil, 1},
		"holds are refused":            {func(f *fakeSlurm) { f.answer = on("scontrol update", exit(1, "", "Access/permission denied"), nil) }, nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			o := f.options()
			o.CacheDir = filepath.Join(t.TempDir(), "a", "b")
			if c.first != nil {
				c.first(f)
			}
			f.new(t, o)
			files, _ := filepath.Glob(filepath.Join(o.CacheDir, "*"))
			if len(files) > 1 {
				t.Fatalf("it keeps %v", files)
			}
			if len(files) == 1 {
				if info, err := os.Stat(files[0]); err != nil || info.Mode().Perm() != 0o600 {
					t.Errorf("the file's mode is %v, %v", info.Mode(), err)
				}
			}
			if c.then != nil {
				c.then(f, &o, slices.Concat(files, []string{""})[0])
			}
			r := f.new(t, o).Preflight()
			if n := probes(f); n != c.probes || r.Cached != (c.probes == 1) {
				t.Errorf("%d probes, want %d; cached %v", n, c.probes, r.Cached)
			}
		})
	}
}

// TestReportOfPreflight: every step is told, with its outcome, and each setting that the answers depend on.
func TestReportOfPreflight(t *testing.T) {
	f := newFake()
	f.answer = func(line string, _ transport.Command) (transport.Result, error, bool) {
		return exit(1, "", "Access/permission denied"), nil, strings.HasPrefix(line, "scontrol release")
	}
	o := f.options()
	o.Skew = duration(3 * time.Second)
	r := f.new(t, o).Preflight()
	var got []string
	for _, s := range r.Steps {
		got = append(got, s.Name+" "+s.Outcome.String())
	}
	want := []string{"scontrol show config passed", "version passed", "account passed", "scontrol ping passed", "submit the probe passed", "place hold 1 passed",
		"read hold 1 passed", "open the gate failed", "stop the probe passed", "sacct passed"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	for name, value := range map[string]string{"AuthType": "auth/munge", "MinJobAge": "300 sec", "credentialTTL": "5m0s", "skew": "3s", "output.dir": "/home/alice/.substrate/output"} {
		if r.Settings[name] != value {
			t.Errorf("%s is %q, want %q", name, r.Settings[name], value)
		}
	}
	if r.Cached || r.ReadOnly || r.Account != "alice" || r.Cluster != "fir" || r.At.IsZero() {
		t.Errorf("got %+v", r)
	}
	if _, ok := dispatch.ReportOf(open(t, o)); !ok {
		t.Error("what Open returns has no report")
	}
}
