package gcp

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/api/compute/v1"
	"google.golang.org/api/googleapi"

	"substrate/coordinator"
	"substrate/coordinator/provision"
	"substrate/coordinator/provision/cloud"
	"substrate/coordinator/provision/provisiontest"
	"substrate/coordinator/spec"
	"substrate/tests/fakecloud"
)

func request(d coordinator.Definition, n int) provision.Request {
	id := provision.LaunchID(fmt.Sprintf("l%016x", 0xbeef00+n))
	return provision.Request{ID: id, Definition: d, Nodes: 1, Asked: time.Now(),
		Boot: provision.Boot{Coordinator: "coordinator.example.org:7443", Token: "sjt_secret", Node: provision.NodeOf(d.ID, id)}}
}

func TestFaults(t *testing.T) {
	p := newAccount(t, fakecloud.Options{}).open(t, cluster)
	for _, tt := range []struct {
		status int
		reason string
		want   provision.Fault
	}{
		{403, "rateLimitExceeded", provision.FaultThrottled}, {403, "userRateLimitExceeded", provision.FaultThrottled}, {429, "", provision.FaultThrottled},
		{403, "quotaExceeded", provision.FaultQuota}, {403, "forbidden", provision.FaultDenied}, {403, "accessNotConfigured", provision.FaultDenied},
		{401, "authError", provision.FaultDenied}, {400, "invalid", provision.FaultInvalid}, {404, "notFound", provision.FaultInvalid}, {400, "required", provision.FaultInvalid},
		{400, "resourceNotReady", provision.FaultTransient}, {500, "internalError", provision.FaultTransient}, {503, "backendError", provision.FaultTransient},
	} {
		err := p.explain("launch l1", &googleapi.Error{Code: tt.status, Message: "text", Errors: []googleapi.ErrorItem{{Reason: tt.reason}}})
		if got := provision.FaultOf(err); got != tt.want || !strings.HasPrefix(err.Error(), "cannot launch l1: ") {
			t.Errorf("%d %s is %s, expected %s: %v", tt.status, tt.reason, got, tt.want, err)
		}
	}
	for code, want := range map[string]provision.Fault{
		"ZONE_RESOURCE_POOL_EXHAUSTED": provision.FaultNoCapacity, "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": provision.FaultNoCapacity, "IP_SPACE_EXHAUSTED": provision.FaultNoCapacity,
		"QUOTA_EXCEEDED": provision.FaultQuota, "RATE_LIMIT_EXCEEDED": provision.FaultThrottled, "PERMISSIONS_ERROR": provision.FaultDenied,
		"UNSUPPORTED_OPERATION": provision.FaultUnsupported, "RESOURCE_NOT_FOUND": provision.FaultInvalid, "INVALID_FIELD_VALUE": provision.FaultInvalid,
		"INVALID_USAGE": provision.FaultInvalid, "CONFLICT": provision.FaultInterrupted, "INTERNAL_ERROR": provision.FaultTransient, "SOMETHING_NEW": provision.FaultTransient,
	} {
		e := failed("launch l1", &compute.Operation{Error: &compute.OperationError{Errors: []*compute.OperationErrorErrors{{Code: code, Message: "text"}}}})
		if e == nil || e.Fault != want || !strings.Contains(e.Error(), code) {
			t.Errorf("%s is %v, expected %s", code, e, want)
		}
	}
	if e := failed("x", &compute.Operation{HttpErrorStatusCode: 404, HttpErrorMessage: "NOT FOUND"}); e == nil || e.Fault != provision.FaultInvalid {
		t.Errorf("a status alone is %v", e)
	}
	if e := failed("x", &compute.Operation{Status: "DONE"}); e != nil {
		t.Errorf("what went well is %v", e)
	}
}

// TestAcceptedIsNotMade (situation 28): a call that is accepted and whose operation fails later is told by the list, with its reason, though there never was an instance.
func TestAcceptedIsNotMade(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	a.front.Slow = time.Minute
	a.cloud.Empty(plain, "", fakecloud.OnDemand, true)
	p := a.open(t, cluster)
	i, err := p.Launch(t.Context(), request(definition(plain, false), 1))
	if err != nil || i.State != provision.StateStarting {
		t.Fatalf("%+v, %v", i, err)
	}
	a.cloud.Advance(time.Minute)
	for name, p := range map[string]*Provisioner{"the same process": p, "after a restart": a.open(t, cluster)} {
		list, err := p.List(t.Context())
		if err != nil || len(list) != 1 || list[0].Handle != i.Handle || list[0].ID != i.ID || list[0].State != provision.StateGone || list[0].Failed != provision.FaultNoCapacity || !strings.Contains(list[0].Detail, "ZONE_RESOURCE_POOL_EXHAUSTED") {
			t.Errorf("%s: %+v, %v", name, list, err)
		}
	}
}

// TestDeadOffer (situation 28): an offer without capacity is asked for once, and says so until it may be different; others are untouched.
func TestDeadOffer(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	a.cloud.Empty(plain, "", fakecloud.OnDemand, true)
	p := a.open(t, cluster)
	d := definition(plain, false)
	for n := range 3 {
		if _, err := p.Launch(t.Context(), request(d, n)); provision.FaultOf(err) != provision.FaultNoCapacity {
			t.Errorf("launch %d: %v", n, err)
		}
	}
	if n := a.cloud.Calls(fakecloud.OpLaunch); n != 1 {
		t.Errorf("the cloud was asked %d times", n)
	}
	elsewhere := definition(plain, false)
	s := elsewhere.Spec.(spec.GCP)
	s.Zone = "europe-west4-b"
	elsewhere.Spec = s
	offers, err := p.Offers(t.Context(), []coordinator.Definition{d, definition(plain, true), elsewhere, definition(gpus, false)})
	if err != nil || offers[0].Available || !strings.Contains(offers[0].Why, "no on-demand capacity") || !offers[0].Until.After(a.cloud.Now()) {
		t.Fatalf("%+v, %v", offers, err)
	}
	for _, o := range offers[1:] {
		if !o.Available {
			t.Errorf("another market, zone or type: %+v", o)
		}
	}
	a.cloud.Empty(plain, "", fakecloud.OnDemand, false)
	a.cloud.Advance(cloud.EmptyFor)
	if _, err := p.Launch(t.Context(), request(d, 9)); err != nil {
		t.Errorf("later: %v", err)
	}
}

// TestStoredAtAccept (situations 19 and 20): a process that dies right after the call, one that comes when the cloud has forgotten the call, and one that comes
// when the instance is over: never a second instance.
func TestStoredAtAccept(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		pass  time.Duration
		zone  string
		ended bool
	}{{"at once", 0, zone, false}, {"without a zone", 0, "", false}, {"hours later", 3 * time.Hour, zone, false}, {"over", 10 * time.Minute, zone, true}, {"hours later, over", 3 * time.Hour, zone, true}} {
		a := newAccount(t, fakecloud.Options{Boots: time.Minute})
		d := definition(plain, false)
		s := d.Spec.(spec.GCP)
		s.Zone = tt.zone
		d.Spec = s
		r := request(d, 1)
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
		again, err := a.open(t, cluster).Launch(t.Context(), r)
		switch {
		case tt.ended && (provision.FaultOf(err) != provision.FaultInterrupted || a.cloud.Live() != 0):
			t.Errorf("%s: %+v, %v, %d live", tt.name, again, err, a.cloud.Live())
		case !tt.ended && (err != nil || again.Handle != first.Handle || a.cloud.Live() != 1):
			t.Errorf("%s: %s and %s, %v", tt.name, first.Handle, again.Handle, err)
		}
	}
}

// TestUnpinned: without a zone a launch goes to one of the region that has the type, and to the same one after a restart.
func TestUnpinned(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	a.front.Only = map[string][]string{plain: {"europe-west4-b", "europe-west4-c", "us-central1-a"}}
	p, seen := a.open(t, cluster), map[string]bool{}
	d := definition(plain, false)
	s := d.Spec.(spec.GCP)
	s.Zone = ""
	d.Spec = s
	for n := range 12 {
		r := request(d, n)
		first, err := p.Launch(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		at, _, _ := strings.Cut(string(first.Handle), "/")
		seen[at] = true
		r.Again = true
		if again, err := a.open(t, cluster).Launch(t.Context(), r); err != nil || again.Handle != first.Handle {
			t.Errorf("launch %d after a restart: %s, %v", n, again.Handle, err)
		}
	}
	if len(seen) != 2 || !seen["europe-west4-b"] || !seen["europe-west4-c"] || a.cloud.Live() != 12 {
		t.Errorf("%d instances in %v", a.cloud.Live(), seen)
	}
}

// TestPreempted: an instance that was taken back is listed as that when it is no longer there, and one that was given up is not.
func TestPreempted(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{Ends: 30 * time.Second})
	p := a.open(t, cluster)
	var handles []provision.Handle
	for n := range 2 {
		i, err := p.Launch(t.Context(), request(definition(plain, true), n))
		if err != nil {
			t.Fatal(err)
		}
		handles = append(handles, i.Handle)
	}
	if _, err := p.List(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.cloud.Reclaim(string(handles[0]))
	if err := p.Release(t.Context(), handles[1]); err != nil {
		t.Fatal(err)
	}
	for _, state := range []provision.State{provision.StateEnding, provision.StateGone} {
		list, err := p.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range list {
			if i.Handle == handles[0] && (i.Failed != provision.FaultInterrupted || i.State != state) || i.Handle == handles[1] && i.Failed != provision.FaultNone {
				t.Errorf("%+v", i)
			}
		}
		if !slices.ContainsFunc(list, func(i provision.Instance) bool { return i.Handle == handles[0] }) {
			t.Errorf("what was taken back is not listed: %+v", list)
		}
		a.cloud.Advance(time.Minute)
	}
	a.front.Mute = true
	if list, err := p.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("without a word about ends the list is %+v, %v", list, err)
	}
}

// TestDarkZone (situation 32): what could not be asked for is not missing.
func TestDarkZone(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	a.front.Dark = []string{"europe-west4-c"}
	if list, err := a.open(t, cluster).List(t.Context()); err == nil {
		t.Errorf("a list without one of the zones is no error: %+v", list)
	}
}

// TestWrongClock (situation 31): no token is given for what is signed by a wrong clock; the answer's date says what is wrong.
func TestWrongClock(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	a.front.Skew = 20 * time.Minute
	_, err := a.open(t, cluster).List(t.Context())
	var e *provision.Error
	if !errors.As(err, &e) || e.Fault != provision.FaultClockSkew || !strings.Contains(err.Error(), "seconds off") || e.Hint == "" {
		t.Errorf("a clock that is 20 minutes behind: %v, %+v", err, e)
	}
}

// TestSwitchedOff: an instance that switches itself off is there, costs something, and counts as one whose agent never came.
func TestSwitchedOff(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	p := a.open(t, cluster)
	i, err := p.Launch(t.Context(), request(definition(plain, false), 1))
	if err != nil {
		t.Fatal(err)
	}
	a.front.PowerOff(string(i.Handle))
	list, err := p.List(t.Context())
	if err != nil || len(list) != 1 || list[0].Failed != provision.FaultUnreachable || list[0].State >= provision.StateEnding {
		t.Errorf("%+v, %v", list, err)
	}
	if err := p.Release(t.Context(), i.Handle); err != nil || a.cloud.Live() != 0 {
		t.Errorf("%v", err)
	}
}

// TestOffers: reasons are plain, hardware is a careful estimate, and what nobody knows is not said.
func TestOffers(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	a.front.Only = map[string][]string{arm: {"us-central1-a"}}
	change := func(typ string, f func(*spec.GCP)) coordinator.Definition {
		d := definition(typ, false)
		s := d.Spec.(spec.GCP)
		f(&s)
		d.Spec = s
		return d
	}
	for _, tt := range []struct {
		name string
		def  coordinator.Definition
		why  string // "": it is available
	}{
		{"as it is", definition(plain, false), ""},
		{"without a zone", change(plain, func(s *spec.GCP) { s.Zone = "" }), ""},
		{"no image", change(plain, func(s *spec.GCP) { s.Image = "" }), "names no image"},
		{"no such type", change("n9-none-1", func(*spec.GCP) {}), "zone europe-west4-a has no n9-none-1"},
		{"not in this region", change(arm, func(s *spec.GCP) { s.Zone = "" }), "region europe-west4 has no " + arm},
		{"its own accelerators", change(gpus, func(s *spec.GCP) { s.Accelerator = &spec.Accelerator{Type: "nvidia-tesla-a100", Count: 8} }), ""},
		{"others", change(gpus, func(s *spec.GCP) { s.Accelerator = &spec.Accelerator{Type: "nvidia-l4", Count: 1} }), "has 8 nvidia-tesla-a100, and its provisionerSpec says 1 nvidia-l4"},
		{"a family that takes none", change(plain, func(s *spec.GCP) { s.Accelerator = &spec.Accelerator{Type: "nvidia-l4", Count: 1} }), "attached to n1 machines only"},
		{"another kind", coordinator.Definition{ID: "x", Spec: spec.AWS{}}, "not of kind gcp"},
	} {
		offers, err := a.open(t, cluster).Offers(t.Context(), []coordinator.Definition{tt.def})
		if err != nil || len(offers) != 1 {
			t.Fatal(err)
		}
		if o := offers[0]; o.Available != (tt.why == "") || !strings.Contains(o.Why, tt.why) || !o.Available && !o.Until.After(a.cloud.Now()) || o.CostPerHour != nil {
			t.Errorf("%s: %+v", tt.name, o)
		}
	}
	for _, tt := range []struct {
		def            coordinator.Definition
		cores, threads uint32
		arch, devices  string
	}{
		{definition(plain, false), 2, 4, "amd64", "map[]"}, {definition(shared, false), 1, 2, "amd64", "map[]"},
		{change(arm, func(s *spec.GCP) { s.Zone = "us-central1-a" }), 4, 4, "arm64", "map[]"},
		{definition(gpus, false), 48, 96, "amd64", fmt.Sprintf("map[%s:8]", coordinator.DeviceNVIDIA)},
		{change(hosting, func(s *spec.GCP) { s.Accelerator = &spec.Accelerator{Type: "nvidia-tesla-t4", Count: 2} }), 2, 4, "amd64", fmt.Sprintf("map[%s:2]", coordinator.DeviceNVIDIA)},
	} {
		offers, err := a.open(t, cluster).Offers(t.Context(), []coordinator.Definition{tt.def})
		if err != nil || offers[0].Hardware == nil {
			t.Fatalf("%s: %+v, %v", tt.def.ID, offers, err)
		}
		if h := offers[0].Hardware; uint32(h.Cores) != tt.cores || h.Threads != tt.threads || h.Arch != tt.arch || !h.Estimated || fmt.Sprint(h.Devices) != tt.devices {
			t.Errorf("%s is estimated as %+v", tt.def.ID, h)
		}
	}
}

// TestRole: the page's role allows what the calls take and nothing else.
func TestRole(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	a.front.Slow = time.Second // it is waited for
	p := a.open(t, cluster)
	r := request(definition(plain, false), 1)
	i, err := p.Launch(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	a.cloud.Advance(time.Minute)
	r.Again = true
	if _, err := p.Launch(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if _, err := p.List(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Release(t.Context(), i.Handle); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "gcp.md"))
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	for _, m := range regexp.MustCompile(`(?m)^  - (compute\.\S+)$`).FindAllStringSubmatch(string(page), -1) {
		told = append(told, m[1])
	}
	slices.Sort(told)
	if used := a.front.Permissions(); !slices.Equal(told, used) {
		t.Errorf("docs/gcp.md allows\n%v\nthe calls take\n%v", told, used)
	}
}

func TestSmall(t *testing.T) {
	provisiontest.Small(t, reflect.TypeFor[*Provisioner](), reflect.TypeFor[compute.Instance](), `compute/v1\.\w+(Service|Call)$`)
}
