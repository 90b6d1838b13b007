package hwinfo

import (
	"encoding/json"
	"testing"
)

// TestNetwork: interfaces, their RDMA devices, link layers and nodes; no hardware address of any kind.
func TestNetwork(t *testing.T) {
	root := t.TempDir()
	function := func(address, modalias, node string) string {
		dir := "sys/devices/pci0000:c0/0000:c0:01.0/" + address
		put(t, root, dir+"/modalias", []byte(modalias+"\n"))
		put(t, root, dir+"/numa_node", []byte(node+"\n"))
		putLink(t, root, dir+"/driver", "../../../../bus/pci/drivers/mlx5_core")
		putLink(t, root, pciDir+"/"+address, "../../../devices/pci0000:c0/0000:c0:01.0/"+address)
		return dir
	}
	ib := function("0000:c1:00.0", "pci:v000015B3d00001021sv000015B3sd00000023bc02sc07i00", "1")
	eth := function("0000:c1:00.1", "pci:v000015B3d00001021sv000015B3sd00000023bc02sc00i00", "-1")
	iface := func(name, device, kind, speed string) {
		dir := device + "/net/" + name
		put(t, root, dir+"/type", []byte(kind+"\n"))
		put(t, root, dir+"/speed", []byte(speed+"\n"))
		put(t, root, dir+"/address", []byte("00:00:5e:00:53:01\n"))
		putLink(t, root, dir+"/device", "../../../"+device[len(device)-12:])
		putLink(t, root, netDir+"/"+name, "../../devices/"+dir[len("sys/devices/"):])
	}
	iface("ibp193s0", ib, "32", "400000")
	iface("enp193s0f1", eth, "1", "-1")
	rdma := func(name, device, layer string) {
		dir := device + "/infiniband/" + name
		for file, text := range map[string]string{
			"node_type": "1: CA", "node_guid": "0000:5e00:5300:0001", "board_id": "MT_0000000838",
			"ports/1/link_layer": layer, "ports/1/state": "4: ACTIVE", "ports/1/rate": "400 Gb/sec (4X NDR)", "ports/1/gids/0": "fe80:0000:0000:0000:0000:5e00:5300:0001",
		} {
			put(t, root, dir+"/"+file, []byte(text+"\n"))
		}
		putLink(t, root, dir+"/device", "../../../"+device[len(device)-12:])
		putLink(t, root, rdmaDir+"/"+name, "../../devices/"+dir[len("sys/devices/"):])
	}
	rdma("mlx5_0", ib, "InfiniBand")
	rdma("mlx5_1", eth, "Ethernet")
	put(t, root, netDir+"/lo/type", []byte("772\n"))
	put(t, root, netDir+"/bond0/type", []byte("1\n"))
	f, w := Read(root)
	wantNICs := []NIC{
		{Name: "enp193s0f1", Address: "0000:c1:00.1", Driver: "mlx5_core", LinkLayer: "ethernet", RDMA: "mlx5_1"},
		{Name: "ibp193s0", Address: "0000:c1:00.0", Driver: "mlx5_core", Mbps: ptr(uint64(400000)), LinkLayer: "infiniband", RDMA: "mlx5_0", NUMANode: ptr(1)},
	}
	wantRDMA := []RDMA{
		{Device: "mlx5_0", Port: 1, Fabric: "infiniband", Gbps: ptr(400.0), Lanes: ptr(4), Speed: "NDR", Active: true, LinkLayer: "infiniband", Address: "0000:c1:00.0", NUMANode: ptr(1)},
		{Device: "mlx5_1", Port: 1, Fabric: "roce", Gbps: ptr(400.0), Lanes: ptr(4), Speed: "NDR", Active: true, LinkLayer: "ethernet", Address: "0000:c1:00.1"},
	}
	same := func(what string, got, want any) {
		g, err1 := json.MarshalIndent(got, "", " ")
		x, err2 := json.MarshalIndent(want, "", " ")
		if err1 != nil || err2 != nil || string(g) != string(x) {
			t.Errorf("%s %s\nwant %s\n%v", what, g, x, w)
		}
	}
	same("interfaces", f.NICs, wantNICs)
	same("ports", f.RDMA, wantRDMA)
	checkSnapshot(t, root, f)
	checkWalk(t, root, f)
}
