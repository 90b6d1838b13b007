package aws

import (
	"context"
	"encoding/base64"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"substrate/coordinator/provision"
	"substrate/coordinator/provision/cloud"
	"substrate/coordinator/spec"
)

// tagName is what the console shows.
const tagName = "Name"

// Launch runs the instance of a launch. EC2 itself keeps that to one: the call's token is the launch's.
func (p *Provisioner) Launch(ctx context.Context, r provision.Request) (provision.Instance, error) {
	op := "launch " + string(r.ID)
	s, ok := r.Definition.Spec.(spec.AWS)
	if !ok {
		return provision.Instance{}, provision.Errorf(provision.FaultInvalid, op, "the definition %s is not of kind aws", r.Definition.ID)
	}
	if why := p.unfit(s); why != "" {
		return provision.Instance{}, provision.Errorf(provision.FaultInvalid, op, "%s", why)
	}
	if no, ok := p.empty.At(placeOf(s), p.now()); ok && !r.Again { // else the instance may be there
		e := provision.Errorf(provision.FaultNoCapacity, op, "no %s capacity for %s as of %s: %s", placeOf(s).market(), s.InstanceType, no.At.UTC().Format(time.TimeOnly), no.Why)
		return provision.Instance{}, e
	}
	in, err := p.input(r, s)
	if err != nil {
		return provision.Instance{}, provision.Errorf(provision.FaultInvalid, op, "%w", err)
	}
	out, err := p.ec2.run(ctx, in)
	switch code := codeOf(err); {
	case code == tokenSpent, code == tokenMismatch:
		return p.used(ctx, op, r, aws.ToString(in.ClientToken), err)
	case err != nil:
		err = p.explain(op, err)
		if provision.FaultOf(err) == provision.FaultNoCapacity {
			p.empty.Set(placeOf(s), p.now(), reason(err))
		}
		return provision.Instance{}, err
	case len(out.Instances) != 1:
		return provision.Instance{}, provision.Errorf(provision.FaultTransient, op, "the answer tells of %d instances", len(out.Instances))
	}
	inst := p.instanceOf(&out.Instances[0])
	inst.ID = r.ID
	p.recent.Add(inst, p.now())
	return inst, nil
}

// unfit says why nothing can be launched of a spec whatever the cloud has.
func (p *Provisioner) unfit(s spec.AWS) string {
	switch {
	case s.ImageID == "":
		return "its provisionerSpec names no imageId to boot from"
	case s.Region != "" && s.Region != p.region:
		return "it is about region " + s.Region + " and its backend about " + p.region + ": give it a backend of its region"
	}
	return ""
}

// input is the call of a launch. What it says is the same each time, as far as the launch's definition is: EC2 refuses a token with
// other parameters.
func (p *Provisioner) input(r provision.Request, s spec.AWS) (*ec2.RunInstancesInput, error) {
	data, err := cloud.UserData(r, p.opt.Agent)
	if err != nil {
		return nil, err
	}
	at := placeOf(s)
	in := &ec2.RunInstancesInput{
		MinCount: aws.Int32(1), MaxCount: aws.Int32(1),
		ClientToken:                       aws.String(cloud.Key(p.opt.Cluster, r.ID, at.typ, at.market(), at.zone, at.subnet)),
		ImageId:                           aws.String(s.ImageID),
		InstanceType:                      types.InstanceType(s.InstanceType),
		UserData:                          aws.String(base64.StdEncoding.EncodeToString(data)),
		InstanceInitiatedShutdownBehavior: types.ShutdownBehaviorTerminate,
		MetadataOptions:                   &types.InstanceMetadataOptionsRequest{HttpTokens: types.HttpTokensStateRequired},
		SecurityGroupIds:                  s.SecurityGroupIDs,
	}
	tags := p.tags(r, s)
	for _, kind := range []types.ResourceType{types.ResourceTypeInstance, types.ResourceTypeVolume, types.ResourceTypeNetworkInterface} {
		in.TagSpecifications = append(in.TagSpecifications, types.TagSpecification{ResourceType: kind, Tags: tags})
	}
	if s.Spot {
		in.InstanceMarketOptions = &types.InstanceMarketOptionsRequest{MarketType: types.MarketTypeSpot, SpotOptions: &types.SpotMarketOptions{
			SpotInstanceType: types.SpotInstanceTypeOneTime, InstanceInterruptionBehavior: types.InstanceInterruptionBehaviorTerminate}}
	}
	if s.SubnetID != "" {
		in.SubnetId = aws.String(s.SubnetID)
	}
	if s.Zone != "" {
		in.Placement = &types.Placement{AvailabilityZone: aws.String(s.Zone)}
	}
	switch {
	case strings.HasPrefix(s.InstanceProfile, "arn:"):
		in.IamInstanceProfile = &types.IamInstanceProfileSpecification{Arn: aws.String(s.InstanceProfile)}
	case s.InstanceProfile != "":
		in.IamInstanceProfile = &types.IamInstanceProfileSpecification{Name: aws.String(s.InstanceProfile)}
	}
	return in, nil
}

// tags are the definition's and ours; ours count where both name one.
func (p *Provisioner) tags(r provision.Request, s spec.AWS) []types.Tag {
	all := map[string]string{tagName: r.Boot.Node}
	maps.Copy(all, s.Tags)
	maps.Copy(all, cloud.Marks(p.opt.Cluster, r))
	var out []types.Tag
	for _, key := range slices.Sorted(maps.Keys(all)) {
		out = append(out, types.Tag{Key: aws.String(key), Value: aws.String(all[key])})
	}
	return out
}

// used finds the instance that a token was used for before: it is over, or it was asked for with other parameters, as after
// the coordinator's address has changed. Either way it is this launch's.
func (p *Provisioner) used(ctx context.Context, op string, r provision.Request, token string, cause error) (provision.Instance, error) {
	found, err := p.describe(ctx, types.Filter{Name: aws.String("client-token"), Values: []string{token}})
	if err != nil {
		return provision.Instance{}, p.explain(op, err)
	}
	if len(found) > 0 {
		inst := found[0]
		inst.ID = r.ID
		return inst, nil
	}
	if codeOf(cause) == tokenMismatch && p.now().Sub(r.Asked) < seenBy {
		e := provision.Errorf(provision.FaultTransient, op, "its instance exists and cannot be seen yet: %w", p.explain(op, cause))
		e.After = cloud.UnsaidPause
		return provision.Instance{}, e
	}
	return provision.Instance{}, provision.Errorf(provision.FaultInterrupted, op, "its instance is over and EC2 knows it no more: %w", p.explain(op, cause))
}

// Release ends an instance. What a call right after its launch does not know is asked for again.
func (p *Provisioner) Release(ctx context.Context, h provision.Handle) error {
	op := "release " + string(h)
	_, err := p.ec2.terminate(ctx, &ec2.TerminateInstancesInput{InstanceIds: []string{string(h)}})
	err = p.explain(op, err)
	switch {
	case err == nil:
		p.recent.Ending(h)
	case provision.FaultOf(err) == provision.FaultNotFound && p.recent.Young(h, p.now()):
		e := provision.Errorf(provision.FaultTransient, op, "it was launched moments ago and is not known everywhere yet: %w", err)
		e.After = cloud.UnsaidPause
		return e
	}
	return err
}

// reason is what an error says without the launch that it is about.
func reason(err error) string {
	why := err.Error()
	if _, text, ok := strings.Cut(why, ": "); ok {
		return text
	}
	return why
}
