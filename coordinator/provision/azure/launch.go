package azure

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7"

	"substrate/coordinator/provision"
	"substrate/coordinator/provision/cloud"
	"substrate/coordinator/spec"
)

// Launch makes the machine of a launch. The cloud itself keeps that to one: the machine's name is the launch's, and the call only makes, never changes. It
// is not waited for: what cannot be made after all is listed as failed. A name is free again once its machine is gone, so a launch that may have been
// heard long ago is not made again.
func (p *Provisioner) Launch(ctx context.Context, r provision.Request) (provision.Instance, error) {
	op := "launch " + string(r.ID)
	no := func(fault provision.Fault, format string, args ...any) (provision.Instance, error) {
		return provision.Instance{}, provision.Errorf(fault, op, format, args...)
	}
	s, ok := r.Definition.Spec.(spec.Azure)
	if !ok {
		return no(provision.FaultInvalid, "the definition %s is not of kind azure", r.Definition.ID)
	}
	if why := p.unfit(s); why != "" {
		return no(provision.FaultInvalid, "%s", why)
	}
	at := p.placeOf(s)
	name := cloud.Name(p.opt.Cluster, r.ID, strings.ToLower(at.size), at.market(), at.location)
	if r.Again {
		inst, found, err := p.existing(ctx, op, r, name)
		heard := p.mayHave(r)
		switch {
		case err != nil || found:
			return inst, err
		case !heard.IsZero() && p.now().Sub(heard) > heardFor:
			return no(provision.FaultInterrupted, "it was asked for at %s, and there is no such machine any more", heard.UTC().Format(time.RFC3339))
		}
	}
	if dry, ok := p.empty.At(at, p.now()); ok && !r.Again { // else the machine may be on its way
		return no(provision.FaultNoCapacity, "no %s capacity for %s in %s as of %s: %s", at.market(), s.VMSize, at.location, dry.At.UTC().Format(time.TimeOnly), dry.Why)
	}
	vm, err := p.machine(r, s, name)
	if err != nil {
		return no(provision.FaultInvalid, "%w", err)
	}
	began := p.now()
	inst, err := p.create(ctx, op, r, at, name, vm)
	p.noteTry(r, began, err)
	return inst, err
}

func (p *Provisioner) create(ctx context.Context, op string, r provision.Request, at place, name string, vm armcompute.VirtualMachine) (provision.Instance, error) {
	var resp *http.Response
	_, err := p.azure.create(policy.WithCaptureResponse(ctx, &resp), p.group, name, vm, &armcompute.VirtualMachinesClientBeginCreateOrUpdateOptions{IfNoneMatch: to.Ptr("*")})
	if err != nil {
		said := refusalOf(err)
		if said != nil && (said.code == codeExists || said.code == codeChange || said.status == http.StatusPreconditionFailed) {
			inst, found, gone := p.existing(ctx, op, r, name)
			if gone != nil || found {
				return inst, gone
			}
			e := provision.Errorf(provision.FaultTransient, op, "its machine %s exists and cannot be seen yet: %w", name, p.explain(op, err))
			e.After = cloud.UnsaidPause
			return inst, e
		}
		explained := p.explain(op, err)
		switch provision.FaultOf(explained) {
		case provision.FaultNoCapacity:
			p.empty.Set(at, p.now(), said.text())
		case provision.FaultNotFound: // the resource group, or what the machine is to be made of: no other call will find it
			explained = provision.Errorf(provision.FaultInvalid, op, "%w", cloud.Answer(said.text(), err))
		}
		return provision.Instance{}, explained
	}
	inst := provision.Instance{Handle: provision.Handle(name), ID: r.ID, State: provision.StateStarting}
	var made armcompute.VirtualMachine
	if resp != nil && runtime.UnmarshalAsJSON(resp, &made) == nil && made.Properties != nil && made.Properties.TimeCreated != nil {
		inst.Launched = *made.Properties.TimeCreated
	}
	p.recent.Add(inst, p.now())
	return inst, nil
}

// existing is the machine of a name, which a launch has made.
func (p *Provisioner) existing(ctx context.Context, op string, r provision.Request, name string) (inst provision.Instance, found bool, err error) {
	vm, err := p.azure.get(ctx, p.group, name, &armcompute.VirtualMachinesClientGetOptions{Expand: to.Ptr(armcompute.InstanceViewTypesInstanceView)})
	switch {
	case err != nil:
		err = p.explain(op, err)
		if provision.FaultOf(err) == provision.FaultNotFound {
			return inst, false, nil
		}
		return inst, false, err
	case tag(&vm.VirtualMachine, cloud.MarkCluster) != cloud.Label(p.opt.Cluster):
		return inst, false, provision.Errorf(provision.FaultInvalid, op, "there is a machine %s that is not this cluster's", name)
	}
	inst = p.instanceOf(&vm.VirtualMachine)
	inst.ID = r.ID
	if inst.State < provision.StateEnding {
		p.recent.Add(inst, p.now())
	}
	return inst, true, nil
}

// unfit says why nothing can be launched of a spec whatever the cloud has.
func (p *Provisioner) unfit(s spec.Azure) string {
	switch {
	case s.Image == "":
		return "its provisionerSpec names no image to boot from"
	case imageOf(s.Image) == nil:
		return "its image " + s.Image + " is neither an image's id nor publisher:offer:sku:version"
	case s.Subnet == "":
		return "its provisionerSpec names no subnet"
	case p.subnet(s.Subnet) == "":
		return "its subnet " + s.Subnet + " is neither a subnet's id nor network/subnet"
	case p.locationOf(s) == "":
		return "its provisionerSpec names no location and its backend no region"
	}
	return ""
}

// imageOf reads the name of an image; nil when it is none.
func imageOf(name string) *armcompute.ImageReference {
	low := strings.ToLower(name)
	switch {
	case strings.HasPrefix(low, "/communitygalleries/"):
		return &armcompute.ImageReference{CommunityGalleryImageID: &name}
	case strings.HasPrefix(low, "/sharedgalleries/"):
		return &armcompute.ImageReference{SharedGalleryImageID: &name}
	case strings.HasPrefix(low, "/subscriptions/"):
		return &armcompute.ImageReference{ID: &name}
	}
	words := strings.Split(name, ":")
	if len(words) != 4 || words[0] == "" || words[1] == "" || words[2] == "" || words[3] == "" {
		return nil
	}
	return &armcompute.ImageReference{Publisher: &words[0], Offer: &words[1], SKU: &words[2], Version: &words[3]}
}

// subnet is a subnet's id: as it is, or of a network of the resource group; "" when it is none.
func (p *Provisioner) subnet(name string) string {
	if strings.HasPrefix(strings.ToLower(name), "/subscriptions/") {
		return name
	}
	network, sub, ok := strings.Cut(name, "/")
	if !ok || network == "" || sub == "" || strings.Contains(sub, "/") {
		return ""
	}
	return fmt.Sprintf("/subscriptions/%s/resourceGroups/%s/providers/Microsoft.Network/virtualNetworks/%s/subnets/%s", p.subscription, p.group, network, sub)
}

// user is whom the cloud insists on making. Nobody has the other half of its key.
const user = "substrate"

// machine is what a call says: the machine with its disk and its network interface, which go when it goes.
func (p *Provisioner) machine(r provision.Request, s spec.Azure, name string) (armcompute.VirtualMachine, error) {
	data, err := cloud.UserData(r, p.opt.Agent)
	if err != nil {
		return armcompute.VirtualMachine{}, err
	}
	key, err := keyOfNobody()
	if err != nil {
		return armcompute.VirtualMachine{}, err
	}
	marks := map[string]*string{}
	for k, v := range cloud.Marks(p.opt.Cluster, r) {
		marks[k] = &v
	}
	home := "/home/" + user + "/.ssh/authorized_keys"
	nic := &armcompute.VirtualMachineNetworkInterfaceConfiguration{Name: to.Ptr(name + "-nic"), Tags: marks,
		Properties: &armcompute.VirtualMachineNetworkInterfaceConfigurationProperties{
			Primary: to.Ptr(true), DeleteOption: to.Ptr(armcompute.DeleteOptionsDelete), EnableAcceleratedNetworking: to.Ptr(p.accelerated(s)),
			IPConfigurations: []*armcompute.VirtualMachineNetworkInterfaceIPConfiguration{{Name: to.Ptr("primary"),
				Properties: &armcompute.VirtualMachineNetworkInterfaceIPConfigurationProperties{Primary: to.Ptr(true), Subnet: &armcompute.SubResource{ID: to.Ptr(p.subnet(s.Subnet))}}}},
		}}
	vm := armcompute.VirtualMachine{Location: to.Ptr(p.locationOf(s)), Tags: marks, Properties: &armcompute.VirtualMachineProperties{
		HardwareProfile: &armcompute.HardwareProfile{VMSize: to.Ptr(armcompute.VirtualMachineSizeTypes(s.VMSize))},
		StorageProfile: &armcompute.StorageProfile{ImageReference: imageOf(s.Image), OSDisk: &armcompute.OSDisk{
			CreateOption: to.Ptr(armcompute.DiskCreateOptionTypesFromImage), DeleteOption: to.Ptr(armcompute.DiskDeleteOptionTypesDelete),
			ManagedDisk: &armcompute.ManagedDiskParameters{StorageAccountType: to.Ptr(armcompute.StorageAccountTypesStandardSSDLRS)}}}, // every size takes it
		OSProfile: &armcompute.OSProfile{ComputerName: &r.Boot.Node, AdminUsername: to.Ptr(user), CustomData: to.Ptr(base64.StdEncoding.EncodeToString(data)),
			LinuxConfiguration: &armcompute.LinuxConfiguration{DisablePasswordAuthentication: to.Ptr(true),
				SSH: &armcompute.SSHConfiguration{PublicKeys: []*armcompute.SSHPublicKey{{Path: &home, KeyData: &key}}}}},
		DiagnosticsProfile: &armcompute.DiagnosticsProfile{BootDiagnostics: &armcompute.BootDiagnostics{Enabled: to.Ptr(true)}}, // in a store of the cloud's
		NetworkProfile: &armcompute.NetworkProfile{NetworkAPIVersion: to.Ptr(armcompute.NetworkAPIVersionTwoThousandTwentyTwo1101),
			NetworkInterfaceConfigurations: []*armcompute.VirtualMachineNetworkInterfaceConfiguration{nic}},
	}}
	if s.Spot {
		vm.Properties.Priority = to.Ptr(armcompute.VirtualMachinePriorityTypesSpot)
		vm.Properties.EvictionPolicy = to.Ptr(armcompute.VirtualMachineEvictionPolicyTypesDelete)
		vm.Properties.BillingProfile = &armcompute.BillingProfile{MaxPrice: to.Ptr(-1.0)} // it is never evicted for its price
	}
	return vm, nil
}

// keyOfNobody is a public key as authorized_keys has them (RFC 8709). Its other half is thrown away: a machine needs no password then.
func keyOfNobody() (string, error) {
	key, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return "", fmt.Errorf("cannot make a key: %w", err)
	}
	const kind = "ssh-ed25519"
	var blob []byte
	for _, part := range [][]byte{[]byte(kind), key} {
		blob = append(binary.BigEndian.AppendUint32(blob, uint32(len(part))), part...)
	}
	return kind + " " + base64.StdEncoding.EncodeToString(blob), nil
}

// Release deletes a machine, with its disk and interface. Its system is not asked first: nothing runs on it any more.
func (p *Provisioner) Release(ctx context.Context, h provision.Handle) error {
	op := "release " + string(h)
	var resp *http.Response
	_, err := p.azure.remove(policy.WithCaptureResponse(ctx, &resp), p.group, string(h), &armcompute.VirtualMachinesClientBeginDeleteOptions{ForceDeletion: to.Ptr(true)})
	reason := fmt.Errorf("the resource group has no such machine")
	if err != nil {
		reason = p.explain(op, err)
	}
	switch {
	case err != nil && provision.FaultOf(reason) != provision.FaultNotFound:
		return reason
	case err == nil && resp != nil && resp.StatusCode != http.StatusNoContent: // which is how the cloud says that there is none
		p.recent.Ending(h)
		p.noteEnded(h)
		return nil
	case p.recent.Young(h, p.now()):
		e := provision.Errorf(provision.FaultTransient, op, "it was launched moments ago and is not known everywhere yet: %w", reason)
		e.After = cloud.UnsaidPause
		return e
	}
	return provision.Errorf(provision.FaultNotFound, op, "%w", reason)
}
