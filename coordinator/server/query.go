package server

import (
	"context"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"substrate/coordinator"
	"substrate/strictyaml"
)

// asked is what a REST request says beside its body.
type asked struct {
	query url.Values
	path  map[string]string // parameters in the path, by field
	body  bool              // the query is not read: the body has all
}

type askedKey struct{}

// keepQuery hands the query of a request to where its RPC is known, which is when the gateway calls it.
func keepQuery(next runtime.HandlerFunc) runtime.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request, path map[string]string) {
		a := asked{query: r.URL.Query(), path: path, body: r.Method != http.MethodGet && r.Method != http.MethodDelete}
		next(w, r.WithContext(context.WithValue(r.Context(), askedKey{}, a)), path)
	}
}

// checkQuery refuses a parameter that the gateway would pass over: one that was meant to filter must not be without effect.
func checkQuery(ctx context.Context, method string, req any) error {
	a, ok := ctx.Value(askedKey{}).(asked)
	m, isMessage := req.(proto.Message)
	if !ok || !isMessage || len(a.query) == 0 {
		return nil
	}
	d := m.ProtoReflect().Descriptor()
	var known []string
	if !a.body {
		known = queryNames(d, a.path)
	}
	for _, name := range slices.Sorted(maps.Keys(a.query)) {
		if !a.body && resolves(d, name, a.path) {
			continue
		}
		err := unknownParameter(deed(method), name, known)
		if _, inPath := a.path[name]; inPath {
			return err.WithHint("it is in the path")
		} else if a.body {
			return err.WithHint("put it into the body; %s", describedAt)
		}
		return err
	}
	return nil
}

func unknownParameter(op, name string, known []string) *coordinator.Error {
	err := coordinator.Errorf(coordinator.ErrInvalid, op, "there is no query parameter %.80q", name)
	near := strictyaml.Nearest(name, known, 1)
	switch {
	case len(near) > 0:
		return err.WithHint("did you mean %s?", near[0])
	case len(known) == 0:
		return err.WithHint("there are none here; %s", describedAt)
	}
	return err.WithHint("known are %s", strings.Join(known, ", "))
}

// queryNames are the fields that a query may set, by name.
func queryNames(d protoreflect.MessageDescriptor, path map[string]string) (out []string) {
	for i := range d.Fields().Len() {
		name := string(d.Fields().Get(i).Name())
		if _, inPath := path[name]; !inPath {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// resolves reports whether the gateway finds a field for a parameter: by name or JSON name, within messages by dots, in maps by brackets.
func resolves(d protoreflect.MessageDescriptor, name string, path map[string]string) bool {
	name, _, _ = strings.Cut(name, "[")
	for i, part := range strings.Split(name, ".") {
		if d == nil {
			return false
		}
		f := d.Fields().ByTextName(part)
		if f == nil {
			f = d.Fields().ByJSONName(part)
		}
		if f == nil {
			return false
		}
		if _, inPath := path[string(f.Name())]; inPath && i == 0 {
			return false
		}
		d = f.Message()
	}
	return true
}

// strictQuery has the gateway's calls refused whose query is not understood.
func strictQuery() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if err := checkQuery(ctx, method, req); err != nil {
				return toStatus(err)
			}
			return call(ctx, method, req, reply, conn, opts...)
		}),
		grpc.WithStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, conn *grpc.ClientConn, method string, call grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			s, err := call(ctx, d, conn, method, opts...)
			return strictStream{s, method}, err
		}),
	}
}

// strictStream checks the query with the request that a stream begins with.
type strictStream struct {
	grpc.ClientStream
	method string
}

func (s strictStream) SendMsg(m any) error {
	if err := checkQuery(s.Context(), s.method, m); err != nil {
		return toStatus(err)
	}
	return s.ClientStream.SendMsg(m)
}
