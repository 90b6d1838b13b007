package expr

import (
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

const orgUUID, groupUUID = "0b9fd9ad-3c43-4f44-8f7c-2b0a1d1d9a10", "5b7a1e0e-9a39-4d7e-9f6c-1d2a3b4c5d6e"

func request() *RequestEnv {
	r := NewRequestEnv()
	*r.Request.Owner = RequestOwner{
		OrganizationID: orgUUID, OrganizationName: "research", GroupID: groupUUID, GroupName: "lasers",
		UserID: "u-1", Email: "ada@example.org", AccountID: groupUUID,
	}
	r.Request.JobResource.CPU = &RequestCPU{Cores: 16, Sockets: 1, Affinity: "numa"}
	r.Request.JobResource.Mem = &RequestMem{Bytes: 137438953472}
	r.Request.JobResource.Devices["nvidia.com/gpu"] = 2
	r.Request.JobResource.Tokens["matlab"] = 1
	r.Request.JobAnnotations["gpu.type"] = "h100"
	r.Request.JobTTL, r.Request.JobKind, r.Request.JobName = 3600, "job", "train"
	r.Request.JobClass, r.Request.Nodes, r.Request.Preemptible = "batch", 4, true
	r.Definition.ID = "gpu-h100"
	r.Definition.Annotations["tier"] = "gold"
	return r
}

func TestPolicy(t *testing.T) {
	r := request()
	for src, want := range map[string]bool{
		// Organisation and group by UUID or by name, wherever they are compared.
		`request.owner.organization_id == "research"`:                                    true,
		`request.owner.organization_id == "` + orgUUID + `"`:                             true,
		`"research" == request.owner.organization_id`:                                    true,
		`request.owner.organization_id != "research"`:                                    false,
		`request.owner.organization_id != "` + orgUUID + `"`:                             false,
		`request.owner.organization_id != "other"`:                                       true,
		`request.owner.organization_id in ["research", "engineering"]`:                   true,
		`request.owner.organization_id in ["` + orgUUID + `"]`:                           true,
		`request.owner.organization_id not in ["research"]`:                              false,
		`request.owner.organization_id not in ["other"]`:                                 true,
		`request.owner.organization_id in ["other"]`:                                     false,
		`request.owner.group_id == "lasers" and request.owner.account_id == "lasers"`:    true,
		`request.owner["group_id"] == "lasers"`:                                          true,
		`request.owner.account_id in ["lasers"]`:                                         true,
		`"lasers" in [request.owner.group_id, "x"]`:                                      true,
		`"` + groupUUID + `" in [request.owner.group_id]`:                                true,
		`any(["x", "lasers"], # == request.owner.group_id)`:                              true,
		`all(["x"], # != request.owner.group_id)`:                                        true,
		`let g = request.owner.group_id; g == "lasers" and g != "optics"`:                true,
		`request.owner.organization_id matches "^res"`:                                   true,
		`request.owner.organization_id startsWith "res"`:                                 true,
		`request.owner.group_id == request.owner.account_id`:                             true,
		`request.owner.organization_id == request.owner.group_id`:                        false,
		`request.owner.organization_id == request.owner.organization_name`:               true,
		`request.owner.organization_name == "research"`:                                  true,
		`request.owner.user_id == "u-1" and request.owner.email endsWith "@example.org"`: true,
		// Resources.
		`request.job_resource.cpu.cores <= 32 && request.job_resource.cpu.sockets == 1`:     true,
		`request.job_resource.cpu.cores in [8, 16]`:                                         true,
		`request.job_resource.cpu.threads`:                                                  false,
		`request.job_resource.cpu.affinity == "numa"`:                                       true,
		`request.job_resource.mem.bytes >= (128 * 1024 * 1024 * 1024)`:                      true,
		`request.job_resource.mem.bytes / request.job_resource.cpu.cores == 8589934592`:     true,
		`request.job_resource.mem.bytes * 2 == 274877906944`:                                true,
		`not request.job_resource.mem.by_core`:                                              true,
		`request.job_resource.devices["nvidia.com/gpu"] > 0`:                                true,
		`request.job_resource.devices["nvidia.com/gpu"] in [1, 2]`:                          true,
		`request.job_resource.devices["amd.com/gpu"] == 0`:                                  true,
		`request.job_resource.devices["amd.com/gpu"] > 0`:                                   false,
		`request.job_resource.tokens["matlab"] + request.job_resource.tokens["ansys"] == 1`: true,
		`request.job_resource.exclusive`:                                                    false,
		`"nvidia.com/gpu" in request.job_resource.devices`:                                  true,
		// The request and the definition.
		`request.job_annotations["gpu.type"] == "h100"`:                                true,
		`request.job_annotations["none"] == ""`:                                        true,
		`request.workflow_annotations["none"] == "x"`:                                  false,
		`request.job_ttl >= 1800 && request.job_kind == "job"`:                         true,
		`request.job_name == "train" and request.workflow_id == ""`:                    true,
		`request.job_class in ["batch"] and request.preemptible`:                       true,
		`request.nodes * request.job_resource.cpu.cores <= 64`:                         true,
		`request.multinode_job or request.task_array_job`:                              false,
		`definition.id startsWith "gpu-" and definition.annotations["tier"] == "gold"`: true,
		`request.nodes > 2 ? request.preemptible : true`:                               true,
	} {
		admits(t, r, src, want)
	}
}

// Services have an endless walltime: a bound refuses them, and int() of it fails instead of wrapping.
func TestPolicyEndlessWalltime(t *testing.T) {
	r := request()
	r.Request.JobTTL = math.Inf(1)
	admits(t, r, `request.job_ttl <= 7200`, false)
	admits(t, r, `request.job_ttl >= 1800`, true)
	fails(t, r, `int(request.job_ttl) <= 7200`)
}

func fails(t *testing.T, r *RequestEnv, src string) {
	t.Helper()
	p, err := CompilePolicy(src)
	if err != nil {
		t.Fatalf("%s: %v", src, err)
	}
	if ok, err := p.Admit(r); ok || err == nil {
		t.Errorf("%s admits: %v, %v", src, ok, err)
	} else if strings.Contains(err.Error(), "\n") {
		t.Errorf("%s: %q", src, err)
	}
	if parts := p.Explain(r); len(parts) == 0 {
		t.Errorf("%s: no reason", src)
	}
}

func TestPolicyErrorsRefuse(t *testing.T) {
	r := request()
	r.Request.JobResource.Mem.Bytes = math.MaxUint64
	for _, src := range []string{
		`request.job_resource.mem.bytes * 2 <= 100`, // would wrap to a small number
		`request.job_resource.mem.bytes + 1 < 0`,
		`1 / request.job_resource.devices["none"] > 5`, // would be +Inf
		`int(request.job_name) < 3 or true`,
		`split(request.job_name, "x")[7] == "a"`,
	} {
		fails(t, r, src)
	}
	p, _ := CompilePolicy(`request.owner.email == ""`)
	if ok, err := p.Admit(nil); ok || err == nil {
		t.Error("no request is admitted")
	}
	if ok, err := p.Admit(&RequestEnv{}); ok || err == nil {
		t.Error("an empty request is admitted")
	}
}

// Unsigned numbers compare as numbers, exactly.
func TestUnsignedComparison(t *testing.T) {
	const edge = math.MaxInt64
	for _, tt := range []struct {
		bytes uint64
		src   string
		want  bool
	}{
		{math.MaxUint64, `B > 0`, true}, {math.MaxUint64, `B < 0`, false}, {math.MaxUint64, `B == -1`, false},
		{math.MaxUint64, `B != -1`, true}, {math.MaxUint64, `0 <= B`, true}, {math.MaxUint64, `B > -1`, true},
		{edge + 1, `B > 9223372036854775807`, true}, {edge, `B == 9223372036854775807`, true},
		{edge, `B > 9223372036854775806`, true}, {edge - 1, `B == 9223372036854775807`, false},
		{edge, `B < 9223372036854775807.0`, false}, {math.MaxUint64, `B > 1e18`, true}, {math.MaxUint64, `B in [1, -1]`, false},
		{3, `B in [1, 3]`, true}, {3, `B == B`, true}, {3, `B == nil`, false}, {3, `B != nil`, true},
		{3, `B < request.nodes`, true}, {3, `B > request.job_ttl`, false}, {math.MaxUint64, `max(B, 1) > 1`, true},
		{math.MaxUint64, `float(B) > 1e19`, false}, // saturated: only comparisons are exact
		{7, `B % 4 == 3`, true}, {7, `-B == -7`, true}, {7, `2 <= B <= 8`, true}, {8, `B / 2 == 4`, true},
	} {
		r := request()
		r.Request.JobResource.Mem.Bytes = tt.bytes
		admits(t, r, strings.ReplaceAll(tt.src, "B", "request.job_resource.mem.bytes"), tt.want)
	}
}

func TestComparedAgreesWithMathematics(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.Uint64().Draw(t, "a")
		b := rapid.Int().Draw(t, "b")
		less := b >= 0 && a < uint64(b)
		equal := b >= 0 && a == uint64(b)
		for op, want := range map[string]bool{"<": less, "<=": less || equal, "==": equal, "!=": !equal, ">": !less && !equal, ">=": !less} {
			if got, err := compared(op, a, b); got != want || err != nil {
				t.Fatalf("%d %s %d = %v, %v", a, op, b, got, err)
			}
			turned := map[string]string{"<": ">", "<=": ">=", "==": "==", "!=": "!=", ">": "<", ">=": "<="}[op]
			if got, err := compared(turned, b, a); got != want || err != nil {
				t.Fatalf("%d %s %d = %v, %v", b, turned, a, got, err)
			}
		}
	})
}

func TestPolicyRefused(t *testing.T) {
	for src, want := range map[string]string{
		`request.job_resource.cpu.cores`:                     "must be true or false, this is a number",
		`request.owner.organisation_id == "x"`:               "did you mean request.owner.organization_id?",
		`request.job_resource.cpu.core < 3`:                  "did you mean request.job_resource.cpu.cores?",
		`request.owner == "x"`:                               "is a group",
		`request.job_ttl == "3600"`:                          "without quotes",
		`request.owner.organization_id == 3`:                 "mismatched types",
		`hostname() == "x"`:                                  "unknown name hostname",
		`request.job_name matches request.job_annotations.x`: "must be constant",
		`request.job_resource.devices[3] > 0`:                "cannot use number",
		`request.job_name + "x" == "y"`:                      "cannot be joined",
		strings.Repeat(`request.owner.group_id == (`, 40) + `"x"` + strings.Repeat(` ? "a" : "b")`, 40): "",
		deepIDs(12): "parts",
	} {
		_, err := CompilePolicy(src)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: error %v, want one with %q", src, err, want)
		}
	}
}

// deepIDs compares an id with a text that depends on a comparison of an id, and so on.
func deepIDs(n int) string {
	text := `"x"`
	for range n {
		text = `(request.owner.group_id == ` + text + ` ? "a" : "b")`
	}
	return `request.owner.group_id == ` + text
}

func TestPriority(t *testing.T) {
	env := &PriorityEnv{
		OrganizationPriority: 100, GroupPriority: 20, AccountPriority: 20, UserPriority: -3, WorkflowPriority: -1,
		AgeSeconds: 7200, Cores: 64, MemoryBytes: 1 << 40, GPUs: 8, Nodes: 2, Class: "batch",
	}
	for _, tt := range []struct {
		src    string
		want   float64
		slope  float64
		linear bool
	}{
		{DefaultPriority, 118, 1 / 3600.0, true},
		{`5`, 5, 0, true},
		{`organization_priority * 2 + account_priority`, 220, 0, true},
		{`age_seconds`, 7200, 1, true},
		{`-age_seconds`, -7200, -1, true},
		{`2 * age_seconds - age_seconds / 2 + 1`, 10801, 1.5, true},
		{`(1 + 1) * (age_seconds + gpus)`, 14416, 2, true},
		{`float(age_seconds) + cores`, 7264, 1, true},
		{`class == "batch" ? age_seconds + 1 : age_seconds`, 7201, 1, true},
		{`class == "batch" ? age_seconds : 2 * age_seconds`, 7200, 0, false},
		{`age_seconds > 3600 ? 1 : 0`, 1, 0, false},
		{`age_seconds * gpus`, 57600, 0, false},
		{`age_seconds ** 2`, 7200 * 7200, 0, false},
		{`min(age_seconds, 3600)`, 3600, 0, false},
		{`1 / age_seconds`, 1.0 / 7200, 0, false},
		{`age_seconds * 0`, 0, 0, true},
		{`class == "batch" ? 1 : 0.5`, 1, 0, true},
		{`class == "reserved" ? 1 : 0.5`, 0.5, 0, true},
		{`(class == "batch" ? cores : 0.5) + 1`, 65, 0, true},
		{`class == "batch" ? nodes : organization_priority`, 2, 0, true},
		{`memory_bytes / 1024 / 1024`, 1 << 20, 0, true},
		{`let a = age_seconds / 60; a + a`, 240, 1 / 30.0, true},
	} {
		p, err := CompilePriority(tt.src)
		if err != nil {
			t.Errorf("%s: %v", tt.src, err)
			continue
		}
		if got, err := p.Eval(env); err != nil || math.Abs(got-tt.want) > 1e-9 {
			t.Errorf("%s = %v, %v, want %v", tt.src, got, err, tt.want)
		}
		if slope, ok := p.AgeLinear(); ok != tt.linear || math.Abs(slope-tt.slope) > 1e-12 {
			t.Errorf("%s: slope %v %v, want %v %v", tt.src, slope, ok, tt.slope, tt.linear)
		}
	}
}

// Where AgeLinear says so, age adds exactly slope per second.
func TestAgeLinearHolds(t *testing.T) {
	atoms := []string{"age_seconds", "cores", "2", "0.5", "gpus", "(class == \"batch\" ? 1 : 2.5)", "organization_priority"}
	var draw func(t *rapid.T, depth int) string
	draw = func(t *rapid.T, depth int) string {
		if depth == 0 || rapid.IntRange(0, 3).Draw(t, "stop") == 0 {
			return rapid.SampledFrom(atoms).Draw(t, "atom")
		}
		op := rapid.SampledFrom([]string{"+", "-", "*", "/"}).Draw(t, "op")
		return "(" + draw(t, depth-1) + " " + op + " " + draw(t, depth-1) + ")"
	}
	rapid.Check(t, func(t *rapid.T) {
		src := draw(t, 3)
		p, err := CompilePriority(src)
		if err != nil {
			t.Fatalf("%s: %v", src, err)
		}
		slope, ok := p.AgeLinear()
		if !ok {
			return
		}
		env := &PriorityEnv{Cores: 3, GPUs: 5, OrganizationPriority: 7, Class: "batch", AgeSeconds: rapid.Float64Range(0, 1e5).Draw(t, "age")}
		before, err1 := p.Eval(env)
		env.AgeSeconds += 100
		after, err2 := p.Eval(env)
		if err1 != nil || err2 != nil {
			return // a zero divisor
		}
		if want := before + 100*slope; math.Abs(after-want) > 1e-6*(1+math.Abs(want)+math.Abs(before)) {
			t.Fatalf("%s: %v, 100 s later %v, slope %v", src, before, after, slope)
		}
	})
}

func TestPriorityErrors(t *testing.T) {
	env := &PriorityEnv{AgeSeconds: 10, OrganizationPriority: math.MaxInt32, MemoryBytes: math.MaxUint64}
	for _, src := range []string{
		`1 / gpus`, `age_seconds ** 400`, `-(age_seconds ** 400)`, `age_seconds ** 400 - age_seconds ** 400`,
		`int(class)`, `organization_priority * organization_priority * organization_priority`, `memory_bytes + memory_bytes`,
	} {
		p, err := CompilePriority(src)
		if err != nil {
			t.Errorf("%s: %v", src, err)
			continue
		}
		if got, err := p.Eval(env); err == nil || got != 0 {
			t.Errorf("%s = %v, want an error and 0", src, got)
		}
	}
	if _, err := (&Priority{}).Eval(nil); err == nil {
		t.Error("no allocation has a priority")
	}
	for src, want := range map[string]string{
		`class`:                 "must be a number, this is text",
		`age_seconds > 3`:       "must be a number, this is true or false",
		`agee_seconds`:          "did you mean age_seconds?",
		`user_prio + 1`:         "did you mean user_priority?",
		`cores > 1 ? 1 : class`: "depends on the input",
		``:                      "empty",
		`request.nodes`:         "unknown name request",
	} {
		if _, err := CompilePriority(src); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", src, err, want)
		}
	}
}
