package strictyaml

import (
	"fmt"
	"strings"
)

// Object is a map with known keys. Each key is asked for once; Close then refuses the rest.
type Object struct {
	v      Value
	ok     bool
	fields []field
	index  map[string]int
	known  []string
	fold   bool
}

type field struct {
	Entry
	taken bool
}

// Object opens a map with known keys. When the value is no map this is reported, and every
// key is absent.
func (v Value) Object() *Object { return v.object(false) }

// ObjectFold is Object for maps whose keys may be written with - or _ alike.
func (v Value) ObjectFold() *Object { return v.object(true) }

func (v Value) object(fold bool) *Object {
	o := &Object{v: v, fold: fold}
	entries, ok := v.Entries()
	o.ok = ok
	if len(entries) > 12 {
		o.index = make(map[string]int, len(entries))
	}
	o.fields = make([]field, 0, len(entries))
	for _, e := range entries {
		if i := o.find(o.folded(e.Name)); i >= 0 {
			e.Key.Errorf(CodeDuplicate, "the key %s is given twice, first as %s on line %d",
				quoted(e.Name), o.fields[i].Name, o.fields[i].Key.node.Line)
			continue
		}
		if o.index != nil {
			o.index[o.folded(e.Name)] = len(o.fields)
		}
		o.fields = append(o.fields, field{Entry: e})
	}
	return o
}

func (o *Object) folded(name string) string {
	if o.fold {
		return strings.ReplaceAll(name, "_", "-")
	}
	return name
}

func (o *Object) find(name string) int {
	if o.index != nil {
		if i, ok := o.index[name]; ok {
			return i
		}
		return -1
	}
	for i := range o.fields {
		if o.folded(o.fields[i].Name) == name {
			return i
		}
	}
	return -1
}

// Value is the map itself, for findings about it as a whole.
func (o *Object) Value() Value { return o.v }

// Take gives the value of a key, absent as the zero Value. Old spellings are accepted with
// a warning; two spellings at once are refused.
func (o *Object) Take(name string, old ...string) Value {
	o.known = append(o.known, name)
	got, as := Value{}, ""
	if i := o.find(o.folded(name)); i >= 0 {
		o.fields[i].taken = true
		got, as = o.fields[i].Value, o.fields[i].Name
	}
	for _, spelling := range old {
		i := o.find(o.folded(spelling))
		if i < 0 {
			continue
		}
		f := &o.fields[i]
		f.taken = true
		if got.Valid() {
			f.Key.Report(SeverityError, CodeDuplicate, fmt.Sprintf("%s is given as %s too", f.Name, as), "remove "+f.Name)
			continue
		}
		f.Key.Report(SeverityWarning, CodeOldKey, f.Name+" is an old spelling", "write "+name)
		got, as = f.Value, f.Name
	}
	return got
}

// Refuse reports keys that would be known elsewhere but are wrong here.
func (o *Object) Refuse(name, message, hint string) {
	if i := o.find(o.folded(name)); i >= 0 && !o.fields[i].taken {
		o.fields[i].taken = true
		o.fields[i].Key.Report(SeverityError, CodeUnknownKey, message, hint)
	}
}

// Close refuses every key that nobody asked for.
func (o *Object) Close() {
	for _, f := range o.fields {
		if f.taken {
			continue
		}
		if o.v.doc.full() {
			o.v.doc.dropped++
			continue
		}
		hint := "known keys: " + strings.Join(o.known, ", ")
		if near := Nearest(f.Name, o.known, 1); len(near) > 0 {
			hint = "did you mean " + near[0] + "?"
		}
		f.Key.Report(SeverityError, CodeUnknownKey, "unknown key "+quoted(f.Name), hint)
	}
}

// Reader is how a value becomes a T: Value.Text, Value.Bool, Enum[...] or a function.
type Reader[T any] func(Value) (T, bool)

// Optional is nil when the key is absent or was refused: absent is not zero.
func Optional[T any](o *Object, name string, read Reader[T], old ...string) *T {
	v := o.Take(name, old...)
	if !v.Valid() {
		return nil
	}
	out, ok := read(v)
	if !ok {
		return nil
	}
	return &out
}

// Default takes the place of an absent key.
func Default[T any](o *Object, name string, absent T, read Reader[T], old ...string) T {
	if p := Optional(o, name, read, old...); p != nil {
		return *p
	}
	return absent
}

// Required reports an absent key and gives the zero T for it.
func Required[T any](o *Object, name string, read Reader[T], old ...string) (T, bool) {
	v := o.Take(name, old...)
	if !v.Valid() {
		var zero T
		if o.v.IsMap() {
			o.v.Report(SeverityError, CodeMissing, "the key "+name+" is missing", "")
		}
		return zero, false
	}
	return read(v)
}
