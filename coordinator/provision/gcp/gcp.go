// Package gcp makes nodes of Compute Engine instances: one instance is one node. It keeps nothing on disk: what exists is found by the instances'
// labels. It chooses neither type nor image, makes no networks and no accounts, and knows no other service of the vendor's.
package gcp

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/auth/credentials"
	"google.golang.org/api/compute/v1"
	"google.golang.org/api/option"

	"substrate/coordinator/provision"
	"substrate/coordinator/provision/cloud"
	"substrate/coordinator/spec"
)

// Options is what the provisioner of a project needs.
type Options struct {
	Backend spec.Backend
	Cluster string // id of this cluster: instances of another one are not ours
	Agent   cloud.Agent
	Now     func() time.Time
	Log     *slog.Logger
}

const (
	// idFor is for how long the cloud remembers the id of a call, which is an hour, less some for clocks and calls under way.
	idFor = 50 * time.Minute
	// settles is how long a launch is waited for: what there is no room for is told within seconds, what there is takes half a minute.
	settles = 15 * time.Second
	// toldFor is for how long back the cloud is asked why instances ended or were never made.
	toldFor = time.Hour
	// mostPages bounds lists: five hundred instances are in a page.
	mostPages = 1000
	pageSize  = 500
	// longest is what the cloud takes as an instance's lifetime.
	longest = 120 * 24 * time.Hour
	// endedFor is for how long it is remembered that an instance's end was asked for here.
	endedFor = 2 * time.Hour
)

// Provisioner launches instances in one project. It is safe for concurrent use.
type Provisioner struct {
	opt             Options
	project, region string
	gcp             client

	recent cloud.Recent
	empty  cloud.Empty[place]

	mu     sync.Mutex
	ended  map[provision.Handle]time.Time // whose end was asked for here
	eyed   time.Time                      // when there was last something whose end may have to be explained
	market market
}

// place is where an instance is asked for, as far as capacity goes.
type place struct {
	typ, zone, accelerator string
	spot                   bool
}

func placeOf(s spec.GCP, zone string) place {
	p := place{typ: s.MachineType, zone: zone, spot: s.Spot}
	if a := s.Accelerator; a != nil {
		p.accelerator = fmt.Sprintf("%s*%d", a.Type, a.Count)
	}
	return p
}

func (p place) market() string {
	if p.spot {
		return "spot"
	}
	return "on-demand"
}

// New makes the provisioner of a backend. With a file of credentials it asks nobody for anything; without, the machine may be asked who it is.
func New(ctx context.Context, o Options) (*Provisioner, error) {
	fail := func(format string, args ...any) (*Provisioner, error) {
		return nil, fmt.Errorf("cannot open backend %s: "+format, append([]any{cmp.Or(o.Backend.Name, o.Backend.Kind)}, args...)...)
	}
	keys, err := credentials.DetectDefault(&credentials.DetectOptions{Scopes: []string{compute.ComputeScope}, CredentialsFile: o.Backend.CredentialFile})
	if err != nil {
		return fail("cannot read credentials: %w", err)
	}
	project := o.Backend.Project
	if project == "" {
		if project, err = keys.ProjectID(ctx); err != nil || project == "" {
			return fail("it has no project: write `project` in the configuration's backend")
		}
	}
	with := []option.ClientOption{option.WithAuthCredentials(keys)}
	if o.Backend.Endpoint != "" {
		with = append(with, option.WithEndpoint(strings.TrimSuffix(o.Backend.Endpoint, "/")+"/compute/v1/"))
	}
	service, err := compute.NewService(context.WithoutCancel(ctx), with...)
	if err != nil {
		return fail("%w", err)
	}
	return &Provisioner{opt: o, project: project, region: o.Backend.Region, gcp: clientOf(service), ended: map[provision.Handle]time.Time{}, eyed: o.Now()}, nil
}

func (p *Provisioner) now() time.Time { return p.opt.Now() }

// eye has the next lists ask why instances have ended.
func (p *Provisioner) eye() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.eyed = p.now()
}

// Instances are named within their zone. Their names are never used twice: a launch and what is launched are in them.

func handleOf(zone, name string) provision.Handle { return provision.Handle(zone + "/" + name) }

// last is the last part of a resource's address.
func last(address string) string { return address[strings.LastIndexByte(address, '/')+1:] }

// targetOf reads the instance out of an operation's address of it.
func targetOf(link string) (h provision.Handle, id provision.LaunchID) {
	_, rest, ok := strings.Cut(link, "/zones/")
	zone, name, found := strings.Cut(rest, "/instances/")
	if !ok || !found {
		return "", ""
	}
	words := strings.Split(name, "-")
	if len(words) != 3 {
		return "", ""
	}
	return handleOf(zone, name), cloud.LaunchOf(words[1])
}
