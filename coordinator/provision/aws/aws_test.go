package aws

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
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

func request(n int, d coordinator.Definition) provision.Request {
	id := provision.LaunchID(fmt.Sprintf("l%016x", n))
	return provision.Request{ID: id, Definition: d, Nodes: 1, Boot: provision.Boot{Coordinator: "coordinator.example.org:7443", Token: "secret", Node: provision.NodeOf(d.ID, id)}}
}

func (a *account) offer(t *testing.T, p *Provisioner, d coordinator.Definition) provision.Offer {
	t.Helper()
	out, err := p.Offers(t.Context(), []coordinator.Definition{d})
	if err != nil {
		t.Fatal(err)
	}
	return out[0]
}

func launch(t *testing.T, p *Provisioner, r provision.Request) provision.Instance {
	t.Helper()
	i, err := p.Launch(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// TestCodes: each of EC2's codes that users of launchers have met is a fault, and the right one.
func TestCodes(t *testing.T) {
	for fault, codes := range map[provision.Fault]string{
		provision.FaultNoCapacity: "InsufficientInstanceCapacity UnfulfillableCapacity InsufficientCapacity Unsupported InsufficientFreeAddressesInSubnet MaxSpotInstanceCountExceeded SpotMaxPriceTooLow ReservationCapacityExceeded MaxFleetCountExceeded",
		provision.FaultQuota:      "VcpuLimitExceeded InstanceLimitExceeded VolumeLimitExceeded",
		provision.FaultThrottled:  "RequestLimitExceeded Throttling",
		provision.FaultInvalid:    "InvalidAMIID.NotFound InvalidUserData.Malformed InvalidParameterValue InvalidInstanceType IdempotentParameterMismatch",
		provision.FaultDenied:     "UnauthorizedOperation AuthFailure RequestExpired SignatureDoesNotMatch",
		provision.FaultNotFound:   "InvalidInstanceID.NotFound", provision.FaultInterrupted: "IdempotentInstanceTerminated",
		provision.FaultTransient: "InternalError Unavailable",
	} {
		for code := range strings.FieldsSeq(codes) {
			if got, ok := faultOfCode(code); !ok || got != fault {
				t.Errorf("%s is %s, want %s", code, got, fault)
			}
		}
	}
	for code, fault := range map[string]provision.Fault{
		"Server.SpotInstanceTermination": provision.FaultInterrupted, "Server.SpotInstanceShutdown": provision.FaultInterrupted,
		"Server.InsufficientInstanceCapacity": provision.FaultNoCapacity, "Client.UserInitiatedShutdown": provision.FaultNone,
		"Client.InstanceInitiatedShutdown": provision.FaultUnreachable, "Client.VolumeLimitExceeded": provision.FaultQuota, "Server.InternalError": provision.FaultTransient,
	} {
		if got := faultOfEnd(code); got != fault {
			t.Errorf("an end by %s is %s, want %s", code, got, fault)
		}
	}
}

// TestWhatALaunchSays, on the wire.
func TestWhatALaunchSays(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	p := a.open(t, cluster)
	d := definition("c5.large", true)
	s := d.Spec.(spec.AWS)
	s.Zone, s.SubnetID, s.SecurityGroupIDs, s.InstanceProfile = "us-east-1b", "subnet-1", []string{"sg-1", "sg-2"}, "arn:aws:iam::1:instance-profile/x"
	s.Tags = map[string]string{"team": "physics", cloud.MarkLaunch: "theirs"}
	d.Spec = s
	r := request(1, d)
	launch(t, p, r)
	said := a.front.Heard("RunInstances")[0]
	for key, want := range map[string]string{
		"ClientToken": cloud.Key(cluster, r.ID, "c5.large", "spot", "us-east-1b", "subnet-1"), "ImageId": image, "MinCount": "1", "MaxCount": "1",
		"InstanceInitiatedShutdownBehavior": "terminate", "MetadataOptions.HttpTokens": "required", "InstanceMarketOptions.MarketType": "spot",
		"InstanceMarketOptions.SpotOptions.SpotInstanceType": "one-time", "InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior": "terminate",
		"Placement.AvailabilityZone": "us-east-1b", "SubnetId": "subnet-1", "SecurityGroupId.2": "sg-2", "IamInstanceProfile.Arn": s.InstanceProfile,
	} {
		if got := said.Get(key); got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	for n, kind := range []string{"instance", "volume", "network-interface"} {
		at := fmt.Sprintf("TagSpecification.%d.", n+1)
		tags := map[string]string{}
		for m := 1; said.Has(fmt.Sprintf("%sTag.%d.Key", at, m)); m++ {
			tags[said.Get(fmt.Sprintf("%sTag.%d.Key", at, m))] = said.Get(fmt.Sprintf("%sTag.%d.Value", at, m))
		}
		if said.Get(at+"ResourceType") != kind || tags["team"] != "physics" || tags["Name"] != r.Boot.Node || tags[cloud.MarkLaunch] != string(r.ID) || tags[cloud.MarkCluster] != cluster {
			t.Errorf("the %s is marked %v", kind, tags)
		}
	}
}

// TestCrashRightAfterRunInstances: the next life finds the instance by the launch's token and makes no other.
func TestCrashRightAfterRunInstances(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	r := request(1, definition("c5.large", false))
	a.cloud.Fail(fakecloud.OpLaunch, fakecloud.Fault{Lost: true}, fakecloud.Fault{Lost: true}, fakecloud.Fault{Lost: true})
	if _, err := a.open(t, cluster).Launch(t.Context(), r); provision.FaultOf(err) != provision.FaultTransient {
		t.Errorf("a lost answer is %v", err)
	}
	r.Again = true
	i := launch(t, a.open(t, cluster), r)
	if a.cloud.Made() != 1 || i.ID != r.ID {
		t.Errorf("%d instances were made; found is %+v", a.cloud.Made(), i)
	}
}

// TestTokenThatWasUsed: by a launch with other parameters, it leads to that one's instance; by one whose instance is over, to that; another market or
// type is another token.
func TestTokenThatWasUsed(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{Ends: time.Second})
	p := a.open(t, cluster)
	r := request(1, definition("c5.large", false))
	first := launch(t, p, r)
	r.Again, r.Boot.Coordinator = true, "elsewhere.example.org:7443"
	if again := launch(t, p, r); again.Handle != first.Handle || again.ID != r.ID {
		t.Errorf("with another address of the coordinator it is %+v", again)
	}
	r.Definition = definition("c5.large", true)
	if spot := launch(t, p, r); spot.Handle == first.Handle {
		t.Error("spot and on demand are one instance")
	}
	r.Definition = definition("c5.large", false)
	a.cloud.Break(string(first.Handle), fakecloud.NeverFit)
	a.cloud.Advance(time.Minute)
	over := launch(t, p, r)
	if over.Handle != first.Handle || over.State != provision.StateGone || over.Failed != provision.FaultNoCapacity || over.Detail == "" {
		t.Errorf("one that is over is %+v", over)
	}
	a.cloud.Advance(2 * time.Hour)
	if _, err := p.Launch(t.Context(), r); provision.FaultOf(err) != provision.FaultInterrupted {
		t.Errorf("one that is over and forgotten: %v", err)
	}
	if a.cloud.Made() != 2 {
		t.Errorf("%d instances were made", a.cloud.Made())
	}
}

// TestLaunchedAndNotYetVisible: it is listed, and its release repeated, until it can be seen; one that never comes to sight is no longer told of.
func TestLaunchedAndNotYetVisible(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{Appears: time.Minute})
	p := a.open(t, cluster)
	i := launch(t, p, request(1, definition("c5.large", false)))
	list, err := p.List(t.Context())
	if err != nil || len(list) != 1 || list[0].Handle != i.Handle || list[0].State != provision.StateStarting {
		t.Errorf("just launched, the list is %+v, %v", list, err)
	}
	if err := p.Release(t.Context(), i.Handle); provision.FaultOf(err) != provision.FaultTransient {
		t.Errorf("released before it is known: %v", err)
	}
	a.cloud.Advance(70 * time.Second)
	if err := p.Release(t.Context(), i.Handle); err != nil || a.cloud.Live() != 0 {
		t.Errorf("released when it is known: %v, %d live", err, a.cloud.Live())
	}
	never := newAccount(t, fakecloud.Options{Appears: time.Hour})
	p = never.open(t, cluster)
	i = launch(t, p, request(2, definition("c5.large", false)))
	never.cloud.Advance(cloud.Unseen + time.Second)
	if list, err := p.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("after the grace period the list is %+v, %v", list, err)
	}
	if err := p.Release(t.Context(), i.Handle); provision.FaultOf(err) != provision.FaultNotFound {
		t.Errorf("after the grace period: %v", err)
	}
}

// TestNoCapacityIsRemembered: told at once, with one call; the offer rests for minutes, in its zone and market alone, and other definitions of it ask no more.
func TestNoCapacityIsRemembered(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	p := a.open(t, cluster)
	a.cloud.Empty("c5.large", "", fakecloud.Spot, true)
	spot, demand := definition("c5.large", true), definition("c5.large", false)
	if _, err := p.Launch(t.Context(), request(1, spot)); provision.FaultOf(err) != provision.FaultNoCapacity {
		t.Fatalf("launched: %v", err)
	}
	o := a.offer(t, p, spot)
	if o.Available || !strings.Contains(o.Why, "no spot capacity") || !o.Until.After(a.cloud.Now()) || o.Until.After(a.cloud.Now().Add(5*time.Minute)) {
		t.Errorf("the offer is %+v", o)
	}
	other := spot
	other.ID = "another-of-the-same"
	if _, err := p.Launch(t.Context(), request(2, other)); provision.FaultOf(err) != provision.FaultNoCapacity || a.cloud.Calls(fakecloud.OpLaunch) != 1 {
		t.Errorf("another definition: %v after %d calls", err, a.cloud.Calls(fakecloud.OpLaunch))
	}
	if o := a.offer(t, p, demand); !o.Available {
		t.Errorf("on demand is offered as %+v", o)
	}
	launch(t, p, request(3, demand))
	a.cloud.Empty("c5.large", "", fakecloud.Spot, false)
	a.cloud.Advance(cloud.EmptyFor)
	if o := a.offer(t, p, spot); !o.Available {
		t.Errorf("later the offer is %+v", o)
	}
	launch(t, p, request(4, spot))
}

// TestWrongClockIsNotWrongKeys: what EC2 says to both is told apart by the time that it gives, and the SDK's signatures follow its clock.
func TestWrongClockIsNotWrongKeys(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	p := a.open(t, cluster)
	for range attempts {
		a.cloud.Fail(fakecloud.OpList, fakecloud.Fault{Refuse: fakecloud.ClockSkew})
	}
	_, err := p.List(t.Context())
	if provision.FaultOf(err) != provision.FaultClockSkew || !strings.Contains(fmt.Sprint(err), "-10") || !strings.Contains(fmt.Sprint(err), "seconds") {
		t.Errorf("17 minutes off: %v", err)
	}
	a.front.Skew = -40 * time.Minute
	p = a.open(t, cluster)
	if _, err := p.List(t.Context()); err != nil {
		t.Errorf("signed again by the provider's clock: %v", err)
	}
}

// TestOneQuestionForAllInstances: a tick with 500 that start asks once, and an account's limit is kept to, also by ticks that hurry.
func TestOneQuestionForAllInstances(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{Page: 1000, Boots: time.Hour})
	a.front.Bucket = 50
	p := a.open(t, cluster)
	for n := range 500 {
		if _, err := a.cloud.Launch(fakecloud.Ask{Type: "c5.large", Tags: map[string]string{cloud.MarkCluster: cluster, cloud.MarkLaunch: fmt.Sprintf("l%016x", n)}}); err != nil {
			t.Fatal(err)
		}
	}
	for range 20 {
		list, err := p.List(t.Context())
		if err != nil || len(list) != 500 {
			t.Fatalf("%d are listed, %v", len(list), err)
		}
	}
	if asked := a.cloud.Calls(fakecloud.OpList); asked != 20 {
		t.Errorf("20 lists asked %d times", asked)
	}
	a.front.Bucket = 1
	var err error
	for range 3 {
		if list, now := p.List(t.Context()); now != nil {
			err = now
			if list != nil {
				t.Errorf("a refused list is %+v", list)
			}
		}
	}
	if provision.FaultOf(err) != provision.FaultThrottled {
		t.Errorf("asked too often: %v", err)
	}
}

// TestTerminateThatFails: nothing counts as gone before EC2 says so, however often the call fails on the way.
func TestTerminateThatFails(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{Ends: time.Hour})
	p := a.open(t, cluster)
	i := launch(t, p, request(1, definition("c5.large", false)))
	a.cloud.Fail(fakecloud.OpRelease, fakecloud.Fault{Refuse: fakecloud.Denied})
	if err := p.Release(t.Context(), i.Handle); provision.FaultOf(err) != provision.FaultDenied {
		t.Errorf("refused: %v", err)
	}
	if err := p.Release(t.Context(), i.Handle); err != nil {
		t.Error(err)
	}
	if list, err := p.List(t.Context()); err != nil || len(list) != 1 || list[0].State != provision.StateEnding || list[0].Failed != provision.FaultNone {
		t.Errorf("while it ends, which may take long, the list is %+v, %v", list, err)
	}
}

// TestOffers: what cannot be had is there with its reason; what nobody knows is not zero.
func TestOffers(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	p := a.open(t, cluster)
	with := func(id, typ string, change func(*spec.AWS), cost *float64) coordinator.Definition {
		d := definition(typ, false)
		s := d.Spec.(spec.AWS)
		change(&s)
		d.ID, d.Spec, d.CostPerHour = coordinator.DefinitionID(id), s, cost
		return d
	}
	own, listed, nothing := 0.05, 0.085, 0.0
	fromCatalogue := func(d coordinator.Definition) coordinator.Definition { d.CostListed = true; return d }
	defs := []coordinator.Definition{
		fromCatalogue(with("plain", "c5.large", func(*spec.AWS) {}, &listed)), with("as listed", "c5.large", func(s *spec.AWS) { s.Spot = true }, &listed),
		with("free", "c5.large", func(*spec.AWS) {}, &nothing), with("own price", "c5.large", func(*spec.AWS) {}, &own),
		fromCatalogue(with("spot", "c5.large", func(s *spec.AWS) { s.Spot = true }, &listed)),
		fromCatalogue(with("zoned spot", "c5.large", func(s *spec.AWS) { s.Spot, s.Zone = true, "us-east-1c" }, &listed)),
		with("new type", "z99.large", func(*spec.AWS) {}, nil), with("no image", "c5.large", func(s *spec.AWS) { s.ImageID = "" }, nil),
		with("other region", "c5.large", func(s *spec.AWS) { s.Region = "eu-west-1" }, nil), with("other zone", "c5.large", func(s *spec.AWS) { s.Zone = "us-east-1f" }, nil),
		with("absent", "p5.48xlarge", func(*spec.AWS) {}, nil), with("metal", "c5.metal", func(*spec.AWS) {}, nil),
	}
	offers, err := p.Offers(t.Context(), defs)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range offers {
		price := "?"
		if o.CostPerHour != nil {
			price = fmt.Sprintf("%.4f", *o.CostPerHour)
		}
		got = append(got, fmt.Sprintf("%s %t %s %s", o.Definition, o.Available, price, o.Why))
	}
	want := []string{"plain true 0.0850 ", "as listed true 0.0850 ", "free true 0.0000 ", "own price true 0.0500 ", "spot true 0.0283 ", "zoned spot true 0.0312 ", "new type true ? ",
		"no image false 0.0850 its provisionerSpec names no imageId to boot from",
		"other region false 0.0850 it is about region eu-west-1 and its backend about us-east-1: give it a backend of its region",
		"other zone false 0.0850 zone us-east-1f has no c5.large", "absent false 55.0400 region us-east-1 has no p5.48xlarge", "metal true 4.0800 "}
	if !slices.Equal(got, want) {
		t.Errorf("offers are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if h := offers[6].Hardware; h == nil || h.Cores != 2 || h.Threads != 4 || !h.Estimated || h.Memory >= 16<<30 || h.Devices[coordinator.DeviceNVIDIA] != 2 {
		t.Errorf("the hardware of a type that is newer than the catalogue is %+v", h)
	}
	asked := a.cloud.Calls(fakecloud.OpTypes)
	for range 20 {
		if _, err := p.Offers(t.Context(), defs); err != nil {
			t.Fatal(err)
		}
		a.cloud.Advance(10 * time.Second)
	}
	if again := a.cloud.Calls(fakecloud.OpTypes) - asked; again != 0 {
		t.Errorf("asked again %d times within minutes", again)
	}
	a.cloud.Advance(offeringsFor)
	for range 12 {
		a.cloud.Fail(fakecloud.OpTypes, fakecloud.Fault{Refuse: fakecloud.Denied})
	}
	if offers, err := p.Offers(t.Context(), defs); err != nil || !offers[0].Available || offers[4].CostPerHour != nil {
		t.Errorf("when nothing more can be asked: %+v, %v", offers, err)
	}
}

// TestOpening: what is missing is told before anything is asked of the cloud.
func TestOpening(t *testing.T) {
	a := newAccount(t, fakecloud.Options{})
	for _, name := range []string{"AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_CONFIG_FILE", "/dev/null")
	empty := t.TempDir() + "/empty"
	if err := os.WriteFile(empty, []byte("[default]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		b    spec.Backend
		want string
	}{
		"no region":     {spec.Backend{Name: "west", Kind: spec.KindAWS, CredentialFile: a.keys}, "cannot open backend west: it has no region"},
		"no file":       {spec.Backend{Name: "west", Kind: spec.KindAWS, Region: region, CredentialFile: "/nowhere"}, "cannot read credentials"},
		"no keys":       {spec.Backend{Kind: spec.KindAWS, Region: region, CredentialFile: empty}, "has no aws_access_key_id"},
		"region is all": {spec.Backend{Kind: spec.KindAWS, Region: region, CredentialFile: a.keys}, ""},
	} {
		_, err := New(t.Context(), Options{Backend: tt.b, Cluster: cluster, Now: time.Now})
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && strings.Contains(err.Error(), "not-a-secret") {
			t.Errorf("%s: the error tells a secret: %v", name, err)
		}
	}
}

// TestPolicyInTheDocs: the policy that docs/aws.md gives allows exactly what the calls take.
func TestPolicyInTheDocs(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/aws.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```json\n")
	text, _, ok := strings.Cut(rest, "```")
	var policy struct {
		Version   string
		Statement []struct {
			Sid, Effect string
			Action      []string
			Resource    any
			Condition   map[string]map[string]any
		}
	}
	if err := json.Unmarshal([]byte(text), &policy); !ok || err != nil || policy.Version != "2012-10-17" {
		t.Fatalf("docs/aws.md has no policy: %v", err)
	}
	var allowed []string
	for _, s := range policy.Statement {
		allowed = append(allowed, s.Action...)
		limited := len(s.Condition) > 0
		for _, action := range s.Action {
			if !strings.HasPrefix(action, "ec2:Describe") && !limited && fmt.Sprint(s.Resource) == "*" {
				t.Errorf("%s is allowed on everything", action)
			}
		}
	}
	slices.Sort(allowed)
	allowed = slices.Compact(allowed)
	a := newAccount(t, fakecloud.Options{})
	p := a.open(t, cluster)
	d := definition("z99.large", true)
	s := d.Spec.(spec.AWS)
	s.InstanceProfile = "node"
	d.Spec = s
	a.offer(t, p, d)
	i := launch(t, p, request(1, d))
	if _, err := p.List(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Release(t.Context(), i.Handle); err != nil {
		t.Fatal(err)
	}
	if used := a.front.Permissions(); !slices.Equal(used, allowed) {
		t.Errorf("the calls take %v\nthe policy allows %v", used, allowed)
	}
}

// TestAnswersOfOthers: a page that is not EC2's is no list without instances, and one without end is not read to its end.
func TestAnswersOfOthers(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(w io.Writer){
		"a page":  func(w io.Writer) { fmt.Fprint(w, "<html><body>log in first</body></html>") },
		"half":    func(w io.Writer) { fmt.Fprint(w, `<?xml version="1.0"?><DescribeInstancesResponse`) },
		"xml":     func(w io.Writer) { fmt.Fprint(w, `<?xml version="1.0"?><Error><Code>x</Code></Error>`) },
		"nothing": func(io.Writer) {},
		"without end": func(w io.Writer) {
			_, err := fmt.Fprint(w, "<DescribeInstancesResponse>")
			for err == nil {
				_, err = w.Write(bytes.Repeat([]byte("<a>b</a>"), 1<<16))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { answer(w) }))
			t.Cleanup(srv.Close)
			keys := filepath.Join(t.TempDir(), "keys")
			if err := os.WriteFile(keys, []byte("[default]\naws_access_key_id = AKIAEXAMPLE\naws_secret_access_key = secret\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			p, err := New(t.Context(), Options{Backend: spec.Backend{Kind: spec.KindAWS, Region: "us-east-1", Endpoint: srv.URL, CredentialFile: keys}, Cluster: "c", Now: time.Now, Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			if list, err := p.List(t.Context()); err == nil || provision.FaultOf(err) != provision.FaultTransient {
				t.Errorf("the list is %v, %v", list, err)
			}
		})
	}
}
