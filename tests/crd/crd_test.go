// Package crd runs the conformance suite of node provisioners against CoreWeave's node pools in a real Kubernetes API server.
package crd

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	servertesting "k8s.io/apiextensions-apiserver/pkg/cmd/server/testing"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"substrate/coordinator"
	"substrate/coordinator/provision"
	"substrate/coordinator/provision/cloud"
	"substrate/coordinator/provision/coreweave"
	"substrate/coordinator/provision/provisiontest"
	"substrate/coordinator/spec"
	"substrate/tests/fakecloud"
)

const (
	gpus = "gd-8xh100ib-i128"
	cpus = "turin-gp"
)

var (
	pools = schema.GroupVersionResource{Group: "compute.coreweave.com", Version: "v1alpha1", Resource: "nodepools"}
	crds  = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
)

const definitionOfPools = `{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "nodepools.compute.coreweave.com"},
"spec": {"group": "compute.coreweave.com", "scope": "Cluster", "names": {"plural": "nodepools", "singular": "nodepool", "kind": "NodePool", "listKind": "NodePoolList"},
 "versions": [{"name": "v1alpha1", "served": true, "storage": true, "subresources": {"status": {}}, "schema": {"openAPIV3Schema": {"type": "object", "required": ["spec"], "properties": {
  "spec": {"type": "object", "required": ["instanceType"], "properties": {
   "computeClass": {"type": "string"}, "instanceType": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "instanceType is immutable"}]},
   "targetNodes": {"type": "integer", "minimum": 0}, "minNodes": {"type": "integer"}, "maxNodes": {"type": "integer"}, "autoscaling": {"type": "boolean"},
   "nodeLabels": {"type": "object", "additionalProperties": {"type": "string"}}, "nodeAnnotations": {"type": "object", "additionalProperties": {"type": "string"}},
   "nodeTaints": {"type": "array", "items": {"type": "object", "properties": {"key": {"type": "string"}, "value": {"type": "string"}, "effect": {"type": "string"}}}},
   "lifecycle": {"type": "object", "properties": {"scaleDownStrategy": {"type": "string", "enum": ["IdleOnly", "PreferIdle"]}}}}},
  "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}}]}}`

// server starts etcd and the API server, and returns the way there once it knows what a node pool is.
func server(t *testing.T) *rest.Config {
	t.Helper()
	cfg := embed.NewConfig()
	cfg.Dir = t.TempDir()
	local := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	cfg.ListenClientUrls, cfg.ListenPeerUrls = []url.URL{local}, []url.URL{local}
	cfg.LogLevel = "error"
	etcd, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Close)
	<-etcd.Server.ReadyNotify()
	kubeconfig := filepath.Join(t.TempDir(), "nobody")
	if err := os.WriteFile(kubeconfig, []byte("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\ncontexts: [{name: x, context: {cluster: c}}]\ncurrent-context: x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := servertesting.StartTestServer(t, nil, []string{
		"--etcd-servers", "http://" + etcd.Clients[0].Addr().String(), "--etcd-prefix", "/registry", "--authentication-skip-lookup",
		"--authentication-kubeconfig", kubeconfig, "--authorization-kubeconfig", kubeconfig, "--kubeconfig", kubeconfig, "--enable-priority-and-fairness=false",
		"--disable-admission-plugins", "NamespaceLifecycle,MutatingAdmissionWebhook,ValidatingAdmissionWebhook,ValidatingAdmissionPolicy,MutatingAdmissionPolicy",
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.TearDownFn)
	way, err := dynamic.NewForConfig(s.ClientConfig)
	if err != nil {
		t.Fatal(err)
	}
	crd := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(definitionOfPools), &crd.Object); err != nil {
		t.Fatal(err)
	}
	if _, err := way.Resource(crds).Create(t.Context(), crd, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		if _, err = way.Resource(pools).List(t.Context(), metav1.ListOptions{}); err == nil {
			return s.ClientConfig
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// site is a cluster of CoreWeave's whose node pools are in the server.
type site struct {
	*testing.T
	cloud *fakecloud.Cloud
	front *fakecloud.CoreWeave
	pools dynamic.ResourceInterface
	file  string

	mu sync.Mutex
}

func newSite(t *testing.T, config *rest.Config) *site {
	t.Helper()
	c := fakecloud.New(fakecloud.Options{Boots: 20 * time.Minute, Ends: 5 * time.Minute,
		Types: []fakecloud.Type{{Name: gpus, VCPUs: 128, GPUs: 8, Arch: "amd64", Metal: true}, {Name: cpus, VCPUs: 192, Arch: "amd64", Metal: true}}})
	way, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	host, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	s := &site{T: t, cloud: c, pools: way.Resource(pools), file: filepath.Join(t.TempDir(), "kubeconfig")}
	proxy := httputil.NewSingleHostReverseProxy(host)
	proxy.Transport = transport
	s.front = &fakecloud.CoreWeave{Keeper: &fakecloud.Keeper{Cloud: c}, Namespace: "substrate", Pools: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Del("Authorization") // whoever calls is believed, as by the other
		proxy.ServeHTTP(w, r)
		if r.Method != http.MethodGet {
			s.keep()
		}
	})}
	srv := httptest.NewServer(c.Serve(s.front))
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
		c.Close()
		if err := s.pools.DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			t.Error(err)
		}
		s.front.Keeper.Stuck = false
		c.Advance(time.Hour)
		s.keep()
		c.Advance(time.Hour)
		s.keep()
	})
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: %q}}]\nusers: [{name: u, user: {token: CW-SECRET-1}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n", srv.URL)
	if err := os.WriteFile(s.file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

// keep is CoreWeave's controller: one look at each pool.
func (s *site) keep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx := context.Background()
	list, err := s.pools.List(ctx, metav1.ListOptions{})
	if err != nil {
		s.Error(err)
		return
	}
	patch := func(name string, change map[string]any, sub ...string) {
		body, err := json.Marshal(change)
		if err == nil {
			_, err = s.pools.Patch(ctx, name, types.MergePatchType, body, metav1.PatchOptions{}, sub...)
		}
		if err != nil {
			s.Errorf("the controller: %v", err)
		}
	}
	for i := range list.Items {
		pool := &list.Items[i]
		status, holds := s.front.Keeper.Keep(pool.Object)
		if status != nil {
			patch(pool.GetName(), map[string]any{"status": status}, "status")
		}
		switch {
		case pool.GetDeletionTimestamp() == nil && len(pool.GetFinalizers()) == 0:
			patch(pool.GetName(), map[string]any{"metadata": map[string]any{"finalizers": []string{fakecloud.Finalizer}}})
		case pool.GetDeletionTimestamp() != nil && !holds:
			patch(pool.GetName(), map[string]any{"metadata": map[string]any{"finalizers": nil}})
		}
	}
}

func definition(typ string) coordinator.Definition {
	return coordinator.Definition{ID: coordinator.DefinitionID(typ), Kind: spec.KindCoreWeave, Spec: spec.CoreWeave{InstanceType: typ}}
}

func (s *site) open(t testing.TB, cluster string) provision.Provisioner {
	p, err := coreweave.New(coreweave.Options{Backend: spec.Backend{Kind: spec.KindCoreWeave, Kubeconfig: s.file, AgentImage: "registry.example.org/substrate/agent:1"}, Cluster: cluster,
		Agent: cloud.Agent{Program: "/opt/substrate/substrated"}, Now: s.cloud.Now, Log: slog.New(slog.DiscardHandler), Settle: 500 * time.Millisecond, Page: 5})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (s *site) account() provisiontest.Account {
	causes := causes()
	ops := map[provisiontest.Call]fakecloud.Op{provisiontest.CallLaunch: fakecloud.OpLaunch, provisiontest.CallRelease: fakecloud.OpRelease,
		provisiontest.CallList: fakecloud.OpList, provisiontest.CallOffers: fakecloud.OpTypes}
	c := s.cloud
	return provisiontest.Account{
		Open: s.open, Definitions: [2]coordinator.Definition{definition(gpus), definition(cpus)}, Live: c.Live, Page: 5,
		Pass: func(d time.Duration) { c.Advance(d); s.keep() },
		Boot: func(h provision.Handle) string { return s.front.Read(string(h)) },
		Visible: func(h provision.Handle) string {
			pool, err := s.pools.Get(context.Background(), string(h), metav1.GetOptions{})
			if err != nil {
				s.Fatal(err)
			}
			return fmt.Sprint(pool.Object) + s.front.Seen(string(h))
		},
		Stray: func(cluster string) provision.Handle {
			pool := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "compute.coreweave.com/v1alpha1", "kind": "NodePool",
				"metadata": map[string]any{"name": "stray", "labels": map[string]any{cloud.MarkCluster: cluster}}, "spec": map[string]any{"instanceType": gpus, "targetNodes": int64(1)}}}
			if _, err := s.pools.Create(context.Background(), pool, metav1.CreateOptions{}); err != nil {
				s.Fatal(err)
			}
			s.keep()
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
}

func causes() map[provision.Fault]fakecloud.Cause {
	return map[provision.Fault]fakecloud.Cause{provision.FaultNoCapacity: fakecloud.NoCapacity, provision.FaultQuota: fakecloud.Quota, provision.FaultThrottled: fakecloud.Throttled,
		provision.FaultDenied: fakecloud.Denied, provision.FaultClockSkew: fakecloud.ClockSkew, provision.FaultInvalid: fakecloud.Invalid, provision.FaultTransient: fakecloud.Broken}
}

// TestConformance: all that every provisioner must do, with node pools in a real API server.
func TestConformance(t *testing.T) {
	config := server(t)
	h := provisiontest.Harness{Settle: 30 * time.Minute, Serial: true, // there is one server, and pools belong to no namespace
		New: func(t *testing.T) provisiontest.Account { return newSite(t, config).account() },
		LeaveOut: map[string]string{
			"launch/spot":   "its definitions have no spot nodes",
			"offers/absent": "there is no list of types to ask for: that a type is none shows when its pool is refused",
		}}
	for f := range causes() {
		h.Faults = append(h.Faults, f)
	}
	provisiontest.Run(t, h)
}
