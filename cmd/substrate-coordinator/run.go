package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

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
	dev         bool
	logLevel    string
}

const environment = "SUBSTRATE_COORDINATOR_"

func runCommand() *cobra.Command {
	var s settings
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the coordinator until it is stopped",
		Args:  cobra.NoArgs,
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			return fromEnvironment(cmd.Flags(), os.LookupEnv)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			var level slog.Level
			if err := level.UnmarshalText([]byte(s.logLevel)); err != nil {
				return fmt.Errorf("cannot read --log-level: %w", err)
			}
			log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level, ReplaceAttr: journalTime}))
			return serve(cmd.Context(), s, log)
		},
	}
	f := cmd.Flags()
	f.StringVar(&s.dataDir, "data-dir", "/var/lib/substrate-coordinator", "directory of the store, output of jobs and secrets")
	f.StringVar(&s.apiListen, "api-listen", "127.0.0.1:7440", "address of the API for users (gRPC and REST)")
	f.StringVar(&s.agentListen, "agent-listen", ":7443", "address for the nodes' agents (mutual TLS)")
	f.StringSliceVar(&s.hosts, "host", nil, "names and addresses in the server certificate (default: this host's name and loopback)")
	f.BoolVar(&s.dev, "dev", false, "development: the API speaks plain HTTP and must listen on loopback")
	f.StringVar(&s.logLevel, "log-level", "info", "debug, info, warn or error")
	return cmd
}

// fromEnvironment fills flags that were not given from variables of the same name.
func fromEnvironment(flags *pflag.FlagSet, lookup func(string) (string, bool)) error {
	var errs []error
	flags.VisitAll(func(f *pflag.Flag) {
		name := environment + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		if value, ok := lookup(name); ok && !f.Changed {
			if err := flags.Set(f.Name, value); err != nil {
				errs = append(errs, fmt.Errorf("cannot read %s: %w", name, err))
			}
		}
	})
	return errors.Join(errs...)
}

// journalTime leaves the time out where journald adds its own.
func journalTime(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && a.Key == slog.TimeKey && os.Getenv("JOURNAL_STREAM") != "" {
		return slog.Attr{}
	}
	return a
}

// serve brings everything up in order and takes it down in the opposite one.
func serve(ctx context.Context, s settings, log *slog.Logger) (err error) {
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
	eng, err := engine.New(ctx, engine.Options{Store: st, Logs: out, Log: log, Now: time.Now, Rand: rand.Reader})
	if err != nil {
		return err
	}
	api, agents, err := listen(s)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return eng.Run(ctx) })
	group.Go(func() error { return serveAPI(ctx, s, api, eng, log) })
	group.Go(func() error { return serveAgents(ctx, s, agents, eng, log) })
	group.Go(func() error { return announce(ctx, s, api.Addr(), agents.Addr(), eng, log) })
	return group.Wait()
}

func listen(s settings) (api, agents net.Listener, err error) {
	if s.dev {
		host, _, err := net.SplitHostPort(s.apiListen)
		if ip := net.ParseIP(host); err != nil || (host != "localhost" && (ip == nil || !ip.IsLoopback())) {
			return nil, nil, fmt.Errorf("cannot listen on %s: development mode speaks plain HTTP and only on loopback", s.apiListen)
		}
	}
	if api, err = net.Listen("tcp", s.apiListen); err != nil {
		return nil, nil, fmt.Errorf("cannot listen for the API: %w", err)
	}
	if agents, err = net.Listen("tcp", s.agentListen); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("cannot listen for agents: %w", err), api.Close())
	}
	return api, agents, nil
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

const serverCertificateLifetime = 365 * 24 * time.Hour

func serveAPI(ctx context.Context, s settings, l net.Listener, eng *engine.Engine, log *slog.Logger) (err error) {
	handler, err := server.NewAPI(eng, server.APIOptions{Version: version, Now: time.Now, Log: log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, handler.Close()) }()
	srv := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, Protocols: new(http.Protocols)}
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetHTTP2(true)
	srv.Protocols.SetUnencryptedHTTP2(s.dev)
	if !s.dev {
		ca := eng.ServerIdentity()
		cert, cerr := ca.ServerCertificate(s.certificateHosts(), time.Now(), serverCertificateLifetime, rand.Reader)
		if cerr != nil {
			return cerr
		}
		srv.TLSConfig = ca.APITLS(cert)
	}
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
	cert, err := ca.ServerCertificate(s.certificateHosts(), time.Now(), serverCertificateLifetime, rand.Reader)
	if err != nil {
		return err
	}
	srv, err := server.NewAgentServer(ca.AgentTLS(cert), server.AgentsOf(eng), server.AgentOptions{
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
func announce(ctx context.Context, s settings, api, agents net.Addr, eng *engine.Engine, log *slog.Logger) error {
	adminFile := filepath.Join(s.dataDir, "admin.token")
	if _, err := os.Stat(adminFile); errors.Is(err, os.ErrNotExist) {
		token, err := eng.AdminToken(ctx)
		if err != nil {
			return err
		}
		if err := writeSecret(adminFile, token+"\n"); err != nil {
			return err
		}
		log.Info("wrote the administrator's token", "file", adminFile)
	}
	ca := eng.ServerIdentity()
	if err := writeSecret(filepath.Join(s.dataDir, "ca.pem"), string(ca.CertificatePEM())); err != nil {
		return err
	}
	if s.dev {
		developer := engine.Caller{Principal: auth.Principal{User: "coordinator", Name: "development mode", Admin: true}}
		token, _, err := eng.CreateJoinToken(ctx, developer, 24*time.Hour, 1000)
		if err != nil {
			return err
		}
		if err := writeSecret(filepath.Join(s.dataDir, "join.token"), token+"\n"); err != nil {
			return err
		}
	}
	scheme := map[bool]string{true: "http", false: "https"}[s.dev]
	ready, err := json.Marshal(map[string]string{"api": scheme + "://" + api.String(), "agent": agents.String()})
	if err != nil {
		return err
	}
	log.Info("ready", "api", api.String(), "agents", agents.String(), "pin", auth.Pin(ca))
	return writeSecret(filepath.Join(s.dataDir, "ready.json"), string(ready)+"\n")
}

// writeSecret replaces a 0600 file in one step.
func writeSecret(path, data string) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*") // 0600
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	_, err = f.WriteString(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("cannot write %s: %w", path, err), os.Remove(f.Name()))
	}
	return nil
}
