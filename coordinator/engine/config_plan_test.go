package engine

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/store"
)

// TestPlan: what a configuration would do to nodes and to work, against what it then does.
func TestPlan(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	plan := func(yaml string) string {
		p, err := c.engine.PlanConfig(t.Context(), c.admin, "new.yaml", []byte(yaml), 20)
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		fmt.Fprintf(&b, "changed %v revision %d moved %d of %d\n", p.Changed, p.Revision, p.NodesMoved, p.Nodes)
		for _, m := range p.Moves {
			fmt.Fprintf(&b, "move %q to %q: %v\n", m.From, m.To, m.Nodes)
		}
		for _, o := range p.Orphans {
			fmt.Fprintf(&b, "orphan %q %s %d: %s\n", o.Definition, o.Status, o.Count, o.Reason)
		}
		for _, d := range p.Diagnostics {
			fmt.Fprintf(&b, "%s %d:%d\n", d.Code, d.Line, d.Column)
		}
		return b.String()
	}
	if got, want := plan(plainConfig), "changed true revision 0 moved 0 of 0\n"; got != want {
		t.Errorf("of a new cluster: %swant %s", got, want)
	}
	c.set(plainConfig)
	c.join(newHost("n1", 4, nil))
	c.join(newHost("n2", 4, nil))
	v := c.start("version: v1\nname: w\njobs:\n  run:\n    command: [x]\n    resource: {cpu: {cores: 3}, memory: {size: 1MiB}}\n    task-array: {start: 1, end: 5}\n")
	c.await(v.ID, "running on both", func(v WorkflowView) bool { return v.Counts[coordinator.StatusRunning] == 2 })

	for name, tt := range map[string]struct{ yaml, want string }{
		"the same": {plainConfig + "# again\n", "changed false revision 1 moved 0 of 2\n"},
		"gone": {"definitions: []\n", `changed true revision 1 moved 2 of 2
move "small" to "": [n1 n2]
orphan "" waiting 3: no definition is left
orphan "small" running 2: the definition is gone
`},
		"refused": {strings.Replace(plainConfig, "    provisioner: static\n", "    provisioner: static\n    policy: request.job_resource.cpu.cores < 3\n", 1),
			`changed true revision 1 moved 0 of 2
orphan "" waiting 3: fits no definition: small refused by policy: the policy is false: request.job_resource.cpu.cores < 3 (request.job_resource.cpu.cores is 3)
orphan "small" running 2: refused by policy: the policy is false: request.job_resource.cpu.cores < 3 (request.job_resource.cpu.cores is 3)
`},
		"one node goes": {strings.Replace(plainConfig, "cpuinfo.cpu_cores >= 1", `hostname() == "n1"`, 1) + `  - id: other
    provisioner: static
    provisionerSpec:
      condition: hostname() == "n2"
`, `changed true revision 1 moved 1 of 2
move "small" to "other": [n2]
orphan "small" running 1: node n2 gets definition other
granted-to-nobody 8:5
`},
	} {
		if got := plan(tt.yaml); got != tt.want {
			t.Errorf("%s:\ngot  %swant %s", name, got, tt.want)
		}
	}
	if _, err := c.engine.PlanConfig(t.Context(), c.admin, "new.yaml", []byte("definitions: {}\n"), 20); coordinator.ErrorKindOf(err) != coordinator.ErrInvalid {
		t.Errorf("a bad file: %v", err)
	}
	if rev, _, err := c.engine.Config(t.Context(), c.admin, nil); err != nil || rev.Revision != 1 {
		t.Errorf("a plan set revision %d: %v", rev.Revision, err)
	}
}

// TestSetTellsWhatTheFleetShows: a set warns of conditions that the known nodes show to be wrong.
func TestSetTellsWhatTheFleetShows(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	c.set(plainConfig)
	c.join(newHost("n1", 4, nil))
	for {
		if n, err := c.engine.Node(t.Context(), c.admin, "n1"); err != nil {
			t.Fatal(err)
		} else if n.Status == NodeReady {
			break
		}
		time.Sleep(time.Millisecond)
	}
	res := c.set(strings.Replace(plainConfig, ">= 1", ">= 64", 1))
	if len(res.Diagnostics) != 1 || res.Diagnostics[0].Code != "true-on-no-node" || res.Diagnostics[0].Line != 6 {
		t.Errorf("%v", res.Diagnostics)
	}
	s, err := c.engine.SuggestConfig(t.Context(), c.admin)
	if err != nil || len(s.Definitions) > 1 {
		t.Errorf("%+v, %v", s, err)
	}
}
