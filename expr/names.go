package expr

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/expr-lang/expr/ast"
)

// absentText stands where a fact or key is absent.
const absentText = "(absent)"

// name is one input that an expression reads.
type name struct {
	text    string // as it is written: cpuinfo.cpu_cores, request.job_annotations["x"]
	fact    string // the node fact it depends on
	index   []int  // path of struct fields
	key     string // of a map
	keyed   bool
	pattern string // of modalias.match and modalias.count
}

// namesIn are the inputs below a part of the tree, each once, in order of appearance.
func (d *dialect) namesIn(n ast.Node) []name {
	var out []name
	var visit func(ast.Node) ast.Node
	visit = func(n ast.Node) ast.Node {
		if c, ok := n.(*ast.CallNode); ok {
			if found, ok := d.callName(c); ok {
				out = append(out, found)
				return n
			}
		}
		if path, ok := d.chain(n); ok {
			if found, ok := d.fieldName(path); ok {
				out = append(out, found)
				return n
			}
		}
		rebuild(n, visit)
		return n
	}
	visit(n)
	var distinct []name
	for _, found := range out {
		if !slices.ContainsFunc(distinct, func(o name) bool { return o.text == found.text }) {
			distinct = append(distinct, found)
		}
	}
	return distinct
}

func (d *dialect) callName(c *ast.CallNode) (name, bool) {
	path, ok := d.chain(c.Callee)
	if !ok {
		return name{}, false
	}
	dotted := strings.Join(path, ".")
	if !d.calls[dotted] {
		return name{}, false
	}
	out := name{text: c.String(), fact: dotted + "()"}
	if path[0] == "modalias" {
		out.fact = "modalias"
		if len(c.Arguments) == 1 {
			if p, ok := c.Arguments[0].(*ast.StringNode); ok {
				out.pattern = p.Value
			}
		}
		return out, true
	}
	f, _ := fieldOf(d.env, path[0])
	out.index = f.Index
	return out, true
}

// fieldName resolves a dotted path to a field, or to a key of a map field.
func (d *dialect) fieldName(path []string) (name, bool) {
	t := d.env
	out := name{}
	for i, step := range path {
		if t.Kind() == reflect.Map && i == len(path)-1 {
			out.key, out.keyed = step, true
			out.text = fmt.Sprintf("%s[%q]", strings.Join(path[:i], "."), step)
			return out, true
		}
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct {
			return name{}, false
		}
		f, ok := fieldOf(t, step)
		if !ok {
			return name{}, false
		}
		out.index = append(out.index, f.Index...)
		t = f.Type
	}
	if t.Kind() == reflect.Pointer || t.Kind() == reflect.Func {
		return name{}, false
	}
	out.text = strings.Join(path, ".")
	out.fact = out.text
	return out, true
}

// factsRead are the bits of the node facts among names.
func factsRead(names []name) uint64 {
	var mask uint64
	facts := nodeFacts()
	for _, n := range names {
		if i := slices.Index(facts, n.fact); i >= 0 {
			mask |= 1 << i
		}
	}
	return mask
}

// texts are the names sorted.
func texts(names []name) []string {
	out := make([]string, 0, len(names))
	for _, n := range names {
		out = append(out, n.text)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// seen is what an input held, as text.
func (n *name) seen(env any, absent uint64) string {
	if factsRead([]name{*n})&absent != 0 {
		return absentText
	}
	if node, ok := env.(*NodeEnv); ok && n.fact == "modalias" && node.Modalias != nil {
		d := node.Modalias.devices
		if n.pattern == "" {
			return fmt.Sprintf("%d devices", len(d.list))
		}
		return fmt.Sprintf("%d of %d devices", d.count(parseGlob(n.pattern)), len(d.list))
	}
	v := reflect.ValueOf(env).Elem()
	for _, i := range n.index {
		if v.Kind() == reflect.Pointer {
			v = v.Elem()
		}
		if !v.IsValid() {
			return absentText
		}
		v = v.Field(i)
	}
	if n.keyed {
		v = v.MapIndex(reflect.ValueOf(n.key))
	}
	return shown(v)
}

// shown words a value, cut to a length that fits a table.
func shown(v reflect.Value) string {
	if !v.IsValid() {
		return absentText
	}
	switch v.Kind() {
	case reflect.Func:
		if f, ok := v.Interface().(func() string); ok && f != nil {
			return cut(f())
		}
		return absentText
	case reflect.Map:
		return fmt.Sprintf("%d keys", v.Len())
	case reflect.Float64:
		return strconv.FormatFloat(v.Float(), 'g', -1, 64)
	case reflect.Slice:
		if list, ok := v.Interface().([]string); ok {
			return cut(strings.Join(list, " "))
		}
	}
	return cut(fmt.Sprint(v.Interface()))
}

func cut(s string) string {
	const limit = 200
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}
