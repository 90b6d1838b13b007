package auth

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"substrate/coordinator"
)

func newToken(t testing.TB, uses uint32) (JoinText, JoinToken) {
	t.Helper()
	text, record, err := NewJoinToken(Pin(newCA(t, cluster)), uses, start(), time.Hour, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := ParseJoinToken(text)
	if err != nil {
		t.Fatal(err)
	}
	return parsed, record
}

func TestJoinTokenIsOneWordAndKeepsItsSecret(t *testing.T) {
	ca := newCA(t, cluster)
	text, record, err := NewJoinToken(Pin(ca), 1, start(), time.Hour, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Trim(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") != "" || text[0] == '-' {
		t.Errorf("%q is not one shell word", text)
	}
	parsed, err := ParseJoinToken(text)
	if err != nil || parsed.Pin != Pin(ca) || parsed.ID != record.ID {
		t.Fatalf("parsed as %v, %v", parsed, err)
	}
	withoutPin, err := ParseJoinToken(parsed.ID + "." + parsed.Secret)
	if err != nil || withoutPin.Secret != parsed.Secret || withoutPin.Pin != "" {
		t.Errorf("without the pin: %v, %v", withoutPin, err)
	}
	stored, err := json.Marshal(record)
	if err != nil || bytes.Contains(stored, []byte(parsed.Secret)) {
		t.Errorf("the record holds the secret: %s, %v", stored, err)
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		if shown := fmt.Sprintf(verb, parsed); strings.Contains(shown, parsed.Secret) {
			t.Errorf("%s shows %s", verb, shown)
		}
	}
	_, err = ParseJoinToken(text + "x")
	if err == nil || strings.Contains(err.Error(), parsed.Secret) {
		t.Errorf("error %v", err)
	}
}

func TestNewJoinTokenRefuses(t *testing.T) {
	pin := Pin(newCA(t, cluster))
	if _, _, err := NewJoinToken(pin, 0, start(), time.Hour, rand.Reader); coordinator.ErrorKindOf(err) != coordinator.ErrInvalid {
		t.Errorf("no uses: %v", err)
	}
	if _, _, err := NewJoinToken(pin, 1, start(), 0, rand.Reader); coordinator.ErrorKindOf(err) != coordinator.ErrInvalid {
		t.Errorf("no lifetime: %v", err)
	}
	if _, _, err := NewJoinToken("short", 1, start(), time.Hour, rand.Reader); err == nil {
		t.Error("took a bad pin")
	}
	if _, _, err := NewJoinToken(pin, 1, start(), time.Hour, strings.NewReader("few")); err == nil {
		t.Error("made a token from too little randomness")
	}
}

func TestRedeem(t *testing.T) {
	text, fresh := newToken(t, 2)
	used, _, err := fresh.Redeem(text.Secret, "n1", "key-1", start())
	if err != nil || used.UsesLeft != 1 || fresh.UsesLeft != 2 {
		t.Fatalf("first use left %d, %v", used.UsesLeft, err)
	}
	full, _, err := used.Redeem(text.Secret, "n2", "key-2", start().Add(time.Minute))
	if err != nil || full.UsesLeft != 0 {
		t.Fatalf("second use left %d, %v", full.UsesLeft, err)
	}
	revoked := full
	revoked.Revoked = true
	other, _ := newToken(t, 1)
	tests := []struct {
		name   string
		token  JoinToken
		secret string
		node   coordinator.NodeID
		key    KeyID
		after  time.Duration
		again  bool
		kind   coordinator.ErrorKind
		says   string
	}{
		{"answer lost, last use", full, text.Secret, "n2", "key-2", 2 * time.Minute, true, 0, ""},
		{"answer lost, earlier use", full, text.Secret, "n1", "key-1", 2 * time.Minute, true, 0, ""},
		{"answer lost, token expired meanwhile", full, text.Secret, "n2", "key-2", 60*time.Minute + 30*time.Second, true, 0, ""},
		{"repetition after the window", full, text.Secret, "n2", "key-2", 61 * time.Minute, false, coordinator.ErrUnauthenticated, "expired"},
		{"used up", full, text.Secret, "n3", "key-3", 2 * time.Minute, false, coordinator.ErrUnauthenticated, "used up"},
		{"same node, other key", full, text.Secret, "n2", "key-3", 2 * time.Minute, false, coordinator.ErrUnauthenticated, "used up"},
		{"same key, other node", used, text.Secret, "n9", "key-1", 2 * time.Minute, false, coordinator.ErrConflict, "n1"},
		{"expired at the very end", used, text.Secret, "n3", "key-3", time.Hour, false, coordinator.ErrUnauthenticated, "expired"},
		{"last moment", used, text.Secret, "n3", "key-3", time.Hour - 1, false, 0, ""},
		{"wrong secret", used, other.Secret, "n3", "key-3", 0, false, coordinator.ErrUnauthenticated, "secret"},
		{"no secret", used, "", "n3", "key-3", 0, false, coordinator.ErrUnauthenticated, "secret"},
		{"wrong secret repeats nothing", full, other.Secret, "n2", "key-2", 2 * time.Minute, false, coordinator.ErrUnauthenticated, "secret"},
		{"revoked", revoked, text.Secret, "n2", "key-2", 2 * time.Minute, false, coordinator.ErrUnauthenticated, "revoked"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			next, again, err := tt.token.Redeem(tt.secret, tt.node, tt.key, start().Add(tt.after))
			if tt.says != "" {
				if err == nil || coordinator.ErrorKindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.says) {
					t.Fatalf("error %v", err)
				}
				if next.UsesLeft != tt.token.UsesLeft {
					t.Error("a refusal cost a use")
				}
				return
			}
			if err != nil || again != tt.again {
				t.Fatalf("again %v, %v", again, err)
			}
			if cost := tt.token.UsesLeft - next.UsesLeft; again != (cost == 0) {
				t.Errorf("cost %d uses", cost)
			}
		})
	}
}

// Whatever the order of joins and repetitions, a token gives no more uses than it had, and each
// pair of key and node pays at most once within the window.
func TestIssued(t *testing.T) {
	shown, record := newToken(t, 1)
	other, _ := newToken(t, 1)
	if !record.Issued(shown) || record.Issued(other) || record.Issued(JoinText{ID: record.ID, Secret: other.Secret}) || (JoinToken{}).Issued(JoinText{}) {
		t.Error("Issued does not follow the secret")
	}
}

func TestRedeemProperties(t *testing.T) {
	text, fresh := newToken(t, 3)
	rapid.Check(t, func(t *rapid.T) {
		token, now := fresh, start()
		paid := map[string]int{}
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 5).Draw(t, "minutes")) * time.Minute / 3)
			n := rapid.IntRange(1, 5).Draw(t, "node")
			next, again, err := token.Redeem(text.Secret, coordinator.NodeID(fmt.Sprint("n", n)), KeyID(fmt.Sprint("k", n)), now)
			if err != nil {
				continue
			}
			if !again {
				paid[fmt.Sprint(n)]++
			}
			token = next
		}
		total := 0
		for n, times := range paid {
			if total += times; times > 1 {
				t.Fatalf("node %s paid %d times", n, times)
			}
		}
		if total > 3 || int(token.UsesLeft) != 3-total || token.Done(now) && token.UsesLeft > 0 {
			t.Fatalf("%d uses, %d left", total, token.UsesLeft)
		}
		if len(token.Redeemed) > total {
			t.Fatalf("remembers %d of %d", len(token.Redeemed), total)
		}
		if !token.Done(now.Add(3 * time.Hour)) {
			t.Fatal("is kept for ever")
		}
	})
}

func TestRedeemedListIsBounded(t *testing.T) {
	text, token := newToken(t, 500)
	token.Expires = start().Add(1000 * time.Hour)
	for i := range 300 {
		var err error
		token, _, err = token.Redeem(text.Secret, coordinator.NodeID(fmt.Sprint("n", i)), KeyID(fmt.Sprint("k", i)), start().Add(time.Duration(i)*time.Minute))
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(token.Redeemed) != 60 {
		t.Errorf("remembers %d redemptions of the last hour, want 60", len(token.Redeemed))
	}
}

func FuzzParseJoinToken(f *testing.F) {
	id, secret := strings.Repeat("0a", idBytes), strings.Repeat("A", 43)
	f.Add(id + "." + secret + "." + secret)
	f.Add(id + "." + secret)
	f.Add(id + "." + secret + ".")
	f.Add(strings.ToUpper(id) + "." + secret + "." + secret)
	f.Add(id + "." + secret[:42] + "B." + secret)
	f.Add(id + "." + secret[:20] + "\n" + secret[20:])
	f.Add("..")
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := ParseJoinToken(text)
		if err != nil {
			return
		}
		back := got.ID + "." + got.Secret
		if got.Pin != "" {
			back += "." + got.Pin
		}
		if back != text || len(got.Secret) != 43 || strings.ContainsAny(text, " \t\r\n'\"$\\") {
			t.Fatalf("%q was read as %q", text, back)
		}
	})
}

func TestUserToken(t *testing.T) {
	text, record, err := NewUserToken("user-1", "laptop", 0, start(), rand.Reader)
	if err != nil || !strings.HasPrefix(text, "sbt_") || record.User != "user-1" {
		t.Fatalf("%q, %+v, %v", text, record, err)
	}
	shown, err := ParseUserToken(text)
	if err != nil || shown.ID != record.ID {
		t.Fatal(shown, err)
	}
	stored, _ := json.Marshal(record)
	if bytes.Contains(stored, []byte(shown.Secret)) || strings.Contains(fmt.Sprintf("%v %+v %#v", shown, shown, shown), shown.Secret) {
		t.Error("the secret shows")
	}
	_, other, _ := NewUserToken("user-2", "", 0, start(), rand.Reader)
	end := start().Add(time.Hour)
	expiring, revoked := record, record
	expiring.Expires, revoked.Revoked = &end, true
	tests := []struct {
		name   string
		record UserToken
		shown  UserText
		now    time.Time
		says   string
	}{
		{"right", record, shown, start().Add(1e6 * time.Hour), ""},
		{"before the end", expiring, shown, end.Add(-1), ""},
		{"at the end", expiring, shown, end, "expired"},
		{"revoked", revoked, shown, start(), "revoked"},
		{"other record", other, shown, start(), "not known"},
		{"wrong secret", record, UserText{shown.ID, strings.Repeat("A", 43)}, start(), "not known"},
		{"wrong secret of a revoked one", revoked, UserText{shown.ID, strings.Repeat("A", 43)}, start(), "not known"},
		{"no secret", record, UserText{ID: shown.ID}, start(), "not known"},
		{"zero record", UserToken{}, UserText{}, start(), "not known"},
	}
	for _, tt := range tests {
		err := tt.record.Check(tt.shown, tt.now)
		if (err == nil) != (tt.says == "") {
			t.Errorf("%s: %v", tt.name, err)
		}
		if err != nil && (coordinator.ErrorKindOf(err) != coordinator.ErrUnauthenticated || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	for _, wrong := range []string{"", "Bearer " + text, text + "x", text[:len(text)-1], strings.TrimPrefix(text, UserTokenPrefix)} {
		if _, err := ParseUserToken(wrong); coordinator.ErrorKindOf(err) != coordinator.ErrUnauthenticated || strings.Contains(fmt.Sprint(err), shown.Secret) {
			t.Errorf("%q: %v", wrong, err)
		}
	}
	if _, _, err := NewUserToken("", "", 0, start(), rand.Reader); err == nil {
		t.Error("made a token for nobody")
	}
}

// A secret may hold the separator of the text; every token must still come back.
func TestUserTokenTextProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		raw := rapid.SliceOfN(rapid.Byte(), idBytes+secretBytes, idBytes+secretBytes).Draw(t, "random")
		text, record, err := NewUserToken("u", "", 0, start(), bytes.NewReader(raw))
		if err != nil {
			t.Fatal(err)
		}
		shown, err := ParseUserToken(text)
		if err != nil || record.Check(shown, start()) != nil {
			t.Fatalf("%s: %v", text, err)
		}
	})
}

func FuzzParseUserToken(f *testing.F) {
	f.Add("sbt_" + strings.Repeat("0a", idBytes) + "_" + strings.Repeat("A", 43))
	f.Add("sbt_" + strings.Repeat("0a", idBytes) + "_" + strings.Repeat("_", 43))
	f.Add("sbt__")
	f.Add("Bearer x")
	f.Fuzz(func(t *testing.T, text string) {
		if got, err := ParseUserToken(text); err == nil && UserTokenPrefix+got.ID+"_"+got.Secret != text {
			t.Fatalf("%q was read as %v", text, got)
		}
	})
}
