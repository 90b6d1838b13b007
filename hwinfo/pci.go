package hwinfo

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// PCIAddress is a function's place: the domain has up to 32 bits (VMD and virtual machines use more than 16).
type PCIAddress struct {
	Domain   uint32
	Bus      uint8
	Device   uint8
	Function uint8
}

// ParsePCIAddress reads "0000:2b:00.0", the domainless "2b:00.0" and NVML's "00000000:2B:00.0".
func ParsePCIAddress(s string) (PCIAddress, error) {
	bad := func() (PCIAddress, error) {
		return PCIAddress{}, fmt.Errorf("cannot parse PCI address %q", short(s))
	}
	rest, function, ok := strings.Cut(s, ".")
	parts := strings.Split(rest, ":")
	if len(parts) == 2 {
		parts = append([]string{"0000"}, parts...)
	}
	if !ok || len(parts) != 3 || len(parts[0]) < 4 || len(parts[0]) > 8 || len(parts[1]) != 2 || len(parts[2]) != 2 || len(function) != 1 {
		return bad()
	}
	domain, err1 := strconv.ParseUint(parts[0], 16, 32)
	bus, err2 := strconv.ParseUint(parts[1], 16, 8)
	device, err3 := strconv.ParseUint(parts[2], 16, 5)
	fn, err4 := strconv.ParseUint(function, 8, 3)
	if errors.Join(err1, err2, err3, err4) != nil {
		return bad()
	}
	return PCIAddress{uint32(domain), uint8(bus), uint8(device), uint8(fn)}, nil
}

// String is the name that sysfs uses.
func (a PCIAddress) String() string {
	return fmt.Sprintf("%04x:%02x:%02x.%d", a.Domain, a.Bus, a.Device, a.Function)
}

// Compare orders by number.
func (a PCIAddress) Compare(b PCIAddress) int {
	return cmp.Or(cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Bus, b.Bus),
		cmp.Compare(a.Device, b.Device), cmp.Compare(a.Function, b.Function))
}

// Modaliases returns the modaliases of the PCI functions, by address.
func (f *Facts) Modaliases() []string {
	var out []string
	for i := range f.PCI {
		if m := f.PCI[i].Modalias; m != "" {
			out = append(out, m)
		}
	}
	return out
}

const (
	pciDir      = "sys/bus/pci/devices"
	maxModalias = 256 // a whole one has 53
)

// readPCI walks the bus, not /sys/class/drm: a data centre GPU has no card there.
func (r *reader) readPCI() []PCI { return r.functions(maxPCI) }

func (r *reader) functions(limit int) []PCI {
	names, err := r.t.list(pciDir)
	if err != nil {
		if absent(err) {
			err = errAbsent
		}
		r.warn(pciDir, err)
		return nil
	}
	type function struct {
		addr PCIAddress
		name string
	}
	var functions []function
	for _, name := range names {
		addr, err := ParsePCIAddress(name)
		if err != nil {
			r.warn(pciDir, err)
			continue
		}
		functions = append(functions, function{addr, name})
	}
	slices.SortFunc(functions, func(a, b function) int {
		return cmp.Or(a.addr.Compare(b.addr), strings.Compare(a.name, b.name))
	})
	if len(functions) > limit {
		r.warn(pciDir, fmt.Errorf("more than %d functions: GPUs are looked for in the first ones, the list is left out", limit))
		functions, r.cutPCI = functions[:limit], true
	}
	out := make([]PCI, 0, len(functions)) // not nil: a bus without functions is known to have none
	for _, f := range functions {
		out = append(out, r.readFunction(f.name))
	}
	return out
}

// readFunction reads one function; each attribute stands for itself.
func (r *reader) readFunction(name string) PCI {
	dir := pciDir + "/" + name + "/"
	r.t.recordDir(pciDir + "/" + name)
	f := PCI{Address: name}
	if text, err := r.t.attr(dir + "modalias"); err == nil {
		f.Modalias = clean(text[:min(len(text), maxModalias)])
	} else if !absent(err) {
		r.warn(dir+"modalias", err)
	}
	if ids, err := parseModalias(f.Modalias); err == nil {
		// The kernel prints the modalias from the values behind the three files, so they need not be read.
		f.Vendor, f.Device, f.Class = &ids.vendor, &ids.device, &ids.class
	} else {
		r.readIDs(dir, &f)
		if f.Modalias == "" {
			f.Modalias = r.modalias(dir, &f)
		}
	}
	_, err := r.t.linkBase(dir + "physfn")
	f.Virtual = err == nil
	if f.Class != nil && *f.Class == 0xffffff || f.Vendor != nil && *f.Vendor == 0xffff || r.silent(dir, &f) {
		r.warn(dir, errors.New("the device does not answer"))
		f.Modalias, f.Vendor, f.Device, f.Class, f.Dead = "", nil, nil, nil, true
	}
	if text, err := r.t.attr(dir + "numa_node"); err == nil {
		node, err := parseInt(text)
		if err != nil {
			r.warn(dir+"numa_node", err)
		} else if *node >= 0 {
			f.NUMANode = node
		}
	} else if !absent(err) {
		r.warn(dir+"numa_node", err)
	}
	if driver, err := r.t.linkBase(dir + "driver"); err == nil && validName(driver) {
		f.Driver = driver
	}
	if f.Class != nil && *f.Class>>16 == 0x02 {
		f.Interfaces = r.interfaces(dir + "net")
	}
	return f
}

const pciHeader = 64 // bytes that everybody may read; what lies behind them can hold a serial number

// header is an opener that reads the first bytes of a regular file, at most n, and no further: every byte read of a
// device's configuration is a question to the device.
type header interface {
	head(name string, n int) ([]byte, error)
}

// silent tells whether a function that the kernel once read answers nothing but ones now, as a GPU does that fell off
// the bus. Only devices that work is placed on are asked. A virtual function's header is all ones by design, and one that
// sleeps is not woken.
func (r *reader) silent(dir string, f *PCI) bool {
	h, ok := r.t.root.(header)
	if !ok || f.Class == nil || f.Virtual {
		return false
	}
	switch *f.Class >> 8 {
	case 0x0108, 0x0200, 0x0207, 0x0280, 0x0300, 0x0302, 0x0380, 0x0680, 0x1200:
	default:
		return false
	}
	if status, err := r.t.attr(dir + "power/runtime_status"); err == nil && status == "suspended" {
		return false
	}
	head, err := h.head(dir+"config", pciHeader)
	switch {
	case err != nil && absent(cause(err)):
		return false
	case err != nil:
		r.warn(dir+"config", cause(err))
		return false
	case len(head) < pciHeader:
		r.warn(dir+"config", fmt.Errorf("a header of %d bytes, expected %d", len(head), pciHeader))
	}
	if len(head) < 4 || !bytes.Equal(head[:4], []byte{0xff, 0xff, 0xff, 0xff}) {
		return false
	}
	if r.t.rec != nil {
		r.t.rec.files[dir+"config"] = bytes.Repeat([]byte{0xff}, pciHeader)
	}
	return true
}

func (r *reader) readIDs(dir string, f *PCI) {
	number := func(file string, bits int) *uint64 {
		text, err := r.t.attr(dir + file)
		if err == nil {
			var n uint64
			if n, err = parseHex(text, bits); err == nil {
				return &n
			}
		}
		r.warn(dir+file, err)
		return nil
	}
	if n := number("vendor", 16); n != nil {
		f.Vendor = ptr(uint16(*n))
	}
	if n := number("device", 16); n != nil {
		f.Device = ptr(uint16(*n))
	}
	if n := number("class", 24); n != nil {
		f.Class = ptr(uint32(*n))
	}
}

// modalias makes the text from the values behind it where its own file cannot be read: a device that is there must not be
// taken for one that is not. "" where one of the values is missing too.
func (r *reader) modalias(dir string, f *PCI) string {
	if f.Vendor == nil || f.Device == nil || f.Class == nil {
		return ""
	}
	var sub [2]uint64
	for i, file := range [...]string{"subsystem_vendor", "subsystem_device"} {
		text, err := r.t.attr(dir + file)
		if err != nil {
			return ""
		}
		if sub[i], err = parseHex(text, 16); err != nil {
			r.warn(dir+file, err)
			return ""
		}
	}
	c := *f.Class
	return fmt.Sprintf("pci:v%08Xd%08Xsv%08Xsd%08Xbc%02Xsc%02Xi%02X", *f.Vendor, *f.Device, sub[0], sub[1], c>>16, c>>8&0xff, c&0xff)
}

func (r *reader) interfaces(dir string) []string {
	names, err := r.t.list(dir)
	if err != nil {
		return nil
	}
	for _, n := range names {
		r.t.recordDir(dir + "/" + n)
	}
	names = slices.DeleteFunc(names, func(n string) bool { return !validName(n) })
	if len(names) == 0 {
		return nil
	}
	return names[:min(len(names), 64)]
}

type pciIDs struct {
	vendor, device uint16
	class          uint32
}

var errModalias = errors.New("not a complete PCI modalias")

// parseModalias reads "pci:v%08Xd%08Xsv%08Xsd%08Xbc%02Xsc%02Xi%02X" (drivers/pci/pci-sysfs.c). Old kernels
// print the last number in lower case.
func parseModalias(s string) (pciIDs, error) {
	const full = 53 // without the newline
	if len(s) != full || s[:5] != "pci:v" || s[13] != 'd' || s[22:24] != "sv" || s[32:34] != "sd" ||
		s[42:44] != "bc" || s[46:48] != "sc" || s[50] != 'i' {
		return pciIDs{}, errModalias
	}
	vendor, err1 := strconv.ParseUint(s[5:13], 16, 16)
	device, err2 := strconv.ParseUint(s[14:22], 16, 16)
	class, err3 := strconv.ParseUint(s[44:46]+s[48:50]+s[51:53], 16, 24)
	if errors.Join(err1, err2, err3) != nil {
		return pciIDs{}, errModalias
	}
	return pciIDs{uint16(vendor), uint16(device), uint32(class)}, nil
}
