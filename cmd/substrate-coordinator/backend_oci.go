package main

import (
	"context"
	"time"

	"substrate/coordinator/provision"
	"substrate/coordinator/provision/cloud"
	"substrate/coordinator/provision/oci"
)

func (s settings) openOCI(_ context.Context, o opening) (provision.Provisioner, error) {
	return oci.New(oci.Options{Backend: o.backend, Cluster: o.cluster, Agent: cloud.Agent{Program: s.nodeAgent}, Now: time.Now, Log: o.log})
}
