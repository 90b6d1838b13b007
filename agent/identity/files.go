package identity

import (
	"bytes"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Files of the identity directory, each 0600.
const (
	identityFile = "identity.pem" // key, certificate, CA: one file, so that they always fit together
	pendingFile  = "pending.key"  // key of a join or renewal whose answer is not here yet
	maxFile      = 1 << 20
)

// ErrNone: the directory holds no identity; the node has to join.
var ErrNone = errors.New("no identity")

// PendingKey returns the key to ask a certificate for. It is on disk before the first question, so
// that after a lost answer or a crash the same question is asked again and costs no second use of
// the token. Save ends it.
func PendingKey(dir string, rand io.Reader) (Key, error) {
	path := filepath.Join(dir, pendingFile)
	data, err := readPrivate(path)
	switch {
	case err == nil:
		block, rest := pem.Decode(data)
		if block == nil || block.Type != pemKey || len(bytes.TrimSpace(rest)) > 0 {
			return Key{}, fmt.Errorf("cannot read %s: expected one private key in PEM", path)
		}
		key, err := parseKey(block.Bytes)
		if err != nil {
			return Key{}, fmt.Errorf("cannot read %s: %w", path, err)
		}
		return key, nil
	case !errors.Is(err, fs.ErrNotExist):
		return Key{}, err
	}
	key, err := NewKey(rand)
	if err != nil {
		return Key{}, err
	}
	data, err = key.marshal()
	if err != nil {
		return Key{}, fmt.Errorf("cannot write %s: %w", path, err)
	}
	return key, writePrivate(path, data)
}

// Save puts the identity in place of the former one, in one step, and ends the pending key.
func (id *Identity) Save(dir string) error {
	path := filepath.Join(dir, identityFile)
	data, err := id.key.marshal()
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	for _, der := range [][]byte{id.leaf.Raw, id.ca.Raw} {
		data = append(data, pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: der})...)
	}
	if err := writePrivate(path, data); err != nil {
		return err
	}
	return forgetPending(dir)
}

func forgetPending(dir string) error {
	if err := os.Remove(filepath.Join(dir, pendingFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot forget pending key: %w", err)
	}
	return nil
}

// Load reads the identity, ErrNone without one. An expired one is returned too: see Valid.
func Load(dir string) (*Identity, error) {
	path := filepath.Join(dir, identityFile)
	data, err := readPrivate(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot read %s: %w", path, ErrNone)
	}
	if err != nil {
		return nil, err
	}
	id, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", path, err)
	}
	return id, nil
}

func parse(data []byte) (*Identity, error) {
	var blocks []*pem.Block
	for len(blocks) < 4 {
		block, rest := pem.Decode(data)
		if block == nil {
			break
		}
		blocks, data = append(blocks, block), rest
	}
	if len(blocks) != 3 || blocks[0].Type != pemKey || len(bytes.TrimSpace(data)) > 0 {
		return nil, errors.New("expected a private key, its certificate and the CA's")
	}
	key, err := parseKey(blocks[0].Bytes)
	if err != nil {
		return nil, err
	}
	return build(key, pem.EncodeToMemory(blocks[1]), pem.EncodeToMemory(blocks[2]))
}

// readPrivate refuses a file that others may read: its key would be theirs too.
func readPrivate(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read identity: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("cannot read identity: %w", err)
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("cannot read %s: mode is %s, expected a file of mode 0600", path, info.Mode())
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", path, err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("cannot read %s: more than %d bytes", path, maxFile)
	}
	return data, nil
}

// writePrivate replaces path by a complete file or leaves it alone. The directory is made 0700.
func writePrivate(path string, data []byte) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("cannot write %s: %w", path, err)
		}
	}()
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	unfinished := "." + filepath.Base(path) + "-*"
	if err := removeUnfinished(dir, unfinished); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, unfinished) // 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // gone already when all went well
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return err
	}
	return syncDir(dir) // or a power cut could undo the rename
}

// removeUnfinished removes what an agent left that was killed while it wrote: there are keys in it. Only one agent at a
// time has the directory.
func removeUnfinished(dir, pattern string) error {
	old, err := filepath.Glob(filepath.Join(dir, pattern))
	for _, path := range old {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
