package azure

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/provision"
	"substrate/coordinator/provision/cloud"
	"substrate/coordinator/spec"
	"substrate/tests/fakecloud"
)

func request(d coordinator.Definition, n int) provision.Request {
	id := provision.LaunchID(fmt.Sprintf("l%016x", 0xbeef00+n))
	return provision.Request{ID: id, Definition: d, Nodes: 1, Asked: time.Now(),
		Boot: provision.Boot{Coordinator: "coordinator.example.org:7443", Token: "sjt_secret", Node: provision.NodeOf(d.ID, id)}}
}

func (a *account) launch(t *testing.T, p *Provisioner, r provision.Request) provision.Instance {
	t.Helper()
	i, err := p.Launch(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// one is the only machine that a list shows.
func one(t *testing.T, p *Provisioner) provision.Instance {
	t.Helper()
	list, err := p.List(t.Context())
	if err != nil || len(list) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	return list[0]
}

func TestFaultOf(t *testing.T) {
	for _, tt := range []struct {
		status        int
		code, message string
		want          provision.Fault
	}{
		{409, "SkuNotAvailable", "The requested VM size is currently not available", provision.FaultNoCapacity},
		{0, "AllocationFailed", "Allocation failed. We do not have sufficient capacity", provision.FaultNoCapacity},
		{0, "ZonalAllocationFailed", "", provision.FaultNoCapacity},
		{0, "OverconstrainedAllocationRequest", "", provision.FaultNoCapacity},
		{0, "OverconstrainedZonalAllocationRequest", "", provision.FaultNoCapacity},
		{400, "SubnetIsFull", "", provision.FaultNoCapacity},
		{409, "OperationNotAllowed", "Operation could not be completed as it results in exceeding approved standardDSv5Family Cores Quota.", provision.FaultQuota},
		{409, "QuotaExceeded", "", provision.FaultQuota},
		{409, "OperationNotAllowed", "The operation is not allowed since the VM is marked for deletion.", provision.FaultTransient},
		{409, "Conflict", "The resource is being deleted.", provision.FaultTransient},
		{409, "AnotherOperationInProgress", "", provision.FaultTransient},
		{409, "NicReservedForAnotherVm", "", provision.FaultTransient},
		{429, "TooManyRequests", "", provision.FaultThrottled},
		{429, "", "", provision.FaultThrottled},
		{409, "SubscriptionRequestsThrottled", "", provision.FaultThrottled},
		{403, "AuthorizationFailed", "", provision.FaultDenied},
		{403, "LinkedAuthorizationFailed", "", provision.FaultDenied},
		{401, "InvalidAuthenticationToken", "", provision.FaultDenied},
		{403, "RequestDisallowedByPolicy", "", provision.FaultDenied},
		{409, "MissingSubscriptionRegistration", "", provision.FaultDenied},
		{409, "ScopeLocked", "", provision.FaultDenied},
		{403, "Other", "", provision.FaultDenied},
		{404, "ResourceNotFound", "", provision.FaultNotFound},
		{404, "ResourceGroupNotFound", "", provision.FaultNotFound},
		{0, "OperationPreempted", "The operation has been preempted by a more recent operation", provision.FaultInterrupted},
		{400, "InvalidParameter", "The value Standard_X provided for the VM size is not valid.", provision.FaultInvalid},
		{400, "InvalidResourceReference", "", provision.FaultInvalid},
		{412, "PreconditionFailed", "", provision.FaultInvalid},
		{500, "InternalServerError", "", provision.FaultTransient},
		{503, "ServerTimeout", "", provision.FaultTransient},
		{0, "OSProvisioningTimedOut", "", provision.FaultTransient},
	} {
		if got := faultOf(tt.status, tt.code, tt.message); got != tt.want {
			t.Errorf("%d %s %s is %s, expected %s", tt.status, tt.code, tt.message, got, tt.want)
		}
	}
}

// TestExplained: errors are one line in the cloud's words, with when to come again, and what to do where that helps.
func TestExplained(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	a.cloud.Fail(fakecloud.OpLaunch, fakecloud.Fault{Refuse: fakecloud.Throttled}, fakecloud.Fault{Refuse: fakecloud.Denied})
	p := a.open(t, cluster)
	var e *provision.Error
	_, err := p.Launch(t.Context(), request(definition(general, false), 1))
	if !errors.As(err, &e) || e.Fault != provision.FaultThrottled || e.After != 7*time.Second {
		t.Errorf("asked too often: %+v", err)
	}
	_, err = p.Launch(t.Context(), request(definition(general, false), 1))
	if err == nil || !strings.HasPrefix(err.Error(), "cannot launch l0000000000beef01: AuthorizationFailed: The client does not") || strings.Contains(err.Error(), "\n") {
		t.Errorf("it reads %q", err)
	}
	a.front.Skew = -20 * time.Minute
	_, err = p.Launch(t.Context(), request(definition(general, false), 1))
	if !errors.As(err, &e) || e.Fault != provision.FaultClockSkew || !regexp.MustCompile(`\+1(199|200|201) seconds off`).MatchString(err.Error()) || e.Hint == "" {
		t.Errorf("a clock that is 20 minutes ahead (situation 31): %v", err)
	}
	if a.cloud.Made() != 0 {
		t.Error("a call that was refused has made something")
	}
}

// TestCall: what a launch says. Whatever it makes goes when the machine goes, and it only makes.
func TestCall(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	p := a.open(t, cluster)
	r := request(definition(arm64, true), 1)
	if _, err := p.Offers(t.Context(), []coordinator.Definition{r.Definition}); err != nil {
		t.Fatal(err)
	}
	a.launch(t, p, r)
	call := a.front.Heard()[0]
	if call.Header.Get("If-None-Match") != "*" {
		t.Error("the call may change what exists")
	}
	at := func(path ...string) any {
		var v any = call.Body
		for _, key := range path {
			switch of := v.(type) {
			case map[string]any:
				v = of[key]
			case []any:
				v = of[0].(map[string]any)[key]
			}
		}
		return v
	}
	data, _ := base64.StdEncoding.DecodeString(at("properties", "osProfile", "customData").(string))
	if want, err := cloud.UserData(r, p.opt.Agent); err != nil || string(data) != string(want) {
		t.Errorf("the machine reads %s", data)
	}
	marks := fmt.Sprint(map[string]string{"substrate-cluster": cluster, "substrate-definition": "standard_d2ps_v6", "substrate-launch": string(r.ID)})
	nic := []string{"properties", "networkProfile", "networkInterfaceConfigurations"}
	for _, tt := range []struct {
		want string
		path []string
	}{
		{marks, []string{"tags"}}, {marks, append(nic, "tags")}, {west, []string{"location"}}, {arm64, []string{"properties", "hardwareProfile", "vmSize"}},
		{"map[id:" + armed + "]", []string{"properties", "storageProfile", "imageReference"}},
		{"map[createOption:FromImage deleteOption:Delete managedDisk:map[storageAccountType:StandardSSD_LRS]]", []string{"properties", "storageProfile", "osDisk"}},
		{"Delete", append(nic, "properties", "deleteOption")}, {"true", append(nic, "properties", "enableAcceleratedNetworking")},
		{subnet, append(nic, "properties", "ipConfigurations", "properties", "subnet", "id")}, {"<nil>", append(nic, "properties", "ipConfigurations", "properties", "publicIPAddressConfiguration")},
		{"map[bootDiagnostics:map[enabled:true]]", []string{"properties", "diagnosticsProfile"}},
		{"Spot", []string{"properties", "priority"}}, {"Delete", []string{"properties", "evictionPolicy"}}, {"map[maxPrice:-1]", []string{"properties", "billingProfile"}},
		{"true", []string{"properties", "osProfile", "linuxConfiguration", "disablePasswordAuthentication"}}, {r.Boot.Node, []string{"properties", "osProfile", "computerName"}},
	} {
		if got := fmt.Sprint(at(tt.path...)); got != tt.want {
			t.Errorf("%v is %s, expected %s", tt.path, got, tt.want)
		}
	}
	seen := map[string]bool{call.Name: true}
	for _, d := range []coordinator.Definition{definition(arm64, false), definition(general, true)} {
		a.launch(t, p, request(d, 1))
		heard := a.front.Heard()
		seen[heard[len(heard)-1].Name] = true
	}
	if len(seen) != 3 {
		t.Errorf("another market or size is the same machine: %v", seen)
	}
}

// TestStoredAtAccept (situation 20): a process that dies while the machine starts, and one after it that has another address to boot with, or comes a day
// later: never a second one.
func TestStoredAtAccept(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		pass  time.Duration
		boot  string
		ended bool
	}{{"at once", 0, "", false}, {"another address", 0, "10.0.0.9:7443", false}, {"a day later", 25 * time.Hour, "", false}, {"a day later, over", 25 * time.Hour, "", true}} {
		a := newAccount(t, fakecloud.Options{Boots: time.Minute})
		r := request(definition(general, false), 1)
		first := a.launch(t, a.open(t, cluster), r)
		if tt.ended {
			if err := a.open(t, cluster).Release(t.Context(), first.Handle); err != nil {
				t.Fatal(err)
			}
		}
		a.cloud.Advance(tt.pass)
		r.Again = true
		if tt.boot != "" {
			r.Boot.Coordinator = tt.boot
		}
		again, err := a.open(t, cluster).Launch(t.Context(), r)
		switch {
		case tt.ended && provision.FaultOf(err) != provision.FaultInterrupted:
			t.Errorf("%s: %+v, %v", tt.name, again, err)
		case !tt.ended && (err != nil || again.Handle != first.Handle):
			t.Errorf("%s: %s and %s, %v", tt.name, first.Handle, again.Handle, err)
		}
		if a.cloud.Live() != map[bool]int{true: 0, false: 1}[tt.ended] {
			t.Errorf("%s: %d machines exist", tt.name, a.cloud.Live())
		}
	}
}

// TestOnlyMakes: a call for what is there finds it, also when nobody tells that it was made before, and changes nothing of it.
func TestOnlyMakes(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	r := request(definition(general, false), 1)
	first := a.launch(t, a.open(t, cluster), r)
	r.Boot.Token = "sjt_another"
	again := a.launch(t, a.open(t, cluster), r)
	if i, _ := a.cloud.Instance(string(first.Handle)); again.Handle != first.Handle || a.cloud.Made() != 1 || strings.Contains(string(i.UserData), "sjt_another") {
		t.Errorf("%s is made as %s, and there were %d", first.Handle, again.Handle, a.cloud.Made())
	}
}

// TestRefusedForLong: a launch that the cloud has refused for an hour, as it was asked too often, was never heard and is made then. One that may have been
// heard at first is not made so late: it may be over.
func TestRefusedForLong(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		first fakecloud.Cause
		want  provision.Fault
		live  int
	}{{fakecloud.Throttled, provision.FaultNone, 1}, {fakecloud.Broken, provision.FaultInterrupted, 0}} {
		a := newAccount(t, fakecloud.Options{})
		p, r := a.open(t, cluster), request(definition(general, false), 1)
		cause := tt.first
		var err error
		for range 6 {
			a.cloud.Fail(fakecloud.OpLaunch, fakecloud.Fault{Refuse: cause})
			if _, err = p.Launch(t.Context(), r); !provision.FaultOf(err).Again() {
				break
			}
			cause, r.Again = fakecloud.Throttled, true
			a.cloud.Advance(9 * time.Minute)
		}
		if provision.FaultOf(err).Again() {
			_, err = p.Launch(t.Context(), r)
		}
		if provision.FaultOf(err) != tt.want || a.cloud.Live() != tt.live {
			t.Errorf("after %d: %v, %d machines", tt.first, err, a.cloud.Live())
		}
	}
}

// TestDeadOffer (situation 28): what has no room is asked once, and not hammered: the offer says so until it may be different, while others are untouched.
func TestDeadOffer(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	a.cloud.Empty(general, "", fakecloud.OnDemand, true)
	p := a.open(t, cluster)
	for n := range 3 {
		if _, err := p.Launch(t.Context(), request(definition(general, false), n)); provision.FaultOf(err) != provision.FaultNoCapacity || !strings.Contains(err.Error(), "currently not available") {
			t.Errorf("launch %d: %v", n, err)
		}
	}
	if n := a.cloud.Calls(fakecloud.OpLaunch); n != 1 {
		t.Errorf("the cloud was asked %d times", n)
	}
	offers, err := p.Offers(t.Context(), []coordinator.Definition{definition(general, false), definition(general, true), definition(arm64, false)})
	if err != nil || offers[0].Available || !strings.Contains(offers[0].Why, "no on-demand capacity") || !offers[1].Available || !offers[2].Available {
		t.Errorf("%+v, %v", offers, err)
	}
	a.cloud.Empty(general, "", fakecloud.OnDemand, false)
	a.cloud.Advance(cloud.EmptyFor)
	a.launch(t, p, request(definition(general, false), 9))
}

// TestFailedLater: what was accepted and then not made is told by the list, with its reason, and its place counts as empty at once.
func TestFailedLater(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		code string
		want provision.Fault
		dry  bool
	}{
		{"AllocationFailed", provision.FaultNoCapacity, true}, {"QuotaExceeded", provision.FaultQuota, false}, {"OSProvisioningClientError", provision.FaultUnreachable, false},
		{"ResourceNotFound", provision.FaultInvalid, false}, {"failed", provision.FaultUnreachable, false},
	} {
		a := newAccount(t, fakecloud.Options{Boots: time.Minute})
		p, d := a.open(t, cluster), definition(general, false)
		i := a.launch(t, p, request(d, 1))
		a.front.Spoil(string(i.Handle), tt.code, "in its words\nand more")
		got := one(t, p)
		if got.Failed != tt.want || got.State >= provision.StateEnding || !strings.Contains(got.Detail, "in its words") || strings.Contains(got.Detail, "\n") {
			t.Errorf("%s: %+v", tt.code, got)
		}
		offers, err := p.Offers(t.Context(), []coordinator.Definition{d})
		if err != nil || offers[0].Available == tt.dry {
			t.Errorf("%s: %+v, %v", tt.code, offers, err)
		}
		if err := p.Release(t.Context(), i.Handle); err != nil || a.cloud.Live() != 0 {
			t.Errorf("%s: %v", tt.code, err)
		}
	}
}

// TestLateSuccess (situation 26): a machine whose making was told to have failed and that comes up all the same is listed as running, and so is one that runs
// while the cloud still thinks that it has failed: what is on it is not killed.
func TestLateSuccess(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	p := a.open(t, cluster)
	h := string(a.launch(t, p, request(definition(general, false), 1)).Handle)
	a.front.Spoil(h, "AllocationFailed", "no room")
	if got := one(t, p); got.Failed != provision.FaultNoCapacity {
		t.Errorf("%+v", got)
	}
	a.front.PowerOff(h, "running") // is its state though
	if got := one(t, p); got.Failed != provision.FaultNone || got.State != provision.StateRunning || got.Detail != "AllocationFailed" {
		t.Errorf("%+v", got)
	}
	a.front.Spoil(h, "", "")
	if got := one(t, p); got.Failed != provision.FaultNone || got.State != provision.StateRunning || got.Detail != "" {
		t.Errorf("%+v", got)
	}
}

// TestSwitchedOff: a machine that switches itself off is there, costs something, and counts as one whose agent never came, in whichever way it is off.
func TestSwitchedOff(t *testing.T) {
	t.Parallel()
	for _, state := range []string{"stopping", "stopped", "deallocating", "deallocated"} {
		a := newAccount(t, fakecloud.Options{})
		p := a.open(t, cluster)
		i := a.launch(t, p, request(definition(general, false), 1))
		a.front.PowerOff(string(i.Handle), state)
		if got := one(t, p); !strings.Contains(got.Console, string(i.Handle)) || got.Failed != provision.FaultUnreachable || got.State >= provision.StateEnding || !strings.Contains(got.Detail, state) {
			t.Errorf("%+v", got)
		}
		if err := p.Release(t.Context(), i.Handle); err != nil || a.cloud.Live() != 0 {
			t.Errorf("%v", err)
		}
	}
}

// TestNarrow: a coordinator that may see no more than its resource group lists what there is. What it cannot see counts as running.
func TestNarrow(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	a.front.Narrow = true
	o, said := a.options(cluster), &strings.Builder{}
	o.Log = slog.New(slog.NewTextHandler(said, nil))
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	i := a.launch(t, p, request(definition(general, false), 1))
	a.front.PowerOff(string(i.Handle), "stopped")
	for range 3 {
		if got := one(t, p); got.State != provision.StateRunning || got.Failed != provision.FaultNone {
			t.Errorf("%+v", got)
		}
	}
	if strings.Count(said.String(), "AuthorizationFailed") != 1 {
		t.Errorf("it is said so: %s", said)
	}
	a.cloud.Advance(complainEvery)
	if one(t, p); strings.Count(said.String(), "AuthorizationFailed") != 2 {
		t.Errorf("later it is said so: %s", said)
	}
}

// TestEvicted: taken back is told apart from given up, by who did it.
func TestEvicted(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{Ends: time.Minute})
	p := a.open(t, cluster)
	var handles []provision.Handle
	for n := range 2 {
		handles = append(handles, a.launch(t, p, request(definition(general, true), n)).Handle)
	}
	a.cloud.Reclaim(string(handles[0]))
	if err := p.Release(t.Context(), handles[1]); err != nil {
		t.Fatal(err)
	}
	list, err := p.List(t.Context())
	if err != nil || len(list) != 2 {
		t.Fatal(list, err)
	}
	for _, i := range list {
		if want := map[provision.Handle]provision.Fault{handles[0]: provision.FaultInterrupted}[i.Handle]; i.Failed != want || i.State != provision.StateEnding {
			t.Errorf("%+v, expected %s", i, want)
		}
	}
	a.cloud.Advance(time.Minute)
	for _, h := range handles {
		if err := p.Release(t.Context(), h); provision.FaultOf(err) != provision.FaultNotFound {
			t.Errorf("released when it is gone: %v", err)
		}
	}
}

// TestOneQuestion (situation 32): a list of hundreds is two questions in pages, however many machines others have beside.
func TestOneQuestion(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{Page: 500})
	for range 700 {
		if _, err := a.cloud.Launch(fakecloud.Ask{Type: general}); err != nil {
			t.Fatal(err)
		}
	}
	p := a.open(t, cluster)
	for n := range 20 {
		a.launch(t, p, request(definition(general, false), n))
	}
	lists, others := a.cloud.Calls(fakecloud.OpList), a.cloud.Calls(fakecloud.OpOther)
	list, err := p.List(t.Context())
	if err != nil || len(list) != 20 || a.cloud.Calls(fakecloud.OpList)-lists != 2 || a.cloud.Calls(fakecloud.OpOther)-others != 2 {
		t.Errorf("%d of 20 by %d and %d questions, %v", len(list), a.cloud.Calls(fakecloud.OpList)-lists, a.cloud.Calls(fakecloud.OpOther)-others, err)
	}
}

// TestOffers: reasons are plain, hardware is a careful estimate, and what nobody knows is not said.
func TestOffers(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	cost := 0.5
	change := func(size string, f func(*spec.Azure)) coordinator.Definition {
		d := definition(size, false)
		s := d.Spec.(spec.Azure)
		f(&s)
		d.Spec = s
		return d
	}
	priced := definition(general, false)
	priced.CostPerHour = &cost
	for _, tt := range []struct {
		name string
		def  coordinator.Definition
		why  string // "": it is available
	}{
		{"as it is", definition(gpus, false), ""},
		{"priced", priced, ""},
		{"another case of letters", change(general, func(s *spec.Azure) { s.VMSize = "standard_d4S_V5" }), ""},
		{"spot", definition(general, true), ""},
		{"not as spot", definition(gpus, true), "not to be had as spot"},
		{"no image", change(general, func(s *spec.Azure) { s.Image = "" }), "names no image"},
		{"an odd image", change(general, func(s *spec.Azure) { s.Image = "ubuntu" }), "neither an image's id nor publisher:offer:sku:version"},
		{"a public image", change(general, func(s *spec.Azure) { s.Image = "Debian:debian-12:12-gen2:latest" }), ""},
		{"no subnet", change(general, func(s *spec.Azure) { s.Subnet = "" }), "names no subnet"},
		{"an odd subnet", change(general, func(s *spec.Azure) { s.Subnet = "a/b/c" }), "neither a subnet's id nor network/subnet"},
		{"its location", change(general, func(s *spec.Azure) { s.Location = west }), ""},
		{"another location", change(general, func(s *spec.Azure) { s.Location = "eastus" }), "location eastus has no " + general},
		{"no such size", change("Standard_None1", func(*spec.Azure) {}), "location westeurope has no Standard_None1"},
		{"a size that may not be had", definition(barred, false), "the subscription may not have " + barred + " in westeurope: NotAvailableForSubscription"},
		{"another kind", coordinator.Definition{ID: "x", Spec: spec.AWS{}}, "not of kind azure"},
	} {
		offers, err := a.open(t, cluster).Offers(t.Context(), []coordinator.Definition{tt.def})
		if err != nil || len(offers) != 1 {
			t.Fatal(tt.name, err)
		}
		o := offers[0]
		if o.Available != (tt.why == "") || !strings.Contains(o.Why, tt.why) || !o.Available && !o.Until.After(a.cloud.Now()) {
			t.Errorf("%s: %+v", tt.name, o)
		}
		if (o.CostPerHour != nil) != (tt.name == "priced") {
			t.Errorf("%s: the cost is %v", tt.name, o.CostPerHour)
		}
	}
	for _, tt := range []struct {
		size           string
		cores, threads uint32
		arch           string
		least, most    coordinator.Bytes
		unknown        string
	}{
		{general, 2, 4, "amd64", 14 << 30, 16 << 30, "[]"},
		{arm64, 2, 2, "arm64", 6 << 30, 8 << 30, "[]"},
		{gpus, 96, 96, "amd64", 1800 << 30, 1900 << 30, "[" + coordinator.DeviceAMD + " " + coordinator.DeviceNVIDIA + "]"},
	} {
		offers, err := a.open(t, cluster).Offers(t.Context(), []coordinator.Definition{definition(tt.size, false)})
		if err != nil || offers[0].Hardware == nil {
			t.Fatalf("%s: %+v, %v", tt.size, offers, err)
		}
		h := offers[0].Hardware
		if uint32(h.Cores) != tt.cores || h.Threads != tt.threads || h.Arch != tt.arch || h.Memory <= tt.least || h.Memory >= tt.most || !h.Estimated || len(h.Devices) != 0 || fmt.Sprint(h.Unknown) != tt.unknown {
			t.Errorf("%s is estimated as %+v", tt.size, h)
		}
	}
}

// TestOffersOutage (situation 13): what was heard before counts on when the cloud cannot be asked; without it the answer is an error.
func TestOffersOutage(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	p := a.open(t, cluster)
	defs := []coordinator.Definition{definition(general, false)}
	down := fakecloud.Fault{Refuse: fakecloud.Broken}
	a.cloud.Fail(fakecloud.OpTypes, down)
	if _, err := p.Offers(t.Context(), defs); provision.FaultOf(err) != provision.FaultTransient {
		t.Errorf("the first question: %v", err)
	}
	if _, err := p.Offers(t.Context(), defs); err != nil {
		t.Fatal(err)
	}
	asked := a.cloud.Calls(fakecloud.OpTypes)
	a.cloud.Advance(sizesFor - time.Minute)
	if _, err := p.Offers(t.Context(), defs); err != nil || a.cloud.Calls(fakecloud.OpTypes) != asked {
		t.Errorf("asked again before it was time: %v", err)
	}
	a.cloud.Advance(2 * time.Minute)
	a.cloud.Fail(fakecloud.OpTypes, down)
	if offers, err := p.Offers(t.Context(), defs); err != nil || !offers[0].Available {
		t.Errorf("%+v, %v", offers, err)
	}
}

// TestRoles: the page's roles allow what the calls take and nothing else, each in its scope.
func TestRoles(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	p := a.open(t, cluster)
	if _, err := p.Offers(t.Context(), []coordinator.Definition{definition(general, false)}); err != nil {
		t.Fatal(err)
	}
	i := a.launch(t, p, request(definition(general, false), 1))
	a.launch(t, p, request(definition(arm64, false), 2))
	if _, err := p.List(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Release(t.Context(), i.Handle); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "azure.md"))
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	for _, m := range regexp.MustCompile("(?s)```json\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		var role struct{ Actions, AssignableScopes []string }
		if err := json.Unmarshal([]byte(m[1]), &role); err != nil || len(role.AssignableScopes) != 1 {
			t.Fatalf("%v\n%s", err, m[1])
		}
		scope := "subscription"
		if strings.Contains(role.AssignableScopes[0], "/resourceGroups/") {
			scope = "group"
		}
		for _, action := range role.Actions {
			told = append(told, scope+" "+action)
		}
	}
	slices.Sort(told)
	if used := a.front.Actions(); !slices.Equal(told, used) {
		t.Errorf("docs/azure.md allows\n%s\nthe calls take\n%s", strings.Join(told, "\n"), strings.Join(used, "\n"))
	}
}
