package pbs

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestMain(m *testing.M) {
	if os.Getenv("SUBSTRATE_PEERS") != "full" && os.Getenv("RAPID_CHECKS") == "" {
		if err := flag.Set("rapid.checks", "25"); err != nil { // each case is some twenty processes
			panic(err)
		}
	}
	os.Exit(Main(m))
}

// until waits for a condition. Tests of processes need a limit, not a measure.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (p *Peer) line(id, attribute string) string {
	out := p.Run("", "qstat", "-x", "-f", "-w", id)
	for l := range strings.Lines(out.Stdout) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(l), attribute+" = "); ok {
			return v
		}
	}
	return ""
}

// is waits until a job's attribute has a value.
func (p *Peer) is(t *testing.T, id, attribute, value string) {
	t.Helper()
	last := ""
	until(t, id+"'s "+attribute+" is "+value, func() bool { last = p.line(id, attribute); return last == value })
}

// sub submits a job of alice and returns its id.
func (p *Peer) sub(t *testing.T, args ...string) string {
	t.Helper()
	out := p.Run("", "qsub", args...)
	if out.Code != 0 {
		t.Fatalf("qsub %q: %d %s", args, out.Code, out.Stderr)
	}
	return strings.TrimSpace(out.Stdout)
}

func TestSubmitRunFinish(t *testing.T) {
	p := Start(t, Options{History: true})
	t.Chdir(t.TempDir())
	id := p.sub(t, "-N", "hi", "-l", "select=1:ncpus=1", "--", "/bin/sh", "-c", "echo hello; hostname; pwd >&2")
	if id != "0.vm" {
		t.Errorf("the first id is %s", id)
	}
	p.is(t, id, "job_state", "F")
	if s := p.line(id, "Exit_status"); s != "0" {
		t.Errorf("Exit_status %q", s)
	}
	data, err := os.ReadFile("hi.o0")
	if err != nil || string(data) != "hello\nn1\n" {
		t.Errorf("output %q, %v", data, err)
	}
	if data, err = os.ReadFile("hi.e0"); err != nil || len(data) < 2 {
		t.Errorf("errors %q, %v", data, err)
	}
}

func TestWhatAJobSees(t *testing.T) {
	p := Start(t, Options{History: true})
	dir := t.TempDir()
	t.Chdir(dir)
	script := "#!/bin/bash\n#PBS -l select=2:ncpus=2:mpiprocs=2+1:ncpus=1 -l place=scatter\n#PBS -j oe -N env\n" +
		"echo \"$PBS_JOBID $PBS_JOBNAME $PBS_QUEUE $NCPUS $PBS_ENVIRONMENT $A\"\necho $PBS_O_WORKDIR\ntr '\\n' ' ' < $PBS_NODEFILE\necho\numask\n"
	if err := os.WriteFile("j.sh", []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	id := p.sub(t, "-v", `A='x,y "z"'`, "j.sh")
	p.is(t, id, "job_state", "F")
	data, err := os.ReadFile("env.o0")
	want := "0.vm env workq 2 PBS_BATCH x,y \"z\"\n" + dir + "\nn1 n1 n2 n2 n3 \n0077\n"
	if err != nil || !strings.Contains(want, strings.TrimSpace(string(data))) || len(data) < 20 {
		t.Errorf("the job saw %q (%v), wanted %q", data, err, want)
	}
}

// TestRoomIsKept: never more jobs on a node than it has room for, and all of them in the end.
func TestRoomIsKept(t *testing.T) {
	t.Parallel()
	p := Start(t, Options{History: true, Nodes: []Node{{Name: "a", CPUs: 2}, {Name: "b", CPUs: 1}}})
	p.where = t.TempDir()
	var ids []string
	for range 8 {
		ids = append(ids, p.sub(t, "-l", "select=1:ncpus=1", "--", "/bin/sleep", "0.3"))
	}
	until(t, "all jobs end", func() bool {
		var listing struct {
			Jobs map[string]struct {
				State string `json:"job_state"`
				Vnode string `json:"exec_vnode"`
			}
		}
		out := p.Run("", "qstat", "-x", "-f", "-F", "json")
		if err := json.Unmarshal([]byte(out.Stdout), &listing); err != nil {
			t.Fatalf("%v in %s", err, out.Stdout)
		}
		on, ended := map[string]int{}, 0
		for _, j := range listing.Jobs {
			if j.State == "R" {
				on[j.Vnode]++
			}
			if j.State == "F" {
				ended++
			}
		}
		if on["(a:ncpus=1)"] > 2 || on["(b:ncpus=1)"] > 1 {
			t.Fatalf("too many at once: %v", on)
		}
		return ended == len(ids)
	})
}

func TestWalltimeAndKill(t *testing.T) {
	t.Parallel()
	p := Start(t, Options{History: true, WalltimeSecond: 20 * time.Millisecond})
	p.where = t.TempDir()
	id := p.sub(t, "-N", "long", "-l", "select=1:ncpus=1,walltime=2", "--", "/bin/sh", "-c", "trap '' TERM; while :; do sleep 0.1; done")
	p.is(t, id, "job_state", "F")
	if s := p.line(id, "Exit_status"); s != "-29" {
		t.Errorf("Exit_status %s", s)
	}
	if c := p.line(id, "comment"); !strings.HasSuffix(c, " and exceeded resource walltime") {
		t.Errorf("comment %q", c)
	}
	data, _ := os.ReadFile(filepath.Join(p.where, "long.e0"))
	if !strings.HasPrefix(string(data), "=>> PBS: job killed: walltime ") {
		t.Errorf("errors %q", data)
	}
	until(t, "no process is left", func() bool { return len(p.Sessions()) == 0 })
}

func TestNodeLoss(t *testing.T) {
	t.Parallel()
	p := Start(t, Options{History: true, Manage: []string{"set server node_fail_requeue=20"}})
	p.where = t.TempDir()
	again := p.sub(t, "-r", "y", "-l", "select=1:ncpus=1:host=n1", "--", "/bin/sleep", "100")
	once := p.sub(t, "-r", "n", "-l", "select=1:ncpus=1:host=n1", "--", "/bin/sleep", "100")
	p.is(t, again, "substate", "42")
	p.is(t, once, "substate", "42")
	p.NodeDown("n1")
	p.is(t, again, "job_state", "Q")
	p.is(t, once, "job_state", "F")
	for _, id := range []string{again, once} {
		if s := p.line(id, "Exit_status"); s != "-20" {
			t.Errorf("%s: Exit_status %s", id, s)
		}
	}
	if n := len(p.Sessions()); n != 2 {
		t.Errorf("%d jobs live on the dead node, wanted 2", n)
	}
	p.NodeUp("n1", false)
	until(t, "the returned node kills what it had", func() bool { return len(p.Sessions()) == 0 })
	p.Cycle()
	p.is(t, again, "substate", "42")
	if s := p.line(again, "run_count"); s != "2" {
		t.Errorf("run_count %s", s)
	}
}

func TestHistoryIsPurged(t *testing.T) {
	t.Parallel()
	p := Start(t, Options{History: true})
	p.where = t.TempDir()
	id := p.sub(t, "--", "/bin/true")
	p.is(t, id, "job_state", "F")
	p.Manage("set server job_history_duration=01:00:00")
	p.Advance(59 * time.Minute)
	if p.line(id, "job_state") != "F" {
		t.Error("gone too soon")
	}
	p.Advance(2 * time.Minute)
	until(t, "the job is forgotten", func() bool { return p.Run("", "qstat", "-x", id).Code == 153 })
	id = p.sub(t, "--", "/bin/true")
	p.is(t, id, "job_state", "F")
	p.Purge()
	if out := p.Run("", "qstat", "-x", id); out.Code != 153 {
		t.Errorf("after a purge: %+v", out)
	}
}

func TestFutureStart(t *testing.T) {
	t.Parallel()
	p := Start(t, Options{History: true})
	p.where = t.TempDir()
	id := p.sub(t, "-a", time.Now().UTC().Add(2*time.Hour).Format("200601021504"), "--", "/bin/true")
	if s := p.line(id, "job_state"); s != "W" {
		t.Fatalf("job_state %s", s)
	}
	p.Advance(3 * time.Hour)
	p.is(t, id, "job_state", "F")
}

func TestLostReply(t *testing.T) {
	t.Parallel()
	p := Start(t, Options{History: true})
	p.where = t.TempDir()
	p.LoseReply("qsub", 1)
	if out := p.Run("", "qsub", "-h", "--", "/bin/true"); out.Code != -1 || out.Stdout != "" {
		t.Errorf("the command survived: %+v", out)
	}
	if s := p.line("0.vm", "job_state"); s != "H" {
		t.Errorf("its job is %q", s)
	}
	if id := p.sub(t, "-h", "--", "/bin/true"); id != "1.vm" {
		t.Errorf("the next id is %s", id)
	}
}

func TestSlowServer(t *testing.T) {
	t.Parallel()
	p := Start(t, Options{})
	p.Slow(300 * time.Millisecond)
	begin := time.Now()
	p.Run("", "qstat")
	if d := time.Since(begin); d < 300*time.Millisecond {
		t.Errorf("answered after %v", d)
	}
}

func TestHungServer(t *testing.T) {
	t.Parallel()
	p := Start(t, Options{})
	p.HangServer()
	for _, cmd := range [][]string{{"qstat", "-f", "-F", "json"}, {"qsub", "-f", "--", "/bin/true"}} {
		c := exec.Command("timeout", append([]string{"1", filepath.Join(p.Bin(), cmd[0])}, cmd[1:]...)...)
		c.Env = p.Env()
		out, err := c.Output()
		if c.ProcessState.ExitCode() != 124 || len(out) > 0 {
			t.Errorf("%v: %v, %q", cmd, err, out)
		}
	}
	p.WakeServer()
	if out := p.Run("", "qstat"); out.Code != 0 {
		t.Errorf("afterwards: %+v", out)
	}
}

// TestKilledServer: a job that the mom had not confirmed when the server died runs again, others go on, and ids
// jump to the next thousand.
func TestKilledServer(t *testing.T) {
	t.Parallel()
	p := Start(t, Options{History: true, Second: time.Second})
	p.where = t.TempDir()
	confirmed := p.sub(t, "-N", "one", "--", "/bin/sh", "-c", "sleep 4; exit 7")
	p.is(t, confirmed, "substate", "42")
	fresh := p.sub(t, "-N", "two", "--", "/bin/sleep", "1")
	p.is(t, fresh, "substate", "41")
	p.KillServer()
	if out := p.Run("", "qstat"); out.Code != 255 || out.Stderr != "Connection refused\nqstat: cannot connect to server vm (errno=15010)\n" {
		t.Errorf("without a server: %+v", out)
	}
	p.StartServer()
	if out := p.Run("", "pbsnodes", "-av"); !strings.Contains(out.Stdout, "state = state-unknown,down") {
		t.Errorf("nodes are known at once:\n%s", out.Stdout)
	}
	if id := p.sub(t, "-h", "--", "/bin/true"); id != "1000.vm" {
		t.Errorf("the next id is %s", id)
	}
	p.is(t, confirmed, "job_state", "F")
	if s := p.line(confirmed, "Exit_status"); s != "7" {
		t.Errorf("Exit_status %s", s)
	}
	p.is(t, fresh, "job_state", "F")
	if s := p.line(fresh, "run_count"); s != "2" {
		t.Errorf("run_count %s", s)
	}
}

// TestKilledAtAnyTime: whatever qsub printed an id for is there after the daemon was killed, and ends once.
func TestKilledAtAnyTime(t *testing.T) {
	t.Parallel()
	p := Start(t, Options{History: true})
	p.where = t.TempDir()
	var accepted []string
	for round := range 6 {
		stop, done := make(chan struct{}), make(chan []string)
		go func() {
			var ids []string
			for {
				select {
				case <-stop:
					done <- ids
					return
				default:
				}
				cmd := exec.Command(filepath.Join(p.Bin(), "qsub"), "-N", "k"+strconv.Itoa(round), "--", "/bin/true")
				cmd.Env, cmd.Dir = p.Env(), p.where
				if out, err := cmd.Output(); err == nil {
					ids = append(ids, strings.TrimSpace(string(out)))
				}
			}
		}()
		time.Sleep(time.Duration(50+rand.IntN(200)) * time.Millisecond)
		p.KillServer()
		close(stop)
		accepted = append(accepted, <-done...)
		p.StartServer()
	}
	if len(accepted) == 0 {
		t.Fatal("nothing was accepted")
	}
	slices.Sort(accepted)
	if len(slices.Compact(slices.Clone(accepted))) != len(accepted) {
		t.Errorf("an id was given twice: %v", accepted)
	}
	var missing []string
	until(t, "all that was accepted ends", func() bool {
		out := p.Run("", "qstat", "-x", "-f", "-F", "json")
		var listing struct {
			Jobs map[string]struct {
				State string `json:"job_state"`
				Exit  *int   `json:"Exit_status"`
			}
		}
		if err := json.Unmarshal([]byte(out.Stdout), &listing); err != nil {
			t.Fatalf("%v in %s", err, out.Stdout)
		}
		missing = slices.DeleteFunc(slices.Clone(accepted), func(id string) bool {
			j, ok := listing.Jobs[id]
			if !ok {
				t.Fatalf("%s is lost", id)
			}
			return j.State == "F" && j.Exit != nil && *j.Exit == 0
		})
		return len(missing) == 0
	})
	t.Logf("%d jobs accepted over six kills", len(accepted))
}

func TestLeftChildren(t *testing.T) {
	p := Start(t, Options{History: true})
	t.Chdir(t.TempDir())
	script := "nohup sleep 71 & echo $! > inside\nsetsid sleep 72 & echo $! > outside\nsleep 0.2\n"
	dir, _ := os.Getwd()
	id := p.sub(t, "--", "/bin/sh", "-c", "cd "+dir+"; "+script)
	p.is(t, id, "job_state", "F")
	pid := func(file string) int {
		data, err := os.ReadFile(file)
		n, err2 := strconv.Atoi(strings.TrimSpace(string(data)))
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		return n
	}
	alive := func(n int) bool {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", n))
		return err == nil && !strings.Contains(string(data), ") Z ")
	}
	outside := pid("outside")
	t.Cleanup(func() { _ = syscall.Kill(outside, syscall.SIGKILL) })
	until(t, "what the job left in its session is killed", func() bool { return !alive(pid("inside")) })
	if !alive(outside) {
		t.Error("a process of another session was killed")
	}
}

// TestNothingIsLeft: a job whose shell died and whose program does not mind TERM ends with its complex.
func TestNothingIsLeft(t *testing.T) {
	var dir string
	t.Run("complex", func(t *testing.T) {
		p := Start(t, Options{Second: time.Second})
		dir = p.Dir()
		t.Chdir(t.TempDir())
		if err := os.WriteFile("j.sh", []byte("#!/bin/bash\ntrap '' TERM\ntouch $PBS_O_WORKDIR/ready\nwhile :; do sleep 0.2; done\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		p.sub(t, "j.sh")
		until(t, "it runs", func() bool { _, err := os.Stat("ready"); return err == nil })
		if out := p.Run("", "qdel", "0"); out.Code != 0 {
			t.Fatalf("%+v", out)
		}
	})
	for _, proc := range processes() {
		if strings.Contains(proc.command, dir+"/") {
			t.Errorf("%d lives: %q", proc.pid, proc.command)
		}
	}
}

func TestLaterClientPrintsOneOfMany(t *testing.T) {
	t.Parallel()
	p := Start(t, Options{LaterClient: true})
	p.where = t.TempDir()
	a, b := p.sub(t, "-h", "--", "/bin/true"), p.sub(t, "-h", "--", "/bin/true")
	out := p.Run("", "qstat", "-f", "-F", "json", a, b)
	if out.Code != 0 || strings.Count(out.Stdout, `"Job_Name":`) != 1 || !strings.Contains(out.Stdout, "\t\"timestamp\":\t") {
		t.Errorf("%+v", out)
	}
}

// TestAnyCourse drives a complex with random commands: states stay within what PBS knows, a held job does not run,
// and nothing vanishes from the history but what was removed from it.
func TestAnyCourse(t *testing.T) {
	t.Parallel()
	p := Start(t, Options{History: true, Nodes: []Node{{Name: "n1", CPUs: 2}, {Name: "n2", CPUs: 2}}})
	p.where = t.TempDir()
	known := map[string]bool{}
	rapid.Check(t, func(t *rapid.T) {
		id := func() string {
			if len(known) == 0 {
				return "99999"
			}
			return rapid.SampledFrom(slices.Sorted(maps.Keys(known))).Draw(t, "id")
		}
		for range rapid.IntRange(1, 6).Draw(t, "steps") {
			switch rapid.IntRange(0, 6).Draw(t, "what") {
			case 0, 1:
				args := []string{"-l", "select=" + rapid.SampledFrom([]string{"1:ncpus=1", "2:ncpus=1", "1:ncpus=2"}).Draw(t, "select")}
				if rapid.Bool().Draw(t, "held") {
					args = append(args, "-h")
				}
				out := p.Run("", "qsub", append(args, "--", "/bin/sleep", "0.1")...)
				if out.Code != 0 || known[strings.TrimSpace(out.Stdout)] {
					t.Fatalf("qsub: %+v", out)
				}
				known[strings.TrimSpace(out.Stdout)] = true
			case 2:
				p.Run("", "qhold", id())
			case 3:
				p.Run("", "qrls", id())
			case 4:
				p.Run("", "qdel", id())
			case 5:
				p.Run("root", "qrerun", id())
			case 6:
				p.Run("root", "qsig", "-s", rapid.SampledFrom([]string{"suspend", "resume", "TERM"}).Draw(t, "signal"), id())
			}
		}
		out := p.Run("", "qstat", "-x", "-f", "-F", "json")
		var listing struct {
			Jobs map[string]struct {
				State string `json:"job_state"`
				Holds string `json:"Hold_Types"`
				Host  string `json:"exec_host"`
			}
		}
		if err := json.Unmarshal([]byte(out.Stdout), &listing); err != nil {
			t.Fatalf("%v in %s", err, out.Stdout)
		}
		for id := range known {
			j, ok := listing.Jobs[id]
			if !ok {
				t.Fatalf("%s vanished", id)
			}
			if !strings.Contains("QHWRSEF", j.State) || (j.State == "H") != (j.State == "H" && j.Holds != "n") || (j.State == "Q" && (j.Holds != "n" || j.Host != "")) {
				t.Fatalf("%s: %+v", id, j)
			}
		}
	})
}
