package engine

import (
	"time"

	"substrate/coordinator"
)

// Messages between the engine and a node's agent, free of wire types; coordinator/server converts.

// Hello is what an agent says first on a stream.
type Hello struct {
	Version      string
	BootID       string
	Revision     coordinator.Revision
	Runs         []RunStatus
	RunsAsCaller bool
	Runtimes     []string
	Discovers    bool            // it is there for a look at the hardware and marks its last report
	Certificate  NodeCertificate // of the connection; the server fills it, the agent is not asked
}

// RunState is how far a run is, as its node knows it.
type RunState string

const (
	RunStarting RunState = "starting"
	RunRunning  RunState = "running"
	RunEnded    RunState = "ended"
)

// Cause says how a run ended.
type Cause string

const (
	CauseExited      Cause = "exited"
	CauseSignalled   Cause = "signalled"
	CauseStartFailed Cause = "start-failed"
	CauseWalltime    Cause = "walltime"
	CauseStopped     Cause = "stopped"
	CauseOOM         Cause = "oom"
	CauseLostStatus  Cause = "lost-status"
	// Of runs that are jobs of a batch system.
	CausePreempted Cause = "preempted" // by the system itself
	CauseNeverRan  Cause = "never-ran" // it was not handed over, and may as well run elsewhere
	CauseEnded     Cause = "ended"     // by the system; the message says why
)

// RunStatus is one report about a run. The report of an end is stored as it came.
type RunStatus struct {
	Run      coordinator.RunID `json:"run"`
	State    RunState          `json:"state"`
	Cause    Cause             `json:"cause,omitempty"`
	ExitCode int32             `json:"exit_code,omitempty"`
	Signal   int32             `json:"signal,omitempty"`
	Message  string            `json:"message,omitempty"`
	Started  time.Time         `json:"started,omitzero"`
	Ended    time.Time         `json:"ended,omitzero"`
	// Once ended: how many bytes the run wrote, so that a reader knows when its output is complete.
	StdoutBytes uint64 `json:"stdout_bytes,omitempty"`
	StderrBytes uint64 `json:"stderr_bytes,omitempty"`
	// Doubt: its processes may live on for longer than any window says, so that it must not run again by itself.
	Doubt bool `json:"doubt,omitempty"`
}

// HardwareReport is hwinfo.Facts as JSON with its digest and what could not be read.
type HardwareReport struct {
	Digest   []byte
	Facts    []byte
	Warnings []NodeWarning
	Final    bool // of a look at the hardware: nothing more will come
}

// Look is what the agent of a node waits for that was launched for a look at its hardware.
type Look struct {
	Devices map[string]uint32 // so many at least
	Some    []string          // kinds of devices that are there, nobody knows how many
	Within  time.Duration     // what is seen then is the report
}

// ConditionReport is one evaluation of all static definitions.
type ConditionReport struct {
	Revision coordinator.Revision
	Results  []ConditionView
}

// ToNode is one message to an agent: exactly one field is set.
type ToNode struct {
	Configuration *NodeConfiguration
	Start         *StartRun
	Stop          *StopRun
	Ended         []coordinator.RunID // acknowledged ends
	Taken         []byte              // the digest of a final report that is stored
}

// NodeConfiguration is what concerns nodes of a configuration.
type NodeConfiguration struct {
	Revision    coordinator.Revision
	Definitions []NodeDefinition
}

// NodeDefinition is one static definition.
type NodeDefinition struct {
	ID        coordinator.DefinitionID
	Condition string
}

// StartRun orders one run, once.
type StartRun struct {
	Run       coordinator.RunID
	Fence     uint64
	Job       *coordinator.JobSpec // shared, not to be changed
	Env       []string             // SUBSTRATE_* and the job's own
	UnixUser  string
	Walltime  time.Duration
	KillAfter time.Duration
	Rank      uint32
	Nodes     []coordinator.NodeID
}

// StopRun orders the end of a run.
type StopRun struct {
	Run    coordinator.RunID
	Grace  time.Duration
	Reason string
}
