package fakecloud

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// EC2 speaks as EC2 does: the Query protocol in, XML out. It checks what EC2 checks of a call that launches, and believes any key.
type EC2 struct {
	Cloud  *Cloud
	Region string
	Zones  []string          // default: three of the region
	Images map[string]string // architecture by id, as x86_64
	// Skew is how far the cloud's clock is ahead of the machine's; what is signed more than five minutes off is refused.
	Skew time.Duration
	// Bucket is how many calls that describe may come at once, and a fifth of it is how many come back each second; 0: any number.
	Bucket int

	mu      sync.Mutex
	heard   map[string][]url.Values
	used    map[string]bool
	tokens  float64
	filled  time.Time
	answers int
}

// Permissions are those that the calls so far took, as a policy would name them.
func (e *EC2) Permissions() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Sorted(maps.Keys(e.used))
}

// Heard is what was said in the calls of an action that were not refused for a fault.
func (e *EC2) Heard(action string) []url.Values {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.heard[action])
}

// Op is what a request asks for.
func (e *EC2) Op(r *http.Request) Op {
	if r.ParseForm() != nil {
		return OpOther
	}
	switch r.Form.Get("Action") {
	case "RunInstances":
		return OpLaunch
	case "TerminateInstances":
		return OpRelease
	case "DescribeInstances":
		return OpList
	case "DescribeInstanceTypes", "DescribeInstanceTypeOfferings", "DescribeSpotPriceHistory":
		return OpTypes
	}
	return OpOther
}

// Refuse writes EC2's words for a refusal.
func (e *EC2) Refuse(w http.ResponseWriter, r *http.Request, _ Op, why Refusal) {
	skew := e.Skew
	if why.Cause == ClockSkew {
		skew += 17 * time.Minute
	}
	w.Header().Set("Date", time.Now().Add(skew).UTC().Format(http.TimeFormat))
	code, status := ec2Code(why.Cause)
	e.fail(w, status, code, why.Text)
}

func ec2Code(c Cause) (string, int) {
	switch c {
	case NotFound:
		return "InvalidInstanceID.NotFound", 400
	case NoCapacity:
		return "InsufficientInstanceCapacity", 500
	case Quota:
		return "VcpuLimitExceeded", 400
	case Throttled:
		return "RequestLimitExceeded", 503
	case Denied:
		return "UnauthorizedOperation", 403
	case ClockSkew:
		return "AuthFailure", 401
	case TokenMismatch:
		return "IdempotentParameterMismatch", 400
	case TokenSpent:
		return "IdempotentInstanceTerminated", 400
	case Broken:
		return "InternalError", 500
	}
	return "InvalidParameterValue", 400
}

// ec2Error is a refusal that has a code of its own.
type ec2Error struct{ code, text string }

func (e *ec2Error) Error() string { return e.code + ": " + e.text }

func (e *EC2) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	form := r.Form
	action := form.Get("Action")
	w.Header().Set("Date", time.Now().Add(e.Skew).UTC().Format(http.TimeFormat))
	switch signed, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date")); {
	case err != nil || !strings.HasPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 Credential="):
		e.fail(w, 401, "AuthFailure", "AWS was not able to validate the provided access credentials")
		return
	case time.Until(signed.Add(-e.Skew)).Abs() > 5*time.Minute:
		e.fail(w, 401, "AuthFailure", "AWS was not able to validate the provided access credentials")
		return
	case form.Get("Version") != "2016-11-15":
		e.fail(w, 400, "InvalidAction", "The action "+action+" is not valid for this web service.")
		return
	}
	if strings.HasPrefix(action, "Describe") && !e.take() {
		e.fail(w, 503, "RequestLimitExceeded", "Request limit exceeded.")
		return
	}
	e.note(action, form)
	answer, err := e.carryOut(action, form)
	var no *Refusal
	var own *ec2Error
	switch {
	case errors.As(err, &own):
		e.fail(w, 400, own.code, own.text)
	case errors.As(err, &no):
		code, status := ec2Code(no.Cause)
		e.fail(w, status, code, no.Text)
	case err != nil:
		e.fail(w, 500, "InternalError", err.Error())
	default:
		e.answer(w, action, answer)
	}
}

func (e *EC2) carryOut(action string, form url.Values) (any, error) {
	switch action {
	case "RunInstances":
		return e.run(form)
	case "TerminateInstances":
		return e.terminate(form)
	case "DescribeInstances":
		return e.instances(form)
	case "DescribeInstanceTypes":
		return e.types(form)
	case "DescribeInstanceTypeOfferings":
		return e.offerings(form)
	case "DescribeSpotPriceHistory":
		return e.prices(form)
	}
	return nil, &ec2Error{"InvalidAction", "The action " + action + " is not valid for this web service."}
}

// note remembers a call and the permissions that it takes.
func (e *EC2) note(action string, form url.Values) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.heard == nil {
		e.heard, e.used = map[string][]url.Values{}, map[string]bool{}
	}
	e.heard[action] = append(e.heard[action], form)
	e.used["ec2:"+action] = true
	if form.Has("TagSpecification.1.Tag.1.Key") {
		e.used["ec2:CreateTags"] = true
	}
	if form.Has("IamInstanceProfile.Name") || form.Has("IamInstanceProfile.Arn") {
		e.used["iam:PassRole"] = true
	}
}

// take takes one call that describes out of the bucket.
func (e *EC2) take() bool {
	if e.Bucket == 0 {
		return true
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.Cloud.Now()
	if e.filled.IsZero() {
		e.tokens = float64(e.Bucket)
	} else {
		e.tokens = min(float64(e.Bucket), e.tokens+now.Sub(e.filled).Seconds()*float64(e.Bucket)/5)
	}
	e.filled = now
	if e.tokens < 1 {
		return false
	}
	e.tokens--
	return true
}

func (e *EC2) zones() []string {
	if len(e.Zones) > 0 {
		return e.Zones
	}
	return []string{e.Region + "a", e.Region + "b", e.Region + "c"}
}

func (e *EC2) run(form url.Values) (any, error) {
	ask := Ask{Token: form.Get("ClientToken"), Type: form.Get("InstanceType"), Zone: form.Get("Placement.AvailabilityZone"), Image: form.Get("ImageId"),
		Tags: tagsOf(form, "instance"), Params: paramsOf(form)}
	if form.Get("InstanceMarketOptions.MarketType") == "spot" {
		ask.Market = Spot
	}
	switch {
	case form.Get("MinCount") != "1" || form.Get("MaxCount") != "1":
		return nil, &ec2Error{"InvalidParameterValue", "this cloud launches one instance in a call"}
	case len(ask.Token) > 64:
		return nil, &ec2Error{"InvalidParameterValue", "The client token must be no more than 64 ASCII characters"}
	case ask.Image == "":
		return nil, &ec2Error{"MissingParameter", "The request must contain the parameter ImageId"}
	case ask.Zone != "" && !slices.Contains(e.zones(), ask.Zone):
		return nil, &ec2Error{"InvalidParameterValue", "Invalid availability zone: [" + ask.Zone + "]"}
	case e.Images[ask.Image] == "":
		return nil, &ec2Error{"InvalidAMIID.NotFound", "The image id '[" + ask.Image + "]' does not exist"}
	}
	t, ok := e.Cloud.Type(ask.Type)
	if !ok {
		return nil, &ec2Error{"InvalidParameterValue", "Invalid value '" + ask.Type + "' for InstanceType."}
	}
	if arch := ec2Arch(t.Arch); arch != e.Images[ask.Image] {
		return nil, &ec2Error{"InvalidParameterValue", fmt.Sprintf("The architecture '%s' of the specified instance type does not match the architecture '%s' of the specified AMI.", arch, e.Images[ask.Image])}
	}
	for key := range ask.Tags {
		if strings.HasPrefix(key, "aws:") {
			return nil, &ec2Error{"InvalidParameterValue", "Tag keys starting with 'aws:' are reserved for internal use"}
		}
	}
	var err error
	if ask.UserData, err = base64.StdEncoding.DecodeString(form.Get("UserData")); err != nil {
		return nil, &ec2Error{"InvalidUserData.Malformed", "Invalid BASE64 encoding of user data."}
	}
	if len(ask.UserData) > 16<<10 {
		return nil, &ec2Error{"InvalidParameterValue", "User data is limited to 16384 bytes"}
	}
	made, err := e.Cloud.Launch(ask)
	if err != nil {
		return nil, err
	}
	return reservation{Reservation: "r-" + strings.TrimPrefix(made.ID, "i-"), Owner: owner, Instances: []instance{e.instanceOf(made)}}, nil
}

// paramsOf is all that a call says, for its token.
func paramsOf(form url.Values) string {
	rest := maps.Clone(form)
	delete(rest, "ClientToken")
	return url.Values(rest).Encode()
}

func tagsOf(form url.Values, kind string) map[string]string {
	out := map[string]string{}
	for n := 1; form.Has(fmt.Sprintf("TagSpecification.%d.ResourceType", n)); n++ {
		at := fmt.Sprintf("TagSpecification.%d.", n)
		if form.Get(at+"ResourceType") != kind {
			continue
		}
		for m := 1; form.Has(fmt.Sprintf("%sTag.%d.Key", at, m)); m++ {
			out[form.Get(fmt.Sprintf("%sTag.%d.Key", at, m))] = form.Get(fmt.Sprintf("%sTag.%d.Value", at, m))
		}
	}
	return out
}

func (e *EC2) terminate(form url.Values) (any, error) {
	ids := listOf(form, "InstanceId")
	var out terminated
	for _, id := range ids {
		if was, ok := e.Cloud.Instance(id); !ok || e.Cloud.Hidden(id) || was.State == Gone && e.Cloud.Now().Sub(was.Ended) > time.Hour {
			return nil, noInstance(id)
		}
	}
	for _, id := range ids {
		was, _ := e.Cloud.Instance(id)
		now, err := e.Cloud.Terminate(id)
		if err != nil {
			return nil, err
		}
		out.Instances = append(out.Instances, change{ID: id, Now: ec2State(now.State), Was: ec2State(was.State)})
	}
	return out, nil
}

func noInstance(id string) error {
	return &ec2Error{"InvalidInstanceID.NotFound", "The instance ID '" + id + "' does not exist"}
}

func (e *EC2) instances(form url.Values) (any, error) {
	filters, err := filtersOf(form)
	if err != nil {
		return nil, err
	}
	var all []Instance
	for _, i := range e.Cloud.List() {
		ok, err := matches(filters, func(name string) ([]string, bool) { return e.valueOf(i, name) })
		if err != nil {
			return nil, err
		}
		if ok {
			all = append(all, i)
		}
	}
	if ids := listOf(form, "InstanceId"); len(ids) > 0 {
		for _, id := range ids {
			if !slices.ContainsFunc(all, func(i Instance) bool { return i.ID == id }) {
				return nil, noInstance(id)
			}
		}
		all = slices.DeleteFunc(all, func(i Instance) bool { return !slices.Contains(ids, i.ID) })
	}
	part, next, err := pageOf(form, all, e.Cloud.Page(), func(i Instance) string { return i.ID })
	if err != nil {
		return nil, err
	}
	out := described{Next: next}
	for _, i := range part {
		out.Reservations = append(out.Reservations, reservation{Reservation: "r-" + strings.TrimPrefix(i.ID, "i-"), Owner: owner, Instances: []instance{e.instanceOf(i)}})
	}
	return out, nil
}

// valueOf is what a filter of a name compares with.
func (e *EC2) valueOf(i Instance, name string) ([]string, bool) {
	if key, ok := strings.CutPrefix(name, "tag:"); ok {
		v, has := i.Tags[key]
		if !has {
			return nil, true
		}
		return []string{v}, true
	}
	switch name {
	case "tag-key":
		return slices.Sorted(maps.Keys(i.Tags)), true
	case "instance-state-name":
		return []string{ec2State(i.State).Name}, true
	case "client-token":
		return []string{i.Token}, true
	case "instance-id":
		return []string{i.ID}, true
	case "instance-type":
		return []string{i.Type}, true
	case "availability-zone":
		return []string{cmp.Or(i.Zone, e.zones()[0])}, true
	}
	return nil, false
}

// filter is one of a call's: any of its values will do.
type filter struct {
	name   string
	values []string
}

func filtersOf(form url.Values) ([]filter, error) {
	var out []filter
	for n := 1; form.Has(fmt.Sprintf("Filter.%d.Name", n)); n++ {
		at := fmt.Sprintf("Filter.%d.", n)
		f := filter{form.Get(at + "Name"), listOf(form, at+"Value")}
		if len(f.values) == 0 || len(f.values) > 200 {
			return nil, &ec2Error{"InvalidParameterValue", "The filter '" + f.name + "' has no values or too many"}
		}
		out = append(out, f)
	}
	return out, nil
}

// matches reports whether all filters let something through. Values may have * and ?.
func matches(filters []filter, value func(name string) ([]string, bool)) (bool, error) {
	for _, f := range filters {
		have, ok := value(f.name)
		if !ok {
			return false, &ec2Error{"InvalidParameterValue", "The filter '" + f.name + "' is invalid"}
		}
		if !slices.ContainsFunc(f.values, func(want string) bool {
			return slices.ContainsFunc(have, func(v string) bool { ok, err := path.Match(want, v); return err == nil && ok })
		}) {
			return false, nil
		}
	}
	return true, nil
}

// listOf reads PREFIX.1, PREFIX.2 and so on.
func listOf(form url.Values, prefix string) []string {
	var out []string
	for n := 1; form.Has(fmt.Sprintf("%s.%d", prefix, n)); n++ {
		out = append(out, form.Get(fmt.Sprintf("%s.%d", prefix, n)))
	}
	return out
}

// pageOf is the part of a list that a call asked for. The list is in the order of its keys.
func pageOf[T any](form url.Values, all []T, most int, key func(T) string) (part []T, next string, err error) {
	if text := form.Get("MaxResults"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 5 || n > 1000 {
			return nil, "", &ec2Error{"InvalidParameterValue", "Value ( " + text + " ) for parameter maxResults is invalid. Expecting a value between 5 and 1000."}
		}
		most = min(most, n)
	}
	after, err := base64.StdEncoding.DecodeString(form.Get("NextToken"))
	if err != nil {
		return nil, "", &ec2Error{"InvalidNextToken", "The token is invalid"}
	}
	all = slices.DeleteFunc(slices.Clone(all), func(x T) bool { return len(after) > 0 && key(x) <= string(after) })
	if len(all) <= most {
		return all, "", nil
	}
	return all[:most], base64.StdEncoding.EncodeToString([]byte(key(all[most-1]))), nil
}
