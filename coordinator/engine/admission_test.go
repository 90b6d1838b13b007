package engine

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"substrate/coordinator"
	"substrate/coordinator/catalogue"
	"substrate/coordinator/config"
	"substrate/coordinator/grant"
	"substrate/coordinator/sched"
	"substrate/coordinator/store"
)

// expandedConfig becomes at least n definitions out of a few that are written, by wildcards.
func expandedConfig(types, n int) string {
	var b strings.Builder
	b.WriteString("nodeAnnotations: {site: north}\ndefinitions:\n")
	for i := 0; i*types < n; i++ {
		fmt.Fprintf(&b, `  - id: pool%d-${spec.instanceType}
    provisioner: aws
    annotations: {tier: burst, pool: "%d"}
    provisionerSpec: {instanceType: "*", spot: true}
    policy: |-
      request.owner.organization_id in ["physics", "default"] &&
      request.job_resource.cpu.cores <= 64
`, i, i)
	}
	return b.String()
}

// distinctConfig has n static definitions, each with a condition and a policy of its own.
func distinctConfig(n int) string {
	var b strings.Builder
	b.WriteString("definitions:\n")
	for i := range n {
		fmt.Fprintf(&b, `  - id: d%05d
    provisioner: static
    annotations: {row: "r%d", rack: "k%d"}
    policy: |-
      request.owner.organization_id in ["physics", "default"] &&
      request.job_resource.cpu.cores <= %d &&
      request.job_annotations["project"] != "p%05d"
    provisionerSpec:
      condition: |-
        hostname() == "n%05d" && cpuinfo.cpu_cores >= %d && osrelease.id == "rocky"
      costPerHour: %g
`, i, i/100, i/10, 1+i%128, i, i, 1+i%64, float64(i%500)/100)
	}
	return b.String()
}

// sharedConfig has n static definitions that share a few policies.
func sharedConfig(n int) string {
	var b strings.Builder
	b.WriteString("definitions:\n")
	for i := range n {
		fmt.Fprintf(&b, "  - id: d%05d\n    provisioner: static\n    annotations: {rack: \"k%d\"}\n    policy: request.job_resource.cpu.cores <= %d\n"+
			"    provisionerSpec: {condition: hostname() == \"n%05d\", costPerHour: %g}\n", i, i/10, 1+i%16, i, float64(i%500)/100)
	}
	return b.String()
}

func checkedConfig(t testing.TB, text string) *config.Checked {
	t.Helper()
	c, ds := config.Parse("c.yaml", []byte(text), config.Options{})
	if c == nil {
		t.Fatal(ds)
	}
	return c
}

// admissionState is a configuration with one node for each static definition, and a grant that names the first
// few definitions of a file or all.
func admissionState(t testing.TB, checked *config.Checked, named int) (*state, grant.Document) {
	t.Helper()
	s := &state{config: activate(checked), admission: 1}
	doc := grant.Document{Version: grant.Version, OrganizationID: "o", ClusterID: "c", Serial: 1, Definitions: grant.Entries(checked.Config.Definitions[:named])}
	for i, id := range s.config.order {
		n := newNode(coordinator.NodeID(fmt.Sprintf("n%05d", i)))
		n.known, n.record.Definition = true, id
		n.capacity = coordinator.Hardware{Cores: coordinator.Cores(8 + i%3*8), Threads: uint32(16 + i%3*16), Memory: 64 << 30}
		s.config.nodesOf[id] = []*node{n}
	}
	return s, doc
}

func requestOf(i int) *job {
	w := &submission{id: "w"}
	w.record.Owner = coordinator.Owner{Organization: "o", OrganizationSlug: "default"}
	return &job{workflow: w, spec: &coordinator.JobSpec{Name: "j", Kind: coordinator.KindJob, Class: coordinator.ClassOnDemand, Nodes: 1,
		Resources:   coordinator.Resources{Cores: coordinator.Cores(1 + i%20), Memory: 1 << 30},
		Annotations: map[string]string{"project": fmt.Sprintf("p%05d", i)}, Walltime: time.Hour}}
}

// naiveAdmission asks every definition everything, with its reason: what the index and the sharing save.
func naiveAdmission(s *state, j *job, doc grant.Document) (admissible []coordinator.DefinitionID) {
	for _, d := range s.config.byCost {
		if o := s.askWith(j, doc, nil).outcome(d); o.Admissible {
			admissible = append(admissible, d.ID)
		}
	}
	return admissible
}

// TestAdmissionIsWhatEachDefinitionSays: the index and the shared answers change nothing.
func TestAdmissionIsWhatEachDefinitionSays(t *testing.T) {
	checked := checkedConfig(t, sharedConfig(300)+`  - id: own
    provisioner: static
    policy: definition.id == "own" && request.job_resource.cpu.cores < 9
    provisionerSpec: {condition: 'true'}
  - id: other
    provisioner: static
    policy: definition.id == "own" && request.job_resource.cpu.cores < 9
    provisionerSpec: {condition: 'true'}
`+"  - {id: 'x-${spec.instanceType}', provisioner: aws, provisionerSpec: {instanceType: t3.*}}\n")
	for _, named := range []int{0, 1, 150, 301, len(checked.Config.Definitions)} {
		s, doc := admissionState(t, checked, named)
		for i := range 40 {
			j := requestOf(i)
			if i%2 == 0 {
				j.spec.Match = map[string]string{"rack": fmt.Sprintf("k%d", i)}
			}
			got, want := s.askWith(j, doc, nil).admission(), naiveAdmission(s, j, doc)
			if !slices.Equal(got.admissible, want) {
				t.Fatalf("%d named, request %d: %v, one by one %v", named, i, got.admissible, want)
			}
		}
	}
}

// TestMissingByShape: nodes of one shape get one answer, those of another their own.
func TestMissingByShape(t *testing.T) {
	s, doc := admissionState(t, checkedConfig(t, sharedConfig(6)), 6)
	for i, n := range s.config.nodesOf["d00004"] {
		n.capacity.Devices = map[string]uint32{"x/gpu": uint32(i + 2)}
	}
	j := requestOf(0)
	j.spec.Resources.Devices = map[string]uint32{"x/gpu": 2}
	if got := s.askWith(j, doc, nil).admission().admissible; !slices.Equal(got, []coordinator.DefinitionID{"d00004"}) {
		t.Errorf("%v", got)
	}
	q := s.askWith(j, doc, nil)
	for _, members := range s.config.nodesOf {
		for _, n := range members {
			if got, want := len(q.missing(n)), len(sched.Missing(n.schedNode(), j.spec.Resources)); got != want {
				t.Errorf("%s lacks %d, alone %d", n.id, got, want)
			}
		}
	}
}

// BenchmarkAdmission is one request over 10,000 definitions, another one each time.
func BenchmarkAdmission(b *testing.B) {
	const n = 10_000
	for _, c := range []struct {
		name, text string
		named      int
	}{
		{"shared/granted-all", sharedConfig(n), n}, {"shared/granted-100", sharedConfig(n), 100},
		{"distinct/granted-all", distinctConfig(n), n}, {"distinct/granted-100", distinctConfig(n), 100},
	} {
		checked := checkedConfig(b, c.text)
		s, doc := admissionState(b, checked, c.named)
		for _, how := range []struct {
			name string
			ask  func(*job)
		}{
			{"indexed", func(j *job) { s.askWith(j, doc, nil).admission() }},
			{"naive", func(j *job) { naiveAdmission(s, j, doc) }},
		} {
			b.Run(c.name+"/"+how.name, func(b *testing.B) {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				var took, busy []time.Duration
				for i := 0; b.Loop(); i++ {
					j := requestOf(i)
					begin, cpu := time.Now(), threadTime(b)
					how.ask(j)
					took, busy = append(took, time.Since(begin)), append(busy, threadTime(b)-cpu)
				}
				slices.Sort(took)
				slices.Sort(busy)
				b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
				b.ReportMetric(float64(busy[len(busy)*99/100].Microseconds())/1000, "p99-cpu-ms")
				b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
			})
		}
	}
}

// threadTime is the processor time of this thread, which other programs on the machine do not change.
func threadTime(b *testing.B) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		b.Fatal(err)
	}
	return time.Duration(ts.Nano())
}

// BenchmarkSetConfig is from the file's bytes to the answer: parsed, checked, stored, published.
func BenchmarkSetConfig(b *testing.B) {
	ec2, err := catalogue.Embedded()
	if err != nil {
		b.Fatal(err)
	}
	for name, text := range map[string]string{
		"expanded": expandedConfig(len(ec2.Of("aws").Match("*")), 10_000), "distinct": distinctConfig(10_000),
		"five wildcards": expandedConfig(len(ec2.Of("aws").Match("*")), 5*len(ec2.Of("aws").Match("*"))),
	} {
		b.Run(name, func(b *testing.B) {
			c := newCluster(b, store.NewMemory())
			c.set("definitions: []\n") // the first one is granted too
			for i := 0; b.Loop(); i++ {
				// Other text each time, so that nothing is taken over from the revision before.
				c.set(strings.ReplaceAll(text, "request.owner", fmt.Sprintf("%d != 0 && request.owner", i+1)))
			}
		})
	}
}

// TestExpandedDefinitionsAreSmall: what ten thousand expanded definitions keep in memory, worked out.
func TestExpandedDefinitionsAreSmall(t *testing.T) {
	ec2, err := catalogue.Embedded()
	if err != nil {
		t.Fatal(err)
	}
	text := []byte(expandedConfig(len(ec2.Of("aws").Match("*")), 10_000))
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	checked, ds := config.Parse("c.yaml", text, config.Options{Catalogues: ec2})
	if checked == nil {
		t.Fatal(ds)
	}
	a := activate(checked)
	kept := heap() - before
	n := len(a.Definitions)
	if mib := float64(kept) / (1 << 20); n < 10_000 || mib >= 20 {
		t.Errorf("%d definitions keep %.1f MiB, the bound is 20", n, mib)
	} else {
		t.Logf("%d definitions keep %.1f MiB", n, mib)
	}
	runtime.KeepAlive(ec2)
	runtime.KeepAlive(text)
	runtime.KeepAlive(a)
}
