package grant

import (
	"crypto"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/go-jose/go-jose/v4"
)

// KeyID is the RFC 7638 thumbprint (sha256, base64url) of a signing key's public half.
type KeyID string

// Key signs grants: Ed25519. The zero value is no key.
type Key struct {
	id      KeyID
	private ed25519.PrivateKey
}

// Generate makes a signing key from rand.
func Generate(rand io.Reader) (Key, error) {
	_, private, err := ed25519.GenerateKey(rand)
	if err != nil {
		return Key{}, fmt.Errorf("cannot generate grant key: %w", err)
	}
	return newKey(private)
}

func newKey(private ed25519.PrivateKey) (Key, error) {
	id, err := thumbprint(private.Public().(ed25519.PublicKey))
	if err != nil {
		return Key{}, err
	}
	return Key{id: id, private: private}, nil
}

func thumbprint(public ed25519.PublicKey) (KeyID, error) {
	sum, err := (&jose.JSONWebKey{Key: public}).Thumbprint(crypto.SHA256)
	if err != nil {
		return "", fmt.Errorf("cannot name grant key: %w", err)
	}
	return KeyID(base64.RawURLEncoding.EncodeToString(sum)), nil
}

// ID is the kid that grants of this key carry.
func (k Key) ID() KeyID { return k.id }

// Public is the half that verifies.
func (k Key) Public() PublicKey {
	if k.private == nil {
		return PublicKey{}
	}
	return PublicKey{id: k.id, key: k.private.Public().(ed25519.PublicKey)}
}

// String and GoString keep the secret out of logs.
func (k Key) String() string   { return "grant key " + string(k.id) }
func (k Key) GoString() string { return k.String() }

// Marshal returns the private key as a JWK, to be stored where only the coordinator reads.
func (k Key) Marshal() ([]byte, error) {
	if k.private == nil {
		return nil, errors.New("cannot marshal grant key: it is empty")
	}
	return json.Marshal(jose.JSONWebKey{
		Key: k.private, KeyID: string(k.id), Algorithm: string(jose.EdDSA), Use: "sig"})
}

// ParseKey reads what Marshal wrote.
func ParseKey(data []byte) (Key, error) {
	var jwk jose.JSONWebKey
	if err := json.Unmarshal(data, &jwk); err != nil {
		return Key{}, fmt.Errorf("cannot parse grant key: %w", err)
	}
	private, ok := jwk.Key.(ed25519.PrivateKey)
	if !ok || len(private) != ed25519.PrivateKeySize {
		return Key{}, errors.New("cannot parse grant key: not an Ed25519 private key")
	}
	// The public half in the file is not trusted: it is derived again from the seed.
	derived := ed25519.NewKeyFromSeed(private.Seed())
	if !derived.Equal(private) {
		return Key{}, errors.New("cannot parse grant key: its halves do not belong together")
	}
	key, err := newKey(derived)
	if err != nil {
		return Key{}, err
	}
	if jwk.KeyID != string(key.id) {
		return Key{}, fmt.Errorf("cannot parse grant key: kid %q is not its thumbprint %q", jwk.KeyID, key.id)
	}
	return key, nil
}

// PublicKey verifies grants of one Key.
type PublicKey struct {
	id  KeyID
	key ed25519.PublicKey
}

// ID is the kid of grants it verifies.
func (p PublicKey) ID() KeyID { return p.id }

// Ring is the set of keys whose grants count. It never changes; With and Without return another
// one, so that grants of earlier keys stay verifiable after a rotation.
type Ring struct{ keys map[KeyID]ed25519.PublicKey }

// NewRing holds the given keys.
func NewRing(keys ...PublicKey) Ring {
	r := Ring{keys: make(map[KeyID]ed25519.PublicKey, len(keys))}
	for _, k := range keys {
		if k.key != nil {
			r.keys[k.id] = k.key
		}
	}
	return r
}

// With is the ring plus one key.
func (r Ring) With(k PublicKey) Ring {
	next := NewRing(k)
	maps.Copy(next.keys, r.keys)
	return next
}

// Without is the ring less one key: grants it signed are refused from now on.
func (r Ring) Without(id KeyID) Ring {
	next := Ring{keys: maps.Clone(r.keys)}
	delete(next.keys, id)
	return next
}

// Has reports whether grants of this key count.
func (r Ring) Has(id KeyID) bool { _, ok := r.keys[id]; return ok }

// IDs lists the kids, sorted.
func (r Ring) IDs() []KeyID { return slices.Sorted(maps.Keys(r.keys)) }

// Marshal returns the ring as a JWK set of public keys, sorted by kid.
func (r Ring) Marshal() ([]byte, error) {
	set := jose.JSONWebKeySet{Keys: []jose.JSONWebKey{}}
	for _, id := range r.IDs() {
		set.Keys = append(set.Keys, jose.JSONWebKey{
			Key: r.keys[id], KeyID: string(id), Algorithm: string(jose.EdDSA), Use: "sig"})
	}
	return json.Marshal(set)
}

// ParseRing reads what Marshal wrote. Each kid must be the thumbprint of its key.
func ParseRing(data []byte) (Ring, error) {
	var set jose.JSONWebKeySet
	if err := json.Unmarshal(data, &set); err != nil {
		return Ring{}, fmt.Errorf("cannot parse grant key ring: %w", err)
	}
	ring := NewRing()
	for i, jwk := range set.Keys {
		public, ok := jwk.Key.(ed25519.PublicKey)
		if !ok {
			return Ring{}, fmt.Errorf("cannot parse grant key ring: key %d is not an Ed25519 public key", i)
		}
		id, err := thumbprint(public)
		if err != nil {
			return Ring{}, err
		}
		if jwk.KeyID != string(id) {
			return Ring{}, fmt.Errorf("cannot parse grant key ring: kid %q is not its thumbprint %q", jwk.KeyID, id)
		}
		ring.keys[id] = public
	}
	return ring, nil
}
