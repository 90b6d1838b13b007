package clouds

import (
	"encoding/pem"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"substrate/tests/cluster"
	"substrate/tests/fakecloud"
)

const azureConfig = `
backends:
  - {name: west, kind: azure, resourceGroup: nodes, region: westeurope, credentialFile: %q}
definitions:
  - id: az
    provisioner: azure
    backend: west
    ttl: 86400
    idleTimeout: 2s
    maxNodes: 3
    provisionerSpec: {vmSize: Standard_D2s_v5, image: "us:node:1:latest", subnet: net/private, costPerHour: 0.1}
`

// newAzure is a cluster with a resource group. Machines that switch themselves off stay there, and cost.
func newAzure(t *testing.T, boots bool) (*region, *fakecloud.Azure) {
	t.Helper()
	t.Parallel()
	o := fakecloud.Options{Types: []fakecloud.Type{{Name: "Standard_D2s_v5", VCPUs: 2, Cores: 1, Memory: 8192, Arch: "amd64", Spot: true}}}
	machines := &namespaces{}
	if boots {
		machines = newNamespaces(t)
		o.Machine = machines
	}
	cloud := fakecloud.New(o)
	front := &fakecloud.Azure{Cloud: cloud, Subscription: "s", Group: "nodes", Location: "westeurope", Images: map[string]string{"us:node:1": "amd64"},
		Subnets: []string{"/subscriptions/s/resourceGroups/nodes/providers/Microsoft.Network/virtualNetworks/net/subnets/private"}}
	machines.cloud, machines.off = cloud, func(id string) { front.PowerOff(id, "stopped") }
	t.Cleanup(cloud.Close)
	srv := httptest.NewTLSServer(cloud.Serve(front))
	t.Cleanup(srv.Close)
	dir := t.TempDir()
	keys, trust := filepath.Join(dir, "principal.json"), filepath.Join(dir, "trust.pem")
	for path, text := range map[string][]byte{
		trust: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}),
		keys: fmt.Appendf(nil, `{"tenantId": "t", "clientId": "c", "clientSecret": "s", "subscriptionId": "s", "activeDirectoryEndpointUrl": %q, "resourceManagerEndpointUrl": %q}`,
			srv.URL, srv.URL),
	} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := &region{t: t, cloud: cloud}
	t.Cleanup(func() {
		if t.Failed() {
			r.tell(machines.said())
		}
	})
	r.Cluster = cluster.Start(t, cluster.Options{Config: fmt.Sprintf(azureConfig, keys), CoordinatorArgs: []string{"--launch-address", "AGENTS"},
		CoordinatorEnv: []string{"SSL_CERT_FILE=" + trust}})
	if out, err := r.CLI("user", "update", "admin", "--unix-user", "nobody").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return r, front
}

// TestAzureWorkflowRunsOnAMachine: the cloud makes a machine and the answer is lost with the coordinator, which comes back. There is one machine, its agent
// joins with what the custom data says, the work is done there once, and what is idle is deleted.
func TestAzureWorkflowRunsOnAMachine(t *testing.T) {
	r, _ := newAzure(t, true)
	r.cloud.Fail(fakecloud.OpLaunch, fakecloud.Fault{Lost: true})
	w := r.start("echo ran on $SUBSTRATE_NODES")
	r.until("a machine is made", func() error {
		if r.cloud.Made() == 0 {
			return fmt.Errorf("none is")
		}
		return nil
	})
	r.restart()
	r.AwaitJob(time.Minute, w, "a", "finished")
	out, err := r.Client().Output(t.Context(), w, "a", "stdout")
	if err != nil || !strings.HasPrefix(string(out), "ran on az-l") {
		t.Errorf("the job says %q, %v", out, err)
	}
	r.until("the idle machine is deleted", r.over)
	if made := r.cloud.Made(); made != 1 {
		t.Errorf("%d machines were made", made)
	}
}

// TestAzureFailedLater: what the cloud has is known by the list that it tells; a machine that was accepted and then cannot be made is released, and the
// reason is told.
func TestAzureFailedLater(t *testing.T) {
	r, front := newAzure(t, false)
	if out, err := r.CLI("node", "provisioner", "catalogue", "--refresh", "west").CombinedOutput(); err != nil || !regexp.MustCompile(`(?m)^west +azure +provider +\S* *1 `).Match(out) {
		t.Errorf("the catalogue: %v\n%s", err, out)
	}
	front.Spoil("", "AllocationFailed", "We do not have sufficient capacity for the requested VM size in this region.")
	r.start("true")
	r.until("the failure is told and the machine deleted", func() error {
		events, err := r.Client().Events(t.Context(), "")
		for _, e := range events {
			if e.GetKind() == "node-launch-failed" && strings.HasPrefix(e.GetMessage(), "no-capacity: it could not be made: AllocationFailed: We do not have") && r.cloud.Live() == 0 {
				return nil
			}
		}
		return fmt.Errorf("%d machines exist, %v", r.cloud.Live(), err)
	})
}
