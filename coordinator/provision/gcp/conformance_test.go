package gcp

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/provision"
	"substrate/coordinator/provision/cloud"
	"substrate/coordinator/provision/provisiontest"
	"substrate/coordinator/spec"
	"substrate/tests/fakecloud"
)

const (
	project = "nodes-1"
	region  = "europe-west4"
	zone    = "europe-west4-a"
	image1  = "projects/debian-cloud/global/images/family/debian-12"
	armed   = "projects/debian-cloud/global/images/family/debian-12-arm64"
	cluster = "7a1f8c52-3c7e-4b5e-9c55-0d6c8a3b9f01"
	plain   = "n2-standard-4"
	hosting = "n1-standard-4" // takes accelerators
	shared  = "e2-micro"
	arm     = "t2a-standard-4"
	gpus    = "a2-highgpu-8g"
)

func someTypes() []fakecloud.Type {
	return []fakecloud.Type{
		{Name: plain, VCPUs: 4, Cores: 2, Memory: 16 << 10, Arch: "amd64", Spot: true},
		{Name: hosting, VCPUs: 4, Cores: 2, Memory: 15 << 10, Arch: "amd64", Spot: true},
		{Name: shared, VCPUs: 2, Cores: 1, Memory: 1 << 10, Arch: "amd64", Spot: true},
		{Name: arm, VCPUs: 4, Cores: 4, Memory: 16 << 10, Arch: "arm64", Spot: true},
		{Name: gpus, VCPUs: 96, Cores: 48, Memory: 680 << 10, Arch: "amd64", Spot: true, GPUs: 8, GPU: "nvidia-tesla-a100"},
	}
}

func specOf(typ string, spot bool) spec.GCP {
	s := spec.GCP{MachineType: typ, Zone: zone, Spot: spot, Image: image1}
	if typ == arm {
		s.Image = armed
	}
	return s
}

func definition(typ string, spot bool) coordinator.Definition {
	return coordinator.Definition{ID: coordinator.DefinitionID(typ), Kind: spec.KindGCP, Spec: specOf(typ, spot)}
}

var accountKey = sync.OnceValue(func() string {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		panic(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
})

// account is a project: a cloud, its front-end and the way there.
type account struct {
	cloud *fakecloud.Cloud
	front *fakecloud.GCP
	url   string
	keys  string // file of credentials
}

func newAccount(t testing.TB, o fakecloud.Options) *account {
	return newAccountBehind(t, o, func(h http.Handler) http.Handler { return h })
}

func newAccountBehind(t testing.TB, o fakecloud.Options, middle func(http.Handler) http.Handler) *account {
	t.Helper()
	if o.Types == nil {
		o.Types = someTypes()
	}
	c := fakecloud.New(o)
	front := &fakecloud.GCP{Cloud: c, Project: project, Images: map[string]string{image1: "amd64", armed: "arm64"}}
	srv := httptest.NewServer(middle(c.Serve(front)))
	t.Cleanup(func() { srv.CloseClientConnections(); srv.Close(); c.Close() })
	keys := filepath.Join(t.TempDir(), "key.json")
	text, err := json.Marshal(map[string]string{"type": "service_account", "project_id": project, "private_key_id": "1", "private_key": accountKey(),
		"client_email": "substrate@nodes-1.iam.gserviceaccount.com", "client_id": "1", "token_uri": srv.URL + "/token"})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(keys, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return &account{c, front, srv.URL, keys}
}

func (a *account) open(t testing.TB, clusterID string) *Provisioner {
	t.Helper()
	p, err := New(t.Context(), Options{Backend: spec.Backend{Kind: spec.KindGCP, Region: region, Endpoint: a.url, CredentialFile: a.keys}, Cluster: clusterID,
		Agent: cloud.Agent{Program: "/opt/substrate/substrated"}, Now: a.cloud.Now, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestConformance: all that every provisioner must do, over the cloud's wire, with operations that are done at once.
func TestConformance(t *testing.T) {
	t.Parallel()
	causes := map[provision.Fault]fakecloud.Cause{provision.FaultNoCapacity: fakecloud.NoCapacity, provision.FaultQuota: fakecloud.Quota,
		provision.FaultThrottled: fakecloud.Throttled, provision.FaultDenied: fakecloud.Denied, provision.FaultClockSkew: fakecloud.ClockSkew,
		provision.FaultInvalid: fakecloud.Invalid, provision.FaultTransient: fakecloud.Broken}
	ops := map[provisiontest.Call]fakecloud.Op{provisiontest.CallLaunch: fakecloud.OpLaunch, provisiontest.CallRelease: fakecloud.OpRelease,
		provisiontest.CallList: fakecloud.OpList, provisiontest.CallOffers: fakecloud.OpTypes}
	h := provisiontest.Harness{Settle: time.Minute, New: func(t *testing.T) provisiontest.Account {
		a := newAccount(t, fakecloud.Options{Boots: 20 * time.Second, Ends: 10 * time.Second, Appears: 5 * time.Second, Page: 5})
		c := a.cloud
		spot, absent := definition(plain, true), definition("n9-none-1", false)
		find := func(h provision.Handle) fakecloud.Instance { i, _ := c.Instance(string(h)); return i }
		return provisiontest.Account{
			Open:        func(t testing.TB, cluster string) provision.Provisioner { return a.open(t, cluster) },
			Definitions: [2]coordinator.Definition{definition(plain, false), definition(gpus, false)}, Spot: &spot, Absent: &absent,
			Has: c.Names, Live: c.Live, Page: c.Page(), Pass: c.Advance,
			Boot:    func(h provision.Handle) string { return string(find(h).UserData) },
			Visible: func(h provision.Handle) string { i := find(h); return fmt.Sprint(i.Tags, i.ID) },
			Stray: func(clusterID string) provision.Handle {
				i, err := c.Launch(fakecloud.Ask{ID: zone + "/stray", Zone: zone, Type: plain, Tags: map[string]string{cloud.MarkCluster: clusterID}})
				if err != nil {
					t.Fatal(err)
				}
				return provision.Handle(i.ID)
			},
			Fail: func(call provisiontest.Call, fault provision.Fault) {
				c.Fail(ops[call], fakecloud.Fault{Refuse: causes[fault]})
			},
			Lose:    func(call provisiontest.Call) { c.Fail(ops[call], fakecloud.Fault{Lost: true}) },
			Hang:    func(call provisiontest.Call) { c.Fail(ops[call], fakecloud.Fault{Hang: true}) },
			Instead: func(call provisiontest.Call, answer string) { c.Fail(ops[call], fakecloud.Fault{Instead: answer}) },
			Empty:   func(d coordinator.Definition) { c.Empty(d.Spec.(spec.GCP).MachineType, "", fakecloud.OnDemand, true) },
			Reclaim: func(h provision.Handle) { c.Reclaim(string(h)) },
			Asked:   func(call provisiontest.Call) int { return c.Calls(ops[call]) },
		}
	}}
	for f := range causes {
		h.Faults = append(h.Faults, f)
	}
	provisiontest.Run(t, h)
}

// TestOpen: what a backend says, and what is missing in it.
func TestOpen(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	odd := filepath.Join(t.TempDir(), "key.json")
	if err := os.WriteFile(odd, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name           string
		backend        spec.Backend
		project, wrong string
	}{
		{"as the file says", spec.Backend{CredentialFile: a.keys}, project, ""},
		{"as the backend says", spec.Backend{CredentialFile: a.keys, Project: "another"}, "another", ""},
		{"no such file", spec.Backend{CredentialFile: "/nowhere/key.json", Project: project}, "", "/nowhere/key.json"},
		{"not credentials", spec.Backend{CredentialFile: odd, Project: project}, "", "cannot read credentials"},
	} {
		p, err := New(t.Context(), Options{Backend: tt.backend, Now: time.Now, Log: slog.New(slog.DiscardHandler)})
		switch {
		case tt.wrong != "":
			if err == nil || !strings.Contains(err.Error(), tt.wrong) {
				t.Errorf("%s: %v", tt.name, err)
			}
		case err != nil:
			t.Errorf("%s: %v", tt.name, err)
		case p.project != tt.project:
			t.Errorf("%s: project %s", tt.name, p.project)
		}
	}
}
