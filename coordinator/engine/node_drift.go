package engine

import (
	"substrate/coordinator"
	"substrate/coordinator/inventory"
)

// model is what the nodes of a definition are compared with: the facts of the first node, by id, whose
// hardware is known. It is another one after that node's next report.
type model struct {
	node    *node
	learned uint64
}

func (a *activeConfig) modelOf(id coordinator.DefinitionID) model {
	for _, n := range a.nodesOf[id] {
		if n.known {
			return model{n, n.learned}
		}
	}
	return model{}
}

// drift is how a node differs from the model, "" when it does not or nothing is known.
func (m model) drift(n *node) string {
	if m.node == nil || m.node == n || !n.known {
		return ""
	}
	return inventory.Drift(m.node.facts, n.facts)
}

// rejudge compares all nodes of a definition with a new model and returns those of which something else
// is to be said than before.
func (a *activeConfig) rejudge(id coordinator.DefinitionID, m model) (changed []*node) {
	a.models[id] = m
	for _, n := range a.nodesOf[id] {
		if text := m.drift(n); text != n.drift {
			n.drift = text
			changed = append(changed, n)
		}
	}
	return changed
}

// checkDrift compares a node whose hardware or definition has changed with the model of its definition.
func (t *tx) checkDrift(n *node) {
	id := n.record.Definition
	if t.checkSiblings(id) {
		return
	}
	if text := t.state.config.models[id].drift(n); text != n.drift {
		n.drift = text
		t.warnOfDrift(n)
	}
}

// checkSiblings compares all nodes of a definition if its model has changed, and reports whether it has.
func (t *tx) checkSiblings(id coordinator.DefinitionID) bool {
	a := t.state.config
	m := a.modelOf(id)
	if m == a.models[id] {
		return false
	}
	for _, n := range a.rejudge(id, m) {
		t.warnOfDrift(n)
	}
	return true
}

func (t *tx) warnOfDrift(n *node) {
	if n.drift != "" {
		t.event(Event{Kind: "warning", Subject: string(n.id), Message: "hardware differs: " + n.drift,
			Metadata: map[string]string{"definition": string(n.record.Definition)}})
	}
}
