package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"substrate/coordinator/config"
	"substrate/proto/apiv1"
)

// Exit codes; append-only.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitRefused     = 3 // policy, permission, no or bad token
	exitNotFound    = 4
	exitUnavailable = 5
	exitChanges     = 6   // asked what would change or differs: something does
	exitInterrupted = 130 // as shells say it of SIGINT
)

// failure is an error with what the user should do, where in a file it is, and its exit code.
type failure struct {
	code        int
	message     string
	hint        string
	diagnostics []*apiv1.Diagnostic
	unconnected bool // the call did not get to the coordinator
}

func (f *failure) Error() string { return f.message }

const seeHelp = "see `substrate help`"

func usagef(format string, args ...any) error {
	return &failure{code: exitUsage, message: fmt.Sprintf(format, args...), hint: seeHelp}
}

func asUsage(err error) error {
	var f *failure
	if errors.As(err, &f) {
		return err
	}
	// cobra's own words for an unknown command have the nearest ones below them.
	message, near, _ := strings.Cut(err.Error(), "\n\nDid you mean this?")
	hint := seeHelp
	if names := strings.Fields(near); len(names) > 0 {
		hint = "did you mean " + strings.Join(names, " or ") + "? See `substrate help`"
	}
	return &failure{code: exitUsage, message: message, hint: hint}
}

func failf(code int, hint, format string, args ...any) error {
	return &failure{code: code, message: fmt.Sprintf(format, args...), hint: hint}
}

func interrupted() error { return failf(exitInterrupted, "", "interrupted") }

// fromRPC reads what the coordinator attached to its refusal.
func fromRPC(server string, err error) error {
	if err == nil {
		return nil
	}
	st, ok := status.FromError(err)
	if !ok {
		if errors.Is(err, context.Canceled) {
			return interrupted()
		}
		return err
	}
	f := &failure{code: exitFailed, message: st.Message()}
	informed := false
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			f.hint, informed = d.GetMetadata()["hint"], true
		case *apiv1.Diagnostic:
			f.diagnostics = append(f.diagnostics, d)
		}
	}
	switch st.Code() {
	case codes.Unauthenticated:
		f.code = exitRefused
		if f.hint == "" {
			f.hint = "check SUBSTRATE_TOKEN or --token-file, or run `substrate login`; `substrate user token create` makes a new one"
		}
	case codes.PermissionDenied:
		f.code = exitRefused
	case codes.NotFound:
		f.code = exitNotFound
	case codes.Unavailable, codes.DeadlineExceeded:
		f.code = exitUnavailable
		if !informed { // the transport speaks, not the coordinator
			cause := transportCause(st.Message())
			f.message = fmt.Sprintf("cannot reach the coordinator at %s: %s", server, cause)
			f.hint = transportHint(server, cause)
			f.unconnected = cause != st.Message()
		}
	case codes.Internal:
		if !informed && strings.Contains(st.Message(), "invalid UTF-8") { // the transport refuses to send it
			f.code, f.message, f.hint = exitUsage, "cannot send the request: a text in it is not UTF-8", "look at the bytes of names and messages on the command line"
		}
	case codes.Canceled:
		f.code, f.message = exitInterrupted, "interrupted"
	case codes.Unimplemented:
		if !informed {
			f.message, f.hint = "cannot call the coordinator: it does not know this request", "compare `substrate version` with the coordinator's"
		}
	}
	return f
}

// transportCause leaves out what the transport wraps around the system's own words.
func transportCause(message string) string {
	const before = `connection error: desc = "`
	inner, ok := strings.CutPrefix(message, before)
	if !ok {
		return message
	}
	inner = strings.TrimSuffix(inner, `"`)
	if _, cause, ok := strings.Cut(inner, "transport: Error while dialing: "); ok {
		return cause
	}
	return strings.TrimPrefix(inner, "transport: ")
}

// transportHint knows the usual mistakes by what the transport says of them.
func transportHint(server, cause string) string {
	_, secure, err := address(server)
	switch {
	case strings.Contains(cause, "certificate signed by unknown authority"):
		return "give its authority with --ca FILE: the coordinator wrote ca.pem into its data directory"
	case strings.Contains(cause, "does not look like a TLS handshake"):
		return "it speaks clear text there: write http:// before the address, which is for this machine only"
	case strings.Contains(cause, "x509: certificate is"), strings.Contains(cause, "x509: cannot validate certificate"):
		return "use a name or address that its certificate is for; the coordinator takes more with --host"
	case err == nil && !secure && strings.Contains(cause, "server preface"):
		return "it speaks TLS there, it seems: write https:// before the address, and --ca FILE for its authority"
	}
	return "is it running, and is the address right? See --server, SUBSTRATE_SERVER and `substrate context list`"
}

func exitCode(err error) int {
	var f *failure
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &f):
		return f.code
	}
	return exitFailed
}

func printError(w io.Writer, err error) {
	var f *failure
	if !errors.As(err, &f) {
		fmt.Fprintln(w, err)
		return
	}
	if len(f.diagnostics) > 0 {
		printDiagnostics(w, f.diagnostics)
		// The message would repeat every line; its first part names what was refused.
		fmt.Fprintln(w, firstSentence(f.message))
	} else if f.message != "" {
		fmt.Fprintln(w, f.message)
	}
	if f.hint != "" {
		fmt.Fprintln(w, "hint: "+f.hint)
	}
}

// firstSentence is "cannot set the configuration" of "cannot set the configuration: f.yaml:3:1: …".
func firstSentence(message string) string {
	for i := range message {
		if message[i] == ':' || message[i] == '\n' {
			return message[:i]
		}
	}
	return message
}

// printDiagnostics writes `file:line:col: severity: message [lint]` and the hint below it.
func printDiagnostics(w io.Writer, ds []*apiv1.Diagnostic) {
	for _, d := range ds {
		place := d.GetFile()
		if d.GetLine() > 0 {
			place += fmt.Sprintf(":%d", d.GetLine())
			if d.GetColumn() > 0 {
				place += fmt.Sprintf(":%d", d.GetColumn())
			}
		}
		if place != "" {
			place += ": "
		}
		path := d.GetPath()
		if path != "" {
			path += ": "
		}
		code := ""
		if d.GetSeverity() == "warning" && slices.Contains(config.LintCodes(), d.GetCode()) {
			code = " [" + d.GetCode() + "]" // what lints.silence takes
		}
		fmt.Fprintf(w, "%s%s: %s%s%s\n", place, d.GetSeverity(), path, d.GetMessage(), code)
		if d.GetHint() != "" {
			fmt.Fprintf(w, "  hint: %s\n", d.GetHint())
		}
	}
}
