package main

import (
	"slices"
	"strconv"
	"strings"
)

// look is what qstat was asked for.
type look struct {
	full, old, history bool // -f, -x, -H
	format, delimiter  string
	alt                string // letters of -a -i -r -s -T -n -1 -w
	subs, arrays       bool
	queues, limits     bool // -Q, -q
	server             bool // -B
	users              []string
	wide               bool
}

func qstatUsage() string {
	return "usage: \n" +
		"qstat [-f] [-J] [-p] [-t] [-x] [-E] [-F format | -w] [-D delim] [ job_identifier... | destination... ]\n" +
		"qstat [-a|-i|-r|-H|-T] [-J] [-t] [-u user] [-n] [-s] [-G|-M] [-1] [-w]\n" +
		"\t[ job_identifier... | destination... ]\n" +
		"qstat -Q [-f] [-F format] [-D delim] [ destination... ]\n" +
		"qstat -q [-G|-M] [ destination... ]\n" +
		"qstat -B [-f] [-F format] [-D delim] [ server_name... ]\n" +
		"qstat --version\n"
}

func (c *call) qstat() int {
	opts, rest, _, bad := getopt(c.args, "aBD:EF:fGHiJMnpQqrsTtu:wWx1")
	if len(bad) > 0 {
		c.badOptions(bad)
		c.eprintf("%s", qstatUsage())
		return 2
	}
	l := look{format: "text", delimiter: "|"}
	formatted := false
	for _, o := range opts {
		formatted = formatted || o.flag == 'F'
		l.set(o)
	}
	if formatted && !l.full {
		c.eprintf("qstat: conflicting options.\n%s", qstatUsage())
		return 2
	}
	if l.format != "text" && l.format != "json" && l.format != "dsv" {
		c.eprintf("%s", qstatUsage())
		return 2
	}
	switch {
	case l.server:
		return c.qstatServer(l)
	case l.queues || l.limits:
		return c.qstatQueues(l, rest)
	}
	return c.qstatJobs(l, rest)
}

func (l *look) set(o option) {
	switch o.flag {
	case 'f':
		l.full = true
	case 'x':
		l.old = true
	case 'H':
		l.history = true
		l.alt += "H"
	case 'F':
		l.format = o.value
	case 'D':
		l.delimiter = o.value
	case 't':
		l.subs = true
	case 'J':
		l.arrays = true
	case 'Q':
		l.queues = true
	case 'q':
		l.limits = true
	case 'B':
		l.server = true
	case 'u':
		l.users = strings.Split(o.value, ",")
		l.alt += "u"
	case 'w':
		l.wide = true
	case 'a', 'i', 'r', 's', 'T', 'n', '1':
		l.alt += string(o.flag)
	}
}

// down says that the server cannot be reached. A listing in JSON is printed all the same, without anything in it.
func (c *call) down(l look, kind string, r *refusal, server string) int {
	c.eprintf("%s\nqstat: cannot connect to server %s (errno=%d)\n", r.why, server, r.code)
	if l.full && l.format == "json" {
		c.json(kind, nil)
	}
	return 255
}

func (c *call) qstatJobs(l look, operands []string) int {
	server := c.server()
	var entries []entry
	code := 0
	gather := func(req request, text string) *refusal {
		var r reply
		req.Op, req.Old, req.Sub = "jobs", l.old || l.history, l.subs
		if err := c.ask(server, req, &r); err != nil {
			return err
		}
		switch {
		case r.Fail != nil && r.Fail.Code == jobFinished:
			c.eprintf("qstat: %s %s\n", text, "Job has finished, use -x or -H to obtain historical job information")
		case r.Fail != nil:
			c.eprintf("qstat: %s\n", r.Fail.text())
		case r.Notice != "":
			c.eprintf("qstat: %s %s\n", r.Notice, text)
		}
		if r.Fail != nil {
			code = r.Fail.exit()
		}
		entries = append(entries, r.Entries...)
		return nil
	}
	if len(operands) == 0 || (len(operands) == 1 && operands[0] == "") {
		operands = nil
		if err := gather(request{}, ""); err != nil {
			return c.down(l, "Jobs", err, server)
		}
	}
	for _, o := range operands {
		if host, ok := strings.CutPrefix(o, "@"); ok {
			shown := server
			server = host
			if err := gather(request{}, ""); err != nil {
				return c.down(l, "Jobs", err, shown)
			}
			server = shown
			continue
		}
		req := request{IDs: []string{o}}
		text := o
		if o == "" || o[0] < '0' || o[0] > '9' {
			req = request{Text: o}
		} else {
			key, ok := parseID(o, c.cfg.Host)
			if !ok {
				c.eprintf("qstat: illegally formed job identifier: %s\n", o)
				code = 1
				continue
			}
			text = key + "." + c.cfg.Host
			req.IDs[0] = key
		}
		if err := gather(req, text); err != nil {
			return c.down(l, "Jobs", err, server)
		}
		if c.cfg.Client == master && l.format == "json" && len(entries) > 0 && req.IDs != nil {
			break // that client prints the first job only
		}
	}
	if !c.show(l, l.pick(entries)) {
		return 1
	}
	return code
}

// pick leaves out what the options do not want to see.
func (l look) pick(entries []entry) []entry {
	return slices.DeleteFunc(entries, func(e entry) bool {
		ended := e.Keys.State == 'F' || e.Keys.State == 'M'
		return (l.history && !l.old && !ended) || (len(l.users) > 0 && !slices.Contains(l.users, e.Keys.Owner)) ||
			(l.arrays && !strings.Contains(e.ID, "[")) ||
			(strings.Contains(l.alt, "r") && !strings.ContainsRune("RSE", rune(e.Keys.State))) ||
			(strings.Contains(l.alt, "i") && !strings.ContainsRune("QHWT", rune(e.Keys.State)))
	})
}

func (c *call) show(l look, entries []entry) bool {
	switch {
	case l.full && l.format == "json":
		return c.json("Jobs", entries)
	case l.full && l.format == "dsv":
		c.dsv("Job Id", entries, l.delimiter)
	case l.full:
		c.full("Job Id", entries, l.wide)
	case len(entries) == 0:
	case l.alt != "":
		c.altTable(l, entries)
	default:
		c.table(entries)
	}
	return true
}

// table is the plain listing.
func (c *call) table(entries []entry) {
	c.printf("Job id            Name             User              Time Use S Queue\n")
	c.printf("----------------  ---------------- ----------------  -------- - -----\n")
	for _, e := range entries {
		used := e.get("resources_used", "cput")
		if used == "" {
			used = "0"
		}
		c.printf("%-17s %-16s %-16s  %8s %c %-16s\n", clip(e.ID, 17), clip(e.get("Job_Name", ""), 16), clip(e.Keys.Owner, 16),
			used, e.Keys.State, clip(e.Keys.Queue, 16))
	}
}

// clip shortens a text that does not fit, with a star at its end.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:n-1] + "*"
}

// columns are the widths of the other listing, plain and wide.
type columns struct {
	id, user, queue, name, session, nodes, tasks, memory int
	head                                                 string
}

func (l look) columns() columns {
	if l.wide {
		return columns{30, 15, 15, 15, 8, 4, 5, 6,
			"%s                                                                                                   Req'd  Req'd   %s\n" +
				"Job ID                         Username        Queue           Jobname         SessID   NDS  TSK   Memory Time  S Time\n" +
				"------------------------------ --------------- --------------- --------------- -------- ---- ----- ------ ----- - -----\n"}
	}
	return columns{15, 8, 8, 10, 6, 3, 3, 6,
		"%s                                                            Req'd  Req'd   %s\n" +
			"Job ID          Username Queue    Jobname    SessID NDS TSK Memory Time  S Time\n" +
			"--------------- -------- -------- ---------- ------ --- --- ------ ----- - -----\n"}
}

func (c *call) altTable(l look, entries []entry) {
	w := l.columns()
	extra, last := "", "Elap"
	if strings.Contains(l.alt, "T") {
		extra, last = strings.Repeat(" ", strings.Index(w.head, "Req'd  Req'd   ")-2+15)+"Est\n", "Start"
	}
	c.printf("\n%s: \n", c.cfg.Host)
	c.printf(w.head, extra, last)
	for _, e := range entries {
		c.altRow(l, w, e)
	}
}

func (c *call) altRow(l look, w columns, e entry) {
	elapsed := "-- "
	if e.get("resources_used", "walltime") != "" {
		elapsed = hoursMinutes(e.get("resources_used", "walltime"))
	} else if e.Keys.State == 'R' && e.get("session_id", "") != "" {
		elapsed = "00:00"
	}
	if strings.Contains(l.alt, "T") {
		elapsed = "--"
	}
	c.printf("%-*s %-*s %-*s %-*s %*s %*s %*s %*s %5s %c %5s", w.id, clip(e.ID, w.id), w.user, clip(e.Keys.Owner, w.user),
		w.queue, clip(e.Keys.Queue, w.queue), w.name, clip(e.get("Job_Name", ""), w.name),
		w.session, or(e.get("session_id", ""), "-- "), w.nodes, or(e.get("Resource_List", "nodect"), "-- "),
		w.tasks, or(e.get("Resource_List", "ncpus"), "-- "), w.memory, or(shortSize(e.get("Resource_List", "mem")), "-- "),
		or(hoursMinutes(e.get("Resource_List", "walltime")), "-- "), e.Keys.State, elapsed)
	hosts := or(e.get("exec_host", ""), " -- ")
	switch {
	case strings.Contains(l.alt, "n") && strings.Contains(l.alt, "1"):
		c.printf(" %s\n", hosts)
	case strings.Contains(l.alt, "n"):
		c.printf("\n   %s\n", hosts)
	default:
		c.printf("\n")
	}
	if strings.Contains(l.alt, "s") {
		c.printf("   %s\n", or(shorten(e.get("comment", "")), " -- "))
	}
}

// shorten cuts a comment to the width of the listing.
func shorten(s string) string {
	const width = 73
	first, _, _ := strings.Cut(s, "\n")
	if len(s) <= width || len(first) < len(s) && len(s) <= width {
		return s
	}
	return s[:width-3] + "..."
}

// hoursMinutes drops the seconds of a duration.
func hoursMinutes(d string) string {
	f := strings.Split(d, ":")
	if len(f) != 3 {
		return ""
	}
	return f[0] + ":" + f[1]
}

// shortSize is a size in at most five characters: the unit grows until it fits.
func shortSize(v string) string {
	s, ok := parseSize(v)
	if v == "" || !ok {
		return ""
	}
	for s.n > 9999 && s.shift < 50 {
		s.n, s.shift = (s.n+1023)>>10, s.shift+10
	}
	return s.String()
}

func (c *call) qstatServer(l look) int {
	var r reply
	if err := c.ask(c.server(), request{Op: "server"}, &r); err != nil {
		return c.down(l, "Server", err, c.server())
	}
	switch {
	case l.full && l.format == "json":
		c.json("Server", r.Entries)
	case l.full && l.format == "dsv":
		c.dsv("Server", r.Entries, l.delimiter)
	case l.full:
		c.full("Server", r.Entries, l.wide)
	default:
		c.printf("Server             Max   Tot   Que   Run   Hld   Wat   Trn   Ext Status\n")
		c.printf("---------------- ----- ----- ----- ----- ----- ----- ----- ----- -----------\n")
		for _, e := range r.Entries {
			n := counts(e.get("state_count", ""))
			c.printf("%-16s %5s %5s %5d %5d %5d %5d %5d %5d %-10s\n", clip(e.ID, 16), "0", e.get("total_jobs", ""),
				n["Queued"], n["Running"], n["Held"], n["Waiting"], n["Transit"], n["Exiting"], e.get("server_state", ""))
		}
	}
	return 0
}

// counts reads a state_count.
func counts(text string) map[string]int {
	out := map[string]int{}
	for f := range strings.FieldsSeq(text) {
		name, n, _ := strings.Cut(f, ":")
		out[name], _ = strconv.Atoi(n)
	}
	return out
}

func (c *call) qstatQueues(l look, names []string) int {
	var entries []entry
	code := 0
	asked := [][]string{nil}
	if len(names) > 0 {
		asked = nil
		for _, n := range names {
			asked = append(asked, []string{n})
		}
	}
	for _, ids := range asked {
		var r reply
		if err := c.ask(c.server(), request{Op: "queues", IDs: ids}, &r); err != nil {
			return c.down(l, "Queue", err, c.server())
		}
		if r.Fail != nil {
			c.eprintf("qstat: %s\n", r.Fail.text())
			code = r.Fail.exit()
		}
		entries = append(entries, r.Entries...)
	}
	switch {
	case l.full && l.format == "json":
		c.json("Queue", entries)
	case l.full && l.format == "dsv":
		c.dsv("Queue", entries, l.delimiter)
	case l.full:
		c.full("Queue", entries, l.wide)
	case l.limits:
		c.limitTable(entries)
	case len(entries) > 0:
		c.queueTable(entries)
	}
	return code
}

func (c *call) queueTable(entries []entry) {
	c.printf("Queue              Max   Tot Ena Str   Que   Run   Hld   Wat   Trn   Ext Type\n")
	c.printf("---------------- ----- ----- --- --- ----- ----- ----- ----- ----- ----- ----\n")
	yes := func(v string) string {
		if v == "True" {
			return "yes"
		}
		return "no"
	}
	for _, e := range entries {
		n := counts(e.get("state_count", ""))
		c.printf("%-16s %5s %5s %3s %3s %5d %5d %5d %5d %5d %5d %s\n", clip(e.ID, 16), "0", e.get("total_jobs", ""),
			yes(e.get("enabled", "")), yes(e.get("started", "")), n["Queued"], n["Running"], n["Held"], n["Waiting"], n["Transit"],
			n["Exiting"], clip(e.get("queue_type", ""), 4))
	}
}

func (c *call) limitTable(entries []entry) {
	c.printf("\nserver: %s\n\n", c.cfg.Host)
	c.printf("Queue            Memory CPU Time Walltime Node   Run   Que   Lm  State\n")
	c.printf("---------------- ------ -------- -------- ---- ----- ----- ----  -----\n")
	run, que := 0, 0
	for _, e := range entries {
		n := counts(e.get("state_count", ""))
		wall := e.get("resources_max", "walltime")
		if wall == "" {
			wall = "   --   "
		}
		able, started := "D", "S"
		if e.get("enabled", "") == "True" {
			able = "E"
		}
		if e.get("started", "") == "True" {
			started = "R"
		}
		r, q := n["Running"], n["Queued"]+n["Held"]+n["Waiting"]
		c.printf("%-16s   --      --    %s  --  %5d %5d   --   %s %s\n", clip(e.ID, 16), wall, r, q, able, started)
		run, que = run+r, que+q
	}
	c.printf("                                               ----- -----\n%52d %5d\n", run, que)
}
