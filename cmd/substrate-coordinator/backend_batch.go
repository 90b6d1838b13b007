package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"substrate/coordinator/dispatch"
	"substrate/coordinator/dispatch/pbs"
	"substrate/coordinator/dispatch/slurm"
	"substrate/coordinator/dispatch/transport"
	"substrate/coordinator/provision"
	"substrate/coordinator/provision/batch"
	"substrate/coordinator/provision/native"
	"substrate/coordinator/spec"
)

// batchSystem makes pilots, and has runs carried out as jobs; it closes its transport.
type batchSystem struct {
	*batch.Provisioner
	runs      *native.Driver
	transport transport.Transport
}

// Serve has the runs of definitions of mode native carried out.
func (p batchSystem) Serve(ctx context.Context, h native.Host, wake <-chan struct{}) error {
	return p.runs.Serve(ctx, h, wake)
}

func (p batchSystem) Close() error { return p.transport.Close() }

func (s settings) openBatch(ctx context.Context, o opening) (provision.Provisioner, error) {
	b := o.backend
	t, err := openTransport(b)
	if err != nil {
		return nil, err
	}
	backend, err := dispatch.Open(ctx, func(ctx context.Context) (dispatch.Backend, error) { return s.openSystem(ctx, b, o.anew, t, o.log) })
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	opt := batch.Options{Backend: backend, Kind: b.Kind, Cluster: o.cluster, Clock: systemClock{}, Pilot: batch.Pilot{Agent: s.nodeAgent, SiteIdentity: b.AllowSiteIdentity}}
	if b.PollInterval != nil {
		opt.Pace = *b.PollInterval
	}
	p, err := batch.New(opt)
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	runs, err := native.New(native.Options{Backend: backend, Cluster: o.cluster, Clock: systemClock{}, Pace: opt.Pace, Log: o.log})
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return batchSystem{p, runs, t}, nil
}

func openTransport(b spec.Backend) (transport.Transport, error) {
	ssh := b.Transport.SSH
	if ssh == nil {
		return transport.NewLocal(os.Environ()), nil
	}
	return transport.NewSSH(transport.SSHOptions{
		Host: ssh.Host, Port: ssh.Port, User: ssh.User, KeyFile: ssh.KeyFile, KnownHosts: ssh.KnownHosts,
		Agent: os.Getenv("SSH_AUTH_SOCK"), Clock: systemClock{},
	})
}

// openSystem finds out what a batch system can, which may take some minutes the first time.
func (s settings) openSystem(ctx context.Context, b spec.Backend, anew bool, t transport.Transport, log *slog.Logger) (dispatch.Backend, error) {
	switch b.Kind {
	case spec.KindSlurm:
		return slurm.New(ctx, slurm.Options{
			Runner: t, Clock: systemClock{}, Log: log, ReadOnly: b.ReadOnly, CessationCommand: b.CessationCommand,
			CredentialTTL: b.CredentialTTL, Skew: b.Skew, CacheDir: filepath.Join(s.dataDir, "probes"), Reprobe: anew,
		})
	case spec.KindPBS:
		return pbs.New(ctx, pbs.Options{
			Runner: t, Clock: systemClock{}, Log: log, ReadOnly: b.ReadOnly, CessationCommand: b.CessationCommand,
			CredentialTTL: b.CredentialTTL, Skew: b.Skew, CacheDir: filepath.Join(s.dataDir, "probes"), Reprobe: anew,
		})
	}
	return nil, fmt.Errorf("cannot open backend %s: kind %s is not in this build", b.Name, b.Kind)
}
