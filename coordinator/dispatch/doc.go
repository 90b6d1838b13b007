// Package dispatch is the contract of a batch system: what somebody who hands it work may count on, and what is asked of an adapter. It
// holds the vocabulary, the rules that are common to all systems, decisions about objects and the supervisor that polls; it knows no
// system's commands, runs nothing, and keeps nothing on disk.
//
// # Objects
//
// A job is a piece of work as its owner sees it. It is given to the batch system in a submission, which makes one object there
// with a native id (a Slurm job id, a PBS job identifier). Whenever the object starts it has a new execution; without a requeue there is
// just one. The owner counts submissions from 1 and gives each an attempt number of its own; both stand, with the job's id,
// in the object (Ref), so that it can be found by them when the answer to a submission is lost.
//
// # Life of an object
//
// Submit makes the object behind a gate: it is recorded and cannot start. The owner writes the id down, then calls OpenGate. An owner that
// dies between the two finds the object by its Ref and opens it, or stops it. Nothing is ever started that nobody wrote down.
//
// Inspect says in what State an object is, and why (Cause); the two are never folded into one word. What a system says that the adapter does
// not know is StateUnknown with the raw text, never a failure. An object is over when State.Ended says so; what is
// StateEnding is not over, and nothing may be submitted in its place yet. Causes of an ended object are kept apart for a reason:
// preempted work may go again at once, work that ran out of memory should not.
//
// Lost evidence: batch systems forget. Declarations says for how long state, cause, exit code and earlier executions of an ended object can
// be read (PolledLoss), and the supervisor refuses to poll more slowly than the shortest of these windows. An object that the
// system does not know any more is ErrNotFound; that is no end, and no proof that it never was.
//
// Node loss: an object whose node has gone is running with cause node-lost for at most NodeLossWindow; after that the execution counts as over.
// Its processes may live on all the same; whether they have ceased is a question of its own (CessationSignal).
//
// # Calls
//
// Every call returns nil, or an error that is one of those in errors.go, with what its caller must do. A call that may have had its effect is
// ErrOutcomeUnknown: it can still land until Declarations.CallBound after its deadline, and until then nobody may conclude from not seeing
// its effect that there is none. Calls that change something are idempotent where the system allows it: opening an open gate, stopping
// what has ended, placing a hold that is placed, all succeed. Opening the gate of what is over is nil or ErrEnded, and stopping
// what the system does not know is nil or ErrNotFound: not every system tells. Anything that is no id of the system's is ErrNotFound or
// ErrRefused, and no program is given it.
//
// # Holds
//
// A hold keeps a pending object from starting, apart from the gate and apart from what an operator holds. Each has an instance, a number that
// its owner draws; placing the same again changes nothing, placing a later one replaces it, an earlier one is ErrStale, and a release that
// names another than the one in place is ErrStale too; neither changes anything.
//
// # Executions
//
// Requeue ends the execution with cause replaced; from then on the observation is of the next one, with a number one higher, though it
// has not started: it is pending, without start and nodes. The one before stands in Earlier for as long as PolledLoss says.
//
// # What a cluster can
//
// Support is reported per cluster, not per adapter: Capabilities answers yes, no or unknown, says whether the answer was declared or probed, and
// gives the reason. Open returns a backend that implements the optional interfaces that the cluster supports, and no others.
//
// Package dispatchtest is what every backend must do, as tests; package memory is a batch system in memory.
package dispatch
