package fakecloud

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"
)

// Finalizer keeps a node pool until its nodes are gone.
const Finalizer = "compute.coreweave.com/nodepool"

// Keeper does what CoreWeave's own controller does: it makes instances of node pools, and says in their status how far they are.
type Keeper struct {
	Cloud *Cloud
	// Stuck has pools that are deleted stay, as while a node is being delivered.
	Stuck bool
	// Silent has it say nothing in a status, as before it has looked at a pool.
	Silent bool

	mu     sync.Mutex
	doomed map[string]Cause
	nodes  map[string]map[string]string // labels of each pool's nodes
}

func (k *Keeper) doom(pool string, why Cause) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.doomed == nil {
		k.doomed = map[string]Cause{}
	}
	k.doomed[pool] = why
}

// Keep brings a pool's instance to what the pool says. It returns the pool's status, and whether its finalizer is to stay.
func (k *Keeper) Keep(pool map[string]any) (status map[string]any, holds bool) {
	meta, _ := pool["metadata"].(kubeObject)
	spec, _ := pool["spec"].(kubeObject)
	name, _ := meta["name"].(string)
	typ, _ := spec["instanceType"].(string)
	i, made := k.Cloud.Instance(name)
	if _, deleting := meta["deletionTimestamp"]; deleting {
		if made && i.State < Stopping {
			i, _ = k.Cloud.Terminate(name)
		}
		return k.status(typ, i, 0), k.Stuck || made && i.State != Gone
	}
	k.mu.Lock()
	why := k.doomed[name]
	if k.nodes == nil {
		k.nodes = map[string]map[string]string{}
	}
	k.nodes[name] = texts(spec["nodeLabels"])
	k.mu.Unlock()
	if why == 0 && (!made || i.State == Gone) {
		var err error
		i, err = k.Cloud.Launch(Ask{ID: name, Type: typ, Tags: texts(meta["labels"])})
		var no *Refusal
		if errors.As(err, &no) {
			why = no.Cause
		}
	}
	if k.Silent {
		return nil, true
	}
	return k.status(typ, i, why), true
}

// status is that of a pool of one node.
func (k *Keeper) status(typ string, i Instance, why Cause) kubeObject {
	now := k.Cloud.Now().UTC().Format(time.RFC3339)
	condition := func(kind string, ok bool, good, bad, message string) any {
		c := kubeObject{"type": kind, "status": "True", "reason": good, "message": message, "lastTransitionTime": now}
		if !ok {
			c["status"], c["reason"] = "False", bad
		}
		return c
	}
	said := map[bool]string{true: "nodePool is under quota for instance type " + typ, false: "quota limit is 0 for instance type " + typ}
	nodes := 0
	if i.State == Running {
		nodes = 1
	}
	return kubeObject{"currentNodes": nodes, "conditions": []any{
		condition("Valid", why != Invalid, "Valid", "InvalidInstanceType", "the specification of instance type "+typ+" was looked at"),
		condition("Quota", why != Quota, "Under", "NotSet", said[why != Quota]),
		condition("Capacity", why != NoCapacity, "Sufficient", "QueuedAwaitingCapacity", ""),
		condition("AtTarget", nodes == 1, "TargetMet", "BelowTarget", ""),
	}}
}

// place finds the instance that a pod with a selector runs on.
func (k *Keeper) place(selector map[string]string) (Instance, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(k.nodes)) {
		fits := true
		for key, value := range selector {
			fits = fits && k.nodes[name][key] == value
		}
		if i, ok := k.Cloud.Instance(name); fits && ok && i.State == Running {
			return i, true
		}
	}
	return Instance{}, false
}

func texts(v any) map[string]string {
	out := map[string]string{}
	o, _ := v.(kubeObject)
	for key, value := range o {
		out[key], _ = value.(string)
	}
	return out
}
