package login

import (
	"bufio"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"

	"substrate/tests/cluster"
)

func TestMain(m *testing.M) { os.Exit(cluster.Main(m)) }

// identities is an OpenID provider that has the users id1 and id2, and one client. Its pages for typing a code are not
// used: who is at the browser speaks to what is behind them.
type identities struct {
	issuer string
	people *storage.Storage
}

func provider(t *testing.T) identities {
	t.Helper()
	var handler http.Handler
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handler.ServeHTTP(w, r) }))
	t.Cleanup(srv.Close)
	storage.RegisterClients(storage.DeviceClient("substrate", "not so secret"))
	p := identities{srv.URL, storage.NewStorage(storage.NewUserStore(srv.URL))}
	handler = exampleop.SetupServer(srv.URL, p.people, nil, false)
	return p
}

// enter types a code and allows it as a user, or denies it as nobody.
func (p identities) enter(t *testing.T, code, user string) {
	t.Helper()
	var err error
	if user == "" {
		err = p.people.DenyDeviceAuthorization(t.Context(), code)
	} else {
		err = p.people.CompleteDeviceAuthorization(t.Context(), code, user)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// logIn runs `substrate login --browser` with a person at the browser, and returns how it ended and what it said.
func (p identities) logIn(t *testing.T, c *cluster.Cluster, home, user string) (string, error) {
	t.Helper()
	cmd := c.CLI("login", "--browser")
	cmd.Env = append(cmd.Env, "XDG_CONFIG_HOME="+home, "SUBSTRATE_TOKEN=")
	out, in := io.Pipe()
	cmd.Stdout, cmd.Stderr = in, in
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		ended <- cmd.Wait()
		in.Close()
	}()
	stuck := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer stuck.Stop()
	asks := regexp.MustCompile(`enter the code (\S+)$`)
	said := ""
	for lines := bufio.NewScanner(out); lines.Scan(); {
		said += lines.Text() + "\n"
		if m := asks.FindStringSubmatch(lines.Text()); m != nil {
			p.enter(t, m[1], user)
		}
	}
	return said, <-ended
}

// TestDeviceLogin: a person who is known by address gets in by a code, one who is not is refused, and so is one who denies it.
func TestDeviceLogin(t *testing.T) {
	p := provider(t)
	secret := secretFile(t)
	c := cluster.Start(t, cluster.Options{CoordinatorArgs: []string{"--oidc-issuer", p.issuer, "--oidc-client-id", "substrate", "--oidc-client-secret-file", secret}})
	if out, err := c.CLI("user", "create", "tess", "--email", "test-user2@zitadel.ch").CombinedOutput(); err != nil {
		t.Fatalf("%s", out)
	}
	home := t.TempDir()
	said, err := p.logIn(t, c, home, "id2")
	if err != nil || !strings.Contains(said, " as tess of organization default") {
		t.Fatalf("%v: %s", err, said)
	}
	me := c.CLI("whoami")
	me.Env = append(me.Env, "XDG_CONFIG_HOME="+home, "SUBSTRATE_TOKEN=")
	if out, err := me.CombinedOutput(); err != nil || !strings.Contains(string(out), "tess") {
		t.Errorf("%v: %s", err, out)
	}
	if said, err := p.logIn(t, c, t.TempDir(), ""); err == nil || !strings.Contains(said, "denied in the browser") {
		t.Errorf("denied: %v: %s", err, said)
	}
	if said, err := p.logIn(t, c, t.TempDir(), "id1"); err == nil || !strings.Contains(said, "nobody here is") {
		t.Errorf("a stranger: %v: %s", err, said)
	}
}

func secretFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte("not so secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestGroupsOfTheProvider: what is declared for a claim is given to a newcomer by the programs as they run. The provider
// of this test has no groups; the name that it gives somebody stands for one.
func TestGroupsOfTheProvider(t *testing.T) {
	p := provider(t)
	c := cluster.Start(t, cluster.Options{CoordinatorArgs: []string{"--oidc-issuer", p.issuer, "--oidc-client-id", "substrate", "--oidc-client-secret-file", secretFile(t),
		"--oidc-groups-claim", "preferred_username", "--oidc-map", "test-user2=default/lab:owner", "--oidc-map", "nobody=cluster-admin"}})
	if out, err := c.CLI("group", "create", "lab").CombinedOutput(); err != nil {
		t.Fatalf("%s", out)
	}
	if said, err := p.logIn(t, c, t.TempDir(), "id2"); err != nil || !strings.Contains(said, " as test-user2 of organization default") {
		t.Fatalf("%v: %s", err, said)
	}
	out, err := c.CLI("group", "member", "list", "lab").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "test-user2") || !strings.Contains(string(out), "owner") {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := c.CLI("group", "member", "list", "default").CombinedOutput(); err != nil || strings.Contains(string(out), "test-user2") {
		t.Errorf("more than is declared: %v: %s", err, out)
	}
	if said, err := p.logIn(t, c, t.TempDir(), "id1"); err == nil || !strings.Contains(said, "nobody here is") {
		t.Errorf("a stranger: %v: %s", err, said)
	}
}
