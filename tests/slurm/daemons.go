package slurm

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"substrate/tests/cluster"
)

// Names of daemons; a node's is its own.
const (
	munge      = "munged"
	mariadb    = "mariadbd"
	accounting = "slurmdbd"
	controller = "slurmctld"
)

// daemons are a cluster's processes by name.
type daemons struct {
	mu     sync.Mutex
	named  map[string]*cluster.Process
	killed map[string]bool // their death is wanted
}

func newDaemons() *daemons {
	return &daemons{named: map[string]*cluster.Process{}, killed: map[string]bool{}}
}

func (d *daemons) put(name string, p *cluster.Process) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.named[name] = p
}

func (d *daemons) get(name string) *cluster.Process {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.named[name]
}

// names are sorted.
func (d *daemons) names() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.named))
}

func (d *daemons) wanted(name string, alive bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.killed[name] = !alive
}

// dead is the name of a daemon that was started and should live.
func (d *daemons) dead() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(d.named)) {
		if !d.killed[name] && !d.named[name].Running() {
			return name
		}
	}
	return ""
}

func (d *daemons) killAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.named {
		p.Kill()
	}
}

// makeDir makes the cluster's directory, says whose it is and sets a watchdog at it.
func (c *Cluster) makeDir() (err error) {
	if c.Dir, err = os.MkdirTemp("", dirPrefix); err != nil {
		return fmt.Errorf("cannot make a directory: %w", err)
	}
	if err := os.Chmod(c.Dir, 0o755); err != nil {
		return fmt.Errorf("cannot make a directory: %w", err)
	}
	if len(c.Dir) > 80 {
		return fmt.Errorf("cannot use directory %s: the name of a socket in it would be longer than Linux allows; set TMPDIR", c.Dir)
	}
	if err := writeOwner(c.Dir); err != nil {
		return err
	}
	c.watchdog, err = watch(c.Dir)
	return err
}

// startDaemons starts what others need first; what does not depend on one another starts together.
func (c *Cluster) startDaemons() error {
	together := []func() error{c.startMunge}
	if c.Options.Accounting {
		together = append(together, c.startDatabase)
	}
	if err := all(together...); err != nil {
		return err
	}
	if c.Options.Accounting {
		if err := c.startAccounting(); err != nil {
			return err
		}
	}
	if err := c.start(controller, nil, nil, "-D", "-f", c.Conf); err != nil {
		return err
	}
	for _, node := range c.Nodes {
		if err := c.start(node, nil, nil, "-D", "-N", node, "-f", c.Conf); err != nil {
			return err
		}
	}
	return c.poll("Slurm's nodes are idle", c.allIdle)
}

func all(steps ...func() error) error {
	errs := make([]error, len(steps))
	var wg sync.WaitGroup
	for i, step := range steps {
		wg.Go(func() { errs[i] = step() })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// start makes a daemon known by its name and starts it.
func (c *Cluster) start(name string, env []string, as *syscall.Credential, args ...string) error {
	program := name
	if slices.Contains(c.Nodes, name) {
		program = "slurmd"
	}
	p := cluster.NewProcess(name, c.path(name+".out"), append([]string{"SLURM_CONF=" + c.Conf, "TZ=UTC"}, env...), as, append([]string{c.programs[program]}, args...)...)
	c.daemons.put(name, p)
	return p.Launch()
}

// startMunge authenticates Slurm's messages. It wants an account that is not root, and directories of that account alone.
func (c *Cluster) startMunge() error {
	as, err := account("munge")
	if err != nil {
		return err
	}
	dir := c.path("munge")
	if err := as.own(dir, 0o755); err != nil {
		return fmt.Errorf("cannot start munge: %w", err)
	}
	key := make([]byte, 128)
	_, _ = rand.Read(key) // never fails
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, err := range []error{os.WriteFile(at("key"), key, 0o400), os.Chown(at("key"), int(as.UID), int(as.GID))} {
		if err != nil {
			return fmt.Errorf("cannot start munge: %w", err)
		}
	}
	if err := c.start(munge, nil, as.credential(), "--foreground", "--key-file="+at("key"), "--socket="+at("socket"), "--pid-file="+at("pid"),
		"--log-file="+at("log"), "--seed-file="+at("seed"), "--num-threads=4"); err != nil {
		return err
	}
	return c.poll("munge answers", func(context.Context) error { return answers(at("socket")) })
}

// answers reports whether somebody listens at a socket.
func answers(socket string) error {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	return conn.Close()
}

// databaseArgs are for a database that is thrown away: small, and never waiting for the disk. Its socket is in a
// directory that only root may enter, so it needs no accounts.
func (c *Cluster) databaseArgs() []string {
	return []string{"--no-defaults", "--user=root", "--datadir=" + c.path("db", "data"), "--tmpdir=" + c.path("db", "data"), "--skip-grant-tables", "--skip-networking", "--skip-log-bin",
		"--performance-schema=OFF", "--innodb-log-file-size=8M", "--innodb-buffer-pool-size=32M", "--innodb-flush-log-at-trx-commit=0",
		"--innodb-flush-method=nosync", "--aria-sync-log-dir=NEVER", "--sync-frm=0"}
}

// systemTables is where the distributions keep the statements that make MariaDB's own tables.
const systemTables = "/usr/share/mysql/mysql_system_tables.sql"

func (c *Cluster) startDatabase() error {
	for _, dir := range []string{c.path("db"), c.path("db", "data"), c.path("db", "data", "mysql")} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return fmt.Errorf("cannot make the database: %w", err)
		}
	}
	tables, err := os.ReadFile(systemTables)
	if err != nil {
		return fmt.Errorf("cannot make the database: %w", err)
	}
	args := c.databaseArgs()
	cmd := exec.Command(c.programs[mariadb], append(slices.Clip(args), "--bootstrap")...)
	cmd.Stdin = strings.NewReader("use mysql;\n" + string(tables) + "\ncreate database slurm;\n")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot make the database: %w: %s", err, out)
	}
	socket := c.path("db", "socket")
	if err := c.start(mariadb, nil, nil, append(args, "--socket="+socket, "--pid-file="+c.path("db", "pid"))...); err != nil {
		return err
	}
	return c.poll("the database answers", func(context.Context) error { return answers(socket) })
}

func (c *Cluster) startAccounting() error {
	host, err := hostname()
	if err != nil {
		return err
	}
	conf := fmt.Sprintf(`AuthType=auth/munge
AuthInfo=socket=%[1]s/munge/socket
DbdHost=%[2]s
DbdAddr=127.0.0.1
DbdPort=%[3]d
SlurmUser=root
PidFile=%[1]s/slurmdbd.pid
LogFile=%[1]s/log/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm
CommitDelay=1
`, c.Dir, host, c.ports.database)
	if err := os.WriteFile(c.path("slurmdbd.conf"), []byte(conf), 0o600); err != nil {
		return fmt.Errorf("cannot configure slurmdbd: %w", err)
	}
	if err := c.start(accounting, []string{"MYSQL_UNIX_PORT=" + c.path("db", "socket")}, nil, "-D"); err != nil {
		return err
	}
	return c.poll("slurmdbd answers", c.accountingUp)
}

// poll waits for a condition as long as every daemon lives.
func (c *Cluster) poll(what string, done func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), upWithin)
	defer cancel()
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		err := done(ctx)
		if err == nil {
			return nil
		}
		if name := c.daemons.dead(); name != "" {
			return fmt.Errorf("cannot wait until %s: %s ended: %s", what, name, c.daemons.get(name).LastWords())
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("cannot wait any longer until %s: %w", what, err)
		case <-time.After(pause):
		}
	}
}

// portTaken reports whether a daemon died because of somebody else's.
func (c *Cluster) portTaken() bool {
	logs, _ := filepath.Glob(c.path("*.out")) // the pattern is well formed
	for _, name := range logs {
		if data, err := os.ReadFile(name); err == nil && strings.Contains(string(data), "Address already in use") {
			return true
		}
	}
	return false
}

func (c *Cluster) accountingUp(ctx context.Context) error {
	_, err := output(c.command(ctx, root(), "", "sacctmgr", "-n", "-P", "show", "cluster", "format=cluster"))
	return err
}

func (c *Cluster) controllerUp(ctx context.Context) error {
	_, err := output(c.command(ctx, root(), "", "sinfo", "-h"))
	return err
}

func (c *Cluster) allIdle(ctx context.Context) error {
	out, err := output(c.command(ctx, root(), "", "sinfo", "-h", "-N", "-o", "%N %T"))
	if err != nil {
		return err
	}
	idle := map[string]bool{}
	for line := range strings.Lines(out) {
		if name, state, _ := strings.Cut(strings.TrimSpace(line), " "); state == "idle" {
			idle[name] = true
		}
	}
	if len(idle) != len(c.Nodes) {
		return fmt.Errorf("%d of %d nodes are idle:\n%s", len(idle), len(c.Nodes), out)
	}
	return nil
}

// logs tells the last words of all daemons.
func (c *Cluster) logs() {
	outs, _ := filepath.Glob(c.path("*.out")) // the patterns are well formed
	logs, _ := filepath.Glob(c.path("log", "*.log"))
	for _, name := range append(outs, logs...) {
		data, err := os.ReadFile(name)
		if err != nil || len(data) == 0 {
			continue
		}
		c.t.Logf("end of %s:\n%s", strings.TrimPrefix(name, c.Dir+"/"), data[max(0, len(data)-4000):])
	}
}

// close kills all that was started, jobs too, and removes the directory.
func (c *Cluster) close() {
	if c.t.Failed() {
		c.logs()
	}
	c.daemons.killAll()
	if c.Dir == "" {
		return
	}
	if err := remove(c.Dir); err != nil {
		c.t.Logf("%v", err)
	}
	c.watchdog.dismiss()
}

// checked is a node's name; one that is not there is a mistake of the test.
func (c *Cluster) checked(node string) string {
	c.t.Helper()
	if !slices.Contains(c.Nodes, node) {
		c.t.Fatalf("cannot find node %s: there are %v", node, c.Nodes)
	}
	return node
}

func (c *Cluster) freeze(name string) {
	c.t.Helper()
	c.mustDaemon(name).Signal(syscall.SIGSTOP)
}

func (c *Cluster) thaw(name string) {
	c.t.Helper()
	c.mustDaemon(name).Signal(syscall.SIGCONT)
}

func (c *Cluster) kill(name string) {
	p := c.mustDaemon(name)
	c.daemons.wanted(name, false)
	p.Kill()
}

func (c *Cluster) mustDaemon(name string) *cluster.Process {
	c.t.Helper()
	p := c.daemons.get(name)
	if p == nil {
		c.t.Fatalf("cannot find daemon %s: this cluster runs without", name)
	}
	return p
}

// restart starts a daemon that was killed, with the arguments of its first life.
func (c *Cluster) restart(name, what string, up func(context.Context) error) {
	c.t.Helper()
	if p := c.mustDaemon(name); p.Running() {
		c.t.Fatalf("cannot start %s: it runs", name)
	}
	if err := c.relaunch(name); err != nil {
		c.t.Fatalf("%v", err)
	}
	if err := c.poll(what, up); err != nil {
		c.t.Fatalf("%v", err)
	}
}

// nodeState is the state of a node, which sinfo tells once for each of its partitions.
func (c *Cluster) nodeState(ctx context.Context, node string) (string, error) {
	out, err := output(c.command(ctx, root(), "", "sinfo", "-h", "-N", "-n", node, "-o", "%T"))
	state, _, _ := strings.Cut(out, "\n")
	return strings.TrimSpace(state), err
}
