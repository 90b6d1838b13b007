package slurm

import (
	"slices"
	"strings"

	"substrate/coordinator/dispatch"
)

// launchSignal is the signal in whose place slurmd reports that it could not start a batch script. Our own prologue ends by it when it fails:
// a signal of the real-time range that nobody sends.
const launchSignal = 53

// judge says what a row means. Words that are not listed are StateUnknown: releases add states, and none of them is a failure by default.
func judge(r row, silent func(node string) bool) (dispatch.State, dispatch.Cause) {
	if r.forgotten {
		return dispatch.StateFailed, dispatch.CauseNodeLost // given up; nobody has seen how it ended
	}
	switch r.state {
	case "PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT", "EXPEDITING":
		if r.history {
			// The job's end has not been told to accounting yet, or never will be.
			return dispatch.StateUnknown, dispatch.CauseNone
		}
		return dispatch.StatePending, waiting(r)
	case "CONFIGURING", "POWER_UP_NODE":
		return dispatch.StatePending, dispatch.CauseStarting
	case "RUNNING", "RESIZING", "SUSPENDED", "STOPPED":
		switch {
		case r.history:
			return dispatch.StateUnknown, dispatch.CauseNone
		case slices.ContainsFunc(r.nodes, silent):
			return dispatch.StateRunning, dispatch.CauseNodeLost
		case r.state == "SUSPENDED" || r.state == "STOPPED":
			return dispatch.StateSuspended, dispatch.CauseNone
		}
		return dispatch.StateRunning, dispatch.CauseNone
	case "COMPLETING", "SIGNALING", "STAGE_OUT":
		return dispatch.StateEnding, dispatch.CauseNone
	case "COMPLETED":
		return dispatch.StateSucceeded, dispatch.CauseNone
	case "CANCELLED":
		if len(r.nodes) == 0 {
			return dispatch.StateCancelled, dispatch.CauseNeverRan
		}
		return dispatch.StateCancelled, dispatch.CauseNone
	case "FAILED":
		return dispatch.StateFailed, failedFor(r)
	}
	if cause, ok := ends(r.state); ok {
		return dispatch.StateFailed, cause
	}
	return dispatch.StateUnknown, dispatch.CauseNone
}

// ends are the failures whose cause is their name.
func ends(state string) (dispatch.Cause, bool) {
	switch state {
	case "TIMEOUT":
		return dispatch.CauseTimeout, true
	case "NODE_FAIL":
		return dispatch.CauseNodeLost, true
	case "PREEMPTED":
		return dispatch.CausePreempted, true
	case "OUT_OF_MEMORY":
		return dispatch.CauseOutOfMemory, true
	case "DEADLINE":
		return dispatch.CauseDeadline, true
	case "BOOT_FAIL":
		return dispatch.CauseLaunch, true
	}
	return dispatch.CauseNone, false
}

// failedFor reads FAILED by how the script ended. The reason says JobLaunchFailure for any signal, so it counts for little.
func failedFor(r row) dispatch.Cause {
	switch {
	case len(r.nodes) == 0:
		return dispatch.CauseRejected // never had a node: what an sbatch that was refused can leave behind
	case r.status.signal == launchSignal:
		return dispatch.CauseLaunch
	case r.status.signal > 0:
		return dispatch.CauseSignalled
	case r.status.exit > 0:
		return dispatch.CauseExitCode
	case r.reason == "JobLaunchFailure":
		return dispatch.CauseLaunch
	}
	return dispatch.CauseNone
}

// waiting reads a pending job's reason.
func waiting(r row) dispatch.Cause {
	reason, _, _ := strings.Cut(r.reason, ",") // nodes may follow
	gate := reason == "JobHeldUser"
	operator := reason == "JobHeldAdmin" || reason == "JobHoldMaxRequeue" || r.state == "REQUEUE_HOLD" || r.state == "SPECIAL_EXIT" || r.state == "RESV_DEL_HOLD" ||
		strings.Contains(reason, "requeued") && strings.Contains(reason, "held") // a sentence, which releases word differently
	switch {
	case operator:
		return dispatch.CauseOperatorHeld
	case gate:
		return dispatch.CauseGated
	case r.hold() != 0:
		return dispatch.CauseHeld
	}
	return reasonCause(reason)
}

func reasonCause(reason string) dispatch.Cause {
	switch reason {
	case "BeginTime":
		return dispatch.CauseDelayed
	case "Dependency":
		return dispatch.CauseDependency
	case "Resources", "Priority", "Licenses", "JobArrayTaskLimit", "BurstBufferResources", "MaxPowerLimit", "Reservation":
		return dispatch.CauseCapacity
	case "ReqNodeNotAvail", "NodeDown", "PartitionDown", "PartitionInactive", "FrontEndDown", "ReservationMaintenance":
		return dispatch.CauseNodeUnavailable
	case "Prolog", "Cleaning", "BurstBufferStageIn", "BurstBufferOperation":
		return dispatch.CauseStarting
	case "BadConstraints", "PartitionConfig", "PartitionTimeLimit", "PartitionNodeLimit", "DependencyNeverSatisfied", "InvalidAccount", "InvalidQOS", "AccountNotAllowed",
		"QOSNotAllowed", "ReservationDeleted", "InvalidReservation", "DeadLine", "QOSTimeLimit", "AssociationTimeLimit", "AssociationResourceLimit", "QOSResourceLimit",
		"QOSUsageThreshold":
		return dispatch.CauseUnsatisfiable
	}
	limit := strings.HasPrefix(reason, "QOS") || strings.HasPrefix(reason, "Assoc")
	switch {
	case strings.HasPrefix(reason, "Nodes required for job are "): // DOWN, DRAINED or reserved: a sentence in place of a word
		return dispatch.CauseNodeUnavailable
	case limit && (strings.Contains(reason, "PerJob") || strings.Contains(reason, "PerNode") || strings.HasPrefix(reason, "QOSMin")):
		return dispatch.CauseUnsatisfiable // a limit of one job, which waiting does not change
	case limit:
		return dispatch.CauseCapacity
	}
	return dispatch.CauseNone
}

// observe makes an observation of a job's newest row.
func observe(r row, silent func(node string) bool) dispatch.Observation {
	o := dispatch.Observation{Object: dispatch.ObjectID(r.id), Execution: dispatch.Execution(r.restarts), Submitted: r.submit, Raw: r.raw}
	o.State, o.Cause = judge(r, silent)
	o.Ref, o.Name, o.Note = unmark(r.comment, r.name)
	switch {
	case o.State == dispatch.StatePending:
		o.Hold = r.hold()
	case o.State.Ended():
		o.Ended = r.end
		if len(r.nodes) > 0 {
			o.Started, o.Nodes = r.start, r.nodes
		}
		o.ExitCode, o.Signal = exitOf(o.Cause, o.State, r.status)
	case o.State != dispatch.StateUnknown && len(r.nodes) > 0:
		o.Started, o.Nodes, o.Ends = r.start, r.nodes, r.end
	}
	return o
}

// exitOf tells a status only where squeue and sacct agree about it: for a job that was ended from outside they do not.
func exitOf(cause dispatch.Cause, state dispatch.State, w waitStatus) (code, signal *int) {
	switch {
	case state == dispatch.StateSucceeded, cause == dispatch.CauseExitCode:
		return &w.exit, nil
	case cause == dispatch.CauseSignalled:
		return nil, &w.signal
	}
	return nil, nil
}
