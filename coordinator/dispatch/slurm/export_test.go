package slurm

import (
	"path/filepath"

	"substrate/coordinator/dispatch"
)

// OutputName is where below the output directory a submission writes.
func OutputName(ref dispatch.Ref) string {
	b := &Backend{opt: Options{OutputDir: "/"}}
	name, _ := filepath.Rel("/", b.outputDir(ref))
	return name
}
