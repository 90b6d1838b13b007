package hwinfo

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/tools/txtar"
)

const archiveComment = "What a node is, as \"substrated snapshot\" copied it; \"substrated inspect --root FILE\" reads it.\n"

// WriteArchive writes what SnapshotWith writes into a directory as one text, which Read takes as a root when it is in
// a file. root may be an archive too.
func WriteArchive(w io.Writer, root string, answers Answers) error {
	rec, err := record(root, answers)
	if err != nil {
		return err
	}
	data := txtar.Format(rec.archive())
	if len(data) > maxArchive {
		return fmt.Errorf("cannot write snapshot: %w", tooLong(maxArchive))
	}
	if _, err := parseArchive(data); err != nil { // better now than when it is read
		return fmt.Errorf("cannot write snapshot: %w", err)
	}
	if _, err := w.Write(data); err != nil {
		return fmt.Errorf("cannot write snapshot: %w", err)
	}
	return nil
}

// ReadSnapshot is Read of a node that was recorded, where a root that cannot be opened is an error.
func ReadSnapshot(root string) (Facts, []Warning, error) {
	t, err := openTree(root, nil)
	if err != nil {
		return Facts{}, nil, err
	}
	f, warnings := t.facts(nil)
	return f, warnings, nil
}

// Check tells why a root cannot be opened.
func Check(root string) error {
	t, err := openTree(root, nil)
	if err != nil {
		return err
	}
	return t.close()
}

// record reads a root and keeps what was read.
func record(root string, answers Answers) (*recorder, error) {
	rec := newRecorder()
	t, err := openTree(root, rec)
	if err != nil {
		return nil, fmt.Errorf("cannot take snapshot: %w", err)
	}
	facts, _ := t.facts(answers)
	rec.files[unameFile] = formatUname(facts.Uname, facts.Hostname)
	return rec, nil
}

// archive puts files, links and directories that hold nothing in the order of their paths, uname last: an archive
// without it was cut short.
func (rec *recorder) archive() *txtar.Archive {
	entries := map[string]txtar.File{} // by path
	for _, name := range slices.Sorted(maps.Keys(rec.dirs)) {
		if _, link := rec.links[name]; !link {
			p := rec.place(name)
			entries[p] = txtar.File{Name: quoteName(p + "/")}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(rec.files)) {
		data, p := rec.files[name], rec.place(name)
		f := txtar.File{Name: quoteName(p), Data: data}
		if !plainText(data) {
			f.Name, f.Data = f.Name+hexMark, encodeHex(data)
		}
		entries[p] = f
	}
	for _, name := range slices.Sorted(maps.Keys(rec.links)) {
		p := rec.place(name)
		entries[p] = txtar.File{Name: quoteName(p) + linkMark + quoteName(rec.links[name])}
	}
	full := map[string]bool{".": true}
	for p := range entries {
		for dir := path.Dir(p); !full[dir]; dir = path.Dir(dir) {
			full[dir] = true
		}
	}
	type sorted struct{ key, path string }
	order := make([]sorted, 0, len(entries))
	for p := range entries {
		if !full[p] && p != unameFile {
			order = append(order, sorted{strings.ReplaceAll(p, "/", "\x00"), p})
		}
	}
	slices.SortFunc(order, func(a, b sorted) int { return strings.Compare(a.key, b.key) })
	a := &txtar.Archive{Comment: []byte(archiveComment)}
	for _, s := range order {
		a.Files = append(a.Files, entries[s.path])
	}
	a.Files = append(a.Files, entries[unameFile])
	return a
}

// plainText tells whether an archive gives back the same bytes, also after it went through mail and editors.
func plainText(data []byte) bool {
	return len(data) == 0 || utf8.Valid(data) && bytes.IndexByte(data, 0) < 0 && bytes.IndexByte(data, '\r') < 0 &&
		data[len(data)-1] == '\n' && !bytes.HasPrefix(data, []byte("-- ")) && !bytes.Contains(data, []byte("\n-- "))
}

func encodeHex(data []byte) []byte {
	var b bytes.Buffer
	for line := range slices.Chunk(data, 40) {
		b.WriteString(hex.EncodeToString(line) + "\n")
	}
	return b.Bytes()
}

// quoteName quotes what could be taken for something else.
func quoteName(name string) string {
	plain := name != "" && name[0] != '"'
	for i := range len(name) {
		plain = plain && name[i] > ' ' && name[i] < 0x7f
	}
	if plain {
		return name
	}
	return strconv.QuoteToASCII(name)
}
