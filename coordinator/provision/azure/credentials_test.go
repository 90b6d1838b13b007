package azure

import (
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"substrate/coordinator/provision"
	"substrate/coordinator/spec"
	"substrate/tests/fakecloud"
)

// TestOpen: what a backend says, and what is missing in it.
func TestOpen(t *testing.T) {
	a := newAccount(t, fakecloud.Options{})
	t.Setenv("AZURE_SUBSCRIPTION_ID", "")
	broken, people := filepath.Join(t.TempDir(), "broken.json"), filepath.Join(t.TempDir(), "people.json")
	for path, text := range map[string]string{broken: `{"tenantId": "t", "clientId": "c"}`, people: `{"appId": "c", "displayName": "d", "password": "p", "tenant": "t"}`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name         string
		backend      spec.Backend
		subscription string
		wrong        string
	}{
		{"as the file says", spec.Backend{CredentialFile: a.keys, ResourceGroup: group}, subscription, ""},
		{"as the backend says", spec.Backend{CredentialFile: a.keys, ResourceGroup: group, Subscription: "other"}, "other", ""},
		{"in the form for people", spec.Backend{CredentialFile: people, ResourceGroup: group, Subscription: "other"}, "other", ""},
		{"the SDK's own credentials", spec.Backend{ResourceGroup: group, Subscription: "other"}, "other", ""},
		{"no subscription", spec.Backend{CredentialFile: people, ResourceGroup: group}, "", "it has no subscription"},
		{"no resource group", spec.Backend{CredentialFile: a.keys}, "", "it has no resource group"},
		{"no such file", spec.Backend{CredentialFile: "/nowhere/principal.json"}, "", "/nowhere/principal.json"},
		{"no secret", spec.Backend{CredentialFile: broken, ResourceGroup: group}, "", "neither clientSecret nor clientCertificate"},
	} {
		o := a.options(cluster)
		o.Backend = tt.backend
		p, err := New(o)
		switch {
		case tt.wrong != "":
			if err == nil || !strings.Contains(err.Error(), tt.wrong) {
				t.Errorf("%s: %v", tt.name, err)
			}
		case err != nil:
			t.Errorf("%s: %v", tt.name, err)
		case p.subscription != tt.subscription || p.group != group:
			t.Errorf("%s: subscription %s, group %s", tt.name, p.subscription, p.group)
		}
	}
}

// TestClouds: an endpoint of a country's own cloud is that cloud's, with its own sign-in.
func TestClouds(t *testing.T) {
	for endpoint, want := range map[string]string{
		"": "", "https://management.usgovcloudapi.net": "https://login.microsoftonline.us/", "https://management.chinacloudapi.cn/": "https://login.chinacloudapi.cn/",
		"https://arm.example.org": "https://login.microsoftonline.com/",
	} {
		got := options(Options{Backend: spec.Backend{Endpoint: endpoint}}, principal{})
		if got.Cloud.ActiveDirectoryAuthorityHost != want {
			t.Errorf("%s: %s", endpoint, got.Cloud.ActiveDirectoryAuthorityHost)
		}
	}
}

// TestChangedSecret: a file that was changed counts some minutes later, without a restart; one that cannot be read then is said to be.
func TestChangedSecret(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	p := a.open(t, cluster)
	if _, err := p.List(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.write(t, a.keys, "another")
	a.cloud.Advance(credentialsFor + time.Minute)
	if _, err := p.List(t.Context()); err != nil {
		t.Error(err)
	}
	f, _, err := credentials(a.options(cluster))
	if err != nil || f.(marked).TokenCredential.(*fileCredential).said.Client != "another" {
		t.Errorf("%v, %v", f, err)
	}
}

// TestNoSignIn: without a token no call is made, and it is said who refuses.
func TestNoSignIn(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	o := a.options(cluster)
	o.HTTPClient = transport(func(r *http.Request) (*http.Response, error) {
		if strings.HasSuffix(r.URL.Path, "/token") {
			r.Body = http.NoBody // who asks?
		}
		return a.srv.Client().Do(r)
	})
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.List(t.Context())
	if provision.FaultOf(err) != provision.FaultDenied || strings.Contains(err.Error(), "\n") || a.cloud.Calls(fakecloud.OpList) != 0 {
		t.Errorf("%v", err)
	}
}

// TestHalfAnAnswer: an answer that breaks off says nothing of what was made, and nothing of credentials. So does a sign-in that is not reached, and one that
// nobody waits for; a file of credentials that has gone says that it has.
func TestHalfAnAnswer(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	o := a.options(cluster)
	var half, silent bool
	o.HTTPClient = transport(func(r *http.Request) (*http.Response, error) {
		if silent && strings.Contains(r.URL.Path, "/v2.0/") {
			return nil, errors.New("connection refused")
		}
		resp, err := a.srv.Client().Do(r)
		if err == nil && half && r.Method == http.MethodPut {
			resp.Body = io.NopCloser(io.MultiReader(io.LimitReader(resp.Body, 10), iotest.ErrReader(io.ErrUnexpectedEOF)))
		}
		return resp, err
	})
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	half = true
	r := request(definition(general, false), 1)
	if _, err := p.Launch(t.Context(), r); provision.FaultOf(err) != provision.FaultTransient || a.cloud.Made() != 1 {
		t.Errorf("half an answer: %v, %d made", err, a.cloud.Made())
	}
	half, r.Again = false, true
	if _, err := p.Launch(t.Context(), r); err != nil || a.cloud.Made() != 1 {
		t.Errorf("later: %v, %d made", err, a.cloud.Made())
	}
	silent = true
	if p, err = New(o); err != nil {
		t.Fatal(err)
	}
	if _, err := p.List(t.Context()); provision.FaultOf(err) != provision.FaultTransient {
		t.Errorf("a sign-in that is not reached: %v", err)
	}
	a.cloud.Advance(credentialsFor + time.Minute)
	if err := os.Remove(a.keys); err != nil {
		t.Fatal(err)
	}
	var e *provision.Error
	if _, err := p.List(t.Context()); !errors.As(err, &e) || e.Fault != provision.FaultDenied || e.Hint == "" || !strings.Contains(err.Error(), a.keys) {
		t.Errorf("a file that has gone: %v", err)
	}
}

type transport func(*http.Request) (*http.Response, error)

func (t transport) Do(r *http.Request) (*http.Response, error) { return t(r) }

// FuzzPrincipal: a file of credentials is read or refused, and what is read can be used.
func FuzzPrincipal(f *testing.F) {
	for _, seed := range []string{`{"tenantId":"t","clientId":"c","clientSecret":"s"}`, `{"appId":"c","password":"p","tenant":"t"}`, `{"tenantId":1}`, `[]`, `{`, `{"tenantId":"t","clientId":"c","clientCertificate":"/x"}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := decodePrincipal(strings.NewReader(text))
		if err == nil && (p.Tenant == "" || p.Client == "" || p.Secret == "" && p.Certificate == "") {
			t.Errorf("%+v", p)
		}
	})
}
