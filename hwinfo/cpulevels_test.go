package hwinfo

import (
	"fmt"
	"strings"
	"testing"
)

// TestLevelsOfTheText: /proc/cpuinfo alone says where cores sit, and nothing of dies.
func TestLevelsOfTheText(t *testing.T) {
	x86 := func(n, pkg, core int) string {
		return fmt.Sprintf("processor\t: %d\nvendor_id\t: HygonGenuine\nphysical id\t: %d\ncore id\t\t: %d\n\n", n, pkg, core)
	}
	loong := func(n, pkg, core int) string {
		return fmt.Sprintf("processor\t\t: %d\npackage\t\t\t: %d\ncore\t\t\t: %d\nglobal_id\t\t: %d\nCPU Family\t\t: Loongson-64bit\n\n", n, pkg, core, n)
	}
	s390 := func(n, drawer, book, socket int) string {
		return fmt.Sprintf("cpu number      : %d\nphysical id     : %d\nbook id         : %d\ndrawer id       : %d\ncore id         : %d\n\n", n, socket, book, drawer, n)
	}
	s390Head := "vendor_id       : IBM/S390\n# processors    : 4\n"
	for n := range 4 {
		s390Head += fmt.Sprintf("processor %d: version = FF,  identification = 01,  machine = 3906\n", n)
	}
	tests := map[string]struct {
		text                      string
		cores, sockets, perSocket int
	}{
		"two sockets":                  {x86(0, 0, 0) + x86(1, 0, 1) + x86(2, 1, 0) + x86(3, 1, 1), 4, 2, 2},
		"sockets of unlike sizes":      {x86(0, 0, 0) + x86(7, 3, 0) + x86(9, 3, 9), 3, 2, 0},
		"two packages of LoongArch":    {loong(0, 0, 0) + loong(1, 0, 1) + loong(2, 1, 0) + loong(3, 1, 1), 4, 2, 2},
		"one socket of a mainframe":    {s390Head + "\n" + s390(0, 1, 1, 1) + s390(1, 1, 1, 1) + s390(2, 1, 1, 1) + s390(3, 1, 1, 1), 4, 1, 4},
		"sockets are numbered by book": {s390Head + "\n" + s390(0, 1, 1, 1) + s390(1, 1, 1, 1) + s390(2, 1, 2, 1) + s390(3, 1, 2, 1), 4, 2, 2},
		"and books by drawer":          {s390Head + "\n" + s390(0, 1, 1, 1) + s390(1, 1, 1, 1) + s390(2, 2, 1, 1) + s390(3, 2, 1, 1), 4, 2, 2},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			put(t, root, "proc/cpuinfo", []byte(strings.TrimSuffix(tt.text, "\n")))
			f, w := Read(root)
			c := f.CPU
			if deref(c.Cores) != tt.cores || deref(c.Sockets) != tt.sockets || c.Dies != nil ||
				(tt.perSocket == 0) != (c.CoresPerSocket == nil) || tt.perSocket > 0 && deref(c.CoresPerSocket) != tt.perSocket {
				t.Errorf("got %s, %v", asJSON(t, f), w)
			}
			checkSnapshot(t, root, f)
		})
	}
}
