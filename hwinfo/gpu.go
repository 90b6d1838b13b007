package hwinfo

import "fmt"

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
