package server

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"substrate/coordinator"
	"substrate/coordinator/engine"
	"substrate/coordinator/logs"
	"substrate/coordinator/store"
)

// realAPI is the API over a real engine on the memory store.
func realAPI(t *testing.T) (*API, *engine.Engine, *store.Memory, engine.Caller) {
	t.Helper()
	st, log := store.NewMemory(), slog.New(slog.DiscardHandler)
	out, err := logs.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	e, err := engine.New(t.Context(), engine.Options{Store: st, Logs: out, Log: log, Now: time.Now, Rand: rand.Reader})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	api, err := NewAPI(e, APIOptions{Version: "test", Now: time.Now, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); _ = api.Close(); <-done; _ = out.Close() })
	token, err := e.AdminToken(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	admin, err := e.Authenticate(t.Context(), token)
	if err != nil {
		t.Fatal(err)
	}
	return api, e, st, admin
}

// requestOf is a request of any RPC with the strings that it has fields for.
func requestOf(m protoreflect.MethodDescriptor, words map[string]string) *dynamicpb.Message {
	in := dynamicpb.NewMessage(m.Input())
	for field, word := range words {
		f := m.Input().Fields().ByName(protoreflect.Name(field))
		switch {
		case f == nil:
		case f.IsList() && f.Kind() == protoreflect.StringKind:
			in.Mutable(f).List().Append(protoreflect.ValueOfString(word))
		case f.Kind() == protoreflect.StringKind:
			in.Set(f, protoreflect.ValueOfString(word))
		case f.Kind() == protoreflect.BytesKind:
			in.Set(f, protoreflect.ValueOfBytes([]byte(word)))
		}
	}
	return in
}

// invokeAny calls any RPC with the strings that its request has fields for, and returns what came back as text.
func invokeAny(ctx context.Context, conn *grpc.ClientConn, name string, m protoreflect.MethodDescriptor, words map[string]string) (string, error) {
	in, out := requestOf(m, words), dynamicpb.NewMessage(m.Output())
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: m.IsStreamingServer()}, name)
	if err != nil {
		return "", err
	}
	if err := errors.Join(stream.SendMsg(in), stream.CloseSend()); err != nil {
		return "", err
	}
	var text strings.Builder
	for {
		if err := stream.RecvMsg(out); errors.Is(err, io.EOF) {
			return text.String(), nil
		} else if err != nil {
			return text.String() + err.Error(), err
		}
		text.WriteString(protojson.Format(out))
		if !m.IsStreamingServer() {
			return text.String(), nil
		}
	}
}

// hidden is an organisation with a user, a group and work, and strangers of another who know all its ids and names.
type hidden struct {
	t       *testing.T
	api     *API
	store   *store.Memory
	words   map[string]string // for fields of requests
	ids     []string          // for fields that are called id
	tokens  map[string]string // of strangers
	secrets []string          // what the strangers did not say themselves
	before  map[string]string
}

const hiddenYAML = "version: v1\nname: hidden-work\njobs:\n  hidden-job: {command: [x]}\n"

func newHidden(t *testing.T) *hidden {
	t.Helper()
	api, e, st, admin := realAPI(t)
	h := &hidden{t: t, api: api, store: st, tokens: map[string]string{}}
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := e.SetConfig(ctx, admin, engine.SetConfig{File: "c", YAML: []byte("definitions: [{id: any, provisioner: static, provisionerSpec: {condition: \"true\"}}]\n")})
	must(err)
	for _, org := range []string{"hidden", "other"} {
		_, err := e.CreateOrganization(ctx, admin, org, 0)
		must(err)
	}
	victim, err := e.CreateUser(ctx, admin, engine.NewUser{Name: "hidden-user", Email: "hidden@x", Organization: "hidden"})
	must(err)
	group, err := e.CreateGroup(ctx, admin, "hidden-group", "hidden", 0)
	must(err)
	token, _, err := e.CreateUserToken(ctx, admin, engine.NewToken{User: string(victim.ID)})
	must(err)
	caller, err := e.Authenticate(ctx, token)
	must(err)
	work, err := e.StartWorkflow(ctx, caller, engine.StartWorkflow{File: "w", YAML: []byte(hiddenYAML)})
	must(err)
	for _, role := range []coordinator.Role{coordinator.RoleMember, coordinator.RoleOwner} {
		u, err := e.CreateUser(ctx, admin, engine.NewUser{Name: "stranger-" + role.String(), Organization: "other", Role: role})
		must(err)
		h.tokens[role.String()], _, err = e.CreateUserToken(ctx, admin, engine.NewToken{User: string(u.ID)})
		must(err)
	}
	h.words = map[string]string{"organization": string(victim.Organization), "group": string(group.ID), "user": string(victim.ID),
		"workflow": string(work.Workflow.ID), "organizations": string(victim.Organization), "token": "x", "name": "x", "role": "owner", "yaml": hiddenYAML, "node": "n1", "definition": "small", "launch": "l0"}
	h.ids = []string{string(victim.ID), string(work.Workflow.ID), string(work.Workflow.ID) + "/hidden-job", string(victim.Organization), string(group.ID)}
	for _, secret := range []string{"hidden-user", "hidden-group", "hidden@x", "hidden-work", "\"hidden\""} {
		if !strings.Contains(hiddenYAML, secret) {
			h.secrets = append(h.secrets, secret)
		}
	}
	h.before = recordsOf(t, st)
	return h
}

// each calls with every id in turn.
func (h *hidden) each(call func(words map[string]string)) {
	for _, id := range h.ids {
		h.words["id"] = id
		call(h.words)
	}
}

func (h *hidden) judge(what, role, answer string) {
	h.t.Helper()
	for _, secret := range h.secrets {
		if strings.Contains(answer, secret) {
			h.t.Errorf("%s as %s of another organisation tells %s: %s", what, role, secret, answer)
		}
	}
}

func (h *hidden) unchanged() {
	h.t.Helper()
	after := recordsOf(h.t, h.store)
	for key, value := range h.before {
		if after[key] != value {
			h.t.Errorf("%s was changed by members of another organisation", key)
		}
	}
}

// TestNoRPCReachesAnotherOrganisation calls every RPC there is, those of tomorrow too, as members and owners of one
// organisation with the ids and names of another: nothing of it changes, and no answer names what the caller did not.
func TestNoRPCReachesAnotherOrganisation(t *testing.T) {
	h := newHidden(t)
	methods := apiMethods()
	for role, token := range h.tokens {
		as := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token)
		for _, name := range slices.Sorted(maps.Keys(methods)) {
			if _, served := permissions()[name]; !served {
				continue
			}
			h.each(func(words map[string]string) {
				answer, _ := invokeAny(as, h.api.client, name, methods[name], words)
				h.judge(name, role, answer)
			})
		}
	}
	h.unchanged()
}

// recordsOf are all that is stored of the hidden organisation: what was there before the strangers came, without counters.
func recordsOf(t *testing.T, st store.Store) map[string]string {
	t.Helper()
	out := map[string]string{}
	entries, err := st.List(t.Context(), "", "", 100_000)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if noun, _, ok := strings.Cut(entry.Key, "/"); ok && noun != "event" && noun != "audit" {
			out[entry.Key] = string(entry.Value)
		}
	}
	return out
}

// TestEveryChangeIsAudited calls every RPC as an administrator, those of tomorrow too: what changes a record leaves an entry
// of its name in the audit log, and what its name says only reads changes none.
func TestEveryChangeIsAudited(t *testing.T) {
	api, e, st, admin := realAPI(t)
	ctx := t.Context()
	token, _, err := e.CreateUserToken(ctx, admin, engine.NewToken{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.CreateOrganization(ctx, admin, "lab", 0); err != nil {
		t.Fatal(err)
	}
	as := metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	files := map[string]string{"Config": "definitions: [{id: any, provisioner: static, provisionerSpec: {condition: \"true\"}}]\n",
		"Workflows": "version: v1\nname: work\njobs:\n  sit: {command: [x]}\n"}
	methods, changed := apiMethods(), 0
	names := slices.Sorted(maps.Keys(methods))
	for _, name := range append(slices.Clone(names), names...) { // what the first round made, the second can change
		if _, served := permissions()[name]; !served {
			continue
		}
		service, verb, _ := strings.Cut(shortMethod(name), ".")
		words := map[string]string{"yaml": files[service], "name": "made", "organization": "lab", "group": "made", "user": "made", "id": "lab", "role": "member",
			"token": "made", "definitions": "any", "organizations": "lab"}
		if strings.HasSuffix(verb, "User") || strings.HasSuffix(verb, "Workflow") {
			words["id"] = map[bool]string{true: "made", false: "work"}[strings.HasSuffix(verb, "User")]
		}
		before := recordsOf(t, st)
		_, _ = invokeAny(as, api.client, name, methods[name], words)
		if maps.Equal(before, recordsOf(t, st)) {
			continue
		}
		changed++
		entries, _, err := e.Audit(ctx, admin, engine.AuditFilter{Method: shortMethod(name)}, engine.Page{Size: 1000})
		if reads(name) || err != nil || !slices.ContainsFunc(entries, func(a engine.AuditEntry) bool { return a.Outcome == engine.OutcomeDone }) {
			t.Errorf("%s changed records: entries %+v, %v", name, entries, err)
		}
	}
	if changed < 10 {
		t.Errorf("only %d calls changed anything: the test looks at nothing", changed)
	}
}
