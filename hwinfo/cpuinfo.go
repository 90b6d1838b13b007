package hwinfo

import (
	"io"
	"strconv"
	"strings"
)

// cpuText is /proc/cpuinfo of any architecture: one record per online CPU and what stands outside of them.
type cpuText struct {
	form   cpuForm
	cpus   []cpuRecord
	shared map[string]string // header, trailer and anything that belongs to no single CPU
	count  int               // CPUs by the text's own count where it lists none (SPARC)
}

// cpuRecord is one CPU. Keys are as the kernel prints them: "cpu model" and "CPU model" differ by architecture.
type cpuRecord struct {
	number int
	keys   map[string]string
}

// cpuForm is the shape of the text, which follows the kernel's architecture and not this program's.
type cpuForm int

const (
	formOther cpuForm = iota
	formX86
	formARM
	formPower
	formS390
	formRISCV
	formLoong
	formMIPS
	formSPARC
)

// parseCPUInfo reads the text; it cannot fail on its content, what it does not know it keeps as shared keys.
func parseCPUInfo(r io.Reader) (cpuText, error) {
	data, err := readLimited(r, maxFile)
	if err != nil {
		return cpuText{}, err
	}
	p := cpuParser{text: cpuText{shared: map[string]string{}}, current: -1}
	for line := range lines(data) {
		p.line(line)
	}
	p.text.form = p.text.detect()
	return p.text, nil
}

type cpuParser struct {
	text    cpuText
	current int  // index of the record that lines belong to, -1: shared
	blank   bool // the line before was blank
}

func (p *cpuParser) line(line string) {
	key, value, ok := keyValue(line)
	if !ok {
		p.blank = p.blank || strings.TrimSpace(line) == ""
		return
	}
	afterBlank := p.blank
	p.blank = false
	switch {
	case key == "processor": // not "Processor": that is a header of 32-bit ARM
		p.start(value)
		return
	case strings.HasPrefix(key, "processor "): // s390x: "processor 3: version = FF, …"
		p.start(strings.TrimPrefix(key, "processor "))
		p.set("processor", value)
		p.current = -1
		return
	case key == "cpu number": // s390x: a second section about a CPU that is already listed
		p.current = p.find(value)
		return
	case key == "ncpus active":
		if n, err := strconv.ParseUint(value, 10, 31); err == nil {
			p.text.count = int(min(n, maxCPUs))
		}
	case afterBlank: // a section that names no CPU belongs to the machine (POWER, 32-bit ARM)
		p.current = -1
	}
	p.set(key, value)
}

func (p *cpuParser) start(number string) {
	n, err := strconv.ParseUint(number, 10, 31)
	if err != nil || len(p.text.cpus) >= maxCPUs {
		p.current = -1
		return
	}
	p.text.cpus = append(p.text.cpus, cpuRecord{number: int(n), keys: map[string]string{}})
	p.current = len(p.text.cpus) - 1
}

func (p *cpuParser) find(number string) int {
	n, err := strconv.Atoi(number)
	if err != nil {
		return -1
	}
	// Sections come in the order of the list, so the search starts behind the last one found.
	for k := range p.text.cpus {
		if i := (p.current + 1 + k) % len(p.text.cpus); p.text.cpus[i].number == n {
			return i
		}
	}
	return -1
}

// set keeps the first value of a key.
func (p *cpuParser) set(key, value string) {
	m := p.text.shared
	if p.current >= 0 {
		m = p.text.cpus[p.current].keys
	}
	if _, dup := m[key]; !dup {
		m[key] = value
	}
}

// detect tells the forms apart by the keys that only they print.
func (t *cpuText) detect() cpuForm {
	has := func(key string) bool {
		if _, ok := t.shared[key]; ok {
			return true
		}
		for _, i := range []int{0, len(t.cpus) - 1} {
			if i >= 0 && i < len(t.cpus) {
				if _, ok := t.cpus[i].keys[key]; ok {
					return true
				}
			}
		}
		return false
	}
	switch {
	case has("CPU implementer") || has("Processor") || has("CPU architecture"):
		return formARM
	case has("# processors") || strings.HasPrefix(t.shared["vendor_id"], "IBM/S390"):
		return formS390
	case has("ncpus active") || has("ncpus probed"):
		return formSPARC
	case has("hart") || has("isa") && has("mmu"):
		return formRISCV
	case has("global_id") || has("CPU Family"):
		return formLoong
	case has("cpu model"):
		return formMIPS
	case has("timebase") || has("cpu") && has("revision"):
		return formPower
	case has("vendor_id") || has("cpu family") || has("model name"):
		return formX86
	}
	return formOther
}

// value returns a key of the first CPU that has it, else the shared one.
func (t *cpuText) value(key string) string {
	for i := range t.cpus {
		if v, ok := t.cpus[i].keys[key]; ok {
			return v
		}
	}
	return t.shared[key]
}

// logical is the number of CPUs that the text speaks of; 0: it does not say.
func (t *cpuText) logical() int {
	if len(t.cpus) > 0 {
		return len(t.cpus)
	}
	return t.count
}
