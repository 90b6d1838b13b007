package expr

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"substrate/hwinfo"
)

func admits(t *testing.T, r *RequestEnv, src string, want bool) {
	t.Helper()
	p, err := CompilePolicy(src)
	if err != nil {
		t.Fatalf("%s: %v", src, err)
	}
	got, err := p.Admit(r)
	if got != want || err != nil {
		t.Errorf("%s = %v, %v, want %v", src, got, err, want)
	}
	if (len(p.Explain(r)) == 0) != want {
		t.Errorf("%s: Explain = %+v", src, p.Explain(r))
	}
}

// What people may write and did at other sites.
func TestAccepted(t *testing.T) {
	env := NewNodeEnv(gpuNode())
	for _, src := range []string{
		`hostname() matches "compute-[0-9]{3}" && cpuinfo.vendor_id == "GenuineIntel" && cpuinfo.cpu_cores >= 16 && osrelease.id == "ubuntu"`,
		"hostname() matches `^compute-\\d{3}$`",
		`not (cpuinfo.vendor_id == "AuthenticAMD") and !(osrelease.id in ["rhel", "rocky"])`,
		`osrelease.id not in ["rhel", "rocky"]`,
		`16 <= cpuinfo.cpu_cores <= 64`,
		`"avx512f" in cpuinfo.flags`,
		`all(["avx", "avx2"], # in cpuinfo.flags)`,
		`any(cpuinfo.flags, {# startsWith "avx512"})`,
		`cpuinfo.flags | any(# == "avx")`,
		`count(cpuinfo.flags, # startsWith "avx") == 3`,
		`let c = cpuinfo.cpu_cores; let t = c * 2; t == cpuinfo.logical_cpus and c > 1`,
		`cpuinfo.cpu_cores > 16 ? modalias.count("pci:v000010DEd*") == 4 : false`,
		`if cpuinfo.cpu_cores > 16 { true } else { false }`,
		`float(osrelease.version_id) >= 22`,
		`int(split(osrelease.version_id, ".")[0]) >= 22`,
		`cpuinfo["cpu_cores"] == 32 && cpuinfo?.cpu_cores == 32`,
		`lower(cpuinfo.vendor_id) contains "intel"`,
		`fqdn() endsWith ".example.org" && uname.machine == "x86_64" && cpuinfo.arch == "amd64"`,
		`cpuinfo.cpu_cores / cpuinfo.sockets == cpuinfo.cores_per_socket`,
		`cpuinfo.cpu_cores in [16, 32, 64] and hostname()[0:7] == "compute"`,
		`true || cpuinfo.microcode == "x"`, `cpuinfo.microcode == "x" || true`,
		strings.Repeat("(", 100) + "true" + strings.Repeat(")", 100),
		`cpuinfo.vendor_id matches "Intel" + "$"`,
		`max(cpuinfo.cpu_cores, 3) + abs(-3) == 35`,
	} {
		if got := mustCondition(t, src).Eval(env); got.Value != True || got.Parts != nil || got.Err != "" {
			t.Errorf("%s: %+v, want true", src, got)
		}
	}
}

func TestEvalNamesWhatWasFalse(t *testing.T) {
	f := gpuNode()
	f.CPU.Model = nil
	env := NewNodeEnv(f)
	for _, tt := range []struct{ name, src, want string }{
		{"one of three", `osrelease.id == "ubuntu" && cpuinfo.cpu_cores >= 64 && cpuinfo.sockets == 2`,
			`false: cpuinfo.cpu_cores >= 64=false {"cpuinfo.cpu_cores":"32"}`},
		{"both alternatives", `cpuinfo.vendor_id == "AuthenticAMD" || cpuinfo.cpu_cores == 64`,
			`false: cpuinfo.vendor_id == "AuthenticAMD"=false {"cpuinfo.vendor_id":"GenuineIntel"}; cpuinfo.cpu_cores == 64=false {"cpuinfo.cpu_cores":"32"}`},
		{"absent", `cpuinfo.model == 85`, `unknown: cpuinfo.model == 85=unknown {"cpuinfo.model":"(absent)"}`},
		{"absent beside false", `cpuinfo.model == 85 && cpuinfo.cpu_cores == 1`,
			`false: cpuinfo.model == 85=unknown {"cpuinfo.model":"(absent)"}; cpuinfo.cpu_cores == 1=false {"cpuinfo.cpu_cores":"32"}`},
		{"under not", `not (osrelease.id == "ubuntu" && cpuinfo.sockets == 2 || cpuinfo.model == 1)`,
			`false: osrelease.id == "ubuntu"=true {"osrelease.id":"ubuntu"}; cpuinfo.sockets == 2=true {"cpuinfo.sockets":"2"}; cpuinfo.model == 1=unknown {"cpuinfo.model":"(absent)"}`},
		{"not equal", `cpuinfo.model != 3`, `unknown: cpuinfo.model != 3=unknown {"cpuinfo.model":"(absent)"}`},
		{"devices", `modalias.match("pci:v00001002*") && modalias.count("pci:v000010DEd*") >= 8`,
			`false: modalias.match("pci:v00001002*")=false {"modalias.match(\"pci:v00001002*\")":"0 of 40 devices"}; modalias.count("pci:v000010DEd*") >= 8=false {"modalias.count(\"pci:v000010DEd*\")":"4 of 40 devices"}`},
		{"host", `hostname() == "x"`, `false: hostname() == "x"=false {"hostname()":"compute-017"}`},
		{"list", `"avx10" in cpuinfo.flags`, `false: "avx10" in cpuinfo.flags=false {"cpuinfo.flags":"fpu avx avx2 avx512f"}`},
		{"error", `int(osrelease.version_id) > 3`,
			`error ("22.04" is not a whole number): int(osrelease.version_id) > 3=error {"osrelease.version_id":"22.04"}`},
		{"chained comparison", `40 <= cpuinfo.cpu_cores <= 64`, `false: 40 <= cpuinfo.cpu_cores=false {"cpuinfo.cpu_cores":"32"}`},
		{"constant", `true and false`, `false: false=false null`},
		{"same part twice", `cpuinfo.sockets == 4 && osrelease.id == "x" || not (cpuinfo.sockets == 4) && osrelease.id == "y"`,
			`false: cpuinfo.sockets == 4=false {"cpuinfo.sockets":"2"}; osrelease.id == "x"=false {"osrelease.id":"ubuntu"}; osrelease.id == "y"=false {"osrelease.id":"ubuntu"}`},
		{"same part twice, where changing all would not help", `cpuinfo.sockets == 2 && osrelease.id == "x" || not (cpuinfo.sockets == 2) && not (osrelease.id == "x")`,
			`false: osrelease.id == "x"=false {"osrelease.id":"ubuntu"}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out := mustCondition(t, tt.src).Eval(env)
			got := out.Value.String()
			if out.Err != "" {
				got += " (" + out.Err + ")"
			}
			for i, p := range out.Parts {
				seen, _ := json.Marshal(p.Seen)
				sep := "; "
				if i == 0 {
					sep = ": "
				}
				got += fmt.Sprintf("%s%s=%v %s", sep, p.Source, p.Value, seen)
			}
			if got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

// The same for what people compare with: the smallest part is named, with what it saw.
func TestReasons(t *testing.T) {
	f := gpuNode()
	f.CPU.Microcode = ""
	env := NewNodeEnv(f)
	for _, tt := range []struct{ name, src, want string }{
		{"version as text", `osrelease.version_id >= "9"`, `osrelease.version_id >= "9"=false {"osrelease.version_id":"22.04"}`},
		{"version as a number", `float(osrelease.version_id) >= 24 and osrelease.id == "ubuntu"`, `float(osrelease.version_id) >= 24=false {"osrelease.version_id":"22.04"}`},
		{"part of a version", `int(split(osrelease.version_id, ".")[0]) >= 24`, `int(split(osrelease.version_id, ".")[0]) >= 24=false {"osrelease.version_id":"22.04"}`},
		{"in", `osrelease.id in ["rhel", "rocky"] and cpuinfo.sockets == 2`, `osrelease.id in ["rhel", "rocky"]=false {"osrelease.id":"ubuntu"}`},
		{"not in", `osrelease.id not in ["ubuntu", "rocky"]`, `osrelease.id in ["ubuntu", "rocky"]=true {"osrelease.id":"ubuntu"}`},
		{"matches", `hostname() matches "^gpu" and true`, `hostname() matches "^gpu"=false {"hostname()":"compute-017"}`},
		{"any", `any(cpuinfo.flags, # startsWith "amx") and cpuinfo.sockets == 2`, `any(cpuinfo.flags, # startsWith "amx")=false {"cpuinfo.flags":"fpu avx avx2 avx512f"}`},
		{"all", `all(["avx", "amx"], # in cpuinfo.flags)`, `all(["avx", "amx"], # in cpuinfo.flags)=false {"cpuinfo.flags":"fpu avx avx2 avx512f"}`},
		{"none", `none(cpuinfo.flags, # == "avx")`, `none(cpuinfo.flags, # == "avx")=false {"cpuinfo.flags":"fpu avx avx2 avx512f"}`},
		{"device", `modalias.match("pci:v00001002*")`, `modalias.match("pci:v00001002*")=false {"modalias.match(\"pci:v00001002*\")":"0 of 40 devices"}`},
		{"number of devices", `modalias.count("pci:v000010DEd*") == 8`, `modalias.count("pci:v000010DEd*") == 8=false {"modalias.count(\"pci:v000010DEd*\")":"4 of 40 devices"}`},
		{"two counts", `modalias.count("pci:v000010DEd*") > modalias.count("pci:v00008086d*")`,
			`modalias.count("pci:v000010DEd*") > modalias.count("pci:v00008086d*")=false {"modalias.count(\"pci:v000010DEd*\")":"4 of 40 devices","modalias.count(\"pci:v00008086d*\")":"36 of 40 devices"}`},
		{"list of devices", `any(modalias.list(), # startsWith "usb:")`, `any(modalias.list(), # startsWith "usb:")=false {"modalias.list()":"40 devices"}`},
		{"branch that is taken", `cpuinfo.sockets == 2 ? cpuinfo.cpu_cores >= 64 : cpuinfo.cpu_cores >= 128`, `cpuinfo.cpu_cores >= 64=false {"cpuinfo.cpu_cores":"32"}`},
		{"either the choice or its branch", `cpuinfo.sockets == 2 ? cpuinfo.cpu_cores >= 64 : osrelease.id == "ubuntu"`,
			`cpuinfo.sockets == 2=true {"cpuinfo.sockets":"2"}; cpuinfo.cpu_cores >= 64=false {"cpuinfo.cpu_cores":"32"}`},
		{"choice by an absent fact", `cpuinfo.microcode == "x" ? true : false`, `cpuinfo.microcode == "x"=unknown {"cpuinfo.microcode":"(absent)"}`},
		{"no or, no and", `not (osrelease.id == "ubuntu" or hostname() == "x") and not (cpuinfo.sockets == 1 and cpuinfo.sockets == 2)`,
			`osrelease.id == "ubuntu"=true {"osrelease.id":"ubuntu"}`},
		{"absent, twice", `cpuinfo.microcode == "x" or cpuinfo.microcode matches "^0x"`,
			`cpuinfo.microcode == "x"=unknown {"cpuinfo.microcode":"(absent)"}; cpuinfo.microcode matches "^0x"=unknown {"cpuinfo.microcode":"(absent)"}`},
		{"absent beside present", `cpuinfo.cpu_cores > 0 and cpuinfo.cpu_cores < len(cpuinfo.microcode)`,
			`cpuinfo.cpu_cores < len(cpuinfo.microcode)=unknown {"cpuinfo.cpu_cores":"32","cpuinfo.microcode":"(absent)"}`},
		{"whole number as a fraction", `cpuinfo.cpu_cores > 64.0`, `cpuinfo.cpu_cores > 64.0=false {"cpuinfo.cpu_cores":"32"}`},
		{"let", `let c = cpuinfo.cpu_cores; c > 64 and c < 128`, `cpuinfo.cpu_cores > 64=false {"cpuinfo.cpu_cores":"32"}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			for i, p := range mustCondition(t, tt.src).Eval(env).Parts {
				seen, _ := json.Marshal(p.Seen)
				got += map[bool]string{true: "", false: "; "}[i == 0] + fmt.Sprintf("%s=%v %s", p.Source, p.Value, unescaped(seen))
			}
			if got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

// unescaped undoes what JSON does to < and >.
func unescaped(b []byte) string {
	return strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0026`, "&").Replace(string(b))
}

// A run-time error that is reached decides; one that is not reached does not exist.
func TestErrorsNeverMatch(t *testing.T) {
	env := NewNodeEnv(gpuNode())
	const bad = `int(hostname()) == 1`
	for src, want := range map[string]Truth{
		bad:                                  Failed,
		bad + ` or true`:                     Failed,
		`true or ` + bad:                     True,
		`not (` + bad + `)`:                  Failed,
		`false and ` + bad:                   False,
		bad + ` and false`:                   Failed,
		`cpuinfo.microcode == "x" or ` + bad: Failed,
		`cpuinfo.flags[99] == "x" or true`:   Failed,
		`1 / (cpuinfo.sockets - 2) > 0`:      Failed,
		`cpuinfo.sockets % (cpuinfo.sockets - 2) == 0`: Failed,
		`cpuinfo.cpu_cores * 9223372036854775807 != 0`: Failed,
		`float(hostname()) > 0`:                        Failed,
	} {
		c := mustCondition(t, src)
		out := c.Eval(env)
		if out.Value != want || c.Match(env) != want || (out.Err != "") != (want == Failed) {
			t.Errorf("%s: %+v, want %v", src, out, want)
		}
		if strings.Contains(out.Err, "\n") || strings.Contains(out.Err, "interface") {
			t.Errorf("%s: error shows insides: %q", src, out.Err)
		}
	}
}

func TestTruthText(t *testing.T) {
	for _, v := range []Truth{Unknown, False, True, Failed} {
		b, err := v.MarshalText()
		var back Truth
		if err != nil || back.UnmarshalText(b) != nil || back != v {
			t.Errorf("%v does not survive its text %q", v, b)
		}
	}
	var v Truth
	if err := v.UnmarshalText([]byte("maybe")); err == nil || v == True {
		t.Errorf("maybe was read as %v", v)
	}
	b, _ := json.Marshal(Outcome{Value: Failed, Err: "x"})
	if string(b) != `{"value":"error","error":"x"}` {
		t.Errorf("outcome is %s", b)
	}
}

func TestEvalAny(t *testing.T) {
	f := gpuNode()
	f.CPU.Model = nil
	env := NewNodeEnv(f)
	for src, want := range map[string]string{
		`hostname()`:                       `"compute-017"`,
		`cpuinfo.cpu_cores`:                `32`,
		`cpuinfo.model`:                    `null`,
		`cpuinfo.model == 3`:               `null`,
		`cpuinfo.model == 3 or true`:       `true`,
		`cpuinfo.model + 3`:                `null`,
		`cpuinfo.microcode`:                `null`,
		`osrelease`:                        `{"id":"ubuntu","id_like":["debian"],"version_id":"22.04"}`,
		` uname `:                          `{"machine":"x86_64","release":"6.1.0-18-amd64","sysname":"Linux"}`,
		`cpuinfo.sockets == 2`:             `true`,
		`modalias.match("pci:v00001002*")`: `false`,
		`map(osrelease.id_like, upper(#))`: `["DEBIAN"]`,
		`[1, "a"]`:                         `[1,"a"]`,
		`nil`:                              `null`,
	} {
		got, err := EvalAny(src, env)
		b, _ := json.Marshal(got)
		if err != nil || string(b) != want {
			t.Errorf("%s = %s, %v, want %s", src, b, err, want)
		}
	}
	if v, err := EvalAny(`modalias.list()`, NewNodeEnv(hwinfo.Facts{})); v != nil || err != nil {
		t.Errorf("absent list: %v, %v", v, err)
	}
	if v, err := EvalAny(`cpuinfo.flags`, nil); v != nil || err != nil {
		t.Errorf("no node: %v, %v", v, err)
	}
	for _, src := range []string{`int(hostname())`, `int(hostname()) == 1`, `1..1e9`, `hostname`, ``} {
		if v, err := EvalAny(src, env); err == nil {
			t.Errorf("%s = %v, want an error", src, v)
		}
	}
}

// Facts of absurd size do not enter; the others stay.
func TestOversizedFactsAreAbsent(t *testing.T) {
	f := gpuNode()
	f.CPU.ModelName = strings.Repeat("x", maxText+1)
	f.CPU.Flags = []string{strings.Repeat("f", maxListText+1)}
	env := NewNodeEnv(f)
	for src, want := range map[string]Truth{
		`cpuinfo.model_name contains "x"`: Unknown, `len(cpuinfo.flags) > 0`: Unknown, `cpuinfo.cpu_cores == 32`: True,
	} {
		if got := mustCondition(t, src).Match(env); got != want {
			t.Errorf("%s = %v, want %v", src, got, want)
		}
	}
}

func TestNames(t *testing.T) {
	got := fmt.Sprint(mustCondition(t, `cpuinfo.flags[0] == "x" and hostname() == "y" and (let c = cpuinfo.cpu_cores; c > 3 and c < 9)`).Names())
	if got != `[cpuinfo.cpu_cores cpuinfo.flags hostname()]` {
		t.Errorf("names %s", got)
	}
	p, err := CompilePolicy(`request.job_annotations["gpu.type"] == "h100" and request.owner.group_id == "x" and request.job_ttl < 3`)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(p.Names()); got != `[request.job_annotations["gpu.type"] request.job_ttl request.owner.group_id]` {
		t.Errorf("names %s", got)
	}
}

func TestConcurrentUse(t *testing.T) {
	cache := NewCache(nil)
	c, err := cache.Condition(benchCondition)
	if err != nil {
		t.Fatal(err)
	}
	p, err := cache.Policy(benchPolicy)
	if err != nil {
		t.Fatal(err)
	}
	env, r := NewNodeEnv(gpuNode()), benchRequest()
	refused := benchRequest()
	refused.Request.JobTTL = 1
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				if c.Match(env) != True {
					t.Error("condition")
				}
				if ok, err := p.Admit(r); !ok || err != nil {
					t.Error("policy", err)
				}
				if parts := p.Explain(refused); len(parts) != 1 {
					t.Error("explain", parts)
				}
			}
		})
	}
	wg.Wait()
}

func TestCache(t *testing.T) {
	first := NewCache(nil)
	a, _ := first.Policy(`request.nodes > 1`)
	b, _ := first.Policy(`request.nodes > 1`)
	gone, _ := first.Policy(`request.nodes > 2`)
	if a == nil || a != b {
		t.Error("equal sources are not shared")
	}
	second := NewCache(first)
	if c, _ := second.Policy(`request.nodes > 1`); c != a {
		t.Error("the next revision compiled again")
	}
	second.Settle()
	if c, _ := second.Policy(`request.nodes > 2`); c == gone || c == nil {
		t.Error("the settled cache still looks at the previous one")
	}
	if _, err := second.Policy(`request.nodes >`); err == nil {
		t.Error("a broken policy was accepted")
	}
	if c, err := second.Condition(`true`); c == nil || err != nil {
		t.Error(err)
	}
	if c, err := second.Priority(DefaultPriority); c == nil || err != nil {
		t.Error(err)
	}
}
