package provisiontest

import (
	"context"
	"strings"
	"sync"
	"time"

	"substrate/coordinator/provision"
)

func launchChecks() []check {
	lose := need("way to lose an answer", func(a *Account) bool { return a.Lose != nil })
	return []check{
		{name: "launch/one instance", run: launchOne},
		{name: "launch/again", run: launchAgain},
		{name: "launch/after a restart", run: launchRestart},
		{name: "launch/side by side", run: launchTogether},
		{name: "launch/lost answer", needs: lose, run: launchLost},
		{name: "launch/lost answer and a restart", needs: lose, run: launchLostRestart},
		{name: "launch/after its end", run: launchOver},
		{name: "launch/another id", run: launchOther},
		{name: "launch/another type", needs: need("way to tell types apart", func(a *Account) bool { return !a.Untyped }), run: launchOtherType},
		{name: "launch/another cluster", run: launchOtherCluster},
		{name: "launch/spot", needs: need("spot definition", func(a *Account) bool { return a.Spot != nil }), run: launchSpot},
		{name: "launch/boot", needs: need("way to see what an instance reads", func(a *Account) bool { return a.Boot != nil && a.Visible != nil }), run: launchBoot},
		{name: "launch/no answer", needs: need("way to hang", func(a *Account) bool { return a.Hang != nil }), run: launchHang},
		{name: "launch/lifetime", needs: need("passing time", func(a *Account) bool { return a.Pass != nil }), run: launchLifetime},
	}
}

func launchOne(s *session) {
	r := s.request(1)
	i := s.launch(r)
	s.live(1)
	run := s.running(i.Handle)
	if run.ID != r.ID || run.Failed != provision.FaultNone {
		s.Errorf("it is listed as %+v", run)
	}
	if run.Launched.IsZero() || run.Running.IsZero() || run.Running.Before(run.Launched) {
		s.Errorf("launched %s, running since %s", run.Launched, run.Running)
	}
}

func launchAgain(s *session) {
	r := s.request(1)
	first := s.launch(r)
	r.Again = true
	for range 3 {
		if again := s.launch(r); again.Handle != first.Handle {
			s.Errorf("launched again it is %s, and was %s", again.Handle, first.Handle)
		}
	}
	s.running(first.Handle)
	if again := s.launch(r); again.Handle != first.Handle {
		s.Errorf("launched again when it ran it is %s, and was %s", again.Handle, first.Handle)
	}
	s.live(1)
}

func launchRestart(s *session) {
	r := s.request(1)
	first := s.launch(r)
	s.p = s.a.Open(s.T, cluster)
	r.Again = true
	if again := s.launch(r); again.Handle != first.Handle {
		s.Errorf("after a restart it is %s, and was %s", again.Handle, first.Handle)
	}
	s.live(1)
}

// launchTogether: a process that was thought dead and the one in its place.
func launchTogether(s *session) {
	r := s.request(1)
	r.Again = true
	var all sync.WaitGroup
	for range 4 {
		p := s.a.Open(s.T, cluster)
		ctx := s.ctx()
		all.Go(func() {
			for range 3 {
				_, err := p.Launch(ctx, r)
				if err != nil && !provision.FaultOf(err).Again() {
					s.Errorf("one of several: %v", err)
				}
			}
		})
	}
	all.Wait()
	s.launch(r)
	s.live(1)
}

func launchLost(s *session) { lost(s, false) }

func launchLostRestart(s *session) { lost(s, true) }

// lost: the answer never came. By the same id it is found, without another.
func lost(s *session, restart bool) {
	r := s.request(1)
	s.a.Lose(CallLaunch)
	i, err := s.p.Launch(s.ctx(), r)
	if err != nil && provision.FaultOf(err) != provision.FaultTransient {
		s.Fatalf("a lost answer is %v, of kind %s", err, provision.FaultOf(err))
	}
	s.live(1)
	if restart {
		s.p = s.a.Open(s.T, cluster)
	}
	r.Again = true
	again := s.launch(r)
	if err == nil && i.Handle != again.Handle {
		s.Errorf("it is %s, and was %s", again.Handle, i.Handle)
	}
	s.live(1)
	s.running(again.Handle)
}

// launchOver: an id whose instance is over brings no other one, also when who asks does not know that it is over.
func launchOver(s *session) {
	r := s.request(1)
	i := s.launch(r)
	s.running(i.Handle)
	s.release(i.Handle)
	s.gone(i.Handle)
	r.Again = true
	for _, p := range []provision.Provisioner{s.p, s.a.Open(s.T, cluster)} {
		again, err := p.Launch(s.ctx(), r)
		if err == nil && (again.Handle != i.Handle || again.State < provision.StateEnding) {
			s.Errorf("launched after its end it is %+v", again)
		}
	}
	s.live(0)
}

func launchOther(s *session) {
	a, b := s.launch(s.request(1)), s.launch(s.request(2))
	if a.Handle == b.Handle {
		s.Errorf("two launches are one instance: %s", a.Handle)
	}
	s.live(2)
}

// launchOtherType: ids are derived from what is launched too, yet one that is not must not be refused or answered with the wrong type.
func launchOtherType(s *session) {
	a := s.launch(s.request(1))
	b, err := s.p.Launch(s.ctx(), s.requestOf(s.a.Definitions[1], 1))
	if err != nil {
		s.wants("the same id for another type", err, provision.FaultInvalid)
		s.live(1)
		return
	}
	if a.Handle == b.Handle {
		s.Errorf("two types are one instance: %s", a.Handle)
	}
	s.live(2)
}

func launchOtherCluster(s *session) {
	r := s.request(1)
	mine := s.launch(r)
	other := s.a.Open(s.T, "00000000-0000-4000-8000-000000000002")
	theirs, err := other.Launch(s.ctx(), r)
	if err != nil {
		s.Fatal(err)
	}
	if mine.Handle == theirs.Handle {
		s.Errorf("two clusters share the instance %s", mine.Handle)
	}
	s.live(2)
	if list := s.listOf(other); len(list) != 1 || list[0].Handle != theirs.Handle {
		s.Errorf("the other cluster lists %+v", list)
	}
	if list := s.list(); len(list) != 1 || list[0].Handle != mine.Handle {
		s.Errorf("this cluster lists %+v", list)
	}
}

func launchSpot(s *session) {
	i := s.launch(s.requestOf(*s.a.Spot, 1))
	s.running(i.Handle)
	if other := s.launch(s.request(2)); other.Handle == i.Handle {
		s.Error("on demand and spot are one instance")
	}
	if s.a.Reclaim == nil {
		return
	}
	s.a.Reclaim(i.Handle)
	s.until(i.Handle, "taken back", func(i *provision.Instance) bool { return i == nil || i.State >= provision.StateEnding })
	if got := s.find(i.Handle); got != nil && got.Failed != provision.FaultInterrupted {
		s.Errorf("an instance that was taken back is listed as %+v", got)
	}
}

// launchBoot: the agent gets all that it needs to join, unharmed, and the token is nowhere else.
func launchBoot(s *session) {
	r := s.request(7)
	i := s.launch(r)
	s.running(i.Handle)
	boot := s.a.Boot(i.Handle)
	for _, want := range []string{r.Boot.Coordinator, r.Boot.Node, string(r.ID)} {
		if !strings.Contains(boot, want) {
			s.Errorf("an instance cannot read %q:\n%s", want, boot)
		}
	}
	if !strings.Contains(boot, "secret-of-launch-7") {
		s.Errorf("an instance cannot read its token:\n%s", boot)
	}
	if len(boot) > 16<<10 {
		s.Errorf("an instance reads %d bytes", len(boot))
	}
	if seen := s.a.Visible(i.Handle); strings.Contains(seen, "secret-of-launch") {
		s.Errorf("the token is for all to see: %s", seen)
	}
}

// launchHang: who asked can leave, and finds the instance later if there is one.
func launchHang(s *session) {
	r := s.request(1)
	s.a.Hang(CallLaunch)
	ctx, cancel := context.WithTimeout(s.Context(), 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := s.p.Launch(ctx, r)
	if err == nil || provision.FaultOf(err) != provision.FaultTransient {
		s.Errorf("no answer is %v, of kind %s", err, provision.FaultOf(err))
	}
	if took := time.Since(began); took > 20*time.Second {
		s.Errorf("it took %s to leave", took)
	}
	r.Again = true
	s.launch(r)
	s.live(1)
}

// launchLifetime: where the provider ends it by itself, it is gone then; else nothing is promised, and Ends is zero.
func launchLifetime(s *session) {
	r := s.request(1)
	r.Lifetime = 48 * time.Hour
	i := s.running(s.launch(r).Handle)
	if i.Ends.IsZero() {
		return
	}
	if life := i.Ends.Sub(i.Launched); life < r.Lifetime-time.Minute || life > r.Lifetime+2*time.Hour {
		s.Errorf("of %s it has %s", r.Lifetime, life)
	}
	s.a.Pass(r.Lifetime + 3*time.Hour)
	s.gone(i.Handle)
	s.live(0)
}
