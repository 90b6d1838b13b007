package hwinfo

import (
	"cmp"
	"slices"
	"strings"
)

// pmuLists are the lists that name the CPUs of each kind of core on hybrid x86 processors; the first is on all of them.
func pmuLists() [][2]string {
	return [][2]string{
		{"performance", "sys/devices/cpu_core/cpus"},
		{"efficiency", "sys/devices/cpu_atom/cpus"},
		{"low-power", "sys/devices/cpu_lowpower/cpus"},
	}
}

// coreKinds tells the kinds of cores apart; nil where all are alike. whole: no CPU of the machine is hidden or offline.
func (r *reader) coreKinds(text *cpuText, online []int, places []place, whole bool) []CoreKind {
	var groups map[string][]int // positions in online
	switch text.form {
	case formX86:
		if groups = r.kindsByPMU(online); len(groups) < 2 && whole {
			groups = kindsByThreads(text, places)
		}
	case formARM:
		groups = kindsByPart(text, online)
	}
	if len(groups) < 2 {
		return nil
	}
	var out []CoreKind
	for name, members := range groups {
		k := CoreKind{Name: strings.TrimLeft(name, "#"), CPUs: len(members)}
		threads := map[place]int{}
		known := len(places) > 0
		for _, i := range members {
			if known = known && i < len(places) && places[i].core >= 0 && places[i].pkg >= 0; known {
				threads[places[i]]++
			}
		}
		if known {
			k.Cores = ptr(len(threads))
			if per, same := uniform(threads); same {
				k.Threads = ptr(per)
			}
		}
		out = append(out, k)
	}
	count := func(n *int) int {
		if n == nil {
			return -1
		}
		return *n
	}
	slices.SortFunc(out, func(a, b CoreKind) int {
		return cmp.Or(cmp.Compare(count(b.Threads), count(a.Threads)), cmp.Compare(a.CPUs, b.CPUs), strings.Compare(a.Name, b.Name))
	})
	return out
}

func (r *reader) kindsByPMU(online []int) map[string][]int {
	groups := map[string][]int{}
	taken := make([]bool, len(online))
	for _, list := range pmuLists() {
		text, err := r.t.attr(list[1])
		if err != nil {
			if len(groups) == 0 {
				return nil // no hybrid processor
			}
			continue
		}
		cpus, err := parseList(text, maxCPUs)
		if err != nil {
			r.warn(list[1], err)
			continue
		}
		for i, n := range online {
			if _, ok := slices.BinarySearch(cpus, n); ok && !taken[i] {
				taken[i] = true
				groups[list[0]] = append(groups[list[0]], i)
			}
		}
	}
	return groups
}

// kindsByThreads takes cores with two threads and cores with one for two kinds. A hypervisor gives its guests such shapes
// by the way it places them, so there it says nothing.
func kindsByThreads(text *cpuText, places []place) map[string][]int {
	if slices.Contains(strings.Fields(text.value("flags")), "hypervisor") {
		return nil
	}
	threads := map[place]int{}
	for _, p := range places {
		if p.core < 0 || p.pkg < 0 {
			return nil
		}
		threads[p]++
	}
	groups := map[string][]int{}
	for i, p := range places {
		name := strings.Repeat("#", min(threads[p], 8))
		groups[name] = append(groups[name], i)
	}
	return groups
}

// kindsByPart takes cores of different parts for different kinds. Records are joined with CPUs by number, so both have to
// be the same numbers.
func kindsByPart(text *cpuText, online []int) map[string][]int {
	if len(text.cpus) != len(online) {
		return nil
	}
	groups := map[string][]int{}
	for i, rec := range text.cpus {
		part := rec.keys["CPU part"]
		if rec.number != online[i] || part == "" {
			return nil
		}
		_, name := armName(rec.keys["CPU implementer"], part)
		if name == "" {
			name = clean(rec.keys["CPU implementer"] + ":" + part)
		}
		groups[name] = append(groups[name], i)
	}
	return groups
}
