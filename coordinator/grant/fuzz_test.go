package grant

import (
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
