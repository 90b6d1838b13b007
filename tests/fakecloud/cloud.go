// Package fakecloud is a cloud to test against: one engine that holds instances, ids of calls, capacity and what goes wrong next, behind
// front-ends that speak as the clouds do. It bills nothing and is nobody's reference: where a cloud's behaviour is in doubt, its recorded answers
// decide.
//
// Instances are inert, unless a Machine boots something for them. Time passes by the machine's clock and by Advance.
package fakecloud

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// State is how far an instance is, in no cloud's words.
type State uint8

const (
	Pending State = iota + 1
	Running
	Stopping // is being ended
	Gone
)

// Market is how an instance is paid for.
type Market uint8

const (
	OnDemand Market = iota
	Spot
)

// String is the market's word.
func (m Market) String() string {
	if m == Spot {
		return "spot"
	}
	return "on-demand"
}

// Ask is a call for one instance.
type Ask struct {
	Token    string // idempotency: the same token is the same instance; "" is a new one each time
	ID       string // where the caller names the instance, as in a PUT; "" is the cloud's choice
	Type     string
	Zone     string
	Image    string
	Market   Market
	Tags     map[string]string
	UserData []byte        // as the instance reads it, decoded
	Lifetime time.Duration // the cloud ends it after that; 0: never
	Params   string        // whatever else the call said: the same token with another is refused
}

// Instance is one that was made.
type Instance struct {
	Ask
	ID       string
	State    State
	Launched time.Time
	Started  time.Time // Running since; zero before
	Ended    time.Time // Stopping since; zero before
	Why      string    // it ends: "", asked for; else the cloud's doing
	Address  string
}

// Type is a kind of instance that the cloud has.
type Type struct {
	Name   string
	VCPUs  uint32
	Cores  uint32
	Memory uint64 // MiB, as sold
	Arch   string // amd64, arm64
	GPUs   uint32
	GPU    string // name in the catalogue
	Spot   bool   // can be had as such
	Metal  bool
	Price  float64 // USD per hour, 0: unknown
	// Part: its GPUs are that part of one each; 0: whole ones.
	Part float64
	// Uncounted: the cloud says whose GPUs it has and not how many.
	Uncounted bool
	Ends      string // DEPRECATED, OBSOLETE: the cloud gives it up
}

// Machine boots something for instances. Boot returns when the machine is on, Halt when it is off; both may be called from any goroutine.
type Machine interface {
	Boot(i Instance) error
	Halt(id string)
}

// Options is what a Cloud is like.
type Options struct {
	Types   []Type
	Now     func() time.Time // default time.Now
	Boots   time.Duration    // from Pending to Running
	Ends    time.Duration    // from Stopping to Gone
	Appears time.Duration    // for so long a new instance is in no list
	Page    int              // instances in one page of a list; default 100
	Machine Machine
}

// Cloud is an account in one region.
type Cloud struct {
	opt   Options
	wares sync.RWMutex // guards opt.Types

	mu        sync.Mutex
	ahead     time.Duration
	instances map[string]*Instance
	tokens    map[string]spent
	empty     map[offer]bool
	quota     int // instances that may exist; -1: no limit
	faults    map[Op][]Fault
	calls     map[Op]int
	next      int
	machines  sync.WaitGroup
}

// spent is a token that was used.
type spent struct {
	id   string
	what string // of the ask, as far as a token must not be used for another
}

type offer struct {
	typ, zone string
	market    Market
}

// New makes an empty account.
func New(o Options) *Cloud {
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Page = cmp.Or(o.Page, 100)
	return &Cloud{opt: o, instances: map[string]*Instance{}, tokens: map[string]spent{}, empty: map[offer]bool{}, quota: -1, faults: map[Op][]Fault{}, calls: map[Op]int{}}
}

// Now is the cloud's time.
func (c *Cloud) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now()
}

func (c *Cloud) now() time.Time { return c.opt.Now().Add(c.ahead) }

// Advance lets time pass.
func (c *Cloud) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead += d
}

// SetTypes changes what the cloud has.
func (c *Cloud) SetTypes(list []Type) {
	c.wares.Lock()
	defer c.wares.Unlock()
	c.opt.Types = slices.Clone(list)
}

// Names are those of what the cloud has, sorted.
func (c *Cloud) Names() []string {
	var out []string
	for _, t := range c.Types() {
		out = append(out, t.Name)
	}
	slices.Sort(out)
	return out
}

// Types lists what the cloud has, by name.
func (c *Cloud) Types() []Type {
	c.wares.RLock()
	defer c.wares.RUnlock()
	list := slices.Clone(c.opt.Types)
	slices.SortFunc(list, func(a, b Type) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// Type finds one.
func (c *Cloud) Type(name string) (Type, bool) {
	c.wares.RLock()
	defer c.wares.RUnlock()
	for _, t := range c.opt.Types {
		if t.Name == name {
			return t, true
		}
	}
	return Type{}, false
}

// Page is how many instances one page of a list holds.
func (c *Cloud) Page() int { return c.opt.Page }

// Launch makes an instance, or tells of the one that the token or id made before.
func (c *Cloud) Launch(a Ask) (Instance, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle()
	what := strings.TrimSpace(fmt.Sprintf("%s %d %s %s", a.Type, a.Market, a.Zone, a.Params))
	if s, ok := c.tokens[a.Token]; ok && a.Token != "" {
		return c.repeated(s, what)
	}
	if i, ok := c.instances[a.ID]; ok && a.ID != "" && i.State != Gone {
		return *i, nil
	}
	if err := c.room(a); err != nil {
		return Instance{}, err
	}
	c.next++
	i := &Instance{Ask: a, ID: cmp.Or(a.ID, fmt.Sprintf("i-%017x", 0x0123456789+c.next)), State: Pending, Launched: c.now()}
	i.Tags = maps.Clone(a.Tags)
	i.Address = fmt.Sprintf("10.0.%d.%d", c.next/250, c.next%250+1)
	c.instances[i.ID] = i
	if a.Token != "" {
		c.tokens[a.Token] = spent{i.ID, what}
	}
	if m := c.opt.Machine; m != nil {
		made := *i
		c.machines.Go(func() {
			if err := m.Boot(made); err != nil {
				c.Break(made.ID, err.Error())
			}
		})
	}
	return *i, nil
}

func (c *Cloud) repeated(s spent, what string) (Instance, error) {
	i := c.instances[s.id]
	switch {
	case s.what != what:
		return Instance{}, &Refusal{TokenMismatch, "the token was used for something else"}
	case i.State >= Stopping:
		return Instance{}, &Refusal{TokenSpent, "the instance of this token is over"}
	}
	return *i, nil
}

// room refuses what there is no room for.
func (c *Cloud) room(a Ask) error {
	t, ok := c.Type(a.Type)
	switch {
	case !ok:
		return &Refusal{Invalid, "there is no type " + a.Type}
	case a.Market == Spot && !t.Spot:
		return &Refusal{Invalid, "the type " + a.Type + " is not sold as spot"}
	case c.empty[offer{a.Type, a.Zone, a.Market}], c.empty[offer{a.Type, "", a.Market}]:
		return &Refusal{NoCapacity, "no " + a.Market.String() + " capacity for " + a.Type}
	case c.quota >= 0 && c.live() >= c.quota:
		return &Refusal{Quota, fmt.Sprintf("%d instances exist, %d may", c.live(), c.quota)}
	}
	return nil
}

func (c *Cloud) live() int {
	n := 0
	for _, i := range c.instances {
		if i.State < Stopping {
			n++
		}
	}
	return n
}

// Terminate begins an instance's end. Repeating it is no error; an unknown id is a Refusal NotFound.
func (c *Cloud) Terminate(id string) (Instance, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle()
	i, ok := c.instances[id]
	if !ok || i.State == Gone && c.now().Sub(i.Ended) > time.Hour {
		return Instance{}, &Refusal{NotFound, "there is no instance " + id}
	}
	c.end(i, "")
	return *i, nil
}

func (c *Cloud) end(i *Instance, why string) {
	if i.State >= Stopping {
		return
	}
	i.State, i.Ended, i.Why = Stopping, c.now(), why
	if m := c.opt.Machine; m != nil {
		id := i.ID
		c.machines.Go(func() { m.Halt(id) })
	}
}

// Instance tells of one, also of one that is gone.
func (c *Cloud) Instance(id string) (Instance, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle()
	i, ok := c.instances[id]
	if !ok {
		return Instance{}, false
	}
	return *i, true
}

// List tells of the instances that can be seen, by id, those that are gone for an hour.
func (c *Cloud) List() []Instance {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle()
	var out []Instance
	for _, id := range slices.Sorted(maps.Keys(c.instances)) {
		i := c.instances[id]
		if c.hidden(i) || i.State == Gone && c.now().Sub(i.Ended) > time.Hour {
			continue
		}
		out = append(out, *i)
	}
	return out
}

// hidden reports whether an instance is too new to be known everywhere.
func (c *Cloud) hidden(i *Instance) bool { return c.now().Sub(i.Launched) < c.opt.Appears }

// Hidden reports whether an instance exists and is in no list yet.
func (c *Cloud) Hidden(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	i, ok := c.instances[id]
	return ok && c.hidden(i)
}

// Live is how many instances exist and cost something, whoever they belong to.
func (c *Cloud) Live() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle()
	return c.live()
}

// Made is how many instances were ever made.
func (c *Cloud) Made() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.instances)
}

// settle lets happen what the time brings.
func (c *Cloud) settle() {
	now := c.now()
	for _, i := range c.instances {
		if i.State == Pending && !now.Before(i.Launched.Add(c.opt.Boots)) {
			i.State, i.Started = Running, i.Launched.Add(c.opt.Boots)
		}
		if i.Lifetime > 0 && i.State < Stopping && !now.Before(i.Launched.Add(i.Lifetime)) {
			c.end(i, "lifetime")
		}
		if i.State == Stopping && !now.Before(i.Ended.Add(c.opt.Ends)) {
			i.State = Gone
		}
	}
}

// Close waits for machines; it ends what still runs on them.
func (c *Cloud) Close() {
	c.mu.Lock()
	for _, i := range c.instances {
		c.end(i, "closed")
	}
	c.mu.Unlock()
	c.machines.Wait()
}
