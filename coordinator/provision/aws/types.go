package aws

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"substrate/coordinator"
	"substrate/coordinator/catalogue"
	"substrate/coordinator/provision"
)

// typesPage is the most that EC2 puts into one page of types.
const typesPage = 100

// Types tells of the region's types: what EC2 describes and a zone offers. It describes some that no zone has.
func (p *Provisioner) Types(ctx context.Context) ([]catalogue.Type, error) {
	const op = "tell of instance types"
	zones, err := p.describeOfferings(ctx)
	if err != nil {
		return nil, p.explain(op, err)
	}
	described, err := p.describeTypes(ctx, nil)
	if err != nil {
		return nil, p.explain(op, err)
	}
	out := make([]catalogue.Type, 0, len(described))
	for _, t := range described {
		if t.Zones = zones[t.Name]; len(t.Zones) > 0 {
			out = append(out, t)
		}
	}
	slices.SortFunc(out, func(a, b catalogue.Type) int { return cmp.Compare(a.Name, b.Name) })
	return slices.CompactFunc(out, func(a, b catalogue.Type) bool { return a.Name == b.Name }), nil
}

// describeOfferings are the zones of each type, sorted. A part of the pages is none.
func (p *Provisioner) describeOfferings(ctx context.Context) (map[string][]string, error) {
	zones := map[string][]string{}
	pages := ec2.NewDescribeInstanceTypeOfferingsPaginator(p.ec2, &ec2.DescribeInstanceTypeOfferingsInput{
		LocationType: types.LocationTypeAvailabilityZone, MaxResults: aws.Int32(pageSize)})
	for n := 0; pages.HasMorePages(); n++ {
		if n >= mostPages {
			return nil, fmt.Errorf("cannot list offerings: more than %d pages", mostPages)
		}
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		for _, o := range page.InstanceTypeOfferings {
			zones[string(o.InstanceType)] = append(zones[string(o.InstanceType)], aws.ToString(o.Location))
		}
	}
	for _, list := range zones {
		slices.Sort(list)
	}
	return zones, nil
}

// describeTypes asks about types by name, or about all of them without names.
func (p *Provisioner) describeTypes(ctx context.Context, names []string) ([]catalogue.Type, error) {
	in := &ec2.DescribeInstanceTypesInput{}
	if len(names) > 0 {
		in.Filters = []types.Filter{{Name: aws.String("instance-type"), Values: names}}
	} else {
		in.MaxResults = aws.Int32(typesPage)
	}
	var out []catalogue.Type
	pages := ec2.NewDescribeInstanceTypesPaginator(p.ec2, in)
	for pages.HasMorePages() {
		if len(out) > provision.MostTypes {
			return nil, fmt.Errorf("cannot list instance types: more than %d", provision.MostTypes)
		}
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		for i := range page.InstanceTypes {
			out = append(out, typeOf(&page.InstanceTypes[i]))
		}
	}
	return out, nil
}

// typeOf is a type as the catalogue would have it. The names of GPUs are the vendor's and no device's: they are left out.
func typeOf(t *types.InstanceTypeInfo) catalogue.Type {
	out := catalogue.Type{Name: string(t.InstanceType), BareMetal: aws.ToBool(t.BareMetal)}
	if v := t.VCpuInfo; v != nil {
		out.VCPUs, out.Cores, out.ThreadsPerCore = count(v.DefaultVCpus), count(v.DefaultCores), count(v.DefaultThreadsPerCore)
	}
	if mem := t.MemoryInfo; mem != nil && mem.SizeInMiB != nil && *mem.SizeInMiB > 0 {
		b := coordinator.Bytes(*mem.SizeInMiB) << 20
		out.Memory = &b
	}
	if c := t.ProcessorInfo; c != nil {
		for _, a := range c.SupportedArchitectures {
			switch a {
			case types.ArchitectureTypeX8664, types.ArchitectureTypeX8664Mac:
				out.Arch = "amd64"
			case types.ArchitectureTypeArm64, types.ArchitectureTypeArm64Mac:
				out.Arch = cmp.Or(out.Arch, "arm64")
			}
		}
	}
	if g := t.GpuInfo; g != nil && len(g.Gpus) > 0 {
		gpusOf(&out, g.Gpus)
	}
	for _, class := range t.SupportedUsageClasses {
		out.UsageClasses = append(out.UsageClasses, string(class))
	}
	return out
}

// count is a number that is known: what EC2 has not entered is 0.
func count(n *int32) *uint32 {
	if n == nil || *n <= 0 {
		return nil
	}
	u := uint32(*n)
	return &u
}

// gpusOf notes whose GPUs a type has and how many whole ones. A part of one is told by its size, or by logical GPUs without a whole one; GPUs
// without any number are some that nobody has counted yet. Several makes are left to the first report.
func gpusOf(out *catalogue.Type, gpus []types.GpuDeviceInfo) {
	out.GPUVendor = strings.ToLower(aws.ToString(gpus[0].Manufacturer))
	all := uint32(0)
	for _, g := range gpus {
		if !strings.EqualFold(aws.ToString(g.Manufacturer), out.GPUVendor) {
			return
		}
		whole, logical := count(g.Count), count(g.LogicalGpuCount)
		switch size := g.GpuPartitionSize; {
		case size != nil && *size > 0 && *size < 1, whole == nil && logical != nil:
			out.Fraction, out.GPUs = true, nil
			return
		case whole == nil:
			return
		}
		all += *whole
	}
	out.GPUs = &all
}
