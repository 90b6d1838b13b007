package server

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"substrate/coordinator/engine"
	"substrate/proto/apiv1"
)

type auditService struct {
	apiv1.UnimplementedAuditServer
	engine auditAPI
}

func (s auditService) ListAudit(ctx context.Context, r *apiv1.ListAuditRequest) (*apiv1.ListAuditResponse, error) {
	filter := engine.AuditFilter{Since: timeGiven(r.GetSince()), Until: timeGiven(r.GetUntil()), User: r.GetUser(), Object: r.GetObject(), Method: r.GetVerb()}
	list, next, err := s.engine.Audit(ctx, callerOf(ctx), filter, pageOf(r.GetPageSize(), r.GetPageToken()))
	if err != nil {
		return nil, err
	}
	return &apiv1.ListAuditResponse{Entries: each(list, auditToProto), NextPageToken: next}, nil
}

// timeGiven keeps "not given" apart from a time.
func timeGiven(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

func auditToProto(e engine.AuditEntry) *apiv1.AuditEntry {
	return &apiv1.AuditEntry{
		Time: stamp(e.Time), RequestId: e.Request, User: e.UserName, UserId: string(e.User), Node: string(e.Node), Token: e.Token, From: e.From,
		Verb: e.Method, Object: e.Object, Name: e.Name, MoreRecords: count(e.More), Outcome: e.Outcome, Message: toValidUTF8(e.Message),
		TokenName: toValidUTF8(e.TokenName), Action: toValidUTF8(e.Action),
		Records: each(e.Records, func(r engine.AuditRecord) *apiv1.AuditRecord {
			return &apiv1.AuditRecord{Key: r.Key, Before: r.Before, After: r.After}
		}),
	}
}
