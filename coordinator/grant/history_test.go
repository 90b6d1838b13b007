package grant

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// chain makes a history of random changes, signed by two keys in turn.
func chain(t interface{ Fatal(...any) }, keys []Key, steps []func(Document, Digest) Document) (string, []Delta) {
	current, digest, jws := New(cluster, org), Digest(""), ""
	var deltas []Delta
	for i, step := range steps {
		next := step(current, digest)
		signed, err := Sign(keys[i%len(keys)], next)
		if err != nil {
			t.Fatal(err)
		}
		delta, err := NewDelta(current, next, signed)
		if err != nil {
			t.Fatal(err)
		}
		current, digest, jws, deltas = next, DigestOf(signed), signed, append(deltas, delta)
	}
	return jws, deltas
}

func TestHistoryProperties(t *testing.T) {
	keys := []Key{key(t), key(t)}
	ring := NewRing(keys[0].Public(), keys[1].Public())
	rapid.Check(t, func(t *rapid.T) {
		naive := map[Entry]bool{}
		n := rapid.IntRange(1, 6).Draw(t, "serials")
		entry := rapid.Custom(func(t *rapid.T) Entry {
			return Entry{rapid.SampledFrom([]string{"a", "b", "c", "d", "é<"}).Draw(t, "id"), rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "fp")}
		})
		var steps []func(Document, Digest) Document
		for i := range n {
			steps = append(steps, func(d Document, digest Digest) Document {
				list := rapid.SliceOfN(entry, 0, 8).Draw(t, "entries")
				var next Document
				var changed bool
				var err error
				if rapid.Bool().Draw(t, "append") && len(list) > 0 {
					next, _, changed, err = Append(d, digest, list, day(1+i))
				} else {
					clear(naive)
					next, changed, err = Set(d, digest, list, day(1+i))
				}
				for _, e := range list {
					naive[e] = true
				}
				if err != nil {
					t.Fatal(err)
				}
				if !changed { // a history has no empty steps: force one
					extra := Entry{fmt.Sprintf("extra-%d", i), ""}
					naive[extra] = true
					next, _, _, err = Append(d, digest, []Entry{extra}, day(1+i))
					if err != nil {
						t.Fatal(err)
					}
				}
				return next
			})
		}
		jws, deltas := chain(t, keys, steps)
		raw, err := json.Marshal(deltas) // as the store and the exported file hold it
		if err != nil {
			t.Fatal(err)
		}
		var stored []Delta
		if err := json.Unmarshal(raw, &stored); err != nil {
			t.Fatal(err)
		}
		got, err := VerifyChain(ring, cluster, org, jws, stored)
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Definitions) != len(naive) || got.Serial != Serial(n) {
			t.Fatalf("serial %d with %v, want %d with %v", got.Serial, got.Definitions, n, naive)
		}
		for e := range naive {
			if !got.Names(e.ID, e.Fingerprint) {
				t.Fatalf("%v is not named", e)
			}
		}
	})
}

func TestVerifyChainRefuses(t *testing.T) {
	k := key(t)
	ring := NewRing(k.Public())
	add := func(ids ...string) func(Document, Digest) Document {
		return func(d Document, digest Digest) Document {
			var list []Entry
			for _, id := range ids {
				list = append(list, Entry{id, "static"})
			}
			next, _, err := Set(d, digest, list, day(1+int(d.Serial)))
			if err != nil {
				t.Fatal(err)
			}
			return next
		}
	}
	jws, deltas := chain(t, []Key{k}, []func(Document, Digest) Document{add("a"), add("a", "b"), add("b", "c")})
	if _, err := VerifyChain(ring, cluster, org, jws, deltas); err != nil {
		t.Fatal(err)
	}
	otherJWS, otherDeltas := chain(t, []Key{k}, []func(Document, Digest) Document{add("x"), add("y"), add("z")})
	tests := []struct {
		name, says string
		change     func([]Delta) (string, []Delta)
	}{
		{"empty", "empty", func([]Delta) (string, []Delta) { return jws, nil }},
		{"first left out", "serial 2 follows 0", func(d []Delta) (string, []Delta) { return jws, d[1:] }},
		{"middle left out", "serial 3 follows 1", func(d []Delta) (string, []Delta) { return jws, slices.Delete(d, 1, 2) }},
		{"last left out", "newest", func(d []Delta) (string, []Delta) { return jws, d[:2] }},
		{"newest of another chain", "newest", func(d []Delta) (string, []Delta) { return otherJWS, d }},
		{"a step of another chain", "at serial 2", func(d []Delta) (string, []Delta) { d[1] = otherDeltas[1]; return jws, d }},
		{"an addition hidden", "digest", func(d []Delta) (string, []Delta) { d[1].Added = nil; return jws, d }},
		{"an addition invented", "digest", func(d []Delta) (string, []Delta) { d[0].Added = append(d[0].Added, Entry{"z", ""}); return jws, d }},
		{"a time changed", "digest", func(d []Delta) (string, []Delta) { d[0].IssuedAt = day(9).Truncate(time.Second); return jws, d }},
		{"removes what was not granted", "removes", func(d []Delta) (string, []Delta) { d[1].Removed = []Entry{{"q", ""}}; return jws, d }},
		{"digest made to fit", "signature", func(d []Delta) (string, []Delta) {
			d[0].Added = append(d[0].Added, Entry{"z", ""})
			_, forged, err := d[0].apply(New(cluster, org), "")
			if err != nil {
				t.Fatal(err)
			}
			d[0].Digest = DigestOf(forged)
			return jws, d
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			newest, list := tt.change(slices.Clone(deltas))
			_, err := VerifyChain(ring, cluster, org, newest, list)
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("error %v, want %q", err, tt.says)
			}
		})
	}
	t.Run("export", func(t *testing.T) {
		keys, err := ring.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		export := Export{Cluster: cluster, Organization: org, Newest: jws, History: deltas, Keys: keys}
		if d, err := export.Verify([]KeyID{k.ID()}); err != nil || d.Serial != 3 {
			t.Errorf("verified to %d, %v", d.Serial, err)
		}
		if _, err := export.Verify([]KeyID{"somebody else"}); err == nil {
			t.Error("verified with a key nobody trusts")
		}
	})
}
