package clouds

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"substrate/tests/cluster"
	"substrate/tests/fakecloud"
)

const catalogueConfig = `
backends:
  - {name: google, kind: gcp, project: nodes-1, region: europe-west4, endpoint: %q, credentialFile: %q}
definitions:
  - id: ${spec.machineType}
    provisioner: gcp
    backend: google
    provisionerSpec: {machineType: "%s-*", zone: europe-west4-a, image: debian}
`

func wares(names ...string) (out []fakecloud.Type) {
	for _, name := range names {
		t := fakecloud.Type{Name: name, VCPUs: 4, Cores: 2, Memory: 16 << 10, Arch: "amd64", Spot: true}
		if strings.HasPrefix(name, "a2") {
			t.GPUs, t.GPU = 8, "nvidia-tesla-a100"
		}
		out = append(out, t)
	}
	return out
}

// newGoogle is a cluster whose only definition is a wildcard that a cloud is asked about.
func newGoogle(t *testing.T, family string) *region {
	t.Helper()
	t.Parallel()
	cloud := fakecloud.New(fakecloud.Options{Types: wares("a2-highgpu-8g", "n2-standard-4", "n2-standard-8", "e2-small")})
	t.Cleanup(cloud.Close)
	srv := httptest.NewServer(cloud.Serve(&fakecloud.GCP{Cloud: cloud, Project: "nodes-1", Images: map[string]string{"debian": "amd64"}}))
	t.Cleanup(srv.Close)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(map[string]string{"type": "service_account", "project_id": "nodes-1", "private_key_id": "1", "client_id": "1",
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), "client_email": "s@nodes-1.iam.gserviceaccount.com", "token_uri": srv.URL + "/token"})
	if err != nil {
		t.Fatal(err)
	}
	keys := filepath.Join(t.TempDir(), "key.json")
	if err := os.WriteFile(keys, text, 0o600); err != nil {
		t.Fatal(err)
	}
	r := &region{t: t, cloud: cloud}
	r.Cluster = cluster.Start(t, cluster.Options{Config: fmt.Sprintf(catalogueConfig, srv.URL, keys, family), CoordinatorArgs: []string{"--launch-address", "AGENTS"}})
	return r
}

func (r *region) say(args ...string) string {
	r.t.Helper()
	out, err := r.CLI(args...).CombinedOutput()
	if err != nil {
		r.t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return string(out)
}

// definitions are ids with who says what they have, and whether they can be had.
func (r *region) definitions() string {
	r.t.Helper()
	var list struct {
		Definitions []struct {
			ID             string   `json:"id"`
			HardwareSource string   `json:"hardware_source"`
			SourceAt       string   `json:"source_at"`
			Unavailable    string   `json:"unavailable"`
			CostPerHour    *float64 `json:"cost_per_hour"`
		}
	}
	text := r.say("node", "provisioner", "list", "-o", "json")
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		r.t.Fatalf("%v\n%s", err, text)
	}
	var out []string
	for _, d := range list.Definitions {
		line := d.ID + " " + d.HardwareSource
		if d.Unavailable != "" {
			line += " unavailable"
		}
		if d.CostPerHour != nil || d.SourceAt == "" {
			r.t.Errorf("%s", text)
		}
		out = append(out, line)
	}
	return strings.Join(out, ", ")
}

// TestCatalogueOfACloud: a wildcard stands for what the cloud tells of; what it tells otherwise makes other definitions; and a coordinator that
// comes back while the cloud cannot be asked knows what it knew, and says since when.
func TestCatalogueOfACloud(t *testing.T) {
	r := newGoogle(t, "n2")
	if got := r.definitions(); got != "n2-standard-4 provider, n2-standard-8 provider" {
		t.Errorf("definitions are %s", got)
	}
	r.cloud.SetTypes(wares("a2-highgpu-8g", "e2-small", "n2-standard-4", "n2-standard-16"))
	if said := r.say("node", "provisioner", "catalogue", "--refresh"); !strings.Contains(said, "1 new (n2-standard-16), 1 no longer told of (n2-standard-8)") {
		t.Errorf("the refresh says\n%s", said)
	}
	const after = "n2-standard-16 provider, n2-standard-4 provider, n2-standard-8 provider unavailable"
	if got := r.definitions(); got != after {
		t.Errorf("after the refresh definitions are %s", got)
	}
	if said := r.say("node", "provisioner", "describe", "n2-standard-8"); !strings.Contains(said, "has not told of it since") || !strings.Contains(said, "as the provider says, asked") {
		t.Errorf("it is described as\n%s", said)
	}
	if said := r.say("node", "provisioner", "types", "n2-*", "--backend", "google"); strings.Count(said, "n2-standard-") != 3 || !strings.Contains(said, "provider") {
		t.Errorf("types are\n%s", said)
	}
	for range 50 {
		r.cloud.Fail(fakecloud.OpTypes, fakecloud.Fault{Refuse: fakecloud.Denied})
	}
	r.restart()
	if got := r.definitions(); got != after {
		t.Errorf("in the next life definitions are %s", got)
	}
	if said := r.say("node", "provisioner", "catalogue", "--refresh", "google"); !strings.Contains(said, "not to be had since") {
		t.Errorf("a refresh that is refused says\n%s", said)
	}
	if said := r.say("cluster", "status"); !strings.Contains(said, "catalogue of google: not to be had since") || !strings.Contains(said, "what was told at") {
		t.Errorf("the status is\n%s", said)
	}
}

// TestModelOfAGPU: the cloud's name of a GPU is no device's. Work that selects one by its model waits, with that reason, and nothing is launched.
func TestModelOfAGPU(t *testing.T) {
	r := newGoogle(t, "a2")
	if got := r.definitions(); got != "a2-highgpu-8g provider" {
		t.Errorf("definitions are %s", got)
	}
	w := r.StartWorkflow("version: v1\nname: gpu\njobs:\n  a: {command: [\"true\"], resource: {cpu: {cores: 1}, devices: {nvidia.com/gpu: 1}, annotations: {nvidia.com/gpu.model: NVIDIA A100}}, policy: {timeout: {execute: 5m}}}\n")
	r.until("the wait is explained", func() error {
		said := r.say("workflow", "explain", w)
		if !strings.Contains(said, "hardware-unknown") || !strings.Contains(said, "nvidia.com/gpu.model") || !strings.Contains(said, "provisioner discover a2-highgpu-8g") {
			return fmt.Errorf("%s", said)
		}
		return nil
	})
	if made := r.cloud.Made(); made != 0 {
		t.Errorf("%d instances are launched on a guess", made)
	}
}
