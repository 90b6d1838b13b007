package coreweave

import (
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
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
	cluster = "7a1f8c52-3c7e-4b5e-9c55-0d6c8a3b9f01"
	gpus    = "gd-8xh100ib-i128"
	cpus    = "turin-gp"
	image   = "registry.example.org/substrate/agent:1"
)

func definition(typ string) coordinator.Definition {
	return coordinator.Definition{ID: coordinator.DefinitionID(typ), Kind: spec.KindCoreWeave, Spec: spec.CoreWeave{InstanceType: typ}}
}

// account is a cluster of CoreWeave's, and the way there.
type account struct {
	cloud *fakecloud.Cloud
	front *fakecloud.CoreWeave
	url   string
	file  string // kubeconfig
}

const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q}}]
users: [{name: u, user: {token: CW-SECRET-1}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`

func newAccount(t testing.TB, o fakecloud.Options) *account {
	t.Helper()
	if o.Types == nil {
		o.Types = []fakecloud.Type{{Name: gpus, VCPUs: 128, GPUs: 8, Arch: "amd64", Metal: true}, {Name: cpus, VCPUs: 192, Arch: "amd64", Metal: true}}
	}
	c := fakecloud.New(o)
	front := &fakecloud.CoreWeave{Keeper: &fakecloud.Keeper{Cloud: c}, Namespace: "substrate"}
	srv := httptest.NewServer(c.Serve(front))
	t.Cleanup(func() { srv.CloseClientConnections(); srv.Close(); c.Close() })
	a := &account{c, front, srv.URL, filepath.Join(t.TempDir(), "kubeconfig")}
	if err := os.WriteFile(a.file, fmt.Appendf(nil, kubeconfig, srv.URL), 0o600); err != nil {
		t.Fatal(err)
	}
	return a
}

func (a *account) options(clusterID string) Options {
	return Options{Backend: spec.Backend{Kind: spec.KindCoreWeave, Kubeconfig: a.file, AgentImage: image}, Cluster: clusterID, Agent: cloud.Agent{Program: "/opt/substrate/substrated"},
		Now: a.cloud.Now, Log: slog.New(slog.DiscardHandler), Settle: 500 * time.Millisecond, Page: 5}
}

func (a *account) open(t testing.TB, clusterID string) *Provisioner {
	t.Helper()
	p, err := New(a.options(clusterID))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestConformance: all that every provisioner must do, over the cluster's wire.
func TestConformance(t *testing.T) {
	t.Parallel()
	causes := map[provision.Fault]fakecloud.Cause{provision.FaultNoCapacity: fakecloud.NoCapacity, provision.FaultQuota: fakecloud.Quota,
		provision.FaultThrottled: fakecloud.Throttled, provision.FaultDenied: fakecloud.Denied, provision.FaultClockSkew: fakecloud.ClockSkew,
		provision.FaultInvalid: fakecloud.Invalid, provision.FaultTransient: fakecloud.Broken}
	ops := map[provisiontest.Call]fakecloud.Op{provisiontest.CallLaunch: fakecloud.OpLaunch, provisiontest.CallRelease: fakecloud.OpRelease,
		provisiontest.CallList: fakecloud.OpList, provisiontest.CallOffers: fakecloud.OpTypes}
	h := provisiontest.Harness{Settle: 30 * time.Minute, New: func(t *testing.T) provisiontest.Account {
		a := newAccount(t, fakecloud.Options{Boots: 20 * time.Minute, Ends: 5 * time.Minute})
		c := a.cloud
		return provisiontest.Account{
			Open:        func(t testing.TB, cluster string) provision.Provisioner { return a.open(t, cluster) },
			Definitions: [2]coordinator.Definition{definition(gpus), definition(cpus)},
			Live:        c.Live, Page: 5, Pass: c.Advance,
			Boot:    func(h provision.Handle) string { return a.front.Read(string(h)) },
			Visible: func(h provision.Handle) string { return a.front.Seen(string(h)) },
			Stray: func(clusterID string) provision.Handle {
				a.front.Put("nodepools", a.pool("stray", gpus, map[string]any{cloud.MarkCluster: clusterID}))
				return "stray"
			},
			Fail: func(call provisiontest.Call, fault provision.Fault) {
				c.Fail(ops[call], fakecloud.Fault{Refuse: causes[fault]})
			},
			Lose:    func(call provisiontest.Call) { c.Fail(ops[call], fakecloud.Fault{Lost: true}) },
			Hang:    func(call provisiontest.Call) { c.Fail(ops[call], fakecloud.Fault{Hang: true}) },
			Instead: func(call provisiontest.Call, answer string) { c.Fail(ops[call], fakecloud.Fault{Instead: answer}) },
			Empty: func(d coordinator.Definition) {
				c.Empty(d.Spec.(spec.CoreWeave).InstanceType, "", fakecloud.OnDemand, true)
			},
			Asked: func(call provisiontest.Call) int { return c.Calls(ops[call]) },
		}
	}, LeaveOut: map[string]string{
		"launch/spot":   "its definitions have no spot nodes",
		"offers/absent": "there is no list of types to ask for: that a type is none shows when its pool is refused, see TestRefusedPools",
	}}
	for f := range causes {
		h.Faults = append(h.Faults, f)
	}
	provisiontest.Run(t, h)
}

// pool is one that somebody else has made.
func (a *account) pool(name, typ string, labels map[string]any) map[string]any {
	return map[string]any{"apiVersion": "compute.coreweave.com/v1alpha1", "kind": "NodePool", "metadata": map[string]any{"name": name, "labels": labels},
		"spec": map[string]any{"instanceType": typ, "targetNodes": 1.0}}
}
