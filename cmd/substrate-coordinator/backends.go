package main

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"substrate/coordinator/engine"
	"substrate/coordinator/provision"
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
	openers := s.openers()
	return engine.Provisioners{
		Kinds: slices.Sorted(maps.Keys(openers)), AgentAddress: s.address,
		Open: func(ctx context.Context, b spec.Backend, anew bool) (provision.Provisioner, error) {
			open := openers[b.Kind]
			if open == nil {
				return nil, fmt.Errorf("cannot open backend %s: kind %s is not in this build", b.Name, b.Kind)
			}
			log := s.log.With("backend", b.Name, "kind", b.Kind)
			p, err := open(ctx, opening{backend: b, anew: anew, cluster: s.cluster, log: log})
			if err != nil {
				return nil, err
			}
			return watched(p, b, log), nil
		},
	}
}

// opening is what a connection is opened with.
type opening struct {
	backend spec.Backend
	anew    bool // although what was found out before is kept
	cluster string
	log     *slog.Logger
}

type opener func(ctx context.Context, o opening) (provision.Provisioner, error)

// openers are the kinds of backends that this program can open.
func (s settings) openers() map[string]opener {
	return map[string]opener{
		spec.KindAWS:       s.openAWS,
		spec.KindAzure:     s.openAzure,
		spec.KindCoreWeave: s.openCoreWeave,
		spec.KindGCP:       s.openGCP,
		spec.KindOCI:       s.openOCI,
		spec.KindPBS:       s.openBatch,
		spec.KindSlurm:     s.openBatch,
	}
}

// Calls to a cloud. The tightest of its limits are tens in a second for an account, which other programs share.
const (
	callsPerSecond = 10
	callsAtOnce    = 20
)

// watched has calls logged at level debug, and those to a cloud wait for their turn.
func watched(p provision.Provisioner, b spec.Backend, log *slog.Logger) provision.Provisioner {
	p = provision.Observe(p, time.Now, func(v provision.Verb, took time.Duration, err error) {
		if err != nil {
			log.Debug("call failed", "verb", v, "took", took, "fault", provision.FaultOf(err), "err", err)
			return
		}
		log.Debug("call answered", "verb", v, "took", took)
	})
	if spec.Batch(b.Kind) {
		return p // one command at a time, and no account with limits
	}
	return provision.Limit(p, rate.NewLimiter(callsPerSecond, callsAtOnce))
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
