package coordinator

import "time"

// WorkflowSpec is a checked workflow file: jobs and services by name, in file order.
type WorkflowSpec struct {
	Name        string            `json:"name"`
	Preemptible bool              `json:"preemptible,omitempty"`
	Priority    int32             `json:"priority,omitempty"` // the submitter's own, ≤ 0
	Annotations map[string]string `json:"annotations,omitempty"`
	Jobs        []JobSpec         `json:"jobs"`
}

// JobSpec is one job or service with every default filled in.
type JobSpec struct {
	Name        string            `json:"name"`
	Kind        Kind              `json:"kind"`
	Command     []string          `json:"command,omitempty"` // exactly one of Command and Script
	Script      string            `json:"script,omitempty"`  // run by /bin/sh unless it starts with #!
	Image       string            `json:"image,omitempty"`
	Env         []string          `json:"env,omitempty"` // KEY=VALUE
	Resources   Resources         `json:"resources"`
	Match       map[string]string `json:"match,omitempty"`       // resource.annotations: must equal the node's
	Annotations map[string]string `json:"annotations,omitempty"` // feed policies, never match
	Class       Class             `json:"class"`
	Preemptible bool              `json:"preemptible,omitempty"`
	// PreemptibleSet marks a value of the job's own, which the workflow's does not replace.
	PreemptibleSet bool `json:"preemptible_set,omitempty"`
	// Walltime is the longest run per attempt; 0 is "no limit", only for services.
	Walltime       time.Duration `json:"walltime,omitempty"`
	Restart        RestartPolicy `json:"restart,omitempty"`
	RetryOnPreempt bool          `json:"retry_on_preempt,omitempty"`
	PreemptionsMax *uint32       `json:"preemptions_max,omitempty"`
	Mounts         []Mount       `json:"mounts,omitempty"`
	DependsOn      []Dependency  `json:"depends_on,omitempty"`
	Nodes          uint32        `json:"nodes"` // 1 unless multinode
	ProcsPerNode   uint32        `json:"procs_per_node,omitempty"`
	// Reservation is the name or id of the one that reserved work runs in; "": the oldest that is large enough.
	Reservation string `json:"reservation,omitempty"`
	// LooseGPUs: it does not matter how its GPUs are joined.
	LooseGPUs bool       `json:"loose_gpus,omitempty"`
	Array     *TaskArray `json:"array,omitempty"`
}

// Mount offers a host path to a job.
type Mount struct {
	Source string `json:"source"`
	Target string `json:"target"`
}

// Dependency is satisfied when all tasks of the named job reached the status.
type Dependency struct {
	Name   string           `json:"name"`
	Status DependencyStatus `json:"status"`
}

// DependencyStatus is what a dependency waits for.
type DependencyStatus uint8

const (
	DependsFinished DependencyStatus = iota + 1
	DependsRunning
	DependsFailed
	DependsAny
)

func dependencyWords() words { return words{"", "finished", "running", "failed", "any"} }

func (d DependencyStatus) String() string               { return dependencyWords().text(uint8(d)) }
func (d DependencyStatus) MarshalText() ([]byte, error) { return []byte(d.String()), nil }
func (d *DependencyStatus) UnmarshalText(t []byte) error {
	v, err := dependencyWords().parse("dependency status", string(t))
	*d = DependencyStatus(v)
	return err
}

// TaskArray runs a job once for each index from Start to End, both included.
// Concurrency 0 is no limit.
type TaskArray struct {
	Start       uint32 `json:"start"`
	End         uint32 `json:"end"`
	Concurrency uint32 `json:"concurrency,omitempty"`
}

// Len is the number of tasks.
func (t TaskArray) Len() int { return int(t.End) - int(t.Start) + 1 }
