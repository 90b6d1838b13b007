package spec

import "substrate/coordinator"

// Request is what of a batch system's definition goes into a submission, for either kind.
type Request struct {
	CPU             coordinator.Cores
	Memory          coordinator.Bytes
	GPUs, Nodes     uint32
	Queue, Account  string
	QOS, Constraint string
	Mode            Mode
	ExtraDirectives []string
}

// RequestOf reads the spec of a definition; it is false for one that is not of a batch system.
func RequestOf(definition any) (Request, bool) {
	switch s := definition.(type) {
	case Slurm:
		return Request{s.CPU, s.Memory, s.GPUs, s.Nodes, s.Partition, s.Account, s.QOS, s.Constraint, s.Mode, s.ExtraDirectives}, true
	case PBS:
		return Request{s.CPU, s.Memory, s.GPUs, s.Nodes, s.Queue, s.Project, "", "", s.Mode, s.ExtraDirectives}, true
	}
	return Request{}, false
}

// Native reports whether work on a definition becomes jobs of a batch system, instead of running under an agent.
func Native(d *coordinator.Definition) bool {
	r, ok := RequestOf(d.Spec)
	return ok && r.Mode == ModeNative
}
