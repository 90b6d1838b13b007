package slurm

import (
	"os"
	"testing"
)

// TestPool: a cluster that a test left in a bad way serves the next one as if new.
func TestPool(t *testing.T) {
	var pool Pool
	t.Cleanup(pool.Close)
	opt := Options{Nodes: 2, GPUs: -1}
	var first string
	t.Run("wrecks", func(t *testing.T) {
		c := pool.Start(t, opt)
		first = c.Dir
		c.Submit("trap '' TERM; sleep 300 & wait", "-w", "n1")
		c.Submit("true", "-H")
		c.NodeDown("n2")
		c.LoseReply("squeue", 3)
		c.KillNode("n1")
		c.StopController()
	})
	t.Run("finds all in order", func(t *testing.T) {
		c := pool.Start(t, opt)
		if c.Dir != first {
			t.Errorf("the cluster is %s, wanted %s again", c.Dir, first)
		}
		if n := c.Calls("sbatch"); n != 0 {
			t.Errorf("%d calls are remembered", n)
		}
		if out := c.Run("squeue", "-h"); out != "" {
			t.Errorf("jobs are left:\n%s", out)
		}
		a, b := c.Submit("true", "-w", "n1"), c.Submit("true", "-w", "n2")
		c.AwaitJob(a, "COMPLETED")
		c.AwaitJob(b, "COMPLETED")
		other := pool.Start(t, opt)
		if other.Dir == c.Dir {
			t.Error("two have one cluster at once")
		}
	})
	pool.Close()
	if _, err := os.Stat(first); !os.IsNotExist(err) {
		t.Errorf("the pool's cluster is left: %v", err)
	}
}
