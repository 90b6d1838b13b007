package fakecloud

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// carryOut does what a request asks for. Before and after it what is kept is brought to what time and the pools' keeper make of it.
func (w *CoreWeave) carryOut(q question, r *http.Request) (int, kubeObject, error) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 3<<20))
	if err != nil {
		return 0, nil, &kubeError{400, "BadRequest", err.Error(), nil}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.settle()
	defer w.settle()
	switch {
	case r.Method == http.MethodGet && q.name == "":
		out, err := w.list(q, r.URL.Query().Get("labelSelector"), r.URL.Query().Get("limit"), r.URL.Query().Get("continue"))
		return 200, out, err
	case r.Method == http.MethodPost && q.name == "":
		out, err := w.create(q, body)
		return 201, out, err
	}
	o, ok := w.kept[q.resource][q.name]
	switch {
	case !ok:
		return 0, nil, q.notFound()
	case r.Method == http.MethodGet:
		return 200, clone(o), nil
	case r.Method == http.MethodPatch:
		out, err := w.patch(q, o, r.Header.Get("Content-Type"), body)
		return 200, out, err
	case r.Method == http.MethodDelete:
		out, err := w.remove(q, o, body)
		return 200, out, err
	}
	return 0, nil, &kubeError{405, "MethodNotAllowed", "the server does not allow this method on the requested resource", kubeObject{}}
}

func clone(o kubeObject) kubeObject {
	b, _ := json.Marshal(o)
	var out kubeObject
	_ = json.Unmarshal(b, &out)
	return out
}

func metaOf(o kubeObject) kubeObject {
	meta, ok := o["metadata"].(kubeObject)
	if !ok {
		meta = kubeObject{}
		o["metadata"] = meta
	}
	return meta
}

// keep puts an object in its place, new or changed.
func (w *CoreWeave) keep(q question, o kubeObject) {
	w.version++
	meta := metaOf(o)
	meta["resourceVersion"] = strconv.Itoa(w.version)
	if meta["uid"] == nil {
		meta["uid"] = fmt.Sprintf("00000000-0000-4000-8000-%012d", w.version)
		meta["creationTimestamp"] = w.Keeper.Cloud.Now().UTC().Format(time.RFC3339)
		meta["generation"] = 1
	}
	if w.kept == nil {
		w.kept = map[string]map[string]kubeObject{}
	}
	if w.kept[q.resource] == nil {
		w.kept[q.resource] = map[string]kubeObject{}
	}
	w.kept[q.resource][nameOf(o)] = o
}

// drop takes an object away, and what belongs to it.
func (w *CoreWeave) drop(q question, name string) {
	uid := metaOf(w.kept[q.resource][name])["uid"]
	delete(w.kept[q.resource], name)
	for pod, o := range w.kept["pods"] {
		for _, ref := range elements(metaOf(o)["ownerReferences"]) {
			if ref.(kubeObject)["uid"] == uid {
				delete(w.kept["pods"], pod)
			}
		}
	}
}

// settle has the keeper look at each pool, and pods be placed.
func (w *CoreWeave) settle() {
	pools := question{resource: "nodepools"}
	for _, name := range slices.Sorted(maps.Keys(w.kept["nodepools"])) {
		o := w.kept["nodepools"][name]
		status, holds := w.Keeper.Keep(o)
		meta := metaOf(o)
		if _, deleting := meta["deletionTimestamp"]; deleting && !holds {
			w.drop(pools, name)
			continue
		}
		fresh := clone(kubeObject{"status": status, "finalizers": []any{Finalizer}})
		if status != nil && !same(o["status"], fresh["status"]) || !reflect.DeepEqual(meta["finalizers"], fresh["finalizers"]) {
			if status != nil {
				o["status"] = fresh["status"]
			}
			meta["finalizers"] = fresh["finalizers"]
			w.keep(pools, o)
		}
	}
	for name, o := range w.kept["pods"] {
		o["status"] = w.podStatus(name, o)
	}
}

// same reports whether two statuses differ in more than the time of their conditions.
func same(a, b any) bool {
	strip := func(v any) any {
		o := clone(kubeObject{"v": v})
		status, _ := o["v"].(kubeObject)
		for _, c := range elements(status["conditions"]) {
			delete(c.(kubeObject), "lastTransitionTime")
		}
		return o
	}
	return reflect.DeepEqual(strip(a), strip(b))
}

func (w *CoreWeave) podStatus(name string, o kubeObject) kubeObject {
	spec, _ := o["spec"].(kubeObject)
	i, ok := w.Keeper.place(texts(spec["nodeSelector"]))
	if !ok {
		return kubeObject{"phase": "Pending", "conditions": []any{kubeObject{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
			"message": "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."}}}
	}
	at := i.Started.UTC().Format(time.RFC3339)
	phase, state := "Running", kubeObject{"running": kubeObject{"startedAt": at}}
	if why, ok := w.waits[name]; ok {
		phase, state = "Pending", kubeObject{"waiting": kubeObject{"reason": why[0], "message": why[1]}}
	}
	if end, ok := w.ends[name]; ok {
		phase, state = "Failed", kubeObject{"terminated": kubeObject{"exitCode": end.code, "reason": "Error", "message": end.said}}
	}
	return kubeObject{"phase": phase, "conditions": []any{kubeObject{"type": "PodScheduled", "status": "True", "lastTransitionTime": at}},
		"containerStatuses": []any{kubeObject{"name": "agent", "state": state}}}
}

func (w *CoreWeave) list(q question, selector, limit, after string) (kubeObject, error) {
	match, err := selectorOf(selector)
	if err != nil {
		return nil, err
	}
	start, rest := "", false
	if after != "" {
		plain, err := base64.RawURLEncoding.DecodeString(after)
		var token struct {
			Version string `json:"v"`
			Start   string `json:"start"`
		}
		if err != nil || json.Unmarshal(plain, &token) != nil || token.Version != "meta.k8s.io/v1" {
			return nil, &kubeError{400, "BadRequest", "continue key is not valid: " + "encoded continue token", nil}
		}
		start, rest = token.Start, true
	}
	most := 0
	if limit != "" {
		if most, err = strconv.Atoi(limit); err != nil {
			return nil, &kubeError{400, "BadRequest", fmt.Sprintf("strconv.ParseInt: parsing %q: invalid syntax", limit), nil}
		}
	}
	meta := kubeObject{"resourceVersion": strconv.Itoa(w.version)}
	items := []any{}
	names := slices.Sorted(maps.Keys(w.kept[q.resource]))
	for n, name := range names {
		o := w.kept[q.resource][name]
		if rest && name <= start || !match(texts(metaOf(o)["labels"])) {
			continue
		}
		items = append(items, clone(o))
		if most > 0 && len(items) == most && w.more(q, names[n+1:], match) {
			token, _ := json.Marshal(map[string]any{"v": "meta.k8s.io/v1", "rv": w.version, "start": name})
			meta["continue"] = base64.RawURLEncoding.EncodeToString(token)
			if selector == "" {
				meta["remainingItemCount"] = len(names) - n - 1
			}
			break
		}
	}
	version := strings.TrimPrefix(q.group+"/v1alpha1", "/")
	if q.group == "" {
		version = "v1"
	}
	return kubeObject{"apiVersion": version, "kind": q.kind() + "List", "metadata": meta, "items": items}, nil
}

func (w *CoreWeave) more(q question, names []string, match func(map[string]string) bool) bool {
	return slices.ContainsFunc(names, func(name string) bool { return match(texts(metaOf(w.kept[q.resource][name])["labels"])) })
}

// selectorOf understands what compares labels with single values.
func selectorOf(s string) (func(map[string]string) bool, error) {
	type term struct {
		key, value string
		equal, has bool
	}
	var terms []term
	for _, part := range strings.Split(s, ",") {
		if part == "" {
			continue
		}
		key, value, compares := strings.Cut(part, "=")
		t := term{key: strings.TrimSuffix(key, "!"), value: strings.TrimPrefix(value, "="), equal: !strings.HasSuffix(key, "!"), has: !compares}
		if !compares {
			t.equal = !strings.HasPrefix(part, "!")
			t.key = strings.TrimPrefix(part, "!")
		}
		if !qualified(t.key) || strings.ContainsAny(t.value, " =!") {
			return nil, &kubeError{400, "BadRequest", "unable to parse requirement: " + part, nil}
		}
		terms = append(terms, t)
	}
	return func(labels map[string]string) bool {
		for _, t := range terms {
			value, ok := labels[t.key]
			if t.has && ok != t.equal || !t.has && (ok && value == t.value) != t.equal {
				return false
			}
		}
		return true
	}, nil
}

func (w *CoreWeave) create(q question, body []byte) (kubeObject, error) {
	var o kubeObject
	if err := json.Unmarshal(body, &o); err != nil {
		return nil, &kubeError{400, "BadRequest", "the object provided is unrecognized (must be of type " + q.kind() + "): " + err.Error(), nil}
	}
	q.name = nameOf(o)
	if q.name == "" {
		return nil, q.invalid(flaw{"metadata.name", "FieldValueRequired", "Required value: name or generateName is required"})
	}
	if _, ok := w.kept[q.resource][q.name]; ok {
		return nil, &kubeError{409, "AlreadyExists", fmt.Sprintf("%s %q already exists", q.full(), q.name), q.details()}
	}
	if err := q.check(o, nil); err != nil {
		return nil, err
	}
	meta := metaOf(o)
	for _, theirs := range []string{"uid", "creationTimestamp", "deletionTimestamp", "generation"} {
		delete(meta, theirs)
	}
	delete(o, "status")
	if plain, ok := o["stringData"].(kubeObject); ok {
		data := kubeObject{}
		for key, value := range plain {
			data[key] = base64.StdEncoding.EncodeToString([]byte(fmt.Sprint(value)))
		}
		o["data"] = data
		delete(o, "stringData")
	}
	if q.resource == "nodepools" {
		defaults(o)
	}
	w.keep(q, o)
	return clone(o), nil
}

// defaults are those of a pool's specification.
func defaults(o kubeObject) {
	spec, _ := o["spec"].(kubeObject)
	life, ok := spec["lifecycle"].(kubeObject)
	if !ok {
		life = kubeObject{}
		spec["lifecycle"] = life
	}
	fill := func(to kubeObject, key string, value any) {
		if _, ok := to[key]; !ok {
			to[key] = value
		}
	}
	fill(spec, "computeClass", "default")
	fill(spec, "autoscaling", false)
	fill(life, "scaleDownStrategy", "IdleOnly")
}

func (w *CoreWeave) patch(q question, o kubeObject, format string, body []byte) (kubeObject, error) {
	if format != "application/merge-patch+json" {
		return nil, &kubeError{415, "UnsupportedMediaType", "the body of the request was in an unknown format", kubeObject{}}
	}
	var change kubeObject
	if err := json.Unmarshal(body, &change); err != nil {
		return nil, &kubeError{400, "BadRequest", "error decoding patch: " + err.Error(), nil}
	}
	if v, ok := metaOf(clone(change))["resourceVersion"]; ok && v != metaOf(o)["resourceVersion"] {
		return nil, &kubeError{409, "Conflict", fmt.Sprintf("Operation cannot be fulfilled on %s %q: the object has been modified; please apply your changes to the latest version and try again",
			q.full(), q.name), q.details()}
	}
	was := clone(o)
	next, _ := merge(clone(o), change).(kubeObject)
	if err := q.check(next, was); err != nil {
		return nil, err
	}
	meta := metaOf(next)
	if !reflect.DeepEqual(next["spec"], was["spec"]) {
		n, _ := meta["generation"].(float64)
		meta["generation"] = n + 1
	}
	if !reflect.DeepEqual(next, was) {
		w.keep(q, next)
	}
	if len(elements(meta["finalizers"])) == 0 && meta["deletionTimestamp"] != nil {
		w.drop(q, q.name)
	}
	return clone(next), nil
}

// merge is a JSON merge patch.
func merge(to, change any) any {
	from, ok := change.(kubeObject)
	if !ok {
		return change
	}
	out, ok := to.(kubeObject)
	if !ok {
		out = kubeObject{}
	}
	for key, value := range from {
		if value == nil {
			delete(out, key)
			continue
		}
		out[key] = merge(out[key], value)
	}
	return out
}

func (w *CoreWeave) remove(q question, o kubeObject, body []byte) (kubeObject, error) {
	var in struct {
		Preconditions struct{ UID string }
	}
	if len(bytes.TrimSpace(body)) > 0 {
		if err := json.Unmarshal(body, &in); err != nil {
			return nil, &kubeError{400, "BadRequest", err.Error(), nil}
		}
	}
	meta := metaOf(o)
	if uid := in.Preconditions.UID; uid != "" && uid != meta["uid"] {
		return nil, &kubeError{409, "Conflict", fmt.Sprintf("Operation cannot be fulfilled on %s %q: the UID in the precondition (%s) does not match the UID in record (%s). "+
			"The object might have been deleted and then recreated", q.full(), q.name, uid, meta["uid"]), q.details()}
	}
	if len(elements(meta["finalizers"])) > 0 {
		if meta["deletionTimestamp"] == nil {
			meta["deletionTimestamp"] = w.Keeper.Cloud.Now().UTC().Format(time.RFC3339)
			meta["deletionGracePeriodSeconds"] = 0
			n, _ := clone(meta)["generation"].(float64)
			meta["generation"] = n + 1
			w.keep(q, o)
		}
		return clone(o), nil
	}
	w.drop(q, q.name)
	details := q.details()
	details["uid"] = meta["uid"]
	return kubeObject{"kind": "Status", "apiVersion": "v1", "metadata": kubeObject{}, "status": "Success", "details": details}, nil
}
