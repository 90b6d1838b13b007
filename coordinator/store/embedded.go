package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"golang.org/x/sys/unix"
)

const (
	// DefaultQuota is how much the embedded store may hold when EmbeddedOptions does not say.
	DefaultQuota = 4 << 30
	// DefaultReserve is the free disk space below which the embedded store takes only deletes.
	DefaultReserve = 256 << 20

	embeddedPrefix = "substrate/"
	openTimeout    = 60 * time.Second
	lockFile       = "lock"

	// A restart reads into memory what came after the last snapshot of the log: this many
	// transactions of up to embeddedTxnBytes. Snapshots are tiny, they only name a position.
	// Entries kept for followers stay few, as there are no followers.
	snapshotCount  = 500
	catchUpEntries = 10
	keepFiles      = 2
	// defragAtOpen is how much a defragmentation at open must give back to be worth the wait.
	defragAtOpenMB = 128
)

// EmbeddedOptions says where and how large the embedded store is.
type EmbeddedOptions struct {
	// Dir is created with mode 0700. One process at a time may use it.
	Dir string
	// Logger gets etcd's warnings; nil drops them.
	Logger *slog.Logger
	// Quota is the most bytes the store may hold, DefaultQuota if 0. History that was not
	// compacted yet counts.
	Quota int64
	// Reserve is the free disk space kept, DefaultReserve if 0.
	Reserve int64

	// listen is for tests: client URLs and etcd's own limits, to play an external server.
	listen []url.URL
}

// Embedded is a Store on an etcd server inside this process. No other process can reach it: it
// listens nowhere. A disk that fails under it ends the process, because nothing written after
// that could be trusted.
type Embedded struct {
	*client
	server *embed.Etcd
	lock   *os.File
	opts   EmbeddedOptions

	stop    context.CancelFunc
	done    sync.WaitGroup
	kick    chan struct{} // the store is full: compact now
	lowDisk atomic.Bool
	// pending counts bytes written since the server last told a new size.
	pending  atomic.Int64
	lastSize atomic.Int64
}

var _ Store = (*Embedded)(nil)

// OpenEmbedded starts the server and returns when it has all that was ever acknowledged.
func OpenEmbedded(ctx context.Context, o EmbeddedOptions) (*Embedded, error) {
	if o.Quota == 0 {
		o.Quota = DefaultQuota
	}
	if o.Reserve == 0 {
		o.Reserve = DefaultReserve
	}
	s, err := openEmbedded(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("cannot open store %s: %w", o.Dir, err)
	}
	return s, nil
}

func openEmbedded(ctx context.Context, o EmbeddedOptions) (*Embedded, error) {
	if o.Dir == "" {
		return nil, errors.New("no directory given")
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.Chmod(o.Dir, 0o700); err != nil { // it may have existed with other bits
		return nil, err
	}
	lock, err := lockDir(o.Dir)
	if err != nil {
		return nil, err
	}
	if err := checkDatabase(filepath.Join(o.Dir, "etcd", "member", "snap", "db")); err != nil {
		lock.Close()
		return nil, fmt.Errorf("its database is damaged: %w", err)
	}
	s, err := launch(ctx, o, lock)
	if errors.Is(err, errNotReady) && !founded(o.Dir) {
		// Killed while it made the store for the first time: the server waits for itself for ever. Nothing was
		// ever acknowledged, since no open has returned; the remains are kept aside all the same.
		if err = os.Rename(filepath.Join(o.Dir, "etcd"), filepath.Join(o.Dir, fmt.Sprintf("etcd.unfinished-%d", os.Getpid()))); err == nil {
			s, err = launch(ctx, o, lock)
		}
	}
	if err != nil {
		lock.Close()
		return nil, err
	}
	return s, nil
}

// launch starts the server and waits until it serves.
func launch(ctx context.Context, o EmbeddedOptions, lock *os.File) (*Embedded, error) {
	server, err := startServer(o)
	if err != nil {
		return nil, err
	}
	s := &Embedded{server: server, lock: lock, opts: o, kick: make(chan struct{}, 1)}
	if err := s.begin(ctx); err != nil {
		server.Close()
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(o.Dir, foundedFile), nil, 0o600); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// foundedFile stands in a directory whose store has served once.
const foundedFile = "founded"

// unfoundedTimeout is how long a store that has never served may take, a fresh one included.
const unfoundedTimeout = 30 * time.Second

var errNotReady = errors.New("the server is not ready")

func founded(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, foundedFile))
	return err == nil
}

// begin waits for the server and brings the key space in order.
func (s *Embedded) begin(ctx context.Context) error {
	within := openTimeout
	if !founded(s.opts.Dir) {
		within = unfoundedTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	select {
	case <-s.server.Server.ReadyNotify():
	case <-s.server.Server.StopNotify():
		return errors.New("the server stopped while it started")
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", errNotReady, ctx.Err())
	}
	l := embeddedLimits()
	if s.opts.listen != nil {
		l = externalLimits()
	}
	s.client = newClient(v3client.New(s.server.Server), embeddedPrefix, l)
	s.client.local = true
	s.client.admit, s.client.wrote = s.admitBytes, s.noteWrite
	if err := s.checkSchema(ctx, schemaVersion, migrations()); err != nil {
		return err
	}
	// The lock makes us the only writer, so what has no manifest now never gets one.
	if _, err := s.sweep(ctx, true); err != nil {
		return fmt.Errorf("remove left-over pieces: %w", err)
	}
	s.checkDisk()
	life, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.done.Go(func() { s.maintain(life) })
	return nil
}

// Close implements Store.
func (s *Embedded) Close() error {
	if !s.markClosed() {
		return nil
	}
	s.stop()
	s.done.Wait()
	_ = s.etcd.Close() // in-process: only its own context ends
	s.server.Close()
	if err := s.lock.Close(); err != nil {
		return fmt.Errorf("cannot close store %s: %w", s.opts.Dir, err)
	}
	return nil
}

func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.New("in use by another process")
		}
		return nil, fmt.Errorf("lock: %w", err)
	}
	return f, nil
}

// startServer turns etcd's panics on damaged files into an error.
func startServer(o EmbeddedOptions) (server *embed.Etcd, err error) {
	defer func() {
		if r := recover(); r != nil {
			server, err = nil, fmt.Errorf("its files are damaged: %v", r)
		}
	}()
	server, err = embed.StartEtcd(serverConfig(o))
	if err != nil {
		return nil, fmt.Errorf("start its server: %w", err)
	}
	return server, nil
}

func serverConfig(o EmbeddedOptions) *embed.Config {
	c := embed.NewConfig()
	c.Name = "substrate" // a fixed name and URL: the directory may move to another machine
	c.Dir = filepath.Join(o.Dir, "etcd")
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	c.ListenPeerUrls, c.ListenClientUrls, c.AdvertiseClientUrls = nil, nil, nil
	c.EnableGRPCGateway = false
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zapLogger(o.Logger))
	c.SnapshotCount = snapshotCount
	c.SnapshotCatchUpEntries = catchUpEntries
	c.MaxSnapFiles, c.MaxWalFiles = keepFiles, keepFiles
	c.BackendFreelistType = "map"
	c.BootstrapDefragThresholdMegabytes = defragAtOpenMB
	// Our own quota counts what is in use, not the file with its free pages, and refuses before
	// anything is written; etcd's is off.
	c.QuotaBackendBytes = -1
	c.MaxTxnOps = embeddedTxnOps
	c.MaxRequestBytes = embeddedRequestBytes
	c.WarningApplyDuration = time.Second
	c.WarningUnaryRequestDuration = 2 * time.Second
	c.UnsafeNoFsync = false
	if o.listen != nil {
		c.ListenClientUrls, c.AdvertiseClientUrls = o.listen, o.listen
		c.MaxTxnOps, c.MaxRequestBytes = embed.DefaultMaxTxnOps, embed.DefaultMaxRequestBytes
	}
	return c
}

// checkDatabase reads the database from first to last page before etcd does, which would crash on
// damage instead of saying so.
func checkDatabase(path string) (err error) {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	old := debug.SetPanicOnFault(true) // a page beyond the end of the file
	defer debug.SetPanicOnFault(old)
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		return err
	}
	defer db.Close()
	return db.View(func(tx *bolt.Tx) error {
		if tx.Size() > info.Size() {
			return fmt.Errorf("%d bytes of %d are there", info.Size(), tx.Size())
		}
		return tx.ForEach(checkBucket)
	})
}

func checkBucket(name []byte, b *bolt.Bucket) error {
	var last []byte
	return b.ForEach(func(k, _ []byte) error {
		if last != nil && string(k) <= string(last) {
			return fmt.Errorf("keys of %q are out of order", name)
		}
		last = append(last[:0], k...)
		return nil
	})
}
