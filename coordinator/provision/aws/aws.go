// Package aws makes nodes of EC2 instances: one instance is one node. It keeps nothing on disk: what exists is found by the instances' tags. It
// chooses neither type nor image, makes no networks and no roles, and knows no other service of the vendor's.
package aws

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/ec2"

	"substrate/coordinator/catalogue"
	"substrate/coordinator/provision"
	"substrate/coordinator/provision/cloud"
	"substrate/coordinator/spec"
)

// Options is what the provisioner of an account's region needs.
type Options struct {
	Backend    spec.Backend
	Cluster    string // id of this cluster: instances of another one are not ours
	Agent      cloud.Agent
	Catalogue  *catalogue.Catalogue // of EC2's types; nil: the one that is built in
	Now        func() time.Time
	Log        *slog.Logger
	HTTPClient aws.HTTPClient // nil: the SDK's
}

const (
	// seenBy is when an instance that was ever asked for can be found for certain, as long as it exists.
	seenBy = 10 * time.Minute
	// attempts are the SDK's for one call, the first one included.
	attempts = 3
	// mostPages bounds lists: a thousand instances are in a page.
	mostPages = 1000
	pageSize  = 1000
	// credentialsFor is for how long what a file of credentials says is used before it is read again.
	credentialsFor = 5 * time.Minute
)

// Provisioner launches instances in one region. It is safe for concurrent use.
type Provisioner struct {
	opt    Options
	region string
	ec2    *client

	recent cloud.Recent
	empty  cloud.Empty[place]

	mu     sync.Mutex
	market market
}

// place is where an instance is asked for, as far as capacity goes.
type place struct {
	typ, zone, subnet string
	spot              bool
}

func placeOf(s spec.AWS) place { return place{s.InstanceType, s.Zone, s.SubnetID, s.Spot} }

func (p place) market() string {
	if p.spot {
		return "spot"
	}
	return "on-demand"
}

// New makes the provisioner of a backend. It asks the cloud for nothing.
func New(ctx context.Context, o Options) (*Provisioner, error) {
	fail := func(format string, args ...any) (*Provisioner, error) {
		return nil, fmt.Errorf("cannot open backend %s: "+format, append([]any{cmp.Or(o.Backend.Name, o.Backend.Kind)}, args...)...)
	}
	load := []func(*config.LoadOptions) error{config.WithRetryer(retryer)}
	if o.Backend.Region != "" {
		load = append(load, config.WithRegion(o.Backend.Region))
	}
	if o.Backend.Endpoint != "" {
		load = append(load, config.WithBaseEndpoint(o.Backend.Endpoint))
	}
	if o.HTTPClient != nil {
		load = append(load, config.WithHTTPClient(o.HTTPClient))
	}
	if path := o.Backend.CredentialFile; path != "" {
		read := credentialFile(path, o.Now)
		if _, err := read(ctx); err != nil {
			return fail("%w", err)
		}
		load = append(load, config.WithCredentialsProvider(aws.NewCredentialsCache(read)))
	}
	conf, err := config.LoadDefaultConfig(ctx, load...)
	if err != nil {
		return fail("%w", err)
	}
	if conf.Region == "" {
		return fail("it has no region: write `region` in the configuration's backend, or set AWS_REGION for the coordinator")
	}
	if o.Catalogue == nil {
		if o.Catalogue, err = catalogue.EC2(); err != nil {
			return fail("%w", err)
		}
	}
	return &Provisioner{opt: o, region: conf.Region, ec2: clientOf(ec2.NewFromConfig(conf, ec2.WithAPIOptions(checked)))}, nil
}

// credentialFile reads the default profile of a file of credentials, anew from time to time: keys are changed in place. It takes
// precedence over the environment, unlike the same file in the SDK's own chain.
func credentialFile(path string, now func() time.Time) aws.CredentialsProviderFunc {
	return func(ctx context.Context) (aws.Credentials, error) {
		profile, err := config.LoadSharedConfigProfile(ctx, "default", func(o *config.LoadSharedConfigOptions) {
			o.CredentialsFiles, o.ConfigFiles = []string{path}, []string{}
		})
		switch {
		case err != nil:
			return aws.Credentials{}, fmt.Errorf("cannot read credentials: %w", err)
		case !profile.Credentials.HasKeys():
			return aws.Credentials{}, fmt.Errorf("cannot read credentials: %s has no aws_access_key_id and aws_secret_access_key under [default]", path)
		}
		c := profile.Credentials
		c.CanExpire, c.Expires = true, now().Add(credentialsFor)
		return c, nil
	}
}

// retryer repeats what may go better at once. Refusals are the engine's to judge: it tries another definition, or waits.
func retryer() aws.Retryer {
	return retry.NewStandard(func(o *retry.StandardOptions) {
		o.MaxAttempts = attempts
		final := retry.IsErrorRetryableFunc(func(err error) aws.Ternary {
			switch fault, known := faultOfCode(codeOf(err)); {
			case !known, fault == provision.FaultTransient, aboutTime(codeOf(err)):
				return aws.UnknownTernary
			}
			return aws.FalseTernary
		})
		o.Retryables = append([]retry.IsErrorRetryable{final}, o.Retryables...)
	})
}

func (p *Provisioner) now() time.Time { return p.opt.Now() }
