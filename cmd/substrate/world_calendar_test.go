package main

import (
	"context"

	"google.golang.org/grpc/codes"

	"substrate/proto/apiv1"
)

func spring() *apiv1.Reservation {
	return &apiv1.Reservation{Id: "r-1", Name: "spring", Organization: "acme", Group: "research", Definition: "gpu", Device: "nvidia.com/gpu", Gpus: 4,
		From: at(1), Until: at(50), State: "active", Created: at(0), CreatedBy: "ada", Idle: 3, Running: 1, Waiting: 2,
		Parts: []*apiv1.ReservedPart{{Node: "n1", Devices: []string{"0000:01:00.0", "0000:02:00.0"}, Count: 4}}}
}

func (w *world) CreateReservation(_ context.Context, r *apiv1.CreateReservationRequest) (*apiv1.CreateReservationResponse, error) {
	if r.GetName() == "taken" {
		return nil, refuse(codes.AlreadyExists, "cannot create reservation taken: there is one of this name until 2026-03-04 05:50:00Z", "choose another name, or delete that one first")
	}
	return &apiv1.CreateReservationResponse{Reservation: spring(), Warnings: []string{"no node of gpu is known yet"}}, nil
}

func (w *world) ListReservations(_ context.Context, r *apiv1.ListReservationsRequest) (*apiv1.ListReservationsResponse, error) {
	week := &apiv1.Reservation{Id: "r-0", Name: "week", Organization: "acme", Definition: "gpu", Nodes: 2, From: at(10), Until: at(20), State: "planned", CreatedBy: "ada"}
	if r.GetOrganization() == "other" {
		return &apiv1.ListReservationsResponse{}, nil
	}
	return &apiv1.ListReservationsResponse{Reservations: []*apiv1.Reservation{spring(), week}}, nil
}

func (w *world) GetReservation(_ context.Context, r *apiv1.GetReservationRequest) (*apiv1.Reservation, error) {
	if r.GetId() != "spring" {
		return nil, refuse(codes.NotFound, "cannot show reservation "+r.GetId()+`: there is no reservation "`+r.GetId()+`"`, "")
	}
	return spring(), nil
}

func (w *world) DeleteReservation(_ context.Context, r *apiv1.DeleteReservationRequest) (*apiv1.Reservation, error) {
	v := spring()
	v.State, v.DeletedBy = "deleted", "ada"
	return v, refused("delete reservation", r.GetId())
}

func newSwitch() *apiv1.MaintenanceWindow {
	return &apiv1.MaintenanceWindow{Id: "7", Nodes: []string{"n1", "n2"}, From: at(1), Until: at(50), Message: "new switch", State: "planned", Announced: at(0), AnnouncedBy: "ada"}
}

func (w *world) AnnounceMaintenance(_ context.Context, r *apiv1.AnnounceMaintenanceRequest) (*apiv1.AnnounceMaintenanceResponse, error) {
	if !r.GetEmergency() {
		return nil, refuse(codes.InvalidArgument, "cannot announce maintenance: it begins at 2026-03-04 05:01:00Z, and maintenance is announced 7 days before",
			"choose 2026-03-11 05:01:00Z or later, or say that it is an emergency with --emergency")
	}
	return &apiv1.AnnounceMaintenanceResponse{Maintenance: newSwitch(), Warnings: []string{"w/j may run on n1, past the beginning, and has no walltime"}}, nil
}

func (w *world) ListMaintenance(_ context.Context, r *apiv1.ListMaintenanceRequest) (*apiv1.ListMaintenanceResponse, error) {
	if r.GetAll() {
		return &apiv1.ListMaintenanceResponse{}, nil
	}
	all := &apiv1.MaintenanceWindow{Id: "8", Definition: "gpu", From: at(2), Until: at(3), Message: "power \x1b[31m", Emergency: true, State: "active"}
	return &apiv1.ListMaintenanceResponse{Maintenance: []*apiv1.MaintenanceWindow{newSwitch(), all}}, nil
}

func (w *world) CancelMaintenance(_ context.Context, r *apiv1.CancelMaintenanceRequest) (*apiv1.MaintenanceWindow, error) {
	v := newSwitch()
	v.State, v.CancelledBy = "cancelled", "ada"
	return v, refused("cancel maintenance", r.GetId())
}

func (w *world) ListStatusHistory(_ context.Context, r *apiv1.ListStatusHistoryRequest) (*apiv1.ListStatusHistoryResponse, error) {
	if r.GetPageToken() == "" {
		return &apiv1.ListStatusHistoryResponse{NextPageToken: "7", Entries: []*apiv1.StatusEntry{{Number: 8, Time: at(2), Kind: "note", Message: "all is well", By: "ada"}}}, nil
	}
	return &apiv1.ListStatusHistoryResponse{Entries: []*apiv1.StatusEntry{
		{Number: 7, Time: at(0), Kind: "announced", Maintenance: "7", Nodes: []string{"n1", "n2"}, From: at(1), Until: at(50), Emergency: true, Message: "new switch", By: "ada"}}}, nil
}

func (w *world) AddStatusNote(_ context.Context, r *apiv1.AddStatusNoteRequest) (*apiv1.StatusEntry, error) {
	return &apiv1.StatusEntry{Number: 9, Time: at(3), Kind: "note", Message: r.GetMessage(), By: "ada"}, nil
}
