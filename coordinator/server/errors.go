package server

import (
	"context"
	"errors"
	"net/http"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	"substrate/coordinator"
	"substrate/proto/apiv1"
	"substrate/strictyaml"
)

const (
	errorDomain = "substrate"
	// Details travel in trailers, which peers bound.
	maxErrorDiagnostics = 50
	maxErrorText        = 2048
)

// kindOf is one row of the table from error kinds to the wire.
type kindOf struct {
	kind   coordinator.ErrorKind
	code   codes.Code
	reason string // in ErrorInfo and the JSON error body; append-only
}

func kinds() []kindOf {
	return []kindOf{
		{coordinator.ErrInternal, codes.Internal, "internal"},
		{coordinator.ErrInvalid, codes.InvalidArgument, "invalid"},
		{coordinator.ErrNotFound, codes.NotFound, "not-found"},
		{coordinator.ErrExists, codes.AlreadyExists, "exists"},
		{coordinator.ErrConflict, codes.Aborted, "conflict"},
		{coordinator.ErrDenied, codes.PermissionDenied, "denied"},
		{coordinator.ErrUnauthenticated, codes.Unauthenticated, "unauthenticated"},
		{coordinator.ErrUnavailable, codes.Unavailable, "unavailable"},
		{coordinator.ErrExhausted, codes.ResourceExhausted, "exhausted"},
		{coordinator.ErrUnsupported, codes.Unimplemented, "unsupported"},
	}
}

// toStatus turns an engine's error into a gRPC status with hint and diagnostics as details.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	// An engine's error decides even if it wraps a status or a context error.
	var ce *coordinator.Error
	var ds strictyaml.Diagnostics
	isOurs, isDiagnostics := errors.As(err, &ce), errors.As(err, &ds)
	if !isOurs && !isDiagnostics {
		if _, ok := status.FromError(err); ok {
			return err
		}
		if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			return status.FromContextError(err).Err()
		}
	}
	kind, hint := coordinator.ErrorKindOf(err), ""
	if isOurs {
		hint = ce.Hint
	} else if isDiagnostics {
		kind = coordinator.ErrInvalid
	}
	row := kinds()[0]
	for _, k := range kinds() {
		if k.kind == kind {
			row = k
		}
	}
	return withDetails(status.New(row.code, cut(err.Error())), row.reason, hint, ds)
}

func withDetails(st *status.Status, reason, hint string, ds strictyaml.Diagnostics) error {
	info := &errdetails.ErrorInfo{Reason: reason, Domain: errorDomain}
	if hint != "" {
		info.Metadata = map[string]string{"hint": cut(hint)}
	}
	details := []protoadapt.MessageV1{info}
	for i, d := range ds {
		if i == maxErrorDiagnostics {
			break
		}
		p := diagnosticToProto(d)
		p.Message, p.Hint = cut(p.Message), cut(p.Hint)
		details = append(details, p)
	}
	full, err := st.WithDetails(details...)
	if err != nil {
		return st.Err()
	}
	return full.Err()
}

func cut(s string) string {
	if len(s) <= maxErrorText {
		return s
	}
	return toValidUTF8(s[:maxErrorText]) + "…"
}

// errorBody is the JSON of every REST error.
type errorBody struct {
	Code        string              `json:"code"`
	Message     string              `json:"message"`
	Hint        string              `json:"hint,omitempty"`
	Diagnostics []*apiv1.Diagnostic `json:"diagnostics,omitempty"`
}

func bodyOf(st *status.Status) errorBody {
	b := errorBody{Message: st.Message()}
	for _, k := range kinds() {
		if k.code == st.Code() {
			b.Code = k.reason
		}
	}
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() == errorDomain {
				b.Code, b.Hint = d.GetReason(), d.GetMetadata()["hint"]
			}
		case *apiv1.Diagnostic:
			b.Diagnostics = append(b.Diagnostics, d)
		}
	}
	if b.Code == "" {
		b.Code = "internal"
		if st.Code() == codes.Canceled || st.Code() == codes.DeadlineExceeded {
			b.Code = "unavailable"
		}
	}
	return b
}

// httpStatus is the gateway's table but for a failed If-Match.
func httpStatus(st *status.Status, r *http.Request) int {
	if st.Code() == codes.Aborted && r.Header.Get("If-Match") != "" {
		return http.StatusPreconditionFailed
	}
	return runtime.HTTPStatusFromCode(st.Code())
}
