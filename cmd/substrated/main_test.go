package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"substrate/hwinfo"
	"substrate/proto/agentv1"
)

// TestMain lets this test binary be the program, and its keeper.
func TestMain(m *testing.M) {
	if os.Getenv("SUBSTRATED_TEST_MAIN") != "" || len(os.Args) > 1 && os.Args[1] == keeperCommand {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestCommands(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	if code, _, errOut := invoke("snapshot", root); code != exitOK {
		t.Fatal(errOut)
	}
	if err := os.WriteFile(filepath.Join(root, "etc", "os-release"), []byte("ID=testos\nPRETTY_NAME=\"Test OS\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	unused := filepath.Join(t.TempDir(), "s")
	tests := []struct {
		name     string
		args     []string
		code     int
		out, err string
	}{
		{"help", nil, exitOK, "Usage:", ""},
		{"version", []string{"version"}, exitOK, "dev\n", ""},
		{"unknown command", []string{"dance"}, exitUsage, "", `cannot run command "dance"`},
		{"unknown flag", []string{"inspect", "--dance"}, exitUsage, "", "cannot read flags: unknown flag: --dance"},
		{"table", []string{"inspect", "--root", root}, exitOK, "Test OS", ""},
		{"unknown form", []string{"inspect", "-o", "xml"}, exitUsage, "", "use table or json"},
		{"no root", []string{"inspect", "--root", "/no/such"}, exitFailed, "", "there is no directory or file \"/no/such\"\nhint: check --root"},
		{"root is no snapshot", []string{"eval", "--root", "/etc/passwd", "1"}, exitFailed, "", "cannot read node files: /etc/passwd: cannot open archive: there is no file uname in it"},
		{"root is a device", []string{"eval", "--root", "/dev/null", "1"}, exitFailed, "", "\"/dev/null\" is neither a directory nor a file"},
		{"no root to copy", []string{"snapshot", "--root", "/no/such", filepath.Join(t.TempDir(), "copy")}, exitFailed, "", "there is no directory or file"},
		{"no root to report", []string{"run", "--coordinator", "x:1", "--root", "/no/such"}, exitFailed, "", "there is no directory or file"},
		{"text", []string{"eval", "--root", root, "osrelease.id"}, exitOK, "testos\n", ""},
		{"truth", []string{"eval", "--root", root, `osrelease.id == "testos"`}, exitOK, "true\n", ""},
		{"json", []string{"eval", "--root", root, "-o", "json", "osrelease.id"}, exitOK, "\"testos\"\n", ""},
		{"unknown", []string{"eval", "--root", root, "osrelease.version_id"}, exitOK, "unknown\n", ""},
		{"explained", []string{"eval", "--root", root, "--explain", `osrelease.id == "testos" and osrelease.version_id == "1"`}, exitOK,
			"unknown\n  osrelease.version_id == \"1\" is unknown; here osrelease.version_id = (absent)\n", ""},
		{"explained true", []string{"eval", "--root", root, "--explain", `osrelease.id == "testos"`}, exitOK, "true\n", ""},
		{"explained as json", []string{"eval", "--root", root, "--explain", "-o", "json", `osrelease.id == "x"`}, exitOK, "\"value\": \"false\"", ""},
		{"explained no condition", []string{"eval", "--root", root, "--explain", "osrelease.id"}, exitFailed, "", "cannot evaluate expression: "},
		{"remark", []string{"eval", "--root", root, `hostname() matches "n[01-20]" or true`}, exitOK, "true\n",
			"warning: line 1, column 20: [01-20] is one character out of a set, not a range of numbers [numeric-range-in-class]\n  hint: "},
		{"bad expression", []string{"eval", "--root", root, "1 +"}, exitFailed, "", "cannot evaluate expression: line 1, column 3: "},
		{"hint", []string{"eval", "cpuinfo.cpu_core"}, exitFailed, "", "unknown name cpu_core\nhint: did you mean cpuinfo.cpu_cores?\n"},
		{"no expression", []string{"eval"}, exitUsage, "", "expected one expression"},
		{"snapshot again", []string{"snapshot", root}, exitFailed, "", "not empty"},
		{"no coordinator", []string{"run"}, exitUsage, "", "give --coordinator host:port"},
		{"bad level", []string{"run", "--coordinator", "x:1", "--log-level", "loud"}, exitUsage, "", `unknown level "loud"`},
		{"no token", []string{"run", "--coordinator", "127.0.0.1:1", "--state-dir", unused}, exitFailed, "", "no join token"},
		{"bad token", []string{"run", "--coordinator", "127.0.0.1:1", "--state-dir", filepath.Join(t.TempDir(), "s"), "--join-token-file", "/dev/null"}, exitFailed, "", "hint: ask an administrator"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			code, out, errOut := invoke(tt.args...)
			if code != tt.code || !strings.Contains(out, tt.out) || !strings.Contains(errOut, tt.err) {
				t.Errorf("exit %d\n%s\n%s", code, out, errOut)
			}
		})
	}
	if _, err := os.Stat(unused); err == nil {
		t.Error("a state directory without a node is left over")
	}
	var got struct{ Facts hwinfo.Facts }
	_, out, _ := invoke("inspect", "--root", root, "-o", "json")
	if err := json.Unmarshal([]byte(out), &got); err != nil || got.Facts.OSRelease.ID != "testos" {
		t.Errorf("%v: %s", err, out)
	}
	t.Setenv("SUBSTRATED_RUN_AS_CALLER", "perhaps")
	if code, _, errOut := invoke("run"); code != exitUsage || !strings.Contains(errOut, "SUBSTRATED_RUN_AS_CALLER") {
		t.Errorf("exit %d: %s", code, errOut)
	}
}

func invoke(args ...string) (int, string, string) {
	var out, errOut bytes.Buffer
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if args == nil {
		args = []string{}
	}
	code := run(ctx, args, &out, &errOut)
	return code, out.String(), errOut.String()
}

// site is a coordinator with a CA of its own.
type site struct {
	agentv1.UnimplementedEnrolmentServer
	agentv1.UnimplementedAgentServer
	t       *testing.T
	key     *ecdsa.PrivateKey
	ca      *x509.Certificate
	address string
	joins   chan *agentv1.JoinRequest
	refusal error
	heard   chan *agentv1.FromAgent
	orders  chan *agentv1.ToAgent
}

func newSite(t *testing.T) *site {
	s := &site{t: t, joins: make(chan *agentv1.JoinRequest, 8), heard: make(chan *agentv1.FromAgent, 1000), orders: make(chan *agentv1.ToAgent, 8)}
	var err error
	if s.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	s.ca = s.sign(&x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, &s.key.PublicKey)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	leaf := s.sign(s.role("/coordinator", x509.ExtKeyUsageServerAuth), &key.PublicKey)
	pool := x509.NewCertPool()
	pool.AddCert(s.ca)
	g := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.Raw, s.ca.Raw}, PrivateKey: key}},
		ClientCAs:    pool, ClientAuth: tls.VerifyClientCertIfGiven, MinVersion: tls.VersionTLS13,
	})))
	agentv1.RegisterEnrolmentServer(g, s)
	agentv1.RegisterAgentServer(g, s)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.address = l.Addr().String()
	go g.Serve(l)
	t.Cleanup(g.Stop)
	return s
}

func (s *site) role(path string, use x509.ExtKeyUsage) *x509.Certificate {
	return &x509.Certificate{
		URIs: []*url.URL{{Scheme: "substrate", Host: "c1", Path: path}}, ExtKeyUsage: []x509.ExtKeyUsage{use}, KeyUsage: x509.KeyUsageDigitalSignature,
	}
}

func (s *site) sign(template *x509.Certificate, public any) *x509.Certificate {
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	parent := s.ca
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, s.key)
	if err != nil {
		s.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		s.t.Fatal(err)
	}
	return cert
}

func (s *site) token() string {
	pin := sha256.Sum256(s.ca.RawSubjectPublicKeyInfo)
	secret := sha256.Sum256([]byte("secret"))
	return "0123456789abcdef." + base64.RawURLEncoding.EncodeToString(secret[:]) + "." + base64.RawURLEncoding.EncodeToString(pin[:])
}

func (s *site) Join(_ context.Context, r *agentv1.JoinRequest) (*agentv1.JoinResponse, error) {
	s.joins <- r
	if s.refusal != nil {
		return nil, s.refusal
	}
	csr, err := x509.ParseCertificateRequest(r.Csr)
	if err != nil {
		return nil, err
	}
	leaf := s.sign(s.role("/node/"+r.Node, x509.ExtKeyUsageClientAuth), csr.PublicKey)
	block := func(c *x509.Certificate) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
	}
	return &agentv1.JoinResponse{Node: r.Node, Certificate: block(leaf), Ca: block(s.ca)}, nil
}

func (s *site) Connect(stream grpc.BidiStreamingServer[agentv1.FromAgent, agentv1.ToAgent]) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	if err := stream.Send(&agentv1.ToAgent{Message: &agentv1.ToAgent_Welcome{Welcome: &agentv1.Welcome{ClusterId: "c1"}}}); err != nil {
		return err
	}
	go func() {
		for {
			select {
			case m := <-s.orders:
				_ = stream.Send(m)
			case <-stream.Context().Done():
				return
			}
		}
	}()
	for {
		m, err := stream.Recv()
		if err != nil {
			return nil
		}
		s.heard <- m
	}
}

func (s *site) wait(what string, ok func(*agentv1.FromAgent) bool) {
	s.t.Helper()
	for timeout := time.After(20 * time.Second); ; {
		select {
		case m := <-s.heard:
			if ok(m) {
				return
			}
		case <-timeout:
			s.t.Fatalf("not within 20 s: %s", what)
		}
	}
}

// start runs the program and waits until it has reported.
func (s *site) start(t *testing.T, state string, args ...string) (*exec.Cmd, time.Duration) {
	t.Helper()
	ready := filepath.Join(t.TempDir(), "ready")
	cmd := exec.Command(os.Args[0], append([]string{"run", "--coordinator", s.address, "--state-dir", state, "--node", "n1", "--run-as-caller", "--ready-file", ready}, args...)...)
	cmd.Env = append(os.Environ(), "SUBSTRATED_TEST_MAIN=1")
	cmd.Stderr = os.Stderr
	began := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	s.wait("hardware", func(m *agentv1.FromAgent) bool { return m.GetHardware() != nil })
	took := time.Since(began)
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(ready); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no ready file")
		}
	}
	return cmd, took
}

func TestJoinRunAndComeBack(t *testing.T) {
	s := newSite(t)
	state := filepath.Join(t.TempDir(), "state")
	tokenFile := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(tokenFile, []byte(s.token()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	agent, _ := s.start(t, state, "--join-token-file", tokenFile)
	if r := <-s.joins; r.Node != "n1" || strings.Count(r.Token, ".") != 1 {
		t.Errorf("join %v", r)
	}
	if second, _, errOut := invoke("run", "--coordinator", s.address, "--state-dir", state); second != exitFailed || !strings.Contains(errOut, "another agent uses it") {
		t.Errorf("a second agent: exit %d, %s", second, errOut)
	}
	kib := rss(t, agent.Process.Pid)
	t.Logf("idle agent: %.1f MiB", float64(kib)/1024)
	if kib > 30<<10 {
		t.Errorf("an idle agent takes %d KiB", kib)
	}
	order := func(id, script string) {
		s.orders <- &agentv1.ToAgent{Message: &agentv1.ToAgent_Start{Start: &agentv1.StartRun{RunId: id, Fence: 1, Script: script}}}
	}
	order("w/j#1", "sleep 1; echo done; exit 9")
	s.wait("running", func(m *agentv1.FromAgent) bool { return m.GetRunStatus().GetState() == "running" })
	_ = agent.Process.Signal(syscall.SIGTERM)
	if err := agent.Wait(); err != nil {
		t.Errorf("the agent did not stop well: %v", err)
	}
	_, took := s.start(t, state) // no token now
	t.Logf("start to first report: %v", took)
	s.wait("the run's end", func(m *agentv1.FromAgent) bool {
		st := m.GetRunStatus()
		return st.GetState() == "ended" && st.Cause == "exited" && st.ExitCode == 9
	})
	s.orders <- &agentv1.ToAgent{Message: &agentv1.ToAgent_Ack{Ack: &agentv1.Ack{EndedRuns: []string{"w/j#1"}}}}
	s.wait("the last chunk", func(m *agentv1.FromAgent) bool { return m.GetLogChunk().GetLast() })
	s.orders <- &agentv1.ToAgent{Message: &agentv1.ToAgent_Ack{Ack: &agentv1.Ack{Logs: []*agentv1.LogOffset{{RunId: "w/j#1", Stream: "stdout", Offset: uint64(len("done\n"))}}}}}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if left, _ := os.ReadDir(filepath.Join(state, "runs")); len(left) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the run's files stay")
		}
	}
	if len(s.joins) != 0 {
		t.Error("the node joined again")
	}
	retire(t, state)
}

// retire tells the keeper, which has nothing to keep, to go. No control group is left.
func retire(t *testing.T, state string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(state, "keeper.log"))
	if err != nil {
		t.Fatal(err)
	}
	started := regexp.MustCompile(`"keeper started" pid=(\d+)`).FindAllSubmatch(text, -1)
	if len(started) == 0 {
		t.Fatalf("no keeper in its log: %s", text)
	}
	pid, err := strconv.Atoi(string(started[len(started)-1][1]))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(state))
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		text, err = os.ReadFile(filepath.Join(state, "keeper.log"))
		if err != nil {
			t.Fatal(err)
		}
		groups, err := filepath.Glob("/sys/fs/cgroup/*/substrate-" + hex.EncodeToString(sum[:6]))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "keeper ended") && len(groups) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the keeper stays: groups %q, %s", groups, text)
		}
	}
}

// A coordinator of another CA than the token's learns nothing, and the program ends.
func TestJoinRefusesAStranger(t *testing.T) {
	honest, stranger := newSite(t), newSite(t)
	t.Setenv(joinTokenEnv, honest.token())
	code, _, errOut := invoke("run", "--coordinator", stranger.address, "--state-dir", filepath.Join(t.TempDir(), "s"), "--node", "n1")
	want := "cannot join cluster at " + stranger.address + ": cannot trust coordinator: no CA in its chain has the pin of the join token\n"
	if code != exitFailed || !strings.Contains(errOut, want) || len(stranger.joins) != 0 {
		t.Errorf("exit %d, %d joins: %s", code, len(stranger.joins), errOut)
	}
	if strings.Contains(errOut, "secret") || strings.Contains(errOut, strings.Split(honest.token(), ".")[1]) {
		t.Error("the token's secret is in the error")
	}
	if _, ok := os.LookupEnv(joinTokenEnv); ok {
		t.Error("the token is still in the environment")
	}
}

func TestJoinRefused(t *testing.T) {
	told, err := status.New(codes.PermissionDenied, "cannot redeem join token: it is used up").
		WithDetails(&errdetails.ErrorInfo{Domain: "substrate", Metadata: map[string]string{"hint": "make another"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name    string
		refusal error
		want    string
	}{
		{"the coordinator's hint", told.Err(), ": cannot redeem join token: it is used up\nhint: make another\n"},
		{"the port of users", status.Error(codes.Unimplemented, "unknown service substrate.agent.v1.Enrolment"),
			": this is the coordinator's port for users; nodes have one of their own\nhint: give the port of --agent-listen"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			s.refusal = tt.refusal
			t.Setenv(joinTokenEnv, s.token())
			code, _, errOut := invoke("run", "--coordinator", s.address, "--state-dir", filepath.Join(t.TempDir(), "s"), "--node", "n1")
			if code != exitFailed || !strings.Contains(errOut, tt.want) {
				t.Errorf("exit %d: %s", code, errOut)
			}
		})
	}
}

func rss(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(text), "\n") {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "VmRSS:" {
			kib, err := strconv.Atoi(f[1])
			if err != nil {
				t.Fatal(err)
			}
			return kib
		}
	}
	t.Fatal("no VmRSS")
	return 0
}
