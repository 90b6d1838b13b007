package expr

import "errors"

// Policy says whether a request may use a definition. It is safe for concurrent use.
type Policy struct {
	source   string
	language *language
	formula  *formula
	findings []Finding
}

// CompilePolicy checks a policy against RequestEnv. The error is an *Error.
func CompilePolicy(src string) (*Policy, error) { return newLanguage().policy(src) }

func (l *language) policy(src string) (*Policy, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f, found, e := l.dialect(RequestEnv{}).formula(src)
	if e != nil {
		return nil, e
	}
	return &Policy{source: src, language: l, formula: f, findings: found}, nil
}

// Source is the text the policy was compiled from.
func (p *Policy) Source() string { return p.source }

// Names are the fields and keys the policy reads, sorted.
func (p *Policy) Names() []string { return p.formula.names() }

// Admit reports whether the policy admits a request. It never admits with an error.
func (p *Policy) Admit(env *RequestEnv) (bool, error) {
	if env == nil {
		return false, errors.New("cannot evaluate policy: no request")
	}
	r := p.language.evaluation(p.formula, env, 0)
	v := r.eval(&p.formula.root)
	r.end()
	if v == Failed {
		return false, &evalError{"policy", r.err}
	}
	return v == True, nil
}

// Explain names the parts that kept the policy from admitting; none when it admits.
func (p *Policy) Explain(env *RequestEnv) []Part {
	if env == nil {
		return nil
	}
	r := p.language.evaluation(p.formula, env, 0)
	defer r.end()
	if r.eval(&p.formula.root) == True {
		return nil
	}
	return p.formula.parts(&r)
}
