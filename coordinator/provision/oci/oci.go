// Package oci makes nodes of Oracle Cloud's compute instances: one instance is one node. It keeps nothing on disk: what exists is found by the
// instances' tags. It chooses neither shape nor image, makes no networks and no policies, and does not look outside its compartment.
package oci

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/oracle/oci-go-sdk/v65/common"
	"github.com/oracle/oci-go-sdk/v65/common/auth"
	"github.com/oracle/oci-go-sdk/v65/core"
	"github.com/oracle/oci-go-sdk/v65/identity"

	"substrate/coordinator/provision"
	"substrate/coordinator/provision/cloud"
	"substrate/coordinator/spec"
)

// Options is what the provisioner of a compartment in a region needs.
type Options struct {
	Backend    spec.Backend
	Cluster    string // id of this cluster: instances of another one are not ours
	Agent      cloud.Agent
	Now        func() time.Time
	Log        *slog.Logger
	HTTPClient common.HTTPRequestDispatcher // nil: the SDK's
}

const (
	// tokenFor is for how long the cloud remembers the token of a launch, less an hour for clocks and calls under way.
	tokenFor = 23 * time.Hour
	// mostPages bounds lists: a thousand instances are in a page.
	mostPages = 1000
	pageSize  = 1000
	// endedFor is for how long it is remembered that an instance's end was asked for here; the cloud lists it for less.
	endedFor = 25 * time.Hour
)

// Provisioner launches instances in one compartment. It is safe for concurrent use.
type Provisioner struct {
	opt                 Options
	region, compartment string
	oci                 client

	recent cloud.Recent
	empty  cloud.Empty[place]

	mu     sync.Mutex
	ended  map[provision.Handle]time.Time // whose end was asked for here
	market market
}

// client is the part of the SDK's clients that is used here.
type client struct {
	launch    func(context.Context, core.LaunchInstanceRequest) (core.LaunchInstanceResponse, error)
	terminate func(context.Context, core.TerminateInstanceRequest) (core.TerminateInstanceResponse, error)
	list      func(context.Context, core.ListInstancesRequest) (core.ListInstancesResponse, error)
	shapes    func(context.Context, core.ListShapesRequest) (core.ListShapesResponse, error)
	domains   func(context.Context, identity.ListAvailabilityDomainsRequest) (identity.ListAvailabilityDomainsResponse, error)
}

// place is where an instance is asked for, as far as capacity goes.
type place struct {
	shape, domain string
	ocpus         float64
	memory        uint64
	preemptible   bool
}

func placeOf(s spec.OCI, domain string) place {
	return place{s.Shape, domain, s.OCPUs, uint64(s.Memory), s.Preemptible}
}

func (p place) market() string {
	if p.preemptible {
		return "preemptible"
	}
	return "on-demand"
}

// New makes the provisioner of a backend. With keys from a file it asks nobody for anything; without, the machine is asked who it is.
func New(o Options) (*Provisioner, error) {
	fail := func(err error) (*Provisioner, error) {
		return nil, fmt.Errorf("cannot open backend %s: %w", cmp.Or(o.Backend.Name, o.Backend.Kind), err)
	}
	keys, err := credentials(o.Backend.CredentialFile)
	if err != nil {
		return fail(err)
	}
	if o.Backend.Region != "" {
		keys = located{keys, o.Backend.Region}
	}
	region, err := keys.Region()
	if err != nil || region == "" {
		return fail(fmt.Errorf("it has no region: write `region` in the configuration's backend"))
	}
	compartment := o.Backend.Compartment
	if compartment == "" {
		if compartment, err = keys.TenancyOCID(); err != nil {
			return fail(fmt.Errorf("it has no compartment: write `compartment` in the configuration's backend: %w", err))
		}
	}
	compute, err := core.NewComputeClientWithConfigurationProvider(keys)
	if err != nil {
		return fail(err)
	}
	people, err := identity.NewIdentityClientWithConfigurationProvider(keys)
	if err != nil {
		return fail(err)
	}
	for _, c := range []*common.BaseClient{&compute.BaseClient, &people.BaseClient} {
		// Refusals are the engine's to judge: it tries another definition, or waits. The SDK would repeat "out of host capacity" as any error of a
		// server's, until its breaker refuses calls about other shapes too.
		none := common.NoRetryPolicy()
		c.Configuration.RetryPolicy, c.Configuration.CircuitBreaker = &none, nil
		if o.Backend.Endpoint != "" {
			c.Host = strings.TrimSuffix(o.Backend.Endpoint, "/")
		}
		if o.HTTPClient != nil {
			c.HTTPClient = o.HTTPClient
		}
		c.HTTPClient = cloud.BoundedDoer{Doer: c.HTTPClient}
	}
	return &Provisioner{opt: o, region: region, compartment: compartment, ended: map[provision.Handle]time.Time{}, oci: client{
		compute.LaunchInstance, compute.TerminateInstance, compute.ListInstances, compute.ListShapes, people.ListAvailabilityDomains}}, nil
}

// credentials are those of a file, of the files and variables that the vendor's own tools read, or the machine's.
func credentials(path string) (common.ConfigurationProvider, error) {
	if path != "" {
		keys, err := common.ConfigurationProviderFromFile(path, "")
		if err != nil {
			return nil, fmt.Errorf("cannot read credentials: %w", err)
		}
		if _, err := keys.KeyID(); err != nil {
			return nil, fmt.Errorf("cannot read credentials: %s: %w", path, err)
		}
		if _, err := keys.PrivateRSAKey(); err != nil {
			return nil, fmt.Errorf("cannot read credentials: %s: %w", path, err)
		}
		return keys, nil
	}
	keys := common.DefaultConfigProvider()
	if ok, _ := common.IsConfigurationProviderValid(keys); ok {
		return keys, nil
	}
	keys, err := auth.InstancePrincipalConfigurationProvider()
	if err != nil {
		return nil, fmt.Errorf("cannot find credentials: there is no credentialFile, no ~/.oci/config, and the machine is no instance that may act for itself: %w", err)
	}
	return keys, nil
}

// located are credentials that are used in another region than they name.
type located struct {
	common.ConfigurationProvider
	region string
}

func (l located) Region() (string, error) { return l.region, nil }

func (p *Provisioner) now() time.Time { return p.opt.Now() }
