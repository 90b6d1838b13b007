package azure

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	azfake "github.com/Azure/azure-sdk-for-go/sdk/azcore/fake"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7/fake"

	"substrate/coordinator"
	"substrate/coordinator/provision"
	"substrate/coordinator/provision/cloud"
	"substrate/coordinator/provision/provisiontest"
	"substrate/tests/fakecloud"
)

// modelOf is the vendor's own description of what a request carries, or of its answer; nil for sign-ins.
func modelOf(r *http.Request) any {
	switch path := r.URL.Path; {
	case strings.HasSuffix(path, "/skus"):
		return &armcompute.ResourceSKUsResult{}
	case strings.HasSuffix(path, "/virtualMachines"):
		return &armcompute.VirtualMachineListResult{}
	case strings.Contains(path, "/virtualMachines/"):
		return &armcompute.VirtualMachine{}
	}
	return nil
}

// lossless says what of a text the vendor's description does not know.
func lossless(text []byte, model any) error {
	var was, is any
	if err := json.Unmarshal(text, &was); err != nil {
		return err
	}
	if err := json.Unmarshal(text, model); err != nil {
		return err
	}
	again, err := json.Marshal(model)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(again, &is); err != nil {
		return err
	}
	if !reflect.DeepEqual(was, is) {
		return fmt.Errorf("it is\n%s\nand as the vendor reads it\n%s", text, again)
	}
	return nil
}

// TestWire: calls, and the answers of the cloud that tests run against, are as the vendor's description has them: read by it and written again nothing is
// missing.
func TestWire(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{Page: 1, Boots: time.Minute, Ends: time.Minute})
	var mu sync.Mutex
	seen := map[string]int{}
	o := a.options(cluster)
	o.HTTPClient = transport(func(r *http.Request) (*http.Response, error) {
		var said []byte
		if r.Body != nil {
			said, _ = io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(said))
		}
		resp, err := a.srv.Client().Do(r)
		model := modelOf(r)
		if err != nil || model == nil {
			return resp, err
		}
		mu.Lock()
		defer mu.Unlock()
		seen[r.Method]++
		if len(said) > 0 {
			if err := lossless(said, modelOf(r)); err != nil {
				t.Errorf("the body of %s %s: %v", r.Method, r.URL.Path, err)
			}
		}
		answer, _ := io.ReadAll(resp.Body)
		resp.Body = io.NopCloser(bytes.NewReader(answer))
		if resp.StatusCode < 300 && len(answer) > 0 {
			if err := lossless(answer, model); err != nil {
				t.Errorf("the answer to %s %s: %v", r.Method, r.URL.Path, err)
			}
		}
		return resp, nil
	})
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Offers(t.Context(), []coordinator.Definition{definition(general, false)}); err != nil {
		t.Fatal(err)
	}
	var handles []provision.Handle
	for n, d := range []coordinator.Definition{definition(general, true), definition(arm64, false)} {
		r := request(d, n)
		handles = append(handles, a.launch(t, p, r).Handle)
		r.Again = true
		a.launch(t, p, r)
	}
	for range 3 {
		if list, err := p.List(t.Context()); err != nil || len(list) != 2 {
			t.Fatal(list, err)
		}
		a.cloud.Advance(time.Minute)
		a.front.Spoil(string(handles[0]), "AllocationFailed", "no room")
		a.front.PowerOff(string(handles[1]), "stopped")
	}
	for _, h := range handles {
		if err := p.Release(t.Context(), h); err != nil {
			t.Fatal(err)
		}
	}
	if seen["PUT"] != 2 || seen["DELETE"] != 2 || seen["GET"] < 12 {
		t.Errorf("looked at %v", seen)
	}
}

// vendor is a cloud of the vendor's own making for tests, with as little behind it as these need.
type vendor struct {
	mu       sync.Mutex
	machines map[string]armcompute.VirtualMachine
	refuse   string // code of the next answer
	deleted  []string
}

func (v *vendor) server() *fake.ServerFactory {
	return &fake.ServerFactory{
		VirtualMachinesServer: fake.VirtualMachinesServer{BeginCreateOrUpdate: v.create, BeginDelete: v.remove, Get: v.get, NewListPager: v.list, NewListAllPager: v.listAll},
		ResourceSKUsServer: fake.ResourceSKUsServer{NewListPager: func(o *armcompute.ResourceSKUsClientListOptions) (resp azfake.PagerResponder[armcompute.ResourceSKUsClientListResponse]) {
			sku := &armcompute.ResourceSKU{Name: to.Ptr(general), ResourceType: to.Ptr("virtualMachines"), Capabilities: []*armcompute.ResourceSKUCapabilities{
				{Name: to.Ptr("vCPUs"), Value: to.Ptr("8")}, {Name: to.Ptr("vCPUsAvailable"), Value: to.Ptr("4")}, {Name: to.Ptr("MemoryGB"), Value: to.Ptr("3.5")},
				{Name: to.Ptr("CpuArchitectureType"), Value: to.Ptr("x64")}, {Name: to.Ptr("vCPUsPerCore"), Value: to.Ptr("1")}, nil, {Name: to.Ptr("odd")}}}
			if o == nil || o.Filter == nil || *o.Filter != "location eq 'westeurope'" {
				sku.Name = to.Ptr("elsewhere")
			}
			resp.AddPage(200, armcompute.ResourceSKUsClientListResponse{ResourceSKUsResult: armcompute.ResourceSKUsResult{Value: []*armcompute.ResourceSKU{sku}}}, nil)
			return resp
		}},
	}
}

func (v *vendor) create(_ context.Context, _, name string, vm armcompute.VirtualMachine, o *armcompute.VirtualMachinesClientBeginCreateOrUpdateOptions) (resp azfake.PollerResponder[armcompute.VirtualMachinesClientCreateOrUpdateResponse], bad azfake.ErrorResponder) {
	v.mu.Lock()
	defer v.mu.Unlock()
	_, exists := v.machines[name]
	switch {
	case v.refuse != "":
		bad.SetResponseError(http.StatusConflict, v.refuse)
	case exists && o != nil && o.IfNoneMatch != nil && *o.IfNoneMatch == "*":
		bad.SetResponseError(http.StatusPreconditionFailed, codeExists)
	default:
		vm.ID, vm.Name = to.Ptr("/subscriptions/"+subscription+"/resourceGroups/nodes/providers/Microsoft.Compute/virtualMachines/"+name), &name
		vm.Properties.ProvisioningState = to.Ptr("Creating")
		v.machines[name] = vm
		resp.AddNonTerminalResponse(http.StatusCreated, nil)
		resp.SetTerminalError(http.StatusConflict, "AllocationFailed") // nobody asks
	}
	return resp, bad
}

func (v *vendor) remove(_ context.Context, _, name string, o *armcompute.VirtualMachinesClientBeginDeleteOptions) (resp azfake.PollerResponder[armcompute.VirtualMachinesClientDeleteResponse], bad azfake.ErrorResponder) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, ok := v.machines[name]; !ok {
		resp.SetTerminalResponse(http.StatusNoContent, armcompute.VirtualMachinesClientDeleteResponse{}, nil)
		return resp, bad
	}
	if o != nil && o.ForceDeletion != nil && *o.ForceDeletion {
		v.deleted = append(v.deleted, name)
		delete(v.machines, name)
	}
	resp.AddNonTerminalResponse(http.StatusAccepted, nil)
	resp.SetTerminalResponse(http.StatusOK, armcompute.VirtualMachinesClientDeleteResponse{}, nil)
	return resp, bad
}

func (v *vendor) get(_ context.Context, _, name string, _ *armcompute.VirtualMachinesClientGetOptions) (resp azfake.Responder[armcompute.VirtualMachinesClientGetResponse], bad azfake.ErrorResponder) {
	v.mu.Lock()
	defer v.mu.Unlock()
	vm, ok := v.machines[name]
	if !ok {
		bad.SetResponseError(http.StatusNotFound, "ResourceNotFound")
		return resp, bad
	}
	resp.SetResponse(http.StatusOK, armcompute.VirtualMachinesClientGetResponse{VirtualMachine: vm}, nil)
	return resp, bad
}

func (v *vendor) list(string, *armcompute.VirtualMachinesClientListOptions) (resp azfake.PagerResponder[armcompute.VirtualMachinesClientListResponse]) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, vm := range v.machines { // each is a page
		resp.AddPage(200, armcompute.VirtualMachinesClientListResponse{VirtualMachineListResult: armcompute.VirtualMachineListResult{Value: []*armcompute.VirtualMachine{&vm}}}, nil)
	}
	return resp
}

func (v *vendor) listAll(o *armcompute.VirtualMachinesClientListAllOptions) (resp azfake.PagerResponder[armcompute.VirtualMachinesClientListAllResponse]) {
	v.mu.Lock()
	defer v.mu.Unlock()
	var out []*armcompute.VirtualMachine
	for _, vm := range v.machines {
		view := &armcompute.VirtualMachineInstanceView{Statuses: []*armcompute.InstanceViewStatus{{Code: to.Ptr("ProvisioningState/updating")}, nil, {Code: to.Ptr("PowerState/running")}}}
		if o == nil || o.StatusOnly == nil || *o.StatusOnly != "true" {
			view = nil
		}
		out = append(out, &armcompute.VirtualMachine{ID: to.Ptr(strings.ToUpper(*vm.ID)), Location: vm.Location, Properties: &armcompute.VirtualMachineProperties{InstanceView: view}})
	}
	resp.AddPage(200, armcompute.VirtualMachinesClientListAllResponse{VirtualMachineListResult: armcompute.VirtualMachineListResult{Value: out}}, nil)
	return resp
}

// TestVendorsServer: the same life against the servers that the vendor ships with its SDK.
func TestVendorsServer(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{}) // for sign-ins
	v := &vendor{machines: map[string]armcompute.VirtualMachine{}}
	server := fake.NewServerFactoryTransport(v.server())
	o := a.options(cluster)
	o.HTTPClient = transport(func(r *http.Request) (*http.Response, error) {
		if strings.Contains(r.URL.Path, "/v2.0/") {
			return a.srv.Client().Do(r)
		}
		return server.Do(r)
	})
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	offers, err := p.Offers(t.Context(), []coordinator.Definition{definition(general, false)})
	if err != nil || !offers[0].Available || offers[0].Hardware == nil || offers[0].Hardware.Cores != 4 || offers[0].Hardware.Threads != 4 {
		t.Fatalf("%+v, %v", offers, err)
	}
	for code, want := range map[string]provision.Fault{"SkuNotAvailable": provision.FaultNoCapacity, "QuotaExceeded": provision.FaultQuota, "ResourceGroupBeingDeleted": provision.FaultTransient} {
		v.refuse = code
		if _, err := p.Launch(t.Context(), request(definition(general, code == "SkuNotAvailable"), 1)); provision.FaultOf(err) != want {
			t.Errorf("%s: %v", code, err)
		}
	}
	v.refuse = ""
	var made []provision.Handle
	for n := range 3 {
		r := request(definition(general, false), n)
		i := a.launch(t, p, r)
		r.Again = true
		if again := a.launch(t, p, r); again.Handle != i.Handle || len(v.machines) != n+1 {
			t.Errorf("%s is %s again, and there are %d", i.Handle, again.Handle, len(v.machines))
		}
		made = append(made, i.Handle)
	}
	list, err := p.List(t.Context())
	if err != nil || len(list) != 3 || list[0].State != provision.StateRunning {
		t.Fatalf("%+v, %v", list, err)
	}
	for _, h := range made {
		if err := p.Release(t.Context(), h); err != nil {
			t.Error(err)
		}
	}
	none := provision.Handle("substrate-none")
	if err := p.Release(t.Context(), none); provision.FaultOf(err) != provision.FaultNotFound || len(v.deleted) != 3 {
		t.Errorf("what is not there is released: %v, deleted %v", err, v.deleted)
	}
	if cloud.LaunchOf(string(list[0].ID)) == "" {
		t.Errorf("the launch is %q", list[0].ID)
	}
}

func TestSmall(t *testing.T) {
	provisiontest.Small(t, reflect.TypeFor[*Provisioner](), reflect.TypeFor[armcompute.VirtualMachine](), `armcompute/v7\.\w+Client$`)
}
