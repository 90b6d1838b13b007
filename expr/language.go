package expr

import (
	"errors"
	"reflect"
	"strings"
	"sync"

	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/checker"
	"github.com/expr-lang/expr/checker/nature"
	"github.com/expr-lang/expr/compiler"
	"github.com/expr-lang/expr/conf"
	"github.com/expr-lang/expr/file"
	"github.com/expr-lang/expr/optimizer"
	"github.com/expr-lang/expr/parser"
	"github.com/expr-lang/expr/vm"
)

// language holds what compiled expressions share: the type tables of the environments, each made
// when it is first asked for, and the machines that run programs.
type language struct {
	mu       sync.Mutex // guards the type tables: they fill up while compiling
	dialects map[reflect.Type]*dialect
	machines sync.Pool // of *vm.VM
}

func newLanguage() *language {
	l := &language{dialects: map[reflect.Type]*dialect{}}
	l.machines.New = func() any { return &vm.VM{MemoryBudget: maxMemory} }
	return l
}

// dialect is the language over one environment; l.mu is held.
func (l *language) dialect(env any) *dialect {
	t := reflect.TypeOf(env)
	d := l.dialects[t]
	if d == nil {
		d = newDialect(env)
		l.dialects[t] = d
	}
	return d
}

func (l *language) machine() *vm.VM              { return l.machines.Get().(*vm.VM) }
func (l *language) release(m *vm.VM)             { l.machines.Put(m) }
func isKind(t reflect.Type, k reflect.Kind) bool { return t != nil && t.Kind() == k }

// run runs one program.
func run(m *vm.VM, p *vm.Program, env any) (any, error) {
	out, err := m.Run(p, env)
	if err != nil {
		return nil, &runError{err}
	}
	return out, nil
}

// runError words a failed run without the library's insides, and only when somebody reads it:
// an expression that fails may fail ten thousand times a second.
type runError struct{ err error }

func (e *runError) Error() string {
	message := e.err.Error()
	var fe *file.Error
	if errors.As(e.err, &fe) {
		message = fe.Message
	}
	return cleaned(strings.TrimPrefix(message, "runtime error: "))
}

// evalError is a failed evaluation of a policy, priority or single expression.
type evalError struct {
	noun  string
	cause error
}

func (e *evalError) Error() string { return "cannot evaluate " + e.noun + ": " + e.cause.Error() }

// dialect is the language over one environment, a struct that is pointer-nested below the top.
type dialect struct {
	noun   string // condition, policy, priority
	env    reflect.Type
	conf   *conf.Config
	fields map[string]*field
	names  []string // every field and function, dotted
	groups []string // what a name can start with
	calls  map[string]bool
	keys   map[keyName]*field

	plain   map[string]*leaf // leaves with a test, by their text
	leaves  map[string]*leaf // the others, by fingerprint
	scratch []byte
}

// nounOf is what an expression over an environment is called.
func nounOf(env any) string {
	switch env.(type) {
	case NodeEnv:
		return "condition"
	case RequestEnv:
		return "policy"
	}
	return "priority"
}

func newDialect(env any) *dialect {
	d := &dialect{
		noun: nounOf(env), env: reflect.TypeOf(env), calls: map[string]bool{}, keys: map[keyName]*field{},
		plain: map[string]*leaf{}, leaves: map[string]*leaf{},
	}
	d.conf = &conf.Config{
		Optimize: true, ShortCircuit: true, MaxNodes: maxNodes,
		Functions: functions(), Builtins: conf.FunctionsTable{}, Disabled: map[string]bool{},
	}
	// Given by value: only then does the library load a field of any depth in one step. Runs get a pointer.
	d.conf.WithEnv(env)
	d.fields = d.fieldsOf(d.env, "", nil)
	for i := range d.env.NumField() {
		if f := d.fields[d.env.Field(i).Tag.Get("expr")]; f != nil {
			d.groups = append(d.groups, f.name.text)
		}
	}
	if f := d.fields["request"]; f != nil {
		owner := f.below["owner"].below
		for id, f := range owner {
			if beside := nameOf(id); beside != "" {
				f.name.alt = &owner[beside].name
			}
		}
	}
	return d
}

// read parses a source into a tree that keeps the rules of this language.
func (d *dialect) read(src string) (ast.Node, *Error) {
	tree, e := d.parse(src)
	if e != nil {
		return nil, e
	}
	r := &reader{dialect: d, src: src, left: maxNodes, states: maxPattern}
	n := r.copy(tree)
	if r.err != nil {
		return nil, r.err
	}
	return n, nil
}

// check gives every part of the tree its type and returns the type of the whole.
func (d *dialect) check(src string, n ast.Node) (t reflect.Type, e *Error) {
	defer contain(src, &e)
	tree := &parser.Tree{Node: n, Source: file.NewSource(src)}
	t, err := new(checker.Checker).Check(tree, d.conf)
	if err != nil {
		return nil, d.fromLibrary(src, err)
	}
	return t, nil
}

// compile makes a program of a tree that read returned. The tree is used up.
func (d *dialect) compile(src string, n ast.Node) (p *vm.Program, t reflect.Type, e *Error) {
	defer contain(src, &e)
	if d.env == reflect.TypeFor[RequestEnv]() {
		w := &eitherName{dialect: d, src: src, left: 4 * maxNodes}
		ast.Walk(&n, w)
		if w.err != nil {
			return nil, nil, w.err
		}
	}
	if t, e = d.check(src, n); e != nil {
		return nil, nil, e
	}
	u := &unifier{}
	if ast.Walk(&n, u); u.changed {
		if t, e = d.check(src, n); e != nil {
			return nil, nil, e
		}
	}
	w := &rewriter{src: src}
	ast.Walk(&n, w)
	if w.err != nil {
		return nil, nil, w.err
	}
	if err := d.optimize(&n); err != nil {
		return nil, nil, d.fromLibrary(src, err)
	}
	p, err := compiler.Compile(&parser.Tree{Node: n}, d.conf)
	if err != nil {
		return nil, nil, d.fromLibrary(src, err)
	}
	prune(n)
	return p, t, nil
}

// optimize leaves and, or, not and ?: as they are: the library would fold `x or true` to true
// even where x fails.
func (d *dialect) optimize(node *ast.Node) error {
	switch n := (*node).(type) {
	case *ast.BinaryNode:
		switch n.Operator {
		case "and", "&&", "or", "||":
			return errors.Join(d.optimize(&n.Left), d.optimize(&n.Right))
		}
	case *ast.UnaryNode:
		if n.Operator == "not" || n.Operator == "!" {
			return d.optimize(&n.Node)
		}
	case *ast.ConditionalNode:
		return errors.Join(d.optimize(&n.Cond), d.optimize(&n.Exp1), d.optimize(&n.Exp2))
	}
	return optimizer.Optimize(node, d.conf)
}

// contain turns a panic of the library at compile time into a refusal.
func contain(src string, e **Error) {
	if r := recover(); r != nil {
		*e = errorAt(src, 0, "the expression cannot be compiled")
	}
}

// kindOf words a type for a person.
func kindOf(t reflect.Type) string {
	n := nature.FromType(t)
	switch {
	case t == nil || t.Kind() == reflect.Interface:
		return "a value whose type depends on the input"
	case n.IsBool():
		return "true or false"
	case n.IsNumber():
		return "a number"
	case n.IsString():
		return "text"
	case n.IsArray():
		return "a list"
	case n.IsFunc():
		return "a function"
	}
	return "a group of values"
}
