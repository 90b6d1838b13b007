package gcp

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"google.golang.org/api/compute/v1"

	"substrate/coordinator/provision"
	"substrate/coordinator/provision/cloud"
	"substrate/coordinator/spec"
)

// Launch makes the instance of a launch. The cloud itself keeps that to one: the instance's name is the launch's, and for an hour the call's id. After that the
// list decides, as a name is free again once its instance is gone.
func (p *Provisioner) Launch(ctx context.Context, r provision.Request) (provision.Instance, error) {
	op := "launch " + string(r.ID)
	no := func(fault provision.Fault, format string, args ...any) (provision.Instance, error) {
		return provision.Instance{}, provision.Errorf(fault, op, format, args...)
	}
	s, ok := r.Definition.Spec.(spec.GCP)
	if !ok {
		return no(provision.FaultInvalid, "the definition %s is not of kind gcp", r.Definition.ID)
	}
	if why := p.unfit(s); why != "" {
		return no(provision.FaultInvalid, "%s", why)
	}
	late := r.Again && p.now().Sub(r.Asked) > idFor
	if late || r.Again && s.Zone == "" { // the call's id does not hold any more, or where it went is worked out anew
		inst, found, err := p.find(ctx, r)
		switch {
		case err != nil:
			return provision.Instance{}, p.explain(op, err)
		case found:
			return inst, nil
		case late:
			return no(provision.FaultInterrupted, "it was first asked for at %s, and there is no such instance any more", r.Asked.UTC().Format(time.RFC3339))
		}
	}
	m, err := p.ask(ctx, op, []string{s.MachineType})
	if err != nil {
		return provision.Instance{}, err
	}
	zone := s.Zone
	if zone == "" {
		if zone = cloud.Pick(p.zonesOf(&m, s.MachineType), r.ID); zone == "" {
			return no(provision.FaultInvalid, "%s", p.absent(s.MachineType))
		}
	}
	at := placeOf(s, zone)
	if dry, ok := p.empty.At(at, p.now()); ok && !r.Again { // else the instance may be there
		return no(provision.FaultNoCapacity, "no %s capacity for %s in %s as of %s: %s", at.market(), s.MachineType, zone, dry.At.UTC().Format(time.TimeOnly), dry.Why)
	}
	in, err := p.instance(r, s, at, m.types[zone][s.MachineType])
	if err != nil {
		return no(provision.FaultInvalid, "%w", err)
	}
	return p.insert(ctx, op, r, at, in)
}

func (p *Provisioner) insert(ctx context.Context, op string, r provision.Request, at place, in *compute.Instance) (provision.Instance, error) {
	call := cloud.UUID(p.opt.Cluster, r.ID, at.typ, at.market(), at.zone, at.accelerator)
	done, err := p.gcp.insert(ctx, p.project, at.zone, call, in)
	if status, _ := reasonOf(err); status == http.StatusConflict { // its name is taken, and nobody else's is like it
		return p.existing(ctx, op, r, at, in.Name)
	}
	if err != nil {
		return provision.Instance{}, p.explain(op, err)
	}
	p.eye()
	if done.Status != "DONE" {
		done = p.settle(ctx, at.zone, done)
	}
	if failure := failed(op, done); failure != nil {
		if failure.Fault == provision.FaultNoCapacity {
			p.empty.Set(at, p.now(), failure.Err.Error())
		}
		for _, e := range errorsOf(done) {
			if e.Code == "RESOURCE_ALREADY_EXISTS" {
				return p.existing(ctx, op, r, at, in.Name)
			}
		}
		return provision.Instance{}, failure
	}
	if done.Status == "DONE" && r.Again { // an answer that the cloud has kept says nothing of today
		return p.existing(ctx, op, r, at, in.Name)
	}
	inst := provision.Instance{Handle: handleOf(at.zone, in.Name), ID: r.ID, State: provision.StateStarting, Launched: timeOf(done.InsertTime)}
	p.recent.Add(inst, p.now())
	return inst, nil
}

// existing is the instance that a launch has made; when it is gone, the launch is over.
func (p *Provisioner) existing(ctx context.Context, op string, r provision.Request, at place, name string) (provision.Instance, error) {
	i, err := p.gcp.get(ctx, p.project, at.zone, name)
	switch status, _ := reasonOf(err); {
	case status == http.StatusNotFound:
		return provision.Instance{}, provision.Errorf(provision.FaultInterrupted, op, "its instance %s is over", name)
	case err != nil:
		return provision.Instance{}, p.explain(op, err)
	case i.Labels[cloud.MarkCluster] != cloud.Label(p.opt.Cluster):
		return provision.Instance{}, provision.Errorf(provision.FaultInvalid, op, "there is an instance %s that is not this cluster's", name)
	}
	inst := p.instanceOf(i)
	inst.ID = r.ID
	p.recent.Add(inst, p.now())
	return inst, nil
}

// settle waits a little for an operation. What is not known by then, the next lists tell.
func (p *Provisioner) settle(ctx context.Context, zone string, o *compute.Operation) *compute.Operation {
	limited, cancel := context.WithTimeout(ctx, settles)
	defer cancel()
	done, err := p.gcp.wait(limited, p.project, zone, o.Name)
	if err != nil {
		return o
	}
	return done
}

func errorsOf(o *compute.Operation) []*compute.OperationErrorErrors {
	if o.Error == nil {
		return nil
	}
	return o.Error.Errors
}

// unfit says why nothing can be launched of a spec whatever the cloud has.
func (p *Provisioner) unfit(s spec.GCP) string {
	switch {
	case s.Image == "":
		return "its provisionerSpec names no image to boot from"
	case s.Zone == "" && p.region == "":
		return "its provisionerSpec names no zone and its backend no region"
	}
	return ""
}

// instance is what a call says. It is the same each time, as far as the launch's definition is.
func (p *Provisioner) instance(r provision.Request, s spec.GCP, at place, typ *compute.MachineType) (*compute.Instance, error) {
	data, err := cloud.UserData(r, p.opt.Agent)
	if err != nil {
		return nil, err
	}
	text, never, marks := string(data), false, cloud.Marks(p.opt.Cluster, r)
	in := &compute.Instance{
		Name:        cloud.Name(p.opt.Cluster, r.ID, at.typ, at.market(), at.zone, at.accelerator),
		MachineType: "zones/" + at.zone + "/machineTypes/" + s.MachineType,
		Description: "node " + r.Boot.Node,
		Labels:      marks,
		Metadata:    &compute.Metadata{Items: []*compute.MetadataItems{{Key: "user-data", Value: &text}}},
		Disks: []*compute.AttachedDisk{{Boot: true, AutoDelete: true,
			InitializeParams: &compute.AttachedDiskInitializeParams{SourceImage: image(p.project, s.Image), Labels: marks}}},
		NetworkInterfaces: []*compute.NetworkInterface{network(s.Network)},
		// Whoever comes back after a failure has lost what ran, and the scheduler has placed it elsewhere.
		Scheduling: &compute.Scheduling{AutomaticRestart: &never},
	}
	builtIn := typ != nil && len(typ.Accelerators) > 0
	if a := s.Accelerator; a != nil && !builtIn {
		in.GuestAccelerators = []*compute.AcceleratorConfig{{AcceleratorCount: int64(a.Count), AcceleratorType: "zones/" + at.zone + "/acceleratorTypes/" + a.Type}}
	}
	if s.Accelerator != nil || builtIn || s.Spot {
		in.Scheduling.OnHostMaintenance = "TERMINATE" // such instances cannot be moved
	}
	if s.Spot {
		in.Scheduling.ProvisioningModel, in.Scheduling.InstanceTerminationAction = "SPOT", "DELETE"
	}
	if life := r.Lifetime; life > 0 && life <= longest {
		in.Scheduling.MaxRunDuration = &compute.Duration{Seconds: int64(life.Seconds())}
		in.Scheduling.InstanceTerminationAction = "DELETE"
	}
	return in, nil
}

// image is an image's or family's address: a name alone is an image of the project.
func image(project, name string) string {
	if strings.Contains(name, "/") {
		return name
	}
	return "projects/" + project + "/global/images/" + name
}

// network is where an instance is attached, without an address that the internet knows: a network by its name, or a network or subnetwork by its address.
func network(name string) *compute.NetworkInterface {
	switch {
	case strings.Contains(name, "/subnetworks/"):
		return &compute.NetworkInterface{Subnetwork: name}
	case strings.Contains(name, "/"):
		return &compute.NetworkInterface{Network: name}
	case name == "":
		name = "default"
	}
	return &compute.NetworkInterface{Network: "global/networks/" + name}
}

// find looks for what a launch has made, in whichever zone. Where there are several, one that still costs something is it.
func (p *Provisioner) find(ctx context.Context, r provision.Request) (inst provision.Instance, found bool, err error) {
	list, err := p.describe(ctx, fmt.Sprintf("labels.%s=%s", cloud.MarkLaunch, r.ID))
	for _, i := range list {
		if i.ID == r.ID && (!found || i.State < inst.State) {
			inst, found = i, true
		}
	}
	return inst, found, err
}

// Release deletes an instance, and its disk with it.
func (p *Provisioner) Release(ctx context.Context, h provision.Handle) error {
	op := "release " + string(h)
	zone, name, ok := strings.Cut(string(h), "/")
	if !ok {
		return provision.Errorf(provision.FaultNotFound, op, "no instance is called so")
	}
	_, err := p.gcp.remove(ctx, p.project, zone, name)
	switch status, _ := reasonOf(err); {
	case err == nil:
		p.recent.Ending(h)
		p.noteEnded(h)
		return nil
	case status == http.StatusNotFound && p.recent.Young(h, p.now()):
		e := provision.Errorf(provision.FaultTransient, op, "it was launched moments ago and is not known everywhere yet: %w", err)
		e.After = cloud.UnsaidPause
		return e
	case status == http.StatusNotFound:
		return provision.Errorf(provision.FaultNotFound, op, "%w", p.explain(op, err))
	}
	return p.explain(op, err)
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

// timeOf reads a time as the cloud writes it; zero when there is none.
func timeOf(text string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}
	}
	return t
}
