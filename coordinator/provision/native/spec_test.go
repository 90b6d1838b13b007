package native_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"substrate/coordinator"
	"substrate/coordinator/dispatch"
	"substrate/coordinator/provision/native"
	"substrate/coordinator/spec"
)

func plain() coordinator.JobSpec {
	return coordinator.JobSpec{Name: "a", Kind: coordinator.KindJob, Command: []string{"true"}, Nodes: 1, Walltime: time.Hour,
		Resources: coordinator.Resources{Cores: 3, Memory: 2 << 30, ByCore: true, Devices: map[string]uint32{coordinator.DeviceNVIDIA: 1}}}
}

// TestRefusal names everything that no batch system is handed.
func TestRefusal(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*coordinator.JobSpec)
		want   string // "": it is taken
	}{
		"plain":                 {func(*coordinator.JobSpec) {}, ""},
		"a task of an array":    {func(j *coordinator.JobSpec) { j.Array = &coordinator.TaskArray{End: 3} }, ""},
		"its node whole":        {func(j *coordinator.JobSpec) { j.Resources.Exclusive = coordinator.ExclusiveJob }, ""},
		"a mount where it is":   {func(j *coordinator.JobSpec) { j.Mounts = []coordinator.Mount{{Source: "/data", Target: "/data"}} }, ""},
		"a mount elsewhere":     {func(j *coordinator.JobSpec) { j.Mounts = []coordinator.Mount{{Source: "/data", Target: "/x"}} }, "see paths where they are"},
		"an image":              {func(j *coordinator.JobSpec) { j.Image = "busybox" }, "wants the image"},
		"several nodes":         {func(j *coordinator.JobSpec) { j.Nodes = 2 }, "wants 2 nodes"},
		"a service":             {func(j *coordinator.JobSpec) { j.Kind, j.Walltime = coordinator.KindService, 0 }, "is a service"},
		"no time limit":         {func(j *coordinator.JobSpec) { j.Walltime = 0 }, "has no time limit"},
		"hardware threads":      {func(j *coordinator.JobSpec) { j.Resources.Threads = true }, "hardware threads"},
		"one NUMA domain":       {func(j *coordinator.JobSpec) { j.Resources.Affinity = coordinator.AffinityNUMA }, "where on the machine"},
		"NUL in a word":         {func(j *coordinator.JobSpec) { j.Command = []string{"a", "b\x00"} }, "word 2 of its command"},
		"NUL in a variable":     {func(j *coordinator.JobSpec) { j.Env = []string{"A=\x00"} }, "NUL byte"},
		"a variable of ours":    {func(j *coordinator.JobSpec) { j.Env = []string{"DISPATCH_JOB=x"} }, "about itself"},
		"a variable of shells":  {func(j *coordinator.JobSpec) { j.Env = []string{"UID=0"} }, "set themselves"},
		"a long variable":       {func(j *coordinator.JobSpec) { j.Env = []string{"A=" + strings.Repeat("x", 70_000)} }, "more than"},
		"a long command":        {func(j *coordinator.JobSpec) { j.Command = []string{strings.Repeat("x", 1<<20)} }, "more than"},
		"lines of another kind": {func(j *coordinator.JobSpec) { j.Command, j.Script = nil, "echo\r\n" }, "CR LF"},
		"no whole path":         {func(j *coordinator.JobSpec) { j.Command, j.Script = nil, "#!sh\n" }, "whole path"},
	} {
		j := plain()
		c.change(&j)
		got := native.Refusal(&j)
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		_, err := native.Submission(&native.Order{Run: job, Definition: definition(), Job: &j}, dispatch.Ref{Job: "x", Submission: 1, Attempt: 1})
		if (err == nil) != (got == "") {
			t.Errorf("%s: refused as %q, and handed over with %v", name, got, err)
		}
	}
}

// TestSubmission: a run asks for what it wants itself, at its definition's place.
func TestSubmission(t *testing.T) {
	j := plain()
	d := definition()
	d.Spec = spec.Slurm{CPU: 8, Memory: 64 << 30, GPUs: 4, Partition: "batch", Account: "acct", QOS: "normal", Constraint: "big", Mode: spec.ModeNative, ExtraDirectives: []string{"--nice=5"}}
	got, err := native.Submission(&native.Order{Run: job, Name: "w/a", Definition: d, Job: &j, Env: []string{"A=1", "A=2"}}, dispatch.Ref{Job: "x", Submission: 2, Attempt: 1})
	if err != nil {
		t.Fatal(err)
	}
	if got.Nodes != 1 || got.Cores != 3 || got.Memory != 6<<30 || got.GPUs != 1 || got.Walltime != time.Hour || got.Queue != "batch" || got.Account != "acct" ||
		got.QoS != "normal" || got.Constraint != "big" || !slices.Equal(got.Extra, []string{"--nice=5"}) || got.Output == nil || got.Output.Merge || got.Exclusive {
		t.Errorf("it is %+v", got)
	}
	if got.Env["A"] != "2" || got.Env["SUBSTRATE_RUN_ID"] != string(job) || got.Env["SUBSTRATE_CORES"] != "3" {
		t.Errorf("its variables are %v", got.Env)
	}
	d.Spec = spec.Slurm{CPU: 8, Memory: 64 << 30, Mode: spec.ModePilot}
	if _, err := native.Submission(&native.Order{Run: job, Definition: d, Job: &j}, got.Ref); err == nil {
		t.Error("a definition of pilots hands a job over")
	}
}

// TestCommandArrives: words of any bytes but NUL are the program's arguments, whatever they are.
func TestCommandArrives(t *testing.T) {
	dir := t.TempDir()
	show := filepath.Join(dir, "show")
	if err := os.WriteFile(show, []byte("#!/bin/sh\nfor a; do printf '%s\\0' \"$a\"; done\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	word := rapid.Custom(func(t *rapid.T) string {
		return string(rapid.SliceOfN(rapid.OneOf(rapid.ByteRange(1, 255), rapid.SampledFrom([]byte("'\"\\$`\r\n\t!*~-0189"))), 0, 12).Draw(t, "bytes"))
	})
	file := filepath.Join(dir, "script")
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOfN(word, 0, 5).Draw(t, "words")
		j := plain()
		j.Command = append([]string{show}, words...)
		s, err := native.Submission(&native.Order{Run: job, Definition: definition(), Job: &j}, dispatch.Ref{Job: "x", Submission: 1, Attempt: 1})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []byte(s.Script) {
			if c >= 0x80 || c < ' ' && c != '\n' {
				t.Fatalf("the script holds the byte %#x: %q", c, s.Script)
			}
		}
		if err := os.WriteFile(file, []byte(s.Script), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("/bin/bash", "-p", file).Output()
		var want bytes.Buffer
		for _, w := range words {
			want.WriteString(w + "\x00")
		}
		if err != nil || !bytes.Equal(out, want.Bytes()) {
			t.Fatalf("%q arrives as %q, %v; the script is %q", words, out, err, s.Script)
		}
	})
}

// TestJobIDs: every run has an id that batch systems take, and no two have the same.
func TestJobIDs(t *testing.T) {
	seen := map[dispatch.JobID]coordinator.RunID{}
	for _, run := range []coordinator.RunID{"01a2/a#1", "01a2/a#2", "01a2/a/1#1", "01a2/ü#1", "01a2/v#1", coordinator.RunID("01a2/" + strings.Repeat("x", 300) + "#1"), coordinator.RunID("01a2/" + strings.Repeat("x", 300) + "#2")} {
		id := native.JobID("c1", run)
		if err := (dispatch.Ref{Job: id, Submission: 1, Attempt: 1}).Check(); err != nil || !strings.HasPrefix(string(id), "substrate-run/c1/") {
			t.Errorf("%s: %s, %v", run, id, err)
		}
		if other, twice := seen[id]; twice {
			t.Errorf("%s and %s are both %s", run, other, id)
		}
		seen[id] = run
	}
}
