package main

import (
	"context"
	"time"

	"substrate/coordinator/provision"
	"substrate/coordinator/provision/cloud"
	"substrate/coordinator/provision/gcp"
)

func (s settings) openGCP(ctx context.Context, o opening) (provision.Provisioner, error) {
	return gcp.New(ctx, gcp.Options{Backend: o.backend, Cluster: o.cluster, Agent: cloud.Agent{Program: s.nodeAgent}, Now: time.Now, Log: o.log})
}
