package pbs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"substrate/coordinator/dispatch"
)

func seed(f *testing.F, glob string) {
	f.Helper()
	files, err := filepath.Glob("testdata/" + glob)
	if err != nil || len(files) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
}

// sane checks what holds for whatever was read.
func sane(t *testing.T, list []record, err error) {
	t.Helper()
	if err != nil && list != nil {
		t.Error("an error, and records")
	}
	ids := map[string]bool{}
	for i := range list {
		r := &list[i]
		if ids[r.id] {
			t.Errorf("%q stands twice", r.id)
		}
		ids[r.id] = true
		o := observe(r, "alice", nobody)
		if !utf8.ValidString(o.Raw) || !utf8.ValidString(o.Name) || !utf8.ValidString(o.Note) {
			t.Errorf("%+v is no text", o)
		}
		if o.State == dispatch.StateSucceeded && (r.state != "F" && r.state != "X" || o.ExitCode == nil || *o.ExitCode != 0) {
			t.Errorf("success without its evidence: %+v", r)
		}
		if !o.State.Ended() && (o.ExitCode != nil || o.Signal != nil || !o.Ended.IsZero()) {
			t.Errorf("the end of what is not over: %+v", o)
		}
		if o.Hold >= dispatch.EpochBound || o.Hold != 0 && o.State != dispatch.StatePending || o.Execution >= dispatch.EpochBound {
			t.Errorf("out of bounds: %+v", o)
		}
		if r.user() != "alice" && o.Ref != (dispatch.Ref{}) {
			t.Errorf("somebody else's mark is believed: %+v", o)
		}
	}
}

func FuzzJSON(f *testing.F) {
	seed(f, "listings/*.json")
	f.Fuzz(func(t *testing.T, data []byte) {
		list, err := parseJSON(data, everything)
		sane(t, list, err)
	})
}

func FuzzDSV(f *testing.F) {
	seed(f, "listings/*.dsv")
	f.Fuzz(func(t *testing.T, data []byte) {
		list, err := parseDSV(data, "|", everything)
		sane(t, list, err)
	})
}

func FuzzNodes(f *testing.F) {
	seed(f, "nodes/*.json")
	f.Add([]byte("Name=n1|state=down|Mom=n1|\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if list, err := parseNodesJSON(data); err == nil {
			for _, n := range list {
				if n.silent() && !strings.Contains(n.state, "down") {
					t.Errorf("%+v is lost", n)
				}
			}
		}
		if list, err := parseNodesDSV(data, "|"); err == nil {
			for _, n := range list {
				if n.name == "" {
					t.Error("a node without a name")
				}
			}
		}
	})
}

func FuzzServer(f *testing.F) {
	f.Add("Server vm\n    job_history_enable = True\n")
	f.Add("Server vm\n    managers = a@x,\n\tb@y\n")
	f.Fuzz(func(t *testing.T, text string) {
		if name, _, err := parseServer(text); err == nil && (name == "" || strings.ContainsAny(name, " \n")) {
			t.Errorf("%q names the server %q", text, name)
		}
	})
}

func FuzzSubmitted(f *testing.F) {
	f.Add("12.vm\n")
	f.Add("12[].vm")
	f.Fuzz(func(t *testing.T, text string) {
		if id, err := parseSubmitted(text); err == nil && (id == "" || id[0] == '-' || strings.ContainsAny(string(id), " \n[]")) {
			t.Errorf("%q is the job %q", text, id)
		}
	})
}

func FuzzDuration(f *testing.F) {
	f.Add("100:00:00")
	f.Fuzz(func(t *testing.T, text string) {
		if d, err := parseDuration(text); err == nil && d < 0 {
			t.Errorf("%q is %v", text, d)
		}
	})
}

// FuzzMark: what was written is read back, and nothing else is.
func FuzzMark(f *testing.F) {
	f.Add("job", "name", "note", "v1_xxx")
	f.Fuzz(func(t *testing.T, job, name, note, odd string) {
		unmark(odd)
		ref := dispatch.Ref{Job: dispatch.JobID(job), Submission: 1, Attempt: 2}
		spec := dispatch.Spec{Ref: ref, Name: name, Note: note, Script: "#!/bin/sh\n", Nodes: 1}
		if spec.Check() != nil {
			return
		}
		text := mark(ref, name, note, true)
		if strings.Trim(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") != "" {
			t.Errorf("the mark %q needs quotes", text)
		}
		want := name
		if want == "" {
			want = job
		}
		if m := unmark(text); m.ref != ref || m.name != want || m.note != note || !m.keeps {
			t.Errorf("%q comes back as %+v", text, m)
		}
		shown := showName(name)
		if shown == "" || len(shown) > nameLimit+2 || strings.Trim(shown, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") != "" ||
			strings.ContainsAny(shown[:1], "0123456789.-_") {
			t.Errorf("%q is shown as %q", name, shown)
		}
	})
}
