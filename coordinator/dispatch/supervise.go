package dispatch

import (
	"fmt"
	"strings"
	"time"
)

// CheckInterval refuses an interval of polling at which something could be missed that is kept for a while.
func CheckInterval(interval time.Duration, d Declarations) error {
	if interval <= 0 {
		return fmt.Errorf("cannot poll every %s: the interval must be positive", interval)
	}
	shortest, ok := d.ShortestWindow()
	if !ok || interval <= shortest {
		return nil
	}
	var lost []string
	for _, e := range AllEvidence() {
		if time.Duration(d.PolledLoss[e]) == shortest {
			lost = append(lost, e.String())
		}
	}
	return fmt.Errorf("cannot poll every %s: %s of what has ended can be read for %s only, and would be missed; poll at least every %s",
		interval, strings.Join(lost, ", "), shortest, shortest)
}
