package hwinfo

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// dgx is a node with 8 switched GPUs, 2 cards and a disk.
func dgx() Facts {
	f := Facts{
		CPU:    CPU{Arch: "amd64", VendorID: "GenuineIntel", ModelName: "Xeon 8480C", Sockets: ptr(2), Cores: ptr(112), LogicalCPUs: ptr(224)},
		Memory: Memory{Total: ptr(uint64(2) << 40)},
		RDMA:   []RDMA{{Device: "mlx5_0", Port: 1, Fabric: "infiniband", Gbps: ptr(400.0), Active: true}, {Device: "mlx5_1", Port: 1, Fabric: "infiniband", Gbps: ptr(400.0), Active: true}},
		Disks:  []Disk{{Name: "nvme0n1", Size: ptr(uint64(3840755982336)), Transport: "nvme", Rotational: ptr(false)}},
	}
	add := func(bus int, vendor, device uint16, class uint32) string {
		a := fmt.Sprintf("0000:%02x:00.0", bus)
		f.PCI = append(f.PCI, PCI{Address: a, Vendor: &vendor, Device: &device, Class: &class, Driver: "x"})
		return a
	}
	for i := range 8 {
		a := add(0x10+i, vendorNVIDIA, 0x2330, 0x030200)
		f.GPUs = append(f.GPUs, GPU{Address: a, Vendor: "nvidia", Resource: "nvidia.com/gpu", Model: "NVIDIA H100 80GB HBM3", Driver: true, LinksKnown: true})
		for j := range i {
			f.GPULinks = append(f.GPULinks, GPULink{A: f.GPUs[j].Address, B: a, NVLinks: 18, Switched: true})
		}
	}
	add(0x80, 0x15b3, 0x1021, 0x020700)
	add(0x81, 0x15b3, 0x1021, 0x020700)
	return f
}

func TestDrift(t *testing.T) {
	tests := []struct {
		name   string
		change func(*Facts)
		drift  []string
		kind   bool // the fingerprint stays
	}{
		{"nothing", func(*Facts) {}, nil, true},
		{"0.5 % of memory", func(f *Facts) { f.Memory.Total = ptr(*f.Memory.Total - *f.Memory.Total/200) }, nil, true},
		{"1.9 % of memory, beyond a rounding step", func(f *Facts) { f.Memory.Total = ptr(*f.Memory.Total - *f.Memory.Total/53) }, nil, false},
		{"half of the memory", func(f *Facts) { f.Memory.Total = ptr(uint64(1) << 40) }, []string{"memory: 1099511627776 bytes, expected 2199023255552 bytes"}, false},
		{"threads switched off", func(f *Facts) {
			f.CPU.LogicalCPUs = ptr(112)
			for n := range 112 {
				f.CPU.Offline = append(f.CPU.Offline, 112+n)
			}
		}, []string{"topology: 2 sockets, 112 cores, 112 CPUs, 112 offline, expected 2 sockets, 112 cores, 224 CPUs"}, true},
		{"another CPU", func(f *Facts) { f.CPU.ModelName = "Xeon 8580" }, []string{"cpu: amd64 GenuineIntel Xeon 8580, expected amd64 GenuineIntel Xeon 8480C"}, false},
		{"a driver with other names", func(f *Facts) {
			for i := range f.GPUs {
				f.GPUs[i].Model = "H100"
			}
		}, nil, true},
		{"no driver", func(f *Facts) { f.GPUs[3].Driver = false }, []string{"gpus without a driver: 1 × nvidia.com/gpu NVIDIA H100 80GB HBM3, expected none"}, true},
		{"a dead GPU", func(f *Facts) {
			f.PCI[3] = PCI{Address: f.PCI[3].Address, Dead: true}
			f.GPUs = slices.Delete(f.GPUs, 3, 4)
			f.GPULinks = slices.DeleteFunc(f.GPULinks, func(l GPULink) bool { return l.A == "0000:13:00.0" || l.B == "0000:13:00.0" })
		}, []string{"gpus: 7 × nvidia.com/gpu NVIDIA H100 80GB HBM3, expected 8 × nvidia.com/gpu NVIDIA H100 80GB HBM3",
			"gpu fabrics: 7 GPUs, 378 links, expected 8 GPUs, 504 links", "functions that do not answer: 1, expected 0"}, false},
		{"a GPU of another id and the same name", func(f *Facts) { f.PCI[0].Device = ptr(uint16(0x2339)) },
			[]string{"gpus: 7 × nvidia.com/gpu NVIDIA H100 80GB HBM3 (10de:2330), 1 × nvidia.com/gpu NVIDIA H100 80GB HBM3 (10de:2339), expected 8 × nvidia.com/gpu NVIDIA H100 80GB HBM3 (10de:2330)"}, false},
		{"MIG", func(f *Facts) { f.GPUs[0].Split = &GPUSplit{Mode: "mig", Instances: 7} },
			[]string{"split gpus: nvidia.com/gpu 7 whole and 7 instances, expected none"}, true},
		{"a lost link", func(f *Facts) { f.GPULinks[0].NVLinks = 17 }, []string{"gpu fabrics: 8 GPUs, 503 links, expected 8 GPUs, 504 links"}, true},
		{"two fabrics", func(f *Facts) {
			f.GPULinks = slices.DeleteFunc(f.GPULinks, func(l GPULink) bool { return (l.A < "0000:14") != (l.B < "0000:14") })
		}, []string{"gpu fabrics: 4 + 4 GPUs, 216 links, expected 8 GPUs, 504 links"}, true},
		{"nobody asked about links", func(f *Facts) {
			f.GPULinks = nil
			for i := range f.GPUs {
				f.GPUs[i].LinksKnown = false
			}
		}, nil, true},
		{"a card in Ethernet mode", func(f *Facts) { f.PCI[8].Class = ptr(uint32(0x020000)) },
			[]string{"network cards: 1 × 15b3:1021 class 0200, 1 × 15b3:1021 class 0207, expected 2 × 15b3:1021 class 0207"}, false},
		{"a port that is down", func(f *Facts) { f.RDMA[1].Active = false },
			[]string{"rdma ports: 1 × infiniband 400 Gb/s, 1 × infiniband down, expected 2 × infiniband 400 Gb/s"}, true},
		{"another maker's disk", func(f *Facts) { f.Disks[0].Size, f.Disks[0].Model = ptr(uint64(3840000000000)), "Y" }, nil, true},
		{"no disk", func(f *Facts) { f.Disks = nil }, []string{"disks: none, expected 1 × nvme solid 3.8 TB"}, true},
		{"virtual functions", func(f *Facts) {
			f.PCI = append(f.PCI, PCI{Address: "0000:82:01.0", Vendor: ptr(uint16(0x15b3)), Device: ptr(uint16(0x1022)), Class: ptr(uint32(0x020000)), Virtual: true})
		}, nil, true},
		{"the bus was left out", func(f *Facts) { f.PCI = nil }, nil, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			want, got := dgx(), dgx()
			tt.change(&got)
			checkDrift(t, want, got, tt.drift)
			if same := Fingerprint(want) == Fingerprint(got); same != tt.kind {
				t.Errorf("same fingerprint: %v", same)
			}
		})
	}
}

func checkDrift(t *testing.T, want, got Facts, drift []string) {
	t.Helper()
	if d := Drift(want, got); !slices.Equal(d, drift) {
		t.Errorf("drift\n%q, want\n%q", d, drift)
	}
	if d := Drift(got, want); len(d) != len(drift) {
		t.Errorf("the other way round %q", d)
	}
}

// TestOrderProperty: order and addresses of functions are no part of a kind.
func TestOrderProperty(t *testing.T) {
	want := dgx()
	rapid.Check(t, func(t *rapid.T) {
		got := dgx()
		moved := map[string]string{}
		buses := rapid.Permutation(seq(len(got.PCI))).Draw(t, "buses")
		for i := range got.PCI {
			moved[got.PCI[i].Address] = fmt.Sprintf("0001:%02x:00.0", buses[i])
			got.PCI[i].Address = moved[got.PCI[i].Address]
		}
		for i := range got.GPUs {
			got.GPUs[i].Address = moved[got.GPUs[i].Address]
		}
		for i := range got.GPULinks {
			got.GPULinks[i].A, got.GPULinks[i].B = moved[got.GPULinks[i].A], moved[got.GPULinks[i].B]
		}
		got.PCI = rapid.Permutation(got.PCI).Draw(t, "functions")
		got.GPUs = rapid.Permutation(got.GPUs).Draw(t, "gpus")
		got.GPULinks = rapid.Permutation(got.GPULinks).Draw(t, "links")
		got.RDMA = rapid.Permutation(got.RDMA).Draw(t, "ports")
		if Fingerprint(want) != Fingerprint(got) || len(Drift(want, got)) > 0 {
			t.Fatalf("drift %q", Drift(want, got))
		}
	})
}

func seq(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}
