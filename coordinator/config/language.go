package config

import (
	"errors"
	"runtime"
	"sync"

	"substrate/coordinator"
	"substrate/expr"
	"substrate/strictyaml"
)

// use is where an expression stands.
type use uint8

const (
	useCondition use = iota
	usePolicy
	usePriority
)

func (u use) String() string { return [...]string{"condition", "policy", "priority"}[u] }

// language is what this package needs of the expression language. A value serves one goroutine.
type language interface {
	compile(u use, source string) (program any, findings []expr.Finding, err error)
}

// real is package expr; the cache holds the type tables that compiling shares.
type real struct{ cache *expr.Cache }

var _ language = real{}

func newReal() language { return real{expr.NewCache(nil)} }

func (r real) compile(u use, source string) (program any, findings []expr.Finding, err error) {
	switch u {
	case useCondition:
		program, findings, err = r.cache.LintCondition(source)
	case usePolicy:
		program, findings, err = r.cache.LintPolicy(source)
	default:
		program, err = r.cache.Priority(source)
	}
	return program, findings, err
}

// compiler compiles each source once, however many definitions hold it.
type compiler struct {
	newLanguage func() language
	previous    map[source]*compiled
	index       map[source]*compiled
	order       []*compiled
}

type source struct {
	use  use
	text string
}

type compiled struct {
	source
	program  any
	err      error
	findings []expr.Finding
}

// want asks for a source; the result is filled in by run.
func (c *compiler) want(u use, text string) *compiled {
	key := source{u, text}
	if got := c.index[key]; got != nil {
		return got
	}
	if c.index == nil {
		c.index = map[source]*compiled{}
	}
	out := &compiled{source: key}
	if old := c.previous[key]; old != nil {
		out = old // compiled before, and good
	}
	c.index[key] = out
	c.order = append(c.order, out)
	return out
}

// run compiles and lints everything asked for, on all processors. The result does not
// depend on their number.
func (c *compiler) run() {
	workers := min(runtime.GOMAXPROCS(0), 16, max(1, len(c.order)/32))
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			lang := c.newLanguage()
			for i := w; i < len(c.order); i += workers {
				s := c.order[i]
				if s.program != nil {
					continue
				}
				if s.program, s.findings, s.err = lang.compile(s.use, s.text); s.err != nil {
					s.program = nil
				}
			}
		})
	}
	wg.Wait()
}

// programs are the compiled expressions of a revision by their text.
func (c *Checked) programs() map[source]*compiled {
	if c == nil {
		return nil
	}
	out := make(map[source]*compiled, len(c.compiled))
	for _, e := range c.compiled {
		out[e.source] = e
	}
	return out
}

// expressions compiles conditions, policies and the priority and reports at their places.
func (p *parser) expressions() {
	prio := p.comp.want(usePriority, p.out.Config.Scheduler.Priority)
	type pending struct {
		d                 *draft
		condition, policy *compiled
	}
	wanted := make([]pending, 0, len(p.drafts))
	for _, d := range p.drafts {
		w := pending{d: d}
		if d.def.Condition != "" {
			w.condition = p.comp.want(useCondition, d.def.Condition)
		}
		if d.def.Policy != "" {
			w.policy = p.comp.want(usePolicy, d.def.Policy)
		}
		wanted = append(wanted, w)
	}
	p.comp.run()
	p.out.compiled = p.comp.order
	p.out.Priority, _ = prio.program.(*expr.Priority)
	if p.priority.Valid() {
		p.report(p.priority, prio)
	}
	p.out.Conditions = map[coordinator.DefinitionID]*expr.Condition{}
	p.out.Policies = map[coordinator.DefinitionID]*expr.Policy{}
	p.out.ConditionPlaces = map[coordinator.DefinitionID]Place{}
	for _, w := range wanted {
		var place Place
		if w.condition != nil {
			p.report(w.d.spec.Condition, w.condition)
			place.Line, place.Column = w.d.spec.Condition.PositionIn(1, 1)
			place.Path = w.d.spec.Condition.Path()
		}
		if w.policy != nil {
			p.report(w.d.policy, w.policy)
		}
		for _, t := range w.d.types {
			if w.condition != nil {
				p.out.Conditions[t.id], _ = w.condition.program.(*expr.Condition)
				p.out.ConditionPlaces[t.id] = place
			}
			if w.policy != nil {
				p.out.Policies[t.id], _ = w.policy.program.(*expr.Policy)
			}
		}
	}
}

// report says what the language found, at the line of the file where it is written.
func (p *parser) report(v strictyaml.Value, c *compiled) {
	swallowed := p.swallowed(v, c.text)
	var e *expr.Error
	switch {
	case errors.As(c.err, &e):
		v.ReportIn(max(e.Line, 1), max(e.Column, 1), strictyaml.SeverityError, "expression", e.Message, e.Hint)
	case c.err != nil:
		v.Report(strictyaml.SeverityError, "expression", c.err.Error(), "")
	}
	for _, f := range c.findings {
		if f.Code != expr.LintSwallowedRest || !swallowed { // one word about one comment
			p.warnIn(v, max(f.Line, 1), max(f.Column, 1), f.Code, f.Message, f.Hint)
		}
	}
}
