package slurm

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

// scriptLimit is below what slurm.conf's max_script_size allows by default.
const scriptLimit = 3 << 20

// script wraps a spec's script: it learns about itself, its outputs are opened, and it takes the wrapper's place, so that signals and the
// exit status are its own. Options that stand in it as #SBATCH lines come after commands, where sbatch does not read them.
func (b *Backend) script(spec dispatch.Spec) (string, error) {
	first, _, _ := strings.Cut(spec.Script, "\n")
	interpreter, argument := shebang(first)
	if interpreter == "" {
		return "", fmt.Errorf("the first line of the script names no interpreter: %.60q", first)
	}
	end := terminator(spec.Script)
	var w strings.Builder
	w.WriteString("#!/bin/sh\n")
	// What failed before the script began is told as Slurm tells that it could not start one.
	fmt.Fprintf(&w, "fail() { echo \"substrate: $1\" >&2; kill -%d $$; exit 1; }\n", launchSignal)
	for _, v := range []struct{ name, value string }{
		{dispatch.EnvJob, coordinator.ShellWord(string(spec.Ref.Job))},
		{dispatch.EnvSubmission, fmt.Sprint(spec.Ref.Submission)},
		{dispatch.EnvAttempt, fmt.Sprint(spec.Ref.Attempt)},
		{dispatch.EnvExecution, `"${SLURM_RESTART_COUNT:-0}"`},
		{dispatch.EnvEpoch, fmt.Sprintf(`"%d.${SLURM_RESTART_COUNT:-0}"`, spec.Ref.Submission)},
		{dispatch.EnvObject, `"$SLURM_JOB_ID"`},
	} {
		fmt.Fprintf(&w, "export %s=%s\n", v.name, v.value)
	}
	if spec.Output != nil {
		dir := b.outputDir(spec.Ref)
		fmt.Fprintf(&w, "o=%s/\"$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}\"\n", coordinator.ShellWord(dir))
		fmt.Fprintf(&w, "(umask 077; mkdir -p %s) || fail 'cannot make the directory of its output'\n", coordinator.ShellWord(dir))
		// In a shell of its own: one that fails to redirect itself ends at once.
		w.WriteString("(: >\"$o.out\") || fail 'cannot open its output'\nexec >\"$o.out\"\n")
		if spec.Output.Merge {
			w.WriteString("exec 2>&1\n")
		} else {
			w.WriteString("(: >\"$o.err\") || fail 'cannot open its output'\nexec 2>\"$o.err\"\n")
		}
	}
	if spec.Workdir != "" { // slurmd goes elsewhere when it cannot enter the directory, and starts the script all the same
		fmt.Fprintf(&w, "cd %s || fail 'cannot enter its directory'\n", coordinator.ShellWord(spec.Workdir))
	}
	w.WriteString("s=$(mktemp \"${TMPDIR:-/tmp}/substrate.XXXXXXXXXX\") || fail 'cannot write its script'\n")
	fmt.Fprintf(&w, "cat >\"$s\" <<'%s' || fail 'cannot write its script'\n%s", end, spec.Script)
	if !strings.HasSuffix(spec.Script, "\n") {
		w.WriteString("\n")
	}
	w.WriteString(end + "\n")
	// The file is read through its descriptor and has no name any more: nothing is left behind, however the job ends.
	w.WriteString("exec 9<\"$s\"\nrm -f \"$s\"\n")
	// The submission's host may have its configuration elsewhere; and commands of the script pass on what it exports.
	w.WriteString("[ -e \"${SLURM_CONF:-}\" ] || unset SLURM_CONF\nunset s o SLURM_EXPORT_ENV\nunset -f fail\n")
	w.WriteString(exports(spec.Env))
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

// carriage holds the one character that sbatch refuses a script for, where it ends a line.
const carriage = dispatch.EnvPrefix + "CR"

// exports sets the variables of a spec.
func exports(env map[string]string) string {
	var w strings.Builder
	returns := false
	for _, name := range slices.Sorted(maps.Keys(env)) {
		text := coordinator.ShellWord(env[name])
		if strings.Contains(text, "\r\n") {
			if !returns {
				w.WriteString(carriage + "=$(printf '\\r')\n")
			}
			returns, text = true, strings.ReplaceAll(text, "\r\n", `'"$`+carriage+`"'`+"\n")
		}
		fmt.Fprintf(&w, "export %s=%s\n", name, text)
	}
	if returns {
		w.WriteString("unset " + carriage + "\n")
	}
	return w.String()
}

// shebang reads an interpreter line as the kernel does: a path, and the rest as one argument.
func shebang(line string) (interpreter, argument string) {
	text, ok := strings.CutPrefix(line, "#!")
	if !ok {
		return "", ""
	}
	text = strings.Trim(text, " \t")
	interpreter, argument, _ = strings.Cut(strings.ReplaceAll(text, "\t", " "), " ")
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

// outputDir is where the executions of a submission write. Job ids may be longer than a file's name, and differ in characters that
// none may have.
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
