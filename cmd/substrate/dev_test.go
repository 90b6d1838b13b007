package main

import (
	"bytes"
	"strings"
	"testing"
)

// TestDevSaysWhatGoesOn: running jobs outlive a dev whose directory is kept, and it says so.
func TestDevSaysWhatGoesOn(t *testing.T) {
	_, server := startWorld(t)
	for _, c := range []struct {
		name       string
		keep, stop bool
		want       string
	}{
		{"temporary", false, false, "Ctrl-C stops everything."},
		{"kept", true, false, "Jobs that run go on: cancel them before, or begin with --stop-jobs."},
		{"kept, jobs end", true, true, "Ctrl-C stops everything."},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out, errOut bytes.Buffer
			conn, err := dial(endpoint{server: server, token: goodToken})
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			d := &dev{app: &app{out: &out, errOut: &errOut, conn: conn, output: "table"}, dir: "/some where",
				keep: c.keep, stopJobs: c.stop, coordinator: &child{}, nodes: []*child{{}}}
			d.howToGoOn()
			if !strings.Contains(out.String(), c.want) {
				t.Errorf("%q is not in\n%s", c.want, out.String())
			}
			if err := d.sayWhatGoesOn(t.Context()); err != nil {
				t.Fatal(err)
			}
			const running = "still running without the daemons: 1 job. To end what runs: substrate dev --data-dir '/some where' --stop-jobs, then Ctrl-C\n"
			if errOut.String() != running {
				t.Errorf("%q", errOut.String())
			}
		})
	}
}
