package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// startDev runs a whole coordinator in development mode and returns the address of its API.
func startDev(t *testing.T) (api string) {
	t.Helper()
	dir := t.TempDir()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- serve(ctx, settings{dataDir: dir, apiListen: "127.0.0.1:0", agentListen: "127.0.0.1:0", role: roleOrchestrate, dev: true}, slog.New(slog.DiscardHandler))
	}()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("the coordinator ended: %v", err)
		}
	})
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		data, err := os.ReadFile(filepath.Join(dir, "ready.json"))
		if err != nil {
			continue
		}
		var ready struct{ API string }
		if err := json.Unmarshal(data, &ready); err != nil {
			t.Fatal(err)
		}
		return ready.API
	}
	t.Fatal("the coordinator is not ready")
	return ""
}

// TestAPIBounds: the users' port has the bounds of server.HTTPServer, and speaks HTTP/2 in clear text.
func TestAPIBounds(t *testing.T) {
	api := startDev(t)
	var clear http.Protocols
	clear.SetUnencryptedHTTP2(true)
	for name, tt := range map[string]struct {
		protocols *http.Protocols
		header    int
		want      int
	}{
		"plain":            {nil, 100, http.StatusOK},
		"large header":     {nil, 100 << 10, http.StatusRequestHeaderFieldsTooLarge},
		"HTTP/2 in clear":  {&clear, 100, http.StatusOK},
		"HTTP/2, too much": {&clear, 100 << 10, 0}, // ends the connection
	} {
		t.Run(name, func(t *testing.T) {
			client := &http.Client{Transport: &http.Transport{Protocols: tt.protocols}}
			defer client.CloseIdleConnections()
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, api+"/v1/openapi.json", nil)
			if err != nil {
				t.Fatal(err)
			}
			for range 10 {
				req.Header.Add("X-Padding", strings.Repeat("x", tt.header/10))
			}
			res, err := client.Do(req)
			if err != nil {
				if tt.want != 0 {
					t.Error(err)
				}
				return
			}
			defer res.Body.Close()
			if res.StatusCode != tt.want {
				t.Errorf("%s, want %d", res.Status, tt.want)
			}
		})
	}
}
