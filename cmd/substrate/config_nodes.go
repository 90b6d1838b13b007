package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"substrate/coordinator"
	"substrate/coordinator/config/fleet"
	"substrate/coordinator/inventory"
	"substrate/hwinfo"
)

// maxFleet bounds what is read from a directory of nodes.
const maxFleet = 100_000

// Ends of the names of a node's file.
const (
	factsSuffix   = ".json"
	archiveSuffix = ".txtar"
)

const readingGC = 400

// fleetFrom reads a directory of nodes: one snapshot for each, a file or a folder, as `substrated snapshot` writes
// them, or one file of facts, as `substrated inspect -o json` prints them. A node is called as its file or folder.
// What cannot be read is said and left out.
func (a *app) fleetFrom(dir string) ([]fleet.Node, error) {
	const oneNode = "cannot read nodes from %s: it is the snapshot of one node"
	entries, err := os.ReadDir(dir)
	if errors.Is(err, syscall.ENOTDIR) && strings.HasSuffix(dir, archiveSuffix) {
		return nil, failf(exitFailed, "give the directory that it is in", oneNode, dir)
	} else if err != nil {
		return nil, failf(exitFailed, "see --nodes", "cannot read nodes from %s: %s", dir, cause(err))
	}
	if snapshotIn(entries) {
		return nil, failf(exitFailed, "give the directory above it", oneNode, dir)
	}
	if len(entries) > maxFleet {
		return nil, failf(exitFailed, "", "cannot read nodes from %s: it has more than %d entries", dir, maxFleet)
	}
	nodes, errs := make([]fleet.Node, len(entries)), make([]error, len(entries))
	var next atomic.Int64
	var wg sync.WaitGroup
	// Thousands of short-lived trees: collecting less often costs some memory of a program that soon ends.
	defer debug.SetGCPercent(debug.SetGCPercent(readingGC))
	for range min(runtime.GOMAXPROCS(0), len(entries)) {
		wg.Go(func() {
			for i := next.Add(1) - 1; int(i) < len(entries); i = next.Add(1) - 1 {
				nodes[i], errs[i] = nodeFrom(filepath.Join(dir, entries[i].Name()))
			}
		})
	}
	wg.Wait()
	out := make([]fleet.Node, 0, len(entries))
	from := map[coordinator.NodeID]string{}
	for i, n := range nodes {
		name := entries[i].Name()
		switch {
		case errs[i] != nil:
			a.warn("warning: %s is left out: %v", filepath.Join(dir, name), errs[i])
		case n.ID == "": // not a node's
		case from[n.ID] != "":
			a.warn("warning: %s is left out: %s is the same node", filepath.Join(dir, name), from[n.ID])
		default:
			from[n.ID] = name
			out = append(out, n)
		}
	}
	if len(out) == 0 {
		return nil, failf(exitFailed, "fill it with `substrated snapshot - > DIR/NAME.txtar` on each node, or `substrated inspect -o json > DIR/NAME.json`",
			"cannot read nodes from %s: there is none", dir)
	}
	return out, nil
}

func snapshotIn(entries []os.DirEntry) bool {
	for _, e := range entries {
		if e.Name() == "proc" && e.IsDir() || e.Name() == "uname" && !e.IsDir() {
			return true
		}
	}
	return false
}

// nodeFrom reads one node; one without an id is something else.
func nodeFrom(path string) (fleet.Node, error) {
	name := filepath.Base(path)
	if strings.HasPrefix(name, ".") {
		return fleet.Node{}, nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return fleet.Node{}, errors.New(cause(err))
	}
	n := fleet.Node{Known: true}
	switch base, archive := strings.CutSuffix(name, archiveSuffix); {
	case info.IsDir():
		n.ID = coordinator.NodeID(name)
		n.Facts, err = folderFacts(path)
	case archive:
		n.ID = coordinator.NodeID(base)
		n.Facts, err = archiveFacts(path, info)
	case strings.HasSuffix(name, factsSuffix):
		n.ID = coordinator.NodeID(strings.TrimSuffix(name, factsSuffix))
		n.Facts, err = fileFacts(path, info)
	default:
		return fleet.Node{}, nil
	}
	return n, err
}

func folderFacts(path string) (hwinfo.Facts, error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return hwinfo.Facts{}, errors.New(cause(err))
	}
	if !snapshotIn(entries) {
		return hwinfo.Facts{}, errors.New("it is not a snapshot: neither proc nor uname is in it")
	}
	facts, _, err := hwinfo.ReadSnapshot(path)
	return facts, err
}

func archiveFacts(path string, info os.FileInfo) (hwinfo.Facts, error) {
	if !info.Mode().IsRegular() { // a pipe would be waited for
		return hwinfo.Facts{}, errNotFile
	}
	facts, _, err := hwinfo.ReadSnapshot(path)
	return facts, err
}

var errNotFile = errors.New("it is not a regular file")

// fileFacts reads what `substrated inspect -o json` printed, or the facts in it alone.
func fileFacts(path string, info os.FileInfo) (hwinfo.Facts, error) {
	switch {
	case !info.Mode().IsRegular():
		return hwinfo.Facts{}, errNotFile
	case info.Size() > 2*inventory.MaxFacts:
		return hwinfo.Facts{}, fmt.Errorf("it is larger than %s", size(2*inventory.MaxFacts))
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return hwinfo.Facts{}, errors.New(cause(err))
	}
	var inspected struct {
		Facts json.RawMessage `json:"facts"`
	}
	if err := json.Unmarshal(data, &inspected); err == nil && len(inspected.Facts) > 0 {
		data = inspected.Facts
	}
	return inventory.DecodeFacts(data)
}

// cause is the system's word without the path, which is said already.
func cause(err error) string {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}
