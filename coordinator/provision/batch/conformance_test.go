package batch_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/dispatch"
	"substrate/coordinator/dispatch/memory"
	"substrate/coordinator/provision"
	"substrate/coordinator/provision/batch"
	"substrate/coordinator/provision/provisiontest"
	"substrate/coordinator/spec"
)

// wayward is the way to a system, which fails as it is told to.
type wayward struct {
	dispatch.Backend
	dispatch.MultiFinder
	dispatch.OutputReader
	a *accountOfPilots
}

type accountOfPilots struct {
	clock  *memory.Clock
	system *memory.Cluster

	mu      sync.Mutex
	fail    map[provisiontest.Call][]error
	hang    map[provisiontest.Call]bool
	scripts map[dispatch.ObjectID]string
}

// next is what becomes of a call.
func (a *accountOfPilots) next(ctx context.Context, c provisiontest.Call) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.hang[c] {
		delete(a.hang, c)
		return fmt.Errorf("no answer: %w", dispatch.ErrUnavailable)
	}
	if list := a.fail[c]; len(list) > 0 {
		a.fail[c] = list[1:]
		return list[0]
	}
	return ctx.Err()
}

func (w wayward) Submit(ctx context.Context, s dispatch.Spec) (dispatch.ObjectID, error) {
	if err := w.a.next(ctx, provisiontest.CallLaunch); err != nil {
		return "", err
	}
	real := s.Script
	s.Script = "#!/bin/sh\nsleep 86400\n" // which the system in memory understands
	id, err := w.Backend.Submit(ctx, s)
	if err == nil {
		w.a.mu.Lock()
		w.a.scripts[id] = fmt.Sprint(real, s.Env)
		w.a.mu.Unlock()
	}
	return id, err
}

func (w wayward) Stop(ctx context.Context, id dispatch.ObjectID) error {
	if err := w.a.next(ctx, provisiontest.CallRelease); err != nil {
		return err
	}
	return w.Backend.Stop(ctx, id)
}

// Find is asked for one launch, or for all that is ours.
func (w wayward) Find(ctx context.Context, ref dispatch.Ref) ([]dispatch.Observation, error) {
	if strings.HasSuffix(string(ref.Job), "/") {
		if err := w.a.next(ctx, provisiontest.CallList); err != nil {
			return nil, err
		}
	}
	return w.Backend.Find(ctx, ref)
}

func (w wayward) FindMany(ctx context.Context, ids []dispatch.ObjectID) (map[dispatch.ObjectID]dispatch.Observation, error) {
	if err := w.a.next(ctx, provisiontest.CallList); err != nil {
		return nil, err
	}
	return w.MultiFinder.FindMany(ctx, ids)
}

func pilots(id coordinator.DefinitionID, cores coordinator.Cores) coordinator.Definition {
	return coordinator.Definition{ID: id, Kind: spec.KindSlurm, Spec: spec.Slurm{CPU: cores, Memory: 1 << 30, Mode: spec.ModePilot}}
}

// TestConformance: pilots are nodes like a cloud's. What a batch system has not - markets, types that are absent, user data - is left out.
func TestConformance(t *testing.T) {
	for name, options := range map[string]memory.Options{"slurm": memory.Slurm(), "pbs": memory.PBS()} {
		t.Run(name, func(t *testing.T) { pilotsConform(t, options) })
	}
}

func pilotsConform(t *testing.T, options memory.Options) {
	faults := map[provision.Fault]error{provision.FaultDenied: dispatch.ErrDenied, provision.FaultInvalid: dispatch.ErrRefused, provision.FaultTransient: dispatch.ErrUnavailable}
	h := provisiontest.Harness{
		Settle: time.Minute,
		LeaveOut: map[string]string{
			"launch/another type":    "a launch's id is worked out from its definition too, and nothing else stands in the job",
			"launch/spot":            "a batch system has no markets",
			"launch/boot":            "the pilot's script and what others see of it are tests of their own",
			"list/several pages":     "its answers have no pages",
			"list/a page fails":      "its answers have no pages",
			"list/answer of another": "nothing is between a coordinator and a command",
			"list/stray":             "what carries no launch carries no mark either: both are one text",
			"offers/absent":          "what a partition has is known when a job is refused",
			"errors/no capacity":     "what has no room waits in the queue",
		},
		New: func(t *testing.T) provisiontest.Account {
			clock := memory.NewClock(time.Now())
			a := &accountOfPilots{clock: clock, system: memory.New(clock, options), fail: map[provisiontest.Call][]error{}, hang: map[provisiontest.Call]bool{},
				scripts: map[dispatch.ObjectID]string{}}
			open := func(t testing.TB, readOnly bool) dispatch.Backend {
				b, err := dispatch.Open(t.Context(), a.system.Client(readOnly))
				if err != nil {
					t.Fatal(err)
				}
				return b
			}
			return provisiontest.Account{
				Open: func(t testing.TB, cluster string) provision.Provisioner {
					b := open(t, false)
					p, err := batch.New(batch.Options{Backend: wayward{b, b.(dispatch.MultiFinder), b.(dispatch.OutputReader), a}, Kind: spec.KindSlurm, Cluster: cluster, Clock: clock})
					if err != nil {
						t.Fatal(err)
					}
					return p
				},
				Definitions: [2]coordinator.Definition{pilots("small", 1), pilots("large", 2)},
				Untyped:     true,
				Nothing:     func(h provision.Handle) provision.Handle { return "9" + h },
				Live: func() int {
					list, err := open(t, true).Find(context.Background(), dispatch.Ref{Job: "substrate/"})
					if err != nil {
						t.Fatal(err)
					}
					return len(slices.DeleteFunc(list, func(o dispatch.Observation) bool { return o.State.Ended() }))
				},
				Pass: func(d time.Duration) { _ = clock.Sleep(context.Background(), d) },
				Fail: func(c provisiontest.Call, fault provision.Fault) {
					a.mu.Lock()
					defer a.mu.Unlock()
					a.fail[c] = append(a.fail[c], faults[fault])
				},
				Lose: func(provisiontest.Call) { a.system.LoseReply(memory.Loss{}) },
				Hang: func(c provisiontest.Call) {
					a.mu.Lock()
					defer a.mu.Unlock()
					a.hang[c] = true
				},
			}
		},
	}
	for f := range faults {
		h.Faults = append(h.Faults, f)
	}
	provisiontest.Run(t, h)
}
