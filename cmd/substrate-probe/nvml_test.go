//go:build linux && cgo

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"substrate/hwinfo"
)

// fake is a library with GPUs that have 12 links: 0 and 1 to switches, 2 to 3 directly. GPU 3 is split.
func fake() *mock.Interface {
	var devices []nvml.Device
	for i := range 4 {
		d := &mock.Device{
			GetPciInfoFunc: func() (nvml.PciInfo, nvml.Return) {
				return nvml.PciInfo{Domain: 0, Bus: uint32(0x10 + i)}, nvml.SUCCESS
			},
			GetNameFunc:       func() (string, nvml.Return) { return "NVIDIA A100-SXM4-40GB", nvml.SUCCESS },
			GetMemoryInfoFunc: func() (nvml.Memory, nvml.Return) { return nvml.Memory{Total: 42949672960}, nvml.SUCCESS },
			GetMigModeFunc: func() (int, int, nvml.Return) {
				if i == 3 {
					return nvml.DEVICE_MIG_ENABLE, nvml.DEVICE_MIG_ENABLE, nvml.SUCCESS
				}
				return 0, 0, nvml.ERROR_NOT_SUPPORTED
			},
			GetMaxMigDeviceCountFunc: func() (int, nvml.Return) { return 7, nvml.SUCCESS },
			GetMigDeviceHandleByIndexFunc: func(n int) (nvml.Device, nvml.Return) {
				if n != 1 && n != 4 {
					return nil, nvml.ERROR_NOT_FOUND
				}
				return &mock.Device{GetNameFunc: func() (string, nvml.Return) { return "NVIDIA A100-SXM4-40GB MIG 3g.20gb", nvml.SUCCESS }}, nvml.SUCCESS
			},
			GetNvLinkStateFunc: func(link int) (nvml.EnableState, nvml.Return) {
				switch {
				case link >= 12:
					return 0, nvml.ERROR_INVALID_ARGUMENT
				case link == 5:
					return nvml.FEATURE_DISABLED, nvml.SUCCESS
				}
				return nvml.FEATURE_ENABLED, nvml.SUCCESS
			},
			GetNvLinkRemotePciInfoFunc: func(link int) (nvml.PciInfo, nvml.Return) {
				if i < 2 {
					return nvml.PciInfo{Domain: 5, Bus: uint32(link / 6)}, nvml.SUCCESS
				}
				return nvml.PciInfo{Bus: uint32(0x10 + 5 - i)}, nvml.SUCCESS
			},
			GetNvLinkRemoteDeviceTypeFunc: func(int) (nvml.IntNvLinkDeviceType, nvml.Return) {
				if i < 2 {
					return nvml.NVLINK_DEVICE_TYPE_SWITCH, nvml.SUCCESS
				}
				return nvml.NVLINK_DEVICE_TYPE_GPU, nvml.SUCCESS
			},
			GetTopologyCommonAncestorFunc: func(nvml.Device) (nvml.GpuTopologyLevel, nvml.Return) { return nvml.TOPOLOGY_NODE, nvml.SUCCESS },
			GetP2PStatusFunc: func(other nvml.Device, _ nvml.GpuP2PCapsIndex) (nvml.GpuP2PStatus, nvml.Return) {
				if j := slices.Index(devices, other); i/2 == j/2 {
					return nvml.P2P_STATUS_OK, nvml.SUCCESS
				}
				return nvml.P2P_STATUS_NOT_SUPPORTED, nvml.SUCCESS
			},
		}
		devices = append(devices, d)
	}
	return &mock.Interface{
		DeviceGetCountFunc:         func() (int, nvml.Return) { return len(devices), nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(i int) (nvml.Device, nvml.Return) { return devices[i], nvml.SUCCESS },
	}
}

// TestGather: what is printed is what the agent reads.
func TestGather(t *testing.T) {
	report, err := gather(fake(), func(string) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := write(&out, report); err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	for _, bus := range []string{"10", "11", "12", "13"} {
		dir := filepath.Join(root, "sys/bus/pci/devices/0000:"+bus+":00.0")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "modalias"), []byte("pci:v000010DEd000020B0sv000010DEsd0000134Fbc03sc02i00\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f, w := hwinfo.ReadWith(root, hwinfo.Answers{hwinfo.AnswerNVML: out.Bytes()})
	const a, b, c, d = "0000:10:00.0", "0000:11:00.0", "0000:12:00.0", "0000:13:00.0"
	want := []hwinfo.GPULink{
		{A: a, B: b, NVLinks: 11, Switched: true, Path: "NODE"}, {A: a, B: c, Path: "NODE"}, {A: a, B: d, Path: "NODE"},
		{A: b, B: c, Path: "NODE"}, {A: b, B: d, Path: "NODE"}, {A: c, B: d, NVLinks: 11, Path: "NODE"},
	}
	if !slices.Equal(f.GPULinks, want) {
		t.Errorf("%+v, want %+v; %v", f.GPULinks, want, w)
	}
	if got, want := f.CountGPUs()["nvidia.com/gpu"], (hwinfo.GPUCount{Physical: 4, Whole: 3, Instances: 2, NoDriver: 4}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if strings.Contains(out.String(), "UUID") || f.GPUs[2].Memory == nil {
		t.Errorf("%s", out.String())
	}
}

// TestOldLibrary: calls that a library lacks are not made.
func TestOldLibrary(t *testing.T) {
	report, err := gather(fake(), func(string) bool { return false })
	if err != nil || len(report.GPUs) != 4 || report.GPUs[3].MIG || report.Pairs[0].NVLink || report.GPUs[0].Links[0].Switch {
		t.Errorf("%+v, %v", report, err)
	}
}

// TestLostGPU: a GPU that fell off the bus makes the answer fail, so that another program is asked.
func TestLostGPU(t *testing.T) {
	lib := fake()
	lib.DeviceGetHandleByIndexFunc = func(int) (nvml.Device, nvml.Return) { return nil, nvml.ERROR_GPU_IS_LOST }
	if report, err := gather(lib, func(string) bool { return true }); err == nil {
		t.Errorf("%+v", report)
	}
}
