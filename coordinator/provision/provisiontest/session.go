package provisiontest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/provision"
)

const cluster = "7a1f8c52-3c7e-4b5e-9c55-0d6c8a3b9f01"

// session is one check on one account.
type session struct {
	*testing.T
	h Harness
	a Account
	p provision.Provisioner
}

func newSession(t *testing.T, h Harness, a Account) *session {
	return &session{T: t, h: h, a: a, p: a.Open(t, cluster)}
}

func (s *session) ctx() context.Context {
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
	s.Cleanup(cancel)
	return ctx
}

// request is for a launch of the first definition.
func (s *session) request(n int) provision.Request { return s.requestOf(s.a.Definitions[0], n) }

func (s *session) requestOf(d coordinator.Definition, n int) provision.Request {
	id := provision.LaunchID(fmt.Sprintf("l%016x", 0xc0ffee00+n))
	return provision.Request{
		ID: id, Definition: d, Nodes: 1, Asked: time.Now(),
		Boot: provision.Boot{Coordinator: "coordinator.example.org:7443", Token: token(n), Node: provision.NodeOf(d.ID, id)},
	}
}

func token(n int) string { return fmt.Sprintf("sjt_secret-of-launch-%d_'\"$(touch pwned)\\", n) }

func (s *session) launch(r provision.Request) provision.Instance {
	s.Helper()
	i, err := s.p.Launch(s.ctx(), r)
	if err != nil {
		s.Fatalf("launch %s: %v", r.ID, err)
	}
	if i.Handle == "" || i.ID != r.ID {
		s.Fatalf("launch %s gave %+v", r.ID, i)
	}
	return i
}

// release asks for an end until that is accepted, as right after a launch not all of a provider may know the instance.
func (s *session) release(h provision.Handle) {
	s.Helper()
	for range 30 {
		err := s.p.Release(s.ctx(), h)
		switch {
		case err == nil, provision.FaultOf(err) == provision.FaultNotFound:
			return
		case !provision.FaultOf(err).Again():
			s.Fatal(err)
		}
		s.pass()
	}
	s.Fatalf("%s cannot be released", h)
}

func (s *session) list() []provision.Instance { return s.listOf(s.p) }

func (s *session) listOf(p provision.Provisioner) []provision.Instance {
	s.Helper()
	list, err := p.List(s.ctx())
	if err != nil {
		s.Fatalf("list: %v", err)
	}
	if !slices.IsSortedFunc(list, func(a, b provision.Instance) int { return cmpHandles(a, b) }) {
		s.Errorf("the list is not in the order of handles: %+v", list)
	}
	return list
}

func cmpHandles(a, b provision.Instance) int {
	switch {
	case a.Handle < b.Handle:
		return -1
	case a.Handle > b.Handle:
		return 1
	}
	return 0
}

// find is an instance in the list; nil when it is not there.
func (s *session) find(h provision.Handle) *provision.Instance {
	s.Helper()
	list := s.list()
	for i := range list {
		if list[i].Handle == h {
			return &list[i]
		}
	}
	return nil
}

// until waits until an instance is as wanted; what is missing from a list is nil.
func (s *session) until(h provision.Handle, what string, ok func(i *provision.Instance) bool) *provision.Instance {
	s.Helper()
	deadline := time.Now().Add(max(s.h.Settle, 10*time.Second))
	for {
		i := s.find(h)
		if ok(i) {
			return i
		}
		if time.Now().After(deadline) {
			s.Fatalf("%s is not %s: %+v", h, what, i)
		}
		s.pass()
	}
}

func (s *session) running(h provision.Handle) *provision.Instance {
	s.Helper()
	return s.until(h, "running", func(i *provision.Instance) bool { return i != nil && i.State == provision.StateRunning })
}

func (s *session) gone(h provision.Handle) {
	s.Helper()
	s.until(h, "gone", func(i *provision.Instance) bool { return i == nil || i.State == provision.StateGone })
}

func (s *session) pass() {
	if s.a.Pass != nil {
		s.a.Pass(max(s.h.Settle, time.Second))
		return
	}
	time.Sleep(50 * time.Millisecond)
}

// live checks how many instances the provider knows of.
func (s *session) live(want int) {
	s.Helper()
	if got := s.a.Live(); got != want {
		s.Errorf("%d instances exist, expected %d", got, want)
	}
}

func (s *session) wants(what string, err error, fault provision.Fault) {
	s.Helper()
	if got := provision.FaultOf(err); err == nil || got != fault {
		s.Errorf("%s: %v is %s, expected %s", what, err, got, fault)
	}
}
