package fakecloud

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// GCP speaks as Compute Engine does, in one project: REST and JSON, calls that change something answered with operations, and a server of tokens. It checks what that cloud
// checks of a call that launches, and believes any key.
type GCP struct {
	Cloud   *Cloud
	Project string
	Zones   []string            // default: three of one region, and one of another
	Only    map[string][]string // the zones that have a type; one that is not here is in all
	Images  map[string]string   // architecture by address, as amd64
	// Slow is how long operations take: what goes wrong is not told before.
	Slow time.Duration
	// Skew is how far the cloud's clock is ahead of the machine's.
	Skew time.Duration
	// Dark are zones that do not answer lists.
	Dark []string
	// Mute has questions about operations refused.
	Mute bool

	mu         sync.Mutex
	operations []*gcpOperation
	requests   map[string]*gcpOperation // by the id of the call
	off        map[string]bool
	heard      []map[string]any
	used       map[string]bool
}

type gcpOperation struct {
	name, kind, zone, target string // target is an instance's id here
	began                    time.Time
	code, text               string // "": it went well
	status                   int
}

const gcpRoot = "/compute/v1/projects/"

// Heard is what was said in calls to launch that were not refused for a fault.
func (g *GCP) Heard() []map[string]any {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.heard)
}

// Permissions are those that the calls so far took, as a role names them.
func (g *GCP) Permissions() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Sorted(maps.Keys(g.used))
}

// PowerOff has an instance switch itself off, which ends none here: it is there and its disk costs something.
func (g *GCP) PowerOff(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.off == nil {
		g.off = map[string]bool{}
	}
	g.off[id] = true
}

// Op is what a request asks for.
func (g *GCP) Op(r *http.Request) Op {
	switch path := r.URL.Path; {
	case strings.HasSuffix(path, "/instances") && r.Method == http.MethodPost:
		return OpLaunch
	case strings.HasSuffix(path, "/aggregated/instances"):
		return OpList
	case strings.Contains(path, "/instances/") && r.Method == http.MethodDelete:
		return OpRelease
	case strings.HasSuffix(path, "/aggregated/machineTypes"):
		return OpTypes
	}
	return OpOther
}

// gcpError is a refusal in the cloud's own words.
type gcpError struct {
	status       int
	reason, text string
}

func (e *gcpError) Error() string { return e.reason + ": " + e.text }

// Refuse writes the cloud's words for a refusal. What a launch finds no room for is accepted, and its operation fails.
func (g *GCP) Refuse(w http.ResponseWriter, r *http.Request, op Op, why Refusal) {
	skew := g.Skew
	if why.Cause == ClockSkew {
		skew += 17 * time.Minute
	}
	if op == OpLaunch && (why.Cause == NoCapacity || why.Cause == Quota) {
		body, err := io.ReadAll(r.Body)
		var in gcpInstance
		if err == nil && json.Unmarshal(body, &in) == nil {
			zone, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, gcpRoot+g.Project+"/zones/"), "/")
			g.mu.Lock()
			o := g.begin("insert", zone, zone+"/"+in.Name)
			o.fail(&why)
			g.mu.Unlock()
			g.answer(w, g.operationOf(o))
			return
		}
	}
	g.fail(w, skew, gcpRefusal(&why))
}

func gcpRefusal(why *Refusal) *gcpError {
	switch why.Cause {
	case NotFound:
		return &gcpError{404, "notFound", "The resource was not found"}
	case NoCapacity:
		return &gcpError{503, "backendError", why.Text}
	case Quota:
		return &gcpError{403, "quotaExceeded", "Quota exceeded"}
	case Throttled:
		return &gcpError{403, "rateLimitExceeded", "Rate Limit Exceeded"}
	case Denied:
		return &gcpError{403, "forbidden", "Required permission is missing"}
	case ClockSkew:
		return &gcpError{401, "authError", "Invalid Credentials"}
	case Broken:
		return &gcpError{503, "backendError", "Backend Error"}
	}
	return &gcpError{400, "invalid", why.Text}
}

func (g *GCP) fail(w http.ResponseWriter, skew time.Duration, e *gcpError) {
	w.Header().Set("Date", time.Now().Add(skew).UTC().Format(http.TimeFormat))
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	w.WriteHeader(e.status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"code": e.status, "message": e.text,
		"errors": []any{map[string]any{"message": e.text, "domain": "global", "reason": e.reason}}}})
}

func (g *GCP) answer(w http.ResponseWriter, body any) {
	w.Header().Set("Date", time.Now().Add(g.Skew).UTC().Format(http.TimeFormat))
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	_ = json.NewEncoder(w).Encode(body)
}

func (g *GCP) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/token" {
		g.token(w, r)
		return
	}
	answer, err := g.carryOut(w, r)
	var no *Refusal
	var own *gcpError
	switch {
	case errors.As(err, &own):
		g.fail(w, g.Skew, own)
	case errors.As(err, &no):
		g.fail(w, g.Skew, gcpRefusal(no))
	case err != nil:
		g.fail(w, g.Skew, &gcpError{500, "internalError", err.Error()})
	default:
		g.answer(w, answer)
	}
}

// token gives a token for what a key has signed, if that is of our time.
func (g *GCP) token(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Date", time.Now().Add(g.Skew).UTC().Format(http.TimeFormat))
	w.Header().Set("Content-Type", "application/json")
	var claims struct {
		Issued int64 `json:"iat"`
	}
	parts := strings.Split(r.FormValue("assertion"), ".")
	if len(parts) == 3 {
		if text, err := base64.RawURLEncoding.DecodeString(parts[1]); err == nil {
			_ = json.Unmarshal(text, &claims)
		}
	}
	if time.Until(time.Unix(claims.Issued, 0).Add(-g.Skew)).Abs() > 5*time.Minute {
		w.WriteHeader(http.StatusBadRequest)
		_ = json.NewEncoder(w).Encode(map[string]string{"error": "invalid_grant", "error_description": "Invalid JWT: iat and exp are not in a reasonable timeframe."})
		return
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"access_token": "ya29.of-the-fake", "expires_in": 3600, "token_type": "Bearer"})
}

func (g *GCP) carryOut(w http.ResponseWriter, r *http.Request) (any, error) {
	if !strings.HasPrefix(r.Header.Get("Authorization"), "Bearer ") {
		return nil, &gcpError{401, "authError", "Invalid Credentials"}
	}
	path, ok := strings.CutPrefix(r.URL.Path, gcpRoot+g.Project+"/")
	if !ok {
		return nil, &gcpError{404, "notFound", "The project was not found"}
	}
	query := r.URL.Query()
	words := strings.Split(path, "/")
	switch {
	case path == "aggregated/instances":
		g.note("compute.instances.list")
		return g.instances(query.Get("filter"), query.Get("maxResults"), query.Get("pageToken"))
	case path == "aggregated/operations":
		g.note("compute.globalOperations.list", "compute.zoneOperations.list")
		return g.listOperations(query.Get("filter"), query.Get("maxResults"), query.Get("pageToken"))
	case path == "aggregated/machineTypes":
		g.note("compute.machineTypes.list")
		return g.types(query.Get("filter"), query.Get("maxResults"), query.Get("pageToken"))
	case len(words) < 3 || words[0] != "zones" || !slices.Contains(g.zones(), words[1]):
	case len(words) == 3 && words[2] == "instances" && r.Method == http.MethodPost:
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil {
			return nil, &gcpError{400, "parseError", err.Error()}
		}
		return g.insert(words[1], query.Get("requestId"), body)
	case len(words) == 4 && words[2] == "instances" && r.Method == http.MethodDelete:
		return g.remove(words[1], words[3])
	case len(words) == 4 && words[2] == "instances" && r.Method == http.MethodGet:
		g.note("compute.instances.get")
		i, ok := g.Cloud.Instance(words[1] + "/" + words[3])
		if !ok || i.State == Gone {
			return nil, g.unknown(words[1], words[3])
		}
		return g.instanceOf(i), nil
	case len(words) == 5 && words[2] == "operations" && words[4] == "wait":
		g.note("compute.zoneOperations.get")
		return g.wait(words[3])
	}
	return nil, &gcpError{404, "notFound", "The resource " + path + " was not found"}
}

func (g *GCP) unknown(zone, name string) error {
	return &gcpError{404, "notFound", "The resource 'projects/" + g.Project + "/zones/" + zone + "/instances/" + name + "' was not found"}
}

func (g *GCP) note(permissions ...string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.used == nil {
		g.used = map[string]bool{}
	}
	for _, p := range permissions {
		g.used[p] = true
	}
}

func (g *GCP) zones() []string {
	if len(g.Zones) > 0 {
		return g.Zones
	}
	return []string{"europe-west4-a", "europe-west4-b", "europe-west4-c", "us-central1-a"}
}

// gcpInstance is the body of a call to launch, as far as it is understood here.
type gcpInstance struct {
	Name        string            `json:"name"`
	MachineType string            `json:"machineType"`
	Labels      map[string]string `json:"labels"`
	Metadata    struct {
		Items []struct{ Key, Value string } `json:"items"`
	} `json:"metadata"`
	Disks []struct {
		Boot       bool `json:"boot"`
		AutoDelete bool `json:"autoDelete"`
		Init       struct {
			Image string `json:"sourceImage"`
		} `json:"initializeParams"`
	} `json:"disks"`
	Networks []struct {
		Network    string `json:"network"`
		Subnetwork string `json:"subnetwork"`
	} `json:"networkInterfaces"`
	Scheduling struct {
		Model   string `json:"provisioningModel"`
		Action  string `json:"instanceTerminationAction"`
		Host    string `json:"onHostMaintenance"`
		Restart *bool  `json:"automaticRestart"`
		Max     *struct {
			Seconds string `json:"seconds"`
		} `json:"maxRunDuration"`
	} `json:"scheduling"`
	Accelerators []struct {
		Type  string `json:"acceleratorType"`
		Count int    `json:"acceleratorCount"`
	} `json:"guestAccelerators"`
}

func (g *GCP) insert(zone, request string, body []byte) (any, error) {
	g.note("compute.instances.create", "compute.instances.setMetadata", "compute.instances.setLabels", "compute.disks.create", "compute.disks.setLabels",
		"compute.images.useReadOnly", "compute.subnetworks.use")
	var said map[string]any
	var in gcpInstance
	if json.Unmarshal(body, &said) != nil || json.Unmarshal(body, &in) != nil {
		return nil, &gcpError{400, "parseError", "Parse Error"}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.heard = append(g.heard, said)
	if o := g.requests[request]; o != nil && request != "" && g.Cloud.Now().Sub(o.began) < time.Hour {
		return g.operationOf(o), nil
	}
	typ, err := g.check(zone, &in)
	if err != nil {
		return nil, err
	}
	id := zone + "/" + in.Name
	if i, ok := g.Cloud.Instance(id); ok && i.State != Gone {
		return nil, &gcpError{409, "alreadyExists", "The resource '" + id + "' already exists"}
	}
	ask := Ask{ID: id, Type: typ, Zone: zone, Image: in.Disks[0].Init.Image, Tags: in.Labels, Params: string(body)}
	for _, m := range in.Metadata.Items {
		if m.Key == "user-data" {
			ask.UserData = []byte(m.Value)
		}
	}
	if in.Scheduling.Model == "SPOT" {
		ask.Market = Spot
	}
	if m := in.Scheduling.Max; m != nil {
		n, err := strconv.Atoi(m.Seconds)
		if err != nil || n < 30 || n > 120*24*3600 {
			return nil, &gcpError{400, "invalid", "Invalid value for field 'resource.scheduling.maxRunDuration'"}
		}
		ask.Lifetime = time.Duration(n) * time.Second
	}
	o := g.begin("insert", zone, id)
	if request != "" {
		if g.requests == nil {
			g.requests = map[string]*gcpOperation{}
		}
		g.requests[request] = o
	}
	var no *Refusal
	if _, err := g.Cloud.Launch(ask); errors.As(err, &no) {
		o.fail(no)
	} else if err != nil {
		return nil, err
	}
	return g.operationOf(o), nil
}

func (g *GCP) check(zone string, in *gcpInstance) (typ string, err error) {
	bad := func(format string, args ...any) (string, error) {
		return "", &gcpError{400, "invalid", fmt.Sprintf(format, args...)}
	}
	typ, ok := strings.CutPrefix(in.MachineType, "zones/"+zone+"/machineTypes/")
	t, known := g.Cloud.Type(typ)
	label := regexp.MustCompile(`^[a-z][a-z0-9_-]{0,62}$`)
	value := regexp.MustCompile(`^[a-z0-9_-]{0,63}$`)
	s := in.Scheduling
	switch {
	case !regexp.MustCompile(`^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`).MatchString(in.Name):
		return bad("Invalid value for field 'resource.name': '%s'", in.Name)
	case !ok || !known || !g.has(typ, zone):
		return bad("Invalid value for field 'resource.machineType': '%s'. The referenced resource does not exist.", in.MachineType)
	case len(in.Disks) != 1 || !in.Disks[0].Boot || !in.Disks[0].AutoDelete:
		return bad("Invalid value for field 'resource.disks'")
	case g.Images[in.Disks[0].Init.Image] == "":
		return bad("Invalid value for field 'resource.disks[0].initializeParams.sourceImage': '%s'. The referenced image resource cannot be found.", in.Disks[0].Init.Image)
	case g.Images[in.Disks[0].Init.Image] != t.Arch:
		return bad("The image's architecture is not that of machine type %s", typ)
	case len(in.Networks) != 1 || in.Networks[0].Network == "" && in.Networks[0].Subnetwork == "":
		return bad("Invalid value for field 'resource.networkInterfaces'")
	case (s.Model == "SPOT" || t.GPUs > 0 || len(in.Accelerators) > 0) && s.Host != "TERMINATE":
		return bad("onHostMaintenance must be TERMINATE")
	case s.Model == "SPOT" && (s.Restart == nil || *s.Restart):
		return bad("automaticRestart must be false")
	case s.Action != "" && s.Model != "SPOT" && s.Max == nil, s.Max != nil && s.Action == "":
		return bad("instanceTerminationAction does not fit")
	}
	for k, v := range in.Labels {
		if !label.MatchString(k) || !value.MatchString(v) {
			return bad("Invalid value for field 'resource.labels': '%s=%s'", k, v)
		}
	}
	return typ, nil
}

func (g *GCP) has(typ, zone string) bool {
	only, ok := g.Only[typ]
	return !ok || slices.Contains(only, zone)
}

func (g *GCP) remove(zone, name string) (any, error) {
	g.note("compute.instances.delete")
	id := zone + "/" + name
	i, ok := g.Cloud.Instance(id)
	if !ok || i.State == Gone {
		return nil, g.unknown(zone, name)
	}
	if _, err := g.Cloud.Terminate(id); err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.operationOf(g.begin("delete", zone, id)), nil
}

// begin makes an operation; who calls holds the lock.
func (g *GCP) begin(kind, zone, target string) *gcpOperation {
	o := &gcpOperation{name: fmt.Sprintf("operation-%d", 1+len(g.operations)), kind: kind, zone: zone, target: target, began: g.Cloud.Now()}
	g.operations = append(g.operations, o)
	return o
}

func (o *gcpOperation) fail(no *Refusal) {
	switch no.Cause {
	case NoCapacity:
		o.code, o.status, o.text = "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", 503, "The zone "+o.zone+" does not have enough resources available to fulfill the request: "+no.Text
	case Quota:
		o.code, o.status, o.text = "QUOTA_EXCEEDED", 403, "Quota 'CPUS' exceeded: "+no.Text
	default:
		o.code, o.status, o.text = "INVALID_USAGE", 400, no.Text
	}
}

func (g *GCP) wait(name string) (any, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, o := range g.operations {
		if o.name == name {
			return g.operationOf(o), nil
		}
	}
	return nil, &gcpError{404, "notFound", "The operation " + name + " was not found"}
}
