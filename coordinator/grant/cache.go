package grant

import (
	"container/list"
	"crypto/sha256"
	"encoding/binary"
	"sync"

	"substrate/coordinator"
)

// Cache remembers the newest verified grant of each organisation, at most limit of them, and
// forgets the one asked for longest ago. Organisations that are granted the same share one list.
// Safe for concurrent use.
type Cache struct {
	limit int

	mu   sync.Mutex
	byID map[coordinator.OrganizationID]*list.Element // of *verified
	used list.List                                    // front: asked for last
	sets map[[sha256.Size]byte]*shared
}

type verified struct {
	digest   Digest
	key      KeyID
	set      [sha256.Size]byte
	document Document
}

// shared is a list of definitions and the number of remembered grants that hold it.
type shared struct {
	definitions []Entry
	holders     int
}

// NewCache holds at most limit grants (at least one).
func NewCache(limit int) *Cache {
	return &Cache{
		limit: max(limit, 1),
		byID:  make(map[coordinator.OrganizationID]*list.Element),
		sets:  make(map[[sha256.Size]byte]*shared),
	}
}

// Check is the package's Check, without verifying again what is remembered with this digest.
// A remembered grant still has to match want and to be signed by a key of the ring.
func (c *Cache) Check(ring Ring, jws string, want Want) (Document, error) {
	digest := DigestOf(jws)
	if d, ok, err := c.Lookup(ring, digest, want); ok {
		return d, err
	}
	d, kid, err := check(ring, jws, digest, want)
	if err != nil {
		return Document{}, err
	}
	return c.remember(&verified{digest: digest, key: kid, document: d}), nil
}

// Lookup is Check for a caller that kept the digest of the stored JWS instead of its text.
// It reports false when the grant has to be verified: call Check with the text then.
func (c *Cache) Lookup(ring Ring, digest Digest, want Want) (d Document, ok bool, err error) {
	v := c.find(want.Organization, digest)
	if v == nil || !ring.Has(v.key) {
		return Document{}, false, nil
	}
	if err := want.match(v.document, digest); err != nil {
		return Document{}, true, err
	}
	return v.document, true, nil
}

func (c *Cache) find(org coordinator.OrganizationID, digest Digest) *verified {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.byID[org]
	if !ok {
		return nil
	}
	v := e.Value.(*verified)
	if v.digest != digest {
		return nil
	}
	c.used.MoveToFront(e)
	return v
}

// remember keeps v and returns its document with the shared list in place of its own.
func (c *Cache) remember(v *verified) Document {
	v.set = setOf(v.document.Definitions)
	org := v.document.OrganizationID
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.byID[org]; ok {
		c.drop(e)
	}
	for c.used.Len() >= c.limit {
		c.drop(c.used.Back())
	}
	s := c.sets[v.set]
	if s == nil {
		s = &shared{definitions: v.document.Definitions}
		c.sets[v.set] = s
	}
	s.holders++
	v.document.Definitions = s.definitions
	c.byID[org] = c.used.PushFront(v)
	return v.document
}

func (c *Cache) drop(e *list.Element) {
	v := c.used.Remove(e).(*verified)
	delete(c.byID, v.document.OrganizationID)
	s := c.sets[v.set]
	if s.holders--; s.holders == 0 {
		delete(c.sets, v.set)
	}
}

// setOf names a list of definitions. Lengths go in too, or two lists could read the same.
func setOf(entries []Entry) (sum [sha256.Size]byte) {
	h := sha256.New()
	var buf []byte
	for _, e := range entries {
		buf = binary.AppendUvarint(buf[:0], uint64(len(e.ID)))
		buf = append(buf, e.ID...)
		buf = binary.AppendUvarint(buf, uint64(len(e.Fingerprint)))
		buf = append(buf, e.Fingerprint...)
		h.Write(buf)
	}
	h.Sum(sum[:0])
	return sum
}

// Len is the number of remembered grants.
func (c *Cache) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used.Len()
}
