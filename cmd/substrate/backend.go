package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"substrate/proto/apiv1"
)

func (a *app) backendCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "backend", Short: "Connections to batch systems and clouds, and the nodes launched through them"}
	var again bool
	preflight := &cobra.Command{
		Use: "preflight NAME", Short: "Show what was found out about a batch system when it was opened", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.preflight(cmd.Context(), args[0], again) },
	}
	preflight.Flags().BoolVar(&again, "again", false, "close the connection and find out anew; takes up to some minutes where something is tried")
	cmd.AddCommand(
		a.watchable(&cobra.Command{Use: "list", Short: "List the connections", Args: cobra.NoArgs}, a.listBackends),
		preflight,
		&cobra.Command{
			Use: "write-off LAUNCH", Short: "Forget a launch that was given up and whose instance nobody says is gone", Args: cobra.ExactArgs(1),
			Long: "Forget a launch that was given up and whose instance nobody says is gone, as when its account is closed or its batch system was\n" +
				"taken down. Its nodes are forgotten too. If the instance still runs, it costs what it costs, and nobody here ends it, unless a\n" +
				"connection of the configuration leads to its place: an instance with this cluster's mark that nobody knows is ended.",
			RunE: func(cmd *cobra.Command, args []string) error {
				_, err := invoke(cmd.Context(), a, "writing off the launch", callTimeout, (*connection).writeOffLaunch, &apiv1.WriteOffLaunchRequest{Launch: args[0]})
				if err == nil {
					a.warn("forgotten; see for yourself that its instance is gone")
				}
				return err
			},
		},
		&cobra.Command{
			Use: "capabilities NAME", Short: "Show what a batch system can do, and what it promises about time", Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error { return a.capabilities(cmd.Context(), args[0]) },
		},
		a.watchable(&cobra.Command{
			Use: "launches", Short: "List nodes that are coming, up because they were launched, or on their way out", Args: cobra.NoArgs,
		}, a.listLaunches),
	)
	return cmd
}

func (a *app) listBackends(ctx context.Context) error {
	r, err := get(ctx, a, "listing the backends", (*connection).listBackends, &apiv1.ListBackendsRequest{})
	if err != nil {
		return err
	}
	t := table{head: []string{"BACKEND", "KIND", "STATE", "LAUNCHES", "CLUSTER", "VERSION", "DEFINITIONS", "TROUBLE"}, empty: "no definition needs a backend"}
	for _, b := range r.GetBackends() {
		t.add(b.GetName(), b.GetName(), b.GetKind(), b.GetState(), number(b.GetLaunches()), b.GetBatch().GetCluster(), b.GetBatch().GetVersion(),
			strings.Join(b.GetDefinitions(), ","), b.GetTrouble())
	}
	return a.show(r, t)
}

// openedWithin is how long an opening of a backend is waited for: a batch system is probed as fast as it forgets.
const openedWithin = 15 * time.Minute

func (a *app) preflight(ctx context.Context, name string, again bool) error {
	if again {
		if _, err := get(ctx, a, "opening the backend anew", (*connection).reopenBackend, &apiv1.GetBackendRequest{Name: name}); err != nil {
			return err
		}
		fmt.Fprintln(a.errOut, "opening "+name+" anew …")
		if err := pause(ctx, 2*time.Second); err != nil {
			return err
		}
	}
	b, err := get(ctx, a, "asking for the backend", (*connection).getBackend, &apiv1.GetBackendRequest{Name: name})
	for until := time.Now().Add(openedWithin); again && err == nil && b.GetState() == "opening" && time.Now().Before(until); {
		if err := pause(ctx, 2*time.Second); err != nil {
			return err
		}
		b, err = get(ctx, a, "asking for the backend", (*connection).getBackend, &apiv1.GetBackendRequest{Name: name})
	}
	if err != nil {
		return err
	}
	if err := notBatch(b); err != nil {
		return err
	}
	s := b.GetBatch()
	from := "this opening"
	if s.GetCached() {
		from = "an earlier one, kept"
	}
	var settings []string
	for _, key := range slices.Sorted(maps.Keys(s.GetSettings())) {
		settings = append(settings, key+"="+s.GetSettings()[key])
	}
	fields := []field{
		{"Backend", b.GetName()}, {"Kind", b.GetKind()}, {"State", b.GetState()}, {"Trouble", b.GetTrouble()}, {"Cluster", s.GetCluster()},
		{"Version", s.GetVersion()}, {"Account", s.GetAccount()}, {"Read-only", fmt.Sprint(s.GetReadOnly())}, {"Probed", when(s.GetAt())},
		{"Answers of", from}, {"Settings", strings.Join(settings, "\n")},
	}
	for _, step := range s.GetSteps() {
		fields = append(fields, field{"Step " + step.GetName(), strings.TrimSpace(fmt.Sprintf("%s, %d ms  %s", step.GetOutcome(), step.GetTookMs(), step.GetDetail()))})
	}
	return a.describe(b, b.GetName(), fields)
}

// notBatch is an error for a backend that has nothing to say of itself.
func notBatch(b *apiv1.Backend) error {
	switch {
	case b.GetBatch() != nil:
		return nil
	case b.GetState() == "open":
		return failf(exitFailed, "", "cannot show what backend %s can do: it is no batch system, it is of kind %s", b.GetName(), b.GetKind())
	}
	return failf(exitFailed, "see the coordinator's log; `substrate backend preflight "+b.GetName()+" --again` tries at once",
		"cannot show what backend %s can do: it is %s: %s", b.GetName(), b.GetState(), b.GetTrouble())
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func (a *app) capabilities(ctx context.Context, name string) error {
	b, err := get(ctx, a, "asking for the backend", (*connection).getBackend, &apiv1.GetBackendRequest{Name: name})
	if err != nil {
		return err
	}
	if err := notBatch(b); err != nil {
		return err
	}
	t := table{head: []string{"WHAT", "NAME", "ANSWER", "SOURCE", "REASON"}}
	for _, d := range b.GetBatch().GetDeclarations() {
		t.add(d.GetName(), "declaration", d.GetName(), d.GetValue(), "declared", "")
	}
	for _, c := range b.GetBatch().GetCapabilities() {
		t.add(c.GetName(), "capability", c.GetName(), c.GetAnswer(), c.GetSource(), c.GetReason())
	}
	for _, r := range b.GetBatch().GetRules() {
		t.add(r.GetName(), "rule", r.GetName(), r.GetAnswer(), r.GetSource(), r.GetReason())
	}
	for _, i := range b.GetBatch().GetInterfaces() {
		t.add(i, "interface", i, "yes", "", "")
	}
	return a.show(b.GetBatch(), t)
}

func (a *app) listLaunches(ctx context.Context) error {
	all := &apiv1.ListLaunchesResponse{}
	var err error
	all.Launches, err = pages(func(token string) ([]*apiv1.Launch, string, error) {
		r, err := get(ctx, a, "listing the launches", (*connection).listLaunches, &apiv1.ListLaunchesRequest{PageSize: pageSize, PageToken: token})
		return r.GetLaunches(), r.GetNextPageToken(), err
	})
	if err != nil {
		return err
	}
	t := table{head: []string{"LAUNCH", "DEFINITION", "BACKEND", "STATE", "INSTANCE", "NODES", "SINCE", "ENDS", "FOR", "DETAIL"}, empty: "no node is launched"}
	for _, l := range all.GetLaunches() {
		nodes := fmt.Sprintf("%d/%d", len(l.GetNodes()), l.GetWanted())
		t.add(l.GetId(), l.GetId(), l.GetDefinition(), l.GetBackend(), l.GetState(), l.GetInstance(), nodes, when(l.GetSince()), when(l.GetEnds()),
			strings.Join(l.GetFor(), ","), l.GetDetail())
	}
	return a.show(all, t)
}

func backendsOf(ctx context.Context, a *app, args []string) ([]cobra.Completion, error) {
	if len(args) > 0 {
		return nil, nil
	}
	r, err := get(ctx, a, "listing the backends", (*connection).listBackends, &apiv1.ListBackendsRequest{})
	var all []cobra.Completion
	for _, b := range r.GetBackends() {
		all = append(all, described(b.GetName(), b.GetKind()+" "+b.GetState()))
	}
	return all, err
}
