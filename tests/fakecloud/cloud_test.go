package fakecloud

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"substrate/coordinator"
	"substrate/coordinator/provision"
	"substrate/coordinator/provision/provisiontest"
	"substrate/coordinator/spec"
)

func someTypes() []Type {
	return []Type{{Name: "c5.large", VCPUs: 2, Cores: 1, Memory: 4096, Arch: "amd64", Spot: true, Price: 0.085}, {Name: "c5.metal", VCPUs: 96, Cores: 48, Memory: 196608, Arch: "amd64", Metal: true}}
}

func definition(typ string, spot bool) coordinator.Definition {
	return coordinator.Definition{ID: coordinator.DefinitionID(typ), Kind: spec.KindAWS, Spec: spec.AWS{InstanceType: typ, Spot: spot}}
}

// TestDirect shows that the conformance suite can be passed, and the engine with it.
func TestDirect(t *testing.T) {
	conforms(t, func(p provision.Provisioner) provision.Provisioner { return p })
}

// TestDecorated: who watches a provisioner's calls, or has them wait for their turn, changes none of them.
func TestDecorated(t *testing.T) {
	var calls, failures atomic.Int64
	conforms(t, func(p provision.Provisioner) provision.Provisioner {
		p = provision.Limit(p, rate.NewLimiter(rate.Inf, 1))
		return provision.Observe(p, time.Now, func(_ provision.Verb, took time.Duration, err error) {
			calls.Add(1)
			if err != nil {
				failures.Add(1)
			}
			if took < 0 {
				t.Errorf("a call took %s", took)
			}
		})
	})
	t.Cleanup(func() { // the checks run in parallel
		if calls.Load() < 100 || failures.Load() == 0 || failures.Load() >= calls.Load() {
			t.Errorf("%d calls were seen, %d of them failed", calls.Load(), failures.Load())
		}
	})
}

// TestTurns: calls beyond what is allowed wait, and are not made when that takes too long.
func TestTurns(t *testing.T) {
	cloud := New(Options{Types: someTypes()})
	p := provision.Limit(&Direct{Cloud: cloud, Cluster: "c"}, rate.NewLimiter(rate.Every(time.Hour), 2))
	for n := range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := p.List(ctx)
		cancel()
		if allowed := n < 2; allowed != (err == nil) || !allowed && (provision.FaultOf(err) != provision.FaultThrottled || cloud.Calls(OpList) != 2) {
			t.Errorf("call %d: %v, %d calls were made", n+1, err, cloud.Calls(OpList))
		}
	}
	if _, ok := provision.As[provision.Pacer](p); !ok {
		t.Error("what it wraps has a pace")
	}
	if _, ok := provision.As[provision.Typer](p); ok {
		t.Error("what it wraps tells no types")
	}
}

func conforms(t *testing.T, decorate func(provision.Provisioner) provision.Provisioner) {
	t.Helper()
	kinds := map[provision.Fault]Cause{provision.FaultNoCapacity: NoCapacity, provision.FaultQuota: Quota, provision.FaultThrottled: Throttled,
		provision.FaultDenied: Denied, provision.FaultClockSkew: ClockSkew, provision.FaultInvalid: Invalid, provision.FaultTransient: Broken}
	ops := map[provisiontest.Call]Op{provisiontest.CallLaunch: OpLaunch, provisiontest.CallRelease: OpRelease, provisiontest.CallList: OpList, provisiontest.CallOffers: OpTypes}
	h := provisiontest.Harness{
		LeaveOut: map[string]string{"list/answer of another": "it speaks over no wire"},
		Settle:   time.Minute,
		New: func(t *testing.T) provisiontest.Account {
			c := New(Options{Types: someTypes(), Boots: 20 * time.Second, Ends: 10 * time.Second, Page: 5})
			t.Cleanup(c.Close)
			spot, absent := definition("c5.large", true), definition("c6.none", false)
			return provisiontest.Account{
				Open: func(_ testing.TB, cluster string) provision.Provisioner {
					return decorate(&Direct{Cloud: c, Cluster: cluster})
				},
				Definitions: [2]coordinator.Definition{definition("c5.large", false), definition("c5.metal", false)}, Spot: &spot, Absent: &absent,
				Live: c.Live, Page: c.Page(), Pass: c.Advance,
				Boot:    func(h provision.Handle) string { i, _ := c.Instance(string(h)); return string(i.UserData) },
				Visible: func(h provision.Handle) string { i, _ := c.Instance(string(h)); return fmt.Sprint(i.Tags) },
				Stray: func(cluster string) provision.Handle {
					i, err := c.Launch(Ask{Type: "c5.large", Tags: map[string]string{tagCluster: cluster}})
					if err != nil {
						t.Fatal(err)
					}
					return provision.Handle(i.ID)
				},
				Fail:    func(call provisiontest.Call, fault provision.Fault) { c.Fail(ops[call], Fault{Refuse: kinds[fault]}) },
				Lose:    func(call provisiontest.Call) { c.Fail(ops[call], Fault{Lost: true}) },
				Hang:    func(call provisiontest.Call) { c.Fail(ops[call], Fault{Hang: true}) },
				Empty:   func(d coordinator.Definition) { c.Empty(d.Spec.(spec.AWS).InstanceType, "", OnDemand, true) },
				Reclaim: func(h provision.Handle) { c.Reclaim(string(h)) },
				Asked:   func(call provisiontest.Call) int { return c.Calls(ops[call]) },
			}
		},
	}
	for k := range kinds {
		h.Faults = append(h.Faults, k)
	}
	provisiontest.Run(t, h)
}

func cause(err error) Cause {
	var no *Refusal
	errors.As(err, &no)
	if no == nil {
		return 0
	}
	return no.Cause
}

func TestTokens(t *testing.T) {
	c := New(Options{Types: someTypes(), Ends: time.Minute})
	first, err := c.Launch(Ask{Token: "a", Type: "c5.large"})
	if err != nil {
		t.Fatal(err)
	}
	if again, err := c.Launch(Ask{Token: "a", Type: "c5.large"}); err != nil || again.ID != first.ID {
		t.Errorf("the same token gives %s, %v", again.ID, err)
	}
	if _, err := c.Launch(Ask{Token: "a", Type: "c5.metal"}); cause(err) != TokenMismatch {
		t.Errorf("the token with another type: %v", err)
	}
	if _, err := c.Terminate(first.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Launch(Ask{Token: "a", Type: "c5.large"}); cause(err) != TokenSpent {
		t.Errorf("the token after the end: %v", err)
	}
	if other, err := c.Launch(Ask{Type: "c5.large"}); err != nil || other.ID == first.ID {
		t.Errorf("without a token: %s, %v", other.ID, err)
	}
}

func TestRoom(t *testing.T) {
	c := New(Options{Types: someTypes()})
	for _, tt := range []struct {
		name string
		ask  Ask
		want Cause
	}{{"absent", Ask{Type: "x"}, Invalid}, {"spot", Ask{Type: "c5.metal", Market: Spot}, Invalid}, {"fits", Ask{Type: "c5.metal"}, 0}} {
		if _, err := c.Launch(tt.ask); cause(err) != tt.want {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	c.Empty("c5.large", "a", OnDemand, true)
	if _, err := c.Launch(Ask{Type: "c5.large", Zone: "a"}); cause(err) != NoCapacity {
		t.Errorf("zone a: %v", err)
	}
	if _, err := c.Launch(Ask{Type: "c5.large", Zone: "b"}); err != nil {
		t.Errorf("zone b: %v", err)
	}
	c.SetQuota(2)
	if _, err := c.Launch(Ask{Type: "c5.large", Zone: "b"}); cause(err) != Quota {
		t.Errorf("above the quota: %v", err)
	}
}

func TestTime(t *testing.T) {
	now := time.Unix(1e9, 0)
	c := New(Options{Types: someTypes(), Now: func() time.Time { return now }, Boots: time.Minute, Ends: time.Minute, Appears: 10 * time.Second})
	i, err := c.Launch(Ask{Type: "c5.large", Lifetime: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		pass   time.Duration
		listed bool
		state  State
	}{{5 * time.Second, false, Pending}, {10 * time.Second, true, Pending}, {time.Minute, true, Running}, {time.Hour, true, Stopping}, {2 * time.Minute, true, Gone}, {2 * time.Hour, false, Gone}} {
		c.Advance(step.pass)
		got, _ := c.Instance(i.ID)
		if got.State != step.state || (len(c.List()) == 1) != step.listed {
			t.Errorf("after %s it is %d, listed %d", step.pass, got.State, len(c.List()))
		}
	}
}

// plain is a front-end that counts what it carries out.
type plain struct{ done int }

func (p *plain) Op(r *http.Request) Op { return OpLaunch }
func (p *plain) Refuse(w http.ResponseWriter, _ *http.Request, _ Op, why Refusal) {
	http.Error(w, why.Text, 400+int(why.Cause))
}
func (p *plain) ServeHTTP(w http.ResponseWriter, _ *http.Request) { p.done++; fmt.Fprint(w, "done") }

func TestServe(t *testing.T) {
	c, p := New(Options{}), &plain{}
	srv := httptest.NewServer(c.Serve(p))
	defer srv.Close()
	client := srv.Client()
	client.Timeout = 300 * time.Millisecond
	c.Fail(OpLaunch, Fault{Refuse: Quota}, Fault{Lost: true}, Fault{Hang: true})
	for n, want := range []struct {
		status, done int
		broken       bool
	}{{400 + int(Quota), 0, false}, {0, 1, true}, {0, 1, true}, {200, 2, false}} {
		resp, err := client.Post(srv.URL, "text/plain", nil)
		status := 0
		if err == nil {
			status = resp.StatusCode
			resp.Body.Close()
		}
		if status != want.status || p.done != want.done || (err != nil) != want.broken {
			t.Errorf("call %d: status %d, %d carried out, %v", n, status, p.done, err)
		}
	}
	if c.Calls(OpLaunch) != 4 {
		t.Errorf("%d calls", c.Calls(OpLaunch))
	}
}
