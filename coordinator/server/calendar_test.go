package server

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	"substrate/coordinator"
	"substrate/coordinator/engine"
	"substrate/proto/apiv1"
)

func sampleReservation() engine.ReservationView {
	return engine.ReservationView{
		ID: "r-1", Name: "spring", Organization: "acme", Group: "research", Definition: "gpu", Device: "nvidia.com/gpu", GPUs: 4,
		From: at(1), Until: at(50), Created: at(0), CreatedBy: "admin", State: engine.ReservationActive, Reason: "r",
		Parts: []engine.ReservedPart{{Node: "n1", Devices: []string{"0000:01:00.0"}, Count: 1}}, Idle: 3, Running: 1, Waiting: 2,
	}
}

func sampleMaintenance() engine.MaintenanceView {
	return engine.MaintenanceView{ID: "7", Nodes: []coordinator.NodeID{"n1"}, Definition: "gpu", From: at(1), Until: at(50), Message: "new switch",
		Emergency: true, State: "cancelled", Announced: at(0), AnnouncedBy: "admin", Ended: at(3), CancelledBy: "mia"}
}

func sampleEntry() engine.StatusEntry {
	return engine.StatusEntry{Number: 7, Time: at(0), Kind: engine.StatusAnnounced, Window: "7", Nodes: []coordinator.NodeID{"n1"}, Definition: "gpu",
		From: at(1), Until: at(50), Emergency: true, Message: "new switch", By: "admin"}
}

func recordReservations(f *fakeEngine, note func(string, ...any)) {
	f.createReservationFunc = func(_ context.Context, c engine.Caller, in engine.NewReservation) (engine.ReservationView, []string, error) {
		note("CreateReservation by %s %+v", c.Name, in)
		return sampleReservation(), []string{"w"}, nil
	}
	f.reservationsFunc = func(_ context.Context, c engine.Caller, o string, all bool, p engine.Page) ([]engine.ReservationView, string, error) {
		note("Reservations by %s of %q all %v %+v", c.Name, o, all, p)
		return []engine.ReservationView{sampleReservation()}, "t", nil
	}
	f.reservationFunc = func(_ context.Context, c engine.Caller, ref string) (engine.ReservationView, error) {
		note("Reservation by %s %q", c.Name, ref)
		return sampleReservation(), nil
	}
	f.deleteReservationFunc = func(_ context.Context, c engine.Caller, ref string) (engine.ReservationView, error) {
		note("DeleteReservation by %s %q", c.Name, ref)
		return sampleReservation(), nil
	}
}

func recordMaintenance(f *fakeEngine, note func(string, ...any)) {
	f.announceMaintenanceFunc = func(_ context.Context, c engine.Caller, in engine.NewMaintenance) (engine.MaintenanceView, []string, error) {
		note("AnnounceMaintenance by %s %+v", c.Name, in)
		return sampleMaintenance(), []string{"w"}, nil
	}
	f.maintenanceFunc = func(_ context.Context, _ engine.Caller, all bool, p engine.Page) ([]engine.MaintenanceView, string, error) {
		note("Maintenance all %v %+v", all, p)
		return []engine.MaintenanceView{sampleMaintenance()}, "", nil
	}
	f.cancelMaintenanceFunc = func(_ context.Context, c engine.Caller, id string) (engine.MaintenanceView, error) {
		note("CancelMaintenance by %s %q", c.Name, id)
		return sampleMaintenance(), nil
	}
	f.statusHistoryFunc = func(_ context.Context, _ engine.Caller, p engine.Page) ([]engine.StatusEntry, string, error) {
		note("StatusHistory %+v", p)
		return []engine.StatusEntry{sampleEntry()}, "7", nil
	}
	f.addStatusNoteFunc = func(_ context.Context, c engine.Caller, m string) (engine.StatusEntry, error) {
		note("AddStatusNote by %s %q", c.Name, m)
		return sampleEntry(), nil
	}
}

func calendarRequests() [][]string {
	return [][]string{
		{"POST", "/v1/reservations", `{"name":"spring","organization":"acme","group":"research","definition":"gpu","gpus":4,"from":"2026-03-04T05:01:00Z","until":"2026-03-04T05:50:00Z"}`, "Idempotency-Key: k-2"},
		{"POST", "/v1/reservations", `{"name":"spring","definition":"gpu","nodes":2,"until":"2026-03-04T07:50:00+02:00"}`},
		{"POST", "/v1/reservations", `{"name":"spring","until":"tomorrow"}`},
		{"POST", "/v1/reservations", `{"name":"spring","gpus":-1}`},
		{"GET", "/v1/reservations?organization=acme&all=true&page_size=3", ""},
		{"GET", "/v1/reservations/spring", ""},
		{"DELETE", "/v1/reservations/spring", ""},
		{"POST", "/v1/maintenance", `{"nodes":["n1","n2"],"definition":"gpu","from":"2026-03-04T05:01:00Z","until":"2026-03-04T05:50:00Z","message":"new switch","emergency":true}`, "Idempotency-Key: k-3"},
		{"GET", "/v1/maintenance?all=true", ""},
		{"POST", "/v1/maintenance/7/cancel", `{}`},
		{"GET", "/v1/status/history?page_size=1&page_token=" + pageAfter("/substrate.v1.Maintenance/ListStatusHistory", &apiv1.ListStatusHistoryRequest{}, "8"), ""},
		{"POST", "/v1/status/history", `{"message":"all is well"}`},
	}
}

// TestTimesOfRequests: a time that protobuf can carry but no calendar has is refused, one that is left out is not a time.
func TestTimesOfRequests(t *testing.T) {
	if got, err := timeOf(nil, "do it", "from"); err != nil || !got.IsZero() {
		t.Errorf("left out: %v, %v", got, err)
	}
	for name, bad := range map[string]*timestamppb.Timestamp{
		"before year 1":      {Seconds: -62135596801},
		"after year 9999":    {Seconds: 253402300800},
		"negative fraction":  {Nanos: -1},
		"more than a second": {Nanos: 1e9},
	} {
		_, err := timeOf(bad, "do it", "from")
		if coordinator.ErrorKindOf(err) != coordinator.ErrInvalid || !strings.HasPrefix(err.Error(), "cannot do it: from is not a time: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
