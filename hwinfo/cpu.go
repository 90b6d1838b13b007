package hwinfo

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// readCPU fills identity from /proc/cpuinfo and counts from sysfs, and returns the online CPUs.
func (r *reader) readCPU(u Uname) (CPU, cpuForm, []int) {
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
	cpu.Dies = diesOf(places)
	if known {
		var whole bool
		cpu.Offline, whole = r.offlineCPUs(online)
		cpu.Clusters = r.clusters(online, text.form)
		cpu.Kinds = r.coreKinds(&text, online, places, whole)
	} else {
		cpu.Kinds = r.coreKinds(&text, online, places, true)
	}
	cpu.MHzMax = r.maxMHz(text, online, places)
	return cpu, text.form, online
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

// maxMHz is the highest rated frequency of any CPU; the current one of cpuinfo is not a fact that lasts. Threads of one core
// run at one frequency, so one of them is asked.
func (r *reader) maxMHz(text cpuText, online []int, places []place) *float64 {
	const dir = cpuDir + "cpufreq/"
	policies := r.numbered(dir, "policy", maxCPUs)
	first := map[place]int{}
	var best float64
	for _, n := range policies {
		if i, ok := slices.BinarySearch(online, n); ok && i < len(places) && places[i].core >= 0 && places[i].pkg >= 0 {
			if _, seen := first[places[i]]; seen {
				continue
			}
			first[places[i]] = n
		}
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
