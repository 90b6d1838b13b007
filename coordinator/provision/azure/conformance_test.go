package azure

import (
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
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
	subscription = "11111111-2222-4333-8444-555555555555"
	group        = "nodes"
	west         = "westeurope"
	image        = "/subscriptions/" + subscription + "/resourceGroups/images/providers/Microsoft.Compute/galleries/g/images/node/versions/1.0.0"
	armed        = "/subscriptions/" + subscription + "/resourceGroups/images/providers/Microsoft.Compute/images/node-arm"
	subnet       = "/subscriptions/" + subscription + "/resourceGroups/" + group + "/providers/Microsoft.Network/virtualNetworks/net/subnets/private"
	cluster      = "7a1f8c52-3c7e-4b5e-9c55-0d6c8a3b9f01"
	general      = "Standard_D4s_v5"
	gpus         = "Standard_ND96isr_H100_v5"
	arm64        = "Standard_D2ps_v6"
	barred       = "Standard_M208ms_v2"
)

func someTypes() []fakecloud.Type {
	return []fakecloud.Type{
		{Name: general, VCPUs: 4, Cores: 2, Memory: 16 << 10, Arch: "amd64", Spot: true},
		{Name: gpus, VCPUs: 96, Cores: 96, Memory: 1900 << 10, Arch: "amd64", GPUs: 8},
		{Name: arm64, VCPUs: 2, Cores: 2, Memory: 8 << 10, Arch: "arm64", Spot: true},
		{Name: barred, VCPUs: 208, Cores: 104, Memory: 5700 << 10, Arch: "amd64"},
	}
}

func definition(size string, spot bool) coordinator.Definition {
	s := spec.Azure{VMSize: size, Image: image, Subnet: "net/private", Spot: spot}
	if size == arm64 {
		s.Image, s.Subnet = armed, subnet
	}
	return coordinator.Definition{ID: coordinator.DefinitionID(size), Kind: spec.KindAzure, Spec: s}
}

// account is a resource group: a cloud, its front-end and the way there.
type account struct {
	cloud *fakecloud.Cloud
	front *fakecloud.Azure
	srv   *httptest.Server
	keys  string // file of credentials
}

func newAccount(t testing.TB, o fakecloud.Options) *account {
	t.Helper()
	if o.Types == nil {
		o.Types = someTypes()
	}
	c := fakecloud.New(o)
	front := &fakecloud.Azure{Cloud: c, Subscription: subscription, Group: group, Location: west, Images: map[string]string{image: "amd64", armed: "arm64"},
		Subnets: []string{subnet}, Restricted: map[string]string{barred: "NotAvailableForSubscription"}}
	srv := httptest.NewTLSServer(c.Serve(front))
	a := &account{c, front, srv, filepath.Join(t.TempDir(), "principal.json")}
	a.write(t, a.keys, "secret")
	t.Cleanup(func() { srv.CloseClientConnections(); srv.Close(); c.Close() })
	return a
}

func (a *account) write(t testing.TB, path, client string) {
	t.Helper()
	text := fmt.Sprintf(`{"tenantId": "my-tenant", "clientId": %q, "clientSecret": "s", "subscriptionId": %q, "activeDirectoryEndpointUrl": %q, "resourceManagerEndpointUrl": %q}`,
		client, subscription, a.srv.URL, a.srv.URL+"/")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (a *account) options(clusterID string) Options {
	return Options{Backend: spec.Backend{Kind: spec.KindAzure, ResourceGroup: group, Region: "West Europe", CredentialFile: a.keys}, Cluster: clusterID,
		Agent: cloud.Agent{Program: "/opt/substrate/substrated"}, Now: a.cloud.Now, Log: slog.New(slog.DiscardHandler), HTTPClient: a.srv.Client()}
}

func (a *account) open(t testing.TB, clusterID string) *Provisioner {
	t.Helper()
	p, err := New(a.options(clusterID))
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
	h := provisiontest.Harness{Settle: heardFor, New: func(t *testing.T) provisiontest.Account {
		a := newAccount(t, fakecloud.Options{Boots: 20 * time.Second, Ends: 10 * time.Second, Appears: 5 * time.Second, Page: 5})
		c := a.cloud
		spot, absent := definition(general, true), definition("Standard_None1", false)
		find := func(h provision.Handle) fakecloud.Instance { i, _ := c.Instance(string(h)); return i }
		return provisiontest.Account{
			Open:        func(t testing.TB, cluster string) provision.Provisioner { return a.open(t, cluster) },
			Definitions: [2]coordinator.Definition{definition(general, false), definition(gpus, false)}, Spot: &spot, Absent: &absent,
			Live: c.Live, Page: c.Page(), Pass: c.Advance,
			Has: func() []string {
				return slices.DeleteFunc(names(c.Types()), func(name string) bool { return name == barred })
			},
			Boot:    func(h provision.Handle) string { return string(find(h).UserData) },
			Visible: func(h provision.Handle) string { i := find(h); return fmt.Sprint(i.Tags, i.ID) },
			Stray: func(clusterID string) provision.Handle {
				i, err := c.Launch(fakecloud.Ask{Type: general, Tags: map[string]string{cloud.MarkCluster: clusterID}})
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
			Empty:   func(d coordinator.Definition) { c.Empty(d.Spec.(spec.Azure).VMSize, "", fakecloud.OnDemand, true) },
			Reclaim: func(h provision.Handle) { c.Reclaim(string(h)) },
			Asked:   func(call provisiontest.Call) int { return c.Calls(ops[call]) },
		}
	}}
	for f := range causes {
		h.Faults = append(h.Faults, f)
	}
	provisiontest.Run(t, h)
}

func names(types []fakecloud.Type) []string {
	var out []string
	for _, t := range types {
		out = append(out, t.Name)
	}
	return out
}
