package slurm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"substrate/coordinator/dispatch"
)

// idsLimit is how many ids are named to squeue; for more, all of the account's jobs are asked for.
const idsLimit = 1500

// numberOf is a job's number; ok is false for what no job has.
func numberOf(id dispatch.ObjectID) (n uint64, ok bool) {
	if !isNumber(string(id)) || id[0] == '0' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(id), 10, 32)
	return n, err == nil
}

func checkID(op string, id dispatch.ObjectID) error {
	if _, ok := numberOf(id); !ok {
		return fmt.Errorf("cannot %s: %w: %.40q is no number of a job", op, dispatch.ErrNotFound, string(id))
	}
	return nil
}

// Inspect asks squeue, and accounting for what squeue does not know if accounting can tell.
func (b *Backend) Inspect(ctx context.Context, id dispatch.ObjectID) (dispatch.Observation, error) {
	op := "inspect job " + string(id)
	r, earlier, err := b.whole(ctx, op, id)
	if err != nil {
		return dispatch.Observation{}, err
	}
	silent, err := b.silentNodes(ctx, op, []row{r})
	if err != nil {
		return dispatch.Observation{}, err
	}
	o := observe(r, silent)
	o.Earlier = earlier
	return o, nil
}

// newest is a job's row in squeue, or in accounting where that counts.
func (b *Backend) newest(ctx context.Context, op string, id dispatch.ObjectID) (row, error) {
	if err := checkID(op, id); err != nil {
		return row{}, err
	}
	rows, err := b.queue(ctx, op, "-j", string(id))
	if err != nil && !errors.Is(err, dispatch.ErrNotFound) {
		return row{}, err
	}
	for _, r := range rows {
		if r.id == string(id) {
			return r, nil
		}
	}
	r, _, err := b.remembered(ctx, op, id)
	return r, err
}

// whole is the newest row of a job with its earlier executions.
func (b *Backend) whole(ctx context.Context, op string, id dispatch.ObjectID) (row, []dispatch.Past, error) {
	r, err := b.newest(ctx, op, id)
	if err != nil || r.restarts == 0 {
		return r, nil, err
	}
	pasts, err := b.pasts(ctx, op, r)
	return r, pasts, err
}

// pasts are the executions before a row that was requeued, as far as accounting tells.
func (b *Backend) pasts(ctx context.Context, op string, r row) ([]dispatch.Past, error) {
	if b.answers.history.Answer != dispatch.Yes {
		return nil, nil
	}
	rows, err := b.history(ctx, op, "-j", r.id)
	if err != nil {
		return nil, err
	}
	var replaced []row
	for _, h := range rows {
		if h.id == r.id && h.state == "REQUEUED" && h.submit.Before(r.submit) {
			replaced = append(replaced, h)
		}
	}
	// Rows of a job that had the id long before are not among the last ones.
	if n := int(r.restarts); len(replaced) > n {
		replaced = replaced[len(replaced)-n:]
	}
	return asPasts(replaced, r.restarts), nil
}

// asPasts numbers executions so that the last comes just before the newest.
func asPasts(rows []row, newest uint32) []dispatch.Past {
	pasts := make([]dispatch.Past, 0, len(rows))
	for i, r := range rows {
		pasts = append(pasts, dispatch.Past{Execution: dispatch.Execution(int(newest) - len(rows) + i), State: dispatch.StateCancelled,
			Cause: dispatch.CauseReplaced, Started: r.start, Ended: r.end, Nodes: r.nodes})
	}
	return pasts
}

// remembered is what accounting says of a job that has left squeue.
func (b *Backend) remembered(ctx context.Context, op string, id dispatch.ObjectID) (row, []dispatch.Past, error) {
	if b.answers.history.Answer != dispatch.Yes {
		return row{}, nil, fmt.Errorf("cannot %s: %w: squeue does not know it, and accounting cannot tell: %s", op, dispatch.ErrNotFound, b.answers.history.Reason)
	}
	rows, err := b.history(ctx, op, "-j", string(id))
	if err != nil {
		return row{}, nil, err
	}
	rows = slices.DeleteFunc(rows, func(r row) bool { return r.id != string(id) })
	if len(rows) == 0 {
		return row{}, nil, fmt.Errorf("cannot %s: %w: neither squeue nor accounting know it", op, dispatch.ErrNotFound)
	}
	r, pasts := lastObject(rows)
	r, err = b.forgot(ctx, op, r)
	return r, pasts, err
}

// lastObject is the newest of the jobs that had an id, with its earlier executions. Rows are in order of submission; the executions of one
// job are those that were requeued and the one after them.
func lastObject(rows []row) (row, []dispatch.Past) {
	first := len(rows) - 1
	for first > 0 && rows[first-1].state == "REQUEUED" {
		first--
	}
	r := rows[len(rows)-1]
	r.restarts = uint32(len(rows) - 1 - first)
	return r, asPasts(rows[first:len(rows)-1], r.restarts)
}

// queue asks squeue. ErrNotFound is its answer to a single id that it does not know.
func (b *Backend) queue(ctx context.Context, op string, which ...string) ([]row, error) {
	nonce := b.opt.Nonce()
	r, err := b.read(ctx, op, append([]string{"squeue", "-h", "-t", "all", "-O", queueFormat(nonce)}, which...)...)
	if err != nil {
		return nil, err
	}
	rows, err := parseQueue(string(r.Stdout), nonce)
	if err != nil {
		return nil, fmt.Errorf("cannot %s: %w: %w", op, dispatch.ErrUnavailable, err)
	}
	return rows, nil
}

// history asks sacct for allocations, duplicates of an id among them, in order of submission.
func (b *Backend) history(ctx context.Context, op string, which ...string) ([]row, error) {
	nonce := b.opt.Nonce()
	argv := []string{"sacct", "-n", "-p", "-X", "-D", "--delimiter=" + separator(nonce), "-o", strings.Join(historyFields(), ",")}
	r, err := b.read(ctx, op, append(argv, which...)...)
	if err != nil {
		return nil, err
	}
	rows, err := parseHistory(string(r.Stdout), nonce)
	if err != nil {
		return nil, fmt.Errorf("cannot %s: %w: %w", op, dispatch.ErrUnavailable, err)
	}
	slices.SortStableFunc(rows, func(a, b row) int {
		return cmp.Or(a.submit.Compare(b.submit), cmp.Compare(a.id, b.id), a.start.Compare(b.start), a.end.Compare(b.end))
	})
	return rows, nil
}

// silentNodes asks which nodes do not answer, when one of the jobs runs.
func (b *Backend) silentNodes(ctx context.Context, op string, rows []row) (func(string) bool, error) {
	if !slices.ContainsFunc(rows, func(r row) bool {
		state, _ := judge(r, nobody)
		return state == dispatch.StateRunning || state == dispatch.StateSuspended
	}) {
		return nobody, nil
	}
	// "dead" are those that do not respond, whatever else they are: a node's job runs on in squeue until it is given up.
	r, err := b.read(ctx, op, "sinfo", "-h", "-N", "-d", "-o", "%N")
	if err != nil {
		return nil, err
	}
	dead := map[string]bool{}
	for _, name := range strings.Fields(string(r.Stdout)) {
		dead[name] = true
	}
	return func(node string) bool { return dead[node] }, nil
}

// FindMany asks squeue once for all of them.
func (b *Backend) FindMany(ctx context.Context, ids []dispatch.ObjectID) (map[dispatch.ObjectID]dispatch.Observation, error) {
	op := fmt.Sprintf("inspect %d jobs", len(ids))
	want := map[string]bool{}
	for _, id := range ids {
		if _, ok := numberOf(id); ok {
			want[string(id)] = true
		}
	}
	found := map[dispatch.ObjectID]dispatch.Observation{}
	if len(want) == 0 {
		return found, nil
	}
	which := []string{"-u", b.account.user}
	if len(want) <= idsLimit {
		names := make([]string, 0, len(want))
		for id := range want {
			names = append(names, id)
		}
		slices.Sort(names)
		which = []string{"-j", strings.Join(names, ",")}
	}
	rows, err := b.queue(ctx, op, which...)
	if errors.Is(err, dispatch.ErrNotFound) {
		return found, nil // the only one that was asked for
	}
	if err != nil {
		return nil, err
	}
	rows = slices.DeleteFunc(rows, func(r row) bool { return !want[r.id] })
	silent, err := b.silentNodes(ctx, op, rows)
	if err != nil {
		return nil, err
	}
	for _, r := range rows {
		found[dispatch.ObjectID(r.id)] = observe(r, silent)
	}
	return found, nil
}

// endedStates are the words by which sacct lists jobs that could never start, too; without any it leaves those out.
const endedStates = "BF,CA,CD,DL,F,NF,OOM,PR,TO,RQ"

// Find looks through the account's jobs in squeue, and where accounting tells through what ended within FindWindow.
func (b *Backend) Find(ctx context.Context, want dispatch.Ref) ([]dispatch.Observation, error) {
	op := "find " + want.String()
	rows, err := b.queue(ctx, op, "-u", b.account.user)
	if err != nil {
		return nil, err
	}
	matches := func(r row) bool {
		ref, _, _ := unmark(r.comment, r.name)
		return ref.Matches(want)
	}
	live := map[string]time.Time{}
	for _, r := range rows {
		live[r.id] = r.submit
	}
	rows = slices.DeleteFunc(rows, func(r row) bool { return !matches(r) })
	silent, err := b.silentNodes(ctx, op, rows)
	if err != nil {
		return nil, err
	}
	var found []dispatch.Observation
	for _, r := range rows {
		o := observe(r, silent)
		if r.restarts > 0 {
			if o.Earlier, err = b.pasts(ctx, op, r); err != nil {
				return nil, err
			}
		}
		found = append(found, o)
	}
	past, err := b.findHistory(ctx, op, matches, live)
	if err != nil {
		return nil, err
	}
	found = append(found, past...)
	slices.SortFunc(found, func(x, y dispatch.Observation) int {
		a, _ := numberOf(x.Object)
		c, _ := numberOf(y.Object)
		return cmp.Or(x.Submitted.Compare(y.Submitted), cmp.Compare(a, c))
	})
	return found, nil
}

func (b *Backend) findHistory(ctx context.Context, op string, matches func(row) bool, live map[string]time.Time) ([]dispatch.Observation, error) {
	if b.answers.history.Answer != dispatch.Yes {
		return nil, nil
	}
	since := b.opt.Clock.Now().Add(-b.opt.FindWindow).UTC()
	rows, err := b.history(ctx, op, "-u", b.account.user, "-s", endedStates, "-S", since.Format(time.DateOnly+"T15:04:05"), "-E", "now")
	if err != nil {
		return nil, err
	}
	byID := map[string][]row{}
	var ids []string
	for _, r := range rows {
		if byID[r.id] == nil {
			ids = append(ids, r.id)
		}
		byID[r.id] = append(byID[r.id], r)
	}
	var found []dispatch.Observation
	for _, id := range ids {
		for rest := byID[id]; len(rest) > 0; {
			r, pasts := lastObject(rest)
			rest = rest[:len(rest)-1-len(pasts)]
			// squeue knows more of what it knows; another job that had the id before is history.
			submit, queued := live[id]
			if queued && !r.submit.Before(submit) || !matches(r) || r.state == "REQUEUED" {
				continue
			}
			o := observe(r, nobody)
			o.Earlier = pasts
			found = append(found, o)
		}
	}
	return found, nil
}
