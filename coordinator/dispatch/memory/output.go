package memory

import (
	"context"
	"fmt"
	"time"

	"substrate/coordinator/dispatch"
)

const (
	pieceSize   = 4 << 10
	followEvery = 2 * time.Second
)

func (b *Backend) Output(ctx context.Context, want dispatch.OutputRequest, each func(dispatch.OutputPiece) error) error {
	at, offset := want.From, max(want.Offset, 0)
	for {
		pieces, next, end, over, err := b.collect(ctx, want, at, offset)
		if err != nil {
			return err
		}
		for _, p := range pieces {
			if err := each(p); err != nil {
				return err
			}
		}
		at, offset = next, end
		if over || !want.Follow {
			return nil
		}
		if err := b.c.clock.Sleep(ctx, followEvery); err != nil {
			return fmt.Errorf("cannot follow the output of %s: %w", want.Ref, err)
		}
	}
}

// collect is what has been written from a place on, the place after it, and whether nothing can follow.
func (b *Backend) collect(ctx context.Context, want dispatch.OutputRequest, at dispatch.Execution, offset int64) (list []dispatch.OutputPiece,
	next dispatch.Execution, end int64, over bool, err error) {
	next, end = at, offset
	err = b.ask(ctx, "read the output of "+want.Ref.String(), func() error {
		o := b.c.kept(want)
		if o == nil {
			return fmt.Errorf("no output is kept: %w", dispatch.ErrNotFound)
		}
		over = o.over()
		for _, e := range o.runs {
			if e.n < at {
				continue
			}
			if e.n > next {
				next, end = e.n, 0
			}
			text := b.c.written(e, want.Stream)
			for end < int64(len(text)) {
				data := []byte(text[end:min(end+pieceSize, int64(len(text)))])
				list = append(list, dispatch.OutputPiece{Execution: e.n, Offset: end, Data: data})
				end += int64(len(data))
			}
		}
		return nil
	})
	return list, next, end, over, err
}

// kept is the object whose output is wanted. Files outlive what the system knows of it.
func (c *Cluster) kept(want dispatch.OutputRequest) *object {
	o := c.byID[want.Object]
	if o == nil || want.Ref != (dispatch.Ref{}) && o.spec.Ref != want.Ref {
		o = nil
		for _, other := range c.objects {
			if other.spec.Ref == want.Ref {
				o = other
			}
		}
	}
	if o == nil || o.spec.Output == nil {
		return nil
	}
	return o
}
