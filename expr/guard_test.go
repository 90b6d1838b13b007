package expr

import (
	"context"
	"testing"
	"time"
)

// within runs f and gives up after a time far above what it needs, so that a stall is a failure
// here and not a build that hangs.
func within(t *testing.T, f func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-ctx.Done():
		t.Fatal("it does not end")
	}
}
