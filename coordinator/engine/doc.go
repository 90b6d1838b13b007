// Package engine is the one loop that decides and acts: event, decision, durable write, effect.
// It does not speak the wire; coordinator/server does.
//
// # The life of a command
//
// A caller's request is a command: do sends what changes the state, view what only reads it. The loop takes the commands that
// wait as one batch (Engine.turn) and applies each to the state through a tx, which gathers records to be written and things to be done
// afterwards. Then it does what time alone brings (timers), tells the scheduler what has changed and carries out its plan (pass).
// tx.commit writes all of it in atomic groups. Only then callers are answered, orders leave on the nodes' streams and
// followers see events. If a write fails, memory is read again from the store.
//
// Nothing outside the loop touches the state. What is asked at each request has a lock of its own and follows what is durable:
// credentials (user_tokens.go), peers (uplink.go), sessions (session.go), the ring of events (events.go),
// provisioners (launch_calls.go).
//
// # The files
//
//	engine, tx, state, load, records, keys, inline   the loop, its transaction, what it knows, how that is stored and read
//	lifecycle, workflow, runs, output, workflow_*     work: from a file to its end
//	admission, admission_*, config, config_*, grants which definitions admit what; configurations
//	sched_tell, sched_apply, sched_holds, capacity, free   the scheduler is told, its plan carried out
//	node, node_*, session, messages                  nodes and their streams
//	native, native_host                              work that is handed over to a batch system: slots, and what their driver is told and tells
//	launch, launch_calls, launch_list                nodes that are launched: what is stored of them, the backends' workers, their instances
//	reservation, reservation_show, maintenance, calendar   what is promised and announced
//	caller, directory, organizations, groups, user, user_*, audit   who there is, who may, who did
//	uplink, uplink_*                                 a cluster that belongs to a Federate
//	federate_*                                       a Federate: its clusters, routes, grants
//	retention, retention_expire                      what is forgotten, and archived before
//	*_show, events, paging                           what callers get to see
package engine
