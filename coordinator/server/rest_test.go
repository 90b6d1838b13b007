package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/config"
	"substrate/coordinator/config/fleet"
	"substrate/coordinator/engine"
	"substrate/coordinator/grant"
	"substrate/proto/apiv1"
	"substrate/strictyaml"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func at(minute int) time.Time { return time.Date(2026, 3, 4, 5, minute, 0, 0, time.UTC) }

func pointer[T any](v T) *T { return &v }

func sampleHardware() coordinator.Hardware {
	return coordinator.Hardware{Cores: 64, Threads: 128, Memory: 256 << 30, Devices: map[string]uint32{"nvidia.com/gpu": 4}, Arch: "amd64"}
}

func sampleNode(id coordinator.NodeID) engine.NodeView {
	return engine.NodeView{
		ID: id, Status: engine.NodeReady, Definition: "gpu", Conflicts: []coordinator.DefinitionID{"large"}, Reason: "r", Revision: 7,
		Capacity: sampleHardware(), Used: coordinator.Hardware{Cores: 3, Memory: 1 << 30}, LastSeen: at(1), AgentVersion: "v1",
		Annotations: map[string]string{"site": "a"}, Runs: []coordinator.RunID{"w/j#1"}, Warnings: []engine.NodeWarning{{Source: "/proc/x", Message: "m"}},
		Facts: []byte(`{"hostname":"n"}`),
		Work:  []engine.NodeWork{{Run: "w/j#1", Class: coordinator.ClassBatch, Status: coordinator.StatusPreempting, Started: at(1), EndsBy: at(7), NoticeEnds: at(3)}},
		Arch:  "amd64", OS: "Some Linux 1", CPUModel: "Model",
	}
}

func sampleJob() engine.JobView {
	return engine.JobView{
		ID: "w-1/train/3", Workflow: "w-1", Name: "train/3", Kind: coordinator.KindJob, Class: coordinator.ClassBatch, Status: coordinator.StatusQueued,
		Attempt: 2, Nodes: []coordinator.NodeID{"n1"}, Definition: "gpu", Submitted: at(1), Started: at(2), Ended: at(3), ExitCode: pointer(int32(0)), Signal: 9,
		Message: "msg", Reason: &engine.Reason{Code: "insufficient-resources", Rule: 4, Text: "2 GPUs short", Blocking: []coordinator.AllocationID{"w-0/a"}, Nearest: "n2"},
		Position: 5, Ahead: 4, EstimatedStart: at(9), Preempted: 1, Failures: 2, NoticeEnds: at(8), DependsOn: []string{"prepare"},
		WorkflowName: "train", User: "mia", Reservation: "spring",
	}
}

func sampleWorkflow() engine.WorkflowView {
	return engine.WorkflowView{
		ID: "w-1", Name: "train", Status: coordinator.StatusRunning, Submitted: at(1), Started: at(2),
		Owner:  coordinator.Owner{Organization: "o-1", OrganizationSlug: "acme", Group: "g-1", GroupSlug: "research", User: "u-1", UserName: "mia", Email: "m@x"},
		Counts: map[coordinator.Status]int{coordinator.StatusQueued: 1, coordinator.StatusFinished: 2}, Jobs: []engine.JobView{sampleJob()},
	}
}

// record makes a fake that answers with samples and writes down what it was asked.
func record(calls *[]string) *fakeEngine {
	f := &fakeEngine{}
	note := func(format string, args ...any) { *calls = append(*calls, fmt.Sprintf(format, args...)) }
	for _, part := range []func(*fakeEngine, func(string, ...any)){
		recordConfig, recordPlans, recordCatalogues, recordNodes, recordWorkflows, recordQueue, recordIdentity, recordGrants, recordReservations, recordMaintenance,
	} {
		part(f, note)
	}
	return f
}

// text and num show optional values.
func text(p *string) string {
	if p == nil {
		return "nil"
	}
	return *p
}

func num(p *int32) string {
	if p == nil {
		return "nil"
	}
	return fmt.Sprint(*p)
}

func sampleOrganization() coordinator.Organization {
	return coordinator.Organization{ID: "o-1", Slug: "acme", Priority: 5, Created: at(0)}
}

func sampleGroup() engine.GroupView {
	return engine.GroupView{Group: coordinator.Group{ID: "g-1", Organization: "o-1", Slug: "research", Priority: 10, Created: at(0)}, OrganizationSlug: "acme", PreemptNames: []string{"batch"}}
}

func sampleUser() engine.UserView {
	return engine.UserView{User: coordinator.User{ID: "u-1", Name: "mia", Email: "m@x", Priority: 2, Admin: true, UnixUser: "mia1", Created: at(0)}, OrganizationSlug: "acme", GroupSlugs: []string{"research"}}
}

func sampleRevision() engine.ConfigRevision {
	return engine.ConfigRevision{Revision: 7, SetAt: at(0), SetBy: "ada", SHA256: "ab", Bytes: 12}
}

func sampleDiagnostic() strictyaml.Diagnostic {
	return strictyaml.Diagnostic{Severity: strictyaml.SeverityWarning, Code: "lint", File: "f.yaml", Line: 2, Column: 3, Path: "p", Message: "m", Hint: "h"}
}

func sampleGrant() engine.GrantView {
	return engine.GrantView{Organization: "o-1", Slug: "acme", Serial: 3, IssuedAt: at(0), Definitions: []string{"gpu"}, Orphans: []string{"old"}, State: "valid", JWS: "a.b.c"}
}

func recordConfig(f *fakeEngine, note func(string, ...any)) {
	f.setConfigFunc = func(_ context.Context, c engine.Caller, s engine.SetConfig) (engine.SetConfigResult, error) {
		if s.IfRevision != nil && *s.IfRevision != 7 {
			return engine.SetConfigResult{}, coordinator.Errorf(coordinator.ErrConflict, "set the configuration", "revision 7 is running").WithHint("read it again")
		}
		note("SetConfig by %s: %q file %q if %v append %v", c.Name, s.YAML, s.File, s.IfRevision != nil, s.AppendGrants)
		return engine.SetConfigResult{Revision: sampleRevision(), Diagnostics: strictyaml.Diagnostics{sampleDiagnostic()}, Ungranted: []engine.Ungranted{{Definition: "gpu", Organizations: []string{"acme"}}}}, nil
	}
	f.validateConfigFunc = func(_ context.Context, file string, yaml []byte) strictyaml.Diagnostics {
		note("ValidateConfig %q %q", file, yaml)
		return strictyaml.Diagnostics{sampleDiagnostic()}
	}
	f.configFunc = func(_ context.Context, _ engine.Caller, r *coordinator.Revision) (engine.ConfigRevision, []byte, error) {
		note("Config given %v", r != nil)
		return sampleRevision(), []byte("definitions: []\n"), nil
	}
	f.configRevisionsFunc = func(_ context.Context, _ engine.Caller, p engine.Page) ([]engine.ConfigRevision, string, error) {
		note("ConfigRevisions %+v", p)
		return []engine.ConfigRevision{sampleRevision()}, "next", nil
	}
	f.definitionsFunc = func(context.Context) (coordinator.Revision, []engine.DefinitionView, error) {
		hw := sampleHardware()
		hw.Estimated = true
		return 7, []engine.DefinitionView{
			{Definition: coordinator.Definition{ID: "gpu", Configured: "gpu", Kind: "static", Condition: "true", Policy: "p", CostPerHour: pointer(0.0), Annotations: map[string]string{"a": "b"}}, Nodes: 2, Ready: 1, State: "active"},
			{Definition: coordinator.Definition{ID: "aws-t3", Configured: "aws-${spec.instanceType}", Kind: "aws", Instance: "t3", Hardware: &hw}, State: "backend not in this build"},
		}, nil
	}
}

// samplePlan has a value in every field, so that each is seen to travel.
func samplePlan() *fleet.Plan {
	group := fleet.Group{Count: 2, Nodes: []coordinator.NodeID{"n1", "n2"}}
	return &fleet.Plan{
		Changed: true, Revision: 7, Nodes: 9, NodesMoved: 2, Unassigned: 1, Unreported: 3, Settings: []string{"scheduler"},
		Definitions: []fleet.Change{{Definition: "gpu", Change: "changed", Keys: []string{"policy"}}},
		Moves:       []fleet.Move{{From: "a", To: "b", Group: group}},
		Overlaps:    []fleet.Overlap{{Definition: "a", Line: 3, Others: []coordinator.DefinitionID{"b"}, OtherLines: []uint32{8}, Group: group}},
		Drifts:      []fleet.Drift{{Definition: "a", Model: "n0", Difference: "memory", Group: group}},
		Uncertain: []fleet.Uncertain{{Definition: "a", Facts: []string{"modalias"}, Group: group},
			{Definition: "b", Error: "index out of range", Group: group}},
		Orphans: []fleet.Orphan{{Definition: "old", Status: "running", Reason: "the definition is gone", Count: 1, Jobs: []string{"w-1/train"}}},
		Before:  fleet.Cost{Lowest: pointer(0.0), Highest: pointer(2.5), PerHour: pointer(10.0), Unpriced: 4}, After: fleet.Cost{},
		LeftOut: map[string]uint32{"moves": 5}, Diagnostics: strictyaml.Diagnostics{sampleDiagnostic()},
		Wildcards: []config.Wildcard{{Definition: "${spec.machineType}", Pattern: "n2-*", Backend: "gcp", Source: "provider", Version: 3, Told: "2026-01-02T03:04:05Z", Count: 2,
			Members: []config.Member{{Definition: "n2-standard-4", Type: "n2-standard-4", Arch: "amd64", CostPerHour: pointer(0.2), Flags: []string{"bare metal"}}, {Definition: "n2-x", Type: "n2-x"}},
			Flags:   []config.Flagged{{Flag: "bare metal", Count: 1, Types: []string{"n2-standard-4"}}}, Without: []config.Flagged{{Flag: "not in a", Count: 1, Types: []string{"n2-y"}}}}},
	}
}

func recordPlans(f *fakeEngine, note func(string, ...any)) {
	f.planConfigFunc = func(_ context.Context, c engine.Caller, file string, yaml []byte, members int) (*fleet.Plan, error) {
		note("PlanConfig by %s: %q %q, %d members", c.Name, file, yaml, members)
		return samplePlan(), nil
	}
	f.suggestConfigFunc = func(_ context.Context, c engine.Caller) (*fleet.Suggestion, error) {
		note("SuggestConfig by %s", c.Name)
		return &fleet.Suggestion{YAML: "definitions: []\n", LeftOut: []string{"n3: no report"}, Definitions: []fleet.Suggested{
			{Definition: "intel-32c-128g", Condition: "true", Hardware: "some", Group: fleet.Group{Count: 1, Nodes: []coordinator.NodeID{"n1"}}}}}, nil
	}
}

func recordNodes(f *fakeEngine, note func(string, ...any)) {
	f.nodesFunc = func(_ context.Context, _ engine.Caller, d coordinator.DefinitionID, p engine.Page) ([]engine.NodeView, string, error) {
		note("Nodes %q %+v", d, p)
		return []engine.NodeView{sampleNode("n1"), {ID: "n2", Status: engine.NodeOffline}}, "n2", nil
	}
	f.nodeFunc = func(_ context.Context, _ engine.Caller, id coordinator.NodeID) (engine.NodeView, error) {
		return sampleNode(id), nil
	}
	f.explainNodeFunc = func(_ context.Context, id coordinator.NodeID) (engine.NodeExplanation, error) {
		return engine.NodeExplanation{Node: id, Definition: "gpu", Revision: 7, Conditions: []engine.ConditionView{
			{Definition: "gpu", Value: "false", Parts: []engine.ConditionPart{{Source: "cpuinfo.cpu_cores > 8", Value: "false", Seen: map[string]string{"cpuinfo.cpu_cores": "2"}}}},
			{Definition: "x", Value: "error", Error: "bad"},
		}}, nil
	}
	f.setSchedulingFunc = func(_ context.Context, c engine.Caller, n coordinator.NodeID, action, reason string, active bool) (engine.NodeView, error) {
		note("SetScheduling by %s: %s %s %q %v", c.Name, n, action, reason, active)
		return engine.NodeView{ID: n, Status: engine.NodeDraining, Reason: reason}, nil
	}
	recordJoinTokens(f, note)
}

func recordWorkflows(f *fakeEngine, note func(string, ...any)) {
	f.startWorkflowFunc = func(_ context.Context, c engine.Caller, s engine.StartWorkflow) (engine.StartWorkflowResult, error) {
		p := "nil"
		if s.Preemptible != nil {
			p = fmt.Sprint(*s.Preemptible)
		}
		note("StartWorkflow by %s: %q file %q name %q preemptible %s priority %d group %q key %q", c.Name, s.YAML, s.File, s.Name, p, s.Priority, s.Group, s.IdempotencyKey)
		return engine.StartWorkflowResult{Workflow: sampleWorkflow(), Existed: true, Warnings: strictyaml.Diagnostics{sampleDiagnostic()}}, nil
	}
	f.validateWorkflowFunc = func(_ context.Context, c engine.Caller, file string, yaml []byte) strictyaml.Diagnostics {
		note("ValidateWorkflow by %s %q %q", c.Name, file, yaml)
		return strictyaml.Diagnostics{sampleDiagnostic()}
	}
	f.workflowsFunc = func(_ context.Context, c engine.Caller, status string, p engine.Page) ([]engine.WorkflowView, string, error) {
		note("Workflows by %s %q %+v", c.Name, status, p)
		w := sampleWorkflow()
		w.Jobs = nil
		return []engine.WorkflowView{w}, "", nil
	}
	f.workflowFunc = func(_ context.Context, _ engine.Caller, ref string) (engine.WorkflowView, error) {
		note("Workflow %q", ref)
		return sampleWorkflow(), nil
	}
	f.cancelWorkflowFunc = func(_ context.Context, c engine.Caller, ref, job string) (engine.WorkflowView, error) {
		note("CancelWorkflow by %s %q %q", c.Name, ref, job)
		return sampleWorkflow(), nil
	}
	f.explainWorkflowFunc = func(_ context.Context, _ engine.Caller, ref, job string) ([]engine.JobExplanation, error) {
		note("ExplainWorkflow %q %q", ref, job)
		return []engine.JobExplanation{{Job: sampleJob(), Definitions: []engine.DefinitionOutcome{
			{Definition: "gpu", Admissible: true, CostPerHour: pointer(2.5), Ready: 1}, {Definition: "large", RefusedBy: "policy", Reason: "job_ttl"},
		}}}, nil
	}
}

func recordQueue(f *fakeEngine, note func(string, ...any)) {
	f.jobFunc = func(_ context.Context, _ engine.Caller, id coordinator.AllocationID) (engine.JobView, error) {
		note("Job %q", id)
		return sampleJob(), nil
	}
	f.queueFunc = func(_ context.Context, c engine.Caller, mine bool, class coordinator.Class, p engine.Page) ([]engine.JobView, int, string, error) {
		note("Queue by %s mine %v class %v %+v", c.Name, mine, class, p)
		return []engine.JobView{sampleJob()}, 12, "t", nil
	}
	f.capacityFunc = func(context.Context, engine.Caller) (engine.CapacityView, error) {
		return engine.CapacityView{GeneratedAt: at(4), Definitions: []engine.DefinitionCapacity{{Definition: "gpu", Nodes: 2, Ready: 1, Total: sampleHardware(), Free: sampleHardware()}},
			Classes: []engine.ClassCapacity{{Class: coordinator.ClassBatch, FreeCores: 8, FreeGPUs: 1, Waiting: 3, WaitMinutes: pointer(0.0)}, {Class: coordinator.ClassReserved}}}, nil
	}
	f.statusFunc = func(context.Context) (engine.StatusView, error) {
		return engine.StatusView{ClusterID: "c-1", Revision: 7, NodesReady: 1, NodesTotal: 2, Waiting: 3, Running: 4, Warnings: []string{"w"}}, nil
	}
	f.eventsFunc = func(_ context.Context, c engine.Caller, w string, after uint64, follow bool, send func([]engine.Event) error) error {
		note("Events by %s %q after %d follow %v", c.Name, w, after, follow)
		return send([]engine.Event{
			{Sequence: 11, Time: at(1), Kind: "submitted", Workflow: "w-1", Message: "m"},
			{Sequence: 12, Time: at(2), Kind: "started", Workflow: "w-1", Job: "train", Subject: "n1", Metadata: map[string]string{"k": "v"}},
		})
	}
	f.logFunc = func(_ context.Context, _ engine.Caller, r engine.LogRequest, send func(engine.LogPart) error) error {
		note("Log %+v", r)
		return send(engine.LogPart{Job: "train", Stream: "stdout", Data: []byte("hello\n"), Rank: 2, Ranks: 3})
	}
}

func recordGrants(f *fakeEngine, note func(string, ...any)) {
	f.grantFunc = func(context.Context, engine.Caller, string) (engine.GrantView, error) { return sampleGrant(), nil }
	f.grantHistoryFunc = func(_ context.Context, _ engine.Caller, o string, p engine.Page) (grant.Export, string, error) {
		note("GrantHistory %q %+v", o, p)
		step := grant.Delta{Serial: 1, IssuedAt: sampleGrant().IssuedAt, Digest: "d1", Header: "h", Signature: "s", Added: []grant.Entry{{ID: "gpu", Fingerprint: "f1"}}}
		return grant.Export{Cluster: "c-1", Organization: "o-1", Newest: "a.b.c", Keys: []byte(`{"keys":[]}`), History: []grant.Delta{step}}, "", nil
	}
	f.rotateGrantKeyFunc = func(context.Context, engine.Caller) (engine.GrantKey, error) {
		note("RotateGrantKey")
		return engine.GrantKey{ID: "k2", Previous: "k1"}, nil
	}
	f.setGrantFunc = func(_ context.Context, _ engine.Caller, o string, ds []string) (engine.GrantView, error) {
		note("SetGrant %q %v", o, ds)
		return sampleGrant(), nil
	}
	f.appendDefinitionsFunc = func(_ context.Context, _ engine.Caller, ds, os []string, all bool) ([]engine.AppendResult, error) {
		note("AppendDefinitions %v %v %v", ds, os, all)
		return []engine.AppendResult{{Definition: "gpu", Organization: "acme", AlreadyExisted: true}}, nil
	}
}

// TestREST runs every route once; the golden file shows request, engine call and answer.
func TestREST(t *testing.T) {
	var calls []string
	a := startAPI(t, record(&calls), true)
	var out bytes.Buffer
	for _, r := range slices.Concat(clusterRequests(), userRequests(), calendarRequests(), identityRequests()) {
		calls = nil
		fmt.Fprintf(&out, "> %s %s\n", r[0], r[1])
		for _, h := range r[3:] {
			fmt.Fprintf(&out, "> %s\n", h)
		}
		if r[2] != "" {
			fmt.Fprintf(&out, "> %s\n", strings.TrimSpace(r[2]))
		}
		res, body := a.do(r[0], r[1], r[2], append([]string{asAdmin}, r[3:]...)...)
		for _, c := range calls {
			fmt.Fprintf(&out, "engine: %s\n", c)
		}
		fmt.Fprintf(&out, "< %d %s", res.StatusCode, res.Header.Get("Content-Type"))
		if tag := res.Header.Get("ETag"); tag != "" {
			fmt.Fprintf(&out, " ETag %s", tag)
		}
		fmt.Fprintf(&out, "\n%s\n\n", stable(body))
	}
	golden(t, "testdata/rest.golden", out.Bytes())
}

// The requests: method, path, body, headers…

func clusterRequests() [][]string {
	yaml := base64.StdEncoding.EncodeToString([]byte("a: 1\n"))
	return [][]string{
		{"POST", "/v1/config", `{"yaml":"` + yaml + `","file":"f.yaml","append_grants":true}`},
		{"POST", "/v1/config?file=g.yaml&append_grants=true", "a: 2\n", "Content-Type: application/yaml", `If-Match: "7"`},
		{"POST", "/v1/config", `{"yaml":"` + yaml + `"}`, `If-Match: "6"`},
		{"POST", "/v1/config", `{"yaml":"` + yaml + `"}`, `If-Match: "six"`},
		{"POST", "/v1/config", `{"yaml":"` + yaml + `","if_revision":"6"}`},
		{"POST", "/v1/config", `{"nonsense":1}`},
		{"GET", "/v1/config", ""},
		{"GET", "/v1/config?revision=7", ""},
		{"GET", "/v1/config/revisions?page_size=5000&page_token=" + pageAfter("/substrate.v1.Config/ListConfigRevisions", &apiv1.ListConfigRevisionsRequest{}, "x"), ""},
		{"POST", "/v1/config:validate", `{"yaml":"` + yaml + `","file":"f.yaml"}`},
		{"POST", "/v1/config:plan", `{"yaml":"` + yaml + `","file":"f.yaml"}`},
		{"POST", "/v1/config:plan?file=g.yaml", "a: 2\n", "Content-Type: application/yaml"},
		{"GET", "/v1/config:suggest", ""},
		{"GET", "/v1/nodes?definition=gpu", ""},
		{"GET", "/v1/nodes/n1", ""},
		{"GET", "/v1/nodes/n1/explain", ""},
		{"POST", "/v1/nodes/n1/scheduling", `{"action":"drain","reason":"disk","active":true}`},
		{"POST", "/v1/nodes/n1/scheduling", `{"action":"explode"}`},
		{"GET", "/v1/definitions", ""},
		{"GET", "/v1/catalogues", ""},
		{"POST", "/v1/catalogues:refresh", `{"backends":["gcp"]}`},
		{"GET", "/v1/instance-types?pattern=n2-*&backend=gcp&page_size=5", ""},
		{"POST", "/v1/join-tokens", `{"ttl_seconds":"60","uses":3}`},
		{"POST", "/v1/join-tokens", `{}`},
	}
}

func userRequests() [][]string {
	yaml := base64.StdEncoding.EncodeToString([]byte("a: 1\n"))
	return [][]string{
		{"POST", "/v1/workflows", `{"yaml":"` + yaml + `","file":"w.yaml","name":"n","preemptible":false,"priority":-3,"group":"research"}`, "Idempotency-Key: k-1"},
		{"POST", "/v1/workflows?name=n&preemptible=true&priority=-1", "a: 1\n", "Content-Type: application/yaml"},
		{"POST", "/v1/workflows?preemptible=perhaps", "a: 1\n", "Content-Type: application/yaml"},
		{"POST", "/v1/workflows:validate", `{"yaml":"` + yaml + `","file":"w.yaml"}`},
		{"GET", "/v1/workflows?status=running&page_size=3", ""},
		{"GET", "/v1/workflows/w-1", ""},
		{"POST", "/v1/workflows/w-1/cancel", `{"job":"train"}`},
		{"GET", "/v1/workflows/w-1/explain?job=train", ""},
		{"GET", "/v1/workflows/w-1/log?job=train&attempt=2&stream=stdout", ""},
		{"GET", "/v1/workflows/w-1/log?stream=video", ""},
		{"GET", "/v1/events?workflow=w-1&after=10", ""},
		{"GET", "/v1/events?workflow=w-1", "", "Accept: text/event-stream", "Last-Event-ID: 10"},
		{"GET", "/v1/queue?mine=true&class=batch", ""},
		{"GET", "/v1/queue?class=golden", ""},
		{"GET", "/v1/capacity", ""},
		{"GET", "/v1/jobs/w-1/train/3", ""},
		{"GET", "/v1/whoami", ""},
		{"GET", "/v1/organizations", ""},
		{"POST", "/v1/organizations", `{"name":"acme","priority":5}`},
		{"POST", "/v1/organizations", `{"name":"acme"}{"name":"beta"}`},
		{"PATCH", "/v1/organizations/o-1", `{"priority":0}`},
		{"GET", "/v1/groups?organization=acme", ""},
		{"POST", "/v1/groups", `{"name":"research","organization":"acme","priority":10}`},
		{"PATCH", "/v1/groups/research", `{"preempt":["batch"],"no_preempt":["x"]}`},
		{"GET", "/v1/users", ""},
		{"POST", "/v1/users", `{"name":"mia","groups":["research"],"unix_user":"mia1"}`},
		{"PATCH", "/v1/users/u-1", `{"unix_user":""}`},
		{"POST", "/v1/users/u-1/tokens", `{}`},
		{"GET", "/v1/grants/acme", ""},
		{"GET", "/v1/grants/acme/history?page_size=7", ""},
		{"POST", "/v1/grant-key:rotate", "{}"},
		{"PUT", "/v1/grants/acme", `{"definitions":["gpu"]}`},
		{"POST", "/v1/grants:append", `{"definitions":["gpu"],"organizations":["acme"]}`},
		{"POST", "/v1/grants:append", `{"definitions":["gpu"]}`},
		{"POST", "/v1/grants:append", `{"all_organizations":true}`},
		{"GET", "/v1/status", ""},
		{"GET", "/v1/nothing", ""},
		{"DELETE", "/v1/nodes", ""},
		{"GET", "/elsewhere", ""},
	}
}

// stable takes out the spaces that protojson varies on purpose.
func stable(body string) string {
	var b bytes.Buffer
	if json.Indent(&b, []byte(body), "", "  ") == nil {
		return strings.TrimSpace(b.String())
	}
	return strings.TrimSpace(regexp.MustCompile(`([,:]) ("|\{|\[)`).ReplaceAllString(body, "$1$2"))
}

func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		g, w := strings.Split(string(got), "\n"), strings.Split(string(want), "\n")
		for i := range min(len(g), len(w)) {
			if g[i] != w[i] {
				t.Fatalf("%s:%d:\n got %s\nwant %s", file, i+1, g[i], w[i])
			}
		}
		t.Fatalf("%s: %d lines instead of %d", file, len(g), len(w))
	}
}

func TestRESTWithoutToken(t *testing.T) {
	a := startAPI(t, &fakeEngine{}, true)
	for _, h := range [][]string{nil, {"Authorization: Bearer wrong"}, {"Authorization: Basic " + adminToken}, {"Authorization: " + adminToken}} {
		res, body := a.do("GET", "/v1/nodes", "", h...)
		if res.StatusCode != http.StatusUnauthorized || res.Header.Get("WWW-Authenticate") != "Bearer" || !strings.Contains(body, `"unauthenticated"`) {
			t.Errorf("%v: %d %s", h, res.StatusCode, body)
		}
	}
	if res, body := a.do("GET", "/v1/openapi.json", ""); res.StatusCode != 200 || !json.Valid([]byte(body)) || !strings.Contains(body, "/v1/capacity") {
		t.Errorf("openapi: %d", res.StatusCode)
	}
}

// TestEveryRouteIsDescribed holds the OpenAPI document to the RPCs.
func TestEveryRouteIsDescribed(t *testing.T) {
	a := startAPI(t, &fakeEngine{}, true)
	_, body := a.do("GET", "/v1/openapi.json", "")
	var doc struct {
		Paths map[string]map[string]struct {
			OperationID string `json:"operationId"`
		}
	}
	if err := json.Unmarshal([]byte(body), &doc); err != nil {
		t.Fatal(err)
	}
	described := map[string]bool{}
	for _, p := range doc.Paths {
		for _, op := range p {
			described[op.OperationID] = true
		}
	}
	for name := range apiMethods() {
		if id := strings.ReplaceAll(shortMethod(name), ".", "_"); !described[id] {
			t.Errorf("%s has no route", id)
		}
	}
}

func TestLimitsOfRequests(t *testing.T) {
	var size int
	f := &fakeEngine{
		setConfigFunc: func(_ context.Context, _ engine.Caller, s engine.SetConfig) (engine.SetConfigResult, error) {
			size = len(s.YAML)
			return engine.SetConfigResult{}, nil
		},
		startWorkflowFunc: func(context.Context, engine.Caller, engine.StartWorkflow) (engine.StartWorkflowResult, error) {
			t.Error("a huge workflow came through")
			return engine.StartWorkflowResult{}, nil
		},
	}
	a := startAPI(t, f, true)
	big := strings.Repeat("#", 8<<20)
	yaml := "Content-Type: application/yaml"
	if res, body := a.do("POST", "/v1/config", big, asAdmin, yaml); res.StatusCode != 200 || size != len(big) {
		t.Errorf("a large configuration: %d %s (%d bytes)", res.StatusCode, body, size)
	}
	for _, who := range []string{"Authorization: Bearer wrong", asMember} {
		size = 0
		if res, _ := a.do("POST", "/v1/config", big, who, yaml); res.StatusCode == 200 || size > 0 {
			t.Errorf("a large body with %s: %d", who, res.StatusCode)
		}
	}
	if res, _ := a.do("POST", "/v1/workflows", big, asAdmin, yaml); res.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("a large workflow: %d", res.StatusCode)
	}
	if res, body := a.do("POST", "/v1/workflows", `{"yaml":"YQ==","idempotency_key":"`+strings.Repeat("k", 300)+`"}`, asMember); res.StatusCode != 400 {
		t.Errorf("a long key: %d %s", res.StatusCode, body)
	}
}

func TestServerSentEventsFlow(t *testing.T) {
	more := make(chan struct{})
	gone := make(chan struct{})
	f := &fakeEngine{eventsFunc: func(ctx context.Context, _ engine.Caller, _ string, _ uint64, _ bool, send func([]engine.Event) error) error {
		if err := send([]engine.Event{{Sequence: 1, Kind: "submitted"}}); err != nil {
			return err
		}
		<-more
		if err := send([]engine.Event{{Sequence: 2, Kind: "started"}}); err != nil {
			return err
		}
		<-ctx.Done()
		close(gone)
		return ctx.Err()
	}}
	a := startAPI(t, f, true)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, "GET", "https://"+a.address+"/v1/events?workflow=w&follow=true", nil)
	req.Header.Set("Accept", "text/event-stream")
	req.Header.Set("Authorization", "Bearer "+memberToken)
	res, err := a.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if got := res.Header.Get("Content-Type"); got != "text/event-stream" {
		t.Errorf("content type %q", got)
	}
	lines := bufio.NewScanner(res.Body)
	next := func() string {
		lines.Scan()
		return lines.Text()
	}
	if id, data, blank := next(), next(), next(); id != "id: 1" || !strings.HasPrefix(data, "data: {") || blank != "" {
		t.Fatalf("%q %q %q", id, data, blank)
	}
	close(more)
	if id := next(); id != "id: 2" {
		t.Errorf("%q", id)
	}
	cancel()
	select {
	case <-gone:
	case <-time.After(5 * time.Second):
		t.Error("the engine did not learn that the reader is gone")
	}
}

func TestFailuresAreBounded(t *testing.T) {
	var f failures
	now := at(0)
	for i := range failureSources * 2 {
		f.add(fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255), now)
	}
	if len(f.since) != failureSources || len(f.order) != failureSources {
		t.Errorf("%d sources, %d in order", len(f.since), len(f.order))
	}
	for range failuresAllowed {
		f.add("s", now)
	}
	if !f.blocked("s", now) || f.blocked("s", now.Add(failureWindow)) || f.blocked("other", now) {
		t.Error("blocking does not follow the window")
	}
	f.add("s", now.Add(failureWindow))
	if f.blocked("s", now.Add(failureWindow)) || len(f.order) != failureSources {
		t.Error("a new window does not start anew")
	}
}

func TestSourceOf(t *testing.T) {
	for in, want := range map[string]string{
		"10.1.2.3:55": "10.1.2.3", "10.1.2.3": "10.1.2.3", "[::ffff:10.1.2.3]:9": "10.1.2.3",
		"[2001:db8:1:2:3::9]:80": "2001:db8:1:2::/64", "2001:db8:1:2::7": "2001:db8:1:2::/64", "fe80::1%eth0": "fe80::/64", "odd": "odd", "": "",
	} {
		if got := sourceOf(in); got != want {
			t.Errorf("sourceOf(%q) = %q, want %q", in, got, want)
		}
	}
}

// What the query gets wrong is told without the names of functions.
func TestQueryErrorsArePlain(t *testing.T) {
	a := startAPI(t, &fakeEngine{}, true)
	for query, want := range map[string]string{
		"page_size=-1":          `"cannot read the request: field \"page_size\": expected a number that fits, got \"-1\""`,
		"page_size=99999999999": `expected a number that fits, got \"99999999999\"`,
	} {
		res, body := a.do("GET", "/v1/workflows?"+query, "", asAdmin)
		if res.StatusCode != 400 || !strings.Contains(body, want) || strings.Contains(body, "strconv") || !strings.Contains(body, "openapi.json") {
			t.Errorf("%s: %d %s, wanted %s", query, res.StatusCode, body, want)
		}
	}
	if res, body := a.do("GET", "/v1/audit?since=yesterday", "", asAdmin); res.StatusCode != 400 ||
		!strings.Contains(body, `field \"since\": expected a time such as 2026-12-01T08:00:00Z, got \"yesterday\"`) {
		t.Errorf("a time: %d %s", res.StatusCode, body)
	}
	if res, body := a.do("GET", "/v1/queue?mine=perhaps", "", asAdmin); res.StatusCode != 400 || !strings.Contains(body, `expected true or false, got \"perhaps\"`) {
		t.Errorf("a truth value: %d %s", res.StatusCode, body)
	}
}
