// Package config turns the YAML text of a cluster configuration into a checked one, or says
// at which line it is wrong. It stores no revision and knows neither fleet nor grants.
package config

import (
	"crypto/sha256"
	"encoding/hex"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/catalogue"
	"substrate/coordinator/spec"
	"substrate/expr"
	"substrate/strictyaml"
)

// MaxBytes is the largest configuration that is read.
const MaxBytes = 64 << 20

// MaxDefinitions bounds the definitions after expansion of wildcards.
const MaxDefinitions = 100_000

// Options say where the configuration is to be used.
type Options struct {
	// Catalogues expand wildcards, price instances and say what they have. Nil is what is built in, parsed anew
	// for each call; a caller that parses often keeps catalogue.Embedded's result.
	Catalogues *catalogue.Set
	// Unknown is asked about a wildcard at a place without a catalogue: why there is none, and what to do. Nil has no answer.
	Unknown func(b spec.Backend) (why, hint string)
	// Stored is a configuration that was accepted before: a pattern without types costs its members and not the start.
	Stored bool
	// Federate stores definitions without using them.
	Federate bool
	// Previous lends its compiled expressions to those of the same text; nil has none.
	Previous *Checked
}

// Checked is a configuration that can be used as it is. Nothing in it changes afterwards;
// the expansions of one definition share their maps.
type Checked struct {
	Config    coordinator.Config // Revision is the store's to fill in
	SHA256    string             // of the file's bytes, in hex
	Backends  []spec.Backend
	Discovery Discovery
	Retention Retention
	Webhooks  []Webhook
	Lints     Lints
	// DefinitionsIgnored counts the definitions that a Federate stores without use.
	DefinitionsIgnored int

	// Conditions of static definitions, and policies of those that have one, compiled.
	Conditions map[coordinator.DefinitionID]*expr.Condition
	Policies   map[coordinator.DefinitionID]*expr.Policy
	Priority   *expr.Priority
	// Places say where each definition stands in the file, for findings made later.
	Places map[coordinator.DefinitionID]Place
	// ConditionPlaces say where the texts of static conditions begin.
	ConditionPlaces map[coordinator.DefinitionID]Place

	compiled  []*compiled
	backendOf map[coordinator.DefinitionID]spec.Backend
	rows      map[coordinator.DefinitionID]row
	wildcards []wildcard
}

// Place is a line and column from 1 and the path there.
type Place struct {
	Line, Column int
	Path         string
}

// BackendOf is the connection that a definition uses; a kind that the file names no backend
// of has spec.Implicit.
func (c *Checked) BackendOf(id coordinator.DefinitionID) (spec.Backend, bool) {
	b, ok := c.backendOf[id]
	return b, ok
}

// Discovery bounds the boots that find out what an instance type really is.
type Discovery struct {
	Concurrency   int           // boots at one time; default 2
	BudgetPerDay  *float64      // USD; nil is no limit
	SettleTimeout time.Duration // from joining to a full report; default 20 min
}

// Retention says how long records are kept. A nil or zero value keeps them for ever.
type Retention struct {
	FinishedWorkflows time.Duration
	Events            time.Duration
	Audit             time.Duration  // default 90 days; 0 in the file keeps it for ever
	Logs              *time.Duration // default 30 days; 0 in the file keeps them for ever
	ConfigRevisions   int            // how many of the newest
	Archive           string         // directory that gets expired records as JSON lines; "" none
}

// Webhook is told about events.
type Webhook struct {
	URL        string
	Events     []string // names or patterns with *; empty is all
	SecretFile string   // signs the body; "" does not
}

// Lints tunes the warnings.
type Lints struct {
	CostPerHour float64 // USD; what a definition open to all may cost; default 5
	Silence     []string
}

// Parse checks a configuration. The result is nil when it is refused; warnings and notices
// come with an accepted one too.
func Parse(file string, data []byte, opt Options) (*Checked, strictyaml.Diagnostics) {
	return parse(file, data, opt, &compiler{newLanguage: newReal, previous: opt.Previous.programs()})
}

func parse(file string, data []byte, opt Options, comp *compiler) (*Checked, strictyaml.Diagnostics) {
	doc, ds := strictyaml.Parse(file, data, strictyaml.Limits{MaxBytes: MaxBytes, MaxNodes: 8_000_000,
		MaxExpansion: 2_000_000, MaxDiagnostics: 200})
	if doc == nil {
		return nil, ds
	}
	sum := sha256.Sum256(data)
	if opt.Catalogues == nil {
		var err error
		if opt.Catalogues, err = catalogue.Embedded(); err != nil {
			return nil, strictyaml.Diagnostics{{Code: "catalogue", File: file, Message: err.Error()}}
		}
	}
	p := &parser{opt: opt, comp: comp, out: &Checked{SHA256: hex.EncodeToString(sum[:])}}
	p.root(doc.Root())
	ds = slices.DeleteFunc(doc.Diagnostics(), func(d strictyaml.Diagnostic) bool {
		return d.Severity != strictyaml.SeverityError && slices.Contains(p.out.Lints.Silence, d.Code)
	})
	if doc.Failed() {
		return nil, ds
	}
	return p.out, ds
}

// parser holds what one run of Parse knows.
type parser struct {
	opt      Options
	comp     *compiler
	out      *Checked
	window   strictyaml.Value
	priority strictyaml.Value
	drafts   []*draft
	matched  map[string][]catalogue.Type // by place and pattern: a catalogue is searched once for each
}

func (p *parser) root(v strictyaml.Value) {
	o := v.Object()
	c := &p.out.Config
	c.NodeAnnotations = strictyaml.Default(o, "nodeAnnotations", nil, annotations)
	c.SoftwareTokens = strictyaml.Default(o, "softwareTokens", nil, strictyaml.MapOf(strictyaml.Ints[uint32](0, math.MaxUint32)))
	p.scheduler(o.Take("scheduler"))
	p.out.Backends = p.backends(o.Take("backends"))
	definitions := o.Take("definitions")
	p.out.Discovery = discovery(o.Take("discovery"))
	p.out.Retention = retention(o.Take("retention"))
	if v := p.onlyStored("webhooks", o.Take("webhooks")); v.Valid() {
		p.out.Webhooks, _ = strictyaml.ListOf(webhook)(v)
	}
	p.lintSettings(o.Take("lints"))
	o.Close()
	p.definitions(definitions)
	p.expressions()
	p.lints()
}

// onlyStored warns of a block that this version checks and keeps, and does nothing about.
func (p *parser) onlyStored(name string, v strictyaml.Value) strictyaml.Value {
	if v.Valid() {
		p.warn(v, LintNoEffect, "checked and stored, but nothing acts on "+name+" in this version", "leave it for later, or remove it")
	}
	return v
}

// annotations reads a map whose keys and values fit everywhere they are shown and compared.
func annotations(v strictyaml.Value) (map[string]string, bool) {
	entries, ok := v.Entries()
	out := make(map[string]string, len(entries))
	for _, e := range entries {
		s, good := e.Value.Text()
		switch {
		case len(e.Name) > 256 || strings.ContainsFunc(e.Name, func(r rune) bool { return r <= ' ' || r == 0x7f }):
			e.Key.Errorf(strictyaml.CodeValue, "an annotation's key may have 256 bytes and no white space")
			good = false
		case good && len(s) > 4096:
			e.Value.Errorf(strictyaml.CodeValue, "the annotation has %d bytes, more than 4096", len(s))
			good = false
		}
		ok = ok && good
		out[e.Name] = s
	}
	return out, ok
}

func (p *parser) scheduler(v strictyaml.Value) {
	s := &p.out.Config.Scheduler
	*s = coordinator.SchedulerConfig{Priority: expr.DefaultPriority, PreemptionGap: 10, PreemptionNotice: time.Minute,
		NodeLossWindow: time.Minute, KillTimeout: 10 * time.Second, MaintenanceNotice: 7 * 24 * time.Hour, MaxWalltime: map[coordinator.Class]time.Duration{
			coordinator.ClassReserved: 24 * time.Hour, coordinator.ClassOnDemand: 24 * time.Hour, coordinator.ClassBatch: 24 * time.Hour}}
	if !v.Valid() {
		return
	}
	o := v.Object()
	s.Priority = strictyaml.Default(o, "priority", s.Priority, func(v strictyaml.Value) (string, bool) {
		p.priority = v
		return v.FilledText()
	})
	s.PreemptionEnabled = strictyaml.Default(o, "preemptionEnabled", false, strictyaml.Value.Bool)
	s.PreemptionThreshold = strictyaml.Default(o, "preemptionThreshold", 0, strictyaml.Floats(-1e12, 1e12))
	s.PreemptionGap = strictyaml.Default(o, "preemptionGap", s.PreemptionGap, strictyaml.Floats(0, 1e12))
	s.MinPreemptionRuntime = strictyaml.Default(o, "minPreemptionRuntime", 0, strictyaml.Value.Duration)
	s.PreemptionNotice = strictyaml.Default(o, "preemptionNotice", s.PreemptionNotice, strictyaml.Value.Duration)
	s.Backfill = strictyaml.Default(o, "backfill", coordinator.BackfillNone, strictyaml.Enum[coordinator.Backfill])
	s.NodeLossWindow = strictyaml.Default(o, "nodeLossWindow", s.NodeLossWindow, p.lossWindow)
	s.KillTimeout = strictyaml.Default(o, "killTimeout", s.KillTimeout, atLeast(time.Second))
	s.MaintenanceNotice = strictyaml.Default(o, "maintenanceNotice", s.MaintenanceNotice, strictyaml.Value.Duration)
	if w := o.Take("maxWalltime"); w.Valid() {
		wo := w.Object()
		for _, c := range []coordinator.Class{coordinator.ClassReserved, coordinator.ClassOnDemand, coordinator.ClassBatch} {
			s.MaxWalltime[c] = strictyaml.Default(wo, c.String(), s.MaxWalltime[c], atLeast(time.Second))
		}
		wo.Close()
	}
	s.QueueDepth = strictyaml.Default(o, "queueDepth", 0, strictyaml.Ints[int](0, 1e9))
	s.IgnoredAnnotations = strictyaml.Default(o, "ignoredAnnotations", nil, strictyaml.Value.Texts)
	s.FederationPriorityRouting = strictyaml.Default(o, "federationPriorityRoutingEnabled", false, strictyaml.Value.Bool)
	o.Close()
}

// lossWindow waits with its lint: what is silenced is read later.
func (p *parser) lossWindow(v strictyaml.Value) (time.Duration, bool) {
	p.window = v
	return atLeast(time.Second)(v)
}

// atLeast reads a duration that is not shorter.
func atLeast(low time.Duration) strictyaml.Reader[time.Duration] {
	return func(v strictyaml.Value) (time.Duration, bool) {
		d, ok := v.Duration()
		if ok && d < low {
			v.Errorf(strictyaml.CodeValue, "the duration %s is shorter than %s", d, low)
			return 0, false
		}
		return d, ok
	}
}

func (p *parser) backends(v strictyaml.Value) []spec.Backend {
	if !v.Valid() {
		return nil
	}
	list, _ := v.List()
	var out []spec.Backend
	for _, e := range list {
		b, ok := spec.DecodeBackend(e)
		if !ok {
			continue
		}
		for _, other := range out {
			if other.Name == b.Name {
				e.Errorf(strictyaml.CodeDuplicate, "the backend %s is named twice", b.Name)
			}
		}
		out = append(out, b)
	}
	return out
}

func discovery(v strictyaml.Value) Discovery {
	d := Discovery{Concurrency: 2, SettleTimeout: 20 * time.Minute}
	if !v.Valid() {
		return d
	}
	o := v.Object()
	d.Concurrency = strictyaml.Default(o, "concurrency", d.Concurrency, strictyaml.Ints[int](1, 1000))
	d.BudgetPerDay = strictyaml.Optional(o, "budgetPerDay", strictyaml.Floats(0, 1e9))
	d.SettleTimeout = strictyaml.Default(o, "settleTimeout", d.SettleTimeout, atLeast(time.Second))
	o.Close()
	return d
}

func retention(v strictyaml.Value) Retention {
	month := 30 * 24 * time.Hour
	r := Retention{Logs: &month, Audit: 90 * 24 * time.Hour}
	if !v.Valid() {
		return r
	}
	o := v.Object()
	r.FinishedWorkflows = strictyaml.Default(o, "finishedWorkflows", 0, atLeast(time.Hour))
	r.Events = strictyaml.Default(o, "events", 0, atLeast(time.Hour))
	if d := strictyaml.Optional(o, "audit", strictyaml.Value.Duration); d != nil {
		r.Audit = *d
	}
	if d := strictyaml.Optional(o, "logs", strictyaml.Value.Duration); d != nil {
		r.Logs = d
		if *d == 0 {
			r.Logs = nil
		}
	}
	r.ConfigRevisions = strictyaml.Default(o, "configRevisions", 0, strictyaml.Ints[int](1, 1e9))
	r.Archive = strictyaml.Default(o, "archive", "", spec.FilePath)
	o.Close()
	return r
}

func webhook(v strictyaml.Value) (Webhook, bool) {
	var w Webhook
	o := v.Object()
	defer o.Close()
	var ok bool
	w.URL, ok = strictyaml.Required(o, "url", strictyaml.Matching(
		regexp.MustCompile(`^https?://[^\s/@]+(/[^\s@]*)?$`).MatchString, "an http or https address without user and password"))
	w.Events = strictyaml.Default(o, "events", nil, strictyaml.ListOf(strictyaml.Matching(
		regexp.MustCompile(`^[a-z*][a-z0-9.*_-]{0,127}$`).MatchString, "the name of an event")))
	w.SecretFile = strictyaml.Default(o, "secretFile", "", spec.FilePath)
	return w, ok
}

func (p *parser) lintSettings(v strictyaml.Value) {
	p.out.Lints = Lints{CostPerHour: 5}
	if !v.Valid() {
		return
	}
	o := v.Object()
	p.out.Lints.CostPerHour = strictyaml.Default(o, "costPerHour", 5, strictyaml.Floats(0, 1e6))
	p.out.Lints.Silence = strictyaml.Default(o, "silence", nil, strictyaml.ListOf(func(v strictyaml.Value) (string, bool) {
		s, ok := v.Text()
		if !ok {
			return s, ok
		}
		codes := LintCodes()
		for _, c := range codes {
			if c == s {
				return s, true
			}
		}
		hint := ""
		if near := strictyaml.Nearest(s, codes, 1); len(near) > 0 {
			hint = "did you mean " + near[0] + "?"
		}
		// A code may belong to a newer or older release: worth a word, not a refusal.
		v.Report(strictyaml.SeverityWarning, "unknown-lint", "there is no lint "+s, hint)
		return s, true
	}))
	o.Close()
}
