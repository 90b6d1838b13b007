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
	index   []int  // path of struct fields
	kind    reflect.Type
	key     string // of a map
	keyed   bool
	call    bool   // hostname() and its like
	devices bool   // modalias.*
	pattern string // of modalias.match and modalias.count, where it is constant
	reads   uint64 // bit of the node fact it depends on
	alt     *name  // what an id may be compared with instead

	hasPattern bool
}

// field is one step of a dotted name: a group with fields below it, or a value.
type field struct {
	name  name
	below map[string]*field // of a group
}

func (f *field) group() bool { return f.below != nil }

// keyName is one key of a map field; equal ones share one field.
type keyName struct {
	of  *field
	key string
}

// fieldsOf are the fields of a group by name.
func (d *dialect) fieldsOf(t reflect.Type, prefix string, index []int) map[string]*field {
	facts := nodeFacts()
	out := map[string]*field{}
	for i := range t.NumField() {
		s := t.Field(i)
		if !s.IsExported() {
			continue
		}
		tag := s.Tag.Get("expr")
		f := &field{name: name{text: prefix + tag, index: append(slices.Clone(index), i), kind: s.Type}}
		out[tag] = f
		switch s.Type.Kind() {
		case reflect.Pointer:
			f.below = d.fieldsOf(s.Type.Elem(), f.name.text+".", f.name.index)
			continue
		case reflect.Func:
			f.name.call, f.name.kind = true, s.Type.Out(0)
			f.name.devices = prefix == "modalias."
			d.calls[f.name.text] = true
			f.name.text += "()"
		}
		fact := f.name.text
		if f.name.devices {
			fact = "modalias"
		}
		if bit := slices.Index(facts, fact); bit >= 0 && d.env == reflect.TypeFor[NodeEnv]() {
			f.name.reads = 1 << bit
		}
		d.names = append(d.names, f.name.text)
	}
	return out
}

// step is the field that a dotted path names, nil for other expressions. plain leaves out `?.`.
func (d *dialect) step(n ast.Node, plain bool) *field {
	switch n := n.(type) {
	case *ast.IdentifierNode:
		return d.fields[n.Value]
	case *ast.ChainNode:
		if !plain {
			return d.step(n.Node, plain)
		}
	case *ast.MemberNode:
		p, ok := n.Property.(*ast.StringNode)
		if !ok || plain && n.Optional {
			return nil
		}
		switch f := d.step(n.Node, plain); {
		case f == nil:
		case f.group():
			return f.below[p.Value]
		case f.name.kind.Kind() == reflect.Map && !f.name.keyed:
			return d.keyOf(f, p.Value)
		}
	}
	return nil
}

func (d *dialect) keyOf(f *field, key string) *field {
	at := keyName{f, key}
	if found := d.keys[at]; found != nil {
		return found
	}
	out := &field{name: f.name}
	out.name.text = f.name.text + "[" + strconv.Quote(key) + "]"
	out.name.key, out.name.keyed, out.name.kind = key, true, f.name.kind.Elem()
	d.keys[at] = out
	return out
}

// input is what an expression reads when it is nothing but one input, else nil.
func (d *dialect) input(n ast.Node, plain bool) *name {
	if c, ok := n.(*ast.CallNode); ok {
		f := d.step(c.Callee, plain)
		if f == nil || !f.name.call {
			return nil
		}
		if !f.name.devices {
			return &f.name
		}
		out := f.name
		if len(c.Arguments) == 1 {
			if p, ok := c.Arguments[0].(*ast.StringNode); ok {
				out.pattern, out.hasPattern = p.Value, true
				out.text = strings.TrimSuffix(out.text, ")") + strconv.Quote(p.Value) + ")"
				return &out
			}
		}
		out.text = c.String()
		return &out
	}
	if f := d.step(n, plain); f != nil && !f.group() && !f.name.call {
		return &f.name
	}
	return nil
}

// namesIn are the inputs below a part of the tree, each once, in order of appearance.
func (d *dialect) namesIn(n ast.Node) []*name {
	var out []*name
	var visit func(ast.Node)
	visit = func(n ast.Node) {
		if found := d.input(n, false); found != nil {
			if !slices.ContainsFunc(out, func(o *name) bool { return o.text == found.text }) {
				out = append(out, found)
			}
			return
		}
		children(n, visit)
	}
	visit(n)
	return out
}

// factsRead are the bits of the node facts among names.
func factsRead(names []*name) uint64 {
	var mask uint64
	for _, n := range names {
		mask |= n.reads
	}
	return mask
}

// texts are the names sorted.
func texts(names []*name) []string {
	out := make([]string, 0, len(names))
	for _, n := range names {
		out = append(out, n.text)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// at is the field a name stands for; false where a group on the way is missing.
func (n *name) at(env reflect.Value) (reflect.Value, bool) {
	v := env
	for _, i := range n.index {
		if v.Kind() == reflect.Pointer {
			if v.IsNil() {
				return reflect.Value{}, false
			}
			v = v.Elem()
		}
		v = v.Field(i)
	}
	return v, true
}

// seen is what an input held, as text.
func (n *name) seen(env any, absent uint64) string {
	if n.reads&absent != 0 {
		return absentText
	}
	if node, ok := env.(*NodeEnv); ok && n.devices && node.Modalias != nil && node.Modalias.devices != nil {
		d := node.Modalias.devices
		if n.pattern == "" {
			return fmt.Sprintf("%d devices", len(d.list))
		}
		return fmt.Sprintf("%d of %d devices", d.count(parseGlob(n.pattern)), len(d.list))
	}
	v, ok := n.at(reflect.ValueOf(env))
	if !ok {
		return absentText
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
