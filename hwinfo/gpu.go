package hwinfo

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// PCI vendors that make accelerators. A list, because base class 03 alone also holds every management
// controller's VGA, the clouds' emulated ones and virtio-gpu.
const (
	vendorAMD    = 0x1002
	vendorNVIDIA = 0x10de
	vendorHabana = 0x1da3
	vendorIntel  = 0x8086
)

// classifyGPU tells whether a function is an accelerator of its own: not a virtual function, and a display
// controller (base class 03) or processing accelerator (12) of a vendor on the list. NVSwitches (06), audio (04),
// USB and UCSI (0C) companions share the vendor and fall out by class.
func classifyGPU(f *PCI) (GPU, bool) {
	if f.Vendor == nil || f.Class == nil || f.Virtual || f.Dead {
		return GPU{}, false
	}
	base, sub := *f.Class>>16, *f.Class>>8&0xff
	display := base == 0x03 && (sub == 0x00 || sub == 0x02 || sub == 0x80)
	accelerator := base == 0x12
	g := GPU{Address: f.Address, NUMANode: f.NUMANode, Driver: f.Driver != ""}
	switch {
	case *f.Vendor == vendorNVIDIA && display:
		g.Vendor, g.Resource = "nvidia", "nvidia.com/gpu"
	case *f.Vendor == vendorAMD && (display || accelerator):
		g.Vendor, g.Resource = "amd", "amd.com/gpu"
	case *f.Vendor == vendorIntel && display && !processorGraphics(f.Address): // Intel's class 12 are FPGAs and NPUs
		g.Vendor, g.Resource = "intel", "intel.com/gpu"
	case *f.Vendor == vendorHabana && accelerator:
		g.Vendor, g.Resource = "habana", "habana.ai/gaudi"
	default:
		return GPU{}, false
	}
	if f.Device != nil {
		g.Model = lookup(gpuModels, fmt.Sprintf("%04x %04x", *f.Vendor, *f.Device))
	}
	return g, true
}

// readGPUs picks the accelerators among the functions.
func (r *reader) readGPUs(functions []PCI) []GPU {
	var out []GPU
	for i := range functions {
		f := &functions[i]
		g, ok := classifyGPU(f)
		if !ok {
			continue
		}
		if len(out) == maxGPUs {
			r.warn(pciDir, fmt.Errorf("more than %d GPUs, the rest is left out", maxGPUs))
			break
		}
		dir := pciDir + "/" + f.Address + "/"
		g.CPUs = r.localCPUs(dir)
		switch g.Vendor {
		case "nvidia":
			r.describeNVIDIA(&g)
		case "amd":
			r.describeAMD(&g, dir)
		case "intel":
			g.Memory = r.intelMemory(dir)
		case "habana":
			if kind, err := r.t.attr(dir + "device_type"); err == nil && g.Model == "" {
				g.Model = known(clean(kind))
			}
		}
		out = append(out, g)
	}
	return out
}

// localCPUs are the CPUs near to a function, in a form of our own: kernels end the list differently.
func (r *reader) localCPUs(dir string) string {
	text, err := r.t.attr(dir + "local_cpulist")
	if err != nil {
		return ""
	}
	cpus, err := parseList(text, maxCPUs)
	if err != nil {
		r.warn(dir+"local_cpulist", err)
		return ""
	}
	return clean(formatList(cpus))
}

// describeNVIDIA adds what the driver's files tell: the model, and the MIG instances by the minor number.
func (r *reader) describeNVIDIA(g *GPU) {
	addr, err := ParsePCIAddress(g.Address)
	if err != nil {
		return
	}
	source := nvidiaDir + "/" + addr.String() + "/information"
	data, err := r.t.read(source, maxAttr)
	if err != nil {
		return // no driver, or another one
	}
	info, err := parseGPUInformation(bytes.NewReader(data))
	if err != nil {
		r.warn(source, err)
		return
	}
	if info.model != "" {
		g.Model = info.model
	}
	if info.minor == nil {
		return
	}
	// One directory for each compute instance: capabilities/gpuN/mig/giN/ciN (NVIDIA's MIG user guide).
	mig := fmt.Sprintf("proc/driver/nvidia/capabilities/gpu%d/mig", *info.minor)
	instances := 0
	for _, gi := range r.numbered(mig, "gi", maxMIG) {
		instances += len(r.numbered(fmt.Sprintf("%s/gi%d", mig, gi), "ci", maxMIG))
	}
	if instances > 0 {
		g.Split = &GPUSplit{Mode: "mig", Instances: instances}
	}
}

const maxMIG = 64 // the hardware has 7

// describeAMD adds what the amdgpu driver's attributes tell.
func (r *reader) describeAMD(g *GPU, dir string) {
	if name, err := r.t.attr(dir + "product_name"); err == nil && clean(name) != "" {
		g.Model = clean(name)
	}
	g.Memory = r.byteCount(dir + "mem_info_vram_total")
	// SPX is one device; the others are named for the number of parts.
	mode, err := r.t.attr(dir + "current_compute_partition")
	if err != nil {
		return
	}
	switch mode {
	case "DPX":
		g.Split = &GPUSplit{Mode: mode, Instances: 2}
	case "TPX":
		g.Split = &GPUSplit{Mode: mode, Instances: 3}
	case "QPX":
		g.Split = &GPUSplit{Mode: mode, Instances: 4}
	case "CPX": // as many as compute dies: the kernel's topology counts them
		g.Split = &GPUSplit{Mode: mode}
	}
}

// intelMemory sums the tiles of the xe driver; the i915 driver has one number on its card.
func (r *reader) intelMemory(dir string) *uint64 {
	var sum *uint64
	for _, tile := range r.numbered(dir, "tile", 64) {
		if n := r.byteCount(fmt.Sprintf("%stile%d/physical_vram_size_bytes", dir, tile)); n != nil {
			if sum == nil {
				sum = new(uint64)
			}
			*sum = addCapped(*sum, *n)
		}
	}
	if sum != nil {
		return sum
	}
	for _, card := range r.numbered(dir+"drm", "card", 64) {
		if n := r.byteCount(fmt.Sprintf("%sdrm/card%d/lmem_total_bytes", dir, card)); n != nil {
			return n
		}
	}
	return nil
}

// byteCount reads a number of bytes; a driver's 0 says that it does not know.
func (r *reader) byteCount(name string) *uint64 {
	text, err := r.t.attr(name)
	if err != nil {
		return nil
	}
	digits, base := text, 10
	if hex, ok := strings.CutPrefix(text, "0x"); ok {
		digits, base = hex, 16
	}
	n, err := strconv.ParseUint(digits, base, 64)
	if err != nil || n > maxBytes {
		r.warn(name, fmt.Errorf("%q is not a number of bytes", short(text)))
		return nil
	}
	if n == 0 {
		return nil
	}
	return &n
}

type gpuInformation struct {
	model string
	minor *int
}

// parseGPUInformation reads the NVIDIA driver's file; the UUID in it is not a fact of the node's kind.
func parseGPUInformation(r io.Reader) (gpuInformation, error) {
	data, err := readLimited(r, maxAttr)
	if err != nil {
		return gpuInformation{}, err
	}
	var out gpuInformation
	for line := range lines(data) {
		switch key, value, _ := keyValue(line); key {
		case "Model":
			out.model = known(clean(value))
		case "Device Minor":
			if n, err := strconv.ParseUint(value, 10, 16); err == nil {
				out.minor = ptr(int(n))
			}
		}
	}
	return out, nil
}

// GPUCount counts the GPUs of one resource. A split GPU is physical, not whole: what may be given away of it are
// its instances.
type GPUCount struct {
	Physical  int `json:"physical"`
	Whole     int `json:"whole"`
	Instances int `json:"instances"`
	NoDriver  int `json:"no_driver"` // of the physical ones
}

// Whole tells whether the GPU can be given away as one.
func (g *GPU) Whole() bool { return g.Split == nil }

// Devices counts the GPUs that work can use, by resource: without a driver none could, and a part is not the whole that is asked for.
func (f *Facts) Devices() map[string]uint32 {
	var out map[string]uint32
	for i := range f.GPUs {
		g := &f.GPUs[i]
		if g.Resource == "" || !g.Driver || !g.Whole() {
			continue
		}
		if out == nil {
			out = map[string]uint32{}
		}
		out[g.Resource]++
	}
	return out
}

// CountGPUs counts by resource.
func (f *Facts) CountGPUs() map[string]GPUCount {
	out := map[string]GPUCount{}
	for i := range f.GPUs {
		g := &f.GPUs[i]
		c := out[g.Resource]
		c.Physical++
		if g.Whole() {
			c.Whole++
		} else {
			c.Instances += g.Split.Instances
		}
		if !g.Driver {
			c.NoDriver++
		}
		out[g.Resource] = c
	}
	return out
}

// NVSwitches are the addresses of NVIDIA's switches on the bus; those outside of the node are not there.
func (f *Facts) NVSwitches() []string {
	var out []string
	for i := range f.PCI {
		p := &f.PCI[i]
		if p.Vendor != nil && p.Class != nil && *p.Vendor == vendorNVIDIA && *p.Class>>8 == 0x0680 {
			out = append(out, p.Address)
		}
	}
	return out
}

// processorGraphics: Intel's processors have their own display controller at this fixed place.
func processorGraphics(address string) bool {
	a, err := ParsePCIAddress(address)
	return err == nil && a == PCIAddress{Device: 2}
}

// gpuModels: vendor, device and the name that the vendor's own tools print.
const gpuModels = `
10de 15f8 Tesla P100-PCIE-16GB
10de 15f9 Tesla P100-SXM2-16GB
10de 1db1 Tesla V100-SXM2-16GB
10de 1db4 Tesla V100-PCIE-16GB
10de 1db5 Tesla V100-SXM2-32GB
10de 1db6 Tesla V100-PCIE-32GB
10de 1db8 Tesla V100-SXM3-32GB
10de 1df6 Tesla V100S-PCIE-32GB
10de 1eb8 Tesla T4
10de 20b0 NVIDIA A100-SXM4-40GB
10de 20b1 NVIDIA A100-PCIE-40GB
10de 20b2 NVIDIA A100-SXM4-80GB
10de 20b5 NVIDIA A100 80GB PCIe
10de 20b7 NVIDIA A30
10de 20f1 NVIDIA A100-PCIE-40GB
10de 20f3 NVIDIA A800-SXM4-80GB
10de 20f5 NVIDIA A800 80GB PCIe
10de 2235 NVIDIA A40
10de 2236 NVIDIA A10
10de 2237 NVIDIA A10G
10de 2324 NVIDIA H800
10de 2330 NVIDIA H100 80GB HBM3
10de 2331 NVIDIA H100 PCIe
10de 2335 NVIDIA H200
10de 26b5 NVIDIA L40
10de 27b8 NVIDIA L4
1002 6860 AMD Instinct MI25
1002 66a1 AMD Instinct MI50
1002 738c AMD Instinct MI100
1002 7408 AMD Instinct MI250X
1002 740c AMD Instinct MI250X
1002 740f AMD Instinct MI210
1002 74a1 AMD Instinct MI300X
1002 74a5 AMD Instinct MI325X
1da3 1000 Gaudi
1da3 1020 Gaudi2
1da3 1060 Gaudi3
8086 0bd5 Intel Data Center GPU Max 1550
8086 0bd6 Intel Data Center GPU Max 1550
8086 0bd9 Intel Data Center GPU Max 1100
8086 0bda Intel Data Center GPU Max 1100
8086 0bdb Intel Data Center GPU Max 1100
`
