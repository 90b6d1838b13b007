package reclaim

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	google := func(b []byte) (Notice, error) { return parseGoogle(b, now) }
	azure := func(b []byte) (Notice, error) { return parseAzure(b, now) }
	for _, tt := range []struct {
		name  string
		parse func([]byte) (Notice, error)
		body  string
		at    string // "" is none, "error" is that it cannot be read
		text  string
	}{
		{"aws terminate", parseAWS, `{"action": "terminate", "time": "2026-03-01T12:02:00Z"}`, "12:02:00", "spot instance: terminate"},
		{"aws hibernate", parseAWS, `{"action":"hibernate","time":"2026-03-01T12:00:00Z"}`, "12:00:00", "spot instance: hibernate"},
		{"aws without time", parseAWS, `{"action":"terminate"}`, "error", ""},
		{"aws page", parseAWS, `<html>`, "error", ""},
		{"google no", google, "FALSE", "", ""},
		{"google yes", google, "TRUE\n", "12:00:30", "preempted"},
		{"google page", google, "<html>", "error", ""},
		{"azure none", azure, `{"DocumentIncarnation":1,"Events":[]}`, "", ""},
		{"azure preempt", azure, `{"Events":[{"EventId":"A","EventType":"Preempt","EventStatus":"Scheduled","NotBefore":"Sun, 01 Mar 2026 12:00:35 GMT"}]}`, "12:00:35", "scheduled event: Preempt"},
		{"azure begun", azure, `{"Events":[{"EventType":"Preempt","EventStatus":"Started","NotBefore":""}]}`, "12:00:00", "scheduled event: Preempt"},
		{"azure reboot", azure, `{"Events":[{"EventType":"Reboot","NotBefore":"Sun, 01 Mar 2026 12:15:00 GMT"}]}`, "", ""},
		{"azure first", azure, `{"Events":[{"EventType":"Terminate","NotBefore":"Sun, 01 Mar 2026 12:05:00 GMT"},{"EventType":"Preempt","NotBefore":"Sun, 01 Mar 2026 12:01:00 GMT"}]}`, "12:01:00", "scheduled event: Preempt"},
		{"azure time", azure, `{"Events":[{"EventType":"Preempt","NotBefore":"soon"}]}`, "error", ""},
	} {
		n, err := tt.parse([]byte(tt.body))
		got := ""
		switch {
		case err != nil:
			got = "error"
		case !n.At.IsZero():
			got = n.At.Format(time.TimeOnly)
		}
		if got != tt.at || n.Text != tt.text {
			t.Errorf("%s: %q %q, %v", tt.name, got, n.Text, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{`{"action":"terminate","time":"2026-03-01T12:02:00Z"}`, "TRUE", `{"Events":[{"EventType":"Preempt","NotBefore":"Sun, 01 Mar 2026 12:00:35 GMT"}]}`} {
		f.Add([]byte(s))
	}
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, parse := range []func([]byte) (Notice, error){parseAWS, func(b []byte) (Notice, error) { return parseGoogle(b, now) }, func(b []byte) (Notice, error) { return parseAzure(b, now) }} {
			if n, err := parse(b); (err != nil || n.At.IsZero()) && n != (Notice{}) || len(n.Text) > 100 {
				t.Errorf("%q gives %+v, %v", b, n, err)
			}
		}
	})
}

// service answers as the three clouds do: once told, with a notice.
func service(t *testing.T, told *atomic.Bool, tokens *atomic.Int64) string {
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /latest/api/token", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "t%d", tokens.Add(1)) })
	mux.HandleFunc("GET /latest/meta-data/spot/instance-action", func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("X-aws-ec2-metadata-token") == "t1": // it has expired meanwhile
			w.WriteHeader(http.StatusUnauthorized)
		case !told.Load():
			http.NotFound(w, r)
		default:
			fmt.Fprint(w, `{"action":"terminate","time":"2026-03-01T12:02:00Z"}`)
		}
	})
	mux.HandleFunc("GET /computeMetadata/v1/instance/preempted", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Metadata-Flavor") != "Google" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		fmt.Fprint(w, map[bool]string{true: "TRUE", false: "FALSE"}[told.Load()])
	})
	mux.HandleFunc("GET /metadata/scheduledevents", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Metadata") != "true" || r.URL.Query().Get("api-version") == "" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		if !told.Load() {
			fmt.Fprint(w, `{"DocumentIncarnation":1,"Events":[]}`)
			return
		}
		fmt.Fprint(w, `{"DocumentIncarnation":2,"Events":[{"EventType":"Preempt","EventStatus":"Scheduled","NotBefore":"Sun, 01 Mar 2026 12:00:35 GMT"}]}`)
	})
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return srv.URL
}

// TestWatch: nothing is told before there is a notice, each is told once, and its withdrawal too.
func TestWatch(t *testing.T) {
	for _, cloud := range Clouds() {
		t.Run(cloud, func(t *testing.T) {
			t.Parallel()
			var told atomic.Bool
			var tokens atomic.Int64
			heard := make(chan Notice, 100)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() {
				done <- Watch(ctx, Options{Cloud: cloud, Endpoint: service(t, &told, &tokens), Every: time.Millisecond, Log: slog.New(slog.DiscardHandler), Tell: func(n Notice) { heard <- n }})
			}()
			if n := <-heard; n != (Notice{}) {
				t.Errorf("at first: %+v", n)
			}
			select {
			case n := <-heard:
				t.Errorf("before there is one: %+v", n)
			case <-time.After(50 * time.Millisecond):
			}
			told.Store(true)
			if n := <-heard; n.At.IsZero() || n.Text == "" {
				t.Errorf("heard %+v", n)
			}
			time.Sleep(30 * time.Millisecond)
			told.Store(false)
			if n := <-heard; n != (Notice{}) {
				t.Errorf("after it was withdrawn: %+v", n)
			}
			cancel()
			if err := <-done; err != nil || len(heard) != 0 {
				t.Errorf("%v, and %d more notices", err, len(heard))
			}
		})
	}
	if err := Watch(t.Context(), Options{Cloud: "oci"}); err == nil {
		t.Error("a cloud that gives no notice is watched")
	}
}
