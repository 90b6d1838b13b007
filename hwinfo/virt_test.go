package hwinfo

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// Texts of /proc/cpuinfo.
const (
	guestX86 = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: X\nflags\t\t: fpu hypervisor\n"
	bareX86  = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: X\nflags\t\t: fpu vmx\n"
	arm      = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"
	power    = "processor\t: 0\ncpu\t\t: POWER9\nrevision\t: 2.2\n\ntimebase\t: 512000000\n"
	s390     = "vendor_id       : IBM/S390\n# processors    : 1\nprocessor 0: version = FF,  identification = 1234,  machine = 3931\n"
)

type machineCase struct {
	name  string
	cpu   string
	files map[string]string
	want  Machine
}

// firmware is what a machine says of itself.
func firmware(vendor, product string, more ...string) map[string]string {
	m := map[string]string{dmiDir + "/sys_vendor": vendor + "\n", dmiDir + "/product_name": product + "\n"}
	for i := 0; i+1 < len(more); i += 2 {
		m[more[i]] = more[i+1]
	}
	return m
}

// namedMachines have texts of firmware as machines and clouds write them.
func namedMachines() []machineCase {
	return []machineCase{
		{"server", bareX86, firmware("Dell Inc.", "PowerEdge R750"), Machine{Vendor: "Dell Inc.", Product: "PowerEdge R750", Virtualization: "none"}},
		{"board without names", bareX86, firmware("To Be Filled By O.E.M.", "System Product Name"), Machine{Virtualization: "none"}},
		{"nitro", guestX86, firmware("Amazon EC2", "p5.48xlarge"),
			Machine{Vendor: "Amazon EC2", Product: "p5.48xlarge", Virtualization: "amazon", Cloud: "aws", InstanceType: "p5.48xlarge"}},
		{"rented whole", bareX86, firmware("Amazon EC2", "i3.metal"),
			Machine{Vendor: "Amazon EC2", Product: "i3.metal", Virtualization: "none", Cloud: "aws", InstanceType: "i3.metal"}},
		{"rented whole, Arm", arm, firmware("Amazon EC2", "c7g.metal"),
			Machine{Vendor: "Amazon EC2", Product: "c7g.metal", Virtualization: "none", Cloud: "aws", InstanceType: "c7g.metal"}},
		{"Graviton", arm, firmware("Amazon EC2", "c7g.16xlarge"),
			Machine{Vendor: "Amazon EC2", Product: "c7g.16xlarge", Virtualization: "amazon", Cloud: "aws", InstanceType: "c7g.16xlarge"}},
		{"older Amazon", guestX86, firmware("Xen", "HVM domU", dmiDir+"/bios_version", "4.11.amazon\n", "sys/hypervisor/type", "xen\n"),
			Machine{Vendor: "Xen", Product: "HVM domU", Virtualization: "xen", Cloud: "aws"}},
		{"Google", guestX86, firmware("Google", "Google Compute Engine"),
			Machine{Vendor: "Google", Product: "Google Compute Engine", Virtualization: "google", Cloud: "gcp"}},
		{"Azure", guestX86, firmware("Microsoft Corporation", "Virtual Machine", cloudFile, "azure\n"),
			Machine{Vendor: "Microsoft Corporation", Product: "Virtual Machine", Virtualization: "microsoft", Cloud: "azure"}},
		{"Hyper-V at home", guestX86, firmware("Microsoft Corporation", "Virtual Machine"),
			Machine{Vendor: "Microsoft Corporation", Product: "Virtual Machine", Virtualization: "microsoft"}},
		{"a notebook of that vendor", bareX86, firmware("Microsoft Corporation", "Surface Laptop"),
			Machine{Vendor: "Microsoft Corporation", Product: "Surface Laptop", Virtualization: "none"}},
		{"VMware", guestX86, firmware("VMware, Inc.", "VMware Virtual Platform"),
			Machine{Vendor: "VMware, Inc.", Product: "VMware Virtual Platform", Virtualization: "vmware"}},
		{"VirtualBox", guestX86, firmware("innotek GmbH", "VirtualBox"), Machine{Vendor: "innotek GmbH", Product: "VirtualBox", Virtualization: "oracle"}},
		{"QEMU without a module", guestX86, firmware("QEMU", "Standard PC (Q35 + ICH9, 2009)"),
			Machine{Vendor: "QEMU", Product: "Standard PC (Q35 + ICH9, 2009)", Virtualization: "qemu"}},
		{"QEMU with KVM", guestX86, firmware("QEMU", "Standard PC (Q35 + ICH9, 2009)", clockFile, "kvm-clock tsc acpi_pm \n"),
			Machine{Vendor: "QEMU", Product: "Standard PC (Q35 + ICH9, 2009)", Virtualization: "kvm"}},
		{"OpenStack", guestX86, firmware("OpenStack Foundation", "OpenStack Nova"),
			Machine{Vendor: "OpenStack Foundation", Product: "OpenStack Nova", Virtualization: "kvm", Cloud: "openstack"}},
	}
}

// otherMachines are known by something else.
func otherMachines() []machineCase {
	return []machineCase{
		{"no firmware, a clock", guestX86, map[string]string{clockFile: "kvm-clock tsc\n"}, Machine{Virtualization: "kvm"}},
		{"no firmware, no clock", guestX86, nil, Machine{Virtualization: "vm-other"}},
		{"Xen's own domain", guestX86, map[string]string{"sys/hypervisor/type": "xen\n", "proc/xen/capabilities": "control_d\n"}, Machine{Virtualization: "none"}},
		{"Xen guest", bareX86, map[string]string{"sys/hypervisor/type": "xen\n", "proc/xen/capabilities": "\n"}, Machine{Virtualization: "xen"}},
		{"board", arm, map[string]string{"proc/device-tree/model": "Raspberry Pi 4 Model B Rev 1.4\x00",
			"proc/device-tree/compatible": "raspberrypi,4-model-b\x00brcm,bcm2711\x00"},
			Machine{Vendor: "raspberrypi", Product: "Raspberry Pi 4 Model B Rev 1.4", Virtualization: "none"}},
		{"Arm server", arm, firmware("NVIDIA", "GH200 P4242"), Machine{Vendor: "NVIDIA", Product: "GH200 P4242", Virtualization: "none"}},
		{"Arm of which nothing is known", arm, nil, Machine{}},
		{"KVM by device tree", arm, map[string]string{"proc/device-tree/model": "linux,dummy-virt\x00",
			"proc/device-tree/hypervisor/compatible": "linux,kvm\x00"}, Machine{Product: "linux,dummy-virt", Virtualization: "kvm"}},
		{"POWER machine", power, map[string]string{"proc/device-tree/model": "IBM,8335-GTH\x00"},
			Machine{Vendor: "IBM", Product: "8335-GTH", Virtualization: "none"}},
		{"POWER partition", power, map[string]string{"proc/device-tree/model": "IBM,9009-42A\x00", "proc/device-tree/ibm,partition-no": "\x00\x00\x00\x05"},
			Machine{Vendor: "IBM", Product: "9009-42A", Virtualization: "powervm"}},
		{"z/VM", s390, map[string]string{sysinfoFile: "Manufacturer:         IBM\nType:                 3931\nSequence Code:        00000000000AB123\nVM00 Control Program: z/VM    7.3.0\n"},
			Machine{Vendor: "IBM", Product: "3931", Virtualization: "zvm"}},
		{"mainframe", s390, map[string]string{sysinfoFile: "Manufacturer:         IBM\nType:                 3931\nSequence Code:        00000000000AB123\n"},
			Machine{Vendor: "IBM", Product: "3931", Virtualization: "none"}},
		{"docker", bareX86, map[string]string{".dockerenv": ""}, Machine{Virtualization: "none", Container: "docker"}},
		{"podman", bareX86, map[string]string{"run/.containerenv": "name=\"secret\"\n"}, Machine{Virtualization: "none", Container: "podman"}},
		{"nspawn", bareX86, map[string]string{containerFile: "systemd-nspawn\n"}, Machine{Virtualization: "none", Container: "systemd-nspawn"}},
		{"wsl", guestX86, map[string]string{"uname": "sysname: Linux\nrelease: 5.15.90.1-microsoft-standard-WSL2\nmachine: x86_64\n", clockFile: "hyperv_clocksource_tsc_page acpi_pm\n"},
			Machine{Virtualization: "microsoft", Container: "wsl"}},
		{"a cloud by another name", guestX86, map[string]string{cloudFile: "../../etc/passwd\n"}, Machine{Virtualization: "vm-other"}},
	}
}

func TestMachine(t *testing.T) {
	for _, tt := range slices.Concat(namedMachines(), otherMachines()) {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			put(t, root, "proc/cpuinfo", []byte(tt.cpu))
			for name, text := range tt.files {
				put(t, root, name, []byte(text))
			}
			f, _ := Read(root)
			if f.Machine != tt.want {
				t.Errorf("got  %+v\nwant %+v", f.Machine, tt.want)
			}
			checkSnapshot(t, root, f)
			checkWalk(t, root, f)
			checkSilent(t, root, "AB123", "secret", "1234")
		})
	}
}

// TestSecretsAreNotRead: what names this one machine is neither in the facts nor in a snapshot, wherever firmware keeps it.
func TestSecretsAreNotRead(t *testing.T) {
	root := t.TempDir()
	for _, file := range []string{"product_serial", "product_uuid", "board_serial", "chassis_serial", "chassis_asset_tag", "board_asset_tag"} {
		put(t, root, dmiDir+"/"+file, []byte("s3cr3t\n"))
	}
	put(t, root, dmiDir+"/sys_vendor", []byte("HPE\n"))
	put(t, root, "proc/device-tree/serial-number", []byte("s3cr3t\x00"))
	put(t, root, "proc/device-tree/system-id", []byte("s3cr3t\x00"))
	put(t, root, "proc/cpuinfo", []byte("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd03\n\nSerial\t\t: s3cr3t\n"))
	put(t, root, "proc/self/status", []byte("Name:\ts3cr3t\nCpus_allowed_list:\t0\n"))
	put(t, root, dmiTable, smbios(dimm(0, 0x4000, 0x1a, 3200, 2933, "s3cr3t")))
	f, _ := Read(root)
	if strings.Contains(asJSON(t, f), "s3cr3t") || f.Machine.Vendor != "HPE" || len(f.Memory.Modules) != 1 {
		t.Errorf("got %s", asJSON(t, f))
	}
	checkSnapshot(t, root, f)
	checkSilent(t, root, "s3cr3t")
}

// checkSilent: a snapshot holds none of the words.
func checkSilent(t *testing.T, root string, words ...string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "snapshot")
	if err := Snapshot(root, dir); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(p)
		for _, w := range words {
			if strings.Contains(string(data), w) {
				t.Errorf("%s tells %q", p, w)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// dimm builds a memory device of SMBIOS 3.3 with strings.
func dimm(size32 uint32, size uint16, kind byte, speed, configured uint16, words ...string) []byte {
	s := make([]byte, 0x5c)
	s[0], s[1] = memoryDevice, byte(len(s))
	binary.LittleEndian.PutUint16(s[0x0c:], size)
	binary.LittleEndian.PutUint32(s[0x1c:], size32)
	s[0x12] = kind
	binary.LittleEndian.PutUint16(s[0x15:], speed)
	binary.LittleEndian.PutUint16(s[0x20:], configured)
	for i, w := range words {
		s[0x17+i] = byte(i + 1)
		s = append(append(s, w...), 0)
	}
	if len(words) == 0 {
		s = append(s, 0)
	}
	return append(s, 0)
}

func smbios(parts ...[]byte) []byte {
	bios := append([]byte{0, 24, 0, 0, 1, 2}, make([]byte, 18)...)
	bios = append(bios, "Vendor\x00Version\x00\x00"...)
	return append(append(bios, slices.Concat(parts...)...), 127, 4, 0, 0, 0, 0)
}

func TestMemoryModules(t *testing.T) {
	speed := func(n uint64) *uint64 { return &n }
	tests := []struct {
		name  string
		table []byte
		want  []MemoryModules
		fails bool
	}{
		{"two kinds", smbios(dimm(0, 0x4000, 0x1a, 3200, 2933, "A", "B"), dimm(0, 0x4000, 0x1a, 3200, 2933), dimm(0x10000, 0x7fff, 0x22, 4800, 4800), dimm(0, 0, 2, 0, 0)),
			[]MemoryModules{{"DDR5", 64 << 30, speed(4800), 1}, {"DDR4", 16 << 30, speed(2933), 2}}, false},
		{"size in KiB", smbios(dimm(0, 0x8000|512, 0x12, 0, 0)), []MemoryModules{{"DDR", 512 << 10, nil, 1}}, false},
		{"speed of the module alone", smbios(dimm(0, 1024, 0x18, 1600, 0)), []MemoryModules{{"DDR3", 1 << 30, speed(1600), 1}}, false},
		{"virtual", smbios(dimm(0, 1024, 0x07, 0, 0)), []MemoryModules{{"", 1 << 30, nil, 1}}, false},
		{"unknown size", smbios(dimm(0, 0xffff, 0x1a, 0, 0)), nil, false},
		{"short structure", smbios([]byte{17, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0}), []MemoryModules{{"", 2 << 30, nil, 1}}, false},
		{"cut off", smbios(dimm(0, 1024, 0x18, 1600, 0))[:60], nil, true},
		{"a length of nothing", []byte{17, 0, 0, 0, 0, 0}, nil, true},
		{"empty", nil, nil, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseModules(tt.table)
			if (err != nil) != tt.fails {
				t.Errorf("error %v", err)
			}
			if got = grouped(got); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

// TestEDAC: without the firmware's table the memory controller's driver tells all but the speed.
func TestEDAC(t *testing.T) {
	root := t.TempDir()
	for _, slot := range []string{"mc0/dimm0", "mc0/dimm3", "mc1/dimm0"} {
		put(t, root, edacDir+"/"+slot+"/size", []byte("32768\n"))
		put(t, root, edacDir+"/"+slot+"/dimm_mem_type", []byte("Registered-DDR5\n"))
	}
	put(t, root, edacDir+"/mc1/dimm1/size", []byte("0\n"))
	put(t, root, edacDir+"/mc1/dimm1/dimm_mem_type", []byte("Unknown\n"))
	f, w := Read(root)
	if want := []MemoryModules{{"DDR5", 32 << 30, nil, 3}}; !reflect.DeepEqual(f.Memory.Modules, want) {
		t.Errorf("got %+v, %v", f.Memory.Modules, w)
	}
	checkSnapshot(t, root, f)
}
