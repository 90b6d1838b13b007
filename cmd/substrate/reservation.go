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

func (a *app) reservationCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "reservation", Short: "Devices and nodes that an organization or a group has for a time"}
	req := &apiv1.ListReservationsRequest{}
	list := &cobra.Command{Use: "list", Short: "List the reservations that you may see", Args: cobra.NoArgs}
	list.Flags().StringVar(&req.Organization, "organization", "", "only those of this organization")
	list.Flags().BoolVar(&req.All, "all", false, "those that are over too")
	cmd.AddCommand(
		a.createReservationCommand(),
		a.watchable(list, func(ctx context.Context) error { return a.listReservations(ctx, req) }),
		&cobra.Command{Use: "show NAME|ID", Aliases: []string{"describe"}, Short: "Show one reservation", Args: cobra.ExactArgs(1), RunE: a.showReservation},
		&cobra.Command{Use: "delete NAME|ID", Short: "End a reservation; what runs in it runs on", Args: cobra.ExactArgs(1), RunE: a.deleteReservation},
	)
	return cmd
}

func (a *app) createReservationCommand() *cobra.Command {
	req := &apiv1.CreateReservationRequest{}
	var times spanFlags
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Reserve GPUs or whole nodes of a definition", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Name = args[0]
			switch {
			case req.GetDefinition() == "":
				return usagef("reservation create needs --definition")
			case (req.GetGpus() == 0) == (req.GetNodes() == 0):
				return usagef("reservation create needs --gpus N or --nodes N, one of them")
			}
			var err error
			if req.From, req.Until, err = times.read(a.now()); err != nil {
				return err
			}
			if req.IdempotencyKey == "" {
				req.IdempotencyKey = uuid.NewString() // a retry of the transport makes nothing twice
			} else if err := times.keyed(); err != nil {
				return err
			}
			r, err := get(cmd.Context(), a, "making the reservation", (*connection).createReservation, req)
			if err != nil {
				return err
			}
			for _, w := range r.GetWarnings() {
				a.warn("warning: %s", w)
			}
			return a.showReservations(r, r.GetReservation())
		},
	}
	f := cmd.Flags()
	f.StringVar(&req.Definition, "definition", "", "of whose nodes")
	f.Uint32Var(&req.Gpus, "gpus", 0, "how many GPUs")
	f.StringVar(&req.Device, "device", "", "which device, as jobs name it (default: the only kind of GPU of the nodes)")
	f.Uint32Var(&req.Nodes, "nodes", 0, "how many whole nodes, instead of --gpus")
	f.StringVar(&req.Organization, "organization", "", "for whom (default: your own)")
	f.StringVar(&req.Group, "group", "", "only for this group of it")
	f.StringVar(&req.IdempotencyKey, "idempotency-key", "", "the same key makes the same reservation once only")
	times.register(cmd)
	return cmd
}

func (a *app) listReservations(ctx context.Context, req *apiv1.ListReservationsRequest) error {
	all := &apiv1.ListReservationsResponse{}
	var err error
	all.Reservations, err = pages(func(token string) ([]*apiv1.Reservation, string, error) {
		r, err := get(ctx, a, "listing the reservations", (*connection).listReservations,
			&apiv1.ListReservationsRequest{Organization: req.GetOrganization(), All: req.GetAll(), PageSize: 1000, PageToken: token})
		return r.GetReservations(), r.GetNextPageToken(), err
	})
	if err != nil {
		return err
	}
	return a.showReservations(all, all.GetReservations()...)
}

func (a *app) showReservations(m proto.Message, list ...*apiv1.Reservation) error {
	t := table{head: []string{"RESERVATION", "STATE", "FOR", "DEFINITION", "HAS", "IDLE", "FROM", "UNTIL", "RUNNING", "WAITING", "ID", "CREATED BY", "ON"}, wide: 10,
		empty: "nothing is reserved"}
	for _, r := range list {
		t.add(r.GetName(), r.GetName(), r.GetState(), holder(r), r.GetDefinition(), reserved(r), idle(r), when(r.GetFrom()), when(r.GetUntil()),
			number(r.GetRunning()), number(r.GetWaiting()), r.GetId(), r.GetCreatedBy(), parts(r))
	}
	return a.show(m, t)
}

// holder is who has it: "research", or "research/vision" for a group.
func holder(r *apiv1.Reservation) string {
	if r.GetGroup() == "" {
		return r.GetOrganization()
	}
	return r.GetOrganization() + "/" + r.GetGroup()
}

func reserved(r *apiv1.Reservation) string {
	if r.GetGpus() > 0 {
		return fmt.Sprintf("%s=%d", r.GetDevice(), r.GetGpus())
	}
	return counted(int(r.GetNodes()), "node")
}

// idle is unknown until it has something.
func idle(r *apiv1.Reservation) string {
	if len(r.GetParts()) == 0 || r.GetState() != "active" {
		return ""
	}
	return number(r.GetIdle())
}

func parts(r *apiv1.Reservation) string {
	var list []string
	for _, p := range r.GetParts() {
		text := p.GetNode()
		if p.GetCount() > 0 {
			text += fmt.Sprintf("=%d", p.GetCount())
		}
		list = append(list, text)
	}
	return strings.Join(list, " ")
}

func (a *app) showReservation(cmd *cobra.Command, args []string) error {
	r, err := get(cmd.Context(), a, "reading the reservation", (*connection).getReservation, &apiv1.GetReservationRequest{Id: args[0]})
	if err != nil {
		return err
	}
	fs := []field{
		{"Reservation", r.GetName()}, {"Id", r.GetId()}, {"State", r.GetState()}, {"Reason", r.GetReason()}, {"For", holder(r)},
		{"Definition", r.GetDefinition()}, {"Has", reserved(r)}, {"Idle", idle(r)}, {"From", when(r.GetFrom())}, {"Until", when(r.GetUntil())},
		{"Running", number(r.GetRunning())}, {"Waiting", number(r.GetWaiting())},
		{"Created", when(r.GetCreated()) + " by " + r.GetCreatedBy()}, {"Ended", when(r.GetEnded())}, {"Deleted by", r.GetDeletedBy()},
	}
	t := table{head: []string{"NODE", "COUNT", "DEVICES"}}
	for _, p := range r.GetParts() {
		count := "whole"
		if p.GetCount() > 0 {
			count = number(p.GetCount())
		}
		t.add("", p.GetNode(), count, strings.Join(p.GetDevices(), " "))
	}
	return a.describe(r, r.GetName(), fs, t)
}

func (a *app) deleteReservation(cmd *cobra.Command, args []string) error {
	r, err := get(cmd.Context(), a, "deleting the reservation", (*connection).deleteReservation, &apiv1.DeleteReservationRequest{Id: args[0]})
	if err != nil {
		return err
	}
	if n := r.GetRunning(); n > 0 && !a.quiet {
		a.warn("still in it: %s, to the end", counted(int(n), "run"))
	}
	return a.showReservations(r, r)
}
