package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

// TestWatchSurvivesRestart: a list that is watched misses a look and goes on.
func TestWatchSurvivesRestart(t *testing.T) {
	_, server := startWorld(t)
	conn, err := dial(endpoint{server: server, token: goodToken})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var out, errOut bytes.Buffer
	a := &app{out: &out, errOut: &errOut, conn: conn, output: "table", now: time.Now, every: time.Millisecond}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	looks := 0
	err = a.watch(ctx, func(context.Context) error {
		switch looks++; looks {
		case 2:
			return failf(exitUnavailable, "", "cannot list: the coordinator is stopping")
		case 4:
			stop()
		}
		fmt.Fprintln(a.out, "look", looks)
		return nil
	})
	if exitCode(err) != exitInterrupted {
		t.Errorf("%v", err)
	}
	if got := out.String(); got != "look 1\nlook 3\nlook 4\n" {
		t.Errorf("%q", got)
	}
	if got := errOut.String(); got != "the coordinator is not reachable; trying for 1m00s\n" {
		t.Errorf("%q", got)
	}
}

// TestResumeGivesUp after its patience, with the error that it began with.
func TestResumeGivesUp(t *testing.T) {
	conn, err := dial(endpoint{server: "http://127.0.0.1:1", token: goodToken})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	a := &app{errOut: &bytes.Buffer{}, conn: conn, every: time.Millisecond, now: func() time.Time {
		now = now.Add(time.Second)
		return now
	}}
	a.reached.Store(true)
	first := failf(exitUnavailable, "", "the coordinator is stopping")
	passes := 0
	err = a.resume(t.Context(), false, func() (bool, error) { passes++; return true, first })
	if !errors.Is(err, first) || passes != 1 {
		t.Errorf("%v after %d passes", err, passes)
	}
}
