package provision

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/catalogue"
)

// Provisioner launches and releases the nodes of one backend.
type Provisioner interface {
	// Offers says for each definition how its nodes can be had: one offer each, in the order asked.
	Offers(ctx context.Context, defs []coordinator.Definition) ([]Offer, error)
	// Launch asks for what a request says, or finds what was asked for by its id before.
	Launch(ctx context.Context, r Request) (Instance, error)
	// Release asks for the end of an instance.
	Release(ctx context.Context, h Handle) error
	// List tells of all instances of this cluster, by handle.
	List(ctx context.Context) ([]Instance, error)
}

// Pacer says how often List may and should be asked; without it every DefaultPace.
type Pacer interface{ Pace() time.Duration }

// DefaultPace is short enough for a node's loss and long enough for a cloud's limits.
const DefaultPace = 15 * time.Second

// Typer tells of all instance types that the backend's place has, by name, as the provider tells of them now: nothing kept from before, and no
// answer where a part of it is missing. A place is a region, a zone or a location: what the backend names, and all that it reaches where it names none.
// What may not be launched by this account is left out, and what the provider does not say is nil.
type Typer interface {
	Types(ctx context.Context) ([]catalogue.Type, error)
}

// MostTypes bounds an answer of Types. The largest cloud has fewer than two thousand.
const MostTypes = 20_000

// Closer ends what a provisioner keeps open. Instances stay.
type Closer interface{ Close() error }

// LaunchID names a launch: l and 16 hexadecimal digits, so that every provider takes it as part of a name or tag.
type LaunchID string

// Valid reports whether it can be the id of a launch.
func (id LaunchID) Valid() bool {
	if len(id) != 17 || id[0] != 'l' {
		return false
	}
	return !strings.ContainsFunc(string(id[1:]), func(r rune) bool { return (r < '0' || r > '9') && (r < 'a' || r > 'f') })
}

// Handle is what the provider calls an instance.
type Handle string

// Offer is how nodes of a definition can be had.
type Offer struct {
	Definition coordinator.DefinitionID
	Nodes      uint32        // that one launch brings; 1 or more
	Launch     time.Duration // from the call to a node that is ready, as a rule
	Available  bool
	Until      time.Time // worth asking again, when not available
	Why        string    // not available
	// Hardware is what the provider says of the type, nil: what the configuration says.
	Hardware    *coordinator.Hardware
	CostPerHour *float64 // USD; nil is unknown
}

// Request is a launch as the provisioner needs it.
type Request struct {
	ID         LaunchID
	Definition coordinator.Definition
	Nodes      uint32        // of the offer
	Lifetime   time.Duration // the provider itself ends it after that, where it can; 0: no end
	Boot       Boot
	// Asked is when the provider may have heard of it first, and Again whether that was before: an answer may have been lost.
	Asked time.Time
	Again bool
}

// Boot is what an agent on a new node needs to join.
type Boot struct {
	Coordinator string // host:port that agents dial
	Token       string // for this launch only, and as many nodes as it brings
	Node        string // the node's name; with several nodes, what their names begin with
	Discover    bool   // it is for a look at the hardware alone: the agent reports that and ends
}

// NodeName is the name of a launch's node by its number, from 0.
func (b Boot) NodeName(nodes uint32, rank int) string {
	if nodes <= 1 {
		return b.Node
	}
	return fmt.Sprintf("%s-%d", b.Node, rank)
}

// State is how far an instance is.
type State uint8

const (
	StateUnknown   State = iota // the provider says something that the adapter does not know
	StateRequested              // accepted; waits at the provider, as in a batch system's queue
	StateStarting               // the machine is being set up
	StateRunning                // its agent should come
	StateEnding                 // is being ended
	StateGone                   // is over for good; costs nothing any more
)

// String is the state's word.
func (s State) String() string {
	words := []string{"unknown", "requested", "starting", "running", "ending", "gone"}
	if int(s) < len(words) {
		return words[s]
	}
	return fmt.Sprintf("state %d", s)
}

// Instance is what a provider has of a launch.
type Instance struct {
	Handle   Handle
	ID       LaunchID // "" when it carries our mark but no launch that can be read
	State    State
	Detail   string    // the provider's words: why it waits, why it ended
	Launched time.Time // by the provider's clock, like the next two
	Running  time.Time // since when
	Ends     time.Time // when the provider ends it at the latest; zero: not known
	Failed   Fault     // why it is gone or ending though nobody asked, FaultNone when it was asked for or is over as it should be
	// Console is a command by which a person sees what the machine wrote while it booted, "" where there is none.
	Console string
	// Incomplete: it exists and will not start before Launch is called again.
	Incomplete bool
}

// Names of nodes are labels of a domain name.
const maxNode = 63

// NodeOf is the name for the nodes of a launch: the definition, as far as it fits, and the launch.
func NodeOf(def coordinator.DefinitionID, id LaunchID) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, string(def))
	const suffix = 5 // of several nodes: -9999
	if room := maxNode - len(id) - 1 - suffix; len(name) > room {
		name = name[:max(room, 0)]
	}
	if name = strings.Trim(name, "-"); name == "" {
		return string(id)
	}
	return name + "-" + string(id)
}

// Sort puts instances in the order of a List: by handle.
func Sort(list []Instance) {
	slices.SortFunc(list, func(a, b Instance) int { return strings.Compare(string(a.Handle), string(b.Handle)) })
}
