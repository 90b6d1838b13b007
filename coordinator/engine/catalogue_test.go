package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"substrate/coordinator"
	"substrate/coordinator/catalogue"
	"substrate/coordinator/provision"
	"substrate/coordinator/spec"
	"substrate/coordinator/store"
	"substrate/tests/fakecloud"
)

// typing is a cloud that tells of its types as a test says.
type typing struct {
	mu    sync.Mutex
	list  []catalogue.Type
	err   error
	asked int
	mute  bool // its provisioners tell of none
}

func (f *typing) tell(list ...catalogue.Type) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list, f.err = list, nil
}

func (f *typing) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func (f *typing) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked
}

func (f *typing) Types(context.Context) ([]catalogue.Type, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	return slices.Clone(f.list), f.err
}

type typingProvisioner struct {
	*fakecloud.Direct
	*typing
}

func (f *typing) cluster(t testing.TB, st store.Store) *cluster {
	return newClusterWith(t, st, func(o *Options) { f.provide(t, o) })
}

func (f *typing) provide(t testing.TB, o *Options) {
	cloud := fakecloud.New(fakecloud.Options{})
	t.Cleanup(cloud.Close)
	o.Provisioners = Provisioners{Kinds: []string{spec.KindAWS, spec.KindGCP}, AgentAddress: func() string { return "coordinator:8443" },
		Open: func(context.Context, spec.Backend, bool) (provision.Provisioner, error) {
			direct := &fakecloud.Direct{Cloud: cloud, Cluster: "c", Every: 20 * time.Millisecond}
			if f.mute {
				return direct, nil
			}
			return typingProvisioner{direct, f}, nil
		}}
}

func someType(name string, cores uint32, zones ...string) catalogue.Type {
	threads, memory := 2*cores, coordinator.Bytes(uint64(cores)*8*gib)
	return catalogue.Type{Name: name, VCPUs: &threads, Cores: &cores, Memory: &memory, Arch: "amd64", Zones: zones}
}

const wildGCP = `
backends: [{name: google, kind: gcp, project: p, region: r}]
definitions:
  - {id: 'g-${spec.machineType}', provisioner: gcp, provisionerSpec: {machineType: 'n2-*', zone: r-a, image: i}}
`

func (c *cluster) definitions() []DefinitionView {
	c.t.Helper()
	_, list, err := c.engine.Definitions(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	return list
}

func (c *cluster) ids() string {
	var out []string
	for _, d := range c.definitions() {
		out = append(out, string(d.ID))
	}
	return strings.Join(out, " ")
}

func (c *cluster) refresh() CatalogueView {
	c.t.Helper()
	list, err := c.engine.RefreshCatalogues(c.t.Context(), c.admin, nil)
	if err != nil || len(list) != 1 {
		c.t.Fatalf("%+v, %v", list, err)
	}
	return list[0]
}

// TestWildcardAsksTheCloud: whoever is the first to write a pattern for a place has it asked, and a place that cannot be asked refuses the
// configuration with what to do.
func TestWildcardAsksTheCloud(t *testing.T) {
	t.Parallel()
	f := &typing{}
	c := f.cluster(t, store.NewMemory())
	refused := func(yaml string, parts ...string) {
		t.Helper()
		_, err := c.engine.SetConfig(t.Context(), c.admin, SetConfig{YAML: []byte(yaml), File: "c.yaml"})
		_, planned := c.engine.PlanConfig(t.Context(), c.admin, "c.yaml", []byte(yaml), 5)
		for _, err := range []error{err, planned} {
			if coordinator.ErrorKindOf(err) != coordinator.ErrInvalid {
				t.Fatalf("%v", err)
			}
			for _, part := range parts {
				if !strings.Contains(fmt.Sprint(err), part) {
					t.Errorf("the refusal does not say %q: %v", part, err)
				}
			}
		}
	}
	f.fail(errors.New("the network is down"))
	refused(wildGCP, "c.yaml:4:", "there is no catalogue of gcp types to expand n2-*", "backend google could not be asked", "the network is down", "set it again when backend google answers")
	f.fail(provision.Errorf(provision.FaultDenied, "tell of machine types", "compute.machineTypes.list is missing"))
	refused(wildGCP, "compute.machineTypes.list is missing")
	f.tell()
	refused(wildGCP, "the answer has no types")
	f.tell(someType("e2-small", 1))
	refused(wildGCP, "no instance type matches n2-*")
	azure := strings.NewReplacer("gcp", "azure", "machineType", "vmSize", ", zone: r-a", "", "project: p, region: r", "subscription: s").Replace(wildGCP)
	refused(azure, "backend not in this build", "name one exact type")
	f.tell(someType("e2-small", 1), someType("n2-b", 4, "r-a", "r-b"), someType("n2-a", 2, "r-a"), someType("n2-c", 8, "r-b"))
	c.refreshAll()
	plan, err := c.engine.PlanConfig(t.Context(), c.admin, "c.yaml", []byte(wildGCP), 1)
	if err != nil || len(plan.Wildcards) != 1 {
		t.Fatalf("%+v, %v", plan, err)
	}
	if w := plan.Wildcards[0]; w.Count != 2 || len(w.Members) != 1 || w.Members[0].Type != "n2-a" || w.Source != "provider" || w.Version == 0 || w.Told == "" ||
		fmt.Sprint(w.Flags) != "[{price unknown 2 [n2-a n2-b]}]" || fmt.Sprint(w.Without) != "[{not in r-a 1 [n2-c]}]" {
		t.Errorf("%+v", w)
	}
	c.set(wildGCP)
	list := c.definitions()
	if len(list) != 2 || c.ids() != "g-n2-a g-n2-b" {
		t.Fatalf("definitions are %s", c.ids())
	}
	for _, d := range list {
		if d.Source != catalogue.SourceProvider || d.SourceAt.IsZero() || d.Capacity == nil || !d.Capacity.Estimated || d.CostPerHour != nil {
			t.Errorf("%+v", d)
		}
	}
	views, err := c.engine.Catalogues(t.Context(), c.admin)
	if err != nil || len(views) != 1 || views[0].Backend != "google" || views[0].Source != "provider" || views[0].Types != 4 || views[0].Asked.IsZero() {
		t.Errorf("%+v, %v", views, err)
	}
	types, _, err := c.engine.InstanceTypes(t.Context(), c.admin, ListTypes{Pattern: "n2-*"}, Page{})
	if err != nil || len(types) != 3 || types[0].Name != "n2-a" || types[0].Source != catalogue.SourceProvider || types[0].CostPerHour != nil {
		t.Errorf("%+v, %v", types, err)
	}
}

// refreshAll waits for nothing: places that no configuration uses are asked through a plan.
func (c *cluster) refreshAll() {
	c.t.Helper()
	b := spec.Backend{Name: "google", Kind: spec.KindGCP, Project: "p", Region: "r"}
	if _, err := c.engine.askBackend(c.t.Context(), b); err != nil {
		c.t.Fatal(err)
	}
}

// TestTellsOfNone: a backend that cannot tell of types has no wildcards.
func TestTellsOfNone(t *testing.T) {
	t.Parallel()
	f := &typing{mute: true}
	c := f.cluster(t, store.NewMemory())
	_, err := c.engine.SetConfig(t.Context(), c.admin, SetConfig{YAML: []byte(wildGCP), File: "c.yaml"})
	if coordinator.ErrorKindOf(err) != coordinator.ErrInvalid || !strings.Contains(fmt.Sprint(err), "tell of none") || !strings.Contains(fmt.Sprint(err), "name one exact type") {
		t.Error(err)
	}
}

// TestRefreshedWildcard: an answer that differs makes other definitions of the same revision, and an event says which. What the provider does not tell
// of any more is unavailable as long as something needs it, and then it goes.
func TestRefreshedWildcard(t *testing.T) {
	t.Parallel()
	f := &typing{}
	a, b, d := someType("n2-a", 2, "r-a"), someType("n2-b", 4, "r-a"), someType("n2-d", 16, "r-a")
	f.tell(a, b)
	st := store.NewMemory()
	c := f.cluster(t, st)
	c.setGranted(wildGCP)
	revision, _, err := c.engine.Definitions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w := c.start(asks("cpu: {cores: 3}")) // fits g-n2-b alone
	f.tell(a, d)
	if v := c.refresh(); v.Version != 2 || v.Types != 2 || v.Missing != 1 || !strings.Contains(v.Text, "1 new (n2-d), 1 no longer told of (n2-b)") {
		t.Errorf("%+v", v)
	}
	if c.ids() != "g-n2-a g-n2-b g-n2-d" {
		t.Errorf("definitions are %s", c.ids())
	}
	c.eventually("the new definition's nodes are asked for", func() bool {
		list := c.definitions()
		return len(list) == 3 && strings.Contains(list[2].State, "there is no type")
	})
	if !c.told("catalogue-changed", "new: g-n2-d, unavailable: g-n2-b") {
		t.Errorf("nothing is told:\n%s", describe(c.events("")))
	}
	c.lacks("g-n2-b", "n2-b is not to be had")
	c.waitsFor(w.ID, "n2-b is not to be had: the provider has not told of it since")
	if now, _, err := c.engine.Definitions(t.Context()); err != nil || now != revision {
		t.Errorf("it is revision %d, and was %d: %v", now, revision, err)
	}
	if v := c.refresh(); v.Version != 2 || v.Text != "nothing differs" {
		t.Errorf("the same answer again: %+v", v)
	}
	ids := c.ids()
	f.fail(errors.New("the network is down"))
	c.close()

	next := f.cluster(t, st) // which cannot be asked
	if next.ids() != ids {
		t.Errorf("in the next life definitions are %s", next.ids())
	}
	next.refresh()
	status, err := next.engine.Status(t.Context())
	if err != nil || !slices.ContainsFunc(status.Warnings, func(w string) bool {
		return strings.Contains(w, "catalogue of google: not to be had since") && strings.Contains(w, "the network is down") && strings.Contains(w, "what was told at")
	}) {
		t.Errorf("%v, %v", status.Warnings, err)
	}
	if next.ids() != ids {
		t.Errorf("without an answer definitions are %s", next.ids())
	}
	f.tell(a, d)
	next.ahead.Add(int64(catalogue.KeptFor + time.Hour))
	next.refresh()
	if next.ids() != ids {
		t.Errorf("work waits for one, and definitions are %s", next.ids())
	}
	if _, err := next.engine.CancelWorkflow(t.Context(), next.admin, string(w.ID), ""); err != nil {
		t.Fatal(err)
	}
	next.refresh()
	if next.ids() != "g-n2-a g-n2-d" || !next.told("catalogue-changed", "1 forgotten (n2-b)") || !next.told("catalogue-answered", "told of again") {
		t.Errorf("definitions are %s; events\n%s", next.ids(), describe(next.events("")))
	}
}

// lacks checks that one definition is unavailable, and says why.
func (c *cluster) lacks(id coordinator.DefinitionID, why string) {
	c.t.Helper()
	for _, v := range c.definitions() {
		if (v.Unavailable != "") != (v.ID == id) || v.ID == id && !strings.Contains(v.State, why) {
			c.t.Errorf("%s: %q, %q", v.ID, v.Unavailable, v.State)
		}
	}
}

// TestDoubtfulAnswer: an answer with nothing in it never counts, and one with less than half of what there was only when it is repeated.
func TestDoubtfulAnswer(t *testing.T) {
	t.Parallel()
	f := &typing{}
	var all []catalogue.Type
	for n := range 9 {
		all = append(all, someType(fmt.Sprintf("n2-%d", n), 2, "r-a"))
	}
	f.tell(all...)
	c := f.cluster(t, store.NewMemory())
	c.set(wildGCP)
	for _, answer := range [][]catalogue.Type{nil, all[:4], nil, all[:4], all[:4]} {
		f.tell(answer...)
		if v := c.refresh(); v.Types != 9 || v.Trouble == "" || v.Version != 1 {
			t.Fatalf("%d types: %+v", len(answer), v)
		}
	}
	f.tell(all[:4]...)
	if v := c.refresh(); v.Types != 4 || v.Missing != 5 || v.Trouble != "" {
		t.Errorf("the same for the third time: %+v", v)
	}
}

// TestBuiltInGivesWay: what is built in counts until a region has told of its types. Of what the region lacks, the definitions that something needs stay.
func TestBuiltInGivesWay(t *testing.T) {
	t.Parallel()
	f := &typing{}
	f.fail(errors.New("the network is down"))
	c := f.cluster(t, store.NewMemory())
	c.setGranted("backends: [{name: east, kind: aws, region: us-east-1}]\ndefinitions:\n  - {id: '${spec.instanceType}', provisioner: aws, provisionerSpec: {instanceType: 't3.*', imageId: ami-1}}\n" +
		"  - {id: exact, provisioner: aws, provisionerSpec: {instanceType: c5.large, imageId: ami-1}}\n")
	if list := c.definitions(); len(list) != 8 || list[3].Source != catalogue.SourceListed || list[3].CostPerHour == nil {
		t.Fatalf("built in, definitions are %s: %+v", c.ids(), list[3])
	}
	c.start(asks("cpu: {cores: 4}")) // t3.2xlarge alone
	micro, newer := someType("t3.micro", 1, "us-east-1a"), someType("t3.new", 2, "us-east-1a", "us-east-1b")
	count, memory := uint32(2), coordinator.Bytes(gib)
	micro.VCPUs, micro.Memory = &count, &memory
	f.tell(micro, newer)
	c.refresh()
	if c.ids() != "t3.2xlarge t3.micro t3.new exact" {
		t.Errorf("definitions are %s", c.ids())
	}
	for _, d := range c.definitions() {
		gone := d.ID == "t3.2xlarge" || d.ID == "exact"
		if (d.Unavailable != "") != gone || d.Source != catalogue.SourceProvider {
			t.Errorf("%s: %q by %s", d.ID, d.Unavailable, d.Source)
		}
		switch d.ID {
		case "t3.micro":
			if d.CostPerHour == nil || *d.CostPerHour != 0.0104 || d.Capacity.Memory >= catalogue.Usable(1<<30, false)+90<<20 {
				t.Errorf("%+v", d)
			}
		case "t3.new":
			if d.CostPerHour != nil {
				t.Errorf("the price of a type that nobody knows is %g", *d.CostPerHour)
			}
		}
	}
}

// TestAskedDaily: once at the start, where nothing is known, and then a day later, a little more or less.
func TestAskedDaily(t *testing.T) {
	t.Parallel()
	f := &typing{}
	f.tell(someType("n2-a", 2, "r-a"))
	c := f.cluster(t, store.NewMemory())
	c.set(wildGCP)
	asked := f.count()
	c.ahead.Add(int64(20 * time.Hour))
	time.Sleep(1500 * time.Millisecond)
	if f.count() != asked {
		t.Errorf("asked %d times within a day", f.count())
	}
	f.tell(someType("n2-a", 2, "r-a"), someType("n2-e", 2, "r-a"))
	c.ahead.Add(int64(8 * time.Hour))
	c.eventually("it is asked again", func() bool { return c.ids() == "g-n2-a g-n2-e" })
}

// TestAskedAtTheStart: the next life asks soon, unless there is an answer of the last hour.
func TestAskedAtTheStart(t *testing.T) {
	t.Parallel()
	f := &typing{}
	f.tell(someType("n2-a", 2, "r-a"))
	st := store.NewMemory()
	c := f.cluster(t, st)
	c.set(wildGCP)
	c.close()
	f.tell(someType("n2-a", 2, "r-a"), someType("n2-b", 2, "r-a"))
	next := newClusterWith(t, st, func(o *Options) {
		now := o.Now
		o.Now = func() time.Time { return now().Add(2 * time.Hour) }
		f.provide(t, o)
	})
	next.eventually("it is asked soon", func() bool { return next.ids() == "g-n2-a g-n2-b" })
}

// TestCatalogueSchedules: whatever a cloud answers, whoever sets what, and whenever the coordinator dies, the next life has the definitions that this one
// had, a refresh makes no revision, what is told of is there, and a definition that work waits for stays.
func TestCatalogueSchedules(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		f := &typing{}
		names := []string{"n2-a", "n2-b", "n2-c", "n2-d", "n2-e"}
		pick := func(what string, least int) []catalogue.Type {
			var out []catalogue.Type
			for i, name := range rapid.SliceOfNDistinct(rapid.SampledFrom(names), least, -1, rapid.ID[string]).Draw(r, what) {
				out = append(out, someType(name, uint32(2+i), "r-a"))
			}
			return out
		}
		told := pick("first", 1)
		f.tell(told...)
		st := store.NewMemory()
		c := f.cluster(t, st)
		defer func() { c.close() }()
		c.setGranted(wildGCP)
		revision := uint64(1)
		w := c.start(asks("cpu: {cores: 2}"))
		var waited []string // definitions that the work waits for
		for range rapid.IntRange(1, 8).Draw(r, "steps") {
			switch rapid.IntRange(0, 5).Draw(r, "step") {
			case 0, 1:
				told = pick("answer", 0)
				f.tell(told...)
				c.refresh()
			case 2:
				f.fail(errors.New("down"))
				c.refresh()
				f.fail(nil)
			case 3:
				c.ahead.Add(int64(5 * 24 * time.Hour))
				c.refresh()
			case 4:
				before, ahead := c.ids(), c.ahead.Load()
				c.close()
				c = f.cluster(t, st)
				c.ahead.Store(ahead)
				if after := c.ids(); after != before {
					r.Fatalf("definitions were %s and are %s", before, after)
				}
			case 5:
				if !c.set(wildGCP + fmt.Sprintf("nodeAnnotations: {step: %q}\n", rapid.StringMatching("[a-z]{3}").Draw(r, "text"))).Unchanged {
					revision++
				}
			}
			ids := c.ids()
			for _, id := range waited {
				if !slices.Contains(strings.Fields(ids), id) {
					r.Fatalf("work waits for %s, and definitions are %s", id, ids)
				}
			}
			waited = strings.Fields(ids) // each has two cores
			for _, n := range c.knownTypes() {
				if !slices.Contains(waited, "g-"+n) {
					r.Fatalf("%s is told of, and definitions are %s", n, ids)
				}
			}
			if now, _, err := c.engine.Definitions(t.Context()); err != nil || uint64(now) != revision {
				r.Fatalf("it is revision %d, want %d: %v", now, revision, err)
			}
		}
		if _, err := c.engine.CancelWorkflow(t.Context(), c.admin, string(w.ID), ""); err != nil {
			r.Fatal(err)
		}
	})
}

// knownTypes are those that the cloud has told of in its last answer that was taken.
func (c *cluster) knownTypes() (out []string) {
	c.t.Helper()
	types, _, err := c.engine.InstanceTypes(c.t.Context(), c.admin, ListTypes{}, Page{})
	if err != nil {
		c.t.Fatal(err)
	}
	for _, t := range types {
		if t.Missing.IsZero() {
			out = append(out, t.Name)
		}
	}
	return out
}

// TestNewTypesAreDiscovered: where a definition says so, a type that appears is looked at; those that were there are not looked at again.
func TestNewTypesAreDiscovered(t *testing.T) {
	t.Parallel()
	f := &typing{}
	f.tell(someType("n2-a", 2, "r-a"))
	c := f.cluster(t, store.NewMemory())
	c.set(strings.Replace(wildGCP, "provisioner: gcp,", "provisioner: gcp, autoDiscover: true,", 1))
	wished := func() (out []string) {
		if err := c.engine.do(t.Context(), func(t *tx) error {
			for _, d := range t.state.discoveries {
				out = append(out, string(d.Definition))
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return out
	}
	if got := wished(); !slices.Equal(got, []string{"g-n2-a"}) {
		t.Errorf("with the configuration %v", got)
	}
	if err := c.engine.do(t.Context(), func(t *tx) error {
		for id := range t.state.discoveries {
			t.forgetDiscovery(id, "as if it had failed")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	f.tell(someType("n2-a", 2, "r-a"), someType("n2-b", 2, "r-a"))
	c.refresh()
	if got := wished(); !slices.Equal(got, []string{"g-n2-b"}) {
		t.Errorf("with a new type %v", got)
	}
}

// BenchmarkRefresh is an answer that differs, with all of EC2's types and five wildcards over all of them.
func BenchmarkRefresh(b *testing.B) {
	set, err := catalogue.Embedded()
	if err != nil {
		b.Fatal(err)
	}
	f := &typing{}
	all := set.Of(spec.KindAWS).All()
	f.tell(all...)
	c := f.cluster(b, store.NewMemory())
	var text strings.Builder
	text.WriteString("definitions:\n")
	for i := range 5 {
		fmt.Fprintf(&text, "  - {id: 'd%d-${spec.instanceType}', provisioner: aws, provisionerSpec: {instanceType: '*'}}\n", i)
	}
	c.set(text.String())
	for n := 0; b.Loop(); n++ {
		f.tell(all[:len(all)-1-n%2]...)
		if v := c.refresh(); v.Trouble != "" {
			b.Fatal(v.Trouble)
		}
	}
	if n := len(c.definitions()); n < 5*1371 {
		b.Fatalf("%d definitions", n)
	}
}
