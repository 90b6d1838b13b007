package main

import (
	"context"
	"time"

	"substrate/coordinator/provision"
	"substrate/coordinator/provision/aws"
	"substrate/coordinator/provision/cloud"
)

func (s settings) openAWS(ctx context.Context, o opening) (provision.Provisioner, error) {
	o.log.Info("opening", cloud.MarkCluster, cloud.Label(o.cluster)) // policies of the account name it
	return aws.New(ctx, aws.Options{Backend: o.backend, Cluster: o.cluster, Agent: cloud.Agent{Program: s.nodeAgent}, Now: time.Now, Log: o.log})
}
