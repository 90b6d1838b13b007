package coreweave

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"substrate/coordinator/provision"
)

// condition is one of a status, as Kubernetes has them. Their names at CoreWeave have changed before: nothing here needs to know all of them.
type condition struct {
	kind, status, reason, message string
	since                         time.Time
}

const (
	mostConditions = 16
	longestTold    = 600
)

func conditionsOf(u *unstructured.Unstructured) []condition {
	list := listIn(u, "status", "conditions")
	var out []condition
	for _, one := range list[:min(len(list), mostConditions)] {
		m, ok := one.(object)
		if !ok {
			continue
		}
		text := func(key string) string { s, _ := m[key].(string); return s }
		c := condition{kind: text("type"), status: text("status"), reason: text("reason"), message: text("message")}
		c.since, _ = time.Parse(time.RFC3339, text("lastTransitionTime"))
		if c.kind != "" {
			out = append(out, c)
		}
	}
	return out
}

func (c condition) String() string {
	s := c.kind + " is " + c.status
	if c.reason != "" {
		s += " (" + c.reason + ")"
	}
	if c.message != "" {
		s += ": " + c.message
	}
	return s
}

func has(text string, words ...string) bool {
	text = strings.ToLower(text)
	for _, w := range words {
		if strings.Contains(text, w) {
			return true
		}
	}
	return false
}

// sour are words of what is bad when it is so.
func sour(word string) bool {
	return strings.HasPrefix(word, "Over") || has(word, "exceed", "insufficient", "invalid", "notset", "limitreached", "unavailable", "awaitingcapacity", "outof", "fail", "error",
		"exhaust")
}

// bad reports whether a condition says that something is wrong: a good thing that is not, or a bad one that is.
func (c condition) bad() bool {
	switch c.status {
	case "False":
		return !sour(c.kind)
	case "True":
		return sour(c.kind) || sour(c.reason)
	}
	return false
}

// fault is what a condition that is bad means for a pool without its node.
func (c condition) fault() provision.Fault {
	switch {
	case !c.bad():
		return provision.FaultNone
	case has(c.kind, "quota"), has(c.reason, "quota"), has(c.message, "quota") && !has(c.message, "under quota"):
		return provision.FaultQuota
	case has(c.kind, "valid"), has(c.reason, "invalid"):
		return provision.FaultInvalid
	case has(c.kind, "capacity"), has(c.reason, "capacity"), has(c.message, "no capacity", "out of capacity", "insufficient capacity"):
		return provision.FaultNoCapacity
	}
	return provision.FaultNone
}

// verdict is what a pool's conditions come to.
type verdict struct {
	fault provision.Fault
	why   string
}

// judge says whether a pool will not get its node. What is wrong for good counts before what may change.
func judge(pool *unstructured.Unstructured) verdict {
	if pool.GetDeletionTimestamp() != nil || count(pool, "status", "currentNodes") > 0 {
		return verdict{}
	}
	all := conditionsOf(pool)
	for _, fault := range []provision.Fault{provision.FaultInvalid, provision.FaultQuota, provision.FaultNoCapacity} {
		for _, c := range all {
			if c.fault() == fault {
				return verdict{fault, c.String()}
			}
		}
	}
	return verdict{}
}

// told is what a pool says of itself, in short.
func told(pool *unstructured.Unstructured) string {
	var parts []string
	for _, c := range conditionsOf(pool) {
		if c.status != "True" || sour(c.kind) || sour(c.reason) {
			parts = append(parts, c.String())
		}
	}
	return short(strings.Join(parts, "; "))
}

func short(s string) string {
	if len(s) > longestTold {
		return strings.ToValidUTF8(s[:longestTold], "") + "..."
	}
	return s
}

// count is a whole number in an object, 0 where there is none.
func count(u *unstructured.Unstructured, path ...string) int64 {
	v, ok, _ := unstructured.NestedFieldNoCopy(u.Object, path...)
	if !ok {
		return 0
	}
	switch n := v.(type) {
	case int64:
		return n
	case float64:
		return int64(n)
	}
	return 0
}

func listIn(u *unstructured.Unstructured, path ...string) []any {
	v, _, _ := unstructured.NestedFieldNoCopy(u.Object, path...)
	list, _ := v.([]any)
	return list
}

func text(u *unstructured.Unstructured, path ...string) string {
	s, _, _ := unstructured.NestedString(u.Object, path...)
	return s
}

// held says who else has nodes of a type: quotas are those of the whole account.
func held(pools []*unstructured.Unstructured, typ, but string) string {
	const mostNamed = 5
	var target, current int64
	var names []string
	for _, u := range pools {
		if text(u, "spec", "instanceType") != typ || u.GetName() == but {
			continue
		}
		target += count(u, "spec", "targetNodes")
		current += count(u, "status", "currentNodes")
		names = append(names, u.GetName())
	}
	if len(names) == 0 {
		return "no other node pool here is of " + typ
	}
	list := strings.Join(names[:min(len(names), mostNamed)], ", ")
	if more := len(names) - mostNamed; more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Sprintf("other node pools of %s here want %d nodes and have %d: %s", typ, target, current, list)
}

// agentOf is how far the pod is: since when a node has it, what keeps it from running, and whether it is over.
func agentOf(pod *unstructured.Unstructured) (placed time.Time, why string, over bool) {
	for _, c := range conditionsOf(pod) {
		if c.kind == "PodScheduled" && c.status == "True" {
			placed = c.since
		} else if c.kind == "PodScheduled" && c.message != "" {
			why = "its agent waits: " + c.message
		}
	}
	for _, one := range listIn(pod, "status", "containerStatuses") {
		m, _ := one.(object)
		state, _ := m["state"].(object)
		waits, _ := state["waiting"].(object)
		if reason, _ := waits["reason"].(string); reason != "" {
			said, _ := waits["message"].(string)
			why = strings.TrimRight("its agent waits: "+reason+": "+said, ": ")
		}
		if ended, ok := state["terminated"].(object); ok {
			why = fmt.Sprintf("its agent has ended with code %v", ended["exitCode"])
			if said, _ := ended["message"].(string); said != "" {
				why += ": " + strings.TrimSpace(said)
			}
		}
	}
	switch phase := text(pod, "status", "phase"); phase {
	case "Failed", "Succeeded":
		over = true
		if why == "" {
			why = strings.TrimSpace("its agent's pod is over: " + phase + " " + text(pod, "status", "reason") + " " + text(pod, "status", "message"))
		}
	}
	return placed, short(why), over
}
