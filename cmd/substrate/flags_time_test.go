package main

import (
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // the zones that the tests name
)

func berlin(t testing.TB) *time.Location {
	t.Helper()
	zone, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	return zone
}

func TestParseMoment(t *testing.T) {
	now := time.Date(2026, 11, 30, 9, 0, 0, 0, berlin(t))
	for text, want := range map[string]string{ // in UTC; an error begins with !
		"now":                           "2026-11-30T08:00:00Z",
		" NOW ":                         "2026-11-30T08:00:00Z",
		"+7d":                           "2026-12-07T08:00:00Z",
		"+1d12h":                        "2026-12-01T20:00:00Z",
		"in 2h":                         "2026-11-30T10:00:00Z",
		"in 2h 30m":                     "2026-11-30T10:30:00Z",
		"+0s":                           "2026-11-30T08:00:00Z",
		"2026-12-01T08:00:00Z":          "2026-12-01T08:00:00Z",
		"2026-12-01t08:00:00z":          "2026-12-01T08:00:00Z",
		"2026-12-01T08:00:00.5+01:00":   "2026-12-01T07:00:00.5Z",
		"2026-12-01 08:00:00Z":          "2026-12-01T08:00:00Z", // as it is printed
		"2026-12-01 08:00+02:00":        "2026-12-01T06:00:00Z",
		"2026-12-01 08:00":              "2026-12-01T07:00:00Z",
		"2026-12-01T08:00:05":           "2026-12-01T07:00:05Z",
		"2026-07-01 08:00":              "2026-07-01T06:00:00Z", // in summer
		"2026-12-01":                    "2026-11-30T23:00:00Z",
		"2026-03-29 02:30":              "!there is no such time in the zone CEST",
		"2026-02-30":                    "!in no form",
		"2026-12-01 25:00":              "!in no form",
		"08:00":                         "!in no form",
		"tomorrow":                      "!in no form",
		"":                              "!in no form",
		"+":                             "!a duration",
		"+-7d":                          "!a duration",
		"+7":                            "!a duration",
		"in a week":                     "!a duration",
		"-7d":                           "!in no form",
		"1969-12-31T23:59:59Z":          "!the year 1969",
		"0001-01-01 00:00":              "!the year",
		"1764489600":                    "!in no form",
		strings.Repeat("2026-12-01", 9): "!it is too long",
		"2026-12-01 08:00\x00":          "!in no form",
	} {
		got, err := parseMoment(text, now)
		if wrong, bad := strings.CutPrefix(want, "!"); bad {
			if err == nil || !strings.Contains(err.Error(), wrong) || exitCode(err) != exitUsage {
				t.Errorf("%q: %v, %v, want %q", text, got, err, wrong)
			}
			continue
		}
		if err != nil || got.UTC().Format(time.RFC3339Nano) != want {
			t.Errorf("%q: %v, %v, want %s", text, got.UTC(), err, want)
		}
	}
}

func TestSpanFlags(t *testing.T) {
	now := time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		in   spanFlags
		want string // an error begins with !
	}{
		"until":          {spanFlags{"now", "+4h", ""}, "now to 13:00"},
		"for":            {spanFlags{"+1h", "", "4h"}, "10:00 to 14:00"},
		"both":           {spanFlags{"now", "+4h", "4h"}, "!say when it ends"},
		"neither":        {spanFlags{"now", "", ""}, "!say when it ends"},
		"over":           {spanFlags{"2026-11-29", "+4h", ""}, "!that is over"},
		"ends before":    {spanFlags{"+7d", "+4h", ""}, "!cannot end at"},
		"ends at once":   {spanFlags{"+4h", "+4h", ""}, "!cannot end at"},
		"nothing long":   {spanFlags{"now", "", "0s"}, "!cannot read the duration"},
		"a bad duration": {spanFlags{"now", "", "4"}, "!cannot read the duration"},
		"a bad end":      {spanFlags{"now", "later", ""}, "!cannot read the time"},
		"a bad from":     {spanFlags{"soon", "+4h", ""}, "!cannot read the time"},
	} {
		from, until, err := tt.in.read(now)
		if wrong, bad := strings.CutPrefix(tt.want, "!"); bad {
			if err == nil || !strings.Contains(err.Error(), wrong) || exitCode(err) != exitUsage {
				t.Errorf("%s: %v, want %q", name, err, wrong)
			}
			continue
		}
		begins := "now"
		if from != nil {
			begins = from.AsTime().Format("15:04")
		}
		if got := begins + " to " + until.AsTime().Format("15:04"); err != nil || got != tt.want {
			t.Errorf("%s: %s, %v, want %s", name, got, err, tt.want)
		}
	}
}

// FuzzParseMoment: no input panics, what is read is within the calendar, and it reads the same again as it is printed.
func FuzzParseMoment(f *testing.F) {
	for _, text := range []string{"now", "+7d", "in 2h", "2026-12-01 08:00", "2026-12-01T08:00:00+05:30", "2026-03-29 02:30", "9999-12-31T23:59:59Z", "+36500d"} {
		f.Add(text)
	}
	now := time.Date(2026, 11, 30, 9, 0, 0, 0, berlin(f))
	f.Fuzz(func(t *testing.T, text string) {
		got, err := parseMoment(text, now)
		if err != nil {
			return
		}
		if y := got.UTC().Year(); y < 1970 || y > 9999 {
			t.Fatalf("%q is in the year %d", text, y)
		}
		got = got.Truncate(time.Second)
		again, err := parseMoment(got.UTC().Format("2006-01-02 15:04:05Z"), now)
		if err != nil || !again.Equal(got) {
			t.Errorf("%q is %v, read again %v, %v", text, got, again, err)
		}
	})
}
