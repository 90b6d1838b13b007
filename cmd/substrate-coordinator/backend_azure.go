package main

import (
	"context"
	"time"

	"substrate/coordinator/provision"
	"substrate/coordinator/provision/azure"
	"substrate/coordinator/provision/cloud"
)

func (s settings) openAzure(_ context.Context, o opening) (provision.Provisioner, error) {
	return azure.New(azure.Options{Backend: o.backend, Cluster: o.cluster, Agent: cloud.Agent{Program: s.nodeAgent}, Now: time.Now, Log: o.log})
}
