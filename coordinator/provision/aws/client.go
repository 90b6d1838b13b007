package aws

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
)

// client is the part of the SDK's client that is used here. It holds that one's methods and not the value itself: a value that becomes an interface
// takes all its hundreds of methods into the program, which makes that twice as large.
type client struct {
	run       func(context.Context, *ec2.RunInstancesInput, ...func(*ec2.Options)) (*ec2.RunInstancesOutput, error)
	terminate func(context.Context, *ec2.TerminateInstancesInput, ...func(*ec2.Options)) (*ec2.TerminateInstancesOutput, error)
	describe  func(context.Context, *ec2.DescribeInstancesInput, ...func(*ec2.Options)) (*ec2.DescribeInstancesOutput, error)
	types     func(context.Context, *ec2.DescribeInstanceTypesInput, ...func(*ec2.Options)) (*ec2.DescribeInstanceTypesOutput, error)
	offerings func(context.Context, *ec2.DescribeInstanceTypeOfferingsInput, ...func(*ec2.Options)) (*ec2.DescribeInstanceTypeOfferingsOutput, error)
	prices    func(context.Context, *ec2.DescribeSpotPriceHistoryInput, ...func(*ec2.Options)) (*ec2.DescribeSpotPriceHistoryOutput, error)
}

func clientOf(c *ec2.Client) *client {
	return &client{c.RunInstances, c.TerminateInstances, c.DescribeInstances, c.DescribeInstanceTypes, c.DescribeInstanceTypeOfferings, c.DescribeSpotPriceHistory}
}

// Methods below are those that the SDK's paginators ask for.

func (c *client) DescribeInstances(ctx context.Context, in *ec2.DescribeInstancesInput, opts ...func(*ec2.Options)) (*ec2.DescribeInstancesOutput, error) {
	return c.describe(ctx, in, opts...)
}

func (c *client) DescribeInstanceTypes(ctx context.Context, in *ec2.DescribeInstanceTypesInput, opts ...func(*ec2.Options)) (*ec2.DescribeInstanceTypesOutput, error) {
	return c.types(ctx, in, opts...)
}

func (c *client) DescribeInstanceTypeOfferings(ctx context.Context, in *ec2.DescribeInstanceTypeOfferingsInput, opts ...func(*ec2.Options)) (*ec2.DescribeInstanceTypeOfferingsOutput, error) {
	return c.offerings(ctx, in, opts...)
}

func (c *client) DescribeSpotPriceHistory(ctx context.Context, in *ec2.DescribeSpotPriceHistoryInput, opts ...func(*ec2.Options)) (*ec2.DescribeSpotPriceHistoryOutput, error) {
	return c.prices(ctx, in, opts...)
}
