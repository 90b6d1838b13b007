package server

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"

	"substrate/proto/apiv1"
)

// route is one operation of the REST API.
type route struct{ verb, path, method string }

// routes are all of them, as the API describes itself.
func routes(t *testing.T) (out []route) {
	t.Helper()
	var doc struct {
		Paths map[string]map[string]struct {
			OperationID string `json:"operationId"`
		}
	}
	if err := json.Unmarshal([]byte(apiv1.OpenAPI()), &doc); err != nil {
		t.Fatal(err)
	}
	byID := map[string]string{}
	for name := range apiMethods() {
		byID[strings.ReplaceAll(shortMethod(name), ".", "_")] = name
	}
	for _, path := range slices.Sorted(maps.Keys(doc.Paths)) {
		for _, verb := range slices.Sorted(maps.Keys(doc.Paths[path])) {
			id := doc.Paths[path][verb].OperationID
			if byID[id] == "" {
				t.Fatalf("%s %s is of no RPC: %q", verb, path, id)
			}
			out = append(out, route{strings.ToUpper(verb), path, byID[id]})
		}
	}
	return out
}

// request is a request of a route with the strings that its RPC has fields for: in the path, and in the body or,
// where there is none, in the query.
func (r route) request(t *testing.T, server string, m protoreflect.MethodDescriptor, words map[string]string) *http.Request {
	t.Helper()
	path, query := r.path, url.Values{}
	for i := range m.Input().Fields().Len() {
		f := m.Input().Fields().Get(i)
		name := string(f.Name())
		word, ok := words[name]
		if !ok {
			continue
		}
		if filled := strings.ReplaceAll(path, "{"+name+"}", url.PathEscape(word)); filled != path {
			path = filled
			continue
		}
		if f.Kind() == protoreflect.BytesKind {
			word = base64.StdEncoding.EncodeToString([]byte(word))
		}
		if f.Kind() == protoreflect.BytesKind || f.Kind() == protoreflect.StringKind {
			query.Set(name, word)
		}
	}
	if strings.Contains(path, "{") {
		t.Fatalf("%s: the test has no word for its path", r.path)
	}
	var body io.Reader
	if r.verb == "GET" || r.verb == "DELETE" {
		path += "?" + query.Encode()
	} else {
		raw, err := protojson.Marshal(requestOf(m, words))
		if err != nil {
			t.Fatal(err)
		}
		body = strings.NewReader(string(raw))
	}
	req, err := http.NewRequestWithContext(t.Context(), r.verb, server+path, body)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// TestNoRouteReachesAnotherOrganisation does over REST, for every route that the API describes, what
// TestNoRPCReachesAnotherOrganisation does over gRPC.
func TestNoRouteReachesAnotherOrganisation(t *testing.T) {
	h := newHidden(t)
	server := httptest.NewServer(h.api)
	defer server.Close()
	methods, all, reached := apiMethods(), routes(t), 0
	if len(all) < len(permissions()) {
		t.Errorf("%d routes for %d RPCs", len(all), len(permissions()))
	}
	for role, token := range h.tokens {
		for _, r := range all {
			h.each(func(words map[string]string) {
				req := r.request(t, server.URL, methods[r.method], words)
				req.Header.Set("Authorization", "Bearer "+token)
				res, err := server.Client().Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close()
				answer, err := io.ReadAll(res.Body)
				if err != nil {
					t.Fatal(err)
				}
				if res.StatusCode == http.StatusUnauthorized {
					t.Errorf("%s %s: the token did not arrive: %s", r.verb, req.URL, answer)
				}
				// Jobs' ids have a slash, which the other paths have no place for.
				if strings.Contains(string(answer), "no such path") && (!strings.Contains(words["id"], "/") || !strings.Contains(r.path, "{id}")) {
					t.Errorf("%s %s reaches nothing", r.verb, req.URL)
				}
				if res.Header.Get("X-Request-Id") != "" {
					reached++ // the request was read and came to the gate
				}
				h.judge(fmt.Sprintf("%s %s", r.verb, req.URL), role, string(answer))
			})
		}
	}
	if most := len(all) * len(h.tokens) * len(h.ids); reached < most*9/10 {
		t.Errorf("only %d of %d requests were read", reached, most)
	}
	h.unchanged()
}
