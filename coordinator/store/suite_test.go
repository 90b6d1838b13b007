package store_test

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"substrate/coordinator/store"
	"substrate/coordinator/store/storetest"
)

// TestExternal runs the suite over a real socket against a server with etcd's stock limits.
func TestExternal(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store { return store.OpenExternalForTest(t) })
}

func BenchmarkPut(b *testing.B) {
	for _, writers := range []int{1, 64} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			s := openEmbedded(b, b.TempDir())
			defer s.Close()
			b.SetParallelism(max(1, writers/runtime.GOMAXPROCS(0)))
			value := strings.Repeat("v", 512)
			if writers == 1 {
				n := 0
				for b.Loop() {
					n++
					mustCommit(b, s, put("k"+strconv.Itoa(n%10000), value))
				}
				return
			}
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				n := 0
				for pb.Next() {
					n++
					if _, err := s.Commit(b.Context(), []store.Group{put("k"+strconv.Itoa(n%10000), value)}); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}

// BenchmarkBatch500 commits 500 groups of one put and one guard each; an op is one group.
func BenchmarkBatch500(b *testing.B) {
	s := openEmbedded(b, b.TempDir())
	defer s.Close()
	value := []byte(strings.Repeat("v", 512))
	groups := make([]store.Group, 500)
	revisions := make([]int64, 500)
	b.ResetTimer()
	for n := 0; n < b.N; n += 500 {
		for i := range groups {
			key := fmt.Sprintf("k%03d", i)
			groups[i] = store.Group{Guards: []store.Guard{{Key: key, Revision: revisions[i]}}, Ops: []store.Op{{Key: key, Value: value}}}
		}
		rev := mustCommit(b, s, groups...)
		for i := range revisions {
			revisions[i] = rev
		}
	}
}

// BenchmarkOpen measures a restart with 20,000 keys.
func BenchmarkOpen(b *testing.B) {
	dir := b.TempDir()
	s := openEmbedded(b, dir)
	var groups []store.Group
	for i := range 20_000 {
		groups = append(groups, put(fmt.Sprintf("job/%06d", i), strings.Repeat("v", 1000)))
	}
	mustCommit(b, s, groups...)
	for b.Loop() {
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
		s = openEmbedded(b, dir)
	}
	b.StopTimer()
	s.Close()
}
