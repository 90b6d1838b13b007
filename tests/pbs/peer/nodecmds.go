package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// pbsnodes lists nodes and marks them.
func (c *call) pbsnodes() int {
	opts, rest, _, bad := getopt(c.args, "aC:F:D:HjlLoprsSv")
	if len(bad) > 0 {
		c.badOptions(bad)
		c.eprintf("usage:\n\tpbsnodes -[CoqrRs] host host ...\n\tpbsnodes -l\n\tpbsnodes -a|-av [-F format]\n")
		return 2
	}
	set := map[byte]bool{}
	format, comment := "text", ""
	for _, o := range opts {
		set[o.flag] = true
		switch o.flag {
		case 'F':
			format = o.value
		case 'C':
			comment = o.value
		}
	}
	if set['o'] || set['r'] || set['C'] {
		return c.markNodes(rest, set, comment)
	}
	var r reply
	req := request{Op: "nodes", IDs: rest, Sub: set['v'] || set['l']}
	if err := c.ask(c.server(), req, &r); err != nil {
		c.eprintf("%s\npbsnodes: cannot connect to server %s, error=%d\n", err.why, c.server(), err.code)
		return 1
	}
	switch {
	case set['l']:
		c.unfit(r.Entries)
	case set['S'] && set['j']:
		c.nodeJobs(r.Entries)
	case set['S']:
		c.nodeSummary(r.Entries)
	case format == "json":
		c.json("nodes", r.Entries)
	case format == "dsv":
		c.dsv("Name", r.Entries, "|")
	default:
		c.nodeText(r.Entries)
	}
	return 0
}

func (c *call) markNodes(names []string, set map[byte]bool, comment string) int {
	code := 0
	for _, n := range names {
		req := request{Op: "mark", IDs: []string{n}, Sub: set['C'], More: comment}
		if set['o'] {
			req.Text = "offline"
		}
		if set['r'] {
			req.Text = "clear"
		}
		var r reply
		if err := c.ask(c.server(), req, &r); err != nil {
			c.eprintf("%s\npbsnodes: cannot connect to server %s, error=%d\n", err.why, c.server(), err.code)
			return 1
		}
		if r.Fail != nil {
			c.eprintf("Error marking node %s - %s\n", n, r.Fail.text())
			code = 1
		}
	}
	return code
}

func (c *call) nodeText(entries []entry) {
	for _, e := range entries {
		c.printf("%s\n", e.ID)
		if e.Error != "" {
			c.printf("     Error: %s\n\n", e.Error)
			continue
		}
		for _, a := range e.Attrs {
			name, v := a.Name, a.text(c.zone)
			if a.Res != "" {
				name += "." + a.Res
			}
			if name == "jobs" {
				v = strings.Join(e.Jobs, ", ")
			}
			c.printf("     %s = %s\n", name, v)
		}
		c.printf("\n")
	}
}

// unfit lists the nodes that jobs cannot use.
func (c *call) unfit(entries []entry) {
	for _, e := range entries {
		if s := e.get("state", ""); strings.Contains(s, "down") || strings.Contains(s, "offline") || strings.Contains(s, "unknown") {
			c.printf("%-20s %s %s\n", e.ID, s, e.get("comment", ""))
		}
	}
}

// whole is a size rounded up to a unit that keeps it short, as the summaries show memory.
func whole(v string) string {
	s, ok := parseSize(v)
	if !ok {
		return "0kb"
	}
	kb, unit := s.kb(), 0
	for kb >= 1024 && unit < 4 {
		kb, unit = (kb+512)>>10, unit+1
	}
	return strconv.FormatInt(kb, 10) + string("kmgtp"[unit]) + "b"
}

func or(s, none string) string {
	if s == "" {
		return none
	}
	return s
}

func (c *call) nodeSummary(entries []entry) {
	c.printf("vnode           state           OS       hardware host            queue        mem     ncpus   nmics   ngpus  comment\n")
	c.printf("--------------- --------------- -------- -------- --------------- ---------- -------- ------- ------- ------- ---------\n")
	for _, e := range entries {
		c.printf("%-15s %-15s %-8s %-8s %-15s %-10s %8s %7s %7s %7s %s\n", e.ID, e.get("state", ""), "--", "--",
			e.get("resources_available", "host"), or(e.get("queue", ""), "--"), whole(e.get("resources_available", "mem")),
			or(e.get("resources_available", "ncpus"), "0"), or(e.get("resources_available", "naccelerators"), "0"),
			or(e.get("resources_available", "ngpus"), "0"), or(e.get("comment", ""), "--"))
	}
}

func (c *call) nodeJobs(entries []entry) {
	c.printf("                                                        mem       ncpus   nmics   ngpus\n")
	c.printf("vnode           state           njobs   run   susp      f/t        f/t     f/t     f/t   jobs\n")
	c.printf("--------------- --------------- ------ ----- ------ ------------ ------- ------- ------- -------\n")
	for _, e := range entries {
		var ids []string
		for _, j := range jobList(e.Jobs).sub {
			id, _, _ := strings.Cut(j.text, ".")
			ids = append(ids, id)
		}
		free := func(name string) string {
			have, _ := strconv.Atoi(e.get("resources_available", name))
			used, _ := strconv.Atoi(e.get("resources_assigned", name))
			return strconv.Itoa(have-used) + "/" + strconv.Itoa(have)
		}
		total, _ := parseSize(e.get("resources_available", "mem"))
		used, _ := parseSize(or(e.get("resources_assigned", "mem"), "0"))
		mem := whole(strconv.FormatInt(total.bytes()-used.bytes(), 10)) + "/" + whole(e.get("resources_available", "mem"))
		c.printf("%-15s %-15s %6d %5d %6d %12s %7s %7s %7s %s\n", e.ID, e.get("state", ""), len(ids), len(ids), 0, mem,
			free("ncpus"), free("naccelerators"), free("ngpus"), or(strings.Join(ids, ","), "--"))
	}
}

// spawning is how long the start of a program on another node may take before the next one is started.
const spawning = 100 * time.Millisecond

// pbsdsh runs a program once for each chunk of the job that it runs in, side by side. Here all chunks are on one machine. What a program gets
// is the environment that its mom makes, and nothing of the script's.
func (c *call) pbsdsh() int {
	_, rest, _, _ := getopt(c.args, "c:n:osv")
	places, err := os.ReadFile(chunksFile())
	if err != nil || len(rest) == 0 {
		c.eprintf("pbsdsh: PBS_JOBID not in environment, not a PBS job\n")
		return 1
	}
	var job task
	if err := readGob(filepath.Join(filepath.Dir(chunksFile()), "spec"), &job); err != nil {
		c.eprintf("pbsdsh: %v\n", err)
		return 1
	}
	code, number := 0, 0
	ends := make(chan error)
	take := func(err error) {
		number--
		if err != nil {
			code = 1
		}
	}
	for i, host := range strings.Fields(string(places)) {
		cmd := exec.Command(rest[0], rest[1:]...)
		cmd.Stdout, cmd.Stderr, cmd.Dir = c.out, c.err, job.Dir
		cmd.Env = append(slices.Clone(job.Env), "PBSPEER_CHUNK="+host, fmt.Sprintf("PBS_NODENUM=%d", i), fmt.Sprintf("PBS_TASKNUM=%d", i+2))
		number++
		go func() { ends <- cmd.Run() }()
		select {
		case err := <-ends:
			take(err)
		case <-time.After(spawning):
		}
	}
	for number > 0 {
		take(<-ends)
	}
	return code
}

// qmgr runs the directives given with -c, or those on standard input.
func (c *call) qmgr() int {
	opts, _, _, bad := getopt(c.args, "ac:enz")
	if len(bad) > 0 {
		c.badOptions(bad)
		c.eprintf("usage: qmgr [-a] [-c command] [-e] [-n] [-z] [server...]\n")
		return 1
	}
	var lines []string
	for _, o := range opts {
		if o.flag == 'c' {
			lines = append(lines, o.value)
		}
	}
	for _, line := range lines {
		var r reply
		if err := c.ask(c.server(), request{Op: "qmgr", Text: line}, &r); err != nil {
			c.eprintf("%s\nqmgr: cannot connect to server \n", err.why)
			return 3
		}
		c.printf("%s", r.Text)
		if r.Fail != nil {
			c.eprintf("qmgr obj=%s svr=default: %s\nqmgr: Error (%d) returned from server\n", r.ID, r.Fail.text(), r.Fail.Code)
			return r.Fail.exit()
		}
	}
	return 0
}
