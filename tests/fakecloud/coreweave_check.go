package fakecloud

import (
	"fmt"
	"slices"
	"strings"
)

// flaw is one thing that is wrong with an object.
type flaw struct{ field, reason, message string }

func (q question) invalid(causes ...flaw) error {
	list := []any{}
	var parts []string
	for _, c := range causes {
		list = append(list, kubeObject{"reason": c.reason, "message": c.message, "field": c.field})
		parts = append(parts, c.field+": "+c.message)
	}
	details := kubeObject{"name": q.name, "kind": q.kind(), "causes": list}
	kind := q.kind()
	if q.group != "" {
		details["group"] = q.group
		kind += "." + q.group
	}
	said := strings.Join(parts, ", ")
	if len(parts) > 1 {
		said = "[" + said + "]"
	}
	return &kubeError{422, "Invalid", fmt.Sprintf("%s %q is invalid: %s", kind, q.name, said), details}
}

// check refuses what the API would. For a change, was is what there is.
func (q question) check(o, was kubeObject) error {
	var wrong []flaw
	if !subdomain(q.name) {
		wrong = append(wrong, flaw{"metadata.name", "FieldValueInvalid", fmt.Sprintf("Invalid value: %q: a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, "+
			"'-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')", q.name)})
	}
	labels, _ := metaOf(o)["labels"].(kubeObject)
	for _, value := range texts(labels) {
		if !labelValue(value) {
			wrong = append(wrong, flaw{"metadata.labels", "FieldValueInvalid", fmt.Sprintf("Invalid value: %q: a valid label must be an empty string or consist of alphanumeric characters, "+
				"'-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "+
				"'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')", value)})
		}
	}
	if q.resource == "nodepools" {
		wrong = append(wrong, checkPool(o, was)...)
	}
	if len(wrong) > 0 {
		return q.invalid(wrong...)
	}
	return nil
}

func checkPool(o, was kubeObject) []flaw {
	spec, ok := clone(o)["spec"].(kubeObject)
	if !ok {
		return []flaw{{"spec", "FieldValueRequired", "Required value"}}
	}
	var wrong []flaw
	typ, ok := spec["instanceType"]
	before, _ := was["spec"].(kubeObject)
	switch _, word := typ.(string); {
	case !ok:
		wrong = append(wrong, flaw{"spec.instanceType", "FieldValueRequired", "Required value"})
	case !word:
		wrong = append(wrong, mistyped("spec.instanceType", typ, "string"))
	case before != nil && before["instanceType"] != typ:
		wrong = append(wrong, flaw{"spec.instanceType", "FieldValueInvalid", "Invalid value: InstanceType cannot be changed"})
	}
	for _, key := range []string{"targetNodes", "minNodes", "maxNodes"} {
		n, ok := spec[key]
		if whole, number := n.(float64); ok && (!number || whole != float64(int64(whole))) {
			wrong = append(wrong, mistyped("spec."+key, n, "integer"))
		} else if ok && whole < 0 {
			wrong = append(wrong, flaw{"spec." + key, "FieldValueInvalid", fmt.Sprintf("Invalid value: %v: spec.%s in body should be greater than or equal to 0", whole, key)})
		}
	}
	life, _ := spec["lifecycle"].(kubeObject)
	if s, ok := life["scaleDownStrategy"]; ok && s != "IdleOnly" && s != "PreferIdle" {
		wrong = append(wrong, flaw{"spec.lifecycle.scaleDownStrategy", "FieldValueNotSupported", fmt.Sprintf("Unsupported value: %q: supported values: \"IdleOnly\", \"PreferIdle\"", s)})
	}
	slices.SortFunc(wrong, func(a, b flaw) int { return strings.Compare(a.field, b.field) })
	return wrong
}

// mistyped is a value of another type than the schema's.
func mistyped(field string, v any, want string) flaw {
	is := "object"
	switch n := v.(type) {
	case string:
		is = "string"
	case bool:
		is = "boolean"
	case float64:
		if is = "number"; n == float64(int64(n)) {
			is = "integer"
		}
	}
	return flaw{field, "FieldValueTypeInvalid", fmt.Sprintf("Invalid value: %q: %s in body must be of type %s: %q", is, field, want, is)}
}

func alphanumeric(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

func subdomain(s string) bool {
	for _, part := range strings.Split(s, ".") {
		if !labelValue(part) || part == "" || strings.ToLower(part) != part || strings.Contains(part, "_") {
			return false
		}
	}
	return len(s) <= 253
}

// labelValue reports whether a text can be a label's value.
func labelValue(s string) bool {
	if s == "" {
		return true
	}
	for i := range len(s) {
		if !alphanumeric(s[i]) && s[i] != '-' && s[i] != '_' && s[i] != '.' {
			return false
		}
	}
	return len(s) <= 63 && alphanumeric(s[0]) && alphanumeric(s[len(s)-1])
}

// qualified reports whether a text can be a label's key.
func qualified(s string) bool {
	prefix, name, has := strings.Cut(s, "/")
	if !has {
		return s != "" && labelValue(s)
	}
	return subdomain(prefix) && name != "" && labelValue(name)
}
