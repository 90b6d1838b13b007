package slurm

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// row is what squeue or sacct say of one execution of a job.
type row struct {
	id       string
	state    string // as squeue's %T, without what sacct adds
	reason   string // "" from sacct
	submit   time.Time
	eligible time.Time
	start    time.Time
	end      time.Time
	status   waitStatus
	restarts uint32 // from squeue
	nodes    []string
	name     string
	comment  string
	history  bool // from sacct
	// forgotten: it had started, and the controller knows it no more.
	forgotten bool
	raw       string
}

// waitStatus is a program's end.
type waitStatus struct{ exit, signal int }

// queueFields are asked of squeue; a width of 0 is as wide as it needs.
func queueFields() []string {
	return []string{"JobID", "State", "Reason", "SubmitTime", "EligibleTime", "StartTime", "EndTime", "exit_code", "RestartCnt", "NodeList", "Name", "Comment"}
}

// historyFields are asked of sacct.
func historyFields() []string {
	return []string{"JobIDRaw", "State", "ExitCode", "Submit", "Eligible", "Start", "End", "NodeList", "JobName", "Comment"}
}

// queueFormat is squeue's -O argument: each field followed by a separator, the last by the row's end.
func queueFormat(nonce string) string {
	var b strings.Builder
	fields := queueFields()
	for i, f := range fields {
		if i > 0 {
			b.WriteByte(',')
		}
		if i == len(fields)-1 {
			b.WriteString(f + ":0" + rowEnd(nonce))
		} else {
			b.WriteString(f + ":0" + separator(nonce))
		}
	}
	return b.String()
}

// separator and rowEnd hold the nonce both: no text that was there before the call has either.
func separator(nonce string) string { return "@" + nonce + "@" }
func rowEnd(nonce string) string    { return "#" + nonce + "#" }

// parseQueue reads squeue's answer.
func parseQueue(out, nonce string) ([]row, error) {
	sep, n := separator(nonce), len(queueFields())
	var rows []row
	for rest := out; strings.TrimSpace(rest) != ""; {
		text, more, ok := strings.Cut(rest, rowEnd(nonce)+"\n")
		if !ok {
			return nil, fmt.Errorf("cannot read squeue's answer: row %d is not whole", len(rows)+1)
		}
		rest = more
		f := strings.Split(text, sep)
		if len(f) != n {
			return nil, fmt.Errorf("cannot read squeue's answer: row %d has %d fields, not %d", len(rows)+1, len(f), n)
		}
		r, err := queueRow(f)
		if err != nil {
			return nil, fmt.Errorf("cannot read squeue's answer: row %d: %w", len(rows)+1, err)
		}
		rows = append(rows, r)
	}
	return rows, nil
}

func queueRow(f []string) (r row, err error) {
	r = row{id: f[0], state: f[1], reason: f[2], name: f[10], comment: known(f[11]), raw: strings.TrimSpace(f[1] + " " + f[2])}
	if !isNumber(r.id) {
		return r, fmt.Errorf("%.40q is no job id", r.id)
	}
	for i, at := range []*time.Time{&r.submit, &r.eligible, &r.start, &r.end} {
		if *at, err = parseTime(f[3+i]); err != nil {
			return r, err
		}
	}
	status, err := strconv.ParseInt(f[7], 10, 32)
	if err != nil {
		return r, fmt.Errorf("%.40q is no exit code", f[7])
	}
	// As wait(2) has it: slurmd's own errors stand in it too, with odd numbers of signals.
	r.status = waitStatus{exit: int(status>>8) & 0xff, signal: int(status) & 0x7f}
	if r.restarts, err = parseCount(f[8]); err != nil {
		return r, err
	}
	r.nodes, err = expandNodes(known(f[9]))
	return r, err
}

// parseHistory reads sacct's answer, whose every field is followed by the separator.
func parseHistory(out, nonce string) ([]row, error) {
	sep, n := separator(nonce), len(historyFields())
	f := strings.Split(out, sep)
	if last := strings.TrimSpace(f[len(f)-1]); last != "" || (len(f)-1)%n != 0 {
		return nil, fmt.Errorf("cannot read sacct's answer: it has %d fields, not a multiple of %d, and ends with %.40q", len(f)-1, n, last)
	}
	var rows []row
	for i := 0; i+n < len(f); i += n {
		r, err := historyRow(f[i : i+n])
		if err != nil {
			return nil, fmt.Errorf("cannot read sacct's answer: row %d: %w", len(rows)+1, err)
		}
		rows = append(rows, r)
	}
	return rows, nil
}

func historyRow(f []string) (r row, err error) {
	// Who cancelled a job stands behind its state.
	state, _, _ := strings.Cut(f[1], " by ")
	r = row{id: strings.TrimPrefix(f[0], "\n"), state: state, name: f[8], comment: f[9], history: true, raw: f[1] + " (accounting)"}
	if !isNumber(r.id) {
		return r, fmt.Errorf("%.40q is no job id", r.id)
	}
	exit, signal, ok := strings.Cut(f[2], ":")
	if r.status.exit, err = strconv.Atoi(exit); err == nil && ok {
		r.status.signal, err = strconv.Atoi(signal)
	}
	if err != nil || !ok {
		return r, fmt.Errorf("%.40q is no exit code", f[2])
	}
	for i, at := range []*time.Time{&r.submit, &r.eligible, &r.start, &r.end} {
		if *at, err = parseTime(f[3+i]); err != nil {
			return r, err
		}
	}
	if nodes := f[7]; nodes != "None assigned" {
		r.nodes, err = expandNodes(known(nodes))
	}
	return r, err
}

// known is "" for what Slurm writes for nothing.
func known(text string) string {
	if text == "(null)" || text == "N/A" {
		return ""
	}
	return text
}

func isNumber(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != "" && len(s) <= 10
}

// parseTime reads a time that was asked for as %s; it is zero when there is none.
func parseTime(text string) (time.Time, error) {
	switch text {
	case "", "N/A", "Unknown", "None", "NONE", "(null)":
		return time.Time{}, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > 1<<40 {
		return time.Time{}, fmt.Errorf("%.40q is no time", text)
	}
	if n == 0 {
		return time.Time{}, nil
	}
	return time.Unix(n, 0).UTC(), nil
}

func parseCount(text string) (uint32, error) {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%.40q is no count", text)
	}
	return uint32(n), nil
}
