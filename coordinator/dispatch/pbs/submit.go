package pbs

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"substrate/coordinator/dispatch"
	"substrate/coordinator/dispatch/transport"
)

// Submit hands the script to qsub, held by its user, as a job that PBS does not run again. -f: no process stays behind.
func (b *Backend) Submit(ctx context.Context, spec dispatch.Spec) (dispatch.ObjectID, error) {
	op := "submit " + spec.Ref.String()
	if err := b.mayChange(op); err != nil {
		return "", err
	}
	argv, script, err := b.submission(spec)
	if err != nil {
		return "", err
	}
	r, err := b.run(ctx, op, true, transport.Command{Argv: argv, Env: reading(), Stdin: []byte(script)})
	if err != nil {
		return "", err
	}
	id, err := parseSubmitted(string(r.Stdout))
	if err != nil {
		return "", fmt.Errorf("cannot %s: %w: %w", op, dispatch.ErrOutcomeUnknown, err)
	}
	return id, nil
}

// parseSubmitted reads qsub's answer: the identifier, alone.
func parseSubmitted(out string) (dispatch.ObjectID, error) {
	id := dispatch.ObjectID(strings.TrimSuffix(out, "\n"))
	if _, ok := sequence(id); !ok {
		return "", fmt.Errorf("qsub answers %.80q, which is no job's identifier", out)
	}
	return id, nil
}

// submission is qsub's arguments and the script for a spec, or why it is refused.
func (b *Backend) submission(spec dispatch.Spec) (argv []string, script string, err error) {
	refuse := func(err error) ([]string, string, error) {
		return nil, "", fmt.Errorf("cannot submit %s: %w: %w", spec.Ref, dispatch.ErrRefused, err)
	}
	if err := spec.Check(); err != nil {
		return nil, "", err
	}
	switch {
	case spec.Image != nil:
		return refuse(fmt.Errorf("it wants the container image %.100q, and images are not mapped", spec.Image.Reference))
	case spec.QoS != "":
		return refuse(fmt.Errorf("it wants the quality of service %.60q, and PBS has none; name a queue", spec.QoS))
	}
	if err := checkExtra(spec.Extra); err != nil {
		return refuse(err)
	}
	chunk, err := selection(spec)
	if err != nil {
		return refuse(err)
	}
	if script, err = b.script(spec); err != nil {
		return refuse(err)
	}
	name := spec.Name
	if name == "" {
		name = string(spec.Ref.Job)
	}
	place := "scatter" // a chunk is a node's share
	if spec.Exclusive {
		place += ":excl"
	}
	argv = []string{"qsub", "-f", "-h", "-r", "n", "-m", "n", "-N", showName(name), "-S", "/bin/sh", "-j", "oe", "-o", "/dev/null",
		"-v", markVariable + "=" + mark(spec.Ref, spec.Name, spec.Note, spec.Output != nil), "-l", "select=" + chunk, "-l", "place=" + place}
	if spec.Walltime > 0 {
		argv = append(argv, "-l", "walltime="+formatDuration(spec.Walltime))
	}
	for _, p := range []struct{ noun, option, value string }{{"queue", "-q", spec.Queue}, {"project", "-P", spec.Account}} {
		if p.value == "" {
			continue
		}
		if !plain(p.value) {
			return refuse(fmt.Errorf("the %s %.60q is not printable, or begins with a dash", p.noun, p.value))
		}
		argv = append(argv, p.option, p.value)
	}
	argv = append(argv, spec.Extra...)
	size := 0
	for _, a := range argv {
		size += len(a) + 1
	}
	if size > transport.ArgsLimit {
		return refuse(fmt.Errorf("its arguments need %d bytes, more than %d", size, transport.ArgsLimit))
	}
	return argv, script, nil
}

// plain reports whether a text is one word of visible ASCII that is no option.
func plain(text string) bool {
	for i := range len(text) {
		if text[i] <= ' ' || text[i] > '~' {
			return false
		}
	}
	return text != "" && text[0] != '-'
}

// selection is the chunk that each node gives: "2:ncpus=4:mpiprocs=1:mem=1024b".
func selection(spec dispatch.Spec) (string, error) {
	text := fmt.Sprintf("%d:ncpus=%d:mpiprocs=%d", spec.Nodes, max(spec.Cores, 1), max(spec.ProcsPerNode, 1))
	if spec.Memory > 0 {
		text += fmt.Sprintf(":mem=%db", spec.Memory)
	}
	if spec.GPUs > 0 {
		text += fmt.Sprintf(":ngpus=%d", spec.GPUs)
	}
	if spec.Constraint != "" {
		if !regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]*=[A-Za-z0-9_./@-]+(:[A-Za-z][A-Za-z0-9_.-]*=[A-Za-z0-9_./@-]+)*$`).MatchString(spec.Constraint) {
			return "", fmt.Errorf("the constraint %.100q is no list of a chunk's resources, as host=n1:arch=linux", spec.Constraint)
		}
		text += ":" + spec.Constraint
	}
	return text, nil
}

// checkExtra lets arguments through that are options with their values in the same word. Those that make more than one job, wait, hold, name or
// run something else, or by which this adapter keeps its promises, are not for a spec to give.
func checkExtra(extra []string) error {
	form := regexp.MustCompile(`^-[AlpqPWMR].+$`)
	taken := []string{"block", "depend", "umask", "sandbox", "stagein", "stageout", "run_count", "tolerate_node_failures"}
	for _, a := range extra {
		switch {
		case !form.MatchString(a):
			return fmt.Errorf("the argument %.60q is no option that may be given; write -Aaccount, -lresource=value or -Wattribute=value as one", a)
		case strings.ContainsAny(a, "\x00\n\r"):
			return fmt.Errorf("the argument %.60q holds a line's end or a NUL", a)
		}
		for part := range strings.SplitSeq(a[2:], ",") {
			name, _, _ := strings.Cut(strings.TrimSpace(part), "=")
			if a[1] == 'W' && slices.Contains(taken, name) || a[1] == 'l' && (name == "select" || name == "place" || name == "walltime" || name == "nodes") {
				return fmt.Errorf("the argument %.60q is not for a spec to give: %s is the adapter's own", a, name)
			}
		}
	}
	return nil
}
