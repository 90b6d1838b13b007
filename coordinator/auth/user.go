package auth

import (
	"fmt"
	"io"
	"strings"
	"time"

	"substrate/coordinator"
)

// UserTokenPrefix lets people and secret scanners tell what they found.
const UserTokenPrefix = "sbt_"

const maxTokenName = 64

// UserToken is the stored half of a user's API token, found by its public id.
type UserToken struct {
	ID      string             `json:"id"`
	Name    string             `json:"name,omitempty"` // what its user calls it
	Hash    []byte             `json:"hash"`           // sha256 of the secret
	User    coordinator.UserID `json:"user"`
	Created time.Time          `json:"created"`
	Expires *time.Time         `json:"expires,omitempty"` // nil: never
	Used    time.Time          `json:"used,omitzero"`     // last use, to the hour or so
	Revoked bool               `json:"revoked,omitempty"`
}

// NewUserToken returns the text, shown once ("sbt_<id>_<secret>"), and the record to store. A ttl of 0 is for ever.
func NewUserToken(user coordinator.UserID, name string, ttl time.Duration, now time.Time, rand io.Reader) (string, UserToken, error) {
	const op = "create token"
	switch {
	case user == "":
		return "", UserToken{}, coordinator.Errorf(coordinator.ErrInvalid, op, "it belongs to no user")
	case ttl < 0:
		return "", UserToken{}, coordinator.Errorf(coordinator.ErrInvalid, op, "a lifetime of %s is none", ttl)
	case len(name) > maxTokenName || strings.ContainsFunc(name, unprintable) || isID(name):
		return "", UserToken{}, coordinator.Errorf(coordinator.ErrInvalid, op, "name %.80q is not one", name).
			WithHint("use at most %d printable characters, not of the form of a token's id", maxTokenName)
	}
	id, secret, err := newSecret(rand)
	if err != nil {
		return "", UserToken{}, fmt.Errorf("cannot create token: %w", err)
	}
	rec := UserToken{ID: id, Name: name, Hash: hashSecret(secret), User: user, Created: now.UTC()}
	if ttl > 0 {
		end := now.Add(ttl).UTC()
		rec.Expires = &end
	}
	return UserTokenPrefix + id + "_" + secret, rec, nil
}

func unprintable(r rune) bool { return r < ' ' || r == 0x7f || r == '\uFFFD' }

// UserText is a user's token as a caller shows it.
type UserText struct{ ID, Secret string }

// String shows the public part only.
func (t UserText) String() string   { return "token " + UserTokenPrefix + t.ID }
func (t UserText) GoString() string { return t.String() }

// ParseUserToken splits a token into the id to look up and the secret to check.
func ParseUserToken(text string) (UserText, error) {
	rest, ok := strings.CutPrefix(text, UserTokenPrefix)
	id, secret, _ := strings.Cut(rest, "_") // an id has no underscore, a secret may
	if !ok || !isID(id) || !is256(secret) {
		return UserText{}, coordinator.Errorf(coordinator.ErrUnauthenticated, "read token", "it is not of the form %s…", UserTokenPrefix)
	}
	return UserText{ID: id, Secret: secret}, nil
}

// Expired reports whether the token's time is over.
func (t UserToken) Expired(now time.Time) bool { return t.Expires != nil && !now.Before(*t.Expires) }

// Issued reports whether the shown text carries this token's secret, whatever has become of the token.
func (t UserToken) Issued(shown UserText) bool {
	return shown.ID == t.ID && sameHash(t.Hash, shown.Secret)
}

// Check tells whether the shown token is this one and still counts.
func (t UserToken) Check(shown UserText, now time.Time) error {
	cause := ""
	switch {
	// One answer for both: the id is public, and nobody learns which of the two was right.
	case !t.Issued(shown):
		cause = "it is not known"
	case t.Revoked:
		cause = "it was revoked"
	case t.Expired(now):
		cause = "it expired at " + t.Expires.UTC().Format(time.RFC3339)
	default:
		return nil
	}
	return coordinator.Errorf(coordinator.ErrUnauthenticated, "use token", "%s", cause)
}
