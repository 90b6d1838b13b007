package expr

import (
	"fmt"
	"runtime"
	"testing"

	"substrate/hwinfo"
)

func ptr[T any](v T) *T { return &v }

// gpuNode is a node with every fact a usual condition reads.
func gpuNode() hwinfo.Facts {
	f := hwinfo.Facts{
		Hostname: "compute-017", FQDN: "compute-017.example.org",
		CPU: hwinfo.CPU{
			Arch: "amd64", VendorID: "GenuineIntel", ModelName: "Intel(R) Xeon(R) Gold 6130 CPU @ 2.10GHz",
			Flags: []string{"fpu", "avx", "avx2", "avx512f"}, Cores: ptr(32), Sockets: ptr(2), LogicalCPUs: ptr(64),
			CoresPerSocket: ptr(16), ThreadsPerCore: ptr(2), Family: ptr(6), Model: ptr(85), Stepping: ptr(4),
		},
		OSRelease: hwinfo.OSRelease{ID: "ubuntu", IDLike: []string{"debian"}, VersionID: "22.04"},
		Uname:     hwinfo.Uname{Sysname: "Linux", Release: "6.1.0-18-amd64", Machine: "x86_64"},
		PCI:       []hwinfo.PCI{},
	}
	for i := range 40 {
		alias := "pci:v00008086d00002021sv00008086sd00000000bc08sc80i00"
		if i%10 == 0 {
			alias = "pci:v000010DEd000020B2sv000010DEsd00001463bc03sc02i00"
		}
		f.PCI = append(f.PCI, hwinfo.PCI{Address: fmt.Sprintf("0000:%02x:00.0", i), Modalias: alias})
	}
	return f
}

const benchCondition = `hostname() matches "^compute-[0-9]{3}$" && cpuinfo.vendor_id == "GenuineIntel" &&
	cpuinfo.cpu_cores >= 16 && osrelease.id == "ubuntu"`

func BenchmarkConditionMatch(b *testing.B) {
	c, err := CompileCondition(benchCondition)
	if err != nil {
		b.Fatal(err)
	}
	env := NewNodeEnv(gpuNode())
	b.ReportAllocs()
	for b.Loop() {
		if c.Match(env) != True {
			b.Fatal("no match")
		}
	}
}

func BenchmarkConditionEvalFalse(b *testing.B) {
	c, err := CompileCondition(benchCondition + ` && modalias.match("pci:v00001002*")`)
	if err != nil {
		b.Fatal(err)
	}
	env := NewNodeEnv(gpuNode())
	b.ReportAllocs()
	for b.Loop() {
		if len(c.Eval(env).Parts) != 1 {
			b.Fatal("one part expected")
		}
	}
}

// manyConditions are distinct, as a site with one definition per rack row would write them.
func manyConditions(tb testing.TB, n int) []*Condition {
	cache := NewCache(nil)
	out := make([]*Condition, n)
	for i := range out {
		src := fmt.Sprintf(`hostname() matches "^compute-[0-9]{3}$" && cpuinfo.cpu_cores == %d && modalias.match("pci:v000010DEd0000%04X*")`, 1+i%64, i)
		c, err := cache.Condition(src)
		if err != nil {
			tb.Fatal(err)
		}
		out[i] = c
	}
	return out
}

func BenchmarkTenThousandConditionsOneNode(b *testing.B) {
	conditions := manyConditions(b, 10_000)
	facts := gpuNode()
	for b.Loop() {
		env := NewNodeEnv(facts)
		for _, c := range conditions {
			c.Match(env)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/1000, "ms/node")
}

const benchPolicy = `request.owner.organization_id in ["research", "engineering"] &&
	request.job_resource.cpu.cores <= 32 && request.job_annotations["gpu.type"] == "h100" && request.job_ttl >= 1800`

func benchRequest() *RequestEnv {
	r := NewRequestEnv()
	r.Request.Owner.OrganizationID = "0b9fd9ad-3c43-4f44-8f7c-2b0a1d1d9a10"
	r.Request.Owner.OrganizationName = "engineering"
	r.Request.JobResource.CPU.Cores = 16
	r.Request.JobAnnotations["gpu.type"] = "h100"
	r.Request.JobTTL = 3600
	return r
}

func BenchmarkPolicyAdmit(b *testing.B) {
	p, err := CompilePolicy(benchPolicy)
	if err != nil {
		b.Fatal(err)
	}
	r := benchRequest()
	b.ReportAllocs()
	for b.Loop() {
		if ok, err := p.Admit(r); !ok || err != nil {
			b.Fatal(ok, err)
		}
	}
}

// One request against ten thousand different policies, without any index: an upper bound for what an
// admission costs here.
func BenchmarkTenThousandPoliciesOneRequest(b *testing.B) {
	const n = 10_000
	cache := NewCache(nil)
	policies := make([]*Policy, n)
	for i := range policies {
		_, policy := definitionTexts(i)
		p, err := cache.Policy(policy)
		if err != nil {
			b.Fatal(err)
		}
		policies[i] = p
	}
	for _, org := range []string{"engineering", "sales"} {
		b.Run(org, func(b *testing.B) {
			r := benchRequest()
			r.Request.Owner.OrganizationName = org
			b.ReportAllocs()
			for b.Loop() {
				for _, p := range policies {
					p.Admit(r)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/1000, "ms/request")
		})
	}
}

func BenchmarkCompileRefused(b *testing.B) {
	cache := NewCache(nil)
	for b.Loop() {
		if _, err := cache.Condition(`cpuinfo.cpu_core >= 16`); err == nil {
			b.Fatal("accepted")
		}
	}
}

func BenchmarkPolicyExplain(b *testing.B) {
	p, err := CompilePolicy(benchPolicy)
	if err != nil {
		b.Fatal(err)
	}
	r := benchRequest()
	r.Request.JobTTL = 60
	b.ReportAllocs()
	for b.Loop() {
		p.Explain(r)
	}
}

func BenchmarkPriorityDefault(b *testing.B) {
	p, err := CompilePriority(DefaultPriority)
	if err != nil {
		b.Fatal(err)
	}
	env := &PriorityEnv{OrganizationPriority: 10, AgeSeconds: 1234}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.Eval(env); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCompilePolicyCached(b *testing.B) {
	cache := NewCache(nil)
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		i++
		if _, err := cache.Policy(fmt.Sprintf("%s && request.nodes < %d", benchPolicy, i)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCompileConditionCached(b *testing.B) {
	cache := NewCache(nil)
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		i++
		if _, err := cache.Condition(fmt.Sprintf("%s && cpuinfo.model < %d", benchCondition, i)); err != nil {
			b.Fatal(err)
		}
	}
}

// definitionTexts is the condition and policy of one definition out of many, no two alike.
func definitionTexts(i int) (condition, policy string) {
	condition = fmt.Sprintf(`hostname() matches "^rack%03d-node[0-9]{3}$" && cpuinfo.vendor_id == "AuthenticAMD" && cpuinfo.cpu_cores >= %d && osrelease.id == "ubuntu"`, i, 1+i%128)
	policy = fmt.Sprintf(`request.owner.organization_id in ["research", "engineering"] && request.job_resource.cpu.cores <= %d && request.job_annotations["gpu.type"] == "h100" && request.job_ttl >= 1800 && request.nodes < %d`, 1+i%64, i)
	return condition, policy
}

// Ten thousand definitions, all different: what a configuration of them costs in this package,
// checks and lints included.
func BenchmarkTenThousandDefinitions(b *testing.B) {
	const n = 10_000
	var heap float64
	for b.Loop() {
		heap = heapOf(func() any {
			cache := NewCache(nil)
			for i := range n {
				condition, policy := definitionTexts(i)
				if _, _, err := cache.LintCondition(condition); err != nil {
					b.Fatal(err)
				}
				if _, _, err := cache.LintPolicy(policy); err != nil {
					b.Fatal(err)
				}
			}
			return cache
		})
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/(2*n), "us/source")
	b.ReportMetric(heap/(2*n), "heapB/source")
}

// Ten thousand definitions out of a wildcard hold the same two texts.
func BenchmarkTenThousandExpandedDefinitions(b *testing.B) {
	const n = 10_000
	var heap float64
	for b.Loop() {
		heap = heapOf(func() any {
			cache := NewCache(nil)
			var all [n]struct {
				condition *Condition
				policy    *Policy
			}
			for i := range all {
				all[i].condition, _ = cache.Condition(benchCondition)
				all[i].policy, _ = cache.Policy(benchPolicy)
			}
			return &all
		})
	}
	b.ReportMetric(heap/1e6, "heapMB")
}

// heapOf is what stays in memory of what f returns.
func heapOf(f func() any) float64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	kept := f()
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(kept)
	return float64(after.HeapAlloc) - float64(before.HeapAlloc)
}
