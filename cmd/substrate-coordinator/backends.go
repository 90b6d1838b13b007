package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"substrate/coordinator/dispatch"
	"substrate/coordinator/dispatch/pbs"
	"substrate/coordinator/dispatch/slurm"
	"substrate/coordinator/dispatch/transport"
	"substrate/coordinator/engine"
	"substrate/coordinator/provision"
	"substrate/coordinator/provision/batch"
	"substrate/coordinator/provision/native"
	"substrate/coordinator/spec"
)

// launching is how this program launches nodes. Cluster and ports are known once the engine runs, before it opens a backend.
type launching struct {
	settings
	log     *slog.Logger
	cluster string
	agents  net.Listener
}

func (s *launching) provisioners() engine.Provisioners {
	if s.role == roleFederate {
		return engine.Provisioners{} // it has no nodes
	}
	return engine.Provisioners{
		Kinds: []string{spec.KindSlurm, spec.KindPBS}, AgentAddress: s.address,
		Open: func(ctx context.Context, b spec.Backend, anew bool) (provision.Provisioner, error) {
			return s.openBatch(ctx, b, anew, s.cluster, s.log.With("backend", b.Name, "kind", b.Kind))
		},
	}
}

// address is where agents on launched nodes find this coordinator.
func (s *launching) address() string {
	if s.launchAddress != "" {
		return s.launchAddress
	}
	agents := s.agents.Addr()
	host := ""
	if len(s.hosts) > 0 {
		host = s.hosts[0]
	} else if name, err := os.Hostname(); err == nil {
		host = name
	}
	_, port, err := net.SplitHostPort(agents.String())
	if err != nil {
		return agents.String()
	}
	return net.JoinHostPort(host, port)
}

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

func (s settings) openBatch(ctx context.Context, b spec.Backend, anew bool, cluster string, log *slog.Logger) (provision.Provisioner, error) {
	t, err := openTransport(b)
	if err != nil {
		return nil, err
	}
	backend, err := dispatch.Open(ctx, func(ctx context.Context) (dispatch.Backend, error) { return s.openSystem(ctx, b, anew, t, log) })
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	o := batch.Options{Backend: backend, Kind: b.Kind, Cluster: cluster, Clock: systemClock{}, Pilot: batch.Pilot{Agent: s.pilotAgent, SiteIdentity: b.AllowSiteIdentity}}
	if b.PollInterval != nil {
		o.Pace = *b.PollInterval
	}
	p, err := batch.New(o)
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	runs, err := native.New(native.Options{Backend: backend, Cluster: cluster, Clock: systemClock{}, Pace: o.Pace, Log: log})
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

// systemClock is the machine's.
type systemClock struct{}

func (systemClock) Now() time.Time { return time.Now() }

func (systemClock) Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
