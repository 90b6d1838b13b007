package dispatch

import (
	"context"
	"fmt"
)

// Open opens a backend and leaves of its optional interfaces those that its cluster supports: Holder when the capability Hold is yes, Requeuer
// when it is known how late a call may land, and all of them only if a Selective backend offers them.
func Open(ctx context.Context, adapter func(context.Context) (Backend, error)) (Backend, error) {
	b, err := adapter(ctx)
	if err != nil {
		return nil, err
	}
	can, err := b.Capabilities(ctx, Spec{})
	if err != nil {
		return nil, fmt.Errorf("cannot ask the backend for its capabilities: %w", err)
	}
	offers := func(i Interface) bool {
		s, selective := b.(Selective)
		return !selective || s.Offers(i)
	}
	h, holds := b.(Holder)
	r, requeues := b.(Requeuer)
	c, tells := b.(CessationSignal)
	o, reads := b.(OutputReader)
	m, finds := b.(MultiFinder)
	holds = holds && can[Hold].Answer == Yes && offers(InterfaceHolder)
	requeues = requeues && b.Declarations().CallBound > 0 && offers(InterfaceRequeuer)
	tells = tells && offers(InterfaceCessationSignal)
	reads = reads && offers(InterfaceOutputReader)
	finds = finds && offers(InterfaceMultiFinder)
	return narrow(reporting{b, b}, mask(holds, requeues, tells, reads, finds), h, r, c, o, m), nil
}

// reporting keeps the way to a backend's preflight, which is no feature of its cluster.
type reporting struct {
	Backend
	whole Backend
}

// ReportOf is the preflight of a backend, or of the one that Open has narrowed.
func ReportOf(b Backend) (Report, bool) {
	if in, ok := b.(interface{ inner() Backend }); ok {
		b = in.inner()
	}
	r, ok := b.(Reporter)
	if !ok {
		return Report{}, false
	}
	return r.Preflight(), true
}

func (r reporting) inner() Backend { return r.whole }

// InterfacesOf lists the optional interfaces that a backend implements.
func InterfacesOf(b Backend) []Interface {
	_, holds := b.(Holder)
	_, requeues := b.(Requeuer)
	_, tells := b.(CessationSignal)
	_, reads := b.(OutputReader)
	_, finds := b.(MultiFinder)
	var list []Interface
	for i, has := range []bool{holds, requeues, tells, reads, finds} {
		if has {
			list = append(list, Interface(i))
		}
	}
	return list
}

func mask(has ...bool) int {
	m := 0
	for i, b := range has {
		if b {
			m |= 1 << i
		}
	}
	return m
}

// narrow is b with the optional interfaces of a mask, lowest bit first.
func narrow(b reporting, mask int, h Holder, r Requeuer, c CessationSignal, o OutputReader, m MultiFinder) Backend {
	return [...]func() Backend{
		func() Backend { return b },
		func() Backend { return withH{b, h} },
		func() Backend { return withR{b, r} },
		func() Backend { return withHR{b, h, r} },
		func() Backend { return withC{b, c} },
		func() Backend { return withHC{b, h, c} },
		func() Backend { return withRC{b, r, c} },
		func() Backend { return withHRC{b, h, r, c} },
		func() Backend { return withO{b, o} },
		func() Backend { return withHO{b, h, o} },
		func() Backend { return withRO{b, r, o} },
		func() Backend { return withHRO{b, h, r, o} },
		func() Backend { return withCO{b, c, o} },
		func() Backend { return withHCO{b, h, c, o} },
		func() Backend { return withRCO{b, r, c, o} },
		func() Backend { return withHRCO{b, h, r, c, o} },
		func() Backend { return withM{b, m} },
		func() Backend { return withHM{b, h, m} },
		func() Backend { return withRM{b, r, m} },
		func() Backend { return withHRM{b, h, r, m} },
		func() Backend { return withCM{b, c, m} },
		func() Backend { return withHCM{b, h, c, m} },
		func() Backend { return withRCM{b, r, c, m} },
		func() Backend { return withHRCM{b, h, r, c, m} },
		func() Backend { return withOM{b, o, m} },
		func() Backend { return withHOM{b, h, o, m} },
		func() Backend { return withROM{b, r, o, m} },
		func() Backend { return withHROM{b, h, r, o, m} },
		func() Backend { return withCOM{b, c, o, m} },
		func() Backend { return withHCOM{b, h, c, o, m} },
		func() Backend { return withRCOM{b, r, c, o, m} },
		func() Backend { return withHRCOM{b, h, r, c, o, m} },
	}[mask]()
}

// The sets of optional interfaces: Go decides by a type's methods what it implements, so each set is a type.
type (
	withH struct {
		reporting
		Holder
	}
	withR struct {
		reporting
		Requeuer
	}
	withHR struct {
		reporting
		Holder
		Requeuer
	}
	withC struct {
		reporting
		CessationSignal
	}
	withHC struct {
		reporting
		Holder
		CessationSignal
	}
	withRC struct {
		reporting
		Requeuer
		CessationSignal
	}
	withHRC struct {
		reporting
		Holder
		Requeuer
		CessationSignal
	}
	withO struct {
		reporting
		OutputReader
	}
	withHO struct {
		reporting
		Holder
		OutputReader
	}
	withRO struct {
		reporting
		Requeuer
		OutputReader
	}
	withHRO struct {
		reporting
		Holder
		Requeuer
		OutputReader
	}
	withCO struct {
		reporting
		CessationSignal
		OutputReader
	}
	withHCO struct {
		reporting
		Holder
		CessationSignal
		OutputReader
	}
	withRCO struct {
		reporting
		Requeuer
		CessationSignal
		OutputReader
	}
	withHRCO struct {
		reporting
		Holder
		Requeuer
		CessationSignal
		OutputReader
	}
	withM struct {
		reporting
		MultiFinder
	}
	withHM struct {
		reporting
		Holder
		MultiFinder
	}
	withRM struct {
		reporting
		Requeuer
		MultiFinder
	}
	withHRM struct {
		reporting
		Holder
		Requeuer
		MultiFinder
	}
	withCM struct {
		reporting
		CessationSignal
		MultiFinder
	}
	withHCM struct {
		reporting
		Holder
		CessationSignal
		MultiFinder
	}
	withRCM struct {
		reporting
		Requeuer
		CessationSignal
		MultiFinder
	}
	withHRCM struct {
		reporting
		Holder
		Requeuer
		CessationSignal
		MultiFinder
	}
	withOM struct {
		reporting
		OutputReader
		MultiFinder
	}
	withHOM struct {
		reporting
		Holder
		OutputReader
		MultiFinder
	}
	withROM struct {
		reporting
		Requeuer
		OutputReader
		MultiFinder
	}
	withHROM struct {
		reporting
		Holder
		Requeuer
		OutputReader
		MultiFinder
	}
	withCOM struct {
		reporting
		CessationSignal
		OutputReader
		MultiFinder
	}
	withHCOM struct {
		reporting
		Holder
		CessationSignal
		OutputReader
		MultiFinder
	}
	withRCOM struct {
		reporting
		Requeuer
		CessationSignal
		OutputReader
		MultiFinder
	}
	withHRCOM struct {
		reporting
		Holder
		Requeuer
		CessationSignal
		OutputReader
		MultiFinder
	}
)
