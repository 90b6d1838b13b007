package expr

import (
	"errors"
	"reflect"
	"sync"

	"github.com/expr-lang/expr/vm"
)

// Policy says whether a request may use a definition. It is safe for concurrent use.
type Policy struct {
	source   string
	language *language
	program  *vm.Program
	names    []string

	once    sync.Once // the split form is only made when somebody asks why
	formula *formula
}

// CompilePolicy checks a policy against RequestEnv. The error is an *Error.
func CompilePolicy(src string) (*Policy, error) { return newLanguage().policy(src) }

func (l *language) policy(src string) (*Policy, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, e := l.request.read(src)
	if e != nil {
		return nil, e
	}
	at, names := n.Location().From, texts(l.request.namesIn(n))
	p, t, e := l.request.compile(src, n)
	if e != nil {
		return nil, e
	}
	if !isKind(t, reflect.Bool) {
		return nil, errorAt(src, at, "a policy must be true or false, this is %s", kindOf(t))
	}
	return &Policy{source: src, language: l, program: p, names: names}, nil
}

// Source is the text the policy was compiled from.
func (p *Policy) Source() string { return p.source }

// Names are the fields and keys the policy reads, sorted.
func (p *Policy) Names() []string { return append([]string{}, p.names...) }

// Admit reports whether the policy admits a request. It never admits with an error.
func (p *Policy) Admit(env *RequestEnv) (bool, error) {
	if env == nil {
		return false, errors.New("cannot evaluate policy: no request")
	}
	m := p.language.machine()
	defer p.language.release(m)
	out, err := run(m, p.program, env)
	if err != nil {
		return false, &evalError{"policy", err}
	}
	admitted, ok := out.(bool)
	if !ok {
		return false, errors.New("cannot evaluate policy: neither true nor false")
	}
	return admitted, nil
}

// Explain names the parts that kept the policy from admitting; none when it admits.
func (p *Policy) Explain(env *RequestEnv) []Part {
	if env == nil {
		return nil
	}
	p.once.Do(func() {
		p.language.mu.Lock()
		defer p.language.mu.Unlock()
		p.formula, _ = p.language.request.formula(p.source) // it compiled before
	})
	if p.formula == nil {
		return nil
	}
	m := p.language.machine()
	defer p.language.release(m)
	r := &evaluation{formula: p.formula, machine: m, env: env}
	if p.formula.root.eval(r.leafValue) == True {
		return nil
	}
	return p.formula.parts(r)
}
