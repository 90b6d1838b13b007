package slurm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"substrate/coordinator/dispatch"
	"substrate/coordinator/dispatch/transport"
)

const (
	// pieceLimit is how much is read at once.
	pieceLimit = 1 << 20
	// filesLimit is how many files of one submission are looked at.
	filesLimit = 10_000
	// noDirectory is the status of the listing when nothing has been written.
	noDirectory = 44
)

// listing shows the files of a directory with their sizes, one in a line.
const listing = `cd -- "$1" 2>/dev/null || exit 44
for f in *; do [ -f "$f" ] && printf '%s %s\n' "$(wc -c <"$f")" "$f"; done
exit 0`

// reading one piece: both programs take numbers that no shell counts with.
const pieceOf = `tail -c "+$2" -- "$1" | head -c "$3"`

// outputFile is one execution's file of a stream.
type outputFile struct {
	name      string
	execution dispatch.Execution
	size      int64
}

// Output reads the files that the scripts of a submission write on the cluster. They are found by the Ref, whatever Slurm still knows.
func (b *Backend) Output(ctx context.Context, want dispatch.OutputRequest, each func(dispatch.OutputPiece) error) error {
	op := fmt.Sprintf("read the output of %s", want.Ref)
	if err := errors.Join(want.Ref.Check(), checkID(op, want.Object)); err != nil {
		return fmt.Errorf("cannot %s: %w: %w", op, dispatch.ErrNotFound, err)
	}
	at := cursor{execution: want.From, offset: want.Offset}
	for {
		over, err := b.isOver(ctx, want)
		if err != nil {
			return err
		}
		files, there, err := b.outputFiles(ctx, op, want)
		if err != nil {
			return err
		}
		if !there && over {
			return fmt.Errorf("cannot %s: %w: it has kept none", op, dispatch.ErrNotFound)
		}
		for _, f := range files {
			if err := b.give(ctx, op, want, f, &at, each); err != nil {
				return err
			}
		}
		if over || !want.Follow {
			return nil
		}
		if err := b.opt.Clock.Sleep(ctx, b.opt.FollowEvery); err != nil {
			return err
		}
	}
}

// isOver reports whether nothing more will be written. A job that nobody knows any more is over.
func (b *Backend) isOver(ctx context.Context, want dispatch.OutputRequest) (bool, error) {
	r, err := b.newest(ctx, "follow job "+string(want.Object), want.Object)
	switch {
	case errors.Is(err, dispatch.ErrNotFound):
		return true, nil
	case err != nil:
		return false, err
	}
	if ref, _, _ := unmark(r.comment, r.name); ref != want.Ref {
		return true, nil // the number is another job's now
	}
	state, _ := judge(r, nobody)
	return state.Ended() || r.history, nil
}

// cursor is how far an output has been given.
type cursor struct {
	execution dispatch.Execution
	offset    int64
}

// give hands out what a file has beyond the cursor.
func (b *Backend) give(ctx context.Context, op string, want dispatch.OutputRequest, f outputFile, at *cursor, each func(dispatch.OutputPiece) error) error {
	if f.execution > at.execution {
		*at = cursor{execution: f.execution}
	}
	for f.execution == at.execution && at.offset < f.size {
		length := min(f.size-at.offset, pieceLimit)
		r, err := b.run(ctx, op, false, transport.Command{Limit: pieceLimit, Argv: []string{"sh", "-c", pieceOf, "sh", b.outputDir(want.Ref) + "/" + f.name,
			strconv.FormatInt(at.offset+1, 10), strconv.FormatInt(length, 10)}})
		switch {
		case err != nil:
			return err
		case len(r.Stdout) == 0:
			return nil // it was shortened since
		}
		piece := dispatch.OutputPiece{Execution: f.execution, Offset: at.offset, Data: r.Stdout}
		at.offset += int64(len(r.Stdout))
		if err := each(piece); err != nil {
			return err
		}
	}
	return nil
}

// outputFiles lists the files of the stream that are asked for, in order of executions; there is false when the submission has none at all.
func (b *Backend) outputFiles(ctx context.Context, op string, want dispatch.OutputRequest) (files []outputFile, there bool, err error) {
	r, err := b.run(ctx, op, false, transport.Command{Argv: []string{"sh", "-c", listing, "sh", b.outputDir(want.Ref)}})
	if r.Exit == noDirectory && !errors.Is(err, context.Canceled) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	return parseListing(string(r.Stdout), want)
}

// parseListing reads lines of size and name, as "12 4711-0.out".
func parseListing(out string, want dispatch.OutputRequest) (files []outputFile, there bool, err error) {
	suffix := ".out"
	if want.Stream == dispatch.Stderr {
		suffix = ".err"
	}
	n := 0
	for line := range strings.Lines(out) {
		if n++; n > filesLimit {
			return nil, false, fmt.Errorf("cannot list outputs: %w: there are more than %d files", dispatch.ErrUnavailable, filesLimit)
		}
		size, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		rest, ours := strings.CutPrefix(name, string(want.Object)+"-")
		if !ours {
			continue
		}
		there = true
		number, is := strings.CutSuffix(rest, suffix)
		execution, err1 := strconv.ParseUint(number, 10, 32)
		bytes, err2 := strconv.ParseInt(size, 10, 64)
		if !is || err1 != nil || err2 != nil || bytes < 0 || execution >= dispatch.EpochBound || dispatch.Execution(execution) < want.From {
			continue
		}
		files = append(files, outputFile{name: name, execution: dispatch.Execution(execution), size: bytes})
	}
	slices.SortFunc(files, func(a, b outputFile) int {
		return cmp.Or(cmp.Compare(a.execution, b.execution), cmp.Compare(a.name, b.name))
	})
	return files, there, nil
}
