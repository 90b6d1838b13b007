package agent

import (
	"errors"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestPlain(t *testing.T) {
	hinted, err := status.New(codes.FailedPrecondition, "cannot redeem join token").
		WithDetails(&errdetails.ErrorInfo{Metadata: map[string]string{"hint": "make another"}})
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name          string
		err           error
		message, hint string
	}{
		{"not of grpc", errors.New("x"), "x", ""},
		{"the coordinator's words", hinted.Err(), "cannot redeem join token", "make another"},
		{"handshake", status.Error(codes.Unavailable, `connection error: desc = "transport: authentication handshake failed: cannot trust \"a\""`), `cannot trust "a"`, ""},
		{"dialing", status.Error(codes.Unavailable, `connection error: desc = "transport: Error while dialing: connection refused"`), "connection refused", ""},
		{"cut short", status.Error(codes.Unavailable, `connection error: desc = "transport: x`), `"transport: x`, ""},
		{"another service", status.Error(codes.Unimplemented, "unknown service substrate.agent.v1.Agent"),
			"this is the coordinator's port for users; nodes have one of their own", "give the port of --agent-listen at the coordinator, 7443 unless it says otherwise"},
		{"another call", status.Error(codes.Unimplemented, "unknown method X"), "unknown method X", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := plain(tt.err)
			hint := ""
			var told *answer
			if errors.As(got, &told) {
				hint = told.Hint()
			}
			if got.Error() != tt.message || hint != tt.hint || !errors.Is(got, tt.err) {
				t.Errorf("%q, hint %q", got, hint)
			}
		})
	}
}
