package main

import (
	"context"
	"time"

	"substrate/coordinator/provision"
	"substrate/coordinator/provision/cloud"
	"substrate/coordinator/provision/coreweave"
)

func (s settings) openCoreWeave(_ context.Context, o opening) (provision.Provisioner, error) {
	return coreweave.New(coreweave.Options{Backend: o.backend, Cluster: o.cluster, Agent: cloud.Agent{Program: s.nodeAgent}, Now: time.Now, Log: o.log})
}
