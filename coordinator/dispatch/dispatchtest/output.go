package dispatchtest

import (
	"errors"
	"strings"
	"time"

	"substrate/coordinator/dispatch"
)

// outputChecks are about what jobs write.
func outputChecks() []check {
	r := implements(dispatch.InterfaceOutputReader)
	return []check{
		{name: "output/streams", needs: []need{r}, run: outputStreams},
		{name: "output/merged", needs: []need{r}, run: outputMerged},
		{name: "output/parts", needs: []need{r}, run: outputParts},
		{name: "output/large", needs: []need{r}, run: outputLarge},
		{name: "output/followed", needs: []need{r, capable(dispatch.OutputFollow)}, run: outputFollowed},
		{name: "output/before the start", needs: []need{r}, run: outputBeforeStart},
		{name: "output/not kept", needs: []need{r}, run: outputNotKept},
		{name: "output/retained", needs: []need{r, capable(dispatch.OutputRetained), forgets}, disturbs: true, run: outputRetained},
	}
}

func (s *session) reader() dispatch.OutputReader {
	s.Helper()
	r, ok := s.b.(dispatch.OutputReader)
	if !ok {
		s.Fatal("the backend reads no output")
	}
	return r
}

// pieces reads, and checks that offsets go on where the last piece ended.
func (s *session) pieces(want dispatch.OutputRequest) (byExecution map[dispatch.Execution]string) {
	s.Helper()
	byExecution = map[dispatch.Execution]string{}
	last, next := want.From, want.Offset
	err := s.reader().Output(s.Context(), want, func(p dispatch.OutputPiece) error {
		if p.Execution != last {
			if p.Execution < last {
				s.Errorf("execution %d comes after %d", p.Execution, last)
			}
			last, next = p.Execution, 0
		}
		if p.Offset != next || len(p.Data) == 0 {
			s.Errorf("a piece of %d bytes at %d of execution %d, want it at %d", len(p.Data), p.Offset, p.Execution, next)
		}
		next = p.Offset + int64(len(p.Data))
		byExecution[p.Execution] += string(p.Data)
		return nil
	})
	s.must("read the output", err)
	return byExecution
}

func (s *session) read(id dispatch.ObjectID, stream dispatch.Stream) string {
	s.Helper()
	return s.pieces(dispatch.OutputRequest{Object: id, Ref: s.refs[id], Stream: stream})[0]
}

func outputStreams(s *session) {
	id, got := s.output(s.spec("echo one", "echo wrong >&2", "echo two"))
	if got != "one\ntwo\n" {
		s.Errorf("stdout is %q", got)
	}
	if got := s.read(id, dispatch.Stderr); got != "wrong\n" {
		s.Errorf("stderr is %q", got)
	}
}

func outputMerged(s *session) {
	spec := s.spec("echo one", "echo wrong >&2", "echo two")
	spec.Output = &dispatch.Output{Merge: true}
	if _, got := s.output(spec); got != "one\nwrong\ntwo\n" {
		s.Errorf("both streams are %q", got)
	}
}

func outputParts(s *session) {
	id, _ := s.output(s.spec("echo 0123456789"))
	for offset, want := range map[int64]string{0: "0123456789\n", 1: "123456789\n", 10: "\n", 11: "", 99: ""} {
		if got := s.pieces(dispatch.OutputRequest{Object: id, Ref: s.refs[id], Offset: offset})[0]; got != want {
			s.Errorf("from %d it is %q, want %q", offset, got, want)
		}
	}
	if got := s.pieces(dispatch.OutputRequest{Object: id, Ref: s.refs[id], From: 1}); len(got) != 0 {
		s.Errorf("an execution that never was has written %v", got)
	}
	enough := errors.New("enough")
	err := s.reader().Output(s.Context(), dispatch.OutputRequest{Object: id, Ref: s.refs[id]}, func(dispatch.OutputPiece) error { return enough })
	s.wants("the reader's own error", err, enough)
}

// outputLarge: much output comes in pieces, whole and in order.
func outputLarge(s *session) {
	line := strings.Repeat("x", 1000)
	spec := s.spec()
	spec.Script += strings.Repeat("echo "+line+"\n", 300)
	if _, got := s.output(spec); got != strings.Repeat(line+"\n", 300) {
		s.Errorf("of 300300 bytes %d came back", len(got))
	}
}

// outputFollowed: a follower that begins before the start has given all when the object is over.
func outputFollowed(s *session) {
	pause := max(time.Second, s.Quiet/4)
	id := s.start(s.spec("echo one", "sleep "+seconds(pause), "echo two", "sleep "+seconds(pause), "echo three"))
	begun := s.clock.Now()
	pieces := 0
	var got strings.Builder
	err := s.reader().Output(s.Context(), dispatch.OutputRequest{Object: id, Ref: s.refs[id], Follow: true}, func(p dispatch.OutputPiece) error {
		pieces++
		got.Write(p.Data)
		return nil
	})
	s.must("follow", err)
	if got.String() != "one\ntwo\nthree\n" {
		s.Errorf("the follower was given %q", got.String())
	}
	if o := s.inspect(id); !o.State.Ended() {
		s.Errorf("the follower ended while it is %s", show(o))
	}
	if took := s.clock.Now().Sub(begun); took < 2*pause || took > s.Long+s.Wait {
		s.Errorf("following took %s for a job of %s", took, 2*pause)
	}
}

func outputBeforeStart(s *session) {
	id := s.submit(s.long())
	if got := s.pieces(dispatch.OutputRequest{Object: id, Ref: s.refs[id]}); len(got) != 0 {
		s.Errorf("before its start it has written %v", got)
	}
}

func outputNotKept(s *session) {
	spec := s.spec("echo one")
	spec.Output = nil
	id := s.start(spec)
	s.await(id, s.Wait, "over", isEnded)
	err := s.reader().Output(s.Context(), dispatch.OutputRequest{Object: id, Ref: spec.Ref}, func(dispatch.OutputPiece) error { return nil })
	s.wants("output that nobody asked to keep", err, dispatch.ErrNotFound)
	if s.sys.UnknownID != "" {
		err = s.reader().Output(s.Context(), dispatch.OutputRequest{Object: s.sys.UnknownID, Ref: s.ref()}, func(dispatch.OutputPiece) error { return nil })
		s.wants("output of what never was", err, dispatch.ErrNotFound)
	}
}

// forgets: there is a way to have the system forget.
func forgets(s *session) string {
	w := s.decl.PolledLoss[dispatch.EvidenceState]
	if s.sys.Faults.Purge != nil || w > 0 && time.Duration(w) <= s.Purge {
		return ""
	}
	return "the hook Faults.Purge, or Timings.Purge of at least " + w.String()
}

// forget has the system forget an object, and reports whether its history still tells of it.
func (s *session) forget(id dispatch.ObjectID) (o dispatch.Observation, remembered bool) {
	s.Helper()
	limit := s.Wait
	if s.sys.Faults.Purge != nil {
		s.sys.Faults.Purge(s.T, id)
	} else {
		s.sleep(time.Duration(s.decl.PolledLoss[dispatch.EvidenceState]))
		limit += s.Purge
	}
	for until := s.clock.Now().Add(limit); ; s.sleep(s.Poll) {
		o, err := s.b.Inspect(s.Context(), id)
		switch history := s.can[dispatch.AccountingHistory].Answer; {
		case errors.Is(err, dispatch.ErrNotFound) && history != dispatch.Yes:
			return o, false
		case err == nil && history == dispatch.Yes && !s.listed(id):
			return o, true
		case err != nil && !errors.Is(err, dispatch.ErrNotFound):
			s.Fatalf("inspect what was forgotten: %v", err)
		}
		if s.clock.Now().After(until) {
			s.Fatalf("with history %s, what was to be forgotten is %s, %v", s.can[dispatch.AccountingHistory].Answer, show(o), err)
		}
	}
}

// listed reports whether the system itself still knows an object; without FindMany nobody can tell.
func (s *session) listed(id dispatch.ObjectID) bool {
	m, ok := s.b.(dispatch.MultiFinder)
	if !ok {
		return false
	}
	got, err := m.FindMany(s.Context(), []dispatch.ObjectID{id})
	s.must("find many", err)
	_, has := got[id]
	return has
}

func outputRetained(s *session) {
	id, _ := s.output(s.spec("echo kept"))
	s.forget(id)
	if got := s.read(id, dispatch.Stdout); got != "kept\n" {
		s.Errorf("after the system has forgotten it, its output is %q", got)
	}
}
