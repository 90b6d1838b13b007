package pbs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"substrate/coordinator/dispatch"
	"substrate/coordinator/dispatch/transport"
)

// scripted answers commands; what it does not know fails the test.
type scripted struct {
	t      *testing.T
	answer func(line string, c transport.Command) (transport.Result, error)
	lines  []string
}

func (s *scripted) Slack() time.Duration { return 0 }

func (s *scripted) Run(_ context.Context, c transport.Command) (transport.Result, error) {
	line := strings.Join(c.Argv, " ")
	s.lines = append(s.lines, line)
	r, err := s.answer(line, c)
	r.Started, r.Dead = true, true
	return r, err
}

func said(exit int, stdout, stderr string) (transport.Result, error) {
	return transport.Result{Exit: exit, Stdout: []byte(stdout), Stderr: []byte(stderr)}, nil
}

// bare is a backend behind a preflight.
func bare(t *testing.T, answer func(string, transport.Command) (transport.Result, error)) (*Backend, *scripted) {
	s := &scripted{t: t, answer: answer}
	b := &Backend{opt: Options{Runner: s, Log: slog.New(slog.DiscardHandler), Deadline: time.Second, OutputDir: "/out", Nonce: func() string { return "n" }},
		account: account{user: "alice", home: "/home/alice"}}
	b.answers.hold = dispatch.Support{Answer: dispatch.Yes}
	return b, s
}

func asJSON(id, state string) string {
	return fmt.Sprintf(`{"timestamp":"","Jobs":{%q:{"Job_Name":nan,"Job_Owner":"alice@vm","job_state":%q}}}`, id, state)
}

func asLine(id, state string) string {
	return fmt.Sprintf("Job Id: %s@n@Job_Owner=alice@vm@n@job_state=%s\n", id, state)
}

// TestFallbacks: a listing that cannot be trusted is asked for in other words, one that could not be had is no evidence of absence.
func TestFallbacks(t *testing.T) {
	const (
		listing = "qstat -x -f -F json"
		lines   = "qstat -x -f -F dsv -D @n@"
		broken  = `{"Jobs":{"1.vm":{"job_state":"Q","job_state":"F"}}}`
	)
	for name, c := range map[string]struct {
		answers map[string]func() (transport.Result, error)
		calls   []string
		found   string
		err     error
	}{
		"as JSON": {map[string]func() (transport.Result, error){listing: func() (transport.Result, error) { return said(0, asJSON("1.vm", "Q"), "") }},
			[]string{listing}, "1.vm", nil},
		"none": {map[string]func() (transport.Result, error){listing: func() (transport.Result, error) { return said(0, `{"timestamp":1}`, "") }},
			[]string{listing}, "", nil},
		"as lines": {map[string]func() (transport.Result, error){listing: func() (transport.Result, error) { return said(0, broken, "") },
			lines: func() (transport.Result, error) { return said(0, asLine("1.vm", "Q"), "") }}, []string{listing, lines}, "1.vm", nil},
		"no JSON at all": {map[string]func() (transport.Result, error){listing: func() (transport.Result, error) { return said(1, "", "qstat: json error") },
			lines: func() (transport.Result, error) { return said(0, asLine("1.vm", "Q"), "") }}, []string{listing, lines}, "1.vm", nil},
		"job by job": {map[string]func() (transport.Result, error){
			listing: func() (transport.Result, error) { return said(0, broken, "") }, lines: func() (transport.Result, error) { return said(0, "forged\n", "") },
			lines + " 1.vm 2.vm": func() (transport.Result, error) { return said(0, "forged\n", "") },
			listing + " 1.vm":    func() (transport.Result, error) { return said(0, asJSON("1.vm", "Q"), "") },
			listing + " 2.vm":    func() (transport.Result, error) { return said(153, `{"timestamp":1}`, "qstat: Unknown Job Id 2.vm") }},
			[]string{listing, lines, lines + " 1.vm 2.vm", listing + " 1.vm", listing + " 2.vm"}, "1.vm", nil},
		"too long": {map[string]func() (transport.Result, error){
			listing: func() (transport.Result, error) { return transport.Result{Truncated: true, Stdout: []byte("{")}, nil },
			lines + " 1.vm 2.vm": func() (transport.Result, error) {
				return said(153, asLine("1.vm", "Q"), "qstat: Unknown Job Id 2.vm")
			}},
			[]string{listing, lines + " 1.vm 2.vm"}, "1.vm", nil},
		"no server": {map[string]func() (transport.Result, error){listing: func() (transport.Result, error) {
			return said(255, `{"timestamp":1}`, "Connection refused\nqstat: cannot connect to server vm (errno=15010)")
		}}, []string{listing}, "", dispatch.ErrUnavailable},
		"a server that hangs": {map[string]func() (transport.Result, error){listing: func() (transport.Result, error) {
			return transport.Result{Exit: -1}, context.DeadlineExceeded
		}}, []string{listing}, "", dispatch.ErrUnavailable},
		"no history": {map[string]func() (transport.Result, error){
			listing: func() (transport.Result, error) {
				return said(0, `{"timestamp":1}`, "qstat: PBS is not "+noHistory[4:])
			},
			lines + " 1.vm 2.vm": func() (transport.Result, error) { return said(0, "", "qstat: PBS is "+noHistory) },
			listing + " 1.vm":    func() (transport.Result, error) { return said(0, "", "qstat: PBS is "+noHistory) },
			lines + " 1.vm":      func() (transport.Result, error) { return said(0, "", "qstat: PBS is "+noHistory) },
		}, nil, "", dispatch.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			b, s := bare(t, func(line string, _ transport.Command) (transport.Result, error) {
				answer := c.answers[line]
				if answer == nil {
					t.Fatalf("asked %q", line)
				}
				return answer()
			})
			got, err := b.FindMany(t.Context(), []dispatch.ObjectID{"1.vm", "2.vm", "--help"})
			if c.err == nil && err != nil || c.err != nil && !errors.Is(err, c.err) {
				t.Errorf("the error is %v, want %v", err, c.err)
			}
			if c.calls != nil && !slices.Equal(s.lines, c.calls) {
				t.Errorf("asked\n%s", strings.Join(s.lines, "\n"))
			}
			if _, has := got["1.vm"]; has != (c.found != "") || len(got) > 1 {
				t.Errorf("found %v", got)
			}
		})
	}
}

// TestFewOfMany: where the server remembers many jobs, a few are asked for by name.
func TestFewOfMany(t *testing.T) {
	b, s := bare(t, func(line string, _ transport.Command) (transport.Result, error) {
		if line == "qstat -x -f -F dsv -D @n@ 44.vm 99999.vm" {
			return said(153, asLine("44.vm", "Q"), "qstat: Unknown Job Id 99999.vm")
		}
		return transport.Result{Stdout: listing2000(t)}, nil
	})
	if _, err := b.Find(t.Context(), dispatch.Ref{Job: "none"}); err != nil {
		t.Fatal(err)
	}
	got, err := b.FindMany(t.Context(), []dispatch.ObjectID{"44.vm", "99999.vm"})
	if err != nil || len(got) != 1 || len(s.lines) != 2 {
		t.Errorf("found %v, %v, by %v", got, err, s.lines)
	}
	many := make([]dispatch.ObjectID, 0, 100)
	for n := range 100 {
		many = append(many, dispatch.ObjectID(fmt.Sprintf("%d.vm", 43+n)))
	}
	s.lines = nil
	b.opt.Runner = s
	if got, err := b.FindMany(t.Context(), many); err != nil || len(got) != 100 || s.lines[0] != "qstat -x -f -F json" {
		t.Errorf("found %d, %v, by %v", len(got), err, s.lines)
	}
}

// TestSubmission is what qsub is given.
func TestSubmission(t *testing.T) {
	b, _ := bare(t, nil)
	spec := dispatch.Spec{Ref: dispatch.Ref{Job: "team/a:1", Submission: 2, Attempt: 3}, Name: "it's 4090", Note: "ü", Script: "#!/usr/bin/python3 -u\nprint(1)\n", Nodes: 2,
		ProcsPerNode: 4, Cores: 8, Memory: 1 << 30, GPUs: 2, Exclusive: true, Walltime: 90*time.Minute + time.Millisecond, Queue: "gpu", Account: "acct", Constraint: "gpu_model=H100",
		Extra: []string{"-Aproject", "-lsoftware=x"}, Output: &dispatch.Output{}}
	argv, script, err := b.submission(spec)
	if err != nil {
		t.Fatal(err)
	}
	line := strings.Join(argv, " ")
	for _, part := range []string{"qsub -f -h -r n ", " -N it_s_4090 ", " -S /bin/sh ", " -l select=2:ncpus=8:mpiprocs=4:mem=1073741824b:ngpus=2:gpu_model=H100 ",
		" -l place=scatter:excl ", " -l walltime=01:30:01 ", " -q gpu -P acct -Aproject -lsoftware=x"} {
		if !strings.Contains(line, part) {
			t.Errorf("%q is missing in %s", part, line)
		}
	}
	if strings.Contains(line, " -V") || strings.Contains(script, "\r") || !strings.HasSuffix(script, "exec '/usr/bin/python3' '-u' /dev/fd/9\n") {
		t.Errorf("%s\n%s", line, script)
	}
	for _, extra := range []string{"-V", "-J1-3", "-h", "-Wblock=true", "-W umask=0,block=true", "-lselect=1", "-I", "x", "-v", "-N", "-z", "-a2030", "--", "-l"} {
		spec.Extra = []string{extra}
		if _, _, err := b.submission(spec); !errors.Is(err, dispatch.ErrRefused) {
			t.Errorf("%q is taken: %v", extra, err)
		}
	}
	spec.Extra, spec.Constraint = nil, "host=n1+1:ncpus=99"
	if _, _, err := b.submission(spec); !errors.Is(err, dispatch.ErrRefused) {
		t.Errorf("a constraint that is another chunk is taken: %v", err)
	}
	spec.Constraint, spec.QoS = "", "high"
	if _, _, err := b.submission(spec); !errors.Is(err, dispatch.ErrRefused) || !strings.Contains(err.Error(), "queue") {
		t.Errorf("a quality of service is taken: %v", err)
	}
}

// TestLateHold: PBS takes the attribute of a job that has begun in the meantime; nobody is told that it is held.
func TestLateHold(t *testing.T) {
	looks := 0
	b, _ := bare(t, func(line string, _ transport.Command) (transport.Result, error) {
		if strings.HasPrefix(line, "qalter") {
			return said(0, "", "")
		}
		looks++
		if looks == 1 {
			return said(0, asJSON("1.vm", "Q"), "")
		}
		return said(0, `{"Jobs":{"1.vm":{"Job_Owner":"alice@vm","job_state":"R","substate":42,"exec_host":"n1/0","Execution_Time":"Fri Jan  1 00:00:03 2100"}}}`, "")
	})
	if err := b.Hold(t.Context(), "1.vm", 3); !errors.Is(err, dispatch.ErrNotPending) {
		t.Errorf("the hold of what has begun is %v", err)
	}
}

// TestStop: a deletion that had no effect is ordered again; one that the node does not take because the job ends is none that failed.
func TestStop(t *testing.T) {
	for name, c := range map[string]struct {
		deletes []int // statuses
		states  []string
		err     error
	}{
		"at once":              {[]int{0}, []string{"F"}, nil},
		"came back":            {[]int{0, 0}, []string{"Q", "F"}, nil},
		"is over":              {[]int{35}, nil, nil},
		"unknown":              {[]int{153}, nil, dispatch.ErrNotFound},
		"in its epilogue":      {[]int{168}, []string{"R"}, nil},
		"refused":              {[]int{168}, []string{"Q"}, dispatch.ErrRefused},
		"not ours":             {[]int{159}, nil, dispatch.ErrDenied},
		"its node is lost":     {[]int{222}, nil, dispatch.ErrUnavailable},
		"the server is away":   {[]int{162}, nil, dispatch.ErrUnavailable},
		"killed in the middle": {[]int{137}, nil, dispatch.ErrOutcomeUnknown},
	} {
		b, s := bare(t, func(line string, _ transport.Command) (transport.Result, error) {
			if strings.HasPrefix(line, "qdel") {
				exit := c.deletes[0]
				c.deletes = c.deletes[1:]
				return said(exit, "", "")
			}
			state := c.states[0]
			c.states = c.states[1:]
			return said(0, asJSON("1.vm", state), "")
		})
		if err := b.Stop(t.Context(), "1.vm"); c.err == nil && err != nil || !errors.Is(err, c.err) {
			t.Errorf("%s: %v, want %v", name, err, c.err)
		}
		if len(c.deletes)+len(c.states) > 0 {
			t.Errorf("%s: asked only %v", name, s.lines)
		}
	}
}

// listing2000 is a complex with as many running jobs of ours.
func listing2000(t testing.TB) []byte {
	text := string(read(t, "listings/115-qstat-running-json.json"))
	head, rest, ok := strings.Cut(text, `        "43.vm":{`)
	body, tail, ok2 := strings.Cut(rest, "\n        }\n")
	if !ok || !ok2 {
		t.Fatal("the listing has another form")
	}
	var b bytes.Buffer
	b.WriteString(head)
	for i := range 2000 {
		if i > 0 {
			b.WriteString(",\n")
		}
		m := mark(dispatch.Ref{Job: dispatch.JobID(fmt.Sprintf("team/job-%d", i)), Submission: 1, Attempt: 1}, "", "", true)
		fmt.Fprintf(&b, "        \"%d.vm\":{%s\n        }", 43+i, strings.Replace(body, `"PBS_O_LANG"`, `"`+markVariable+`":"`+m+`",`+"\n                \"PBS_O_LANG\"", 1))
	}
	b.WriteString("\n" + tail)
	return b.Bytes()
}

// BenchmarkParse2000: 2,000 jobs from text to observations.
func BenchmarkParse2000(b *testing.B) {
	data := listing2000(b)
	b.SetBytes(int64(len(data)))
	began := processorTime(b)
	for b.Loop() {
		list, err := parseJSON(data, everything)
		if err != nil || len(list) != 2000 {
			b.Fatal(len(list), err)
		}
		for i := range list {
			if o := observe(&list[i], "alice", nobody); o.Ref.Submission != 1 || o.State != dispatch.StateRunning {
				b.Fatal(o)
			}
		}
	}
	b.ReportMetric(float64((processorTime(b)-began).Microseconds())/1000/float64(b.N), "cpu-ms/op")
}

// processorTime is what this process has used; on a busy machine it says more than the clock.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
