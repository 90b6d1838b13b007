package expr

import (
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/parser"
)

// splitter makes a formula of a parsed tree in one pass: it keeps the rules, looks for what is
// suspicious and compiles. Only leaves that need the library are copied.
type splitter struct {
	reader
	lint   linter
	out    formula
	places []int // of the leaves, in the order of out.leaves
	copied bool  // the tree below is already read
	buf    []byte
}

// formula compiles a true-or-false source and lints it.
func (d *dialect) formula(src string) (*formula, []Finding, *Error) {
	n, e := d.parse(src)
	if e != nil {
		return nil, nil, e
	}
	s := &splitter{
		reader: reader{dialect: d, src: src, left: maxNodes, states: maxPattern},
		lint:   linter{dialect: d, src: src},
		buf:    d.scratch[:0],
		out:    formula{once: true},
	}
	s.out.root = s.split(n)
	d.scratch = s.buf
	if s.err != nil {
		return nil, nil, s.err
	}
	s.lint.contradictions(&s.out, s.places)
	return &s.out, s.lint.findings(), nil
}

// parse reads a source into the library's tree.
func (d *dialect) parse(src string) (ast.Node, *Error) {
	if e := guard(src); e != nil {
		return nil, e
	}
	if blank(src) {
		return nil, errorAt(src, 0, "the expression is empty").hint("write true to admit everything")
	}
	tree, err := parser.ParseWithConfig(src, d.conf)
	if err != nil {
		return nil, d.fromLibrary(src, err)
	}
	return tree.Node, nil
}

func (s *splitter) split(n ast.Node) logic {
	if s.err != nil {
		return logic{}
	}
	switch n := n.(type) {
	case *ast.BinaryNode:
		switch n.Operator {
		case "and", "&&":
			return s.join(opAnd, n)
		case "or", "||":
			return s.join(opOr, n)
		}
	case *ast.UnaryNode:
		if n.Operator == "not" || n.Operator == "!" {
			s.count(n)
			l := s.split(n.Node)
			if l.op == opNot {
				return l.kids[0]
			}
			return logic{op: opNot, kids: []logic{l}}
		}
	case *ast.ConditionalNode:
		s.count(n.Cond)
		return logic{op: opIf, kids: []logic{s.split(n.Cond), s.split(n.Exp1), s.split(n.Exp2)}}
	case *ast.VariableDeclaratorNode:
		if !s.copied {
			read := s.copy(n)
			s.copied = true
			l := s.split(read)
			s.copied = false
			return l
		}
	}
	return s.addLeaf(n)
}

// count keeps the limit on parts; what is copied was counted then.
func (s *splitter) count(n ast.Node) {
	if s.copied {
		return
	}
	if s.left--; s.left < 0 {
		s.tooManyParts(n)
	}
}

// join makes one flat and/or of a chain of them.
func (s *splitter) join(op logicOp, n *ast.BinaryNode) logic {
	out := logic{op: op}
	s.count(n)
	for _, side := range [2]ast.Node{n.Left, n.Right} {
		if p := s.split(side); p.op == op {
			if out.kids == nil {
				out.kids = p.kids
			} else {
				out.kids = append(out.kids, p.kids...)
			}
		} else {
			out.kids = append(out.kids, p)
		}
	}
	return out
}

func (s *splitter) addLeaf(n ast.Node) logic {
	if sh, ok := s.shapeOf(n); ok {
		return s.place(n, s.plainLeaf(n, &sh))
	}
	if !s.copied {
		n = s.copy(n)
		if s.err != nil {
			return logic{}
		}
		if sh, ok := s.shapeOf(n); ok { // a text that was joined from two is one now
			return s.place(n, s.plainLeaf(n, &sh))
		}
	}
	s.lint.walk(n)
	s.buf = fingerprint(s.buf[:0], n)
	l := s.leaves[string(s.buf)]
	if l == nil {
		key := string(s.buf)
		if l = s.compileLeaf(n); l == nil {
			return logic{}
		}
		s.leaves[key] = l
	}
	return s.place(n, l)
}

// place is the leaf in the formula, which lists each once.
func (s *splitter) place(n ast.Node, l *leaf) logic {
	if l == nil {
		return logic{}
	}
	if i := slices.Index(s.out.leaves, l); i >= 0 {
		s.out.once = false
		return logic{leaf: int32(i)}
	}
	s.out.leaves = append(s.out.leaves, l)
	s.places = append(s.places, n.Location().From)
	return logic{leaf: int32(len(s.out.leaves) - 1)}
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

// shape is a leaf that compares one input with constants.
type shape struct {
	name     *name
	op       string // "" for an input that is true or false by itself
	turned   bool   // the constant stands left
	text     *ast.StringNode
	list     *ast.ArrayNode // of texts
	constant *ast.BoolNode
	number   number
	isNumber bool
}

// shapeOf recognises a shape. What it does not recognise is the library's to check.
func (d *dialect) shapeOf(n ast.Node) (sh shape, ok bool) {
	switch n := n.(type) {
	case *ast.BoolNode:
		return shape{constant: n}, true
	case *ast.BinaryNode:
		return d.comparison(n)
	}
	sh.name = d.input(n, true)
	if sh.name == nil || sh.name.kind.Kind() != reflect.Bool {
		return sh, false
	}
	return sh, !sh.name.devices || sh.name.constantPattern()
}

func (n *name) constantPattern() bool { return n.hasPattern && len(n.pattern) <= maxGlob }

func (d *dialect) comparison(n *ast.BinaryNode) (sh shape, ok bool) {
	sh.op = n.Operator
	left, right := n.Left, n.Right
	if sh.name = d.input(left, true); sh.name == nil {
		left, right = right, left
		sh.turned = true
		if sh.name = d.input(left, true); sh.name == nil {
			return sh, false
		}
	}
	if sh.name.devices && !sh.name.constantPattern() {
		return sh, false
	}
	switch sh.name.kind.Kind() {
	case reflect.String:
		return sh, sh.textConstant(right)
	case reflect.Slice:
		sh.text, _ = right.(*ast.StringNode)
		return sh, sh.turned && sh.op == "in" && sh.text != nil && !sh.name.devices
	case reflect.Int, reflect.Int32, reflect.Uint32, reflect.Uint64, reflect.Float64:
		sh.number, sh.isNumber = numberOf(right)
		return sh, sh.isNumber && isComparison(sh.op) && !(sh.name.devices && sh.number.isFloat)
	}
	return sh, false
}

func (sh *shape) textConstant(n ast.Node) bool {
	sh.text, _ = n.(*ast.StringNode)
	switch sh.op {
	case "==", "!=":
		return sh.text != nil
	case "<", "<=", ">", ">=":
		return sh.text != nil && sh.name.alt == nil
	case "contains", "startsWith", "endsWith", "matches":
		return sh.text != nil && !sh.turned
	case "in":
		sh.list, _ = n.(*ast.ArrayNode)
		return sh.list != nil && !sh.turned && len(sh.list.Nodes) > 0 && !slices.ContainsFunc(sh.list.Nodes, func(n ast.Node) bool { return !isText(n) })
	}
	return false
}

func isComparison(op string) bool {
	switch op {
	case "==", "!=", "<", "<=", ">", ">=":
		return true
	}
	return false
}

// numberOf is a number as written, or whole numbers joined by + - *.
func numberOf(n ast.Node) (number, bool) {
	switch n := n.(type) {
	case *ast.IntegerNode:
		return number{whole: n.Value}, true
	case *ast.FloatNode:
		return number{float: n.Value, isFloat: true}, true
	case *ast.UnaryNode:
		if f, ok := n.Node.(*ast.FloatNode); ok && n.Operator == "-" {
			return number{float: -f.Value, isFloat: true}, true
		}
	}
	v, fits := constInt(n)
	if v == nil || !fits {
		return number{}, false
	}
	return number{whole: *v}, true
}

// write is the shape as text. Equal texts are equal shapes.
func (sh *shape) write(b []byte) []byte {
	if sh.constant != nil {
		return strconv.AppendBool(b, sh.constant.Value)
	}
	if sh.op == "" {
		return append(b, sh.name.text...)
	}
	if sh.turned {
		b = sh.writeConstant(b)
		b = append(append(append(b, ' '), sh.op...), ' ')
		return append(b, sh.name.text...)
	}
	b = append(b, sh.name.text...)
	b = append(append(append(b, ' '), sh.op...), ' ')
	return sh.writeConstant(b)
}

func (sh *shape) writeConstant(b []byte) []byte {
	switch {
	case sh.text != nil:
		return strconv.AppendQuote(b, sh.text.Value)
	case sh.list != nil:
		for i, n := range sh.list.Nodes {
			if i == 0 {
				b = append(b, '[')
			} else {
				b = append(b, ", "...)
			}
			b = strconv.AppendQuote(b, n.(*ast.StringNode).Value)
		}
		return append(b, ']')
	case sh.number.isFloat:
		from := len(b)
		b = strconv.AppendFloat(b, sh.number.float, 'g', -1, 64)
		if !strings.ContainsAny(string(b[from:]), ".eIN") {
			b = append(b, ".0"...)
		}
		return b
	}
	return strconv.AppendInt(b, int64(sh.number.whole), 10)
}

// plainLeaf is the leaf of a shape, shared with equal ones.
func (s *splitter) plainLeaf(n ast.Node, sh *shape) *leaf {
	s.count(n)
	s.buf = sh.write(s.buf[:0])
	l := s.plain[string(s.buf)]
	if l != nil {
		if s.states -= l.states; s.states < 0 {
			s.fail(n, "", "the regular expressions are too large")
			return nil
		}
		if l.suspect {
			s.lint.walk(n)
		}
		return l
	}
	l = &leaf{source: string(s.buf)}
	if sh.name != nil {
		l.names = []*name{sh.name}
		l.reads = sh.name.reads
	}
	before, found := s.states, len(s.lint.found)
	if l.test = s.testOf(n, sh); s.err != nil {
		return nil
	}
	l.states = before - s.states
	l.suspect = len(s.lint.found) > found
	s.plain[l.source] = l
	return l
}

// testOf makes the test of a shape, checks its pattern and lints it.
func (s *splitter) testOf(n ast.Node, sh *shape) test {
	switch {
	case sh.constant != nil:
		return constTest(sh.constant.Value)
	case sh.name.devices:
		s.lint.walk(n)
		return &deviceTest{glob: parseGlob(sh.name.pattern), op: sh.op, turned: sh.turned, want: sh.number.whole}
	case sh.isNumber:
		return &numberTest{name: sh.name, op: sh.op, turned: sh.turned, number: sh.number}
	case sh.op == "":
		return &boolTest{sh.name}
	case sh.list != nil:
		t := &inTest{name: sh.name, alt: sh.name.alt}
		for _, item := range sh.list.Nodes {
			t.list = append(t.list, item.(*ast.StringNode).Value)
		}
		return t
	case sh.name.kind.Kind() == reflect.Slice:
		return &hasTest{sh.name, sh.text.Value}
	}
	t := &textTest{name: sh.name, alt: sh.name.alt, op: sh.op, turned: sh.turned, want: sh.text.Value}
	if sh.op == "matches" {
		re := s.pattern(n.(*ast.BinaryNode))
		if s.err != nil {
			return nil
		}
		s.lint.pattern(sh.name, sh.text, re)
		if op, text, ok := plainly(re); ok {
			t.op, t.want = op, text
		} else {
			t.pattern = &pattern{text: sh.text.Value}
		}
		return t
	}
	s.lint.walk(n)
	return t
}
