package crash

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"substrate/tests/cluster"
)

var seedFlag = flag.Uint64("seed", 0, "seed of drawn instants; 0 draws one")

func TestMain(m *testing.M) {
	flag.Parse()
	if *seedFlag == 0 {
		*seedFlag = uint64(time.Now().UnixNano())
	}
	fmt.Printf("seed %d (repeat with -seed %d)\n", *seedFlag, *seedFlag)
	os.Exit(cluster.Main(m))
}

// chance is a test's own source, the same for the same seed.
func chance(t *testing.T) *rand.Rand {
	var h uint64
	for _, c := range t.Name() {
		h = h*31 + uint64(c)
	}
	return rand.New(rand.NewPCG(*seedFlag, h))
}
