package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"substrate/cmd/internal/private"
	"substrate/proto/apiv1"
)

// contexts is the file of saved log-ins. It holds tokens: 0600, and never read otherwise.
type contexts struct {
	Current  string         `yaml:"current"`
	Contexts []savedContext `yaml:"contexts"`
}

type savedContext struct {
	Name   string `yaml:"name"`
	Server string `yaml:"server"`
	Token  string `yaml:"token,omitempty"`
	CA     string `yaml:"ca,omitempty"` // PEM
}

func (a *app) contextsFile() (string, error) {
	dir := a.env("XDG_CONFIG_HOME")
	if dir == "" {
		home := a.env("HOME")
		if home == "" {
			return "", failf(exitFailed, "set HOME or XDG_CONFIG_HOME", "cannot find the contexts: no home directory")
		}
		dir = filepath.Join(home, ".config")
	}
	return filepath.Join(dir, "substrate", "contexts.yaml"), nil
}

func (a *app) loadContexts() (contexts, error) {
	var c contexts
	name, err := a.contextsFile()
	if err != nil {
		return c, err
	}
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	} else if err != nil {
		return c, fmt.Errorf("cannot read the contexts: %w", err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return c, fmt.Errorf("cannot read the contexts: %w", err)
	} else if info.Mode().Perm()&0o077 != 0 {
		return c, failf(exitFailed, "chmod 600 "+name, "cannot read the contexts: %s holds tokens and others may read it (mode %04o)", name, info.Mode().Perm())
	}
	data, err := io.ReadAll(io.LimitReader(f, 1<<20))
	if err != nil {
		return c, fmt.Errorf("cannot read the contexts: %w", err)
	}
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(&c); err != nil && !errors.Is(err, io.EOF) {
		return c, fmt.Errorf("cannot read the contexts in %s: %w", name, err)
	}
	return c, nil
}

// saveContexts replaces the file at once, so that a crash leaves the old or the new one.
func (a *app) saveContexts(c contexts) error {
	name, err := a.contextsFile()
	if err != nil {
		return err
	}
	data, err := yaml.Marshal(c)
	if err != nil {
		return fmt.Errorf("cannot write the contexts: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return fmt.Errorf("cannot write the contexts: %w", err)
	}
	return private.Write(name, data)
}

// savedContext is the one of --context, else the current one.
func (a *app) savedContext() (savedContext, error) {
	all, err := a.loadContexts()
	if err != nil {
		return savedContext{}, err
	}
	name := a.context
	if name == "" {
		name = all.Current
	}
	i := slices.IndexFunc(all.Contexts, func(c savedContext) bool { return c.Name == name })
	switch {
	case name == "":
		return savedContext{}, failf(exitUsage, "run `substrate login SERVER`, or set SUBSTRATE_SERVER and SUBSTRATE_TOKEN", "cannot reach a coordinator: no server is given")
	case i < 0:
		return savedContext{}, failf(exitNotFound, "see `substrate context list`", "cannot use context %q: there is none of this name", name)
	}
	return all.Contexts[i], nil
}

// contextFor is the saved context whose token may go to a server: the one of --context, the current one, or
// the only other one of this server. Empty when there is none; server "" is whatever the context says.
func (a *app) contextFor(server string) (savedContext, error) {
	if server == "" || a.context != "" {
		c, err := a.savedContext()
		if server != "" && !sameServer(server, c.Server) {
			c = savedContext{}
		}
		return c, err
	}
	if _, err := a.contextsFile(); err != nil {
		return savedContext{}, nil // no home, no contexts
	}
	all, err := a.loadContexts()
	if err != nil {
		return savedContext{}, err
	}
	var fitting []savedContext
	for _, c := range all.Contexts {
		if !sameServer(server, c.Server) {
			continue
		}
		if c.Name == all.Current {
			return c, nil
		}
		fitting = append(fitting, c)
	}
	if len(fitting) > 1 {
		return savedContext{}, failf(exitUsage, "name one with --context", "cannot choose between %d contexts of %s", len(fitting), server)
	} else if len(fitting) == 1 {
		return fitting[0], nil
	}
	return savedContext{}, nil
}

func (a *app) loginCommand() *cobra.Command {
	var name string
	var browser bool
	cmd := &cobra.Command{
		Use:   "login [SERVER]",
		Short: "Save server and token as a context and use it",
		Long: "Save server and token as a context and use it. The token comes from --token-file, SUBSTRATE_TOKEN or standard input;\n" +
			"it is tried before it is saved. With --browser the cluster's identity provider says who you are.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				a.server = args[0]
			}
			if a.server == "" && a.env("SUBSTRATE_SERVER") == "" {
				return usagef("login needs a SERVER")
			}
			return a.login(cmd, name, browser)
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "name of the context (default: the server's host and port)")
	cmd.Flags().BoolVar(&browser, "browser", false, "log in at the cluster's identity provider, with a code that is typed into a browser")
	return cmd
}

func (a *app) login(cmd *cobra.Command, name string, browser bool) error {
	if a.server == "" {
		a.server = a.env("SUBSTRATE_SERVER")
	}
	e, err := a.newLogin()
	if err != nil {
		return err
	}
	if browser {
		if a.conn, err = dial(endpoint{server: e.server, ca: e.ca}); err != nil {
			return err
		}
		if e.token, err = a.tokenByBrowser(cmd.Context()); err != nil {
			return err
		}
	}
	if e.token == "" {
		if e.token, err = a.askToken(cmd.Context()); err != nil {
			return err
		}
	}
	target, _, err := address(e.server)
	if err != nil {
		return err
	}
	if name == "" {
		name = target
	}
	if a.conn, err = dial(e); err != nil {
		return err
	}
	me, err := get(cmd.Context(), a, "logging in", (*connection).whoAmI, &apiv1.WhoAmIRequest{})
	if err != nil {
		return err
	}
	all, err := a.loadContexts()
	if err != nil {
		return err
	}
	all.Contexts = slices.DeleteFunc(all.Contexts, func(c savedContext) bool { return c.Name == name })
	all.Contexts = append(all.Contexts, savedContext{Name: name, Server: e.server, Token: e.token, CA: e.ca})
	slices.SortFunc(all.Contexts, func(x, y savedContext) int { return strings.Compare(x.Name, y.Name) })
	all.Current = name
	if err := a.saveContexts(all); err != nil {
		return err
	}
	a.say("logged in to %s as %s of organization %s, context %q", e.server, me.GetUser().GetName(), me.GetOrganization().GetName(), name)
	return nil
}

// newLogin is where to log in. An earlier log-in of the same server lends its authority, never its token.
func (a *app) newLogin() (endpoint, error) {
	token, err := a.givenToken()
	if err != nil {
		return endpoint{}, err
	}
	e := endpoint{server: a.server, token: token}
	if e.ca, err = a.givenCA(); err != nil || e.ca != "" {
		return e, err
	}
	all, err := a.loadContexts()
	if err != nil {
		return e, err
	}
	for _, c := range all.Contexts {
		if e.ca == "" && sameServer(c.Server, e.server) {
			e.ca = c.CA
		}
	}
	return e, nil
}

// askToken reads one line, without echo from a terminal.
func (a *app) askToken(ctx context.Context) (string, error) {
	if isTerminalIn(a.in) {
		fmt.Fprint(a.errOut, "Token: ")
		restore := noEcho(a.in)
		defer func() { restore(); fmt.Fprintln(a.errOut) }()
	}
	type answer struct {
		line string
		err  error
	}
	answers := make(chan answer, 1)
	go func() { // a read from a terminal cannot be interrupted; the process ends soon after
		line, err := readLine(a.in, maxToken)
		answers <- answer{line, err}
	}()
	var line string
	var err error
	select {
	case got := <-answers:
		line, err = got.line, got.err
	case <-ctx.Done():
		return "", interrupted()
	}
	if err != nil {
		return "", fmt.Errorf("cannot read the token: %w", err)
	}
	if line == "" {
		return "", failf(exitUsage, "give --token-file or SUBSTRATE_TOKEN, or type it", "cannot log in: no token")
	}
	return line, nil
}

func readLine(r io.Reader, most int) (string, error) {
	var line []byte
	var one [1]byte
	for len(line) < most {
		n, err := r.Read(one[:])
		if n == 1 && one[0] == '\n' {
			break
		}
		line = append(line, one[:n]...)
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return "", err
		}
	}
	return strings.TrimSpace(string(line)), nil
}

func (a *app) logoutCommand() *cobra.Command {
	return &cobra.Command{
		Use: "logout", Short: "Forget the current context and its token", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			c, err := a.savedContext()
			if err != nil {
				return err
			}
			all, err := a.loadContexts()
			if err != nil {
				return err
			}
			all.Contexts = slices.DeleteFunc(all.Contexts, func(x savedContext) bool { return x.Name == c.Name })
			if all.Current == c.Name {
				all.Current = ""
			}
			if err := a.saveContexts(all); err != nil {
				return err
			}
			a.say("forgot context %q; its token stays valid on the coordinator: tokens cannot be revoked yet", c.Name)
			return nil
		},
	}
}

func (a *app) contextCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "context", Short: "Saved servers and tokens"}
	cmd.AddCommand(&cobra.Command{
		Use: "list", Short: "Show the saved contexts", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return a.listContexts() },
	}, &cobra.Command{
		Use: "use NAME", Short: "Make a saved context the current one", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			a.context = args[0]
			if _, err := a.savedContext(); err != nil {
				return err
			}
			all, err := a.loadContexts()
			if err != nil {
				return err
			}
			all.Current = args[0]
			if err := a.saveContexts(all); err != nil {
				return err
			}
			a.say("context %q is current", args[0])
			return nil
		},
	})
	return cmd
}

func (a *app) listContexts() error {
	all, err := a.loadContexts()
	if err != nil {
		return err
	}
	t := table{head: []string{"CURRENT", "NAME", "SERVER"}}
	plain := make([]map[string]any, 0, len(all.Contexts))
	for _, c := range all.Contexts {
		mark := ""
		if c.Name == all.Current {
			mark = "*"
		}
		t.add(c.Name, mark, c.Name, c.Server)
		plain = append(plain, map[string]any{"name": c.Name, "server": c.Server, "current": c.Name == all.Current}) // never the token
	}
	return a.showValue(plain, t)
}
