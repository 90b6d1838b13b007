//go:build !linux

package hwinfo

import (
	"errors"
	"os"
)

func openRoot(root string) (opener, error) { return openWalkRoot(root) }

// isProcfs: only Linux describes itself in files, elsewhere a root is a snapshot.
func isProcfs(*os.File) bool { return false }

func liveUname() (Uname, string, error) {
	return Uname{}, "", errors.New("not a Linux kernel")
}
