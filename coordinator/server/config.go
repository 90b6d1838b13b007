package server

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"substrate/coordinator"
	"substrate/coordinator/config"
	"substrate/coordinator/config/access"
	"substrate/coordinator/engine"
	"substrate/proto/apiv1"
)

type configService struct {
	apiv1.UnimplementedConfigServer
	engine configAPI
	plans  planAPI
}

func (s configService) SetConfig(ctx context.Context, r *apiv1.SetConfigRequest) (*apiv1.SetConfigResponse, error) {
	if r.IfRevision == nil {
		rev, err := ifMatch(ctx)
		if err != nil {
			return nil, err
		}
		r.IfRevision = rev
	}
	res, err := s.engine.SetConfig(ctx, callerOf(ctx), engine.SetConfig{
		YAML: r.GetYaml(), File: r.GetFile(), IfRevision: revisionPointer(r.IfRevision), AppendGrants: r.GetAppendGrants(),
	})
	if err != nil {
		return nil, err
	}
	return setConfigToProto(res), nil
}

func (s configService) GetConfig(ctx context.Context, r *apiv1.GetConfigRequest) (*apiv1.GetConfigResponse, error) {
	rev, yaml, err := s.engine.Config(ctx, callerOf(ctx), revisionPointer(r.Revision))
	if err != nil {
		return nil, err
	}
	return &apiv1.GetConfigResponse{Revision: revisionToProto(rev), Yaml: yaml}, nil
}

func (s configService) ListConfigRevisions(ctx context.Context, r *apiv1.ListConfigRevisionsRequest) (*apiv1.ListConfigRevisionsResponse, error) {
	revs, next, err := s.engine.ConfigRevisions(ctx, callerOf(ctx), pageOf(r.GetPageSize(), r.GetPageToken()))
	if err != nil {
		return nil, err
	}
	return &apiv1.ListConfigRevisionsResponse{Revisions: each(revs, revisionToProto), NextPageToken: next}, nil
}

func (s configService) ValidateConfig(ctx context.Context, r *apiv1.ValidateConfigRequest) (*apiv1.ValidateConfigResponse, error) {
	ds := s.engine.ValidateConfig(ctx, r.GetFile(), r.GetYaml())
	return &apiv1.ValidateConfigResponse{Diagnostics: each(ds, diagnosticToProto)}, nil
}

func (s configService) PlanConfig(ctx context.Context, r *apiv1.PlanConfigRequest) (*apiv1.PlanConfigResponse, error) {
	plan, err := s.plans.PlanConfig(ctx, callerOf(ctx), r.GetFile(), r.GetYaml(), membersOf(r))
	if err != nil {
		return nil, err
	}
	return sameFields(plan, &apiv1.PlanConfigResponse{})
}

// plannedMembers is how many members of a wildcard are listed when nothing is said.
const plannedMembers = 20

func membersOf(r *apiv1.PlanConfigRequest) int {
	if r.GetAllMembers() {
		return -1
	}
	return min(cmp.Or(int(r.GetMembers()), plannedMembers), config.MaxDefinitions)
}

func (s configService) SuggestConfig(ctx context.Context, _ *apiv1.SuggestConfigRequest) (*apiv1.SuggestConfigResponse, error) {
	suggestion, err := s.plans.SuggestConfig(ctx, callerOf(ctx))
	if err != nil {
		return nil, err
	}
	return sameFields(suggestion, &apiv1.SuggestConfigResponse{})
}

func (s configService) AuditPolicies(ctx context.Context, r *apiv1.AuditPoliciesRequest) (*apiv1.AuditPoliciesResponse, error) {
	rows, next, err := s.plans.AuditPolicies(ctx, callerOf(ctx), engine.AuditPolicies{
		Organization: r.GetOrganization(), Group: r.GetGroup(), Page: pageOf(r.GetPageSize(), r.GetPageToken()),
		Filter: access.Filter{Definition: coordinator.DefinitionID(r.GetDefinition()), Reachable: r.GetReachable(), Flagged: r.GetFlagged()},
	})
	if err != nil {
		return nil, err
	}
	return &apiv1.AuditPoliciesResponse{Rows: each(rows, reachToProto), NextPageToken: next}, nil
}

func reachToProto(r access.Row) *apiv1.PolicyReach {
	return &apiv1.PolicyReach{
		Organization: r.Owner.OrganizationSlug, OrganizationId: string(r.Owner.Organization),
		Group: r.Owner.GroupSlug, GroupId: string(r.Owner.Group), Definition: string(r.Definition), CostPerHour: r.CostPerHour,
		Reach: string(r.Reach), GrantRefusal: r.Grant, Policy: r.Policy, DependsOn: r.On,
		Findings: each(r.Findings, func(f access.Finding) *apiv1.PolicyFinding {
			return &apiv1.PolicyFinding{Code: f.Code, Message: f.Message, Fix: f.Fix}
		}),
	}
}

// sameFields fills a message from a value whose JSON has the message's field names. A field that the message
// does not know is an error.
func sameFields[M proto.Message](v any, m M) (M, error) {
	text, err := json.Marshal(v)
	if err == nil {
		err = protojson.Unmarshal(text, m)
	}
	if err != nil {
		return m, fmt.Errorf("cannot convert %T: %w", v, err)
	}
	return m, nil
}

// etag is the entity tag of a configuration revision.
func etag(revision uint64) string { return `"` + strconv.FormatUint(revision, 10) + `"` }

// ifMatch reads the revision of an If-Match header that came through the gateway; nil without one.
func ifMatch(ctx context.Context) (*uint64, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	v := md.Get("grpcgateway-if-match")
	if len(v) == 0 || v[0] == "*" {
		return nil, nil
	}
	n, err := strconv.ParseUint(strings.Trim(v[0], `"`), 10, 64)
	if err != nil || len(v) > 1 {
		return nil, coordinator.Errorf(coordinator.ErrInvalid, "read the If-Match header", "%q is not one revision", strings.Join(v, ", ")).
			WithHint("send the ETag of GET /v1/config, for example %s", etag(3))
	}
	return &n, nil
}
