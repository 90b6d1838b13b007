package oci

import (
	"context"
	"encoding/base64"
	"fmt"
	"time"

	"github.com/oracle/oci-go-sdk/v65/common"
	"github.com/oracle/oci-go-sdk/v65/core"

	"substrate/coordinator/provision"
	"substrate/coordinator/provision/cloud"
	"substrate/coordinator/spec"
)

// Launch runs the instance of a launch. The cloud itself keeps that to one for a day: the call's token is the launch's. After that the list decides.
func (p *Provisioner) Launch(ctx context.Context, r provision.Request) (provision.Instance, error) {
	op := "launch " + string(r.ID)
	no := func(fault provision.Fault, format string, args ...any) (provision.Instance, error) {
		return provision.Instance{}, provision.Errorf(fault, op, format, args...)
	}
	s, ok := r.Definition.Spec.(spec.OCI)
	if !ok {
		return no(provision.FaultInvalid, "the definition %s is not of kind oci", r.Definition.ID)
	}
	if why := p.unfit(s); why != "" {
		return no(provision.FaultInvalid, "%s", why)
	}
	late := r.Again && p.now().Sub(r.Asked) > tokenFor
	if late || r.Again && s.AvailabilityDomain == "" { // the token does not hold any more, or where the call went is worked out anew
		inst, found, err := p.find(ctx, op, r)
		switch {
		case err != nil || found:
			return inst, err
		case late:
			return no(provision.FaultInterrupted, "it was first asked for at %s, and there is no such instance any more", r.Asked.UTC().Format(time.RFC3339))
		}
	}
	domain, err := p.domainFor(ctx, op, s, r.ID)
	if err != nil {
		return provision.Instance{}, err
	}
	at := placeOf(s, domain)
	if dry, ok := p.empty.At(at, p.now()); ok && !r.Again { // else the instance may be there
		return no(provision.FaultNoCapacity, "no %s capacity for %s in %s as of %s: %s", at.market(), s.Shape, domain, dry.At.UTC().Format(time.TimeOnly), dry.Why)
	}
	details, err := p.details(r, s, domain)
	if err != nil {
		return no(provision.FaultInvalid, "%w", err)
	}
	token := cloud.Key(p.opt.Cluster, r.ID, at.shape, at.market(), domain, s.Subnet, fmt.Sprintf("%g %d", at.ocpus, at.memory))
	out, err := p.oci.launch(ctx, core.LaunchInstanceRequest{LaunchInstanceDetails: details, OpcRetryToken: &token})
	switch {
	case aboutToken(err):
		return p.used(ctx, op, r, err)
	case err != nil:
		explained := p.explain(op, err, out.RawResponse)
		if provision.FaultOf(explained) == provision.FaultNoCapacity {
			p.empty.Set(at, p.now(), refusalOf(err).GetMessage())
		}
		return provision.Instance{}, explained
	case out.Id == nil:
		return no(provision.FaultTransient, "the answer names no instance")
	}
	inst := p.instanceOf(&out.Instance)
	inst.ID = r.ID
	p.recent.Add(inst, p.now())
	return inst, nil
}

// unfit says why nothing can be launched of a spec whatever the cloud has.
func (p *Provisioner) unfit(s spec.OCI) string {
	switch {
	case s.Image == "":
		return "its provisionerSpec names no image to boot from"
	case s.Subnet == "":
		return "its provisionerSpec names no subnet"
	case s.Compartment != "" && s.Compartment != p.compartment:
		return "it is about compartment " + s.Compartment + " and its backend about " + p.compartment + ": give it a backend of its compartment"
	}
	return ""
}

// domainFor is the availability domain of a launch: the definition's, or one that has the shape, the same one each time.
func (p *Provisioner) domainFor(ctx context.Context, op string, s spec.OCI, id provision.LaunchID) (string, error) {
	if s.AvailabilityDomain != "" {
		return s.AvailabilityDomain, nil
	}
	m, err := p.ask(ctx, op)
	if err != nil {
		return "", err
	}
	have := m.having(s.Shape)
	if len(have) == 0 {
		return "", provision.Errorf(provision.FaultInvalid, op, "%s", p.absent(s.Shape))
	}
	return cloud.Pick(have, id), nil
}

// details are what a call says. It is the same each time, as far as the launch's definition is.
func (p *Provisioner) details(r provision.Request, s spec.OCI, domain string) (core.LaunchInstanceDetails, error) {
	data, err := cloud.UserData(r, p.opt.Agent)
	if err != nil {
		return core.LaunchInstanceDetails{}, err
	}
	marks := cloud.Marks(p.opt.Cluster, r)
	d := core.LaunchInstanceDetails{
		AvailabilityDomain: &domain, CompartmentId: &p.compartment, Shape: &s.Shape, DisplayName: &r.Boot.Node, FreeformTags: marks,
		SourceDetails:     core.InstanceSourceViaImageDetails{ImageId: &s.Image},
		CreateVnicDetails: &core.CreateVnicDetails{SubnetId: &s.Subnet, FreeformTags: marks},
		Metadata:          map[string]string{"user_data": base64.StdEncoding.EncodeToString(data)},
		InstanceOptions:   &core.InstanceOptions{AreLegacyImdsEndpointsDisabled: common.Bool(true)},
	}
	if s.OCPUs > 0 {
		d.ShapeConfig = &core.LaunchInstanceShapeConfigDetails{Ocpus: common.Float32(float32(s.OCPUs)), MemoryInGBs: common.Float32(float32(float64(s.Memory) / (1 << 30)))}
	}
	if s.Preemptible {
		d.PreemptibleInstanceConfig = &core.PreemptibleInstanceConfigDetails{PreemptionAction: core.TerminatePreemptionAction{PreserveBootVolume: common.Bool(false)}}
	}
	return d, nil
}

// find looks for what a launch has made. Where there are several, one that still costs something is it.
func (p *Provisioner) find(ctx context.Context, op string, r provision.Request) (inst provision.Instance, found bool, err error) {
	list, err := p.describe(ctx, op, r.Boot.Node)
	for _, i := range list {
		if i.ID == r.ID && (!found || i.State < inst.State) {
			inst, found = i, true
		}
	}
	return inst, found, err
}

// used finds the instance that a token was used for before. Either way it is this launch's.
func (p *Provisioner) used(ctx context.Context, op string, r provision.Request, cause error) (provision.Instance, error) {
	inst, found, err := p.find(ctx, op, r)
	if err != nil || found {
		return inst, err
	}
	if codeOf(cause) == codeSpent {
		return provision.Instance{}, p.explain(op, cause, nil)
	}
	e := provision.Errorf(provision.FaultTransient, op, "its instance exists and cannot be seen yet: %w", cause)
	e.After = cloud.UnsaidPause
	return provision.Instance{}, e
}

// Release ends an instance and its boot volume. The cloud answers alike when there is none and when that is not allowed, so what is listed decides.
func (p *Provisioner) Release(ctx context.Context, h provision.Handle) error {
	op := "release " + string(h)
	id := string(h)
	out, err := p.oci.terminate(ctx, core.TerminateInstanceRequest{InstanceId: &id, PreserveBootVolume: common.Bool(false)})
	switch code := codeOf(err); {
	case err == nil:
		p.recent.Ending(h)
		p.noteEnded(h)
		return nil
	case code == codeNotFound && p.recent.Young(h, p.now()):
		e := provision.Errorf(provision.FaultTransient, op, "it was launched moments ago and is not known everywhere yet: %w", p.explain(op, err, nil))
		e.After = cloud.UnsaidPause
		return e
	case code != codeNotFound && code != codeState:
		return p.explain(op, err, out.RawResponse)
	}
	list, listed := p.describe(ctx, op, "")
	if listed != nil {
		return listed
	}
	for _, i := range list {
		switch {
		case i.Handle != h:
		case i.State == provision.StateEnding:
			return nil
		case i.State == provision.StateGone:
			return provision.Errorf(provision.FaultNotFound, op, "it is over")
		default:
			return p.explain(op, err, nil) // it is there: not now, or not by us
		}
	}
	return provision.Errorf(provision.FaultNotFound, op, "the compartment has no such instance")
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
