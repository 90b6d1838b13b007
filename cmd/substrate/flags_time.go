package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"substrate/strictyaml"
)

const lastYear = 9999 // that the wire can carry

const momentHint = `write "2026-12-01 08:00" (your time zone), 2026-12-01T08:00:00Z, +7d or "in 2h", or now`

// parseMoment reads a point in time as people write it. What names no zone is in that of now.
func parseMoment(text string, now time.Time) (time.Time, error) {
	const maxText = 64
	bad := func(why string) (time.Time, error) {
		return time.Time{}, failf(exitUsage, momentHint, "cannot read the time %q: %s", text, why)
	}
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + "…"
		return bad("it is too long")
	}
	word := strings.ToLower(strings.TrimSpace(text))
	if word == "now" {
		return now, nil
	}
	after, relative := strings.CutPrefix(word, "+")
	if !relative {
		after, relative = strings.CutPrefix(word, "in ")
	}
	if relative {
		d, err := strictyaml.ParseDuration(strings.ReplaceAll(after, " ", ""))
		if err != nil || d < 0 {
			return bad("after + or in comes a duration such as 7d or 2h30m")
		}
		return now.Add(d), nil
	}
	word = strings.ToUpper(word)
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04Z07:00", "2006-01-02 15:04:05Z07:00", "2006-01-02 15:04Z07:00"} {
		if t, err := time.Parse(layout, word); err == nil {
			return inCalendar(t, bad)
		}
	}
	for _, layout := range []string{"2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02"} {
		t, err := time.ParseInLocation(layout, word, now.Location())
		if err != nil {
			continue
		}
		if t.Format(layout) != word { // clocks were put forward over it
			return bad("there is no such time in the zone " + t.Format("MST"))
		}
		return inCalendar(t, bad)
	}
	return bad("it is in no form that is known here")
}

// inCalendar keeps to the years that the wire can carry.
func inCalendar(t time.Time, bad func(string) (time.Time, error)) (time.Time, error) {
	if y := t.UTC().Year(); y < 1970 || y > lastYear {
		return bad(fmt.Sprintf("the year %d is not between 1970 and %d", y, lastYear))
	}
	return t, nil
}

// lasting is a flag that holds a duration, written as everywhere else: 90m, 4h, 2d.
type lasting time.Duration

func durationFlag(d *time.Duration, usual time.Duration) *lasting {
	*d = usual
	return (*lasting)(d)
}

func (l *lasting) Type() string { return "duration" }
func (l *lasting) String() string {
	if *l == 0 {
		return "" // no default to show
	}
	return time.Duration(*l).String()
}

func (l *lasting) Set(text string) error {
	d, err := strictyaml.ParseDuration(text)
	if err != nil {
		return errors.New("it is not a duration such as 90m, 4h or 2d")
	}
	*l = lasting(d)
	return nil
}

// spanFlags are a beginning and an end, or how long it lasts.
type spanFlags struct{ from, until, lasts string }

func (s *spanFlags) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&s.from, "from", "now", "when it begins: "+strings.TrimPrefix(momentHint, "write "))
	f.StringVar(&s.until, "until", "", "when it ends, written like --from")
	f.StringVar(&s.lasts, "for", "", "instead of --until: how long it lasts, such as 4h or 2d")
}

// keyed refuses an idempotency key for times that are others at each call: the repeated call would be another request.
func (s *spanFlags) keyed() error {
	moves := func(text string) bool {
		word := strings.ToLower(strings.TrimSpace(text))
		return strings.HasPrefix(word, "+") || strings.HasPrefix(word, "in ")
	}
	if moves(s.from) || moves(s.until) || s.lasts != "" && strings.EqualFold(strings.TrimSpace(s.from), "now") {
		return failf(exitUsage, "give --until, and --from unless it is now, as points in time such as 2026-12-01T08:00:00Z, or leave out the key",
			"cannot use --idempotency-key with times that are counted from now: the same command asks for other times when it is repeated")
	}
	return nil
}

// read gives the two times; from is nil for now, so that it is the coordinator's.
func (s *spanFlags) read(now time.Time) (from, until *timestamppb.Timestamp, err error) {
	if (s.until == "") == (s.lasts == "") {
		return nil, nil, usagef("say when it ends with --until, or how long it lasts with --for")
	}
	begins, err := parseMoment(s.from, now)
	if err != nil {
		return nil, nil, err
	}
	if begins.Before(now) {
		return nil, nil, failf(exitUsage, "leave out --from for now", "cannot begin at %s: that is over", begins.UTC().Format("2006-01-02 15:04:05Z"))
	}
	if !begins.Equal(now) {
		from = timestamppb.New(begins)
	}
	if s.lasts != "" {
		d, err := strictyaml.ParseDuration(s.lasts)
		if err != nil || d <= 0 {
			return nil, nil, failf(exitUsage, "write 4h, 90m or 2d", "cannot read the duration %q", printable(s.lasts))
		}
		if ends := begins.Add(d); ends.UTC().Year() <= lastYear {
			return from, timestamppb.New(ends), nil
		}
		return nil, nil, failf(exitUsage, "write 4h, 90m or 2d", "cannot last %s: it would end after the year %d", printable(s.lasts), lastYear)
	}
	ends, err := parseMoment(s.until, now)
	if err == nil && !ends.After(begins) {
		err = failf(exitUsage, "+7d and the like count from now", "cannot end at %s: it begins at %s",
			ends.UTC().Format("2006-01-02 15:04:05Z"), begins.UTC().Format("2006-01-02 15:04:05Z"))
	}
	return from, timestamppb.New(ends), err
}
