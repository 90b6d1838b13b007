package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"substrate/strictyaml"
)

// app is one run of the program: its streams, its environment and the flags every command has.
type app struct {
	ctx      context.Context // over when the program is told to end
	in       io.Reader
	out      io.Writer
	errOut   io.Writer
	env      func(string) string
	terminal bool // out is one
	now      func() time.Time
	every    time.Duration // of polling

	server, context, tokenFile, ca string
	output                         string
	quiet                          bool

	started bool // the command line was understood
	conn    *connection
	reached atomic.Bool // the coordinator answered once
	mu      sync.Mutex  // out, where several goroutines write
}

// run is the program without the process: it returns the exit code.
func run(args []string, in io.Reader, out, errOut io.Writer, env func(string) string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	buffered := bufio.NewWriter(out)
	a := &app{
		ctx: ctx, in: in, out: buffered, errOut: errOut, env: env, terminal: isTerminal(out), now: time.Now, every: time.Second,
	}
	defer a.close()
	root := a.root()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(a.out)
	root.SetErr(errOut)
	cmd, err := root.ExecuteContextC(ctx)
	if flushErr := buffered.Flush(); err == nil && flushErr != nil && !errors.Is(flushErr, syscall.EPIPE) {
		err = fmt.Errorf("cannot write the answer: %w", flushErr)
	}
	if err == nil {
		return exitOK
	}
	if !a.started {
		err = asUsage(err)
	}
	var f *failure
	if errors.As(err, &f) && f.code == exitUsage && f.hint == seeHelp && cmd.HasParent() {
		f.hint = "see `" + cmd.CommandPath() + " --help`"
	}
	err = a.nearest(ctx, cmd, err)
	printError(errOut, err)
	return exitCode(err)
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "substrate",
		Short:         "Nodes, queue and workflows of a Substrate cluster",
		Version:       version,
		SilenceErrors: true, SilenceUsage: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains(outputs(), a.output) {
				return usagef("unknown output %q, expected one of %s", a.output, strings.Join(outputs(), ", "))
			}
			a.started = true
			return nil
		},
	}
	f := root.PersistentFlags()
	f.StringVar(&a.server, "server", "", "coordinator: http://127.0.0.1:7440, https://HOST[:PORT] or HOST:PORT (SUBSTRATE_SERVER)")
	f.StringVar(&a.context, "context", "", "use this saved context instead of the current one")
	f.StringVar(&a.tokenFile, "token-file", "", "file that holds the token (else SUBSTRATE_TOKEN, else the context's)")
	f.StringVar(&a.ca, "ca", "", "PEM file of the authority that signed the coordinator's certificate (SUBSTRATE_CA)")
	f.StringVarP(&a.output, "output", "o", "table", "table, wide, json, yaml or name")
	f.BoolVarP(&a.quiet, "quiet", "q", false, "print ids only")
	_ = root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(outputs(), cobra.ShellCompDirectiveNoFileComp))
	_ = root.RegisterFlagCompletionFunc("context", a.completion(func(ctx context.Context, a *app, _ []string) ([]cobra.Completion, error) {
		return contextsOf(ctx, a, nil)
	}))
	_ = root.MarkPersistentFlagFilename("ca", "pem", "crt")
	_ = root.MarkPersistentFlagFilename("token-file")
	root.AddCommand(
		a.devCommand(), a.loginCommand(), a.logoutCommand(), a.contextCommand(),
		a.clusterCommand(), a.nodeCommand(), a.backendCommand(), a.workflowCommand(), a.queueCommand(), a.capacityCommand(), a.simulateCommand(),
		a.reservationCommand(), a.maintenanceCommand(),
		a.organizationCommand(), a.groupCommand(), a.userCommand(), a.grantCommand(), a.policyCommand(), a.auditCommand(), a.whoamiCommand(), a.versionCommand(),
	)
	for _, c := range root.Commands() {
		argumentsByName(c)
		groupsNeedVerbs(c)
	}
	a.completeArguments(root)
	root.SetFlagErrorFunc(flagError)
	return root
}

// flagError names the nearest flag that the command has.
func flagError(c *cobra.Command, err error) error {
	hint := "see `" + c.CommandPath() + " --help`"
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		var names []string
		c.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, "--"+f.Name) })
		if len(unknown.GetSpecifiedName()) > 1 { // one letter is near to every other
			hint = didYouMean("--"+unknown.GetSpecifiedName(), names, hint)
		}
	}
	var bad *pflag.InvalidValueError
	if errors.As(err, &bad) {
		var number *strconv.NumError
		if why := bad.Unwrap(); errors.As(why, &number) {
			return failf(exitUsage, hint, "cannot run %s: --%s takes %s, got %q", c.CommandPath(), bad.GetFlag().Name,
				numberOf(bad.GetFlag().Value.Type()), bad.GetValue())
		}
	}
	return failf(exitUsage, hint, "cannot run %s: %v", c.CommandPath(), err)
}

// numberOf says in words what a flag's type holds.
func numberOf(kind string) string {
	switch kind {
	case "bool":
		return "true or false"
	case "uint32":
		return fmt.Sprintf("a whole number from 0 to %d", uint32(math.MaxUint32))
	case "uint64":
		return fmt.Sprintf("a whole number from 0 to %d", uint64(math.MaxUint64))
	case "int32":
		return fmt.Sprintf("a whole number from %d to %d", math.MinInt32, math.MaxInt32)
	}
	return "a whole number"
}

// didYouMean is a hint that names the nearest of words before the rest, if one is near.
func didYouMean(word string, words []string, rest string) string {
	near := strictyaml.Nearest(word, words, 1)
	if len(near) == 0 {
		return rest
	}
	if rest != "" {
		rest = " " + strings.ToUpper(rest[:1]) + rest[1:]
	}
	return "did you mean " + near[0] + "?" + rest
}

// groupsNeedVerbs makes `substrate node` and `substrate node nonsense` usage errors instead of silent help.
func groupsNeedVerbs(c *cobra.Command) {
	for _, sub := range c.Commands() {
		groupsNeedVerbs(sub)
	}
	if c.HasSubCommands() && !c.Runnable() {
		c.Args = cobra.ArbitraryArgs
		c.RunE = func(cmd *cobra.Command, args []string) error {
			var verbs []string
			for _, sub := range cmd.Commands() {
				if sub.IsAvailableCommand() {
					verbs = append(verbs, sub.Name())
				}
			}
			hint := "see `" + cmd.CommandPath() + " --help`"
			if len(args) > 0 {
				return failf(exitUsage, didYouMean(args[0], verbs, hint), "unknown command %q for %q, expected one of %s",
					args[0], cmd.CommandPath(), strings.Join(verbs, ", "))
			}
			return failf(exitUsage, hint, "%q needs one of %s", cmd.CommandPath(), strings.Join(verbs, ", "))
		}
	}
}

// argumentsByName makes a wrong number of arguments say which are expected.
func argumentsByName(c *cobra.Command) {
	for _, sub := range c.Commands() {
		argumentsByName(sub)
	}
	check := c.Args
	if check == nil {
		return
	}
	c.Args = func(cmd *cobra.Command, args []string) error {
		if check(cmd, args) == nil {
			return nil
		}
		_, expected, _ := strings.Cut(cmd.Use, " ")
		if expected == "" {
			expected = "no arguments"
		}
		return failf(exitUsage, "see `"+cmd.CommandPath()+" --help`", "cannot run %s: expected %s, got %s",
			cmd.CommandPath(), expected, counted(len(args), "argument"))
	}
}

func (a *app) close() {
	if a.conn != nil {
		_ = a.conn.Close() // nothing is in flight
	}
}

// flush shows what was written so far.
func (a *app) flush() {
	if b, ok := a.out.(*bufio.Writer); ok {
		_ = b.Flush() // a closed pipe shows at the last flush
	}
}

// say writes one line for a person; --quiet leaves it out.
func (a *app) say(format string, args ...any) {
	if a.quiet {
		return
	}
	fmt.Fprintf(a.out, format+"\n", args...)
}

// warn writes one line to standard error.
func (a *app) warn(format string, args ...any) {
	fmt.Fprintf(a.errOut, format+"\n", args...)
}

// readFile reads FILE, "-" being standard input; most bounds it. A pipe that nobody writes to does not keep the
// program from being interrupted.
func (a *app) readFile(name string, most int64) ([]byte, error) {
	type answer struct {
		data []byte
		err  error
	}
	done := make(chan answer, 1)
	go func() { // ends with the program, at the latest
		data, err := readBounded(a.in, name, most)
		done <- answer{data, err}
	}()
	select {
	case r := <-done:
		return r.data, r.err
	case <-a.ctx.Done():
		return nil, fmt.Errorf("cannot read %s: interrupted", fileName(name))
	}
}

func readBounded(r io.Reader, name string, most int64) ([]byte, error) {
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("cannot read %s: %w", name, errors.Unwrap(err))
		}
		defer f.Close()
		r = f
	}
	data, err := io.ReadAll(io.LimitReader(r, most+1))
	if err != nil {
		var path *fs.PathError
		if errors.As(err, &path) {
			err = path.Err // the name is said already
		}
		return nil, fmt.Errorf("cannot read %s: %w", fileName(name), err)
	}
	if int64(len(data)) > most {
		return nil, fmt.Errorf("cannot read %s: it is larger than %s", fileName(name), size(uint64(most)))
	}
	return data, nil
}

// fileName is what findings call FILE.
func fileName(name string) string {
	if name == "-" {
		return "standard input"
	}
	return name
}

// wait sleeps unless the context ends first.
func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
