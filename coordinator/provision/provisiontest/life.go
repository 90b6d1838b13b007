package provisiontest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/provision"
)

func releaseChecks() []check {
	return []check{
		{name: "release/gone", run: releaseOne},
		{name: "release/again", run: releaseAgain},
		{name: "release/nothing", run: releaseNothing},
		{name: "release/before it runs", run: releaseEarly},
		{name: "release/only it", run: releaseOnlyIt},
		{name: "release/lost answer", needs: need("way to lose an answer", func(a *Account) bool { return a.Lose != nil }), run: releaseLost},
	}
}

func releaseOne(s *session) {
	i := s.launch(s.request(1))
	s.running(i.Handle)
	s.release(i.Handle)
	s.gone(i.Handle)
	s.live(0)
	if i := s.find(i.Handle); i != nil && i.Failed != provision.FaultNone {
		s.Errorf("what was given up is listed as failed: %+v", i)
	}
}

// releaseAgain: until the provider says that there is no such instance, repeating it is right and does no harm.
func releaseAgain(s *session) {
	i := s.launch(s.request(1))
	for range 3 {
		s.release(i.Handle)
	}
	s.gone(i.Handle)
	err := s.p.Release(s.ctx(), i.Handle)
	if err != nil && provision.FaultOf(err) != provision.FaultNotFound {
		s.Errorf("released when it was gone: %v", err)
	}
	s.live(0)
}

func releaseNothing(s *session) {
	i := s.launch(s.request(1))
	handle := string(i.Handle)
	other := handle[:len(handle)-1] + map[bool]string{true: "1", false: "0"}[strings.HasSuffix(handle, "0")]
	if s.a.Nothing != nil {
		other = string(s.a.Nothing(i.Handle))
	}
	s.wants("release what is not there", s.p.Release(s.ctx(), provision.Handle(other)), provision.FaultNotFound)
	s.live(1)
}

func releaseEarly(s *session) {
	i := s.launch(s.request(1))
	s.release(i.Handle)
	s.gone(i.Handle)
	s.live(0)
}

func releaseOnlyIt(s *session) {
	a, b := s.launch(s.request(1)), s.launch(s.request(2))
	s.release(a.Handle)
	s.gone(a.Handle)
	s.running(b.Handle)
	s.live(1)
}

func releaseLost(s *session) {
	i := s.launch(s.request(1))
	s.running(i.Handle)
	s.a.Lose(CallRelease)
	if err := s.p.Release(s.ctx(), i.Handle); err != nil && !provision.FaultOf(err).Again() {
		s.Errorf("a lost answer is %v", err)
	}
	if err := s.p.Release(s.ctx(), i.Handle); err != nil && provision.FaultOf(err) != provision.FaultNotFound {
		s.Error(err)
	}
	s.gone(i.Handle)
	s.live(0)
}

func listChecks() []check {
	return []check{
		{name: "list/empty", run: func(s *session) {
			if list := s.list(); len(list) != 0 {
				s.Errorf("an empty account lists %+v", list)
			}
		}},
		{name: "list/at once", run: listAtOnce},
		{name: "list/several pages", needs: need("page", func(a *Account) bool { return a.Page > 0 && a.Asked != nil }), run: listPages},
		{name: "list/a page fails", needs: need("page", func(a *Account) bool { return a.Page > 0 && a.Fail != nil }), run: listHalf},
		{name: "list/stray", needs: need("way to make a stray", func(a *Account) bool { return a.Stray != nil }), run: listStray},
		{name: "list/answer of another", needs: need("way to answer instead", func(a *Account) bool { return a.Instead != nil }), run: listInstead},
		{name: "list/no answer", needs: need("way to fail", func(a *Account) bool { return a.Fail != nil }), run: listFails},
	}
}

// listAtOnce: who launched it sees it, however long the provider takes to list what is new: what is missing from two lists counts as gone.
func listAtOnce(s *session) {
	i := s.launch(s.request(1))
	for range 3 {
		if got := s.find(i.Handle); got == nil || got.ID != i.ID || got.State >= provision.StateEnding {
			s.Errorf("what was launched is listed as %+v", got)
		}
	}
}

// listPages: one question for all instances and not one for each.
func listPages(s *session) {
	n := 2*s.a.Page + 1
	var want []provision.Handle
	for i := range n {
		want = append(want, s.launch(s.request(i)).Handle)
	}
	slices.Sort(want)
	s.running(want[0])
	before := s.a.Asked(CallList)
	var got []provision.Handle
	for _, i := range s.list() {
		got = append(got, i.Handle)
	}
	if !slices.Equal(got, want) {
		s.Errorf("of %d instances %d are listed", len(want), len(got))
	}
	if asked := s.a.Asked(CallList) - before; asked > 4 {
		s.Errorf("a list of %d instances asked %d times", n, asked)
	}
}

// listHalf: what could not be asked for is not missing.
func listHalf(s *session) {
	for i := range s.a.Page + 1 {
		s.launch(s.request(i))
	}
	s.pass()
	s.list()
	for range 8 { // retries of a client go by
		s.a.Fail(CallList, provision.FaultDenied)
	}
	if list, err := s.p.List(s.ctx()); err == nil {
		s.Errorf("a list without all of its pages is no error: %d of %d", len(list), s.a.Page+1)
	}
}

func listStray(s *session) {
	mine := s.launch(s.request(1))
	stray := s.a.Stray(cluster)
	i := s.until(stray, "listed", func(i *provision.Instance) bool { return i != nil })
	if i.ID != "" {
		s.Errorf("what carries no launch is listed as launch %q", i.ID)
	}
	s.release(stray)
	s.gone(stray)
	s.running(mine.Handle)
}

// listInstead: a page of a proxy's is no list without instances. Work would be given up that runs.
func listInstead(s *session) {
	i := s.launch(s.request(1))
	s.running(i.Handle)
	for _, answer := range []string{"<html><body>log in first</body></html>", "{}", "[{}]", `{"error": "log in first"}`, "ok"} {
		for range 8 { // more than a client's own retries
			s.a.Instead(CallList, answer)
		}
		list, err := s.p.List(s.ctx())
		if err == nil {
			s.Errorf("%s is taken for a list: %+v", answer, list)
			continue
		}
		s.wants("list answered by "+answer, err, provision.FaultTransient)
		for range 8 { // those that were not used up
			if _, err := s.p.List(s.ctx()); err == nil {
				break
			}
		}
		if s.find(i.Handle) == nil {
			s.Errorf("after %s it is not listed", answer)
		}
	}
}

func listFails(s *session) {
	s.launch(s.request(1))
	for range 8 {
		s.a.Fail(CallList, provision.FaultDenied)
	}
	list, err := s.p.List(s.ctx())
	if err == nil {
		s.Fatalf("a list that was refused is %+v", list)
	}
	s.wants("list", err, provision.FaultDenied)
}

func offerChecks() []check {
	return []check{
		{name: "offers/each in order", run: offersOrder},
		{name: "offers/absent", needs: need("definition of an absent type", func(a *Account) bool { return a.Absent != nil }), run: offersAbsent},
	}
}

func offersOrder(s *session) {
	defs := s.a.Definitions[:]
	offers, err := s.p.Offers(s.ctx(), defs)
	if err != nil {
		s.Fatal(err)
	}
	if len(offers) != len(defs) {
		s.Fatalf("%d definitions have %d offers", len(defs), len(offers))
	}
	for i, o := range offers {
		if o.Definition != defs[i].ID || !o.Available || o.Nodes != 1 || o.Launch <= 0 || o.Launch > time.Hour {
			s.Errorf("offer %d is %+v", i, o)
		}
		if o.CostPerHour != nil && *o.CostPerHour <= 0 {
			s.Errorf("the cost of %s is %g: what nobody knows is not nothing", o.Definition, *o.CostPerHour)
		}
		if h := o.Hardware; h != nil && (h.Cores == 0 || h.Memory == 0) {
			s.Errorf("the hardware of %s is %+v", o.Definition, h)
		}
	}
}

// offersAbsent: one bad definition takes nothing from the others, and says what is wrong.
func offersAbsent(s *session) {
	defs := []coordinator.Definition{s.a.Definitions[0], *s.a.Absent, s.a.Definitions[1]}
	offers, err := s.p.Offers(s.ctx(), defs)
	if err != nil || len(offers) != 3 {
		s.Fatalf("offers %+v, %v", offers, err)
	}
	if !offers[0].Available || !offers[2].Available {
		s.Errorf("others are %+v", offers)
	}
	if o := offers[1]; o.Available || o.Why == "" || o.Until.IsZero() {
		s.Errorf("an absent type is offered as %+v", o)
	}
	_, err = s.p.Launch(s.ctx(), s.requestOf(*s.a.Absent, 1))
	s.wants("launch an absent type", err, provision.FaultInvalid)
	s.live(0)
}

// errorChecks: each fault comes as what it is, makes nothing, and the same id works once it is over.
func errorChecks(faults []provision.Fault) []check {
	var out []check
	fails := need("way to fail", func(a *Account) bool { return a.Fail != nil })
	for _, fault := range faults {
		out = append(out, check{name: "errors/launch " + fault.String(), needs: fails, run: func(s *session) { launchRefused(s, fault) }})
	}
	return append(out, check{name: "errors/no capacity", needs: need("way to take capacity away", func(a *Account) bool { return a.Empty != nil }), run: noCapacity})
}

func launchRefused(s *session, fault provision.Fault) {
	r := s.request(1)
	for range 12 { // more than a client's own retries
		s.a.Fail(CallLaunch, fault)
	}
	_, err := s.p.Launch(s.ctx(), r)
	s.wants("launch", err, fault)
	if err != nil && !strings.Contains(err.Error(), string(r.ID)) {
		s.Errorf("the error does not say what was launched: %v", err)
	}
	if fault == provision.FaultTransient {
		return // nobody knows
	}
	s.live(0)
}

// noCapacity is told at once, for this type and not for another.
func noCapacity(s *session) {
	s.a.Empty(s.a.Definitions[0])
	before := 0
	if s.a.Asked != nil {
		before = s.a.Asked(CallLaunch)
	}
	_, err := s.p.Launch(s.ctx(), s.request(1))
	s.wants("launch", err, provision.FaultNoCapacity)
	if s.a.Asked != nil {
		if asked := s.a.Asked(CallLaunch) - before; asked != 1 {
			s.Errorf("a provider without capacity was asked %d times", asked)
		}
	}
	if _, err := s.p.Launch(s.ctx(), s.requestOf(s.a.Definitions[1], 2)); err != nil {
		s.Error(fmt.Errorf("another type: %w", err))
	}
	s.live(1)
}
