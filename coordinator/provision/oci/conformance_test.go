package oci

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/oracle/oci-go-sdk/v65/core"

	"substrate/coordinator"
	"substrate/coordinator/provision"
	"substrate/coordinator/provision/cloud"
	"substrate/coordinator/provision/provisiontest"
	"substrate/coordinator/spec"
	"substrate/tests/fakecloud"
)

const (
	region      = "eu-frankfurt-1"
	compartment = "ocid1.compartment.oc1..nodes"
	image       = "ocid1.image.oc1.eu-frankfurt-1.linux"
	armed       = "ocid1.image.oc1.eu-frankfurt-1.linuxarm" // for the other architecture
	subnet      = "ocid1.subnet.oc1.eu-frankfurt-1.private"
	cluster     = "7a1f8c52-3c7e-4b5e-9c55-0d6c8a3b9f01"
	firstDomain = "Fake:EU-FRANKFURT-1-AD-1"
	flex        = "VM.Standard.E4.Flex"
	fixed       = "VM.Standard2.1"
	gpus        = "BM.GPU4.8"
	arm         = "VM.Standard.A1.Flex"
)

func someTypes() []fakecloud.Type {
	return []fakecloud.Type{
		{Name: flex, VCPUs: 128, Cores: 64, Memory: 1024 << 10, Arch: "amd64", Spot: true},
		{Name: fixed, VCPUs: 2, Cores: 1, Memory: 15 << 10, Arch: "amd64", Spot: true},
		{Name: gpus, VCPUs: 128, Cores: 64, Memory: 2048 << 10, Arch: "amd64", Metal: true, GPUs: 8, GPU: "NVIDIA® A100 40GB"},
		{Name: arm, VCPUs: 80, Cores: 80, Memory: 512 << 10, Arch: "arm64", Spot: true},
	}
}

func specOf(shape string, preemptible bool) spec.OCI {
	s := spec.OCI{Shape: shape, Image: image, Subnet: subnet, Preemptible: preemptible}
	if shape == flex || shape == arm {
		s.OCPUs, s.Memory = 2, 16<<30
	}
	if shape == arm {
		s.Image = armed
	}
	return s
}

func definition(shape string, preemptible bool) coordinator.Definition {
	return coordinator.Definition{ID: coordinator.DefinitionID(shape), Kind: spec.KindOCI, Spec: specOf(shape, preemptible)}
}

var userKey = sync.OnceValue(func() []byte {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
})

// account is a compartment: a cloud, its front-end and the way there.
type account struct {
	cloud *fakecloud.Cloud
	front *fakecloud.OCI
	url   string
	keys  string // file of credentials
}

func newAccount(t testing.TB, o fakecloud.Options) *account {
	t.Helper()
	if o.Types == nil {
		o.Types = someTypes()
	}
	c := fakecloud.New(o)
	front := &fakecloud.OCI{Cloud: c, Region: region, Compartment: compartment, Images: map[string]string{image: "amd64", armed: "arm64"}, Subnets: []string{subnet}}
	srv := httptest.NewServer(c.Serve(front))
	dir := t.TempDir()
	for name, text := range map[string][]byte{"key.pem": userKey(), "config": fmt.Appendf(nil, "[DEFAULT]\nuser=ocid1.user.oc1..u\nfingerprint=20:3b:97:13:55:1c\n"+
		"tenancy=ocid1.tenancy.oc1..t\nregion=us-ashburn-1\nkey_file=%s\n", filepath.Join(dir, "key.pem"))} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { srv.CloseClientConnections(); srv.Close(); c.Close() })
	return &account{c, front, srv.URL, filepath.Join(dir, "config")}
}

func (a *account) open(t testing.TB, clusterID string) *Provisioner {
	t.Helper()
	p, err := New(Options{Backend: spec.Backend{Kind: spec.KindOCI, Region: region, Compartment: compartment, Endpoint: a.url, CredentialFile: a.keys}, Cluster: clusterID,
		Agent: cloud.Agent{Program: "/opt/substrate/substrated"}, Now: a.cloud.Now, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestConformance: all that every provisioner must do, over the cloud's wire.
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
		spot, absent := definition(flex, true), definition("VM.None1.1", false)
		find := func(h provision.Handle) fakecloud.Instance { i, _ := c.Instance(a.front.ID(string(h))); return i }
		return provisiontest.Account{
			Open:        func(t testing.TB, cluster string) provision.Provisioner { return a.open(t, cluster) },
			Definitions: [2]coordinator.Definition{definition(flex, false), definition(gpus, false)}, Spot: &spot, Absent: &absent,
			Has: c.Names, Live: c.Live, Page: c.Page(), Pass: c.Advance,
			Boot:    func(h provision.Handle) string { return string(find(h).UserData) },
			Visible: func(h provision.Handle) string { i := find(h); return fmt.Sprint(i.Tags, i.Token) },
			Stray: func(clusterID string) provision.Handle {
				i, err := c.Launch(fakecloud.Ask{Type: flex, Tags: map[string]string{cloud.MarkCluster: clusterID}})
				if err != nil {
					t.Fatal(err)
				}
				return provision.Handle(a.front.OCID(i.ID))
			},
			Fail: func(call provisiontest.Call, fault provision.Fault) {
				c.Fail(ops[call], fakecloud.Fault{Refuse: causes[fault]})
			},
			Lose:    func(call provisiontest.Call) { c.Fail(ops[call], fakecloud.Fault{Lost: true}) },
			Hang:    func(call provisiontest.Call) { c.Fail(ops[call], fakecloud.Fault{Hang: true}) },
			Instead: func(call provisiontest.Call, answer string) { c.Fail(ops[call], fakecloud.Fault{Instead: answer}) },
			Empty:   func(d coordinator.Definition) { c.Empty(d.Spec.(spec.OCI).Shape, "", fakecloud.OnDemand, true) },
			Reclaim: func(h provision.Handle) { c.Reclaim(a.front.ID(string(h))) },
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
	broken := filepath.Join(t.TempDir(), "config")
	text, err := os.ReadFile(a.keys)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(broken, bytes.ReplaceAll(text, []byte("key_file="), []byte("key_file=/nowhere")), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name                string
		backend             spec.Backend
		region, compartment string
		wrong               string
	}{
		{"as the file says", spec.Backend{CredentialFile: a.keys}, "us-ashburn-1", "ocid1.tenancy.oc1..t", ""},
		{"as the backend says", spec.Backend{CredentialFile: a.keys, Region: region, Compartment: compartment}, region, compartment, ""},
		{"no such file", spec.Backend{CredentialFile: "/nowhere/config"}, "", "", "/nowhere/config"},
		{"no key", spec.Backend{CredentialFile: broken}, "", "", "cannot read credentials"},
	} {
		p, err := New(Options{Backend: tt.backend, Now: time.Now, Log: slog.New(slog.DiscardHandler)})
		switch {
		case tt.wrong != "":
			if err == nil || !bytes.Contains([]byte(err.Error()), []byte(tt.wrong)) {
				t.Errorf("%s: %v", tt.name, err)
			}
		case err != nil:
			t.Errorf("%s: %v", tt.name, err)
		case p.region != tt.region || p.compartment != tt.compartment:
			t.Errorf("%s: region %s, compartment %s", tt.name, p.region, p.compartment)
		}
	}
}

func TestSmall(t *testing.T) {
	provisiontest.Small(t, reflect.TypeFor[*Provisioner](), reflect.TypeFor[core.Instance](), `\.(ComputeClient|IdentityClient)$`)
}
