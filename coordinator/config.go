package coordinator

import (
	"maps"
	"time"
)

// Config is one checked revision of the cluster configuration. coordinator/config makes it.
type Config struct {
	Revision        Revision
	NodeAnnotations map[string]string
	SoftwareTokens  map[string]uint32
	Scheduler       SchedulerConfig
	Definitions     []Definition // expanded, in file order
}

// Backfill is how much later work may pass the head of its class (rule 15).
type Backfill uint8

const (
	BackfillNone Backfill = iota
	BackfillEasy
	BackfillConservative
)

func backfillWords() words { return words{"none", "easy", "conservative"} }

func (b Backfill) String() string               { return backfillWords().text(uint8(b)) }
func (b Backfill) MarshalText() ([]byte, error) { return []byte(b.String()), nil }
func (b *Backfill) UnmarshalText(t []byte) error {
	v, err := backfillWords().parse("backfill", string(t))
	*b = Backfill(v)
	return err
}

// SchedulerConfig is the `scheduler:` block with its defaults filled in.
type SchedulerConfig struct {
	Priority                  string // Expr source; never empty
	PreemptionEnabled         bool
	PreemptionThreshold       float64
	PreemptionGap             float64 // default 10
	MinPreemptionRuntime      time.Duration
	PreemptionNotice          time.Duration // default 60 s
	Backfill                  Backfill
	NodeLossWindow            time.Duration // default 60 s
	KillTimeout               time.Duration // default 10 s
	MaintenanceNotice         time.Duration // default 7 days
	MaxWalltime               map[Class]time.Duration
	QueueDepth                int // 0: no limit
	IgnoredAnnotations        []string
	FederationPriorityRouting bool
}

// Definition is one class of functionally identical nodes, after expansion.
type Definition struct {
	ID         DefinitionID
	Configured string // id as written; grants name this one
	Kind       string // static, aws, gcp, azure, oci, coreweave, slurm, pbs
	Backend    string // named connection; "" is the only one of the kind
	// Target identifies kind and backend target; grants bind to it (docs/grants.md).
	Fingerprint  string
	Annotations  map[string]string // the definition's own, without nodeAnnotations
	Condition    string            // Expr; static only
	Policy       string            // Expr; "" admits everybody
	CostPerHour  *float64          // USD; nil is unknown
	CostListed   bool              // CostPerHour is the catalogue's
	TTL          time.Duration     // 0: none
	TTLBuffer    time.Duration
	Exclusive    Exclusive
	MaxNodes     int // 0: no limit
	IdleTimeout  time.Duration
	JoinTimeout  time.Duration
	AutoDiscover bool
	// Hardware is what is known before a node reports: nil for static.
	Hardware *Hardware
	// Instance is the cloud's type name (instanceType, machineType, vmSize, shape), "" elsewhere.
	Instance string
	Spec     any // the kind's decoded provisionerSpec (coordinator/spec)
}

// DefinitionAnnotations are those of every node under the definition's own.
func (c *Config) DefinitionAnnotations(d *Definition) map[string]string {
	merged := make(map[string]string, len(c.NodeAnnotations)+len(d.Annotations))
	maps.Copy(merged, c.NodeAnnotations)
	maps.Copy(merged, d.Annotations)
	return merged
}

// Names of devices, as nodes report them.
const (
	DeviceNVIDIA = "nvidia.com/gpu"
	DeviceAMD    = "amd.com/gpu"
	DeviceGaudi  = "habana.ai/gaudi"
)

// Hardware is what a definition or node offers. Estimated marks catalogue or generated data.
type Hardware struct {
	Cores     Cores
	Threads   uint32 // logical CPUs
	Sockets   uint32
	Memory    Bytes
	Devices   map[string]uint32
	Arch      string
	Estimated bool
	Unknown   []string // devices that are there, nobody knows how many; several: one of these kinds
}
