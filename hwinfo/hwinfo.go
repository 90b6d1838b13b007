// Package hwinfo says what a node is: facts read from files under a root. It judges nothing and runs nothing.
package hwinfo

// Facts is one node's hardware and system as far as its files tell. An absent fact is "" (text),
// nil (pointers, slices): never a zero that could be mistaken for a value.
type Facts struct {
	Hostname  string    `json:"hostname,omitempty"` // kernel node name as it is set
	FQDN      string    `json:"fqdn,omitempty"`
	CPU       CPU       `json:"cpu"`
	Memory    Memory    `json:"memory"`
	OSRelease OSRelease `json:"osrelease"`
	Uname     Uname     `json:"uname"`
	PCI       []PCI     `json:"pci,omitzero"` // by address; nil: unknown, empty: a bus without functions
	GPUs      []GPU     `json:"gpus,omitempty"`
	GPULinks  []GPULink `json:"gpu_links,omitempty"` // by address; whether none means none, each GPU says
	NUMA      []NUMA    `json:"numa,omitempty"`
	NICs      []NIC     `json:"nics,omitempty"`  // by name
	RDMA      []RDMA    `json:"rdma,omitempty"`  // by device, then port
	Disks     []Disk    `json:"disks,omitempty"` // by name
	Limits    Limits    `json:"limits"`          // of this process's cgroup, apart from the host's totals
	Machine   Machine   `json:"machine"`
}

// CPU is the node's processors. Counts are totals over online CPUs.
type CPU struct {
	Arch           string   `json:"arch,omitempty"` // GOARCH-style
	VendorID       string   `json:"vendor_id,omitempty"`
	ModelName      string   `json:"model_name,omitempty"`
	Microcode      string   `json:"microcode,omitempty"`
	Flags          []string `json:"flags,omitempty"`
	Family         *int     `json:"cpu_family,omitempty"`
	Model          *int     `json:"model,omitempty"`
	Stepping       *int     `json:"stepping,omitempty"`
	Cores          *int     `json:"cpu_cores,omitempty"` // physical cores of the node
	CoresPerSocket *int     `json:"cores_per_socket,omitempty"`
	Sockets        *int     `json:"sockets,omitempty"`
	ThreadsPerCore *int     `json:"threads_per_core,omitempty"`
	LogicalCPUs    *int     `json:"logical_cpus,omitempty"`
	NUMANodes      *int     `json:"numa_nodes,omitempty"` // nodes that have CPUs
	MHzMax         *float64 `json:"cpu_mhz_max,omitempty"`
	// MachineType is the model number that s390x states in place of a model name ("2964").
	MachineType string `json:"machine_type,omitempty"`
	Dies        *int   `json:"dies,omitempty"`
	Clusters    *int   `json:"clusters,omitempty"` // groups of cores that share a cache or bus, where firmware names them
	Offline     []int  `json:"offline_cpus,omitempty"`
	// Kinds are the kinds of cores of a hybrid processor; nil where all are alike.
	Kinds []CoreKind `json:"core_kinds,omitempty"`
}

// CoreKind is one kind of cores: "performance" and "efficiency" on x86, the model on Arm, "" where only the number of
// threads tells them apart.
type CoreKind struct {
	Name    string `json:"name,omitempty"`
	CPUs    int    `json:"cpus"`
	Cores   *int   `json:"cores,omitempty"`
	Threads *int   `json:"threads_per_core,omitempty"`
}

// Machine is the box or the virtual machine as its firmware names it. No serial numbers, no asset tags.
type Machine struct {
	Vendor  string `json:"vendor,omitempty"`
	Product string `json:"product,omitempty"`
	// Virtualization is the hypervisor below: "kvm", "xen", "vmware", …, "vm-other" for an unknown one, "none" on bare metal.
	Virtualization string `json:"virtualization,omitempty"`
	Container      string `json:"container,omitempty"`     // "docker", "podman", "lxc", "wsl", …
	Cloud          string `json:"cloud,omitempty"`         // "aws", "gcp", "azure", …
	InstanceType   string `json:"instance_type,omitempty"` // where the firmware states it
}

// Memory in bytes.
type Memory struct {
	Total *uint64 `json:"total_bytes,omitempty"` // MemTotal
	// Host is the sum over NUMA nodes with CPUs: less than Total where GPU memory is coherent.
	Host *uint64 `json:"host_bytes,omitempty"`
	// Device is the sum over NUMA nodes that the NVIDIA driver names as its own.
	Device *uint64 `json:"device_bytes,omitempty"`
	// Usable is Total without the pages reserved as huge pages.
	Usable    *uint64     `json:"usable_bytes,omitempty"`
	HugePages []HugePages `json:"huge_pages,omitempty"` // reserved ones only, by size
	// Blocks is memory as the firmware laid it out, in hot-pluggable blocks; nil where the kernel has none.
	Blocks *MemoryBlocks `json:"blocks,omitempty"`
	// Modules are the memory modules by kind, where firmware or the memory controller's driver tells.
	Modules []MemoryModules `json:"modules,omitempty"`
}

// MemoryModules are modules that are alike.
type MemoryModules struct {
	Type  string  `json:"type,omitempty"` // "DDR5"
	Size  uint64  `json:"size_bytes"`
	MTs   *uint64 `json:"mts,omitempty"` // configured speed in megatransfers a second
	Count int     `json:"count"`
}

// HugePages is one pool of reserved pages.
type HugePages struct {
	Size  uint64 `json:"size_bytes"`
	Count uint64 `json:"count"`
}

// MemoryBlocks counts hot-pluggable memory in bytes.
type MemoryBlocks struct {
	BlockSize uint64 `json:"block_bytes"`
	Online    uint64 `json:"online_bytes"`
	Offline   uint64 `json:"offline_bytes,omitempty"`
}

// OSRelease is os-release(5) as systemd reads it.
type OSRelease struct {
	ID              string   `json:"id,omitempty"`
	IDLike          []string `json:"id_like,omitempty"`
	VersionID       string   `json:"version_id,omitempty"`
	Version         string   `json:"version,omitempty"`
	VersionCodename string   `json:"version_codename,omitempty"`
	Name            string   `json:"name,omitempty"`
	PrettyName      string   `json:"pretty_name,omitempty"`
	VariantID       string   `json:"variant_id,omitempty"`
	PlatformID      string   `json:"platform_id,omitempty"`
	BuildID         string   `json:"build_id,omitempty"`
}

// Uname is uname(2) without the node name.
type Uname struct {
	Sysname string `json:"sysname,omitempty"`
	Release string `json:"release,omitempty"`
	Version string `json:"version,omitempty"`
	Machine string `json:"machine,omitempty"`
}

// PCI is one function. Modalias has no newline.
type PCI struct {
	Address  string  `json:"address"`
	Modalias string  `json:"modalias,omitempty"`
	Vendor   *uint16 `json:"vendor,omitempty"`
	Device   *uint16 `json:"device,omitempty"`
	Class    *uint32 `json:"class,omitempty"` // 0xBBSSPP
	Driver   string  `json:"driver,omitempty"`
	NUMANode *int    `json:"numa_node,omitempty"` // nil: unknown
	Virtual  bool    `json:"virtual_function,omitempty"`
	// Dead: the function answers nothing but ones; it then has no modalias, vendor, device or class.
	Dead       bool     `json:"dead,omitempty"`
	Interfaces []string `json:"interfaces,omitempty"` // network interfaces that the function owns
}

// GPU is one accelerator function. Its PCI address is its name: a board's serial number and UUID are not facts of
// the node's kind.
type GPU struct {
	Address  string  `json:"address"`
	Vendor   string  `json:"vendor"`          // "nvidia", "amd", "intel", "habana"
	Resource string  `json:"resource"`        // device name in requests: "nvidia.com/gpu"
	Model    string  `json:"model,omitempty"` // from the driver, else from a table of ids, else ""
	NUMANode *int    `json:"numa_node,omitempty"`
	Driver   bool    `json:"driver"`                 // a driver is bound
	Index    *int    `json:"index,omitempty"`        // as the driver's tools count
	CPUs     string  `json:"local_cpus,omitempty"`   // those near to it, as a list "0-31,64-95"
	Memory   *uint64 `json:"memory_bytes,omitempty"` // nil: not readable without asking the driver
	// LinksKnown: somebody who knows was asked about links to other GPUs, so that no link means none.
	LinksKnown bool `json:"links_known,omitempty"`
	// Split is how the GPU is divided into devices of their own; nil: not divided, or no such thing.
	Split *GPUSplit `json:"split,omitempty"`
}

// GPUSplit is a GPU that cannot be given away whole: NVIDIA's MIG, AMD's compute partitions.
type GPUSplit struct {
	Mode      string   `json:"mode"` // "mig", or AMD's "DPX", "QPX", "CPX"
	Instances int      `json:"instances"`
	Profiles  []string `json:"profiles,omitempty"` // of each instance, in the driver's words; sorted
}

// GPULink says how two GPUs are joined, A before B on the bus. Links through switches count as links of the pair.
type GPULink struct {
	A        string `json:"a"`
	B        string `json:"b"`
	NVLinks  int    `json:"nvlinks,omitempty"`
	XGMI     int    `json:"xgmi_links,omitempty"`
	Switched bool   `json:"switched,omitempty"` // the NVLinks lead through switches
	// Path is the way over PCI in nvidia-smi's words, from near to far: PIX, PXB, PHB, NODE, SYS; "": unknown.
	Path string `json:"path,omitempty"`
}

// Fabric tells whether the two are joined by more than PCI and the processors.
func (l GPULink) Fabric() bool { return l.NVLinks > 0 || l.XGMI > 0 }

// NUMA is one memory node; numbers are sparse.
type NUMA struct {
	ID     int     `json:"id"`
	CPUs   []int   `json:"cpus,omitempty"`
	Memory *uint64 `json:"memory_bytes,omitempty"`
	// Implied: the kernel shows no node directory, so everything is taken as one node.
	Implied bool `json:"implied,omitempty"`
	// GPU is the PCI address of the GPU whose memory this node is.
	GPU string `json:"gpu,omitempty"`
	// Distances to the nodes in the order of Facts.NUMA; 10 is the node itself.
	Distances []int       `json:"distances,omitempty"`
	HugePages []HugePages `json:"huge_pages,omitempty"` // reserved ones only, by size
}

// NIC is one network interface backed by a device. The virtual function that a synthetic interface of a
// cloud enslaves is the same card seen twice and is left out.
type NIC struct {
	Name    string  `json:"name"`
	Address string  `json:"address,omitempty"` // PCI, "" on other buses
	Driver  string  `json:"driver,omitempty"`
	Mbps    *uint64 `json:"speed_mbps,omitempty"` // nil: unknown, such as on a link that is down
	// LinkLayer is "ethernet" or "infiniband"; "" for another one.
	LinkLayer string `json:"link_layer,omitempty"`
	RDMA      string `json:"rdma,omitempty"` // RDMA device of the same function
	NUMANode  *int   `json:"numa_node,omitempty"`
}

// RDMA is one port of an RDMA device.
type RDMA struct {
	Device string   `json:"device"`
	Port   int      `json:"port"`
	Fabric string   `json:"fabric,omitempty"` // "infiniband", "roce", "efa", "opa", "iwarp"
	Gbps   *float64 `json:"gbps,omitempty"`
	Lanes  *int     `json:"lanes,omitempty"`
	Speed  string   `json:"speed,omitempty"` // "NDR"
	Active bool     `json:"active"`          // a port that is down still shows a rate
	// LinkLayer is "infiniband" or "ethernet" as the port says it; "" for another one.
	LinkLayer string `json:"link_layer,omitempty"`
	Address   string `json:"address,omitempty"` // PCI, "" on other buses
	NUMANode  *int   `json:"numa_node,omitempty"`
}

// Disk is one whole disk, not a partition and nothing that is made from other disks.
type Disk struct {
	Name       string  `json:"name"` // "nvme0n1"
	Size       *uint64 `json:"size_bytes,omitempty"`
	Model      string  `json:"model,omitempty"`
	Rotational *bool   `json:"rotational,omitempty"`
	Removable  bool    `json:"removable,omitempty"`
	// Transport is "nvme", "nvme-tcp", "nvme-rdma", "nvme-fc", "sata", "sas", "usb", "virtio", "fc", "iscsi", "mmc",
	// "xen" or "hyperv"; "" for another one.
	Transport string `json:"transport,omitempty"`
	Address   string `json:"address,omitempty"` // PCI function of its controller, "" on other buses
	NUMANode  *int   `json:"numa_node,omitempty"`
}

// Limits of the cgroup that the reader sits in; nil is unlimited or unknown.
type Limits struct {
	Memory *uint64  `json:"memory_bytes,omitempty"`
	CPUs   *float64 `json:"cpus,omitempty"`
	CPUSet []int    `json:"cpuset,omitempty"` // CPUs allowed, where fewer than the online ones
}

// Warning says which source could not be read, and why. It never holds a serial number or address of a person.
type Warning struct {
	Source  string `json:"source"` // path under the root
	Message string `json:"message"`
}
