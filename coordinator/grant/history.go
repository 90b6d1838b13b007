package grant

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"substrate/coordinator"
)

// Delta is what is kept of one serial once a newer one exists: the change from the serial before,
// and what is needed to rebuild its JWS to the byte, so that the chain can be proved offline.
type Delta struct {
	Serial    Serial    `json:"serial"`
	IssuedAt  time.Time `json:"issued_at"`
	Digest    Digest    `json:"digest"`
	Header    string    `json:"header"`    // protected header as in the JWS
	Signature string    `json:"signature"` // as in the JWS
	Added     []Entry   `json:"added,omitempty"`
	Removed   []Entry   `json:"removed,omitempty"`
}

// NewDelta describes next, signed as jws, against its predecessor (New(…) for serial 1).
func NewDelta(previous, next Document, jws string) (Delta, error) {
	header, rest, _ := strings.Cut(jws, ".")
	_, signature, ok := strings.Cut(rest, ".")
	if !ok || next.Serial != previous.Serial+1 {
		return Delta{}, fmt.Errorf("cannot describe grant %d: it does not follow serial %d as a compact JWS", next.Serial, previous.Serial)
	}
	return Delta{
		Serial: next.Serial, IssuedAt: instant(next.IssuedAt), Digest: DigestOf(jws),
		Header: header, Signature: signature,
		Added:   difference(next.Definitions, previous.Definitions),
		Removed: difference(previous.Definitions, next.Definitions),
	}, nil
}

// apply rebuilds the document and JWS that the delta describes.
func (d Delta) apply(previous Document, digest Digest) (Document, string, error) {
	if d.Serial != previous.Serial+1 {
		return Document{}, "", fmt.Errorf("serial %d follows %d", d.Serial, previous.Serial)
	}
	if len(difference(normal(d.Removed), previous.Definitions)) > 0 {
		return Document{}, "", errors.New("it removes what was not granted")
	}
	next := previous
	next.Serial, next.IssuedAt, next.Prev = d.Serial, d.IssuedAt, digest
	next.Definitions = normal(slices.Concat(difference(previous.Definitions, normal(d.Removed)), d.Added))
	raw, err := next.encode()
	if err != nil {
		return Document{}, "", err
	}
	return next, d.Header + "." + base64.RawURLEncoding.EncodeToString(raw) + "." + d.Signature, nil
}

// VerifyChain rebuilds every grant from serial 1 to the newest JWS out of the deltas (ascending by
// serial, the newest's own included), verifies each signature and each link, and returns the newest
// document. The error names the first serial that does not hold.
func VerifyChain(ring Ring, cluster string, org coordinator.OrganizationID, newestJWS string, deltas []Delta) (Document, error) {
	broken := func(serial Serial, format string, args ...any) (Document, error) {
		return Document{}, fmt.Errorf("cannot verify grant history of organisation %s at serial %d: %w",
			org, serial, fmt.Errorf(format, args...))
	}
	current, digest := New(cluster, org), Digest("")
	last := ""
	for _, delta := range deltas {
		next, jws, err := delta.apply(current, digest)
		if err != nil {
			return broken(delta.Serial, "%w", err)
		}
		if DigestOf(jws) != delta.Digest {
			return broken(delta.Serial, "the digest does not fit the change")
		}
		if _, err := Verify(ring, jws); err != nil {
			return broken(delta.Serial, "%w", err)
		}
		current, digest, last = next, delta.Digest, jws
	}
	if current.Serial == 0 {
		return broken(0, "it is empty")
	}
	if last != newestJWS {
		return broken(current.Serial, "the newest grant is not the one the history ends with")
	}
	return current, nil
}

// Export is the file of `grant history`: all that `grant verify` needs besides trust in the keys.
type Export struct {
	Cluster      string                     `json:"cluster_id"`
	Organization coordinator.OrganizationID `json:"organization_id"`
	Newest       string                     `json:"newest"` // compact JWS
	History      []Delta                    `json:"history"`
	Keys         json.RawMessage            `json:"keys"` // Ring.Marshal
}

// Verify proves the chain with the file's own keys, of which trusted (unless empty) must name every
// one: a file alone can prove that it is consistent, not who wrote it.
func (e Export) Verify(trusted []KeyID) (Document, error) {
	ring, err := ParseRing(e.Keys)
	if err != nil {
		return Document{}, err
	}
	for _, id := range ring.IDs() {
		if len(trusted) > 0 && !slices.Contains(trusted, id) {
			ring = ring.Without(id)
		}
	}
	return VerifyChain(ring, e.Cluster, e.Organization, e.Newest, e.History)
}
