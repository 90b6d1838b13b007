package aws

import (
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/ec2"

	"substrate/coordinator"
	"substrate/coordinator/provision"
	"substrate/coordinator/provision/cloud"
	"substrate/coordinator/provision/provisiontest"
	"substrate/coordinator/spec"
	"substrate/tests/fakecloud"
)

const (
	region  = "us-east-1"
	image   = "ami-0123456789abcdef0"
	armed   = "ami-0123456789abcdef1" // for the other architecture
	cluster = "7a1f8c52-3c7e-4b5e-9c55-0d6c8a3b9f01"
)

func someTypes() []fakecloud.Type {
	return []fakecloud.Type{
		{Name: "c5.large", VCPUs: 2, Cores: 1, Memory: 4096, Arch: "amd64", Spot: true, Price: 0.085},
		{Name: "c5.metal", VCPUs: 96, Cores: 48, Memory: 196608, Arch: "amd64", Metal: true, Price: 4.08},
		{Name: "c6g.medium", VCPUs: 1, Cores: 1, Memory: 2048, Arch: "arm64", Spot: true, Price: 0.034},
		{Name: "z99.large", VCPUs: 4, Cores: 2, Memory: 16384, Arch: "amd64", Spot: true, GPUs: 2, GPU: "X1"}, // newer than the catalogue
	}
}

func definition(typ string, spot bool) coordinator.Definition {
	return coordinator.Definition{ID: coordinator.DefinitionID(typ), Kind: spec.KindAWS, Spec: spec.AWS{InstanceType: typ, Spot: spot, ImageID: image}}
}

// place is an account in a region: a cloud, its front-end and the way there.
type account struct {
	cloud *fakecloud.Cloud
	front *fakecloud.EC2
	url   string
	keys  string // file of credentials
}

func newAccount(t testing.TB, o fakecloud.Options) *account {
	t.Helper()
	if o.Types == nil {
		o.Types = someTypes()
	}
	c := fakecloud.New(o)
	front := &fakecloud.EC2{Cloud: c, Region: region, Images: map[string]string{image: "x86_64", armed: "arm64"}}
	srv := httptest.NewServer(c.Serve(front))
	keys := filepath.Join(t.TempDir(), "credentials")
	if err := os.WriteFile(keys, []byte("[default]\naws_access_key_id = AKIDEXAMPLE\naws_secret_access_key = not-a-secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { srv.CloseClientConnections(); srv.Close(); c.Close() })
	return &account{c, front, srv.URL, keys}
}

func (a *account) open(t testing.TB, clusterID string) *Provisioner {
	t.Helper()
	p, err := New(t.Context(), Options{Backend: spec.Backend{Kind: spec.KindAWS, Region: region, Endpoint: a.url, CredentialFile: a.keys}, Cluster: clusterID,
		Agent: cloud.Agent{Program: "/opt/substrate/substrated"}, Now: a.cloud.Now, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestConformance: all that every provisioner must do, over EC2's wire.
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
		spot, absent := definition("c5.large", true), definition("c6.none", false)
		return provisiontest.Account{
			Open:        func(t testing.TB, cluster string) provision.Provisioner { return a.open(t, cluster) },
			Definitions: [2]coordinator.Definition{definition("c5.large", false), definition("c5.metal", false)}, Spot: &spot, Absent: &absent,
			Has: c.Names, Live: c.Live, Page: c.Page(), Pass: c.Advance,
			Boot:    func(h provision.Handle) string { i, _ := c.Instance(string(h)); return string(i.UserData) },
			Visible: func(h provision.Handle) string { i, _ := c.Instance(string(h)); return fmt.Sprint(i.Tags, i.Token) },
			Stray: func(clusterID string) provision.Handle {
				i, err := c.Launch(fakecloud.Ask{Type: "c5.large", Tags: map[string]string{cloud.MarkCluster: clusterID}})
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
			Empty:   func(d coordinator.Definition) { c.Empty(d.Spec.(spec.AWS).InstanceType, "", fakecloud.OnDemand, true) },
			Reclaim: func(h provision.Handle) { c.Reclaim(string(h)) },
			Asked:   func(call provisiontest.Call) int { return c.Calls(ops[call]) },
		}
	}}
	for f := range causes {
		h.Faults = append(h.Faults, f)
	}
	provisiontest.Run(t, h)
}

func TestSmall(t *testing.T) {
	provisiontest.Small(t, reflect.TypeFor[*Provisioner](), reflect.TypeFor[ec2.RunInstancesInput](), `service/\w+\.Client$`)
}
