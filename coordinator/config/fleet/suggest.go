package fleet

import (
	"cmp"
	"fmt"
	"maps"
	"math/bits"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"substrate/coordinator"
	"substrate/expr"
	"substrate/hwinfo"
)

const (
	maxSuggested = 500 // definitions in one draft
	maxHostList  = 200 // names in one condition
	maxLeftOut   = 100
)

// Suggestion is a draft of definitions. Its JSON is the API's message, field for field.
type Suggestion struct {
	YAML        string      `json:"yaml"`
	Definitions []Suggested `json:"definitions,omitempty"`
	LeftOut     []string    `json:"left_out,omitempty"`
}

// Suggested is one drafted definition.
type Suggested struct {
	Definition coordinator.DefinitionID `json:"definition"`
	Condition  string                   `json:"condition"`
	Hardware   string                   `json:"hardware"`
	Group
}

// family is a group of nodes of equal hardware.
type family struct {
	model Node // the first by id
	nodes []Node
}

// Suggest drafts one definition for each kind of hardware among the nodes that belong to none. A condition is
// true on the whole group and on no other node given. Ids that are taken are not used again.
func Suggest(nodes []Node, taken []coordinator.DefinitionID) *Suggestion {
	s := &suggester{out: &Suggestion{}, cache: expr.NewCache(nil), taken: map[coordinator.DefinitionID]bool{}}
	for _, id := range taken {
		s.taken[id] = true
	}
	s.nodes = slices.SortedFunc(slices.Values(nodes), func(a, b Node) int { return cmp.Compare(a.ID, b.ID) })
	for _, n := range s.nodes {
		s.envs = append(s.envs, expr.NewNodeEnv(n.Facts))
	}
	families := s.families()
	for _, f := range families[:min(len(families), maxSuggested)] {
		s.suggest(f)
	}
	if n := len(families) - maxSuggested; n > 0 {
		s.leave("%d more kinds of hardware: set these definitions and ask again", n)
	}
	s.write()
	return s.out
}

type suggester struct {
	out   *Suggestion
	nodes []Node // by id
	envs  []*expr.NodeEnv
	cache *expr.Cache
	taken map[coordinator.DefinitionID]bool
}

func (s *suggester) leave(format string, args ...any) {
	if len(s.out.LeftOut) < maxLeftOut {
		s.out.LeftOut = append(s.out.LeftOut, fmt.Sprintf(format, args...))
	}
}

// families groups by fingerprint and joins groups that only a rounding step of the fingerprint keeps apart.
func (s *suggester) families() []*family {
	byPrint := map[string]*family{}
	var all []*family
	for _, n := range s.nodes {
		switch {
		case n.Definition != "":
			continue
		case !n.Known || !measured(n.Facts):
			s.leave("%s: its report does not tell cores and memory", n.ID)
			continue
		}
		key := hwinfo.Fingerprint(n.Facts)
		f := byPrint[key]
		if f == nil {
			i := -1
			if len(all) <= 2*maxSuggested {
				i = slices.IndexFunc(all, func(f *family) bool { return len(hwinfo.Drift(f.model.Facts, n.Facts)) == 0 })
			}
			if i >= 0 {
				f = all[i]
			} else {
				f = &family{model: n}
				all = append(all, f)
			}
			byPrint[key] = f
		}
		f.nodes = append(f.nodes, n)
	}
	return all
}

// atom is a part of a condition; the basic ones are written even where fewer would do, for the reader.
type atom struct {
	text  string
	basic bool
}

func (s *suggester) suggest(f *family) {
	in := make(map[coordinator.NodeID]bool, len(f.nodes))
	for _, n := range f.nodes {
		in[n.ID] = true
	}
	var chosen []string
	others := s.others(in)
	var rest []atom
	for _, a := range s.usable(atomsOf(f.model.Facts), in) {
		if a.basic {
			chosen = append(chosen, a.text)
			others = s.still(others, a.text)
		} else {
			rest = append(rest, a)
		}
	}
	for len(others) > 0 && len(rest) > 0 {
		best, left := -1, others
		for i, a := range rest {
			if after := s.still(others, a.text); len(after) < len(left) {
				best, left = i, after
			}
		}
		if best < 0 {
			break
		}
		chosen, others = append(chosen, rest[best].text), left
		rest = slices.Delete(rest, best, best+1)
	}
	if len(others) > 0 {
		text, ok := s.byName(f, others)
		if !ok {
			s.leave("%s: nothing that a condition can see tells them apart from %s", f.group().Listed(), s.nodes[others[0]].ID)
			return
		}
		chosen = append(chosen, text)
	}
	d := f.group()
	d.Definition = s.name(f.model.Facts)
	d.Condition = strings.Join(chosen, " &&\n")
	if len(chosen) == 0 {
		d.Condition = "true"
	}
	s.out.Definitions = append(s.out.Definitions, d)
}

func (f *family) group() Suggested {
	d := Suggested{Hardware: hardware(f.model.Facts)}
	for _, n := range f.nodes {
		d.add(n.ID)
	}
	return d
}

// others lists, by place, the nodes that are not of the family.
func (s *suggester) others(in map[coordinator.NodeID]bool) []int {
	var out []int
	for i, n := range s.nodes {
		if !in[n.ID] {
			out = append(out, i)
		}
	}
	return out
}

// still lists the nodes on which a condition is true.
func (s *suggester) still(nodes []int, text string) []int {
	c, err := s.cache.Condition(text)
	if err != nil {
		return nodes
	}
	var out []int
	for _, i := range nodes {
		if c.Match(s.envs[i]) == expr.True {
			out = append(out, i)
		}
	}
	return out
}

// usable are the atoms that compile and are true on every node of the family.
func (s *suggester) usable(atoms []atom, in map[coordinator.NodeID]bool) []atom {
	return slices.DeleteFunc(atoms, func(a atom) bool {
		c, err := s.cache.Condition(a.text)
		if err != nil {
			return true
		}
		for i, n := range s.nodes {
			if in[n.ID] && c.Match(s.envs[i]) != expr.True {
				return true
			}
		}
		return false
	})
}

// byName tells nodes apart by their host names: by a pattern with numbers, else one by one.
func (s *suggester) byName(f *family, others []int) (string, bool) {
	digits := regexp.MustCompile(`[0-9]+`)
	pattern, names := "", make([]string, 0, len(f.nodes))
	for i, n := range f.nodes {
		if !plain(n.Facts.Hostname) {
			return "", false
		}
		p := "^" + digits.ReplaceAllString(regexp.QuoteMeta(n.Facts.Hostname), "[0-9]+") + "$"
		if i > 0 && p != pattern {
			p = ""
		}
		pattern = p
		names = append(names, strconv.Quote(n.Facts.Hostname))
	}
	if pattern != "" && len(f.nodes) > 1 && !strings.Contains(pattern, `\`) {
		if text := "hostname() matches " + strconv.Quote(pattern); len(s.still(others, text)) == 0 {
			return text, true
		}
	}
	text := "hostname() in [" + strings.Join(names, ", ") + "]"
	return text, len(names) <= maxHostList && len(s.still(others, text)) == 0
}

// plain texts stand in an expression and in YAML as they are.
func plain(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' || r == '"' || r == '\\' })
}

func atomsOf(f hwinfo.Facts) []atom {
	var out []atom
	text := func(basic bool, name, value string) {
		if plain(value) {
			out = append(out, atom{fmt.Sprintf("%s == %q", name, value), basic})
		}
	}
	count := func(basic bool, name string, n *int) {
		if n != nil {
			out = append(out, atom{fmt.Sprintf("%s == %d", name, *n), basic})
		}
	}
	text(f.CPU.ModelName == "", "cpuinfo.arch", f.CPU.Arch)
	text(f.CPU.ModelName == "", "cpuinfo.vendor_id", f.CPU.VendorID)
	text(true, "cpuinfo.model_name", f.CPU.ModelName)
	count(true, "cpuinfo.sockets", f.CPU.Sockets)
	count(true, "cpuinfo.cpu_cores", f.CPU.Cores)
	count(false, "cpuinfo.logical_cpus", f.CPU.LogicalCPUs)
	count(false, "cpuinfo.numa_nodes", f.CPU.NUMANodes)
	out = append(out, deviceAtoms(f)...)
	text(false, "osrelease.id", f.OSRelease.ID)
	text(false, "osrelease.version_id", f.OSRelease.VersionID)
	return out
}

// deviceAtoms count accelerators, and network cards where they are needed to tell nodes apart. Where there is
// no accelerator that is a mark too.
func deviceAtoms(f hwinfo.Facts) []atom {
	if f.PCI == nil {
		return nil
	}
	accelerator := map[string]bool{}
	for _, g := range f.GPUs {
		accelerator[g.Address] = true
	}
	type device struct {
		vendor, device uint16
		class          uint32
	}
	found := map[device]bool{} // an accelerator
	for _, p := range f.PCI {
		if p.Vendor == nil || p.Device == nil || p.Class == nil || p.Virtual {
			continue
		}
		if base := *p.Class >> 16; accelerator[p.Address] || base == 0x02 {
			found[device{*p.Vendor, *p.Device, base}] = accelerator[p.Address]
		}
	}
	keys := slices.SortedFunc(maps.Keys(found), func(a, b device) int {
		return cmp.Or(cmp.Compare(a.class, b.class), cmp.Compare(a.vendor, b.vendor), cmp.Compare(a.device, b.device))
	})
	aliases := f.Modaliases()
	var out []atom
	for _, k := range keys {
		prefix := fmt.Sprintf("pci:v%08Xd%08Xsv", k.vendor, k.device)
		pattern := fmt.Sprintf("%s*sd*bc%02Xsc*i*", prefix, k.class)
		n := 0
		for _, alias := range aliases {
			if strings.HasPrefix(alias, prefix) && strings.Contains(alias, fmt.Sprintf("bc%02X", k.class)) {
				n++
			}
		}
		out = append(out, atom{fmt.Sprintf("modalias.count(%q) == %d", pattern, n), found[k]})
	}
	for _, class := range []string{"03", "12", "02"} {
		pattern := "pci:v*bc" + class + "sc*i*"
		if !slices.ContainsFunc(aliases, func(a string) bool { return strings.Contains(a, "bc"+class) }) {
			out = append(out, atom{fmt.Sprintf("!modalias.match(%q)", pattern), false})
		}
	}
	return out
}

// hardware puts a node's kind into words.
func hardware(f hwinfo.Facts) string {
	parts := []string{cmp.Or(f.CPU.ModelName, f.CPU.VendorID, f.CPU.Arch, "unknown processor")}
	if n := f.CPU.Sockets; n != nil {
		parts = append(parts, plural(*n, "socket"))
	}
	parts = append(parts, plural(*f.CPU.Cores, "core"), coordinator.Bytes(*f.Memory.Total).String())
	gpus := map[string]int{}
	for _, g := range f.GPUs {
		gpus[cmp.Or(g.Model, g.Resource)]++
	}
	for _, name := range slices.Sorted(maps.Keys(gpus)) {
		parts = append(parts, fmt.Sprintf("%d × %s", gpus[name], name))
	}
	return strings.Join(parts, ", ")
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// name is vendor, cores, memory and what is special, as in intel-32c-128g-v100x4.
func (s *suggester) name(f hwinfo.Facts) coordinator.DefinitionID {
	vendor := map[string]string{"GenuineIntel": "intel", "AuthenticAMD": "amd", "HygonGenuine": "hygon"}[f.CPU.VendorID]
	vendor = slug(cmp.Or(vendor, f.CPU.VendorID, f.CPU.Arch, "node"))
	id := fmt.Sprintf("%s-%dc-%dg", cmp.Or(vendor, "node"), *f.CPU.Cores, nominal(*f.Memory.Total))
	gpus := map[string]int{}
	for _, g := range f.GPUs {
		gpus[shortModel(g)]++
	}
	for i, model := range slices.Sorted(maps.Keys(gpus)) {
		if i < 4 {
			id += fmt.Sprintf("-%sx%d", model, gpus[model])
		}
	}
	if slices.ContainsFunc(f.RDMA, func(r hwinfo.RDMA) bool { return r.Fabric == "infiniband" }) {
		id += "-infiniband"
	}
	id = id[:min(len(id), 120)]
	for n := 1; ; n++ {
		full := coordinator.DefinitionID(id)
		if n > 1 {
			full = coordinator.DefinitionID(fmt.Sprintf("%s-%d", id, n))
		}
		if !s.taken[full] {
			s.taken[full] = true
			return full
		}
	}
}

func slug(s string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(s) {
		switch {
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			b.WriteRune(r)
		case b.Len() > 0 && !strings.HasSuffix(b.String(), "-"):
			b.WriteByte('-')
		}
	}
	return strings.Trim(b.String()[:min(b.Len(), 24)], "-")
}

// shortModel is a100 of "NVIDIA A100-SXM4-80GB": the first word with a digit in it.
func shortModel(g hwinfo.GPU) string {
	for _, word := range strings.FieldsFunc(g.Model, func(r rune) bool { return r == ' ' || r == '-' || r == '_' }) {
		if w := slug(word); strings.ContainsAny(w, "0123456789") && strings.ContainsAny(w, "abcdefghijklmnopqrstuvwxyz") {
			return w
		}
	}
	return cmp.Or(slug(g.Vendor), "gpu")
}

// nominal is the memory that was bought, in GiB: the kernel keeps a few percent for itself.
func nominal(total uint64) uint64 {
	const gib = 1 << 30
	n := (total + gib - 1) / gib
	if n < 32 {
		return n
	}
	step := uint64(1) << max(bits.Len64(n)-5, 0)
	return (n + step - 1) / step * step
}

// write puts the draft into YAML. Conditions are block texts, so nothing in them needs escapes.
func (s *suggester) write() {
	var b strings.Builder
	if len(s.out.Definitions) == 0 {
		b.WriteString("definitions: []\n")
	} else {
		b.WriteString("definitions:\n")
	}
	for _, d := range s.out.Definitions {
		fmt.Fprintf(&b, "  # %s: %s\n", comment(d.Hardware), comment(d.Listed()))
		fmt.Fprintf(&b, "  - id: %q\n    provisioner: static\n    provisionerSpec:\n      condition: |-\n", d.Definition)
		for line := range strings.SplitSeq(d.Condition, "\n") {
			fmt.Fprintf(&b, "        %s\n", line)
		}
	}
	for _, text := range s.out.LeftOut {
		fmt.Fprintf(&b, "# left out: %s\n", comment(text))
	}
	s.out.YAML = b.String()
}

// comment keeps a node's text on its line.
func comment(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r == 0x2028 || r == 0x2029 || r == 0xfeff || r == '\uFFFD' {
			return ' '
		}
		return r
	}, s)
}
