package main

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"substrate/proto/apiv1"
)

// steady is how long a stream must last to count as one that worked.
const steady = 5 * time.Second

// resume repeats pass while the coordinator is away for no longer than patience: pass begins where the one
// before it ended, and reports whether it got anything.
func (a *app) resume(ctx context.Context, silent bool, pass func() (moved bool, err error)) error {
	var down time.Time
	for {
		began := a.now()
		moved, err := pass()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return interrupted()
		case !a.away(err):
			return err
		}
		if moved || a.now().Sub(began) > steady {
			down = time.Time{}
		}
		if down.IsZero() {
			down = a.now()
			if !silent {
				a.warn("the coordinator is not reachable; trying for %s", span(patience))
			}
		}
		if err := a.awaitCoordinator(ctx, down, err); err != nil {
			return err
		}
	}
}

// awaitCoordinator returns when the coordinator answers, with last when it was away for too long.
func (a *app) awaitCoordinator(ctx context.Context, down time.Time, last error) error {
	for {
		if a.now().Sub(down) > patience {
			return last
		}
		if wait(ctx, a.every) != nil {
			return interrupted()
		}
		a.conn.ResetConnectBackoff() // it would grow beyond what the restart takes
		_, err := get(ctx, a, "reaching the coordinator", (*connection).whoAmI, &apiv1.WhoAmIRequest{})
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return interrupted()
		case !a.away(err):
			return err
		}
	}
}

// away reports whether an error is that of a coordinator that stopped, or does not answer any more. One that
// never answered may be the wrong address, which waiting does not mend.
func (a *app) away(err error) bool {
	var f *failure
	return errors.As(err, &f) && f.code == exitUnavailable && (a.reached.Load() || !f.unconnected)
}

// fromStream is fromRPC for a stream that ended while nobody here had asked for that.
func fromStream(ctx context.Context, server string, err error) error {
	if status.Code(err) == codes.Canceled && ctx.Err() == nil {
		return failf(exitUnavailable, "", "the coordinator ended the stream") // as one does that is told to stop
	}
	return fromRPC(server, err)
}

// logReader reads one log, from its start again after every loss, and leaves out what was written before.
type logReader struct {
	app     *app
	request *apiv1.ReadLogRequest
	shown   map[logSource]uint64 // bytes
	write   func(*apiv1.LogData) error
}

func (a *app) logReader(req *apiv1.ReadLogRequest, write func(*apiv1.LogData) error) *logReader {
	return &logReader{app: a, request: req, shown: map[logSource]uint64{}, write: write}
}

// read is one stream; moved says that it brought something new.
func (r *logReader) read(ctx context.Context) (moved bool, err error) {
	c, err := r.app.connect()
	if err != nil {
		return false, err
	}
	stream, err := c.workflows.ReadLog(ctx, r.request)
	if err != nil {
		return false, fromStream(ctx, c.server, err)
	}
	passed := map[logSource]uint64{}
	for {
		d, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return moved, nil
		} else if err != nil {
			return moved, fromStream(ctx, c.server, err)
		}
		r.app.reached.Store(true)
		from := logSource{d.GetStream(), d.GetRank()}
		start := passed[from]
		passed[from] += uint64(len(d.GetData()))
		if passed[from] <= r.shown[from] {
			continue
		}
		d.Data = d.GetData()[r.shown[from]-min(start, r.shown[from]):]
		if len(r.shown) == 0 && r.request.GetFollow() {
			r.pin(ctx, d.GetJob())
		}
		r.shown[from], moved = passed[from], true
		if err := r.write(d); err != nil {
			return moved, err
		}
	}
}

// pin makes later streams read the attempt that this one reads: the newest may be another one by then.
func (r *logReader) pin(ctx context.Context, job string) {
	if r.request.GetAttempt() > 0 {
		return
	}
	w, err := r.app.workflow(ctx, r.request.GetWorkflow())
	if err != nil {
		return // without it the newest attempt is read
	}
	for _, j := range w.GetJobs() {
		if j.GetName() == job || len(w.GetJobs()) == 1 {
			r.request.Attempt = j.GetAttempt()
			return
		}
	}
}
