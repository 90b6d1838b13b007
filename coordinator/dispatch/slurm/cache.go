package slurm

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"substrate/coordinator/dispatch"
)

const (
	cacheLimit = 64 << 10
	// cacheAge is after how long a backend that may probe does so again.
	cacheAge = 30 * 24 * time.Hour
)

// identity is what a probe's answers hold for: another value of any of these is another cluster, or the same after a change that may matter.
type identity struct {
	Cluster  string `json:"cluster"`
	Version  string `json:"version"`
	Host     string `json:"host"`
	AuthType string `json:"authType"`
	Storage  string `json:"storage"`
	Flags    string `json:"flags"`
	User     string `json:"user"`
}

func identify(c configuration, user string) identity {
	return identity{Cluster: c.values["ClusterName"], Version: c.values["SLURM_VERSION"], Host: c.values["SlurmctldHost[0]"], AuthType: c.values["AuthType"],
		Storage: c.values["AccountingStorageType"], Flags: c.values["AccountingStoreFlags"], User: user}
}

// probed is what a probe found out, as it is kept.
type probed struct {
	Format   int              `json:"format"`
	Identity identity         `json:"identity"`
	At       time.Time        `json:"at"`
	Skew     time.Duration    `json:"skewNs"`
	Hold     dispatch.Support `json:"hold"`
	History  dispatch.Support `json:"accountingHistory"`
}

const cacheFormat = 1

func cacheFile(dir string, id identity) (string, error) {
	text, err := json.Marshal(id)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return filepath.Join(dir, "slurm-"+hex.EncodeToString(sum[:12])+".json"), nil
}

// load reads the answers for a cluster; nil without an error when there are none.
func load(dir string, id identity) (*probed, error) {
	if dir == "" {
		return nil, nil
	}
	name, err := cacheFile(dir, id)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the cached probe: %w", err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Mode().Perm()&0o022 != 0 {
		return nil, fmt.Errorf("cannot use the cached probe %s: others may write it", name)
	}
	data, err := io.ReadAll(io.LimitReader(f, cacheLimit))
	if err != nil {
		return nil, fmt.Errorf("cannot read the cached probe: %w", err)
	}
	p, err := parseProbed(data)
	if err != nil {
		return nil, fmt.Errorf("cannot read the cached probe %s: %w", name, err)
	}
	if p.Identity != id {
		return nil, fmt.Errorf("cannot use the cached probe %s: it is another cluster's", name)
	}
	return p, nil
}

func parseProbed(data []byte) (*probed, error) {
	var p probed
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		return nil, err
	}
	if p.Format != cacheFormat || p.Hold.Source != dispatch.Probed || p.History.Source != dispatch.Probed || p.Skew < 0 || p.Skew > time.Hour {
		return nil, fmt.Errorf("format %d or its answers are not of this release", p.Format)
	}
	return &p, nil
}

// save replaces the file at once: who reads sees the old or the new one.
func save(dir string, p probed) (err error) {
	if dir == "" {
		return nil
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("cannot keep the probe: %w", err)
		}
	}()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	name, err := cacheFile(dir, p.Identity)
	if err != nil {
		return err
	}
	data, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".probe-*") // with mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // gone after the renaming
	_, err = f.Write(append(data, '\n'))
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}
