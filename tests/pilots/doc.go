// Package pilots tests nodes that are jobs of a batch system, from a workflow to the end of the pilot, with the real programs: in a real Slurm, and in tests/pbs where PBS is meant.
package pilots
