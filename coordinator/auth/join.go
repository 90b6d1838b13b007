package auth

import (
	"bytes"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"substrate/coordinator"
)

const (
	secretBytes = 32
	idBytes     = 8
	// MaxJoinUses bounds a token for a whole cluster.
	MaxJoinUses = 100_000
	// RepeatWindow is how long the same node may redeem again after a lost answer. It also bounds
	// the redemptions a token remembers.
	RepeatWindow = time.Hour
)

// JoinToken is the stored half of a join token. The secret itself is nowhere.
type JoinToken struct {
	ID       string       `json:"id"`
	Hash     []byte       `json:"hash"`           // sha256 of the secret
	Uses     uint32       `json:"uses,omitempty"` // at its beginning; 0 where that was not kept
	UsesLeft uint32       `json:"uses_left"`
	Created  time.Time    `json:"created"`
	Expires  time.Time    `json:"expires"`
	Revoked  bool         `json:"revoked,omitempty"`
	Redeemed []Redemption `json:"redeemed,omitempty"` // of the last RepeatWindow, oldest first
	By       string       `json:"by,omitempty"`       // who made it
	Binding
}

// Binding is what nodes may be that join with a token; "" binds to nothing.
type Binding struct {
	Definition coordinator.DefinitionID `json:"definition,omitempty"`
	Launch     string                   `json:"launch,omitempty"`
}

const maxLaunch = 128

// ParseLaunch takes the id of a launch: what a provisioner calls the start of an instance.
func ParseLaunch(text string) (string, error) {
	other := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-_.:/", r)
	}
	if len(text) > maxLaunch || strings.ContainsFunc(text, other) {
		return "", coordinator.Errorf(coordinator.ErrInvalid, fmt.Sprintf("use launch %.80q", text),
			"expected at most %d letters, digits and -_.:/", maxLaunch)
	}
	return text, nil
}

// Accepts refuses a node of another launch than the one the token was made for.
func (b Binding) Accepts(launch string) error {
	if b.Launch != "" && b.Launch != launch {
		return coordinator.Errorf(coordinator.ErrDenied, "use join token", "it was made for another launch than %q", launch)
	}
	return nil
}

// Redemption is one use of a join token.
type Redemption struct {
	Node coordinator.NodeID `json:"node"`
	Key  KeyID              `json:"key"`
	At   time.Time          `json:"at"`
}

// NewJoinToken returns the text for the node, "<id>.<secret>.<pin>", and the record to store.
func NewJoinToken(pin string, uses uint32, now time.Time, ttl time.Duration, rand io.Reader) (string, JoinToken, error) {
	if uses == 0 || uses > MaxJoinUses {
		return "", JoinToken{}, coordinator.Errorf(coordinator.ErrInvalid, "create join token", "%d uses, expected 1 to %d", uses, MaxJoinUses)
	}
	if ttl <= 0 {
		return "", JoinToken{}, coordinator.Errorf(coordinator.ErrInvalid, "create join token", "a lifetime of %s is none", ttl)
	}
	id, secret, err := newSecret(rand)
	if err != nil {
		return "", JoinToken{}, fmt.Errorf("cannot create join token: %w", err)
	}
	text := id + "." + secret + "." + pin
	if _, err := ParseJoinToken(text); err != nil {
		return "", JoinToken{}, err
	}
	return text, JoinToken{ID: id, Hash: hashSecret(secret), Uses: uses, UsesLeft: uses, Created: now.UTC(), Expires: now.Add(ttl).UTC()}, nil
}

func newSecret(rand io.Reader) (id, secret string, err error) {
	raw := make([]byte, idBytes+secretBytes)
	if _, err := io.ReadFull(rand, raw); err != nil {
		return "", "", err
	}
	return hex.EncodeToString(raw[:idBytes]), base64.RawURLEncoding.EncodeToString(raw[idBytes:]), nil
}

// hashSecret needs no salt and no stretching: the secret has 256 random bits.
func hashSecret(secret string) []byte {
	sum := sha256.Sum256([]byte(secret))
	return sum[:]
}

// JoinText is a join token as a node shows it. The pin is "" where it stayed with the agent.
type JoinText struct{ ID, Secret, Pin string }

// String shows the public part only.
func (t JoinText) String() string   { return "join token " + t.ID }
func (t JoinText) GoString() string { return t.String() }

// ParseJoinToken reads "<id>.<secret>" or "<id>.<secret>.<pin>". Errors never repeat the text.
func ParseJoinToken(text string) (JoinText, error) {
	id, rest, _ := strings.Cut(text, ".")
	secret, pin, pinned := strings.Cut(rest, ".")
	if !isID(id) || !is256(secret) || pinned && !is256(pin) {
		return JoinText{}, coordinator.Errorf(coordinator.ErrInvalid, "read join token",
			"expected <id>.<secret>.<pin> as `substrate node join-token create` printed it")
	}
	return JoinText{ID: id, Secret: secret, Pin: pin}, nil
}

func isID(s string) bool {
	raw, err := hex.DecodeString(s)
	return err == nil && len(raw) == idBytes && hex.EncodeToString(raw) == s
}

// is256 takes the one spelling of 256 bits in base64url.
func is256(s string) bool {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(s)
	return err == nil && len(raw) == secretBytes && len(s) == base64.RawURLEncoding.EncodedLen(secretBytes)
}

// Issued reports whether the shown text carries this token's secret. Whether the token still counts is
// Redeem's to say.
func (t JoinToken) Issued(shown JoinText) bool {
	return shown.ID == t.ID && sameHash(t.Hash, shown.Secret)
}

// Redeem uses the token once for a node's key and returns the record to store before the
// certificate leaves. The same secret, key and node within RepeatWindow is the repetition of a lost
// answer: it costs no use, and again is true. Store under a guard, or two nodes share one use.
func (t JoinToken) Redeem(secret string, node coordinator.NodeID, key KeyID, now time.Time) (next JoinToken, again bool, err error) {
	fail := func(kind coordinator.ErrorKind, cause error) (JoinToken, bool, error) {
		return t, false, coordinator.Errorf(kind, "redeem join token "+t.ID, "%w", cause)
	}
	if !sameHash(t.Hash, secret) {
		return fail(coordinator.ErrUnauthenticated, errors.New("its secret is wrong"))
	}
	if t.Revoked {
		return fail(coordinator.ErrUnauthenticated, errors.New("it was revoked"))
	}
	recent := make([]Redemption, 0, len(t.Redeemed)+1)
	for _, r := range t.Redeemed {
		if now.Sub(r.At) >= RepeatWindow {
			continue
		}
		if r.Key == key && r.Node == node {
			return t, true, nil
		}
		if r.Key == key {
			return fail(coordinator.ErrConflict, fmt.Errorf("its key joined as %s already", r.Node))
		}
		recent = append(recent, r)
	}
	if !now.Before(t.Expires) {
		return fail(coordinator.ErrUnauthenticated, fmt.Errorf("it expired at %s", t.Expires.Format(time.RFC3339)))
	}
	if t.UsesLeft == 0 {
		return fail(coordinator.ErrUnauthenticated, errors.New("it is used up"))
	}
	next = t
	next.UsesLeft--
	next.Redeemed = append(recent, Redemption{Node: node, Key: key, At: now.UTC()})
	return next, false, nil
}

// Done reports that the record can be forgotten: nothing redeems it any more.
func (t JoinToken) Done(now time.Time) bool {
	if now.Before(t.Expires) && t.UsesLeft > 0 && !t.Revoked {
		return false
	}
	for _, r := range t.Redeemed {
		if now.Sub(r.At) < RepeatWindow && !t.Revoked {
			return false
		}
	}
	return true
}

func sameHash(hash []byte, secret string) bool {
	return subtle.ConstantTimeCompare(hash, hashSecret(secret)) == 1
}

// LaunchToken is the join token of a launch, the same each time it is asked for: who starts an instance again, after a crash or an
// unclear answer, must hand it the same data. It can be worked out by who has the authority's key only, and is stored as a hash like any other.
func (ca *CA) LaunchToken(launch string, uses uint32, now time.Time, ttl time.Duration) (string, JoinToken, error) {
	key, err := ca.key.Bytes()
	if err != nil {
		return "", JoinToken{}, fmt.Errorf("cannot create join token of launch %s: %w", launch, err)
	}
	raw, err := hkdf.Key(sha256.New, key, nil, "join token of launch "+launch, idBytes+secretBytes)
	if err != nil {
		return "", JoinToken{}, fmt.Errorf("cannot create join token of launch %s: %w", launch, err)
	}
	return NewJoinToken(Pin(ca), uses, now, ttl, bytes.NewReader(raw))
}
