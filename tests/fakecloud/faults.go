package fakecloud

import (
	"context"
	"io"
	"net/http"
)

// Op is a call as far as faults tell calls apart.
type Op uint8

const (
	OpOther   Op = iota
	OpLaunch     // of one instance
	OpRelease    // of one instance
	OpList       // of instances, one page
	OpTypes      // what can be launched
)

// Cause is why a call is refused, in no cloud's words. Front-ends have the words.
type Cause uint8

const (
	NotFound Cause = iota + 1
	NoCapacity
	Quota
	Throttled
	Denied
	ClockSkew
	Invalid
	TokenMismatch // the token was used for something else
	TokenSpent    // the token's instance is over
	Broken        // the cloud's own fault
)

// Refusal is the cloud's no.
type Refusal struct {
	Cause Cause
	Text  string
}

func (r *Refusal) Error() string { return r.Text }

// Fault is what happens to a call.
type Fault struct {
	Refuse Cause // 0: it is not refused
	// Lost carries the call out and then cuts the connection: the caller never hears.
	Lost bool
	// Hang answers nothing until the caller has had enough.
	Hang bool
	// Instead is what something between the caller and the cloud answers, with status 200.
	Instead string
}

// Fail has the next calls of a kind go wrong, in this order, one fault each.
func (c *Cloud) Fail(op Op, faults ...Fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults[op] = append(c.faults[op], faults...)
}

// Calls is how many calls of a kind came, refused ones too.
func (c *Cloud) Calls(op Op) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[op]
}

// Call notes a call and says what is to happen to it.
func (c *Cloud) Call(op Op) Fault {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[op]++
	list := c.faults[op]
	if len(list) == 0 {
		return Fault{}
	}
	c.faults[op] = list[1:]
	return list[0]
}

// Empty has a type have no capacity in a zone and market; zone "" is all of them.
func (c *Cloud) Empty(typ, zone string, m Market, empty bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.empty[offer{typ, zone, m}] = empty
}

// SetQuota limits how many instances may exist; -1 is no limit.
func (c *Cloud) SetQuota(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.quota = n
}

// Reclaim takes a spot instance back.
func (c *Cloud) Reclaim(id string) { c.Break(id, "reclaimed") }

// Break ends an instance though nobody asked.
func (c *Cloud) Break(id, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := c.instances[id]; i != nil {
		c.end(i, why)
	}
}

// Front speaks as one cloud does.
type Front interface {
	http.Handler
	// Op is what a request asks for.
	Op(r *http.Request) Op
	// Refuse writes the cloud's words for a refusal.
	Refuse(w http.ResponseWriter, r *http.Request, op Op, why Refusal)
}

// Serve puts faults before a front-end.
func (c *Cloud) Serve(f Front) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		op := f.Op(r)
		switch fault := c.Call(op); {
		case fault.Refuse != 0:
			f.Refuse(w, r, op, Refusal{fault.Refuse, "as told"})
		case fault.Instead != "":
			_, _ = io.WriteString(w, fault.Instead)
		case fault.Hang:
			_, _ = io.Copy(io.Discard, r.Body) // or the caller's leaving is not noticed
			<-r.Context().Done()
		case fault.Lost:
			f.ServeHTTP(discard{http.Header{}}, r.WithContext(context.WithoutCancel(r.Context())))
			panic(http.ErrAbortHandler) // cuts the connection
		default:
			f.ServeHTTP(w, r)
		}
	})
}

// discard is a response that nobody reads.
type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(b []byte) (int, error) { return len(b), nil }
func (d discard) WriteHeader(int)             {}
