package identity

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
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

// signer answers renewals as a coordinator does, with certificates that count now.
func signer(a authority) func(context.Context, []byte) ([]byte, []byte, error) {
	return func(_ context.Context, csr []byte) ([]byte, []byte, error) {
		request, err := x509.ParseCertificateRequest(csr)
		if err != nil {
			return nil, nil, err
		}
		template := leafTemplate("/node/gpu-07", x509.ExtKeyUsageClientAuth)
		template.SerialNumber, template.BasicConstraintsValid = big.NewInt(time.Now().UnixNano()), true
		der, err := x509.CreateCertificate(rand.Reader, template, a.cert, request.PublicKey, a.key)
		return pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: der}), a.pem(), err
	}
}

// leftAlone checks that a directory holds a whole identity and nothing else but perhaps a pending key, and renews it.
func leftAlone(t *testing.T, dir string, a authority) {
	t.Helper()
	id, err := Load(dir)
	if err != nil || id.Valid(start().Add(time.Hour)) != nil || id.Node != "gpu-07" {
		t.Fatalf("no identity that counts: %v", err)
	}
	c := NewCurrent(dir, id, func() time.Time { return start().Add(time.Hour) })
	if err := c.Renew(t.Context(), rand.Reader, signer(a)); err != nil {
		t.Fatalf("it is not renewed: %v", err)
	}
	if c.Identity().key.private.Equal(id.key.private) {
		t.Error("the next certificate is for the old key")
	}
	stored, err := Load(dir)
	if err != nil || !stored.leaf.Equal(c.Identity().leaf) {
		t.Errorf("the renewed identity is not the stored one: %v", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != identityFile {
		t.Errorf("left in the directory: %v, %v", entries, err)
	}
}

// TestEveryStepOfARenewalCanBeTheLast puts the directory into every state that a kill between two steps of a renewal
// leaves: the file begun, half or wholly written, put in place, and the pending key not yet forgotten.
func TestEveryStepOfARenewalCanBeTheLast(t *testing.T) {
	a := newAuthority(t)
	old, next := newIdentity(t, a), newIdentity(t, a)
	pemOf := func(id *Identity) []byte {
		dir := filepath.Join(t.TempDir(), "identity")
		if err := id.Save(dir); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(filepath.Join(dir, identityFile))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	before, after := pemOf(old), pemOf(next)
	pending, err := next.key.marshal()
	if err != nil {
		t.Fatal(err)
	}
	type files map[string][]byte
	cases := map[string]files{
		"before it":         {identityFile: before},
		"key in place":      {identityFile: before, pendingFile: pending},
		"identity in place": {identityFile: after, pendingFile: pending},
		"after it":          {identityFile: after},
	}
	for n := 0; n <= len(pending); n += 40 {
		cases[fmt.Sprintf("key, %d bytes", n)] = files{identityFile: before, "." + pendingFile + "-1": pending[:n]}
	}
	for n := 0; n <= len(after); n += 100 {
		cases[fmt.Sprintf("identity, %d bytes", n)] = files{identityFile: before, pendingFile: pending, "." + identityFile + "-1": after[:n]}
	}
	for name, left := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, data := range left {
				if err := os.WriteFile(filepath.Join(dir, file), data, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			leftAlone(t, dir, a)
		})
	}
}

// TestMain renews for ever where the test that kills it says so.
func TestMain(m *testing.M) {
	if dir := os.Getenv("TEST_RENEW_DIR"); dir != "" {
		fmt.Println(renewForEver(dir))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func renewForEver(dir string) error {
	a, err := readAuthority(filepath.Join(dir, "ca"))
	if err != nil {
		return err
	}
	id, err := Load(filepath.Join(dir, "identity"))
	if err != nil {
		return err
	}
	c := NewCurrent(filepath.Join(dir, "identity"), id, func() time.Time { return start().Add(time.Hour) })
	for {
		if err := c.Renew(context.Background(), rand.Reader, signer(a)); err != nil {
			return err
		}
		fmt.Println("renewed")
	}
}

func readAuthority(path string) (authority, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return authority{}, err
	}
	first, rest := pem.Decode(data)
	second, _ := pem.Decode(rest)
	cert, err := x509.ParseCertificate(first.Bytes)
	if err != nil {
		return authority{}, err
	}
	key, err := parseKey(second.Bytes)
	return authority{cert, key.private}, err
}

// TestKilledWhileRenewing kills a process that renews at any instant, many times: what it leaves is a whole identity.
func TestKilledWhileRenewing(t *testing.T) {
	dir, a := t.TempDir(), newAuthority(t)
	key, err := Key{a.key}.marshal()
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "ca"), append(a.pem(), key...), 0o600)
	}
	if err == nil {
		err = newIdentity(t, a).Save(filepath.Join(dir, "identity"))
	}
	if err != nil {
		t.Fatal(err)
	}
	renewals := 0
	for range 12 {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), "TEST_RENEW_DIR="+dir)
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		if !lines.Scan() || lines.Text() != "renewed" {
			t.Fatalf("it does not renew: %q", lines.Text())
		}
		time.AfterFunc(mathrand.N(15*time.Millisecond), func() { _ = cmd.Process.Kill() })
		for renewals++; lines.Scan(); renewals++ {
		}
		_ = cmd.Wait() // killed
		leftAlone(t, filepath.Join(dir, "identity"), a)
	}
	t.Logf("%d renewals", renewals)
}
