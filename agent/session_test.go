package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"substrate/agent/runtime"
	"substrate/hwinfo"
	"substrate/proto"
	"substrate/proto/agentv1"
)

func TestFirstReport(t *testing.T) {
	c, creds := serve(t)
	ready := make(chan struct{})
	began := time.Now()
	launch(t, c, creds, newFakeRuntime(t), func(o *Options) { o.Ready = func() { close(ready) }; o.RunsAsCaller = true })
	s := c.stream()
	h := s.hello
	if h.Version != "1.2.3" || h.BootId == "" || !h.RunsAsCaller || !slices.Equal(h.Runtimes, []string{"process"}) || len(h.Runs) != 0 {
		t.Errorf("hello %v", h)
	}
	facts, ok, err := proto.Facts(next(t, s, hardware))
	if err != nil || !ok {
		t.Fatalf("facts: %v %v", ok, err)
	}
	want, _ := hwinfo.Read("/")
	if facts.Digest() != want.Digest() {
		t.Error("the report is not this machine's")
	}
	t.Logf("first report after %v", time.Since(began))
	select {
	case <-ready:
	case <-time.After(5 * time.Second):
		t.Error("not ready")
	}
}

// warnedRuntime learns of a limit with its first run.
type warnedRuntime struct {
	*fakeRuntime
	mu       sync.Mutex
	warnings []string
}

func (w *warnedRuntime) Warnings() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.warnings
}

func (w *warnedRuntime) Start(ctx context.Context, s runtime.Spec) error {
	w.mu.Lock()
	w.warnings = append([]string{"no memory limit"}, w.warnings...)
	w.mu.Unlock()
	return w.fakeRuntime.Start(ctx, s)
}

// What the runtime may not do is in the first report, and a change makes another.
func TestRuntimeWarnings(t *testing.T) {
	c, creds := serve(t)
	launch(t, c, creds, &warnedRuntime{fakeRuntime: newFakeRuntime(t), warnings: []string{"no cpu limit"}}, nil)
	st := c.stream()
	told := func(h *agentv1.HardwareReport) (all []string) {
		for _, w := range h.GetWarnings() {
			if w.GetSource() == "runtime" {
				all = append(all, w.GetMessage())
			}
		}
		return all
	}
	if got := told(next(t, st, hardware)); !slices.Equal(got, []string{"no cpu limit"}) {
		t.Errorf("first report: %q", got)
	}
	st.out <- start("w/j#1", 1, "hello")
	if got := told(next(t, st, hardware)); !slices.Equal(got, []string{"no memory limit", "no cpu limit"}) {
		t.Errorf("second report: %q", got)
	}
}

func TestRunIsToldAndForgotten(t *testing.T) {
	c, creds := serve(t)
	rt := newFakeRuntime(t)
	launch(t, c, creds, rt, nil)
	s := c.stream()
	s.out <- start("w/a#1", 10, "hello\n")
	st := next(t, s, ended("w/a#1"))
	if st.Cause != "exited" || st.StdoutBytes != 6 || st.Ended == nil || st.Started == nil {
		t.Errorf("%v", st)
	}
	// An output that stayed empty is told by the end alone.
	out := next(t, s, func(m *agentv1.FromAgent) (*agentv1.LogChunk, bool) {
		return m.GetLogChunk(), m.GetLogChunk().GetLast()
	})
	if out.Stream != "stdout" || string(out.Data) != "hello\n" || out.Offset != 0 {
		t.Errorf("output %v", out)
	}
	s.out <- ackMessage([]string{"w/a#1"})
	s.out <- ackMessage(nil, &agentv1.LogOffset{RunId: "w/a#1", Stream: "stdout", Offset: 3})
	time.Sleep(50 * time.Millisecond)
	if !rt.get(func() bool { return len(rt.forgot) == 0 }) {
		t.Fatal("forgotten with output unacknowledged")
	}
	s.out <- ackMessage(nil, &agentv1.LogOffset{RunId: "w/a#1", Stream: "stdout", Offset: 6})
	eventually(t, "forgotten", func() bool { return rt.get(func() bool { return len(rt.forgot) == 1 }) })
}

// Output before the end must not be forgotten for the lack of the end's acknowledgement either.
func TestEndMustBeAcknowledged(t *testing.T) {
	c, creds := serve(t)
	rt := newFakeRuntime(t)
	launch(t, c, creds, rt, nil)
	s := c.stream()
	s.out <- start("w/a#1", 1, "x")
	next(t, s, ended("w/a#1"))
	next(t, s, func(m *agentv1.FromAgent) (bool, bool) { return true, m.GetLogChunk().GetLast() })
	s.out <- ackMessage(nil, &agentv1.LogOffset{RunId: "w/a#1", Stream: "stdout", Offset: 1})
	time.Sleep(50 * time.Millisecond)
	if !rt.get(func() bool { return len(rt.forgot) == 0 }) {
		t.Fatal("forgotten with its end unacknowledged")
	}
	s.out <- ackMessage([]string{"w/a#1", "unknown"})
	eventually(t, "forgotten", func() bool { return rt.get(func() bool { return len(rt.forgot) == 1 }) })
}

func TestReconnect(t *testing.T) {
	c, creds := serve(t)
	rt := newFakeRuntime(t)
	launch(t, c, creds, rt, nil)
	s := c.stream()
	s.out <- start("w/long#1", 1, "wait 0123456789")
	next(t, s, inState("w/long#1", "running"))
	s.out <- start("w/short#1", 2, "short")
	next(t, s, ended("w/short#1"))
	c.mu.Lock()
	c.offsets = func(*agentv1.Hello) []*agentv1.LogOffset {
		return []*agentv1.LogOffset{{RunId: "w/long#1", Stream: "stdout", Offset: 5}, {RunId: "w/unknown#1", Stream: "stdout", Offset: 9}}
	}
	c.mu.Unlock()
	s.end <- errors.New("restart")
	s = c.stream()
	if len(s.hello.Runs) != 2 || s.hello.Runs[0].RunId != "w/long#1" || s.hello.Runs[0].State != "running" || s.hello.Runs[1].State != "ended" {
		t.Fatalf("hello runs %v", s.hello.Runs)
	}
	var resumed, again bool
	for !resumed || !again {
		chunk := next(t, s, func(m *agentv1.FromAgent) (*agentv1.LogChunk, bool) {
			return m.GetLogChunk(), len(m.GetLogChunk().GetData()) > 0
		})
		switch chunk.RunId {
		case "w/long#1":
			resumed = chunk.Offset == 5 && string(chunk.Data) == "0123456789"
		case "w/short#1":
			again = chunk.Offset == 0 && string(chunk.Data) == "short" && chunk.Last
		}
	}
	s.out <- start("w/long#1", 3, "wait")
	next(t, s, inState("w/long#1", "running"))
	if n := rt.started["w/long#1"]; n != 1 {
		t.Errorf("started %d times", n)
	}
}

func TestGrowingOutput(t *testing.T) {
	c, creds := serve(t)
	rt := newFakeRuntime(t)
	launch(t, c, creds, rt, nil)
	s := c.stream()
	s.out <- start("w/a#1", 1, "wait")
	var want, got bytes.Buffer
	want.WriteString("wait")
	next(t, s, inState("w/a#1", "running"))
	for i := range 20 {
		line := fmt.Sprintln("line", i)
		rt.write("w/a#1", line)
		want.WriteString(line)
		time.Sleep(3 * time.Millisecond)
	}
	big := strings.Repeat("0123456789abcdef", 5<<20/16) // more than one window
	rt.write("w/a#1", big)
	want.WriteString(big)
	rt.end("w/a#1", 0)
	toldEnd := false
	for closed := false; !closed; {
		m := next(t, s, func(m *agentv1.FromAgent) (*agentv1.FromAgent, bool) { return m, true })
		if st := m.GetRunStatus(); st.GetState() == "ended" {
			toldEnd = true
			if st.StdoutBytes != uint64(want.Len()) {
				t.Errorf("%d bytes told, %d written", st.StdoutBytes, want.Len())
			}
		}
		chunk := m.GetLogChunk()
		if chunk.GetStream() != "stdout" {
			continue
		}
		if chunk.Offset != uint64(got.Len()) || len(chunk.Data) > 256<<10 {
			t.Fatalf("chunk at %d of %d bytes, %d expected", chunk.Offset, len(chunk.Data), got.Len())
		}
		got.Write(chunk.Data)
		closed = chunk.Last
		if closed && !toldEnd {
			t.Error("the last chunk came before the end")
		}
		s.out <- ackMessage(nil, &agentv1.LogOffset{RunId: "w/a#1", Stream: "stdout", Offset: uint64(got.Len())})
	}
	if !bytes.Equal(got.Bytes(), want.Bytes()) {
		t.Error("output differs")
	}
}

// A coordinator that has less than it acknowledged, or a gap, gets the output from there.
func TestCoordinatorLostOutput(t *testing.T) {
	c, creds := serve(t)
	rt := newFakeRuntime(t)
	launch(t, c, creds, rt, nil)
	s := c.stream()
	s.out <- start("w/a#1", 1, "wait 0123456789")
	data := func(m *agentv1.FromAgent) (*agentv1.LogChunk, bool) {
		return m.GetLogChunk(), len(m.GetLogChunk().GetData()) > 0
	}
	next(t, s, data)
	s.out <- ackMessage(nil, &agentv1.LogOffset{RunId: "w/a#1", Stream: "stdout", Offset: 15})
	s.out <- ackMessage(nil, &agentv1.LogOffset{RunId: "w/a#1", Stream: "stdout", Offset: 5})
	if chunk := next(t, s, data); chunk.Offset != 5 || string(chunk.Data) != "0123456789" {
		t.Errorf("%v", chunk)
	}
}

func TestFencing(t *testing.T) {
	c, creds := serve(t)
	rt := newFakeRuntime(t)
	dir := t.TempDir()
	stop := launch(t, c, creds, rt, func(o *Options) { o.Dir = dir })
	s := c.stream()
	s.out <- start("w/new#1", 100, "x")
	s.out <- start("w/same#1", 100, "x")
	s.out <- start("w/old#1", 99, "x")
	s.out <- start("w/newer#1", 101, "x")
	next(t, s, ended("w/newer#1"))
	stop()
	rt2 := newFakeRuntime(t)
	stop = launch(t, c, creds, rt2, func(o *Options) { o.Dir = dir })
	s = c.stream()
	s.out <- start("w/old#2", 100, "x")
	s.out <- start("w/next#1", 102, "x")
	next(t, s, ended("w/next#1"))
	if rt.started["w/new#1"] != 1 || rt.started["w/same#1"] != 1 || rt.started["w/old#1"] != 0 || rt2.started["w/old#2"] != 0 {
		t.Errorf("started %v %v", rt.started, rt2.started)
	}
	stop()
	c.cluster = "c2" // its revisions begin anew
	rt3 := newFakeRuntime(t)
	launch(t, c, creds, rt3, func(o *Options) { o.Dir = dir })
	s = c.stream()
	s.out <- start("w/other#1", 3, "x")
	next(t, s, ended("w/other#1"))
}

func TestStopAndSignal(t *testing.T) {
	c, creds := serve(t)
	rt := newFakeRuntime(t)
	launch(t, c, creds, rt, nil)
	s := c.stream()
	s.out <- &agentv1.ToAgent{Message: &agentv1.ToAgent_Stop{Stop: &agentv1.StopRun{RunId: "w/unknown#1"}}}
	if st := next(t, s, ended("w/unknown#1")); st.Cause != "lost-status" {
		t.Errorf("%v", st)
	}
	s.out <- start("w/a#1", 1, "wait")
	next(t, s, inState("w/a#1", "running"))
	s.out <- &agentv1.ToAgent{Message: &agentv1.ToAgent_Signal{Signal: &agentv1.SignalRun{RunId: "w/a#1", Signal: 15}}}
	s.out <- &agentv1.ToAgent{Message: &agentv1.ToAgent_Stop{Stop: &agentv1.StopRun{RunId: "w/a#1", Grace: durationpb.New(time.Minute), Reason: "preempted"}}}
	eventually(t, "stop", func() bool {
		return rt.get(func() bool {
			return slices.Equal(rt.stopped, []string{"w/a#1 1m0s preempted"}) && slices.Equal(rt.signals, []syscall.Signal{syscall.SIGTERM})
		})
	})
	s.out <- start(strings.Repeat("x", 5000), 2, "x")
	if st := next(t, s, ended(strings.Repeat("x", 5000))); st.Cause != "start-failed" || !strings.Contains(st.Message, "at most") {
		t.Errorf("%v", st)
	}
}

// snapshot is this machine's files with another system's name, and a way to change that.
func snapshot(t *testing.T) (root string, setOS func(id string)) {
	t.Helper()
	root = filepath.Join(t.TempDir(), "snapshot")
	if err := hwinfo.Snapshot("/", root); err != nil {
		t.Fatal(err)
	}
	return root, func(id string) {
		if err := os.MkdirAll(filepath.Join(root, "etc"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, "etc", "os-release"), []byte("ID="+id+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestConditions(t *testing.T) {
	root, setOS := snapshot(t)
	setOS("first")
	c, creds := serve(t)
	launch(t, c, creds, newFakeRuntime(t), func(o *Options) { o.Root = root })
	s := c.stream()
	next(t, s, hardware)
	configure := func(revision uint64, conditions ...string) {
		cfg := &agentv1.Configuration{Revision: revision}
		for i, text := range conditions {
			cfg.Definitions = append(cfg.Definitions, &agentv1.StaticDefinition{Id: fmt.Sprint("d", i), Condition: text})
		}
		s.out <- &agentv1.ToAgent{Message: &agentv1.ToAgent_Configuration{Configuration: cfg}}
	}
	check := func(revision uint64, values ...string) *agentv1.ConditionResults {
		t.Helper()
		r := next(t, s, conditions)
		var got []string
		for _, x := range r.Results {
			got = append(got, x.Value)
		}
		if r.Revision != revision || !slices.Equal(got, values) {
			t.Fatalf("revision %d: %v", r.Revision, r.Results)
		}
		return r
	}
	configure(1, `osrelease.id == "first"`, `osrelease.id == "second"`, `osrelease.version_id == "9"`, `)`)
	r := check(1, "true", "false", "unknown", "error")
	if p := r.Results[1].Parts; len(p) != 1 || p[0].Seen["osrelease.id"] != "first" {
		t.Errorf("parts %v", p)
	}
	if len(r.Results[0].Parts) != 0 || r.Results[3].Error == "" {
		t.Errorf("%v", r.Results)
	}
	setOS("second")
	configure(2, `osrelease.id == "first"`, `osrelease.id == "second"`)
	next(t, s, hardware)
	check(2, "false", "true")

	s.end <- errors.New("restart")
	s = c.stream()
	if s.hello.ConfigurationRevision != 2 {
		t.Errorf("hello %v", s.hello)
	}
	next(t, s, hardware)
	many := make([]string, 10000)
	values := make([]string, len(many))
	for i := range many {
		many[i], values[i] = fmt.Sprintf(`osrelease.id == "n%d"`, i), "false"
	}
	began := time.Now()
	configure(3, many...)
	r = check(3, values...)
	t.Logf("10,000 new conditions in %v", time.Since(began))
	if len(r.Results[maxExplained-1].Parts) == 0 || len(r.Results[maxExplained].Parts) != 0 {
		t.Error("explanations are not bounded")
	}
	began = time.Now()
	configure(4, many...)
	check(4, values...)
	t.Logf("10,000 known conditions in %v", time.Since(began))
}

// Ten thousand short runs: one message in, and no round trip for each.
func TestManyRuns(t *testing.T) {
	c, creds := serve(t)
	rt := newFakeRuntime(t)
	launch(t, c, creds, rt, nil)
	s := c.stream()
	const n = 5000
	began := time.Now()
	go func() {
		for i := range n {
			s.out <- start(fmt.Sprintf("w/j/%d#1", i), uint64(i), "")
		}
	}()
	for told := 0; told < n; {
		m := next(t, s, func(m *agentv1.FromAgent) (*agentv1.FromAgent, bool) { return m, true })
		if st := m.GetRunStatus(); st.GetState() == "ended" {
			told++
			s.out <- ackMessage([]string{st.RunId})
		}
		if chunk := m.GetLogChunk(); chunk != nil {
			s.out <- ackMessage(nil, &agentv1.LogOffset{RunId: chunk.RunId, Stream: chunk.Stream, Offset: chunk.Offset})
		}
	}
	go func() {
		for m := range s.in {
			if chunk := m.GetLogChunk(); chunk != nil {
				s.out <- ackMessage(nil, &agentv1.LogOffset{RunId: chunk.RunId, Stream: chunk.Stream, Offset: chunk.Offset})
			}
		}
	}()
	eventually(t, "all forgotten", func() bool { return rt.get(func() bool { return len(rt.forgot) == n }) })
	t.Logf("%d runs a second", int(n/time.Since(began).Seconds()))
}

// The agent waits for a coordinator that is not there yet.
func TestCoordinatorComesLater(t *testing.T) {
	c, creds := serve(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	launch(t, c, creds, newFakeRuntime(t), func(o *Options) { o.Coordinator = address })
	time.Sleep(300 * time.Millisecond)
	if listener, err = net.Listen("tcp", address); err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", c.address)
			if err != nil {
				from.Close()
				return
			}
			go func() { _, _ = io.Copy(to, from); to.Close() }()
			go func() { _, _ = io.Copy(from, to); from.Close() }()
		}
	}()
	next(t, c.stream(), hardware)
}

var _ runtime.Outputs = (*fakeRuntime)(nil)
