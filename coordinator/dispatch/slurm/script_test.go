package slurm

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"substrate/coordinator/dispatch"
)

// runScript runs what sbatch would be given as slurmd does, as job 7 in its n-th execution.
func runScript(t *testing.T, b *Backend, spec dispatch.Spec, restart string) (stdout, stderr string, err error) {
	t.Helper()
	text, err := b.script(spec)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(text, "\r\n") {
		t.Errorf("sbatch refuses lines that end so:\n%q", text)
	}
	file := filepath.Join(t.TempDir(), "slurm_script")
	if err := os.WriteFile(file, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	var out, said bytes.Buffer
	cmd := exec.Command(file)
	cmd.Stdout, cmd.Stderr, cmd.Dir = &out, &said, "/"
	cmd.Env = []string{"PATH=/usr/bin:/bin", "SLURM_JOB_ID=7", "SLURM_EXPORT_ENV=NONE", "SLURM_CONF=/nonexistent/slurm.conf", "TMPDIR=" + t.TempDir()}
	if restart != "" {
		cmd.Env = append(cmd.Env, "SLURM_RESTART_COUNT="+restart)
	}
	err = cmd.Run()
	left, _ := filepath.Glob(filepath.Join(strings.TrimPrefix(cmd.Env[4], "TMPDIR="), "*"))
	if len(left) > 0 {
		t.Errorf("it leaves %v behind", left)
	}
	return out.String(), said.String(), err
}

func scriptSpec(script string) dispatch.Spec {
	return dispatch.Spec{Ref: dispatch.Ref{Job: "org/it:s", Submission: 12, Attempt: 7}, Script: script, Nodes: 1}
}

// TestScriptRuns: the script is the job's own process, knows itself, and has its variables, whatever stands in it.
func TestScriptRuns(t *testing.T) {
	b := &Backend{opt: Options{OutputDir: t.TempDir()}}
	env := map[string]string{"A": "it's $HOME `id` \"x\"\n\\n\r\n\r\n", "PATH": "/nowhere", "S": ""}
	for name, c := range map[string]struct{ script, restart, want string }{
		"itself": {"#!/bin/sh\necho $DISPATCH_JOB $DISPATCH_SUBMISSION $DISPATCH_ATTEMPT $DISPATCH_EXECUTION $DISPATCH_EPOCH $DISPATCH_OBJECT\n", "",
			"org/it:s 12 7 0 12.0 7\n"},
		"its second execution":        {"#!/bin/sh\necho $DISPATCH_EXECUTION $DISPATCH_EPOCH\n", "1", "1 12.1\n"},
		"its variables":               {"#!/bin/sh\nprintf '%s|' \"$A\" \"$PATH\" \"${S-unset}\" \"${SLURM_EXPORT_ENV-unset}\" \"${SLURM_CONF-unset}\" \"${DISPATCH_CR-unset}\"", "", env["A"] + "|/nowhere||unset|unset|unset|"},
		"another interpreter":         {"#!/usr/bin/awk -f\nBEGIN { print \"awk\" }\n", "", "awk\n"},
		"an interpreter by env":       {"#!/usr/bin/env sh\necho env\n", "", "env\n"},
		"blanks and tabs":             {"#! \t/bin/sh  -e \nfalse\necho no\n", "", ""},
		"lines that end here-texts":   {"#!/bin/sh\ncat <<'substrate_0'\n$x `y`\nsubstrate_0\ncat <<E\n\\\nE\n", "", "$x `y`\n"},
		"its last line has no end":    {"#!/bin/sh\necho last", "", "last\n"},
		"options of a batch script":   {"#!/bin/sh\n#SBATCH --array=1-9\necho one\n", "", "one\n"},
		"bytes that are no text":      {"#!/bin/sh\nprintf '\xff\xfe'\n", "", "\xff\xfe"},
		"it reads what has no input":  {"#!/bin/sh\ncat\necho done\n", "", "done\n"},
		"a long one":                  {"#!/bin/sh\n" + strings.Repeat("# "+strings.Repeat("x", 98)+"\n", 5000) + "echo end\n", "", "end\n"},
		"a backslash ends its script": {"#!/bin/sh\necho a \\", "", "a\n"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := scriptSpec(c.script)
			spec.Env = env
			if strings.Contains(c.script, "cat") || strings.Contains(c.script, "env sh") || strings.Contains(c.script, "awk") {
				spec.Env = nil
			}
			if out, said, err := runScript(t, b, spec, c.restart); out != c.want || err != nil && name != "blanks and tabs" {
				t.Errorf("got %q, %v, want %q (%s)", out, err, c.want, said)
			}
		})
	}
}

// TestScriptEnds: status and signal are the script's own.
func TestScriptEnds(t *testing.T) {
	b := &Backend{opt: Options{OutputDir: t.TempDir()}}
	var end *exec.ExitError
	if _, _, err := runScript(t, b, scriptSpec("#!/bin/sh\nexit 255\n"), ""); !errors.As(err, &end) || end.ExitCode() != 255 {
		t.Errorf("got %v", err)
	}
	if _, _, err := runScript(t, b, scriptSpec("#!/bin/sh\nkill -9 $$\n"), ""); !errors.As(err, &end) || end.Sys().(syscall.WaitStatus).Signal() != 9 {
		t.Errorf("got %v", err)
	}
}

// TestScriptOutputs: each execution has files of its own, in which nothing is lost.
func TestScriptOutputs(t *testing.T) {
	b := &Backend{opt: Options{OutputDir: filepath.Join(t.TempDir(), "it's")}}
	read := func(name string) string {
		data, err := os.ReadFile(filepath.Join(b.outputDir(scriptSpec("").Ref), name))
		if err != nil {
			return err.Error()
		}
		return string(data)
	}
	spec := scriptSpec("#!/bin/sh\necho out $DISPATCH_EXECUTION\necho err >&2\n")
	spec.Output = &dispatch.Output{}
	for _, restart := range []string{"", "1"} {
		if out, said, err := runScript(t, b, spec, restart); out != "" || said != "" || err != nil {
			t.Errorf("it wrote %q and %q elsewhere, %v", out, said, err)
		}
	}
	if read("7-0.out") != "out 0\n" || read("7-1.out") != "out 1\n" || read("7-0.err") != "err\n" {
		t.Errorf("the files are %q, %q, %q", read("7-0.out"), read("7-1.out"), read("7-0.err"))
	}
	spec.Output.Merge = true
	if _, _, err := runScript(t, b, spec, "2"); err != nil || read("7-2.out") != "out 2\nerr\n" {
		t.Errorf("together: %q, %v", read("7-2.out"), err)
	}
}

// TestScriptCannotBegin: what fails before it begins ends as slurmd's own launch failures do.
func TestScriptCannotBegin(t *testing.T) {
	dir := t.TempDir()
	blocked := filepath.Join(dir, "file")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	noDir := scriptSpec("#!/bin/sh\necho ran\n")
	noDir.Workdir = filepath.Join(dir, "missing")
	noOutput := scriptSpec("#!/bin/sh\necho ran\n")
	noOutput.Output = &dispatch.Output{}
	for name, c := range map[string]struct {
		b    *Backend
		spec dispatch.Spec
		says string
	}{
		"no directory": {&Backend{opt: Options{OutputDir: dir}}, noDir, "cannot enter its directory"},
		"no output":    {&Backend{opt: Options{OutputDir: blocked}}, noOutput, "cannot make the directory of its output"},
	} {
		t.Run(name, func(t *testing.T) {
			var end *exec.ExitError
			out, said, err := runScript(t, c.b, c.spec, "")
			if !errors.As(err, &end) || end.Sys().(syscall.WaitStatus).Signal() != launchSignal || strings.Contains(out, "ran") || !strings.Contains(said, c.says) {
				t.Errorf("got %v, %q, %q", err, out, said)
			}
		})
	}
}

func TestOutputDirs(t *testing.T) {
	b := &Backend{opt: Options{OutputDir: "/out"}}
	seen := map[string]bool{}
	for _, job := range []dispatch.JobID{"a/b", "a_b", "a:b", "a", dispatch.JobID(strings.Repeat("x", 200)), dispatch.JobID(strings.Repeat("x", 199)), "a..", "a/../b"} {
		dir := b.outputDir(dispatch.Ref{Job: job, Submission: 1, Attempt: 1})
		if seen[dir] || filepath.Dir(filepath.Dir(dir)) != "/out" || len(filepath.Base(filepath.Dir(dir))) > 100 {
			t.Errorf("%s writes into %s", job, dir)
		}
		seen[dir] = true
	}
}
