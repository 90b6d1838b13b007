// Package grant makes, signs and checks compute policy grants: which definitions an organisation
// may place work on. It stores nothing, asks nobody and decides no placement.
package grant

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"substrate/coordinator"
)

// Version is the only document version this package writes and reads.
const Version = 1

// Limits of a grant. They bound what Verify reads before it trusts anything.
const (
	MaxDefinitions = 100_000
	MaxIDLength    = 256
	MaxJWS         = 128 << 20
)

// Serial counts the grants of one organisation from 1; 0 is "never had one".
type Serial uint64

// Digest is the sha256 of a grant's compact JWS in lower-case hex; "" is "none".
type Digest string

// DigestOf returns the digest of a compact JWS.
func DigestOf(jws string) Digest {
	h := sha256.New()
	// Through a small buffer: a grant of 10,000 definitions need not be copied as a whole.
	buf := make([]byte, 0, 32<<10)
	for len(jws) > 0 {
		n := min(len(jws), cap(buf))
		buf = append(buf[:0], jws[:n]...)
		h.Write(buf)
		jws = jws[n:]
	}
	return Digest(hex.EncodeToString(h.Sum(nil)))
}

// Entry is one granted definition: its id as configured (a placeholder covers all expansions)
// and the fingerprint of kind and backend target it was granted for.
type Entry struct {
	ID          string `json:"id"`
	Fingerprint string `json:"fingerprint"`
}

// Compare orders entries by id, then fingerprint.
func (e Entry) Compare(o Entry) int {
	if c := strings.Compare(e.ID, o.ID); c != 0 {
		return c
	}
	return strings.Compare(e.Fingerprint, o.Fingerprint)
}

// Document is what is signed. Definitions is strictly ascending by Entry.Compare.
// One id may stand with several fingerprints: two configured definitions can share an id with a
// placeholder, and an id that moved to another backend target keeps its older binding.
type Document struct {
	Version        uint32
	OrganizationID coordinator.OrganizationID
	ClusterID      string
	Serial         Serial
	IssuedAt       time.Time // UTC, whole seconds
	Prev           Digest    // of serial-1; "" for serial 1
	Definitions    []Entry
}

// payload is the signed form of a Document. Ids are grouped by fingerprint, both ascending: a
// cluster has many definitions and few backend targets.
type payload struct {
	Version        uint32                     `json:"version"`
	OrganizationID coordinator.OrganizationID `json:"organization_id"`
	ClusterID      string                     `json:"cluster_id"`
	Serial         Serial                     `json:"serial"`
	IssuedAt       time.Time                  `json:"issued_at"`
	Prev           Digest                     `json:"prev"`
	Definitions    []target                   `json:"definitions"`
}

type target struct {
	Fingerprint string   `json:"fingerprint"`
	IDs         []string `json:"ids"`
}

// New is the state before the first grant: serial 0, nothing named. It cannot be signed;
// Append and Set make serial 1 from it.
func New(cluster string, organization coordinator.OrganizationID) Document {
	return Document{Version: Version, OrganizationID: organization, ClusterID: cluster}
}

// Names reports whether the grant names this configured id for this fingerprint.
// Both must be equal: a later definition of the same id on another target is not named.
func (d Document) Names(configuredID, fingerprint string) bool {
	_, found := slices.BinarySearchFunc(d.Definitions, Entry{configuredID, fingerprint}, Entry.Compare)
	return found
}

// IDs returns the distinct ids, sorted.
func (d Document) IDs() []string { return distinctIDs(d.Definitions) }

func distinctIDs(entries []Entry) []string {
	ids := make([]string, 0, len(entries))
	for _, e := range entries {
		if len(ids) == 0 || ids[len(ids)-1] != e.ID {
			ids = append(ids, e.ID)
		}
	}
	return ids
}

// validate checks everything a signed document must hold.
func (d Document) validate() error {
	switch {
	case d.Version != Version:
		return fmt.Errorf("version %d is not known, expected %d", d.Version, Version)
	case d.OrganizationID == "":
		return errors.New("no organization_id")
	case d.ClusterID == "":
		return errors.New("no cluster_id")
	case d.Serial == 0:
		return errors.New("serial 0 is not a grant")
	case d.IssuedAt.IsZero() || !d.IssuedAt.Equal(instant(d.IssuedAt)):
		return errors.New("issued_at is not a time in whole seconds")
	case d.Serial == 1 && d.Prev != "":
		return errors.New("the first grant has a predecessor")
	case d.Serial > 1 && !d.Prev.valid():
		return errors.New("prev is not a sha256")
	case len(d.Definitions) > MaxDefinitions:
		return fmt.Errorf("%d definitions are more than %d", len(d.Definitions), MaxDefinitions)
	}
	for i, e := range d.Definitions {
		if err := e.validate(); err != nil {
			return err
		}
		if i > 0 && d.Definitions[i-1].Compare(e) >= 0 {
			return fmt.Errorf("definition %q is out of order", e.ID)
		}
	}
	return nil
}

func (e Entry) validate() error {
	if e.ID == "" || len(e.ID) > MaxIDLength {
		return fmt.Errorf("definition id of %d bytes, expected 1 to %d", len(e.ID), MaxIDLength)
	}
	if !utf8.ValidString(e.ID) || !utf8.ValidString(e.Fingerprint) {
		return fmt.Errorf("definition %q is not UTF-8", e.ID)
	}
	if len(e.Fingerprint) > MaxIDLength {
		return fmt.Errorf("fingerprint of %q has %d bytes, expected at most %d", e.ID, len(e.Fingerprint), MaxIDLength)
	}
	return nil
}

func (d Digest) valid() bool {
	raw, err := hex.DecodeString(string(d))
	return err == nil && len(raw) == sha256.Size && strings.ToLower(string(d)) == string(d)
}

func instant(t time.Time) time.Time { return t.UTC().Truncate(time.Second) }

// encode is the one byte form of a document: history is rebuilt from it (see Delta).
func (d Document) encode() ([]byte, error) {
	if err := d.validate(); err != nil {
		return nil, err
	}
	return json.Marshal(payload{
		Version: d.Version, OrganizationID: d.OrganizationID, ClusterID: d.ClusterID,
		Serial: d.Serial, IssuedAt: instant(d.IssuedAt), Prev: d.Prev, Definitions: group(d.Definitions)})
}

// group keeps the entries' order by id within each fingerprint. No entries are [], never null.
func group(entries []Entry) []target {
	ids := make(map[string][]string)
	for _, e := range entries {
		ids[e.Fingerprint] = append(ids[e.Fingerprint], e.ID)
	}
	targets := make([]target, 0, len(ids))
	for _, fingerprint := range slices.Sorted(maps.Keys(ids)) {
		targets = append(targets, target{fingerprint, ids[fingerprint]})
	}
	return targets
}

func ungroup(targets []target) []Entry {
	n := 0
	for _, t := range targets {
		n += len(t.IDs)
	}
	entries := make([]Entry, 0, n)
	for _, t := range targets {
		for _, id := range t.IDs {
			entries = append(entries, Entry{ID: id, Fingerprint: t.Fingerprint})
		}
	}
	slices.SortFunc(entries, Entry.Compare)
	return entries
}

// decode accepts only bytes that encode writes. That leaves no room for doubled keys, unknown keys
// and other spellings which two readers could understand differently.
func decode(raw []byte) (Document, error) {
	var p payload
	if err := json.Unmarshal(raw, &p); err != nil {
		return Document{}, fmt.Errorf("payload is not a grant: %w", err)
	}
	d := Document{
		Version: p.Version, OrganizationID: p.OrganizationID, ClusterID: p.ClusterID,
		Serial: p.Serial, IssuedAt: p.IssuedAt.UTC(), Prev: p.Prev, Definitions: ungroup(p.Definitions)}
	canonical, err := d.encode()
	if err != nil {
		return Document{}, err
	}
	if !bytes.Equal(canonical, raw) {
		return Document{}, errors.New("payload is not in canonical form")
	}
	return d, nil
}
