package pbs

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/dispatch"
)

// asking tells whom commands run as, and that they are all there.
const asking = `id -un && printf '%s\n' "$HOME" || exit 2
for p in qsub qstat qdel qrls qalter qrerun qselect pbsnodes qmgr; do command -v $p >/dev/null || { echo "$p is missing" >&2; exit 1; }; done`

// New runs preflight: it reads the server's attributes and a listing, and unless it is read-only or has a cached answer submits a probe, which
// never runs. What it finds out holds for the life of the Backend.
func New(ctx context.Context, opt Options) (*Backend, error) {
	opt, err := opt.check()
	if err != nil {
		return nil, err
	}
	b := &Backend{opt: opt, report: dispatch.Report{Kind: "pbs", ReadOnly: opt.ReadOnly, At: opt.Clock.Now(), Settings: map[string]string{}}}
	p := &preflight{Backend: b}
	for _, part := range []func(context.Context) error{p.readAccount, p.checkClient, p.readServer, p.readListing, p.answer} {
		if err := part(ctx); err != nil {
			return nil, fmt.Errorf("cannot open the PBS complex: %w", err)
		}
	}
	return b, nil
}

// preflight is a backend in the making.
type preflight struct {
	*Backend
	server settings
	old    []record // probes that wait
}

// settings are the server's that count.
type settings struct {
	name    string
	values  map[string]string
	history time.Duration
	giveUp  time.Duration // of a lost node; 0: never
}

// step does one thing and notes how it went.
func (p *preflight) step(name string, do func() (detail string, err error)) error {
	begun := p.opt.Clock.Now()
	detail, err := do()
	s := dispatch.Step{Name: name, Outcome: dispatch.StepPassed, Detail: detail, Took: p.opt.Clock.Now().Sub(begun)}
	if err != nil {
		s.Outcome, s.Detail = dispatch.StepFailed, err.Error()
	}
	p.report.Steps = append(p.report.Steps, s)
	return err
}

func (p *preflight) skip(name, why string) {
	p.report.Steps = append(p.report.Steps, dispatch.Step{Name: name, Outcome: dispatch.StepSkipped, Detail: why})
}

func (p *preflight) readAccount(ctx context.Context) error {
	return p.step("account", func() (string, error) {
		r, err := p.read(ctx, "look at the account", "sh", "-c", asking)
		if err != nil {
			return "", err
		}
		lines := strings.SplitN(string(r.Stdout), "\n", 3)
		if len(lines) < 3 || lines[0] == "" || !strings.HasPrefix(lines[1], "/") {
			return "", fmt.Errorf("cannot look at the account: %w: name and home are %.200q", dispatch.ErrUnavailable, r.Stdout)
		}
		p.account = account{user: lines[0], home: lines[1]}
		if p.opt.User != "" {
			p.account.user = p.opt.User
		}
		p.report.Account = p.account.user
		if p.opt.OutputDir == "" {
			p.opt.OutputDir = path.Join(p.account.home, ".substrate", "output")
		}
		p.report.Settings["output.dir"] = p.opt.OutputDir
		return fmt.Sprintf("%s, home %s", p.account.user, p.account.home), nil
	})
}

// checkClient keeps other systems out whose commands have the same names.
func (p *preflight) checkClient(ctx context.Context) error {
	return p.step("qstat --version", func() (string, error) {
		r, err := p.read(ctx, "ask for the version", "qstat", "--version")
		if err != nil && r.Exit < 0 {
			return "", err
		}
		version, ok := strings.CutPrefix(strings.TrimSpace(string(r.Stdout)), "pbs_version = ")
		if !ok || strings.ContainsAny(version, "\n") {
			return "", coordinator.Errorf(coordinator.ErrUnsupported, "use these commands", "%w: qstat --version says %.100q, which is neither OpenPBS nor PBS Professional",
				dispatch.ErrUnsupported, firstLines(string(r.Stdout)+string(r.Stderr)))
		}
		p.report.Version = version
		return version, nil
	})
}

// wanted are the attributes of the server that count.
func wanted() []string {
	return []string{"job_history_enable", "job_history_duration", "node_fail_requeue", "scheduling", "query_other_jobs", "managers", "operators"}
}

func (p *preflight) readServer(ctx context.Context) error {
	return p.step("qmgr list server", func() (string, error) {
		r, err := p.read(ctx, "read the server's attributes", "qmgr", "-c", "list server "+strings.Join(wanted(), ","))
		if err != nil {
			return "", err
		}
		name, values, err := parseServer(string(r.Stdout))
		if err != nil {
			return "", fmt.Errorf("cannot read the server's attributes: %w: %w", dispatch.ErrUnavailable, err)
		}
		p.server = settings{name: name, values: values, history: historyDefault, giveUp: giveUp}
		p.report.Cluster = name
		for _, key := range wanted() {
			p.report.Settings[key] = values[key]
		}
		if values["job_history_enable"] != "True" {
			return "", coordinator.Errorf(coordinator.ErrUnsupported, "use the server "+name,
				"%w: it forgets what has finished at once (job_history_enable), so nobody can tell success from failure", dispatch.ErrUnsupported).
				WithHint("its manager can change that: qmgr -c 'set server job_history_enable = True'")
		}
		if text := values["job_history_duration"]; text != "" {
			if p.server.history, err = parseDuration(text); err != nil || p.server.history <= 0 {
				return "", fmt.Errorf("cannot read job_history_duration: %w: it is %.40q", dispatch.ErrUnavailable, text)
			}
		}
		if text := values["node_fail_requeue"]; text != "" {
			p.server.giveUp = time.Duration(max(number(text, 0), 0)) * time.Second
		}
		if values["scheduling"] == "False" {
			p.opt.Log.Warn("the server does not schedule now", "server", name)
		}
		return fmt.Sprintf("%s keeps finished jobs for %s", name, p.server.history), nil
	})
}

// parseServer reads qmgr's list: the object's name, and "    key = value" for each attribute that is set.
func parseServer(out string) (name string, values map[string]string, err error) {
	values = map[string]string{}
	for line := range strings.Lines(out) {
		line = strings.TrimRight(line, " \r\n")
		key, value, is := strings.Cut(line, " = ")
		switch {
		case line == "":
		case is && strings.HasPrefix(key, "    ") && !strings.HasPrefix(key, "     "):
			if _, twice := values[strings.TrimSpace(key)]; twice {
				return "", nil, fmt.Errorf("%.40q stands twice", strings.TrimSpace(key))
			}
			values[strings.TrimSpace(key)] = value
		case name == "" && strings.HasPrefix(line, "Server "):
			name = strings.TrimPrefix(line, "Server ")
		case name != "" && (line[0] == '\t' || line[0] == ' '): // a long value goes on
		default:
			return "", nil, fmt.Errorf("the line %.60q is none of a list", line)
		}
	}
	if name == "" || !plain(name) {
		return "", nil, errors.New("it names no server")
	}
	return name, values, nil
}

// readListing shows that listings can be read here, and finds probes that were left behind.
func (p *preflight) readListing(ctx context.Context) error {
	return p.step("qstat -x -f", func() (string, error) {
		jobs := 0
		list, err := p.all(ctx, "list the jobs", func(r *record) bool {
			jobs++
			m := unmark(r.mark)
			return r.user() == p.account.user && m.ref.Job == probeJob
		}, nil)
		if err != nil {
			return "", err
		}
		for _, r := range list {
			if state, _ := judge(&r, nobody); state == dispatch.StatePending && p.opt.Clock.Now().Sub(parseTime(r.created)) > oldProbe {
				p.old = append(p.old, r)
			}
		}
		return fmt.Sprintf("%d jobs", jobs), nil
	})
}

// answer fixes what is said of the complex, by a probe where that is allowed and needed.
func (p *preflight) answer(ctx context.Context) error {
	id := identity{Server: p.server.name, Version: p.report.Version, User: p.account.user,
		Rights: p.server.values["managers"] + ";" + p.server.values["operators"]}
	cached, err := load(p.opt.CacheDir, id)
	if err != nil {
		p.opt.Log.Warn("the cached probe is not used", "error", err)
	}
	now := p.opt.Clock.Now()
	switch {
	case p.opt.ReadOnly && cached == nil:
		none := dispatch.Support{Answer: dispatch.Unknown, Source: dispatch.Probed, Reason: "read-only, and no cached probe"}
		p.answers.hold, p.answers.requeue = none, none
		p.skip("probe", none.Reason)
	case p.opt.ReadOnly, cached != nil && !p.opt.Reprobe && now.Sub(cached.At).Abs() < cacheAge:
		p.answers.hold, p.answers.requeue = cached.Hold, cached.Requeue
		p.report.Cached, p.report.At = true, cached.At
		p.skip("probe", "cached, of "+cached.At.UTC().Format(time.RFC3339))
	default:
		lasting, err := p.probe(ctx)
		if err != nil {
			return err
		}
		if lasting {
			err := save(p.opt.CacheDir, probed{Format: cacheFormat, Identity: id, At: now, Hold: p.answers.hold, Requeue: p.answers.requeue})
			if err != nil {
				p.opt.Log.Warn("the next start will probe again", "error", err)
			}
		}
	}
	p.answers.declared = p.opt.declare(p.server)
	return nil
}

// passing reports whether an error may be gone the next time.
func passing(err error) bool {
	return errors.Is(err, dispatch.ErrUnavailable) || errors.Is(err, dispatch.ErrOutcomeUnknown) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
