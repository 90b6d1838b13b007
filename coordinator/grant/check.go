package grant

import (
	"errors"
	"fmt"
	"slices"

	"substrate/coordinator"
)

// Refusal says why a grant does not count. Append only.
type Refusal uint8

const (
	RefusalNone Refusal = iota
	RefusalMissing
	RefusalAltered // not signed by this cluster as it stands: form, header, key, signature or digest
	RefusalRolledBack
	RefusalForeignCluster
	RefusalForeignOrganisation
	RefusalNotNamed // the grant counts, but does not name the definition
)

func refusalWords() []string {
	return []string{"", "missing", "altered", "rolled-back", "foreign-cluster", "foreign-organisation", "not-named"}
}

func (r Refusal) String() string {
	if words := refusalWords(); int(r) < len(words) {
		return words[r]
	}
	return fmt.Sprintf("unknown(%d)", uint8(r))
}

func (r Refusal) MarshalText() ([]byte, error) { return []byte(r.String()), nil }
func (r *Refusal) UnmarshalText(text []byte) error {
	i := slices.Index(refusalWords(), string(text))
	if i < 0 {
		return fmt.Errorf("unknown refusal %q", text)
	}
	*r = Refusal(i)
	return nil
}

// Refused is the error of a grant that does not count. Its kind is coordinator.ErrDenied.
type Refused struct {
	Refusal      Refusal
	Organization coordinator.OrganizationID
	denied       *coordinator.Error
}

func (e *Refused) Error() string { return e.denied.Error() }
func (e *Refused) Unwrap() error { return e.denied }

func refuse(want Want, r Refusal, format string, args ...any) error {
	cause := fmt.Sprintf(format, args...)
	return &Refused{Refusal: r, Organization: want.Organization, denied: coordinator.Errorf(
		coordinator.ErrDenied, "use grant of organisation "+string(want.Organization), "%s: %s", r, cause)}
}

// RefusalOf is the refusal in err's chain, RefusalNone without one.
func RefusalOf(err error) Refusal {
	var e *Refused
	if errors.As(err, &e) {
		return e.Refusal
	}
	return RefusalNone
}

// Want is what the coordinator knows apart from the grant's own record. NewestSerial is written
// with every grant under another key: without it a restored older record would look right.
type Want struct {
	Cluster      string
	Organization coordinator.OrganizationID
	NewestSerial Serial
	NewestDigest Digest // "" where only the serial is known
}

// Check verifies the stored JWS ("" when there is none) and that it is the grant that counts now.
// The error is a *Refused.
func Check(ring Ring, jws string, want Want) (Document, error) {
	d, _, err := check(ring, jws, DigestOf(jws), want)
	return d, err
}

func check(ring Ring, jws string, digest Digest, want Want) (Document, KeyID, error) {
	if jws == "" {
		return Document{}, "", refuse(want, RefusalMissing, "no grant is stored, serial %d was issued last", want.NewestSerial)
	}
	d, kid, err := verify(ring, jws)
	if err != nil {
		return Document{}, "", refuse(want, RefusalAltered, "%v", err)
	}
	if err := want.match(d, digest); err != nil {
		return Document{}, "", err
	}
	return d, kid, nil
}

func (w Want) match(d Document, digest Digest) error {
	switch {
	case d.ClusterID != w.Cluster:
		return refuse(w, RefusalForeignCluster, "it was issued for cluster %q", d.ClusterID)
	case d.OrganizationID != w.Organization:
		return refuse(w, RefusalForeignOrganisation, "it was issued to organisation %q", d.OrganizationID)
	case d.Serial < w.NewestSerial:
		return refuse(w, RefusalRolledBack, "serial %d is stored, %d was issued last", d.Serial, w.NewestSerial)
	case d.Serial > w.NewestSerial:
		// Both are written together, so the note of the newest serial is the older one here.
		return refuse(w, RefusalRolledBack, "the note of the newest serial says %d, the grant %d", w.NewestSerial, d.Serial)
	case w.NewestDigest != "" && w.NewestDigest != digest:
		return refuse(w, RefusalAltered, "another grant was issued as serial %d", d.Serial)
	}
	return nil
}

// Admit refuses a definition the checked grant does not name.
func (d Document) Admit(configuredID, fingerprint string) error {
	if d.Names(configuredID, fingerprint) {
		return nil
	}
	want := Want{Cluster: d.ClusterID, Organization: d.OrganizationID}
	i, _ := slices.BinarySearchFunc(d.Definitions, Entry{ID: configuredID}, Entry.Compare)
	if i < len(d.Definitions) && d.Definitions[i].ID == configuredID {
		return refuse(want, RefusalNotNamed, "serial %d names definition %q for another backend target", d.Serial, configuredID)
	}
	return refuse(want, RefusalNotNamed, "serial %d does not name definition %q", d.Serial, configuredID)
}
