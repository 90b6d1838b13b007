// Package sim simulates whole clusters, days of them in seconds, from a seed: the real engine, agents and codecs on the store's
// twin in memory, under virtual time. What runs on the simulated machines is judged, not only what records say. It starts no
// programs, opens no ports and says nothing about speed.
//
// # What is real
//
// The engine with its loop, its turns and its timers; package agent with its sessions, its table and its fence; the agents' server
// with its handlers; every message marshalled and read back as grpc does; configuration, grants, workflows from YAML; the
// recorded machines of tests/fixtures, which each agent reads from files.
//
// # What is simulated
//
//   - Time: a synctest bubble. A day without work costs next to nothing.
//   - The network: a stream is two pipes that keep order. Delays are drawn; what breaks loses what is under way; a peer that is
//     gone without a word is noticed later, at each end by itself; a partition holds a node off.
//   - Keepers: runs survive their agent, a journal survives the power, processes last as long as their command says, some ignore
//     SIGTERM, some outlive SIGKILL for a while. The clocks of machines are off by minutes.
//   - The disk below the store: it is slow, it is full, the outcome of a write is not told, or the coordinator dies between two groups
//     of a write. The next life starts on what was durable.
//   - People: three groups that submit jobs, gangs, arrays, services and chains, and cancel some; administrators who drain nodes, set
//     configurations and change priorities and preemption lists.
//
// # What is judged
//
// After every durable group, and at every start, signal and end of a process: no GPU, core, byte or licence twice, by what really
// runs; GPUs of a run in one fabric; gangs whole; each run begun once on a node, and never without a record; no second copy while the
// first may live; nothing new on nodes that are closed or lost; no notice before its plan is durable; victims that may be taken by the
// configuration of the moment, that are asked once and not in vain; nobody else's reserved or on-demand work on reserved
// GPUs; all of the notice between SIGTERM and SIGKILL; held GPUs for their holder alone; nobody takes the room of whom took his; statuses along their ways; ends that are believed are ends that
// happened; event numbers that grow; workflows that were answered are there. At the end nothing breaks any more, and all that is
// feasible must end; what is not feasible was refused when it came.
//
// Room is added up by cores, memory, GPUs and licences. What is held must fit beside what stays after every write. Whether a victim has to
// go is weighed once its whole write is durable, with what was decided before it and without the plans after it; not where less than these sums
// decides: GPUs, affinity or exclusive use, a definition with reservations, plans of others that backfill respects.
//
// # One seed again
//
//	make sim SEED=17              one seed, every step in bin/sim-17.trace
//	make sim SEEDS=1-200          many, each in a process of its own
//	make sim SEEDS=200 HOURS=100  longer
//
// A seed that breaks a rule prints the rule, the virtual time and the last steps. Same seed, same binary, same way: all chance is
// drawn from the seed in streams of their own, each message arrives at a moment of its own, and a process of one thread runs it,
// whose collector runs at set times. Goroutines that are due at the same instant are still ordered by the Go scheduler, so on a busy machine one run of
// many may differ in a few milliseconds; the digest adds up the steps of an instant, so that their order does not count.
package sim
