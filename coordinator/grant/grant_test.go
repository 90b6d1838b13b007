package grant

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"substrate/coordinator"
)

const (
	cluster = "cluster-1"
	org     = coordinator.OrganizationID("0191b7a0-0000-7000-8000-000000000001")
)

func day(n int) time.Time { return time.Date(2026, 3, n, 10, 20, 30, 400, time.UTC) }

func key(t testing.TB) Key {
	t.Helper()
	k, err := Generate(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func entries(n int) []Entry {
	out := make([]Entry, n)
	for i := range out {
		sum := sha256.Sum256([]byte{byte(i % 5)})
		out[i] = Entry{ID: fmt.Sprintf("partition-%05d-${spec.instanceType}", i), Fingerprint: fmt.Sprintf("%x", sum)}
	}
	return out
}

func first(t testing.TB, n int) Document {
	t.Helper()
	d, changed, err := Set(New(cluster, org), "", entries(n), day(1))
	if err != nil || !changed {
		t.Fatalf("Set: changed %v, %v", changed, err)
	}
	return d
}

func sign(t testing.TB, k Key, d Document) string {
	t.Helper()
	jws, err := Sign(k, d)
	if err != nil {
		t.Fatal(err)
	}
	return jws
}

func TestSignedDocumentComesBack(t *testing.T) {
	k := key(t)
	for _, n := range []int{0, 1, 20} {
		d := first(t, n)
		got, err := Verify(NewRing(k.Public()), sign(t, k, d))
		if err != nil {
			t.Fatal(err)
		}
		if got.Serial != 1 || got.ClusterID != cluster || got.OrganizationID != org || !got.IssuedAt.Equal(day(1).Truncate(time.Second)) ||
			!slices.Equal(got.Definitions, d.Definitions) {
			t.Errorf("%d definitions came back as %+v", n, got)
		}
	}
}

// The bytes are a contract: history is rebuilt from them, also by later versions of this program.
func TestDocumentBytesStay(t *testing.T) {
	d, _, err := Set(New("c", "o"), "", []Entry{{"b", "aws"}, {"c", "static"}, {"a<", "static"}}, day(2))
	if err != nil {
		t.Fatal(err)
	}
	got, err := d.encode()
	if err != nil {
		t.Fatal(err)
	}
	want := `{"version":1,"organization_id":"o","cluster_id":"c","serial":1,"issued_at":"2026-03-02T10:20:30Z","prev":"",` +
		`"definitions":[{"fingerprint":"aws","ids":["b"]},{"fingerprint":"static","ids":["a\u003c","c"]}]}`
	if string(got) != want {
		t.Errorf("document is\n%s\nwant\n%s", got, want)
	}
}

func part(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

// joseSign signs any payload under any header, as somebody with the key but another purpose would.
func joseSign(t *testing.T, k Key, payload []byte, options *jose.SignerOptions) string {
	t.Helper()
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.EdDSA, Key: jose.JSONWebKey{Key: k.private, KeyID: string(k.id)}}, options)
	if err != nil {
		t.Fatal(err)
	}
	o, err := s.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	jws, err := o.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return jws
}

func typed() *jose.SignerOptions { return (&jose.SignerOptions{}).WithType(Type) }

func TestVerifyRefuses(t *testing.T) {
	k, other := key(t), key(t)
	d := first(t, 3)
	good := sign(t, k, d)
	parts := strings.Split(good, ".")
	payload, err := d.encode()
	if err != nil {
		t.Fatal(err)
	}
	before, _, _ := strings.Cut(string(payload), "[")
	retarget := func(targets string) []byte { return []byte(before + "[" + targets + "]}") }
	hs256 := part(fmt.Sprintf(`{"alg":"HS256","kid":%q,"typ":%q}`, k.id, Type)) + "." + parts[1]
	mac := hmac.New(sha256.New, k.Public().key) // the public key as the shared secret
	mac.Write([]byte(hs256))
	renamed := key(t)
	renamed.id = k.id
	flip := []byte(parts[1])
	flip[len(flip)/2] ^= 1

	tests := []struct{ name, jws, says string }{
		{"empty", "", "compact"},
		{"not a JWS", "hello", "compact"},
		{"JSON serialisation", `{"payload":"","signatures":[]}`, "compact"},
		{"alg none", part(fmt.Sprintf(`{"alg":"none","kid":%q,"typ":%q}`, k.id, Type)) + "." + parts[1] + ".", "algorithm"},
		{"alg HS256 keyed with the public key", hs256 + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil)), "algorithm"},
		{"alg relabelled", part(fmt.Sprintf(`{"alg":"ES256","kid":%q,"typ":%q}`, k.id, Type)) + "." + parts[1] + "." + parts[2], "algorithm"},
		{"typ of something else", joseSign(t, k, payload, (&jose.SignerOptions{}).WithType("JWT")), "typ"},
		{"no typ", joseSign(t, k, payload, &jose.SignerOptions{}), "typ"},
		{"typ in other case", joseSign(t, k, payload, (&jose.SignerOptions{}).WithType(jose.ContentType(strings.ToUpper(Type)))), "typ"},
		{"extra header", joseSign(t, k, payload, typed().WithContentType("json")), "header"},
		{"unencoded payload", joseSign(t, k, []byte(`{}`), typed().WithBase64(false)), ""},
		{"embedded key of the attacker", joseSign(t, other, payload, &jose.SignerOptions{EmbedJWK: true, ExtraHeaders: map[jose.HeaderKey]any{jose.HeaderType: Type}}), "header"},
		{"other kid", sign(t, other, d), "not one of"},
		{"our kid, other key", sign(t, renamed, d), "signature"},
		{"altered payload", parts[0] + "." + string(flip) + "." + parts[2], "signature"},
		{"signature of another grant", parts[0] + "." + parts[1] + "." + strings.Split(sign(t, k, first(t, 4)), ".")[2], "signature"},
		{"no signature", parts[0] + "." + parts[1] + ".", "signature"},
		{"line break", good[:20] + "\n" + good[20:], "canonical"},
		{"other spelling of the last bits", good[:len(good)-1] + string(nextLetter(good[len(good)-1])), "canonical"},
		{"our type over a string", joseSign(t, k, []byte(`"hello"`), typed()), "payload"},
		{"our type over another object", joseSign(t, k, []byte(`{"token":"x"}`), typed()), "version"},
		{"later version", joseSign(t, k, []byte(strings.Replace(string(payload), `"version":1`, `"version":2`, 1)), typed()), "version 2"},
		{"unknown key", joseSign(t, k, []byte(strings.Replace(string(payload), `{"version"`, `{"all":true,"version"`, 1)), typed()), "canonical"},
		{"doubled key", joseSign(t, k, []byte(strings.Replace(string(payload), `"serial":1`, `"serial":7,"serial":1`, 1)), typed()), "canonical"},
		{"serial 0", joseSign(t, k, []byte(strings.Replace(string(payload), `"serial":1`, `"serial":0`, 1)), typed()), "serial"},
		{"null definitions", joseSign(t, k, []byte(before+`null}`), typed()), "canonical"},
		{"targets out of order", joseSign(t, k, retarget(`{"fingerprint":"b","ids":["x"]},{"fingerprint":"a","ids":["x"]}`), typed()), "canonical"},
		{"one target twice", joseSign(t, k, retarget(`{"fingerprint":"a","ids":["x"]},{"fingerprint":"a","ids":["y"]}`), typed()), "canonical"},
		{"ids out of order", joseSign(t, k, retarget(`{"fingerprint":"a","ids":["y","x"]}`), typed()), "canonical"},
		{"id twice", joseSign(t, k, retarget(`{"fingerprint":"a","ids":["x","x"]}`), typed()), "out of order"},
		{"target without ids", joseSign(t, k, retarget(`{"fingerprint":"a","ids":[]}`), typed()), "canonical"},
		{"trailing data", joseSign(t, k, append(slices.Clone(payload), "{}"...), typed()), "payload"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Verify(NewRing(k.Public()), tt.jws)
			if err == nil {
				t.Fatalf("accepted as %+v", got)
			}
			if !strings.Contains(err.Error(), tt.says) {
				t.Errorf("error %q does not speak of %q", err, tt.says)
			}
			if RefusalOf(func() error { _, err := Check(NewRing(k.Public()), tt.jws, Want{cluster, org, 1, ""}); return err }()) == RefusalNone {
				t.Error("Check did not refuse it")
			}
		})
	}
}

// nextLetter differs from c in the lowest bit only, which a 64-byte signature leaves unused.
func nextLetter(c byte) byte {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	return alphabet[strings.IndexByte(alphabet, c)^1]
}

func TestSignRefusesWhatIsNoGrant(t *testing.T) {
	k, good := key(t), first(t, 2)
	tests := []struct {
		name   string
		change func(*Document)
	}{
		{"no version", func(d *Document) { d.Version = 0 }},
		{"no organisation", func(d *Document) { d.OrganizationID = "" }},
		{"no cluster", func(d *Document) { d.ClusterID = "" }},
		{"serial 0", func(d *Document) { d.Serial = 0 }},
		{"no time", func(d *Document) { d.IssuedAt = time.Time{} }},
		{"first with a predecessor", func(d *Document) { d.Prev = DigestOf("x") }},
		{"second without a predecessor", func(d *Document) { d.Serial = 2 }},
		{"upper-case prev", func(d *Document) { d.Serial, d.Prev = 2, Digest(strings.ToUpper(string(DigestOf("x")))) }},
		{"unsorted", func(d *Document) { d.Definitions = []Entry{{"b", ""}, {"a", ""}} }},
		{"twice", func(d *Document) { d.Definitions = []Entry{{"a", "f"}, {"a", "f"}} }},
		{"empty id", func(d *Document) { d.Definitions = []Entry{{"", "f"}} }},
		{"not UTF-8", func(d *Document) { d.Definitions = []Entry{{"a\xff", "f"}} }},
		{"long id", func(d *Document) { d.Definitions = []Entry{{strings.Repeat("a", MaxIDLength+1), "f"}} }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := good
			tt.change(&d)
			if jws, err := Sign(k, d); err == nil {
				t.Errorf("signed as %s", jws)
			}
		})
	}
	if _, err := Sign(Key{}, good); err == nil {
		t.Error("signed without a key")
	}
}

func TestCheck(t *testing.T) {
	k := key(t)
	ring := NewRing(k.Public())
	one := first(t, 3)
	jws1 := sign(t, k, one)
	two, _, changed, err := Append(one, DigestOf(jws1), []Entry{{"new", "static"}}, day(2))
	if err != nil || !changed {
		t.Fatal(changed, err)
	}
	jws2 := sign(t, k, two)
	fork := two
	fork.IssuedAt = day(3).Truncate(time.Second)
	tests := []struct {
		name, jws string
		want      Want
		refusal   Refusal
	}{
		{"newest", jws2, Want{cluster, org, 2, ""}, RefusalNone},
		{"newest with digest", jws2, Want{cluster, org, 2, DigestOf(jws2)}, RefusalNone},
		{"missing", "", Want{cluster, org, 2, ""}, RefusalMissing},
		{"never had one", "", Want{cluster, org, 0, ""}, RefusalMissing},
		{"altered", jws2[:len(jws2)-9] + "AAAAAAAAA", Want{cluster, org, 2, ""}, RefusalAltered},
		{"rolled back", jws1, Want{cluster, org, 2, ""}, RefusalRolledBack},
		{"note of the newest rolled back", jws2, Want{cluster, org, 1, ""}, RefusalRolledBack},
		{"other cluster", jws2, Want{"cluster-2", org, 2, ""}, RefusalForeignCluster},
		{"other organisation", jws2, Want{cluster, "0191b7a0-0000-7000-8000-000000000002", 2, ""}, RefusalForeignOrganisation},
		{"second grant of one serial", sign(t, k, fork), Want{cluster, org, 2, DigestOf(jws2)}, RefusalAltered},
	}
	cache := NewCache(4)
	if _, err := cache.Check(ring, jws2, Want{cluster, org, 2, ""}); err != nil {
		t.Fatal(err)
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, plain := Check(ring, tt.jws, tt.want)
			_, cached := cache.Check(ring, tt.jws, tt.want)
			if RefusalOf(plain) != tt.refusal || RefusalOf(cached) != tt.refusal {
				t.Fatalf("refusal %s, through the cache %s, want %s", RefusalOf(plain), RefusalOf(cached), tt.refusal)
			}
			if tt.refusal == RefusalNone {
				return
			}
			if coordinator.ErrorKindOf(plain) != coordinator.ErrDenied {
				t.Errorf("kind of %v is not denied", plain)
			}
			if !strings.HasPrefix(plain.Error(), "cannot use grant of organisation ") || !strings.Contains(plain.Error(), tt.refusal.String()) {
				t.Errorf("message %q", plain)
			}
		})
	}
}

func TestAdmitBindsIDAndTarget(t *testing.T) {
	d, _, err := Set(New(cluster, org), "", []Entry{{"gpu", "aws/a"}, {"cpu", "static"}}, day(1))
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		id, fingerprint, says string
	}{
		{"gpu", "aws/a", ""},
		{"cpu", "static", ""},
		{"gpu", "aws/b", "another backend target"},
		{"gp", "aws/a", "does not name"},
		{"zzz", "", "does not name"},
	}
	for _, tt := range tests {
		err := d.Admit(tt.id, tt.fingerprint)
		if (err == nil) != (tt.says == "") || d.Names(tt.id, tt.fingerprint) != (err == nil) {
			t.Fatalf("%s/%s: %v", tt.id, tt.fingerprint, err)
		}
		if err != nil && (RefusalOf(err) != RefusalNotNamed || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("%s/%s: %v, want %q", tt.id, tt.fingerprint, err, tt.says)
		}
	}
}

func TestRefusalWords(t *testing.T) {
	for r := RefusalMissing; r <= RefusalNotNamed; r++ {
		text, _ := r.MarshalText()
		var back Refusal
		if err := back.UnmarshalText(text); err != nil || back != r {
			t.Errorf("%s came back as %s, %v", r, back, err)
		}
	}
	var r Refusal
	if err := r.UnmarshalText([]byte("nonsense")); err == nil {
		t.Error("took nonsense")
	}
	if Refusal(200).String() != "unknown(200)" {
		t.Error(Refusal(200).String())
	}
}

func TestKeyAndRingSurviveStoring(t *testing.T) {
	k, other := key(t), key(t)
	raw, err := k.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	back, err := ParseKey(raw)
	if err != nil || back.ID() != k.ID() || !back.private.Equal(k.private) {
		t.Fatalf("key came back as %v, %v", back, err)
	}
	for _, verb := range []string{"%v", "%+v", "%s", "%#v"} {
		if text := fmt.Sprintf(verb, k); strings.Contains(text, "private") || len(text) > 100 {
			t.Errorf("%s shows %s", verb, text)
		}
	}
	ring := NewRing(k.Public()).With(other.Public())
	raw, err = ring.Marshal()
	if err != nil || strings.Contains(string(raw), `"d"`) {
		t.Fatalf("ring is %s, %v", raw, err)
	}
	got, err := ParseRing(raw)
	if err != nil || !slices.Equal(got.IDs(), ring.IDs()) || len(got.IDs()) != 2 {
		t.Fatalf("ring came back as %v, %v", got.IDs(), err)
	}
	// Rotation: what the former key signed stays valid until the key is taken out.
	jws := sign(t, k, first(t, 1))
	if _, err := Verify(got, jws); err != nil {
		t.Error(err)
	}
	if _, err := Verify(got.Without(k.ID()), jws); err == nil {
		t.Error("verified with a key that was taken out")
	}
	if !got.Has(k.ID()) {
		t.Error("Without changed the ring it was called on")
	}
}

func TestParseKeyRefuses(t *testing.T) {
	k := key(t)
	raw, _ := k.Marshal()
	public, _ := NewRing(k.Public()).Marshal()
	symmetric, _ := json.Marshal(jose.JSONWebKey{Key: []byte("0123456789abcdef0123456789abcdef"), KeyID: "x"})
	for name, data := range map[string]string{
		"empty": "", "not JSON": "x", "public half": string(public), "symmetric": string(symmetric),
		"other kid": strings.Replace(string(raw), string(k.id), "another", 1),
	} {
		if got, err := ParseKey([]byte(data)); err == nil {
			t.Errorf("%s: parsed as %v", name, got)
		}
	}
	for name, data := range map[string]string{
		"not JSON": "x", "symmetric": `{"keys":[` + string(symmetric) + `]}`,
		"other kid": strings.Replace(string(public), string(k.id), "another", 1),
	} {
		if got, err := ParseRing([]byte(data)); err == nil {
			t.Errorf("ring, %s: parsed as %v", name, got)
		}
	}
}

func TestCacheIsBoundedAndFollowsTheRing(t *testing.T) {
	k := key(t)
	ring := NewRing(k.Public())
	cache := NewCache(2)
	jws := map[coordinator.OrganizationID]string{}
	for _, o := range []coordinator.OrganizationID{"a", "b", "c"} {
		d, _, err := Set(New(cluster, o), "", entries(2), day(1))
		if err != nil {
			t.Fatal(err)
		}
		jws[o] = sign(t, k, d)
		if _, err := cache.Check(ring, jws[o], Want{cluster, o, 1, ""}); err != nil {
			t.Fatal(err)
		}
		if o == "b" { // a is now asked for last
			if _, err := cache.Check(ring, jws["a"], Want{cluster, "a", 1, ""}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if cache.Len() != 2 || cache.find("b", DigestOf(jws["b"])) != nil || cache.find("a", DigestOf(jws["a"])) == nil {
		t.Errorf("cache holds %d; b should have gone, a stayed", cache.Len())
	}
	if len(cache.sets) != 1 || &cache.byID["a"].Value.(*verified).document.Definitions[0] != &cache.byID["c"].Value.(*verified).document.Definitions[0] {
		t.Errorf("equal lists are kept %d times", len(cache.sets))
	}
	next, _, err := Set(cache.byID["a"].Value.(*verified).document, DigestOf(jws["a"]), nil, day(2))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cache.Check(ring, sign(t, k, next), Want{cluster, "a", 2, ""}); err != nil || cache.Len() != 2 || len(cache.sets) != 2 {
		t.Errorf("after a new serial: %d grants, %d lists, %v", cache.Len(), len(cache.sets), err)
	}
	if _, err := cache.Check(ring, jws["a"], Want{cluster, "a", 2, ""}); RefusalOf(err) != RefusalRolledBack {
		t.Errorf("the former serial: %v", err)
	}
	if _, err := cache.Check(ring.Without(k.ID()), jws["c"], Want{cluster, "c", 1, ""}); RefusalOf(err) != RefusalAltered {
		t.Errorf("a key taken out of the ring: %v", err)
	}
	last, _, err := Set(cache.byID["c"].Value.(*verified).document, DigestOf(jws["c"]), nil, day(2))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cache.Check(ring, sign(t, k, last), Want{cluster, "c", 2, ""}); err != nil || len(cache.sets) != 1 {
		t.Errorf("a list nobody holds stays: %d lists, %v", len(cache.sets), err)
	}
}

func TestBackfillOnceAndResumable(t *testing.T) {
	newest := map[coordinator.OrganizationID]Serial{"c": 0, "a": 0, "b": 4, "d": 0}
	got, err := Backfill(cluster, newest, entries(3), day(1))
	if err != nil {
		t.Fatal(err)
	}
	var who []string
	for _, d := range got {
		who = append(who, string(d.OrganizationID))
		if d.Serial != 1 || len(d.Definitions) != 3 {
			t.Errorf("%s got serial %d with %d definitions", d.OrganizationID, d.Serial, len(d.Definitions))
		}
	}
	if strings.Join(who, "") != "acd" {
		t.Fatalf("backfilled %v; b had grants before and keeps its state", who)
	}
	newest["a"] = 1 // stored before the process died
	if got, _ = Backfill(cluster, newest, entries(3), day(2)); len(got) != 2 || got[0].OrganizationID != "c" {
		t.Errorf("resumed with %d, first %v", len(got), got)
	}
}

func TestAppendAndSet(t *testing.T) {
	k := key(t)
	one, _, err := Set(New(cluster, org), "", []Entry{{"a", "x"}, {"b", "x"}}, day(1))
	if err != nil {
		t.Fatal(err)
	}
	digest := DigestOf(sign(t, k, one))
	same, results, changed, err := Append(one, digest, []Entry{{"b", "x"}, {"a", "x"}}, day(2))
	if err != nil || changed || same.Serial != 1 || !slices.Equal(results, []Appended{{"a", true}, {"b", true}}) {
		t.Errorf("appending what is there: serial %d, %v, changed %v, %v", same.Serial, results, changed, err)
	}
	two, results, changed, err := Append(one, digest, []Entry{{"c", "x"}, {"b", "y"}, {"a", "x"}, {"c", "x"}}, day(2))
	if err != nil || !changed || two.Serial != 2 || two.Prev != digest ||
		!slices.Equal(results, []Appended{{"a", true}, {"b", false}, {"c", false}}) ||
		!slices.Equal(two.Definitions, []Entry{{"a", "x"}, {"b", "x"}, {"b", "y"}, {"c", "x"}}) {
		t.Errorf("append made %+v, %v, changed %v, %v", two, results, changed, err)
	}
	if len(one.Definitions) != 2 {
		t.Error("append wrote into its input")
	}
	none, changed, err := Set(one, digest, nil, day(2))
	if err != nil || !changed || none.Serial != 2 || len(none.Definitions) != 0 || none.Names("a", "x") {
		t.Errorf("revoking all made %+v, changed %v, %v", none, changed, err)
	}
	if _, changed, _ := Set(one, digest, []Entry{{"b", "x"}, {"a", "x"}}, day(2)); changed {
		t.Error("setting the same made a new serial")
	}
	if d, changed, err := Set(New(cluster, org), "", nil, day(1)); err != nil || !changed || d.Serial != 1 {
		t.Errorf("an empty first grant: %+v, %v, %v", d, changed, err)
	}
	if _, _, _, err := Append(one, "", []Entry{{"z", ""}}, day(2)); err == nil {
		t.Error("extended serial 1 without its digest")
	}
}

func TestEntriesResolveOrphans(t *testing.T) {
	definitions := []coordinator.Definition{
		{ID: "t3.small", Configured: "${spec.instanceType}", Fingerprint: "aws/a"},
		{ID: "t3.large", Configured: "${spec.instanceType}", Fingerprint: "aws/a"},
		{ID: "c5.large", Configured: "${spec.instanceType}", Fingerprint: "aws/b"},
		{ID: "cpu", Configured: "cpu", Fingerprint: "static"},
	}
	all := Entries(definitions)
	if !slices.Equal(all, []Entry{{"${spec.instanceType}", "aws/a"}, {"${spec.instanceType}", "aws/b"}, {"cpu", "static"}}) {
		t.Fatalf("entries are %v", all)
	}
	got, err := Resolve([]string{"${spec.instanceType}"}, definitions)
	if err != nil || !slices.Equal(got, all[:2]) {
		t.Errorf("resolved to %v, %v", got, err)
	}
	_, err = Resolve([]string{"cpu", "t3.large"}, definitions)
	e, ok := err.(*coordinator.Error)
	if !ok || e.Kind != coordinator.ErrNotFound || !strings.Contains(e.Hint, "${spec.instanceType}") {
		t.Errorf("an expanded id: %v", err)
	}
	d, _, err := Set(New(cluster, org), "", []Entry{{"cpu", "static"}, {"cpu", "slurm/x"}, {"gone", "pbs"}}, day(1))
	if err != nil {
		t.Fatal(err)
	}
	if got := Orphans(d, all); !slices.Equal(got, []Entry{{"cpu", "slurm/x"}, {"gone", "pbs"}}) {
		t.Errorf("orphans are %v", got)
	}
	if got := Ungranted(d, all); !slices.Equal(got, all[:2]) {
		t.Errorf("ungranted are %v", got)
	}
}

func TestLongestSerialIsNotWrapped(t *testing.T) {
	d := first(t, 1)
	d.Serial, d.Prev = math.MaxUint64, DigestOf("x")
	if next, _, err := Set(d, DigestOf("y"), nil, day(2)); err == nil {
		t.Errorf("made serial %d", next.Serial)
	}
}
