package coordinator

import (
	"math"
	"testing"
)

func TestBytesAsText(t *testing.T) {
	for n, want := range map[Bytes]string{
		0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 64 << 30: "64 GiB", 64<<30 - 1: "63.99 GiB",
		1<<40 - 1: "1023.99 GiB", 1 << 40: "1 TiB", math.MaxUint64: "16 EiB",
	} {
		if got := n.String(); got != want {
			t.Errorf("%d is %q, want %q", uint64(n), got, want)
		}
	}
}
