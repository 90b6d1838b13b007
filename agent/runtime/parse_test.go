package runtime

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestEncodeRunID(t *testing.T) {
	tests := []struct{ id, want string }{
		{"0190-wf/train/7#2", "0190-wf%2Ftrain%2F7%232"},
		{".", "%2E"},
		{"..", "%2E."},
		{"a.b", "a.b"},
		{"~x", "%7Ex"},
		{"%2F", "%252F"},
		{"ä", "%C3%A4"},
		{strings.Repeat("a", 200), strings.Repeat("a", 200)},
		{strings.Repeat("a", 201), "~" + fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Repeat("a", 201))))},
	}
	for _, tt := range tests {
		if got := EncodeRunID(RunID(tt.id)); got != tt.want {
			t.Errorf("%q: %q, want %q", tt.id, got, tt.want)
		}
	}
}

func TestRunIDRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := RunID(rapid.StringN(1, 80, -1).Draw(t, "a"))
		b := RunID(rapid.StringN(1, 80, -1).Draw(t, "b"))
		name := EncodeRunID(a)
		if a != b && name == EncodeRunID(b) {
			t.Fatalf("%q and %q share a name", a, b)
		}
		if back, ok := DecodeRunID(name); ok && back != a || !ok && name[0] != '~' {
			t.Fatalf("%q → %q → %q %v", a, name, back, ok)
		}
	})
}

func FuzzRunID(f *testing.F) {
	for _, s := range []string{"", ".", "..", "w/j#1", "%2F", "%2f", "%", "%%", "~", strings.Repeat("ä", 100), "a\x00b", "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		name := EncodeRunID(RunID(s))
		if strings.ContainsAny(name, "/\x00") || name == "." || name == ".." || len(name) > 255 || name == "" && s != "" {
			t.Fatalf("%q has the name %q", s, name)
		}
		if back, ok := DecodeRunID(name); ok && back != RunID(s) {
			t.Fatalf("%q came back as %q", s, back)
		}
		if id, ok := DecodeRunID(s); ok && EncodeRunID(id) != s {
			t.Fatalf("%q decodes to %q, whose name is %q", s, id, EncodeRunID(id))
		}
	})
}

func TestCheckRunID(t *testing.T) {
	for _, id := range []RunID{"", "a\x00", "\xff", RunID(strings.Repeat("a", 513))} {
		if CheckRunID(id) == nil {
			t.Errorf("%.20q was taken", id)
		}
	}
	if err := CheckRunID("w/j/3#1"); err != nil {
		t.Error(err)
	}
}

func TestFrames(t *testing.T) {
	var buf bytes.Buffer
	want := request{
		Hello: &hello{Protocol: 1, PID: 7},
		Start: []startRequest{{Spec: Spec{ID: "a", Script: "x", Walltime: time.Hour, Nodes: []string{"n"}}, Account: account{Name: "u", UID: 1, Groups: []uint32{2}}}},
		Stop:  &stopRequest{ID: "b", Grace: time.Second, Reason: "r"}, Forget: []RunID{"c"},
	}
	for range 3 {
		if err := writeFrame(&buf, want); err != nil {
			t.Fatal(err)
		}
	}
	r := bufio.NewReader(&buf)
	for range 3 {
		var got request
		if err := readFrame(r, &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	if err := readFrame(r, &request{}); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
	if err := writeFrame(io.Discard, request{Start: []startRequest{{Spec: Spec{Script: strings.Repeat("x", maxFrame)}}}}); err == nil {
		t.Error("a frame too large was written")
	}
}

func TestBadFrames(t *testing.T) {
	for name, data := range map[string]string{
		"cut length": "\x00\x00", "cut body": "\x00\x00\x00\x05{}", "too large": "\xff\xff\xff\xff{}", "not JSON": "\x00\x00\x00\x01x",
	} {
		var req request
		err := readFrame(bufio.NewReader(strings.NewReader(data)), &req)
		if err == nil || errors.Is(err, io.EOF) && name != "cut length" {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A newer agent's field is no error.
	body := `{"forget":["a"],"of_the_future":{"x":1}}`
	framed := string(binary.BigEndian.AppendUint32(nil, uint32(len(body)))) + body
	var req request
	if err := readFrame(bufio.NewReader(strings.NewReader(framed)), &req); err != nil || len(req.Forget) != 1 {
		t.Errorf("%+v, %v", req, err)
	}
}

func FuzzFrame(f *testing.F) {
	for _, v := range []any{
		request{Hello: &hello{Protocol: 1}}, request{Start: []startRequest{{Spec: Spec{ID: "a", Command: []string{"true"}}}}},
		request{Signal: &signalRequest{ID: "a", Signal: 15}}, reply{Statuses: []Status{{ID: "a", State: StateEnded}}, Snapshot: true},
	} {
		var buf bytes.Buffer
		if err := writeFrame(&buf, v); err != nil {
			f.Fatal(err)
		}
		f.Add(buf.Bytes())
	}
	f.Add([]byte("\x7f\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bufio.NewReader(bytes.NewReader(data))
		for range 4 {
			var req request
			if err := readFrame(r, &req); err != nil {
				return
			}
			var buf bytes.Buffer
			if err := writeFrame(&buf, req); err != nil {
				t.Fatal(err)
			}
			var again request
			if err := readFrame(bufio.NewReader(&buf), &again); err != nil {
				t.Fatalf("%v after %+v", err, req)
			}
			a, _ := json.Marshal(req)
			b, _ := json.Marshal(again)
			if !bytes.Equal(a, b) {
				t.Fatalf("%s came back as %s", a, b)
			}
		}
	})
}

func TestParseStat(t *testing.T) {
	line := "4242 (a) b (c) S 1 4240 4239 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 987654321 1 2 3"
	want := procStat{PID: 4242, State: 'S', PPID: 1, Group: 4240, Session: 4239, Start: 987654321}
	if got, err := parseStat([]byte(line)); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := readStat(os.Getpid()); err != nil || got.PPID != os.Getppid() || got.Start == 0 {
		t.Errorf("own: %+v, %v", got, err)
	}
	for _, bad := range []string{"", "1", "1 (a", "x (a) S 1 1 1", "1 (a) S 1 1"} {
		if _, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("4242 (a) b (c) S 1 4240 4239 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 987654321 1"))
	f.Add([]byte("1 () ) "))
	f.Add([]byte(")("))
	f.Fuzz(func(t *testing.T, line []byte) {
		if s, err := parseStat(line); err != nil && s != (procStat{}) {
			t.Fatalf("%+v with %v", s, err)
		}
	})
}

func TestFamily(t *testing.T) {
	all := []procStat{
		{PID: 10, PPID: 1, Session: 10}, {PID: 11, PPID: 10, Session: 10}, {PID: 12, PPID: 1, Session: 10},
		{PID: 13, PPID: 12, Session: 13}, {PID: 14, PPID: 13, Session: 14}, {PID: 20, PPID: 1, Session: 20}, {PID: 1, PPID: 0, Session: 1},
	}
	var got []int
	for _, p := range family(all, 10) {
		got = append(got, p.PID)
	}
	if !reflect.DeepEqual(got, []int{11, 12, 13, 14}) {
		t.Errorf("%v", got)
	}
}

func TestJudge(t *testing.T) {
	kill, exit3 := outcome{status: 9}, outcome{status: 3 << 8}
	tests := []struct {
		name    string
		o       outcome
		decided Cause
		oom     bool
		want    Cause
		code    int32
		signal  int32
	}{
		{"exit", exit3, "", false, CauseExited, 3, 0},
		{"signal", kill, "", false, CauseSignalled, 0, 9},
		{"oom", kill, "", true, CauseOOM, 0, 0},
		{"a child's oom that the run survived", exit3, "", true, CauseExited, 3, 0},
		{"walltime", kill, CauseWalltime, false, CauseWalltime, 0, 0},
		{"stopped, exit", exit3, CauseStopped, false, CauseStopped, 0, 0},
		{"lost", outcome{lost: true}, "", false, CauseLostStatus, 0, 0},
		{"lost after stop", outcome{lost: true}, CauseStopped, false, CauseStopped, 0, 0},
		{"failed", outcome{failed: errors.New("x")}, "", false, CauseStartFailed, 0, 0},
		{"failed after stop", outcome{failed: errors.New("x")}, CauseStopped, false, CauseStopped, 0, 0},
	}
	for _, tt := range tests {
		var s Status
		judge(&s, tt.o, tt.decided, "why", tt.oom)
		if s.Cause != tt.want || s.ExitCode != tt.code || s.Signal != tt.signal {
			t.Errorf("%s: %+v", tt.name, s)
		}
	}
}
