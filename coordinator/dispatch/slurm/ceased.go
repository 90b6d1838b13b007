package slurm

import (
	"context"
	"fmt"
	"strings"

	"substrate/coordinator/dispatch"
	"substrate/coordinator/dispatch/transport"
)

// Statuses of a cessation command. A program that fails for a reason of its own seldom ends with noneCeased; anything but the two is unknown.
const (
	allCeased  = 0
	noneCeased = 3
)

// Ceased runs the site's own command, which looks from outside of Slurm whether an execution's processes are gone: by power, by fencing, on
// the node's console. It is given the job, the execution and its nodes as arguments, and its exit status is the answer.
func (b *Backend) Ceased(ctx context.Context, id dispatch.ObjectID, execution dispatch.Execution) (dispatch.Answer, error) {
	op := fmt.Sprintf("ask whether execution %d of job %s has ceased", execution, id)
	if len(b.opt.CessationCommand) == 0 {
		return dispatch.Unknown, fmt.Errorf("cannot %s: %w: no cessation command is configured", op, dispatch.ErrUnsupported)
	}
	r, pasts, err := b.whole(ctx, op, id)
	if err != nil {
		return dispatch.Unknown, err
	}
	var nodes []string
	if uint32(execution) == r.restarts {
		nodes = r.nodes
	}
	for _, p := range pasts {
		if p.Execution == execution {
			nodes = p.Nodes
		}
	}
	if len(nodes) == 0 {
		return dispatch.Unknown, fmt.Errorf("cannot %s: %w: nothing tells where it ran", op, dispatch.ErrNotFound)
	}
	argv := append(append([]string{}, b.opt.CessationCommand...), string(id), fmt.Sprint(execution), strings.Join(nodes, ","))
	c := transport.Command{Argv: argv, Keep: passed(), Timeout: b.opt.Deadline, Env: []string{
		dispatch.EnvObject + "=" + string(id), fmt.Sprintf("%s=%d", dispatch.EnvExecution, execution), dispatch.EnvPrefix + "NODES=" + strings.Join(nodes, ",")}}
	done, err := b.opt.Runner.Run(ctx, c)
	said := firstLines(strings.TrimSpace(string(done.Stderr)))
	switch {
	case err != nil:
		return dispatch.Unknown, &failure{op: op, kind: dispatch.ErrUnavailable, said: said, err: err, exit: done.Exit}
	case done.Exit == allCeased:
		return dispatch.Yes, nil
	case done.Exit == noneCeased:
		return dispatch.No, nil
	}
	b.opt.Log.Warn("the cessation command does not know", "object", id, "execution", execution, "status", done.Exit, "said", said)
	return dispatch.Unknown, nil
}
