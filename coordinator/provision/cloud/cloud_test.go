package cloud

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/provision"
)

const cluster = "7a1f8c52-3c7e-4b5e-9c55-0d6c8a3b9f01"

func request(def string) provision.Request {
	return provision.Request{ID: "l00000000c0ffee00", Definition: coordinator.Definition{ID: coordinator.DefinitionID(def)},
		Boot: provision.Boot{Coordinator: "[2001:db8::1]:7443", Token: "secret", Node: "node-1"}}
}

// TestMarks: values that every cloud takes, and a launch that is read back.
func TestMarks(t *testing.T) {
	form := regexp.MustCompile(`^[a-z0-9_-]{1,63}$`)
	r := request("AWS.c5.large/Ünïcode" + strings.Repeat("x", 100))
	for name, value := range Marks(cluster, r) {
		if !form.MatchString(name) || !form.MatchString(value) {
			t.Errorf("the mark %s=%s is not fit for all clouds", name, value)
		}
	}
	if got := LaunchOf(Marks(cluster, r)[MarkLaunch]); got != r.ID {
		t.Errorf("the launch is read back as %q", got)
	}
	for _, odd := range []string{"", "l", "x00000000c0ffee00", "l00000000c0ffee0", "l00000000c0ffee000", "l00000000C0FFEE00", "l00000000c0ffee0\n"} {
		if got := LaunchOf(odd); got != "" {
			t.Errorf("%q is read as the launch %q", odd, got)
		}
	}
}

// TestKey: every part tells calls apart, and so does where one part ends.
func TestKey(t *testing.T) {
	seen := map[string]string{}
	for name, key := range map[string]string{
		"one": Key(cluster, "l1", "c5.large", "spot"), "cluster": Key("other", "l1", "c5.large", "spot"), "launch": Key(cluster, "l2", "c5.large", "spot"),
		"type": Key(cluster, "l1", "c5.xlarge", "spot"), "market": Key(cluster, "l1", "c5.large", ""), "border": Key(cluster, "l1", "c5.larges", "pot"),
	} {
		if other, dup := seen[key]; dup {
			t.Errorf("%s and %s have the same key", name, other)
		}
		seen[key] = name
		if len(key) != 64 {
			t.Errorf("the key of %s has %d digits", name, len(key))
		}
	}
	if a, b := Key(cluster, "l1", "x"), Key(cluster, "l1", "x"); a != b {
		t.Error("a key is another one each time")
	}
	if u := UUID(cluster, "l1"); !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(u) {
		t.Errorf("no UUID: %s", u)
	}
	if n := Name(cluster, "l00000000c0ffee00", "x"); !regexp.MustCompile(`^[a-z][a-z0-9-]{0,39}$`).MatchString(n) || n == Name(cluster, "l00000000c0ffee00", "y") {
		t.Errorf("the name %s", n)
	}
}

// TestUserData runs the script with a pretended agent: words arrive unharmed, the token not among them, and the machine is switched off once the
// agent has ended for good, not when it was killed.
func TestUserData(t *testing.T) {
	for _, c := range []struct {
		name     string
		discover bool
		knows    string // the commands that the agent has
		want     string
	}{
		{"work", false, "run", "run"},
		{"a look", true, "run discover", "discover --once"},
		{"a look of an agent that knows none", true, "run", "run"},
	} {
		t.Run(c.name, func(t *testing.T) { userData(t, c.discover, c.knows, c.want) })
	}
}

func userData(t *testing.T, discover bool, knows, want string) {
	dir := t.TempDir()
	r := request("d")
	r.Boot.Discover, r.Lifetime = discover, 0
	r.Boot.Token, r.Boot.Node = `s'e"c$(touch `+dir+`/pwned)\ret`, "node-1"
	agent := filepath.Join(dir, "an agent's program")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	write(agent, `#!/bin/sh
case " `+knows+` " in *" $1 "*) ;; *) exit 2;; esac
printf '%s\n' "$@" >'`+dir+`/args'
printf '%s' "$SUBSTRATED_JOIN_TOKEN" >'`+dir+`/token'
[ -e '`+dir+`/killed' ] && exit 1
touch '`+dir+`/killed'; kill -KILL $$
`)
	write(filepath.Join(dir, "poweroff"), "#!/bin/sh\ntouch '"+dir+"/off'\n")
	data, err := UserData(r, Agent{Program: agent, StateDir: filepath.Join(dir, "state dir")})
	if err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(dir, "user-data")
	write(script, string(data))
	cmd := exec.Command(script)
	cmd.Env = []string{"PATH=" + dir + ":/usr/bin:/bin"}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	deadline := time.Now().Add(20 * time.Second)
	for {
		if _, err := os.Stat(filepath.Join(dir, "off")); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the machine was not switched off")
		}
		time.Sleep(20 * time.Millisecond)
	}
	if _, err := os.Stat(filepath.Join(dir, "pwned")); err == nil {
		t.Error("a token was run")
	}
	args, _ := os.ReadFile(filepath.Join(dir, "args"))
	want = strings.ReplaceAll(want, " ", "\n") + "\n--coordinator\n[2001:db8::1]:7443\n--node\nnode-1\n--launch\nl00000000c0ffee00\n--state-dir\n" + dir + "/state dir\n--join-within\n15m0s\n"
	if string(args) != want {
		t.Errorf("the agent was started with\n%s", args)
	}
	if token, _ := os.ReadFile(filepath.Join(dir, "token")); string(token) != r.Boot.Token {
		t.Errorf("the token arrived as %q", token)
	}
}

// TestUserDataEnds: a machine that nobody ends does so itself, some time after it was to be ended.
func TestUserDataEnds(t *testing.T) {
	r := request("d")
	r.Lifetime = time.Hour
	if data, err := UserData(r, Agent{}); err != nil || !bytes.Contains(data, []byte("(sleep 4200; sync; poweroff ")) {
		t.Errorf("%v\n%s", err, data)
	}
	r.Lifetime = 0
	if data, err := UserData(r, Agent{}); err != nil || bytes.Contains(data, []byte("(sleep ")) {
		t.Errorf("a machine without a ttl ends itself: %v\n%s", err, data)
	}
}

func TestUserDataBound(t *testing.T) {
	r := request("d")
	r.Boot.Node, r.Boot.Coordinator, r.Boot.Token = strings.Repeat("n", 63), strings.Repeat("c", 259), strings.Repeat("t", 512)
	data, err := UserData(r, Agent{Program: strings.Repeat("/p", 2000)})
	if err != nil || len(data) > MaxUserData {
		t.Errorf("the longest names make %d bytes, %v", len(data), err)
	}
	if _, err := UserData(r, Agent{Program: strings.Repeat("/p", 10000)}); err == nil {
		t.Error("more than a cloud takes is accepted")
	}
	r.Boot.Node = "a\nrm -rf /"
	data, err = UserData(r, Agent{})
	if err != nil || bytes.Contains(data, []byte("\nrm -rf /.")) {
		t.Errorf("a name ends its comment: %v\n%s", err, data)
	}
}
