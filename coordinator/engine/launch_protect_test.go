package engine

import (
	"slices"
	"strings"
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/store"
)

// fruitless has launches of a definition come to nothing until there are as many. The provider's clock stands, compared with the coordinator's.
func (c *cluster) fruitless(l *lab, made int) {
	c.t.Helper()
	c.eventually("launches come to nothing", func() bool {
		list, _, err := c.engine.Launches(c.t.Context(), c.admin, Page{})
		if err == nil && l.cloud.Made() == made && l.cloud.Live() == 0 && len(list) == 0 {
			return true
		}
		releasing := slices.ContainsFunc(list, func(v LaunchView) bool { return v.State == "releasing" })
		if err == nil && !releasing && (l.cloud.Made() < made || l.cloud.Live() > 0) {
			c.ahead.Add(int64(10 * time.Second))
		}
		return false
	})
}

func (c *cluster) shown(id coordinator.DefinitionID) string {
	_, list, err := c.engine.Definitions(c.t.Context())
	for _, d := range list {
		if err == nil && d.ID == id {
			return d.State
		}
	}
	return ""
}

// TestDefinitionIsProtected: after three launches in a row that ran and never joined none more is, in the next life neither, until somebody says so.
func TestDefinitionIsProtected(t *testing.T) {
	t.Parallel()
	l := newLab(t, "c5.large")
	l.hardware["c5.large"] = always(small())
	l.silent = true
	st := store.NewMemory()
	c := l.start(st, "definitions:\n"+ofType("a", "c5.large"))
	w := c.start(asks("cpu: {cores: 1}, memory: {size: 1GiB}"))
	c.fruitless(l, 3)
	c.eventually("it is told", func() bool { return c.told("definition-protected", "3 launches in a row ran and never joined") })
	c.ahead.Add(int64(24 * time.Hour))
	c.waitsFor(w.ID, "definition a is protected")
	for _, text := range []string{c.shown("a"), c.explainAnyhow(w.ID)} {
		if !strings.Contains(text, "`console i-") || !strings.Contains(text, "no agent has come within 20m0s") || !strings.Contains(text, "resume a") {
			t.Errorf("it is said without the reason and what to do: %q", text)
		}
	}
	ahead := c.ahead.Load()
	c.close()
	c = l.start(st, "")
	c.ahead.Add(ahead + int64(24*time.Hour))
	c.waitsFor(w.ID, "definition a is protected")
	if made := l.cloud.Made(); made != 3 {
		t.Errorf("%d instances were launched", made)
	}
	l.mu.Lock()
	l.silent = false
	l.mu.Unlock()
	if err := c.engine.ResumeDefinition(t.Context(), c.admin, "a"); err != nil {
		t.Fatal(err)
	}
	c.awaitStatus(w.ID, coordinator.StatusFinished)
	if text := c.shown("a"); strings.Contains(text, "protected") || !c.told("definition-resumed", "by ") {
		t.Errorf("it is %q", text)
	}
}

// TestAnotherTryIsNotProtected: what is launched after a change of the definition is something else, and one that joins ends the count.
func TestAnotherTryIsNotProtected(t *testing.T) {
	t.Parallel()
	l := newLab(t, "c5.large", "c5.xlarge")
	l.hardware["c5.large"], l.hardware["c5.xlarge"] = always(small()), always(small())
	l.silent = true
	c := l.start(store.NewMemory(), "definitions:\n"+ofType("a", "c5.large"))
	w := c.start(asks("cpu: {cores: 1}, memory: {size: 1GiB}"))
	c.fruitless(l, 2)
	c.setGranted("definitions:\n" + ofType("a", "c5.xlarge"))
	c.fruitless(l, 4)
	if text := c.shown("a"); strings.Contains(text, "protected") {
		t.Errorf("after two of each: %s", text)
	}
	l.mu.Lock()
	l.silent = false
	l.mu.Unlock()
	c.eventually("the fifth joins", func() bool {
		c.ahead.Add(int64(time.Second))
		return l.cloud.Made() == 5 && c.kinds()["node-joined"] == 1
	})
	c.awaitStatus(w.ID, coordinator.StatusFinished)
	l.mu.Lock()
	l.silent = true
	l.mu.Unlock()
	c.eventually("it is idle and goes", func() bool { c.ahead.Add(int64(time.Second)); return l.cloud.Live() == 0 })
	c.start(asks("cpu: {cores: 1}, memory: {size: 1GiB}"))
	c.fruitless(l, 7)
	if c.kinds()["definition-protected"] != 0 {
		t.Error("one that joined does not end the count")
	}
	c.fruitless(l, 8)
	c.eventually("the third in a row", func() bool { return c.kinds()["definition-protected"] == 1 })
}

// TestInstanceEndsBeforeItsAgent: one that switches itself off while it boots is not launched again and again.
func TestInstanceEndsBeforeItsAgent(t *testing.T) {
	t.Parallel()
	l := newLab(t, "c5.large")
	l.hardware["c5.large"] = always(small())
	l.silent = true
	c := l.start(store.NewMemory(), "definitions:\n"+ofType("a", "c5.large"))
	w := c.start(asks("cpu: {cores: 1}, memory: {size: 1GiB}"))
	for n := range 3 {
		c.eventually("it runs", func() bool {
			if l.cloud.Made() == n {
				c.ahead.Add(int64(time.Second))
			}
			list, _, err := c.engine.Launches(t.Context(), c.admin, Page{})
			return err == nil && l.cloud.Made() == n+1 && len(list) == 1 && list[0].State == "running"
		})
		for _, i := range l.cloud.List() {
			l.cloud.Break(i.ID, "powered off")
		}
		c.eventually("its end is noticed", func() bool { return c.kinds()["node-launch-failed"] == n+1 })
		if text := c.explainAnyhow(w.ID); n < 2 && !strings.Contains(text, "unavailable until") {
			t.Errorf("after %d: %s", n+1, text)
		}
	}
	c.waitsFor(w.ID, "definition a is protected")
}
