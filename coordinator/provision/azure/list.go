package azure

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7"

	"substrate/coordinator/provision"
	"substrate/coordinator/provision/cloud"
)

// List tells of the cluster's machines: one question about the resource group, in pages, and one about what all machines of the subscription do, which is the
// only one that the cloud answers for many at once. The cloud lists nothing that is gone.
func (p *Provisioner) List(ctx context.Context) ([]provision.Instance, error) {
	machines, err := p.describe(ctx)
	if err != nil {
		return nil, p.explain("list machines", err)
	}
	if len(machines) > 0 {
		if err := p.addViews(ctx, machines); err != nil {
			// Such a list is right as far as it goes. It does not show what is switched off and goes on costing.
			p.complain(p.explain("ask for states", err))
		}
	}
	out := make([]provision.Instance, 0, len(machines))
	for _, vm := range machines {
		out = append(out, p.instanceOf(vm))
	}
	return p.recent.Merge(out, p.now()), nil
}

// complain says that states cannot be asked for, once in a while: it may never be allowed.
func (p *Provisioner) complain(err error) {
	p.mu.Lock()
	often := !p.complained.IsZero() && p.now().Sub(p.complained) < complainEvery
	if !often {
		p.complained = p.now()
	}
	p.mu.Unlock()
	if !often {
		p.opt.Log.Warn("cannot ask what machines do; those that exist count as running, and what is switched off goes on costing", "err", err)
	}
}

// describe asks for the machines of the resource group and keeps the cluster's, each once. The cloud has no filter for tags here.
func (p *Provisioner) describe(ctx context.Context) ([]*armcompute.VirtualMachine, error) {
	var out []*armcompute.VirtualMachine
	seen := map[string]bool{}
	pages := p.azure.list(p.group, nil)
	for n := 0; pages.More(); n++ {
		if n == mostPages {
			return nil, tooMany("machines")
		}
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		if page.Value == nil {
			return nil, errors.New("the answer is no list: is there a proxy, or another endpoint?")
		}
		for _, vm := range page.Value {
			if vm == nil || vm.Name == nil || seen[*vm.Name] || tag(vm, cloud.MarkCluster) != cloud.Label(p.opt.Cluster) {
				continue
			}
			seen[*vm.Name] = true
			out = append(out, vm)
		}
	}
	return out, nil
}

// addViews adds to machines what they do. Ids are the same in any case of letters.
func (p *Provisioner) addViews(ctx context.Context, machines []*armcompute.VirtualMachine) error {
	of := map[string]*armcompute.VirtualMachine{}
	for _, vm := range machines {
		if vm.ID != nil && vm.Properties != nil {
			of[strings.ToLower(*vm.ID)] = vm
		}
	}
	pages := p.azure.listAll(&armcompute.VirtualMachinesClientListAllOptions{StatusOnly: to.Ptr("true")})
	for n := 0; pages.More(); n++ {
		if n == mostPages {
			return tooMany("states")
		}
		page, err := pages.NextPage(ctx)
		if err != nil {
			return err
		}
		for _, view := range page.Value {
			if view == nil || view.ID == nil || view.Properties == nil {
				continue
			}
			if vm := of[strings.ToLower(*view.ID)]; vm != nil {
				vm.Properties.InstanceView = view.Properties.InstanceView
			}
		}
	}
	return nil
}

// tag reads a tag: names are the same in any case of letters.
func tag(vm *armcompute.VirtualMachine, name string) string {
	for k, v := range vm.Tags {
		if v != nil && strings.EqualFold(k, name) {
			return *v
		}
	}
	return ""
}

// view is what a machine does: the last word of its power state, and what its making has come to.
type view struct {
	power, failure, message string
}

func viewOf(v *armcompute.VirtualMachineInstanceView) view {
	var out view
	if v == nil {
		return out
	}
	for _, s := range v.Statuses {
		if s == nil || s.Code == nil {
			continue
		}
		words := strings.Split(*s.Code, "/")
		switch {
		case len(words) == 2 && strings.EqualFold(words[0], "PowerState"):
			out.power = strings.ToLower(words[1])
		case len(words) >= 2 && strings.EqualFold(words[0], "ProvisioningState") && strings.EqualFold(words[1], "failed"):
			out.failure = words[len(words)-1]
			if s.Message != nil {
				out.message = *s.Message
			}
		}
	}
	return out
}

// instanceOf is a machine as the contract has it. One that was switched off is there and goes on costing until it is deleted, so it is neither ending nor
// gone: it is listed as failed, and whoever knows of it, or does not, releases it. So is one that could not be made, unless it runs all the same: then its
// agent may come, and the time that it has for that decides.
func (p *Provisioner) instanceOf(vm *armcompute.VirtualMachine) provision.Instance {
	out := provision.Instance{ID: cloud.LaunchOf(tag(vm, cloud.MarkLaunch))}
	if vm.Name != nil {
		out.Handle = provision.Handle(*vm.Name)
		out.Console = fmt.Sprintf("az vm boot-diagnostics get-boot-log --name %s --resource-group %s --subscription %s", *vm.Name, p.group, p.subscription)
	}
	if vm.Properties == nil {
		return out
	}
	if at := vm.Properties.TimeCreated; at != nil {
		out.Launched = *at
	}
	making := ""
	if s := vm.Properties.ProvisioningState; s != nil {
		making = *s
	}
	does := viewOf(vm.Properties.InstanceView)
	ours := p.endedHere(out.Handle)
	switch {
	case strings.EqualFold(making, "Deleting"):
		out.State = provision.StateEnding
		if spot(vm) && !ours { // nobody says why
			out.Detail, out.Failed = "it was evicted", provision.FaultInterrupted
		}
	case does.power == "running", does.power == "" && strings.EqualFold(making, "Succeeded"):
		// The cloud does not say since when. Its making is a little earlier, and the same however often it is asked.
		out.State, out.Running = provision.StateRunning, out.Launched
		out.Detail = does.failure
	case strings.EqualFold(making, "Failed"), does.failure != "":
		p.failed(&out, vm, does)
	case does.power == "stopping", does.power == "stopped", does.power == "deallocating", does.power == "deallocated":
		if !ours {
			out.Detail, out.Failed = "it is switched off ("+does.power+")", provision.FaultUnreachable
		}
	case does.power == "starting", strings.EqualFold(making, "Creating"), strings.EqualFold(making, "Updating"):
		out.State = provision.StateStarting
	default:
		out.Detail = "it is " + strings.ToLower(strings.Trim(making+" "+does.power, " "))
	}
	return out
}

// failed tells of a machine that could not be made, and remembers where there was no room for it.
func (p *Provisioner) failed(out *provision.Instance, vm *armcompute.VirtualMachine, does view) {
	no := refusal{code: does.failure, message: does.message}
	if strings.EqualFold(no.code, "failed") { // it says no more
		no.code = ""
	}
	out.Detail, out.Failed = "it could not be made", faultOf(0, no.code, no.message)
	if no.code != "" || no.message != "" {
		out.Detail += ": " + no.text()
	}
	switch {
	case out.Failed == provision.FaultNotFound: // what it was to be made of
		out.Failed = provision.FaultInvalid
	case out.Failed.Again(): // it was paid for, and the next one may well fare alike: its definition rests
		out.Failed = provision.FaultUnreachable
	case out.Failed == provision.FaultNoCapacity:
		p.dry(vm, out.Launched, no.text())
	}
}

// dry remembers where there was no room, for as long as that counts.
func (p *Provisioner) dry(vm *armcompute.VirtualMachine, at time.Time, why string) {
	h := vm.Properties.HardwareProfile
	if h == nil || h.VMSize == nil || vm.Location == nil || p.now().Sub(at) > cloud.EmptyFor {
		return
	}
	where := place{string(*h.VMSize), location(*vm.Location), spot(vm)}
	if _, known := p.empty.At(where, p.now()); !known {
		p.empty.Set(where, at, why)
	}
}

func spot(vm *armcompute.VirtualMachine) bool {
	return vm.Properties != nil && vm.Properties.Priority != nil && *vm.Properties.Priority == armcompute.VirtualMachinePriorityTypesSpot
}
