package oci

import (
	"context"
	"errors"
	"fmt"

	"github.com/oracle/oci-go-sdk/v65/common"
	"github.com/oracle/oci-go-sdk/v65/core"

	"substrate/coordinator/provision"
	"substrate/coordinator/provision/cloud"
)

// List tells of the cluster's instances, those that ended lately too. It is one question about the compartment, in pages.
func (p *Provisioner) List(ctx context.Context) ([]provision.Instance, error) {
	list, err := p.describe(ctx, "list instances", "")
	if err != nil {
		return nil, err
	}
	return p.recent.Merge(list, p.now()), nil
}

// describe asks for the compartment's instances, of one name or all, and keeps those that are the cluster's, each once. The cloud has no filter for tags here.
func (p *Provisioner) describe(ctx context.Context, op, name string) ([]provision.Instance, error) {
	in := core.ListInstancesRequest{CompartmentId: &p.compartment, Limit: common.Int(pageSize)}
	if name != "" {
		in.DisplayName = &name
	}
	var out []provision.Instance
	seen := map[provision.Handle]bool{}
	for range mostPages {
		page, err := p.oci.list(ctx, in)
		if err != nil {
			return nil, p.explain(op, err, page.RawResponse)
		}
		if page.OpcRequestId == nil { // which each answer of the cloud's has; the SDK takes any text for a list without instances
			return nil, p.explain(op, errors.New("the answer is not the cloud's: is there a proxy, or another endpoint?"), page.RawResponse)
		}
		for n := range page.Items {
			i := &page.Items[n]
			if i.Id == nil || seen[provision.Handle(*i.Id)] || i.FreeformTags[cloud.MarkCluster] != cloud.Label(p.opt.Cluster) {
				continue
			}
			seen[provision.Handle(*i.Id)] = true
			out = append(out, p.instanceOf(i))
		}
		if page.OpcNextPage == nil || *page.OpcNextPage == "" {
			return out, nil
		}
		in.Page = page.OpcNextPage
	}
	return nil, p.explain(op, tooMany("instances"), nil)
}

func (p *Provisioner) instanceOf(i *core.Instance) provision.Instance {
	out := provision.Instance{ID: cloud.LaunchOf(i.FreeformTags[cloud.MarkLaunch])}
	if i.Id != nil {
		out.Handle = provision.Handle(*i.Id)
		out.Console = fmt.Sprintf("oci compute console-history capture --instance-id %s --region %s", *i.Id, p.region)
	}
	if i.TimeCreated != nil {
		out.Launched = i.TimeCreated.Time
	}
	switch i.LifecycleState {
	case core.InstanceLifecycleStateProvisioning, core.InstanceLifecycleStateStarting:
		out.State = provision.StateStarting
	case core.InstanceLifecycleStateRunning:
		// The cloud does not say since when. Its making is a little earlier, and the same however often it is asked.
		out.State, out.Running = provision.StateRunning, out.Launched
	case core.InstanceLifecycleStateTerminating:
		out.State = provision.StateEnding
	case core.InstanceLifecycleStateTerminated:
		out.State = provision.StateGone
	case core.InstanceLifecycleStateStopping, core.InstanceLifecycleStateStopped:
		// It was switched off, as its script does when the agent has found no coordinator or is done. Here that ends no instance.
		out.Detail, out.Failed = "it is switched off", provision.FaultUnreachable
	default:
		out.Detail = "it is " + string(i.LifecycleState)
	}
	// Why an instance ends the cloud does not say. One that may be taken back, and that nobody here has ended, was.
	if out.State >= provision.StateEnding && i.PreemptibleInstanceConfig != nil && !p.endedHere(out.Handle) {
		out.Detail, out.Failed = "it was preempted", provision.FaultInterrupted
	}
	return out
}

func (p *Provisioner) endedHere(h provision.Handle) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.ended[h]
	return ok
}
