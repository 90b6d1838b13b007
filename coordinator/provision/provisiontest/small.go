package provisiontest

import (
	"reflect"
	"regexp"
	"testing"
)

// Small checks that a provisioner leads to no type of its vendor's SDK whose full name matches, through what it holds. A provisioner becomes an interface, and
// then the program has all methods of all types that lead from it, whether called or not: of a vendor's client these are many megabytes. It does lead to
// example, or the walk is blind.
func Small(t *testing.T, provisioner, example reflect.Type, heavy string) {
	t.Helper()
	form := regexp.MustCompile(heavy)
	seen := map[reflect.Type]bool{}
	queue := []reflect.Type{provisioner}
	for len(queue) > 0 {
		typ := queue[0]
		queue = queue[1:]
		if seen[typ] {
			continue
		}
		seen[typ] = true
		if form.MatchString(typ.PkgPath() + "." + typ.Name()) {
			t.Errorf("it leads to %s, and the program has all its methods", typ)
		}
		queue = append(queue, next(typ)...)
	}
	if !seen[example] {
		t.Errorf("it does not lead to %s", example)
	}
}

// next are the types that one is made of.
func next(typ reflect.Type) []reflect.Type {
	var out []reflect.Type
	switch typ.Kind() {
	case reflect.Map:
		out = append(out, typ.Key(), typ.Elem())
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Chan:
		out = append(out, typ.Elem())
	case reflect.Struct:
		for f := range typ.NumField() {
			out = append(out, typ.Field(f).Type)
		}
	case reflect.Func:
		for n := range typ.NumIn() {
			out = append(out, typ.In(n))
		}
		for n := range typ.NumOut() {
			out = append(out, typ.Out(n))
		}
	}
	return out
}
