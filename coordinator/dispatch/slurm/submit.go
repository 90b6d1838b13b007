package slurm

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"substrate/coordinator/dispatch"
	"substrate/coordinator/dispatch/transport"
)

const mebibyte = 1 << 20

// Submit hands the script to sbatch, held, as a job that Slurm does not requeue.
func (b *Backend) Submit(ctx context.Context, spec dispatch.Spec) (dispatch.ObjectID, error) {
	op := "submit " + spec.Ref.String()
	if err := b.mayChange(op); err != nil {
		return "", err
	}
	argv, script, err := b.submission(spec)
	if err != nil {
		return "", err
	}
	// The job inherits what sbatch has: a clean session, without the settings by which we read answers.
	r, err := b.run(ctx, op, true, transport.Command{Argv: argv, Stdin: []byte(script)})
	if err != nil {
		return "", err
	}
	id, err := parseSubmitted(string(r.Stdout))
	if err != nil {
		return "", fmt.Errorf("cannot %s: %w: %w", op, dispatch.ErrOutcomeUnknown, err)
	}
	return id, nil
}

// parseSubmitted reads sbatch --parsable: the number, and the cluster's name behind a semicolon if there are several.
func parseSubmitted(out string) (dispatch.ObjectID, error) {
	text := strings.TrimSuffix(out, "\n")
	number, cluster, _ := strings.Cut(text, ";")
	if _, ok := numberOf(dispatch.ObjectID(number)); !ok || strings.ContainsAny(cluster, "\n; ") {
		return "", fmt.Errorf("sbatch answers %.80q, which is no number of a job", out)
	}
	return dispatch.ObjectID(number), nil
}

// submission is sbatch's arguments and the script for a spec, or why it is refused.
func (b *Backend) submission(spec dispatch.Spec) (argv []string, script string, err error) {
	refuse := func(err error) ([]string, string, error) {
		return nil, "", fmt.Errorf("cannot submit %s: %w: %w", spec.Ref, dispatch.ErrRefused, err)
	}
	if err := spec.Check(); err != nil {
		return nil, "", err
	}
	if spec.Image != nil {
		return refuse(fmt.Errorf("it wants the container image %.100q, and images are not mapped", spec.Image.Reference))
	}
	if err := checkExtra(spec.Extra); err != nil {
		return refuse(err)
	}
	comment, name, err := mark(spec.Ref, spec.Name, spec.Note)
	if err != nil {
		return refuse(err)
	}
	if script, err = b.script(spec); err != nil {
		return refuse(err)
	}
	workdir := spec.Workdir
	if workdir == "" {
		workdir = b.account.home
	}
	argv = []string{"sbatch", "--parsable", "--hold", "--no-requeue", "--export=ALL", "--output=/dev/null", "--job-name=" + name, "--comment=" + comment,
		"--chdir=" + workdir}
	for _, part := range [][]string{sizes(spec), places(spec), spec.Extra} {
		argv = append(argv, part...)
	}
	size := 0
	for _, a := range argv {
		size += len(a) + 1
	}
	if size > transport.ArgsLimit {
		return refuse(fmt.Errorf("its arguments need %d bytes, more than %d", size, transport.ArgsLimit))
	}
	return argv, script, nil
}

// sizes are the arguments for how much a job wants. Nothing is said of what the spec leaves to the system.
func sizes(spec dispatch.Spec) []string {
	procs := max(spec.ProcsPerNode, 1)
	argv := []string{fmt.Sprintf("--nodes=%d", spec.Nodes), fmt.Sprintf("--ntasks-per-node=%d", procs)}
	if spec.Cores > 0 {
		per := (uint64(spec.Cores) + uint64(procs) - 1) / uint64(procs)
		argv = append(argv, fmt.Sprintf("--cpus-per-task=%d", per))
	}
	if spec.Memory > 0 {
		argv = append(argv, fmt.Sprintf("--mem=%dM", (uint64(spec.Memory)+mebibyte-1)/mebibyte))
	}
	if spec.GPUs > 0 {
		argv = append(argv, fmt.Sprintf("--gres=gpu:%d", spec.GPUs)) // for each node, with every plugin that selects nodes
	}
	if spec.Exclusive {
		argv = append(argv, "--exclusive")
	}
	if spec.Walltime > 0 {
		whole := int64((spec.Walltime + time.Second - 1) / time.Second)
		argv = append(argv, fmt.Sprintf("--time=%d:%02d:%02d", whole/3600, whole/60%60, whole%60))
	}
	return argv
}

// places are the arguments for where it runs and on whose account.
func places(spec dispatch.Spec) (argv []string) {
	for _, p := range []struct{ option, value string }{
		{"--partition", spec.Queue}, {"--account", spec.Account}, {"--qos", spec.QoS}, {"--constraint", spec.Constraint},
	} {
		if p.value != "" {
			argv = append(argv, p.option+"="+p.value)
		}
	}
	return argv
}

// taken are options by which this adapter keeps its promises, or that would make more than one job, or wait.
func taken() []string {
	return strings.Fields(`parsable hold requeue no-requeue export export-file output error input open-mode job-name comment chdir workdir begin array
		wait wrap test-only quiet help usage version clusters cluster get-user-env kill-on-invalid-dep uid gid batch ignore-pbs`)
}

// checkExtra lets arguments through that are options with their values in the same word: anything else could be taken for a script's name. Of
// the short ones only those that have a value: others could be followed by further letters that are options too.
func checkExtra(extra []string) error {
	form := regexp.MustCompile(`^(?:--([a-z][a-z0-9-]*)(?:=(?s:.*))?|-[AcCdFGLnNpqtwx](?s:.+))$`)
	reserved := taken()
	for _, a := range extra {
		m := form.FindStringSubmatch(a)
		switch {
		case m == nil:
			return fmt.Errorf("the argument %.60q is no option; write --option=value as one", a)
		case strings.ContainsAny(a, "\x00\n"):
			return fmt.Errorf("the argument %.60q holds a line's end or a NUL", a)
		}
		if m[1] != "" && abbreviates(m[1], reserved) {
			return fmt.Errorf("the argument %.60q is not for a spec to give", a)
		}
	}
	return nil
}

// abbreviates reports whether getopt could read a long name as one of those.
func abbreviates(name string, reserved []string) bool {
	return slices.ContainsFunc(reserved, func(r string) bool { return strings.HasPrefix(r, name) })
}
