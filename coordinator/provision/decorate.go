package provision

import (
	"context"
	"time"

	"golang.org/x/time/rate"

	"substrate/coordinator"
)

// Wrapper is a provisioner around another one.
type Wrapper interface{ Unwrap() Provisioner }

// As finds what a provisioner can do beyond the four verbs, in itself or in what it wraps.
func As[T any](p Provisioner) (found T, ok bool) {
	for p != nil {
		if found, ok = p.(T); ok {
			return found, true
		}
		w, wraps := p.(Wrapper)
		if !wraps {
			break
		}
		p = w.Unwrap()
	}
	return found, false
}

// Verb is one of the four that a provisioner has.
type Verb string

const (
	VerbOffers  Verb = "offers"
	VerbLaunch  Verb = "launch"
	VerbRelease Verb = "release"
	VerbList    Verb = "list"
)

// around has each call of a verb carried out by a function.
type around struct {
	Provisioner
	do func(ctx context.Context, v Verb, call func() error) error
}

func (a *around) Unwrap() Provisioner { return a.Provisioner }

func (a *around) Offers(ctx context.Context, defs []coordinator.Definition) (out []Offer, err error) {
	err = a.do(ctx, VerbOffers, func() (err error) { out, err = a.Provisioner.Offers(ctx, defs); return err })
	return out, err
}

func (a *around) Launch(ctx context.Context, r Request) (out Instance, err error) {
	err = a.do(ctx, VerbLaunch, func() (err error) { out, err = a.Provisioner.Launch(ctx, r); return err })
	return out, err
}

func (a *around) Release(ctx context.Context, h Handle) error {
	return a.do(ctx, VerbRelease, func() error { return a.Provisioner.Release(ctx, h) })
}

func (a *around) List(ctx context.Context) (out []Instance, err error) {
	err = a.do(ctx, VerbList, func() (err error) { out, err = a.Provisioner.List(ctx); return err })
	return out, err
}

// Observe tells of each call what it was, how long it took and what came of it. seen is called by several goroutines at a time.
func Observe(p Provisioner, now func() time.Time, seen func(v Verb, took time.Duration, err error)) Provisioner {
	return &around{p, func(_ context.Context, v Verb, call func() error) error {
		began := now()
		err := call()
		seen(v, now().Sub(began), err)
		return err
	}}
}

// Limit has calls wait for their turn, so that a storm of launches does not use up what the account may ask for, which others ask too. What waits
// longer than its context allows was not asked.
func Limit(p Provisioner, l *rate.Limiter) Provisioner {
	return &around{p, func(ctx context.Context, v Verb, call func() error) error {
		if err := l.Wait(ctx); err != nil {
			return Errorf(FaultThrottled, string(v)+" at the provider", "too many calls wait for their turn: %w", err)
		}
		return call()
	}}
}
