package cloud

import (
	"testing"
	"time"

	"substrate/coordinator/provision"
)

func TestRecent(t *testing.T) {
	now := time.Unix(1e9, 0)
	var r Recent
	r.Ending("a") // unknown: nothing to note
	for _, h := range []provision.Handle{"c", "a", "b"} {
		r.Add(provision.Instance{Handle: h, State: provision.StateStarting}, now)
	}
	r.Ending("b")
	got := r.Merge([]provision.Instance{{Handle: "c", State: provision.StateRunning}}, now)
	if len(got) != 3 || got[0].Handle != "a" || got[1].State != provision.StateEnding || got[2].State != provision.StateRunning {
		t.Errorf("merged: %+v", got)
	}
	if r.Young("c", now) || !r.Young("a", now) || r.Young("a", now.Add(Unseen)) {
		t.Error("what a list has shown is not late, and nothing is late for ever")
	}
	r.Forget("b")
	if got := r.Merge(nil, now); len(got) != 1 || got[0].Handle != "a" {
		t.Errorf("the list that had c counts, and b is forgotten: %+v", got)
	}
	if got := r.Merge(nil, now.Add(Unseen+time.Second)); len(got) != 0 {
		t.Errorf("much later it lists %+v", got)
	}
}

func TestEmpty(t *testing.T) {
	now := time.Unix(1e9, 0)
	var e Empty[string]
	if _, ok := e.At("a", now); ok {
		t.Error("nothing was said, and a is empty")
	}
	e.Set("a", now, "out of it")
	if no, ok := e.At("a", now.Add(EmptyFor-1)); !ok || no.Why != "out of it" || !no.Until().Equal(now.Add(EmptyFor)) {
		t.Errorf("a is %+v, %t", no, ok)
	}
	if _, ok := e.At("b", now); ok {
		t.Error("b is empty too")
	}
	if _, ok := e.At("a", now.Add(EmptyFor)); ok {
		t.Error("a is empty for ever")
	}
}

func TestPick(t *testing.T) {
	places := []string{"a", "b", "c"}
	seen := map[string]int{}
	for n := range 300 {
		id := provision.LaunchID("l" + string(rune('a'+n%7)) + string(rune('0'+n%10)) + string(rune('0'+n/10)))
		at := Pick(places, id)
		if again := Pick([]string{"c", "a", "b"}, id); again != at {
			t.Errorf("%s is in %s, and in %s when they are told in another order", id, at, again)
		}
		seen[at]++
	}
	for _, p := range places {
		if seen[p] < 50 {
			t.Errorf("of 300 launches %d are in %s", seen[p], p)
		}
	}
	if Pick(nil, "l1") != "" {
		t.Error("of no places one is chosen")
	}
}
