package engine

import (
	"context"
	"time"
)

// Step does what time alone makes due and decides, as one turn of Run does. It is for an engine that is carried
// out inline.
func (e *Engine) Step(ctx context.Context) error { return e.turn(ctx, nil, true) }

// Due is when the next Step has something to do although nobody asks; with nothing open that is an hour away.
func (e *Engine) Due() time.Time { return e.due() }

// Take is Next without waiting: what there is for the agent now, mostly nothing.
func (s *Session) Take() []ToNode {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.outbox
	s.outbox = nil
	return out
}
