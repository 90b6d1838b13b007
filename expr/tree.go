package expr

import (
	"fmt"
	"math"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"

	"github.com/expr-lang/expr/ast"
)

// rebuild copies one part of a tree with f applied to each of its children.
func rebuild(n ast.Node, f func(ast.Node) ast.Node) ast.Node {
	each := func(list []ast.Node) []ast.Node {
		out := make([]ast.Node, len(list))
		for i, c := range list {
			out[i] = f(c)
		}
		return out
	}
	switch n := n.(type) {
	case *ast.UnaryNode:
		c := *n
		c.Node = f(n.Node)
		return &c
	case *ast.BinaryNode:
		c := *n
		c.Left, c.Right = f(n.Left), f(n.Right)
		return &c
	case *ast.ChainNode:
		c := *n
		c.Node = f(n.Node)
		return &c
	case *ast.MemberNode:
		c := *n
		c.Node, c.Property = f(n.Node), f(n.Property)
		return &c
	case *ast.SliceNode:
		c := *n
		c.Node = f(n.Node)
		if n.From != nil {
			c.From = f(n.From)
		}
		if n.To != nil {
			c.To = f(n.To)
		}
		return &c
	case *ast.CallNode:
		c := *n
		c.Callee, c.Arguments = f(n.Callee), each(n.Arguments)
		return &c
	case *ast.BuiltinNode:
		c := *n
		c.Arguments = each(n.Arguments)
		return &c
	case *ast.PredicateNode:
		c := *n
		c.Node = f(n.Node)
		return &c
	case *ast.ConditionalNode:
		c := *n
		c.Cond, c.Exp1, c.Exp2 = f(n.Cond), f(n.Exp1), f(n.Exp2)
		return &c
	case *ast.ArrayNode:
		c := *n
		c.Nodes = each(n.Nodes)
		return &c
	}
	return copyLeaf(n)
}

// copyLeaf copies a part without children; the checker writes types into parts, so two places
// must not share one.
func copyLeaf(n ast.Node) ast.Node {
	switch n := n.(type) {
	case *ast.NilNode:
		c := *n
		return &c
	case *ast.IdentifierNode:
		c := *n
		return &c
	case *ast.IntegerNode:
		c := *n
		return &c
	case *ast.FloatNode:
		c := *n
		return &c
	case *ast.BoolNode:
		c := *n
		return &c
	case *ast.StringNode:
		c := *n
		return &c
	case *ast.PointerNode:
		c := *n
		return &c
	}
	return n
}

// children calls f for each child of one part of a tree.
func children(n ast.Node, f func(ast.Node)) {
	switch n := n.(type) {
	case *ast.UnaryNode:
		f(n.Node)
	case *ast.BinaryNode:
		f(n.Left)
		f(n.Right)
	case *ast.ChainNode:
		f(n.Node)
	case *ast.MemberNode:
		f(n.Node)
		f(n.Property)
	case *ast.SliceNode:
		f(n.Node)
		if n.From != nil {
			f(n.From)
		}
		if n.To != nil {
			f(n.To)
		}
	case *ast.CallNode:
		f(n.Callee)
		for _, a := range n.Arguments {
			f(a)
		}
	case *ast.BuiltinNode:
		for _, a := range n.Arguments {
			f(a)
		}
	case *ast.PredicateNode:
		f(n.Node)
	case *ast.ConditionalNode:
		f(n.Cond)
		f(n.Exp1)
		f(n.Exp2)
	case *ast.ArrayNode:
		for _, a := range n.Nodes {
			f(a)
		}
	}
}

// prune lets go of the tree below n. A program keeps its tree for tools that we do not use, at
// several times its own size.
func prune(n ast.Node) {
	switch n := n.(type) {
	case *ast.UnaryNode:
		n.Node = nil
	case *ast.BinaryNode:
		n.Left, n.Right = nil, nil
	case *ast.ChainNode:
		n.Node = nil
	case *ast.MemberNode:
		n.Node, n.Property = nil, nil
	case *ast.CallNode:
		n.Callee, n.Arguments = nil, nil
	case *ast.BuiltinNode:
		n.Arguments, n.Map = nil, nil
	case *ast.ConditionalNode:
		n.Cond, n.Exp1, n.Exp2 = nil, nil, nil
	}
}

// fingerprint tells trees apart; equal texts come from equal trees. The library's printer leaves
// out some brackets and the point of 3.0.
func fingerprint(b []byte, n ast.Node) []byte {
	b = append(b, '(')
	switch n := n.(type) {
	case *ast.NilNode:
		b = append(b, 'n')
	case *ast.UnaryNode:
		b = append(append(b, 'u'), n.Operator...)
	case *ast.BinaryNode:
		b = append(append(b, 'b'), n.Operator...)
	case *ast.IdentifierNode:
		b = append(append(b, 'i'), n.Value...)
	case *ast.IntegerNode:
		b = strconv.AppendInt(append(b, 'd'), int64(n.Value), 10)
	case *ast.FloatNode:
		b = strconv.AppendUint(append(b, 'f'), math.Float64bits(n.Value), 10)
	case *ast.BoolNode:
		b = strconv.AppendBool(append(b, 't'), n.Value)
	case *ast.StringNode:
		b = strconv.AppendQuote(append(b, 's'), n.Value)
	case *ast.PointerNode:
		b = append(append(b, '#'), n.Name...)
	case *ast.BuiltinNode:
		b = append(append(b, 'B'), n.Name...)
	case *ast.MemberNode:
		b = strconv.AppendBool(append(b, 'm'), n.Optional)
	case *ast.SliceNode:
		b = strconv.AppendBool(append(b, '['), n.From != nil)
	case *ast.CallNode:
		b = append(b, 'c')
	case *ast.ChainNode:
		b = append(b, 'h')
	case *ast.PredicateNode:
		b = append(b, 'p')
	case *ast.ConditionalNode:
		b = append(b, '?')
	case *ast.ArrayNode:
		b = append(b, 'a')
	default:
		b = fmt.Appendf(b, "%T", n)
	}
	children(n, func(c ast.Node) { b = fingerprint(b, c) })
	return append(b, ')')
}

// reader copies a parsed tree into one that keeps the rules. The parser shares parts between
// places (in `a < b < c` the b), which would let a short source grow without bound when walked;
// the copy shares nothing and is limited. `let` names are replaced by their values on the way.
type reader struct {
	*dialect
	src     string
	left    int // parts that may still be made
	states  int // regular expression states that may still be used
	lets    []binding
	closure bool
	err     *Error
}

type binding struct {
	name  string
	value ast.Node
	used  *bool
}

// fail records the first refusal; n is returned so that callers need no second path.
func (r *reader) fail(n ast.Node, hint, format string, args ...any) ast.Node {
	if r.err == nil {
		r.err = errorAt(r.src, n.Location().From, format, args...)
		r.err.Hint = hint
	}
	return n
}

func (r *reader) tooManyParts(n ast.Node) ast.Node {
	return r.fail(n, "split it into several definitions", "the expression has more than %d parts", maxNodes)
}

func (r *reader) copy(n ast.Node) ast.Node {
	if r.left--; r.left < 0 {
		return r.tooManyParts(n)
	}
	if r.err != nil {
		return n
	}
	switch n := n.(type) {
	case *ast.IdentifierNode:
		return r.identifier(n)
	case *ast.VariableDeclaratorNode:
		return r.let(n)
	case *ast.MemberNode:
		return r.member(n, false)
	case *ast.CallNode:
		return r.call(n)
	case *ast.BuiltinNode:
		return r.builtin(n)
	case *ast.BinaryNode:
		return r.binary(n)
	case *ast.SequenceNode:
		return r.fail(n, "join conditions with and", "only one expression is allowed")
	case *ast.MapNode, *ast.PairNode:
		return r.fail(n, "", "maps cannot be written in expressions")
	case *ast.BytesNode:
		return r.fail(n, "use a plain text", "byte texts are not part of the language")
	case *ast.ConditionalNode:
		c := rebuild(n, r.copy)
		c.SetLocation(n.Cond.Location()) // the parser gives it none
		return c
	}
	return rebuild(n, r.copy)
}

func (r *reader) identifier(n *ast.IdentifierNode) ast.Node {
	for i, b := range slices.Backward(r.lets) {
		if b.name != n.Value {
			continue
		}
		*b.used = true
		scope := r.lets
		r.lets = r.lets[:i] // a value sees what was named before it
		value := r.copy(b.value)
		r.lets = scope
		return value
	}
	if n.Value == "$env" {
		return r.fail(n, "", "$env is not part of the language")
	}
	if f := r.fields[n.Value]; f != nil {
		r.mustBeValue(n, f, false)
	}
	return copyLeaf(n)
}

// mustBeValue refuses the name of a group or function where a value is wanted.
func (r *reader) mustBeValue(n ast.Node, f *field, called bool) {
	switch name := strings.TrimSuffix(f.name.text, "()"); {
	case f.group():
		r.fail(n, "name one of its fields", "%s is a group, not a value", name)
	case f.name.call && !called && strings.Contains(name, "."):
		r.fail(n, "write "+name+"(…)", "%s is a function", name)
	case f.name.call && !called:
		r.fail(n, "write "+name+"()", "%s is a function", name)
	}
}

// isGroup reports whether a top-level name has fields.
func (d *dialect) isGroup(name string) bool {
	return slices.ContainsFunc(d.names, func(s string) bool { return strings.HasPrefix(s, name+".") })
}

func (r *reader) let(n *ast.VariableDeclaratorNode) ast.Node {
	if r.closure {
		return r.fail(n, "", "let is not allowed inside a closure")
	}
	if r.fields[n.Name] != nil || slices.ContainsFunc(r.lets, func(b binding) bool { return b.name == n.Name }) {
		return r.fail(n, "choose another name", "%s is already taken", n.Name)
	}
	used := false
	r.lets = append(r.lets, binding{n.Name, n.Value, &used})
	body := r.copy(n.Expr)
	r.lets = r.lets[:len(r.lets)-1]
	if !used && r.err == nil {
		return r.fail(n, "remove it", "%s is never used", n.Name)
	}
	return body
}

func (r *reader) member(n *ast.MemberNode, called bool) ast.Node {
	if f := r.step(n, false); f != nil {
		r.mustBeValue(n, f, called)
	}
	c := *n
	c.Node, c.Property = r.base(n.Node), r.copy(n.Property)
	return &c
}

// base copies what stands before a dot, the only place where a group may be named.
func (r *reader) base(n ast.Node) ast.Node {
	if f := r.step(n, false); f == nil || !f.group() {
		return r.copy(n)
	}
	r.left--
	return rebuild(n, func(c ast.Node) ast.Node {
		if _, ok := c.(*ast.StringNode); ok {
			return copyLeaf(c)
		}
		return r.base(c)
	})
}

func (r *reader) call(n *ast.CallNode) ast.Node {
	c := *n
	c.Arguments = make([]ast.Node, len(n.Arguments))
	for i, a := range n.Arguments {
		c.Arguments[i] = r.copy(a)
	}
	switch callee := n.Callee.(type) {
	case *ast.IdentifierNode:
		r.left--
		c.Callee = copyLeaf(callee) // unknown functions are the checker's to refuse
	case *ast.MemberNode:
		c.Callee = r.member(callee, true)
	default:
		return r.fail(n, "", "only functions can be called")
	}
	if f := r.step(n.Callee, false); f != nil && f.name.devices {
		return r.modalias(&c, strings.TrimSuffix(f.name.text, "()"))
	}
	return &c
}

func (r *reader) modalias(n *ast.CallNode, name string) ast.Node {
	if r.closure {
		return r.fail(n, "", "%s is not allowed inside a closure", name)
	}
	for _, a := range n.Arguments {
		pattern, ok := a.(*ast.StringNode)
		if !ok {
			return r.fail(a, "write the pattern as a text in quotes", "the pattern of %s must be constant", name)
		}
		if len(pattern.Value) > maxGlob {
			return r.fail(a, "", "the pattern of %s has more than %d bytes", name, maxGlob)
		}
	}
	return n
}

// builtins of the library that the language has. Each makes at most as much as it is given.
func allowedBuiltin(name string) bool {
	switch name {
	case "all", "any", "none", "one", "filter", "map", "count", "find", "len", "first", "last",
		"abs", "ceil", "floor", "round", "float", "min", "max", "string",
		"trim", "trimPrefix", "trimSuffix", "upper", "lower", "split", "hasPrefix", "hasSuffix", "indexOf", "lastIndexOf":
		return true
	}
	return false
}

func (r *reader) builtin(n *ast.BuiltinNode) ast.Node {
	if !allowedBuiltin(n.Name) {
		return r.fail(n, "", "%s is not part of the language", n.Name)
	}
	c := *n
	c.Arguments = make([]ast.Node, len(n.Arguments))
	for i, a := range n.Arguments {
		if _, ok := a.(*ast.PredicateNode); ok {
			if r.closure {
				return r.fail(n, "", "closures cannot be nested")
			}
			r.closure = true
			c.Arguments[i] = r.copy(a)
			r.closure = false
			continue
		}
		c.Arguments[i] = r.copy(a)
	}
	return &c
}

func (r *reader) binary(n *ast.BinaryNode) ast.Node {
	switch n.Operator {
	case "..":
		return r.fail(n, "compare twice: 16 <= x <= 64", "ranges are not part of the language")
	case "??":
		return r.fail(n, "a missing key reads as \"\" or 0, an absent fact makes the condition unknown", "?? is not part of the language")
	}
	c := *n
	c.Left, c.Right = r.copy(n.Left), r.copy(n.Right)
	if _, fits := constInt(&c); !fits {
		return r.fail(n, "", "the number is too large")
	}
	if l, ok := c.Left.(*ast.StringNode); ok && n.Operator == "+" {
		if right, ok := c.Right.(*ast.StringNode); ok {
			if len(l.Value)+len(right.Value) > maxSource {
				return r.fail(n, "", "the text is too long")
			}
			folded := &ast.StringNode{Value: l.Value + right.Value}
			folded.SetLocation(n.Location())
			return folded
		}
	}
	if n.Operator == "matches" && r.err == nil {
		r.pattern(&c)
	}
	return &c
}

// pattern checks the right side of matches: constant, valid and small. A pattern from an
// annotation would be empty where the annotation is absent, and match everything.
func (r *reader) pattern(n *ast.BinaryNode) *syntax.Regexp {
	p, ok := n.Right.(*ast.StringNode)
	if !ok {
		r.fail(n.Right, "write the pattern as a text in quotes", "the pattern of matches must be constant")
		return nil
	}
	re, err := syntax.Parse(p.Value, syntax.Perl)
	if err != nil {
		r.fail(p, globHint(p.Value), "%v", err)
		return nil
	}
	cost := states(re)
	if r.closure {
		cost *= perClosure
	}
	if r.states -= cost; r.states < 0 {
		r.fail(p, "", "the regular expressions are too large")
	}
	return re
}

// states estimates the size of a compiled regular expression before its repeats are written out.
func states(re *syntax.Regexp) int {
	n := 1 + len(re.Rune)/2
	if re.Op == syntax.OpLiteral {
		n = len(re.Rune)
	}
	for _, sub := range re.Sub {
		n += states(sub)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(1, re.Min+1, re.Max)
	}
	return min(n, maxPattern+1)
}

// constInt is the value of an integer expression without names. fits is false when it, or a
// part of it, does not fit 64 bits; other expressions are nil and fit.
func constInt(n ast.Node) (value *int, fits bool) {
	switch n := n.(type) {
	case *ast.IntegerNode:
		return &n.Value, true
	case *ast.UnaryNode:
		v, ok := constInt(n.Node)
		if v == nil || n.Operator != "-" {
			return v, ok
		}
		minus := -*v
		return &minus, true
	case *ast.BinaryNode:
		l, lok := constInt(n.Left)
		r, rok := constInt(n.Right)
		if !lok || !rok {
			return nil, false
		}
		if l == nil || r == nil {
			return nil, true
		}
		v, err := arithmetic(n.Operator, *l, *r)
		if err != nil {
			return nil, false
		}
		return v, true
	}
	return nil, true
}

// arithmetic is checked 64-bit arithmetic; nil for operators that are not + - *.
func arithmetic(op string, a, b int) (*int, error) {
	var v int
	ok := true
	switch op {
	case "+":
		v = a + b
		ok = (v > a) == (b > 0)
	case "-":
		v = a - b
		ok = (v < a) == (b > 0)
	case "*":
		v = a * b
		ok = a == 0 || (v/a == b && !(a == -1 && b == minInt))
	default:
		return nil, nil
	}
	if !ok {
		return nil, fmt.Errorf("%d %s %d does not fit 64 bits", a, op, b)
	}
	return &v, nil
}

const minInt = -1 << 63
