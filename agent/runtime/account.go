package runtime

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"sync"
	"time"
)

// account is who a run's processes are. The zero UID is only ever used with Caller.
type account struct {
	Name   string   `json:"name"`
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups,omitempty"`
	Home   string   `json:"home"`
	Shell  string   `json:"shell,omitempty"`
	Caller bool     `json:"caller,omitempty"` // no change of identity
}

const (
	accountsTTL = time.Minute // how long a changed group list may go unseen
	maxAccounts = 4096
)

// accounts resolves unix users with the node's own database and remembers answers for a minute.
type accounts struct {
	runsAsCaller bool

	mu    sync.Mutex
	known map[string]accountEntry
}

type accountEntry struct {
	account account
	err     error
	until   time.Time
}

func (a *accounts) lookup(name string) (account, error) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if e, ok := a.known[name]; ok && now.Before(e.until) {
		return e.account, e.err
	}
	found, err := a.resolve(name)
	if a.known == nil || len(a.known) >= maxAccounts {
		a.known = map[string]accountEntry{}
	}
	a.known[name] = accountEntry{found, err, now.Add(accountsTTL)}
	return found, err
}

func (a *accounts) resolve(name string) (account, error) {
	if a.runsAsCaller {
		return caller()
	}
	if name == "" {
		return account{}, fmt.Errorf("the submitter is not mapped to a unix account")
	}
	acc, err := named(name)
	switch {
	case err != nil:
		return account{}, err
	case acc.UID == 0:
		return account{}, fmt.Errorf("account %q has uid 0, which no run may have", name)
	case acc.UID == uint32(os.Geteuid()):
		acc.Caller = true
	case os.Geteuid() != 0:
		return account{}, fmt.Errorf("the agent runs as uid %d and may not become %q", os.Geteuid(), name)
	}
	return acc, nil
}

func caller() (account, error) {
	acc := account{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), Home: os.Getenv("HOME"), Caller: true}
	u, err := user.LookupId(strconv.Itoa(os.Geteuid()))
	if err != nil { // containers run with uids that no database knows
		acc.Name = strconv.Itoa(os.Geteuid())
		return acc, nil
	}
	acc.Name, acc.Home = u.Username, u.HomeDir
	return acc, nil
}

// named asks os/user, and getent where a build without cgo cannot see sssd, LDAP and the like.
func named(name string) (account, error) {
	if strings.ContainsAny(name, ":\n\x00/") || strings.HasPrefix(name, "-") {
		return account{}, fmt.Errorf("%q is not a unix account name", name)
	}
	u, err := user.Lookup(name)
	if err != nil {
		if u = getent(name); u == nil {
			return account{}, fmt.Errorf("unix account %q does not exist on this node", name)
		}
	}
	acc := account{Name: u.Username, Home: u.HomeDir}
	if acc.UID, err = parseID(u.Uid); err != nil {
		return account{}, fmt.Errorf("unix account %q: %w", name, err)
	}
	if acc.GID, err = parseID(u.Gid); err != nil {
		return account{}, fmt.Errorf("unix account %q: %w", name, err)
	}
	groups, err := groupIDs(u)
	if err != nil {
		return account{}, fmt.Errorf("groups of unix account %q: %w", name, err)
	}
	for _, g := range groups {
		gid, err := parseID(g)
		if err != nil {
			return account{}, fmt.Errorf("groups of unix account %q: %w", name, err)
		}
		acc.Groups = append(acc.Groups, gid)
	}
	return acc, nil
}

func getent(name string) *user.User {
	out, err := exec.Command("getent", "passwd", "--", name).Output()
	if err != nil {
		return nil
	}
	f := strings.Split(strings.TrimSpace(string(out)), ":")
	if len(f) < 7 || f[0] != name {
		return nil
	}
	return &user.User{Username: f[0], Uid: f[2], Gid: f[3], HomeDir: f[5]}
}

func groupIDs(u *user.User) ([]string, error) {
	ids, err := u.GroupIds()
	if err == nil {
		return ids, nil
	}
	out, err2 := exec.Command("id", "-G", "--", u.Username).Output()
	if err2 != nil {
		return nil, err
	}
	return strings.Fields(string(out)), nil
}

func parseID(text string) (uint32, error) {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%q is not a numeric id", text)
	}
	return uint32(n), nil
}
