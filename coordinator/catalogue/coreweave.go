package catalogue

import "substrate/coordinator"

// CoreWeave are the few instance types whose nodes' own figures are public. A name says nothing by itself: newer ones dropped the scheme.
// Cores are half of the logical CPUs where the machine may have two threads per core.
func CoreWeave() *Catalogue {
	node := func(name string, threads, cores uint32, kib coordinator.Bytes, gpus uint32, arch string) Type {
		perCore, memory := threads/cores, kib<<10
		t := Type{Name: name, VCPUs: &threads, Cores: &cores, ThreadsPerCore: &perCore, Memory: &memory, Seen: &memory, Arch: arch, BareMetal: true}
		if gpus > 0 {
			t.GPUVendor, t.GPUs = "NVIDIA", &gpus
		}
		return t
	}
	c := &Catalogue{}
	for _, t := range []Type{ // by name
		node("b300-8x", 192, 96, 4_225_760_944, 8, "amd64"),
		node("gd-1xgh200", 72, 72, 600_218_240, 1, "arm64"),
		node("gd-8xh100ib-i128", 128, 64, 2_112_109_804, 8, "amd64"),
		node("turin-gp", 192, 96, 1_583_297_960, 0, "amd64"),
	} {
		c.types, c.names = append(c.types, t), append(c.names, t.Name)
	}
	return c
}
