package grant

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func FuzzVerify(f *testing.F) {
	k := key(f)
	ring := NewRing(k.Public())
	good := sign(f, k, first(f, 2))
	header := strings.Split(good, ".")[0]
	f.Add(good)
	f.Add("")
	f.Add("a.b.c")
	f.Add(header + "..")
	f.Add(part(`{"alg":"none","typ":"`+Type+`"}`) + ".e30.")
	f.Add(part(`{"alg":"EdDSA","kid":"x","kid":"y","typ":"`+Type+`"}`) + ".e30.AAAA")
	f.Add(part(`{"alg":"EdDSA","jwk":{"kty":"oct","k":"AA"}}`) + ".e30.AAAA")
	f.Add(part(`{"alg":"EdDSA","b64":false,"crit":["b64"]}`) + ".{}.AAAA")
	f.Fuzz(func(t *testing.T, jws string) {
		if d, err := Verify(ring, jws); err == nil && jws != good {
			t.Fatalf("accepted %q as %+v", jws, d)
		}
		// Behind the signature the payload parser must stand alone.
		if d, err := decode([]byte(jws)); err == nil {
			if raw, err := d.encode(); err != nil || string(raw) != jws {
				t.Fatalf("%q is accepted, but written as %q, %v", jws, raw, err)
			}
		}
	})
}

func BenchmarkGrant(b *testing.B) {
	k := key(b)
	ring := NewRing(k.Public())
	for _, n := range []int{20, 10_000} {
		d := first(b, n)
		jws := sign(b, k, d)
		want := Want{cluster, org, 1, ""}
		b.Run(fmt.Sprintf("sign/%d", n), func(b *testing.B) {
			b.ReportMetric(float64(len(jws)), "B/jws")
			for b.Loop() {
				sign(b, k, d)
			}
		})
		b.Run(fmt.Sprintf("verify/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Verify(ring, jws); err != nil {
					b.Fatal(err)
				}
			}
		})
		cache := NewCache(1)
		b.Run(fmt.Sprintf("cached/%d", n), func(b *testing.B) {
			for b.Loop() {
				if _, err := cache.Check(ring, jws, want); err != nil {
					b.Fatal(err)
				}
			}
		})
		digest := DigestOf(jws)
		b.Run(fmt.Sprintf("lookup/%d", n), func(b *testing.B) {
			for b.Loop() {
				if _, _, err := cache.Lookup(ring, digest, want); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("names/%d", n), func(b *testing.B) {
			for b.Loop() {
				if !d.Names(d.Definitions[n/3].ID, d.Definitions[n/3].Fingerprint) {
					b.Fatal("not named")
				}
			}
		})
	}
}

// FuzzParseKey: a key that is read is its own thumbprint, and is read again from how it is written.
func FuzzParseKey(f *testing.F) {
	good, err := key(f).Marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte("{}"))
	f.Add([]byte(`{"kty":"OKP","crv":"Ed25519","x":"AA","d":"AA"}`))
	f.Add([]byte(`{"kty":"oct","k":"AA"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		k, err := ParseKey(data)
		if err != nil {
			return
		}
		text, err := k.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if again, err := ParseKey(text); err != nil || again.ID() != k.ID() {
			t.Fatalf("%q: %v, %v", data, again, err)
		}
	})
}

// FuzzParseRing: the keys of a ring that is read are known by their thumbprints.
func FuzzParseRing(f *testing.F) {
	good, err := NewRing(key(f).Public()).Marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"keys":[{"kty":"OKP","crv":"Ed25519","x":"AA","kid":"x"}]}`))
	f.Add([]byte(`{"keys":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		ring, err := ParseRing(data)
		if err != nil {
			return
		}
		for id, public := range ring.keys {
			if thumb, err := thumbprint(public); err != nil || thumb != id {
				t.Fatalf("%q: %s, %v", data, thumb, err)
			}
		}
	})
}

// FuzzVerifyChain: an exported history that was not the one that was signed does not hold.
func FuzzVerifyChain(f *testing.F) {
	k := key(f)
	doc := first(f, 2)
	jws := sign(f, k, doc)
	delta, err := NewDelta(New(cluster, org), doc, jws)
	if err != nil {
		f.Fatal(err)
	}
	good, err := json.Marshal([]Delta{delta})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte("[]"))
	f.Add([]byte(`[{"serial":1,"removed":[{"id":"x"}]}]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var deltas []Delta
		if json.Unmarshal(data, &deltas) != nil {
			return
		}
		d, err := VerifyChain(NewRing(k.Public()), cluster, org, jws, deltas)
		if err != nil {
			return
		}
		raw, err := d.encode()
		want, werr := doc.encode()
		if err != nil || werr != nil || string(raw) != string(want) {
			t.Fatalf("%q is the history of %q", data, raw)
		}
	})
}
