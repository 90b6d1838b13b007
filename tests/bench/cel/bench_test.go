// Package cel compares policies with cel-go on the same request, in the same run. It is a module of its
// own, so that the product does not depend on what it is measured against.
package cel

import (
	"testing"
	"time"

	"github.com/google/cel-go/cel"

	"substrate/expr"
)

// The shape that most policies have: an organisation out of a list, a bound, an annotation, a walltime.
const (
	ourPolicy = `request.owner.organization_name in ["research", "engineering"] && request.job_resource.cpu.cores <= 32 &&
		request.job_annotations["gpu.type"] == "h100" && request.job_ttl >= 1800`
	celPolicy = `request.owner.organization_name in ["research", "engineering"] && request.job_resource.cpu.cores <= 32 &&
		request.job_annotations["gpu.type"] == "h100" && request.job_ttl >= 1800.0`
)

func ourRequest() *expr.RequestEnv {
	r := expr.NewRequestEnv()
	r.Request.Owner.OrganizationName = "engineering"
	r.Request.JobResource.CPU.Cores = 16
	r.Request.JobAnnotations["gpu.type"] = "h100"
	r.Request.JobTTL = 3600
	return r
}

// celRequest is the environment that cel-go reads fastest: one flat map of declared, typed names.
func celRequest() map[string]any {
	return map[string]any{
		"request.owner.organization_name": "engineering",
		"request.job_resource.cpu.cores":  int64(16),
		"request.job_annotations":         map[string]string{"gpu.type": "h100"},
		"request.job_ttl":                 3600.0,
	}
}

func celEnvironment(tb testing.TB) *cel.Env {
	env, err := cel.NewEnv(
		cel.Variable("request.owner.organization_name", cel.StringType),
		cel.Variable("request.job_resource.cpu.cores", cel.IntType),
		cel.Variable("request.job_annotations", cel.MapType(cel.StringType, cel.StringType)),
		cel.Variable("request.job_ttl", cel.DoubleType),
	)
	if err != nil {
		tb.Fatal(err)
	}
	return env
}

func celProgram(tb testing.TB, env *cel.Env) cel.Program {
	ast, issues := env.Compile(celPolicy)
	if issues.Err() != nil {
		tb.Fatal(issues.Err())
	}
	p, err := env.Program(ast, cel.EvalOptions(cel.OptOptimize))
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

// BenchmarkPolicy reports both sides and their ratio.
func BenchmarkPolicy(b *testing.B) {
	ours, err := expr.CompilePolicy(ourPolicy)
	if err != nil {
		b.Fatal(err)
	}
	theirs := celProgram(b, celEnvironment(b))
	request, vars := ourRequest(), celRequest()
	beside(b, func() {
		if ok, err := ours.Admit(request); !ok || err != nil {
			b.Fatal(ok, err)
		}
	}, func() {
		if out, _, err := theirs.Eval(vars); err != nil || out.Value() != true {
			b.Fatal(out, err)
		}
	})
}

// BenchmarkPolicyRefused is a request that the first comparison refuses.
func BenchmarkPolicyRefused(b *testing.B) {
	ours, err := expr.CompilePolicy(ourPolicy)
	if err != nil {
		b.Fatal(err)
	}
	theirs := celProgram(b, celEnvironment(b))
	request, vars := ourRequest(), celRequest()
	request.Request.Owner.OrganizationName = "sales"
	vars["request.owner.organization_name"] = "sales"
	beside(b, func() {
		if ok, err := ours.Admit(request); ok || err != nil {
			b.Fatal(ok, err)
		}
	}, func() {
		if out, _, err := theirs.Eval(vars); err != nil || out.Value() != false {
			b.Fatal(out, err)
		}
	})
}

// BenchmarkCompile is text to program, type checks included; equal texts would come from the cache.
func BenchmarkCompile(b *testing.B) {
	env := celEnvironment(b)
	beside(b, func() {
		if _, err := expr.CompilePolicy(ourPolicy); err != nil { // a language of its own each time
			b.Fatal(err)
		}
	}, func() { celProgram(b, env) })
}

// beside lets both sides run in turns, so that a busy machine slows both.
func beside(b *testing.B, ours, theirs func()) {
	const batch = 20
	var our, their time.Duration
	n := 0
	for b.Loop() {
		start := time.Now()
		for range batch {
			ours()
		}
		middle := time.Now()
		for range batch {
			theirs()
		}
		our, their = our+middle.Sub(start), their+time.Since(middle)
		n += batch
	}
	b.ReportMetric(float64(our.Nanoseconds())/float64(n), "ours-ns")
	b.ReportMetric(float64(their.Nanoseconds())/float64(n), "cel-ns")
	b.ReportMetric(float64(our)/float64(their), "ratio")
}
