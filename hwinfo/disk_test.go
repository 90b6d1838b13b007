package hwinfo

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// block makes a disk behind a link, as sysfs has it.
func block(t *testing.T, root, name, device string, files map[string]string) {
	t.Helper()
	dir := "sys/devices/" + device + "/" + name
	for file, text := range files {
		put(t, root, dir+"/"+file, []byte(text+"\n"))
	}
	putLink(t, root, "sys/block/"+name, "../devices/"+device+"/"+name)
}

func TestDisks(t *testing.T) {
	root := t.TempDir()
	const nvme = "pci0000:00/0000:00:1d.0/0000:01:00.0/nvme/nvme0"
	put(t, root, pciDir+"/0000:01:00.0/modalias", []byte("pci:v0000144Dd0000A80Asv0000144Dsd0000A801bc01sc08i02\n"))
	put(t, root, pciDir+"/0000:01:00.0/numa_node", []byte("1\n"))
	block(t, root, "nvme0n1", nvme, map[string]string{"size": "7501476528", "device/model": "SAMSUNG MZQL23T8HCLS-00A07              ", "device/serial": "S64HNE0R000001", "device/transport": "pcie", "queue/rotational": "0", "wwid": "eui.36344830526000010025384500000001"})
	block(t, root, "nvme0c0n1", nvme, map[string]string{"size": "7501476528", "hidden": "1", "device/model": "SAMSUNG"})
	block(t, root, "nvme1n1", "virtual/nvme-subsystem/nvme-subsys1", map[string]string{"size": "2000", "device/transport": "tcp", "device/model": "Linux"})
	block(t, root, "sda", "pci0000:00/0000:00:17.0/ata1/host0/target0:0:0/0:0:0:0/block", map[string]string{"size": "15628053168", "device/model": "ST8000NM000A-2KE", "device/wwid": "naa.5000c500c0000001", "queue/rotational": "1", "removable": "0"})
	block(t, root, "sdb", "pci0000:3a/0000:3a:00.0/0000:3b:00.0/host1/port-1:0/expander-1:0/port-1:0:1/end_device-1:0:1/target1:0:1/1:0:1:0/block", map[string]string{"size": "9", "device/model": "unknown"})
	block(t, root, "sdc", "pci0000:00/0000:00:14.0/usb1/1-4/1-4:1.0/host2/target2:0:0/2:0:0:0/block", map[string]string{"size": "0", "removable": "1", "device/model": "Card Reader"})
	block(t, root, "sdd", "LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/00000000-0000-8899-0000-000000000001/host3/target3:0:0/3:0:0:0/block", map[string]string{"size": "2048"})
	block(t, root, "sde", "pci0000:5d/0000:5d:00.0/0000:5e:00.0/host4/rport-4:0-0/target4:0:0/4:0:0:0/block", map[string]string{"size": "-1", "device/model": "LUN"})
	block(t, root, "vda", "pci0000:00/0000:00:05.0/virtio2/block", map[string]string{"size": "536870912", "queue/rotational": "1"})
	block(t, root, "mmcblk0", "platform/soc/3f202000.mmc/mmc_host/mmc0/mmc0:aaaa/block", map[string]string{"size": "62333952", "device/name": "SD32G", "device/serial": "0x12345678"})
	block(t, root, "sr0", "pci0000:00/0000:00:17.0/ata2/host5/target5:0:0/5:0:0:0/block", map[string]string{"size": "2097151"})
	for _, name := range []string{"sdd", "vda", "sr0"} {
		target, err := os.Readlink(root + "/sys/block/" + name)
		if err != nil {
			t.Fatal(err)
		}
		put(t, root, "sys/"+strings.TrimPrefix(target, "../")+"/device/type", []byte("0\n"))
	}
	block(t, root, "dm-0", "virtual/block", map[string]string{"size": "4096"})
	block(t, root, "loop0", "virtual/block", map[string]string{"size": "4096"})
	f, w := Read(root)
	no, yes := ptr(false), ptr(true)
	want := []Disk{
		{Name: "mmcblk0", Size: ptr(uint64(31914983424)), Model: "SD32G", Transport: "mmc"},
		{Name: "nvme0n1", Size: ptr(uint64(3840755982336)), Model: "SAMSUNG MZQL23T8HCLS-00A07", Rotational: no, Transport: "nvme", Address: "0000:01:00.0", NUMANode: ptr(1)},
		{Name: "nvme1n1", Size: ptr(uint64(1024000)), Model: "Linux", Transport: "nvme-tcp"},
		{Name: "sda", Size: ptr(uint64(8001563222016)), Model: "ST8000NM000A-2KE", Rotational: yes, Transport: "sata", Address: "0000:00:17.0"},
		{Name: "sdb", Size: ptr(uint64(4608)), Transport: "sas", Address: "0000:3b:00.0"},
		{Name: "sdc", Model: "Card Reader", Removable: true, Transport: "usb", Address: "0000:00:14.0"},
		{Name: "sdd", Size: ptr(uint64(1048576)), Transport: "hyperv"},
		{Name: "sde", Model: "LUN", Transport: "fc", Address: "0000:5e:00.0"},
		{Name: "vda", Size: ptr(uint64(274877906944)), Rotational: yes, Transport: "virtio", Address: "0000:00:05.0"},
	}
	got, err := json.MarshalIndent(f.Disks, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	if expected, _ := json.MarshalIndent(want, "", " "); string(got) != string(expected) {
		t.Errorf("disks %s\nwant %s\n%v", got, expected, w)
	}
	if !slices.ContainsFunc(w, func(w Warning) bool { return w.Source == "sys/block/sde/size" }) {
		t.Errorf("warnings %v", w)
	}
	checkSnapshot(t, root, f)
	checkWalk(t, root, f)
}

// tool runs a program whose findings are compared with ours, or skips where it is missing and nobody demands it.
func tool(t *testing.T, name string, args ...string) []byte {
	t.Helper()
	out, err := exec.Command(name, args...).Output()
	if errors.Is(err, exec.ErrNotFound) {
		if os.Getenv("CI") != "" {
			t.Fatalf("%s is not installed: make deps installs it", name)
		}
		t.Skipf("NOT COMPARED with %s, which is not installed: make deps installs it", name)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestLsblk holds the disks of this machine to those of util-linux.
func TestLsblk(t *testing.T) {
	var doc struct {
		Devices []struct {
			Name      string  `json:"name"`
			Type      string  `json:"type"`
			Size      uint64  `json:"size"`
			Rota      bool    `json:"rota"`
			Removable bool    `json:"rm"`
			Tran      *string `json:"tran"`
		} `json:"blockdevices"`
	}
	if err := json.Unmarshal(tool(t, "lsblk", "-J", "-b", "-d", "-o", "NAME,TYPE,SIZE,ROTA,RM,TRAN"), &doc); err != nil {
		t.Fatal(err)
	}
	f, w := Read("/")
	ours := map[string]Disk{}
	for _, d := range f.Disks {
		ours[d.Name] = d
	}
	for _, d := range doc.Devices {
		if d.Type != "disk" || strings.HasPrefix(d.Name, "zram") || strings.HasPrefix(d.Name, "ram") || strings.HasPrefix(d.Name, "nbd") || strings.HasPrefix(d.Name, "fd") {
			continue
		}
		o, ok := ours[d.Name]
		if !ok {
			t.Errorf("%s is missing; %v", d.Name, w)
			continue
		}
		delete(ours, d.Name)
		if d.Size > 0 && (o.Size == nil || *o.Size != d.Size) || o.Rotational == nil || *o.Rotational != d.Rota || o.Removable != d.Removable || d.Tran != nil && o.Transport != *d.Tran {
			t.Errorf("%+v, lsblk says %+v", o, d)
		}
	}
	if len(ours) > 0 {
		t.Errorf("lsblk does not know %v", ours)
	}
}

// TestLspci holds the functions of this machine to those of pciutils.
func TestLspci(t *testing.T) {
	f, _ := Read("/")
	ours := map[string]PCI{}
	for _, p := range f.PCI {
		ours[p.Address] = p
	}
	for record := range strings.SplitSeq(string(tool(t, "lspci", "-D", "-n", "-k", "-vmm")), "\n\n") {
		fields := map[string]string{}
		for line := range strings.Lines(record) {
			if key, value, ok := keyValue(line); ok {
				fields[key] = value
			}
		}
		if fields["Slot"] == "" {
			continue
		}
		p, ok := ours[fields["Slot"]]
		if !ok || p.Vendor == nil || p.Device == nil || p.Class == nil {
			t.Errorf("%s is %+v", fields["Slot"], p)
			continue
		}
		delete(ours, fields["Slot"])
		hex := func(v uint64) string { return fmt.Sprintf("%04x", v) }
		if hex(uint64(*p.Vendor)) != fields["Vendor"] || hex(uint64(*p.Device)) != fields["Device"] || hex(uint64(*p.Class>>8)) != fields["Class"] || p.Driver != fields["Driver"] {
			t.Errorf("%+v, lspci says %v", p, fields)
		}
		if node := fields["NUMANode"]; node != "" && (p.NUMANode == nil || strconv.Itoa(*p.NUMANode) != node) {
			t.Errorf("%s is on node %v, lspci says %s", p.Address, deref(p.NUMANode), node)
		}
	}
	if len(ours) > 0 {
		t.Errorf("lspci does not know %v", ours)
	}
}
