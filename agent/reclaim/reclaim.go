// Package reclaim hears from a cloud's metadata service that it takes the machine back, as it does with spot instances. It asks only where it was told
// which cloud that is, and decides nothing: what becomes of the work is the coordinator's to say.
package reclaim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"
)

const (
	// Every is how often the services are asked: AWS says two minutes before, Azure and Google half a minute.
	Every      = 5 * time.Second
	askWithin  = 2 * time.Second
	longest    = time.Minute // between two questions, where the service does not answer
	maxAnswer  = 64 << 10
	tokenLife  = 6 * time.Hour
	googleEnds = 30 * time.Second // from the word to the end, as Google documents it
)

// Notice is what a cloud has said. The zero one is that it says nothing, or nothing any more.
type Notice struct {
	At   time.Time // when the machine goes
	Text string    // in the cloud's words
}

// is reports whether a notice says what one before did. A later time does: it may be worked out anew from each answer.
func (n Notice) is(before Notice) bool {
	if n.At.IsZero() || before.At.IsZero() {
		return n.At.IsZero() == before.At.IsZero()
	}
	return n.Text == before.Text && !n.At.Before(before.At)
}

// Options are where to ask and whom to tell.
type Options struct {
	Cloud    string        // aws, gcp or azure
	Endpoint string        // default: the link-local address that all of them have
	Every    time.Duration // default Every
	Log      *slog.Logger
	Tell     func(Notice) // each time that it is another one
}

// Clouds are those that give notice to the machine itself.
func Clouds() []string { return []string{"aws", "azure", "gcp"} }

// Watch asks until ctx ends.
func Watch(ctx context.Context, o Options) error {
	w := &watcher{o: o, client: &http.Client{Timeout: askWithin, Transport: &http.Transport{DisableKeepAlives: true}}} // and no proxy: it is this machine's
	if o.Endpoint == "" {
		w.o.Endpoint = "http://169.254.169.254"
	}
	if o.Every <= 0 {
		w.o.Every = Every
	}
	ask := map[string]func(context.Context) (Notice, error){"aws": w.aws, "gcp": w.google, "azure": w.azure}[o.Cloud]
	if ask == nil {
		return fmt.Errorf("cannot watch for notices of cloud %q: expected one of %s", o.Cloud, strings.Join(Clouds(), ", "))
	}
	pause, failed := w.o.Every, false
	var last Notice
	told := false // that nothing is said is told once: an agent of before may have heard something
	for {
		switch n, err := ask(ctx); {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			if !failed {
				o.Log.Warn("the cloud's metadata service does not answer; a notice that the machine is taken back would not be heard", "err", err)
			}
			failed, pause = true, min(2*pause, longest)
		default:
			failed, pause = false, w.o.Every
			if !told || !n.is(last) {
				last, told = n, true
				o.Tell(n)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

type watcher struct {
	o      Options
	client *http.Client
	token  string
	until  time.Time
}

// errNone is an answer that there is nothing to tell of.
var errNone = errors.New("there is none")

func (w *watcher) get(ctx context.Context, method, path string, header ...string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, w.o.Endpoint+path, nil)
	if err != nil {
		return nil, err
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := w.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	switch {
	case err != nil:
		return nil, err
	case resp.StatusCode == http.StatusNotFound:
		return nil, errNone
	case resp.StatusCode != http.StatusOK:
		w.token = "" // it may have expired
		return nil, fmt.Errorf("%s %s: %s", method, path, resp.Status)
	}
	return body, nil
}

// aws asks version 2 of EC2's service, which takes a token.
func (w *watcher) aws(ctx context.Context) (Notice, error) {
	if w.token == "" || time.Now().After(w.until) {
		token, err := w.get(ctx, http.MethodPut, "/latest/api/token", "X-aws-ec2-metadata-token-ttl-seconds", fmt.Sprint(int(tokenLife.Seconds())))
		if err != nil {
			return Notice{}, err
		}
		w.token, w.until = string(token), time.Now().Add(tokenLife/2)
	}
	body, err := w.get(ctx, http.MethodGet, "/latest/meta-data/spot/instance-action", "X-aws-ec2-metadata-token", w.token)
	if errors.Is(err, errNone) {
		return Notice{}, nil
	}
	if err != nil {
		return Notice{}, err
	}
	return parseAWS(body)
}

// parseAWS reads a spot instance's action. One that hibernates is gone for us as well.
func parseAWS(body []byte) (Notice, error) {
	var a struct {
		Action string    `json:"action"`
		Time   time.Time `json:"time"`
	}
	if err := json.Unmarshal(body, &a); err != nil {
		return Notice{}, fmt.Errorf("cannot read the spot instance's action: %w", err)
	}
	if a.Time.IsZero() {
		return Notice{}, errors.New("cannot read the spot instance's action: it has no time")
	}
	return Notice{a.Time.UTC(), "spot instance: " + clean(a.Action)}, nil
}

func (w *watcher) google(ctx context.Context) (Notice, error) {
	body, err := w.get(ctx, http.MethodGet, "/computeMetadata/v1/instance/preempted", "Metadata-Flavor", "Google")
	if errors.Is(err, errNone) {
		return Notice{}, nil
	}
	if err != nil {
		return Notice{}, err
	}
	return parseGoogle(body, time.Now())
}

// parseGoogle reads whether a machine is being preempted; when it goes is not said.
func parseGoogle(body []byte, now time.Time) (Notice, error) {
	switch text := strings.TrimSpace(string(body)); text {
	case "TRUE":
		return Notice{now.UTC().Add(googleEnds), "preempted"}, nil
	case "FALSE":
		return Notice{}, nil
	default:
		return Notice{}, fmt.Errorf("cannot read whether the machine is preempted: %q, expected TRUE or FALSE", text[:min(len(text), 40)])
	}
}

func (w *watcher) azure(ctx context.Context) (Notice, error) {
	body, err := w.get(ctx, http.MethodGet, "/metadata/scheduledevents?api-version=2020-07-01", "Metadata", "true")
	if errors.Is(err, errNone) {
		return Notice{}, nil
	}
	if err != nil {
		return Notice{}, err
	}
	return parseAzure(body, time.Now())
}

// parseAzure reads the scheduled events of a machine: the first that ends it counts.
func parseAzure(body []byte, now time.Time) (Notice, error) {
	var list struct {
		Events []struct {
			EventType   string `json:"EventType"`
			EventStatus string `json:"EventStatus"`
			NotBefore   string `json:"NotBefore"`
		} `json:"Events"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return Notice{}, fmt.Errorf("cannot read scheduled events: %w", err)
	}
	var out Notice
	for _, e := range list.Events {
		if e.EventType != "Preempt" && e.EventType != "Terminate" {
			continue
		}
		at := now.UTC() // it has begun
		if e.NotBefore != "" {
			var err error
			if at, err = time.Parse(time.RFC1123, e.NotBefore); err != nil {
				return Notice{}, fmt.Errorf("cannot read scheduled events: NotBefore %q", clean(e.NotBefore))
			}
		}
		if out.At.IsZero() || at.Before(out.At) {
			out = Notice{at.UTC(), "scheduled event: " + e.EventType}
		}
	}
	return out, nil
}

// clean is a text of elsewhere, fit for an event.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return -1
		}
		return r
	}, s)
	return s[:min(len(s), 64)]
}
