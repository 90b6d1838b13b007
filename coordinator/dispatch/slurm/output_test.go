package slurm_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"substrate/coordinator/dispatch"
	"substrate/coordinator/dispatch/slurm"
	"substrate/coordinator/dispatch/transport"
)

// shelled is the fake with a real shell for what reads files.
type shelled struct {
	*fakeSlurm
	local *transport.Local
}

func (s shelled) Run(ctx context.Context, c transport.Command) (transport.Result, error) {
	if line := strings.Join(c.Argv, " "); c.Argv[0] == "sh" && !strings.Contains(line, "scontrol") {
		if strings.Contains(line, "id -un") {
			return s.fakeSlurm.Run(ctx, c)
		}
		return s.local.Run(ctx, c)
	}
	return s.fakeSlurm.Run(ctx, c)
}

// outputs opens a backend whose jobs' files a test writes.
func outputs(t *testing.T) (f *fakeSlurm, b *slurm.Backend, id dispatch.ObjectID, write func(name, text string)) {
	f = newFake()
	o := f.options()
	o.Runner, o.OutputDir = shelled{f, transport.NewLocal(os.Environ())}, t.TempDir()
	b = f.new(t, o)
	spec := work()
	spec.Output = &dispatch.Output{}
	id, err := b.Submit(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return f, b, id, func(name, text string) {
		t.Helper()
		dir := filepath.Join(o.OutputDir, slurm.OutputName(spec.Ref))
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		file, err := os.OpenFile(filepath.Join(dir, string(id)+"-"+name), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if _, err := file.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOutput: executions in turn, each from its first byte, larger ones in pieces.
func TestOutput(t *testing.T) {
	f, b, id, write := outputs(t)
	ref := work().Ref
	read := func(want dispatch.OutputRequest) (string, error) {
		var got strings.Builder
		want.Object, want.Ref = id, ref
		err := b.Output(t.Context(), want, func(p dispatch.OutputPiece) error {
			if len(p.Data) > 1<<20 {
				t.Errorf("a piece of %d bytes", len(p.Data))
			}
			got.Write(p.Data)
			return nil
		})
		return got.String(), err
	}
	if got, err := read(dispatch.OutputRequest{}); got != "" || err != nil {
		t.Errorf("before its start: %q, %v", got, err)
	}
	f.start(id, "n1")
	big := strings.Repeat("0123456789\x00\xff", 100_000)
	write("0.out", big)
	write("0.err", "wrong\n")
	write("1.out", "again\n")
	write("10.out", "the eleventh\n")
	write("x.out", "nobody's\n")
	for name, c := range map[string]struct {
		want dispatch.OutputRequest
		got  string
	}{
		"all":                {dispatch.OutputRequest{}, big + "again\nthe eleventh\n"},
		"the other stream":   {dispatch.OutputRequest{Stream: dispatch.Stderr}, "wrong\n"},
		"from an offset":     {dispatch.OutputRequest{Offset: int64(len(big)) - 3}, big[len(big)-3:] + "again\nthe eleventh\n"},
		"from the end":       {dispatch.OutputRequest{Offset: int64(len(big)) + 5}, "again\nthe eleventh\n"},
		"a later execution":  {dispatch.OutputRequest{From: 1, Offset: 2}, "ain\nthe eleventh\n"},
		"one that never was": {dispatch.OutputRequest{From: 11}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := read(c.want); got != c.got || err != nil {
				t.Errorf("got %d bytes, %v, want %d", len(got), err, len(c.got))
			}
		})
	}
	if err := b.Stop(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	delete(f.jobs, string(id))
	if got, err := read(dispatch.OutputRequest{From: 1}); got != "again\nthe eleventh\n" || err != nil {
		t.Errorf("after Slurm has forgotten it: %q, %v", got, err)
	}
	if err := b.Output(t.Context(), dispatch.OutputRequest{Object: id, Ref: dispatch.Ref{Job: "other", Submission: 1, Attempt: 1}}, nil); !errors.Is(err, dispatch.ErrNotFound) {
		t.Errorf("of a submission that kept none: %v", err)
	}
	if err := b.Output(t.Context(), dispatch.OutputRequest{Object: "../x", Ref: ref}, nil); !errors.Is(err, dispatch.ErrNotFound) {
		t.Errorf("of no job: %v", err)
	}
	enough := errors.New("enough")
	if err := b.Output(t.Context(), dispatch.OutputRequest{Object: id, Ref: ref}, func(dispatch.OutputPiece) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("the reader's own error: %v", err)
	}
}

// TestOutputFollowed: polled every two seconds, until the job is over and all was given.
func TestOutputFollowed(t *testing.T) {
	f, b, id, write := outputs(t)
	begun := f.clock.Now()
	looks := 0
	f.answer = func(line string, _ transport.Command) (transport.Result, error, bool) {
		if !strings.HasPrefix(line, "squeue") {
			return transport.Result{}, nil, false
		}
		j := f.jobs[string(id)]
		switch looks++; looks {
		case 2:
			j.state, j.start, j.nodes = "RUNNING", f.now(), "n1"
			write("0.out", "one\n")
		case 3:
			write("0.out", "two\n")
		case 5: // the last words come with the end
			j.state, j.ends = "COMPLETED", f.now()
			write("0.out", "three\n")
		}
		return transport.Result{}, nil, false
	}
	var got []string
	err := b.Output(t.Context(), dispatch.OutputRequest{Object: id, Ref: work().Ref, Follow: true}, func(p dispatch.OutputPiece) error {
		got = append(got, string(p.Data))
		return nil
	})
	if text := strings.Join(got, "|"); err != nil || text != "one\n|two\n|three\n" {
		t.Errorf("got %q, %v", text, err)
	}
	if took := f.clock.Now().Sub(begun); looks != 5 || took != 4*2*time.Second {
		t.Errorf("%d looks in %v", looks, took)
	}
}
