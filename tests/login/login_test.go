package login

import (
	"bufio"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
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

// provider runs an OpenID provider that has the users test-user@127.0.0.1 and test-user2, and one client.
func provider(t *testing.T) string {
	t.Helper()
	var handler http.Handler
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handler.ServeHTTP(w, r) }))
	t.Cleanup(srv.Close)
	storage.RegisterClients(storage.DeviceClient("substrate", "not so secret"))
	handler = exampleop.SetupServer(srv.URL, storage.NewStorage(storage.NewUserStore(srv.URL)), nil, false)
	return srv.URL
}

// enter types a code into the provider's pages and allows or denies it.
func enter(t *testing.T, issuer, code, user, action string) {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	c := &http.Client{Jar: jar}
	res, err := c.PostForm(issuer+"/device/login", url.Values{"user_code": {code}, "username": {user}, "password": {"verysecure"}})
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res, err = c.Get(issuer + "/device/confirm?action=" + action); err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if body, err := io.ReadAll(res.Body); err != nil || !strings.Contains(string(body), action) {
		t.Fatalf("the provider says %s, %v", body, err)
	}
}

// logIn runs `substrate login --browser` with a person at the browser, and returns how it ended and what it said.
func logIn(t *testing.T, c *cluster.Cluster, home, issuer, user, action string) (string, error) {
	t.Helper()
	cmd := c.CLI("login", "--browser")
	cmd.Env = append(cmd.Env, "XDG_CONFIG_HOME="+home, "SUBSTRATE_TOKEN=")
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout = io.Discard
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stuck := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer stuck.Stop()
	asks := regexp.MustCompile(`enter the code (\S+)$`)
	said := ""
	for lines := bufio.NewScanner(out); lines.Scan(); {
		said += lines.Text() + "\n"
		if m := asks.FindStringSubmatch(lines.Text()); m != nil {
			enter(t, issuer, m[1], user, action)
		}
	}
	return said, cmd.Wait()
}

// TestDeviceLogin: a person who is known by address gets in by a code, one who is not is refused, and so is one who denies it.
func TestDeviceLogin(t *testing.T) {
	issuer := provider(t)
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("not so secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := cluster.Start(t, cluster.Options{CoordinatorArgs: []string{"--oidc-issuer", issuer, "--oidc-client-id", "substrate", "--oidc-client-secret-file", secret}})
	if out, err := c.CLI("user", "create", "tess", "--email", "test-user2@zitadel.ch").CombinedOutput(); err != nil {
		t.Fatalf("%s", out)
	}
	home := t.TempDir()
	said, err := logIn(t, c, home, issuer, "test-user2", "allowed")
	if err != nil || !strings.Contains(said, " as tess of organization default") {
		t.Fatalf("%v: %s", err, said)
	}
	me := c.CLI("whoami")
	me.Env = append(me.Env, "XDG_CONFIG_HOME="+home, "SUBSTRATE_TOKEN=")
	if out, err := me.CombinedOutput(); err != nil || !strings.Contains(string(out), "tess") {
		t.Errorf("%v: %s", err, out)
	}
	if said, err := logIn(t, c, t.TempDir(), issuer, "test-user2", "denied"); err == nil || !strings.Contains(said, "denied in the browser") {
		t.Errorf("denied: %v: %s", err, said)
	}
	if said, err := logIn(t, c, t.TempDir(), issuer, "test-user@127.0.0.1", "allowed"); err == nil || !strings.Contains(said, "nobody here is") {
		t.Errorf("a stranger: %v: %s", err, said)
	}
}
