// Package spec decodes the provisionerSpec and the backend connection of each kind of
// provisioner. It knows no cloud's types, does no I/O and links no vendor's SDK.
package spec

import (
	"fmt"
	"sort"
	"strings"
	"time"

	"substrate/coordinator"
	"substrate/strictyaml"
)

// The kinds of provisioner.
const (
	KindStatic    = "static"
	KindAWS       = "aws"
	KindGCP       = "gcp"
	KindAzure     = "azure"
	KindOCI       = "oci"
	KindCoreWeave = "coreweave"
	KindSlurm     = "slurm"
	KindPBS       = "pbs"
)

// Kinds lists all kinds, in the order of the reference page.
func Kinds() []string {
	return []string{KindStatic, KindAWS, KindGCP, KindAzure, KindOCI, KindCoreWeave, KindSlurm, KindPBS}
}

// Batch reports whether nodes of the kind are jobs of a batch system.
func Batch(kind string) bool { return kind == KindSlurm || kind == KindPBS }

// LeastJoin is the least that an agent of a kind's node has until its first word, 0 for no such limit: CoreWeave's machines are set up from a clean image each
// time.
func LeastJoin(kind string) time.Duration {
	if kind == KindCoreWeave {
		return 40 * time.Minute
	}
	return 0
}

// Static nodes exist already; Condition says which they are.
type Static struct {
	Condition string // Expr over the node's facts
}

// AWS is one EC2 instance per node.
type AWS struct {
	InstanceType     string
	Spot             bool
	Region, Zone     string // "" leaves it to the backend
	ImageID          string
	SubnetID         string
	SecurityGroupIDs []string
	InstanceProfile  string
	Tags             map[string]string
}

// GCP is one Compute Engine instance per node.
type GCP struct {
	MachineType string
	Zone        string
	Spot        bool
	Accelerator *Accelerator
	Image       string
	Network     string
}

// Accelerator is attached to a GCP machine.
type Accelerator struct {
	Type  string
	Count uint32
}

// Azure is one virtual machine per node.
type Azure struct {
	VMSize   string
	Location string
	Spot     bool
	Image    string
	Subnet   string
}

// OCI is one Oracle Cloud instance per node. OCPUs and Memory belong to flexible shapes
// and are 0 for fixed ones.
type OCI struct {
	Shape              string
	OCPUs              float64
	Memory             coordinator.Bytes
	Compartment        string
	AvailabilityDomain string
	Preemptible        bool
	Image              string
	Subnet             string
}

// CoreWeave is one NodePool of one node per node.
type CoreWeave struct {
	InstanceType string
}

// Mode says how work reaches a batch system.
type Mode string

const (
	ModePilot  Mode = "pilot"  // a placeholder job runs the agent
	ModeNative Mode = "native" // each allocation is a job of the batch system
)

// Slurm is one batch job per node (or one for several nodes).
type Slurm struct {
	CPU             coordinator.Cores
	Memory          coordinator.Bytes
	GPUs            uint32
	Partition       string
	Account         string
	QOS             string
	Constraint      string
	Nodes           uint32
	Mode            Mode
	ExtraDirectives []string
}

// PBS is one batch job per node (or one for several nodes).
type PBS struct {
	CPU             coordinator.Cores
	Memory          coordinator.Bytes
	GPUs            uint32
	Queue           string
	Project         string
	Nodes           uint32
	Mode            Mode
	ExtraDirectives []string
}

// Decoded is a provisionerSpec as written, wildcards not yet expanded.
type Decoded struct {
	Kind string
	// Spec is one of the structs above, by value.
	Spec any
	// TypeKey is the key that names the node's type (instanceType, machineType, vmSize,
	// shape), "" for kinds without; Type is its value, TypeValue its place.
	TypeKey     string
	Type        string
	TypeValue   strictyaml.Value
	CostPerHour *float64 // as written; nil leaves it to the catalogue
	// Condition is the place of a static condition.
	Condition strictyaml.Value
	// Architecture is the image's, as the text says; "" is unknown.
	Architecture string
	// Hardware is what the text itself says about a node, nil when it says nothing: with clouds, what was bought, of which a node sees less.
	Hardware *coordinator.Hardware

	place  map[string]string // single values, for ${spec.KEY}
	target []string          // what the spec points at inside its backend
}

// Wildcard reports whether a type name is a pattern.
func Wildcard(name string) bool { return strings.ContainsAny(name, "*?") }

// Placeholder is the value that ${spec.KEY} stands for. The value of TypeKey is the
// pattern until WithType.
func (d *Decoded) Placeholder(key string) (string, bool) {
	s, ok := d.place[key]
	return s, ok
}

// Placeholders lists the keys that an id may use, sorted.
func (d *Decoded) Placeholders() []string {
	keys := make([]string, 0, len(d.place))
	for k := range d.place {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

// WithType gives the spec of one exact type.
func (d *Decoded) WithType(name string) any {
	switch s := d.Spec.(type) {
	case AWS:
		s.InstanceType = name
		return s
	case GCP:
		s.MachineType = name
		return s
	case Azure:
		s.VMSize = name
		return s
	case OCI:
		s.Shape = name
		return s
	case CoreWeave:
		s.InstanceType = name
		return s
	}
	return d.Spec
}

// TypeOf says what an expanded spec launches: the type, with what makes nodes of one type differ, and the image. Kinds without types have "".
func TypeOf(s any) (name, image string) {
	switch s := s.(type) {
	case AWS:
		return s.InstanceType, s.ImageID
	case GCP:
		name = s.MachineType
		if a := s.Accelerator; a != nil {
			name += fmt.Sprintf(" with %d %s", a.Count, a.Type)
		}
		return name, s.Image
	case Azure:
		return s.VMSize, s.Image
	case OCI:
		name = s.Shape
		if s.OCPUs > 0 {
			name += fmt.Sprintf(" with %v OCPUs, %s", s.OCPUs, s.Memory)
		}
		return name, s.Image
	case CoreWeave:
		return s.InstanceType, ""
	}
	return "", ""
}

// Zone is where inside its place an expanded spec launches, "" where it leaves that open.
func Zone(s any) string {
	switch s := s.(type) {
	case AWS:
		return s.Zone
	case GCP:
		return s.Zone
	case OCI:
		return s.AvailabilityDomain
	}
	return ""
}

// Spot reports whether an expanded spec asks for what the cloud may take back.
func Spot(s any) bool {
	switch s := s.(type) {
	case AWS:
		return s.Spot
	case GCP:
		return s.Spot
	case Azure:
		return s.Spot
	case OCI:
		return s.Preemptible
	}
	return false
}

// Decode reads a provisionerSpec. What is wrong is reported to the value's document; the
// result is nil for an unknown kind alone, so that one bad key costs that key.
func Decode(kind string, v strictyaml.Value) *Decoded {
	read := decoder(kind)
	if read == nil {
		return nil
	}
	d := &Decoded{Kind: kind, place: map[string]string{}}
	o := v.Object()
	read(d, o)
	d.CostPerHour = strictyaml.Optional(o, "costPerHour", strictyaml.Floats(0, 1e6), "cost_per_hour")
	o.Close()
	return d
}

func decoder(kind string) func(*Decoded, *strictyaml.Object) {
	switch kind {
	case KindStatic:
		return (*Decoded).static
	case KindAWS:
		return (*Decoded).aws
	case KindGCP:
		return (*Decoded).gcp
	case KindAzure:
		return (*Decoded).azure
	case KindOCI:
		return (*Decoded).oci
	case KindCoreWeave:
		return (*Decoded).coreweave
	case KindSlurm:
		return (*Decoded).slurm
	case KindPBS:
		return (*Decoded).pbs
	}
	return nil
}

// image reads the key that names what nodes boot from, and the architecture that it is for.
func (d *Decoded) image(o *strictyaml.Object, key string) string {
	d.Architecture = strictyaml.Default(o, "architecture", "", strictyaml.OneOf("amd64", "arm64"))
	return d.text(o, key)
}

// text reads an optional single-line text that an id may name.
func (d *Decoded) text(o *strictyaml.Object, key string) string {
	p := strictyaml.Optional(o, key, Word)
	if p == nil {
		return ""
	}
	d.place[key] = *p
	return *p
}

// typeName reads the key that names the node's type.
func (d *Decoded) typeName(o *strictyaml.Object, key string) string {
	d.TypeKey = key
	name, _ := strictyaml.Required(o, key, func(v strictyaml.Value) (string, bool) {
		d.TypeValue = v
		return strictyaml.Matching(typeForm, "the name of a type: letters, digits, . _ - and the wildcards * ?")(v)
	})
	d.Type = name
	if name != "" {
		d.place[key] = name
	}
	return name
}

func typeForm(s string) bool {
	for i, r := range s {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '*' || r == '?'
		if !letter && (i == 0 || r != '.' && r != '_' && r != '-') {
			return false
		}
	}
	return s != "" && len(s) <= 128
}

// Word reads a text without line breaks, control characters and outer white space.
func Word(v strictyaml.Value) (string, bool) {
	s, ok := v.FilledText()
	if !ok {
		return "", false
	}
	if strings.TrimSpace(s) != s || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		v.Errorf(strictyaml.CodeValue, "the text must be one line without white space around it")
		return "", false
	}
	if len(s) > 1024 {
		v.Errorf(strictyaml.CodeValue, "the text has %d bytes, more than 1024", len(s))
		return "", false
	}
	return s, true
}

// words reads a list of single-line texts.
func words(o *strictyaml.Object, key string) []string {
	return strictyaml.Default(o, key, nil, strictyaml.ListOf(Word))
}

func isSet(o *strictyaml.Object, key string) bool {
	return strictyaml.Default(o, key, false, strictyaml.Value.Bool)
}

func (d *Decoded) static(o *strictyaml.Object) {
	var s Static
	s.Condition, _ = strictyaml.Required(o, "condition", func(v strictyaml.Value) (string, bool) {
		d.Condition = v
		return v.FilledText()
	})
	d.Spec = s
}

func (d *Decoded) aws(o *strictyaml.Object) {
	s := AWS{InstanceType: d.typeName(o, "instanceType"), Spot: isSet(o, "spot")}
	s.Region, s.Zone = d.text(o, "region"), d.text(o, "zone")
	s.ImageID, s.SubnetID = d.image(o, "imageId"), d.text(o, "subnetId")
	s.SecurityGroupIDs = words(o, "securityGroupIds")
	s.InstanceProfile = d.text(o, "instanceProfile")
	s.Tags = strictyaml.Default(o, "tags", nil, strictyaml.Value.TextMap)
	if s.Region != "" && s.Zone != "" && !strings.HasPrefix(s.Zone, s.Region) {
		o.Value().Errorf(strictyaml.CodeValue, "the zone %s is not in the region %s", s.Zone, s.Region)
	}
	d.target = []string{s.InstanceType, s.Region, s.Zone}
	d.Spec = s
}

func (d *Decoded) gcp(o *strictyaml.Object) {
	s := GCP{MachineType: d.typeName(o, "machineType"), Zone: d.text(o, "zone"), Spot: isSet(o, "spot")}
	if v := o.Take("accelerator"); v.Valid() {
		ao := v.Object()
		a := Accelerator{Count: 1}
		a.Type, _ = strictyaml.Required(ao, "type", Word)
		a.Count = strictyaml.Default(ao, "count", 1, strictyaml.Ints[uint32](1, 64))
		ao.Close()
		s.Accelerator = &a
	}
	s.Image, s.Network = d.image(o, "image"), d.text(o, "network")
	d.target = []string{s.MachineType, s.Zone}
	d.Spec = s
}

func (d *Decoded) azure(o *strictyaml.Object) {
	s := Azure{VMSize: d.typeName(o, "vmSize"), Location: d.text(o, "location"), Spot: isSet(o, "spot")}
	s.Image, s.Subnet = d.image(o, "image"), d.text(o, "subnet")
	d.target = []string{s.VMSize, s.Location}
	d.Spec = s
}

func (d *Decoded) oci(o *strictyaml.Object) {
	s := OCI{Shape: d.typeName(o, "shape")}
	ocpusAt, memoryAt := o.Take("ocpus"), o.Take("memory", "mem")
	ocpus, memory := given(ocpusAt, strictyaml.Floats(0.125, 1024)), given(memoryAt, Memory)
	s.Compartment, s.AvailabilityDomain = d.text(o, "compartment"), d.text(o, "availabilityDomain")
	s.Preemptible = isSet(o, "preemptible")
	s.Image, s.Subnet = d.image(o, "image"), d.text(o, "subnet")
	flexible := strings.HasSuffix(strings.ToLower(s.Shape), ".flex")
	switch {
	case s.Shape == "" || Wildcard(s.Shape):
	case flexible && (!ocpusAt.Valid() || !memoryAt.Valid()):
		o.Value().Report(strictyaml.SeverityError, strictyaml.CodeMissing,
			"the flexible shape "+s.Shape+" needs ocpus and memory", "")
	case !flexible && (ocpusAt.Valid() || memoryAt.Valid()):
		o.Value().Report(strictyaml.SeverityError, strictyaml.CodeValue,
			"ocpus and memory belong to flexible shapes, "+s.Shape+" is fixed", "remove them, or name a shape that ends in .Flex")
	}
	if ocpus != nil {
		s.OCPUs = *ocpus
	}
	if memory != nil {
		s.Memory = *memory
	}
	if flexible && ocpus != nil && memory != nil && *ocpus >= 1 {
		d.Hardware = &coordinator.Hardware{Cores: coordinator.Cores(*ocpus), Threads: uint32(*ocpus),
			Memory: *memory, Estimated: true}
	}
	d.target = []string{s.Shape, s.Compartment, s.AvailabilityDomain}
	d.Spec = s
}

// given reads a value that was taken already; nil is absent or refused.
func given[T any](v strictyaml.Value, read strictyaml.Reader[T]) *T {
	if !v.Valid() {
		return nil
	}
	x, ok := read(v)
	if !ok {
		return nil
	}
	return &x
}

func (d *Decoded) coreweave(o *strictyaml.Object) {
	s := CoreWeave{InstanceType: d.typeName(o, "instanceType")}
	d.target = []string{s.InstanceType}
	d.Spec = s
}

// Memory reads a size that is not zero.
func Memory(v strictyaml.Value) (coordinator.Bytes, bool) {
	n, ok := v.Size()
	if ok && n == 0 {
		v.Errorf(strictyaml.CodeValue, "the size is zero")
		return 0, false
	}
	return coordinator.Bytes(n), ok
}

// batch reads what Slurm and PBS share.
func (d *Decoded) batch(o *strictyaml.Object, cpu *coordinator.Cores, memory *coordinator.Bytes, gpus, nodes *uint32, mode *Mode, extra *[]string) {
	*cpu, _ = strictyaml.Required(o, "cpu", func(v strictyaml.Value) (coordinator.Cores, bool) {
		n, ok := v.Int(1, 1<<16)
		return coordinator.Cores(n), ok
	})
	*memory, _ = strictyaml.Required(o, "memory", Memory, "mem")
	*gpus = strictyaml.Default(o, "gpus", 0, strictyaml.Ints[uint32](0, 1024))
	*nodes = strictyaml.Default(o, "nodes", 1, strictyaml.Ints[uint32](1, 1<<16))
	*mode = Mode(strictyaml.Default(o, "mode", string(ModePilot), strictyaml.OneOf(string(ModePilot), string(ModeNative))))
	*extra = words(o, "extraDirectives")
	// The batch job asks for exactly this, so it is what a node gives: nothing estimated. One
	// thread per core is the least that cpu can mean.
	d.Hardware = &coordinator.Hardware{Cores: *cpu, Threads: uint32(*cpu), Memory: *memory}
	if *gpus > 0 {
		d.Hardware.Devices = map[string]uint32{coordinator.DeviceNVIDIA: *gpus}
	}
}

func (d *Decoded) slurm(o *strictyaml.Object) {
	var s Slurm
	d.batch(o, &s.CPU, &s.Memory, &s.GPUs, &s.Nodes, &s.Mode, &s.ExtraDirectives)
	s.Partition, s.Account = d.text(o, "partition"), d.text(o, "account")
	s.QOS, s.Constraint = d.text(o, "qos"), d.text(o, "constraint")
	d.target = []string{s.Partition}
	d.Spec = s
}

func (d *Decoded) pbs(o *strictyaml.Object) {
	var s PBS
	d.batch(o, &s.CPU, &s.Memory, &s.GPUs, &s.Nodes, &s.Mode, &s.ExtraDirectives)
	s.Queue, s.Project = d.text(o, "queue"), d.text(o, "project")
	d.target = []string{s.Queue}
	d.Spec = s
}
