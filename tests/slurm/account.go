package slurm

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// Account is one of the machine's. None is made for the tests: nobody and daemon are everywhere and may do nothing.
type Account struct {
	Name string
	UID  uint32
	GID  uint32
}

func root() Account { return Account{Name: "root"} }

func account(name string) (Account, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return Account{}, fmt.Errorf("cannot find account %s: %w", name, err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return Account{}, fmt.Errorf("cannot find account %s: %w", name, err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return Account{}, fmt.Errorf("cannot find account %s: %w", name, err)
	}
	return Account{Name: name, UID: uint32(uid), GID: uint32(gid)}, nil
}

// credential is nil for root, which the tests are.
func (a Account) credential() *syscall.Credential {
	if a.UID == 0 {
		return nil
	}
	return &syscall.Credential{Uid: a.UID, Gid: a.GID, Groups: []uint32{a.GID}}
}

func (a Account) own(path string, mode os.FileMode) error {
	if err := os.MkdirAll(path, mode); err != nil {
		return err
	}
	if err := os.Chmod(path, mode); err != nil { // whatever the umask is
		return err
	}
	return os.Chown(path, int(a.UID), int(a.GID))
}

func (c *Cluster) findAccounts() (err error) {
	if c.User, err = account("nobody"); err != nil {
		return err
	}
	if c.Other, err = account("daemon"); err != nil {
		return err
	}
	for _, a := range []Account{root(), c.User, c.Other} {
		if err := a.own(c.Home(a), 0o755); err != nil {
			return fmt.Errorf("cannot make a home: %w", err)
		}
	}
	return nil
}
