package fakecloud

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Azure speaks as Azure Resource Manager does, about one resource group, and as its sign-in: JSON both ways, pages by address. It checks what that cloud
// checks of a call that makes a machine, and believes any secret.
type Azure struct {
	Cloud        *Cloud
	Subscription string
	Group        string
	Location     string
	Images       map[string]string // architecture by id or publisher:offer:sku, as amd64
	Subnets      []string          // ids
	// Restricted are sizes that the subscription may not have, with the reason.
	Restricted map[string]string
	// Narrow has the caller see the resource group alone.
	Narrow bool
	// Skew is how far the cloud's clock is ahead of the machine's; tokens are refused when it is more than five minutes.
	Skew time.Duration

	mu      sync.Mutex
	heard   []AzureCall
	off     map[string]string
	spoilt  map[string]azureError // by machine; "" is every machine
	used    map[string]bool
	answers int
}

// AzureCall is what a call to make a machine said.
type AzureCall struct {
	Name   string
	Header http.Header
	Body   map[string]any
}

// Heard is what was said in calls to make machines that were not refused for a fault.
func (a *Azure) Heard() []AzureCall {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.heard)
}

// Actions are those that the calls so far took, as a role names them, each after the scope where it is taken: group or subscription.
func (a *Azure) Actions() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Sorted(maps.Keys(a.used))
}

func (a *Azure) note(scope string, actions ...string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.used == nil {
		a.used = map[string]bool{}
	}
	for _, action := range actions {
		a.used[scope+" "+action] = true
	}
}

// PowerOff has a machine be switched off, in a word of the cloud's: stopped or deallocated. That ends none here: it is there and costs something.
func (a *Azure) PowerOff(id, state string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.off == nil {
		a.off = map[string]string{}
	}
	a.off[id] = state
}

// Spoil has the making of a machine fail after it was accepted, as for want of room; of id "" that of every one. Without a code it succeeds after all.
func (a *Azure) Spoil(id, code, message string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.spoilt == nil {
		a.spoilt = map[string]azureError{}
	}
	if delete(a.spoilt, id); code != "" {
		a.spoilt[id] = azureError{409, code, message}
	}
}

const azureProvider = "/providers/Microsoft.Compute/"

func (a *Azure) groupPath() string {
	return "/subscriptions/" + a.Subscription + "/resourceGroups/" + a.Group
}

// ID is a machine's address.
func (a *Azure) ID(name string) string {
	return a.groupPath() + azureProvider + "virtualMachines/" + name
}

// machines is what a path is about: all of the subscription, all of the group, or one.
func (a *Azure) machines(path string) (all, group bool, name string) {
	rest, ok := strings.CutPrefix(path, a.groupPath()+azureProvider+"virtualMachines")
	switch {
	case path == "/subscriptions/"+a.Subscription+azureProvider+"virtualMachines":
		return true, false, ""
	case ok && rest == "":
		return false, true, ""
	case ok:
		return false, false, strings.TrimPrefix(rest, "/")
	}
	return false, false, ""
}

func (a *Azure) skus(path string) bool {
	return path == "/subscriptions/"+a.Subscription+azureProvider+"skus"
}

// Op is what a request asks for.
func (a *Azure) Op(r *http.Request) Op {
	_, group, name := a.machines(r.URL.Path)
	switch {
	case name != "" && r.Method == http.MethodPut:
		return OpLaunch
	case name != "" && r.Method == http.MethodDelete:
		return OpRelease
	case group:
		return OpList
	case a.skus(r.URL.Path):
		return OpTypes
	}
	return OpOther
}

// azureError is a refusal in the cloud's own words.
type azureError struct {
	status     int
	code, text string
}

func (e *azureError) Error() string { return e.code + ": " + e.text }

// Refuse writes the cloud's words for a refusal.
func (a *Azure) Refuse(w http.ResponseWriter, _ *http.Request, _ Op, why Refusal) {
	skew := a.Skew
	switch why.Cause {
	case ClockSkew:
		skew += 17 * time.Minute
	case Throttled:
		w.Header().Set("Retry-After", "7")
	}
	a.fail(w, skew, azureRefusal(&why))
}

func azureRefusal(why *Refusal) *azureError {
	switch why.Cause {
	case NotFound:
		return &azureError{404, "ResourceNotFound", "The Resource was not found. For more details please go to https://aka.ms/ARMResourceNotFoundFix"}
	case NoCapacity:
		return &azureError{409, "SkuNotAvailable", "The requested VM size for resource is currently not available in location. Please try another size or deploy to a different location or different zone."}
	case Quota:
		return &azureError{409, "OperationNotAllowed", "Operation could not be completed as it results in exceeding approved Total Regional Cores quota. Additional details - Current Limit: 10."}
	case Throttled:
		return &azureError{429, "TooManyRequests", "The request is being throttled as the limit has been reached for operation type."}
	case Denied:
		return &azureError{403, "AuthorizationFailed", "The client does not have authorization to perform action over scope or the scope is invalid."}
	case ClockSkew:
		return &azureError{401, "InvalidAuthenticationToken", "The access token is not yet valid."}
	case Broken:
		return &azureError{500, "InternalServerError", "Encountered internal server error."}
	}
	return &azureError{400, "InvalidParameter", why.Text}
}

func (a *Azure) fail(w http.ResponseWriter, skew time.Duration, e *azureError) {
	a.header(w, skew)
	w.WriteHeader(e.status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]string{"code": e.code, "message": e.text}})
}

func (a *Azure) header(w http.ResponseWriter, skew time.Duration) {
	a.mu.Lock()
	a.answers++
	n := a.answers
	a.mu.Unlock()
	w.Header().Set("Date", time.Now().Add(skew).UTC().Format(http.TimeFormat))
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("x-ms-request-id", fmt.Sprintf("00000000-0000-4000-8000-%012x", n))
}

func (a *Azure) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	status, answer, err := a.carryOut(w, r)
	var no *Refusal
	var own *azureError
	switch {
	case errors.As(err, &own):
		a.fail(w, a.Skew, own)
	case errors.As(err, &no):
		a.fail(w, a.Skew, azureRefusal(no))
	case err != nil:
		a.fail(w, a.Skew, &azureError{500, "InternalServerError", err.Error()})
	default:
		a.header(w, a.Skew)
		if status == http.StatusCreated || status == http.StatusAccepted { // where its caller could ask how far it is
			w.Header().Set("Azure-AsyncOperation", "https://"+r.Host+"/subscriptions/"+a.Subscription+azureProvider+"locations/"+a.Location+"/operations/1?api-version=2025-04-01")
		}
		w.WriteHeader(status)
		if answer != nil {
			_ = json.NewEncoder(w).Encode(answer)
		}
	}
}

func (a *Azure) carryOut(w http.ResponseWriter, r *http.Request) (int, any, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 4<<20))
	if err != nil {
		return 0, nil, &azureError{400, "InvalidRequestContent", err.Error()}
	}
	if r.URL.Path == azurePrices {
		return a.prices(r)
	}
	if strings.Contains(r.URL.Path, "/v2.0/") || strings.HasPrefix(r.URL.Path, "/common/") {
		return a.signIn(r, body)
	}
	switch token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); {
	case !ok || !strings.HasPrefix(token, "token-of-"):
		return 0, nil, &azureError{401, "AuthenticationFailed", "Authentication failed. The 'Authorization' header is missing."}
	case a.Skew.Abs() > 5*time.Minute:
		return 0, nil, azureRefusal(&Refusal{Cause: ClockSkew})
	case r.URL.Query().Get("api-version") == "":
		return 0, nil, &azureError{400, "MissingApiVersionParameter", "The api-version query parameter (?api-version=) is required for all requests."}
	}
	all, group, name := a.machines(r.URL.Path)
	switch {
	case name != "" && r.Method == http.MethodPut:
		return a.make(r, name, body)
	case name != "" && r.Method == http.MethodDelete:
		return a.remove(name)
	case r.Method != http.MethodGet:
	case name != "":
		a.note("group", "Microsoft.Compute/virtualMachines/read")
		i, ok := a.Cloud.Instance(name)
		if !ok || i.State == Gone {
			return 0, nil, azureRefusal(&Refusal{Cause: NotFound})
		}
		return 200, a.machineOf(i, r.URL.Query().Get("$expand") == "instanceView"), nil
	case group:
		a.note("group", "Microsoft.Compute/virtualMachines/read")
		return a.list(r, func(i Instance) any { return a.machineOf(i, false) })
	case all && a.Narrow:
		return 0, nil, azureRefusal(&Refusal{Cause: Denied})
	case all:
		a.note("subscription", "Microsoft.Compute/virtualMachines/read")
		return a.list(r, func(i Instance) any {
			if r.URL.Query().Get("statusOnly") == "true" {
				return a.stateOf(i)
			}
			return a.machineOf(i, false)
		})
	case a.skus(r.URL.Path):
		a.note("subscription", "Microsoft.Compute/skus/read")
		return a.sizes(r.URL.Query().Get("$filter"))
	}
	return 0, nil, &azureError{404, "InvalidResourceType", "The resource type could not be found."}
}

// signIn gives tokens to whoever asks.
func (a *Azure) signIn(r *http.Request, body []byte) (int, any, error) {
	at := "https://" + r.Host
	tenant, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch {
	case strings.HasSuffix(r.URL.Path, "/.well-known/openid-configuration"):
		return 200, map[string]string{"token_endpoint": at + "/" + tenant + "/oauth2/v2.0/token", "authorization_endpoint": at + "/" + tenant + "/oauth2/v2.0/authorize",
			"issuer": at + "/" + tenant + "/v2.0"}, nil
	case strings.HasSuffix(r.URL.Path, "/oauth2/v2.0/token"):
		form, err := url.ParseQuery(string(body))
		if err != nil || form.Get("client_id") == "" || form.Get("client_secret") == "" && form.Get("client_assertion") == "" {
			return 0, nil, &azureError{400, "invalid_request", "who asks?"}
		}
		return 200, map[string]any{"token_type": "Bearer", "expires_in": 3599, "ext_expires_in": 3599, "access_token": "token-of-" + form.Get("client_id")}, nil
	}
	return 0, nil, &azureError{404, "NotFound", r.URL.Path}
}

func (a *Azure) remove(name string) (int, any, error) {
	a.note("group", "Microsoft.Compute/virtualMachines/delete", "Microsoft.Compute/disks/delete", "Microsoft.Network/networkInterfaces/delete")
	i, ok := a.Cloud.Instance(name)
	if !ok || i.State == Gone {
		return http.StatusNoContent, nil, nil
	}
	if _, err := a.Cloud.Terminate(name); err != nil {
		return 0, nil, err
	}
	return http.StatusAccepted, nil, nil
}

// list is a page, and where the next one is.
func (a *Azure) list(r *http.Request, show func(i Instance) any) (int, any, error) {
	after := 0
	if at := r.URL.Query().Get("$skipToken"); at != "" {
		n, err := strconv.Atoi(at)
		if err != nil {
			return 0, nil, &azureError{400, "InvalidParameter", "$skipToken " + at}
		}
		after = n
	}
	all := slices.DeleteFunc(a.Cloud.List(), func(i Instance) bool { return i.State == Gone })
	all = all[min(after, len(all)):]
	out := map[string]any{}
	if most := a.Cloud.Page(); len(all) > most {
		all = all[:most]
		next := *r.URL
		q := next.Query()
		q.Set("$skipToken", strconv.Itoa(after+most))
		next.RawQuery, next.Scheme, next.Host = q.Encode(), "https", r.Host
		if r.TLS == nil {
			next.Scheme = "http"
		}
		out["nextLink"] = next.String()
	}
	value := []any{}
	for _, i := range all {
		value = append(value, show(i))
	}
	out["value"] = value
	return 200, out, nil
}

// sizes lists types as the cloud does, among other things that it sells.
func (a *Azure) sizes(filter string) (int, any, error) {
	value := []any{map[string]any{"resourceType": "disks", "name": "Premium_LRS", "locations": []string{a.Location}, "restrictions": []any{}}}
	where, filtered := strings.CutPrefix(filter, "location eq ")
	if filtered && strings.Trim(where, "'") != a.Location {
		return 200, map[string]any{"value": value[:0]}, nil
	}
	for _, t := range a.Cloud.Types() {
		value = append(value, a.sizeOf(t))
	}
	return 200, map[string]any{"value": value}, nil
}

func (a *Azure) sizeOf(t Type) map[string]any {
	var says []map[string]string
	say := func(name, value string) { says = append(says, map[string]string{"name": name, "value": value}) }
	say("vCPUs", strconv.Itoa(int(t.VCPUs)))
	say("vCPUsAvailable", strconv.Itoa(int(t.VCPUs)))
	say("vCPUsPerCore", strconv.Itoa(int(max(1, t.VCPUs/max(1, t.Cores)))))
	say("MemoryGB", strconv.FormatFloat(float64(t.Memory)/1024, 'g', -1, 64))
	say("CpuArchitectureType", map[string]string{"amd64": "x64", "arm64": "Arm64"}[t.Arch])
	say("LowPriorityCapable", map[bool]string{true: "True", false: "False"}[t.Spot])
	say("AcceleratedNetworkingEnabled", "True")
	if t.GPUs > 0 {
		say("GPUs", strconv.Itoa(int(t.GPUs)))
	}
	restrictions := []any{}
	if why := a.Restricted[t.Name]; why != "" {
		restrictions = append(restrictions, map[string]any{"type": "Location", "values": []string{a.Location}, "reasonCode": why,
			"restrictionInfo": map[string]any{"locations": []string{a.Location}}})
	}
	return map[string]any{"resourceType": "virtualMachines", "name": t.Name, "tier": "Standard", "size": strings.TrimPrefix(t.Name, "Standard_"), "family": "standardFakeFamily",
		"locations": []string{a.Location}, "locationInfo": []any{map[string]any{"location": a.Location, "zones": []string{"3", "1", "2"}}},
		"capabilities": says, "restrictions": restrictions}
}

// machineOf is a machine as the cloud shows it.
func (a *Azure) machineOf(i Instance, view bool) map[string]any {
	_, _, making := a.statesOf(i)
	properties := map[string]any{"vmId": i.Tags[azureUnique], "provisioningState": making, "timeCreated": i.Launched.UTC().Format(time.RFC3339Nano),
		"hardwareProfile": map[string]any{"vmSize": i.Type}}
	if i.Market == Spot {
		properties["priority"], properties["evictionPolicy"] = "Spot", "Delete"
		properties["billingProfile"] = map[string]any{"maxPrice": -1}
	}
	if view {
		properties["instanceView"] = a.stateOf(i)["properties"].(map[string]any)["instanceView"]
	}
	tags := maps.Clone(i.Tags)
	delete(tags, azureUnique)
	return map[string]any{"id": a.ID(i.ID), "name": i.ID, "type": "Microsoft.Compute/virtualMachines", "location": a.Location, "tags": tags, "properties": properties}
}

// stateOf is what the question about states alone tells of a machine. Groups are in upper-case letters there.
func (a *Azure) stateOf(i Instance) map[string]any {
	statuses, power, _ := a.statesOf(i)
	if power != "" {
		statuses = append(statuses, map[string]any{"code": "PowerState/" + power, "level": "Info", "displayStatus": "VM " + power})
	}
	id := strings.Replace(a.ID(i.ID), a.Group, strings.ToUpper(a.Group), 1)
	return map[string]any{"id": id, "name": i.ID, "type": "Microsoft.Compute/virtualMachines", "location": a.Location,
		"properties": map[string]any{"vmId": i.Tags[azureUnique], "instanceView": map[string]any{"statuses": statuses}}}
}

func (a *Azure) statesOf(i Instance) (statuses []any, power, making string) {
	a.mu.Lock()
	off := a.off[i.ID]
	spoilt, failed := a.spoilt[i.ID]
	if !failed {
		spoilt, failed = a.spoilt[""]
	}
	a.mu.Unlock()
	making, power = "Creating", ""
	code, level, message := "creating", "Info", ""
	switch {
	case i.State == Stopping:
		making, code, power = "Deleting", "deleting", "stopping"
	case failed:
		making, code, level, message = "Failed", "failed/"+spoilt.code, "Error", spoilt.text
	case i.State == Running:
		making, code, power = "Succeeded", "succeeded", "running"
	}
	if off != "" && i.State < Stopping {
		power = off
	}
	status := map[string]any{"code": "ProvisioningState/" + code, "level": level, "displayStatus": "Provisioning " + strings.ToLower(making)}
	if message != "" {
		status["message"] = message
	}
	return []any{status}, power, making
}

// azureUnique is where the engine keeps a machine's own id.
const azureUnique = "(vm id)"

// azureMake is the body of a call to make a machine, as far as it is understood here.
type azureMake struct {
	Location   string            `json:"location"`
	Tags       map[string]string `json:"tags"`
	Properties struct {
		Hardware struct {
			Size string `json:"vmSize"`
		} `json:"hardwareProfile"`
		Storage struct {
			Image map[string]string `json:"imageReference"`
			Disk  struct {
				Create string `json:"createOption"`
				Delete string `json:"deleteOption"`
			} `json:"osDisk"`
		} `json:"storageProfile"`
		OS struct {
			Computer string `json:"computerName"`
			User     string `json:"adminUsername"`
			Data     string `json:"customData"`
			Linux    struct {
				NoPassword bool `json:"disablePasswordAuthentication"`
				SSH        struct {
					Keys []struct {
						Path string `json:"path"`
						Data string `json:"keyData"`
					} `json:"publicKeys"`
				} `json:"ssh"`
			} `json:"linuxConfiguration"`
		} `json:"osProfile"`
		Network struct {
			Version string `json:"networkApiVersion"`
			NICs    []struct {
				Name       string `json:"name"`
				Properties struct {
					Delete string `json:"deleteOption"`
					IPs    []struct {
						Properties struct {
							Subnet struct {
								ID string `json:"id"`
							} `json:"subnet"`
						} `json:"properties"`
					} `json:"ipConfigurations"`
				} `json:"properties"`
			} `json:"networkInterfaceConfigurations"`
		} `json:"networkProfile"`
		Priority string `json:"priority"`
		Eviction string `json:"evictionPolicy"`
	} `json:"properties"`
}

func (a *Azure) make(r *http.Request, name string, body []byte) (int, any, error) {
	a.note("group", "Microsoft.Compute/virtualMachines/write", "Microsoft.Compute/disks/write", "Microsoft.Network/networkInterfaces/write",
		"Microsoft.Network/networkInterfaces/join/action", "Microsoft.Network/virtualNetworks/subnets/join/action")
	var said map[string]any
	var in azureMake
	if err := errors.Join(json.Unmarshal(body, &said), json.Unmarshal(body, &in)); err != nil {
		return 0, nil, &azureError{400, "InvalidRequestContent", "The request content was invalid and could not be deserialized: " + err.Error()}
	}
	a.mu.Lock()
	a.heard = append(a.heard, AzureCall{name, r.Header.Clone(), said})
	a.mu.Unlock()
	if i, ok := a.Cloud.Instance(name); ok && i.State != Gone {
		if r.Header.Get("If-None-Match") == "*" {
			return 0, nil, &azureError{412, "PreconditionFailed", "The precondition given in one of the request headers evaluated to false."}
		}
		return 0, nil, &azureError{409, "PropertyChangeNotAllowed", "Changing property 'osProfile.customData' is not allowed."}
	}
	if err := a.check(name, &in); err != nil {
		return 0, nil, err
	}
	data, err := base64.StdEncoding.DecodeString(in.Properties.OS.Data)
	if err != nil || len(data) > 64<<10 {
		return 0, nil, &azureError{400, "InvalidParameter", "Custom data in OSProfile must be in Base64 encoding and with a maximum length of 87380 characters."}
	}
	tags := maps.Clone(in.Tags)
	if tags == nil {
		tags = map[string]string{}
	}
	tags[azureUnique] = fmt.Sprintf("00000000-0000-4000-9000-%012x", len(a.Heard()))
	ask := Ask{ID: name, Type: in.Properties.Hardware.Size, Zone: in.Location, Tags: tags, UserData: data}
	if in.Properties.Priority == "Spot" {
		ask.Market = Spot
	}
	made, err := a.Cloud.Launch(ask)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusCreated, a.machineOf(made, false), nil
}

func (a *Azure) check(name string, in *azureMake) error {
	bad := func(code, format string, args ...any) error {
		return &azureError{400, code, fmt.Sprintf(format, args...)}
	}
	p := &in.Properties
	t, known := a.Cloud.Type(p.Hardware.Size)
	image := p.Storage.Image["id"]
	switch {
	case strings.Contains(image, "/galleries/"):
		a.note("group", "Microsoft.Compute/galleries/images/versions/read")
	case image != "":
		a.note("group", "Microsoft.Compute/images/read")
	default:
		image = p.Storage.Image["publisher"] + ":" + p.Storage.Image["offer"] + ":" + p.Storage.Image["sku"]
	}
	switch {
	case len(name) > 64:
		return bad("InvalidParameter", "Linux host name cannot exceed 64 characters in length")
	case in.Location != a.Location:
		return bad("LocationNotAvailableForResourceType", "The provided location '%s' is not available", in.Location)
	case !known:
		return bad("InvalidParameter", "The value %s provided for the VM size is not valid.", p.Hardware.Size)
	case a.Restricted[t.Name] != "":
		return &azureError{409, "SkuNotAvailable", "The requested size " + t.Name + " is not available for the subscription."}
	case a.Images[image] == "":
		return &azureError{404, "NotFound", "The image " + image + " was not found"}
	case a.Images[image] != t.Arch:
		return bad("BadRequest", "Cannot create a VM with CPU Architecture of %s from an image of another.", t.Arch)
	case p.Storage.Disk.Create != "FromImage", p.Storage.Disk.Delete != "Delete":
		return bad("InvalidParameter", "this cloud keeps no disks: %+v", p.Storage.Disk)
	case p.OS.User == "" || !p.OS.Linux.NoPassword || len(p.OS.Linux.SSH.Keys) == 0 || !strings.HasPrefix(p.OS.Linux.SSH.Keys[0].Data, "ssh-"):
		return bad("InvalidParameter", "Authentication using either SSH or by user name and password must be enabled in Linux profile.")
	case p.OS.Linux.SSH.Keys[0].Path != "/home/"+p.OS.User+"/.ssh/authorized_keys":
		return bad("InvalidParameter", "Destination path for SSH public keys is currently limited to its default value")
	case p.OS.Computer == "" || len(p.OS.Computer) > 64:
		return bad("InvalidParameter", "computerName %q", p.OS.Computer)
	case p.Network.Version == "" || len(p.Network.NICs) != 1 || p.Network.NICs[0].Properties.Delete != "Delete" || len(p.Network.NICs[0].Properties.IPs) != 1:
		return bad("InvalidParameter", "Required parameter 'networkInterfaces' is missing (null).")
	case !slices.Contains(a.Subnets, p.Network.NICs[0].Properties.IPs[0].Properties.Subnet.ID):
		return bad("InvalidResourceReference", "Resource %s referenced by resource was not found.", p.Network.NICs[0].Properties.IPs[0].Properties.Subnet.ID)
	case p.Priority != "" && (p.Priority != "Spot" || p.Eviction != "Delete"):
		return bad("InvalidParameter", "priority %s, eviction %s", p.Priority, p.Eviction)
	case len(in.Tags) > 50:
		return bad("InvalidTagCount", "more than 50 tags")
	}
	return nil
}
