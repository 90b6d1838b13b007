// Package azure makes nodes of Azure's virtual machines: one machine is one node. It keeps nothing on disk: what exists is found by the machines'
// tags. It chooses neither size nor image, makes no networks and no roles, and does not look outside its resource group for what is its own.
package azure

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/arm"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7"

	"substrate/coordinator/provision"
	"substrate/coordinator/provision/cloud"
	"substrate/coordinator/spec"
)

// Options is what the provisioner of a resource group needs.
type Options struct {
	Backend    spec.Backend
	Cluster    string // id of this cluster: instances of another one are not ours
	Agent      cloud.Agent
	Now        func() time.Time
	Log        *slog.Logger
	HTTPClient policy.Transporter // nil: the SDK's
	Prices     string             // address where prices are told; "": the public cloud's own, and none for another one
}

const (
	// heardFor is how soon after a launch was asked for nothing of it can be over already: what is not there within it was never made. The
	// cloud remembers no calls, only what there is.
	heardFor = 10 * time.Minute
	// triedFor is for how long it is remembered that a launch was refused here; it is tried again much sooner.
	triedFor = time.Hour
	// mostPages bounds lists: some hundred machines are in a page.
	mostPages = 1000
	// endedFor is for how long it is remembered that a machine's end was asked for here; the cloud lists it for less.
	endedFor = 2 * time.Hour
	// complainEvery is how often the log says again what cannot be asked for.
	complainEvery = time.Hour
)

// Provisioner launches machines in one resource group. It is safe for concurrent use.
type Provisioner struct {
	opt                         Options
	subscription, group, region string
	azure                       client
	retail                      string // where prices are told; "": nowhere

	recent cloud.Recent
	empty  cloud.Empty[place]

	mu     sync.Mutex
	ended  map[provision.Handle]time.Time // whose end was asked for here
	tries  map[provision.LaunchID]try
	market map[string]market // by location
	prices priceOf
	// complained is when it was last said that what machines do cannot be asked for.
	complained time.Time
}

// client is the part of the SDK's clients that is used here. It holds methods and not the values: a value that becomes an interface takes all
// its methods into the program.
type client struct {
	create  func(ctx context.Context, group, name string, vm armcompute.VirtualMachine, o *armcompute.VirtualMachinesClientBeginCreateOrUpdateOptions) (*runtime.Poller[armcompute.VirtualMachinesClientCreateOrUpdateResponse], error)
	remove  func(ctx context.Context, group, name string, o *armcompute.VirtualMachinesClientBeginDeleteOptions) (*runtime.Poller[armcompute.VirtualMachinesClientDeleteResponse], error)
	get     func(ctx context.Context, group, name string, o *armcompute.VirtualMachinesClientGetOptions) (armcompute.VirtualMachinesClientGetResponse, error)
	list    func(group string, o *armcompute.VirtualMachinesClientListOptions) *runtime.Pager[armcompute.VirtualMachinesClientListResponse]
	listAll func(o *armcompute.VirtualMachinesClientListAllOptions) *runtime.Pager[armcompute.VirtualMachinesClientListAllResponse]
	skus    func(o *armcompute.ResourceSKUsClientListOptions) *runtime.Pager[armcompute.ResourceSKUsClientListResponse]
}

// place is where a machine is asked for, as far as capacity goes.
type place struct {
	size, location string
	spot           bool
}

func (p *Provisioner) placeOf(s spec.Azure) place {
	return place{s.VMSize, p.locationOf(s), s.Spot}
}

func (p place) market() string {
	if p.spot {
		return "spot"
	}
	return "on-demand"
}

// locationOf is where a definition's machines are: its own location, else the backend's.
func (p *Provisioner) locationOf(s spec.Azure) string { return location(cmp.Or(s.Location, p.region)) }

// location is a region's name in the cloud's short form: it takes West Europe and tells of westeurope.
func location(name string) string { return strings.ToLower(strings.ReplaceAll(name, " ", "")) }

// New makes the provisioner of a backend. It asks nobody for anything: credentials are used with the first call.
func New(o Options) (*Provisioner, error) {
	fail := func(err error) (*Provisioner, error) {
		return nil, fmt.Errorf("cannot open backend %s: %w", cmp.Or(o.Backend.Name, o.Backend.Kind), err)
	}
	keys, said, err := credentials(o)
	if err != nil {
		return fail(err)
	}
	p := &Provisioner{opt: o, group: o.Backend.ResourceGroup, region: o.Backend.Region, ended: map[provision.Handle]time.Time{}, tries: map[provision.LaunchID]try{},
		market: map[string]market{}}
	p.subscription = cmp.Or(o.Backend.Subscription, said.Subscription, os.Getenv("AZURE_SUBSCRIPTION_ID"))
	switch {
	case p.subscription == "":
		return fail(fmt.Errorf("it has no subscription: write `subscription` in the configuration's backend"))
	case p.group == "":
		return fail(fmt.Errorf("it has no resource group: write `resourceGroup` in the configuration's backend"))
	}
	// Refusals are the engine's to judge: it tries another definition, or waits. The SDK would repeat calls that came too often, and registers
	// services with the subscription, which takes rights that no coordinator should have.
	with := &arm.ClientOptions{ClientOptions: options(o, said), DisableRPRegistration: true}
	if p.retail = o.Prices; p.retail == "" && with.Cloud.ActiveDirectoryAuthorityHost == "" {
		p.retail = retail
	}
	machines, err := armcompute.NewVirtualMachinesClient(p.subscription, keys, with)
	if err != nil {
		return fail(err)
	}
	skus, err := armcompute.NewResourceSKUsClient(p.subscription, keys, with)
	if err != nil {
		return fail(err)
	}
	p.azure = client{machines.BeginCreateOrUpdate, machines.BeginDelete, machines.Get, machines.NewListPager, machines.NewListAllPager, skus.NewListPager}
	return p, nil
}

func (p *Provisioner) now() time.Time { return p.opt.Now() }

// try is what is known here of a launch that has not come to a machine yet, and of which every call was made here.
type try struct {
	heard time.Time // since when the cloud may have heard of it; zero: it has refused each call
	last  time.Time
}

// mayHave is since when the cloud may have heard of a launch; zero: it has not.
func (p *Provisioner) mayHave(r provision.Request) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	t, ok := p.tries[r.ID]
	switch {
	case ok:
		return t.heard
	case r.Again:
		return r.Asked
	}
	return time.Time{}
}

// noteTry remembers what came of a call for a launch that was begun at a time.
func (p *Provisioner) noteTry(r provision.Request, began time.Time, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, t := range p.tries {
		if began.Sub(t.last) > triedFor {
			delete(p.tries, id)
		}
	}
	t, ok := p.tries[r.ID]
	switch {
	case err == nil:
		delete(p.tries, r.ID) // from now on the engine's word counts
		return
	case r.Again && !ok:
		return // there were calls that nothing is known of here
	case provision.FaultOf(err) == provision.FaultTransient && t.heard.IsZero():
		t.heard = began
	}
	t.last = began
	p.tries[r.ID] = t
}

func (p *Provisioner) noteEnded(h provision.Handle) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for old, at := range p.ended {
		if p.now().Sub(at) > endedFor {
			delete(p.ended, old)
		}
	}
	p.ended[h] = p.now()
}

func (p *Provisioner) endedHere(h provision.Handle) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.ended[h]
	return ok
}
