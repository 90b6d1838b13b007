package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"substrate/proto/apiv1"
)

const (
	patience    = time.Minute // with a coordinator that is being restarted
	followLimit = 64          // logs followed at a time
	maxLine     = 16 << 10
)

// watchWorkflow shows the jobs until the workflow ended: a live table on terminals, a line for each
// change elsewhere. It fails unless all finished.
func (a *app) watchWorkflow(ctx context.Context, id string, follow bool) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	v := &view{app: a, seen: map[string]string{}}
	logs := newLogs(a, id)
	live := a.terminal && !follow && a.output != "json" && a.output != "yaml" && !a.quiet
	var down time.Time
	for {
		if !down.IsZero() && a.conn != nil {
			a.conn.ResetConnectBackoff() // it would grow beyond what the restart takes
		}
		w, err := a.workflow(ctx, id)
		switch {
		case a.away(err) && ctx.Err() == nil:
			if down.IsZero() {
				down = a.now()
				a.warn("the coordinator is not reachable; trying for %s", span(patience))
			} else if a.now().Sub(down) > patience {
				return err
			}
		case err != nil && ctx.Err() == nil:
			return err
		case err != nil: // interrupted while asking
		default:
			down = time.Time{}
			if live {
				v.redraw(w)
			} else {
				v.changes(w)
			}
			if follow {
				logs.follow(ctx, w, ended(w.GetStatus()))
			}
			if ended(w.GetStatus()) {
				return v.finish(ctx, w, logs, live)
			}
		}
		if wait(ctx, a.every) != nil {
			return failf(exitInterrupted, "the workflow goes on; see `substrate workflow status "+id+"`", "interrupted")
		}
	}
}

func ended(status string) bool {
	switch status {
	case "finished", "failed", "cancelled", "lost", "preempted":
		return true
	}
	return false
}

// view is what the terminal shows of a workflow.
type view struct {
	app   *app
	seen  map[string]string // job → what was last said of it
	lines int               // drawn
}

func (v *view) redraw(w *apiv1.Workflow) {
	lines := fieldLines([]field{{"Workflow", w.GetId() + " (" + w.GetName() + ")"}, {"Status", w.GetStatus()}, {"Jobs", counts(w.GetCounts())}})
	lines = append(lines, v.app.lines(v.app.jobTable(w, false))...)
	if most := terminalRows() - 2; most > 3 && len(lines) > most {
		hidden := len(lines) - most + 1
		lines = append(lines[:most-1], fmt.Sprintf("… and %d more", hidden))
	}
	a := v.app
	a.mu.Lock()
	defer a.mu.Unlock()
	if v.lines > 0 {
		fmt.Fprintf(a.out, "\x1b[%dA", v.lines)
	}
	fmt.Fprint(a.out, "\x1b[J")
	for _, l := range lines {
		fmt.Fprintf(a.out, "\x1b[?7l%s\x1b[?7h\n", l) // no wrapping: a wrapped line would break the count
	}
	v.lines = len(lines)
	a.flush()
}

func (v *view) changes(w *apiv1.Workflow) {
	a := v.app
	if a.quiet || a.output == "json" || a.output == "yaml" || a.output == "name" {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, j := range w.GetJobs() {
		text := j.GetStatus()
		if n := strings.Join(j.GetNodes(), ","); n != "" {
			text += " on " + n
		}
		switch e := exitText(j); {
		case j.GetSignal() != 0:
			text += ", " + e
		case e != "" && e != "0":
			text += ", exit " + e
		}
		if j.GetAttempt() > 1 {
			text += fmt.Sprintf(", attempt %d", j.GetAttempt())
		}
		if r := j.GetReason(); r != nil && (j.GetStatus() == "queued" || j.GetStatus() == "pending") {
			text += " (" + r.GetCode() + ")"
		} else if r != nil { // of its way in a batch system
			text += " (" + r.GetText() + ")"
		} else if j.GetMessage() != "" && !saidByExit(j) {
			text += " (" + j.GetMessage() + ")"
		}
		if v.seen[j.GetId()] == text {
			continue
		}
		v.seen[j.GetId()] = text
		fmt.Fprintf(a.out, "%s %s\n", j.GetName(), printable(text))
	}
	a.flush()
}

// finish waits for the output to come, says the end and decides the exit code.
func (v *view) finish(ctx context.Context, w *apiv1.Workflow, l *logs, live bool) error {
	l.tasks.Wait()
	if !live {
		v.app.say("workflow %s is %s: %s", w.GetId(), w.GetStatus(), counts(w.GetCounts()))
	}
	if w.GetStatus() == "finished" {
		return nil
	}
	if ctx.Err() != nil {
		return interrupted()
	}
	return failf(exitFailed, endHint(w), "cannot finish workflow %s: it is %s", w.GetId(), w.GetStatus())
}

// endHint leads to the output of the first job that did not finish, if it has some.
func endHint(w *apiv1.Workflow) string {
	for _, j := range w.GetJobs() {
		if j.GetStatus() != "finished" && j.GetStatus() != "cancelled" && j.GetStarted() != nil {
			return "see `substrate workflow log " + w.GetId() + " " + j.GetName() + "`"
		}
	}
	return "see `substrate workflow describe " + w.GetId() + "`"
}

// logs follows the output of jobs as they start.
type logs struct {
	app       *app
	workflow  string
	following map[string]bool // allocation#attempt
	slots     chan struct{}
	tasks     sync.WaitGroup
	stream    string // this one only, or ""
	split     bool   // what went to standard error goes there
}

func newLogs(a *app, workflow string) *logs {
	return &logs{app: a, workflow: workflow, following: map[string]bool{}, slots: make(chan struct{}, followLimit)}
}

// follow begins to read the output of what has newly started; with last, of all that is left.
func (l *logs) follow(ctx context.Context, w *apiv1.Workflow, last bool) {
	for _, j := range w.GetJobs() {
		key := fmt.Sprintf("%s#%d", j.GetId(), j.GetAttempt())
		if j.GetStarted() == nil || l.following[key] {
			continue
		}
		select {
		case l.slots <- struct{}{}:
		default:
			if !last {
				return // the next round finds a free slot
			}
			l.slots <- struct{}{} // the rest, one after another
		}
		l.following[key] = true
		l.tasks.Go(func() {
			defer func() { <-l.slots }()
			l.read(ctx, j.GetName(), j.GetAttempt())
		})
	}
}

func (l *logs) read(ctx context.Context, job string, attempt uint32) {
	a := l.app
	out := ranked{app: a, prefix: job + " | "}
	write := func(d *apiv1.LogData) error {
		out.write(a.out, d)
		return nil
	}
	if l.split {
		write = out.split
	}
	r := a.logReader(&apiv1.ReadLogRequest{Workflow: l.workflow, Job: job, Attempt: attempt, Stream: l.stream, Follow: true}, write)
	err := a.resume(ctx, true, func() (bool, error) { return r.read(ctx) }) // who watches the workflow says it
	out.end()
	if err != nil && ctx.Err() == nil && exitCode(err) != exitNotFound {
		a.warn("cannot read the output of %s: %v", job, err)
	}
}

// ranked writes whole lines of a job's streams, those of a multinode job with their rank.
type ranked struct {
	app     *app
	prefix  string
	writers []*prefixed // in the order they began
	known   map[logSource]*prefixed
}

type logSource struct {
	stream string
	rank   uint32
}

func (r *ranked) write(to io.Writer, d *apiv1.LogData) {
	from := logSource{d.GetStream(), d.GetRank()}
	p := r.known[from]
	if p == nil {
		if r.known == nil {
			r.known = map[logSource]*prefixed{}
		}
		p = &prefixed{app: r.app, to: to, prefix: r.prefix}
		if d.GetRanks() > 1 {
			p.prefix += fmt.Sprintf("[%d] ", d.GetRank())
		}
		r.known[from] = p
		r.writers = append(r.writers, p)
	}
	p.write(d.GetData())
}

// split is write for one who wants the two streams apart.
func (r *ranked) split(d *apiv1.LogData) error {
	to := r.app.out
	if d.GetStream() == "stderr" {
		to = r.app.errOut
	}
	r.write(to, d)
	return nil
}

// end writes last lines that no newline ended.
func (r *ranked) end() {
	for _, p := range r.writers {
		p.end()
	}
}

// prefixed writes whole lines with a prefix.
type prefixed struct {
	app    *app
	to     io.Writer
	prefix string
	rest   []byte
}

func (p *prefixed) write(data []byte) {
	p.rest = append(p.rest, data...)
	for {
		line, rest, found := strings.Cut(string(p.rest), "\n")
		if !found {
			if len(p.rest) < maxLine {
				return
			}
			line, rest = string(p.rest[:maxLine]), string(p.rest[maxLine:])
		}
		p.line(line)
		p.rest = []byte(rest)
	}
}

func (p *prefixed) end() {
	if len(p.rest) > 0 {
		p.line(string(p.rest))
		p.rest = nil
	}
}

func (p *prefixed) line(text string) {
	p.app.mu.Lock()
	defer p.app.mu.Unlock()
	fmt.Fprintf(p.to, "%s%s\n", p.prefix, strings.TrimSuffix(text, "\r"))
	p.app.flush()
}
