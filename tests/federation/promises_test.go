package federation

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"substrate/tests/cluster"
)

const (
	promised = cluster.Anywhere + "scheduler: {preemptionEnabled: true, preemptionNotice: 1s}\n"
	whole    = "version: v1\nname: w\njobs: {j: {command: [sleep, \"300\"], resource: {cpu: {cores: 4}}}}\n" // of a node
	brief    = "version: v1\nname: w\njobs: {j: {command: [\"true\"]}}\n"
)

// world is a Federate, a cluster of its release and one of an older release, and people of the Federate's organisation lab.
type world struct {
	t                  *testing.T
	fed, east, west    *host
	older, lab         string
	people             map[string]string // ids
	wholeFile, runFile string
}

// TestPromisesBetweenRealProcesses: what is promised of attributes on the Federate, one part for each sentence of it.
func TestPromisesBetweenRealProcesses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, part := range []struct {
		sentence string
		holds    func(*testing.T, *world)
	}{
		{"definitions on a Federate are stored but ignored", definitionsIgnored},
		{"attributes are set with the commands of any cluster, by who may", attributesSet},
		{"a user's priority arrives with the next request by that user and reorders what waits", userReorders},
		{"a group's priority arrives with the next request by a member, an organization's with any member's", groupArrives},
		{"a change made on a replica is refused, and overwritten by the next refresh", replicaReadOnly},
		{"preemption targets are created on demand", targetsOnDemand},
		{"the victim's group must be on the list, and events say who and where", preempted},
		{"an older cluster is shown as such, is used, and ignores what it does not know", olderCluster},
		{"higher-priority work routes into busy clusters where it is ahead of the queue", routed},
		{"with an older Federate replicas keep what they have, and what never synced keeps zero", olderFederate},
		{"after the upgrade the next request brings what was set meanwhile", upgraded},
	} {
		if !t.Run(part.sentence, func(t *testing.T) { w.in(t); part.holds(t, w) }) {
			return // the parts are one story
		}
	}
}

// in has what fails counted for a part of the test.
func (w *world) in(t *testing.T) {
	w.t = t
	for _, h := range []*host{w.fed, w.east, w.west} {
		h.t = t
	}
}

func newWorld(t *testing.T) *world {
	t.Helper()
	all := hosts(t, "b", "fed", "east", "west")
	w := &world{t: t, fed: all[0], east: all[1], west: all[2], people: map[string]string{}, older: buildOlder(t)}
	w.wholeFile, w.runFile = filepath.Join(w.fed.dir, "whole.yaml"), filepath.Join(w.fed.dir, "brief.yaml")
	write(t, w.wholeFile, whole)
	write(t, w.runFile, brief)
	w.fed.start("--role", "federate", "--public-url", "https://fed.example:7440")
	w.west.program = w.older
	w.east.join(w.fed, "east", promised)
	w.west.join(w.fed, "west", promised)
	fields := strings.Fields(w.fed.must("organization", "create", "lab", "-o", "name"))
	w.lab = fields[0]
	for _, g := range []string{"research", "batch", "fresh"} {
		w.fed.must("group", "create", g, "--organization", "lab")
	}
	for _, p := range [][]string{{"olga", "default", "--role", "owner"}, {"rita", "research"}, {"ron", "research"}, {"sam", "batch"}} {
		id := w.fed.must(append([]string{"user", "create", p[0], "--organization", "lab", "--group", p[1], "-o", "name"}, p[2:]...)...)
		w.people[p[0]] = strings.Fields(id)[0]
		write(t, w.token(p[0]), w.fed.must("user", "token", "create", w.people[p[0]], "-o", "name"))
	}
	w.fed.must("cluster", "drain", "west")
	return w
}

func (w *world) token(who string) string { return filepath.Join(w.fed.dir, who+".token") }

// by runs a command at the Federate as one of its people.
func (w *world) by(who string, args ...string) string {
	w.t.Helper()
	out, err := w.fed.as(w.token(who), args...)
	if err != nil {
		w.t.Fatalf("substrate %s by %s: %v\n%s", strings.Join(args, " "), who, err, out)
	}
	return out
}

func (w *world) refused(who, why string, args ...string) {
	w.t.Helper()
	if out, err := w.fed.as(w.token(who), args...); err == nil || !strings.Contains(out, why) {
		w.t.Errorf("substrate %s by %s: %v\n%s", strings.Join(args, " "), who, err, out)
	}
}

// replica is the priority of lab, of a group or of a user of it on a cluster; absent where there is none.
func (w *world) replica(h *host, noun, name string) int32 {
	w.t.Helper()
	args := []string{noun, "list", "-o", "json"}
	if noun != "organization" {
		args = append(args, "--organization", w.lab)
	}
	type entry struct {
		Name     string
		Priority int32
	}
	var lists struct{ Organizations, Groups, Users []entry }
	text := h.must(args...)
	if err := json.Unmarshal([]byte(text), &lists); err != nil {
		w.t.Fatalf("%v: %s", err, text)
	}
	for _, e := range slices.Concat(lists.Organizations, lists.Groups, lists.Users) {
		if e.Name == name {
			return e.Priority
		}
	}
	return absent
}

const absent = -999

func (w *world) wants(h *host, noun, name string, want int32) {
	w.t.Helper()
	if got := w.replica(h, noun, name); got != want {
		w.t.Errorf("the replica of %s %s on %s has %d, want %d", noun, name, h.name, got, want)
	}
}

// first reports which of two workflows comes first in a cluster's queue.
func (w *world) first(h *host, a, b string) string {
	w.t.Helper()
	queue := h.must("queue", "show", "-o", "json")
	i, j := strings.Index(queue, a), strings.Index(queue, b)
	if i < 0 || j < 0 {
		w.t.Fatalf("%s or %s does not wait: %s", a, b, queue)
	}
	if i < j {
		return a
	}
	return b
}

// fill takes a cluster's node with work of its own and lets n more wait.
func (w *world) fill(h *host, n int) {
	w.t.Helper()
	id := h.must("workflow", "start", w.wholeFile, "-o", "name")
	h.until("the node to be taken", isNow("running"), "workflow", "status", id)
	for range n {
		h.must("workflow", "start", w.wholeFile, "-o", "name")
	}
}

// empty ends all work on a cluster.
func (w *world) empty(h *host) {
	w.t.Helper()
	for _, id := range strings.Fields(h.must("workflow", "list", "-o", "name")) {
		_, _ = h.cli("workflow", "cancel", id) // some have ended
	}
	h.until("the node to be free", func(out string) bool { return strings.Contains(out, "0/4") }, "node", "list")
}

func isNow(status string) func(string) bool {
	return func(out string) bool { return strings.Contains(out, status) }
}

func definitionsIgnored(t *testing.T, w *world) {
	text := promised + "# kept as it is\n"
	if out := w.fed.configure(text); !strings.Contains(out, "its 1 definitions are stored and not used") {
		t.Errorf("no notice: %s", out)
	}
	if out := w.fed.must("cluster", "config", "get"); strings.TrimSpace(out) != strings.TrimSpace(text) {
		t.Errorf("stored as %s", out)
	}
}

func attributesSet(t *testing.T, w *world) {
	if list := w.fed.must("organization", "list"); !strings.Contains(list, w.lab) {
		t.Errorf("the list has no id: %s", list)
	}
	if list := w.fed.must("user", "list", "--organization", "lab"); !strings.Contains(list, w.people["rita"]) {
		t.Errorf("the list has no id: %s", list)
	}
	w.refused("olga", "cluster-admin", "organization", "update", w.lab, "--priority", "5")
	w.fed.must("organization", "update", w.lab, "--priority", "5")
	w.by("olga", "group", "update", "research", "--priority", "10")
	w.refused("rita", "lacks the permission", "group", "update", "research", "--priority", "99")
	w.by("olga", "group", "update", "research", "--priority", "0")
	w.by("olga", "user", "update", w.people["rita"], "--priority", "2")
	w.refused("rita", "lacks the permission", "user", "update", w.people["rita"], "--priority", "99")
	w.by("olga", "user", "update", w.people["rita"], "--priority", "0")
	for flag, want := range map[string]bool{"--preempt": true, "--no-preempt": false} {
		if flag == "--no-preempt" {
			w.by("olga", "group", "update", "research", "--preempt", "batch")
		}
		if out := w.by("olga", "group", "update", "research", flag, "batch"); strings.Contains(out, "batch") != want {
			t.Errorf("%s: %s", flag, out)
		}
	}
	w.by("olga", "group", "update", "research", "--no-preempt", "batch")
	w.wants(w.east, "organization", "lab", absent) // nothing is pushed
}

func userReorders(t *testing.T, w *world) {
	w.fill(w.east, 0)
	sams := w.by("sam", "workflow", "start", w.wholeFile, "-o", "name")
	ritas := w.by("rita", "workflow", "start", w.wholeFile, "-o", "name")
	if w.first(w.east, sams, ritas) != sams {
		t.Fatal("what came first does not wait first")
	}
	w.by("olga", "user", "update", w.people["rita"], "--priority", "50")
	time.Sleep(2 * time.Second) // many turns of the scheduler
	w.by("sam", "workflow", "describe", sams)
	w.by("olga", "workflow", "score", w.wholeFile)
	if w.first(w.east, sams, ritas) != sams {
		t.Error("it has an effect before a request of that user")
	}
	w.wants(w.east, "user", "rita", 0)
	w.by("rita", "workflow", "describe", ritas)
	w.wants(w.east, "user", "rita", 50)
	w.east.until("what waits to be ranked anew", func(string) bool { return w.first(w.east, sams, ritas) == ritas }, "queue", "show")
	w.empty(w.east)
}

func groupArrives(_ *testing.T, w *world) {
	w.by("olga", "user", "update", w.people["rita"], "--priority", "0")
	w.by("olga", "group", "update", "research", "--priority", "11")
	w.fed.must("organization", "update", w.lab, "--priority", "6")
	w.wants(w.east, "organization", "lab", 5)
	w.by("sam", "workflow", "start", w.runFile)
	w.wants(w.east, "organization", "lab", 6)
	w.wants(w.east, "group", "research", 0)
	w.by("ron", "workflow", "start", w.runFile)
	w.wants(w.east, "group", "research", 11)
}

func replicaReadOnly(t *testing.T, w *world) {
	update := []string{"group", "update", "research", "--organization", w.lab, "--priority", "99"}
	if out, err := w.east.cli(update...); err == nil || !strings.Contains(out, "https://fed.example:7440") {
		t.Errorf("%v: %s", err, out)
	}
	w.wants(w.east, "group", "research", 11)
	w.east.must(append(update, "--force")...)
	w.wants(w.east, "group", "research", 99)
	w.by("rita", "workflow", "start", w.runFile)
	w.wants(w.east, "group", "research", 11)
}

func targetsOnDemand(_ *testing.T, w *world) {
	w.by("olga", "group", "update", "research", "--preempt", "fresh")
	w.wants(w.east, "group", "fresh", absent)
	w.by("rita", "workflow", "start", w.runFile) // no member of it was ever here
	w.wants(w.east, "group", "fresh", 0)
	w.by("olga", "group", "update", "research", "--no-preempt", "fresh")
}

func preempted(t *testing.T, w *world) {
	w.by("olga", "group", "update", "research", "--priority", "60")
	victim := w.by("sam", "workflow", "start", w.wholeFile, "--preemptible", "-o", "name")
	w.fed.until("the victim to run", isNow("running"), "workflow", "status", victim)
	early := w.by("rita", "workflow", "start", w.wholeFile, "-o", "name")
	w.by("olga", "group", "update", "research", "--preempt", "batch")
	w.by("rita", "workflow", "describe", early) // brings the list, and this one keeps what it was submitted with
	w.wants(w.east, "group", "research", 60)
	time.Sleep(2 * time.Second)
	if out := w.fed.must("workflow", "status", victim); !strings.Contains(out, "running") {
		t.Errorf("a list that came later counts: %s", out)
	}
	w.by("rita", "workflow", "cancel", early)
	taker := w.by("rita", "workflow", "start", w.wholeFile, "-o", "name")
	w.fed.until("the room to change hands", isNow("running"), "workflow", "status", taker)
	out := w.by("sam", "workflow", "events", victim)
	if !strings.Contains(out, "preempt-initiated") || !strings.Contains(out, taker) || !strings.Contains(out, "east") {
		t.Errorf("who and where is not told: %s", out)
	}
	w.empty(w.east)
}

func olderCluster(t *testing.T, w *world) {
	w.fed.until("the older cluster to be known", isNow(olderVersion), "cluster", "list")
	if out := w.fed.must("cluster", "status", "west"); !strings.Contains(out, "older release") {
		t.Errorf("%s", out)
	}
	w.fed.must("cluster", "undrain", "west")
	w.fed.must("cluster", "drain", "east")
	id := w.by("rita", "workflow", "start", w.runFile, "-o", "name")
	w.fed.until("it to finish", isNow("finished"), "workflow", "status", id)
	if r := w.fed.workflow(id); r.Cluster != "west" {
		t.Errorf("%+v", r)
	}
	w.wants(w.west, "organization", "lab", 0)
	w.wants(w.west, "group", "research", 0)
	w.fed.must("cluster", "undrain", "east")
}

func routed(t *testing.T, w *world) {
	w.by("olga", "group", "update", "research", "--priority", "0")
	w.fed.must("organization", "update", w.lab, "--priority", "0")
	w.fill(w.east, 2)
	w.fill(w.west, 1)
	w.fed.configure("scheduler: {federationPriorityRoutingEnabled: true}\n")
	low := w.by("rita", "workflow", "start", w.wholeFile, "-o", "name")
	w.by("olga", "group", "update", "research", "--priority", "1000")
	high := w.by("rita", "workflow", "start", w.wholeFile, "-o", "name")
	for id, want := range map[string]string{low: "west", high: "east"} { // where more waits, but nothing ahead of it
		if r := w.fed.workflow(id); r.Cluster != want {
			t.Errorf("%+v, want %s:\n%s", r, want, w.fed.must("workflow", "describe", id))
		}
	}
	w.empty(w.east)
	w.empty(w.west)
	w.fed.must("cluster", "drain", "west")
}

// again starts the Federate anew on its data, with another release.
func (w *world) again(program string) {
	w.t.Helper()
	w.fed.kill()
	w.fed.argv[0] = program
	w.fed.start()
	w.fed.until("the east to answer", func(out string) bool { return strings.Contains(out, " ready ") }, "cluster", "list")
}

func olderFederate(_ *testing.T, w *world) {
	w.wants(w.east, "group", "research", 1000)
	w.again(w.older)
	w.by("olga", "group", "update", "research", "--priority", "33")
	w.by("olga", "group", "create", "late")
	w.by("olga", "group", "update", "late", "--priority", "44")
	w.by("olga", "group", "member", "add", "late", "rita")
	for _, group := range []string{"research", "late"} {
		id := w.by("rita", "workflow", "start", w.runFile, "--group", group, "-o", "name")
		w.fed.until("it to finish", isNow("finished"), "workflow", "status", id)
	}
	w.wants(w.east, "group", "research", 1000)
	w.wants(w.east, "group", "late", 0)
}

func upgraded(_ *testing.T, w *world) {
	w.again(cluster.Program("substrate-coordinator"))
	w.by("rita", "workflow", "start", w.runFile, "--group", "research")
	w.wants(w.east, "group", "research", 33)
	w.wants(w.east, "group", "late", 0)
	w.by("rita", "workflow", "start", w.runFile, "--group", "late")
	w.wants(w.east, "group", "late", 44)
}
