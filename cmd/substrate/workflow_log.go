package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"substrate/proto/apiv1"
)

func (a *app) workflowLogCommand() *cobra.Command {
	req := &apiv1.ReadLogRequest{}
	cmd := &cobra.Command{
		Use: "log ID [JOB]", Short: "Print the output of a job, or of all", Args: cobra.RangeArgs(1, 2),
		Long: "Print the output of a job or task. Of a workflow with several, and of a task array, the lines of all are printed\n" +
			"and begin with the name of their job. What went to standard error goes there.",
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Workflow = args[0]
			if len(args) > 1 {
				req.Job = args[1]
			}
			switch req.GetStream() {
			case "", "stdout", "stderr":
			default:
				return usagef("unknown stream %q, expected stdout or stderr", req.GetStream())
			}
			return a.log(cmd.Context(), req)
		},
	}
	cmd.Flags().BoolVarP(&req.Follow, "follow", "f", false, "wait for more until the job ends")
	cmd.Flags().Uint32Var(&req.Attempt, "attempt", 0, "this attempt instead of the newest")
	cmd.Flags().StringVar(&req.Stream, "stream", "", "stdout or stderr only")
	return cmd
}

// readLog prints the bytes as the job wrote them; what it wrote to standard error goes there. Several
// nodes write at one time, so a multinode job's lines come whole and begin with their rank.
func (a *app) readLog(ctx context.Context, req *apiv1.ReadLogRequest) error {
	ranks := ranked{app: a}
	defer ranks.end()
	r := a.logReader(req, func(d *apiv1.LogData) error {
		w := a.out
		if d.GetStream() == "stderr" {
			w = a.errOut
		}
		if d.GetRanks() > 1 {
			ranks.write(w, d)
			return nil
		}
		if _, err := w.Write(d.GetData()); err != nil {
			return fmt.Errorf("cannot write the output: %w", err)
		}
		a.flush()
		return nil
	})
	if req.GetFollow() {
		return a.resume(ctx, false, func() (bool, error) { return r.read(ctx) })
	}
	_, err := r.read(ctx)
	return err
}

// log prints one log as it is, and several with the names of their jobs.
func (a *app) log(ctx context.Context, req *apiv1.ReadLogRequest) error {
	w, err := a.workflow(ctx, req.GetWorkflow())
	if err != nil { // what is wrong, the reading says in its own words
		return a.readLog(ctx, req)
	}
	chosen := jobsNamed(w, req.GetJob())
	switch {
	case len(chosen) == 1 && ended(chosen[0].GetStatus()) && chosen[0].GetStarted() == nil && chosen[0].GetAttempt() > 0:
		if err := a.readLog(ctx, req); err != nil {
			return err
		}
		a.warn("%s did not start: %s", chosen[0].GetName(), printable(chosen[0].GetMessage()))
		return nil
	case len(chosen) < 2:
		return a.readLog(ctx, req)
	case req.GetAttempt() > 0:
		return failf(exitUsage, "name one, such as "+chosen[0].GetName(), "--attempt is one job's, and there are %d here", len(chosen))
	case req.GetFollow():
		return a.followLogs(ctx, req)
	}
	for _, j := range chosen {
		if j.GetStarted() == nil && j.GetAttempt() == 0 { // what waits again has the output of the attempt before
			continue
		}
		out := ranked{app: a, prefix: j.GetName() + " | "}
		one := &apiv1.ReadLogRequest{Workflow: w.GetId(), Job: j.GetName(), Stream: req.GetStream()}
		_, err := a.logReader(one, out.split).read(ctx)
		out.end()
		if err != nil && exitCode(err) != exitNotFound { // one whose output is removed hides no other
			return err
		}
	}
	return nil
}

// followLogs reads the jobs' output as they start, until all have ended.
func (a *app) followLogs(ctx context.Context, req *apiv1.ReadLogRequest) error {
	l := newLogs(a, req.GetWorkflow())
	l.stream, l.split = req.GetStream(), true
	return a.resume(ctx, false, func() (moved bool, err error) {
		for {
			w, err := a.workflow(ctx, l.workflow)
			if err != nil {
				return moved, err
			}
			l.workflow, moved = w.GetId(), true // a name may come to mean a newer one
			over := true
			w.Jobs = jobsNamed(w, req.GetJob())
			for _, j := range w.GetJobs() {
				over = over && ended(j.GetStatus())
			}
			l.follow(ctx, w, over)
			if over {
				l.tasks.Wait()
				return moved, ctx.Err()
			}
			if err := wait(ctx, a.every); err != nil {
				return moved, err
			}
		}
	})
}

// jobsNamed are the job or task of that name, all tasks of an array, or all there are for "".
func jobsNamed(w *apiv1.Workflow, name string) []*apiv1.Job {
	var out []*apiv1.Job
	for _, j := range w.GetJobs() {
		if name == "" || j.GetName() == name || strings.HasPrefix(j.GetName(), name+"/") {
			out = append(out, j)
		}
	}
	return out
}
