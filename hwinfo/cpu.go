package hwinfo

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// readCPU fills identity from /proc/cpuinfo and counts from sysfs, and returns the online CPUs.
func (r *reader) readCPU(u Uname) (CPU, []int) {
	const source = "proc/cpuinfo"
	var text cpuText
	data, err := r.t.read(source, maxFile)
	if err == nil {
		text, err = parseCPUInfo(bytes.NewReader(data))
	}
	if err != nil {
		r.warn(source, err)
	}
	cpu, problems := text.identity()
	for _, p := range problems {
		r.warn(source, p)
	}
	cpu.Arch = r.arch(u.Machine)
	online, known := r.onlineCPUs()
	places := r.topology(online, text.form)
	if !known {
		online = nil
		for i := range text.cpus {
			online = append(online, text.cpus[i].number)
		}
	}
	if places == nil {
		// lxcfs renumbers CPUs in cpuinfo, so its records are never joined with sysfs by number.
		places = text.places()
	}
	logical := len(online)
	if logical == 0 {
		logical = text.logical()
	}
	cpu.count(logical, places)
	cpu.MHzMax = r.maxMHz(text)
	return cpu, online
}

// identity reads what a CPU is called; a number that does not parse loses that number only.
func (t *cpuText) identity() (CPU, []error) {
	var c CPU
	var problems []error
	number := func(key string) *int {
		v := t.value(key)
		if v == "" || v == "unknown" {
			return nil
		}
		n, err := parseInt(v)
		if err != nil {
			problems = append(problems, fmt.Errorf("cannot parse %s: %w", key, err))
			return nil
		}
		if *n < 0 {
			return nil
		}
		return n
	}
	switch t.form {
	case formX86:
		c.VendorID, c.ModelName = known(t.value("vendor_id")), known(t.value("model name"))
		c.Family, c.Model, c.Stepping = number("cpu family"), number("model"), number("stepping")
		c.Microcode = known(t.value("microcode"))
		c.Flags = cleanFields(t.value("flags"), maxFlags)
	case formARM:
		c.VendorID, c.ModelName = armName(t.value("CPU implementer"), t.value("CPU part"))
		if c.ModelName == "" {
			c.ModelName = known(t.value("model name")) // printed under a 32-bit personality
		}
		c.Family, c.Stepping = number("CPU architecture"), number("CPU revision")
		c.Flags = cleanFields(t.value("Features"), maxFlags)
	case formPower:
		// "model" and "machine" of the trailer name the machine, not the CPU.
		c.ModelName = known(t.value("cpu"))
		if strings.HasPrefix(c.ModelName, "POWER") {
			c.VendorID = "IBM"
		}
	case formS390:
		c.VendorID = known(t.value("vendor_id"))
		c.MachineType = s390Machine(t.value("processor"))
		c.Flags = cleanFields(t.value("features"), maxFlags)
	case formRISCV:
		c.VendorID = lookup(riscvVendors, strings.ToLower(t.value("mvendorid")))
		c.ModelName = known(t.value("uarch"))
		c.Flags = cleanFields(strings.ReplaceAll(t.value("isa"), "_", " "), maxFlags)
	case formLoong:
		if strings.HasPrefix(t.value("Model Name"), "Loongson") || strings.HasPrefix(t.value("CPU Family"), "Loongson") {
			c.VendorID = "Loongson"
		}
		c.ModelName = known(t.value("Model Name"))
		c.Flags = cleanFields(t.value("Features"), maxFlags)
	case formMIPS:
		if c.ModelName = known(t.value("model name")); c.ModelName == "" {
			c.ModelName = known(t.value("cpu model"))
		}
		if strings.HasPrefix(c.ModelName, "Loongson") {
			c.VendorID = "Loongson"
		}
		c.Flags = cleanFields(t.value("ASEs implemented"), maxFlags)
	case formSPARC:
		c.ModelName = known(t.value("cpu"))
		c.Flags = cleanFields(strings.ReplaceAll(t.value("cpucaps"), ",", " "), maxFlags)
	}
	return c, problems
}

// known turns the kernel's "unknown" into an absent fact.
func known(s string) string {
	if s = clean(s); strings.EqualFold(s, "unknown") {
		return ""
	}
	return s
}

// s390Machine finds "machine = 2964" among a CPU's fields; the identification beside it is a serial number.
func s390Machine(s string) string {
	for part := range strings.SplitSeq(s, ",") {
		if k, v, ok := strings.Cut(part, "="); ok && strings.TrimSpace(k) == "machine" {
			return known(v)
		}
	}
	return ""
}

// place is where a CPU sits; -1 is unknown.
type place struct{ drawer, pkg, die, core int }

// places of the text itself: x86 says "physical id", LoongArch and MIPS say "package". nil: it does not say.
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
		p := place{pkg: id(rec, "physical id", "package"), core: id(rec, "core id", "core")}
		stated = stated || p.core >= 0
		out = append(out, p)
	}
	if !stated {
		return nil
	}
	return out
}

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
			if form == formS390 { // sockets are numbered anew in each book of each drawer
				p.drawer = (r.optionalLevel(dir+"drawer_id")+1)<<16 | (r.optionalLevel(dir+"book_id") + 1)
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

// maxMHz is the highest rated frequency of any CPU; the current one of cpuinfo is not a fact that lasts.
func (r *reader) maxMHz(text cpuText) *float64 {
	const dir = cpuDir + "cpufreq/"
	var best float64
	for _, n := range r.numbered(dir, "policy", maxCPUs) {
		source := fmt.Sprintf("%spolicy%d/cpuinfo_max_freq", dir, n)
		s, err := r.t.attr(source)
		if err != nil {
			continue
		}
		kHz, err := strconv.ParseUint(s, 10, 32)
		if err != nil {
			r.warn(source, fmt.Errorf("%q is not a frequency", short(s)))
			continue
		}
		best = max(best, float64(kHz)/1000)
	}
	if best == 0 && text.form == formS390 {
		if mhz, err := strconv.ParseUint(text.value("cpu MHz static"), 10, 32); err == nil {
			best = float64(mhz)
		}
	}
	if best == 0 {
		return nil
	}
	return &best
}
