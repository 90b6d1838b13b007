// Package pbs starts a complex of OpenPBS that is none: the commands and the daemon of tests/pbs/peer with nodes,
// queues and users as a test wants them, and the faults that a real complex has on bad days. It knows nothing of
// what is tried against it.
package pbs
