package expr

import (
	"slices"
	"sync"
)

// Cache compiles each source once and shares the result and the machines behind it. It holds
// what it was asked for, so a caller makes one per configuration revision. Safe for concurrent use.
type Cache struct {
	language *language

	mu         sync.Mutex
	conditions map[string]*Condition
	policies   map[string]*Policy
	priorities map[string]*Priority
	previous   *Cache
}

// NewCache is an empty cache. What is asked for and stands in previous (may be nil) is taken
// over; call Settle when the new revision is complete, so that the rest of previous goes.
func NewCache(previous *Cache) *Cache {
	c := &Cache{
		language:   newLanguage(),
		conditions: map[string]*Condition{},
		policies:   map[string]*Policy{},
		priorities: map[string]*Priority{},
		previous:   previous,
	}
	if previous != nil {
		previous.Settle()
	}
	return c
}

// Settle lets go of the previous cache.
func (c *Cache) Settle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.previous = nil
}

// Condition is CompileCondition through the cache; refusals are not kept.
func (c *Cache) Condition(src string) (*Condition, error) {
	return cached(c, src, func(c *Cache) map[string]*Condition { return c.conditions }, c.language.condition)
}

// LintCondition is Condition with what is suspicious in it, found by the same compilation.
func (c *Cache) LintCondition(src string) (*Condition, []Finding, error) {
	out, err := c.Condition(src)
	if err != nil {
		return nil, nil, err
	}
	return out, slices.Clone(out.findings), nil
}

// LintPolicy is Policy with what is suspicious in it, found by the same compilation.
func (c *Cache) LintPolicy(src string) (*Policy, []Finding, error) {
	out, err := c.Policy(src)
	if err != nil {
		return nil, nil, err
	}
	return out, slices.Clone(out.findings), nil
}

// Policy is CompilePolicy through the cache; refusals are not kept.
func (c *Cache) Policy(src string) (*Policy, error) {
	return cached(c, src, func(c *Cache) map[string]*Policy { return c.policies }, c.language.policy)
}

// Priority is CompilePriority through the cache; refusals are not kept.
func (c *Cache) Priority(src string) (*Priority, error) {
	return cached(c, src, func(c *Cache) map[string]*Priority { return c.priorities }, c.language.rank)
}

func cached[T any](c *Cache, src string, table func(*Cache) map[string]*T, compile func(string) (*T, error)) (*T, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if found := table(c)[src]; found != nil {
		return found, nil
	}
	found := (*T)(nil)
	if p := c.previous; p != nil {
		p.mu.Lock()
		found = table(p)[src]
		p.mu.Unlock()
	}
	if found == nil {
		var err error
		if found, err = compile(src); err != nil {
			return nil, err
		}
	}
	table(c)[src] = found
	return found, nil
}
