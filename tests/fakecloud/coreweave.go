package fakecloud

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// CoreWeave speaks as a Kubernetes cluster of CoreWeave's does, as far as node pools, pods and secrets go: JSON both ways, lists in pages, errors as Status.
// Node pools are made into instances by a Keeper. Who calls is not checked.
type CoreWeave struct {
	Keeper    *Keeper
	Namespace string // the one that there is
	// Bare is a cluster that has no node pools.
	Bare bool
	// Pools keeps the node pools, nil: this does.
	Pools http.Handler
	// Skew is how far the cluster's clock is ahead of the machine's, as headers say.
	Skew time.Duration

	mu      sync.Mutex
	kept    map[string]map[string]kubeObject // by resource and name
	version int
	used    map[string]bool
	ends    map[string]podEnd
	waits   map[string][2]string
}

type podEnd struct {
	code int
	said string
}

type kubeObject = map[string]any

const poolsPath = "/apis/compute.coreweave.com/v1alpha1/nodepools"

// Op is what a request asks for.
func (w *CoreWeave) Op(r *http.Request) Op {
	_, one := strings.CutPrefix(r.URL.Path, poolsPath+"/")
	switch {
	case r.URL.Path == poolsPath && r.Method == http.MethodPost:
		return OpLaunch
	case r.URL.Path == poolsPath && r.Method == http.MethodGet:
		return OpList
	case one && r.Method == http.MethodDelete:
		return OpRelease
	}
	return OpOther
}

// Refuse writes the cluster's words for a refusal. A pool that there is no room for is accepted all the same: its conditions say so later.
func (w *CoreWeave) Refuse(rw http.ResponseWriter, r *http.Request, op Op, why Refusal) {
	skew := w.Skew
	no := &kubeError{500, "InternalError", "Internal error occurred: " + why.Text, nil}
	switch why.Cause {
	case NoCapacity, Quota:
		if op == OpLaunch {
			body, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(strings.NewReader(string(body)))
			var in kubeObject
			_ = json.Unmarshal(body, &in)
			w.Keeper.doom(nameOf(in), why.Cause)
			w.ServeHTTP(rw, r)
			return
		}
		no = &kubeError{403, "Forbidden", "nodepools is forbidden: exceeded quota", nil}
	case NotFound:
		no = &kubeError{404, "NotFound", "not found", nil}
	case Throttled:
		rw.Header().Set("Retry-After", "1")
		no = &kubeError{429, "TooManyRequests", "too many requests, please try again later", kubeObject{"retryAfterSeconds": 1}}
	case Denied:
		no = &kubeError{403, "Forbidden", `nodepools.compute.coreweave.com is forbidden: User "substrate" cannot do that at the cluster scope`, nil}
	case ClockSkew:
		skew += 17 * time.Minute
		no = &kubeError{401, "Unauthorized", "Unauthorized", nil}
	case Invalid, TokenMismatch, TokenSpent:
		no = &kubeError{422, "Invalid", "NodePool is invalid: " + why.Text, nil}
	case Broken:
	}
	w.answer(rw, skew, no.code, no.status())
}

func (w *CoreWeave) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	q, err := w.parse(r)
	if err == nil && q.resource == "nodepools" && w.Pools != nil {
		w.note(q, r.Method)
		w.Pools.ServeHTTP(rw, r)
		return
	}
	code, body := 0, kubeObject(nil)
	if err == nil {
		w.note(q, r.Method)
		code, body, err = w.carryOut(q, r)
	}
	if no, ok := err.(*kubeError); ok && no.reason == "" { // what no handler is for has no Status
		rw.Header().Set("Content-Type", "text/plain; charset=utf-8")
		rw.WriteHeader(no.code)
		_, _ = io.WriteString(rw, no.message+"\n")
		return
	} else if ok {
		code, body = no.code, no.status()
	}
	w.answer(rw, w.Skew, code, body)
}

func (w *CoreWeave) answer(rw http.ResponseWriter, skew time.Duration, code int, body kubeObject) {
	rw.Header().Set("Date", time.Now().Add(skew).UTC().Format(http.TimeFormat))
	rw.Header().Set("Content-Type", "application/json")
	rw.WriteHeader(code)
	_ = json.NewEncoder(rw).Encode(body)
}

// kubeError is a refusal in Kubernetes' words. Without a reason it is no Status.
type kubeError struct {
	code            int
	reason, message string
	details         kubeObject
}

func (e *kubeError) Error() string { return e.message }

func (e *kubeError) status() kubeObject {
	out := kubeObject{"kind": "Status", "apiVersion": "v1", "metadata": kubeObject{}, "status": "Failure", "message": e.message, "reason": e.reason, "code": e.code}
	if e.details != nil {
		out["details"] = e.details
	}
	return out
}

// question is what a request is about.
type question struct {
	group, resource, namespace, name string
}

func (q question) kind() string {
	return map[string]string{"nodepools": "NodePool", "pods": "Pod", "secrets": "Secret"}[q.resource]
}

// full is the resource as messages have it.
func (q question) full() string { return strings.TrimSuffix(q.resource+"."+q.group, ".") }

func (q question) details() kubeObject {
	out := kubeObject{"name": q.name, "kind": q.resource}
	if q.group != "" {
		out["group"] = q.group
	}
	return out
}

func (q question) notFound() error {
	return &kubeError{404, "NotFound", fmt.Sprintf("%s %q not found", q.full(), q.name), q.details()}
}

func (w *CoreWeave) parse(r *http.Request) (question, error) {
	none := &kubeError{404, "", "404 page not found", nil}
	if rest, ok := strings.CutPrefix(r.URL.Path, poolsPath); ok && !w.Bare && (rest == "" || rest[0] == '/') {
		return question{group: "compute.coreweave.com", resource: "nodepools", name: strings.TrimPrefix(rest, "/")}, nil
	}
	rest, ok := strings.CutPrefix(r.URL.Path, "/api/v1/namespaces/")
	parts := strings.Split(rest, "/")
	if !ok || len(parts) < 2 || len(parts) > 3 || parts[1] != "pods" && parts[1] != "secrets" {
		return question{}, none
	}
	q := question{namespace: parts[0], resource: parts[1]}
	if len(parts) == 3 {
		q.name = parts[2]
	}
	if q.namespace != w.Namespace && r.Method == http.MethodPost {
		return q, &kubeError{404, "NotFound", fmt.Sprintf("namespaces %q not found", q.namespace), kubeObject{"name": q.namespace, "kind": "namespaces"}}
	}
	return q, nil
}

func (w *CoreWeave) note(q question, method string) {
	verb := map[string]string{http.MethodGet: "get", http.MethodPost: "create", http.MethodPatch: "patch", http.MethodPut: "update", http.MethodDelete: "delete"}[method]
	if verb == "get" && q.name == "" {
		verb = "list"
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.used == nil {
		w.used = map[string]bool{}
	}
	w.used[verb+" "+q.full()] = true
}

// Permissions are those that the calls so far took, as "verb resource.group".
func (w *CoreWeave) Permissions() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Keys(w.used))
}

// Read is all that the agent's pod of a pool reads: its command and its variables, with what secrets hold.
func (w *CoreWeave) Read(pool string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	pod := w.kept["pods"][pool]
	var b strings.Builder
	spec, _ := pod["spec"].(kubeObject)
	for _, c := range elements(spec["containers"]) {
		for _, word := range elements(c.(kubeObject)["command"]) {
			fmt.Fprintln(&b, word)
		}
		for _, e := range elements(c.(kubeObject)["env"]) {
			name, value := w.variable(e.(kubeObject))
			fmt.Fprintf(&b, "%s=%s\n", name, value)
		}
	}
	return b.String()
}

// variable is one of a container's.
func (w *CoreWeave) variable(e kubeObject) (name, value string) {
	name, _ = e["name"].(string)
	from, _ := e["valueFrom"].(kubeObject)
	ref, _ := from["secretKeyRef"].(kubeObject)
	of, _ := ref["name"].(string)
	key, _ := ref["key"].(string)
	data, _ := w.kept["secrets"][of]["data"].(kubeObject)
	coded, _ := data[key].(string)
	plain, _ := base64.StdEncoding.DecodeString(coded)
	return name, string(plain)
}

// Seen is all that is written openly of a pool's objects: not its secret.
func (w *CoreWeave) Seen(pool string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	out, _ := json.Marshal([]any{w.kept["nodepools"][pool], w.kept["pods"][pool]})
	return string(out)
}

// Has reports whether there is an object.
func (w *CoreWeave) Has(resource, name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, ok := w.kept[resource][name]
	return ok
}

// EndPod has the pod of a pool end by itself.
func (w *CoreWeave) EndPod(pool string, code int, said string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ends == nil {
		w.ends = map[string]podEnd{}
	}
	w.ends[pool] = podEnd{code, said}
}

// HoldPod has the pod of a pool wait for a reason.
func (w *CoreWeave) HoldPod(pool, reason, message string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waits == nil {
		w.waits = map[string][2]string{}
	}
	w.waits[pool] = [2]string{reason, message}
}

// Put keeps an object that somebody else has made.
func (w *CoreWeave) Put(resource string, o map[string]any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.keep(question{resource: resource}, o)
}

func nameOf(o kubeObject) string {
	meta, _ := o["metadata"].(kubeObject)
	name, _ := meta["name"].(string)
	return name
}

func elements(v any) []any {
	list, _ := v.([]any)
	return list
}
