package hwinfo

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// topoMatrix is the GPU part of nvidia-smi's matrix. Pairs are by index, the smaller one first.
type topoMatrix struct {
	gpus  int
	nics  int
	links map[[2]int]int    // NVLinks; pairs joined by PCI or the processors alone are left out
	paths map[[2]int]string // the way over PCI of the other pairs
	numa  map[int][]int     // the nodes near to a GPU, where they are known
	flat  bool              // there is a column of nodes, and it knows none: the bus of a virtual machine
}

var (
	errNoMatrix = errors.New("no matrix of GPUs")
	errNoGPUs   = errors.New("no GPUs")
)

// parseTopo reads "nvidia-smi topo -m": a header of columns, a row for each device, up to the first blank line or
// the legend. GPUs come first, then network cards, then affinities, whose names and values hold blanks; so cells
// are counted from the left. Drivers part cells by tabs, people who pass the text on by blanks.
func parseTopo(r io.Reader) (topoMatrix, error) {
	data, err := readLimited(r, maxAnswer)
	if err != nil {
		return topoMatrix{}, err
	}
	m := topoMatrix{links: map[[2]int]int{}, paths: map[[2]int]string{}, numa: map[int][]int{}}
	var head topoHeader
	rows := map[int]bool{}
	for line := range lines(data) {
		line = stripEscapes(line)
		cells := strings.Fields(line)
		if len(cells) == 0 || strings.HasPrefix(cells[0], "Legend") {
			if m.gpus > 0 {
				break
			}
			continue
		}
		if m.gpus == 0 {
			if head, err = parseTopoHeader(cells); err != nil {
				return topoMatrix{}, err
			}
			m.gpus, m.nics = head.gpus, head.devices-head.gpus
			continue
		}
		row, ok := deviceIndex(cells[0], "GPU")
		if !ok {
			continue
		}
		if row >= m.gpus || rows[row] {
			return topoMatrix{}, fmt.Errorf("row GPU%d is out of place", row)
		}
		rows[row] = true
		if err := m.row(row, head, cells[1:]); err != nil {
			return topoMatrix{}, err
		}
	}
	if m.gpus == 0 || len(rows) != m.gpus {
		return topoMatrix{}, errNoMatrix
	}
	m.flat = head.numa >= 0 && len(m.numa) == 0
	return m, nil
}

type topoHeader struct {
	gpus, devices int
	numa          int // cells after the devices and before the NUMA affinity; -1: there is none
	rest          int // cells after the devices
}

// parseTopoHeader counts columns: GPU0, GPU1, …, then cards by any name, then the affinities.
func parseTopoHeader(cells []string) (topoHeader, error) {
	h := topoHeader{numa: -1}
	for h.gpus < len(cells) {
		if n, ok := deviceIndex(cells[h.gpus], "GPU"); !ok || n != h.gpus {
			break
		}
		h.gpus++
	}
	if h.gpus == 0 || h.gpus > maxGPUs {
		return h, errNoMatrix
	}
	h.devices = h.gpus
	for h.devices < len(cells) && cells[h.devices] != "CPU" && cells[h.devices] != "NUMA" && cells[h.devices] != "GPU" {
		h.devices++
	}
	tail := strings.Join(cells[h.devices:], " ")
	for _, column := range [...]string{"CPU Affinity", "NUMA Affinity", "GPU NUMA ID"} {
		after, ok := strings.CutPrefix(tail, column)
		if !ok {
			continue
		}
		if column == "NUMA Affinity" {
			h.numa = h.rest
		}
		h.rest++
		tail = strings.TrimPrefix(after, " ")
	}
	return h, nil
}

func (m *topoMatrix) row(row int, head topoHeader, cells []string) error {
	for col, cell := range cells[:min(len(cells), m.gpus)] {
		if col == row {
			continue
		}
		pair := [2]int{min(row, col), max(row, col)}
		digits, nvlink := strings.CutPrefix(cell, "NV")
		switch {
		case nvlink:
			n, err := strconv.ParseUint(digits, 10, 8)
			if err != nil || n == 0 {
				return fmt.Errorf("cannot parse link %q of GPU%d", short(cell), row)
			}
			m.links[pair] = int(n)
		case pathRank(cell) > 0:
			m.paths[pair] = cell
		case cell == "SOC": // old drivers' word
			m.paths[pair] = "SYS"
		}
	}
	// Only a row with every cell tells which is which.
	if head.numa >= 0 && len(cells) == head.devices+head.rest {
		if nodes, err := parseList(cells[head.devices+head.numa], maxNodes); err == nil && len(nodes) > 0 {
			m.numa[row] = nodes
		}
	}
	return nil
}

// pathRank orders the ways over PCI, nearest first; 0 is no such way.
func pathRank(path string) int {
	for i, name := range [...]string{"SYS", "NODE", "PHB", "PXB", "PIX"} {
		if name == path {
			return i + 1
		}
	}
	return 0
}

// deviceIndex reads "GPU12".
func deviceIndex(name, prefix string) (int, bool) {
	digits, ok := strings.CutPrefix(name, prefix)
	n, err := strconv.ParseUint(digits, 10, 16)
	return int(n), ok && err == nil && strconv.FormatUint(n, 10) == digits
}

// stripEscapes drops the underlining that nvidia-smi puts around its header, whatever it writes to.
func stripEscapes(s string) string {
	var b strings.Builder
	for {
		i := strings.Index(s, "\x1b[")
		if i < 0 {
			break
		}
		b.WriteString(s[:i])
		j := strings.IndexByte(s[i:], 'm')
		if j < 0 {
			return b.String()
		}
		s = s[i+j+1:]
	}
	b.WriteString(s)
	return b.String()
}
