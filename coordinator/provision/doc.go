// Package provision is the contract of a node provisioner: what launches the nodes of a backend's definitions and gives them up again. It holds
// the vocabulary; it knows no cloud, keeps nothing, and decides nothing: who needs a node is the scheduler's to say, and what is kept
// of a launch the engine's.
//
// # The life of a node
//
// A definition's nodes are offered: Offers says what can be launched now, what cannot, and why. A launch is stored, with its id, before the
// provider hears of it; then Launch is called, and called again with the same id after a crash or an unclear answer, until there is one.
// The instance is launching until the provider runs it, and reported when the agent on it has joined with the launch's
// token: with the first hardware report it is a node like any other, ready for work. It is draining when it is to be given up, and
// released once the provider says that there is no such instance any more; until then Release is repeated, because that alone ends what
// it costs.
//
// # What a provisioner promises
//
// Launch is idempotent by the launch's id: however often it is called, by one process or by several one after the other, there is at most one
// instance of it, and one that exists is found and returned. Another definition or type is another launch.
//
// Release of what does not exist is NotFound, which is success for who wants it gone. It returns before the instance is gone.
//
// List tells of every instance that carries this cluster's mark, also those that nobody here remembers: they are reaped. It is one
// question for all instances, or a few, never one for each. When the provider could not be asked for all of them, it is an error: what is missing
// in a list counts as gone when it is missing in the next one too.
//
// Types, where a provisioner is a Typer, is all that the place has, or an error: a list with a part missing reads as types that are gone.
//
// Each error is a Fault, and what comes of each is the same for all providers.
//
// Package provisiontest is what every provisioner must do, as tests.
package provision
