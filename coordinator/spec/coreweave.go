package spec

import "substrate/coordinator"

// coreweaveHardware knows the few instance types whose nodes' own figures are public. A
// name says nothing by itself: newer ones dropped the scheme. Cores are half of the logical
// CPUs where the machine may have two threads per core.
func coreweaveHardware(instanceType string) *coordinator.Hardware {
	node := func(threads uint32, cores coordinator.Cores, kib coordinator.Bytes, gpus uint32, arch string) *coordinator.Hardware {
		h := &coordinator.Hardware{Cores: cores, Threads: threads, Memory: kib << 10, Arch: arch, Estimated: true}
		if gpus > 0 {
			h.Devices = map[string]uint32{DeviceNVIDIA: gpus}
		}
		return h
	}
	switch instanceType {
	case "gd-8xh100ib-i128":
		return node(128, 64, 2_112_109_804, 8, "amd64")
	case "b300-8x":
		return node(192, 96, 4_225_760_944, 8, "amd64")
	case "gd-1xgh200":
		return node(72, 72, 600_218_240, 1, "arm64")
	case "turin-gp":
		return node(192, 96, 1_583_297_960, 0, "amd64")
	}
	return nil
}
