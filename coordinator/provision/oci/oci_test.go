package oci

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
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

// refused is an answer as the SDK would give it.
type refused struct {
	status        int
	code, message string
}

func (r refused) Error() string           { return r.code }
func (r refused) GetHTTPStatusCode() int  { return r.status }
func (r refused) GetMessage() string      { return r.message }
func (r refused) GetCode() string         { return r.code }
func (r refused) GetOpcRequestID() string { return "" }

func TestFaults(t *testing.T) {
	p := newAccount(t, fakecloud.Options{}).open(t, cluster)
	for _, tt := range []struct {
		status        int
		code, message string
		want          provision.Fault
	}{
		{500, "InternalError", "Out of host capacity.", provision.FaultNoCapacity},
		{500, "InternalError", "out of capacity for shape VM.Standard.A1.Flex in availability domain AD-1", provision.FaultNoCapacity},
		{400, "LimitExceeded", "The following service limits were exceeded: standard-a1-core-count.", provision.FaultQuota},
		{400, "QuotaExceeded", "You have reached your quota for compartment nodes", provision.FaultQuota},
		{400, "Other", "this exceeds the service limits of your tenancy", provision.FaultQuota},
		{429, "TooManyRequests", "Too many requests for the user", provision.FaultThrottled},
		{404, "NotAuthorizedOrNotFound", "Authorization failed or requested resource not found.", provision.FaultDenied},
		{401, "NotAuthenticated", "The required information to complete authentication was not provided.", provision.FaultDenied},
		{403, "NotAllowed", "", provision.FaultDenied},
		{402, "SignUpRequired", "", provision.FaultDenied},
		{400, "InvalidParameter", "Shape X is not valid for image Y.", provision.FaultInvalid},
		{400, "CannotParseRequest", "", provision.FaultInvalid},
		{400, "MissingParameter", "", provision.FaultInvalid},
		{413, "PayloadTooLarge", "", provision.FaultInvalid},
		{409, "IncorrectState", "", provision.FaultTransient},
		{409, "Conflict", "is being modified", provision.FaultTransient},
		{409, "InvalidatedRetryToken", "", provision.FaultInterrupted},
		{500, "InternalServerError", "", provision.FaultTransient},
		{503, "ServiceUnavailable", "", provision.FaultTransient},
		{502, "BadErrorResponse", "<html>", provision.FaultTransient},
	} {
		err := p.explain("launch l1", refused{tt.status, tt.code, tt.message}, nil)
		if got := provision.FaultOf(err); got != tt.want {
			t.Errorf("%d %s %s is %s, expected %s", tt.status, tt.code, tt.message, got, tt.want)
		}
		if !strings.HasPrefix(err.Error(), "cannot launch l1: "+tt.code) || strings.Count(err.Error(), "\n") > 0 {
			t.Errorf("it reads %q", err)
		}
	}
	if got := provision.FaultOf(p.explain("x", errors.New("connection reset"), nil)); got != provision.FaultTransient {
		t.Errorf("no answer is %s", got)
	}
	var e *provision.Error
	slow := &http.Response{Header: http.Header{"Retry-After": {"90"}}}
	if err := p.explain("x", refused{429, "TooManyRequests", ""}, slow); !errors.As(err, &e) || e.After != 90*time.Second {
		t.Errorf("a pause that was told is %+v", e)
	}
}

// TestWrongClock (situation 31): the cloud answers as to a wrong key; its own date says what is wrong.
func TestWrongClock(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	a.front.Skew = 20 * time.Minute
	_, err := a.open(t, cluster).Launch(t.Context(), request(definition(fixed, false), 1))
	var e *provision.Error
	if !errors.As(err, &e) || e.Fault != provision.FaultClockSkew || !regexp.MustCompile(`-1(199|200|201) seconds off`).MatchString(err.Error()) || e.Hint == "" {
		t.Errorf("a clock that is 20 minutes behind: %v, %+v", err, e)
	}
}

// TestCall: what a launch says.
func TestCall(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	p := a.open(t, cluster)
	d := definition(arm, true)
	s := d.Spec.(spec.OCI)
	s.AvailabilityDomain = firstDomain
	d.Spec = s
	r := request(d, 1)
	if _, err := p.Launch(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	call := a.front.Heard()[0]
	body := call.Body
	if len(call.Token) != 64 {
		t.Errorf("the token is %q", call.Token)
	}
	data, _ := base64.StdEncoding.DecodeString(body["metadata"].(map[string]any)["user_data"].(string))
	want, err := cloud.UserData(r, p.opt.Agent)
	if err != nil || string(data) != string(want) {
		t.Errorf("the instance reads %s", data)
	}
	for key, want := range map[string]string{
		"availabilityDomain": firstDomain, "compartmentId": compartment, "displayName": r.Boot.Node, "shape": arm,
		"shapeConfig": "map[memoryInGBs:16 ocpus:2]", "preemptibleInstanceConfig": "map[preemptionAction:map[preserveBootVolume:false type:TERMINATE]]",
		"instanceOptions": "map[areLegacyImdsEndpointsDisabled:true]", "sourceDetails": "map[imageId:" + armed + " sourceType:image]",
		"freeformTags": "map[substrate-cluster:" + cluster + " substrate-definition:vm-standard-a1-flex substrate-launch:" + string(r.ID) + "]",
	} {
		if got := fmt.Sprint(body[key]); got != want {
			t.Errorf("%s is %s, expected %s", key, got, want)
		}
	}
	tokens := map[string]bool{call.Token: true}
	s.Preemptible = false
	other := s
	other.OCPUs = 3
	for n, s := range []spec.OCI{s, other} {
		d.Spec = s
		if _, err := p.Launch(t.Context(), request(d, 1)); err != nil {
			t.Fatal(err)
		}
		tokens[a.front.Heard()[n+1].Token] = true
	}
	if len(tokens) != 3 {
		t.Error("another market or size is the same call")
	}
}

// TestUnpinned: without an availability domain a launch goes to one that has the shape, and to the same one after a restart.
func TestUnpinned(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{Appears: 5 * time.Second})
	domains := []string{"Fake:EU-FRANKFURT-1-AD-2", "Fake:EU-FRANKFURT-1-AD-3"}
	a.front.Only = map[string][]string{flex: domains}
	p, seen := a.open(t, cluster), map[string]bool{}
	for n := range 12 {
		r := request(definition(flex, false), n)
		first, err := p.Launch(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		i, _ := a.cloud.Instance(a.front.ID(string(first.Handle)))
		seen[i.Zone] = true
		r.Again = true
		if again, err := a.open(t, cluster).Launch(t.Context(), r); err != nil || again.Handle != first.Handle {
			t.Errorf("launch %d after a restart: %s, %v", n, again.Handle, err)
		}
	}
	if len(seen) != 2 || seen[firstDomain] || a.cloud.Live() != 12 {
		t.Errorf("%d instances in %v", a.cloud.Live(), seen)
	}
}

// TestStoredAtAccept (situation 20): a process that dies while the instance starts, and one after it that has another address to boot with, or comes a day
// later, when the cloud has forgotten the token: never a second instance.
func TestStoredAtAccept(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		pass  time.Duration
		boot  string
		ended bool
	}{{"at once", 0, "", false}, {"another address", 0, "10.0.0.9:7443", false}, {"a day later", 25 * time.Hour, "", false}, {"a day later, over", 25 * time.Hour, "", true}} {
		a := newAccount(t, fakecloud.Options{Boots: time.Minute})
		r := request(definition(flex, false), 1)
		first, err := a.open(t, cluster).Launch(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
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
		if a.cloud.Made() != 1 {
			t.Errorf("%s: %d instances were made", tt.name, a.cloud.Made())
		}
	}
}

// TestDeadOffer (situation 28): the cloud's "internal error" without capacity is asked once, tells what it is, and the offer is not hammered: it says so until it
// may be different, while other definitions are untouched.
func TestDeadOffer(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	a.cloud.Empty(fixed, "", fakecloud.OnDemand, true)
	p := a.open(t, cluster)
	d := definition(fixed, false)
	s := d.Spec.(spec.OCI)
	s.AvailabilityDomain = firstDomain
	d.Spec = s
	for n := range 3 {
		if _, err := p.Launch(t.Context(), request(d, n)); provision.FaultOf(err) != provision.FaultNoCapacity || !strings.Contains(err.Error(), "ut of host capacity") {
			t.Errorf("launch %d: %v", n, err)
		}
	}
	if n := a.cloud.Calls(fakecloud.OpLaunch); n != 1 {
		t.Errorf("the cloud was asked %d times", n)
	}
	preemptible := definition(fixed, true)
	elsewhere := definition(fixed, false)
	offers, err := p.Offers(t.Context(), []coordinator.Definition{d, preemptible, elsewhere, definition(flex, false)})
	if err != nil || offers[0].Available || !strings.Contains(offers[0].Why, "no on-demand capacity") || !offers[0].Until.After(a.cloud.Now()) {
		t.Fatalf("%+v, %v", offers, err)
	}
	for _, o := range offers[1:] {
		if !o.Available {
			t.Errorf("another market, domain or shape: %+v", o)
		}
	}
	a.cloud.Empty(fixed, "", fakecloud.OnDemand, false)
	a.cloud.Advance(cloud.EmptyFor)
	if _, err := p.Launch(t.Context(), request(d, 9)); err != nil {
		t.Errorf("later: %v", err)
	}
}

// TestNotFoundIsNoProof: the cloud answers alike when there is no instance and when it may not be ended.
func TestNotFoundIsNoProof(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{Ends: time.Minute})
	p := a.open(t, cluster)
	i, err := p.Launch(t.Context(), request(definition(flex, false), 1))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.List(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.front.Bound = true
	err = p.Release(t.Context(), i.Handle)
	var e *provision.Error
	if !errors.As(err, &e) || e.Fault != provision.FaultDenied || e.Hint == "" || a.cloud.Live() != 1 {
		t.Errorf("one that may not be ended: %v", err)
	}
	a.cloud.Fail(fakecloud.OpList, fakecloud.Fault{Refuse: fakecloud.Broken})
	if err := p.Release(t.Context(), i.Handle); provision.FaultOf(err) != provision.FaultTransient {
		t.Errorf("when the list fails nothing is known: %v", err)
	}
	a.front.Bound = false
	for n, want := range []provision.Fault{provision.FaultNone, provision.FaultNone, provision.FaultNotFound} {
		if n == 2 {
			a.cloud.Advance(time.Minute)
		}
		if err := p.Release(t.Context(), i.Handle); provision.FaultOf(err) != want {
			t.Errorf("release %d: %v", n, err)
		}
	}
}

// TestSwitchedOff: an instance that switches itself off is there, costs something, and counts as one whose agent never came.
func TestSwitchedOff(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	p := a.open(t, cluster)
	i, err := p.Launch(t.Context(), request(definition(flex, false), 1))
	if err != nil {
		t.Fatal(err)
	}
	a.front.PowerOff(a.front.ID(string(i.Handle)))
	list, err := p.List(t.Context())
	if err != nil || len(list) != 1 || list[0].Failed != provision.FaultUnreachable || list[0].State >= provision.StateEnding || list[0].Detail == "" {
		t.Errorf("%+v, %v", list, err)
	}
	if err := p.Release(t.Context(), i.Handle); err != nil || a.cloud.Live() != 0 {
		t.Errorf("%v", err)
	}
}

// TestPreempted: taken back is told apart from given up, by who did it.
func TestPreempted(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	p := a.open(t, cluster)
	var handles []provision.Handle
	for n := range 2 {
		i, err := p.Launch(t.Context(), request(definition(flex, true), n))
		if err != nil {
			t.Fatal(err)
		}
		handles = append(handles, i.Handle)
	}
	a.cloud.Reclaim(a.front.ID(string(handles[0])))
	if err := p.Release(t.Context(), handles[1]); err != nil {
		t.Fatal(err)
	}
	list, err := p.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range list {
		if want := map[provision.Handle]provision.Fault{handles[0]: provision.FaultInterrupted}[i.Handle]; i.Failed != want || i.State != provision.StateGone {
			t.Errorf("%+v, expected %s", i, want)
		}
	}
}

// TestOffers: reasons are plain, hardware is a careful estimate, and what nobody knows is not said.
func TestOffers(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	a.front.Only = map[string][]string{fixed: {firstDomain}}
	cost := 0.5
	change := func(shape string, f func(*spec.OCI)) coordinator.Definition {
		d := definition(shape, false)
		s := d.Spec.(spec.OCI)
		f(&s)
		d.Spec = s
		return d
	}
	priced := definition(flex, false)
	priced.CostPerHour = &cost
	for _, tt := range []struct {
		name string
		def  coordinator.Definition
		why  string // "": it is available
	}{
		{"as it is", definition(gpus, false), ""},
		{"priced", priced, ""},
		{"no image", change(flex, func(s *spec.OCI) { s.Image = "" }), "names no image"},
		{"no subnet", change(flex, func(s *spec.OCI) { s.Subnet = "" }), "names no subnet"},
		{"another compartment", change(flex, func(s *spec.OCI) { s.Compartment = "ocid1.other" }), "give it a backend of its compartment"},
		{"its compartment", change(flex, func(s *spec.OCI) { s.Compartment = compartment }), ""},
		{"no such shape", change("VM.None1.1", func(*spec.OCI) {}), "region eu-frankfurt-1 has no VM.None1.1"},
		{"no such domain", change(flex, func(s *spec.OCI) { s.AvailabilityDomain = "AD-9" }), "no availability domain AD-9, it has " + firstDomain},
		{"not in this domain", change(fixed, func(s *spec.OCI) { s.AvailabilityDomain = "Fake:EU-FRANKFURT-1-AD-2" }), "has no " + fixed},
		{"too many cores", change(flex, func(s *spec.OCI) { s.OCPUs = 65 }), "cannot have 65 OCPUs: from 1 to 64"},
		{"too much memory", change(flex, func(s *spec.OCI) { s.OCPUs, s.Memory = 64, 2048<<30 }), "cannot have 2048 GiB of memory: from 1 to 1024"},
		{"too much for each", change(flex, func(s *spec.OCI) { s.Memory = 200 << 30 }), "100 GiB of memory for each OCPU: from 1 to 64"},
		{"another kind", coordinator.Definition{ID: "x", Spec: spec.AWS{}}, "not of kind oci"},
	} {
		p := a.open(t, cluster)
		offers, err := p.Offers(t.Context(), []coordinator.Definition{tt.def})
		if err != nil || len(offers) != 1 {
			t.Fatal(err)
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
		def            coordinator.Definition
		cores, threads uint32
		arch           string
		least, most    coordinator.Bytes
		devices        string
	}{
		{definition(flex, false), 2, 4, "amd64", 14 << 30, 16 << 30, "map[]"},
		{definition(arm, false), 2, 2, "arm64", 14 << 30, 16 << 30, "map[]"},
		{definition(fixed, false), 1, 2, "amd64", 13 << 30, 15 << 30, "map[]"},
		{definition(gpus, false), 64, 128, "amd64", 1950 << 30, 2048 << 30, fmt.Sprintf("map[%s:8]", coordinator.DeviceNVIDIA)},
	} {
		offers, err := a.open(t, cluster).Offers(t.Context(), []coordinator.Definition{tt.def})
		if err != nil || offers[0].Hardware == nil {
			t.Fatalf("%s: %+v, %v", tt.def.ID, offers, err)
		}
		h := offers[0].Hardware
		if uint32(h.Cores) != tt.cores || h.Threads != tt.threads || h.Arch != tt.arch || h.Memory <= tt.least || h.Memory >= tt.most || !h.Estimated || fmt.Sprint(h.Devices) != tt.devices {
			t.Errorf("%s is estimated as %+v", tt.def.ID, h)
		}
	}
}

// TestOffersOutage (situation 13): what was heard before counts on when the cloud cannot be asked; without it the answer is an error.
func TestOffersOutage(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	p := a.open(t, cluster)
	defs := []coordinator.Definition{definition(flex, false)}
	down := fakecloud.Fault{Refuse: fakecloud.Broken}
	a.cloud.Fail(fakecloud.OpTypes, down)
	if _, err := p.Offers(t.Context(), defs); provision.FaultOf(err) != provision.FaultTransient {
		t.Errorf("the first question: %v", err)
	}
	if _, err := p.Offers(t.Context(), defs); err != nil {
		t.Fatal(err)
	}
	asked := a.cloud.Calls(fakecloud.OpTypes)
	a.cloud.Advance(shapesFor - time.Minute)
	if _, err := p.Offers(t.Context(), defs); err != nil || a.cloud.Calls(fakecloud.OpTypes) != asked {
		t.Errorf("asked again before it was time: %v", err)
	}
	a.cloud.Advance(2 * time.Minute)
	a.cloud.Fail(fakecloud.OpTypes, down)
	if offers, err := p.Offers(t.Context(), defs); err != nil || !offers[0].Available {
		t.Errorf("%+v, %v", offers, err)
	}
}

// TestNotYetVisible (situation 23): what was launched moments ago and is unknown to a call is not gone.
func TestNotYetVisible(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{Appears: 10 * time.Second})
	p := a.open(t, cluster)
	i, err := p.Launch(t.Context(), request(definition(flex, false), 1))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Release(t.Context(), i.Handle); provision.FaultOf(err) != provision.FaultTransient {
		t.Errorf("release at once: %v", err)
	}
	a.cloud.Advance(10 * time.Second)
	if err := p.Release(t.Context(), i.Handle); err != nil || a.cloud.Live() != 0 {
		t.Errorf("release later: %v", err)
	}
}

// TestOneQuestion (situation 32): a list of hundreds is one question in pages, however many instances others have beside.
func TestOneQuestion(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{Page: 500})
	for range 700 {
		if _, err := a.cloud.Launch(fakecloud.Ask{Type: flex}); err != nil {
			t.Fatal(err)
		}
	}
	p := a.open(t, cluster)
	for n := range 20 {
		if _, err := p.Launch(t.Context(), request(definition(flex, false), n)); err != nil {
			t.Fatal(err)
		}
	}
	before := a.cloud.Calls(fakecloud.OpList)
	list, err := p.List(t.Context())
	if asked := a.cloud.Calls(fakecloud.OpList) - before; err != nil || len(list) != 20 || asked != 2 {
		t.Errorf("%d of 20 by %d questions, %v", len(list), asked, err)
	}
}

// TestPolicy: the page's policy allows what the calls take and nothing else.
func TestPolicy(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	p := a.open(t, cluster)
	if _, err := p.Offers(t.Context(), []coordinator.Definition{definition(flex, false)}); err != nil {
		t.Fatal(err)
	}
	i, err := p.Launch(t.Context(), request(definition(flex, false), 1))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.List(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Release(context.WithoutCancel(t.Context()), i.Handle); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "oci.md"))
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	for _, m := range regexp.MustCompile(`(?s)to \{(.*?)\}`).FindAllStringSubmatch(string(page), -1) {
		for _, word := range strings.Split(m[1], ",") {
			told = append(told, strings.TrimSpace(word))
		}
	}
	slices.Sort(told)
	if used := a.front.Permissions(); !slices.Equal(told, used) {
		t.Errorf("docs/oci.md allows\n%v\nthe calls take\n%v", told, used)
	}
}
