package aws

import (
	"context"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"substrate/coordinator/provision"
	"substrate/coordinator/provision/cloud"
)

// List tells of the cluster's instances, those that ended within the last hour too: EC2 knows why. It is one question, in pages.
func (p *Provisioner) List(ctx context.Context) ([]provision.Instance, error) {
	list, err := p.describe(ctx,
		types.Filter{Name: aws.String("tag:" + cloud.MarkCluster), Values: []string{cloud.Label(p.opt.Cluster)}},
		types.Filter{Name: aws.String("instance-state-name"), Values: []string{"pending", "running", "shutting-down", "terminated", "stopping", "stopped"}})
	if err != nil {
		return nil, p.explain("list instances", err)
	}
	return p.recent.Merge(list, p.now()), nil
}

// describe asks for instances, each once.
func (p *Provisioner) describe(ctx context.Context, filters ...types.Filter) ([]provision.Instance, error) {
	pages := ec2.NewDescribeInstancesPaginator(p.ec2, &ec2.DescribeInstancesInput{Filters: filters, MaxResults: aws.Int32(pageSize)})
	var out []provision.Instance
	seen := map[provision.Handle]bool{}
	for n := 0; pages.HasMorePages(); n++ {
		if n >= mostPages {
			return nil, fmt.Errorf("cannot list instances: more than %d pages", mostPages)
		}
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		for _, r := range page.Reservations {
			for i := range r.Instances {
				inst := p.instanceOf(&r.Instances[i])
				if !seen[inst.Handle] {
					seen[inst.Handle] = true
					out = append(out, inst)
				}
			}
		}
	}
	return out, nil
}

func (p *Provisioner) instanceOf(i *types.Instance) provision.Instance {
	out := provision.Instance{Handle: provision.Handle(aws.ToString(i.InstanceId)), Launched: aws.ToTime(i.LaunchTime)}
	out.Console = fmt.Sprintf("aws ec2 get-console-output --region %s --instance-id %s --output text", p.region, out.Handle)
	for _, t := range i.Tags {
		if aws.ToString(t.Key) == cloud.MarkLaunch {
			out.ID = cloud.LaunchOf(aws.ToString(t.Value))
		}
	}
	name := types.InstanceStateName("")
	if i.State != nil {
		name = i.State.Name
	}
	switch name {
	case types.InstanceStateNamePending:
		out.State = provision.StateStarting
	case types.InstanceStateNameRunning:
		// EC2 does not say since when. The launch is a little earlier, and the same however often it is asked.
		out.State, out.Running = provision.StateRunning, out.Launched
	case types.InstanceStateNameShuttingDown:
		out.State = provision.StateEnding
	case types.InstanceStateNameTerminated:
		out.State = provision.StateGone
	default:
		out.Detail = "it is " + string(name)
	}
	if out.State >= provision.StateEnding && i.StateReason != nil {
		out.Detail, out.Failed = aws.ToString(i.StateReason.Message), faultOfEnd(aws.ToString(i.StateReason.Code))
	}
	return out
}

// faultOfEnd is what the reason of an instance's end means.
func faultOfEnd(code string) provision.Fault {
	switch code {
	case "", "pending", "Client.UserInitiatedShutdown", "Client.UserInitiatedHibernate":
		return provision.FaultNone
	case "Client.InstanceInitiatedShutdown": // its agent found no coordinator, or was done
		return provision.FaultUnreachable
	case "Server.SpotInstanceTermination", "Server.SpotInstanceShutdown", "Server.ScheduledStop":
		return provision.FaultInterrupted
	case "Server.InsufficientInstanceCapacity":
		return provision.FaultNoCapacity
	case "Client.VolumeLimitExceeded":
		return provision.FaultQuota
	case "Client.InternalError", "Client.InvalidSnapshot.NotFound": // as a rule, the key of an encrypted volume
		return provision.FaultInvalid
	}
	return provision.FaultTransient
}
