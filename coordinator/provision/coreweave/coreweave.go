// Package coreweave makes nodes of CoreWeave's node pools: one pool of one node is one launch, and a pod that is pinned to it starts the agent. It keeps
// nothing on disk: what exists is found by labels. It chooses no types, sizes no pools, and touches no object that it has not made.
package coreweave

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"substrate/coordinator/provision"
	"substrate/coordinator/provision/cloud"
	"substrate/coordinator/spec"
)

// Options is what the provisioner of a CoreWeave cluster needs.
type Options struct {
	Backend spec.Backend
	Cluster string // id of this cluster: pools of another one are not ours
	Agent   cloud.Agent
	Now     func() time.Time
	Log     *slog.Logger
	Settle  time.Duration // for so long a launch waits for what is said first of its pool; default 5 s
	Page    int64         // objects in one page of a list; default 500
}

const (
	defaultNamespace = "substrate"
	// defaultState is on the node's NVMe: its root is a small disk in memory.
	defaultState = "/mnt/local/substrate"
	// knownFor is for how long the secret of a launch that is over is kept at least: it keeps a late call from making another pool.
	knownFor   = 24 * time.Hour
	sweepEvery = time.Hour
	pageSize   = 500
	mostPages  = 200 // of one list
)

// Provisioner makes pools in one cluster of CoreWeave's. It is safe for concurrent use.
type Provisioner struct {
	opt        Options
	namespace  string
	image      string
	agent      cloud.Agent
	poolsOf    dynamic.ResourceInterface
	podsOf     dynamic.ResourceInterface
	secretsOf  dynamic.ResourceInterface
	emptyTypes cloud.Empty[string]

	mu    sync.Mutex
	swept time.Time
}

func poolResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "compute.coreweave.com", Version: "v1alpha1", Resource: "nodepools"}
}

// New makes the provisioner of a backend. It asks nobody for anything.
func New(o Options) (*Provisioner, error) {
	config, err := connection(o.Backend)
	if err != nil {
		return nil, fmt.Errorf("cannot open backend %s: %w", cmp.Or(o.Backend.Name, o.Backend.Kind), err)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("cannot open backend %s: %w", cmp.Or(o.Backend.Name, o.Backend.Kind), err)
	}
	o.Settle, o.Page = cmp.Or(o.Settle, 5*time.Second), cmp.Or(o.Page, pageSize)
	p := &Provisioner{opt: o, namespace: cmp.Or(o.Backend.Namespace, defaultNamespace), image: o.Backend.AgentImage, agent: o.Agent}
	p.agent.Program = cmp.Or(o.Agent.Program, "substrated")
	p.agent.JoinWithin = cmp.Or(o.Agent.JoinWithin, 15*time.Minute)
	p.agent.StateDir = cmp.Or(o.Backend.StateDir, o.Agent.StateDir, defaultState)
	p.poolsOf = client.Resource(poolResource())
	p.podsOf = client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "pods"}).Namespace(p.namespace)
	p.secretsOf = client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "secrets"}).Namespace(p.namespace)
	return p, nil
}

// connection is how a backend's API is reached: by its kubeconfig, else by those that kubectl would take, else as the pod that this runs in.
func connection(b spec.Backend) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = b.Kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("cannot read kubeconfig: %w", err)
	}
	if config.ExecProvider != nil || config.AuthProvider != nil {
		return nil, errors.New("its kubeconfig has a program make the credentials, which is not run here: give it a token or a certificate")
	}
	if b.Endpoint != "" {
		config.Host = b.Endpoint
	}
	if b.CredentialFile != "" {
		config.BearerToken, config.BearerTokenFile = "", b.CredentialFile // it is read again when it changes
	}
	config.UserAgent = "substrate"
	config.QPS, config.Burst = 50, 100 // the server has limits of its own, and says so
	config.WarningHandler = rest.NoWarnings{}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return cloud.BoundedTransport{RoundTripper: listener{next}}
	})
	return config, nil
}

// heard is what an answer's header says, which errors of the library leave out.
type heard struct{ header http.Header }

type heardKey struct{}

// listening has the headers of calls with the context noted.
func listening(ctx context.Context) (context.Context, *heard) {
	h := &heard{header: http.Header{}}
	return context.WithValue(ctx, heardKey{}, h), h
}

// listener notes headers. It takes away the one that has the library repeat calls by itself: how often is the engine's to decide.
type listener struct{ next http.RoundTripper }

func (l listener) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := l.next.RoundTrip(r)
	if err != nil {
		return resp, err
	}
	if h, ok := r.Context().Value(heardKey{}).(*heard); ok {
		h.header = resp.Header.Clone()
	}
	resp.Header.Del("Retry-After")
	return resp, nil
}

func (p *Provisioner) now() time.Time { return p.opt.Now() }

var _ provision.Provisioner = (*Provisioner)(nil)
