package server

import (
	"context"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/timestamppb"

	"substrate/coordinator"
	"substrate/coordinator/engine"
	"substrate/proto/apiv1"
)

type reservationService struct {
	apiv1.UnimplementedReservationsServer
	engine reservationAPI
}

// onceKey is the request's idempotency key, of the message or the header.
func onceKey(ctx context.Context, given, op string) (string, error) {
	if md, _ := metadata.FromIncomingContext(ctx); given == "" && len(md.Get(idempotencyMetadata)) > 0 {
		given = md.Get(idempotencyMetadata)[0]
	}
	if len(given) > maxIdempotencyKey {
		return "", coordinator.Errorf(coordinator.ErrInvalid, op, "the idempotency key is longer than %d bytes", maxIdempotencyKey)
	}
	return given, nil
}

// timeOf reads a time that may be left out.
func timeOf(t *timestamppb.Timestamp, op, field string) (time.Time, error) {
	if t == nil {
		return time.Time{}, nil
	}
	if err := t.CheckValid(); err != nil {
		return time.Time{}, coordinator.Errorf(coordinator.ErrInvalid, op, "%s is not a time: %w", field, err)
	}
	return t.AsTime(), nil
}

// times reads a beginning and an end.
func times(from, until *timestamppb.Timestamp, op string) (f, u time.Time, err error) {
	if f, err = timeOf(from, op, "from"); err == nil {
		u, err = timeOf(until, op, "until")
	}
	return f, u, err
}

func (s reservationService) CreateReservation(ctx context.Context, r *apiv1.CreateReservationRequest) (*apiv1.CreateReservationResponse, error) {
	const op = "create a reservation"
	key, err := onceKey(ctx, r.GetIdempotencyKey(), op)
	if err != nil {
		return nil, err
	}
	from, until, err := times(r.GetFrom(), r.GetUntil(), op)
	if err != nil {
		return nil, err
	}
	v, warnings, err := s.engine.CreateReservation(ctx, callerOf(ctx), engine.NewReservation{
		Name: r.GetName(), Organization: r.GetOrganization(), Group: r.GetGroup(), Definition: coordinator.DefinitionID(r.GetDefinition()),
		Device: r.GetDevice(), GPUs: r.GetGpus(), Nodes: r.GetNodes(), From: from, Until: until, IdempotencyKey: key,
	})
	if err != nil {
		return nil, err
	}
	return &apiv1.CreateReservationResponse{Reservation: reservationToProto(v), Warnings: warnings}, nil
}

func (s reservationService) ListReservations(ctx context.Context, r *apiv1.ListReservationsRequest) (*apiv1.ListReservationsResponse, error) {
	list, next, err := s.engine.Reservations(ctx, callerOf(ctx), r.GetOrganization(), r.GetAll(), pageOf(r.GetPageSize(), r.GetPageToken()))
	if err != nil {
		return nil, err
	}
	return &apiv1.ListReservationsResponse{Reservations: each(list, reservationToProto), NextPageToken: next}, nil
}

func (s reservationService) GetReservation(ctx context.Context, r *apiv1.GetReservationRequest) (*apiv1.Reservation, error) {
	v, err := s.engine.Reservation(ctx, callerOf(ctx), r.GetId())
	if err != nil {
		return nil, err
	}
	return reservationToProto(v), nil
}

func (s reservationService) DeleteReservation(ctx context.Context, r *apiv1.DeleteReservationRequest) (*apiv1.Reservation, error) {
	v, err := s.engine.DeleteReservation(ctx, callerOf(ctx), r.GetId())
	if err != nil {
		return nil, err
	}
	return reservationToProto(v), nil
}

func reservationToProto(v engine.ReservationView) *apiv1.Reservation {
	return &apiv1.Reservation{
		Id: string(v.ID), Name: v.Name, Organization: v.Organization, Group: v.Group, Definition: string(v.Definition),
		Device: v.Device, Gpus: v.GPUs, Nodes: v.Nodes, From: stamp(v.From), Until: stamp(v.Until), State: string(v.State), Reason: v.Reason,
		Created: stamp(v.Created), CreatedBy: v.CreatedBy, Ended: stamp(v.Ended), DeletedBy: v.DeletedBy,
		Parts: each(v.Parts, func(p engine.ReservedPart) *apiv1.ReservedPart {
			return &apiv1.ReservedPart{Node: string(p.Node), Devices: p.Devices, Count: p.Count}
		}),
		Idle: v.Idle, Running: count(v.Running), Waiting: count(v.Waiting),
	}
}

type maintenanceService struct {
	apiv1.UnimplementedMaintenanceServer
	engine maintenanceAPI
}

func (s maintenanceService) AnnounceMaintenance(ctx context.Context, r *apiv1.AnnounceMaintenanceRequest) (*apiv1.AnnounceMaintenanceResponse, error) {
	const op = "announce maintenance"
	key, err := onceKey(ctx, r.GetIdempotencyKey(), op)
	if err != nil {
		return nil, err
	}
	from, until, err := times(r.GetFrom(), r.GetUntil(), op)
	if err != nil {
		return nil, err
	}
	v, warnings, err := s.engine.AnnounceMaintenance(ctx, callerOf(ctx), engine.NewMaintenance{
		Nodes:      each(r.GetNodes(), func(id string) coordinator.NodeID { return coordinator.NodeID(id) }),
		Definition: coordinator.DefinitionID(r.GetDefinition()), From: from, Until: until, Message: r.GetMessage(),
		Emergency: r.GetEmergency(), IdempotencyKey: key,
	})
	if err != nil {
		return nil, err
	}
	return &apiv1.AnnounceMaintenanceResponse{Maintenance: maintenanceToProto(v), Warnings: warnings}, nil
}

func (s maintenanceService) ListMaintenance(ctx context.Context, r *apiv1.ListMaintenanceRequest) (*apiv1.ListMaintenanceResponse, error) {
	list, next, err := s.engine.Maintenance(ctx, callerOf(ctx), r.GetAll(), pageOf(r.GetPageSize(), r.GetPageToken()))
	if err != nil {
		return nil, err
	}
	return &apiv1.ListMaintenanceResponse{Maintenance: each(list, maintenanceToProto), NextPageToken: next}, nil
}

func (s maintenanceService) CancelMaintenance(ctx context.Context, r *apiv1.CancelMaintenanceRequest) (*apiv1.MaintenanceWindow, error) {
	v, err := s.engine.CancelMaintenance(ctx, callerOf(ctx), r.GetId())
	if err != nil {
		return nil, err
	}
	return maintenanceToProto(v), nil
}

func (s maintenanceService) ListStatusHistory(ctx context.Context, r *apiv1.ListStatusHistoryRequest) (*apiv1.ListStatusHistoryResponse, error) {
	list, next, err := s.engine.StatusHistory(ctx, callerOf(ctx), pageOf(r.GetPageSize(), r.GetPageToken()))
	if err != nil {
		return nil, err
	}
	return &apiv1.ListStatusHistoryResponse{Entries: each(list, statusEntryToProto), NextPageToken: next}, nil
}

func (s maintenanceService) AddStatusNote(ctx context.Context, r *apiv1.AddStatusNoteRequest) (*apiv1.StatusEntry, error) {
	entry, err := s.engine.AddStatusNote(ctx, callerOf(ctx), r.GetMessage())
	if err != nil {
		return nil, err
	}
	return statusEntryToProto(entry), nil
}

func maintenanceToProto(v engine.MaintenanceView) *apiv1.MaintenanceWindow {
	return &apiv1.MaintenanceWindow{
		Id: v.ID, Nodes: texts(v.Nodes), Definition: string(v.Definition), From: stamp(v.From), Until: stamp(v.Until), Message: v.Message,
		Emergency: v.Emergency, State: v.State, Announced: stamp(v.Announced), AnnouncedBy: v.AnnouncedBy, Ended: stamp(v.Ended), CancelledBy: v.CancelledBy,
	}
}

func statusEntryToProto(x engine.StatusEntry) *apiv1.StatusEntry {
	return &apiv1.StatusEntry{
		Number: x.Number, Time: stamp(x.Time), Kind: string(x.Kind), Maintenance: x.Window, Nodes: texts(x.Nodes), Definition: string(x.Definition),
		From: stamp(x.From), Until: stamp(x.Until), Emergency: x.Emergency, Message: x.Message, By: x.By,
	}
}
