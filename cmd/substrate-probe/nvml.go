//go:build linux && cgo

package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"substrate/hwinfo"
)

const maxGPUs = 256

// ask loads the library, which is looked for at run time only.
func ask() (hwinfo.NVMLReport, error) {
	lib := nvml.New()
	switch ret := lib.Init(); ret {
	case nvml.SUCCESS:
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return hwinfo.NVMLReport{}, errNoLibrary
	default:
		return hwinfo.NVMLReport{}, fmt.Errorf("the library did not start: %s", nvml.ErrorString(ret))
	}
	defer lib.Shutdown()
	// A call that an old library lacks would end the process.
	report, err := gather(lib, func(symbol string) bool { return lib.Extensions().LookupSymbol(symbol) == nil })
	return report, err
}

// gather asks for each GPU, and for each pair. What one GPU does not answer is left out of it.
func gather(lib nvml.Interface, has func(string) bool) (hwinfo.NVMLReport, error) {
	report := hwinfo.NVMLReport{Version: 1}
	n, ret := lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return report, fmt.Errorf("the library does not count: code %d", ret)
	}
	var devices []nvml.Device
	for i := range min(n, maxGPUs) {
		d, ret := lib.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			return report, fmt.Errorf("GPU %d does not answer: code %d", i, ret)
		}
		g, err := describe(i, d, has)
		if err != nil {
			return report, err
		}
		report.GPUs = append(report.GPUs, g)
		devices = append(devices, d)
	}
	for i := range devices {
		for j := i + 1; j < len(devices); j++ {
			report.Pairs = append(report.Pairs, pair(i, j, devices, has))
		}
	}
	return report, nil
}

func describe(index int, d nvml.Device, has func(string) bool) (hwinfo.NVMLGPU, error) {
	g := hwinfo.NVMLGPU{Index: index}
	pci, ret := d.GetPciInfo()
	if ret != nvml.SUCCESS {
		return g, fmt.Errorf("GPU %d does not tell its address: code %d", index, ret)
	}
	g.Address = address(pci)
	if name, ret := d.GetName(); ret == nvml.SUCCESS {
		g.Name = name
	}
	if m, ret := d.GetMemoryInfo(); ret == nvml.SUCCESS {
		g.Memory = m.Total
	}
	if has("nvmlDeviceGetMigMode") {
		if mode, _, ret := d.GetMigMode(); ret == nvml.SUCCESS && mode == nvml.DEVICE_MIG_ENABLE {
			g.MIG, g.Parts = true, instances(d)
		}
	}
	g.Links = links(d, has)
	return g, nil
}

// instances are the profiles of MIG devices: the last word of "NVIDIA A100-SXM4-40GB MIG 3g.20gb".
func instances(d nvml.Device) []string {
	n, ret := d.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return nil
	}
	var out []string
	for i := range min(n, 64) {
		part, ret := d.GetMigDeviceHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue // a place that nothing takes
		}
		name, _ := part.GetName()
		if _, profile, ok := strings.Cut(name, " MIG "); ok {
			name = profile
		}
		if name == "" {
			name = "unknown"
		}
		out = append(out, name)
	}
	return out
}

// links counts the active NVLinks by what is at the other end.
func links(d nvml.Device, has func(string) bool) []hwinfo.NVMLLink {
	var out []hwinfo.NVMLLink
	for link := range nvml.NVLINK_MAX_LINKS {
		state, ret := d.GetNvLinkState(link)
		if ret == nvml.ERROR_NOT_SUPPORTED {
			break
		}
		if ret != nvml.SUCCESS || state != nvml.FEATURE_ENABLED {
			continue
		}
		end := hwinfo.NVMLLink{Count: 1}
		if pci, ret := d.GetNvLinkRemotePciInfo(link); ret == nvml.SUCCESS {
			end.To = address(pci)
		}
		if has("nvmlDeviceGetNvLinkRemoteDeviceType") {
			kind, ret := d.GetNvLinkRemoteDeviceType(link)
			end.Switch = ret == nvml.SUCCESS && kind == nvml.NVLINK_DEVICE_TYPE_SWITCH
		}
		same := func(l hwinfo.NVMLLink) bool { return l.To == end.To && l.Switch == end.Switch }
		if i := slices.IndexFunc(out, same); i >= 0 {
			out[i].Count++
			continue
		}
		out = append(out, end)
	}
	slices.SortFunc(out, func(a, b hwinfo.NVMLLink) int {
		return cmp.Or(strings.Compare(a.To, b.To), cmp.Compare(a.Count, b.Count))
	})
	return out
}

func pair(i, j int, devices []nvml.Device, has func(string) bool) hwinfo.NVMLPair {
	p := hwinfo.NVMLPair{A: i, B: j}
	if level, ret := devices[i].GetTopologyCommonAncestor(devices[j]); ret == nvml.SUCCESS {
		p.Path = path(level)
	}
	if has("nvmlDeviceGetP2PStatus") {
		status, ret := devices[i].GetP2PStatus(devices[j], nvml.P2P_CAPS_INDEX_NVLINK)
		p.NVLink = ret == nvml.SUCCESS && status == nvml.P2P_STATUS_OK
	}
	return p
}

// path is nvidia-smi's word for the library's.
func path(level nvml.GpuTopologyLevel) string {
	switch level {
	case nvml.TOPOLOGY_INTERNAL, nvml.TOPOLOGY_SINGLE:
		return "PIX"
	case nvml.TOPOLOGY_MULTIPLE:
		return "PXB"
	case nvml.TOPOLOGY_HOSTBRIDGE:
		return "PHB"
	case nvml.TOPOLOGY_NODE:
		return "NODE"
	case nvml.TOPOLOGY_SYSTEM:
		return "SYS"
	}
	return ""
}

// address leaves the function out of the library's text, which does not tell it.
func address(p nvml.PciInfo) string {
	return fmt.Sprintf("%08x:%02x:%02x.0", p.Domain, p.Bus&0xff, p.Device&0x1f)
}
