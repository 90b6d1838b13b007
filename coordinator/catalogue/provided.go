package catalogue

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"time"
)

const (
	// most bounds the types of one place, gone ones too.
	most = 20_000
	// mostBytes bounds what types take when they are unpacked.
	mostBytes = 64 << 20
	// KeptFor is for how long a type that the provider does not tell of any more is kept where nothing needs it.
	KeptFor = 7 * 24 * time.Hour
)

// Provided is what the provider of one place has told of its types, as it is kept: the last good answer, and those types of earlier ones that it
// lacks. It does not change.
type Provided struct {
	Kind    string    `json:"kind"`
	Target  string    `json:"target"`  // of the backend: the place
	Backend string    `json:"backend"` // its name when it was asked
	Version uint64    `json:"version"` // counts the answers that differed from the one before
	Asked   time.Time `json:"asked"`   // the last answer
	Changed time.Time `json:"changed"` // the answer that brought this version
	Types   []Type    `json:"-"`       // by name
}

// Place names where it is about.
func (p *Provided) Place() string { return PlaceOf(p.Kind, p.Target) }

// MarshalJSON packs the types: there are some thousand of them.
func (p *Provided) MarshalJSON() ([]byte, error) {
	text, err := json.Marshal(p.Types)
	if err != nil {
		return nil, err
	}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write(text); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	type plain Provided
	return json.Marshal(struct {
		*plain
		Packed []byte `json:"types"`
	}{(*plain)(p), packed.Bytes()})
}

// UnmarshalJSON unpacks the types. What is larger than any catalogue is refused.
func (p *Provided) UnmarshalJSON(text []byte) error {
	type plain Provided
	in := struct {
		*plain
		Packed []byte `json:"types"`
	}{plain: (*plain)(p)}
	if err := json.Unmarshal(text, &in); err != nil {
		return err
	}
	r, err := gzip.NewReader(bytes.NewReader(in.Packed))
	if err != nil {
		return fmt.Errorf("cannot read catalogue: %w", err)
	}
	list, err := io.ReadAll(io.LimitReader(r, mostBytes+1))
	switch {
	case err != nil:
		return fmt.Errorf("cannot read catalogue: %w", err)
	case len(list) > mostBytes:
		return fmt.Errorf("cannot read catalogue: it has more than %d bytes", mostBytes)
	}
	p.Types = nil
	if err := json.Unmarshal(list, &p.Types); err != nil {
		return fmt.Errorf("cannot read catalogue: %w", err)
	}
	if len(p.Types) > most {
		return fmt.Errorf("cannot read catalogue: it has %d types, more than %d", len(p.Types), most)
	}
	_, err = New(p.Types, true)
	return err
}

// Change is how an answer differs from what was known; names are sorted.
type Change struct {
	New     []string // told of for the first time, or again
	Gone    []string // told of until now
	Altered []string // with other facts
	Dropped []string // gone for long, and not kept any more
}

// None reports whether there is no difference.
func (c *Change) None() bool {
	return len(c.New) == 0 && len(c.Gone) == 0 && len(c.Altered) == 0 && len(c.Dropped) == 0
}

// String counts what differs and names the first ones.
func (c *Change) String() string {
	var parts []string
	for _, p := range []struct {
		what  string
		names []string
	}{{"new", c.New}, {"no longer told of", c.Gone}, {"with other facts", c.Altered}, {"forgotten", c.Dropped}} {
		if n := len(p.names); n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s (%s)", n, p.what, Some(p.names)))
		}
	}
	if len(parts) == 0 {
		return "nothing differs"
	}
	return strings.Join(parts, ", ")
}

// Some names the first of many.
func Some(names []string) string {
	const shown = 8
	if len(names) <= shown {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), len(names)-shown)
}

// Doubtful says why an answer is not taken at its word: with nothing in it, or less than half of what was told before, it is more likely a
// broken permission or a half answer than a cloud that has closed. "" is that it is.
func (p *Provided) Doubtful(answer []Type) string {
	before := 0
	if p != nil {
		for _, t := range p.Types {
			if t.Missing.IsZero() {
				before++
			}
		}
	}
	switch {
	case len(answer) == 0:
		return "the answer has no types"
	case len(answer) > most:
		return fmt.Sprintf("the answer has %d types, more than %d", len(answer), most)
	case 2*len(answer) < before:
		return fmt.Sprintf("the answer has %d types, and the one before had %d", len(answer), before)
	}
	return ""
}

// Merge takes an answer over. A type that it lacks stays, marked as missing: for KeptFor, and longer where needed says so. listed is what was known
// of the place before any answer: of it, only what is needed stays.
func (p *Provided) Merge(answer []Type, listed *Catalogue, needed func(name string) bool, now time.Time) (*Provided, Change, error) {
	next := &Provided{Asked: now, Changed: now, Version: 1}
	old := map[string]Type{}
	if p != nil {
		*next = *p
		next.Asked = now
		for _, t := range p.Types {
			old[t.Name] = t
		}
	} else if listed != nil {
		for _, t := range listed.types {
			if needed(t.Name) {
				old[t.Name] = t
			}
		}
	}
	next.Types = nil
	var change Change
	seen := map[string]bool{}
	for _, t := range answer {
		t = t.plain()
		before, known := old[t.Name]
		switch {
		case !known || !before.Missing.IsZero():
			change.New = append(change.New, t.Name)
		case p != nil && !reflect.DeepEqual(before, t):
			change.Altered = append(change.Altered, t.Name)
		}
		seen[t.Name] = true
		next.Types = append(next.Types, t)
	}
	for name, t := range old {
		switch {
		case seen[name]:
			continue
		case t.Missing.IsZero():
			t.Missing = now
			change.Gone = append(change.Gone, name)
		case now.Sub(t.Missing) >= KeptFor && !needed(name):
			change.Dropped = append(change.Dropped, name)
			continue
		}
		next.Types = append(next.Types, t)
	}
	slices.SortFunc(next.Types, func(a, b Type) int { return cmp.Compare(a.Name, b.Name) })
	for _, names := range [][]string{change.New, change.Gone, change.Altered, change.Dropped} {
		slices.Sort(names)
	}
	if p != nil && !change.None() {
		next.Version, next.Changed = p.Version+1, now
	}
	if len(next.Types) > most {
		return nil, change, fmt.Errorf("cannot keep catalogue: it has %d types, more than %d", len(next.Types), most)
	}
	_, err := New(next.Types, true)
	return next, change, err
}

// Catalogue makes a provider's word a catalogue. listed adds what no provider says: what nodes of a type were measured to have, and prices, which
// say so where they are another region's.
func (p *Provided) Catalogue(listed *Catalogue) (*Catalogue, error) {
	types := slices.Clone(p.Types)
	for i := range types {
		t := &types[i]
		if listed == nil {
			continue
		}
		if own, ok := listed.Type(t.Name); ok {
			if sameSize(t, &own) {
				t.Shortfall, t.Seen = own.Shortfall, own.Seen
			}
			if t.CostPerHour == nil && own.CostPerHour != nil {
				t.CostPerHour = own.CostPerHour
				if !t.in(listed.priced) { // still what cheap and dear are told apart by
					t.PricedIn = listed.priced
				}
			}
		}
	}
	c, err := New(types, true)
	if err != nil {
		return nil, err
	}
	c.told = p
	return c, nil
}

// plain is a type as it is after it was stored: nothing is one thing.
func (t Type) plain() Type {
	t.Missing, t.Shortfall, t.Seen, t.PricedIn = time.Time{}, nil, nil, ""
	if len(t.UsageClasses) == 0 {
		t.UsageClasses = nil
	}
	if len(t.Zones) == 0 {
		t.Zones = nil
	}
	return t
}

func sameSize(a, b *Type) bool {
	return a.VCPUs != nil && b.VCPUs != nil && *a.VCPUs == *b.VCPUs && a.Memory != nil && b.Memory != nil && *a.Memory == *b.Memory
}

// in reports whether a region's own zones have a type, which are named after it with a letter, and none of another region has. What only places far from
// the region have costs something else there.
func (t *Type) in(region string) bool {
	own := false
	for _, zone := range t.Zones {
		rest, ok := strings.CutPrefix(zone, region)
		if !ok || rest == "" || rest[0] >= '0' && rest[0] <= '9' {
			return false
		}
		own = own || len(rest) == 1
	}
	return own && region != ""
}
