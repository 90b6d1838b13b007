package agree

import (
	"testing"

	"github.com/jaypipes/ghw"
	"github.com/shirou/gopsutil/v3/cpu"
	"github.com/shirou/gopsutil/v3/host"
	"github.com/shirou/gopsutil/v3/mem"
)

// TestGHW compares where that library is right on x86: it counts packages and cores by sysfs, functions by their modaliases.
func TestGHW(t *testing.T) {
	f := inspect(t)
	if f.CPU.Arch != "amd64" {
		t.Skipf("on %s the library names no vendors and counts by other rules", f.CPU.Arch)
	}
	processors, err := ghw.CPU(ghw.WithDisableTools())
	if err != nil {
		t.Fatal(err)
	}
	same(t, "CPUs", number(f.CPU.LogicalCPUs), int(processors.TotalHardwareThreads))
	same(t, "cores", number(f.CPU.Cores), int(processors.TotalCores))
	same(t, "sockets", number(f.CPU.Sockets), len(processors.Processors))
	if len(processors.Processors) > 0 {
		same(t, "vendor", f.CPU.VendorID, processors.Processors[0].Vendor)
		same(t, "model", f.CPU.ModelName, processors.Processors[0].Model)
	}
	memory, err := ghw.Memory(ghw.WithDisableTools())
	if err != nil {
		t.Fatal(err)
	}
	if f.Memory.Total == nil {
		t.Fatal("memory is unknown")
	}
	same(t, "memory", *f.Memory.Total, uint64(memory.TotalUsableBytes))
	bus, err := ghw.PCI(ghw.WithDisableTools())
	if err != nil {
		t.Fatal(err)
	}
	theirs := map[string]string{}
	for _, d := range bus.Devices {
		theirs[d.Address] = d.Driver
	}
	same(t, "functions", len(f.PCI), len(theirs))
	for _, p := range f.PCI {
		same(t, p.Address+" driver", p.Driver, theirs[p.Address])
	}
	disks, err := ghw.Block(ghw.WithDisableTools())
	if err != nil {
		t.Fatal(err)
	}
	sizes := map[string]uint64{}
	for _, d := range disks.Disks {
		sizes[d.Name] = d.SizeBytes
	}
	for _, d := range f.Disks {
		if d.Size != nil {
			same(t, d.Name+" size", *d.Size, sizes[d.Name])
		}
	}
}

// TestGopsutil compares where that library is right: totals and the kernel's own words.
func TestGopsutil(t *testing.T) {
	f := inspect(t)
	logical, err := cpu.Counts(true)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "CPUs", number(f.CPU.LogicalCPUs), logical)
	if f.CPU.Arch == "amd64" {
		physical, err := cpu.Counts(false)
		if err != nil {
			t.Fatal(err)
		}
		same(t, "cores", number(f.CPU.Cores), physical)
	}
	memory, err := mem.VirtualMemory()
	if err != nil {
		t.Fatal(err)
	}
	if f.Memory.Total == nil {
		t.Fatal("memory is unknown")
	}
	same(t, "memory", *f.Memory.Total, memory.Total)
	info, err := host.Info()
	if err != nil {
		t.Fatal(err)
	}
	same(t, "hostname", f.Hostname, info.Hostname)
	same(t, "kernel", f.Uname.Release, info.KernelVersion)
	same(t, "machine", f.Uname.Machine, info.KernelArch)
	same(t, "distribution", f.OSRelease.ID, info.Platform)
}
