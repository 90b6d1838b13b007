package expr

import "reflect"

// Condition says whether a node belongs to a definition. It is safe for concurrent use.
type Condition struct {
	source   string
	language *language
	formula  *formula
	findings []Finding
}

// Outcome is the value of a condition on one node. Parts is empty where Value is True.
type Outcome struct {
	Value Truth  `json:"value"`
	Err   string `json:"error,omitempty"` // set where Value is Failed
	Parts []Part `json:"parts,omitempty"`
}

// CompileCondition checks a condition against NodeEnv. The error is an *Error.
func CompileCondition(src string) (*Condition, error) { return newLanguage().condition(src) }

func (l *language) condition(src string) (*Condition, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f, found, e := l.dialect(NodeEnv{}).formula(src)
	if e != nil {
		return nil, e
	}
	return &Condition{source: src, language: l, formula: f, findings: found}, nil
}

// Source is the text the condition was compiled from.
func (c *Condition) Source() string { return c.source }

// Names are the facts the condition reads, sorted.
func (c *Condition) Names() []string { return c.formula.names() }

func (f *formula) names() []string {
	var all []*name
	for _, l := range f.leaves {
		all = append(all, l.names...)
	}
	return texts(all)
}

// Match is the value of the condition alone, for when nobody asks why.
func (c *Condition) Match(env *NodeEnv) Truth {
	if env == nil {
		return Unknown
	}
	r := c.language.evaluation(c.formula, env, env.absent)
	v := r.eval(&c.formula.root)
	r.end()
	return v
}

// Eval is the value of the condition, and what kept it from being true.
func (c *Condition) Eval(env *NodeEnv) Outcome {
	if env == nil {
		return Outcome{Value: Unknown}
	}
	r := c.language.evaluation(c.formula, env, env.absent)
	defer r.end()
	out := Outcome{Value: r.eval(&c.formula.root)}
	if out.Value == True {
		return out
	}
	if out.Value == Failed {
		out.Err = r.err.Error()
	}
	out.Parts = c.formula.parts(&r)
	return out
}

// EvalAny is the value of any expression over a node: text, number, truth value or list. It is
// nil where the value is unknown because a fact is absent. A bare group gives its present facts
// as a map.
func EvalAny(src string, env *NodeEnv) (any, error) {
	l := newLanguage()
	if env == nil {
		env = &NodeEnv{absent: ^uint64(0)}
	}
	d := l.dialect(NodeEnv{})
	if group := d.groupValue(src, env); group != nil {
		return group, nil
	}
	n, e := d.read(src)
	if e != nil {
		return nil, e
	}
	names := d.namesIn(n)
	p, t, e := d.compile(src, n)
	if e != nil {
		return nil, e
	}
	if isKind(t, reflect.Bool) {
		return l.truth(src, env)
	}
	if factsRead(names)&env.absent != 0 {
		return nil, nil
	}
	m := l.machine()
	defer l.release(m)
	return runAny(m, p, env)
}
