package store

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	dialTimeout   = 10 * time.Second
	keepAliveTime = 20 * time.Second
)

// ExternalOptions says which etcd cluster to use, and which part of it.
type ExternalOptions struct {
	Endpoints []string
	// TLS is nil only for a server on this machine.
	TLS                *tls.Config
	Username, Password string
	// Prefix keeps apart several users of one cluster; "substrate/" if empty.
	Prefix string
	// Logger gets the client's warnings; nil drops them.
	Logger *slog.Logger
}

// External is a Store on an etcd cluster of its own. Quota, compaction and defragmentation are
// that cluster's business.
type External struct {
	*client
	stop context.CancelFunc
	done sync.WaitGroup
}

var _ Store = (*External)(nil)

// OpenExternal connects, and fails if the cluster does not answer before ctx or dialTimeout ends.
func OpenExternal(ctx context.Context, o ExternalOptions) (*External, error) {
	s, err := openExternal(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("cannot open store at %s: %w", strings.Join(o.Endpoints, ", "), err)
	}
	return s, nil
}

func openExternal(ctx context.Context, o ExternalOptions) (*External, error) {
	if len(o.Endpoints) == 0 {
		return nil, errors.New("no endpoint given")
	}
	prefix := o.Prefix
	if prefix == "" {
		prefix = embeddedPrefix
	}
	if !strings.HasSuffix(prefix, "/") {
		prefix += "/"
	}
	if err := checkKey(prefix); err != nil {
		return nil, fmt.Errorf("prefix: %w", err)
	}
	etcd, err := clientv3.New(clientv3.Config{
		Endpoints:            o.Endpoints,
		TLS:                  o.TLS,
		Username:             o.Username,
		Password:             o.Password,
		DialTimeout:          dialTimeout,
		DialKeepAliveTime:    keepAliveTime,
		DialKeepAliveTimeout: dialTimeout,
		Logger:               zapLogger(o.Logger),
	})
	if err != nil {
		return nil, err
	}
	s := &External{client: newClient(etcd, prefix, externalLimits())}
	begin, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	err = s.checkSchema(begin, schemaVersion, migrations())
	if err == nil {
		// Another coordinator may be writing pieces right now, so this only takes notes.
		_, err = s.sweep(begin, false)
	}
	if err != nil {
		_ = etcd.Close()
		return nil, err
	}
	life, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.done.Go(func() { s.sweepOn(life, o.Logger) })
	return s, nil
}

func (s *External) sweepOn(ctx context.Context, log *slog.Logger) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if _, err := s.sweep(ctx, false); err != nil && ctx.Err() == nil && log != nil {
				log.Warn("cannot remove left-over pieces", "cause", err)
			}
		}
	}
}

// Close implements Store.
func (s *External) Close() error {
	if !s.markClosed() {
		return nil
	}
	s.stop()
	s.done.Wait()
	if err := s.etcd.Close(); err != nil {
		return fmt.Errorf("cannot close store: %w", err)
	}
	return nil
}
