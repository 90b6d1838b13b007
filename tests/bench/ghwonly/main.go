// Command ghwonly reads with the ghw library what an agent needs to know of its node; the benchmark of facts runs it
// beside the agent's own program. It evaluates no conditions.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/jaypipes/ghw"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	cpu, err := ghw.CPU()
	if err != nil {
		return fmt.Errorf("cannot read processors: %w", err)
	}
	memory, err := ghw.Memory()
	if err != nil {
		return fmt.Errorf("cannot read memory: %w", err)
	}
	topology, err := ghw.Topology()
	if err != nil {
		return fmt.Errorf("cannot read topology: %w", err)
	}
	pci, err := ghw.PCI()
	if err != nil {
		return fmt.Errorf("cannot read PCI: %w", err)
	}
	gpu, err := ghw.GPU()
	if err != nil {
		return fmt.Errorf("cannot read GPUs: %w", err)
	}
	network, err := ghw.Network()
	if err != nil {
		return fmt.Errorf("cannot read network: %w", err)
	}
	block, err := ghw.Block()
	if err != nil {
		return fmt.Errorf("cannot read disks: %w", err)
	}
	return json.NewEncoder(os.Stdout).Encode([]any{cpu, memory, topology, pci, gpu, network, block})
}
