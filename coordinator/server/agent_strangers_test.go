package server

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/engine"
	"substrate/hwinfo"
	"substrate/proto/agentv1"
)

// TestStrangersGetNothingOfTheAgentsPort calls every RPC of the agents' port with every message, those of tomorrow too,
// as everybody who is no node of the cluster: there is no answer, and no record changes.
func TestStrangersGetNothingOfTheAgentsPort(t *testing.T) {
	r := startRealAgents(t)
	strangers := r.strangers()
	_, csr := newRequest(t)
	calls := agentCalls("n1", nil, csr)
	if len(calls) < 8 {
		t.Fatalf("only %d calls: the test looks at nothing", len(calls))
	}
	before := stored(t, r.store)
	for who, s := range strangers {
		ctx := metadata.NewOutgoingContext(t.Context(), s.as)
		for name, messages := range calls {
			answers, err := send(ctx, s.conn, name, messages)
			want := s.want
			if strings.HasPrefix(name, agentv1.Enrolment_Join_FullMethodName) && want == codes.Unauthenticated && status.Code(err) == codes.ResourceExhausted {
				want = codes.ResourceExhausted // so many wrong tokens from one address
			}
			if s.ended && !startsWithHello(name) {
				want = codes.InvalidArgument
			}
			if answers != 0 || status.Code(err) != want {
				t.Errorf("%s as %s: %d answers, %v", name, who, answers, err)
			}
		}
	}
	if after := stored(t, r.store); !maps.Equal(before, after) {
		t.Errorf("records changed: %v", differing(before, after))
	}
}

func differing(before, after map[string]string) (out []string) {
	for key, value := range after {
		if old, ok := before[key]; !ok || old != value {
			out = append(out, key)
		}
	}
	for key := range before {
		if _, ok := after[key]; !ok {
			out = append(out, "without "+key)
		}
	}
	return out
}

// TestAConnectionDoesNotOutliveItsCertificate: what was opened while the certificate counted gets nothing once it has
// expired or was revoked, and a stream ends then.
func TestAConnectionDoesNotOutliveItsCertificate(t *testing.T) {
	for name, end := range map[string]func(*realAgents){
		"revoked": func(r *realAgents) {
			if _, err := r.engine.RevokeNode(t.Context(), r.admin, "n1", ""); err != nil {
				t.Fatal(err)
			}
		},
		"removed": func(r *realAgents) {
			if err := r.engine.RemoveNode(t.Context(), r.admin, "n1", "", true); err != nil {
				t.Fatal(err)
			}
		},
		"expired": func(r *realAgents) { r.ahead.Store(int64(25 * time.Hour)) },
	} {
		t.Run(name, func(t *testing.T) {
			r := startRealAgents(t)
			conn := r.dial(r.joined("n1"))
			_, csr := newRequest(t)
			client := agentv1.NewAgentClient(conn)
			if answer, err := client.Renew(t.Context(), &agentv1.RenewRequest{Csr: csr}); err != nil || len(answer.GetCertificate()) == 0 {
				t.Fatalf("before: %v", err)
			}
			s, err := client.Connect(t.Context())
			if err == nil && name != "expired" { // the end of that one is TestStreamEndsWithItsCertificate
				err = s.Send(&agentv1.FromAgent{Message: &agentv1.FromAgent_Hello{Hello: &agentv1.Hello{}}})
				receive(t, s)
			}
			if err != nil {
				t.Fatal(err)
			}
			end(r)
			if name != "expired" {
				for err == nil {
					_, err = s.Recv()
				}
				if status.Code(err) != codes.Unavailable {
					t.Errorf("the stream: %v", err)
				}
			}
			before := stored(t, r.store)
			for call, messages := range agentCalls("n1", nil, csr) {
				if strings.HasPrefix(call, agentv1.Enrolment_Join_FullMethodName) {
					continue // has no use for a certificate
				}
				want := codes.Unauthenticated
				if name != "expired" && !startsWithHello(call) {
					want = codes.InvalidArgument
				}
				if answers, err := send(t.Context(), conn, call, messages); answers != 0 || status.Code(err) != want {
					t.Errorf("%s: %d answers, %v", call, answers, err)
				}
			}
			if after := stored(t, r.store); !maps.Equal(before, after) {
				t.Errorf("records changed: %v", differing(before, after))
			}
		})
	}
}

// TestStreamEndsWithItsCertificate: the coordinator ends it, whatever the agent does.
func TestStreamEndsWithItsCertificate(t *testing.T) {
	r := startRealAgents(t)
	r.joined("n1")
	issued := time.Now().Add(time.Second) // joining ended what was issued in the same second
	s, err := agentv1.NewAgentClient(r.dial(signed(t, r.engine.ServerIdentity(), "n1", issued, 2*time.Second))).Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&agentv1.FromAgent{Message: &agentv1.FromAgent_Hello{Hello: &agentv1.Hello{}}}); err != nil {
		t.Fatal(err)
	}
	receive(t, s)
	for err == nil {
		_, err = s.Recv()
	}
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "expired") || time.Now().Before(issued.Add(time.Second)) {
		t.Errorf("%v", err)
	}
}

// joinTokens are tokens that do not count, and some that do for somebody else.
type joinTokens struct {
	good, other, expired, bound, revoked, used, many string
	csr                                              []byte // of the key that used and many were used with
}

func (r *realAgents) joinTokens() (j joinTokens) {
	t := r.t
	t.Helper()
	id := ""
	for to, in := range map[*string]engine.NewJoinToken{&j.good: {}, &j.other: {}, &j.expired: {TTL: time.Minute}, &j.used: {}, &j.many: {Uses: 5},
		&j.bound: {Binding: auth.Binding{Launch: "launch-1"}}, &j.revoked: {}} {
		text, v, err := r.engine.CreateJoinToken(t.Context(), r.admin, in)
		if err != nil {
			t.Fatal(err)
		}
		if *to = text; to == &j.revoked {
			id = v.ID
		}
	}
	if err := r.engine.RevokeJoinToken(t.Context(), r.admin, id); err != nil {
		t.Fatal(err)
	}
	_, j.csr = newRequest(t)
	for node, token := range map[string]string{"n1": j.used, "n2": j.many} {
		if _, _, err := r.engine.Join(t.Context(), engine.JoinRequest{Token: token, Node: node, CSR: j.csr}); err != nil {
			t.Fatal(err)
		}
	}
	return j
}

// TestJoinTokensThatDoNotCount: each gets no certificate and changes no record.
func TestJoinTokensThatDoNotCount(t *testing.T) {
	r := startRealAgents(t)
	ctx, j := t.Context(), r.joinTokens()
	user, _, err := r.engine.CreateUserToken(ctx, r.admin, engine.NewToken{})
	if err != nil {
		t.Fatal(err)
	}
	federation, _, err := r.engine.CreateFederationToken(ctx, r.admin, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	s, err := agentv1.NewAgentClient(r.dial(r.joined("busy"))).Connect(ctx)
	if err == nil {
		err = s.Send(&agentv1.FromAgent{Message: &agentv1.FromAgent_Hello{Hello: &agentv1.Hello{}}})
	}
	if err != nil {
		t.Fatal(err)
	}
	receive(t, s)
	r.ahead.Store(int64(2 * time.Minute))
	mixed := strings.Split(j.good, ".")[0] + "." + strings.Split(j.other, ".")[1]
	_, csr := newRequest(t)
	before := stored(t, r.store)
	client := agentv1.NewEnrolmentClient(r.dial(nil))
	for name, tt := range map[string]struct {
		in   *agentv1.JoinRequest
		want codes.Code
	}{
		"none":                        {&agentv1.JoinRequest{Node: "n3", Csr: csr}, codes.Unauthenticated},
		"a user's":                    {&agentv1.JoinRequest{Token: user, Node: "n3", Csr: csr}, codes.Unauthenticated},
		"a Federate's":                {&agentv1.JoinRequest{Token: federation, Node: "n3", Csr: csr}, codes.Unauthenticated},
		"another's secret":            {&agentv1.JoinRequest{Token: mixed, Node: "n3", Csr: csr}, codes.Unauthenticated},
		"used up":                     {&agentv1.JoinRequest{Token: j.used, Node: "n3", Csr: csr}, codes.Unauthenticated},
		"used up, the node's own":     {&agentv1.JoinRequest{Token: j.used, Node: "n1", Csr: csr}, codes.Unauthenticated},
		"used up, with the key again": {&agentv1.JoinRequest{Token: j.used, Node: "n3", Csr: j.csr}, codes.Aborted},
		"one key, two nodes":          {&agentv1.JoinRequest{Token: j.many, Node: "n3", Csr: j.csr}, codes.Aborted},
		"expired":                     {&agentv1.JoinRequest{Token: j.expired, Node: "n3", Csr: csr}, codes.Unauthenticated},
		"revoked":                     {&agentv1.JoinRequest{Token: j.revoked, Node: "n3", Csr: csr}, codes.Unauthenticated},
		"of another launch":           {&agentv1.JoinRequest{Token: j.bound, Node: "n3", Launch: "launch-2", Csr: csr}, codes.PermissionDenied},
		"of a launch, without one":    {&agentv1.JoinRequest{Token: j.bound, Node: "n3", Csr: csr}, codes.PermissionDenied},
		"name of a living node":       {&agentv1.JoinRequest{Token: j.good, Node: "busy", Csr: csr}, codes.Aborted},
		"name that is none":           {&agentv1.JoinRequest{Token: j.good, Node: "n3/../n1", Csr: csr}, codes.InvalidArgument},
		"no key":                      {&agentv1.JoinRequest{Token: j.good, Node: "n3", Csr: []byte("x")}, codes.InvalidArgument},
	} {
		if answer, err := client.Join(ctx, tt.in); status.Code(err) != tt.want || len(answer.GetCertificate())+len(answer.GetCa()) > 0 {
			t.Errorf("%s: %v, %v", name, answer, err)
		}
	}
	if after := stored(t, r.store); !maps.Equal(before, after) {
		t.Errorf("records changed: %v", differing(before, after))
	}
	if answer, err := client.Join(ctx, &agentv1.JoinRequest{Token: j.bound, Node: "n3", Launch: "launch-1", Csr: csr}); err != nil || len(answer.GetCertificate()) == 0 {
		t.Errorf("the launch itself: %v", err)
	}
}

// victim is a node with work that runs on it.
func (r *realAgents) victim(node string) engine.WorkflowView {
	t := r.t
	t.Helper()
	yaml := "definitions: [{id: any, provisioner: static, provisionerSpec: {condition: \"true\"}}]\n"
	if _, err := r.engine.SetConfig(t.Context(), r.admin, engine.SetConfig{File: "c", YAML: []byte(yaml)}); err != nil {
		t.Fatal(err)
	}
	s, err := agentv1.NewAgentClient(r.dial(r.joined(node))).Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cores, memory := 4, uint64(64<<30)
	facts := hwinfo.Facts{Hostname: node}
	facts.CPU.Cores, facts.CPU.LogicalCPUs, facts.Memory.Total = &cores, &cores, &memory
	raw, err := json.Marshal(facts)
	if err != nil {
		t.Fatal(err)
	}
	say := func(m *agentv1.FromAgent) {
		if err := s.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	say(&agentv1.FromAgent{Message: &agentv1.FromAgent_Hello{Hello: &agentv1.Hello{RunsAsCaller: true}}})
	say(&agentv1.FromAgent{Message: &agentv1.FromAgent_Hardware{Hardware: &agentv1.HardwareReport{FactsJson: raw}}})
	work, err := r.engine.StartWorkflow(t.Context(), r.admin, engine.StartWorkflow{File: "w", YAML: []byte("version: v1\nname: w\njobs:\n  j: {command: [x]}\n")})
	if err != nil {
		t.Fatal(err)
	}
	for {
		m := receive(t, s)
		if c := m.GetConfiguration(); c != nil {
			say(&agentv1.FromAgent{Message: &agentv1.FromAgent_Conditions{Conditions: &agentv1.ConditionResults{
				Revision: c.GetRevision(), Results: []*agentv1.ConditionResult{{Definition: "any", Value: "true"}}}}})
		}
		if o := m.GetStart(); o != nil {
			say(&agentv1.FromAgent{Message: &agentv1.FromAgent_RunStatus{RunStatus: &agentv1.RunStatus{RunId: o.GetRunId(), State: "running"}}})
			say(&agentv1.FromAgent{Message: &agentv1.FromAgent_LogChunk{LogChunk: &agentv1.LogChunk{RunId: o.GetRunId(), Stream: "stdout", Data: []byte("mine\n")}}})
		}
		if m.GetAck() != nil {
			return work.Workflow
		}
	}
}

// TestForgedReportsOfAnotherNodesWork: a node with a good certificate says every message there is about the work of
// another: its records and its output stay as they are, and it goes on.
func TestForgedReportsOfAnotherNodesWork(t *testing.T) {
	r := startRealAgents(t)
	conn := r.dial(r.joined("n1"))
	work := r.victim("n2")
	eventually(t, "the work runs", func() bool {
		v, err := r.engine.Workflow(t.Context(), r.admin, string(work.ID))
		return err == nil && v.Counts[coordinator.StatusRunning] == 1
	})
	before, run, taken := stored(t, r.store), string(work.ID)+"/j#1", 0
	for _, state := range []string{"starting", "running", "ended"} {
		for _, cause := range []string{"exited", "start-failed", "stopped"} {
			words := map[string]string{"state": state, "cause": cause, "stream": "stdout", "boot_id": "n2", "version": "n2"}
			for name, messages := range agentCalls(run, words, []byte("forged\n")) {
				if strings.HasPrefix(name, agentv1.Agent_Connect_FullMethodName) {
					if _, err := send(t.Context(), conn, name, messages); err == nil {
						taken++
					}
				}
			}
		}
	}
	if taken < 9*3 {
		t.Errorf("only %d forged reports were taken in: the test looks at nothing", taken)
	}
	after := stored(t, r.store)
	for key, value := range before {
		if strings.HasPrefix(key, "node/n1") || strings.HasPrefix(key, "node-facts/n1") || strings.HasPrefix(key, "event/") {
			continue
		}
		if after[key] != value {
			t.Errorf("%s was changed by another node", key)
		}
	}
	v, err := r.engine.Workflow(t.Context(), r.admin, string(work.ID))
	if err != nil || v.Counts[coordinator.StatusRunning] != 1 {
		t.Errorf("%+v, %v", v.Counts, err)
	}
	var text strings.Builder
	err = r.engine.Log(t.Context(), r.admin, engine.LogRequest{Workflow: string(work.ID)}, func(p engine.LogPart) error { text.Write(p.Data); return nil })
	if err != nil || text.String() != "mine\n" {
		t.Errorf("output %q, %v", text.String(), err)
	}
}
