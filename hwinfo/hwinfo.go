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
	PCI       []PCI     `json:"pci,omitempty"` // by address
	GPUs      []GPU     `json:"gpus,omitempty"`
	GPULinks  []GPULink `json:"gpu_links,omitempty"` // by address; nil: none, or nobody asked
	NUMA      []NUMA    `json:"numa,omitempty"`
	NICs      []NIC     `json:"nics,omitempty"` // by name
	RDMA      []RDMA    `json:"rdma,omitempty"` // by device, then port
	Limits    Limits    `json:"limits"`         // of this process's cgroup, apart from the host's totals
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

// GPU is one accelerator function.
type GPU struct {
	Address  string `json:"address"`
	Vendor   string `json:"vendor"`          // "nvidia", "amd", "intel", "habana"
	Resource string `json:"resource"`        // device name in requests: "nvidia.com/gpu"
	Model    string `json:"model,omitempty"` // from the driver, else from a table of ids, else ""
	NUMANode *int   `json:"numa_node,omitempty"`
	Driver   bool   `json:"driver"` // a driver is bound
}

// GPULink says that two GPUs are joined directly, A before B on the bus.
type GPULink struct {
	A       string `json:"a"`
	B       string `json:"b"`
	NVLinks int    `json:"nvlinks"`
}

// NUMA is one memory node; numbers are sparse.
type NUMA struct {
	ID     int     `json:"id"`
	CPUs   []int   `json:"cpus,omitempty"`
	Memory *uint64 `json:"memory_bytes,omitempty"`
	// Implied: the kernel shows no node directory, so everything is taken as one node.
	Implied bool `json:"implied,omitempty"`
	// GPU is the PCI address of the GPU whose memory this node is.
	GPU string `json:"gpu,omitempty"`
}

// NIC is one network interface backed by a device. The virtual function that a synthetic interface of a
// cloud enslaves is the same card seen twice and is left out.
type NIC struct {
	Name    string  `json:"name"`
	Address string  `json:"address,omitempty"` // PCI, "" on other buses
	Driver  string  `json:"driver,omitempty"`
	Mbps    *uint64 `json:"speed_mbps,omitempty"` // nil: unknown, such as on a link that is down
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
