package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"substrate/proto/apiv1"
)

func (a *app) maintenanceCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "maintenance", Short: "When nodes are not there for work, and what was told about the cluster"}
	var all bool
	list := &cobra.Command{Use: "list", Short: "List what is announced and not over", Args: cobra.NoArgs}
	list.Flags().BoolVar(&all, "all", false, "what is over too")
	var most uint32
	history := &cobra.Command{Use: "history", Short: "Show what was told about the cluster, newest first", Args: cobra.NoArgs}
	history.Flags().Uint32Var(&most, "limit", 0, "at most so many lines (0: all)")
	cmd.AddCommand(
		a.announceCommand(),
		a.watchable(list, func(ctx context.Context) error { return a.listMaintenance(ctx, all) }),
		&cobra.Command{Use: "cancel ID", Short: "Call maintenance off, or end it early", Args: cobra.ExactArgs(1), RunE: a.cancelMaintenance},
		a.watchable(history, func(ctx context.Context) error { return a.showHistory(ctx, int(most)) }),
		&cobra.Command{Use: "note MESSAGE", Short: "Tell everybody something in the history", Args: cobra.ExactArgs(1), RunE: a.addNote},
	)
	return cmd
}

func (a *app) announceCommand() *cobra.Command {
	req := &apiv1.AnnounceMaintenanceRequest{}
	var times spanFlags
	cmd := &cobra.Command{
		Use: "announce", Short: "Announce maintenance of nodes, or of all", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if strings.TrimSpace(req.GetMessage()) == "" {
				return usagef("maintenance announce needs --message: what users should know")
			}
			if cmd.Flags().Changed("nodes") && strings.Join(req.GetNodes(), "") == "" || cmd.Flags().Changed("definition") && req.GetDefinition() == "" {
				return failf(exitUsage, "leave out both --nodes and --definition for all nodes", "cannot announce maintenance: --nodes or --definition is given, but empty")
			}
			var err error
			if req.From, req.Until, err = times.read(a.now()); err != nil {
				return err
			}
			if req.IdempotencyKey == "" {
				req.IdempotencyKey = uuid.NewString() // a retry of the transport tells nothing twice
			} else if err := times.keyed(); err != nil {
				return err
			}
			r, err := get(cmd.Context(), a, "announcing the maintenance", (*connection).announceMaintenance, req)
			if err != nil {
				return err
			}
			for _, w := range r.GetWarnings() {
				a.warn("warning: %s", w)
			}
			return a.showWindows(r, r.GetMaintenance())
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&req.Nodes, "nodes", nil, "of these nodes; may be given several times, or with commas")
	f.StringVar(&req.Definition, "definition", "", "of all nodes of this definition; without it and --nodes, of all nodes")
	f.StringVar(&req.Message, "message", "", "what users should know")
	f.BoolVar(&req.Emergency, "emergency", false, "later than maintenance is announced by rule; the history says so")
	f.StringVar(&req.IdempotencyKey, "idempotency-key", "", "the same key announces the same maintenance once only")
	times.register(cmd)
	return cmd
}

func (a *app) listMaintenance(ctx context.Context, over bool) error {
	all := &apiv1.ListMaintenanceResponse{}
	var err error
	all.Maintenance, err = pages(func(token string) ([]*apiv1.MaintenanceWindow, string, error) {
		r, err := get(ctx, a, "listing the maintenance", (*connection).listMaintenance, &apiv1.ListMaintenanceRequest{All: over, PageSize: 1000, PageToken: token})
		return r.GetMaintenance(), r.GetNextPageToken(), err
	})
	if err != nil {
		return err
	}
	return a.showWindows(all, all.GetMaintenance()...)
}

func (a *app) showWindows(m proto.Message, list ...*apiv1.MaintenanceWindow) error {
	t := table{head: []string{"ID", "STATE", "FROM", "UNTIL", "NODES", "EMERGENCY", "MESSAGE", "ANNOUNCED", "BY", "ENDED", "CANCELLED BY"}, wide: 7,
		empty: "no maintenance is announced"}
	for _, w := range list {
		t.add(w.GetId(), w.GetId(), w.GetState(), when(w.GetFrom()), when(w.GetUntil()), scope(w.GetNodes(), w.GetDefinition()), yes(w.GetEmergency()),
			w.GetMessage(), when(w.GetAnnounced()), w.GetAnnouncedBy(), when(w.GetEnded()), w.GetCancelledBy())
	}
	return a.show(m, t)
}

// scope is of what nodes it is.
func scope(nodes []string, definition string) string {
	const most = 8
	text := strings.Join(nodes[:min(len(nodes), most)], " ")
	if len(nodes) > most {
		text += fmt.Sprintf(" and %d more", len(nodes)-most)
	}
	switch {
	case definition != "" && text != "":
		return text + ", all of " + definition
	case definition != "":
		return "all of " + definition
	case text == "":
		return "all"
	}
	return text
}

func yes(v bool) string {
	if v {
		return "yes"
	}
	return ""
}

func (a *app) cancelMaintenance(cmd *cobra.Command, args []string) error {
	w, err := get(cmd.Context(), a, "cancelling the maintenance", (*connection).cancelMaintenance, &apiv1.CancelMaintenanceRequest{Id: args[0]})
	if err != nil {
		return err
	}
	return a.showWindows(w, w)
}

func (a *app) showHistory(ctx context.Context, most int) error {
	all := &apiv1.ListStatusHistoryResponse{}
	var err error
	all.Entries, err = pages(func(token string) ([]*apiv1.StatusEntry, string, error) {
		r, err := get(ctx, a, "reading the history", (*connection).listStatusHistory, &apiv1.ListStatusHistoryRequest{PageSize: 1000, PageToken: token})
		all.Entries = append(all.Entries, r.GetEntries()...)
		if most > 0 && len(all.GetEntries()) >= most {
			return r.GetEntries(), "", err
		}
		return r.GetEntries(), r.GetNextPageToken(), err
	})
	if err != nil {
		return err
	}
	if most > 0 {
		all.Entries = all.Entries[:min(most, len(all.Entries))]
	}
	return a.showEntries(all, all.GetEntries()...)
}

func (a *app) showEntries(m proto.Message, list ...*apiv1.StatusEntry) error {
	t := table{head: []string{"TIME", "WHAT", "MAINTENANCE", "NODES", "FROM", "UNTIL", "MESSAGE", "BY", "NUMBER"}, wide: 8, empty: "nothing was told yet"}
	for _, x := range list {
		what, nodes := x.GetKind(), ""
		if x.GetEmergency() {
			what += " (emergency)"
		}
		if x.GetMaintenance() != "" {
			nodes = scope(x.GetNodes(), x.GetDefinition())
		}
		t.add(number(x.GetNumber()), when(x.GetTime()), what, x.GetMaintenance(), nodes, when(x.GetFrom()), when(x.GetUntil()), x.GetMessage(), x.GetBy(), number(x.GetNumber()))
	}
	return a.show(m, t)
}

func (a *app) addNote(cmd *cobra.Command, args []string) error {
	x, err := get(cmd.Context(), a, "adding the note", (*connection).addStatusNote, &apiv1.AddStatusNoteRequest{Message: args[0]})
	if err != nil {
		return err
	}
	return a.showEntries(x, x)
}
