package pbs

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"substrate/coordinator"
	"substrate/coordinator/dispatch"
)

// scriptLimit keeps what the server stores for each job in bounds.
const scriptLimit = 3 << 20

// countStarts asks the server which execution this is: no variable of a job tells. The listing is that of the text form: our own values hold no
// line's end that could forge one. Where the server or its commands are out of a node's reach, the outputs of earlier executions are counted, and
// without those it is the first: PBS runs a job again only when an operator orders it.
const countStarts = `n=$(PATH="${PATH:-/usr/bin:/bin}:${PBS_EXEC:-/opt/pbs}/bin:${PBS_O_PATH:-}" timeout 30 qstat -f "$PBS_JOBID" 2>/dev/null | sed -n 's/^    run_count = \([0-9][0-9]*\)$/\1/p')
case $n in
''|*[!0-9]*|0) n=0; while [ -n "$o" ] && [ -e "$o/$PBS_JOBID-$n.out" ]; do n=$((n + 1)); done ;;
*) n=$((n - 1)) ;;
esac
`

// script wraps a spec's script: it learns about itself, its outputs are opened, and it takes the wrapper's place, so that signals are its own.
// Options that stand in it as #PBS lines come after commands, where qsub does not read them.
func (b *Backend) script(spec dispatch.Spec) (string, error) {
	first, _, _ := strings.Cut(spec.Script, "\n")
	interpreter, argument := shebang(first)
	if interpreter == "" {
		return "", fmt.Errorf("the first line of the script names no interpreter: %.60q", first)
	}
	end := terminator(spec.Script)
	var w strings.Builder
	w.WriteString("#!/bin/sh\n")
	// What failed before the script began is told by a signal that nobody else sends; see ended.
	fmt.Fprintf(&w, "fail() { echo \"substrate: $1\" >&2; kill -%d $$; exit 1; }\n", launchSignal)
	where := ""
	if spec.Output != nil {
		where = b.outputDir(spec.Ref)
	}
	fmt.Fprintf(&w, "o=%s\n%s", coordinator.ShellWord(where), countStarts)
	for _, v := range []struct{ name, value string }{
		{dispatch.EnvJob, coordinator.ShellWord(string(spec.Ref.Job))},
		{dispatch.EnvSubmission, fmt.Sprint(spec.Ref.Submission)},
		{dispatch.EnvAttempt, fmt.Sprint(spec.Ref.Attempt)},
		{dispatch.EnvExecution, `"$n"`},
		{dispatch.EnvEpoch, fmt.Sprintf(`"%d.$n"`, spec.Ref.Submission)},
		{dispatch.EnvObject, `"$PBS_JOBID"`},
	} {
		fmt.Fprintf(&w, "export %s=%s\n", v.name, v.value)
	}
	if spec.Output != nil {
		w.WriteString("(umask 077; mkdir -p \"$o\") || fail 'cannot make the directory of its output'\no=$o/$PBS_JOBID-$n\n")
		// In a shell of its own: one that fails to redirect itself ends at once.
		w.WriteString("(: >\"$o.out\") || fail 'cannot open its output'\nexec >\"$o.out\"\n")
		if spec.Output.Merge {
			w.WriteString("exec 2>&1\n")
		} else {
			w.WriteString("(: >\"$o.err\") || fail 'cannot open its output'\nexec 2>\"$o.err\"\n")
		}
	}
	if spec.Workdir != "" {
		fmt.Fprintf(&w, "cd %s || fail 'cannot enter its directory'\n", coordinator.ShellWord(spec.Workdir))
	}
	fmt.Fprintf(&w, "[ -x %s ] || fail 'its interpreter is not there'\n", coordinator.ShellWord(interpreter))
	w.WriteString("s=$(mktemp \"${TMPDIR:-/tmp}/substrate.XXXXXXXXXX\") || fail 'cannot write its script'\n")
	fmt.Fprintf(&w, "cat >\"$s\" <<'%s' || fail 'cannot write its script'\n%s", end, spec.Script)
	if !strings.HasSuffix(spec.Script, "\n") {
		w.WriteString("\n")
	}
	w.WriteString(end + "\n")
	// The file is read through its descriptor and has no name any more: nothing is left behind, however the job ends.
	w.WriteString("exec 9<\"$s\"\nrm -f \"$s\"\n")
	w.WriteString("unset s o n " + markVariable + "\nunset -f fail\n")
	for _, name := range slices.Sorted(maps.Keys(spec.Env)) {
		fmt.Fprintf(&w, "export %s=%s\n", name, coordinator.ShellWord(spec.Env[name]))
	}
	w.WriteString("exec " + coordinator.ShellWord(interpreter))
	if argument != "" {
		w.WriteString(" " + coordinator.ShellWord(argument))
	}
	w.WriteString(" /dev/fd/9\n")
	if w.Len() > scriptLimit {
		return "", fmt.Errorf("script and variables have %d bytes, more than %d", w.Len(), scriptLimit)
	}
	return w.String(), nil
}

// shebang reads an interpreter line as the kernel does: a path, and the rest as one argument.
func shebang(line string) (interpreter, argument string) {
	text, ok := strings.CutPrefix(line, "#!")
	if !ok {
		return "", ""
	}
	interpreter, argument, _ = strings.Cut(strings.ReplaceAll(strings.Trim(text, " \t"), "\t", " "), " ")
	if !strings.HasPrefix(interpreter, "/") {
		return "", ""
	}
	return interpreter, strings.TrimSpace(argument)
}

// terminator is a line that the script does not have.
func terminator(script string) string {
	for n := 0; ; n++ { // ends: a script has only so many lines
		end := fmt.Sprintf("substrate_%d", n)
		if !strings.Contains("\n"+script+"\n", "\n"+end+"\n") {
			return end
		}
	}
}

// outputDir is where the executions of a submission write. Job ids may be longer than a file's name, and hold characters that none may have.
func (b *Backend) outputDir(ref dispatch.Ref) string {
	const most = 60
	readable := strings.Map(func(r rune) rune {
		if r == '/' || r == ':' {
			return '_'
		}
		return r
	}, string(ref.Job))
	sum := sha256.Sum256([]byte(ref.Job))
	name := readable[:min(len(readable), most)] + "-" + hex.EncodeToString(sum[:8])
	return path.Join(b.opt.OutputDir, name, fmt.Sprintf("%d.%d", ref.Submission, ref.Attempt))
}
