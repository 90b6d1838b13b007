package engine

import (
	"cmp"
	"context"
	"time"
)

// inline carries out a request now, or with others.
func (e *Engine) inline(ctx context.Context, c *command) error {
	if e.together != nil {
		*e.together = append(*e.together, c)
		return nil
	}
	if err := e.turn(ctx, []*command{c}, false); err != nil {
		return err
	}
	return c.err
}

// Together carries out all that f asks for in one turn with one write, as the loop does with what comes at one time. It
// is for reports of nodes: what else f asked would have no answer yet.
func (e *Engine) Together(ctx context.Context, f func() error) error {
	var batch []*command
	e.together = &batch
	err := f()
	e.together = nil
	if err != nil || len(batch) == 0 {
		return err
	}
	if err := e.turn(ctx, batch, false); err != nil {
		return err
	}
	for _, c := range batch {
		err = cmp.Or(err, c.err)
	}
	return err
}

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
