package fakecloud

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"hash/fnv"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

func (g *GCP) link(path string) string {
	return "https://www.googleapis.com" + gcpRoot + g.Project + "/" + path
}

func gcpTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000-07:00") }

// number is an id for a name, as the cloud gives to everything.
func number(name string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	return strconv.FormatUint(h.Sum64()>>1, 10)
}

func (g *GCP) operationOf(o *gcpOperation) map[string]any {
	zone, name, _ := strings.Cut(o.target, "/")
	out := map[string]any{"kind": "compute#operation", "id": number(o.name), "name": o.name, "zone": g.link("zones/" + o.zone), "operationType": o.kind,
		"targetLink": g.link("zones/" + zone + "/instances/" + name), "targetId": number(o.target), "insertTime": gcpTime(o.began), "startTime": gcpTime(o.began),
		"status": "RUNNING", "progress": 0, "selfLink": g.link("zones/" + o.zone + "/operations/" + o.name), "user": "substrate@" + g.Project + ".iam.gserviceaccount.com"}
	if g.Cloud.Now().Before(o.began.Add(g.Slow)) {
		return out
	}
	out["status"], out["progress"], out["endTime"] = "DONE", 100, gcpTime(o.began.Add(g.Slow))
	if o.code != "" {
		out["error"] = map[string]any{"errors": []any{map[string]any{"code": o.code, "message": o.text}}}
		out["httpErrorStatusCode"], out["httpErrorMessage"] = o.status, "ERROR"
	}
	return out
}

func (g *GCP) instanceOf(i Instance) map[string]any {
	zone, name, _ := strings.Cut(i.ID, "/")
	g.mu.Lock()
	off := g.off[i.ID]
	g.mu.Unlock()
	status := map[State]string{Pending: "STAGING", Running: "RUNNING", Stopping: "STOPPING", Gone: "TERMINATED"}[i.State]
	if off && i.State < Stopping {
		status = "TERMINATED"
	}
	scheduling := map[string]any{"automaticRestart": false, "preemptible": i.Market == Spot, "provisioningModel": "STANDARD", "onHostMaintenance": "MIGRATE"}
	if i.Market == Spot {
		scheduling["provisioningModel"], scheduling["instanceTerminationAction"], scheduling["onHostMaintenance"] = "SPOT", "DELETE", "TERMINATE"
	}
	if i.Lifetime > 0 {
		scheduling["maxRunDuration"], scheduling["instanceTerminationAction"] = map[string]any{"seconds": strconv.Itoa(int(i.Lifetime.Seconds()))}, "DELETE"
	}
	out := map[string]any{"kind": "compute#instance", "id": number(i.ID), "name": name, "zone": g.link("zones/" + zone), "machineType": g.link("zones/" + zone + "/machineTypes/" + i.Type),
		"status": status, "creationTimestamp": gcpTime(i.Launched), "selfLink": g.link("zones/" + zone + "/instances/" + name), "scheduling": scheduling,
		"networkInterfaces": []any{map[string]any{"name": "nic0", "networkIP": i.Address}}}
	if len(i.Tags) > 0 {
		out["labels"] = i.Tags
	}
	if !i.Started.IsZero() {
		out["lastStartTimestamp"] = gcpTime(i.Started)
	}
	return out
}

// labels are what a filter wants of instances' labels; all of them.
func labels(filter string) (map[string]string, error) {
	form := regexp.MustCompile(`labels\.([a-z0-9_-]+)=([a-z0-9_-]+)`)
	if strings.Trim(form.ReplaceAllString(filter, ""), "() ") != "" {
		return nil, &gcpError{400, "invalid", "Invalid value for field 'filter': '" + filter + "'"}
	}
	out := map[string]string{}
	for _, m := range form.FindAllStringSubmatch(filter, -1) {
		out[m[1]] = m[2]
	}
	return out, nil
}

func (g *GCP) instances(filter, most, token string) (any, error) {
	want, err := labels(filter)
	if err != nil {
		return nil, err
	}
	all := slices.DeleteFunc(g.Cloud.List(), func(i Instance) bool {
		for k, v := range want {
			if i.Tags[k] != v {
				return true
			}
		}
		return i.State == Gone
	})
	part, next, err := gcpPage(all, g.Cloud.Page(), most, token, func(i Instance) string { return i.ID })
	if err != nil {
		return nil, err
	}
	scoped := map[string][]any{}
	for _, i := range part {
		zone, _, _ := strings.Cut(i.ID, "/")
		scoped[zone] = append(scoped[zone], g.instanceOf(i))
	}
	return g.aggregated("compute#instanceAggregatedList", "instances", scoped, next), nil
}

// aggregated is an answer about all zones.
func (g *GCP) aggregated(kind, what string, scoped map[string][]any, next string) map[string]any {
	items := map[string]any{}
	for _, zone := range g.zones() {
		switch list := scoped[zone]; {
		case slices.Contains(g.Dark, zone):
			items["zones/"+zone] = map[string]any{"warning": map[string]any{"code": "UNREACHABLE", "message": "The zone does not answer", "data": []any{map[string]any{"key": "scope", "value": "zones/" + zone}}}}
		case len(list) == 0:
			items["zones/"+zone] = map[string]any{"warning": map[string]any{"code": "NO_RESULTS_ON_PAGE", "message": "There are no results for scope 'zones/" + zone + "' on this page.",
				"data": []any{map[string]any{"key": "scope", "value": "zones/" + zone}}}}
		default:
			items["zones/"+zone] = map[string]any{what: list}
		}
	}
	out := map[string]any{"kind": kind, "id": "projects/" + g.Project + "/aggregated/" + what, "items": items, "selfLink": g.link("aggregated/" + what)}
	if next != "" {
		out["nextPageToken"] = next
	}
	return out
}

// gcpPage is the part of a list that a call asked for. The list is put in the order of its keys.
func gcpPage[T any](all []T, page int, most, token string, key func(T) string) (part []T, next string, err error) {
	if most != "" {
		n, err := strconv.Atoi(most)
		if err != nil || n < 0 || n > 500 {
			return nil, "", &gcpError{400, "invalid", "Invalid value for field 'maxResults': '" + most + "'"}
		}
		page = min(page, n)
	}
	after, err := base64.StdEncoding.DecodeString(token)
	if err != nil {
		return nil, "", &gcpError{400, "invalid", "Invalid value for field 'pageToken'"}
	}
	all = slices.DeleteFunc(slices.Clone(all), func(x T) bool { return len(after) > 0 && key(x) <= string(after) })
	slices.SortFunc(all, func(a, b T) int { return cmp.Compare(key(a), key(b)) })
	if len(all) <= page {
		return all, "", nil
	}
	return all[:page], base64.StdEncoding.EncodeToString([]byte(key(all[page-1]))), nil
}

// listOperations understands the one filter that is of use here: what was inserted or preempted, of some instances, since a time.
func (g *GCP) listOperations(filter, most, token string) (any, error) {
	if g.Mute {
		return nil, &gcpError{403, "forbidden", "Required 'compute.globalOperations.list' permission"}
	}
	form := regexp.MustCompile(`^\(operationType = "insert" OR operationType = "compute.instances.preempted"\) AND targetLink : "([^"]+)" AND insertTime > "([^"]+)"$`)
	m := form.FindStringSubmatch(filter)
	if m == nil {
		return nil, &gcpError{400, "invalid", "Invalid value for field 'filter': '" + filter + "'"}
	}
	since, err := time.Parse(time.RFC3339, m[2])
	if err != nil {
		return nil, &gcpError{400, "invalid", "Invalid value for field 'filter': '" + filter + "'"}
	}
	g.mu.Lock()
	all := slices.Clone(g.operations)
	g.mu.Unlock()
	for _, i := range g.Cloud.List() {
		if zone, _, ok := strings.Cut(i.ID, "/"); ok && i.Why == "reclaimed" {
			all = append(all, &gcpOperation{name: "systemevent-" + number(i.ID), kind: "compute.instances.preempted", zone: zone, target: i.ID, began: i.Ended})
		}
	}
	all = slices.DeleteFunc(all, func(o *gcpOperation) bool {
		zone, name, _ := strings.Cut(o.target, "/")
		return o.kind == "delete" || !o.began.After(since) || !strings.Contains(g.link("zones/"+zone+"/instances/"+name), m[1])
	})
	part, next, err := gcpPage(all, 500, most, token, func(o *gcpOperation) string { return fmt.Sprintf("%020d %s", o.began.UnixNano(), o.name) })
	if err != nil {
		return nil, err
	}
	scoped := map[string][]any{}
	for _, o := range part {
		scoped[o.zone] = append(scoped[o.zone], g.operationOf(o))
	}
	return g.aggregated("compute#operationAggregatedList", "operations", scoped, next), nil
}

func (g *GCP) types(filter, most, token string) (any, error) {
	form := regexp.MustCompile(`\(name = "([^"]+)"\)`)
	if strings.Trim(strings.ReplaceAll(form.ReplaceAllString(filter, ""), "OR", ""), " ") != "" {
		return nil, &gcpError{400, "invalid", "Invalid value for field 'filter': '" + filter + "'"}
	}
	named := map[string]bool{}
	for _, m := range form.FindAllStringSubmatch(filter, -1) {
		named[m[1]] = true
	}
	type ware struct {
		Type
		zone string
	}
	var all []ware
	for _, t := range g.Cloud.Types() {
		for _, zone := range g.zones() {
			if (len(named) == 0 || named[t.Name]) && g.has(t.Name, zone) {
				all = append(all, ware{t, zone})
			}
		}
	}
	part, next, err := gcpPage(all, 500, most, token, func(w ware) string { return w.zone + "/" + w.Name })
	if err != nil {
		return nil, err
	}
	scoped := map[string][]any{}
	for _, w := range part {
		arch := map[string]string{"amd64": "X86_64", "arm64": "ARM64"}[w.Arch]
		t := map[string]any{"kind": "compute#machineType", "id": number(w.Name), "name": w.Name, "zone": w.zone, "guestCpus": w.VCPUs, "memoryMb": w.Memory,
			"architecture": cmp.Or(arch, "ARCHITECTURE_UNSPECIFIED"), "isSharedCpu": false, "selfLink": g.link("zones/" + w.zone + "/machineTypes/" + w.Name)}
		if w.GPUs > 0 {
			t["accelerators"] = []any{map[string]any{"guestAcceleratorType": w.GPU, "guestAcceleratorCount": w.GPUs}}
		}
		if w.Ends != "" {
			t["deprecated"] = map[string]any{"state": w.Ends}
		}
		scoped[w.zone] = append(scoped[w.zone], t)
	}
	return g.aggregated("compute#machineTypeAggregatedList", "machineTypes", scoped, next), nil
}
