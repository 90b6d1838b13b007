package identity

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestRenewSurvivesBeingCutShort: whatever fails, what is on the disk is an identity that counts, and the next try
// asks with the same key.
func TestRenewSurvivesBeingCutShort(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "identity")
	a := newAuthority(t)
	id := newIdentity(t, a)
	if err := id.Save(dir); err != nil {
		t.Fatal(err)
	}
	c := NewCurrent(dir, id, func() time.Time { return start().Add(time.Hour) })
	lost := errors.New("the answer is lost")
	for range 2 {
		err := c.Renew(t.Context(), rand.Reader, func(context.Context, []byte) ([]byte, []byte, error) { return nil, nil, lost })
		if !errors.Is(err, lost) {
			t.Fatal(err)
		}
	}
	first, err := os.ReadFile(filepath.Join(dir, pendingFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Renew(t.Context(), rand.Reader, func(context.Context, []byte) ([]byte, []byte, error) { return []byte("x"), []byte("y"), nil }); err == nil {
		t.Error("an answer that is no certificate was taken")
	}
	again, err := os.ReadFile(filepath.Join(dir, pendingFile))
	if err != nil || string(first) != string(again) {
		t.Errorf("the key changed between tries: %v", err)
	}
	stored, err := Load(dir)
	if err != nil || !stored.Expires().Equal(id.Expires()) || c.Valid() != nil {
		t.Errorf("the present identity is gone: %v, %v", err, c.Valid())
	}
	if at := c.RenewAt(); at.Before(start().Add(15*time.Hour)) || at.After(start().Add(18*time.Hour)) {
		t.Errorf("renews at %s", at)
	}
}
