package store

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"sort"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// The first byte of a stored value.
	tagInline   = 0
	tagManifest = 1

	manifestCost = 160 // stored manifest, rounded up
	readAtOnce   = 4   // pieces of one range request
	maxReread    = 16  // times a large value may be replaced while it is read
	maxPieces    = MaxValue / PieceSize * 2
)

var errPieces = errors.New("pieces are missing or damaged")

// manifest stands in for a large value. It is written in the group's own transaction, after all
// pieces, so a reader sees the whole value or the one before.
type manifest struct {
	Generation string `json:"generation"`
	Size       int    `json:"size"`
	Pieces     int    `json:"pieces"`
	CRC32C     uint32 `json:"crc32c"`
}

// pieceIndex remembers which keys hold a manifest, so that their pieces go when the value goes.
// It is a hint: what it misses the sweep finds.
type pieceIndex struct {
	mu sync.Mutex
	// current maps a data key to the generation its manifest names.
	current map[string]string
	// writing holds generations whose group is under way.
	writing map[string]struct{}
	// orphans holds generations that the last sweep found without a manifest.
	orphans map[string]struct{}
}

func newPieceIndex() pieceIndex {
	return pieceIndex{current: map[string]string{}, writing: map[string]struct{}{}, orphans: map[string]struct{}{}}
}

// replace notes that the key was written, with gen or without pieces (""), and returns the
// generation that this left behind.
func (p *pieceIndex) replace(key, gen string) (old string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.current) == 0 && gen == "" {
		return ""
	}
	old = p.current[key]
	if gen == "" {
		delete(p.current, key)
	} else {
		p.current[key] = gen
	}
	return old
}

func (p *pieceIndex) setWriting(gen string, on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if on {
		p.writing[gen] = struct{}{}
	} else {
		delete(p.writing, gen)
	}
}

func encodeInline(value []byte) []byte {
	return append(append(make([]byte, 0, len(value)+1), tagInline), value...)
}

func encodeManifest(m manifest) []byte {
	text, err := json.Marshal(m)
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	return append([]byte{tagManifest}, text...)
}

// decodeValue returns the value itself or the manifest of its pieces.
func decodeValue(stored []byte) ([]byte, *manifest, error) {
	if len(stored) == 0 {
		return nil, nil, errors.New("stored value has no tag")
	}
	switch stored[0] {
	case tagInline:
		return stored[1:], nil, nil
	case tagManifest:
		var m manifest
		if err := json.Unmarshal(stored[1:], &m); err != nil {
			return nil, nil, fmt.Errorf("manifest: %w", err)
		}
		if m.Generation == "" || m.Size < 0 || m.Size > MaxValue || m.Pieces < 0 || m.Pieces > maxPieces {
			return nil, nil, fmt.Errorf("manifest of %d bytes in %d pieces is out of range", m.Size, m.Pieces)
		}
		return nil, &m, nil
	}
	return nil, nil, fmt.Errorf("stored value has unknown tag %d", stored[0])
}

func checksum(value []byte) uint32 { return crc32.Checksum(value, crc32.MakeTable(crc32.Castagnoli)) }

// newGenerations names the sets of pieces of one group. They sort in order, which the sweep needs:
// the group's guard is on the first, and the sweep takes that one first.
func newGenerations(n int) []string {
	var id [12]byte
	_, _ = rand.Read(id[:]) // never fails
	gens := make([]string, n)
	for i := range gens {
		gens[i] = fmt.Sprintf("%s.%06d", hex.EncodeToString(id[:]), i)
	}
	return gens
}

// writePieces stores value under gen, with its record in the first transaction.
func (c *client) writePieces(ctx context.Context, key, gen string, value []byte) (manifest, error) {
	m := manifest{Generation: gen, Size: len(value), CRC32C: checksum(value)}
	ops := []clientv3.Op{clientv3.OpPut(c.record(gen), key)}
	bytes := len(c.record(gen)) + len(key) + 2*opOverhead
	for len(value) > 0 {
		piece := value[:min(len(value), c.limits.piece)]
		name := fmt.Sprintf("%s%06d", c.piecesOf(gen), m.Pieces)
		cost := len(name) + len(piece) + opOverhead
		if bytes+cost > c.limits.bytes || len(ops) == c.limits.ops {
			if _, err := c.txn(ctx, nil, ops, nil, bytes); err != nil {
				return manifest{}, err
			}
			ops, bytes = nil, 0
		}
		ops = append(ops, clientv3.OpPut(name, string(piece)))
		bytes += cost
		value = value[len(piece):]
		m.Pieces++
	}
	_, err := c.txn(ctx, nil, ops, nil, bytes)
	return m, err
}

// readPieces returns errPieces when the pieces are not (or no longer) what the manifest says.
func (c *client) readPieces(ctx context.Context, m manifest) ([]byte, error) {
	value := make([]byte, 0, m.Size)
	start, end := c.piecesOf(m.Generation), clientv3.GetPrefixRangeEnd(c.piecesOf(m.Generation))
	for n := 0; n < m.Pieces; {
		opts := append(c.readOpts(), clientv3.WithRange(end), clientv3.WithLimit(readAtOnce))
		resp, err := c.etcd.Get(ctx, start, opts...)
		if err != nil {
			return nil, readError(err)
		}
		if len(resp.Kvs) == 0 {
			return nil, fmt.Errorf("%w: %d of %d found", errPieces, n, m.Pieces)
		}
		for _, kv := range resp.Kvs {
			if len(value)+len(kv.Value) > m.Size {
				return nil, fmt.Errorf("%w: longer than %d bytes", errPieces, m.Size)
			}
			value = append(value, kv.Value...)
			start = string(kv.Key) + "\x00"
			n++
		}
	}
	if len(value) != m.Size || checksum(value) != m.CRC32C {
		return nil, fmt.Errorf("%w: checksum of %d bytes differs", errPieces, m.Size)
	}
	return value, nil
}

// drop removes a generation nobody refers to; record and pieces go together.
func (c *client) drop(ctx context.Context, gen string) error {
	ops := []clientv3.Op{
		clientv3.OpDelete(c.record(gen)),
		clientv3.OpDelete(c.piecesOf(gen), clientv3.WithPrefix()),
	}
	_, err := c.txn(ctx, nil, ops, nil, 0)
	return err
}

// sweep removes pieces without a manifest: what a crash left behind, or what another process
// replaced. A generation goes when two sweeps in a row found it so, or at once when this process
// is the only writer and just starts (fresh). Returns how many went.
func (c *client) sweep(ctx context.Context, fresh bool) (int, error) {
	records, err := c.records(ctx)
	if err != nil {
		return 0, err
	}
	orphans := map[string]struct{}{}
	removed := 0
	for _, r := range records {
		live, err := c.refersTo(ctx, r)
		if err != nil {
			return removed, err
		}
		c.pieces.mu.Lock()
		_, writing := c.pieces.writing[r.gen]
		_, seen := c.pieces.orphans[r.gen]
		if live && c.pieces.current[r.key] == "" {
			c.pieces.current[r.key] = r.gen
		}
		c.pieces.mu.Unlock()
		switch {
		case live || writing:
		case fresh || seen:
			if err := c.drop(ctx, r.gen); err != nil {
				return removed, err // later generations of the group must not go before this one
			}
			removed++
		default:
			orphans[r.gen] = struct{}{}
		}
	}
	c.pieces.mu.Lock()
	c.pieces.orphans = orphans
	c.pieces.mu.Unlock()
	return removed, nil
}

type pieceRecord struct{ gen, key string }

// records lists the generations in order. Large values are few, so all fit in memory.
func (c *client) records(ctx context.Context) ([]pieceRecord, error) {
	var records []pieceRecord
	dir := c.prefix + recordDir
	start, end := dir, clientv3.GetPrefixRangeEnd(dir)
	for {
		resp, err := c.etcd.Get(ctx, start, clientv3.WithRange(end), clientv3.WithLimit(listPage))
		if err != nil {
			return nil, readError(err)
		}
		for _, kv := range resp.Kvs {
			records = append(records, pieceRecord{gen: string(kv.Key[len(dir):]), key: string(kv.Value)})
			start = string(kv.Key) + "\x00"
		}
		if len(resp.Kvs) < listPage {
			sort.Slice(records, func(i, j int) bool { return records[i].gen < records[j].gen })
			return records, nil
		}
	}
}

// refersTo reports whether the record's key still names its generation.
func (c *client) refersTo(ctx context.Context, r pieceRecord) (bool, error) {
	resp, err := c.etcd.Get(ctx, c.data(r.key))
	if err != nil {
		return false, readError(err)
	}
	if len(resp.Kvs) == 0 {
		return false, nil
	}
	_, m, err := decodeValue(resp.Kvs[0].Value)
	if err != nil {
		return true, nil // damaged or of a later program: leave its pieces alone
	}
	return m != nil && m.Generation == r.gen, nil
}
