package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"substrate/proto/apiv1"
)

const maxWorkflowBytes = 3 << 20

func (a *app) workflowCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "workflow", Short: "Start and follow work"}
	var status string
	list := &cobra.Command{Use: "list", Short: "List workflows, newest first", Args: cobra.NoArgs}
	list.Flags().StringVar(&status, "status", "", "only workflows in this status")
	cmd.AddCommand(
		a.workflowStartCommand(),
		a.watchable(list, func(ctx context.Context) error {
			if err := knownWord("status", status, statuses()); err != nil {
				return err
			}
			return a.listWorkflows(ctx, status)
		}),
		a.workflowStatusCommand(),
		&cobra.Command{Use: "describe ID", Short: "Show a workflow with all its jobs", Args: cobra.ExactArgs(1), RunE: a.describeWorkflow},
		a.workflowEventsCommand(), a.workflowLogCommand(), a.workflowCancelCommand(),
		&cobra.Command{
			Use: "explain ID [JOB]", Short: "Say why jobs wait and which definitions they may use", Args: cobra.RangeArgs(1, 2),
			RunE: a.explainWorkflow,
		},
		a.workflowValidateCommand(), a.workflowScoreCommand(),
	)
	return cmd
}

func (a *app) workflowStartCommand() *cobra.Command {
	req := &apiv1.StartWorkflowRequest{}
	var preemptible, watch, follow bool
	cmd := &cobra.Command{
		Use: "start FILE", Short: "Submit a workflow file (- is standard input)", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("preemptible") {
				req.Preemptible = &preemptible
			}
			if req.GetPriority() > 0 {
				return usagef("--priority is at most 0: users lower their own work, administrators raise it")
			}
			var err error
			if req.Yaml, err = a.readFile(args[0], maxWorkflowBytes); err != nil {
				return err
			}
			req.File = fileName(args[0])
			if req.IdempotencyKey == "" {
				req.IdempotencyKey = uuid.NewString() // a retry of the transport starts nothing twice
			}
			return a.startWorkflow(cmd.Context(), req, watch, follow)
		},
	}
	f := cmd.Flags()
	f.StringVar(&req.Name, "name", "", "name of the workflow (default: the file's)")
	f.BoolVar(&preemptible, "preemptible", false, "let higher priority work stop it; a job's own value wins")
	f.Int32Var(&req.Priority, "priority", 0, "lower the workflow's priority (0 or less)")
	f.StringVar(&req.Group, "group", "", "group it counts for (default: your first)")
	f.StringVar(&req.IdempotencyKey, "idempotency-key", "", "the same key starts the same file once only")
	f.BoolVarP(&watch, "watch", "w", false, "show the jobs until the end; exit 0 only if all finished")
	f.BoolVarP(&follow, "follow", "f", false, "as --watch, with the jobs' output")
	return cmd
}

func (a *app) startWorkflow(ctx context.Context, req *apiv1.StartWorkflowRequest, watch, follow bool) error {
	res, err := get(ctx, a, "starting the workflow", (*connection).startWorkflow, req)
	if err != nil {
		return err
	}
	for _, w := range res.GetWarnings() {
		a.warn("warning: %s", w)
	}
	w := res.GetWorkflow()
	where := ""
	if w.GetCluster() != "" {
		where = " on cluster " + w.GetCluster()
	}
	switch {
	case a.output == "json" || a.output == "yaml":
		if err := a.show(res, table{}); err != nil {
			return err
		}
	case a.output == "name" || a.quiet:
		fmt.Fprintln(a.out, w.GetId())
	case res.GetExisted():
		a.say("workflow %s (%s) was started before with this key", w.GetId(), w.GetName())
	default:
		a.say("workflow %s (%s) is started%s", w.GetId(), w.GetName(), where)
	}
	a.flush()
	if !watch && !follow {
		return nil
	}
	return a.watchWorkflow(ctx, w.GetId(), follow)
}

func (a *app) listWorkflows(ctx context.Context, status string) error {
	all := &apiv1.ListWorkflowsResponse{}
	var err error
	all.Workflows, err = pages(func(token string) ([]*apiv1.Workflow, string, error) {
		r, err := get(ctx, a, "listing the workflows", (*connection).listWorkflows,
			&apiv1.ListWorkflowsRequest{PageSize: 1000, PageToken: token, Status: status})
		return r.GetWorkflows(), r.GetNextPageToken(), err
	})
	if err != nil {
		return err
	}
	t := table{
		head: []string{"ID", "NAME", "STATUS", "JOBS", "SUBMITTED", "USER", "GROUP", "ORGANIZATION", "STARTED", "ENDED", "CLUSTER"}, wide: 6,
		empty: "there is no workflow",
	}
	var notes []*apiv1.Workflow
	for _, w := range all.GetWorkflows() {
		t.add(w.GetId(), w.GetId(), w.GetName(), w.GetStatus(), counts(w.GetCounts()), when(w.GetSubmitted()), w.GetUser(),
			w.GetGroup(), w.GetOrganization(), when(w.GetStarted()), when(w.GetEnded()), w.GetCluster())
		if w.GetNote() != "" && w.GetCluster() != "" {
			notes = append(notes, w)
		}
	}
	if err := a.show(all, t); err != nil {
		return err
	}
	for _, w := range notes[:min(len(notes), 10)] {
		a.warn("note: %s: %s", w.GetId(), w.GetNote())
	}
	return nil
}

// knownWord refuses a flag's value that is none of the words; "" is no value.
func knownWord(flag, value string, words []string) error {
	if value == "" || slices.Contains(words, strings.ToLower(value)) {
		return nil
	}
	return failf(exitUsage, didYouMean(value, words, ""), "unknown %s %q, expected one of %s", flag, value, strings.Join(words, ", "))
}

// statuses are those of jobs and workflows, in the order work goes through.
func statuses() []string {
	return []string{"pending", "queued", "starting", "running", "preempting", "preempted", "finished", "failed", "cancelled", "lost"}
}

// counts is "2 running, 1 pending", in the order work goes through.
func counts(m map[string]uint32) string {
	order := statuses()
	var parts []string
	for _, s := range order {
		if m[s] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", m[s], s))
		}
	}
	for _, s := range slices.Sorted(maps.Keys(m)) {
		if m[s] > 0 && !slices.Contains(order, s) {
			parts = append(parts, fmt.Sprintf("%d %s", m[s], s))
		}
	}
	return strings.Join(parts, ", ")
}

func (a *app) workflow(ctx context.Context, id string) (*apiv1.Workflow, error) {
	return get(ctx, a, "reading the workflow", (*connection).getWorkflow, &apiv1.GetWorkflowRequest{Id: id})
}

func (a *app) workflowStatusCommand() *cobra.Command {
	var watch bool
	cmd := &cobra.Command{
		Use: "status ID", Short: "Show how far a workflow is", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if watch {
				return a.watchWorkflow(cmd.Context(), args[0], false)
			}
			w, err := a.workflow(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.describe(w, w.GetId(), []field{
				{"Workflow", w.GetId()}, {"Name", w.GetName()}, {"Status", w.GetStatus()}, {"Cluster", w.GetCluster()}, {"Jobs", counts(w.GetCounts())}, {"Note", w.GetNote()},
			}, a.jobTable(w, a.output == "wide"))
		},
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "show the jobs until the end; exit 0 only if all finished")
	return cmd
}

// jobTable has one row for each job, or task.
func (a *app) jobTable(w *apiv1.Workflow, wide bool) table {
	t := table{head: []string{"JOB", "STATUS", "NODE", "TIME", "EXIT"}}
	if wide {
		t.head = append(t.head, "CLASS", "ATTEMPT", "DEFINITION", "PREEMPTED", "FAILURES")
	}
	t.head = append(t.head, "NOTE") // last: it is the longest
	for _, j := range w.GetJobs() {
		row := []string{j.GetName(), j.GetStatus(), strings.Join(j.GetNodes(), ","), a.ran(j), exitText(j)}
		if wide {
			row = append(row, j.GetClass(), nonzero(j.GetAttempt()), j.GetDefinition(), nonzero(j.GetPreemptedCount()), nonzero(j.GetFailureCount()))
		}
		t.add(j.GetId(), append(row, note(j))...)
	}
	return t
}

// ran is how long the job ran, or has run.
func (a *app) ran(j *apiv1.Job) string {
	switch {
	case j.GetStarted() == nil:
		return ""
	case j.GetEnded() != nil:
		return span(j.GetEnded().AsTime().Sub(j.GetStarted().AsTime()))
	}
	return a.since(j.GetStarted())
}

func exitText(j *apiv1.Job) string {
	switch {
	case j.GetSignal() != 0:
		return fmt.Sprintf("signal %d", j.GetSignal())
	case j.ExitCode != nil:
		return number(j.GetExitCode())
	}
	return ""
}

// note says why a job waits, or what became of it.
func note(j *apiv1.Job) string {
	var parts []string
	if r := j.GetReason(); r != nil {
		parts = append(parts, r.GetCode())
		if r.GetText() != "" {
			parts[0] += ": " + r.GetText()
		}
	}
	if j.GetPosition() > 0 {
		parts = append(parts, fmt.Sprintf("position %d", j.GetPosition()))
	}
	if j.GetEstimatedStart() != nil {
		parts = append(parts, "about "+when(j.GetEstimatedStart()))
	}
	if j.GetNoticeEndsAt() != nil && j.GetStatus() == "preempting" {
		parts = append(parts, "stops at "+when(j.GetNoticeEndsAt()))
	}
	if len(j.GetDependsOn()) > 0 && j.GetStatus() == "pending" && j.GetReason() == nil {
		parts = append(parts, "waits for "+strings.Join(j.GetDependsOn(), ", "))
	}
	if j.GetMessage() != "" && !saidByExit(j) {
		parts = append(parts, j.GetMessage())
	}
	return strings.Join(parts, "; ")
}

// saidByExit reports whether a job's message is no more than its exit code or signal, which stand beside it.
func saidByExit(j *apiv1.Job) bool {
	switch j.GetMessage() {
	case fmt.Sprintf("exit code %d", j.GetExitCode()):
		return j.ExitCode != nil
	case fmt.Sprintf("killed by signal %d", j.GetSignal()):
		return j.GetSignal() != 0
	}
	return false
}

func (a *app) describeWorkflow(cmd *cobra.Command, args []string) error {
	w, err := a.workflow(cmd.Context(), args[0])
	if err != nil {
		return err
	}
	routed, candidates := a.routing(w.GetRouting(), w.GetNote())
	return a.describe(w, w.GetId(), append([]field{
		{"Workflow", w.GetId()}, {"Name", w.GetName()}, {"Status", w.GetStatus()}, {"User", w.GetUser()}, {"Group", w.GetGroup()},
		{"Organization", w.GetOrganization()}, {"Submitted", when(w.GetSubmitted())}, {"Started", when(w.GetStarted())}, {"Ended", when(w.GetEnded())},
		{"Jobs", counts(w.GetCounts())},
	}, routed...), a.jobTable(w, true), candidates) // a description leaves nothing out
}

func (a *app) workflowCancelCommand() *cobra.Command {
	req := &apiv1.CancelWorkflowRequest{}
	return &cobra.Command{
		Use: "cancel ID [JOB]", Short: "Stop a workflow, or one of its jobs", Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Id = args[0]
			if len(args) > 1 {
				req.Job = args[1]
			}
			before, _ := a.workflow(cmd.Context(), req.GetId()) // what is wrong with the id, the next call says
			w, err := get(cmd.Context(), a, "cancelling the workflow", (*connection).cancelWorkflow, req)
			if err != nil {
				return err
			}
			if before != nil && over(before, req.GetJob()) {
				what := "workflow " + w.GetId()
				if req.GetJob() != "" {
					what = "job " + req.GetJob()
				}
				a.warn("nothing was to be cancelled: %s had ended before", what)
			}
			t := table{head: []string{"ID", "NAME", "STATUS", "JOBS"}}
			t.add(w.GetId(), w.GetId(), w.GetName(), w.GetStatus(), counts(w.GetCounts()))
			return a.show(w, t)
		},
	}
}

// over reports whether a workflow, or one of its jobs with all tasks, has ended.
func over(w *apiv1.Workflow, job string) bool {
	if job == "" {
		return ended(w.GetStatus())
	}
	found := false
	for _, j := range w.GetJobs() {
		if j.GetName() == job || strings.HasPrefix(j.GetName(), job+"/") {
			if !ended(j.GetStatus()) {
				return false
			}
			found = true
		}
	}
	return found
}

func (a *app) explainWorkflow(cmd *cobra.Command, args []string) error {
	req := &apiv1.ExplainWorkflowRequest{Id: args[0]}
	if len(args) > 1 {
		req.Job = args[1]
	}
	r, err := get(cmd.Context(), a, "explaining the workflow", (*connection).explainWorkflow, req)
	if err != nil {
		return err
	}
	if a.output != "table" && a.output != "wide" {
		t := table{}
		for _, e := range r.GetJobs() {
			t.names = append(t.names, e.GetJob().GetName())
		}
		return a.show(r, t)
	}
	if fs, candidates := a.routing(r.GetRouting(), r.GetNote()); len(fs) > 0 {
		if err := a.describe(r, "", fs, candidates); err != nil {
			return err
		}
		fmt.Fprintln(a.out)
	}
	if len(r.GetJobs()) == 0 && r.GetNote() == "" {
		a.say("nothing of it waits")
	}
	for i, e := range r.GetJobs() {
		if i > 0 {
			fmt.Fprintln(a.out)
		}
		t := table{head: []string{"DEFINITION", "ADMISSIBLE", "READY NODES", "COST/H", "REASON"}}
		for _, d := range e.GetDefinitions() {
			admissible, reason := "yes", d.GetReason()
			if !d.GetAdmissible() {
				admissible, reason = "no ("+d.GetRefusedBy()+")", d.GetReason()
			}
			t.add("", d.GetDefinition(), admissible, number(d.GetReadyNodes()), cost(d.CostPerHour), reason)
		}
		j := e.GetJob()
		rule, because := "", note(j)
		if because == "" {
			because = j.GetMessage()
		}
		if j.GetReason().GetRule() > 0 {
			rule = fmt.Sprintf("scheduling rule %d", j.GetReason().GetRule())
		}
		if err := a.describe(r, "", []field{
			{"Job", j.GetName()}, {"Status", j.GetStatus()}, {"Class", j.GetClass()}, {"Reservation", j.GetReservation()}, {"Because", because}, {"Rule", rule},
			{"Blocked by", strings.Join(j.GetReason().GetBlocking(), ", ")}, {"Nearest node", j.GetReason().GetNearestNode()},
			{"Ahead", nonzero(j.GetAhead())},
		}, t); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) workflowEventsCommand() *cobra.Command {
	var follow bool
	var after uint64
	cmd := &cobra.Command{
		Use: "events ID", Short: "Show what happened to a workflow", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.events(cmd.Context(), &apiv1.WatchEventsRequest{Workflow: args[0], Follow: follow, After: after})
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "wait for more until interrupted")
	cmd.Flags().Uint64Var(&after, "after", 0, "only events with a higher sequence number")
	return cmd
}

// events prints them; with follow until interrupted, whatever becomes of the coordinator for a while.
func (a *app) events(ctx context.Context, req *apiv1.WatchEventsRequest) error {
	head := false
	if req.GetFollow() {
		return a.resume(ctx, false, func() (bool, error) { return a.someEvents(ctx, req, &head) })
	}
	_, err := a.someEvents(ctx, req, &head)
	return err
}

// someEvents is one stream of events; req.After moves with it.
func (a *app) someEvents(ctx context.Context, req *apiv1.WatchEventsRequest, head *bool) (moved bool, err error) {
	c, err := a.connect()
	if err != nil {
		return false, err
	}
	stream, err := c.workflows.WatchEvents(ctx, req)
	if err != nil {
		return false, fromStream(ctx, c.server, err)
	}
	for {
		e, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return moved, nil
		} else if err != nil {
			return moved, fromStream(ctx, c.server, err)
		}
		a.reached.Store(true)
		if !*head && (a.output == "table" || a.output == "wide") && !a.quiet {
			fmt.Fprintf(a.out, "%-20s  %-22s  %-16s  %s\n", "TIME", "KIND", "JOB", "MESSAGE")
			*head = true
		}
		if err := a.printEvent(e); err != nil {
			return moved, err
		}
		a.flush()
		req.After, moved = max(req.GetAfter(), e.GetSequence()), true
	}
}

// printEvent writes one line: an endless list cannot be aligned by its widest cell.
func (a *app) printEvent(e *apiv1.Event) error {
	switch {
	case a.output == "json" || a.output == "yaml": // one object a line
		data, err := messageJSON(e)
		if err != nil {
			return err
		}
		fmt.Fprintln(a.out, string(data))
	case a.output == "name" || a.quiet:
		fmt.Fprintln(a.out, e.GetSequence())
	default:
		job := e.GetJob()
		if job == "" {
			job = "-"
		}
		message := cell([]string{e.GetMessage()}, 0)
		if e.GetCluster() != "" {
			message = "[" + printable(e.GetCluster()) + "] " + message
		}
		if a.output == "wide" && len(e.GetMetadata()) > 0 {
			message += " [" + printable(pairs(e.GetMetadata())) + "]"
		}
		fmt.Fprintf(a.out, "%-20s  %-22s  %-16s  %s\n", when(e.GetTime()), printable(e.GetKind()), printable(job), message)
	}
	return nil
}
