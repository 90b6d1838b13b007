package expr

import (
	"fmt"
	"reflect"
	"slices"

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

// logic is an expression split at and, or, not and ?:. Leaves are the smallest true-or-false parts.
type logic struct {
	op   logicOp
	leaf int32 // index into formula.leaves
	kids []logic
}

type logicOp uint8

const (
	opLeaf logicOp = iota
	opAnd
	opOr
	opNot
	opIf // kids[0] ? kids[1] : kids[2]
)

// leaf is a smallest true-or-false part. Formulas compiled by one language share equal leaves.
type leaf struct {
	source  string
	test    test        // a comparison with constants, else
	program *vm.Program // anything else
	reads   uint64      // bits of the node facts that it reads
	names   []*name
	states  int  // of its regular expression
	suspect bool // the lints have something to say
}

// formula is a compiled true-or-false expression.
type formula struct {
	root   logic
	leaves []*leaf // each once
	once   bool    // no leaf stands at two places
}

// evaluation is one run of a formula.
type evaluation struct {
	formula  *formula
	language *language
	machine  *vm.VM // taken when the first leaf needs one
	env      any
	root     reflect.Value // of env
	absent   uint64
	err      error   // of the first leaf that failed
	values   []Truth // of all leaves, where they are known already
}

func (l *language) evaluation(f *formula, env any, absent uint64) evaluation {
	return evaluation{formula: f, language: l, env: env, root: reflect.ValueOf(env), absent: absent}
}

func (r *evaluation) end() {
	if r.machine != nil {
		r.language.release(r.machine)
	}
}

func (r *evaluation) leafValue(i int32) Truth {
	if r.values != nil {
		return r.values[i]
	}
	l := r.formula.leaves[i]
	if l.reads&r.absent != 0 {
		return Unknown
	}
	var holds bool
	var err error
	if l.test != nil {
		holds, err = l.test.holds(r.root)
	} else {
		holds, err = r.run(l)
	}
	if err != nil {
		if r.err == nil {
			r.err = err
		}
		return Failed
	}
	return truthOf(holds)
}

func (r *evaluation) run(l *leaf) (bool, error) {
	if r.machine == nil {
		r.machine = r.language.machine()
	}
	out, err := run(r.machine, l.program, r.env)
	if err != nil {
		return false, err
	}
	b, ok := out.(bool)
	if !ok {
		return false, fmt.Errorf("%s is neither true nor false", l.source)
	}
	return b, nil
}

// eval follows Kleene from left to right and stops as soon as the value is known. A run-time
// error that is reached before that decides: it must not be outvoted into a match. Each part is
// looked at once at most, so a formula costs no more than it is long.
func (r *evaluation) eval(l *logic) Truth {
	switch l.op {
	case opLeaf:
		return r.leafValue(l.leaf)
	case opNot:
		return negated(r.eval(&l.kids[0]))
	case opIf:
		return r.evalIf(l)
	}
	stop := False
	if l.op == opOr {
		stop = True
	}
	unknown := false
	for i := range l.kids {
		switch v := r.eval(&l.kids[i]); v {
		case stop, Failed:
			return v
		case Unknown:
			unknown = true
		}
	}
	if unknown {
		return Unknown
	}
	return negated(stop)
}

// evalIf is (c and a) or (not c and b).
func (r *evaluation) evalIf(l *logic) Truth {
	switch c := r.eval(&l.kids[0]); c {
	case True:
		return r.eval(&l.kids[1])
	case False:
		return r.eval(&l.kids[2])
	case Failed:
		return Failed
	}
	a := r.eval(&l.kids[1])
	if a == Failed {
		return Failed
	}
	switch b := r.eval(&l.kids[2]); {
	case b == Failed:
		return Failed
	case a == False && b == False:
		return False
	}
	return Unknown
}

func negated(t Truth) Truth {
	switch t {
	case True:
		return False
	case False:
		return True
	}
	return t
}
