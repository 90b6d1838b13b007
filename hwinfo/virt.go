package hwinfo

import (
	"slices"
	"strings"
)

const (
	sysinfoFile   = "proc/sysinfo" // s390x
	clockFile     = "sys/devices/system/clocksource/clocksource0/available_clocksource"
	cloudFile     = "run/cloud-init/cloud-id"
	containerFile = "run/systemd/container"
)

// evidence is what files tell of the machine below the kernel.
type evidence struct {
	dmi        dmi
	form       cpuForm
	cpuVendor  string
	flags      []string
	hypervisor string // sys/hypervisor/type
	dom0       bool   // Xen's own privileged domain runs on the hardware for our purposes
	clocks     []string
	tree       string // device tree: what the hypervisor is compatible with
	partition  bool   // device tree: a logical partition of a POWER machine
	board      string // device tree: model
	control    string // s390x: the control program above the machine
	sysinfo    bool
}

// readMachine names the box, the hypervisor below it and the cloud it belongs to.
func (r *reader) readMachine(cpu CPU, form cpuForm, u Uname) Machine {
	e := evidence{dmi: r.readDMI(), form: form, cpuVendor: cpu.VendorID, flags: cpu.Flags}
	m := Machine{Vendor: e.dmi.vendor, Product: e.dmi.product}
	e.hypervisor, _ = r.t.attr("sys/hypervisor/type")
	if e.hypervisor == "xen" {
		caps, _ := r.t.attr("proc/xen/capabilities")
		e.dom0 = strings.Contains(caps, "control_d")
	}
	if clocks, err := r.t.attr(clockFile); err == nil {
		e.clocks = cleanFields(clocks, 64)
	}
	if m.Product == "" && m.Vendor == "" && form != formX86 {
		r.readBoard(&e, &m)
	}
	m.Virtualization = e.virtualization()
	m.Container = r.container(u)
	id, _ := r.t.attr(cloudFile)
	m.Cloud, m.InstanceType = e.dmi.cloud()
	if m.Cloud == "" {
		m.Cloud = cloudName(id)
	}
	return m
}

// readBoard asks the device tree, or on s390x the machine itself.
func (r *reader) readBoard(e *evidence, m *Machine) {
	if e.form == formS390 {
		data, err := r.t.read(sysinfoFile, maxAttr)
		if err != nil {
			return
		}
		e.sysinfo = true
		m.Vendor, m.Product, e.control = parseSysinfo(data)
		return
	}
	e.board = r.deviceTree("model")
	m.Product = e.board
	if vendor, _, ok := strings.Cut(r.deviceTree("compatible"), ","); ok {
		m.Vendor = vendor
	}
	if vendor, product, ok := strings.Cut(e.board, ","); ok && e.form == formPower { // "IBM,8335-GTH"
		m.Vendor, m.Product = vendor, product
	}
	e.tree = r.deviceTree("hypervisor/compatible")
	e.partition = e.form == formPower && e.tree == "" && r.deviceTree("ibm,partition-no") == "" && r.has("proc/device-tree/ibm,partition-no")
}

// has tells whether a file can be read at all; its content is not kept.
func (r *reader) has(name string) bool {
	_, err := r.t.readRaw(name, maxAttr)
	if err == nil && r.t.rec != nil {
		r.t.rec.files[name] = nil
	}
	return err == nil
}

// parseSysinfo reads /proc/sysinfo of s390x; the sequence code beside these lines is a serial number.
func parseSysinfo(data []byte) (vendor, product, control string) {
	for line := range lines(data) {
		key, value, ok := keyValue(line)
		if !ok {
			continue
		}
		switch {
		case key == "Manufacturer" && vendor == "":
			vendor = firmwareText(value)
		case key == "Type" && product == "":
			product = firmwareText(value)
		case strings.HasPrefix(key, "VM") && strings.HasSuffix(key, "Control Program") && control == "":
			control = clean(value)
		}
	}
	return vendor, product, control
}

// virtualization names the hypervisor; "": the files do not say.
func (e *evidence) virtualization() string {
	if e.dom0 {
		return "none"
	}
	if e.cpuVendor == "User Mode Linux" {
		return "uml"
	}
	guest := slices.Contains(e.flags, "hypervisor")
	if e.form == formX86 && len(e.flags) > 0 && !guest && e.hypervisor == "" {
		return "none" // also a whole machine that a cloud rents out under its own name
	}
	clock := e.byClock()
	switch name := e.dmi.hypervisor(); {
	case strings.HasSuffix(e.dmi.product, ".metal") || strings.Contains(e.dmi.product, ".metal-"):
		return "none"
	case name == "qemu" && clock != "": // QEMU is the machine, the kernel's module the hypervisor
		return clock
	case name != "":
		return name
	case e.hypervisor == "xen":
		return "xen"
	case clock != "":
		return clock
	}
	switch {
	case strings.Contains(e.tree, "kvm"):
		return "kvm"
	case strings.Contains(e.tree, "xen"):
		return "xen"
	case strings.Contains(e.tree, "vmware"):
		return "vmware"
	case e.tree != "":
		return "vm-other"
	case e.partition:
		return "powervm"
	case strings.Contains(e.control, "z/VM"):
		return "zvm"
	case strings.Contains(e.control, "KVM"):
		return "kvm"
	case e.control != "" || guest:
		return "vm-other"
	case e.sysinfo, e.board != "", e.form != formX86 && e.dmi.vendor != "" && e.dmi.product != "":
		return "none"
	}
	return ""
}

// byClock reads the hypervisor off the clocks that it offers its guests.
func (e *evidence) byClock() string {
	for _, c := range e.clocks {
		switch {
		case c == "kvm-clock":
			return "kvm"
		case c == "xen":
			return "xen"
		case strings.HasPrefix(c, "hyperv_clocksource"):
			return "microsoft"
		}
	}
	return ""
}

// hypervisor reads the name off the firmware's texts.
func (d dmi) hypervisor() string {
	if d.vendor == "Microsoft Corporation" && strings.HasPrefix(d.product, "Virtual Machine") {
		return "microsoft" // its notebooks carry the same vendor
	}
	for line := range strings.SplitSeq(strings.TrimSpace(hypervisors), "\n") {
		name, text, _ := strings.Cut(line, " ")
		for _, s := range []string{d.product, d.vendor, d.board, d.bios} {
			if strings.HasPrefix(s, text) {
				return name
			}
		}
	}
	return ""
}

// hypervisors: name and how a text of the firmware begins; the first line that fits counts.
const hypervisors = `
kvm KVM
kvm OpenStack
kvm KubeVirt
kvm RHEV
kvm oVirt
kvm Alibaba Cloud ECS
kvm Droplet
kvm Nutanix AHV
amazon Amazon EC2
google Google Compute Engine
vmware VMware
vmware VMW
oracle innotek GmbH
oracle VirtualBox
xen Xen
bochs Bochs
parallels Parallels
bhyve BHYVE
microsoft Hyper-V
apple Apple Virtualization
qemu QEMU
`

// cloud reads provider and instance type; only some providers state a type.
func (d dmi) cloud() (provider, instance string) {
	switch {
	case d.vendor == "Amazon EC2":
		if family, size, ok := strings.Cut(d.product, "."); ok && family != "" && size != "" && !strings.Contains(d.product, " ") {
			return "aws", d.product
		}
		return "aws", ""
	case strings.Contains(d.biosVersion, "amazon"):
		return "aws", "" // the older, Xen-based types
	case d.vendor == "Scaleway":
		return "scaleway", strings.TrimPrefix(d.product, "SCW-")
	}
	for line := range strings.SplitSeq(strings.TrimSpace(clouds), "\n") {
		name, text, _ := strings.Cut(line, " ")
		if strings.HasPrefix(d.vendor, text) || strings.HasPrefix(d.product, text) {
			return name, ""
		}
	}
	return "", ""
}

// clouds: name and how vendor or product begins.
const clouds = `
gcp Google Compute Engine
alibaba Alibaba Cloud
digitalocean DigitalOcean
hetzner Hetzner
tencent Tencent Cloud
huawei Huawei Cloud
huawei HUAWEICLOUD
vultr Vultr
upcloud UpCloud
akamai Akamai
akamai Linode
exoscale Exoscale
openstack OpenStack
`

// cloudName reads what cloud-init found: some clouds write no name of theirs but an asset tag into the firmware.
func cloudName(id string) string {
	switch id {
	case "", "none", "nocloud", "fallback", "configdrive", "unknown":
		return ""
	case "gce":
		return "gcp"
	case "ec2", "aws-china", "aws-gov":
		return "aws"
	case "azure-china", "azure-gov":
		return "azure"
	case "aliyun":
		return "alibaba"
	}
	if len(id) > 32 || strings.Trim(id, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return ""
	}
	return id
}

// container names what the root's own system runs in.
func (r *reader) container(u Uname) string {
	if name, err := r.t.attr(containerFile); err == nil && len(name) <= 32 && name != "" {
		return clean(name)
	}
	switch {
	case r.has("run/.containerenv"):
		return "podman"
	case r.has(".dockerenv"):
		return "docker"
	case strings.Contains(strings.ToLower(u.Release), "microsoft"): // the kernel of the subsystem, not of a virtual machine
		return "wsl"
	}
	return ""
}
