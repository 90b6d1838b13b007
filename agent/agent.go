// Package agent is what runs on every node: it tells the coordinator what the node is, which
// definitions' conditions hold on it, and runs what it is told to run. It never chooses work itself.
package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"substrate/agent/runtime"
	"substrate/hwinfo"
	"substrate/hwinfo/probe"
	"substrate/proto/agentv1"
)

const (
	backoffMin    = 200 * time.Millisecond
	stableAfter   = time.Minute
	pingEvery     = 10 * time.Second
	pingTimeout   = 10 * time.Second
	connectWithin = 20 * time.Second
	maxMessage    = 64 << 20 // of the coordinator: a configuration of ten thousand definitions is a few MiB
)

// DefaultReconnectMax is the longest wait between two tries to reach the coordinator, unless told.
const DefaultReconnectMax = 10 * time.Second

// Options are what an Agent needs. Coordinator, TLS, Dir, Runtime and Log must be set.
type Options struct {
	Coordinator string // host:port
	TLS         *tls.Config
	Dir         string // state directory, for the fence
	Root        string // where the node's files are; "" is /
	Version     string
	Runtime     runtime.Runtime
	// Runtimes are the names told to the coordinator; nil is "process".
	Runtimes     []string
	RunsAsCaller bool
	// ReconnectMax bounds the wait between two tries to reach the coordinator; 0 is DefaultReconnectMax. It
	// should stay below the node loss window, or a restarted coordinator gives up on a node too early.
	ReconnectMax time.Duration
	Log          *slog.Logger
	// Ask asks programs about the GPUs of the node below a root; nil asks those of this machine.
	Ask func(ctx context.Context, root string) (hwinfo.Answers, []hwinfo.Warning)
	// Share narrows what is reported to the part of the machine that this agent's job was given; nil: all of it is the node.
	Share *hwinfo.Share
	// Ready is called once, after the first hardware report went out. It may be nil.
	Ready func()
	// Identity is renewed while the agent runs; nil: TLS is all there is.
	Identity Renewable
	// Dial replaces the network in tests.
	Dial func(context.Context, string) (net.Conn, error)
	// Channel replaces network and encryption in simulations: it makes the connection of one stream.
	Channel func() (Channel, error)
	// Jitter picks a wait below a limit; nil leaves it to chance.
	Jitter func(limit time.Duration) time.Duration
}

// Channel is a connection to the coordinator; *grpc.ClientConn is one.
type Channel interface {
	grpc.ClientConnInterface
	io.Closer
}

// Agent keeps one stream to the coordinator and carries out its orders.
type Agent struct {
	opts  Options
	table *table
	node  *node
	fence *fence
	boot  string
	ready bool  // touched by one session at a time
	look  *look // nil: the node is for work
}

// New checks the options and reads the state directory. It starts nothing.
func New(opts Options) (*Agent, error) {
	if opts.Runtime == nil {
		return nil, errors.New("cannot make agent: a runtime is needed")
	}
	return prepare(opts)
}

// Reclaimed has the coordinator told that the machine is taken back at a time, zero for not any more. It may be called at any time, also before Run.
func (a *Agent) Reclaimed(at time.Time, text string) { a.node.taken(at, text) }

func prepare(opts Options) (*Agent, error) {
	switch {
	case opts.Coordinator == "":
		return nil, errors.New("cannot make agent: no coordinator address")
	case opts.TLS == nil:
		return nil, errors.New("cannot make agent: no TLS configuration")
	case opts.Log == nil || opts.Dir == "":
		return nil, errors.New("cannot make agent: log and state directory are needed")
	}
	if opts.Root == "" {
		opts.Root = "/"
	}
	if opts.ReconnectMax == 0 {
		opts.ReconnectMax = DefaultReconnectMax
	}
	if opts.Ask == nil {
		opts.Ask = new(probe.Asker).Ask
	}
	if opts.Runtimes == nil {
		opts.Runtimes = []string{"process"}
	}
	if opts.Jitter == nil {
		opts.Jitter = rand.N[time.Duration]
	}
	f, err := openFence(opts.Dir)
	if err != nil {
		return nil, err
	}
	outputs, _ := opts.Runtime.(runtime.Outputs)
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		opts.Log.Warn("cannot read boot id", "error", err)
	}
	return &Agent{
		opts: opts, table: newTable(outputs), node: newNode(opts.Root, opts.Share), fence: f, boot: strings.TrimSpace(string(boot)),
	}, nil
}

// Run serves until ctx ends, which is its only end without an error. Runs go on afterwards.
func (a *Agent) Run(ctx context.Context) error {
	defer a.fence.close()
	defer a.table.close()
	g, ctx := errgroup.WithContext(ctx)
	known, answered := make(chan struct{}), make(chan struct{})
	g.Go(func() error { return a.follow(ctx, known) })
	g.Go(func() error { a.node.ask(ctx, a.opts.Ask, answered); return nil })
	g.Go(func() error { a.node.evaluate(ctx); return nil })
	g.Go(func() error {
		a.node.readFirst(ctx, answered)
		select {
		case <-known:
		case <-ctx.Done():
			return nil
		}
		a.connectLoop(ctx)
		return nil
	})
	return g.Wait()
}

// follow brings the runtime's news to the table, and to the node what the runtime may not do on it.
// known is closed once all runs are in.
func (a *Agent) follow(ctx context.Context, known chan<- struct{}) error {
	warner, _ := a.opts.Runtime.(interface{ Warnings() []string })
	for first := true; ; first = false {
		batch, err := a.opts.Runtime.Updates(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("cannot follow runs: %w", err)
		}
		a.table.update(batch)
		if warner != nil {
			a.node.limited(warner.Warnings())
		}
		if first {
			close(known)
		}
	}
}

// connectLoop reconnects with full jitter: after an outage, ten thousand agents must not come at once.
func (a *Agent) connectLoop(ctx context.Context) {
	limit := min(backoffMin, a.opts.ReconnectMax)
	for {
		began := time.Now()
		err := a.ensure(ctx)
		if err == nil {
			err = a.session(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		if a.look != nil {
			a.look.refused(err)
		}
		if time.Since(began) >= stableAfter {
			limit = min(backoffMin, a.opts.ReconnectMax)
		}
		wait := a.opts.Jitter(limit)
		limit = min(2*limit, a.opts.ReconnectMax)
		attrs := []any{"coordinator", a.opts.Coordinator, "error", err, "retry", wait.Round(time.Millisecond)}
		var told interface{ Hint() string }
		if errors.As(err, &told) && told.Hint() != "" {
			attrs = append(attrs, "hint", told.Hint())
		}
		a.opts.Log.Warn("no stream to the coordinator", attrs...)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

func (a *Agent) dial() (Channel, error) {
	if a.opts.Channel != nil {
		return a.opts.Channel()
	}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(credentials.NewTLS(a.opts.TLS)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingEvery, Timeout: pingTimeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithDisableServiceConfig(),
	}
	if a.opts.Dial != nil {
		opts = append(opts, grpc.WithContextDialer(a.opts.Dial))
	}
	target := a.opts.Coordinator
	if !strings.Contains(target, ":///") {
		target = "passthrough:///" + target
	}
	return grpc.NewClient(target, opts...)
}

// session is one stream from its beginning to its end. Every goroutine of it has ended on return.
func (a *Agent) session(ctx context.Context) error {
	conn, err := a.dial()
	if err != nil {
		return fmt.Errorf("cannot reach coordinator: %w", err)
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// An address that drops packets must not hold the agent for the kernel's two minutes.
	slow := time.AfterFunc(connectWithin, cancel)
	defer slow.Stop()
	stream, err := agentv1.NewAgentClient(conn).Connect(ctx)
	if err != nil {
		return fmt.Errorf("cannot open stream: %w", plain(err))
	}
	hello := &agentv1.Hello{
		Version: a.opts.Version, BootId: a.boot, ConfigurationRevision: a.node.revision(),
		Runs: a.table.begin(), RunsAsCaller: a.opts.RunsAsCaller, Runtimes: a.opts.Runtimes, Discovers: a.look != nil,
	}
	if err := stream.Send(&agentv1.FromAgent{Message: &agentv1.FromAgent_Hello{Hello: hello}}); err != nil {
		_, err = stream.Recv() // the stream's own error says more
		return fmt.Errorf("cannot say hello: %w", plain(err))
	}
	first, err := stream.Recv()
	if err != nil {
		return fmt.Errorf("cannot hear the coordinator's welcome: %w", plain(err))
	}
	welcome := first.GetWelcome()
	if welcome == nil {
		return fmt.Errorf("cannot hear the coordinator's welcome: it began with %T", first.GetMessage())
	}
	if !slow.Stop() {
		return errors.New("cannot open stream: the coordinator is too slow")
	}
	if err := a.fence.cluster(welcome.GetClusterId()); err != nil {
		return err
	}
	if a.look != nil {
		if err := a.look.welcomed(welcome.GetLook()); err != nil {
			return err
		}
	}
	a.table.resume(welcome.GetOffsets())
	a.opts.Log.Info("connected", "coordinator", a.opts.Coordinator, "version", welcome.GetCoordinatorVersion())
	sent := a.node.unsent()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return a.receive(ctx, stream) })
	g.Go(func() error {
		err := a.send(ctx, stream, sent)
		if errors.Is(err, io.EOF) {
			return nil // the stream broke, and only Recv knows why
		}
		cancel() // or Recv waits for ever
		return err
	})
	if a.opts.Identity != nil {
		g.Go(func() error { return a.renew(ctx, agentv1.NewAgentClient(conn)) })
	}
	return g.Wait()
}
