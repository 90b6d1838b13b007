// Package memory is a batch system in memory: nodes, a scheduler, processes that outlive their node's silence, and a memory that
// forgets. All of it is worked out inside calls, from a clock that is given; there is no goroutine and no chance in it. It runs no program:
// a script is read line by line for what it would do and when. Tests make it fail on purpose.
package memory

import (
	"context"
	"fmt"
	"sync"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/dispatch"
)

// History is what a cluster can tell of objects that it has forgotten.
type History uint8

const (
	HistoryNone History = iota
	HistoryWithoutComments
	HistoryFull
)

// Holds is how a cluster keeps holds.
type Holds uint8

const (
	HoldsNone    Holds = iota
	HoldsAsStart       // as a start in the far future, from which the instance is read back
	HoldsAsMark        // natively, with the instance in a mark of the object
	HoldsUntried       // nobody has tried whether it can: unknown
)

const holdBaseSeconds = 315_576_000

// Node is a machine of the cluster.
type Node struct {
	Name  string
	Cores coordinator.Cores
}

// Options say what kind of cluster it is. Open's answers follow from them.
type Options struct {
	Kind  string // the batch system that it is like
	Tail  string // of every id, as a server's name
	Last  uint32 // ids begin again from 1 after it; 0: never
	Nodes []Node

	Keeps   map[dispatch.Evidence]dispatch.Window // how long after an end each piece of evidence can be read
	History History
	Holds   Holds
	// NativeRequeue: what is preempted or loses its node is run again by the system.
	NativeRequeue bool
	Images        bool // runs jobs in container images

	Notice         time.Duration // a node that has been silent for so long is seen to be
	GiveUp         time.Duration // and what runs on it is given up after so long; 0: never
	NodeLossWindow time.Duration
	CallBound      time.Duration
	StopGrace      time.Duration // between the polite signal and the kill
	RequeueDelay   time.Duration
	Walltime       time.Duration // of what asks for none; 0: no limit

	Leaves []dispatch.Interface // not offered
}

// Slurm is a cluster that restarts nothing, keeps holds as starts in the far future, and has accounting.
func Slurm() Options {
	age := dispatch.Window(5 * time.Minute)
	return Options{
		Kind: "slurm", Nodes: nodes(4, 4), History: HistoryFull, Holds: HoldsAsStart,
		Keeps: map[dispatch.Evidence]dispatch.Window{dispatch.EvidenceState: age, dispatch.EvidenceCause: age, dispatch.EvidenceExitCode: age,
			dispatch.EvidenceExecution: dispatch.Unbounded},
		Notice: 20 * time.Second, GiveUp: 45 * time.Second, NodeLossWindow: 2 * time.Minute, CallBound: 25 * time.Second,
		StopGrace: 5 * time.Second, RequeueDelay: 121 * time.Second,
	}
}

// PBS is a cluster with native holds, a server's name in its ids, and a history that is its memory.
func PBS() Options {
	age := dispatch.Window(time.Hour)
	return Options{
		Kind: "pbs", Tail: ".memory", Nodes: nodes(4, 4), Holds: HoldsAsMark,
		Keeps: map[dispatch.Evidence]dispatch.Window{dispatch.EvidenceState: age, dispatch.EvidenceCause: age, dispatch.EvidenceExitCode: age,
			dispatch.EvidenceExecution: 0},
		Notice: time.Minute, GiveUp: 310 * time.Second, NodeLossWindow: 6 * time.Minute, CallBound: 10 * time.Second, StopGrace: 10 * time.Second,
	}
}

// Bare is a cluster that can do as little as the contract allows: nothing but the mandatory calls, evidence that goes piece by piece, nodes that
// are never given up, and no bound of when a call may land.
func Bare() Options {
	return Options{
		Kind: "bare", Nodes: nodes(4, 4),
		Keeps: map[dispatch.Evidence]dispatch.Window{dispatch.EvidenceState: dispatch.Window(2 * time.Minute),
			dispatch.EvidenceCause: dispatch.Window(time.Minute), dispatch.EvidenceExitCode: dispatch.Window(30 * time.Second), dispatch.EvidenceExecution: 0},
		Notice: 30 * time.Second, NodeLossWindow: 2 * time.Minute,
		Leaves: []dispatch.Interface{dispatch.InterfaceCessationSignal, dispatch.InterfaceOutputReader, dispatch.InterfaceMultiFinder},
	}
}

func nodes(n int, cores coordinator.Cores) []Node {
	list := make([]Node, n)
	for i := range list {
		list[i] = Node{Name: fmt.Sprintf("n%d", i+1), Cores: cores}
	}
	return list
}

// Clock is a time that only passes when somebody sleeps.
type Clock struct {
	mu  sync.Mutex
	now time.Time
}

// NewClock is a clock at a time.
func NewClock(now time.Time) *Clock { return &Clock{now: now} }

// Now is the time.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Sleep lets d pass at once.
func (c *Clock) Sleep(ctx context.Context, d time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(max(d, 0))
	return nil
}
