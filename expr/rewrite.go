package expr

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/builtin"
	"github.com/expr-lang/expr/conf"
)

// eitherName lets a comparison of an organisation's or group's id accept its name too:
// `id op x` becomes `name op x or id op x`, and `x in [id]` becomes `x in [id, name]`.
// Both texts stand in the environment.
type eitherName struct {
	*dialect
	src  string
	left int // parts that may still be copied
	err  *Error
}

func (w *eitherName) Visit(node *ast.Node) {
	n, ok := (*node).(*ast.BinaryNode)
	if !ok || w.err != nil {
		return
	}
	switch n.Operator {
	case "==", "!=", "in", "contains", "startsWith", "endsWith", "matches":
		*node = w.either(n)
	}
}

func (w *eitherName) either(n *ast.BinaryNode) ast.Node {
	positive := n
	if n.Operator == "!=" {
		c := *n
		c.Operator = "=="
		positive = &c
	}
	var out ast.Node
	if name := w.name(n.Left); name != nil {
		out = w.or(positive, w.with(positive, name, nil), w.with(positive, positive.Left, nil))
	} else if name := w.name(n.Right); name != nil && positive.Operator == "==" {
		out = w.or(positive, w.with(positive, nil, name), w.with(positive, nil, positive.Right))
	} else {
		if list, ok := n.Right.(*ast.ArrayNode); ok && n.Operator == "in" {
			w.extend(list)
		}
		return n
	}
	if n.Operator == "!=" {
		not := &ast.UnaryNode{Operator: "not", Node: out}
		not.SetLocation(n.Location())
		return not
	}
	return out
}

// or joins two comparisons; the right-hand sides that are ids themselves are widened too.
func (w *eitherName) or(at ast.Node, l, r *ast.BinaryNode) ast.Node {
	widen := func(b *ast.BinaryNode) ast.Node {
		if b.Operator == "==" {
			if name := w.name(b.Right); name != nil {
				or := &ast.BinaryNode{Operator: "or", Left: w.with(b, nil, name), Right: w.with(b, nil, b.Right)}
				or.SetLocation(at.Location())
				return or
			}
		}
		if list, ok := b.Right.(*ast.ArrayNode); ok && b.Operator == "in" {
			w.extend(list)
		}
		return b
	}
	out := &ast.BinaryNode{Operator: "or", Left: widen(l), Right: widen(r)}
	out.SetLocation(at.Location())
	return out
}

// with copies a comparison with one side replaced; nothing is shared with the original.
func (w *eitherName) with(n *ast.BinaryNode, left, right ast.Node) *ast.BinaryNode {
	c := *n
	if left != nil {
		c.Left = left
	}
	if right != nil {
		c.Right = right
	}
	c.Left, c.Right = w.clone(c.Left), w.clone(c.Right)
	return &c
}

// clone copies a tree that was already read. Comparisons inside comparisons double with each
// level, so the copies are limited in all.
func (w *eitherName) clone(n ast.Node) ast.Node {
	if w.left--; w.left < 0 {
		if w.err == nil {
			w.err = errorAt(w.src, n.Location().From, "the expression has more than %d parts", maxNodes)
		}
		return n
	}
	return rebuild(n, w.clone)
}

// extend adds the names next to the ids of a written list.
func (w *eitherName) extend(list *ast.ArrayNode) {
	for _, item := range slices.Clone(list.Nodes) {
		if name := w.name(item); name != nil {
			list.Nodes = append(list.Nodes, name)
		}
	}
}

// name is the field that holds the name of an id field, nil for other expressions.
func (w *eitherName) name(n ast.Node) ast.Node {
	m, ok := n.(*ast.MemberNode)
	if !ok {
		return nil
	}
	f := w.step(m, false)
	if f == nil || f.name.alt == nil {
		return nil
	}
	c := *m
	c.Node = w.clone(m.Node)
	property := &ast.StringNode{Value: nameOf(m.Property.(*ast.StringNode).Value)}
	property.SetLocation(m.Property.Location())
	c.Property = property
	return &c
}

// unifier gives both branches of `c ? 1 : 0.5` one type, which the library leaves open.
type unifier struct{ changed bool }

func (w *unifier) Visit(node *ast.Node) {
	n, ok := (*node).(*ast.ConditionalNode)
	if !ok || !numeric(n.Exp1) || !numeric(n.Exp2) || n.Exp1.Type() == n.Exp2.Type() {
		return
	}
	w.changed = true
	for _, branch := range []*ast.Node{&n.Exp1, &n.Exp2} {
		if isKind((*branch).Type(), reflect.Float64) {
			continue
		}
		f := &ast.BuiltinNode{Name: "float", Arguments: []ast.Node{*branch}}
		f.SetLocation((*branch).Location())
		f.SetType(reflect.TypeFor[float64]())
		*branch = f
	}
	n.SetType(reflect.TypeFor[float64]())
}

// rewriter replaces operations in which the library would silently be wrong: unsigned numbers
// above 2^63 read as negative, 64-bit sums wrap, 1/0 is larger than everything, text + text is
// not in the memory budget. It runs after the types are known and keeps them.
type rewriter struct {
	src string
	err *Error
}

func (w *rewriter) fail(n ast.Node, hint, format string, args ...any) {
	if w.err == nil {
		w.err = errorAt(w.src, n.Location().From, format, args...)
		w.err.Hint = hint
	}
}

func (w *rewriter) Visit(node *ast.Node) {
	switch n := (*node).(type) {
	case *ast.MemberNode, *ast.IdentifierNode:
		if isKind(n.Type(), reflect.Uint64) {
			*node = call(n, "@saturate", reflect.TypeFor[int](), n)
		}
	case *ast.BinaryNode:
		w.binary(node, n)
	case *ast.CallNode:
		w.modalias(node, n)
	}
}

// modalias parses the pattern of modalias.match and modalias.count once instead of at each run.
func (w *rewriter) modalias(node *ast.Node, n *ast.CallNode) {
	callee, ok := n.Callee.(*ast.MemberNode)
	if !ok || len(n.Arguments) != 1 || !isPointerTo[NodeModalias](callee.Node.Type()) {
		return
	}
	pattern, ok := n.Arguments[0].(*ast.StringNode)
	if !ok {
		return
	}
	function := "@" + callee.Property.(*ast.StringNode).Value
	parsed := &ast.ConstantNode{Value: parseGlob(pattern.Value)}
	*node = call(n, function, n.Type(), callee.Node, parsed)
}

func isPointerTo[T any](t reflect.Type) bool { return t == reflect.TypeFor[*T]() }

func (w *rewriter) binary(node *ast.Node, n *ast.BinaryNode) {
	switch n.Operator {
	case "<", "<=", ">", ">=", "==", "!=":
		if raw(n.Left) != n.Left || raw(n.Right) != n.Right {
			*node = call(n, "@"+n.Operator, reflect.TypeFor[bool](), raw(n.Left), raw(n.Right))
		}
	case "+", "-", "*":
		if !numeric(n.Left) || !numeric(n.Right) {
			w.fail(n, "", "%s takes numbers: texts and lists cannot be joined", n.Operator)
			return
		}
		if n.Left.Nature().IsInteger && n.Right.Nature().IsInteger && bound(n) >= 1<<62 {
			*node = call(n, "@"+n.Operator, reflect.TypeFor[int](), n.Left, n.Right)
		}
	case "/":
		if i, ok := n.Right.(*ast.IntegerNode); ok && i.Value != 0 {
			return
		}
		if f, ok := n.Right.(*ast.FloatNode); ok && f.Value != 0 {
			return
		}
		*node = call(n, "@/", reflect.TypeFor[float64](), n.Left, n.Right)
	}
}

func numeric(n ast.Node) bool { return n.Nature().IsNumber() }

// bound is the largest magnitude an integer expression can have, +Inf when unknown.
func bound(n ast.Node) float64 {
	switch n := n.(type) {
	case *ast.IntegerNode:
		return math.Abs(float64(n.Value))
	case *ast.UnaryNode:
		return bound(n.Node)
	case *ast.BinaryNode:
		switch n.Operator {
		case "+", "-":
			return bound(n.Left) + bound(n.Right)
		case "*":
			return bound(n.Left) * bound(n.Right)
		}
	}
	switch n.Type().Kind() {
	case reflect.Int32, reflect.Uint32:
		return 1 << 32
	}
	return math.Inf(1)
}

// raw undoes the saturation of an unsigned operand.
func raw(n ast.Node) ast.Node {
	if c, ok := n.(*ast.CallNode); ok {
		if id, ok := c.Callee.(*ast.IdentifierNode); ok && id.Value == "@saturate" {
			return c.Arguments[0]
		}
	}
	return n
}

func call(at ast.Node, name string, t reflect.Type, args ...ast.Node) ast.Node {
	callee := &ast.IdentifierNode{Value: name}
	callee.SetLocation(at.Location())
	n := &ast.CallNode{Callee: callee, Arguments: args}
	n.SetLocation(at.Location())
	n.SetType(t)
	return n
}

// functions are ours: `int` replaces the library's, the others have names nobody can write.
func functions() conf.FunctionsTable {
	table := conf.FunctionsTable{
		"int":       {Name: "int", Func: toInt, Types: []reflect.Type{reflect.TypeFor[func(int) int](), reflect.TypeFor[func(float64) int](), reflect.TypeFor[func(string) int]()}},
		"@saturate": {Name: "@saturate", Func: saturate},
		"@/":        {Name: "@/", Func: divide},
	}
	table["@match"] = &builtin.Function{Name: "@match", Func: func(args ...any) (any, error) {
		n, err := countDevices(args...)
		return n > 0, err
	}}
	table["@count"] = &builtin.Function{Name: "@count", Func: func(args ...any) (any, error) { return countDevices(args...) }}
	for _, op := range []string{"<", "<=", ">", ">=", "==", "!="} {
		table["@"+op] = &builtin.Function{Name: "@" + op, Func: func(args ...any) (any, error) { return compared(op, args[0], args[1]) }}
	}
	for _, op := range []string{"+", "-", "*"} {
		table["@"+op] = &builtin.Function{Name: "@" + op, Func: func(args ...any) (any, error) { return checked(op, args[0], args[1]) }}
	}
	return table
}

// saturate reads an unsigned number as the nearest signed one.
func saturate(args ...any) (any, error) {
	u, ok := args[0].(uint64)
	if !ok {
		return nil, fmt.Errorf("%v is not an unsigned number", args[0])
	}
	return int(min(u, math.MaxInt64)), nil
}

// whole is an integer as sign and magnitude.
func whole(v any) (negative bool, magnitude uint64, ok bool) {
	switch v := v.(type) {
	case uint64:
		return false, v, true
	case uint32:
		return false, uint64(v), true
	case int32:
		return whole(int(v))
	case int:
		if v < 0 {
			return true, -uint64(v), true
		}
		return false, uint64(v), true
	}
	return false, 0, false
}

// compared compares two numbers of which at least one is unsigned.
func compared(op string, a, b any) (bool, error) {
	order, known := 0, true
	an, am, aok := whole(a)
	bn, bm, bok := whole(b)
	switch {
	case aok && bok && an != bn:
		order = 1
		if an {
			order = -1
		}
	case aok && bok:
		order = cmpUint(am, bm)
		if an {
			order = -order
		}
	default:
		x, xok := float(a)
		y, yok := float(b)
		if !xok || !yok {
			return op == "!=", nil // a number never equals another type; the checker refused the rest
		}
		known = x == x && y == y
		switch {
		case x < y:
			order = -1
		case x > y:
			order = 1
		}
	}
	if !known {
		return op == "!=", nil
	}
	switch op {
	case "<":
		return order < 0, nil
	case "<=":
		return order <= 0, nil
	case ">":
		return order > 0, nil
	case ">=":
		return order >= 0, nil
	case "==":
		return order == 0, nil
	}
	return order != 0, nil
}

func cmpUint(a, b uint64) int {
	if a == b {
		return 0
	}
	if _, borrow := bits.Sub64(a, b, 0); borrow != 0 {
		return -1
	}
	return 1
}

func float(v any) (float64, bool) {
	if f, ok := v.(float64); ok {
		return f, true
	}
	negative, m, ok := whole(v)
	if negative {
		return -float64(m), ok
	}
	return float64(m), ok
}

// checked is integer arithmetic that fails instead of wrapping.
func checked(op string, a, b any) (any, error) {
	x, err := signed(a)
	if err != nil {
		return nil, err
	}
	y, err := signed(b)
	if err != nil {
		return nil, err
	}
	v, err := arithmetic(op, x, y)
	if err != nil {
		return nil, err
	}
	return *v, nil
}

func signed(v any) (int, error) {
	negative, m, ok := whole(v)
	if !ok || m > math.MaxInt64 {
		return 0, fmt.Errorf("%v does not fit 64 bits", v)
	}
	if negative {
		return -int(m), nil
	}
	return int(m), nil
}

func divide(args ...any) (any, error) {
	a, aok := float(args[0])
	b, bok := float(args[1])
	if !aok || !bok {
		return nil, errors.New("/ takes numbers")
	}
	if b == 0 {
		return nil, errors.New("division by zero")
	}
	return a / b, nil
}

// toInt is int(x): it refuses what has no whole 64-bit value, such as the endless job_ttl of a service.
func toInt(args ...any) (any, error) {
	switch v := args[0].(type) {
	case float64:
		if v != v || v >= 1<<63 || v < -1<<63 {
			return nil, fmt.Errorf("%v has no whole number", v)
		}
		return int(v), nil
	case string:
		i, err := strconv.Atoi(strings.TrimSpace(v))
		if err != nil {
			return nil, fmt.Errorf("%.40q is not a whole number", v)
		}
		return i, nil
	}
	return signed(args[0])
}

// countDevices is modalias.count with a parsed pattern.
func countDevices(args ...any) (int, error) {
	m, ok := args[0].(*NodeModalias)
	g, isGlob := args[1].(*glob)
	if !ok || !isGlob || m == nil || m.devices == nil {
		return 0, errors.New("the node has no list of devices")
	}
	return m.devices.count(g), nil
}
