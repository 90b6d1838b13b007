package simulate

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"substrate/coordinator"
)

// Fields of the Standard Workload Format, counted from 0.
const (
	swfID = iota
	swfSubmit
	swfWait
	swfRun
	swfProcs
	swfCPUTime
	swfMemory
	swfAskedProcs
	swfAskedTime
	swfAskedMemory
	swfStatus
	swfUser
	swfGroup
	swfProgram
	swfQueue
	swfPartition
	swfAfter
	swfThink
	swfFields
)

// ReadSWF reads a trace in the Standard Workload Format of the Parallel Workloads Archive: 18 numbers a line, -1 for
// what is not known, comments after a semicolon.
func ReadSWF(file string, r io.Reader) (*Trace, error) {
	t := &Trace{Name: file}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	n := 0
	for lines.Scan() {
		n++
		text := strings.TrimSpace(lines.Text())
		if comment, ok := strings.CutPrefix(text, ";"); ok {
			t.header(comment)
			continue
		}
		if text == "" {
			continue
		}
		if err := t.record(n, strings.Fields(text)); err != nil {
			return nil, &InputError{file, n, err}
		}
		if len(t.Jobs) > maxJobs {
			return nil, &InputError{file, n, fmt.Errorf("more than %d jobs", maxJobs)}
		}
	}
	if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		return nil, &InputError{file, n + 1, fmt.Errorf("the line is longer than %d bytes", maxLine)}
	} else if err != nil {
		return nil, &InputError{file, n + 1, err}
	}
	t.sorted()
	return t, nil
}

// header takes what is of use from the comments before the records.
func (t *Trace) header(comment string) {
	key, value, ok := strings.Cut(comment, ":")
	if !ok || strings.TrimSpace(key) != "MaxProcs" {
		return
	}
	if v, err := strconv.Atoi(strings.TrimSpace(value)); err == nil && v > 0 && v <= maxCount {
		t.Cores = v
	}
}

// record takes one line.
func (t *Trace) record(line int, words []string) error {
	if len(words) != swfFields {
		return fmt.Errorf("%d fields, a record has %d", len(words), swfFields)
	}
	var v [swfFields]float64
	for i, word := range words {
		var err error
		if v[i], err = strconv.ParseFloat(word, 64); err != nil || v[i] != v[i] {
			return fmt.Errorf("field %d: %q is not a number", i+1, word)
		}
	}
	submit, err := seconds(v[swfSubmit])
	if err != nil {
		return fmt.Errorf("field %d (submit time): %w", swfSubmit+1, err)
	}
	procs := v[swfAskedProcs]
	if procs <= 0 {
		procs = v[swfProcs]
	}
	switch {
	case v[swfRun] < 0:
		t.skip("its run time is not known")
		return nil
	case procs <= 0:
		t.skip("its number of processors is not known")
		return nil
	case procs > maxCount:
		return fmt.Errorf("field %d: %g processors, at most %d", swfAskedProcs+1, procs, maxCount)
	}
	j := Job{ID: words[swfID], Line: line, Submit: submit, Procs: int(procs), Class: coordinator.ClassOnDemand,
		Queue: words[swfQueue], User: name("user-", words[swfUser]), Group: name("group-", words[swfGroup])}
	if j.Run, err = seconds(v[swfRun]); err != nil {
		return fmt.Errorf("field %d (run time): %w", swfRun+1, err)
	}
	if v[swfAskedTime] > 0 {
		if j.Walled, err = seconds(v[swfAskedTime]); err != nil {
			return fmt.Errorf("field %d (requested time): %w", swfAskedTime+1, err)
		}
	}
	if v[swfWait] >= 0 {
		var waited time.Duration
		if waited, err = seconds(v[swfWait]); err != nil {
			return fmt.Errorf("field %d (wait time): %w", swfWait+1, err)
		}
		j.Waited = &waited
	}
	if kb := v[swfAskedMemory]; kb > 0 && kb < 1<<40 {
		j.Memory = coordinator.Bytes(kb) << 10 // of each processor
	}
	t.Jobs = append(t.Jobs, j)
	return nil
}

// name makes a name of a number; -1 is nobody.
func name(prefix, number string) string {
	if strings.HasPrefix(number, "-") {
		return ""
	}
	return slug(prefix, number)
}
