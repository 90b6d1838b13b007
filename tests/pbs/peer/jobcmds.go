package main

import (
	"slices"
	"strings"
)

func qdelUsage() string {
	return "usage:\n\tqdel [-W force|suppress_email=X] [-x] job_identifier...\n\tqdel --version\n"
}

// cluster says that the server is away in the words of the commands that take many ids.
func (c *call) unreachable(err *refusal) int {
	if c.name == "qdel" {
		c.eprintf("%s\nCouldn't connect to cluster: %s\n", err.why, c.server())
	} else {
		c.eprintf("%s\n%s: cannot connect to server %s (errno=%d)\n", err.why, c.name, c.server(), err.code)
	}
	return 162
}

// qdel hands the well formed ids over in one list; the others are named first.
func (c *call) qdel() int {
	opts, rest, _, bad := getopt(c.args, "W:x")
	if len(bad) > 0 || len(rest) == 0 {
		c.badOptions(bad)
		c.eprintf("%s", qdelUsage())
		return 2
	}
	req := request{Op: "delete"}
	for _, o := range opts {
		switch {
		case o.flag == 'x':
			req.Old = true
		case o.value == "force":
			req.Force = true
		}
	}
	code := 0
	var shown []string
	for _, id := range rest {
		key, ok := parseID(id, c.cfg.Host)
		if !ok {
			c.eprintf("qdel: illegally formed job identifier: %s\n", id)
			code = 1
			continue
		}
		req.IDs, shown = append(req.IDs, key), append(shown, id)
	}
	if len(req.IDs) == 0 {
		return code
	}
	var r reply
	if err := c.ask(c.server(), req, &r); err != nil {
		return c.unreachable(err)
	}
	for i, f := range r.Fails {
		if f.Code != 0 && i < len(shown) {
			c.eprintf("qdel: %s %s\n", f.text(), shown[i])
			code = f.exit()
		}
	}
	return code
}

// verb is one of the commands that do one thing to each of their jobs.
type verb struct {
	op, spec string
	text     bool // the first operand is a text
}

func (c *call) verb() verb {
	switch c.name {
	case "qhold":
		return verb{op: "hold", spec: "h:"}
	case "qrls":
		return verb{op: "release", spec: "h:"}
	case "qsig":
		return verb{op: "signal", spec: "s:"}
	case "qrerun":
		return verb{op: "rerun", spec: "W:"}
	case "qmove":
		return verb{op: "move", text: true}
	case "qmsg":
		return verb{op: "message", spec: "EO", text: true}
	case "qorder":
		return verb{op: "order"}
	case "qrun":
		return verb{op: "run", spec: "aH:W:"}
	}
	return verb{op: "alter", spec: "a:A:c:e:h:j:k:l:m:M:N:o:p:P:r:R:S:u:W:"}
}

func (c *call) jobCommand() int {
	v := c.verb()
	opts, rest, _, bad := getopt(c.args, v.spec)
	if v.text && len(rest) > 0 {
		opts, rest = append(opts, option{'=', rest[0]}), rest[1:]
	}
	if len(bad) > 0 || len(rest) == 0 {
		c.badOptions(bad)
		c.eprintf("usage: %s job_identifier...\n", c.name)
		return 2
	}
	req := request{Op: v.op, Text: "", Number: -1}
	switch v.op {
	case "hold", "release":
		req.Text = "u"
	case "signal":
		req.Text = "SIGTERM"
	}
	for _, o := range opts {
		switch {
		case v.op == "alter":
			req.Pairs = append(req.Pairs, pair{string(o.flag), o.value})
		case o.flag == 'W' && o.value == "force":
			req.Force = true
		case o.flag == 'h' || o.flag == 's' || o.flag == '=' || o.flag == 'H':
			req.Text = o.value
		}
	}
	if v.op == "order" {
		return c.order(rest)
	}
	code := 0
	for _, id := range rest {
		key, ok := parseID(id, c.cfg.Host)
		if !ok {
			c.eprintf("%s: illegally formed job identifier: %s\n", c.name, id)
			code = 1
			continue
		}
		var r reply
		req.IDs = []string{key}
		if err := c.ask(c.server(), req, &r); err != nil {
			return c.unreachable(err)
		}
		if r.Fail == nil {
			continue
		}
		if r.Fail.Bare || r.Fail.Code == jobFinished {
			c.eprintf("%s: %s\n", c.name, r.Fail.text())
		} else {
			c.eprintf("%s: %s %s\n", c.name, r.Fail.text(), key+"."+c.cfg.Host)
		}
		if code = r.Fail.exit(); c.name == "qrun" {
			code = 2
		}
	}
	return code
}

// order is qorder: two jobs change places.
func (c *call) order(ids []string) int {
	if len(ids) != 2 {
		c.eprintf("usage: qorder job_identifier job_identifier\n")
		return 2
	}
	req := request{Op: "order"}
	for _, id := range ids {
		key, ok := parseID(id, c.cfg.Host)
		if !ok {
			c.eprintf("qorder: illegally formed job identifier: %s\n", id)
			return 1
		}
		req.IDs = append(req.IDs, key)
	}
	var r reply
	if err := c.ask(c.server(), req, &r); err != nil {
		return c.unreachable(err)
	}
	if r.Fail != nil {
		c.eprintf("qorder: %s\n", r.Fail.text())
		return r.Fail.exit()
	}
	return 0
}

// qselect prints the ids of the jobs that fit.
func (c *call) qselect() int {
	opts, _, _, bad := getopt(c.args, "a:A:c:h:HJl:N:p:P:q:r:s:t:Tu:x")
	if len(bad) > 0 {
		c.badOptions(bad)
		c.eprintf("usage: qselect [-s states] [-u user] [-N name] [-A account] [-P project] [-q queue] [-x] [-T] [-J]\n")
		return 2
	}
	req := request{Op: "jobs"}
	want := map[byte]string{}
	for _, o := range opts {
		switch o.flag {
		case 'x', 'H':
			req.Old = true
		case 'T':
			req.Sub = true
		default:
			want[o.flag] = o.value
		}
	}
	var r reply
	if err := c.ask(c.server(), req, &r); err != nil {
		return c.unreachable(err)
	}
	for _, e := range r.Entries {
		if selected(e, want) {
			c.printf("%s\n", e.ID)
		}
	}
	return 0
}

func selected(e entry, want map[byte]string) bool {
	for flag, v := range want {
		ok := true
		switch flag {
		case 's':
			ok = strings.IndexByte(v, e.Keys.State) >= 0
		case 'u':
			ok = slices.Contains(strings.Split(v, ","), e.Keys.Owner)
		case 'N':
			ok = e.get("Job_Name", "") == v
		case 'A':
			ok = e.get("Account_Name", "") == v
		case 'P':
			ok = e.get("project", "") == v
		case 'q':
			ok = e.Keys.Queue == v
		case 'J':
			ok = strings.Contains(e.ID, "[]")
		}
		if !ok {
			return false
		}
	}
	return true
}
