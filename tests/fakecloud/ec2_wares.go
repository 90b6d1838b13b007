package fakecloud

import (
	"encoding/xml"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

const owner = "123456789012"

// The shapes of EC2's answers, as far as they are given; names are those of its service model.
type (
	tag struct {
		Key   string `xml:"key"`
		Value string `xml:"value"`
	}
	stateName struct {
		Code int    `xml:"code"`
		Name string `xml:"name"`
	}
	stateReason struct {
		Code    string `xml:"code"`
		Message string `xml:"message"`
	}
	placement struct {
		Zone    string `xml:"availabilityZone"`
		Tenancy string `xml:"tenancy"`
	}
	metadataOptions struct {
		State  string `xml:"state"`
		Tokens string `xml:"httpTokens"`
	}
	instance struct {
		ID        string           `xml:"instanceId"`
		Image     string           `xml:"imageId"`
		State     stateName        `xml:"instanceState"`
		Address   string           `xml:"privateIpAddress,omitempty"`
		Reason    *stateReason     `xml:"stateReason,omitempty"`
		Type      string           `xml:"instanceType"`
		Launched  string           `xml:"launchTime"`
		Place     placement        `xml:"placement"`
		Arch      string           `xml:"architecture,omitempty"`
		Token     string           `xml:"clientToken,omitempty"`
		Tags      []tag            `xml:"tagSet>item,omitempty"`
		Lifecycle string           `xml:"instanceLifecycle,omitempty"`
		Metadata  *metadataOptions `xml:"metadataOptions,omitempty"`
	}
	reservation struct {
		Reservation string     `xml:"reservationId"`
		Owner       string     `xml:"ownerId"`
		Instances   []instance `xml:"instancesSet>item"`
	}
	described struct {
		Reservations []reservation `xml:"reservationSet>item"`
		Next         string        `xml:"nextToken,omitempty"`
	}
	change struct {
		ID  string    `xml:"instanceId"`
		Now stateName `xml:"currentState"`
		Was stateName `xml:"previousState"`
	}
	terminated struct {
		Instances []change `xml:"instancesSet>item"`
	}
	memoryInfo struct {
		MiB uint64 `xml:"sizeInMiB"`
	}
	gpu struct {
		Name  string `xml:"name"`
		Maker string `xml:"manufacturer"`
		Count uint32 `xml:"count"`
		// Logical and Part are of shares of a GPU.
		Logical uint32     `xml:"logicalGpuCount,omitempty"`
		Part    string     `xml:"gpuPartitionSize,omitempty"`
		Memory  memoryInfo `xml:"memoryInfo"`
	}
	gpuInfo struct {
		GPUs []gpu `xml:"gpus>item"`
	}
	cpuInfo struct {
		VCPUs   uint32 `xml:"defaultVCpus"`
		Cores   uint32 `xml:"defaultCores"`
		Threads uint32 `xml:"defaultThreadsPerCore"`
	}
	instanceType struct {
		Name    string     `xml:"instanceType"`
		Classes []string   `xml:"supportedUsageClasses>item"`
		Metal   bool       `xml:"bareMetal"`
		Arches  []string   `xml:"processorInfo>supportedArchitectures>item"`
		CPU     cpuInfo    `xml:"vCpuInfo"`
		Memory  memoryInfo `xml:"memoryInfo"`
		GPU     *gpuInfo   `xml:"gpuInfo,omitempty"`
	}
	typesAnswer struct {
		Types []instanceType `xml:"instanceTypeSet>item"`
		Next  string         `xml:"nextToken,omitempty"`
	}
	offering struct {
		Type     string `xml:"instanceType"`
		Kind     string `xml:"locationType"`
		Location string `xml:"location"`
	}
	offeringsAnswer struct {
		Offerings []offering `xml:"instanceTypeOfferingSet>item"`
		Next      string     `xml:"nextToken,omitempty"`
	}
	spotPrice struct {
		Type    string `xml:"instanceType"`
		Product string `xml:"productDescription"`
		Price   string `xml:"spotPrice"`
		Time    string `xml:"timestamp"`
		Zone    string `xml:"availabilityZone"`
	}
	pricesAnswer struct {
		Prices []spotPrice `xml:"spotPriceHistorySet>item"`
		Next   string      `xml:"nextToken"`
	}
)

func ec2State(s State) stateName {
	switch s {
	case Pending:
		return stateName{0, "pending"}
	case Running:
		return stateName{16, "running"}
	case Stopping:
		return stateName{32, "shutting-down"}
	}
	return stateName{48, "terminated"}
}

func ec2Arch(arch string) string {
	if arch == "amd64" {
		return "x86_64"
	}
	return arch
}

// Reasons for which instances end that Break knows; any other is EC2's own fault.
const (
	PoweredOff = "powered off" // by the instance itself
	NeverFit   = "never fit"   // accepted, and then there was no capacity
)

func ec2Reason(why string) *stateReason {
	code, text := "Server.InternalError", why
	switch why {
	case "":
		code, text = "Client.UserInitiatedShutdown", "User initiated shutdown"
	case "reclaimed":
		code, text = "Server.SpotInstanceTermination", "Spot instance termination"
	case PoweredOff:
		code, text = "Client.InstanceInitiatedShutdown", "Instance initiated shutdown"
	case NeverFit:
		code, text = "Server.InsufficientInstanceCapacity", "Insufficient capacity to satisfy instance request"
	}
	return &stateReason{code, code + ": " + text}
}

func (e *EC2) instanceOf(i Instance) instance {
	t, _ := e.Cloud.Type(i.Type)
	out := instance{ID: i.ID, Image: i.Image, State: ec2State(i.State), Type: i.Type, Launched: ec2Time(i.Launched), Arch: ec2Arch(t.Arch), Token: i.Token,
		Place: placement{i.Zone, "default"}}
	if i.Zone == "" {
		out.Place.Zone = e.zones()[0]
	}
	if i.State == Running { // an address comes late
		out.Address = i.Address
	}
	if i.State >= Stopping {
		out.Reason = ec2Reason(i.Why)
	}
	if i.Market == Spot {
		out.Lifecycle = "spot"
	}
	if form, err := url.ParseQuery(i.Params); err == nil && form.Has("MetadataOptions.HttpTokens") {
		out.Metadata = &metadataOptions{"applied", form.Get("MetadataOptions.HttpTokens")}
	}
	for key, value := range i.Tags {
		out.Tags = append(out.Tags, tag{key, value})
	}
	slices.SortFunc(out.Tags, func(a, b tag) int { return strings.Compare(a.Key, b.Key) })
	return out
}

func ec2Time(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

func (e *EC2) types(form url.Values) (any, error) {
	named := listOf(form, "InstanceType")
	for _, name := range named {
		if _, ok := e.Cloud.Type(name); !ok {
			return nil, &ec2Error{"InvalidInstanceType", "The following supplied instance types do not exist: [" + name + "]"}
		}
	}
	filters, err := filtersOf(form)
	if err != nil {
		return nil, err
	}
	var all []Type
	for _, t := range e.Cloud.Types() {
		ok, err := matches(filters, func(name string) ([]string, bool) {
			switch name {
			case "instance-type":
				return []string{t.Name}, true
			case "bare-metal":
				return []string{fmt.Sprint(t.Metal)}, true
			case "processor-info.supported-architecture":
				return []string{ec2Arch(t.Arch)}, true
			}
			return nil, false
		})
		if err != nil {
			return nil, err
		}
		if ok && (len(named) == 0 || slices.Contains(named, t.Name)) {
			all = append(all, t)
		}
	}
	part, next, err := pageOf(form, all, 100, func(t Type) string { return t.Name })
	if err != nil {
		return nil, err
	}
	out := typesAnswer{Next: next}
	for _, t := range part {
		out.Types = append(out.Types, typeAnswer(t))
	}
	return out, nil
}

func typeAnswer(t Type) instanceType {
	out := instanceType{Name: t.Name, Classes: []string{"on-demand"}, Metal: t.Metal, Arches: []string{ec2Arch(t.Arch)},
		CPU: cpuInfo{t.VCPUs, t.Cores, t.VCPUs / max(t.Cores, 1)}, Memory: memoryInfo{t.Memory}}
	if t.Spot {
		out.Classes = append(out.Classes, "spot")
	}
	if t.GPUs > 0 || t.Uncounted {
		g := gpu{Name: t.GPU, Maker: "NVIDIA", Count: t.GPUs, Memory: memoryInfo{24576}}
		switch {
		case t.Uncounted:
			g.Count = 0
		case t.Part > 0:
			g.Count, g.Logical, g.Part = 0, t.GPUs, fmt.Sprintf("%.3f", t.Part)
		}
		out.GPU = &gpuInfo{[]gpu{g}}
	}
	return out
}

func (e *EC2) offerings(form url.Values) (any, error) {
	kind := form.Get("LocationType")
	places := e.zones()
	switch kind {
	case "availability-zone":
	case "", "region":
		kind, places = "region", []string{e.Region}
	default:
		return nil, &ec2Error{"InvalidParameterValue", "the location type " + kind + " is not known"}
	}
	filters, err := filtersOf(form)
	if err != nil {
		return nil, err
	}
	var all []offering
	for _, t := range e.Cloud.Types() {
		for _, place := range places {
			ok, err := matches(filters, func(name string) ([]string, bool) {
				switch name {
				case "instance-type":
					return []string{t.Name}, true
				case "location":
					return []string{place}, true
				}
				return nil, false
			})
			if err != nil {
				return nil, err
			}
			if ok {
				all = append(all, offering{t.Name, kind, place})
			}
		}
	}
	var out offeringsAnswer
	out.Offerings, out.Next, err = pageOf(form, all, 1000, func(o offering) string { return o.Type + " " + o.Location })
	return out, err
}

// prices of spot instances are a third of what is asked on demand, and a little dearer in each further zone.
func (e *EC2) prices(form url.Values) (any, error) {
	named, products := listOf(form, "InstanceType"), listOf(form, "ProductDescription")
	var all []spotPrice
	for _, t := range e.Cloud.Types() {
		if !t.Spot || t.Price == 0 || len(named) > 0 && !slices.Contains(named, t.Name) || len(products) > 0 && !slices.Contains(products, "Linux/UNIX") {
			continue
		}
		for n, zone := range e.zones() {
			all = append(all, spotPrice{t.Name, "Linux/UNIX", fmt.Sprintf("%.6f", t.Price/3*(1+float64(n)/20)), ec2Time(e.Cloud.Now().Add(-time.Hour)), zone})
		}
	}
	var out pricesAnswer
	var err error
	out.Prices, out.Next, err = pageOf(form, all, 1000, func(p spotPrice) string { return p.Type + " " + p.Zone })
	return out, err
}

func (e *EC2) requestID() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answers++
	return fmt.Sprintf("00000000-0000-4000-8000-%012x", e.answers)
}

// answer writes an action's result. The result's fields stand beside the id of the request, in an element named after the action.
func (e *EC2) answer(w http.ResponseWriter, action string, body any) {
	text, err := xml.Marshal(body)
	if err != nil {
		e.fail(w, 500, "InternalError", err.Error())
		return
	}
	inner := text[strings.IndexByte(string(text), '>')+1 : strings.LastIndexByte(string(text), '<')]
	w.Header().Set("Content-Type", "text/xml;charset=UTF-8")
	fmt.Fprintf(w, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<%[1]sResponse xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\"><requestId>%[2]s</requestId>%[3]s</%[1]sResponse>",
		action, e.requestID(), inner)
}

func (e *EC2) fail(w http.ResponseWriter, status int, code, text string) {
	type wrong struct {
		Code    string
		Message string
	}
	body, err := xml.Marshal(struct {
		XMLName   xml.Name `xml:"Response"`
		Errors    []wrong  `xml:"Errors>Error"`
		RequestID string
	}{Errors: []wrong{{code, text}}, RequestID: e.requestID()})
	if err != nil {
		status = 500
	}
	w.Header().Set("Content-Type", "text/xml;charset=UTF-8")
	w.WriteHeader(status)
	_, _ = w.Write(append([]byte(xml.Header), body...))
}
