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

// UserToken is the stored half of a user's API token, found by its public id.
type UserToken struct {
	ID      string             `json:"id"`
	Hash    []byte             `json:"hash"` // sha256 of the secret
	User    coordinator.UserID `json:"user"`
	Created time.Time          `json:"created"`
	Expires *time.Time         `json:"expires,omitempty"` // nil: never
	Revoked bool               `json:"revoked,omitempty"`
}

// NewUserToken returns the text, shown once ("sbt_<id>_<secret>"), and the record to store.
func NewUserToken(user coordinator.UserID, now time.Time, rand io.Reader) (string, UserToken, error) {
	if user == "" {
		return "", UserToken{}, coordinator.Errorf(coordinator.ErrInvalid, "create token", "it belongs to no user")
	}
	id, secret, err := newSecret(rand)
	if err != nil {
		return "", UserToken{}, fmt.Errorf("cannot create token: %w", err)
	}
	return UserTokenPrefix + id + "_" + secret,
		UserToken{ID: id, Hash: hashSecret(secret), User: user, Created: now.UTC()}, nil
}

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

// Check tells whether the shown token is this one and still counts.
func (t UserToken) Check(shown UserText, now time.Time) error {
	cause := ""
	switch {
	// One answer for both: the id is public, and nobody learns which of the two was right.
	case shown.ID != t.ID || !sameHash(t.Hash, shown.Secret):
		cause = "it is not known"
	case t.Revoked:
		cause = "it was revoked"
	case t.Expires != nil && !now.Before(*t.Expires):
		cause = "it expired at " + t.Expires.UTC().Format(time.RFC3339)
	default:
		return nil
	}
	return coordinator.Errorf(coordinator.ErrUnauthenticated, "use token", "%s", cause)
}
