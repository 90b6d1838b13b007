package pbs

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"substrate/coordinator/dispatch"
)

// Substates that mean something of their own.
const (
	substateStaging     = "15" // R: files are brought in
	substateDependent   = "22"
	substateNotStaged   = "37" // W, for ever
	substatePrerun      = "41" // R: sent to the node, not confirmed
	substateTerminated  = "91"
	substateFinished    = "92"
	launchSignal        = 53 // the signal of the real-time range by which our own script tells that it could not begin
	signalled           = 256
	shellSignalled      = 128 // and the signal's number: how a shell reports what it started
	lastSignal          = 64
	failedStarts        = 21 // tries, after which PBS holds a job
	statusMemory        = -27
	statusWalltime      = -29
	statusNodeLost      = -20
	statusSisterLost    = -14
	statusVirtualMemory = -26
)

// judge says what a record means. Letters that are not listed are StateUnknown.
func judge(r *record, silent func(node string) bool) (dispatch.State, dispatch.Cause) {
	switch r.state {
	case "Q", "H", "W":
		return dispatch.StatePending, waiting(r)
	case "T":
		return dispatch.StatePending, dispatch.CauseStarting
	case "R", "S", "U", "E":
		if slices.ContainsFunc(r.nodes(), silent) {
			return dispatch.StateRunning, dispatch.CauseNodeLost // the server shows it as if nothing were wrong
		}
	case "F", "X":
		return ended(r)
	default:
		return dispatch.StateUnknown, dispatch.CauseNone
	}
	switch {
	case r.state == "E":
		return dispatch.StateEnding, dispatch.CauseNone
	case r.state == "S" || r.state == "U":
		return dispatch.StateSuspended, dispatch.CauseNone
	case r.substate == substateStaging || r.substate == substatePrerun:
		return dispatch.StatePending, dispatch.CauseStarting
	case terminated(r.comment):
		return dispatch.StateEnding, dispatch.CauseNone // the only trace of a qdel until the node has told the end
	}
	return dispatch.StateRunning, dispatch.CauseNone
}

// terminated reads the end of a comment, which only PBS and its operators write.
func terminated(comment string) bool {
	return strings.HasSuffix(comment, " and terminated") || strings.Contains(comment, " and terminated by ")
}

// waiting is why a job waits.
func waiting(r *record) dispatch.Cause {
	other := strings.ContainsAny(r.holds, "sop") && r.state == "H"
	switch {
	case other && number(r.runs, 0) >= failedStarts:
		return dispatch.CauseUnsatisfiable // held after too many failed starts
	case r.state == "H" && strings.Contains(r.holds, "u"):
		return dispatch.CauseGated
	case r.state == "H" && (r.substate == substateDependent || r.depend != "" && r.holds == "s"):
		return dispatch.CauseDependency
	case r.state == "H":
		return dispatch.CauseOperatorHeld
	case r.hold() != 0:
		return dispatch.CauseHeld
	case r.substate == substateNotStaged:
		return dispatch.CauseUnsatisfiable
	case r.state == "W":
		return dispatch.CauseDelayed
	}
	return lacking(r.comment)
}

// lacking reads the scheduler's comment on what is queued.
func lacking(comment string) dispatch.Cause {
	if strings.HasPrefix(comment, "Can Never Run") {
		return dispatch.CauseUnsatisfiable
	}
	why, is := strings.CutPrefix(comment, "Not Running: ")
	switch {
	case !is:
		return dispatch.CauseNone // no scheduler has looked at it yet, or none does
	case strings.HasPrefix(why, "Queue not started"), strings.HasPrefix(why, "Insufficient amount of resource: host"),
		strings.HasPrefix(why, "Insufficient amount of resource: vnode"):
		return dispatch.CauseNodeUnavailable
	case strings.HasPrefix(why, "PBS Error"), strings.Contains(why, "edicated time"):
		return dispatch.CauseDelayed
	}
	return dispatch.CauseCapacity
}

// ended is the outcome of what is over. The substate alone is none: 92 without an Exit_status never ran.
func ended(r *record) (dispatch.State, dispatch.Cause) {
	if r.substate == substateTerminated {
		switch {
		case strings.Contains(r.comment, " and terminated by Scheduler@"):
			return dispatch.StateFailed, dispatch.CausePreempted
		case r.hosts == "":
			return dispatch.StateCancelled, dispatch.CauseNeverRan
		}
		return dispatch.StateCancelled, dispatch.CauseNone
	}
	status, err := strconv.Atoi(r.exit)
	switch {
	case err != nil && r.hosts == "" && r.started == "":
		return dispatch.StateCancelled, dispatch.CauseNeverRan
	case err != nil:
		return dispatch.StateFailed, dispatch.CauseNone
	case status == 0 && r.substate == substateFinished:
		return dispatch.StateSucceeded, dispatch.CauseNone
	case status < 0:
		return dispatch.StateFailed, infrastructure(status)
	}
	switch {
	case strings.HasSuffix(r.comment, "and exceeded resource mem"), strings.HasSuffix(r.comment, "and exceeded resource vmem"):
		return dispatch.StateFailed, dispatch.CauseOutOfMemory
	case strings.Contains(r.comment, "and exceeded resource walltime"):
		return dispatch.StateFailed, dispatch.CauseTimeout
	case strings.Contains(r.comment, "and exceeded resource "):
		return dispatch.StateFailed, dispatch.CauseLimit
	case signalOf(status) == launchSignal:
		return dispatch.StateFailed, dispatch.CauseLaunch
	case signalOf(status) > 0:
		return dispatch.StateFailed, dispatch.CauseSignalled
	case status == 0:
		return dispatch.StateFailed, dispatch.CauseNone
	}
	return dispatch.StateFailed, dispatch.CauseExitCode
}

// signalOf is the signal that a status tells of, or 0. Scripts are started by a shell, which reports a signal of theirs as 128 and its number.
func signalOf(status int) int {
	switch {
	case status > signalled && status <= signalled+2*lastSignal:
		return status - signalled
	case status > shellSignalled && status <= shellSignalled+lastSignal:
		return status - shellSignalled
	}
	return 0
}

// infrastructure reads the statuses that PBS itself gives. The numbers are those of its job.h.
func infrastructure(status int) dispatch.Cause {
	switch status {
	case statusWalltime:
		return dispatch.CauseTimeout
	case statusMemory, statusVirtualMemory:
		return dispatch.CauseOutOfMemory
	case -24, -25, -28: // cores used, cores, seconds of a processor
		return dispatch.CauseLimit
	case statusNodeLost, statusSisterLost, -4, -5, -6, -7: // the last four: its node was started anew
		return dispatch.CauseNodeLost
	case -1, -2, -3, -10, -16, -17, -18, -19, -21, -22, -30: // files, prologue, account, hooks, security, joining
		return dispatch.CauseLaunch
	case -11:
		return dispatch.CausePreempted // was to be run again, and was not
	}
	return dispatch.CauseNone
}

// execution is the number of the newest: run_count counts starts, and what waits has not had its next.
func (r *record) execution() dispatch.Execution {
	runs := number(r.runs, 0)
	placed := r.hosts != "" || r.state == "R" // files are brought in before there is a node
	if placed && r.state != "Q" && r.state != "H" && r.state != "W" {
		runs--
	}
	return dispatch.Execution(max(min(runs, dispatch.EpochBound-1), 0))
}

// observe makes an observation of a record. Only marks of this account's jobs are believed.
func observe(r *record, user string, silent func(node string) bool) dispatch.Observation {
	o := dispatch.Observation{Object: dispatch.ObjectID(r.id), Execution: r.execution(), Submitted: parseTime(r.created), Raw: raw(r)}
	o.State, o.Cause = judge(r, silent)
	if r.user() == user {
		m := unmark(r.mark)
		o.Ref, o.Name, o.Note = m.ref, m.name, m.note
	}
	switch {
	case o.State == dispatch.StatePending:
		o.Hold = r.hold()
	case o.State.Ended():
		o.Ended = r.end()
		if r.hosts != "" {
			o.Started, o.Nodes = parseTime(r.started), r.nodes()
		}
		o.ExitCode, o.Signal = exitOf(o.State, o.Cause, number(r.exit, 0))
	case o.State != dispatch.StateUnknown && r.hosts != "":
		o.Started, o.Nodes = parseTime(r.started), r.nodes()
		if limit, err := parseDuration(r.walltime); err == nil && r.walltime != "" && !o.Started.IsZero() {
			o.Ends = o.Started.Add(limit)
		}
	}
	return o
}

// end is when it ended. obittime is a leftover of an earlier execution where the last one never began.
func (r *record) end() time.Time {
	if t := parseEpoch(r.remembers); !t.IsZero() {
		return t
	}
	if t := parseTime(r.obit); !t.IsZero() && r.hosts != "" {
		return t
	}
	return parseTime(r.modified)
}

func exitOf(state dispatch.State, cause dispatch.Cause, status int) (code, signal *int) {
	switch {
	case state == dispatch.StateSucceeded, cause == dispatch.CauseExitCode:
		return &status, nil
	case cause == dispatch.CauseSignalled:
		n := signalOf(status)
		return nil, &n
	}
	return nil, nil
}

// raw is what PBS said, in short.
func raw(r *record) string {
	text := r.state + " " + r.substate
	if r.exit != "" && (r.state == "F" || r.state == "X") {
		text += " Exit_status=" + r.exit
	}
	if r.holds != "" && r.holds != "n" {
		text += " Hold_Types=" + r.holds
	}
	if r.comment != "" {
		text += ": " + r.comment
	}
	return firstLines(text)
}
