package coreweave

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"substrate/coordinator/provision"
	"substrate/coordinator/provision/cloud"
	"substrate/coordinator/spec"
)

const settleStep = 200 * time.Millisecond

// Launch makes the pool of a launch and the pod on it. The pool's name is the launch's, so there is one; when it is gone the name is free again, and the
// launch's secret says that it was there.
func (p *Provisioner) Launch(ctx context.Context, r provision.Request) (provision.Instance, error) {
	op := "launch " + string(r.ID)
	no := func(fault provision.Fault, format string, args ...any) (provision.Instance, error) {
		return provision.Instance{}, provision.Errorf(fault, op, format, args...)
	}
	s, ok := r.Definition.Spec.(spec.CoreWeave)
	if !ok {
		return no(provision.FaultInvalid, "the definition %s is not of kind coreweave", r.Definition.ID)
	}
	if why := p.unfit(); why != "" {
		return no(provision.FaultInvalid, "%s", why)
	}
	name := cloud.Name(p.opt.Cluster, r.ID, s.InstanceType)
	if dry, ok := p.emptyTypes.At(s.InstanceType, p.now()); ok && !r.Again { // else the pool may be there
		return no(provision.FaultNoCapacity, "no capacity for %s as of %s: %s", s.InstanceType, dry.At.UTC().Format(time.TimeOnly), dry.Why)
	}
	if r.Again {
		switch there, err := p.pool(ctx, op, name); {
		case err == nil:
			return p.complete(ctx, op, r, s, there)
		case provision.FaultOf(err) != provision.FaultNotFound:
			return provision.Instance{}, err
		case p.now().Sub(r.Asked) > knownFor-time.Hour: // who remembers the launch may have forgotten it by now
			return no(provision.FaultInterrupted, "it was first asked for at %s, and there is no such node pool any more", r.Asked.UTC().Format(time.RFC3339))
		}
	}
	if err := p.announce(ctx, op, name, r); err != nil {
		return provision.Instance{}, err
	}
	listen, h := listening(ctx)
	there, err := p.poolsOf.Create(listen, poolOf(p.opt.Cluster, name, r, s), metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		if there, err := p.pool(ctx, op, name); err != nil {
			return provision.Instance{}, err
		} else {
			return p.complete(ctx, op, r, s, there)
		}
	case err != nil:
		return provision.Instance{}, p.explain(op, err, h)
	}
	return p.complete(ctx, op, r, s, there)
}

// unfit says why nothing can be launched here.
func (p *Provisioner) unfit() string {
	if p.image == "" {
		return "its backend names no agentImage: nodes get their agent from a container"
	}
	return ""
}

// complete brings a pool that exists to where a launch ends: with its pod, and not refused.
func (p *Provisioner) complete(ctx context.Context, op string, r provision.Request, s spec.CoreWeave, there *unstructured.Unstructured) (provision.Instance, error) {
	name := there.GetName()
	switch {
	case !p.ours(there) || cloud.LaunchOf(there.GetLabels()[cloud.MarkLaunch]) != r.ID || text(there, "spec", "instanceType") != s.InstanceType:
		return provision.Instance{}, provision.Errorf(provision.FaultInvalid, op, "there is a node pool %s that is not this launch's", name)
	case there.GetDeletionTimestamp() != nil:
		return provision.Instance{}, provision.Errorf(provision.FaultInterrupted, op, "its node pool %s is being deleted", name)
	}
	err := p.announce(ctx, op, name, r) // again, as it may have been another's call that made the pool
	if err == nil {
		listen, h := listening(ctx)
		if _, failed := p.podsOf.Create(listen, p.podOf(name, string(there.GetUID()), r), metav1.CreateOptions{}); failed != nil && !apierrors.IsAlreadyExists(failed) {
			err = p.explain(op, failed, h)
		}
	}
	if err != nil {
		if !provision.FaultOf(err).Again() {
			p.takeBack(ctx, op, there)
		}
		return provision.Instance{}, err
	}
	there, why := p.settle(ctx, op, there)
	if why.fault != provision.FaultNone {
		return provision.Instance{}, p.refused(ctx, op, s, there, why)
	}
	return p.instanceOf(there, nil), nil
}

// announce makes the launch's secret, before its pool. When it says that the launch is over, that is an error.
func (p *Provisioner) announce(ctx context.Context, op, name string, r provision.Request) error {
	listen, h := listening(ctx)
	_, err := p.secretsOf.Create(listen, secretOf(p.opt.Cluster, name, r), metav1.CreateOptions{})
	switch {
	case apierrors.IsNotFound(err):
		e := provision.Errorf(provision.FaultInvalid, op, "%w", err)
		e.Hint = "make the namespace " + p.namespace + ", as docs/coreweave.md says, or name another one in the backend"
		return e
	case !apierrors.IsAlreadyExists(err):
		return p.explain(op, err, h)
	}
	there, err := p.secretsOf.Get(listen, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return provision.Errorf(provision.FaultTransient, op, "its secret %s has just gone", name)
	case err != nil:
		return p.explain(op, err, h)
	case there.GetLabels()[markOver] != "":
		return provision.Errorf(provision.FaultInterrupted, op, "its node pool %s is over", name)
	}
	return nil
}

// settle waits a little for what is said of a new pool. What is not said by then, the next lists tell. That capacity is awaited may be a step of any
// pool's: it counts when it still is so at the end.
func (p *Provisioner) settle(ctx context.Context, op string, there *unstructured.Unstructured) (*unstructured.Unstructured, verdict) {
	limited, cancel := context.WithTimeout(ctx, p.opt.Settle)
	defer cancel()
	for {
		v := judge(there)
		if v.fault == provision.FaultQuota || v.fault == provision.FaultInvalid || v.fault == provision.FaultNone && len(conditionsOf(there)) > 0 {
			return there, v
		}
		select {
		case <-limited.Done():
			return there, v
		case <-time.After(settleStep):
		}
		next, err := p.pool(limited, op, there.GetName())
		if err != nil {
			return there, v
		}
		there = next
	}
}

// refused takes a pool back that will have no node, and says why.
func (p *Provisioner) refused(ctx context.Context, op string, s spec.CoreWeave, there *unstructured.Unstructured, v verdict) error {
	if v.fault == provision.FaultQuota {
		if all, err := p.pools(ctx, op, ""); err == nil {
			v.why += "; " + held(all, s.InstanceType, there.GetName())
		}
	}
	if v.fault == provision.FaultNoCapacity {
		p.emptyTypes.Set(s.InstanceType, p.now(), v.why)
	}
	p.takeBack(ctx, op, there)
	return provision.Errorf(v.fault, op, "its node pool was refused: %s", v.why)
}

// takeBack ends a pool whose launch has failed. When that fails too, the pool carries the cluster's mark, and no launch is known of it: it is released.
func (p *Provisioner) takeBack(ctx context.Context, op string, there *unstructured.Unstructured) {
	if err := p.end(ctx, op, there.GetName(), there); err != nil {
		p.opt.Log.Warn("cannot take a node pool back; the next list finds it", "pool", there.GetName(), "err", err)
	}
}

// Release ends a pool with its pod and its token. It asks for the pool first, which costs something.
func (p *Provisioner) Release(ctx context.Context, h provision.Handle) error {
	op := "release " + string(h)
	there, err := p.pool(ctx, op, string(h))
	if err != nil && provision.FaultOf(err) != provision.FaultNotFound {
		return err
	}
	if err == nil && !p.ours(there) {
		return provision.Errorf(provision.FaultNotFound, op, "the node pool of that name is not this cluster's")
	}
	if ended := p.end(ctx, op, string(h), there); ended != nil {
		return ended
	}
	return err
}

// end deletes a pool, nil when it is gone, and what belongs to it. Its secret stays, without the token.
func (p *Provisioner) end(ctx context.Context, op, name string, there *unstructured.Unstructured) error {
	listen, h := listening(ctx)
	if there != nil {
		uid := there.GetUID()
		err := p.poolsOf.Delete(listen, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
		if err != nil && !apierrors.IsNotFound(err) {
			return p.explain(op, err, h)
		}
	}
	_, err := p.secretsOf.Patch(listen, name, types.MergePatchType, []byte(`{"metadata":{"labels":{"`+markOver+`":"true"}},"data":null}`), metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return p.explain(op, err, h)
	}
	if err := p.podsOf.Delete(listen, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return p.explain(op, err, h)
	}
	return nil
}

// pool asks for one by name.
func (p *Provisioner) pool(ctx context.Context, op, name string) (*unstructured.Unstructured, error) {
	listen, h := listening(ctx)
	u, err := p.poolsOf.Get(listen, name, metav1.GetOptions{})
	if err != nil {
		return nil, p.explain(op, err, h)
	}
	return u, nil
}

func (p *Provisioner) ours(u *unstructured.Unstructured) bool {
	return u.GetLabels()[cloud.MarkCluster] == cloud.Label(p.opt.Cluster)
}
