// Package pilots tests nodes that are jobs of a batch system, from a workflow to the end of the pilot, with the real programs and a real Slurm.
package pilots
