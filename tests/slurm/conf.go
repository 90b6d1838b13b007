package slurm

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// ports of a cluster; they stay the same in all lives of a daemon.
type ports struct {
	controller, database int
	nodes                []int
}

// findPorts looks below the range from which Linux gives ports to callers: a daemon that is down must find its own again.
func (c *Cluster) findPorts() error {
	var free []int
	for range 1000 {
		if len(free) == 2+len(c.Nodes) {
			c.ports = ports{controller: free[0], database: free[1], nodes: free[2:]}
			return nil
		}
		port := 15000 + rand.IntN(17000)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		defer l.Close() // not before all are found, so that none is found twice
		free = append(free, port)
	}
	return fmt.Errorf("cannot find %d free ports", 2+len(c.Nodes))
}

// hostname as Slurm cuts it.
func hostname() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("cannot name this machine: %w", err)
	}
	host, _, _ = strings.Cut(host, ".")
	return host, nil
}

func (c *Cluster) writeConf() error {
	host, err := hostname()
	if err != nil {
		return err
	}
	c.Conf = c.path("slurm.conf")
	for _, dir := range []string{"state", "spool", "log"} {
		if err := root().own(c.path(dir), 0o755); err != nil {
			return fmt.Errorf("cannot configure Slurm: %w", err)
		}
	}
	gres, err := c.fakeGPUs()
	if err != nil {
		return err
	}
	for name, text := range map[string]string{"slurm.conf": c.slurmConf(host), "gres.conf": gres, "cgroup.conf": "CgroupAutomount=no\n"} {
		if err := os.WriteFile(c.path(name), []byte(text), 0o644); err != nil {
			return fmt.Errorf("cannot configure Slurm: %w", err)
		}
	}
	return nil
}

// slurmConf is for daemons that may use no control groups and share one machine.
func (c *Cluster) slurmConf(host string) string {
	o := c.Options
	lines := []string{
		"ClusterName=" + o.Name,
		fmt.Sprintf("SlurmctldHost=%s(127.0.0.1)", host),
		fmt.Sprintf("SlurmctldPort=%d", c.ports.controller),
		"SlurmUser=root",
		"AuthType=auth/munge",
		fmt.Sprintf("AuthInfo=socket=%s,ttl=%d", c.path("munge", "socket"), seconds(o.CredentialTTL)),
		"CommunicationParameters=NoInAddrAny,NoCtldInAddrAny",
		"StateSaveLocation=" + c.path("state"),
		"SlurmdSpoolDir=" + c.path("spool", "%n"),
		"SlurmctldPidFile=" + c.path("slurmctld.pid"),
		"SlurmdPidFile=" + c.path("slurmd-%n.pid"),
		"SlurmctldLogFile=" + c.path("log", "slurmctld.log"),
		"SlurmdLogFile=" + c.path("log", "slurmd-%n.log"),
		"ProctrackType=proctrack/linuxproc",
		"TaskPlugin=task/none",
		"JobAcctGatherType=jobacct_gather/none",
		"SelectType=select/cons_tres",
		"SelectTypeParameters=CR_Core_Memory",
		"DefMemPerCPU=100",
		"SlurmdParameters=config_overrides",
		"MpiDefault=none",
		"ReturnToService=1", // with 2, a node that NodeDown took away would be back at its next word
		fmt.Sprintf("MinJobAge=%d", seconds(o.MinJobAge)),
		fmt.Sprintf("SlurmdTimeout=%d", seconds(o.SlurmdTimeout)),
		fmt.Sprintf("KillWait=%d", seconds(o.KillWait)),
		"PriorityType=priority/multifactor",
		"PreemptType=preempt/partition_prio",
		"PreemptMode=CANCEL",
		"SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2",
		"AccountingStorageType=accounting_storage/none",
	}
	if o.GPUs > 0 {
		lines = append(lines, "GresTypes=gpu")
	}
	if o.Accounting {
		lines = append(lines, "AccountingStorageType=accounting_storage/slurmdbd", "AccountingStorageHost=127.0.0.1",
			fmt.Sprintf("AccountingStoragePort=%d", c.ports.database), "AccountingStoragePass="+c.path("munge", "socket"),
			"AccountingStoreFlags=job_comment")
	}
	for i, name := range c.Nodes {
		line := fmt.Sprintf("NodeName=%s NodeHostname=%s NodeAddr=127.0.0.1 Port=%d CPUs=%d RealMemory=%d State=UNKNOWN", name, host, c.ports.nodes[i], o.CPUs, o.Memory)
		if o.GPUs > 0 {
			line += fmt.Sprintf(" Gres=gpu:test:%d", o.GPUs)
		}
		lines = append(lines, line)
	}
	all := strings.Join(c.Nodes, ",")
	lines = append(lines,
		"PartitionName=batch Nodes="+all+" Default=YES MaxTime=INFINITE DefaultTime=60 State=UP PriorityTier=10",
		"PartitionName=urgent Nodes="+all+" MaxTime=INFINITE DefaultTime=60 State=UP PriorityTier=20")
	return strings.Join(overridden(lines, o.ExtraConf), "\n") + "\n"
}

func seconds(d time.Duration) int { return int(d.Round(time.Second) / time.Second) }

// overridden leaves one line for each key, or for each named node and partition: Slurm complains of doubles in every
// command's standard error.
func overridden(lines []string, extra string) []string {
	key := func(line string) string {
		name, rest, _ := strings.Cut(line, "=")
		name = strings.ToLower(strings.TrimSpace(name))
		if name == "partitionname" || name == "nodename" {
			value, _, _ := strings.Cut(rest, " ")
			name += "=" + value
		}
		return name
	}
	var out []string
	at := map[string]int{}
	for line := range strings.Lines(strings.Join(lines, "\n") + "\n" + extra) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if i, ok := at[key(line)]; ok {
			out[i] = line
			continue
		}
		at[key(line)] = len(out)
		out = append(out, line)
	}
	return out
}

// fakeGPUs makes device files like /dev/null: Slurm wants one for each GPU before it tells jobs which are theirs.
func (c *Cluster) fakeGPUs() (string, error) {
	if c.Options.GPUs == 0 {
		return "", nil
	}
	var conf strings.Builder
	for _, node := range c.Nodes {
		dir := c.path("dev", node)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return "", fmt.Errorf("cannot make device files: %w", err)
		}
		for i := range c.Options.GPUs {
			path := filepath.Join(dir, fmt.Sprintf("gpu%d", i))
			if err := syscall.Mknod(path, syscall.S_IFCHR|0o666, 1<<8|3); err != nil {
				if err := os.WriteFile(path, nil, 0o644); err != nil { // not everywhere may root make devices
					return "", fmt.Errorf("cannot make device files: %w", err)
				}
			}
		}
		fmt.Fprintf(&conf, "NodeName=%s Name=gpu Type=test File=%s/gpu[0-%d]\n", node, dir, c.Options.GPUs-1)
	}
	return conf.String(), nil
}

// need finds the programs of the daemons, some of which are on root's path only.
func need(t TB) map[string]string {
	t.Helper()
	found := map[string]string{}
	missing := func(format string, args ...any) {
		t.Helper()
		if os.Getenv("CI") != "" {
			t.Fatalf("cannot start Slurm: "+format, args...)
		}
		t.Skipf("NOT TESTED: cannot start Slurm: "+format, args...)
	}
	if os.Geteuid() != 0 {
		missing("its daemons run as root")
	}
	packages := map[string]string{"slurmctld": "slurm-wlm", "slurmd": "slurm-wlm", "sbatch": "slurm-wlm", "slurmdbd": "slurmdbd", "munged": "munge",
		"mariadbd": "mariadb-server-core", "setpriv": "util-linux"}
	for name, pkg := range packages {
		path, err := exec.LookPath(name)
		if err != nil {
			path, err = exec.LookPath("/usr/sbin/" + name)
		}
		if err != nil {
			missing("%s of package %s is not installed: `make deps` installs it", name, pkg)
		}
		found[name] = path
	}
	return found
}
