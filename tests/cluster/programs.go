package cluster

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// binEnv names the directory of programs to test instead of building them.
const binEnv = "SUBSTRATE_BIN"

// FullPeers reports whether tests with real batch systems are to take the time they need, as `make test-peers` asks.
func FullPeers() bool { return os.Getenv("SUBSTRATE_PEERS") == "full" }

// Main is for TestMain: it builds the three programs once, unless SUBSTRATE_BIN says where they are,
// runs the tests and returns the exit code.
func Main(m interface{ Run() int }) int {
	flag.Parse()
	if f := flag.Lookup("test.list"); f != nil && f.Value.String() != "" {
		return m.Run()
	}
	if dir := os.Getenv(binEnv); dir != "" {
		abs, err := filepath.Abs(dir)
		if err == nil {
			err = os.Setenv(binEnv, abs)
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "cannot find programs: %v\n", err)
			return 1
		}
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "substrate-bin-")
	if err != nil {
		fmt.Fprintf(os.Stderr, "cannot build programs: %v\n", err)
		return 1
	}
	defer os.RemoveAll(dir)
	// The flags of `make build`, whose compiled packages serve again.
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", dir+string(filepath.Separator), "substrate/cmd/...")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "cannot build programs: %v\n%s", err, out)
		return 1
	}
	if err := os.Setenv(binEnv, dir); err != nil {
		fmt.Fprintf(os.Stderr, "cannot build programs: %v\n", err)
		return 1
	}
	return m.Run()
}

// Program is the path of one of the programs under test.
func Program(name string) string {
	dir := os.Getenv(binEnv)
	if dir == "" {
		panic("cannot find program " + name + ": TestMain must call cluster.Main")
	}
	return filepath.Join(dir, name)
}

// withoutSubstrate leaves out settings of the programs: they get theirs as flags.
func withoutSubstrate(env []string) []string {
	var out []string
	for _, kv := range env {
		if !strings.HasPrefix(kv, "SUBSTRATE") {
			out = append(out, kv)
		}
	}
	return out
}
