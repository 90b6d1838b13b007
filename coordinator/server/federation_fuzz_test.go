package server

import (
	"encoding/json"
	"reflect"
	"testing"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"substrate/coordinator"
	"substrate/coordinator/federation"
	"substrate/proto/apiv1"
)

// What a Federate's requests carry beside the request: whatever the bytes are, they are refused or read as something that
// has the bounds, and what is read is the same after the way back to the wire.

func FuzzBehalfMetadata(f *testing.F) {
	group := &apiv1.FederatedEntity{Id: rawID(2), Name: "research"}
	for _, m := range []*apiv1.OnBehalf{
		{Organization: &apiv1.FederatedEntity{Id: rawID(1), Name: "lab"}, Group: group,
			User: &apiv1.FederatedUser{Id: rawID(3), Name: "rita", UnixUser: "rita", Groups: []*apiv1.FederatedEntity{group}}},
		{Organization: &apiv1.FederatedEntity{Id: "x", Name: "\u202e"}}, {},
	} {
		data, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte("\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var m apiv1.OnBehalf
		if present, err := header(metadata.Pairs(behalfMetadata, string(data)), behalfMetadata, &m); err != nil {
			if coordinator.ErrorKindOf(err) != coordinator.ErrInvalid {
				t.Fatal(err)
			}
			return
		} else if !present {
			t.Fatal("it was passed over")
		}
		id := identityFromProto(&m)
		if id.Check() != nil {
			return
		}
		if len(id.Groups) == 0 || len(id.Groups) > federation.MaxGroups || id.User.Name == "" {
			t.Fatalf("%+v is an identity", id)
		}
		if again := identityFromProto(identityToProto(*id)); !reflect.DeepEqual(id, again) {
			t.Fatalf("%+v, then %+v", id, again)
		}
	})
}

func FuzzSchedulingMetadata(f *testing.F) {
	for _, m := range []*apiv1.SchedulingAttributes{
		{Schema: 1, Group: &apiv1.SchedulingValue{Priority: -5, Revision: 7}, Preempts: []*apiv1.FederatedEntity{{Id: rawID(4), Name: "spare"}}}, {Schema: 9}, {},
	} {
		data, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte("\x0a\xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var m apiv1.SchedulingAttributes
		if _, err := header(metadata.Pairs(schedulingMetadata, string(data)), schedulingMetadata, &m); err != nil {
			if coordinator.ErrorKindOf(err) != coordinator.ErrInvalid {
				t.Fatal(err)
			}
			return
		}
		attrs := attributesFromProto(&m)
		if attrs.Check() != nil {
			return
		}
		if len(attrs.Preempts) > federation.MaxPreempts {
			t.Fatalf("%d groups in the list", len(attrs.Preempts))
		}
		// Empty lists and none are the same on the wire.
		first, err := json.Marshal(attrs.Preempts)
		again := attributesFromProto(attributesToProto(*attrs))
		second, err2 := json.Marshal(again.Preempts)
		if err != nil || err2 != nil || attrs.Group != again.Group || attrs.User != again.User || attrs.Organization != again.Organization || string(first) != string(second) {
			t.Fatalf("%+v, then %+v", attrs, again)
		}
	})
}

// FuzzOrganizationsMetadata: those that the Federate means when it asks for itself.
func FuzzOrganizationsMetadata(f *testing.F) {
	data, err := proto.Marshal(&apiv1.FederatedOrganizations{Organizations: []*apiv1.FederatedEntity{{Id: rawID(1), Name: "lab"}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte("\x0a\x02\x0a\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var m apiv1.FederatedOrganizations
		if _, err := header(metadata.Pairs(organizationsMetadata, string(data)), organizationsMetadata, &m); err != nil {
			return
		}
		for _, e := range each(m.GetOrganizations(), entityFromProto) {
			if e.Check() == nil && (e.Name == "" || len(e.ID) != 36) {
				t.Fatalf("%+v is an organisation", e)
			}
		}
	})
}
