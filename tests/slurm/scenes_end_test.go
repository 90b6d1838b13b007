package slurm

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"time"
)

// endedScenes are the ways in which jobs end.
func endedScenes() []scene {
	ends := func(state, script string, args ...string) func(*recorder, string) {
		return func(r *recorder, _ string) { r.ended(r.Submit(script, args...), state) }
	}
	return []scene{
		{name: "completed", about: "exit code 0", act: ends("COMPLETED", "true")},
		{name: "failed-exit", about: "exit code 3", act: ends("FAILED", "exit 3")},
		{name: "failed-signal", about: "the script killed itself with SIGKILL", act: ends("FAILED", "kill -9 $$")},
		{name: "failed-output", about: "the output's directory is not there", act: ends("FAILED", "true", "--output=/nonexistent/out")},
		{name: "cancelled-pending", about: "cancelled behind the gate", act: func(r *recorder, _ string) {
			id := r.Submit("true", "-H")
			r.Run("scancel", id)
			r.ended(id, "CANCELLED")
		}},
		{name: "cancelled-running", about: "cancelled while it ran", act: func(r *recorder, _ string) {
			id := r.runs()
			r.Run("scancel", id)
			r.ended(id, "CANCELLED")
		}},
		{name: "cancelled-by-root", about: "cancelled by root while it ran", act: func(r *recorder, _ string) {
			id := r.runs()
			r.Admin("scancel", id)
			r.ended(id, "CANCELLED")
		}},
		{name: "over-memory", about: "used more than its memory, seen by jobacct_gather's OverMemoryKill; without control groups Slurm calls this no OUT_OF_MEMORY", act: ends("FAILED", "exec perl -e '$x = \"x\" x (300 << 20); sleep 60'", "--mem=20")},
		{name: "preempted", about: "made room for a job of a higher partition", act: func(r *recorder, _ string) {
			id := r.runs("-N", "4", "--exclusive", "--no-requeue")
			r.runs("-p", "urgent", "-N", "4", "--exclusive")
			r.ended(id, "PREEMPTED")
		}},
		{name: "requeued", about: "ran, and waits for its second run", act: func(r *recorder, _ string) {
			id := r.runs("--requeue", "--comment=twice")
			r.accounted(id, "RUNNING")
			r.Run("scontrol", "requeue", id)
			r.AwaitJob(id, "PENDING")
			r.accounted(id, "PENDING")
			r.waits(id, "BeginTime")
		}},
		{name: "requeue-hold", about: "requeued and held", act: func(r *recorder, _ string) {
			id := r.runs("--requeue")
			r.Run("scontrol", "requeuehold", id)
			r.AwaitJob(id, "PENDING", "REQUEUE_HOLD")
			r.job(id)
		}},
		{name: "special-exit", about: "requeued, held and marked by its owner", act: func(r *recorder, _ string) {
			id := r.runs("--requeue")
			r.Run("scontrol", "requeuehold", "State=SpecialExit", id)
			r.AwaitJob(id, "SPECIAL_EXIT")
			r.job(id)
		}},
		{name: "timeout", about: "its minute was over; the script traps SIGTERM", early: func(r *recorder) string {
			id := r.Submit("trap 'exit 3' TERM; while :; do sleep 1; done", "-p", "apart", "-w", "n6", "-t", "1")
			r.AwaitJob(id, "RUNNING")
			return id
		}, act: func(r *recorder, id string) { r.ended(id, "TIMEOUT") }},
		{name: "deadline", about: "could not be done by the time that was asked for", early: func(r *recorder) string {
			return r.Submit("true", "-p", "apart", "-w", "n6", "--exclusive", "-t", "1", "--deadline=now+90") // the job before has n6 for too long
		}, act: func(r *recorder, id string) { r.ended(id, "DEADLINE") }},
	}
}

// textScenes are jobs whose texts hold what a parser may stumble over, and jobs of several parts.
func textScenes() []scene {
	comment := func(about, name, text string) scene {
		return scene{name: name, about: about, act: func(r *recorder, _ string) { r.waits(r.Submit("true", "-H", "--comment="+text), "JobHeldUser") }}
	}
	return []scene{
		comment("quotes, bars, equals, backslash, percent, a tab", "text-comment-signs", `a "b" 'c'|d=e \n %s, f`+"\tg"),
		comment("two lines and an empty one", "text-comment-lines", "first\nsecond=2 State=FAILED\n\nlast"),
		comment("UTF-8", "text-comment-utf8", "Größe, 長さ, 😀"),
		comment("1,024 bytes, the most that is taken", "text-comment-longest", strings.Repeat("0123456789abcdef", 64)),
		{name: "text-name-signs", about: "a name with quotes, bars, UTF-8 and a line's end", act: func(r *recorder, _ string) {
			r.waits(r.Submit("true", "-H", "--job-name=a \"b\"|c=d é\nsecond"), "JobHeldUser")
		}},
		{name: "text-accounted", about: "an ended job with name and comment of two lines with bars", act: func(r *recorder, _ string) {
			r.ended(r.Submit("true", "--job-name=a|b\nc", "--comment=d|e\nf"), "COMPLETED")
		}},
		{name: "array-pending", about: "an array of six, at most two at once, behind the gate", act: func(r *recorder, _ string) {
			r.waits(r.Submit("true", "-H", "--array=1-6%2"), "JobHeldUser")
		}},
		{name: "array-mixed", about: "an array: one failed, two run, three wait for them", act: func(r *recorder, _ string) {
			id := r.Submit("[ $SLURM_ARRAY_TASK_ID = 1 ] && exit 4; sleep 600", "--array=1-6%2")
			r.AwaitJob(id+"_3", "RUNNING")
			r.AwaitJob(id+"_1", "FAILED")
			r.job(id)
			r.say("squeue.each", "squeue", "-h", "-r", "-t", "all", "-j", id, "-o", squeueLine)
		}},
		{name: "het-running", about: "a job of two parts of different kinds", act: func(r *recorder, _ string) {
			id := r.Submit("sleep 600", "-n", "1", "--mem=50", ":", "-n", "2", "--mem=60")
			r.AwaitJob(id+"+0", "RUNNING")
			r.job(id)
		}},
	}
}

// listScenes are about the cluster, not a job.
func listScenes() []scene {
	return []scene{
		{name: "list-config", about: "the cluster's settings and partitions", act: func(r *recorder, _ string) {
			r.say("scontrol.config", "scontrol", "show", "config")
			r.say("scontrol.partitions", "scontrol", "-o", "show", "partition")
			r.say("scontrol.ping", "scontrol", "ping")
			r.say("scontrol.version", "scontrol", "--version")
			r.say("sinfo.partitions", "sinfo", "-h", "-o", "%P|%a|%l|%D|%T|%N|%G")
		}},
		{name: "list-nodes", about: "nodes that are idle, mixed, allocated, drained, draining and down", act: func(r *recorder, _ string) {
			r.runs("-w", "n2")
			r.runs("-w", "n3", "--exclusive")
			r.runs("-w", "n4")
			r.Admin("scontrol", "update", "NodeName=n4", "State=DRAIN", "Reason=repair it")
			r.Admin("scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=idle")
			r.NodeDown("n6")
			defer func() { r.Resume("n1"); r.Resume("n4"); r.Resume("n6") }()
			r.say("sinfo.nodes", "sinfo", "-h", "-N", "-o", "%N|%P|%T|%t|%c|%C|%m|%e|%G|%E|%H|%u")
			r.say("sinfo.partitions", "sinfo", "-h", "-o", "%P|%a|%l|%D|%T|%N|%G")
			r.say("scontrol.nodes", "scontrol", "-o", "show", "node")
			r.say("scontrol.node", "scontrol", "-o", "show", "node", "n3")
			r.say("scontrol.node.unknown", "scontrol", "-o", "show", "node", "n99")
		}},
		{name: "list-json", about: "what speaks JSON: one job waits, one runs; squeue's filters do not count", act: func(r *recorder, _ string) {
			id, other := r.Submit("true", "-H"), r.runs("--comment=é \"x\"")
			r.accounted(other, "RUNNING")
			r.say("squeue.json", "squeue", "--json", "-j", id)
			r.say("sinfo.json", "sinfo", "--json")
			r.say("sacct.json", "sacct", "--json", "-j", other)
			r.say("scontrol.json", "scontrol", "show", "job", id, "--json")
		}},
		{name: "list-many", about: "several ids in one squeue: ended, waiting, unknown", act: func(r *recorder, _ string) {
			a, b := r.Submit("true"), r.Submit("true", "-H")
			r.AwaitJob(a, "COMPLETED")
			r.say("squeue.line", "squeue", "-h", "-t", "all", "-j", a+","+b+",4000001", "-o", squeueLine)
			r.say("squeue.columns", "squeue", "-h", "-t", "all", "-j", a+","+b+",4000001", "-O", squeueColumns)
		}},
	}
}

// errorScenes are refusals, each with its exit code.
func errorScenes() []scene {
	sbatch := func(r *recorder, name string, args ...string) {
		cmd := r.CommandAs(context.Background(), r.User, "sbatch", append([]string{"--parsable"}, args...)...)
		cmd.Stdin = strings.NewReader("#!/bin/sh\ntrue\n")
		r.tell("sbatch."+name, cmd)
	}
	return []scene{
		{name: "sbatch", about: "submissions that are taken", act: func(r *recorder, _ string) {
			sbatch(r, "parsable", "-H")
			r.say("sbatch.plain", "sbatch", "-H", "--wrap=true")
			sbatch(r, "warning", "-H", "-p", "small", "-N", "2")
			r.say("sbatch.test", "sbatch", "--test-only", "--wrap=true")
		}},
		{name: "errors-sbatch", about: "submissions that are refused", act: func(r *recorder, _ string) {
			for _, e := range [][]string{
				{"partition", "-p", "none"}, {"nodes", "-N", "99"}, {"node", "-w", "n99"}, {"memory", "--mem=1T"}, {"cpus", "-n", "1000"},
				{"gres", "--gres=gpu:9"}, {"gres-kind", "--gres=fpga:1"}, {"constraint", "-C", "fast"}, {"licence", "-L", "none:1"}, {"time", "-t", "soon"}, {"begin", "--begin=yesterdayish"},
				{"dependency", "-d", "afterok:4000001"}, {"dependency-form", "-d", "whenever"}, {"reservation", "--reservation=none"}, {"qos", "--qos=none"},
				{"option", "--no-such-option"}, {"comment", "--comment=" + strings.Repeat("x", 1025)}, {"array", "--array=1-99999999"}, {"uid", "--uid=0"}, {"deadline", "--deadline=2020-01-01"},
			} {
				sbatch(r, e[0], e[1:]...)
			}
			r.say("sbatch.file", "sbatch", "/nonexistent/script")
			cmd := r.CommandAs(context.Background(), r.User, "sbatch")
			cmd.Stdin = strings.NewReader("true\n")
			r.tell("sbatch.shebang", cmd)
			cmd = r.CommandAs(context.Background(), r.User, "sbatch")
			cmd.Stdin = strings.NewReader("")
			r.tell("sbatch.empty", cmd)
		}},
		{name: "errors-jobs", about: "calls about jobs that are refused or mean nothing", act: refusedCalls},
	}
}

func refusedCalls(r *recorder, _ string) {
	const unknown = "4000001"
	ended, runs, held := r.Submit("true", "--no-requeue"), r.runs("--no-requeue"), r.Submit("true", "-H")
	r.AwaitJob(ended, "COMPLETED")
	for _, id := range []struct{ name, id string }{{"ended", ended}, {"running", runs}, {"unknown", unknown}} {
		r.say("scontrol.hold."+id.name, "scontrol", "hold", id.id)
		r.say("scontrol.release."+id.name, "scontrol", "release", id.id)
		r.say("scontrol.begin."+id.name, "scontrol", "update", "JobId="+id.id, "StartTime=now+60")
		r.say("scontrol.requeue."+id.name, "scontrol", "requeue", id.id)
		r.say("scontrol.bit."+id.name, "scontrol", "update", "JobId="+id.id, "Requeue=0")
	}
	r.say("scontrol.begin.past", "scontrol", "update", "JobId="+held, "StartTime=uts999999")
	r.say("scontrol.job.unknown", "scontrol", "-o", "show", "job", unknown)
	r.say("squeue.unknown", "squeue", "-h", "-t", "all", "-j", unknown, "-o", squeueLine)
	r.say("squeue.unknown.two", "squeue", "-h", "-t", "all", "-j", unknown+",4000002", "-o", squeueLine)
	r.say("squeue.name", "squeue", "-h", "-t", "all", "-n", "nosuchname", "-o", squeueLine)
	r.say("sacct.unknown", "sacct", "-n", "-P", "-j", unknown, "-o", sacctLine)
	r.say("sacct.field", "sacct", "-n", "-P", "-j", unknown, "-o", "NoSuchField")
	other := func(name string, args ...string) {
		r.tell(name, r.CommandAs(context.Background(), r.Other, args[0], args[1:]...))
	}
	other("scancel.others", "scancel", runs)
	other("scontrol.hold.others", "scontrol", "hold", held)
	other("scontrol.begin.others", "scontrol", "update", "JobId="+runs, "StartTime=now+60")
	other("scontrol.requeue.others", "scontrol", "requeue", runs)
	kept := r.Submit("true", "-H")
	r.Admin("scontrol", "release", kept)
	r.Admin("scontrol", "hold", kept)
	r.say("scontrol.release.admin", "scontrol", "release", kept)
	for _, id := range []struct{ name, id string }{{"ended", ended}, {"unknown", unknown}, {"held", held}} {
		r.say("scancel."+id.name, "scancel", id.id)
	}
}

// awayScenes are what commands say when a daemon is not there.
func awayScenes() []scene {
	ask := func(r *recorder, id string) {
		r.say("squeue", "squeue", "-h", "-o", squeueLine)
		r.say("scontrol.job", "scontrol", "-o", "show", "job", id)
		r.say("scontrol.update", "scontrol", "update", "JobId="+id, "StartTime=now+60")
		r.say("scontrol.release", "scontrol", "release", id)
		r.say("scontrol.requeue", "scontrol", "requeue", id)
		r.say("scontrol.config", "scontrol", "show", "config")
		r.say("scontrol.ping", "scontrol", "ping")
		r.say("scancel", "scancel", id)
		r.say("sinfo", "sinfo", "-h")
		r.say("sbatch", "sbatch", "-H", "--wrap=true")
	}
	return []scene{
		{name: "away-controller", about: "slurmctld is dead: nobody listens", act: func(r *recorder, _ string) {
			id := r.Submit("true", "-H")
			r.EndController()
			defer r.StartController()
			ask(r, id)
		}},
		{name: "away-controller-frozen", about: "slurmctld is stopped: it listens and does not answer", act: func(r *recorder, _ string) {
			id := r.Submit("true", "-H")
			r.StopController()
			defer r.ContinueController()
			r.say("squeue", "squeue", "-h", "-o", squeueLine)
			r.say("scontrol.update", "scontrol", "update", "JobId="+id, "StartTime=now+60")
			r.say("scancel", "scancel", id)
		}},
		{name: "away-late-credential", about: "a call reached slurmctld after its credential's time", act: func(r *recorder, _ string) {
			id := r.Submit("true", "-H")
			r.StopController()
			go func() {
				time.Sleep(r.Options.CredentialTTL + 2*time.Second)
				r.ContinueController()
			}()
			r.say("scontrol.update", "scontrol", "update", "JobId="+id, "StartTime=now+60")
			r.say("squeue", "squeue", "-h", "-t", "all", "-j", id, "-o", squeueLine)
		}},
		{name: "away-accounting", about: "slurmdbd is dead", act: func(r *recorder, _ string) {
			id := r.Submit("true", "-H")
			r.KillAccounting()
			defer r.StartAccounting()
			r.say("sacct", "sacct", "-n", "-P", "-j", id, "-o", sacctLine)
			r.say("sacctmgr", "sacctmgr", "-n", "-P", "show", "cluster")
			r.say("sbatch", "sbatch", "-H", "--wrap=true")
		}},
		{name: "away-no-accounting", about: "a cluster without accounting", act: func(r *recorder, _ string) {
			without := Start(r.t, Options{Nodes: 1, GPUs: -1})
			cmd := without.CommandAs(context.Background(), without.User, "sacct", "-n", "-P", "-o", sacctLine)
			r.tell("sacct", cmd)
			r.tell("scontrol.config", without.CommandAs(context.Background(), without.User, "scontrol", "show", "config"))
		}},
		{name: "away-munge", about: "munged is not there", act: func(r *recorder, _ string) {
			cmd := r.CommandAs(context.Background(), r.User, "env", "SLURM_CONF="+r.confWithoutMunge(), "squeue", "-h")
			r.tell("squeue", cmd)
		}},
		{name: "away-conf", about: "no slurm.conf is found", act: func(r *recorder, _ string) {
			cmd := exec.Command("squeue", "-h")
			cmd.Env = []string{"PATH=/usr/bin:/bin", "SLURM_CONF=/nonexistent/slurm.conf"}
			r.tell("squeue", cmd)
		}},
	}
}

// confWithoutMunge is the cluster's settings with a socket where nobody listens.
func (r *recorder) confWithoutMunge() string {
	r.t.Helper()
	path := r.path("home", r.User.Name, "slurm.conf")
	text := strings.ReplaceAll(r.slurmConf("localhost"), r.path("munge", "socket"), r.path("munge", "nobody"))
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
	return path
}
