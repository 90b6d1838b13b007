package hwinfo

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// NVMLReport is what substrate-probe prints: NVIDIA's GPUs as their library sees them.
type NVMLReport struct {
	Version int        `json:"version"` // 1
	GPUs    []NVMLGPU  `json:"gpus"`
	Pairs   []NVMLPair `json:"pairs,omitempty"`
}

// NVMLGPU is one GPU.
type NVMLGPU struct {
	Index   int        `json:"index"`
	Address string     `json:"address"` // PCI
	Name    string     `json:"name,omitempty"`
	Memory  uint64     `json:"memory_bytes,omitempty"`
	MIG     bool       `json:"mig,omitempty"`
	Parts   []string   `json:"instances,omitempty"` // MIG profiles, one for each instance
	Links   []NVMLLink `json:"links,omitempty"`     // active NVLinks
}

// NVMLLink are the NVLinks of a GPU that lead to one device.
type NVMLLink struct {
	To     string `json:"to,omitempty"` // PCI, "" where the library does not tell
	Switch bool   `json:"switch,omitempty"`
	Count  int    `json:"count"`
}

// NVMLPair is two GPUs, by index.
type NVMLPair struct {
	A      int    `json:"a"`
	B      int    `json:"b"`
	Path   string `json:"path,omitempty"`   // as GPULink.Path
	NVLink bool   `json:"nvlink,omitempty"` // they reach one another over NVLink, through switches or not
}

const (
	nvmlVersion = 1
	maxNVLinks  = 64 // of one GPU; the hardware has 18
)

// nvidiaAnswer is what one or several programs say of NVIDIA's GPUs.
type nvidiaAnswer struct {
	gpus   []nvidiaGPU
	linked bool // somebody told about links
	links  map[[2]string]GPULink
}

// nvidiaGPU is one GPU; zero values are unknown.
type nvidiaGPU struct {
	index    int
	address  string
	model    string
	memory   uint64
	mig      bool
	profiles []string
	numa     []int
}

// parseNVML reads what substrate-probe prints.
func parseNVML(r io.Reader) (nvidiaAnswer, error) {
	data, err := readLimited(r, maxAnswer)
	if err != nil {
		return nvidiaAnswer{}, err
	}
	var report NVMLReport
	if err := json.Unmarshal(data, &report); err != nil {
		return nvidiaAnswer{}, errors.New("not the JSON of substrate-probe")
	}
	if report.Version != nvmlVersion {
		return nvidiaAnswer{}, fmt.Errorf("version %d of substrate-probe's answer, expected %d", report.Version, nvmlVersion)
	}
	if len(report.GPUs) > maxGPUs || len(report.Pairs) > maxGPUs*maxGPUs/2 {
		return nvidiaAnswer{}, fmt.Errorf("more than %d GPUs", maxGPUs)
	}
	out := nvidiaAnswer{linked: true, links: map[[2]string]GPULink{}}
	at := map[int]string{}
	seen := map[string]bool{}
	for _, g := range report.GPUs {
		addr, err := ParsePCIAddress(g.Address)
		if err != nil {
			return nvidiaAnswer{}, err
		}
		address := addr.String()
		if _, dup := at[g.Index]; dup || seen[address] || g.Index < 0 || g.Index > 1<<16 {
			return nvidiaAnswer{}, fmt.Errorf("GPU %d is out of place", g.Index)
		}
		at[g.Index], seen[address] = address, true
		out.gpus = append(out.gpus, nvidiaGPU{index: g.Index, address: address, model: known(g.Name), memory: g.Memory,
			mig: g.MIG, profiles: cleanProfiles(g.Parts)})
	}
	remote := remoteLinks{}
	for _, g := range report.GPUs {
		for _, l := range g.Links[:min(len(g.Links), maxNVLinks)] {
			to := ""
			if addr, err := ParsePCIAddress(l.To); err == nil {
				to = addr.String()
			}
			remote.add(at[g.Index], to, l.Switch, min(max(l.Count, 0), maxNVLinks))
		}
	}
	for _, p := range report.Pairs {
		a, okA := at[p.A]
		b, okB := at[p.B]
		if !okA || !okB || a == b {
			continue
		}
		l := GPULink{}
		if pathRank(p.Path) > 0 {
			l.Path = p.Path
		}
		if n := remote.direct(a, b); n > 0 {
			l.NVLinks = n
		} else if p.NVLink {
			l.NVLinks, l.Switched = remote.switched(a, b), true
		}
		out.links[ordered(a, b)] = l
	}
	return out, nil
}

func cleanProfiles(names []string) []string {
	var out []string
	for _, n := range names[:min(len(names), maxMIG)] {
		if n = clean(n); n != "" {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

// remoteLinks counts the NVLinks from a GPU to what is at their other ends.
type remoteLinks map[string]map[remoteEnd]int

type remoteEnd struct {
	address  string
	toSwitch bool
}

func (m remoteLinks) add(gpu, to string, toSwitch bool, count int) {
	if m[gpu] == nil {
		m[gpu] = map[remoteEnd]int{}
	}
	m[gpu][remoteEnd{to, toSwitch}] += count
}

// direct is the number of links between two GPUs without a switch.
func (m remoteLinks) direct(a, b string) int {
	return max(m[a][remoteEnd{b, false}], m[b][remoteEnd{a, false}])
}

// switched is what two GPUs that reach one another through switches have: as many links as the lesser one has into
// them, at least one.
func (m remoteLinks) switched(a, b string) int {
	into := func(gpu string) int {
		n := 0
		for end, count := range m[gpu] {
			if end.toSwitch {
				n += count
			}
		}
		return n
	}
	return max(1, min(into(a), into(b)))
}

// shareSwitch tells whether two GPUs have links into one switch.
func (m remoteLinks) shareSwitch(a, b string) bool {
	for end := range m[a] {
		if end.toSwitch && end.address != "" && m[b][end] > 0 {
			return true
		}
	}
	return false
}

// ordered is a pair of addresses, the lesser first.
func ordered(a, b string) [2]string {
	x, errX := ParsePCIAddress(a)
	y, errY := ParsePCIAddress(b)
	if errX == nil && errY == nil && x.Compare(y) > 0 {
		return [2]string{b, a}
	}
	return [2]string{a, b}
}

// parseGPUQuery reads the rows of nvidia-smi's query: index, address, name, memory in MiB, MIG mode. Values that the
// driver does not have read "[N/A]" or "[Not Supported]".
func parseGPUQuery(r io.Reader) ([]nvidiaGPU, error) {
	data, err := readLimited(r, maxAnswer)
	if err != nil {
		return nil, err
	}
	var out []nvidiaGPU
	seen := map[string]bool{}
	for line := range lines(data) {
		if strings.TrimSpace(line) == "" {
			continue
		}
		cells := strings.Split(line, ",")
		if len(cells) != 5 {
			return nil, fmt.Errorf("%d cells in row %q, expected 5", len(cells), short(line))
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		index, err := strconv.ParseUint(cells[0], 10, 16)
		if err != nil {
			return nil, fmt.Errorf("%q is not a GPU's index", short(cells[0]))
		}
		addr, err := ParsePCIAddress(cells[1])
		if err != nil {
			return nil, err
		}
		g := nvidiaGPU{index: int(index), address: addr.String(), model: known(cells[2]), mig: cells[4] == "Enabled"}
		if mib, err := strconv.ParseUint(cells[3], 10, 43); err == nil {
			g.memory = mib << 20
		}
		if strings.HasPrefix(g.model, "[") {
			g.model = ""
		}
		if seen[g.address] || len(out) == maxGPUs {
			return nil, fmt.Errorf("GPU %s is out of place", g.address)
		}
		seen[g.address] = true
		out = append(out, g)
	}
	if len(out) == 0 {
		return nil, errNoGPUs
	}
	return out, nil
}

// parseGPUList reads the MIG instances below each GPU of "nvidia-smi -L", by the GPU's index:
//
//	GPU 0: NVIDIA A100-SXM4-40GB (UUID: …)
//	  MIG 3g.20gb     Device  0: (UUID: …)
func parseGPUList(r io.Reader) (map[int][]string, error) {
	data, err := readLimited(r, maxAnswer)
	if err != nil {
		return nil, err
	}
	out := map[int][]string{}
	gpu := -1
	for line := range lines(data) {
		if index, ok := gpuHeading(line); ok {
			gpu = index
			if len(out) == maxGPUs {
				return nil, fmt.Errorf("more than %d GPUs", maxGPUs)
			}
			out[gpu] = nil
			continue
		}
		f := strings.Fields(line)
		if gpu < 0 || len(f) < 3 || f[0] != "MIG" || f[2] != "Device" || len(out[gpu]) == maxMIG {
			continue
		}
		out[gpu] = append(out[gpu], clean(f[1]))
	}
	if len(out) == 0 {
		return nil, errNoGPUs
	}
	for _, profiles := range out {
		slices.Sort(profiles)
	}
	return out, nil
}

// gpuHeading reads the index of "GPU 3: NVIDIA H100 …".
func gpuHeading(line string) (int, bool) {
	head, _, ok := strings.Cut(line, ":")
	digits, ok2 := strings.CutPrefix(head, "GPU ")
	n, err := strconv.ParseUint(strings.TrimSpace(digits), 10, 16)
	return int(n), ok && ok2 && err == nil
}

// parseRemote reads the other ends of the active links of "nvidia-smi nvlink -R", by the GPU's index:
//
//	GPU 0: NVIDIA H100 80GB HBM3 (UUID: …)
//	         Link 0: Remote Device 00000000:07:00.0: Link 46
func parseRemote(r io.Reader) (map[int][]string, error) {
	data, err := readLimited(r, maxAnswer)
	if err != nil {
		return nil, err
	}
	out := map[int][]string{}
	gpu := -1
	for line := range lines(data) {
		if index, ok := gpuHeading(line); ok {
			gpu = index
			if len(out) == maxGPUs {
				return nil, fmt.Errorf("more than %d GPUs", maxGPUs)
			}
			out[gpu] = nil
			continue
		}
		_, end, ok := strings.Cut(line, ": Remote Device ")
		if gpu < 0 || !ok || !strings.HasPrefix(strings.TrimSpace(line), "Link ") {
			continue // "Link 0: <inactive>"
		}
		if i := strings.Index(end, ": Link"); i >= 0 {
			end = end[:i]
		}
		addr, err := ParsePCIAddress(strings.TrimSpace(end))
		if err != nil {
			continue // such as a device outside of the node
		}
		if len(out[gpu]) == maxNVLinks {
			return nil, fmt.Errorf("more than %d links of GPU %d", maxNVLinks, gpu)
		}
		out[gpu] = append(out[gpu], addr.String())
	}
	if len(out) == 0 {
		return nil, errNoGPUs
	}
	return out, nil
}

// askedNVIDIA gathers what programs said about NVIDIA's GPUs at the addresses, which are in the order of the bus.
func (r *reader) askedNVIDIA(addresses []string) nvidiaAnswer {
	if data, source := r.answer(AnswerNVML); source != "" {
		out, err := parseNVML(bytes.NewReader(data))
		if err == nil {
			return out
		}
		r.warn(source, err)
	}
	var out nvidiaAnswer
	if data, source := r.answer(AnswerGPUs); source != "" {
		var err error
		if out.gpus, err = parseGPUQuery(bytes.NewReader(data)); err != nil {
			r.warn(source, err)
		}
	}
	queried := len(out.gpus) > 0
	if !queried { // the tools count by address
		for i, a := range addresses {
			out.gpus = append(out.gpus, nvidiaGPU{index: i, address: a})
		}
	}
	at := map[int]int{}
	for i, g := range out.gpus {
		at[g.index] = i
	}
	told := r.toldSplits(&out, at)
	told = r.toldLinks(&out, at) || told
	if !queried && !told {
		return nvidiaAnswer{}
	}
	return out
}

// toldSplits adds the profiles of MIG instances.
func (r *reader) toldSplits(out *nvidiaAnswer, at map[int]int) bool {
	data, source := r.answer(AnswerList)
	if source == "" {
		return false
	}
	list, err := parseGPUList(bytes.NewReader(data))
	if err == nil && len(list) != len(out.gpus) {
		err = fmt.Errorf("%d GPUs in the list, %d on the bus", len(list), len(out.gpus))
	}
	if err != nil {
		r.warn(source, err)
		return false
	}
	for index, profiles := range list {
		if i, ok := at[index]; ok && len(profiles) > 0 {
			out.gpus[i].mig, out.gpus[i].profiles = true, profiles
		}
	}
	return true
}

// toldLinks adds links from the matrix, else from the list of remote ends.
func (r *reader) toldLinks(out *nvidiaAnswer, at map[int]int) bool {
	if data, source := r.answer(AnswerTopo); source != "" {
		m, err := parseTopo(bytes.NewReader(data))
		if err == nil && (m.gpus != len(out.gpus) || !complete(at, m.gpus)) {
			err = fmt.Errorf("%d GPUs in the matrix, %d on the bus", m.gpus, len(out.gpus))
		}
		if err == nil {
			out.takeMatrix(m, at)
			return true
		}
		r.warn(source, err)
	}
	data, source := r.answer(AnswerRemote)
	if source == "" {
		return false
	}
	ends, err := parseRemote(bytes.NewReader(data))
	if err == nil && len(ends) != len(out.gpus) {
		err = fmt.Errorf("%d GPUs in the list, %d on the bus", len(ends), len(out.gpus))
	}
	if err != nil {
		r.warn(source, err)
		return false
	}
	out.takeRemote(ends, at, r.maybeSwitch)
	return true
}

// maybeSwitch: a switch need not be on the bus of a virtual machine, but what is there as something else, such as the
// end of a link in a POWER processor, is none.
func (r *reader) maybeSwitch(address string) bool {
	text, err := r.t.attr(pciDir + "/" + address + "/modalias")
	if err != nil {
		return true
	}
	ids, err := parseModalias(text)
	return err == nil && ids.vendor == vendorNVIDIA && ids.class>>8 == 0x0680
}

// complete: the indices are 0 to n-1, as a matrix has them.
func complete(at map[int]int, n int) bool {
	for i := range n {
		if _, ok := at[i]; !ok {
			return false
		}
	}
	return true
}

func (a *nvidiaAnswer) takeMatrix(m topoMatrix, at map[int]int) {
	a.linked, a.links = true, map[[2]string]GPULink{}
	for pair, n := range m.links {
		a.links[ordered(a.gpus[at[pair[0]]].address, a.gpus[at[pair[1]]].address)] = GPULink{NVLinks: n}
	}
	for row, nodes := range m.numa {
		a.gpus[at[row]].numa = nodes
	}
	if m.flat { // whatever lies below
		return
	}
	for pair, path := range m.paths {
		a.links[ordered(a.gpus[at[pair[0]]].address, a.gpus[at[pair[1]]].address)] = GPULink{Path: path}
	}
}

// takeRemote joins GPUs whose links end at one another, or in one switch.
func (a *nvidiaAnswer) takeRemote(ends map[int][]string, at map[int]int, isSwitch func(string) bool) {
	a.linked, a.links = true, map[[2]string]GPULink{}
	isGPU := map[string]bool{}
	for _, g := range a.gpus {
		isGPU[g.address] = true
	}
	remote := remoteLinks{}
	for index, list := range ends {
		i, ok := at[index]
		if !ok {
			continue
		}
		for _, end := range list {
			if isGPU[end] || isSwitch(end) {
				remote.add(a.gpus[i].address, end, !isGPU[end], 1)
			}
		}
	}
	for i := range a.gpus {
		for j := range i {
			x, y := a.gpus[j].address, a.gpus[i].address
			if n := remote.direct(x, y); n > 0 {
				a.links[ordered(x, y)] = GPULink{NVLinks: n}
			} else if remote.shareSwitch(x, y) {
				a.links[ordered(x, y)] = GPULink{NVLinks: remote.switched(x, y), Switched: true}
			}
		}
	}
}
