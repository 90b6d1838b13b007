package vm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"substrate/tests/fakecloud"
)

// SpotNotices gives instances that are told so the word of AWS's own metadata service for tests that they are taken back, two minutes before.
type SpotNotices struct {
	t       testing.TB
	program string

	mu sync.Mutex
	of map[string]http.Handler // by instance
}

// NewSpotNotices builds the service. module is the directory of its module, imds of this package.
func NewSpotNotices(t testing.TB, module string) *SpotNotices {
	t.Helper()
	n := &SpotNotices{t: t, program: filepath.Join(t.TempDir(), "ec2-metadata-mock"), of: map[string]http.Handler{}}
	cmd := exec.Command("go", "build", "-o", n.program, "github.com/aws/amazon-ec2-metadata-mock/cmd/ec2-metadata-mock")
	cmd.Dir = module
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cannot build the metadata service: %v\n%s", err, out)
	}
	return n
}

// Of answers what is asked of an instance's metadata.
func (n *SpotNotices) Of(i fakecloud.Instance) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n.mu.Lock()
		service := n.of[i.ID]
		n.mu.Unlock()
		if service == nil {
			http.NotFound(w, r)
			return
		}
		service.ServeHTTP(w, r)
	})
}

// Tell has an instance told that it is taken back.
func (n *SpotNotices) Tell(id string) {
	n.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		n.t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	l.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, n.program, "spot", "--hostname", "127.0.0.1", "--port", port, "--action", "terminate")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		cancel()
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { cancel(); _ = cmd.Wait() })
	target := &url.URL{Scheme: "http", Host: "127.0.0.1:" + port}
	if err := answers(target.String() + "/latest/meta-data/spot/instance-action"); err != nil {
		n.t.Fatal(err)
	}
	n.mu.Lock()
	n.of[id] = httputil.NewSingleHostReverseProxy(target)
	n.mu.Unlock()
}

// answers waits for a service to be up.
func answers(address string) error {
	err := errors.New("it was not asked")
	for range 100 {
		var resp *http.Response
		if resp, err = http.Get(address); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
			err = errors.New(resp.Status)
		}
		time.Sleep(100 * time.Millisecond)
	}
	return fmt.Errorf("the metadata service does not come up: %w", err)
}
