package hwinfo

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// probeDir holds answers of programs, written there by whoever asked them: below /run on a node, so that they
// do not outlive a boot.
const (
	probeDir = "run/substrate/probe"
	topoFile = probeDir + "/nvidia-smi-topo" // the output of "nvidia-smi topo -m"
	maxGPUs  = 256
)

// topoMatrix is the GPU part of nvidia-smi's matrix.
type topoMatrix struct {
	gpus  int
	nics  int
	links map[[2]int]int // NVLinks by pair, smaller index first; pairs joined by PCI or the processors alone are left out
}

var errNoMatrix = errors.New("no matrix of GPUs")

// parseTopo reads the matrix: a header of columns, a row for each device, up to the first blank line. Columns are
// parted by tabs since the affinity columns' names hold blanks.
func parseTopo(r io.Reader) (topoMatrix, error) {
	data, err := readLimited(r, 1<<20)
	if err != nil {
		return topoMatrix{}, err
	}
	m := topoMatrix{links: map[[2]int]int{}}
	var columns []string
	rows := map[int]bool{}
	for line := range lines(data) {
		if strings.TrimSpace(line) == "" {
			if columns != nil {
				break
			}
			continue
		}
		cells := strings.Split(stripEscapes(line), "\t")
		if columns == nil {
			columns = cells[1:]
			m.gpus, m.nics = countColumns(columns)
			if m.gpus == 0 || m.gpus > maxGPUs {
				return topoMatrix{}, errNoMatrix
			}
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
		if err := m.row(row, columns, cells[1:]); err != nil {
			return topoMatrix{}, err
		}
	}
	if m.gpus == 0 || len(rows) != m.gpus {
		return topoMatrix{}, errNoMatrix
	}
	return m, nil
}

func (m *topoMatrix) row(row int, columns, cells []string) error {
	for i, cell := range cells[:min(len(cells), len(columns))] {
		col, ok := deviceIndex(columns[i], "GPU")
		if !ok || col == row {
			continue
		}
		digits, nvlink := strings.CutPrefix(strings.TrimSpace(cell), "NV")
		if !nvlink {
			continue
		}
		n, err := strconv.ParseUint(digits, 10, 8)
		if err != nil || col >= m.gpus {
			return fmt.Errorf("cannot parse link %q of GPU%d", short(cell), row)
		}
		m.links[[2]int{min(row, col), max(row, col)}] = int(n)
	}
	return nil
}

func countColumns(columns []string) (gpus, nics int) {
	for _, c := range columns {
		if _, ok := deviceIndex(c, "GPU"); ok {
			gpus++
		} else if _, ok := deviceIndex(c, "NIC"); ok {
			nics++
		}
	}
	return gpus, nics
}

// deviceIndex reads "GPU12"; "GPU NUMA ID" is no device.
func deviceIndex(name, prefix string) (int, bool) {
	digits, ok := strings.CutPrefix(strings.TrimSpace(name), prefix)
	n, err := strconv.ParseUint(digits, 10, 16)
	return int(n), ok && err == nil
}

// stripEscapes drops the underlining that nvidia-smi puts around its header.
func stripEscapes(s string) string {
	for {
		i := strings.Index(s, "\x1b[")
		if i < 0 {
			return s
		}
		j := strings.IndexByte(s[i:], 'm')
		if j < 0 {
			return s[:i]
		}
		s = s[:i] + s[i+j+1:]
	}
}

// readLinks reads NVLinks where a probe left them. The matrix numbers GPUs by PCI address.
func (r *reader) readLinks(gpus []GPU) []GPULink {
	data, err := r.t.read(topoFile, 1<<20)
	if err != nil {
		if !absent(err) {
			r.warn(topoFile, err)
		}
		return nil
	}
	m, err := parseTopo(bytes.NewReader(data))
	if err != nil {
		r.warn(topoFile, err)
		return nil
	}
	var addresses []string
	for _, g := range gpus {
		if g.Vendor == "nvidia" {
			addresses = append(addresses, g.Address)
		}
	}
	if len(addresses) != m.gpus {
		r.warn(topoFile, fmt.Errorf("%d GPUs in the matrix, %d on the bus", m.gpus, len(addresses)))
		return nil
	}
	var out []GPULink
	for pair, n := range m.links {
		out = append(out, GPULink{A: addresses[pair[0]], B: addresses[pair[1]], NVLinks: n})
	}
	place := func(address string) int { return slices.Index(addresses, address) }
	slices.SortFunc(out, func(x, y GPULink) int {
		return cmp.Or(cmp.Compare(place(x.A), place(y.A)), cmp.Compare(place(x.B), place(y.B)))
	})
	return out
}

// Fabrics groups the GPUs' addresses by what NVLink joins, in the order of the facts; a GPU without a link is
// a group of its own. That a GPU has links does not say to whom: two pairs are two fabrics.
func (f *Facts) Fabrics() [][]string {
	group := make([]int, len(f.GPUs))
	index := map[string]int{}
	for i, g := range f.GPUs {
		group[i] = i
		index[g.Address] = i
	}
	for _, l := range f.GPULinks {
		a, okA := index[l.A]
		b, okB := index[l.B]
		if !okA || !okB || group[a] == group[b] {
			continue
		}
		keep, drop := min(group[a], group[b]), max(group[a], group[b])
		for i := range group {
			if group[i] == drop {
				group[i] = keep
			}
		}
	}
	var out [][]string
	at := map[int]int{}
	for i, g := range group {
		k, ok := at[g]
		if !ok {
			k = len(out)
			at[g] = k
			out = append(out, nil)
		}
		out[k] = append(out[k], f.GPUs[i].Address)
	}
	return out
}
