package slurm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"substrate/tests/cluster"
)

// StopController freezes slurmctld: calls wait, and may land after their callers gave up.
func (c *Cluster) StopController() { c.freeze(controller) }

// ContinueController thaws slurmctld.
func (c *Cluster) ContinueController() { c.thaw(controller) }

// KillController ends slurmctld with SIGKILL: calls fail until StartController. Slurm writes what it knows a few
// seconds late: jobs that it took last are forgotten then, their ids are given again, and jobs that had ended may run
// once more. AwaitSaved waits for what must not be lost.
func (c *Cluster) KillController() { c.kill(controller) }

// EndController ends slurmctld with SIGTERM, which makes it write all it knows.
func (c *Cluster) EndController() {
	c.t.Helper()
	c.daemons.wanted(controller, false)
	if _, err := c.mustDaemon(controller).Stop(upWithin); err != nil {
		c.t.Fatalf("%v", err)
	}
}

// AwaitSaved waits until slurmctld has written a text, the name of a job or its comment, where it will find it in
// its next life.
func (c *Cluster) AwaitSaved(text string) {
	c.t.Helper()
	cluster.Until(c.t, upWithin, fmt.Sprintf("the controller to save %q", text), func(context.Context) error {
		data, err := os.ReadFile(c.path("state", "job_state"))
		if err == nil && !bytes.Contains(data, []byte(text)) {
			err = errors.New("it has not")
		}
		return err
	})
}

// StartController starts slurmctld again and returns when it answers.
func (c *Cluster) StartController() {
	c.t.Helper()
	c.restart(controller, "the controller answers", c.controllerUp)
}

// StopNode freezes a node's slurmd, not its jobs.
func (c *Cluster) StopNode(node string) { c.freeze(c.checked(node)) }

// ContinueNode thaws a node's slurmd.
func (c *Cluster) ContinueNode(node string) { c.thaw(c.checked(node)) }

// KillNode ends a node's slurmd with SIGKILL. Its jobs go on, as they do on a machine whose slurmd dies.
func (c *Cluster) KillNode(node string) { c.kill(c.checked(node)) }

// StartNode starts a killed slurmd and returns when the controller has heard from it.
func (c *Cluster) StartNode(node string) {
	c.t.Helper()
	c.restart(c.checked(node), node+" responds", func(ctx context.Context) error {
		state, err := c.nodeState(ctx, node)
		if err == nil && !slices.Contains([]string{"idle", "mixed", "allocated"}, state) {
			err = fmt.Errorf("it is %s", state)
		}
		return err
	})
}

// StopAccounting freezes slurmdbd.
func (c *Cluster) StopAccounting() { c.freeze(accounting) }

// ContinueAccounting thaws slurmdbd.
func (c *Cluster) ContinueAccounting() { c.thaw(accounting) }

// KillAccounting ends slurmdbd with SIGKILL: sacct fails, and the controller keeps what it has to tell.
func (c *Cluster) KillAccounting() { c.kill(accounting) }

// StartAccounting starts a killed slurmdbd and returns when it answers.
func (c *Cluster) StartAccounting() {
	c.t.Helper()
	c.restart(accounting, "slurmdbd answers", c.accountingUp)
}

// NodeDown tells the controller that a node is down: jobs there end as NODE_FAIL.
func (c *Cluster) NodeDown(node string) {
	c.t.Helper()
	c.Admin("scontrol", "update", "NodeName="+c.checked(node), "State=DOWN", "Reason=test")
}

// Resume takes back NodeDown and drains.
func (c *Cluster) Resume(node string) {
	c.t.Helper()
	c.Admin("scontrol", "update", "NodeName="+c.checked(node), "State=RESUME")
}

// NodeState is a node's state as sinfo writes it, in full.
func (c *Cluster) NodeState(node string) string {
	c.t.Helper()
	state, err := c.nodeState(context.Background(), c.checked(node))
	if err != nil {
		c.t.Fatalf("%v", err)
	}
	return state
}

// AwaitNode waits until a node is in one of the states.
func (c *Cluster) AwaitNode(node string, states ...string) {
	c.t.Helper()
	cluster.Until(c.t, upWithin, fmt.Sprintf("node %s to be one of %v", c.checked(node), states), func(ctx context.Context) error {
		state, err := c.nodeState(ctx, node)
		if err == nil && !slices.Contains(states, state) {
			err = fmt.Errorf("it is %s", state)
		}
		return err
	})
}
