package cloud

import (
	"errors"
	"io"
	"net/http"
)

// MaxAnswer is the most that is read of one answer, in bytes: pages are a tenth of it.
const MaxAnswer = 64 << 20

var errLong = errors.New("the answer is longer than any that a cloud gives")

// Bounded is a body of which no more than MaxAnswer can be read. Beyond that is an error, and no end: half an answer is none.
func Bounded(body io.ReadCloser) io.ReadCloser { return &bounded{body, MaxAnswer} }

type bounded struct {
	io.ReadCloser
	left int
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, errLong
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// Doer carries out requests; *http.Client does.
type Doer interface {
	Do(*http.Request) (*http.Response, error)
}

// BoundedDoer has answers bounded.
type BoundedDoer struct{ Doer }

// Do carries out a request.
func (d BoundedDoer) Do(r *http.Request) (*http.Response, error) {
	resp, err := d.Doer.Do(r)
	if err == nil && resp.Body != nil {
		resp.Body = Bounded(resp.Body)
	}
	return resp, err
}

// BoundedTransport has answers bounded.
type BoundedTransport struct{ http.RoundTripper }

// RoundTrip carries out a request.
func (t BoundedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.RoundTripper.RoundTrip(r)
	if err == nil && resp.Body != nil {
		resp.Body = Bounded(resp.Body)
	}
	return resp, err
}
