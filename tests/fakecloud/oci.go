package fakecloud

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// OCI speaks as Oracle's cloud does, in one compartment of a region: JSON both ways, pages by header. It checks what that cloud checks of a call that
// launches and of how a request is signed, and believes any key.
type OCI struct {
	Cloud       *Cloud
	Region      string
	Compartment string
	Domains     []string          // availability domains; default: three
	Images      map[string]string // architecture by id, as amd64
	Subnets     []string
	// Bound has the user end no instances. The answer is that of what does not exist.
	Bound bool
	// Skew is how far the cloud's clock is ahead of the machine's; what is signed more than five minutes off is refused.
	Skew time.Duration
	// Only are the domains that have a type; one that is not here is in all.
	Only map[string][]string

	mu      sync.Mutex
	heard   []OCILaunch
	off     map[string]bool
	used    map[string]bool
	answers int
}

// OCILaunch is what a call to launch said.
type OCILaunch struct {
	Token string
	Body  map[string]any
}

// Heard is what was said in calls to launch that were not refused for a fault.
func (o *OCI) Heard() []OCILaunch {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.heard)
}

// Permissions are those that the calls so far took, as a policy names them.
func (o *OCI) Permissions() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Sorted(maps.Keys(o.used))
}

const ociInstances = "/20160918/instances"

// Op is what a request asks for.
func (o *OCI) Op(r *http.Request) Op {
	switch path := r.URL.Path; {
	case path == ociInstances && r.Method == http.MethodPost:
		return OpLaunch
	case path == ociInstances:
		return OpList
	case strings.HasPrefix(path, ociInstances+"/") && r.Method == http.MethodDelete:
		return OpRelease
	case path == "/20160918/shapes", path == "/20160918/availabilityDomains":
		return OpTypes
	}
	return OpOther
}

// ociError is a refusal in the cloud's own words.
type ociError struct {
	status     int
	code, text string
}

func (e *ociError) Error() string { return e.code + ": " + e.text }

// Refuse writes the cloud's words for a refusal.
func (o *OCI) Refuse(w http.ResponseWriter, _ *http.Request, _ Op, why Refusal) {
	skew := o.Skew
	if why.Cause == ClockSkew {
		skew += 17 * time.Minute
	}
	o.fail(w, skew, ociRefusal(&why))
}

func ociRefusal(why *Refusal) *ociError {
	switch why.Cause {
	case NotFound:
		return ociNotFound()
	case NoCapacity: // an error of the server's, by its code
		return &ociError{500, "InternalError", "Out of host capacity."}
	case Quota:
		return &ociError{400, "LimitExceeded", "The following service limits were exceeded: standard-e4-core-count. Request a service limit increase from the service limits page in the console."}
	case Throttled:
		return &ociError{429, "TooManyRequests", "Too many requests for the user"}
	case Denied:
		return &ociError{403, "NotAllowed", "The user is not allowed to do that"}
	case ClockSkew:
		return &ociError{401, "NotAuthenticated", "The required information to complete authentication was not provided or was incorrect."}
	case TokenMismatch:
		return &ociError{400, "InvalidParameter", "The retry token was used with other parameters: " + why.Text}
	case TokenSpent:
		return &ociError{409, "InvalidatedRetryToken", "The retry token was used in an earlier request, and a later operation has invalidated it."}
	case Broken:
		return &ociError{500, "InternalServerError", "An internal server error has occurred."}
	}
	return &ociError{400, "InvalidParameter", why.Text}
}

func ociNotFound() *ociError {
	return &ociError{404, "NotAuthorizedOrNotFound", "Authorization failed or requested resource not found."}
}

func (o *OCI) fail(w http.ResponseWriter, skew time.Duration, e *ociError) {
	o.header(w, skew)
	w.WriteHeader(e.status)
	_ = json.NewEncoder(w).Encode(map[string]string{"code": e.code, "message": e.text})
}

func (o *OCI) header(w http.ResponseWriter, skew time.Duration) {
	o.mu.Lock()
	o.answers++
	n := o.answers
	o.mu.Unlock()
	w.Header().Set("Date", time.Now().Add(skew).UTC().Format(http.TimeFormat))
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("opc-request-id", fmt.Sprintf("%032X", n))
}

func (o *OCI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer, err := o.carryOut(w, r)
	var no *Refusal
	var own *ociError
	switch {
	case errors.As(err, &own):
		o.fail(w, o.Skew, own)
	case errors.As(err, &no):
		o.fail(w, o.Skew, ociRefusal(no))
	case err != nil:
		o.fail(w, o.Skew, &ociError{500, "InternalServerError", err.Error()})
	case answer == nil:
		o.header(w, o.Skew)
		w.WriteHeader(http.StatusNoContent)
	default:
		o.header(w, o.Skew)
		_ = json.NewEncoder(w).Encode(answer)
	}
}

func (o *OCI) carryOut(w http.ResponseWriter, r *http.Request) (any, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil {
		return nil, &ociError{400, "InvalidParameter", err.Error()}
	}
	if err := o.signed(r, body); err != nil {
		return nil, err
	}
	query := r.URL.Query()
	id, one := strings.CutPrefix(r.URL.Path, ociInstances+"/")
	switch {
	case one && r.Method == http.MethodDelete:
		o.note("INSTANCE_DELETE", "VNIC_DELETE", "SUBNET_DETACH")
		if query.Get("preserveBootVolume") != "false" {
			return nil, &ociError{400, "InvalidParameter", "this cloud keeps no boot volumes"}
		}
		return nil, o.terminate(id)
	case r.URL.Path == ociInstances && r.Method == http.MethodPost:
		return o.launch(r.Header.Get("opc-retry-token"), body)
	case r.Method != http.MethodGet:
	case query.Get("compartmentId") != o.Compartment:
		return nil, ociNotFound()
	case r.URL.Path == ociInstances:
		o.note("INSTANCE_READ")
		return o.list(w, query.Get("displayName"), query.Get("limit"), query.Get("page"))
	case r.URL.Path == "/20160918/shapes":
		o.note("INSTANCE_INSPECT")
		return o.shapes(w, query.Get("availabilityDomain"), query.Get("limit"), query.Get("page"))
	case r.URL.Path == "/20160918/availabilityDomains":
		o.note("COMPARTMENT_INSPECT")
		out := []map[string]any{}
		for _, d := range o.domains() {
			out = append(out, map[string]any{"name": d, "id": "ocid1.availabilitydomain.oc1.." + d, "compartmentId": o.Compartment})
		}
		return out, nil
	}
	return nil, &ociError{404, "NotFound", "no such call"}
}

// signed checks how a request is signed, not by whom.
func (o *OCI) signed(r *http.Request, body []byte) error {
	bad := &ociError{401, "NotAuthenticated", "The required information to complete authentication was not provided or was incorrect."}
	auth := r.Header.Get("Authorization")
	date, err := http.ParseTime(r.Header.Get("Date"))
	switch {
	case err != nil || !strings.HasPrefix(auth, "Signature version=") || !strings.Contains(auth, `algorithm="rsa-sha256"`) || !strings.Contains(auth, "(request-target)"):
		return bad
	case time.Until(date.Add(-o.Skew)).Abs() > 5*time.Minute:
		return bad
	}
	if r.Method == http.MethodPost {
		sum := sha256.Sum256(body)
		if r.Header.Get("X-Content-Sha256") != base64.StdEncoding.EncodeToString(sum[:]) {
			return bad
		}
	}
	return nil
}

func (o *OCI) note(permissions ...string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.used == nil {
		o.used = map[string]bool{}
	}
	for _, p := range permissions {
		o.used[p] = true
	}
}

func (o *OCI) domains() []string {
	if len(o.Domains) > 0 {
		return o.Domains
	}
	return []string{"Fake:" + strings.ToUpper(o.Region) + "-AD-1", "Fake:" + strings.ToUpper(o.Region) + "-AD-2", "Fake:" + strings.ToUpper(o.Region) + "-AD-3"}
}

// PowerOff has an instance switch itself off, which ends none here: it is there and costs something.
func (o *OCI) PowerOff(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.off == nil {
		o.off = map[string]bool{}
	}
	o.off[id] = true
}

// OCID is what an instance is called; ID is the way back.
func (o *OCI) OCID(id string) string { return "ocid1.instance.oc1." + o.Region + "." + id }

// ID is the engine's name of an instance.
func (o *OCI) ID(ocid string) string {
	return strings.TrimPrefix(ocid, "ocid1.instance.oc1."+o.Region+".")
}

// ociLaunch is the body of a call to launch, as far as it is understood here.
type ociLaunch struct {
	Domain      string            `json:"availabilityDomain"`
	Compartment string            `json:"compartmentId"`
	Shape       string            `json:"shape"`
	Name        string            `json:"displayName"`
	Tags        map[string]string `json:"freeformTags"`
	Metadata    map[string]string `json:"metadata"`
	Source      struct {
		Type  string `json:"sourceType"`
		Image string `json:"imageId"`
	} `json:"sourceDetails"`
	Vnic struct {
		Subnet string `json:"subnetId"`
	} `json:"createVnicDetails"`
	Size *struct {
		OCPUs  float64 `json:"ocpus"`
		Memory float64 `json:"memoryInGBs"`
	} `json:"shapeConfig"`
	Preemptible *struct {
		Action struct {
			Type string `json:"type"`
			Keep bool   `json:"preserveBootVolume"`
		} `json:"preemptionAction"`
	} `json:"preemptibleInstanceConfig"`
}

func (o *OCI) launch(token string, body []byte) (any, error) {
	o.note("INSTANCE_CREATE", "INSTANCE_IMAGE_READ", "VNIC_CREATE", "VNIC_ATTACH", "SUBNET_ATTACH")
	var said map[string]any
	var in ociLaunch
	if json.Unmarshal(body, &said) != nil || json.Unmarshal(body, &in) != nil {
		return nil, &ociError{400, "CannotParseRequest", "Incorrectly formatted request"}
	}
	o.mu.Lock()
	o.heard = append(o.heard, OCILaunch{token, said})
	o.mu.Unlock()
	if err := o.check(token, &in); err != nil {
		return nil, err
	}
	data, err := base64.StdEncoding.DecodeString(in.Metadata["user_data"])
	if err != nil {
		return nil, &ociError{400, "InvalidParameter", "user_data is not base64"}
	}
	tags := maps.Clone(in.Tags)
	if tags == nil {
		tags = map[string]string{}
	}
	tags[ociName] = in.Name
	ask := Ask{Token: token, Type: in.Shape, Zone: in.Domain, Image: in.Source.Image, Tags: tags, UserData: data, Params: string(body)}
	if in.Preemptible != nil {
		ask.Market = Spot
	}
	made, err := o.Cloud.Launch(ask)
	if err != nil {
		return nil, err
	}
	return o.instanceOf(made), nil
}

// ociName is where the engine keeps an instance's display name.
const ociName = "(display name)"

func (o *OCI) check(token string, in *ociLaunch) error {
	bad := func(format string, args ...any) error {
		return &ociError{400, "InvalidParameter", fmt.Sprintf(format, args...)}
	}
	metadata, _ := json.Marshal(in.Metadata)
	t, known := o.Cloud.Type(in.Shape)
	flexible := strings.HasSuffix(in.Shape, ".Flex")
	switch {
	case len(token) > 64:
		return bad("the opc-retry-token has more than 64 characters")
	case in.Compartment != o.Compartment:
		return ociNotFound()
	case !slices.Contains(o.domains(), in.Domain):
		return bad("%s is no availability domain", in.Domain)
	case !known:
		return bad("Shape %s is not valid", in.Shape)
	case !o.has(in.Shape, in.Domain):
		return bad("Shape %s is not valid in %s", in.Shape, in.Domain)
	case in.Source.Type != "image":
		return bad("sourceType %q", in.Source.Type)
	case o.Images[in.Source.Image] == "", !slices.Contains(o.Subnets, in.Vnic.Subnet):
		return ociNotFound()
	case o.Images[in.Source.Image] != t.Arch:
		return bad("Shape %s is not valid for image %s.", in.Shape, in.Source.Image)
	case flexible && (in.Size == nil || in.Size.OCPUs < 1 || in.Size.Memory < 1):
		return bad("shapeConfig is required for %s", in.Shape)
	case !flexible && in.Size != nil:
		return bad("shapeConfig is not allowed for %s", in.Shape)
	case in.Preemptible != nil && (in.Preemptible.Action.Type != "TERMINATE" || in.Preemptible.Action.Keep):
		return bad("preemptionAction %+v", in.Preemptible.Action)
	case len(metadata) > 32000:
		return bad("the metadata has more than 32000 bytes")
	case len(in.Tags) > 10:
		return bad("more than 10 free-form tags")
	}
	return nil
}

func (o *OCI) has(typ, domain string) bool {
	only, ok := o.Only[typ]
	return !ok || slices.Contains(only, domain)
}

func (o *OCI) terminate(ocid string) error {
	id := o.ID(ocid)
	i, ok := o.Cloud.Instance(id)
	switch {
	case !ok || o.Bound || o.Cloud.Hidden(id) || i.State == Gone:
		return ociNotFound()
	case i.State == Stopping:
		return &ociError{409, "IncorrectState", "The instance " + ocid + " is in state TERMINATING."}
	}
	_, err := o.Cloud.Terminate(id)
	return err
}

func (o *OCI) list(w http.ResponseWriter, name, limit, page string) (any, error) {
	all := o.Cloud.List()
	if name != "" {
		all = slices.DeleteFunc(all, func(i Instance) bool { return i.Tags[ociName] != name })
	}
	part, err := ociPage(w, all, cmp.Or(o.Cloud.Page(), 100), limit, page, func(i Instance) string { return i.ID })
	if err != nil {
		return nil, err
	}
	out := []map[string]any{}
	for _, i := range part {
		out = append(out, o.instanceOf(i))
	}
	return out, nil
}

// ociPage is the part of a list that a call asked for; where the next one begins is said in a header. The list is in the order of its keys.
func ociPage[T any](w http.ResponseWriter, all []T, most int, limit, page string, key func(T) string) ([]T, error) {
	if limit != "" {
		n, err := strconv.Atoi(limit)
		if err != nil || n < 1 || n > 1000 {
			return nil, &ociError{400, "InvalidParameter", "limit " + limit}
		}
		most = min(most, n)
	}
	after, err := base64.RawURLEncoding.DecodeString(page)
	if err != nil {
		return nil, &ociError{400, "InvalidParameter", "page " + page}
	}
	all = slices.DeleteFunc(slices.Clone(all), func(x T) bool { return len(after) > 0 && bytes.Compare([]byte(key(x)), after) <= 0 })
	if len(all) > most {
		all = all[:most]
		w.Header().Set("opc-next-page", base64.RawURLEncoding.EncodeToString([]byte(key(all[most-1]))))
	}
	return all, nil
}

func (o *OCI) instanceOf(i Instance) map[string]any {
	state := "PROVISIONING"
	o.mu.Lock()
	off := o.off[i.ID]
	o.mu.Unlock()
	switch {
	case off && i.State < Stopping:
		state = "STOPPED"
	case i.State == Running:
		state = "RUNNING"
	case i.State == Stopping:
		state = "TERMINATING"
	case i.State == Gone:
		state = "TERMINATED"
	}
	tags := maps.Clone(i.Tags)
	delete(tags, ociName)
	out := map[string]any{"id": o.OCID(i.ID), "availabilityDomain": i.Zone, "compartmentId": o.Compartment, "lifecycleState": state, "region": o.Region,
		"shape": i.Type, "timeCreated": i.Launched.UTC().Format("2006-01-02T15:04:05.000Z"), "displayName": i.Tags[ociName], "freeformTags": tags}
	if i.Market == Spot {
		out["preemptibleInstanceConfig"] = map[string]any{"preemptionAction": map[string]any{"type": "TERMINATE", "preserveBootVolume": false}}
	}
	return out
}

func (o *OCI) shapes(w http.ResponseWriter, domain, limit, page string) (any, error) {
	if domain != "" && !slices.Contains(o.domains(), domain) {
		return nil, ociNotFound()
	}
	all := slices.DeleteFunc(o.Cloud.Types(), func(t Type) bool { return domain != "" && !o.has(t.Name, domain) })
	part, err := ociPage(w, all, 100, limit, page, func(t Type) string { return t.Name })
	if err != nil {
		return nil, err
	}
	out := []map[string]any{}
	for _, t := range part {
		cpu := "2.55 GHz AMD EPYC™ 7J13 (Milan)"
		if t.Arch == "arm64" {
			cpu = "3.0 GHz Ampere® Altra™"
		}
		s := map[string]any{"shape": t.Name, "processorDescription": cpu, "ocpus": t.Cores, "memoryInGBs": float64(t.Memory) / 1024, "gpus": t.GPUs,
			"isFlexible": strings.HasSuffix(t.Name, ".Flex")}
		if t.GPUs > 0 {
			s["gpuDescription"] = t.GPU
		}
		if strings.HasSuffix(t.Name, ".Flex") {
			s["ocpuOptions"] = map[string]any{"min": 1, "max": t.Cores}
			s["memoryOptions"] = map[string]any{"minInGBs": 1, "maxInGBs": float64(t.Memory) / 1024, "minPerOcpuInGBs": 1, "maxPerOcpuInGBs": 64}
		}
		out = append(out, s)
	}
	return out, nil
}
