// Package sched decides what runs where: a Scheduler is told what changes and makes plans, Decide makes one from a snapshot.
// It has no clock, no I/O, no randomness and no goroutine; it evaluates no expression and knows no grant.
//
// # Rules
//
// Numbers are those that a Verdict carries and that the files in testdata/scenarios are named after.
//
//	1  queue order: class, returned work, priority, submission, id; positions 1..n per class
//	2  priority grows with age, for everybody at the same rate
//	3  returned work is first in its class
//	4  strict order within a class among allocations that overlap
//	5  all or nothing, gangs included; array concurrency
//	6  candidates: cheapest definition, then file order, then id; the fullest node that fits
//	7  the GPUs of a job on a node come from one fabric, and what is joined stays whole for others
//	8  cores within NUMA domains and sockets, with their memory, near the GPUs
//	9  tokens are counted over the cluster
//	10 reservations: who owns one starts there at once, and nobody else's reserved or on-demand work does
//	11 on-demand work takes what is not reserved before it would end
//	12 batch work takes any idle device, those that are not reserved first
//	13 reserved and on-demand work never yields by class
//	14 planned start of a blocked allocation from known ends
//	15 backfill: easy and conservative
//	16 estimates by stepping the same decision forward
//	17 who may be made to give way: batch by class, preemptible work by group and priority
//	18 the whole placement is tried first; no full fit, no kill
//	19 fewest victims, least lost work, latest start, id; nobody in vain
//	20 kills and hold are one plan; what is held is for its holder only
//	21 the notice and its deadline
//	22 what ends by itself within the notice is waited for
//	23 how often work may be preempted
//	24 the figures of each preemption
//	25 nothing is placed on a node that is not schedulable; batch work of a drained one gets notice
//	26 nothing is placed where maintenance would begin before it ends
//	27 a lost node offers nothing; what is recorded there holds its tokens until it is ended
//	28 nodes are launched for work that fits none that is up or coming, and given up when they are idle or their life is over
//
// # Order and overlap (rule 4)
//
// Two allocations overlap when they share at least one admissible definition, or want the same
// token. A waiting allocation is not passed by a later one of its class that overlaps it, not even
// on a definition that only the later one may use. A head is a waiting allocation that overlaps no
// earlier waiting one of its class: the first is always one, and each part of the cluster that
// the parts before it do not touch has its own.
//
// Work that no end of running work can help stands outside the order: it passes nobody, holds
// nobody up and does not use up the queue depth. That is work without an admissible definition,
// work too large for the nodes there are, work whose nodes are all drained or not ready, and work
// that wants more of a token than the cluster has. Tasks over their array's own concurrency limit
// stand outside the order as well.
//
// # Between classes (rules 11 and 12)
//
// Classes are served in order, reserved, on-demand, batch, and the order is strict within a class
// only: a lower class may use what the higher ones left. What it has to leave alone is decided by
// whether it can be made to yield:
//
//   - On-demand work is never preempted by class, so it respects the planned start of a blocked
//     reserved allocation in every mode: it starts only where it ends before that plan or leaves
//     the plan's share free.
//   - Batch work yields to both classes above it. With backfill "none" it fills whatever is idle
//     now and respects no plan of theirs: an idle GPU is not kept for a start that is an hour
//     away. The head's wait is then bounded by taking batch work back (rules 17 to 24), not
//     by keeping it off; an estimate of the head counts the batch work as holding on to its walltime.
//   - With backfill "easy" or "conservative" the site asked for plans to be kept, so batch respects
//     those of the classes above it too, and is not started only to be killed again.
//
// # Plans and backfill (rules 14 and 15)
//
// A placement is taken to end at started + walltime + notice, one that is being stopped at
// now + notice if that is sooner, and neither before now + 1 s. Without walltime it ends never.
// A plan is the earliest time at which the whole request fits for its whole walltime, counting the
// plans made before it. A request that fits after no known end has a plan at "never": it keeps
// work without walltime off the nodes it would take, and nothing else.
//
// Easy plans for the heads only, conservative for every allocation that could not start. Later
// work starts if, for as long as it may run, every plan keeps its share. Up to QueueDepth waiting
// allocations of a class are looked at, heads included; those behind an overlapping one and past
// that number wait as queue-depth.
//
// # Fit (rules 5, 6)
//
// A core is never shared: a request for hardware threads takes as many whole cores as hold them.
// A node held by an exclusive job takes nobody else; one held by an exclusive workflow takes that
// workflow only. A definition's own Exclusive counts as if each request placed there asked for it.
// Within a definition, nodes without devices come first, then those with the fewest free devices,
// free cores, free memory, and the id decides.
//
// # Joined GPUs, cores of a domain (rules 7, 8)
//
// A node is taken by amounts, and where its GPUs or NUMA domains are known, by which of them too. GPUs of one job come from
// one fabric unless it is loose; topology.pick says which. Cores go where pickCores puts them, GPUs near them,
// and then the cores near those GPUs. A request with a plan beside it gets what is free for as long as it may run: its GPUs
// do not change while it runs. Of an older placement only amounts may be known: it counts as having the
// first devices and the first domains' cores that nobody else has, whenever that is asked. Where a report does not
// say what is together, work that depends on it waits as hardware-unknown.
//
// # Preemption (rules 17 to 24)
//
// A head that cannot start looks for victims: for the cheapest set whose end would let all of it start, on
// nodes as they will be when everybody who ends anyhow is gone. Who ends anyhow was given notice before, or
// has a walltime that is over within the notice; if that alone makes room nobody is killed, and if it makes a part of
// it only the rest is. By group, work takes room of its own class or of a later one, since on-demand work that had to
// make room for batch work would take it back by class. Nothing is told to end at the moment it starts. Work of equal
// rank never yields: a victim comes back with its old submission time, all age at the same rate, and so a plan is
// never undone by the one that it displaced.
//
// Among up to 12 candidates, on a node or for a gang in a definition, every set is weighed. On one node with more of them up
// to 5,000 sets are, smallest first, so the set is the smallest and cheapest one where it has up to 3 of 31 victims, 4 of 18 or 5 of 15, or where fewer can be seen not to
// do. Past that, those that free most are taken until it fits and given back where they are not needed. For a gang with more candidates the 64 nodes, and four for each that it wants, that
// may cost least are cleared in their own cheapest ways, again and again the one that opens most nodes for each victim. That is the smallest set where no
// victim is on two nodes and the estimate of what a node costs by amounts alone is right; with victims that are gangs themselves it is the known greedy
// cover of what each node loses least with, which can be several times as many. An example: victims A on nodes 1 to 4, B on 5 to 8, and, started later, C on 1, 2, 3, 5, 6, 7, D on 4, E on 8, for
// a gang of eight, each of whose nodes has room once one of its victims is gone: C, D, E go where A and B would do.
// In every case nobody in the set is killed in vain: with any one of them spared it would not fit.
//
// Kills and hold are one plan. What is held is taken for everybody else at once, what is free of it too;
// while victims still end, their room counts for them and for the holder, but once. The holder stands outside the order: it waits
// for its own room only, starts when nobody is on it any more, not in what the victims of another hold have left, and is in nobody's way. There is at most one
// hold for an allocation. It ends when its allocation is gone, a node of it cannot be used, or the room was taken by
// something that the scheduler was told of later; then the same decision looks for another.
//
// Plans that are respected are respected by preemption as well.
//
// # Reservations (rules 10 to 13)
//
// A reservation gets its devices when it begins, and keeps them: whole fabrics before parts of one, idle ones before
// those with batch work, and those before what other work leaves first. Until it begins, on-demand
// work that would not be over keeps off what it would consist of if it began now. What runs there when it begins, or
// is held there, may go on. Reserved work takes room back from all batch work on the nodes of its reservation. Reserved allocations
// overlap when they run in the same reservation, or want the same token. On nodes that only count their devices
// the numbers are kept.
//
// # Maintenance (rule 26)
//
// A window closes its nodes to everything that might still run when it begins, by walltime; without walltime that is
// always. While it lasts, batch work on them gets notice, as on drained nodes. Work that windows keep from every node
// stands outside the order.
//
// # Dynamic nodes (rule 28)
//
// An offer says what a node of a definition is expected to have and how many there may be. At the end of a decision the queues are gone
// through once more: who waits for room gets it on nodes that are coming, each of which has room for as many as fit, and on those that are up
// and idle if it wants several; what is missing is launched, all of it or none. Room that is coming in any admissible definition comes before a
// launch; among launches the cheapest definition comes first, then the order of the file; an offer that is unavailable, that may have no more nodes or whose
// nodes are too small or live too short is passed over. Under strict order nothing is launched behind work that nothing can be launched for. Up to
// 1,000 of each class are looked at, and 256 nodes launched, in one decision.
//
// Who a node is launched for has no right to it: work starts by the rules above on what is up. A life that ends is like maintenance without end.
//
// The contract with whoever carries launches out: store each Launch under its key, in the transaction of the plan, and only then call the
// provider, with the key as the token that makes the call idempotent. After a restart call again for stored launches that have no answer and tell of all as
// Launching. When the node has reported, SetNode and DropLaunching; when the launch has failed, DropLaunching, Submit what it was for with
// Attempt one higher (a token is not used twice), and SetOffer with UnavailableUntil if the provider had no capacity. What a launched node reports replaces what was
// expected of it: an offer that promised more is told again with less, or the same node is launched for the same work again and again. Node.IdleSince
// is told when the last run there has ended and is empty while one is there; Node.Expires is the launch plus the ttl, less its buffer. A Release is carried out like a drain
// of an empty node: stored, the provider called until it says that the node is gone, then RemoveNode; until then it counts to MaxNodes.
//
// # Estimates (rule 16)
//
// The decision is stepped forward from one time at which something is known to change to the next, with the same code that decides:
// ends of placements, and when they come within the notice so that a victim makes up the rest, beginnings and ends of reservations and
// maintenance, ends of protection from preemption. So with nothing arriving, every placement ending when it is
// planned to, victims not coming back and a decision at each of these times (Next, and ends that are told), an
// estimate is met to the second, in every backfill mode, and what has none does not start. Work that ends early moves estimates either way, as with any list
// of work, but for the first in the queue: with backfill that starts no later than its estimate said, as long as nobody is preempted
// and it does not stand outside the order.
// Not foreseen are priorities that cross a threshold by age alone between two such times, and nodes that are coming, beyond when those that an allocation waits for are ready.
// The first 1,000 of each class are estimated, within a fixed amount of work; past it, an
// allocation with a plan shows that. What the stepping changed is put back (trial).
//
// # What a decision costs
//
// Requests that are alike are one shape with one ordered queue. A class merges the heads of its shapes in order and drops
// a shape once nothing more of it can start, so a pass costs starts and shapes; only a queue depth and conservative
// plans make it look at entries one by one, up to their limit. A shape that found no room is not tried again until
// something got free in its definitions or tokens. Since a pass starts a prefix of each shape's queue, what kept an entry follows from where
// it is in relation to a few others: positions and verdicts are worked out when they are asked for. A definition's nodes
// are a tree by fullness that knows of each subtree what it has free at most and when its first claim ends,
// so that a start, an end and a plan touch few of them.
//
// Nothing that is remembered changes an answer: plan, positions, verdicts and estimates are those of a Scheduler that is
// told the same facts for the first time.
package sched
