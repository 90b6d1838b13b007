package store

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"
)

const (
	maintainEvery = 5 * time.Second
	compactEvery  = 5 * time.Minute // with any change
	compactAfter  = 50_000          // revisions
	sweepEvery    = 10 * time.Minute
	compactLimit  = 2 * time.Minute

	// Defragmentation stops all writes, so while running it is for the rare case that most of a
	// large file is free; the usual time for it is the next open.
	defragFree = 1 << 30
)

// Usage is how full a store is.
type Usage struct {
	Used, Quota int64 // bytes
	File        int64 // size of the database file, free pages included
}

// Usage reports the state behind ErrFull.
func (s *Embedded) Usage() Usage {
	be := s.server.Server.Backend()
	return Usage{Used: s.used(), Quota: s.opts.Quota, File: be.Size()}
}

// used is what the server says plus what it has not counted yet: it counts on its own commit,
// some 100 ms later.
func (s *Embedded) used() int64 {
	size := s.server.Server.Backend().SizeInUse()
	if s.lastSize.Swap(size) != size {
		s.pending.Store(0)
	}
	return size + s.pending.Load()
}

func (s *Embedded) admitBytes(bytes int) error {
	if s.lowDisk.Load() {
		return fmt.Errorf("%w: less than %d MiB of disk are free", ErrFull, s.opts.Reserve>>20)
	}
	if used := s.used(); used+int64(bytes) > s.opts.Quota {
		select {
		case s.kick <- struct{}{}:
		default:
		}
		return fmt.Errorf("%w: %d of %d MiB in use", ErrFull, used>>20, s.opts.Quota>>20)
	}
	return nil
}

func (s *Embedded) noteWrite(bytes int) { s.pending.Add(int64(bytes)) }

// maintain keeps history short, the disk watched and stray pieces away, until ctx ends.
func (s *Embedded) maintain(ctx context.Context) {
	tick := time.NewTicker(maintainEvery)
	defer tick.Stop()
	var compacted int64
	lastCompact, lastSweep := time.Now(), time.Now()
	for {
		full := false
		select {
		case <-ctx.Done():
			return
		case <-s.kick:
			full = true
		case <-tick.C:
		}
		s.checkDisk()
		now, revision := time.Now(), s.server.Server.KV().Rev()
		due := revision-compacted >= compactAfter || now.Sub(lastCompact) >= compactEvery || full
		if due && revision > compacted {
			if err := s.compact(ctx, revision); err != nil {
				s.warn(ctx, "cannot compact store", err)
			} else {
				compacted = revision
			}
			lastCompact = now
			s.defragment(ctx)
		}
		if now.Sub(lastSweep) >= sweepEvery {
			if _, err := s.sweep(ctx, false); err != nil {
				s.warn(ctx, "cannot remove left-over pieces", err)
			}
			lastSweep = now
		}
	}
}

func (s *Embedded) warn(ctx context.Context, message string, err error) {
	if s.opts.Logger != nil && ctx.Err() == nil {
		s.opts.Logger.Warn(message, "cause", err)
	}
}

// compact forgets all history up to the revision; readers only ever want the newest state.
func (s *Embedded) compact(ctx context.Context, revision int64) error {
	ctx, cancel := context.WithTimeout(ctx, compactLimit)
	defer cancel()
	if _, err := s.etcd.Compact(ctx, revision, clientv3.WithCompactPhysical()); err != nil {
		return err
	}
	s.server.Server.Backend().ForceCommit() // so that the space counts as free now
	return nil
}

func (s *Embedded) defragment(ctx context.Context) {
	be := s.server.Server.Backend()
	free := be.Size() - be.SizeInUse()
	if free < defragFree || free < be.Size()/4*3 || ctx.Err() != nil {
		return
	}
	if err := be.Defrag(); err != nil {
		s.warn(ctx, "cannot defragment store", err)
	}
}

// checkDisk notes whether the disk is so full that only deletes may go on: etcd itself would run
// into the end of it and stop the process.
func (s *Embedded) checkDisk() {
	var st unix.Statfs_t
	if err := unix.Statfs(s.opts.Dir, &st); err != nil {
		return // unknown is not full
	}
	free := uint64(st.Bavail) * uint64(st.Bsize)
	s.lowDisk.Store(free < uint64(s.opts.Reserve))
}
