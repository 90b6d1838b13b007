package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"substrate/proto/apiv1"
)

const (
	readyWithin = time.Minute
	stopWithin  = 20 * time.Second
	maxAgents   = 16
)

// dev is a coordinator and agents on this machine.
type dev struct {
	app      *app
	dir      string
	keep     bool // the directory was given
	listen   string
	agents   int
	config   string // file, "" for one that fits this machine
	workflow string
	once     bool
	stopJobs bool // of a directory that is kept

	coordinator *child
	nodes       []*child
}

func (a *app) devCommand() *cobra.Command {
	d := &dev{app: a}
	cmd := &cobra.Command{
		Use: "dev", Short: "Run a coordinator and an agent on this machine until Ctrl-C", Args: cobra.NoArgs,
		Long: "Run a coordinator and an agent on this machine until Ctrl-C, for trying things out. Jobs run as you.\n" +
			"With --data-dir what is in the directory stays, and jobs that run go on without the daemons: the next run of\n" +
			"the same directory takes them up again. With --stop-jobs, or without --data-dir, they are cancelled at the end.\n" +
			"The programs substrate-coordinator and substrated must stand beside this one or in PATH.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if d.agents < 1 || d.agents > maxAgents {
				return usagef("--agents is from 1 to %d", maxAgents)
			}
			if d.once && d.workflow == "" {
				return usagef("--once needs --workflow")
			}
			return d.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&d.config, "config", "", "configuration to set (default: one definition that fits this machine)")
	f.StringVar(&d.dir, "data-dir", "", "keep everything here, jobs too (default: a temporary directory, removed at the end)")
	f.BoolVar(&d.stopJobs, "stop-jobs", false, "with --data-dir: cancel what runs at the end")
	f.StringVar(&d.workflow, "workflow", "", "workflow file to run first")
	f.StringVar(&d.listen, "listen", "127.0.0.1:7440", "address of the API; port 0 takes a free one")
	f.IntVar(&d.agents, "agents", 1, "how many agents to run")
	f.BoolVar(&d.once, "once", false, "stop after the workflow, with its result as exit code")
	return cmd
}

func (d *dev) run(ctx context.Context) (err error) {
	if err := d.prepare(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.cleanUp()) }()
	failed := make(chan error, d.agents+1)
	defer func() { err = errors.Join(err, d.stop(context.WithoutCancel(ctx))) }()
	if err := d.start(ctx, failed); err != nil {
		return interruptedOr(ctx, err)
	}
	if err := d.configure(ctx); err != nil {
		return interruptedOr(ctx, err)
	}
	if err := d.awaitNodes(ctx, failed); err != nil {
		return interruptedOr(ctx, err)
	}
	if d.workflow != "" {
		err := d.runWorkflow(ctx)
		if d.once || ctx.Err() != nil {
			return err
		}
		if err != nil {
			printError(d.app.errOut, err) // it stays up: this is the place to look into it
		}
	}
	d.howToGoOn()
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

func interruptedOr(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return interrupted()
	}
	return err
}

func (d *dev) prepare() (err error) {
	if d.dir == "" {
		if d.dir, err = os.MkdirTemp("", "substrate-dev-"); err != nil {
			return fmt.Errorf("cannot make a data directory: %w", err)
		}
		return nil
	}
	d.keep = true
	if d.dir, err = filepath.Abs(d.dir); err == nil {
		err = os.MkdirAll(d.dir, 0o700)
	}
	if err == nil {
		// An earlier run's file would say that the new coordinator is ready.
		if err = os.Remove(d.file("ready.json")); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("cannot prepare the data directory: %w", err)
	}
	return nil
}

func (d *dev) file(name string) string { return filepath.Join(d.dir, name) }

func (d *dev) cleanUp() error {
	if d.keep {
		return nil
	}
	if err := os.RemoveAll(d.dir); err != nil {
		return fmt.Errorf("cannot remove the data directory: %w", err)
	}
	return nil
}

// start brings the daemons up; what ends later on its own is told through failed.
func (d *dev) start(ctx context.Context, failed chan<- error) error {
	a := d.app
	coordinator, err := findProgram("substrate-coordinator")
	if err != nil {
		return err
	}
	agent, err := findProgram("substrated")
	if err != nil {
		return err
	}
	if d.ends() {
		becomeSubreaper()
	}
	d.coordinator, err = startChild("coordinator", d.file("coordinator.log"), failed, coordinator, "run",
		"--data-dir", d.dir, "--api-listen", d.listen, "--agent-listen", "127.0.0.1:0", "--dev")
	if err != nil {
		return err
	}
	var ready struct {
		API   string `json:"api"`
		Agent string `json:"agent"`
	}
	err = d.until(ctx, d.coordinator, "the coordinator", func() (bool, error) {
		data, err := os.ReadFile(d.file("ready.json"))
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		if err == nil {
			err = json.Unmarshal(data, &ready)
		}
		return err == nil, err
	})
	if err != nil {
		return d.portTaken(err)
	}
	token, err := a.readFile(d.file("admin.token"), maxToken)
	if err != nil {
		return err
	}
	if a.conn, err = dial(endpoint{server: ready.API, token: strings.TrimSpace(string(token))}); err != nil {
		return err
	}
	a.say("coordinator: %s", ready.API)
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("cannot read the host name: %w", err)
	}
	for i := range d.agents {
		name, dir := nodeName(host), "agent"
		if i > 0 {
			name, dir = fmt.Sprintf("%s-%d", name, i+1), fmt.Sprintf("agent-%d", i+1)
		}
		c, err := startChild(dir, d.file(dir+".log"), failed, agent, "run", "--coordinator", ready.Agent,
			"--join-token-file", d.file("join.token"), "--state-dir", d.file(dir), "--node", name, "--run-as-caller")
		if err != nil {
			return err
		}
		d.nodes = append(d.nodes, c)
	}
	return nil
}

// ends says that jobs do not outlive this program.
func (d *dev) ends() bool { return !d.keep || d.stopJobs }

// portTaken adds what to do about another program on the API's port.
func (d *dev) portTaken(err error) error {
	var f *failure
	if errors.As(err, &f) && f.hint == "" && strings.Contains(f.message, "address already in use") {
		f.hint = "another program, maybe another `substrate dev`, listens on " + d.listen + "; --listen 127.0.0.1:0 takes a free port"
	}
	return err
}

// nodeName makes a host name fit for a certificate.
func nodeName(host string) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-', r == '.':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, host)
	if name = strings.Trim(name, "-."); name == "" {
		return "this-machine"
	}
	return name
}

// until polls; it fails with the child's last words when the child ends or time is over.
func (d *dev) until(ctx context.Context, c *child, what string, done func() (bool, error)) error {
	deadline := d.app.now().Add(readyWithin)
	defer d.app.progress("waiting for " + what)()
	for {
		ok, err := done()
		if err != nil {
			return fmt.Errorf("cannot wait for %s: %w", what, err)
		}
		if ok {
			return nil
		}
		select {
		case <-c.ended:
			return c.failure()
		default:
		}
		if d.app.now().After(deadline) {
			return failf(exitUnavailable, "see "+c.log, "cannot wait for %s any longer than %s\n%s", what, readyWithin, tail(c.log))
		}
		if err := wait(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// configure sets the given or a fitting configuration; one that is kept in --data-dir stays.
func (d *dev) configure(ctx context.Context) error {
	a := d.app
	req := &apiv1.SetConfigRequest{File: d.config}
	if d.config == "" {
		s, err := get(ctx, a, "reading the status", (*connection).getStatus, &apiv1.GetStatusRequest{})
		if err != nil {
			return err
		}
		if s.GetConfigurationRevision() > 0 {
			a.say("configuration: revision %d of an earlier run", s.GetConfigurationRevision())
			return nil
		}
		req.File, req.Yaml = d.file("cluster.yaml"), thisMachine("/")
		if err := os.WriteFile(req.File, req.Yaml, 0o600); err != nil {
			return fmt.Errorf("cannot write the configuration: %w", err)
		}
	} else {
		var err error
		if req.Yaml, err = a.readFile(d.config, maxConfigBytes); err != nil {
			return err
		}
	}
	res, err := invoke(ctx, a, "setting the configuration", longCallTimeout, (*connection).setConfig, req)
	if err != nil {
		return err
	}
	printDiagnostics(a.errOut, res.GetDiagnostics())
	a.say("configuration: revision %d from %s", res.GetRevision().GetRevision(), req.GetFile())
	a.printUngranted(res.GetUngranted())
	return nil
}

// awaitNodes waits until the agents are ready; with a configuration of the user's, nodes that no
// definition takes are shown with their reason instead.
func (d *dev) awaitNodes(ctx context.Context, failed <-chan error) error {
	a := d.app
	err := d.until(ctx, d.nodes[0], counted(d.agents, "node"), func() (bool, error) {
		select {
		case err := <-failed:
			return false, err
		default:
		}
		r, err := get(ctx, a, "listing the nodes", (*connection).listNodes, &apiv1.ListNodesRequest{PageSize: 1000})
		if err != nil {
			return false, err
		}
		settled := 0
		for _, n := range r.GetNodes() {
			if n.GetStatus() == "ready" || (d.config != "" && n.GetConfigurationRevision() > 0 && n.GetDefinition() == "") {
				settled++
			}
		}
		return settled >= d.agents, nil
	})
	if err != nil {
		return err
	}
	a.say("")
	err = a.listNodes(ctx, "")
	a.flush()
	return err
}

// runWorkflow shows the workflow from its submission to its output.
func (d *dev) runWorkflow(ctx context.Context) error {
	a := d.app
	data, err := a.readFile(d.workflow, maxWorkflowBytes)
	if err != nil {
		return err
	}
	res, err := get(ctx, a, "starting the workflow", (*connection).startWorkflow, &apiv1.StartWorkflowRequest{Yaml: data, File: d.workflow})
	if err != nil {
		return err
	}
	id := res.GetWorkflow().GetId()
	a.say("\nworkflow %s (%s) is started", id, res.GetWorkflow().GetName())
	a.flush()
	outcome := a.watchWorkflow(ctx, id, false)
	if ctx.Err() != nil {
		return outcome
	}
	if err := d.report(ctx, id); err != nil {
		return err
	}
	return outcome
}

func (d *dev) report(ctx context.Context, id string) error {
	a := d.app
	w, err := a.workflow(ctx, id)
	if err != nil {
		return err
	}
	a.say("")
	if !a.terminal { // else it still stands there
		if err := a.showTable(a.jobTable(w, false)); err != nil {
			return err
		}
		a.say("")
	}
	if err := a.events(ctx, &apiv1.WatchEventsRequest{Workflow: id}); err != nil {
		return err
	}
	for _, j := range w.GetJobs() {
		if j.GetStarted() == nil {
			continue
		}
		a.say("\n--- output of %s", j.GetName())
		if err := a.readLog(ctx, &apiv1.ReadLogRequest{Workflow: id, Job: j.GetName()}); err != nil && exitCode(err) != exitNotFound {
			return err
		}
	}
	a.flush()
	return nil
}

func (d *dev) howToGoOn() {
	a := d.app
	a.say("\nIn another terminal:\n")
	a.say("  export SUBSTRATE_SERVER=%s", a.conn.server)
	a.say("  export SUBSTRATE_TOKEN=$(cat %s)", shellWord(d.file("admin.token")))
	a.say("  substrate node list")
	a.say("  substrate workflow start FILE --follow")
	a.say("  substrate cluster config get")
	logs := []string{d.coordinator.log}
	for _, n := range d.nodes {
		logs = append(logs, n.log)
	}
	a.say("\nLogs: %s.", strings.Join(logs, ", "))
	if d.ends() {
		a.say("Ctrl-C stops everything.")
	} else {
		a.say("Ctrl-C stops the coordinator and the agents. Jobs that run go on: cancel them before, or begin with --stop-jobs.")
	}
	a.flush()
}
