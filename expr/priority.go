package expr

import (
	"errors"
	"fmt"
	"math"

	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/checker/nature"
	"github.com/expr-lang/expr/vm"
)

// DefaultPriority is the rank where the configuration gives none.
const DefaultPriority = "organization_priority + group_priority + user_priority + workflow_priority + age_seconds / 3600.0"

// PriorityEnv is what a priority sees of one allocation. Exported methods would become part of
// the language, so it has none.
type PriorityEnv struct {
	OrganizationPriority int32   `expr:"organization_priority" doc:"as set with the CLI; 0"`
	GroupPriority        int32   `expr:"group_priority" doc:"of the group the work counts for"`
	AccountPriority      int32   `expr:"account_priority" doc:"the same as 'group_priority'"`
	UserPriority         int32   `expr:"user_priority" doc:"of who submitted"`
	WorkflowPriority     int32   `expr:"workflow_priority" doc:"the submitter's, at most 0"`
	AgeSeconds           float64 `expr:"age_seconds" doc:"since submission"`
	Cores                uint32  `expr:"cores" doc:"of all nodes"`
	MemoryBytes          uint64  `expr:"memory_bytes" doc:"of all nodes"`
	GPUs                 uint32  `expr:"gpus" doc:"of all nodes"`
	Nodes                uint32  `expr:"nodes" doc:"of the allocation"`
	Class                string  `expr:"class" doc:"'reserved', 'on-demand', 'batch'"`
}

// Priority ranks an allocation. It is safe for concurrent use.
type Priority struct {
	source   string
	language *language
	program  *vm.Program
	names    []string
	slope    float64
	linear   bool
}

// CompilePriority checks a priority against PriorityEnv. The error is an *Error.
func CompilePriority(src string) (*Priority, error) { return newLanguage().rank(src) }

func (l *language) rank(src string) (*Priority, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d := l.dialect(PriorityEnv{})
	n, e := d.read(src)
	if e != nil {
		return nil, e
	}
	out := &Priority{source: src, language: l, names: texts(d.namesIn(n))}
	at := n.Location().From
	if slope, ok := ageSlope(n); ok {
		out.slope, out.linear = slope, true
	}
	p, t, e := d.compile(src, n)
	if e != nil {
		return nil, e
	}
	if k := nature.FromType(t); !k.IsNumber() {
		return nil, errorAt(src, at, "a priority must be a number, this is %s", kindOf(t))
	}
	out.program = p
	return out, nil
}

// Source is the text the priority was compiled from.
func (p *Priority) Source() string { return p.source }

// Names are the inputs the priority reads, sorted.
func (p *Priority) Names() []string { return append([]string{}, p.names...) }

// Eval is the rank, a finite number, or an error.
func (p *Priority) Eval(env *PriorityEnv) (float64, error) {
	if env == nil {
		return 0, errors.New("cannot evaluate priority: no allocation")
	}
	m := p.language.machine()
	defer p.language.release(m)
	out, err := run(m, p.program, env)
	if err != nil {
		return 0, &evalError{"priority", err}
	}
	rank, ok := float(out)
	if !ok {
		return 0, errors.New("cannot evaluate priority: not a number")
	}
	if math.IsNaN(rank) || math.IsInf(rank, 0) {
		return 0, fmt.Errorf("cannot evaluate priority: the result is %v, not a finite number", rank)
	}
	return rank, nil
}

// AgeLinear reports whether the rank is provably f(other inputs) + slope·age_seconds. A caller
// may then keep a rank and add slope per second until another input changes.
func (p *Priority) AgeLinear() (slope float64, ok bool) { return p.slope, p.linear }

// ageSlope is the coefficient of age_seconds in an expression that is linear in it.
func ageSlope(n ast.Node) (float64, bool) {
	if !readsAge(n) {
		return 0, true
	}
	switch n := n.(type) {
	case *ast.IdentifierNode:
		return 1, true
	case *ast.UnaryNode:
		a, ok := ageSlope(n.Node)
		if n.Operator == "-" {
			a = -a
		}
		return a, ok && (n.Operator == "-" || n.Operator == "+")
	case *ast.BuiltinNode:
		if n.Name == "float" && len(n.Arguments) == 1 {
			return ageSlope(n.Arguments[0])
		}
	case *ast.ConditionalNode:
		a, aok := ageSlope(n.Exp1)
		b, bok := ageSlope(n.Exp2)
		return a, aok && bok && a == b && !readsAge(n.Cond)
	case *ast.BinaryNode:
		return binarySlope(n)
	}
	return 0, false
}

func binarySlope(n *ast.BinaryNode) (float64, bool) {
	l, lok := ageSlope(n.Left)
	r, rok := ageSlope(n.Right)
	if !lok || !rok {
		return 0, false
	}
	switch n.Operator {
	case "+":
		return l + r, true
	case "-":
		return l - r, true
	case "*":
		if c, ok := constant(n.Left); ok {
			return finite(c * r)
		}
		if c, ok := constant(n.Right); ok {
			return finite(l * c)
		}
	case "/":
		if c, ok := constant(n.Right); ok && c != 0 {
			return finite(l / c)
		}
	}
	return 0, false
}

func finite(f float64) (float64, bool) { return f, !math.IsNaN(f) && !math.IsInf(f, 0) }

// constant is the value of an arithmetic expression without names.
func constant(n ast.Node) (float64, bool) {
	switch n := n.(type) {
	case *ast.IntegerNode:
		return float64(n.Value), true
	case *ast.FloatNode:
		return n.Value, true
	case *ast.UnaryNode:
		v, ok := constant(n.Node)
		if n.Operator == "-" {
			v = -v
		}
		return v, ok && (n.Operator == "-" || n.Operator == "+")
	case *ast.BinaryNode:
		l, lok := constant(n.Left)
		r, rok := constant(n.Right)
		if !lok || !rok {
			return 0, false
		}
		switch n.Operator {
		case "+":
			return l + r, true
		case "-":
			return l - r, true
		case "*":
			return l * r, true
		case "/":
			return l / r, r != 0
		}
	}
	return 0, false
}

func readsAge(n ast.Node) bool {
	found := false
	var visit func(ast.Node)
	visit = func(n ast.Node) {
		if id, ok := n.(*ast.IdentifierNode); ok && id.Value == "age_seconds" {
			found = true
		}
		if !found {
			children(n, visit)
		}
	}
	visit(n)
	return found
}
