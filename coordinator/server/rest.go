package server

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"substrate/coordinator"
	"substrate/proto/apiv1"
)

const (
	eventStream         = "text/event-stream"
	idempotencyMetadata = "idempotency-key"
	lastEventMetadata   = "last-event-id"
	describedAt         = "the API is described at /v1/openapi.json"
)

func newGateway(client *grpc.ClientConn) (http.Handler, error) {
	plain := &runtime.JSONPb{
		MarshalOptions:   protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true},
		UnmarshalOptions: protojson.UnmarshalOptions{}, // unknown fields are refused
	}
	mux := runtime.NewServeMux(
		runtime.WithMarshalerOption(runtime.MIMEWildcard, oneValue{plain}),
		runtime.WithMarshalerOption(eventStream, sse{plain}),
		runtime.WithIncomingHeaderMatcher(incomingHeader),
		runtime.WithOutgoingHeaderMatcher(outgoingHeader),
		runtime.WithForwardResponseOption(setETag),
		runtime.WithErrorHandler(restError),
		runtime.WithRoutingErrorHandler(routingError),
		runtime.WithDisableChunkedEncoding(), // net/http does it where the protocol has it
		runtime.WithDisablePathLengthFallback(),
		runtime.WithDisableHTTPMethodOverride(),
		runtime.WithMiddlewares(keepQuery),
	)
	for _, register := range []func(context.Context, *runtime.ServeMux, *grpc.ClientConn) error{
		apiv1.RegisterConfigHandler, apiv1.RegisterNodesHandler, apiv1.RegisterBackendsHandler,
		apiv1.RegisterWorkflowsHandler, apiv1.RegisterIdentityHandler, apiv1.RegisterAuditHandler, apiv1.RegisterLoginHandler,
		apiv1.RegisterReservationsHandler, apiv1.RegisterMaintenanceHandler, apiv1.RegisterClustersHandler,
	} {
		// The connection outlives the registration: API.Close closes it.
		if err := register(context.Background(), mux, client); err != nil {
			return nil, fmt.Errorf("cannot register the REST gateway: %w", err)
		}
	}
	return mux, nil
}

// serveREST prepares what the generated gateway does not know: limits, YAML bodies, server-sent events.
func (a *API) serveREST(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	if query, err := url.QueryUnescape(r.URL.RawQuery); err != nil || !utf8.ValidString(query) || !utf8.ValidString(r.URL.Path) {
		writeError(w, http.StatusBadRequest, errorBody{Code: "invalid", Message: "the path or the query is not UTF-8"})
		return
	}
	most := int64(maxMessage)
	if r.URL.Path == "/v1/config" || r.URL.Path == "/v1/config:validate" || r.URL.Path == "/v1/config:plan" {
		most = maxConfigBody
	}
	if r.ContentLength > most {
		writeError(w, http.StatusRequestEntityTooLarge, errorBody{
			Code: "exhausted", Message: fmt.Sprintf("the request is larger than %d bytes", most),
		})
		return
	}
	a.limit(w, r, most)
	if err := yamlBody(r); err != nil {
		body := errorBody{Code: "invalid", Message: err.Error()}
		var hinted *coordinator.Error
		if errors.As(err, &hinted) {
			body.Hint = hinted.Hint
		}
		writeError(w, http.StatusBadRequest, body)
		return
	}
	if r.Header.Get("Accept") == eventStream && r.URL.Path != "/v1/events" && !strings.HasSuffix(r.URL.Path, "/log") {
		r.Header.Del("Accept")
	}
	a.rest.ServeHTTP(w, r)
}

// yamlBody lets scripts post a file as it is: `curl --data-binary @f.yaml -H 'Content-Type: application/yaml'`.
func yamlBody(r *http.Request) error {
	t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || (t != "application/yaml" && t != "text/yaml" && t != "application/x-yaml") {
		return nil
	}
	var fields []string
	switch r.URL.Path {
	case "/v1/config":
		fields = []string{"file", "append_grants"}
	case "/v1/workflows", "/v1/workflows:score":
		fields = []string{"file", "name", "group", "priority", "preemptible"}
	case "/v1/config:validate", "/v1/config:plan", "/v1/workflows:validate":
		fields = []string{"file"}
	default:
		return errors.New("cannot read the request: this path takes no YAML body")
	}
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return fmt.Errorf("cannot read the request: %w", err)
	}
	body := map[string]any{"yaml": base64.StdEncoding.EncodeToString(data)}
	query := r.URL.Query()
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if !slices.Contains(fields, name) {
			return unknownParameter("read the request", name, fields)
		}
	}
	r.URL.RawQuery = "" // it is in the body now
	for _, f := range fields {
		switch v := query.Get(f); {
		case v == "":
		case f == "append_grants" || f == "preemptible":
			if body[f], err = strconv.ParseBool(v); err != nil {
				return fmt.Errorf("cannot read the request: query parameter %s: %.40q is neither true nor false", f, v)
			}
		default:
			body[f] = v
		}
	}
	encoded, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("cannot encode the request: %w", err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(encoded)), int64(len(encoded))
	return nil
}

func incomingHeader(key string) (string, bool) {
	switch textproto.CanonicalMIMEHeaderKey(key) {
	case "Idempotency-Key":
		return idempotencyMetadata, true
	case "Last-Event-Id":
		return lastEventMetadata, true
	case "If-Match":
		return runtime.DefaultHeaderMatcher(key)
	}
	return "", false // Authorization and X-Forwarded-For are passed on by the gateway itself
}

func outgoingHeader(key string) (string, bool) {
	if key == requestIDMetadata {
		return "X-Request-Id", true
	}
	return "", false
}

// plainly says in words of our own what the gateway says of a number or a time in the query:
// `parsing field "page_size": strconv.ParseUint: parsing "-1": invalid syntax`.
func plainly(message string) string {
	if field, rest, ok := strings.Cut(message, ": parsing time "); ok {
		value, _, _ := strings.Cut(rest, " as ")
		return fmt.Sprintf("%s: expected a time such as 2026-12-01T08:00:00Z, got %s", strings.TrimPrefix(field, "parsing "), value)
	}
	before, rest, ok := strings.Cut(message, ": strconv.Parse")
	kind, value, cut := strings.Cut(rest, ": parsing ")
	if !ok || !cut {
		return message
	}
	expected := "a number that fits"
	if kind == "Bool" {
		expected = "true or false"
	}
	if i := strings.LastIndex(value, ": "); i >= 0 {
		value = value[:i]
	}
	return fmt.Sprintf("%s: expected %s, got %s", strings.TrimPrefix(before, "parsing "), expected, value)
}

// lastEventID is where a browser's event source continues.
func lastEventID(ctx context.Context) (uint64, bool) {
	md, _ := metadata.FromIncomingContext(ctx)
	v := md.Get(lastEventMetadata)
	if len(v) == 0 {
		return 0, false
	}
	n, err := strconv.ParseUint(v[0], 10, 64)
	return n, err == nil
}

func setETag(_ context.Context, w http.ResponseWriter, m proto.Message) error {
	switch m := m.(type) {
	case *apiv1.GetConfigResponse:
		w.Header().Set("ETag", etag(m.GetRevision().GetRevision()))
	case *apiv1.SetConfigResponse:
		w.Header().Set("ETag", etag(m.GetRevision().GetRevision()))
	}
	return nil
}

func restError(ctx context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, r *http.Request, err error) {
	st := status.Convert(err)
	body := bodyOf(st)
	if md, ok := runtime.ServerMetadataFromContext(ctx); ok {
		for _, id := range md.HeaderMD.Get(requestIDMetadata) {
			w.Header().Set("X-Request-Id", id)
		}
	}
	if len(st.Details()) == 0 && st.Code() == codes.InvalidArgument { // the gateway could not read the request
		body.Message = "cannot read the request: " + plainly(strings.TrimPrefix(strings.ReplaceAll(body.Message, "\u00a0", " "), "proto: "))
		body.Hint = describedAt
	}
	writeError(w, httpStatus(st, r), body)
}

func routingError(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, r *http.Request, code int) {
	body := errorBody{Code: "invalid", Message: "cannot read the request: " + http.StatusText(code)}
	switch code {
	case http.StatusNotFound:
		body = errorBody{Code: "not-found", Message: "cannot find " + r.URL.Path + ": no such path", Hint: describedAt}
	case http.StatusMethodNotAllowed:
		body = errorBody{Code: "unsupported", Message: "cannot " + r.Method + " " + r.URL.Path + ": no such method here", Hint: describedAt}
	}
	writeError(w, code, body)
}

func writeError(w http.ResponseWriter, code int, body errorBody) {
	if code == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the reader is gone if this fails
}

// oneValue reads a body that is one JSON value: what stands after it would be passed over.
type oneValue struct{ *runtime.JSONPb }

var _ runtime.Marshaler = oneValue{}

func (o oneValue) NewDecoder(r io.Reader) runtime.Decoder {
	d := json.NewDecoder(r)
	wrapped := runtime.DecoderWrapper{Decoder: d, UnmarshalOptions: o.UnmarshalOptions}
	return runtime.DecoderFunc(func(v any) error {
		if err := wrapped.Decode(v); err != nil {
			return err
		}
		if _, err := d.Token(); !errors.Is(err, io.EOF) {
			return errors.New("something stands after the JSON value")
		}
		return nil
	})
}

// sse writes a stream as server-sent events; an Event's sequence is the event id.
type sse struct{ *runtime.JSONPb }

var (
	_ runtime.Marshaler = sse{}
	_ runtime.Delimited = sse{}
)

func (s sse) ContentType(any) string       { return eventStream }
func (s sse) StreamContentType(any) string { return eventStream }
func (s sse) Delimiter() []byte            { return []byte("\n\n") }

func (s sse) Marshal(v any) ([]byte, error) {
	var head string
	if chunk, ok := v.(map[string]any); ok {
		v = chunk["result"]
		if e, ok := v.(*apiv1.Event); ok {
			head = fmt.Sprintf("id: %d\n", e.GetSequence())
		}
	} else if _, ok := v.(map[string]proto.Message); ok {
		head = "event: error\n"
	}
	data, err := s.JSONPb.Marshal(v)
	if err != nil {
		return nil, err
	}
	return append([]byte(head+"data: "), data...), nil
}
