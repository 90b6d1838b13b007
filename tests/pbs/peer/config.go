package main

import (
	"bytes"
	"encoding/gob"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// version is what the complex says it is. The peer's answers were observed on this one.
const version = "23.06.06"

// config is what a complex is made with and that never changes: config.json in its directory.
type config struct {
	Dir  string `json:"-"`
	Host string `json:"host"`
	User string `json:"user"` // who calls, unless the environment says
	Home string `json:"home"` // where users live, as the complex sees it; %u is the user
	// Virtual and Real: paths below Virtual lie below Real on this machine. Both empty: they are the same.
	Virtual string `json:"virtual,omitempty"`
	Real    string `json:"real,omitempty"`
	// Second is how long a second of the server's and the moms' own waiting takes.
	Second time.Duration `json:"second"`
	// Walltime is how long a second of a job's walltime takes.
	Walltime time.Duration `json:"walltime"`
	Client   string        `json:"client,omitempty"` // "master": qstat and pbsnodes print as the later client
	Nodes    []nodeConfig  `json:"nodes"`
	History  bool          `json:"history"`
}

// nodeConfig is a vnode at the start.
type nodeConfig struct {
	Name      string            `json:"name"`
	Host      string            `json:"host,omitempty"` // empty: its name
	CPUs      int               `json:"cpus"`
	Memory    string            `json:"memory"`
	Resources map[string]string `json:"resources,omitempty"`
	Sharing   string            `json:"sharing,omitempty"`
}

// maxFile bounds what is read of a file of the complex.
const maxFile = 64 << 20

func readConfig(dir string) (config, error) {
	var cfg config
	if err := readJSON(filepath.Join(dir, "config.json"), &cfg); err != nil {
		return cfg, fmt.Errorf("cannot read the complex: %w", err)
	}
	cfg.Dir = dir
	return cfg, nil
}

func (c config) socket() string { return filepath.Join(c.Dir, "sock") }

// homeOf is where a user lives.
func (c config) homeOf(user string) string { return strings.ReplaceAll(c.Home, "%u", user) }

// wait is n seconds of the server's own waiting.
func (c config) wait(n int) time.Duration { return time.Duration(n) * c.Second }

// seen turns a path of this machine into the one the complex shows.
func (c config) seen(path string) string { return rebase(path, c.Real, c.Virtual) }

// real is the other way round.
func (c config) real(path string) string { return rebase(path, c.Virtual, c.Real) }

func rebase(path, from, to string) string {
	if from == "" || (path != from && !strings.HasPrefix(path, from+"/")) {
		return path
	}
	return to + path[len(from):]
}

func readJSON(path string, v any) error {
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	if st.Size() > maxFile {
		return fmt.Errorf("%s has more than %d bytes", path, maxFile)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, v)
}

// writeFile replaces a file at once: who reads it sees the old or the new one, also after a kill.
func writeFile(path string, data []byte) error {
	tmp := path + ".new"
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// readGob and writeGob keep what may hold any bytes.
func readGob(path string, v any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return gob.NewDecoder(bytes.NewReader(data)).Decode(v)
}

func writeGob(path string, v any) error {
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(v); err != nil {
		return err
	}
	return writeFile(path, b.Bytes())
}

func writeJSON(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return writeFile(path, data)
}

// zone is where a client lives: times are printed in its local time.
type zone struct{ loc *time.Location }

func zoneOf(name string) zone {
	if name == "" {
		return zone{time.UTC}
	}
	loc, err := time.LoadLocation(strings.TrimPrefix(name, ":"))
	if err != nil {
		loc = time.UTC
	}
	return zone{loc}
}

// ctime is the form of C's ctime without its newline.
func (z zone) ctime(epoch int64) string {
	return time.Unix(epoch, 0).In(z.loc).Format("Mon Jan _2 15:04:05 2006")
}
