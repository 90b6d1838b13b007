package gcp

import (
	"context"

	"google.golang.org/api/compute/v1"
)

// client is the part of the SDK that is used here, as functions of its plain values. A type of the SDK's service or calls that something here had for a
// field would take all methods of all its services into the program, which is 13 MB: this package's Provisioner becomes an interface.
type client struct {
	insert     func(ctx context.Context, project, zone, requestID string, in *compute.Instance) (*compute.Operation, error)
	get        func(ctx context.Context, project, zone, name string) (*compute.Instance, error)
	remove     func(ctx context.Context, project, zone, name string) (*compute.Operation, error)
	wait       func(ctx context.Context, project, zone, operation string) (*compute.Operation, error)
	instances  func(ctx context.Context, project, filter, page string) (*compute.InstanceAggregatedList, error)
	operations func(ctx context.Context, project, filter, page string) (*compute.OperationAggregatedList, error)
	types      func(ctx context.Context, project, filter, page string) (*compute.MachineTypeAggregatedList, error)
}

func clientOf(s *compute.Service) client {
	return client{
		insert: func(ctx context.Context, project, zone, requestID string, in *compute.Instance) (*compute.Operation, error) {
			return s.Instances.Insert(project, zone, in).RequestId(requestID).Context(ctx).Do()
		},
		get: func(ctx context.Context, project, zone, name string) (*compute.Instance, error) {
			return s.Instances.Get(project, zone, name).Context(ctx).Do()
		},
		remove: func(ctx context.Context, project, zone, name string) (*compute.Operation, error) {
			return s.Instances.Delete(project, zone, name).Context(ctx).Do()
		},
		wait: func(ctx context.Context, project, zone, operation string) (*compute.Operation, error) {
			return s.ZoneOperations.Wait(project, zone, operation).Context(ctx).Do()
		},
		instances: func(ctx context.Context, project, filter, page string) (*compute.InstanceAggregatedList, error) {
			call := s.Instances.AggregatedList(project).Filter(filter).MaxResults(pageSize).Context(ctx)
			if page != "" {
				call = call.PageToken(page)
			}
			return call.Do()
		},
		operations: func(ctx context.Context, project, filter, page string) (*compute.OperationAggregatedList, error) {
			call := s.GlobalOperations.AggregatedList(project).Filter(filter).MaxResults(pageSize).Context(ctx)
			if page != "" {
				call = call.PageToken(page)
			}
			return call.Do()
		},
		types: func(ctx context.Context, project, filter, page string) (*compute.MachineTypeAggregatedList, error) {
			call := s.MachineTypes.AggregatedList(project).MaxResults(pageSize).Context(ctx)
			if filter != "" {
				call = call.Filter(filter)
			}
			if page != "" {
				call = call.PageToken(page)
			}
			return call.Do()
		},
	}
}
