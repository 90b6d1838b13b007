package grant

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"github.com/go-jose/go-jose/v4"
)

// Type is the typ header of every grant. Nothing else the cluster signs may carry it.
const Type = "substrate-grant+jws"

// Sign returns the document as a compact JWS: EdDSA, kid, typ.
func Sign(key Key, d Document) (string, error) {
	op := func(err error) error {
		return fmt.Errorf("cannot sign grant %d of organisation %s: %w", d.Serial, d.OrganizationID, err)
	}
	if key.private == nil {
		return "", op(errors.New("no key"))
	}
	raw, err := d.encode()
	if err != nil {
		return "", op(err)
	}
	signer, err := jose.NewSigner(
		jose.SigningKey{
			Algorithm: jose.EdDSA,
			Key:       jose.JSONWebKey{Key: key.private, KeyID: string(key.id)},
		},
		(&jose.SignerOptions{}).WithType(Type))
	if err != nil {
		return "", op(err)
	}
	signature, err := signer.Sign(raw)
	if err != nil {
		return "", op(err)
	}
	jws, err := signature.CompactSerialize()
	if err != nil {
		return "", op(err)
	}
	return jws, nil
}

// Verify checks form, header and signature, and only then reads the verified bytes.
// Whose grant it is and whether it is the newest, Check tells.
func Verify(ring Ring, jws string) (Document, error) {
	d, _, err := verify(ring, jws)
	if err != nil {
		return Document{}, fmt.Errorf("cannot verify grant: %w", err)
	}
	return d, nil
}

func verify(ring Ring, jws string) (Document, KeyID, error) {
	if len(jws) > MaxJWS {
		return Document{}, "", fmt.Errorf("%d bytes are more than %d", len(jws), MaxJWS)
	}
	if err := checkSpelling(jws); err != nil {
		return Document{}, "", err
	}
	parsed, err := jose.ParseSignedCompact(jws, []jose.SignatureAlgorithm{jose.EdDSA})
	if err != nil {
		return Document{}, "", err
	}
	if len(parsed.Signatures) != 1 {
		return Document{}, "", fmt.Errorf("%d signatures, expected 1", len(parsed.Signatures))
	}
	kid, err := checkHeader(parsed.Signatures[0].Protected)
	if err != nil {
		return Document{}, "", err
	}
	public, ok := ring.keys[kid]
	if !ok {
		return Document{}, "", fmt.Errorf("key %q is not one of this cluster's", kid)
	}
	raw, err := parsed.Verify(public)
	if err != nil {
		return Document{}, "", errors.New("signature does not fit")
	}
	d, err := decode(raw)
	return d, kid, err
}

// checkHeader allows alg, kid and our typ, nothing else: an embedded key, crit or b64 would give the
// signature another meaning.
func checkHeader(h jose.Header) (KeyID, error) {
	typ, ok := h.ExtraHeaders[jose.HeaderType].(string)
	if !ok || typ != Type {
		return "", fmt.Errorf("typ is %q, expected %q", typ, Type)
	}
	if h.JSONWebKey != nil || h.Nonce != "" || len(h.ExtraHeaders) != 1 {
		return "", errors.New("header holds more than alg, kid and typ")
	}
	if h.KeyID == "" {
		return "", errors.New("header has no kid")
	}
	return KeyID(h.KeyID), nil
}

// checkSpelling refuses the other base64 spellings of the same bytes (line breaks, set padding
// bits): the digest of the text identifies a grant, so there must be one text only.
func checkSpelling(jws string) error {
	parts := strings.Split(jws, ".")
	if len(parts) != 3 {
		return errors.New("not a compact JWS")
	}
	for _, part := range parts {
		tail := part[len(part)/4*4:]
		if _, err := base64.RawURLEncoding.Strict().DecodeString(tail); err != nil || strings.ContainsAny(part, "\r\n") {
			return errors.New("not in canonical base64url")
		}
	}
	return nil
}
