package hwinfo

import (
	"fmt"
	"math"
	"slices"
)

// place is where a CPU sits; -1 is unknown.
type place struct{ drawer, pkg, die, core int }

// places of the text itself: x86 says "physical id", LoongArch and MIPS say "package"; none speaks of dies. nil: it does not say.
func (t *cpuText) places() []place {
	id := func(rec cpuRecord, keys ...string) int {
		for _, k := range keys {
			if n, err := parseInt(rec.keys[k]); err == nil {
				return level(*n)
			}
		}
		return -1
	}
	var out []place
	stated := false
	for _, rec := range t.cpus {
		p := place{pkg: id(rec, "physical id", "package"), die: -1, core: id(rec, "core id", "core")}
		if t.form == formS390 {
			p.drawer = drawerOf(id(rec, "drawer id"), id(rec, "book id"))
		}
		stated = stated || p.core >= 0
		out = append(out, p)
	}
	if !stated {
		return nil
	}
	return out
}

// drawerOf is one number for a drawer and a book in it: s390x numbers sockets anew in each book of each drawer.
func drawerOf(drawer, book int) int { return (drawer+1)<<16 | (book + 1) }

// level maps the kernel's ways of saying "no such level" to -1.
func level(n int) int {
	if n < 0 || n == math.MaxUint16 {
		return -1
	}
	return n
}

// count derives the totals. Without places only a single CPU has a known shape.
func (c *CPU) count(logical int, places []place) {
	if logical > 0 {
		c.LogicalCPUs = ptr(logical)
	}
	if len(places) == 0 {
		if logical == 1 {
			c.Cores, c.Sockets, c.CoresPerSocket, c.ThreadsPerCore = ptr(1), ptr(1), ptr(1), ptr(1)
		}
		return
	}
	type socket struct{ drawer, pkg int }
	threads := map[place]int{}
	cores := map[socket]int{}
	for i, p := range places {
		if p.core < 0 || p.pkg < 0 {
			p.core, p.die = i, -2 // unknown: a core of its own, apart from every real one
		}
		if threads[p]++; threads[p] == 1 {
			cores[socket{p.drawer, p.pkg}]++
		}
	}
	c.Cores = ptr(len(threads))
	if per, same := uniform(threads); same {
		c.ThreadsPerCore = ptr(per)
	}
	unknown := socket{0, -1}
	sockets := len(cores)
	if _, mixed := cores[unknown]; mixed && sockets > 1 {
		sockets-- // CPUs of no stated package sit in one of the stated ones
		delete(cores, unknown)
		c.Sockets = ptr(sockets)
		return
	}
	c.Sockets = ptr(sockets)
	if per, same := uniform(cores); same {
		c.CoresPerSocket = ptr(per)
	}
}

// uniform returns the value that all entries share.
func uniform[K comparable](m map[K]int) (int, bool) {
	value := 0
	for _, n := range m {
		if value != 0 && n != value {
			return 0, false
		}
		value = n
	}
	return value, value > 0
}

const cpuDir = "sys/devices/system/cpu/"

// onlineCPUs returns the CPUs in use; false: sysfs does not say.
func (r *reader) onlineCPUs() ([]int, bool) {
	text, err := r.t.attr(cpuDir + "online")
	if err == nil {
		var list []int
		if list, err = parseList(text, maxCPUs); err == nil && len(list) > 0 {
			return list, true
		}
	}
	if err != nil && !absent(err) {
		r.warn(cpuDir+"online", err)
	}
	var online []int
	for _, n := range r.numbered(cpuDir, "cpu", maxCPUs) {
		// A CPU without the file cannot be taken offline.
		if state, err := r.t.attr(fmt.Sprintf("%scpu%d/online", cpuDir, n)); err == nil && state == "0" {
			continue
		}
		online = append(online, n)
	}
	return online, len(online) > 0
}

// topology reads the place of each online CPU; nil: the kernel shows none.
func (r *reader) topology(online []int, form cpuForm) []place {
	if form != formS390 { // its books and drawers have no lists that all kernels show
		if places := r.placesByList(online); places != nil {
			return places
		}
	}
	return r.placesByID(online, form)
}

// placesByList reads the lists of CPUs that share a core, a die or a package: one list for each of those instead of
// three numbers for each CPU. nil: lists are missing or contradict one another, or an id is unknown, for then
// kernels give every CPU a list of its own.
func (r *reader) placesByList(online []int) []place {
	if len(online) == 0 {
		return nil
	}
	places := make([]place, len(online))
	index := make(map[int]int, len(online))
	for i, n := range online {
		places[i] = place{pkg: -1, die: -1, core: -1}
		index[n] = i
	}
	share := func(n int, level func(*place) *int, files ...string) bool {
		for _, file := range files {
			text, err := r.t.attr(fmt.Sprintf("%scpu%d/topology/%s", cpuDir, n, file))
			if err != nil {
				continue
			}
			list, err := parseList(text, maxCPUs)
			if err != nil || !slices.Contains(list, n) {
				return false
			}
			for _, m := range list {
				if i, ok := index[m]; ok {
					if *level(&places[i]) >= 0 {
						return false
					}
					*level(&places[i]) = n
				}
			}
			return true
		}
		return false
	}
	named := func(n int, file string) bool {
		text, err := r.t.attr(fmt.Sprintf("%scpu%d/topology/%s", cpuDir, n, file))
		if err != nil {
			return false
		}
		id, err := parseInt(text)
		return err == nil && level(*id) >= 0
	}
	dies := true
	for i, n := range online {
		if places[i].pkg < 0 {
			if !named(n, "physical_package_id") || !named(n, "core_id") ||
				!share(n, func(p *place) *int { return &p.pkg }, "package_cpus_list", "core_siblings_list") {
				return nil
			}
		}
		if places[i].core < 0 && !share(n, func(p *place) *int { return &p.core }, "core_cpus_list", "thread_siblings_list") {
			return nil
		}
		if dies && places[i].die < 0 {
			dies = named(n, "die_id") && share(n, func(p *place) *int { return &p.die }, "die_cpus_list")
		}
	}
	if !dies {
		for i := range places {
			places[i].die = -1
		}
	}
	return places
}

// placesByID reads the ids of each CPU.
func (r *reader) placesByID(online []int, form cpuForm) []place {
	places := make([]place, 0, len(online))
	shown := false
	for _, n := range online {
		dir := fmt.Sprintf("%scpu%d/topology/", cpuDir, n)
		p := place{pkg: -1, die: -1, core: -1}
		if id, err := r.t.attr(dir + "core_id"); err == nil {
			shown = true
			p.core = r.levelOf(dir+"core_id", id)
			p.pkg = r.optionalLevel(dir + "physical_package_id")
			p.die = r.optionalLevel(dir + "die_id")
			if form == formS390 {
				p.drawer = drawerOf(r.optionalLevel(dir+"drawer_id"), r.optionalLevel(dir+"book_id"))
			}
		} else if !absent(err) {
			r.warn(dir+"core_id", err)
		}
		places = append(places, p)
	}
	if !shown {
		return nil
	}
	return places
}

// diesOf counts distinct dies; nil where one is unknown.
func diesOf(places []place) *int {
	type die struct{ drawer, pkg, die int }
	seen := map[die]bool{}
	for _, p := range places {
		if p.die < 0 || p.pkg < 0 {
			return nil
		}
		seen[die{p.drawer, p.pkg, p.die}] = true
	}
	if len(seen) == 0 {
		return nil
	}
	return ptr(len(seen))
}

// clusters counts the groups of cores below a die. x86 names every core's cache one, which says nothing new.
func (r *reader) clusters(online []int, form cpuForm) *int {
	if form == formX86 || form == formS390 {
		return nil
	}
	type cluster struct{ pkg, id int }
	seen := map[cluster]bool{}
	for _, n := range online {
		dir := fmt.Sprintf("%scpu%d/topology/", cpuDir, n)
		id := r.optionalLevel(dir + "cluster_id")
		if id < 0 {
			return nil
		}
		seen[cluster{r.optionalLevel(dir + "physical_package_id"), id}] = true
	}
	if len(seen) == 0 {
		return nil
	}
	return ptr(len(seen))
}

// offlineCPUs returns CPUs that are there and switched off, and whether all that are there are online. What a container is
// not shown is neither: lxcfs hides CPUs from "online" alone.
func (r *reader) offlineCPUs(online []int) (offline []int, whole bool) {
	text, err := r.t.attr(cpuDir + "present")
	if err != nil {
		return nil, true
	}
	present, err := parseList(text, maxCPUs)
	if err != nil {
		r.warn(cpuDir+"present", err)
		return nil, true
	}
	whole = true
	for _, n := range present {
		if _, on := slices.BinarySearch(online, n); on {
			continue
		}
		whole = false
		if state, err := r.t.attr(fmt.Sprintf("%scpu%d/online", cpuDir, n)); err == nil && state == "0" {
			offline = append(offline, n)
		}
	}
	return offline, whole
}

func (r *reader) levelOf(source, text string) int {
	n, err := parseInt(text)
	if err != nil {
		r.warn(source, err)
		return -1
	}
	return level(*n)
}

func (r *reader) optionalLevel(source string) int {
	text, err := r.t.attr(source)
	if err != nil {
		if !absent(err) {
			r.warn(source, err)
		}
		return -1
	}
	return r.levelOf(source, text)
}
