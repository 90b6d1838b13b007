package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"substrate/cmd/internal/daemon"
	"substrate/cmd/internal/private"
	"substrate/coordinator/auth"
	"substrate/coordinator/engine"
	"substrate/coordinator/logs"
	"substrate/coordinator/server"
	"substrate/coordinator/store"
)

// settings are the daemon's own; every flag is also an environment variable SUBSTRATE_COORDINATOR_<NAME>.
type settings struct {
	dataDir     string
	apiListen   string
	agentListen string
	hosts       []string
	role        string // orchestrate or federate
	federation  string // address of the federation port; "": none
	publicURL   string
	dev         bool
	logLevel    string

	nodeLifetime  time.Duration
	launchAddress string
	nodeAgent     string
	proxies       []string
	openID        openIDSettings
}

const environment = "SUBSTRATE_COORDINATOR_"

func runCommand() *cobra.Command {
	var s settings
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the coordinator until it is stopped",
		Args:  cobra.NoArgs,
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			return daemon.FromEnvironment(cmd.Flags(), environment, os.LookupEnv)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := daemon.Logger(cmd.ErrOrStderr(), s.logLevel, os.LookupEnv)
			if err != nil {
				return err
			}
			if s.role != roleOrchestrate && s.role != roleFederate {
				return fmt.Errorf("cannot run in role %q: expected %s or %s", s.role, roleOrchestrate, roleFederate)
			}
			if s.nodeLifetime < shortestNodeLifetime {
				return fmt.Errorf("cannot run: --node-certificate-lifetime %s is too short to renew in, expected at least %s", s.nodeLifetime, shortestNodeLifetime)
			}
			return serve(cmd.Context(), s, log)
		},
	}
	f := cmd.Flags()
	f.StringVar(&s.dataDir, "data-dir", "/var/lib/substrate-coordinator", "directory of the store, output of jobs and secrets")
	f.StringVar(&s.apiListen, "api-listen", "127.0.0.1:7440", "address of the API for users (gRPC and REST)")
	f.StringVar(&s.agentListen, "agent-listen", ":7443", "address for the nodes' agents (mutual TLS)")
	f.StringVar(&s.launchAddress, "launch-address", "", "host:port at which agents on launched nodes reach --agent-listen (default: the first --host, or this host's name, and its port)")
	f.StringVar(&s.nodeAgent, "node-agent", "substrated", "the agent's program on launched nodes, on a batch system's file system or in a cloud's image: a path, or a name that is in PATH there")
	f.StringVar(&s.role, "role", roleOrchestrate, "orchestrate: run work on this cluster's nodes; federate: route it to registered clusters. It is for the cluster's whole life")
	f.StringVar(&s.federation, "federation-listen", "", "address for a Federate (mutual TLS), as :7444; without it the cluster cannot be registered with one")
	f.StringVar(&s.publicURL, "public-url", "", "where users reach this API; a Federate's clusters show it (default: https:// and the first --host, or this host's name)")
	f.StringSliceVar(&s.hosts, "host", nil, "names and addresses in the server certificate (default: this host's name and loopback)")
	f.DurationVar(&s.nodeLifetime, "node-certificate-lifetime", 24*time.Hour, "how long a node's certificate counts; agents renew theirs after half of it, and one that was off for longer joins again")
	f.StringSliceVar(&s.proxies, "trusted-proxy", nil, "address or network of a proxy whose X-Forwarded-For is believed, in limits and the audit log (repeatable)")
	f.BoolVar(&s.dev, "dev", false, "development: the API speaks plain HTTP and must listen on loopback")
	s.openID.flags(f)
	f.StringVar(&s.logLevel, "log-level", "info", "debug, info, warn or error")
	return cmd
}

// shortestNodeLifetime leaves an agent a second try, some seconds after the first, before its certificate expires.
const shortestNodeLifetime = 12 * time.Second

// gcPercent trades memory for processor time: the heap is small beside what a busy coordinator allocates.
const gcPercent = 300

// serve brings everything up in order and takes it down in the opposite one.
func serve(ctx context.Context, s settings, log *slog.Logger) (err error) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if err := os.MkdirAll(s.dataDir, 0o700); err != nil {
		return fmt.Errorf("cannot make the data directory: %w", err)
	}
	st, err := store.OpenEmbedded(ctx, store.EmbeddedOptions{Dir: filepath.Join(s.dataDir, "store"), Logger: log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	out, err := logs.Open(filepath.Join(s.dataDir, "logs"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	launch := &launching{settings: s, log: log}
	eng, err := engine.New(ctx, engine.Options{Provisioners: launch.provisioners(), Store: st, Logs: out, Log: log, Now: time.Now, Rand: rand.Reader, Federate: s.role == roleFederate,
		Limits: engine.Limits{CertificateLifetime: s.nodeLifetime}})
	if err != nil {
		return err
	}
	ports, err := listen(s)
	if err != nil {
		return err
	}
	launch.cluster, launch.agents = eng.ClusterID(), ports.agents
	federate, err := newFederate(s, eng, log)
	if err != nil {
		return errors.Join(err, ports.close())
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return eng.Run(ctx) })
	group.Go(func() error { return serveAPI(ctx, s, ports.api, eng, federate, log) })
	if federate != nil {
		group.Go(func() error { return errors.Join(federate.Run(ctx), federate.Close()) })
	} else {
		group.Go(func() error { return serveAgents(ctx, s, ports.agents, eng, log) })
	}
	if ports.federation != nil {
		group.Go(func() error { return serveFederate(ctx, s, ports.federation, eng, log) })
	}
	group.Go(func() error { return announce(ctx, s, ports, eng, log) })
	return group.Wait()
}

// listeners are the ports; agents is nil on a Federate, federation where it is not asked for.
type listeners struct{ api, agents, federation net.Listener }

func (l listeners) close() error {
	var errs []error
	for _, one := range []net.Listener{l.api, l.agents, l.federation} {
		if one != nil {
			errs = append(errs, one.Close())
		}
	}
	return errors.Join(errs...)
}

func listen(s settings) (l listeners, err error) {
	if s.role == roleFederate && s.federation != "" {
		return l, errors.New("cannot listen for a Federate: this coordinator is one, and Federates do not register with one another")
	}
	if s.dev {
		host, _, err := net.SplitHostPort(s.apiListen)
		if ip := net.ParseIP(host); err != nil || (host != "localhost" && (ip == nil || !ip.IsLoopback())) {
			return l, fmt.Errorf("cannot listen on %s: development mode speaks plain HTTP and only on loopback", s.apiListen)
		}
	}
	if l.api, err = net.Listen("tcp", s.apiListen); err != nil {
		return l, fmt.Errorf("cannot listen for the API: %w", err)
	}
	if s.role != roleFederate { // it has no nodes
		if l.agents, err = net.Listen("tcp", s.agentListen); err != nil {
			return l, errors.Join(fmt.Errorf("cannot listen for agents: %w", err), l.close())
		}
	}
	if s.federation != "" {
		if l.federation, err = net.Listen("tcp", s.federation); err != nil {
			return l, errors.Join(fmt.Errorf("cannot listen for a Federate: %w", err), l.close())
		}
	}
	return l, nil
}

func (s settings) certificateHosts() []string {
	if len(s.hosts) > 0 {
		return s.hosts
	}
	hosts := []string{"localhost", "127.0.0.1", "::1"}
	if name, err := os.Hostname(); err == nil {
		hosts = append(hosts, name)
	}
	return hosts
}

const serverCertificateLifetime = 90 * 24 * time.Hour

// trustedProxies reads addresses and networks.
func (s settings) trustedProxies() (out []netip.Prefix, err error) {
	for _, text := range s.proxies {
		p, err := netip.ParsePrefix(text)
		if addr, aerr := netip.ParseAddr(text); err != nil && aerr == nil {
			p, err = addr.Prefix(addr.BitLen())
		}
		if err != nil {
			return nil, fmt.Errorf("cannot trust proxy %q: it is neither an address nor a network", text)
		}
		out = append(out, p)
	}
	return out, nil
}

// serving is the certificate of a port. It is issued anew before it expires.
func (s settings) serving(ca *auth.CA) (*auth.Serving, tls.Certificate, error) {
	issuer, err := ca.NewServing(s.certificateHosts(), serverCertificateLifetime, time.Now, rand.Reader)
	if err != nil {
		return nil, tls.Certificate{}, err
	}
	cert, err := issuer.Certificate()
	return issuer, cert, err
}

func serveAPI(ctx context.Context, s settings, l net.Listener, eng *engine.Engine, federate *server.Federate, log *slog.Logger) (err error) {
	proxies, err := s.trustedProxies()
	if err != nil {
		return err
	}
	openID, err := s.openID.provider()
	if err != nil {
		return err
	}
	handler, err := server.NewAPI(eng, server.APIOptions{Version: version, Now: time.Now, Log: log, Proxies: proxies, Federate: federate,
		FederationPort: s.federation != "", OpenID: openID})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, handler.Close()) }()
	var conf *tls.Config
	if !s.dev {
		ca := eng.ServerIdentity()
		issuer, cert, cerr := s.serving(ca)
		if cerr != nil {
			return cerr
		}
		conf = issuer.Keep(ca.APITLS(cert))
	}
	srv := server.HTTPServer(handler, conf, log)
	drained := make(chan struct{})
	running := context.AfterFunc(ctx, func() {
		defer close(drained)
		grace, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if srv.Shutdown(grace) != nil {
			_ = srv.Close() // streams that did not end in time
		}
	})
	if s.dev {
		err = srv.Serve(l)
	} else {
		err = srv.ServeTLS(l, "", "")
	}
	if !running() {
		<-drained // Serve returns when the shutdown begins: calls under way still want their answers
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

func serveAgents(ctx context.Context, s settings, l net.Listener, eng *engine.Engine, log *slog.Logger) error {
	ca := eng.ServerIdentity()
	issuer, cert, err := s.serving(ca)
	if err != nil {
		return err
	}
	srv, err := server.NewAgentServer(issuer.Keep(ca.AgentTLS(cert)), server.AgentsOf(eng), server.AgentOptions{
		Version: version, ClusterID: ca.Cluster(), Node: auth.NodeFromCertificate, Now: time.Now, Log: log})
	if err != nil {
		return err
	}
	stopped := context.AfterFunc(ctx, srv.Stop)
	defer stopped()
	if err := srv.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

// announce writes the secrets that the first start makes and, in development, tells where it listens.
func announce(ctx context.Context, s settings, ports listeners, eng *engine.Engine, log *slog.Logger) error {
	adminFile := filepath.Join(s.dataDir, "admin.token")
	if _, err := os.Stat(adminFile); errors.Is(err, os.ErrNotExist) {
		token, err := eng.AdminToken(ctx)
		if err != nil {
			return err
		}
		if err := private.Write(adminFile, []byte(token+"\n")); err != nil {
			return err
		}
		log.Info("wrote the administrator's token", "file", adminFile)
	}
	ca := eng.ServerIdentity()
	if err := private.Write(filepath.Join(s.dataDir, "ca.pem"), ca.CertificatePEM()); err != nil {
		return err
	}
	if s.dev && s.role != roleFederate {
		developer := engine.Caller{Principal: auth.Principal{User: "coordinator", Name: "development mode", Admin: true}}
		token, _, err := eng.CreateJoinToken(ctx, developer, engine.NewJoinToken{TTL: 24 * time.Hour, Uses: 1000})
		if err != nil {
			return err
		}
		if err := private.Write(filepath.Join(s.dataDir, "join.token"), []byte(token+"\n")); err != nil {
			return err
		}
	}
	scheme := map[bool]string{true: "http", false: "https"}[s.dev]
	addresses := map[string]string{"api": scheme + "://" + ports.api.Addr().String()}
	for name, l := range map[string]net.Listener{"agent": ports.agents, "federation": ports.federation} {
		if l != nil {
			addresses[name] = l.Addr().String()
		}
	}
	ready, err := json.Marshal(addresses)
	if err != nil {
		return err
	}
	log.Info("ready", "role", s.role, "api", addresses["api"], "agents", addresses["agent"], "federation", addresses["federation"], "pin", auth.Pin(ca))
	return private.Write(filepath.Join(s.dataDir, "ready.json"), append(ready, '\n'))
}
