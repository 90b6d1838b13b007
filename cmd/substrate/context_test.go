package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestContextsGoToTheirServerOnly: a context's token and authority apply where its server is meant, however
// that is said, and nowhere else.
func TestContextsGoToTheirServerOnly(t *testing.T) {
	saved := contexts{Current: "one", Contexts: []savedContext{
		{Name: "one", Server: "https://one", Token: "t1", CA: "ca1"},
		{Name: "one-as-admin", Server: "one:7440", Token: "t1-admin", CA: "ca1"},
		{Name: "three", Server: "https://three:9", Token: "t3", CA: "ca3"},
		{Name: "two-a", Server: "https://two", Token: "t2a"}, {Name: "two-b", Server: "two:7440", Token: "t2b"},
		{Name: "local", Server: "http://127.0.0.1:7440", Token: "tl"},
	}}
	tests := []struct {
		name, flag, env, context, token string // what is given
		server, wantToken, wantCA       string
		fails                           string
	}{
		{name: "the current context", server: "https://one", wantToken: "t1", wantCA: "ca1"},
		{name: "its server by flag", flag: "https://one", server: "https://one", wantToken: "t1", wantCA: "ca1"},
		{name: "its server without the scheme", flag: "one", server: "one", wantToken: "t1", wantCA: "ca1"},
		{name: "its server with the port", env: "https://ONE:7440/", server: "https://ONE:7440/", wantToken: "t1", wantCA: "ca1"},
		{name: "another port", flag: "https://one:7441", server: "https://one:7441"},
		{name: "a server without a context", flag: "https://four", server: "https://four"},
		{name: "another context's server", env: "three:9", server: "three:9", wantToken: "t3", wantCA: "ca3"},
		{name: "a flag wins over the environment", flag: "three:9", env: "one", server: "three:9", wantToken: "t3", wantCA: "ca3"},
		{name: "a named context", context: "one-as-admin", server: "one:7440", wantToken: "t1-admin", wantCA: "ca1"},
		{name: "a named context wins over the environment", context: "three", env: "https://one", server: "https://three:9", wantToken: "t3", wantCA: "ca3"},
		{name: "a named context and its server", context: "one-as-admin", flag: "https://one:7440", server: "https://one:7440", wantToken: "t1-admin", wantCA: "ca1"},
		{name: "a named context and another server", context: "one", flag: "https://two", server: "https://two"},
		{name: "a given token keeps the authority", flag: "one", token: "mine", server: "one", wantToken: "mine", wantCA: "ca1"},
		{name: "two contexts, none current", flag: "two", fails: "cannot choose between 2 contexts of two"},
		{name: "two contexts and a token", flag: "two", token: "mine", server: "two", wantToken: "mine"},
		{name: "clear text is another server", flag: "https://127.0.0.1:7440", server: "https://127.0.0.1:7440"},
		{name: "clear text", flag: "http://127.0.0.1", server: "http://127.0.0.1", wantToken: "tl"},
		{name: "an unknown context", context: "none", fails: "there is none of this name"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			env := map[string]string{"XDG_CONFIG_HOME": t.TempDir(), "SUBSTRATE_SERVER": tt.env, "SUBSTRATE_TOKEN": tt.token}
			a := &app{env: func(k string) string { return env[k] }, server: tt.flag, context: tt.context}
			if err := a.saveContexts(saved); err != nil {
				t.Fatal(err)
			}
			e, err := a.endpoint()
			if tt.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tt.fails) {
					t.Errorf("%+v, %v", e, err)
				}
				return
			}
			if want := (endpoint{server: tt.server, token: tt.wantToken, ca: tt.wantCA}); err != nil || e != want {
				t.Errorf("%+v, %v, want %+v", e, err, want)
			}
		})
	}
}

func TestContextsThatCannotBeRead(t *testing.T) {
	env := map[string]string{"XDG_CONFIG_HOME": t.TempDir(), "SUBSTRATE_SERVER": "https://one", "SUBSTRATE_TOKEN": "mine"}
	a := &app{env: func(k string) string { return env[k] }}
	if err := a.saveContexts(contexts{Contexts: []savedContext{{Name: "one", Server: "https://one", Token: "t1"}}}); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(env["XDG_CONFIG_HOME"], "substrate", "contexts.yaml"), 0o644); err != nil {
		t.Fatal(err)
	}
	if e, err := a.endpoint(); err != nil || e.token != "mine" {
		t.Errorf("with server and token they are not needed: %+v, %v", e, err)
	}
	env["SUBSTRATE_TOKEN"] = ""
	if e, err := a.endpoint(); err == nil {
		t.Errorf("a file that others may read was used: %+v", e)
	}
	delete(env, "XDG_CONFIG_HOME")
	if e, err := a.endpoint(); err != nil || e.server != "https://one" || e.token != "" {
		t.Errorf("without a home there are none: %+v, %v", e, err)
	}
}

// TestLoginNeverReusesAToken: who logs in again wants another token; the authority stays the server's.
func TestLoginNeverReusesAToken(t *testing.T) {
	env := map[string]string{"XDG_CONFIG_HOME": t.TempDir()}
	a := &app{env: func(k string) string { return env[k] }, server: "one"}
	if err := a.saveContexts(contexts{Current: "x", Contexts: []savedContext{
		{Name: "w", Server: "https://one", Token: "t0"}, {Name: "x", Server: "https://one", Token: "t1", CA: "ca1"}, {Name: "y", Server: "two", CA: "ca2"},
	}}); err != nil {
		t.Fatal(err)
	}
	if e, err := a.newLogin(); err != nil || e != (endpoint{server: "one", ca: "ca1"}) {
		t.Errorf("%+v, %v", e, err)
	}
	a.server = "three"
	if e, err := a.newLogin(); err != nil || e != (endpoint{server: "three"}) {
		t.Errorf("%+v, %v", e, err)
	}
}
