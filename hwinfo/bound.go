package hwinfo

import (
	"encoding/json"
	"errors"
	"fmt"
)

// Bounded returns the facts without the parts that make their JSON longer than limit bytes, largest first, and says
// what was left out. What is left out is unknown, not none. Facts of a real node fit into a mebibyte whole unless they have
// thousands of functions.
func (f Facts) Bounded(limit int) (Facts, []Warning, error) {
	var warnings []Warning
	for _, part := range []struct {
		name string
		drop func()
	}{
		{"", func() {}},
		{pciDir, func() { f.PCI = nil }},
		{netDir, func() { f.NICs = nil }},
		{blockDir, func() { f.Disks = nil }},
		{rdmaDir, func() { f.RDMA = nil }},
		{probeDir, func() {
			gpus := append([]GPU(nil), f.GPUs...)
			for i := range gpus {
				gpus[i].LinksKnown = false
			}
			f.GPUs, f.GPULinks = gpus, nil
		}},
	} {
		part.drop()
		if part.name != "" {
			warnings = append(warnings, Warning{Source: part.name, Message: fmt.Sprintf("left out of the report, which would be longer than %d bytes", limit)})
		}
		data, err := json.Marshal(f)
		if err != nil {
			return f, warnings, err
		}
		if len(data) <= limit {
			return f, warnings, nil
		}
	}
	return f, warnings, errTooLarge
}

var errTooLarge = errors.New("facts are too large to report")
