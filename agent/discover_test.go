package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"substrate/hwinfo"
	"substrate/proto/agentv1"
)

const nvidia = "nvidia.com/gpu"

// bind gives a GPU of gpuPair its driver.
func bind(t *testing.T, root, bus string) {
	t.Helper()
	if err := os.Symlink("../../../../bus/pci/drivers/nvidia", filepath.Join(root, "sys/bus/pci/devices/0000:"+bus+":00.0/driver")); err != nil {
		t.Error(err)
	}
}

func noAnswers(context.Context, string) (hwinfo.Answers, []hwinfo.Warning) { return nil, nil }

// TestDiscoverWaits: the last report is made when all is there that is expected and stays so, or when the time is over, and then it says what is missing.
func TestDiscoverWaits(t *testing.T) {
	expects := func(n uint32, some ...string) *agentv1.Look {
		l := &agentv1.Look{Devices: map[string]uint32{}, Some: some, Within: durationpb.New(20 * time.Minute)}
		if n > 0 {
			l.Devices[nvidia] = n
		}
		return l
	}
	tests := []struct {
		name     string
		gpus     bool
		wants    *agentv1.Look
		drivers  []time.Duration // when the GPUs get theirs
		from, to time.Duration   // the last report comes between
		has      uint32
		misses   string
		hangs    time.Duration // programs take so long
	}{
		{"nothing is expected or there", false, expects(0), nil, 0, time.Second, 0, "", 0},
		{"both drivers come late", true, expects(2), []time.Duration{time.Minute, 2 * time.Minute}, 2 * time.Minute, 2*time.Minute + 10*time.Second, 2, "", 0},
		{"one driver never comes", true, expects(2), []time.Duration{time.Minute}, 20 * time.Minute, 20*time.Minute + time.Second, 1, "1 of 2 nvidia.com/gpu, 1 GPUs without a driver", 0},
		{"more are expected than the machine has", true, expects(8), []time.Duration{0, 0}, 20 * time.Minute, 20*time.Minute + time.Second, 2, "2 of 8 nvidia.com/gpu", 0},
		{"some are expected", true, expects(0, nvidia), []time.Duration{time.Minute, 70 * time.Second}, 70 * time.Second, 80 * time.Second, 2, "", 0},
		{"some are expected and none come", false, expects(0, "amd.com/gpu"), nil, 20 * time.Minute, 20*time.Minute + time.Second, 0, "no amd.com/gpu", 0},
		{"none is expected and they are there", true, expects(0), []time.Duration{time.Minute, time.Minute}, time.Minute, 70 * time.Second, 2, "", 0},
		{"programs hang", true, expects(2), []time.Duration{time.Minute}, 20 * time.Minute, 20*time.Minute + 2*time.Second, 1, "1 of 2 nvidia.com/gpu", time.Hour},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				root := t.TempDir()
				if tt.gpus {
					root = gpuPair(t)
				}
				for i, after := range tt.drivers {
					bus := []string{"10", "20"}[i]
					time.AfterFunc(after, func() { bind(t, root, bus) })
				}
				a := looker(t, root, tt.hangs)
				defer a.fence.close()
				defer a.table.close()
				began := time.Now()
				if err := a.look.welcomed(tt.wants); err != nil {
					t.Fatal(err)
				}
				time.AfterFunc(10*time.Minute, func() { // the coordinator's next life says once more how long; that moves nothing
					_ = a.look.welcomed(&agentv1.Look{Devices: tt.wants.Devices, Some: tt.wants.Some, Within: durationpb.New(time.Hour)})
				})
				a.watch(t.Context())
				if took := time.Since(began); took < tt.from || took > tt.to {
					t.Errorf("the last report came after %s, want %s to %s", took, tt.from, tt.to)
				}
				sent := nodeReports{}
				h := a.node.news(&sent)[0].GetHardware()
				said := ""
				for _, w := range h.GetWarnings() {
					if w.GetSource() == "discover" {
						said = w.GetMessage()
					}
				}
				has, _ := a.node.usable()
				if !h.GetFinal() || has[nvidia] != tt.has || (tt.misses == "") != (said == "") || !strings.Contains(said, tt.misses) {
					t.Errorf("final %v, %d GPUs, %q", h.GetFinal(), has[nvidia], said)
				}
			})
		})
	}
}

// looker is an agent for a look; programs take so long there.
func looker(t *testing.T, root string, hangs time.Duration) *Agent {
	t.Helper()
	a, err := prepare(Options{Coordinator: "x:1", TLS: &tls.Config{}, Dir: t.TempDir(), Root: root, Log: slog.New(slog.DiscardHandler),
		Ask: func(ctx context.Context, _ string) (hwinfo.Answers, []hwinfo.Warning) {
			select {
			case <-time.After(hangs):
			case <-ctx.Done():
			}
			return nil, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	a.look = &look{end: func(error) {}, welcome: make(chan struct{})}
	return a
}

// lookAround starts Discover against a coordinator.
func lookAround(t *testing.T, c *coordinator, creds *tls.Config, change func(*Options)) (done chan error, stop context.CancelFunc) {
	t.Helper()
	opts := Options{Coordinator: c.address, TLS: creds, Dir: t.TempDir(), Root: t.TempDir(), Log: slog.New(slog.DiscardHandler), Ask: noAnswers, ReconnectMax: 20 * time.Millisecond}
	if change != nil {
		change(&opts)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done = make(chan error, 1)
	go func() { done <- Discover(ctx, opts) }()
	t.Cleanup(cancel)
	return done, cancel
}

func final(m *agentv1.FromAgent) (*agentv1.HardwareReport, bool) {
	return m.GetHardware(), m.GetHardware().GetFinal()
}

func awaitEnd(t *testing.T, done chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(10 * time.Second):
		t.Fatal("it does not end")
		return nil
	}
}

func taken(digest []byte) *agentv1.ToAgent {
	return &agentv1.ToAgent{Message: &agentv1.ToAgent_Ack{Ack: &agentv1.Ack{Hardware: digest}}}
}

// TestDiscoverEnds: with the coordinator's word that the report is stored, not before, and over as many streams as that takes.
func TestDiscoverEnds(t *testing.T) {
	c, creds := serve(t)
	c.look = &agentv1.Look{Within: durationpb.New(time.Minute)}
	done, _ := lookAround(t, c, creds, nil)
	s := c.stream()
	if !s.hello.GetDiscovers() || len(s.hello.GetRuntimes()) != 0 {
		t.Errorf("hello %v", s.hello)
	}
	first := next(t, s, final)
	s.out <- start("w/a#1", 1, "touch nothing") // it runs nothing
	s.out <- taken([]byte("another report"))
	s.end <- status.Error(codes.Unavailable, "the coordinator dies")
	s = c.stream()
	again := next(t, s, final)
	if string(first.GetDigest()) != string(again.GetDigest()) || len(again.GetFactsJson()) == 0 {
		t.Error("the report after the stream broke is another one")
	}
	select {
	case err := <-done:
		t.Fatalf("ended before the report was stored: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	s.out <- taken(again.GetDigest())
	if err := awaitEnd(t, done); err != nil {
		t.Error(err)
	}
}

// TestDiscoverFails: where nobody waits for the report, there is nothing to wait for.
func TestDiscoverFails(t *testing.T) {
	tests := []struct {
		name string
		look *agentv1.Look
		does func(*stream, context.CancelFunc)
		want string
	}{
		{"a node for work", nil, func(*stream, context.CancelFunc) {}, "did not launch this node for a look"},
		{"the node is forgotten", &agentv1.Look{}, func(s *stream, _ context.CancelFunc) {
			s.end <- status.Error(codes.Unauthenticated, "the certificate is revoked")
		}, "cannot report hardware: the stream ended: the certificate is revoked"},
		{"told to stop", &agentv1.Look{}, func(_ *stream, stop context.CancelFunc) { stop() }, "told to stop before"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, creds := serve(t)
			c.look = tt.look
			done, stop := lookAround(t, c, creds, nil)
			tt.does(c.stream(), stop)
			if err := awaitEnd(t, done); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
	if err := Discover(t.Context(), Options{}); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("without options: %v", err)
	}
}

// TestLateDriver: an agent for work reads the hardware again while a GPU has no driver.
func TestLateDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := gpuPair(t)
		ctx, cancel := context.WithCancel(t.Context())
		n, first := newNode(root, nil), make(chan struct{})
		go n.ask(ctx, noAnswers, first)
		n.readFirst(ctx, first)
		time.AfterFunc(3*time.Minute, func() { bind(t, root, "10"); bind(t, root, "20") })
		time.Sleep(2 * time.Minute)
		if has, driverless := n.usable(); has[nvidia] != 0 || driverless != 2 {
			t.Errorf("before: %v, %d without a driver", has, driverless)
		}
		reports := n.reports.hardware
		time.Sleep(time.Minute + askSoon + time.Second)
		if has, driverless := n.usable(); has[nvidia] != 2 || driverless != 0 || n.reports.hardware == reports {
			t.Errorf("after: %v, %d without a driver, %d reports", has, driverless, n.reports.hardware-reports)
		}
		cancel()
		synctest.Wait()
	})
}
