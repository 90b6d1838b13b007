package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"substrate/agent"
	"substrate/agent/identity"
	"substrate/agent/reclaim"
	"substrate/agent/runtime"
	"substrate/cmd/internal/daemon"
	"substrate/hwinfo"
)

const (
	defaultState = "/var/lib/substrated"
	envPrefix    = "SUBSTRATED_"
	joinTokenEnv = envPrefix + "JOIN_TOKEN"
	maxTokenFile = 4 << 10
	gcPercent    = 50 // a small agent matters more than a fast collector
)

type runFlags struct {
	coordinator, stateDir, tokenFile, node, launch, root, logLevel, readyFile string
	cloud, metadata                                                           string
	runAsCaller                                                               bool
	reconnectMax, joinWithin                                                  time.Duration
}

func runCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use: "run", Short: "Run the agent",
		Long: "Run the agent until it is told to stop; jobs go on without it.\n\n" +
			"Every flag is also an environment variable: --state-dir is " + envPrefix + "STATE_DIR.\n" +
			"The join token is never a flag: give it in a file or as " + joinTokenEnv + ".",
		Args: exactly(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := daemon.FromEnvironment(cmd.Flags(), envPrefix, os.LookupEnv); err != nil {
				return usage(err, "")
			}
			return runAgent(cmd.Context(), f, cmd.ErrOrStderr())
		},
	}
	f.common(cmd.Flags())
	flags := cmd.Flags()
	flags.BoolVar(&f.runAsCaller, "run-as-caller", false, "run all jobs as the agent's own account, even root (development)")
	flags.StringVar(&f.cloud, "cloud", "", "the cloud whose instance this machine is ("+strings.Join(reclaim.Clouds(), ", ")+"): its word that it takes the machine back is heard")
	flags.StringVar(&f.metadata, "metadata", "", "URL of that cloud's metadata service (default: its address in all clouds)")
	flags.StringVar(&f.readyFile, "ready-file", "", "file to write once the first report went out")
	return cmd
}

// common are the flags of whatever joins a cluster.
func (f *runFlags) common(flags *pflag.FlagSet) {
	flags.StringVar(&f.coordinator, "coordinator", "", "address of the coordinator's agent port, host:port")
	flags.StringVar(&f.stateDir, "state-dir", defaultState, "directory of identity and runs")
	flags.StringVar(&f.tokenFile, "join-token-file", "", "file with the join token, for the first run")
	flags.StringVar(&f.node, "node", "", "name to join with (default: the host name)")
	flags.StringVar(&f.launch, "launch", "", "id of the launch that started this machine, for a join token that is bound to it")
	flags.StringVar(&f.root, "root", "/", "where the node's files are")
	flags.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
	flags.DurationVar(&f.reconnectMax, "reconnect-max", agent.DefaultReconnectMax, "longest wait between two tries to reach the coordinator; keep it below the node loss window")
	flags.DurationVar(&f.joinWithin, "join-within", 0, "give up, with an error, when the coordinator has not been reached for so long at the first start; 0 tries for ever")
}

// nodeName is the name to join with: the one that was given, or the host's.
func nodeName(given string) (string, error) {
	if given != "" {
		return given, nil
	}
	name, err := os.Hostname()
	if err != nil {
		return "", failed(fmt.Errorf("cannot read host name: %w", err), "give --node")
	}
	return name, nil
}

// checkName refuses another name than that of the certificate, which alone says who a node is.
func checkName(given string, id *identity.Identity, dir string) error {
	if given == "" || string(id.Node) == given {
		return nil
	}
	return failed(fmt.Errorf("cannot run as node %s: the identity in %s is that of node %s", given, dir, id.Node),
		"a copy of another node's disk? Remove that folder and join; or leave out --node")
}

// member is a node with its identity, and what holds its state directory.
type member struct {
	log     *slog.Logger
	id      *identity.Identity
	current agent.Renewal
	lock    *os.File
}

// enter checks the flags and joins the cluster. It returns nil without an error when it was told to stop meanwhile.
func (f *runFlags) enter(ctx context.Context, what string, errOut io.Writer) (*member, error) {
	log, err := daemon.Logger(errOut, f.logLevel, os.LookupEnv)
	if err != nil {
		return nil, usage(err, "")
	}
	if f.reconnectMax <= 0 {
		return nil, usage(fmt.Errorf("cannot %s: --reconnect-max %s is not a time to wait", what, f.reconnectMax), "leave it out for "+agent.DefaultReconnectMax.String())
	}
	if f.coordinator == "" {
		return nil, usage(fmt.Errorf("cannot %s: no coordinator is named", what), "give --coordinator host:port")
	}
	if err := checkRoot(f.root); err != nil {
		return nil, err
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	given := f.node
	if f.node, err = nodeName(given); err != nil {
		return nil, err
	}
	if f.readyFile != "" {
		if err := os.Remove(f.readyFile); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, failed(fmt.Errorf("cannot remove old ready file: %w", err), "")
		}
	}
	token, err := joinToken(f.tokenFile)
	if err != nil {
		return nil, err
	}
	join := agent.Join{Coordinator: f.coordinator, Dir: filepath.Join(f.stateDir, "identity"), Node: f.node, Launch: f.launch, Token: token, Log: log}
	if err := join.Check(); err != nil { // before anything is made on the disk
		return nil, failed(err, joinHint(err))
	}
	lock, err := lockState(f.stateDir)
	if err != nil {
		return nil, err
	}
	id, err := joinCluster(ctx, join, f.joinWithin)
	if err == nil {
		err = checkName(given, id, join.Dir)
	} else if ctx.Err() != nil {
		err = nil
	} else {
		err = failed(err, joinHint(err))
	}
	if err != nil || id == nil {
		return nil, errors.Join(err, lock.Close())
	}
	return &member{log: log, id: id, lock: lock, current: agent.Renewal{Current: identity.NewCurrent(join.Dir, id, time.Now), Join: join}}, nil
}

func runAgent(ctx context.Context, f runFlags, errOut io.Writer) error {
	m, err := f.enter(ctx, "run agent", errOut)
	if m == nil {
		return err
	}
	defer m.lock.Close()
	rt, err := runtime.NewProcess(runtime.ProcessOptions{Dir: f.stateDir, Log: m.log, RunsAsCaller: f.runAsCaller})
	if err != nil {
		return err
	}
	opts := f.options(m)
	opts.Runtime, opts.RunsAsCaller = rt, f.runAsCaller
	opts.Ready = func() { writeReady(f.readyFile, m.id.Node, m.log) }
	a, err := agent.New(opts)
	if err != nil {
		return err
	}
	watched := f.cloud != "" && slices.Contains(reclaim.Clouds(), f.cloud)
	if f.cloud != "" && !watched {
		m.log.Info("no notice is heard that the machine is taken back: its cloud gives none to the machine", "cloud", f.cloud)
	}
	m.log.Info("agent started", "node", m.id.Node, "state", f.stateDir, "version", version)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return rt.Run(ctx) })
	g.Go(func() error { return a.Run(ctx) })
	if watched {
		g.Go(func() error {
			return reclaim.Watch(ctx, reclaim.Options{Cloud: f.cloud, Endpoint: f.metadata, Log: m.log, Tell: func(n reclaim.Notice) { a.Reclaimed(n.At, n.Text) }})
		})
	}
	err = g.Wait()
	m.log.Info("agent stopped, jobs go on", "node", m.id.Node)
	return err
}

// options are those of any agent.
func (f *runFlags) options(m *member) agent.Options {
	return agent.Options{
		Coordinator: f.coordinator, TLS: m.current.ClientTLS(), Identity: m.current, Dir: f.stateDir, Root: f.root, Version: version,
		Share: f.share(), ReconnectMax: f.reconnectMax, Log: m.log,
	}
}

// joinCluster returns the node's identity, or joins. A machine that is paid for must not wait for ever for a coordinator that it cannot reach.
func joinCluster(ctx context.Context, join agent.Join, within time.Duration) (*identity.Identity, error) {
	if within <= 0 {
		return join.Identity(ctx)
	}
	limited, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	id, err := join.Identity(limited)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("cannot join cluster at %s within %s (--join-within): %w", join.Coordinator, within, err)
	}
	return id, err
}

// lockState keeps two agents off one state directory.
func lockState(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, failed(fmt.Errorf("cannot make state directory: %w", err), "give --state-dir")
	}
	path := filepath.Join(dir, "agent.lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, failed(fmt.Errorf("cannot open agent lock: %w", err), "")
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, failed(fmt.Errorf("cannot lock state directory %s: another agent uses it", dir), "")
	}
	return f, nil
}

// joinToken takes the token out of the environment at once: what starts later must not inherit it.
func joinToken(file string) (func() (string, error), error) {
	text := os.Getenv(joinTokenEnv)
	if err := os.Unsetenv(joinTokenEnv); err != nil {
		return nil, fmt.Errorf("cannot clear %s: %w", joinTokenEnv, err)
	}
	return func() (string, error) {
		if file == "" {
			return strings.TrimSpace(text), nil
		}
		f, err := os.Open(file)
		if err != nil {
			return "", fmt.Errorf("cannot read join token: %w", err)
		}
		defer f.Close()
		data, err := io.ReadAll(io.LimitReader(f, maxTokenFile))
		if err != nil {
			return "", fmt.Errorf("cannot read join token: %w", err)
		}
		return strings.TrimSpace(string(data)), nil
	}, nil
}

func joinHint(err error) string {
	if errors.Is(err, agent.ErrNoToken) {
		return "ask an administrator for a join token, then give --join-token-file or " + joinTokenEnv
	}
	var hinted interface{ Hint() string }
	if errors.As(err, &hinted) {
		return hinted.Hint()
	}
	return ""
}

// writeReady is for whoever started the agent; its name appears with its contents.
func writeReady(path, node string, log *slog.Logger) {
	if path == "" {
		return
	}
	tmp := path + ".tmp"
	err := os.WriteFile(tmp, fmt.Appendf(nil, "{\"node\":%q,\"pid\":%d}\n", node, os.Getpid()), 0o644)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		log.Warn("cannot write ready file", "error", err)
	}
}

// share is what a pilot's job was given of the machine; nil: the machine is the node.
func (f *runFlags) share() *hwinfo.Share {
	_, slurm := os.LookupEnv("SLURM_JOB_ID")
	_, pbs := os.LookupEnv("PBS_JOBID")
	if f.launch == "" || !slurm && !pbs {
		return nil
	}
	share := hwinfo.ShareOf(os.LookupEnv)
	return &share
}
