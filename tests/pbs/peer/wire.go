package main

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
)

func now() int64 { return time.Now().Unix() }

// request is what a command, or a test, wants of the daemon. One for each connection, as JSON.
type request struct {
	Op     string      `json:"op"`
	Cmd    string      `json:"cmd,omitempty"`
	User   string      `json:"user,omitempty"`
	IDs    []string    `json:"ids,omitempty"` // keys of jobs, names of queues or nodes
	Submit *submission `json:"submit,omitempty"`
	Text   string      `json:"text,omitempty"`
	More   string      `json:"more,omitempty"`
	Pairs  []pair      `json:"pairs,omitempty"`
	Number int64       `json:"number,omitempty"`
	Force  bool        `json:"force,omitempty"`
	Old    bool        `json:"old,omitempty"` // finished jobs too
	Sub    bool        `json:"sub,omitempty"` // subjobs too
}

// reply is the daemon's answer.
type reply struct {
	Fail    *fail   `json:"fail,omitempty"`
	Fails   []*fail `json:"fails,omitempty"` // one for each id, nil where it went well
	ID      string  `json:"id,omitempty"`
	Entries []entry `json:"entries,omitempty"`
	Text    string  `json:"text,omitempty"`
	Done    bool    `json:"done,omitempty"`
	Status  int     `json:"status,omitempty"`
	History bool    `json:"history,omitempty"` // a history is kept
	Lose    bool    `json:"lose,omitempty"`    // the command must die before it says anything
	Notice  string  `json:"notice,omitempty"`  // qstat's word about the history
}

// refusal is a server that cannot be talked to.
type refusal struct {
	why  string
	code int
}

// server is whom the command talks to: PBS_SERVER, PBS_DEFAULT or the complex's own.
func (c *call) server() string {
	for _, env := range []string{"PBS_SERVER", "PBS_DEFAULT"} {
		if s := os.Getenv(env); s != "" {
			return s
		}
	}
	return c.cfg.Host
}

// ask sends one request and reads one answer. There is no time limit, as the commands have none.
func (c *call) ask(server string, req request, out *reply) *refusal {
	if server != c.cfg.Host {
		for _, n := range c.cfg.Nodes {
			if n.Name == server || n.Host == server {
				return &refusal{"Connection refused", noServer} // a host of the complex without a server
			}
		}
		return &refusal{"Unknown Host.", unknownHost}
	}
	req.Cmd = c.name
	if req.User == "" {
		req.User = c.user
	}
	if err := exchange(c.cfg.socket(), req, out); err != nil {
		return &refusal{"Connection refused", noServer}
	}
	if out.Lose {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // the signal is on its way
	}
	return nil
}

// exchange is one request over the daemon's socket.
func exchange(path string, req request, out *reply) error {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := json.NewEncoder(conn).Encode(req); err != nil {
		return err
	}
	return json.NewDecoder(io.LimitReader(conn, 1<<30)).Decode(out)
}

// maxRequest bounds what the daemon reads of a connection.
const maxRequest = maxFile + 1<<20

// decodeRequest reads a request from outside.
func decodeRequest(r io.Reader) (request, error) {
	var req request
	d := json.NewDecoder(io.LimitReader(r, maxRequest))
	if err := d.Decode(&req); err != nil {
		return req, err
	}
	if req.Op == "" {
		return req, errors.New("a request without a verb")
	}
	if s := req.Submit; s != nil && s.Array != nil && (s.Array.Step < 1 || s.Array.First < 0 || s.Array.Last < s.Array.First) {
		return req, errors.New("an array that is none")
	}
	return req, nil
}

// parseID turns an id of the command line into a key: digits, an index or range in brackets, and the server's name.
func parseID(text, host string) (string, bool) {
	n := 0
	for n < len(text) && text[n] >= '0' && text[n] <= '9' {
		n++
	}
	if n == 0 || n > 12 {
		return "", false
	}
	rest := text[n:]
	key := text[:n]
	if strings.HasPrefix(rest, "[") {
		end := strings.IndexByte(rest, ']')
		if end < 0 || strings.Trim(rest[1:end], "0123456789-:") != "" {
			return "", false
		}
		key, rest = key+rest[:end+1], rest[end+1:]
	}
	if rest == "" {
		return key, true
	}
	server, ok := strings.CutPrefix(rest, ".")
	if !ok || server == "" {
		return "", false
	}
	return key, host == "" || server == host
}
