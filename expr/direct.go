package expr

import (
	"errors"
	"reflect"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// test is a leaf that compares one input with constants. Most leaves are such, and they need
// neither the library's checker nor its machine: the same answers for a tenth of the time and a
// twentieth of the memory. env is a pointer to the environment.
type test interface {
	holds(env reflect.Value) (bool, error)
}

// missing is the failure of a test whose input has no place: the caller left out a group.
func missing(n *name) error { return errors.New(n.text + " cannot be read") }

// textOf is the value of a name of kind text.
func textOf(n *name, env reflect.Value) (string, error) {
	v, ok := n.at(env)
	switch {
	case !ok:
		return "", missing(n)
	case n.keyed:
		m, _ := v.Interface().(map[string]string)
		return m[n.key], nil
	case n.call:
		f, _ := v.Interface().(func() string)
		if f == nil {
			return "", missing(n)
		}
		return f(), nil
	}
	return v.String(), nil
}

// textTest compares a text with one constant. alt is the name beside an id: either may hold.
type textTest struct {
	name, alt *name
	op        string
	want      string
	turned    bool     // the constant stands left
	pattern   *pattern // of matches
}

func (t *textTest) holds(env reflect.Value) (bool, error) {
	text, err := textOf(t.name, env)
	if err != nil {
		return false, err
	}
	if t.alt == nil {
		return t.compare(text), nil
	}
	other, err := textOf(t.alt, env)
	if err != nil {
		return false, err
	}
	if t.op == "!=" {
		return text != t.want && other != t.want, nil
	}
	return t.compare(other) || t.compare(text), nil
}

func (t *textTest) compare(text string) bool {
	switch t.op {
	case "==":
		return text == t.want
	case "!=":
		return text != t.want
	case "contains":
		return strings.Contains(text, t.want)
	case "startsWith":
		return strings.HasPrefix(text, t.want)
	case "endsWith":
		return strings.HasSuffix(text, t.want)
	case "matches":
		return t.pattern.match(text)
	}
	order := strings.Compare(text, t.want)
	if t.turned {
		order = -order
	}
	return inOrder(t.op, order)
}

// inOrder reports whether a comparison holds for values in this order.
func inOrder(op string, order int) bool {
	switch op {
	case "<":
		return order < 0
	case "<=":
		return order <= 0
	case ">":
		return order > 0
	case ">=":
		return order >= 0
	case "==":
		return order == 0
	}
	return order != 0
}

// inTest asks whether a text is one of a written list.
type inTest struct {
	name, alt *name
	list      []string
}

func (t *inTest) holds(env reflect.Value) (bool, error) {
	text, err := textOf(t.name, env)
	if err != nil || slices.Contains(t.list, text) || t.alt == nil {
		return err == nil && slices.Contains(t.list, text), err
	}
	other, err := textOf(t.alt, env)
	return err == nil && slices.Contains(t.list, other), err
}

// hasTest asks whether a list of texts holds one.
type hasTest struct {
	name *name
	want string
}

func (t *hasTest) holds(env reflect.Value) (bool, error) {
	v, ok := t.name.at(env)
	if !ok {
		return false, missing(t.name)
	}
	list, _ := v.Addr().Interface().(*[]string) // its address: a list itself would be copied to the heap
	return slices.Contains(*list, t.want), nil
}

// numberTest compares a number with a constant, exactly where both are whole.
type numberTest struct {
	name   *name
	op     string
	turned bool
	number
}

// number is a constant.
type number struct {
	whole   int
	float   float64
	isFloat bool
}

func (t *numberTest) holds(env reflect.Value) (bool, error) {
	v, ok := t.name.at(env)
	if !ok {
		return false, missing(t.name)
	}
	if t.name.keyed {
		m, _ := v.Interface().(map[string]uint32)
		return t.unsigned(uint64(m[t.name.key])), nil
	}
	switch v.Kind() {
	case reflect.Int, reflect.Int32:
		return t.signed(v.Int()), nil
	case reflect.Uint32, reflect.Uint64:
		return t.unsigned(v.Uint()), nil
	}
	f := t.float
	if !t.isFloat {
		f = float64(t.whole)
	}
	return t.floating(v.Float(), f), nil
}

func (t *numberTest) ordered(order int) bool {
	if t.turned {
		order = -order
	}
	return inOrder(t.op, order)
}

func (t *numberTest) signed(v int64) bool {
	switch {
	case t.isFloat:
		return t.floating(float64(v), t.float)
	case v < int64(t.whole):
		return t.ordered(-1)
	case v > int64(t.whole):
		return t.ordered(1)
	}
	return t.ordered(0)
}

func (t *numberTest) unsigned(v uint64) bool {
	switch {
	case t.isFloat:
		return t.floating(float64(v), t.float)
	case t.whole < 0 || v > uint64(t.whole):
		return t.ordered(1)
	case v < uint64(t.whole):
		return t.ordered(-1)
	}
	return t.ordered(0)
}

func (t *numberTest) floating(a, b float64) bool {
	switch {
	case a < b:
		return t.ordered(-1)
	case a > b:
		return t.ordered(1)
	case a == b:
		return t.ordered(0)
	}
	return t.op == "!=" // NaN compares with nothing
}

// boolTest is a field that is true or false by itself.
type boolTest struct{ name *name }

func (t *boolTest) holds(env reflect.Value) (bool, error) {
	v, ok := t.name.at(env)
	if !ok {
		return false, missing(t.name)
	}
	return v.Bool(), nil
}

// constTest is `true` or `false` as written.
type constTest bool

func (t constTest) holds(reflect.Value) (bool, error) { return bool(t), nil }

// deviceTest is modalias.match, or modalias.count compared with a whole number.
type deviceTest struct {
	glob   *glob
	op     string // "" is match
	turned bool
	want   int
}

func (t *deviceTest) holds(env reflect.Value) (bool, error) {
	node, ok := env.Interface().(*NodeEnv)
	if !ok || node == nil || node.Modalias == nil || node.Modalias.devices == nil {
		return false, errNoDevices
	}
	if t.op == "" {
		return node.Modalias.devices.any(t.glob), nil
	}
	n := numberTest{op: t.op, turned: t.turned, number: number{whole: t.want}}
	return n.signed(int64(node.Modalias.devices.count(t.glob))), nil
}

var errNoDevices = errors.New("the node has no list of devices")

// pattern is a regular expression that was found valid. It is compiled when it is first asked: a
// coordinator checks ten thousand and asks none.
type pattern struct {
	text string
	once sync.Once
	re   *regexp.Regexp
}

func (p *pattern) match(text string) bool {
	p.once.Do(func() { p.re = regexp.MustCompile(p.text) })
	return p.re.MatchString(text)
}

// plainly is a regular expression without any choice as the comparison that it is: "^x$" is == "x".
// A literal with the replacement character stays a pattern: it matches bytes that are no text.
func plainly(re *syntax.Regexp) (op, text string, ok bool) {
	parts := []*syntax.Regexp{re}
	if re.Op == syntax.OpConcat {
		parts = re.Sub
	}
	start := parts[0].Op == syntax.OpBeginText
	if start {
		parts = parts[1:]
	}
	end := len(parts) > 0 && parts[len(parts)-1].Op == syntax.OpEndText
	if end {
		parts = parts[:len(parts)-1]
	}
	if len(parts) != 1 || parts[0].Op != syntax.OpLiteral || parts[0].Flags&syntax.FoldCase != 0 ||
		slices.Contains(parts[0].Rune, utf8.RuneError) {
		return "", "", false
	}
	switch {
	case start && end:
		op = "=="
	case start:
		op = "startsWith"
	case end:
		op = "endsWith"
	default:
		op = "contains"
	}
	return op, string(parts[0].Rune), true
}
