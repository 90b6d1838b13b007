// Command substrate-probe prints what NVIDIA's library says of this node's GPUs, as JSON for the agent. It is a
// program of its own because the library is C, can hang or crash, and the agent is one static binary. It changes nothing.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"substrate/hwinfo"
	"substrate/hwinfo/probe"
)

// version is set by the linker.
var version = "dev"

// errNoLibrary: the library is not on this node, or this build cannot ask it.
var errNoLibrary = errors.New("NVIDIA's library is not there")

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, out, errOut io.Writer) int {
	if len(args) > 0 {
		if len(args) == 1 && (args[0] == "version" || args[0] == "--version") {
			fmt.Fprintln(out, version)
			return 0
		}
		fmt.Fprintln(errOut, "substrate-probe: cannot run: it takes no arguments\nhint: it prints JSON about this node's NVIDIA GPUs")
		return 2
	}
	report, err := ask()
	if err == nil {
		err = write(out, report)
	}
	if err != nil {
		fmt.Fprintf(errOut, "substrate-probe: cannot ask about GPUs: %v\n", err)
		if errors.Is(err, errNoLibrary) {
			return probe.ExitNoLibrary
		}
		return 1
	}
	return 0
}

func write(out io.Writer, report hwinfo.NVMLReport) error {
	data, err := json.Marshal(report)
	if err != nil {
		return err
	}
	_, err = out.Write(append(data, '\n'))
	return err
}
