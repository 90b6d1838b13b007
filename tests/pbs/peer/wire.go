package main

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"reflect"
	"strings"
	"syscall"
	"time"
)

func now() int64 { return time.Now().Unix() }

// request is what a command, or a test, wants of the daemon. One for each connection, as JSON.
type request struct {
	Op     string
	Cmd    string
	User   string
	IDs    []string // keys of jobs, names of queues or nodes
	Submit *submission
	Text   string
	More   string
	Pairs  []pair
	Number int64
	Force  bool
	Old    bool // finished jobs too
	Sub    bool // subjobs too
}

// reply is the daemon's answer.
type reply struct {
	Fail    *fail
	Fails   []fail // one for each id, without a number where it went well
	ID      string
	Entries []entry
	Text    string
	Done    bool
	Status  int
	History bool   // a history is kept
	Lose    bool   // the command must die before it says anything
	Notice  string // qstat's word about the history
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
	if err := send(conn, &req); err != nil {
		return err
	}
	if err := json.NewDecoder(io.LimitReader(conn, 1<<30)).Decode(out); err != nil {
		return err
	}
	eachString(reflect.ValueOf(out).Elem(), narrow)
	return nil
}

// send writes a message. Users' text may hold any bytes, which JSON would change: each travels as a letter of its
// own. The message is spent with it.
func send(w io.Writer, message any) error {
	eachString(reflect.ValueOf(message).Elem(), widen)
	return json.NewEncoder(w).Encode(message)
}

func widen(s string) string {
	out := make([]rune, len(s))
	for i := range len(s) {
		out[i] = rune(s[i])
	}
	return string(out)
}

func narrow(s string) string {
	out := make([]byte, 0, len(s))
	for _, r := range s {
		out = append(out, byte(r))
	}
	return string(out)
}

// eachString changes every string of a message. Messages hold structs, slices and pointers to them.
func eachString(v reflect.Value, change func(string) string) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(change(v.String()))
	case reflect.Pointer:
		if !v.IsNil() {
			eachString(v.Elem(), change)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			eachString(v.Field(i), change)
		}
	case reflect.Slice:
		for i := range v.Len() {
			eachString(v.Index(i), change)
		}
	}
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
	eachString(reflect.ValueOf(&req).Elem(), narrow)
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
