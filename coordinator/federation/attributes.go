// Package federation is what a Federate and its clusters have to agree on: for whom a request is made, scheduling
// attributes with their revisions, and the choice among clusters. It opens no connection and stores nothing.
package federation

import (
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"substrate/coordinator"
)

// Schema is the newest form of Attributes that this release sends and understands. Later ones only add.
const Schema = 1

// Bounds of what travels with a request.
const (
	MaxGroups   = 512  // of one user
	MaxPreempts = 1024 // of one group
	maxName     = 255
)

// Entity is an organisation or a group by id and name.
type Entity struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// Identity is for whom a request is made.
type Identity struct {
	Organization Entity
	Group        Entity // that the request counts for; one of Groups
	User         Entity
	Email        string
	UnixUser     string
	Groups       []Entity // of the user, the default first
	Actor        string   // who asked, when it was not the user
}

// Value is a priority with the revision at which it was last set. Revisions only grow.
type Value struct {
	Priority int32
	Revision uint64
}

// Attributes are the scheduling attributes of one Identity.
type Attributes struct {
	Schema                    uint32
	Organization, Group, User Value
	Preempts                  []Entity // has the group's revision
}

// Check refuses what no Federate of any release sends.
func (id *Identity) Check() error {
	for noun, e := range map[string]Entity{"organization": id.Organization, "group": id.Group, "user": id.User} {
		if err := e.check(); err != nil {
			return fmt.Errorf("%s: %w", noun, err)
		}
	}
	if len(id.Groups) == 0 || len(id.Groups) > MaxGroups {
		return fmt.Errorf("%d groups, expected 1 to %d", len(id.Groups), MaxGroups)
	}
	member := false
	for _, g := range id.Groups {
		if err := g.check(); err != nil {
			return fmt.Errorf("group: %w", err)
		}
		member = member || g == id.Group
	}
	if !member {
		return errors.New("the user is not a member of the group")
	}
	if len(id.Email) > maxName || len(id.UnixUser) > maxName || len(id.Actor) > maxName {
		return errors.New("a text is too long")
	}
	return nil
}

// Check refuses a list that is too long or names what has no name.
func (a *Attributes) Check() error {
	if len(a.Preempts) > MaxPreempts {
		return fmt.Errorf("%d groups in the preemption list, at most %d", len(a.Preempts), MaxPreempts)
	}
	for _, g := range a.Preempts {
		if err := g.check(); err != nil {
			return fmt.Errorf("group in the preemption list: %w", err)
		}
	}
	return nil
}

// Check refuses an entity without a proper id and name.
func (e Entity) Check() error { return e.check() }

func (e Entity) check() error {
	if u, err := uuid.Parse(e.ID); err != nil || u.String() != e.ID {
		return fmt.Errorf("id %.80q is not a UUID in its usual form", e.ID)
	}
	if e.Name == "" || len(e.Name) > 63 || strings.ContainsFunc(e.Name, func(r rune) bool { return r <= ' ' || r == '/' || r == 0x7f || r == 0xfffd }) {
		return fmt.Errorf("name %.80q is not one", e.Name)
	}
	if _, err := uuid.Parse(e.Name); err == nil {
		return fmt.Errorf("name %.80q has the shape of an id", e.Name)
	}
	return nil
}

// LocalName is what a replica is called where its name is taken: the name with the beginning of its id.
func LocalName(e Entity, taken func(string) bool) string {
	if !taken(e.Name) {
		return e.Name
	}
	name := e.Name
	if len(name) > 54 {
		name = name[:54]
	}
	if short := name + "-" + e.ID[:8]; !taken(short) {
		return short
	}
	return name[:min(len(name), 26)] + "-" + e.ID
}

// Clock gives revisions: microseconds of the clock, and more than the last where the clock does not move. A store
// that was put back from a backup thereby goes on above what it gave out before.
func Clock(last uint64, unixMicro int64) uint64 {
	return max(last+1, uint64(max(unixMicro, 0)))
}

// Newer reports whether values of a revision replace those of a replica.
func Newer(revision uint64, replica *coordinator.Replica) bool {
	return revision > replica.Revision || replica.Forced && revision == replica.Revision
}
