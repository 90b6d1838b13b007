package hwinfo

import (
	"bytes"
	"fmt"
	"testing"
)

func FuzzDMI(f *testing.F) {
	f.Add(smbios(dimm(0, 0x4000, 0x1a, 3200, 2933, "Maker", "serial")))
	f.Add(smbios(dimm(0x10000, 0x7fff, 0x22, 0xffff, 0xffff)))
	f.Add(smbios(dimm(0, 0x8001, 0x07, 0, 0))[:40])
	f.Add([]byte{17, 4, 0, 0})
	f.Add([]byte{127, 4, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, table []byte) {
		modules, _ := parseModules(table)
		for _, m := range modules {
			if m.Size == 0 || m.Count != 1 || m.MTs != nil && *m.MTs == 0 {
				t.Errorf("module %+v", m)
			}
		}
		again, err := parseModules(scrubDMI(table))
		if err != nil || len(again) != len(modules) {
			t.Fatalf("scrubbing changed %d modules to %d, %v", len(modules), len(again), err)
		}
		a, b := Facts{Memory: Memory{Modules: grouped(modules)}}, Facts{Memory: Memory{Modules: grouped(again)}}
		if a.Digest() != b.Digest() {
			t.Errorf("scrubbing changed %+v to %+v", a.Memory.Modules, b.Memory.Modules)
		}
		checkText(t, a)
	})
}

// FuzzMachine gives every file that names the machine the same noise.
func FuzzMachine(f *testing.F) {
	for _, s := range []string{"Amazon EC2", "p5.48xlarge\n", "QEMU", "Default string", "kvm-clock tsc hyperv_clocksource_tsc_page", "linux,kvm\x00", "IBM,8335-GTH\x00\x00",
		"Manufacturer:         IBM\nType:                 3931\nVM00 Control Program: KVM/Linux\n", "azure\n", "a\xff\xfe\x1b[0m.b"} {
		f.Add(s, true)
		f.Add(s, false)
	}
	f.Fuzz(func(t *testing.T, text string, x86 bool) {
		fake := fakeTree{"sys/hypervisor/type": text, clockFile: text, cloudFile: text, containerFile: text, sysinfoFile: text}
		for _, file := range []string{"sys_vendor", "product_name", "board_vendor", "bios_vendor", "bios_version"} {
			fake[dmiDir+"/"+file] = text
		}
		for _, file := range []string{"model", "compatible", "hypervisor/compatible"} {
			fake["proc/device-tree/"+file] = text
		}
		form := formX86
		if !x86 {
			form = formS390
			if len(text)%2 == 0 {
				form = formPower
				delete(fake, dmiDir+"/sys_vendor")
				delete(fake, dmiDir+"/product_name")
			}
		}
		r := &reader{t: &tree{root: fake}}
		m := r.readMachine(CPU{Flags: cleanFields(text, maxFlags)}, form, Uname{Release: clean(text)})
		checkText(t, Facts{Machine: m})
		if m.InstanceType != "" && m.Cloud == "" {
			t.Errorf("a type of no cloud: %+v", m)
		}
	})
}

func FuzzHostLists(f *testing.F) {
	for _, s := range []string{"10 21 31\n", "10", "", "256", "-1 10", "Name:\tx\nCpus_allowed_list:\t0-3,8\n", "Cpus_allowed_list: \n", "Registered-DDR4", "RAM"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		distances, err := parseDistances(string(data))
		if err != nil && distances != nil || len(distances) > maxNodes {
			t.Errorf("%v, %v", distances, err)
		}
		for _, n := range distances {
			if n < 0 || n > 255 {
				t.Errorf("distance %d", n)
			}
		}
		allowed, err := parseAffinity(data)
		again, err2 := parseAffinity(keepLines(data, "Cpus_allowed_list"))
		if (err == nil) != (err2 == nil) || len(again) != len(allowed) {
			t.Errorf("scrubbing changed %v, %v to %v, %v", allowed, err, again, err2)
		}
		vendor, product, control := parseSysinfo(data)
		v, p, c := parseSysinfo(bytes.Join([][]byte{keepLines(data, "Manufacturer"), keepLines(data, "Type"), keepLines(data, "Program")}, nil))
		if v != vendor || p != product || c != control {
			t.Errorf("scrubbing changed %q %q %q to %q %q %q", vendor, product, control, v, p, c)
		}
		checkText(t, Facts{NUMA: []NUMA{{Distances: distances}}, Machine: Machine{Vendor: vendor, Product: product, Virtualization: control},
			Memory: Memory{Modules: []MemoryModules{{Type: edacType(string(data))}}}})
	})
}

func FuzzZones(f *testing.F) {
	f.Add(zoneInfo(2, []uint64{4096, 1 << 20}), uint64(1<<32))
	f.Add([]byte("Node 0, zone DMA\n        present  18446744073709551615\n        managed  -1\n"), uint64(1))
	f.Add([]byte("present 5\nmanaged 5\n"), uint64(5*65536))
	f.Fuzz(func(t *testing.T, data []byte, total uint64) {
		present, managed := parseZones(data)
		again, managedAgain := parseZones(scrub(zoneFile, data))
		if again != present || managedAgain != managed {
			t.Errorf("scrubbing changed %d, %d to %d, %d", present, managed, again, managedAgain)
		}
		if page := pageSize(total, managed); page != 0 && (page&(page-1) != 0 || page > 64<<10) {
			t.Errorf("pages of %d bytes", page)
		}
	})
}

// FuzzTopology gives four CPUs the lists and ids of the input, right or not.
func FuzzTopology(f *testing.F) {
	f.Add("0-1", "2-3", "0-3", "0", []byte("processor\t: 0\nflags\t: fpu\n"))
	f.Add("0", "2-3", "0-3", "-1", []byte("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd05\n"))
	f.Add("", "4294967295", "3-0", "65535", []byte("vendor_id       : IBM/S390\n# processors    : 1\n"))
	f.Fuzz(func(t *testing.T, core0, core2, pkg, id string, cpuinfo []byte) {
		text, err := parseCPUInfo(bytes.NewReader(cpuinfo))
		if err != nil {
			t.Fatal(err)
		}
		online := []int{0, 1, 2, 3}
		fake := fakeTree{"sys/devices/cpu_core/cpus": core0, "sys/devices/cpu_atom/cpus": core2, cpuDir + "present": pkg}
		for n := range online {
			dir := fmt.Sprintf("%scpu%d/topology/", cpuDir, n)
			fake[dir+"physical_package_id"], fake[dir+"core_id"], fake[dir+"die_id"], fake[dir+"cluster_id"] = "0", fmt.Sprint(n/2), id, id
			fake[dir+"package_cpus_list"], fake[dir+"die_cpus_list"] = pkg, pkg
			fake[dir+"core_cpus_list"] = core0
			if n >= 2 {
				fake[dir+"core_cpus_list"] = core2
			}
		}
		r := &reader{t: &tree{root: fake}}
		places := r.topology(online, text.form)
		var c CPU
		c.count(len(online), places)
		c.Dies, c.Clusters, c.Kinds = diesOf(places), r.clusters(online, text.form), r.coreKinds(&text, online, places, true)
		var whole bool
		if c.Offline, whole = r.offlineCPUs(online); whole && len(c.Offline) > 0 {
			t.Errorf("all are online but %v", c.Offline)
		}
		if c.Cores == nil || *c.Cores < 1 || *c.Cores > 4 || c.Sockets == nil || *c.Sockets < 1 || *c.Sockets > *c.Cores {
			t.Errorf("got %s", asJSON(t, Facts{CPU: c}))
		}
		cpus := 0
		for _, k := range c.Kinds {
			cpus += k.CPUs
			if k.CPUs < 1 || k.Cores != nil && (*k.Cores < 1 || *k.Cores > k.CPUs) {
				t.Errorf("kind %+v", k)
			}
		}
		if cpus > 4 {
			t.Errorf("%d CPUs of all kinds", cpus)
		}
		checkText(t, Facts{CPU: c})
	})
}
