package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// environment makes the Variable_List, all but the two that the server adds.
func (q *sub) environment() error {
	lang := os.Getenv("LANG")
	list := []variable{{"PBS_O_HOME", q.cfg.seen(or(os.Getenv("HOME"), q.cfg.homeOf(q.user)))}, {"PBS_O_LANG", lang}, {"PBS_O_LOGNAME", q.user},
		{"PBS_O_PATH", strings.ReplaceAll(os.Getenv("PATH"), filepath.Join(q.cfg.Dir, "bin"), "/opt/pbs/bin")}, {"PBS_O_MAIL", os.Getenv("MAIL")}, {"PBS_O_SHELL", os.Getenv("SHELL")},
		{"PBS_O_TZ", os.Getenv("TZ")}, {"PBS_O_WORKDIR", q.workdir()}, {"PBS_O_SYSTEM", "Linux"}}
	var out []string
	for _, v := range list {
		if v.name == "PBS_O_WORKDIR" && q.cfg.Client == master {
			out = append(out, "PBS_O_INTERACTIVE_AUTH_METHOD=resvport", "PBS_O_INTERACTIVE_ENCRYPT_METHOD=")
		}
		if v.value != "" {
			out = append(out, v.name+"="+guard(v.value))
		}
	}
	out = append(out, q.exported()...)
	for _, text := range q.vars {
		for _, f := range splitVars(text) {
			name, value, ok := strings.Cut(f, "=")
			if !ok {
				if value, ok = os.LookupEnv(name); !ok {
					q.eprintf("qsub: cannot send environment with the job\n")
					return stop(1)
				}
				value = guard(value)
			}
			out = append(out, name+"="+value)
		}
	}
	q.s.Vars = strings.Join(out, ",")
	return nil
}

// exported is what -V sends: nothing in the release, which forgets it, and everything with the later client.
func (q *sub) exported() []string {
	if !q.set["V"] || q.cfg.Client != master {
		return nil
	}
	var out []string
	for _, kv := range os.Environ() {
		if name, value, _ := strings.Cut(kv, "="); !strings.HasPrefix(name, "PBSPEER_") {
			value = strings.ReplaceAll(q.cfg.seen(value), filepath.Join(q.cfg.Dir, "bin"), "/opt/pbs/bin")
			out = append(out, name+"="+guard(value))
		}
	}
	return out
}

// guard writes a value so that a list of variables holds it: commas behind a backslash, backslashes fourfold.
func guard(v string) string {
	return strings.NewReplacer(`\`, `\\\\`, `,`, `\,`).Replace(v)
}

// splitVars takes -v apart: quotes keep commas and are lost, a backslash keeps a comma.
func splitVars(s string) []string {
	var out []string
	var w strings.Builder
	quote := byte(0)
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c == '\\' && i+1 < len(s) && s[i+1] == ',':
			w.WriteString(`\,`)
			i++
		case c == '\\':
			w.WriteString(`\\\\`)
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '"' || c == '\''):
			quote = c
		case c == ',' && quote != 0:
			w.WriteString(`\,`)
		case c == ',':
			out = append(out, w.String())
			w.Reset()
		default:
			w.WriteByte(c)
		}
	}
	return append(out, w.String())
}

// send hands the job over and prints what comes back.
func (q *sub) send() (int, error) {
	if q.user == "?" {
		q.eprintf("qsub: cannot connect to server  (errno=0)\n")
		return 255, nil
	}
	server := q.server()
	if queue, at, ok := strings.Cut(q.s.Queue, "@"); ok {
		q.s.Queue, server = queue, at
	}
	var r reply
	if err := q.ask(server, request{Op: "submit", Submit: &q.s}, &r); err != nil {
		if err.code == unknownHost && server != q.server() {
			server = fmt.Sprintf("%.7s", server) // the command prints from a shorter buffer
		}
		q.eprintf("%s\nqsub: cannot connect to server %s (errno=%d)\n", err.why, server, err.code)
		if err.code == unknownHost {
			return 160, nil
		}
		return 162, nil
	}
	if r.Fail != nil {
		q.eprintf("qsub: %s\n", r.Fail.text())
		return r.Fail.exit(), nil
	}
	if !q.quiet {
		q.printf("%s\n", r.ID)
	}
	if q.s.Block {
		return q.wait(r.ID), nil
	}
	return 0, nil
}

// wait is block=true: it ends with the job's status.
func (q *sub) wait(id string) int {
	for { // as long as the job takes
		var r reply
		if err := q.ask(q.server(), request{Op: "outcome", IDs: []string{id}}, &r); err != nil {
			return 2
		}
		if r.Done {
			return r.Status & 0xff
		}
		time.Sleep(20 * time.Millisecond)
	}
}
