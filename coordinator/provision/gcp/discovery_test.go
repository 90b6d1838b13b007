package gcp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/provision"
	"substrate/tests/fakecloud"
)

// schema is a part of the vendor's own description of its interface.
type schema struct {
	Ref        string            `json:"$ref"`
	Type       string            `json:"type"`
	Format     string            `json:"format"`
	Enum       []string          `json:"enum"`
	Items      *schema           `json:"items"`
	Properties map[string]schema `json:"properties"`
	Additional *schema           `json:"additionalProperties"`
}

type method struct {
	HTTP       string                     `json:"httpMethod"`
	Path       string                     `json:"flatPath"`
	Parameters map[string]json.RawMessage `json:"parameters"`
	Request    *schema                    `json:"request"`
	Response   *schema                    `json:"response"`
}

type discovery struct {
	Parameters map[string]json.RawMessage `json:"parameters"`
	Schemas    map[string]schema          `json:"schemas"`
	Resources  map[string]struct {
		Methods map[string]method `json:"methods"`
	} `json:"resources"`
}

func readDiscovery(t *testing.T) *discovery {
	t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "google.golang.org/api").Output()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "compute", "v1", "compute-api.json"))
	if err != nil {
		t.Fatal(err)
	}
	d := &discovery{}
	if err := json.Unmarshal(text, d); err != nil {
		t.Fatal(err)
	}
	return d
}

// method finds what a request calls.
func (d *discovery) method(r *http.Request) (string, *method) {
	for resource, of := range d.Resources {
		for name, m := range of.Methods {
			form := "^/compute/v1/" + regexp.MustCompile(`\\\{[^}]*\\\}`).ReplaceAllString(regexp.QuoteMeta(m.Path), "[^/]+") + "$"
			if m.HTTP == r.Method && regexp.MustCompile(form).MatchString(r.URL.Path) {
				return resource + "." + name, &m
			}
		}
	}
	return "", nil
}

// check says where a value is not what a schema says.
func (d *discovery) check(at string, s *schema, v any) (wrong []string) {
	if s.Ref != "" {
		named := d.Schemas[s.Ref]
		s = &named
	}
	bad := func(format string, args ...any) []string {
		return append(wrong, at+": "+fmt.Sprintf(format, args...))
	}
	switch v := v.(type) {
	case map[string]any:
		if s.Type != "object" {
			return bad("an object, expected %s", s.Type)
		}
		for key, x := range v {
			of, ok := s.Properties[key]
			switch {
			case ok:
				wrong = append(wrong, d.check(at+"."+key, &of, x)...)
			case s.Additional != nil:
				wrong = append(wrong, d.check(at+"."+key, s.Additional, x)...)
			default:
				wrong = bad("there is no %s", key)
			}
		}
	case []any:
		if s.Type != "array" {
			return bad("a list, expected %s", s.Type)
		}
		for n, x := range v {
			wrong = append(wrong, d.check(fmt.Sprintf("%s[%d]", at, n), s.Items, x)...)
		}
	case string:
		_, err := strconv.ParseUint(v, 10, 64)
		switch {
		case s.Type != "string":
			return bad("the text %q, expected %s", v, s.Type)
		case len(s.Enum) > 0 && !slices.Contains(s.Enum, v):
			return bad("%q is none of %v", v, s.Enum)
		case strings.HasSuffix(s.Format, "int64") && err != nil:
			return bad("%q is no number", v)
		}
	case float64:
		if s.Type != "integer" && s.Type != "number" {
			return bad("the number %g, expected %s %s", v, s.Type, s.Format)
		}
	case bool:
		if s.Type != "boolean" {
			return bad("%t, expected %s", v, s.Type)
		}
	default:
		return bad("%v", v)
	}
	return wrong
}

// described checks calls and answers on their way.
type described struct {
	t *testing.T
	*discovery
	mu           sync.Mutex
	seen, params map[string]bool // calls, and parameters of calls
}

func (d *described) behind(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			d.t.Error(err)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		out := httptest.NewRecorder()
		next.ServeHTTP(out, r)
		if r.URL.Path != "/token" {
			d.note(r, body, out)
		}
		for k, v := range out.Header() {
			w.Header()[k] = v
		}
		w.WriteHeader(out.Code)
		_, _ = w.Write(out.Body.Bytes())
	})
}

func (d *described) note(r *http.Request, body []byte, out *httptest.ResponseRecorder) {
	d.mu.Lock()
	defer d.mu.Unlock()
	name, m := d.method(r)
	if m == nil {
		d.t.Errorf("there is no %s %s", r.Method, r.URL.Path)
		return
	}
	if out.Code >= 300 {
		return
	}
	d.seen[name] = true
	for p := range r.URL.Query() {
		d.params[name+" "+p] = true
		if m.Parameters[p] == nil && d.Parameters[p] == nil {
			d.t.Errorf("%s has no parameter %s", name, p)
		}
	}
	parts := map[*schema][]byte{m.Response: out.Body.Bytes()}
	if m.Request != nil {
		parts[m.Request] = body
	}
	for s, text := range parts {
		var v any
		if err := json.Unmarshal(text, &v); err != nil {
			d.t.Errorf("%s: %v", name, err)
			continue
		}
		for _, wrong := range d.check(name+" "+s.Ref, s, v) {
			d.t.Error(wrong)
		}
	}
}

// TestDiscovery: each call and each answer of a node's life is as the vendor's own description has it: path, parameters, every field, type and word.
func TestDiscovery(t *testing.T) {
	t.Parallel()
	d := &described{t: t, discovery: readDiscovery(t), seen: map[string]bool{}, params: map[string]bool{}}
	a := newAccountBehind(t, fakecloud.Options{Ends: time.Minute, Page: 2}, d.behind)
	a.front.Slow = time.Second
	p := a.open(t, cluster)
	list := func() {
		t.Helper()
		if _, err := p.List(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if _, err := p.Offers(t.Context(), []coordinator.Definition{definition(plain, false), definition(gpus, false), definition(arm, false)}); err != nil {
		t.Error(err)
	}
	a.cloud.Empty(shared, "", fakecloud.OnDemand, true)
	var handles []provision.Handle
	for n, def := range []coordinator.Definition{definition(plain, false), definition(gpus, true), definition(arm, true), definition(shared, false)} {
		r := request(def, n)
		r.Lifetime = 48 * time.Hour
		i, err := p.Launch(t.Context(), r)
		if err != nil {
			t.Error(err)
		}
		handles = append(handles, i.Handle)
		a.cloud.Advance(2 * time.Second)
		if r.Again = true; n < 3 {
			if _, err := p.Launch(t.Context(), r); err != nil {
				t.Error(err)
			}
		}
	}
	list()
	a.cloud.Reclaim(string(handles[1]))
	if err := p.Release(t.Context(), handles[0]); err != nil {
		t.Error(err)
	}
	a.front.PowerOff(string(handles[2]))
	list()
	a.cloud.Advance(time.Hour / 2)
	list()
	for _, name := range []string{"instances.insert", "instances.delete", "instances.get", "instances.aggregatedList", "zoneOperations.wait", "globalOperations.aggregatedList", "machineTypes.aggregatedList"} {
		if !d.seen[name] {
			t.Errorf("%s was not called: %v", name, d.seen)
		}
	}
	if !d.params["instances.insert requestId"] || !d.params["instances.aggregatedList pageToken"] {
		t.Errorf("parameters: %v", d.params)
	}
	if wrong := d.check("x", &schema{Ref: "Instance"}, map[string]any{"status": "SLEEPING", "nosuch": 1.0, "id": "a"}); len(wrong) != 3 {
		t.Errorf("the check finds %v", wrong)
	}
}
