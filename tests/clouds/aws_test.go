package clouds

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"substrate/tests/cluster"
	"substrate/tests/fakecloud"
)

func TestMain(m *testing.M) { os.Exit(cluster.Main(m)) }

// region is a cluster with an account in one region of a cloud.
type region struct {
	*cluster.Cluster
	t     *testing.T
	cloud *fakecloud.Cloud
}

const awsConfig = `
backends:
  - {name: east, kind: aws, region: us-east-1, endpoint: %q, credentialFile: %q}
definitions:
  - id: aws-${spec.instanceType}
    provisioner: aws
    backend: east
    ttl: 86400
    idleTimeout: 2s
    maxNodes: 3
    provisionerSpec: {instanceType: "c5.larg?", imageId: ami-1, costPerHour: 0.1}
`

func newAWS(t *testing.T) *region {
	t.Helper()
	t.Parallel()
	machines := newNamespaces(t)
	cloud := fakecloud.New(fakecloud.Options{Types: []fakecloud.Type{{Name: "c5.large", VCPUs: 2, Cores: 1, Memory: 4096, Arch: "amd64", Spot: true, Price: 0.085}}, Machine: machines})
	machines.cloud = cloud
	return newRegion(t, cloud, awsConfig, machines.said, "--launch-address", "AGENTS")
}

// newRegion starts a cluster with an account in a region of EC2. said is what its machines have written.
func newRegion(t *testing.T, cloud *fakecloud.Cloud, config string, said func() string, coordinatorArgs ...string) *region {
	t.Helper()
	t.Cleanup(cloud.Close)
	srv := httptest.NewServer(cloud.Serve(&fakecloud.EC2{Cloud: cloud, Region: "us-east-1", Images: map[string]string{"ami-1": "x86_64"}}))
	t.Cleanup(srv.Close)
	keys := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(keys, []byte("[default]\naws_access_key_id = AKIAEXAMPLE\naws_secret_access_key = secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := &region{t: t, cloud: cloud}
	t.Cleanup(func() {
		if t.Failed() {
			r.tell(said())
		}
	})
	r.Cluster = cluster.Start(t, cluster.Options{Config: fmt.Sprintf(config, srv.URL, keys), CoordinatorArgs: coordinatorArgs})
	// Jobs run as an account of the instance, which is to have one for the submitter.
	if out, err := r.CLI("user", "update", "admin", "--unix-user", "nobody").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return r
}

// tell shows what happened, of a test that failed.
func (r *region) tell(said string) {
	if r.Cluster != nil {
		if events, err := r.Client().Events(context.Background(), ""); err == nil {
			for _, e := range events {
				r.t.Logf("%s %s %s", e.GetKind(), e.GetSubject(), e.GetMessage())
			}
		}
	}
	r.t.Log(said)
}

func (r *region) start(command string) string {
	r.t.Helper()
	return r.StartWorkflow(fmt.Sprintf("version: v1\nname: story\njobs:\n  a: {command: [sh, -c, %q], resource: {cpu: {cores: 1}, memory: {size: 100MiB}}, policy: {timeout: {execute: 5m}}}\n", command))
}

func (r *region) until(what string, done func() error) {
	r.t.Helper()
	cluster.Until(r.t, time.Minute, what, func(context.Context) error { return done() })
}

// restart has the coordinator die as at a loss of power, and come back.
func (r *region) restart() {
	r.t.Helper()
	if err := r.Coordinator.Restart(); err != nil {
		r.t.Fatal(err)
	}
}

// over checks that nothing is left, here or at the provider.
func (r *region) over() error {
	nodes, err := r.CLI("node", "list", "-o", "name").CombinedOutput()
	launches, _ := r.CLI("backend", "launches", "-o", "name").CombinedOutput()
	if live := r.cloud.Live(); err != nil || live > 0 || strings.TrimSpace(string(nodes)+string(launches)) != "" {
		return fmt.Errorf("%d instances, nodes %s, launches %s, %v", live, nodes, launches, err)
	}
	return nil
}

// TestAWSWorkflowRunsOnAnInstance: a workflow waits, an instance is launched, its agent joins with what the user data says, the job runs there, and
// what is idle is terminated.
func TestAWSWorkflowRunsOnAnInstance(t *testing.T) {
	r := newAWS(t)
	w := r.start("echo ran on $SUBSTRATE_NODES")
	r.AwaitJob(time.Minute, w, "a", "finished")
	out, err := r.Client().Output(t.Context(), w, "a", "stdout")
	if err != nil || !strings.HasPrefix(string(out), "ran on aws-c5-large-l") {
		t.Errorf("the job says %q, %v", out, err)
	}
	if list, err := r.CLI("node", "provisioner", "list").CombinedOutput(); err != nil || !strings.Contains(string(list), "aws-c5.large") {
		t.Errorf("definitions: %v\n%s", err, list)
	}
	r.until("the idle instance is terminated", r.over)
	if made := r.cloud.Made(); made != 1 {
		t.Errorf("%d instances were made", made)
	}
}

// TestAWSCoordinatorKilledAround: the coordinator dies when the provider has made an instance and nobody has heard of it, and again while work
// runs there. There is one instance, and the work is done once.
func TestAWSCoordinatorKilledAround(t *testing.T) {
	r := newAWS(t)
	r.cloud.Fail(fakecloud.OpLaunch, fakecloud.Fault{Lost: true})
	dir := t.TempDir()
	file := filepath.Join(dir, "ran")
	for path := dir; path != os.TempDir() && path != "/"; path = filepath.Dir(path) { // the job's account writes there
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	w := r.start("echo once >>" + file + "; sleep 3")
	r.until("an instance is made", func() error {
		if r.cloud.Made() == 0 {
			return fmt.Errorf("none is")
		}
		return nil
	})
	r.restart()
	r.AwaitJob(time.Minute, w, "a", "running")
	r.restart()
	r.AwaitJob(time.Minute, w, "a", "finished")
	if text, err := os.ReadFile(file); err != nil || string(text) != "once\n" {
		t.Errorf("the job left %q, %v", text, err)
	}
	r.until("the idle instance is terminated", r.over)
	if made := r.cloud.Made(); made != 1 {
		t.Errorf("%d instances were made", made)
	}
}

// TestAWSInstanceReclaimed: the provider takes the instance back while work runs there; the work goes on on another one.
func TestAWSInstanceReclaimed(t *testing.T) {
	r := newAWS(t)
	w := r.StartWorkflow("version: v1\nname: story\njobs:\n  a: {command: [sh, -c, 'sleep 4'], resource: {cpu: {cores: 1}, memory: {size: 100MiB}}, policy: {timeout: {execute: 5m}, restart: on-node-fault}}\n")
	r.AwaitJob(time.Minute, w, "a", "running")
	for _, i := range r.cloud.List() {
		r.cloud.Reclaim(i.ID)
	}
	r.AwaitJob(2*time.Minute, w, "a", "finished")
	r.until("the idle instance is terminated", r.over)
	if made := r.cloud.Made(); made != 2 {
		t.Errorf("%d instances were made", made)
	}
}
