package coreweave

import (
	"context"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"substrate/coordinator/provision"
	"substrate/coordinator/provision/cloud"
)

// List tells of the cluster's pools: one question for them, one for their pods, in pages. Where a pool is held by a quota, another one for those of everybody.
func (p *Provisioner) List(ctx context.Context) ([]provision.Instance, error) {
	const op = "list node pools"
	mark := cloud.MarkCluster + "=" + cloud.Label(p.opt.Cluster)
	pools, err := p.pools(ctx, op, mark)
	if err != nil {
		return nil, err
	}
	list, err := p.all(ctx, op, p.podsOf, mark)
	if err != nil {
		return nil, err
	}
	pods := make(map[string]*unstructured.Unstructured, len(list))
	for _, pod := range list {
		pods[pod.GetName()] = pod
	}
	out := make([]provision.Instance, 0, len(pools))
	var everybody []*unstructured.Unstructured
	known := make(map[string]bool, len(pools))
	for _, u := range pools {
		known[u.GetName()] = true
		i := p.instanceOf(u, pods[u.GetName()])
		i.Incomplete = pods[u.GetName()] == nil && i.ID != "" && i.State < provision.StateEnding && i.Failed == provision.FaultNone
		if i.Failed == provision.FaultQuota {
			if everybody == nil {
				if everybody, err = p.pools(ctx, op, ""); err != nil {
					return nil, err
				}
			}
			i.Detail += "; " + held(everybody, text(u, "spec", "instanceType"), u.GetName())
		}
		out = append(out, i)
	}
	provision.Sort(out)
	p.sweep(ctx, known)
	return out, nil
}

func (p *Provisioner) pools(ctx context.Context, op, mark string) ([]*unstructured.Unstructured, error) {
	return p.all(ctx, op, p.poolsOf, mark)
}

// all is a whole list, or an error.
func (p *Provisioner) all(ctx context.Context, op string, of dynamic.ResourceInterface, selector string) ([]*unstructured.Unstructured, error) {
	listen, h := listening(ctx)
	in := metav1.ListOptions{LabelSelector: selector, Limit: p.opt.Page}
	var out []*unstructured.Unstructured
	for range mostPages {
		page, err := of.List(listen, in)
		if err != nil {
			return nil, p.explainList(op, err, h)
		}
		for i := range page.Items {
			out = append(out, &page.Items[i])
		}
		if in.Continue = page.GetContinue(); in.Continue == "" {
			return out, nil
		}
	}
	return nil, provision.Errorf(provision.FaultTransient, op, "more than %d pages of them", mostPages)
}

// instanceOf is a pool as an instance. The pod is nil where there is none, or it was not asked for.
func (p *Provisioner) instanceOf(u, pod *unstructured.Unstructured) provision.Instance {
	i := provision.Instance{Handle: provision.Handle(u.GetName()), ID: cloud.LaunchOf(u.GetLabels()[cloud.MarkLaunch]), State: provision.StateStarting,
		Launched: u.GetCreationTimestamp().Time, Detail: told(u)}
	if at := u.GetDeletionTimestamp(); at != nil {
		i.State, i.Detail = provision.StateEnding, ending(u, at.Time)
		return i
	}
	if v := judge(u); v.fault != provision.FaultNone {
		i.State, i.Failed, i.Detail = provision.StateRequested, v.fault, v.why
		return i
	}
	if count(u, "status", "currentNodes") > 0 {
		i.State = provision.StateRunning
	}
	if pod != nil {
		placed, why, over := agentOf(pod)
		if !placed.IsZero() { // a node has it
			i.State, i.Running = provision.StateRunning, placed
		}
		if why != "" && (i.State == provision.StateRunning || i.Detail == "") {
			i.Detail = why
		}
		if over { // the node is there and costs something
			i.State, i.Failed = provision.StateRunning, provision.FaultUnreachable
		}
	}
	return i
}

// ending says what keeps a pool whose deletion was asked for.
func ending(u *unstructured.Unstructured, since time.Time) string {
	s := "it is being deleted since " + since.UTC().Format(time.RFC3339)
	if n := count(u, "status", "currentNodes"); n > 0 {
		s += fmt.Sprintf(", with %d nodes", n)
	}
	if f := u.GetFinalizers(); len(f) > 0 {
		s += ", kept by " + strings.Join(f, ", ")
	}
	if why := told(u); why != "" {
		s += "; " + why
	}
	return short(s)
}

// sweep deletes secrets of launches that are long over, now and then: those whose pools a list has not shown.
func (p *Provisioner) sweep(ctx context.Context, pools map[string]bool) {
	const mostAtOnce = 200
	now := p.now()
	p.mu.Lock()
	due := now.Sub(p.swept) > sweepEvery
	if due {
		p.swept = now
	}
	p.mu.Unlock()
	if !due {
		return
	}
	const op = "list secrets"
	list, err := p.all(ctx, op, p.secretsOf, cloud.MarkCluster+"="+cloud.Label(p.opt.Cluster))
	if err != nil {
		p.opt.Log.Warn("cannot look for secrets that are left over", "err", err)
		return
	}
	done := 0
	for _, s := range list {
		if pools[s.GetName()] || now.Sub(s.GetCreationTimestamp().Time) < knownFor || done >= mostAtOnce {
			continue
		}
		done++
		if err := p.secretsOf.Delete(ctx, s.GetName(), metav1.DeleteOptions{}); err != nil {
			p.opt.Log.Warn("cannot delete a secret that is left over", "secret", s.GetName(), "err", err)
			return
		}
	}
}
