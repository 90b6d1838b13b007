package hwinfo

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

const maxReport = 1 << 20 // that travels, see the wire's package

// TestThousandsOfDevices: 5,000 functions are a report that travels whole.
func TestThousandsOfDevices(t *testing.T) {
	root := t.TempDir()
	for n := range 5000 {
		dir := fmt.Sprintf("%s/%04x:%02x:%02x.%d/", pciDir, n>>14, n>>8&0x3f, n>>3&0x1f, n&7)
		modalias := "pci:v000015B3d0000101Esv000015B3sd00000023bc02sc00i00\n"
		if n%625 == 0 {
			modalias = "pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00\n"
		}
		put(t, root, dir+"modalias", []byte(modalias))
	}
	f, w := Read(root)
	if len(f.PCI) != 5000 || len(f.GPUs) != 8 {
		t.Fatalf("%d functions, %d GPUs, %v", len(f.PCI), len(f.GPUs), w)
	}
	whole, left, err := f.Bounded(maxReport)
	if err != nil || left != nil || whole.Digest() != f.Digest() {
		t.Errorf("left out %v, %v", left, err)
	}
	small, left, err := f.Bounded(100 << 10)
	if err != nil || small.PCI != nil || len(small.GPUs) != 8 || len(left) != 1 || left[0].Source != pciDir {
		t.Errorf("%d functions, left out %v, %v", len(small.PCI), left, err)
	}
	if data, err := json.Marshal(small); err != nil || len(data) > 100<<10 {
		t.Errorf("%d bytes, %v", len(data), err)
	}
	if _, _, err := f.Bounded(10); err == nil {
		t.Error("ten bytes are enough")
	}
}

// TestTooManyDevices: of a list that is cut nobody can count, so it is unknown.
func TestTooManyDevices(t *testing.T) {
	root := nvidiaTree(t, "0000:01:00.0", "0000:02:00.0", "0000:03:00.0", "0000:04:00.0")
	tr, err := openTree(root, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.close()
	r := &reader{t: tr}
	if out := r.functions(4); len(out) != 4 || r.cutPCI {
		t.Errorf("%d functions, cut %v", len(out), r.cutPCI)
	}
	if out := r.functions(3); len(out) != 3 || !r.cutPCI || len(r.warnings) != 1 || r.warnings[0].Source != pciDir {
		t.Errorf("%d functions, cut %v, %v", len(out), r.cutPCI, r.warnings)
	}
	if f := r.facts(); f.PCI != nil || len(f.GPUs) != 4 {
		t.Errorf("%d functions, %d GPUs", len(f.PCI), len(f.GPUs))
	}
}

// TestNothingPersonal plants what names one machine or board among its kind wherever it can stand, and looks for it in
// the report, its warnings and a snapshot.
func TestNothingPersonal(t *testing.T) {
	const secret = "S3CRET7F"
	root := amdTree(t, 2, 1)
	plant := func(name, format string) { put(t, root, name, fmt.Appendf(nil, format+"\n", secret)) }
	gpu := pciDir + "/0000:18:00.0"
	put(t, root, gpu+"/modalias", []byte("pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00\n"))
	plant(nvidiaDir+"/0000:18:00.0/information", "Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-%[1]s\nVideo BIOS: \t %[1]s\nDevice Minor: \t 0")
	for _, name := range []string{"unique_id", "serial_number", "uuid", "vpd", "infiniband_guid", "device_serial"} {
		plant(pciDir+"/0000:05:00.0/"+name, "%s")
		plant(gpu+"/"+name, "%s")
	}
	plant(kfdDir+"/2/properties", "simd_count 1216\nlocation_id 1280\ndomain 0\nunique_id %s\nhive_id %[1]s")
	plant(kfdDir+"/2/name", "%s")
	for _, name := range []string{"address", "broadcast", "phys_port_id", "phys_switch_id", "ifalias", "dev_port"} {
		plant(netDir+"/eth0/"+name, "%s")
	}
	plant(netDir+"/eth0/device/uevent", "DRIVER=ena\nMAC=%s")
	for _, name := range []string{"node_guid", "sys_image_guid", "node_desc", "board_id", "ports/1/gids/0", "ports/1/lid"} {
		plant(rdmaDir+"/mlx5_0/"+name, "%s")
	}
	put(t, root, rdmaDir+"/mlx5_0/ports/1/state", []byte("4: ACTIVE\n"))
	for _, name := range []string{"device/serial", "device/wwid", "wwid", "device/vpd_pg80", "device/sas_address", "uuid", "nguid", "eui"} {
		plant("sys/block/nvme0n1/"+name, "%s")
	}
	put(t, root, "sys/block/nvme0n1/size", []byte("2048\n"))
	disk := "sys/devices/LNXSYSTM:00/VMBUS:00/" + secret + "-8899-0000-0000-000000000000/host0/target0:0:0/0:0:0:0/block/sda"
	put(t, root, disk+"/size", []byte("2048\n"))
	put(t, root, disk+"/device/type", []byte("0\n"))
	putLink(t, root, "sys/block/sda", "../../"+disk[len("sys/"):])
	for _, name := range []string{"product_serial", "product_uuid", "board_serial", "board_asset_tag", "chassis_serial", "chassis_asset_tag"} {
		plant("sys/class/dmi/id/"+name, "%s")
	}
	plant("proc/cpuinfo", "processor\t: 0\nmodel name\t: X\nSerial\t\t: %s")
	plant("etc/machine-id", "%s")
	plant("etc/hosts", "10.0.0.1 other-%s")
	answers := Answers{
		AnswerList:   []byte("GPU 0: NVIDIA H100 (UUID: GPU-" + secret + ")\n  MIG 1g.10gb     Device  0: (UUID: MIG-" + secret + ")\n"),
		AnswerRemote: []byte("GPU 0: NVIDIA H100 (UUID: GPU-" + secret + ")\n"),
		AnswerTopo:   []byte("failed for GPU (UUID: GPU-" + secret + "\n"),
		AnswerNVML:   []byte(`{"version":1,"gpus":[],"uuid":"` + secret + `","x":"(UUID: ` + secret + `)"}`),
	}
	for name, asked := range map[string]Answers{"nobody asked": nil, "asked": answers, "the library fails": {AnswerList: answers[AnswerList], AnswerNVML: []byte(secret), AnswerTopo: answers[AnswerTopo], AnswerRemote: answers[AnswerRemote]}} {
		t.Run(name, func(t *testing.T) {
			f, w := ReadWith(root, asked)
			if len(f.GPUs) != 3 || len(f.Disks) == 0 || len(f.RDMA) != 1 {
				t.Fatalf("the tree is not read: %s", asJSON(t, f))
			}
			for _, v := range []any{f, w, Fingerprint(f), Drift(Facts{}, f)} {
				data, err := json.Marshal(v)
				if err != nil || bytes.Contains(data, []byte(secret)) {
					t.Errorf("%s, %v", data, err)
				}
			}
			dir := filepath.Join(t.TempDir(), "snapshot")
			if err := SnapshotWith(root, dir, asked); err != nil {
				t.Fatal(err)
			}
			searchFor(t, dir, secret)
		})
	}
}

// searchFor looks for a word in the names, links and files below a directory.
func searchFor(t *testing.T, dir, word string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		data := []byte(p[len(dir):])
		switch {
		case d.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			data = append(data, target...)
		case d.Type().IsRegular():
			text, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			data = append(data, text...)
		}
		if bytes.Contains(data, []byte(word)) {
			t.Errorf("the snapshot holds %q in %s", data, p[len(dir):])
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestBadText: whatever bytes files and programs hold, a report is valid UTF-8 without control characters.
func TestBadText(t *testing.T) {
	bad := "A\xff\xfe\x1b[31m\x00\u0085Z" + strings.Repeat("ä", maxText)
	root := amdTree(t, 1, 1)
	put(t, root, pciDir+"/0000:05:00.0/product_name", []byte(bad))
	put(t, root, pciDir+"/0000:05:00.0/current_compute_partition", []byte(bad))
	put(t, root, pciDir+"/0000:05:00.0/local_cpulist", []byte(bad))
	put(t, root, pciDir+"/0000:06:00.0/modalias", []byte(bad))
	put(t, root, pciDir+"/0000:07:00.0/modalias", []byte("pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00\n"))
	put(t, root, nvidiaDir+"/0000:07:00.0/information", []byte("Model: "+bad+"\nDevice Minor: "+bad))
	put(t, root, "sys/block/sda/device/model", []byte(bad))
	put(t, root, "sys/block/sda/size", []byte(bad))
	put(t, root, rdmaDir+"/mlx5_0/ports/1/rate", []byte(bad))
	put(t, root, rdmaDir+"/mlx5_0/ports/1/link_layer", []byte(bad))
	put(t, root, netDir+"/eth0/device/uevent", []byte("DRIVER="+bad))
	nvml, err := json.Marshal(NVMLReport{Version: 1, GPUs: []NVMLGPU{{Address: "0000:07:00.0", Name: bad, MIG: true, Parts: []string{bad}}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, answers := range []Answers{nil, {AnswerNVML: nvml}, {AnswerNVML: []byte(bad), AnswerGPUs: []byte("0, 0000:07:00.0, " + bad[:9] + ", 1, Enabled"), AnswerList: []byte("GPU 0: x\n MIG " + bad[:9] + " Device 0\n"), AnswerTopo: []byte(bad)}} {
		f, w := ReadWith(root, answers)
		checkText(t, f)
		data, err := json.Marshal(f)
		if err != nil || len(data) > maxReport {
			t.Errorf("%d bytes, %v", len(data), err)
		}
		for _, x := range w {
			if !utf8.ValidString(x.Source+x.Message) || strings.ContainsAny(x.Source+x.Message, "\x00\x1b\u0085") || len(x.Message) > maxText {
				t.Errorf("warning %q", x)
			}
		}
		if len(f.GPUs) != 2 || f.GPUs[0].Model == "" || !strings.HasPrefix(f.GPUs[0].Model, "A [31m") || !strings.HasSuffix(f.GPUs[0].Model, "ä") {
			t.Errorf("model %.20q", f.GPUs[0].Model)
		}
	}
}
