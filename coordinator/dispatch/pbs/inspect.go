package pbs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"substrate/coordinator/dispatch"
	"substrate/coordinator/dispatch/transport"
)

// noHistory is what qstat -x says, with status 0, where what is over is not kept: a job that it does not show may be either.
const noHistory = "not configured to maintain job history"

// argumentsLimit is how many bytes of ids are given to one command, oneByOne how many are asked for alone before that is given up.
const (
	argumentsLimit = transport.ArgsLimit / 2
	oneByOne       = 1000
	// namedCost is how many jobs a server lists while it looks one up that is named: 0.08 ms and 3.5 ms.
	namedCost = 40
)

// delimiter stands in no value: it is drawn anew for each call.
func (b *Backend) delimiter() string { return "@" + b.opt.Nonce() + "@" }

// Inspect asks for one job, which may be over.
func (b *Backend) Inspect(ctx context.Context, id dispatch.ObjectID) (dispatch.Observation, error) {
	op := "inspect job " + string(id)
	r, err := b.one(ctx, op, id)
	if err != nil {
		return dispatch.Observation{}, err
	}
	silent, err := b.silentNodes(ctx, op, []record{*r})
	if err != nil {
		return dispatch.Observation{}, err
	}
	return observe(r, b.account.user, silent), nil
}

// one is a job's record.
func (b *Backend) one(ctx context.Context, op string, id dispatch.ObjectID) (*record, error) {
	if err := checkID(op, id); err != nil {
		return nil, err
	}
	list, err := b.list(ctx, op, func(r *record) bool { return r.id == string(id) }, string(id))
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("cannot %s: %w: neither the queues nor the history show it", op, dispatch.ErrNotFound)
	}
	return &list[0], nil
}

// list asks for one id, or for all jobs, as JSON, and if that is none that can be trusted as lines.
func (b *Backend) list(ctx context.Context, op string, keep func(*record) bool, id ...string) ([]record, error) {
	r, err := b.read(ctx, op, append([]string{"qstat", "-x", "-f", "-F", "json"}, id...)...)
	var list []record
	switch {
	case errors.Is(err, dispatch.ErrUnavailable) && r.Exit == 1 && !connection(err), err == nil && len(strings.TrimSpace(string(r.Stdout))) == 0:
		// A client that cannot write some job's text as JSON writes nothing at all.
	case err != nil:
		return nil, err
	default:
		list, err = parseJSON(r.Stdout, keep)
		if err == nil {
			return list, b.complete(op, r)
		}
	}
	b.opt.Log.Debug("a listing as JSON is not used", "op", op, "error", err)
	return b.lines(ctx, op, keep, id...)
}

// lines asks for jobs one in a line; several ids may be named, and those that are unknown are left out.
func (b *Backend) lines(ctx context.Context, op string, keep func(*record) bool, ids ...string) ([]record, error) {
	delimiter := b.delimiter()
	r, err := b.read(ctx, op, append([]string{"qstat", "-x", "-f", "-F", "dsv", "-D", delimiter}, ids...)...)
	if err != nil && (len(ids) < 2 || !errors.Is(err, dispatch.ErrNotFound)) {
		return nil, err
	}
	list, err := parseDSV(r.Stdout, delimiter, keep)
	if err != nil {
		return nil, fmt.Errorf("cannot %s: %w: %w", op, dispatch.ErrUnavailable, err)
	}
	return list, b.complete(op, r)
}

// complete is an error for a listing without what is over.
func (b *Backend) complete(op string, r transport.Result) error {
	if strings.Contains(string(r.Stderr), noHistory) {
		return fmt.Errorf("cannot %s: %w: the history has been switched off since the start (job_history_enable)", op, dispatch.ErrUnavailable)
	}
	return nil
}

// FindMany asks once: for all jobs, of which it picks those that are wanted, or for those alone where the server remembers many more.
func (b *Backend) FindMany(ctx context.Context, ids []dispatch.ObjectID) (map[dispatch.ObjectID]dispatch.Observation, error) {
	op := fmt.Sprintf("inspect %d jobs", len(ids))
	want := map[string]bool{}
	for _, id := range ids {
		if _, ok := sequence(id); ok {
			want[string(id)] = true
		}
	}
	found := map[dispatch.ObjectID]dispatch.Observation{}
	if len(want) == 0 {
		return found, nil // no ids at all would be all jobs
	}
	records, err := b.all(ctx, op, func(r *record) bool { return want[r.id] }, want)
	if err != nil {
		return nil, err
	}
	silent, err := b.silentNodes(ctx, op, records)
	if err != nil {
		return nil, err
	}
	for i := range records {
		found[dispatch.ObjectID(records[i].id)] = observe(&records[i], b.account.user, silent)
	}
	return found, nil
}

// all is a listing of the complex's jobs: at once, else those that are wanted by their names, else each of them alone.
func (b *Backend) all(ctx context.Context, op string, keep func(*record) bool, want map[string]bool) ([]record, error) {
	done := func(err error) bool {
		return err == nil || ctx.Err() != nil || errors.Is(err, dispatch.ErrDenied) || connection(err)
	}
	if want != nil && int64(len(want))*namedCost < b.listed.Load() {
		if list, err := b.named(ctx, op, keep, slices.Sorted(maps.Keys(want))); done(err) {
			return list, err
		}
	}
	listed := int64(0)
	list, err := b.list(ctx, op, func(r *record) bool {
		listed++
		return keep(r)
	})
	if err == nil {
		b.listed.Store(listed)
	}
	if done(err) {
		return list, err
	}
	if want == nil {
		if want, err = b.own(ctx, op); err != nil {
			return nil, err
		}
	}
	ids := slices.Sorted(maps.Keys(want))
	if list, err = b.named(ctx, op, keep, ids); err == nil || len(ids) > oneByOne {
		return list, err
	}
	list = nil
	for _, id := range ids {
		r, err := b.one(ctx, op, dispatch.ObjectID(id))
		switch {
		case errors.Is(err, dispatch.ErrNotFound):
		case err != nil:
			return nil, err
		case keep(r):
			list = append(list, *r)
		}
	}
	return list, nil
}

// connection reports whether an error is about reaching the server, so that other words would not help.
func connection(err error) bool {
	var f *failure
	if !errors.As(err, &f) {
		return false
	}
	return f.err != nil && f.exit != 0 || f.exit > 1
}

// named asks for jobs by their names, as many in a call as its arguments take.
func (b *Backend) named(ctx context.Context, op string, keep func(*record) bool, ids []string) (list []record, err error) {
	for len(ids) > 0 {
		n, size := 0, 0
		for n < len(ids) && (n == 0 || size+len(ids[n]) < argumentsLimit) {
			size += len(ids[n]) + 1
			n++
		}
		some, err := b.lines(ctx, op, keep, ids[:n]...)
		if err != nil && !errors.Is(err, dispatch.ErrNotFound) {
			return nil, err
		}
		list, ids = append(list, some...), ids[n:]
	}
	return list, nil
}

// own lists the ids of the account's jobs.
func (b *Backend) own(ctx context.Context, op string) (map[string]bool, error) {
	r, err := b.read(ctx, op, "qselect", "-x", "-u", b.account.user)
	if err != nil {
		return nil, err
	}
	want := map[string]bool{}
	for _, id := range strings.Fields(string(r.Stdout)) {
		if _, ok := sequence(dispatch.ObjectID(id)); ok {
			want[id] = true // arrays and their members are none of ours
		}
	}
	return want, nil
}

// Find looks through all jobs, the history among them, for this account's that carry the Ref.
func (b *Backend) Find(ctx context.Context, want dispatch.Ref) ([]dispatch.Observation, error) {
	op := "find " + want.String()
	records, err := b.all(ctx, op, func(r *record) bool {
		return r.mark != "" && r.user() == b.account.user && unmark(r.mark).ref.Matches(want)
	}, nil)
	if err != nil {
		return nil, err
	}
	silent, err := b.silentNodes(ctx, op, records)
	if err != nil {
		return nil, err
	}
	var found []dispatch.Observation
	for i := range records {
		found = append(found, observe(&records[i], b.account.user, silent))
	}
	slices.SortFunc(found, func(x, y dispatch.Observation) int {
		a, _ := sequence(x.Object)
		c, _ := sequence(y.Object)
		return cmp.Or(x.Submitted.Compare(y.Submitted), cmp.Compare(a, c), cmp.Compare(x.Object, y.Object))
	})
	return found, nil
}
