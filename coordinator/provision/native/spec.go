package native

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"substrate/coordinator"
	"substrate/coordinator/dispatch"
	"substrate/coordinator/spec"
)

// Refusal says why a job cannot be handed over to a batch system, "" if it can. It is the same for all systems.
func Refusal(j *coordinator.JobSpec) string {
	r := &j.Resources
	switch {
	case j.Image != "":
		return fmt.Sprintf("wants the image %.100q, and jobs that are handed over to a batch system run without one", j.Image)
	case j.Nodes > 1:
		return fmt.Sprintf("wants %d nodes, and only jobs of one node are handed over to a batch system", j.Nodes)
	case j.Kind == coordinator.KindService:
		return "is a service, and a batch system ends every job: use a definition of mode pilot"
	case j.Walltime <= 0:
		return "has no time limit, and a batch system ends every job"
	case r.Threads:
		return "counts hardware threads, and a batch system gives whole cores"
	case r.Sockets > 0 || r.Affinity == coordinator.AffinitySocket || r.Affinity == coordinator.AffinityNUMA:
		return "says where on the machine its cores are, and that is the batch system's to choose"
	}
	for _, m := range j.Mounts {
		if m.Source != m.Target {
			return fmt.Sprintf("wants %.100q at %.100q, and jobs of a batch system see paths where they are", m.Source, m.Target)
		}
	}
	return textRefusal(j)
}

// textRefusal is for what would not arrive as it is.
func textRefusal(j *coordinator.JobSpec) string {
	size := 0
	for i, word := range j.Command {
		if strings.ContainsRune(word, 0) {
			return fmt.Sprintf("word %d of its command holds a NUL byte", i+1)
		}
		size += len(quote(word)) + 1
	}
	if size += len(j.Script); size > dispatch.ScriptLimit/2 { // quoted, and with what stands around it
		return fmt.Sprintf("its command or script has %d bytes, more than %d", size, dispatch.ScriptLimit/2)
	}
	switch {
	case strings.ContainsRune(j.Script, 0):
		return "its script holds a NUL byte"
	case strings.Contains(j.Script, "\r\n"):
		return "a line of its script ends with CR LF, and no interpreter takes that"
	case strings.HasPrefix(j.Script, "#!") && !strings.HasPrefix(strings.TrimLeft(j.Script[2:], " \t"), "/"):
		return "the first line of its script names an interpreter without a whole path"
	}
	for _, kv := range j.Env {
		name, value, _ := strings.Cut(kv, "=")
		switch {
		case strings.HasPrefix(name, dispatch.EnvPrefix):
			return fmt.Sprintf("sets the variable %s, and names that begin with %s tell a job of a batch system about itself", name, dispatch.EnvPrefix)
		case slices.Contains(shellOwn(), name):
			return fmt.Sprintf("sets the variable %s, which the shells that start a job of a batch system set themselves", name)
		case len(value) > dispatch.EnvLimit:
			return fmt.Sprintf("the variable %s has %d bytes, more than %d", name, len(value), dispatch.EnvLimit)
		case strings.ContainsRune(value, 0):
			return fmt.Sprintf("the variable %s holds a NUL byte", name)
		}
	}
	return ""
}

// shellOwn are the variables that bash and other shells do not take, or change.
func shellOwn() []string {
	return []string{"_", "BASHOPTS", "BASHPID", "BASH_VERSINFO", "EUID", "IFS", "LINENO", "OLDPWD", "PPID", "PWD", "SHELLOPTS", "SHLVL", "UID"}
}

// jobID is what a run is found again by. Each run is a job of its own for the system: attempts are their owner's to order.
func jobID(prefix dispatch.JobID, run coordinator.RunID) dispatch.JobID {
	id := prefix + dispatch.JobID(strings.ReplaceAll(string(run), "#", ":"))
	if (dispatch.Ref{Job: id, Submission: 1, Attempt: 1}).Check() == nil {
		return id
	}
	sum := sha256.Sum256([]byte(run))
	workflow, _, _ := strings.Cut(string(run), "/")
	id = prefix + dispatch.JobID(workflow+"/"+hex.EncodeToString(sum[:16]))
	if (dispatch.Ref{Job: id, Submission: 1, Attempt: 1}).Check() == nil {
		return id
	}
	return prefix + dispatch.JobID(hex.EncodeToString(sum[:]))
}

// submission is what a run asks of the system: its own resources, within what its definition allows, and the definition's place.
func submission(o *Order, ref dispatch.Ref) (dispatch.Spec, error) {
	if o.Definition == nil {
		return dispatch.Spec{}, fmt.Errorf("its definition is gone from the configuration")
	}
	w, ok := spec.RequestOf(o.Definition.Spec)
	if !ok || w.Mode != spec.ModeNative {
		return dispatch.Spec{}, fmt.Errorf("definition %s does not hand jobs over to a batch system any more", o.Definition.ID)
	}
	if why := Refusal(o.Job); why != "" {
		return dispatch.Spec{}, fmt.Errorf("it %s", why)
	}
	r := &o.Job.Resources
	s := dispatch.Spec{
		Ref: ref, Name: nameOf(o), Script: script(o.Job), Env: environment(o), Nodes: 1, Cores: r.Cores, Memory: r.TotalMemory(),
		GPUs: r.Devices[coordinator.DeviceNVIDIA], Walltime: o.Job.Walltime, Exclusive: r.Exclusive != coordinator.ExclusiveNone || o.Definition.Exclusive != coordinator.ExclusiveNone,
		Queue: w.Queue, Account: w.Account, QoS: w.QOS, Constraint: w.Constraint, Extra: w.ExtraDirectives, Output: &dispatch.Output{},
	}
	for kind, n := range r.Devices {
		if kind != coordinator.DeviceNVIDIA && n > 0 {
			return dispatch.Spec{}, fmt.Errorf("it wants %d × %s, which no batch system is asked for", n, kind)
		}
	}
	return s, s.Check()
}

const nameLimit = 120

func nameOf(o *Order) string {
	name := strings.ToValidUTF8(o.Name, "_")
	for len(name) > nameLimit {
		_, size := utf8.DecodeLastRuneInString(name)
		name = name[:len(name)-size]
	}
	return name
}

// environment adds to a run's own variables what an agent tells every run.
func environment(o *Order) map[string]string {
	env := map[string]string{"LANG": "C.UTF-8", "SUBSTRATE_CORES": fmt.Sprint(o.Job.Resources.Cores), "SUBSTRATE_RANK": "0"}
	for _, kv := range o.Env {
		if name, value, ok := strings.Cut(kv, "="); ok && name != "" {
			env[name] = value
		}
	}
	env["SUBSTRATE_RUN_ID"] = string(o.Run)
	return env
}

// script is what the job runs: the script as it is, or the command in the place of a shell, so that signals and the exit status are its own.
func script(j *coordinator.JobSpec) string {
	if j.Script != "" {
		if rest, ok := strings.CutPrefix(j.Script, "#!"); ok {
			return "#!" + strings.TrimLeft(rest, " \t")
		}
		return "#!/bin/sh\n" + j.Script
	}
	var b strings.Builder
	b.WriteString("#!/bin/bash -p\nexec 9<&-\nexec --") // the descriptor that it was read from; no start files
	for _, word := range j.Command {
		b.WriteString(" " + quote(word))
	}
	b.WriteString("\n")
	return b.String()
}

// quote is any bytes but NUL as one word of bash, in letters that no way to a batch system changes.
func quote(word string) string {
	plain := strings.IndexFunc(word, func(r rune) bool { return r < ' ' || r > '~' }) < 0
	if plain && utf8.ValidString(word) {
		return coordinator.ShellWord(word)
	}
	var b strings.Builder
	b.WriteString("$'")
	for i := range len(word) {
		switch c := word[i]; {
		case c == '\'' || c == '\\':
			b.WriteString("\\" + string(c))
		case c < ' ' || c > '~':
			fmt.Fprintf(&b, "\\%03o", c) // three digits end it, whatever follows
		default:
			b.WriteByte(c)
		}
	}
	b.WriteString("'")
	return b.String()
}

// prefixOf begins the job ids of a cluster's runs. Pilots have another: what one side does not know it ends.
func prefixOf(cluster string) dispatch.JobID {
	return dispatch.JobID(path.Join("substrate-run", cluster) + "/")
}
