package cloud

import (
	"net/http"
	"strconv"
	"time"

	"substrate/coordinator/provision"
)

const (
	// UnsaidPause is for how long nothing more is asked when a cloud was asked too often and does not say for how long: its buckets fill within seconds.
	UnsaidPause = 5 * time.Second
	// tolerated is by how much clocks may differ before a cloud refuses what is signed.
	tolerated = 5 * time.Minute
)

// answer is an error with what matters of its text.
type answer struct {
	text string
	err  error
}

func (a *answer) Error() string { return a.text }
func (a *answer) Unwrap() error { return a.err }

// Answer is err with another text: an SDK's own carries ids of requests and each of its own layers.
func Answer(text string, err error) error { return &answer{text, err} }

// Throttled says of a call that came too often when the next may: as the answer does, in seconds below an hour, else UnsaidPause.
func Throttled(out *provision.Error, header http.Header) {
	out.After = UnsaidPause
	if s, err := strconv.Atoi(header.Get("Retry-After")); err == nil && s > 0 && s < 3600 {
		out.After = time.Duration(s) * time.Second
	}
}

// Skewed is what a refusal of credentials comes from when the clock here is off by the date of the answer; nil when it is not. It wraps refusal.
func Skewed(op string, refusal error, header http.Header, now time.Time) *provision.Error {
	theirs, err := http.ParseTime(header.Get("Date"))
	ahead := now.Sub(theirs)
	if err != nil || ahead <= tolerated && ahead >= -tolerated {
		return nil
	}
	e := provision.Errorf(provision.FaultClockSkew, op, "the clock here is %+.0f seconds off the provider's: %w", ahead.Seconds(), refusal)
	e.Hint = "set the coordinator's clock; its credentials may well be good"
	return e
}
