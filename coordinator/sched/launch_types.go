package sched

import (
	"time"

	"substrate/coordinator"
)

// Offer says that nodes of a definition can be launched, and how (rule 28).
type Offer struct {
	Definition coordinator.DefinitionID
	// Node is what one of them is expected to have, without an id. Once one has reported, the engine tells of an offer that has
	// no more than that.
	Node        Node
	MaxNodes    int           // up and coming; 0: no limit
	IdleTimeout time.Duration // 0: an idle node stays
	TTL         time.Duration // from its launch on a node lives as long; 0: without limit
	TTLBuffer   time.Duration // that has to be left when work on it is over
	Launch      time.Duration // from the call to a node that is ready, as a rule
	// UnavailableUntil is when it is worth asking again, after the provider had no capacity, and Why in what words it said so.
	UnavailableUntil time.Time
	Why              string
	// Stopped is why none is launched until an offer says otherwise, "" when they may be.
	Stopped string
}

// Launch asks for one node, and while that is coming stands for it. Its key follows from the need and from nothing else: a decision about the
// same facts has the same key, so that what was asked for twice is launched once. The engine stores it before it calls the
// provider, with the key as the call's token.
type Launch struct {
	Key        string
	Definition coordinator.DefinitionID
	For        []coordinator.AllocationID // that have room there, in queue order; it is launched for the first
	Since      time.Time
	Until      time.Time // when it is expected to be ready
}

// Release gives a node up.
type Release struct {
	Node coordinator.NodeID
	Why  ReleaseReason
}

// ReleaseReason says why a node is given up.
type ReleaseReason string

const (
	ReleaseIdle ReleaseReason = "idle" // nothing has run there for the idle timeout of its definition
	ReleaseTTL  ReleaseReason = "ttl"  // its life is over
)

// SetOffer tells how nodes of a definition can be had, or that it has changed.
func (s *Scheduler) SetOffer(o Offer) {
	s.touch()
	if s.offers == nil {
		s.offers = make(map[coordinator.DefinitionID]*Offer)
	}
	s.offers[o.Definition] = &o
}

// DropOffer tells that no nodes of a definition can be launched any more.
func (s *Scheduler) DropOffer(id coordinator.DefinitionID) {
	s.touch()
	delete(s.offers, id)
}

// SetLaunching tells of a node that is coming. Those of a plan are known already.
func (s *Scheduler) SetLaunching(l Launch) {
	s.touch()
	if s.coming == nil {
		s.coming = make(map[string]Launch)
	}
	s.coming[l.Key] = l
}

// DropLaunching tells that a node is not coming any more: it is ready and told of by SetNode, or its launch has failed.
func (s *Scheduler) DropLaunching(key string) {
	s.touch()
	delete(s.coming, key)
}
