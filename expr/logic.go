package expr

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/vm"
)

// Truth is the value of a condition: Kleene's three, and a run-time error, which never matches.
// The zero value is no match.
type Truth uint8

const (
	Unknown Truth = iota // an absent fact was read
	False
	True
	Failed // a run-time error; its text is "error"
)

func truthWords() []string { return []string{"unknown", "false", "true", "error"} }

func (t Truth) String() string {
	if w := truthWords(); int(t) < len(w) {
		return w[t]
	}
	return fmt.Sprintf("unknown(%d)", uint8(t))
}

func (t Truth) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

func (t *Truth) UnmarshalText(text []byte) error {
	i := slices.Index(truthWords(), string(text))
	if i < 0 {
		return fmt.Errorf("cannot read truth value: unknown word %.20q", text)
	}
	*t = Truth(i)
	return nil
}

func truthOf(b bool) Truth {
	if b {
		return True
	}
	return False
}

// logic is an expression split at and, or, not. Leaves are typed programs of their own.
type logic struct {
	op   logicOp
	kids []*logic
	leaf int // index into formula.leaves
}

type logicOp uint8

const (
	opLeaf logicOp = iota
	opAnd
	opOr
	opNot
)

// leaf is a smallest true-or-false part. Formulas compiled by one language share equal leaves.
type leaf struct {
	source  string
	program *vm.Program
	reads   uint64 // bits of the node facts that it reads
	names   []name
}

// formula is a compiled true-or-false expression.
type formula struct {
	root   *logic
	leaves []*leaf // each once
}

// splitter makes a formula of a tree.
type splitter struct {
	*dialect
	src string
	out formula
	err *Error
}

func (d *dialect) formula(src string) (*formula, *Error) {
	n, e := d.read(src)
	if e != nil {
		return nil, e
	}
	s := &splitter{dialect: d, src: src}
	s.out.root = s.split(n)
	if s.err != nil {
		return nil, s.err
	}
	return &s.out, nil
}

func (s *splitter) split(n ast.Node) *logic {
	switch n := n.(type) {
	case *ast.BinaryNode:
		switch n.Operator {
		case "and", "&&":
			return join(opAnd, s.split(n.Left), s.split(n.Right))
		case "or", "||":
			return join(opOr, s.split(n.Left), s.split(n.Right))
		}
	case *ast.UnaryNode:
		if n.Operator == "not" || n.Operator == "!" {
			return negate(s.split(n.Node))
		}
	case *ast.ConditionalNode: // c ? a : b is (c and a) or (not c and b)
		c, a, b := s.split(n.Cond), s.split(n.Exp1), s.split(n.Exp2)
		return join(opOr, join(opAnd, c, a), join(opAnd, negate(c), b))
	}
	return s.addLeaf(n)
}

// join makes one flat and/or of its parts.
func join(op logicOp, parts ...*logic) *logic {
	out := &logic{op: op}
	for _, p := range parts {
		if p.op == op {
			out.kids = append(out.kids, p.kids...)
		} else {
			out.kids = append(out.kids, p)
		}
	}
	return out
}

func negate(l *logic) *logic {
	if l.op == opNot {
		return l.kids[0]
	}
	return &logic{op: opNot, kids: []*logic{l}}
}

func (s *splitter) addLeaf(n ast.Node) *logic {
	if s.err != nil {
		return &logic{}
	}
	var key strings.Builder
	fingerprint(&key, n)
	l := s.leaves[key.String()]
	if l == nil {
		if l = s.compileLeaf(n); l == nil {
			return &logic{}
		}
		s.leaves[key.String()] = l
	}
	if i := slices.Index(s.out.leaves, l); i >= 0 {
		return &logic{leaf: i}
	}
	s.out.leaves = append(s.out.leaves, l)
	return &logic{leaf: len(s.out.leaves) - 1}
}

func (s *splitter) compileLeaf(n ast.Node) *leaf {
	at := n.Location().From
	l := &leaf{source: n.String(), names: s.namesIn(n)}
	l.reads = factsRead(l.names)
	p, t, e := s.compile(s.src, n)
	if e == nil && !isKind(t, reflect.Bool) {
		e = errorAt(s.src, at, "a %s must be true or false, this is %s", s.noun, kindOf(t))
		if isKind(t, reflect.String) {
			e.Hint = `compare it: … == "…"`
		}
	}
	if s.err = e; e != nil {
		return nil
	}
	l.program = p
	return l
}

// evaluation is one run of a formula.
type evaluation struct {
	formula *formula
	machine *vm.VM
	env     any
	absent  uint64
	err     error // of the first leaf that failed
}

func (r *evaluation) leafValue(i int) Truth {
	l := r.formula.leaves[i]
	if l.reads&r.absent != 0 {
		return Unknown
	}
	out, err := run(r.machine, l.program, r.env)
	b, ok := out.(bool)
	if err == nil && !ok {
		err = fmt.Errorf("%s is neither true nor false", l.source)
	}
	if err != nil {
		if r.err == nil {
			r.err = err
		}
		return Failed
	}
	return truthOf(b)
}

// eval follows Kleene from left to right and stops as soon as the value is known. A run-time
// error that is reached before that decides: it must not be outvoted into a match.
func (l *logic) eval(leaf func(int) Truth) Truth {
	switch l.op {
	case opLeaf:
		return leaf(l.leaf)
	case opNot:
		switch v := l.kids[0].eval(leaf); v {
		case True:
			return False
		case False:
			return True
		default:
			return v
		}
	}
	stop, full := False, True
	if l.op == opOr {
		stop, full = True, False
	}
	unknown := false
	for _, k := range l.kids {
		switch v := k.eval(leaf); v {
		case stop, Failed:
			return v
		case Unknown:
			unknown = true
		}
	}
	if unknown {
		return Unknown
	}
	return full
}
