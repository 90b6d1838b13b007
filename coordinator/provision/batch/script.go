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

func (p *Provisioner) spec(r provision.Request) (dispatch.Spec, error) {
	w, ok := spec.RequestOf(r.Definition.Spec)
	if !ok || w.Mode == spec.ModeNative {
		return dispatch.Spec{}, fmt.Errorf("definition %s is of kind %s, mode %q, and has no pilots", r.Definition.ID, r.Definition.Kind, w.Mode)
	}
	return dispatch.Spec{
		Ref: dispatch.Ref{Job: p.job(r.ID), Submission: 1, Attempt: 1}, Name: r.Boot.Node, Script: p.script(r),
		Nodes: max(r.Nodes, 1), Cores: w.CPU, Memory: w.Memory, GPUs: w.GPUs, Walltime: r.Lifetime,
		Queue: w.Queue, Account: w.Account, QoS: w.QOS, Constraint: w.Constraint, Extra: w.ExtraDirectives, Output: &dispatch.Output{Merge: true},
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
	line("  node=%s", coordinator.ShellWord(r.Boot.Node))
	if r.Nodes > 1 {
		line(`  node=$node-${SLURM_PROCID:-${PBS_NODENUM:-0}}`)
	}
	line(`  dir=$(mktemp -d "${TMPDIR:-/tmp}/substrate-pilot.XXXXXXXX") || exit 73`)
	more := ""
	if p.opt.Pilot.SiteIdentity {
		more = " --run-as-caller"
	}
	line(`  %s run --coordinator %s --node "$node" --launch %s --state-dir "$dir" --join-within %s%s &`,
		coordinator.ShellWord(p.opt.Pilot.Agent), coordinator.ShellWord(r.Boot.Coordinator), coordinator.ShellWord(string(r.ID)), p.opt.Pilot.JoinWithin, more)
	line("  agent=$!")
	line("  trap 'kill -TERM $agent 2>/dev/null' TERM INT")
	line("  wait $agent; code=$?")
	line("  while kill -0 $agent 2>/dev/null; do wait $agent; code=$?; done")
	line(`  rm -rf "$dir"`)
	line("  exit $code")
	line("}")
	line("export SUBSTRATED_JOIN_TOKEN=%s", coordinator.ShellWord(r.Boot.Token))
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
