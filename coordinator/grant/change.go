package grant

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"substrate/coordinator"
)

// Entries lists what a configuration's definitions are granted as: sorted, expansions once.
func Entries(definitions []coordinator.Definition) []Entry {
	entries := make([]Entry, 0, len(definitions))
	for _, d := range definitions {
		entries = append(entries, Entry{ID: d.Configured, Fingerprint: d.Fingerprint})
	}
	return normal(entries)
}

// Resolve finds the entries of ids as configured. An id that no definition has is an error;
// an id with several targets gives all of them.
func Resolve(ids []string, definitions []coordinator.Definition) ([]Entry, error) {
	byID := make(map[string][]Entry, len(definitions))
	expansions := make(map[string]string)
	for _, d := range definitions {
		byID[d.Configured] = append(byID[d.Configured], Entry{ID: d.Configured, Fingerprint: d.Fingerprint})
		if string(d.ID) != d.Configured {
			expansions[string(d.ID)] = d.Configured
		}
	}
	var entries []Entry
	for _, id := range ids {
		found, ok := byID[id]
		if !ok {
			err := coordinator.Errorf(coordinator.ErrNotFound, "find definition "+id, "it is not in the configuration")
			if configured, expanded := expansions[id]; expanded {
				err = err.WithHint("grants name definitions as configured: use %q", configured)
			}
			return nil, err
		}
		entries = append(entries, found...)
	}
	return normal(entries), nil
}

func normal(entries []Entry) []Entry {
	out := slices.Clone(entries)
	slices.SortFunc(out, Entry.Compare)
	return slices.CompactFunc(out, func(a, b Entry) bool { return a == b })
}

// Appended tells per id what an append did.
type Appended struct {
	ID             string
	AlreadyExisted bool
}

// Append adds entries to the organisation's newest document, whose JWS has the given digest (both
// from New and "" before the first). When all of them existed the document comes back as it is and
// changed is false: nothing is to be signed or stored. Results are by id.
func Append(newest Document, digest Digest, add []Entry, now time.Time) (next Document, results []Appended, changed bool, err error) {
	add = normal(add)
	for _, e := range add {
		existed := newest.Names(e.ID, e.Fingerprint)
		changed = changed || !existed
		if n := len(results); n > 0 && results[n-1].ID == e.ID {
			results[n-1].AlreadyExisted = results[n-1].AlreadyExisted && existed
			continue
		}
		results = append(results, Appended{ID: e.ID, AlreadyExisted: existed})
	}
	if !changed {
		return newest, results, false, nil
	}
	next, err = successor(newest, digest, slices.Concat(newest.Definitions, add), now)
	return next, results, err == nil, err
}

// Set replaces what the grant names; no entries revoke everything. Naming the same again changes
// nothing, unless there was no grant yet.
func Set(newest Document, digest Digest, entries []Entry, now time.Time) (next Document, changed bool, err error) {
	entries = normal(entries)
	if newest.Serial > 0 && slices.Equal(newest.Definitions, entries) {
		return newest, false, nil
	}
	next, err = successor(newest, digest, entries, now)
	return next, err == nil, err
}

func successor(newest Document, digest Digest, entries []Entry, now time.Time) (Document, error) {
	if (newest.Serial == 0) != (digest == "") {
		return Document{}, errors.New("cannot extend grant: serial and digest of its predecessor disagree")
	}
	d := newest
	d.Version, d.Serial, d.Prev = Version, newest.Serial+1, digest
	d.IssuedAt, d.Definitions = instant(now), normal(entries)
	if err := d.validate(); err != nil {
		return Document{}, fmt.Errorf("cannot extend grant of organisation %s: %w", d.OrganizationID, err)
	}
	return d, nil
}

// Backfill makes the first grant of organisations that never had one (newest serial 0), by
// organisation id. An organisation whose grant went missing is none of them: it keeps its refusal.
// Run again after a part was stored, it goes on with the rest.
func Backfill(cluster string, newest map[coordinator.OrganizationID]Serial, entries []Entry, now time.Time) ([]Document, error) {
	var documents []Document
	for _, org := range slices.Sorted(maps.Keys(newest)) {
		if newest[org] != 0 {
			continue
		}
		d, _, err := Set(New(cluster, org), "", entries, now)
		if err != nil {
			return nil, err
		}
		documents = append(documents, d)
	}
	return documents, nil
}

// Orphans lists the ids and bindings that no current definition has.
func Orphans(d Document, current []Entry) []Entry {
	return difference(d.Definitions, normal(current))
}

// Ungranted lists the current definitions the grant does not name.
func Ungranted(d Document, current []Entry) []Entry {
	return difference(normal(current), d.Definitions)
}

// difference is a less b; both sorted.
func difference(a, b []Entry) []Entry {
	var out []Entry
	for _, e := range a {
		for len(b) > 0 && b[0].Compare(e) < 0 {
			b = b[1:]
		}
		if len(b) == 0 || b[0] != e {
			out = append(out, e)
		}
	}
	return out
}

// String shows an entry for people.
func (e Entry) String() string { return strings.TrimSuffix(e.ID+" ("+e.Fingerprint+")", " ()") }
