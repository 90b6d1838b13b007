package gcp

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/api/compute/v1"

	"substrate/coordinator/provision"
	"substrate/coordinator/provision/cloud"
)

// List tells of the cluster's instances in all zones: one question, in pages. The cloud lists nothing that is gone; a second question asks what became of
// instances that it has taken back or could not make, as long as there may be such.
func (p *Provisioner) List(ctx context.Context) ([]provision.Instance, error) {
	list, err := p.describe(ctx, "")
	if err != nil {
		return nil, p.explain("list instances", err)
	}
	p.mu.Lock()
	eyed := p.now().Sub(p.eyed) < toldFor
	p.mu.Unlock()
	if eyed {
		list = p.tellEnds(ctx, list)
	}
	return p.recent.Merge(list, p.now()), nil
}

// describe asks for the cluster's instances, those that a further filter lets through.
func (p *Provisioner) describe(ctx context.Context, filter string) ([]provision.Instance, error) {
	all := fmt.Sprintf("labels.%s=%s", cloud.MarkCluster, cloud.Label(p.opt.Cluster))
	if filter != "" {
		all = "(" + all + ") (" + filter + ")"
	}
	var out []provision.Instance
	next := ""
	for range mostPages {
		page, err := p.gcp.instances(ctx, p.project, all, next)
		if err != nil {
			return nil, err
		}
		if page.Kind != "compute#instanceAggregatedList" {
			return nil, fmt.Errorf("cannot list instances: the answer is of kind %q: is there a proxy, or another endpoint?", page.Kind)
		}
		if len(page.Unreachables) > 0 {
			return nil, fmt.Errorf("cannot list instances: %v did not answer", page.Unreachables)
		}
		for zone, scoped := range page.Items {
			if w := scoped.Warning; w != nil && w.Code != "NO_RESULTS_ON_PAGE" {
				return nil, fmt.Errorf("cannot list instances: %s: %s: %s", zone, w.Code, w.Message)
			}
			for _, i := range scoped.Instances {
				out = append(out, p.instanceOf(i))
			}
		}
		if next = page.NextPageToken; next == "" {
			return out, nil
		}
	}
	return nil, fmt.Errorf("cannot list instances: more than %d pages", mostPages)
}

func (p *Provisioner) instanceOf(i *compute.Instance) provision.Instance {
	out := provision.Instance{Handle: handleOf(last(i.Zone), i.Name), ID: cloud.LaunchOf(i.Labels[cloud.MarkLaunch]), Launched: timeOf(i.CreationTimestamp)}
	out.Console = fmt.Sprintf("gcloud compute instances get-serial-port-output %s --zone %s --project %s", i.Name, last(i.Zone), p.project)
	spot := i.Scheduling != nil && i.Scheduling.ProvisioningModel == "SPOT"
	if spot {
		p.eye()
	}
	began := timeOf(i.LastStartTimestamp)
	if began.IsZero() {
		began = out.Launched
	}
	if s := i.Scheduling; s != nil && s.MaxRunDuration != nil && s.MaxRunDuration.Seconds > 0 && s.InstanceTerminationAction == "DELETE" {
		out.Ends = began.Add(time.Duration(s.MaxRunDuration.Seconds) * time.Second)
	}
	p.mu.Lock()
	_, ours := p.ended[out.Handle]
	p.mu.Unlock()
	switch i.Status {
	case "PROVISIONING", "STAGING":
		out.State = provision.StateStarting
	case "RUNNING":
		out.State, out.Running = provision.StateRunning, began
	case "STOPPING", "DEPROVISIONING", "PENDING_STOP":
		out.State = provision.StateEnding
	case "TERMINATED", "STOPPED":
		// It was switched off, as its script does when the agent has found no coordinator or is done. Here that ends no instance.
		if !ours {
			out.Detail, out.Failed = "it is switched off", provision.FaultUnreachable
		}
	default:
		out.Detail = "it is " + i.Status
	}
	if spot && !ours && (i.Status == "STOPPING" || i.Status == "TERMINATED" || i.Status == "STOPPED") {
		out.Detail, out.Failed = "it was preempted", provision.FaultInterrupted
	}
	return out
}

// tellEnds adds to a list what its instances do not tell. A list without it is right, so what goes wrong is logged only.
func (p *Provisioner) tellEnds(ctx context.Context, list []provision.Instance) []provision.Instance {
	at := map[provision.Handle]int{}
	for n, i := range list {
		at[i.Handle] = n
	}
	ends, err := p.ends(ctx)
	if err != nil {
		p.opt.Log.Warn("cannot ask why instances have ended; they count as over", "err", err)
		return list
	}
	for _, end := range ends {
		n, there := at[end.Handle]
		switch {
		case !there:
			at[end.Handle] = len(list)
			list = append(list, end)
			p.recent.Forget(end.Handle)
		case end.Failed == provision.FaultInterrupted:
			list[n].Failed, list[n].Detail = end.Failed, end.Detail
		}
	}
	return list
}

// ends are the instances that the cloud has taken back or could not make in the last hour, as far as their names are like ours.
func (p *Provisioner) ends(ctx context.Context) ([]provision.Instance, error) {
	filter := fmt.Sprintf(`(operationType = "insert" OR operationType = %q) AND targetLink : "/instances/substrate-l" AND insertTime > %q`,
		preempted, p.now().Add(-toldFor).UTC().Format(time.RFC3339))
	var out []provision.Instance
	next := ""
	for range mostPages {
		page, err := p.gcp.operations(ctx, p.project, filter, next)
		if err != nil {
			return nil, err
		}
		for _, scoped := range page.Items {
			for _, o := range scoped.Operations {
				if inst := endOf(o); inst.ID != "" && inst.Failed != provision.FaultNone {
					out = append(out, inst)
				}
			}
		}
		if next = page.NextPageToken; next == "" {
			return out, nil
		}
	}
	return nil, fmt.Errorf("cannot list operations: more than %d pages", mostPages)
}

const preempted = "compute.instances.preempted"

// endOf is what an operation says of its instance's end.
func endOf(o *compute.Operation) provision.Instance {
	out := provision.Instance{State: provision.StateGone, Launched: timeOf(o.InsertTime)}
	out.Handle, out.ID = targetOf(o.TargetLink)
	switch failure := failed("launch it", o); {
	case o.OperationType == preempted:
		out.Detail, out.Failed = "it was preempted", provision.FaultInterrupted
	case failure != nil && o.Status == "DONE":
		out.Detail, out.Failed = failure.Err.Error(), failure.Fault
	}
	return out
}
