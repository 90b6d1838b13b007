package coreweave

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"substrate/coordinator"
	"substrate/coordinator/provision"
	"substrate/coordinator/provision/cloud"
	"substrate/coordinator/spec"
	"substrate/tests/fakecloud"
)

func request(d coordinator.Definition, n int) provision.Request {
	id := provision.LaunchID(fmt.Sprintf("l%016x", 0xbeef00+n))
	return provision.Request{ID: id, Definition: d, Nodes: 1, Asked: time.Now(),
		Boot: provision.Boot{Coordinator: "coordinator.example.org:7443", Token: "sjt_secret", Node: provision.NodeOf(d.ID, id)}}
}

func (a *account) launch(t *testing.T, p *Provisioner, d coordinator.Definition, n int) provision.Instance {
	t.Helper()
	i, err := p.Launch(t.Context(), request(d, n))
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func listed(t *testing.T, p *Provisioner) []provision.Instance {
	t.Helper()
	list, err := p.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// only is the one instance there is.
func only(t *testing.T, p *Provisioner) provision.Instance {
	t.Helper()
	list := listed(t, p)
	if len(list) != 1 {
		t.Fatalf("%d instances are listed: %+v", len(list), list)
	}
	return list[0]
}

// TestRefusedPools (situation 37): what keeps a pool from its node comes as the launch's error, with who else holds the quota, and the pool is gone.
func TestRefusedPools(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		def   coordinator.Definition
		cause fakecloud.Cause
		want  provision.Fault
		says  []string
	}{
		{"quota", definition(gpus), fakecloud.Quota, provision.FaultQuota, []string{"quota limit is 0", "want 6 nodes and have 2", "theirs-1, theirs-2"}},
		{"no such type", definition("gd-8xnone"), 0, provision.FaultInvalid, []string{"Valid is False (InvalidInstanceType)"}},
		{"capacity", definition(gpus), fakecloud.NoCapacity, provision.FaultNoCapacity, []string{"QueuedAwaitingCapacity"}},
	} {
		a := newAccount(t, fakecloud.Options{})
		for n, target := range []float64{2, 4} {
			theirs := a.pool(fmt.Sprintf("theirs-%d", n+1), gpus, nil)
			theirs["spec"].(map[string]any)["targetNodes"] = target
			a.front.Put("nodepools", theirs)
		}
		p := a.open(t, cluster)
		if tt.cause != 0 {
			a.cloud.Fail(fakecloud.OpLaunch, fakecloud.Fault{Refuse: tt.cause})
		}
		_, err := p.Launch(t.Context(), request(tt.def, 1))
		if got := provision.FaultOf(err); got != tt.want {
			t.Errorf("%s is %s: %v", tt.name, got, err)
		}
		for _, says := range tt.says {
			if err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%s does not say %q: %v", tt.name, says, err)
			}
		}
		a.cloud.Advance(time.Minute)
		if list := listed(t, p); len(list) != 0 {
			t.Errorf("%s leaves %+v", tt.name, list)
		}
		offers, err := p.Offers(t.Context(), []coordinator.Definition{tt.def, definition(cpus)})
		if err != nil || offers[0].Available == (tt.want == provision.FaultNoCapacity) || !offers[1].Available {
			t.Errorf("%s: %+v, %v", tt.name, offers, err)
		}
	}
}

// TestQuotaTakenLater: a pool that loses its place to another one's quota says so in the list, with who has it.
func TestQuotaTakenLater(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	a.front.Keeper.Silent = true
	p := a.open(t, cluster)
	i := a.launch(t, p, definition(cpus), 1)
	a.cloud.Fail(fakecloud.OpLaunch, fakecloud.Fault{Refuse: fakecloud.Quota})
	j := a.launch(t, p, definition(gpus), 2) // nothing is said of it yet
	a.front.Put("nodepools", a.pool("theirs", gpus, nil))
	a.front.Keeper.Silent = false
	for _, got := range listed(t, p) {
		switch {
		case got.Handle == i.Handle && got.Failed != provision.FaultNone:
			t.Errorf("another type: %+v", got)
		case got.Handle == j.Handle && (got.Failed != provision.FaultQuota || !strings.Contains(got.Detail, "want 1 nodes and have 1: theirs")):
			t.Errorf("%+v", got)
		}
	}
}

// TestCapacityComes: that capacity is awaited is a step on the way when it has come before the launch is answered.
func TestCapacityComes(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	a.cloud.Empty(gpus, "", fakecloud.OnDemand, true)
	o := a.options(cluster)
	o.Settle = 20 * time.Second
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(300*time.Millisecond, func() { a.cloud.Empty(gpus, "", fakecloud.OnDemand, false) })
	a.launch(t, p, definition(gpus), 1)
	if n := a.cloud.Live(); n != 1 {
		t.Errorf("%d machines", n)
	}
}

// TestForeignPool: a pool of a launch's name that somebody else has made is neither used nor deleted.
func TestForeignPool(t *testing.T) {
	t.Parallel()
	r := request(definition(gpus), 1)
	name := cloud.Name(cluster, r.ID, gpus)
	marks := func(clusterID, launch string) map[string]any {
		return map[string]any{cloud.MarkCluster: clusterID, cloud.MarkLaunch: launch}
	}
	for _, tt := range []struct {
		name, typ string
		labels    map[string]any
	}{{"no labels", gpus, nil}, {"another cluster's", gpus, marks("other", string(r.ID))}, {"another launch's", gpus, marks(cluster, "l0000000000000000")}, {"another type", cpus, marks(cluster, string(r.ID))}} {
		a := newAccount(t, fakecloud.Options{})
		a.front.Put("nodepools", a.pool(name, tt.typ, tt.labels))
		p := a.open(t, cluster)
		for _, again := range []bool{false, true} {
			r.Again = again
			if _, err := p.Launch(t.Context(), r); provision.FaultOf(err) != provision.FaultInvalid || !strings.Contains(err.Error(), name) {
				t.Errorf("%s: %v", tt.name, err)
			}
		}
		if tt.labels == nil || tt.labels[cloud.MarkCluster] != cluster {
			if err := p.Release(t.Context(), provision.Handle(name)); provision.FaultOf(err) != provision.FaultNotFound {
				t.Errorf("%s: released: %v", tt.name, err)
			}
		}
		if !a.front.Has("nodepools", name) || a.front.Has("pods", name) {
			t.Errorf("%s: it was touched", tt.name)
		}
	}
}

// TestHangingDeletion (situation 37): a pool that its finalizer keeps is ending, with what keeps it, and is asked for again until it is gone.
func TestHangingDeletion(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{Boots: 20 * time.Minute})
	p := a.open(t, cluster)
	i := a.launch(t, p, definition(gpus), 1)
	a.front.Keeper.Stuck = true
	for range 3 {
		if err := p.Release(t.Context(), i.Handle); err != nil {
			t.Fatal(err)
		}
		a.cloud.Advance(time.Minute)
		got := only(t, p)
		if got.State != provision.StateEnding || got.Failed != provision.FaultNone || !strings.Contains(got.Detail, "being deleted since") || !strings.Contains(got.Detail, fakecloud.Finalizer) {
			t.Errorf("%+v", got)
		}
	}
	if a.front.Has("pods", string(i.Handle)) || strings.Contains(a.front.Read(string(i.Handle)), "sjt_secret") {
		t.Error("its agent or its token is still there")
	}
	r := request(definition(gpus), 1)
	r.Again = true
	if _, err := p.Launch(t.Context(), r); provision.FaultOf(err) != provision.FaultInterrupted {
		t.Errorf("launched while it ends: %v", err)
	}
	a.front.Keeper.Stuck = false
	if err := p.Release(t.Context(), i.Handle); err != nil && provision.FaultOf(err) != provision.FaultNotFound {
		t.Error(err)
	}
	if err := p.Release(t.Context(), i.Handle); provision.FaultOf(err) != provision.FaultNotFound {
		t.Errorf("released when it is gone: %v", err)
	}
}

// TestHalfLaunched: a process that died between the pool and its pod. The list says that it is half done, and the same launch completes it.
func TestHalfLaunched(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{Boots: 20 * time.Minute})
	a.cloud.Fail(fakecloud.OpLaunch, fakecloud.Fault{Lost: true})
	r := request(definition(gpus), 1)
	if _, err := a.open(t, cluster).Launch(t.Context(), r); provision.FaultOf(err) != provision.FaultTransient {
		t.Fatal(err)
	}
	p := a.open(t, cluster)
	if i := only(t, p); !i.Incomplete || i.ID != r.ID {
		t.Errorf("half a launch is %+v", i)
	}
	r.Again = true
	if _, err := p.Launch(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if i := only(t, p); i.Incomplete || a.cloud.Made() != 1 {
		t.Errorf("%+v, %d made", i, a.cloud.Made())
	}
}

// TestDaysLater: who asks for a launch of long ago whose traces are gone gets none.
func TestDaysLater(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	r := request(definition(gpus), 1)
	r.Again = true
	a.cloud.Advance(48 * time.Hour)
	if _, err := a.open(t, cluster).Launch(t.Context(), r); provision.FaultOf(err) != provision.FaultInterrupted || a.cloud.Made() != 0 {
		t.Errorf("%v", err)
	}
}

// TestAgentOnTheNode: how far the pod is, as the list tells.
func TestAgentOnTheNode(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{Boots: 20 * time.Minute})
	p := a.open(t, cluster)
	i := a.launch(t, p, definition(gpus), 1)
	if got := only(t, p); got.State != provision.StateStarting || !got.Running.IsZero() {
		t.Errorf("before there is a node: %+v", got)
	}
	a.cloud.Advance(21 * time.Minute)
	got := only(t, p)
	if took := got.Running.Sub(got.Launched); got.State != provision.StateRunning || took < 20*time.Minute-time.Second || took > 21*time.Minute {
		t.Errorf("with its node: %+v", got)
	}
	a.front.HoldPod(string(i.Handle), "ImagePullBackOff", "Back-off pulling image")
	if got := only(t, p); got.State != provision.StateRunning || got.Failed != provision.FaultNone || !strings.Contains(got.Detail, "ImagePullBackOff: Back-off pulling image") {
		t.Errorf("an image that cannot be pulled: %+v", got)
	}
	a.front.EndPod(string(i.Handle), 1, "cannot join cluster within 15m0s")
	if got := only(t, p); got.State != provision.StateRunning || got.Failed != provision.FaultUnreachable || !strings.Contains(got.Detail, "code 1: cannot join cluster") {
		t.Errorf("an agent that gave up: %+v", got)
	}
}

// TestSweep: secrets of launches that are long over are deleted, those of pools are not.
func TestSweep(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	p := a.open(t, cluster)
	over, stays := a.launch(t, p, definition(gpus), 1), a.launch(t, p, definition(gpus), 2)
	if err := p.Release(t.Context(), over.Handle); err != nil {
		t.Fatal(err)
	}
	listed(t, p)
	if !a.front.Has("secrets", string(over.Handle)) {
		t.Error("what keeps a late call from making another pool is gone at once")
	}
	a.cloud.Advance(25 * time.Hour)
	listed(t, p)
	if a.front.Has("secrets", string(over.Handle)) || !a.front.Has("secrets", string(stays.Handle)) {
		t.Error("a day later the wrong secrets are there")
	}
}

// TestElsewhere: a cluster that is not CoreWeave's, and one without the namespace.
func TestElsewhere(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	a.front.Bare = true
	p := a.open(t, cluster)
	var e *provision.Error
	_, launched := p.Launch(t.Context(), request(definition(gpus), 1))
	_, asked := p.List(t.Context())
	for what, err := range map[string]error{"launch": launched, "list": asked, "release": p.Release(t.Context(), "x")} {
		if !errors.As(err, &e) || e.Fault != provision.FaultUnsupported || !strings.Contains(e.Hint, "node pools") {
			t.Errorf("%s: %v", what, err)
		}
	}
	b := newAccount(t, fakecloud.Options{})
	b.front.Namespace = "another"
	_, err := b.open(t, cluster).Launch(t.Context(), request(definition(gpus), 1))
	if !errors.As(err, &e) || e.Fault != provision.FaultInvalid || !strings.Contains(e.Hint, "namespace substrate") || b.cloud.Made() != 0 {
		t.Errorf("no namespace: %v", err)
	}
}

// TestNoImage: without an image there is nothing to start, and that is said before anything is made.
func TestNoImage(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	o := a.options(cluster)
	o.Backend.AgentImage = ""
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Launch(t.Context(), request(definition(gpus), 1)); provision.FaultOf(err) != provision.FaultInvalid || a.cloud.Made() != 0 {
		t.Errorf("%v", err)
	}
	offers, err := p.Offers(t.Context(), []coordinator.Definition{definition(gpus), {ID: "x", Spec: spec.AWS{}}})
	if err != nil || offers[0].Available || !strings.Contains(offers[0].Why, "agentImage") || offers[1].Available {
		t.Errorf("%+v, %v", offers, err)
	}
}

// TestOpen: what a backend says, and what is missing in it.
func TestOpen(t *testing.T) {
	a := newAccount(t, fakecloud.Options{})
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	t.Setenv("KUBECONFIG", a.file)
	plugin := write("plugin", strings.Replace(fmt.Sprintf(kubeconfig, "https://10.0.0.1:6443"), "token: CW-SECRET-1", "exec: {apiVersion: client.authentication.k8s.io/v1, command: touch, args: [pwned], interactiveMode: Never}", 1))
	for _, tt := range []struct {
		name    string
		backend spec.Backend
		host    string
		wrong   string
	}{
		{"as the file says", spec.Backend{Kubeconfig: a.file}, a.url, ""},
		{"as the environment says", spec.Backend{}, a.url, ""},
		{"as the backend says", spec.Backend{Kubeconfig: a.file, Endpoint: "https://10.0.0.1:6443", CredentialFile: write("token", "CW-SECRET-2")}, "https://10.0.0.1:6443", ""},
		{"no such file", spec.Backend{Kubeconfig: "/nowhere/kubeconfig"}, "", "/nowhere/kubeconfig"},
		{"not a kubeconfig", spec.Backend{Kubeconfig: write("odd", "a: [")}, "", "cannot read kubeconfig"},
		{"a program", spec.Backend{Kubeconfig: plugin}, "", "a program"},
	} {
		config, err := connection(tt.backend)
		switch {
		case tt.wrong != "":
			if err == nil || !strings.Contains(err.Error(), tt.wrong) {
				t.Errorf("%s: %v", tt.name, err)
			}
		case err != nil:
			t.Errorf("%s: %v", tt.name, err)
		case config.Host != tt.host || (tt.backend.CredentialFile != "") != (config.BearerTokenFile != "" && config.BearerToken == ""):
			t.Errorf("%s: %s", tt.name, config.Host)
		}
	}
}

// TestObjects: what a launch makes, field by field.
func TestObjects(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	d := definition(gpus)
	d.ID = "CW_H100_"
	r := request(d, 1)
	i, err := a.open(t, cluster).Launch(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	var objects []map[string]any
	if err := json.Unmarshal([]byte(a.front.Seen(string(i.Handle))), &objects); err != nil {
		t.Fatal(err)
	}
	marks := "map[substrate-cluster:" + cluster + " substrate-definition:cw_h100 substrate-launch:" + string(r.ID) + "]"
	for n, want := range []map[string]string{{
		"metadata.labels": marks, "metadata.annotations": "map[substrate-node:" + r.Boot.Node + "]", "spec.computeClass": "default", "spec.instanceType": gpus, "spec.targetNodes": "1",
		"spec.autoscaling": "false", "spec.nodeLabels": marks, "spec.lifecycle": "map[scaleDownStrategy:PreferIdle]",
		"spec.nodeTaints": "[map[effect:NoSchedule key:substrate-launch value:" + string(r.ID) + "]]",
	}, {
		"metadata.labels": marks, "metadata.namespace": "<nil>", "spec.nodeSelector": "map[substrate-launch:" + string(r.ID) + "]", "spec.tolerations": "[map[operator:Exists]]",
		"spec.restartPolicy": "Never", "spec.hostNetwork": "true", "spec.hostPID": "true", "spec.automountServiceAccountToken": "false",
		"spec.volumes": "[map[hostPath:map[path:/ type:Directory] name:node]]",
	}} {
		u := unstructured.Unstructured{Object: objects[n]}
		for path, want := range want {
			got, _, _ := unstructured.NestedFieldNoCopy(u.Object, strings.Split(path, ".")...)
			if fmt.Sprint(got) != want {
				t.Errorf("%s is %v, expected %s", path, got, want)
			}
		}
	}
	pool, pod := unstructured.Unstructured{Object: objects[0]}, unstructured.Unstructured{Object: objects[1]}
	if refs := pod.GetOwnerReferences(); len(refs) != 1 || refs[0].UID != pool.GetUID() || refs[0].Kind != "NodePool" || refs[0].Name != string(i.Handle) {
		t.Errorf("the pod belongs to %+v", refs)
	}
}

// TestScript: the agent is copied, started with what it needs, started again when it is killed, and its end is the script's.
func TestScript(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	node, image, log := filepath.Join(dir, "node"), filepath.Join(dir, "image"), filepath.Join(dir, "log")
	for path, text := range map[string]string{
		// The agent is killed the first time and gives up the second.
		"image/substrated":      "#!/bin/sh\necho \"$# $* token=$SUBSTRATED_JOIN_TOKEN\" >>" + log + "\n[ $(wc -l <" + log + ") -gt 1 ] || kill -9 $$\nexit 3\n",
		"image/substrate-probe": "#!/bin/sh\n",
		"image/chroot":          "#!/bin/sh\nroot=$1 program=$2; shift 2; exec \"$root$program\" \"$@\"\n",
		"image/sleep":           "#!/bin/sh\n",
		"node/etc/hostname":     "node-1\n",
	} {
		file := filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	o := newAccount(t, fakecloud.Options{}).options(cluster)
	o.Agent.Program, o.Backend.StateDir = "substrated", "/mnt/local/it's here"
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sh", "-c", p.script(request(definition(gpus), 1), node))
	cmd.Env = []string{"PATH=" + image + ":/usr/bin:/bin", "SUBSTRATED_JOIN_TOKEN=sjt_secret"}
	out, err := cmd.CombinedOutput()
	var ended *exec.ExitError
	if !errors.As(err, &ended) || ended.ExitCode() != 3 {
		t.Fatalf("it ends with %v\n%s", err, out)
	}
	said, _ := os.ReadFile(log)
	line := "11 run --coordinator coordinator.example.org:7443 --node gd-8xh100ib-i128-l0000000000beef01 --launch l0000000000beef01 --state-dir /mnt/local/it's here --join-within 15m0s token=sjt_secret\n"
	if string(said) != line+line {
		t.Errorf("the agent was started with\n%sexpected twice\n%s", said, line)
	}
	for _, program := range []string{"substrated", "substrate-probe"} {
		if s, err := os.Stat(filepath.Join(node, o.Backend.StateDir, "bin", program)); err != nil || s.Mode().Perm() != 0o755 {
			t.Errorf("%s: %v", program, err)
		}
	}
}

// TestRoles: the page's roles allow what the calls take and nothing else.
func TestRoles(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	p := a.open(t, cluster)
	i := a.launch(t, p, definition(gpus), 1)
	r := request(definition(gpus), 1)
	r.Again = true
	if _, err := p.Launch(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	listed(t, p)
	for range 2 {
		if err := p.Release(t.Context(), i.Handle); err != nil && provision.FaultOf(err) != provision.FaultNotFound {
			t.Fatal(err)
		}
	}
	a.cloud.Advance(48 * time.Hour)
	listed(t, p)
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "coreweave.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "## What the coordinator may do")
	_, rest, _ = strings.Cut(rest, "```yaml\n")
	text, _, _ := strings.Cut(rest, "```")
	var told []string
	for d := yaml.NewDecoder(strings.NewReader(text)); ; {
		var o struct {
			Kind  string
			Rules []struct {
				Groups           []string `yaml:"apiGroups"`
				Resources, Verbs []string
			}
		}
		if d.Decode(&o) != nil {
			break
		}
		for _, rule := range o.Rules {
			if namespaced := o.Kind == "Role"; namespaced != (rule.Groups[0] == "") {
				t.Errorf("a %s about group %q", o.Kind, rule.Groups[0])
			}
			for _, verb := range rule.Verbs {
				told = append(told, strings.TrimSuffix(verb+" "+rule.Resources[0]+"."+rule.Groups[0], "."))
			}
		}
	}
	slices.Sort(told)
	if used := a.front.Permissions(); !slices.Equal(told, used) {
		t.Errorf("docs/coreweave.md allows\n%v\nthe calls take\n%v", told, used)
	}
}

// FuzzPool: whatever a pool or a pod is, it is told of.
func FuzzPool(f *testing.F) {
	f.Add([]byte(`{"metadata":{"name":"x","deletionTimestamp":"2026-01-01T00:00:00Z","finalizers":["a"]},"status":{"currentNodes":1,"conditions":[{"type":"Quota","status":"False"}]}}`),
		[]byte(`{"status":{"phase":"Failed","containerStatuses":[{"state":{"terminated":{"exitCode":1,"message":"x"}}}]}}`))
	f.Add([]byte(`{"status":{"conditions":[null,{"type":1}],"currentNodes":"many"}}`), []byte(`{"status":{"containerStatuses":[1,{"state":{"waiting":{"reason":{}}}}]}}`))
	p := &Provisioner{opt: Options{Cluster: cluster, Now: time.Now}}
	f.Fuzz(func(t *testing.T, pool, pod []byte) {
		var u, v unstructured.Unstructured
		if json.Unmarshal(pool, &u.Object) != nil || json.Unmarshal(pod, &v.Object) != nil || u.Object == nil || v.Object == nil {
			t.Skip()
		}
		i := p.instanceOf(&u, &v)
		if len(i.Detail) > 2*longestTold || i.ID != "" && !i.ID.Valid() || i.State == provision.StateGone {
			t.Errorf("%+v", i)
		}
		_ = held([]*unstructured.Unstructured{&u}, "x", "y")
	})
}
