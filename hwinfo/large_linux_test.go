package hwinfo

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestLargeFileTakesNoMemory: a file that says how long it is is refused for that, before it fills the agent's memory.
func TestLargeFileTakesNoMemory(t *testing.T) {
	root := t.TempDir()
	put(t, root, "proc/cpuinfo", nil)
	if err := os.Truncate(filepath.Join(root, "proc/cpuinfo"), 1<<33); err != nil {
		t.Fatal(err)
	}
	o, err := openRoot(root)
	if err != nil {
		t.Fatal(err)
	}
	defer o.close()
	if _, ok := o.(*openat2Root); !ok {
		t.Log("the portable way to read has no such promise")
		return
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err = o.read("proc/cpuinfo", maxFile)
	runtime.ReadMemStats(&after)
	if err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("got %v", err)
	}
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
		t.Errorf("it took %d bytes", n)
	}
}
