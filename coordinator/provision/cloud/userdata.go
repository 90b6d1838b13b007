package cloud

import (
	"fmt"
	"strings"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/provision"
)

// lifeMargin is how much later a machine ends itself than it is to be ended.
const lifeMargin = 10 * time.Minute

// UserData is what an instance runs at its first boot: a script, which cloud-init takes as it is and an image without cloud-init can run too. It
// starts the agent and, once that has ended for good, switches the machine off: the instance is launched such that this ends it, so that one
// which nobody releases costs nothing for long. The token is in the agent's environment alone, never among arguments.
func UserData(r provision.Request, a Agent) ([]byte, error) {
	a = a.withDefaults()
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("#!/bin/sh")
	line("# A node of a Substrate cluster: %s.", strings.Map(printable, r.Boot.Node))
	line("umask 077")
	line("mkdir -p %s", coordinator.ShellWord(a.StateDir))
	line("SUBSTRATED_JOIN_TOKEN=%s", coordinator.ShellWord(r.Boot.Token))
	line("export SUBSTRATED_JOIN_TOKEN")
	line("SUBSTRATED_CLOUD=%s; export SUBSTRATED_CLOUD", coordinator.ShellWord(r.Definition.Kind)) // an agent of before does not know the flag
	line("start() {")
	line("  %s \"$@\" --coordinator %s --node %s --launch %s --state-dir %s --join-within %s", coordinator.ShellWord(a.Program), coordinator.ShellWord(r.Boot.Coordinator),
		coordinator.ShellWord(r.Boot.Node), coordinator.ShellWord(string(r.ID)), coordinator.ShellWord(a.StateDir), a.JoinWithin)
	line("}")
	line("agent() {")
	if r.Boot.Discover { // which an agent of before does not know; what it reports counts too, after a while
		line("  start discover --once; code=$?; [ $code -eq 2 ] || return $code")
	}
	line("  start run")
	line("}")
	// An agent that has joined and is killed is started again: jobs of the node outlive it.
	line("(")
	line("  while agent; code=$?; [ $code -gt 128 ]; do sleep 2; done")
	line("  echo \"substrated has ended with $code\"")
	line("  sync; poweroff || shutdown -h now || poweroff -f")
	line(") </dev/null >>%s 2>&1 &", coordinator.ShellWord(a.StateDir+"/boot.log"))
	if r.Lifetime > 0 { // when neither the coordinator nor the provider ends it
		line("(sleep %d; sync; poweroff || shutdown -h now || poweroff -f) </dev/null >/dev/null 2>&1 &", int64((r.Lifetime + lifeMargin).Seconds()))
	}
	if b.Len() > MaxUserData {
		return nil, fmt.Errorf("cannot make user data of launch %s: %d bytes, more than %d", r.ID, b.Len(), MaxUserData)
	}
	return []byte(b.String()), nil
}

func printable(r rune) rune {
	if r < ' ' || r == 0x7f {
		return '?'
	}
	return r
}
