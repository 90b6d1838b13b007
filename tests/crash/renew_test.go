package crash

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"substrate/tests/cluster"
)

// lifetime is as short as the coordinator takes it.
const lifetime = 12 * time.Second

// certificateOf is the certificate that a node has on its disk.
func certificateOf(dir string) (*x509.Certificate, error) {
	data, err := os.ReadFile(filepath.Join(dir, "identity", "identity.pem"))
	if err != nil {
		return nil, err
	}
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			return x509.ParseCertificate(block.Bytes)
		}
	}
	return nil, errors.New("no certificate in it")
}

// awaitRenewal waits for the next certificate and expects it before the present one has expired.
func (b *bench) awaitRenewal(dir string) {
	b.t.Helper()
	old, err := certificateOf(dir)
	if err != nil {
		b.t.Fatal(err)
	}
	cluster.Until(b.t, cluster.UpWithin, "the next certificate", func(context.Context) error {
		next, err := certificateOf(dir)
		switch {
		case err != nil:
			b.t.Fatalf("no whole identity on the disk: %v", err)
		case !next.Equal(old):
			return nil
		case time.Now().After(old.NotAfter):
			b.t.Fatalf("the certificate expired at %s", old.NotAfter)
		}
		return errors.New("still the old one")
	})
}

// TestWorkOutlivesCertificates: a run lives through several lives of its node's certificate, which is renewed over the
// living connection each time before it expires, and through a kill of the agent with the new one just on the disk. The
// first certificate is worth nothing in the end: the agent that has no other says what to do, and a join token helps.
func TestWorkOutlivesCertificates(t *testing.T) {
	t.Parallel()
	b := newBench(t, cluster.Options{Nodes: 1, CoordinatorArgs: []string{"--node-certificate-lifetime", lifetime.String()}})
	node := b.Nodes[0]
	w := b.run(job{name: "long", script: wait("long")})
	pid := b.pid("long", 1)
	stale := filepath.Join(t.TempDir(), "stale")
	if err := os.CopyFS(filepath.Join(stale, "identity"), os.DirFS(filepath.Join(node.Dir, "identity"))); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	b.awaitRenewal(node.Dir)
	b.awaitRenewal(node.Dir)
	node.Kill()
	b.start(node)
	b.AwaitNode(node.Name)
	b.awaitRenewal(node.Dir)
	cluster.Until(t, cluster.UpWithin, "two lives to be over", func(context.Context) error {
		if time.Since(began) < 2*lifetime {
			return errors.New("not yet")
		}
		return nil
	})
	b.AwaitNode(node.Name)
	if !alive(pid) || b.events(w, "started", "long") != 1 {
		t.Errorf("the run did not go on")
	}
	b.say("long")
	if j := b.AwaitJob(cluster.UpWithin, w, "long", "finished"); j.GetAttempt() != 1 {
		t.Errorf("attempt %d", j.GetAttempt())
	}
	b.staleIdentity(stale)
}

// staleIdentity starts an agent with an identity that has expired, without and with a join token.
func (b *bench) staleIdentity(dir string) {
	t := b.t
	t.Helper()
	if err := os.Chmod(filepath.Join(dir, "identity", "identity.pem"), 0o600); err != nil {
		t.Fatal(err)
	}
	old, err := certificateOf(dir)
	if err != nil || time.Now().Before(old.NotAfter) {
		t.Fatalf("%v, until %s", err, old.NotAfter)
	}
	argv := []string{"run", "--coordinator", b.Coordinator.Agents, "--node", "node-1", "--run-as-caller", "--state-dir", dir}
	out, err := exec.CommandContext(t.Context(), cluster.Program("substrated"), argv...).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("an agent with an expired certificate ended with %v", err)
	}
	for _, want := range []string{"certificate has expired", "hint: ask an administrator for a join token"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("it does not say %q:\n%s", want, out)
		}
	}
	b.Nodes[0].Kill() // the name is free
	cmd := exec.CommandContext(t.Context(), cluster.Program("substrated"),
		append(argv, "--join-token-file", filepath.Join(b.Coordinator.Dir, "join.token"))...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	cluster.Until(t, cluster.UpWithin, "the node to have joined again", func(context.Context) error {
		next, err := certificateOf(dir)
		if err == nil && next.Equal(old) {
			err = errors.New("it has the old certificate")
		}
		return err
	})
	b.AwaitNode("node-1")
}
