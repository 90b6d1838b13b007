package engine

import (
	"fmt"
	"strings"
	"testing"

	"substrate/coordinator"
	"substrate/coordinator/store"
)

// TestTheCostOfWhatNothingCanRunIsNotToldAsANumber: a definition without nodes has no price for a job, however cheap it is.
func TestTheCostOfWhatNothingCanRunIsNotToldAsANumber(t *testing.T) {
	const job = "version: v1\nname: w\njobs: {j: {command: [x], %sresource: {cpu: {cores: %d}}}}\n"
	const ends = "policy: {timeout: {execute: 2h}}, "
	definition := func(id, condition, cost string) string {
		return fmt.Sprintf("  - {id: %s, provisioner: static, provisionerSpec: {condition: %q%s}}\n", id, condition, cost)
	}
	for name, tt := range map[string]struct {
		definitions string
		nodes       bool
		yaml        string
		cost        float64 // -1: not known
		note        string
	}{
		"no node at all":               {definition("free", "true", ", costPerHour: 0"), false, fmt.Sprintf(job, ends, 1), -1, "definitions that would admit it: free"},
		"a cheap one without nodes":    {definition("cheap", "false", ", costPerHour: 1") + definition("dear", "true", ", costPerHour: 3"), true, fmt.Sprintf(job, ends, 1), 6, ""},
		"without a price":              {definition("plain", "true", ""), true, fmt.Sprintf(job, ends, 1), -1, "definition plain has no costPerHour"},
		"nodes that are not for money": {definition("free", "true", ", costPerHour: 0"), true, fmt.Sprintf(job, ends, 1), 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, store.NewMemory())
			c.set("definitions:\n" + tt.definitions)
			if tt.nodes {
				h := newHost("n1", 4, nil)
				h.matches = func(d coordinator.DefinitionID) bool { return d != "cheap" }
				c.join(h)
				awaitNode(t, c, "n1", NodeReady)
			}
			v, err := c.engine.ScoreWorkflow(t.Context(), c.admin, StartWorkflow{YAML: []byte(tt.yaml), File: "w"})
			if err != nil {
				t.Fatal(err)
			}
			if known := v.Cost != nil; known != (tt.cost >= 0) || known && *v.Cost != tt.cost || !strings.Contains(v.CostNote, tt.note) || known && v.CostNote != "" {
				t.Errorf("%v %q (%s), want %g %q", v.Cost, v.CostNote, v.Reason, tt.cost, tt.note)
			}
		})
	}
}
