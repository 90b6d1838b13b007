package hwinfo

import (
	"cmp"
	"fmt"
	"slices"
)

// maxPairs bounds the pairs of GPUs in a report; 64 GPUs have 2016.
const maxPairs = 2048

// readLinks finds how GPUs are joined. NVIDIA's links are known from programs that were asked, AMD's from the
// driver's topology, the way over PCI from the program too, else from sysfs. In a virtual machine the bus is flat
// whatever lies below, so nothing is said about it.
func (r *reader) readLinks(gpus []GPU, guest bool) []GPULink {
	links := map[[2]string]GPULink{}
	var nvidia []string
	for _, g := range gpus {
		if g.Vendor == "nvidia" {
			nvidia = append(nvidia, g.Address)
		}
	}
	if len(nvidia) > 0 {
		r.takeNVIDIA(gpus, r.askedNVIDIA(nvidia), links)
	}
	r.readKFD(gpus, links)
	if guest {
		for pair, l := range links {
			l.Path = ""
			links[pair] = l
		}
	} else if len(gpus) > 1 {
		r.addPaths(gpus, links)
	}
	return r.listed(gpus, links)
}

// guest tells whether the node is a virtual machine.
func (f *Facts) guest() bool {
	v := f.Machine.Virtualization
	return v != "" && v != "none" || slices.Contains(f.CPU.Flags, "hypervisor")
}

// takeNVIDIA puts a program's answer beside what the files told. A GPU that only one of the two knows is left as
// it is, with a warning.
func (r *reader) takeNVIDIA(gpus []GPU, a nvidiaAnswer, links map[[2]string]GPULink) {
	at := map[string]int{}
	for i, g := range gpus {
		if g.Vendor == "nvidia" {
			at[g.Address] = i
		}
	}
	for _, x := range a.gpus {
		i, ok := at[x.address]
		if !ok {
			r.warn(probeDir, fmt.Errorf("GPU %s is not on the bus", x.address))
			continue
		}
		g := &gpus[i]
		g.Index = ptr(x.index)
		g.LinksKnown = a.linked
		if x.model != "" {
			g.Model = x.model
		}
		if x.memory > 0 && x.memory <= maxBytes {
			g.Memory = ptr(x.memory)
		}
		if g.NUMANode == nil && len(x.numa) == 1 {
			g.NUMANode = ptr(x.numa[0])
		}
		if x.mig {
			split := &GPUSplit{Mode: "mig", Instances: len(x.profiles), Profiles: x.profiles}
			if split.Profiles == nil && g.Split != nil { // the mode was told, the instances were not
				split.Instances = g.Split.Instances
			}
			g.Split = split
		}
	}
	for pair, l := range a.links {
		if _, ok := at[pair[0]]; !ok {
			continue
		}
		if _, ok := at[pair[1]]; ok {
			links[pair] = l
		}
	}
}

// addPaths adds the way over PCI of pairs that have none yet.
func (r *reader) addPaths(gpus []GPU, links map[[2]string]GPULink) {
	slots := make([]slot, len(gpus))
	for i, g := range gpus {
		slots[i] = r.slot(pciDir + "/" + g.Address)
	}
	for i := range gpus {
		for j := range i {
			pair := ordered(gpus[j].Address, gpus[i].Address)
			l := links[pair]
			if l.Path == "" {
				if l.Path = pciPath(slots[j], slots[i], gpus[j].NUMANode, gpus[i].NUMANode); l.Path != "" {
					links[pair] = l
				}
			}
		}
	}
}

// listed is the pairs in the order of the bus. Of too many, those that only PCI joins are left out.
func (r *reader) listed(gpus []GPU, links map[[2]string]GPULink) []GPULink {
	at := map[string]int{}
	for i, g := range gpus {
		at[g.Address] = i
	}
	var out []GPULink
	for pair, l := range links {
		if l.A, l.B = pair[0], pair[1]; l.Fabric() || l.Path != "" {
			out = append(out, l)
		}
	}
	slices.SortFunc(out, func(x, y GPULink) int {
		return cmp.Or(cmp.Compare(at[x.A], at[y.A]), cmp.Compare(at[x.B], at[y.B]))
	})
	if len(out) > maxPairs {
		r.warn(probeDir, fmt.Errorf("more than %d pairs of GPUs, those joined by PCI alone are left out", maxPairs))
		out = slices.DeleteFunc(out, func(l GPULink) bool { return !l.Fabric() })
	}
	if len(out) > maxPairs { // some of the links would be a wrong answer
		for i := range gpus {
			gpus[i].LinksKnown = false
		}
		return nil
	}
	return out
}

// Fabrics groups the GPUs' addresses by what NVLink or xGMI joins, in the order of the facts; a GPU without a link
// is a group of its own. That a GPU has links does not say to whom: two pairs are two fabrics.
func (f *Facts) Fabrics() [][]string {
	group := make([]int, len(f.GPUs))
	index := map[string]int{}
	for i, g := range f.GPUs {
		group[i] = i
		index[g.Address] = i
	}
	for _, l := range f.GPULinks {
		a, okA := index[l.A]
		b, okB := index[l.B]
		if !l.Fabric() || !okA || !okB || group[a] == group[b] {
			continue
		}
		keep, drop := min(group[a], group[b]), max(group[a], group[b])
		for i := range group {
			if group[i] == drop {
				group[i] = keep
			}
		}
	}
	var out [][]string
	at := map[int]int{}
	for i, g := range group {
		k, ok := at[g]
		if !ok {
			k = len(out)
			at[g] = k
			out = append(out, nil)
		}
		out[k] = append(out[k], f.GPUs[i].Address)
	}
	return out
}

// Nearness is a matrix in the order of the facts' GPUs: the larger, the nearer. 0 is unknown, 1 to 5 are SYS, NODE,
// PHB, PXB and PIX, from 16 on it is a link of a fabric and the number of links added. The diagonal is 0.
func (f *Facts) Nearness() [][]int {
	out := make([][]int, len(f.GPUs))
	index := map[string]int{}
	for i, g := range f.GPUs {
		out[i] = make([]int, len(f.GPUs))
		index[g.Address] = i
	}
	for _, l := range f.GPULinks {
		a, okA := index[l.A]
		b, okB := index[l.B]
		if !okA || !okB || a == b {
			continue
		}
		n := pathRank(l.Path)
		if l.Fabric() {
			n = 16 + l.NVLinks + l.XGMI
		}
		out[a][b], out[b][a] = n, n
	}
	return out
}
