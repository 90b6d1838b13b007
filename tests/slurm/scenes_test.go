package slurm

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// pendingScenes are jobs that wait, each for another reason.
func pendingScenes() []scene {
	submit := func(reason string, args ...string) func(*recorder, string) {
		return func(r *recorder, _ string) { r.waits(r.Submit("true", args...), reason) }
	}
	return []scene{
		{name: "pending-held-user", about: "submitted with -H", act: submit("JobHeldUser", "-H")},
		{name: "pending-held-admin", about: "held by root", act: func(r *recorder, _ string) {
			id := r.Submit("true", "-H")
			r.Admin("scontrol", "release", id)
			r.Admin("scontrol", "hold", id)
			r.waits(id, "JobHeldAdmin")
		}},
		{name: "pending-begin-time", about: "submitted with --begin=now+1hour", act: submit("BeginTime", "--begin=now+1hour")},
		{name: "pending-far-future-gated", about: "submitted with -H, then StartTime ten years and seven seconds from its submission",
			act: func(r *recorder, _ string) { r.waits(farFuture(r, 7), "JobHeldUser") }},
		{name: "pending-far-future", about: "the same after release", act: func(r *recorder, _ string) {
			id := farFuture(r, 7)
			r.Run("scontrol", "release", id)
			r.waits(id, "BeginTime")
		}},
		{name: "pending-dependency", about: "after a job that runs", act: func(r *recorder, _ string) {
			r.waits(r.Submit("true", "-d", "afterok:"+r.runs()), "Dependency")
		}},
		{name: "pending-dependency-never", about: "after the success of a job that failed", act: func(r *recorder, _ string) {
			before := r.Submit("sleep 1; false")
			id := r.Submit("true", "-d", "afterok:"+before)
			r.waits(id, "DependencyNeverSatisfied")
		}},
		{name: "pending-licenses", about: "the only licence is taken", act: func(r *recorder, _ string) {
			r.runs("-L", "matlab:1")
			r.waits(r.Submit("true", "-L", "matlab:1"), "Licenses")
		}},
		{name: "pending-partition-down", about: "in a partition that is down", act: submit("PartitionDown", "-p", "closed")},
		{name: "pending-partition-node-limit", about: "more nodes than the partition allows", act: submit("PartitionNodeLimit", "-p", "small", "-N", "2")},
		{name: "pending-partition-time-limit", about: "longer than the partition allows", act: submit("PartitionTimeLimit", "-p", "small", "-t", "10")},
		{name: "pending-node-not-available", about: "wants a node that is drained", act: func(r *recorder, _ string) {
			r.Admin("scontrol", "update", "NodeName=n4", "State=DRAIN", "Reason=repair")
			defer r.Resume("n4")
			r.waits(r.Submit("true", "-w", "n4"), "ReqNodeNotAvail")
		}},
		{name: "pending-resources", about: "all nodes are taken", act: func(r *recorder, _ string) {
			r.runs("-N", "4", "--exclusive")
			r.waits(r.Submit("true", "-N", "4"), "Resources")
		}},
		{name: "pending-priority", about: "behind another that waits", act: func(r *recorder, _ string) {
			r.runs("-N", "4", "--exclusive")
			r.Submit("true", "-N", "4")
			r.waits(r.Submit("true", "--nice=100"), "Priority")
		}},
		{name: "pending-reservation", about: "in a reservation that has not begun", act: func(r *recorder, _ string) {
			r.Admin("scontrol", "create", "reservation", "ReservationName=later", "StartTime=now+3600", "Duration=10", "Nodes=n1", "Users="+r.User.Name)
			defer r.Admin("scontrol", "delete", "ReservationName=later")
			id := r.Submit("true", "--reservation=later")
			r.waits(id, "Reservation")
			r.Run("scancel", id)
		}},
	}
}

// farFuture is a gated job with a start time ten Julian years and n seconds after its submission.
func farFuture(r *recorder, n int) string {
	r.t.Helper()
	id := r.Submit("true", "-H")
	cmd := r.CommandAs(context.Background(), r.User, "squeue", "-h", "-j", id, "-o", "%V")
	cmd.Env = append(cmd.Env, "SLURM_TIME_FORMAT=%s")
	out, err := output(cmd)
	if err != nil {
		r.t.Fatal(err)
	}
	submitted, err := strconv.Atoi(strings.TrimSpace(out))
	if err != nil {
		r.t.Fatal(err)
	}
	r.Run("scontrol", "update", "JobId="+id, fmt.Sprintf("StartTime=uts%d", submitted+315_576_000+n))
	return id
}

// runningScenes are jobs between their start and their end.
func runningScenes() []scene {
	return []scene{
		{name: "prolog", about: "the node's prolog runs", act: func(r *recorder, _ string) {
			r.hold("prolog")
			id := r.Submit("true")
			r.AwaitJob(id, "CONFIGURING", "RUNNING")
			r.job(id)
		}},
		{name: "running", about: "on one node", act: func(r *recorder, _ string) {
			id := r.runs("-t", "30")
			r.accounted(id, "RUNNING")
			r.job(id)
		}},
		{name: "running-gpus", about: "two nodes with two GPUs each, tasks counted", act: func(r *recorder, _ string) {
			id := r.runs("-N", "2", "--ntasks-per-node=2", "--cpus-per-task=2", "--mem=1G", "--gres=gpu:test:2")
			r.accounted(id, "RUNNING")
			r.job(id)
		}},
		{name: "suspended", about: "by root", act: func(r *recorder, _ string) {
			id := r.runs()
			r.Admin("scontrol", "suspend", id)
			r.AwaitJob(id, "SUSPENDED")
			r.job(id)
		}},
		{name: "completing", about: "cancelled, and the node's epilog runs", act: func(r *recorder, _ string) {
			id := r.runs()
			r.hold("epilog")
			r.Run("scancel", id)
			r.AwaitJob(id, "COMPLETING")
			r.job(id)
		}},
		{name: "running-node-silent", about: "its node's slurmd was killed and has not answered for some seconds", early: func(r *recorder) string {
			return r.runs("-p", "apart", "-w", "n5", "--no-requeue")
		}, act: func(r *recorder, id string) {
			r.KillNode("n5")
			r.AwaitNode("n5", "allocated*", "mixed*")
			r.job(id)
			r.say("sinfo.node", "sinfo", "-h", "-N", "-n", "n5", "-p", "apart", "-o", "%N|%T|%t|%E")
		}},
		{name: "node-fail", about: "the same later: the node is down", act: func(r *recorder, _ string) {
			id := strings.TrimSpace(r.Admin("squeue", "-h", "-t", "all", "-w", "n5", "-o", "%i"))
			r.ended(id, "NODE_FAIL")
			r.say("sinfo.node", "sinfo", "-h", "-N", "-n", "n5", "-p", "apart", "-o", "%N|%T|%t|%E")
			r.StartNode("n5")
		}},
	}
}
