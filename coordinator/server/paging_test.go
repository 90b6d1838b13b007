package server

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"substrate/coordinator"
	"substrate/coordinator/engine"
	"substrate/proto/apiv1"
)

// pageAfter is the token of the page after an item.
func pageAfter(method string, req proto.Message, after string) string {
	list, err := pageList(method, req.ProtoReflect())
	if err != nil {
		panic(err)
	}
	return sealPageToken(list, after)
}

// paged are the RPCs that answer in pages.
func paged() map[string]protoreflect.MethodDescriptor {
	out := map[string]protoreflect.MethodDescriptor{}
	for name, m := range apiMethods() {
		if m.Input().Fields().ByName(pageTokenField) != nil {
			out[name] = m
		}
	}
	return out
}

// TestAPageTokenThatIsNoneIsRefusedByEveryList: whatever it is made of, and one of every other list too.
func TestAPageTokenThatIsNoneIsRefusedByEveryList(t *testing.T) {
	a := startAPI(t, &fakeEngine{}, false)
	garbage := []string{"garbage", "%", "0", "-1", " ", "5", "workflow/x", "AAAAAAAAAAAAAAAA", strings.Repeat("A", 5000), "ad/../..", "\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9"}
	lists := paged()
	if len(lists) < 10 {
		t.Fatalf("only %d lists", len(lists))
	}
	for name, m := range lists {
		bad := slices.Clone(garbage)
		for other, om := range lists {
			if other != name {
				bad = append(bad, pageAfter(other, dynamicpb.NewMessage(om.Input()), "a"))
			}
		}
		right := pageAfter(name, dynamicpb.NewMessage(m.Input()), "a")
		bad = append(bad, right[:len(right)-1], right+"A", strings.ToLower(right))
		for _, token := range bad {
			err := askPage(t, a.conn, name, m, token)
			if statusKind(err) != "invalid" || !strings.Contains(err.Error(), "page token") {
				t.Errorf("%s with %.40q: %v", name, token, err)
			}
		}
		if err := askPage(t, a.conn, name, m, right); err != nil && strings.Contains(err.Error(), "page token") {
			t.Errorf("%s refuses its own: %v", name, err)
		}
	}
}

func askPage(t *testing.T, conn *grpc.ClientConn, name string, m protoreflect.MethodDescriptor, token string) error {
	t.Helper()
	req := dynamicpb.NewMessage(m.Input())
	req.Set(m.Input().Fields().ByName(pageTokenField), protoreflect.ValueOfString(token))
	return conn.Invoke(withToken(t.Context(), adminToken), name, req, dynamicpb.NewMessage(m.Output()))
}

// TestAPageTokenBelongsToItsFilters: it goes on where it was made, at any page size, and nowhere else.
func TestAPageTokenBelongsToItsFilters(t *testing.T) {
	var asked []engine.Page
	a := startAPI(t, &fakeEngine{usersFunc: func(_ context.Context, _ engine.Caller, _ engine.UserFilter, p engine.Page) ([]engine.UserView, string, error) {
		asked = append(asked, p)
		return nil, "mia/u-1", nil
	}}, false)
	users := apiv1.NewIdentityClient(a.conn)
	ctx := withToken(t.Context(), adminToken)
	first, err := users.ListUsers(ctx, &apiv1.ListUsersRequest{Group: "lab", PageSize: 2})
	if err != nil {
		t.Fatal(err)
	}
	next := first.GetNextPageToken()
	if _, err := users.ListUsers(ctx, &apiv1.ListUsersRequest{Group: "lab", PageSize: 7, PageToken: next}); err != nil {
		t.Fatal(err)
	}
	if _, err := users.ListUsers(ctx, &apiv1.ListUsersRequest{Group: "pool", PageToken: next}); statusKind(err) != "invalid" {
		t.Errorf("other filters: %v", err)
	}
	if len(asked) != 2 || asked[1].Token != "mia/u-1" || asked[1].Size != 7 {
		t.Errorf("%+v", asked)
	}
}

// FuzzPageToken: no text is read as a position that was not sealed for the list.
func FuzzPageToken(f *testing.F) {
	list := []byte("/substrate.v1.Identity/ListUsers\x00\x0a\x03lab")
	for _, s := range []string{"", "a", sealPageToken(list, "mia/u-1"), sealPageToken(nil, "mia/u-1"), "%%%", "AAAAAAAAAAA"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, token string) {
		if after, ok := openPageToken(list, token); ok && sealPageToken(list, after) != token {
			t.Errorf("%q is read as %q", token, after)
		}
	})
}

// TestAQueryThatIsNotUnderstoodIsRefused by every route, with the nearest parameter that there is.
func TestAQueryThatIsNotUnderstoodIsRefused(t *testing.T) {
	a := startAPI(t, &fakeEngine{}, true)
	for _, r := range routes(t) {
		path := r.path
		for strings.Contains(path, "{") {
			from, to := strings.Index(path, "{"), strings.Index(path, "}")
			path = path[:from] + "x" + path[to+1:]
		}
		body := ""
		if r.verb != http.MethodGet && r.verb != http.MethodDelete {
			body = "{}"
		}
		res, answer := a.do(r.verb, path+"?zzzzzzzzzzzz=1", body, asAdmin)
		if res.StatusCode != http.StatusBadRequest || !strings.Contains(answer, `no query parameter \"zzzzzzzzzzzz\"`) {
			t.Errorf("%s %s: %s %s", r.verb, path, res.Status, answer)
		}
		m := apiMethods()[r.method]
		for i := range m.Input().Fields().Len() {
			name := string(m.Input().Fields().Get(i).Name())
			if body != "" || strings.Contains(r.path, "{"+name) || len(name) < 4 {
				continue
			}
			res, answer := a.do(r.verb, path+"?"+name+"x=1", "", asAdmin)
			if res.StatusCode != http.StatusBadRequest || !strings.Contains(answer, fmt.Sprintf(`did you mean %s?`, name)) {
				t.Errorf("%s %s?%sx: %s %s", r.verb, path, name, res.Status, answer)
			}
			for _, known := range []string{name, m.Input().Fields().Get(i).JSONName()} {
				if _, answer := a.do(r.verb, path+"?"+known+"=1", "", asAdmin); strings.Contains(answer, "no query parameter") {
					t.Errorf("%s %s?%s: %s", r.verb, path, known, answer)
				}
			}
		}
	}
}

// TestWhatAQueryMayNotSet: what is in the path or belongs into a body.
func TestWhatAQueryMayNotSet(t *testing.T) {
	a := startAPI(t, &fakeEngine{}, true)
	yaml := "Content-Type: application/yaml"
	for _, tt := range []struct{ verb, path, body, header, want string }{
		{"GET", "/v1/nodes/n1?node=n2", "", "", "it is in the path"},
		{"POST", "/v1/groups?name=x", "{}", "", "put it into the body"},
		{"POST", "/v1/workflows?nam=x", "a: 1\n", yaml, "did you mean name?"},
		{"POST", "/v1/config?append_grant=true", "a: 1\n", yaml, "did you mean append_grants?"},
		{"GET", "/v1/whoami?verbose=1", "", "", "there are none here"},
	} {
		res, answer := a.do(tt.verb, tt.path, tt.body, asAdmin, cmpHeader(tt.header))
		if res.StatusCode != http.StatusBadRequest || !strings.Contains(answer, tt.want) {
			t.Errorf("%s %s: %s %s", tt.verb, tt.path, res.Status, answer)
		}
	}
}

func cmpHeader(h string) string {
	if h == "" {
		return "Accept: */*"
	}
	return h
}

// FuzzQuery: whatever a query holds, it is understood or refused as invalid.
func FuzzQuery(f *testing.F) {
	for _, q := range []string{"page_size=1", "pagesize=1", "page_token.x=1", "labels[a]=b", "a.b.c=", "=", "page_size[=1", "%5b=1", "node=x"} {
		f.Add(q)
	}
	d := (&apiv1.ListUsersRequest{}).ProtoReflect().Descriptor()
	f.Fuzz(func(t *testing.T, raw string) {
		query, err := url.ParseQuery(raw)
		if err != nil {
			return
		}
		ctx := context.WithValue(t.Context(), askedKey{}, asked{query: query, path: map[string]string{"organization": "lab"}})
		err = checkQuery(ctx, apiv1.Identity_ListUsers_FullMethodName, &apiv1.ListUsersRequest{})
		if err != nil && coordinator.ErrorKindOf(err) != coordinator.ErrInvalid {
			t.Fatal(err)
		}
		for name := range query {
			if err == nil && !resolves(d, name, map[string]string{"organization": "lab"}) {
				t.Fatalf("%q passed", name)
			}
		}
	})
}

// FuzzForwardedFor: what clients and proxies write of where a request comes from gives an address that was named, and one
// that was not vouched for by a trusted proxy never.
func FuzzForwardedFor(f *testing.F) {
	f.Add("10.0.0.1", "1.2.3.4, 10.0.0.2")
	f.Add("10.0.0.1", "nonsense")
	f.Add("8.8.8.8", "1.2.3.4")
	f.Add("::ffff:10.0.0.1%eth0", ",,,")
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	f.Fuzz(func(t *testing.T, peer, header string) {
		hops := strings.Split(header, ",")
		got := behind(peer, hops, trusted)
		if got != peer && !slices.Contains(hops, got) {
			t.Fatalf("%q from %q behind %q", got, header, peer)
		}
		if addr, err := netip.ParseAddr(peer); got != peer && (err != nil || !trusted[0].Contains(addr.Unmap().WithZone(""))) {
			t.Fatalf("%q was believed", peer)
		}
	})
}
