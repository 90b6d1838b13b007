// Package cloud is what the provisioners of clouds have in common: how an instance is marked as a cluster's, how it is named, which id its
// call carries, and what it reads at its first boot. It speaks to no cloud.
package cloud

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"substrate/coordinator/provision"
)

// Marks are tags, labels or whatever a cloud calls them. Names and values suit the strictest: lower-case letters, digits, - and _, at most 63.
const (
	MarkCluster    = "substrate-cluster"
	MarkLaunch     = "substrate-launch"
	MarkDefinition = "substrate-definition" // for people; nothing reads it
)

// Marks are those of a launch's instance.
func Marks(cluster string, r provision.Request) map[string]string {
	return map[string]string{MarkCluster: Label(cluster), MarkLaunch: string(r.ID), MarkDefinition: Label(string(r.Definition.ID))}
}

// Label makes a text fit for a mark's value. Ids of clusters and launches stay as they are.
func Label(s string) string {
	s = strings.Map(func(c rune) rune {
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '-', c == '_':
			return c
		case c >= 'A' && c <= 'Z':
			return c + 'a' - 'A'
		}
		return '-'
	}, s)
	return s[:min(len(s), 63)]
}

// LaunchOf reads a mark back: "" when it is none of ours.
func LaunchOf(mark string) provision.LaunchID {
	id := provision.LaunchID(mark)
	if !id.Valid() {
		return ""
	}
	return id
}

// Key is what makes calls the same: cluster, launch, and what of the definition decides which instance it is, as type and market. It is 64
// hexadecimal digits, which is the most that EC2 takes.
func Key(cluster string, id provision.LaunchID, parts ...string) string {
	h := sha256.New()
	for _, p := range append([]string{cluster, string(id)}, parts...) {
		fmt.Fprintf(h, "%d:%s,", len(p), p)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// UUID is Key in the form of a random UUID, for clouds that want one.
func UUID(cluster string, id provision.LaunchID, parts ...string) string {
	b, _ := hex.DecodeString(Key(cluster, id, parts...)[:32])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// Name is what an instance is called where its name is what makes calls the same: at most 40 characters, a valid host name, another one for each
// Key.
func Name(cluster string, id provision.LaunchID, parts ...string) string {
	return "substrate-" + string(id[:min(len(id), 17)]) + "-" + Key(cluster, id, parts...)[:12]
}

// Pick chooses one of several places for a launch, the same one each time: its call may have been heard there before.
func Pick(places []string, id provision.LaunchID) string {
	var best, most string
	for _, p := range places {
		if k := Key(p, id); k > most || k == most && p < best {
			best, most = p, k
		}
	}
	return best
}

// Agent is how the agent is started on an instance.
type Agent struct {
	Program    string        // on the image; default substrated, from PATH
	JoinWithin time.Duration // without a coordinator for so long the instance ends itself; default 15 min
	StateDir   string        // default /var/lib/substrate
}

func (a Agent) withDefaults() Agent {
	a.Program = cmp.Or(a.Program, "substrated")
	a.JoinWithin = cmp.Or(a.JoinWithin, 15*time.Minute)
	a.StateDir = cmp.Or(a.StateDir, "/var/lib/substrate")
	return a
}

// MaxUserData is the least that any of the clouds allows, in bytes before base64.
const MaxUserData = 16 << 10
