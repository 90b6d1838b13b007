package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Machine is what an agent finds under its --root: a machine of any size, whatever this one is.
type Machine struct {
	Cores     int
	MemoryMiB int
}

// Write makes the files of the machine.
func (m Machine) Write(root string) error {
	var cpus strings.Builder
	for i := range m.Cores {
		fmt.Fprintf(&cpus, "processor\t: %d\nvendor_id\t: GenuineIntel\nmodel name\t: Test CPU\nphysical id\t: 0\ncore id\t\t: %d\ncpu cores\t: %d\n\n", i, i, m.Cores)
	}
	files := map[string]string{
		"proc/cpuinfo":                  cpus.String(),
		"proc/meminfo":                  fmt.Sprintf("MemTotal:       %d kB\n", m.MemoryMiB<<10),
		"proc/sys/kernel/ostype":        "Linux\n",
		"proc/sys/kernel/osrelease":     "6.1.0\n",
		"sys/devices/system/cpu/online": fmt.Sprintf("0-%d\n", m.Cores-1),
	}
	for i := range m.Cores {
		topology := fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology/", i)
		files[topology+"core_id"] = fmt.Sprintln(i)
		files[topology+"physical_package_id"] = "0\n"
	}
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("cannot write the machine: %w", err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return fmt.Errorf("cannot write the machine: %w", err)
		}
	}
	return nil
}
