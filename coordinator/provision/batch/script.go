package batch

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/dispatch"
	"substrate/coordinator/provision"
	"substrate/coordinator/spec"
)

// Pilot is how an agent is started on a node of the batch system.
type Pilot struct {
	Agent string // the agent's program there; default substrated, from PATH
	// JoinWithin is how long an agent tries to reach the coordinator before the pilot ends; default 10 min.
	JoinWithin time.Duration
	// SiteIdentity has jobs run as the account that submits the pilot, whoever they belong to.
	SiteIdentity bool
}

func (p Pilot) withDefaults() Pilot {
	p.Agent = cmp.Or(p.Agent, "substrated")
	p.JoinWithin = cmp.Or(p.JoinWithin, 10*time.Minute)
	return p
}

// wish is what of a definition goes into a submission, for either kind.
type wish struct {
	cores           coordinator.Cores
	memory          coordinator.Bytes
	gpus, nodes     uint32
	queue, account  string
	qos, constraint string
	mode            spec.Mode
	extra           []string
}

func wishOf(d *coordinator.Definition) (wish, error) {
	switch s := d.Spec.(type) {
	case spec.Slurm:
		return wish{s.CPU, s.Memory, s.GPUs, s.Nodes, s.Partition, s.Account, s.QOS, s.Constraint, s.Mode, s.ExtraDirectives}, nil
	case spec.PBS:
		return wish{s.CPU, s.Memory, s.GPUs, s.Nodes, s.Queue, s.Project, "", "", s.Mode, s.ExtraDirectives}, nil
	}
	return wish{}, fmt.Errorf("definition %s is of kind %s, not of a batch system", d.ID, d.Kind)
}

func (p *Provisioner) spec(r provision.Request) (dispatch.Spec, error) {
	w, err := wishOf(&r.Definition)
	if err != nil {
		return dispatch.Spec{}, err
	}
	if w.mode == spec.ModeNative {
		return dispatch.Spec{}, fmt.Errorf("mode native is not built")
	}
	return dispatch.Spec{
		Ref: dispatch.Ref{Job: p.job(r.ID), Submission: 1, Attempt: 1}, Name: r.Boot.Node, Script: p.script(r),
		Nodes: max(r.Nodes, 1), Cores: w.cores, Memory: w.memory, GPUs: w.gpus, Walltime: r.Lifetime,
		Queue: w.queue, Account: w.account, QoS: w.qos, Constraint: w.constraint, Extra: w.extra, Output: &dispatch.Output{Merge: true},
	}, nil
}

// script is what a pilot runs. The token is in the environment of the agent alone, which takes it out of it at once: arguments are for everybody
// to see. The agent's directory goes with the pilot.
func (p *Provisioner) script(r provision.Request) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("#!/bin/bash")
	line("# A node of a Substrate cluster for as long as this job runs: an agent that joins as %s.", r.Boot.Node)
	line("umask 077")
	line("member() {")
	line("  node=%s", quote(r.Boot.Node))
	if r.Nodes > 1 {
		line(`  node=$node-${SLURM_PROCID:-${PBS_NODENUM:-0}}`)
	}
	line(`  dir=$(mktemp -d "${TMPDIR:-/tmp}/substrate-pilot.XXXXXXXX") || exit 73`)
	more := ""
	if p.opt.Pilot.SiteIdentity {
		more = " --run-as-caller"
	}
	line(`  %s run --coordinator %s --node "$node" --launch %s --state-dir "$dir" --join-within %s%s &`,
		quote(p.opt.Pilot.Agent), quote(r.Boot.Coordinator), quote(string(r.ID)), p.opt.Pilot.JoinWithin, more)
	line("  agent=$!")
	line("  trap 'kill -TERM $agent 2>/dev/null' TERM INT")
	line("  wait $agent; code=$?")
	line("  while kill -0 $agent 2>/dev/null; do wait $agent; code=$?; done")
	line(`  rm -rf "$dir"`)
	line("  exit $code")
	line("}")
	line("export SUBSTRATED_JOIN_TOKEN=%s", quote(r.Boot.Token))
	switch {
	case r.Nodes <= 1:
		line("member")
	case p.opt.Kind == spec.KindSlurm:
		line(`export SUBSTRATE_PILOT="$(declare -f member)"`) // srun passes variables on, and no functions
		line("exec srun --nodes=%d --ntasks=%d --ntasks-per-node=1 --kill-on-bad-exit=0 --mpi=none --export=ALL bash -c 'eval \"$SUBSTRATE_PILOT\"; unset SUBSTRATE_PILOT; member'", r.Nodes, r.Nodes)
	default: // the environment does not travel here: a file that only its owner reads, in the home directory that nodes share
		line(`file=$(mktemp "$HOME/.substrate-pilot.XXXXXXXX") || exit 73`)
		line(`{ declare -f member; declare -p SUBSTRATED_JOIN_TOKEN; echo member; } >"$file"`)
		line(`trap 'rm -f "$file"' EXIT`)
		line(`command -v pbsdsh >/dev/null || PATH=$PATH:$(. /etc/pbs.conf 2>/dev/null; echo "${PBS_EXEC:-/opt/pbs}/bin")`)
		line(`pbsdsh -- /bin/bash "$file"`)
	}
	return b.String()
}

// quote makes one word of a shell's.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
