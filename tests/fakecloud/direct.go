package fakecloud

import (
	"context"
	"errors"
	"fmt"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/provision"
	"substrate/coordinator/spec"
)

// The tags by which a cluster knows its instances.
const (
	tagCluster = "substrate-cluster"
	tagLaunch  = "substrate-launch"
)

// Direct provisions straight from the engine, without a front-end and its wire: for schedules by the thousand. Its definitions are of
// kind aws.
type Direct struct {
	Cloud   *Cloud
	Cluster string
	Every   time.Duration // the pace of lists; 0 is the usual one
}

// Pace is how often List is to be asked.
func (d *Direct) Pace() time.Duration {
	if d.Every > 0 {
		return d.Every
	}
	return provision.DefaultPace
}

// Offers says which types there are.
func (d *Direct) Offers(_ context.Context, defs []coordinator.Definition) ([]provision.Offer, error) {
	if err := d.fault("ask for offers", OpTypes, nil); err != nil {
		return nil, err
	}
	out := make([]provision.Offer, len(defs))
	for i := range defs {
		out[i] = provision.Offer{Definition: defs[i].ID, Nodes: 1, Launch: time.Minute, Available: true}
		s, ok := defs[i].Spec.(spec.AWS)
		t, has := d.Cloud.Type(s.InstanceType)
		if !ok || !has {
			out[i].Available, out[i].Why, out[i].Until = false, "there is no type "+s.InstanceType, d.Cloud.Now().Add(time.Hour)
			continue
		}
		if t.Price > 0 {
			out[i].CostPerHour = &t.Price
		}
	}
	return out, nil
}

// Launch makes an instance or finds it.
func (d *Direct) Launch(_ context.Context, r provision.Request) (provision.Instance, error) {
	op := "launch " + string(r.ID)
	s, ok := r.Definition.Spec.(spec.AWS)
	if !ok {
		return provision.Instance{}, provision.Errorf(provision.FaultInvalid, op, "the definition is not of kind aws")
	}
	ask := Ask{Token: fmt.Sprintf("%s/%s/%s/%t", d.Cluster, r.ID, s.InstanceType, s.Spot), Type: s.InstanceType, Zone: s.Zone, Lifetime: r.Lifetime,
		Tags:     map[string]string{tagCluster: d.Cluster, tagLaunch: string(r.ID)},
		UserData: fmt.Appendf(nil, "%s\n%s\n%s\n%s\n", r.Boot.Coordinator, r.Boot.Node, r.ID, r.Boot.Token)}
	if s.Spot {
		ask.Market = Spot
	}
	var made Instance
	err := d.fault(op, OpLaunch, func() (err error) { made, err = d.Cloud.Launch(ask); return err })
	if err != nil {
		return provision.Instance{}, err
	}
	return instanceOf(made), nil
}

// Release begins the end of an instance.
func (d *Direct) Release(_ context.Context, h provision.Handle) error {
	return d.fault("release "+string(h), OpRelease, func() error { _, err := d.Cloud.Terminate(string(h)); return err })
}

// List tells of the cluster's instances.
func (d *Direct) List(context.Context) ([]provision.Instance, error) {
	if err := d.fault("list instances", OpList, nil); err != nil {
		return nil, err
	}
	var out []provision.Instance
	for _, i := range d.Cloud.List() {
		if i.Tags[tagCluster] == d.Cluster {
			out = append(out, instanceOf(i))
		}
	}
	provision.Sort(out)
	return out, nil
}

// fault carries a call out as the cloud is told to.
func (d *Direct) fault(op string, o Op, do func() error) error {
	if do == nil {
		do = func() error { return nil }
	}
	f := d.Cloud.Call(o)
	if f.Refuse != 0 {
		return refused(op, &Refusal{f.Refuse, "as told"})
	}
	if f.Hang {
		return provision.Errorf(provision.FaultTransient, op, "no answer")
	}
	err := do()
	if f.Lost {
		return provision.Errorf(provision.FaultTransient, op, "the connection broke")
	}
	var no *Refusal
	if errors.As(err, &no) {
		return refused(op, no)
	}
	return err
}

func refused(op string, no *Refusal) error {
	kind := map[Cause]provision.Fault{
		NotFound: provision.FaultNotFound, NoCapacity: provision.FaultNoCapacity, Quota: provision.FaultQuota, Throttled: provision.FaultThrottled,
		Denied: provision.FaultDenied, ClockSkew: provision.FaultClockSkew, Invalid: provision.FaultInvalid, TokenMismatch: provision.FaultInvalid,
		TokenSpent: provision.FaultInvalid, Broken: provision.FaultTransient,
	}[no.Cause]
	return provision.Errorf(kind, op, "%w", no)
}

func instanceOf(i Instance) provision.Instance {
	out := provision.Instance{Handle: provision.Handle(i.ID), ID: provision.LaunchID(i.Tags[tagLaunch]), Launched: i.Launched, Running: i.Started, Detail: i.Why, Console: "console " + i.ID}
	out.State = map[State]provision.State{Pending: provision.StateStarting, Running: provision.StateRunning, Stopping: provision.StateEnding, Gone: provision.StateGone}[i.State]
	if i.Lifetime > 0 {
		out.Ends = i.Launched.Add(i.Lifetime)
	}
	switch i.Why {
	case "", "lifetime":
	case "reclaimed":
		out.Failed = provision.FaultInterrupted
	default:
		out.Failed = provision.FaultTransient
	}
	return out
}
