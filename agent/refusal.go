package agent

import (
	"strconv"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// answer is an error in the coordinator's words, or the network's, with what to do about it.
type answer struct {
	message, hint string
	cause         error
}

func (a *answer) Error() string { return a.message }
func (a *answer) Unwrap() error { return a.cause }

// Hint is what the reader can do, "" if nobody knows.
func (a *answer) Hint() string { return a.hint }

// plain drops grpc's wording around the coordinator's, and keeps its hint.
func plain(err error) error {
	s, ok := err.(interface{ GRPCStatus() *status.Status })
	if !ok {
		return err
	}
	st := s.GRPCStatus()
	a := &answer{message: transportCause(st.Message()), cause: err}
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			a.hint = info.GetMetadata()["hint"]
		}
	}
	if st.Code() == codes.Unimplemented && strings.Contains(st.Message(), "unknown service substrate.agent.") {
		a.message = "this is the coordinator's port for users; nodes have one of their own"
		a.hint = "give the port of --agent-listen at the coordinator, 7443 unless it says otherwise"
	}
	return a
}

// transportCause leaves out what the transport wraps around the words of the system, or of ours.
func transportCause(message string) string {
	quoted, ok := strings.CutPrefix(message, "connection error: desc = ")
	if !ok {
		return message
	}
	if inner, err := strconv.Unquote(quoted); err == nil {
		quoted = inner
	}
	for _, before := range []string{"transport: Error while dialing: ", "transport: authentication handshake failed: ", "transport: "} {
		if inner, ok := strings.CutPrefix(quoted, before); ok {
			return inner
		}
	}
	return quoted
}
