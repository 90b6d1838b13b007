package slurm

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/dispatch"
	"substrate/coordinator/dispatch/transport"
)

const (
	// oldest is the first release that has everything which is used here; newest the last whose answers are among the tests.
	oldest, newest = 2108, 2605
	// goodRead is how long reading the configuration may take before its clock counts as badly measured; it is then read again, at most
	// clockReads times in all.
	goodRead   = 2 * time.Second
	clockReads = 3
)

// configuring reads the configuration between two looks at the client's clock, which is where credentials are dated.
const configuring = `date +%s.%N; scontrol show config; r=$?; date +%s.%N; exit $r`

// asking tells whom commands run as, and that they are all there.
const asking = `id -un && printf '%s\n' "$HOME" || exit 2
for p in sbatch scontrol squeue scancel sinfo sacct; do command -v $p >/dev/null || { echo "$p is missing" >&2; exit 1; }; done`

// New runs preflight: it reads the configuration, and unless it is read-only or has a cached answer submits a probe, which never runs.
// What it finds out holds for the life of the Backend.
func New(ctx context.Context, opt Options) (*Backend, error) {
	opt, err := opt.check()
	if err != nil {
		return nil, err
	}
	b := &Backend{opt: opt, report: dispatch.Report{Kind: "slurm", ReadOnly: opt.ReadOnly, At: opt.Clock.Now(), Settings: map[string]string{}}}
	p := &preflight{Backend: b}
	for _, part := range []func(context.Context) error{p.readConfiguration, p.checkVersion, p.readAccount, p.ping, p.answer} {
		if err := part(ctx); err != nil {
			return nil, fmt.Errorf("cannot open the Slurm cluster: %w", err)
		}
	}
	return b, nil
}

// preflight is a backend in the making.
type preflight struct {
	*Backend
	config configuration
	skew   time.Duration // measured
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

func (p *preflight) readConfiguration(ctx context.Context) error {
	return p.step("scontrol show config", func() (string, error) {
		for read := 1; ; read++ {
			r, err := p.read(ctx, "read the configuration", "sh", "-c", configuring)
			if err != nil {
				return "", err
			}
			before, after, text, err := splitClocks(string(r.Stdout))
			if err == nil {
				p.config, err = parseConfig(text)
			}
			if err != nil {
				return "", fmt.Errorf("%w: %w", dispatch.ErrUnavailable, err)
			}
			skew := skewOf(before, after, p.config.asOf)
			if read == 1 || skew < p.skew {
				p.skew = skew
			}
			if after.Sub(before) <= goodRead || read == clockReads {
				break
			}
		}
		v := p.config.values
		p.report.Cluster, p.report.Version = v["ClusterName"], v["SLURM_VERSION"]
		for _, name := range []string{"AuthType", "AuthInfo", "SlurmdTimeout", "MinJobAge", "MessageTimeout", "KillWait", "AccountingStorageType", "AccountingStoreFlags",
			"SlurmctldHost[0]"} {
			p.report.Settings[name] = v[name]
		}
		return fmt.Sprintf("%s, Slurm %s, %s; clocks differ by at most %s", v["ClusterName"], v["SLURM_VERSION"], v["AuthType"], p.skew.Round(time.Millisecond)), nil
	})
}

// splitClocks takes off the first and the last line, which are the client's time.
func splitClocks(out string) (before, after time.Time, text string, err error) {
	first, rest, ok := strings.Cut(out, "\n")
	rest = strings.TrimSuffix(rest, "\n")
	i := strings.LastIndexByte(rest, '\n')
	if !ok || i < 0 {
		return before, after, "", fmt.Errorf("the configuration is not whole")
	}
	if before, err = parseNanos(first); err == nil {
		after, err = parseNanos(rest[i+1:])
	}
	return before, after, rest[:i+1], err
}

// parseNanos reads seconds with nine decimals.
func parseNanos(text string) (time.Time, error) {
	whole, part, ok := strings.Cut(text, ".")
	s, err1 := strconv.ParseInt(whole, 10, 40)
	ns, err2 := strconv.ParseUint(part, 10, 30)
	if !ok || len(part) != 9 || err1 != nil || err2 != nil || s < 0 {
		return time.Time{}, fmt.Errorf("%.40q is no time of a clock", text)
	}
	return time.Unix(s, int64(ns)), nil
}

// skewOf is the most that two clocks can differ by when one showed a whole second between two looks at the other.
func skewOf(before, after, shown time.Time) time.Duration {
	return max(shown.Add(time.Second).Sub(before).Abs(), shown.Sub(after).Abs())
}

func (p *preflight) checkVersion(context.Context) error {
	return p.step("version", func() (string, error) {
		v, err := p.config.version()
		switch {
		case err != nil:
			return "", err
		case v < oldest:
			return "", coordinator.Errorf(coordinator.ErrUnsupported, "use Slurm "+p.report.Version, "%w: the oldest release that has what is needed is 21.08", dispatch.ErrUnsupported)
		case v > newest:
			return "newer than any that was tried", nil
		}
		return p.report.Version, nil
	})
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
		p.report.Account = p.account.user
		if p.opt.OutputDir == "" {
			p.opt.OutputDir = path.Join(p.account.home, ".substrate", "output")
		}
		p.report.Settings["output.dir"] = p.opt.OutputDir
		return fmt.Sprintf("%s, home %s", p.account.user, p.account.home), nil
	})
}

// ping tells which controllers answer; that one does has been seen.
func (p *preflight) ping(ctx context.Context) error {
	err := p.step("scontrol ping", func() (string, error) {
		r, err := p.read(ctx, "ask for the controllers", "scontrol", "ping")
		return strings.Join(strings.Fields(string(r.Stdout)), " "), err
	})
	return ctxOnly(ctx, err)
}

// ctxOnly passes an error on when the preflight itself is to end.
func ctxOnly(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return err
	}
	return nil
}

// answer fixes what is said of the cluster, by a probe where that is allowed and needed.
func (p *preflight) answer(ctx context.Context) error {
	v := p.config.values
	ttl, bounded := p.config.authTTL()
	if p.opt.CredentialTTL != nil && bounded {
		ttl = *p.opt.CredentialTTL
	}
	if !bounded {
		p.answers.unbounded = fmt.Sprintf("AuthType %q has no known landing bound", v["AuthType"])
	}
	p.answers.killWait = v["KillWait"]
	if !p.opt.ReadOnly {
		p.removeOld(ctx)
	}
	id := identify(p.config, p.account.user)
	cached, err := load(p.opt.CacheDir, id)
	if err != nil {
		p.opt.Log.Warn("the cached probe is not used", "error", err)
	}
	now, skew := p.opt.Clock.Now(), p.skew
	switch {
	case p.opt.ReadOnly && cached == nil:
		skew = 0
		none := dispatch.Support{Answer: dispatch.Unknown, Source: dispatch.Probed, Reason: "read-only, and no cached probe"}
		p.answers.hold, p.answers.history = none, none
		p.skip("probe", none.Reason)
	case p.opt.ReadOnly:
		skew = cached.Skew
		p.fromCache(cached)
	case cached != nil && !p.opt.Reprobe && now.Sub(cached.At).Abs() < cacheAge:
		p.fromCache(cached)
	default:
		lasting, err := p.probe(ctx)
		if err != nil {
			return err
		}
		if lasting {
			err := save(p.opt.CacheDir, probed{Format: cacheFormat, Identity: id, At: now, Skew: p.skew, Hold: p.answers.hold, History: p.answers.history})
			if err != nil {
				p.opt.Log.Warn("the next start will probe again", "error", err)
			}
		}
	}
	if !bounded {
		p.answers.hold = dispatch.Support{Answer: dispatch.No, Source: dispatch.Probed, Reason: p.answers.unbounded}
	}
	if p.opt.Skew != nil {
		skew = max(skew, *p.opt.Skew)
	}
	p.report.Settings["credentialTTL"], p.report.Settings["skew"] = ttl.String(), skew.Round(time.Millisecond).String()
	p.answers.declared, err = declare(p.config, p.answers.history.Answer, ttl, bounded, skew, p.opt.Runner.Slack())
	return err
}

func (p *preflight) fromCache(c *probed) {
	p.answers.hold, p.answers.history = c.Hold, c.History
	p.report.Cached, p.report.At = true, c.At
	p.skip("probe", "cached, of "+c.At.UTC().Format(time.RFC3339))
}

// passing reports whether an error may be gone the next time.
func passing(err error) bool {
	return errors.Is(err, dispatch.ErrUnavailable) || errors.Is(err, dispatch.ErrOutcomeUnknown) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// withReading is a command whose answer is read, for those that tell more by how they fail.
func withReading(argv ...string) transport.Command {
	return transport.Command{Argv: argv, Env: reading(), Keep: passed()}
}
