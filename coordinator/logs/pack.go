package logs

import (
	"bufio"
	"container/list"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"substrate/coordinator"
)

const (
	// packLimit is how much of a stream stays in its workflow's pack. A new file costs some 200
	// times what an append does, and most runs say little.
	packLimit = 16 << 10
	// packParts bounds the pieces of one stream, which cost memory and a read each.
	packParts = 64

	packName   = "pack"
	packHeader = 16
	packMagic  = 0x31706c73 // "slp1"
	maxPacked  = longName + len(".stdout.65535")
)

// pack is one append-only file with the short outputs of a workflow. Each record is
//
//	magic, CRC-32C of all that follows, length of name, length of data (4 bytes each, little endian), name, data
//
// and continues the stream of that name. What follows the first damaged record is what a crash
// tore off, and is cut away.
type pack struct {
	workflow coordinator.WorkflowID
	dir      string
	// users and place belong to Logs.mu.
	users int
	place *list.Element

	mu     sync.Mutex
	gone   bool
	loaded bool
	f      *os.File // nil while there is none
	end    int64
	index  map[string]*packed
}

type packed struct {
	size  uint64
	parts []part
}

type part struct {
	at int64
	n  uint32
}

func (p *pack) path() string { return filepath.Join(p.dir, packName) }

// load reads the index of an existing file.
func (p *pack) load() error {
	if p.loaded {
		return nil
	}
	f, err := os.OpenFile(p.path(), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	p.index = map[string]*packed{}
	if err == nil {
		if p.end, err = scanPack(bufio.NewReaderSize(f, 256<<10), p.note); err == nil {
			err = f.Truncate(p.end)
		}
		if err != nil {
			f.Close()
			return err
		}
		p.f = f
	}
	p.loaded = true
	return nil
}

func (p *pack) note(name string, at int64, n int) {
	e := p.index[name]
	if e == nil {
		e = &packed{}
		p.index[name] = e
	}
	e.size += uint64(n)
	e.parts = append(e.parts, part{at, uint32(n)})
}

// scanPack calls note for each whole record and returns where they end.
func scanPack(r io.Reader, note func(name string, at int64, n int)) (end int64, err error) {
	var header [packHeader]byte
	body := make([]byte, maxPacked+packLimit)
	for {
		if _, err := io.ReadFull(r, header[:]); err != nil {
			return end, torn(err)
		}
		name := binary.LittleEndian.Uint32(header[8:])
		data := binary.LittleEndian.Uint32(header[12:])
		if binary.LittleEndian.Uint32(header[:]) != packMagic || name > uint32(maxPacked) || data > packLimit {
			return end, nil
		}
		body := body[:name+data]
		if _, err := io.ReadFull(r, body); err != nil {
			return end, torn(err)
		}
		if binary.LittleEndian.Uint32(header[4:]) != packSum(header[8:], body) {
			return end, nil
		}
		note(string(body[:name]), end+packHeader+int64(name), int(data))
		end += packHeader + int64(len(body))
	}
}

func torn(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

func packSum(lengths, body []byte) uint32 {
	table := crc32.MakeTable(crc32.Castagnoli)
	return crc32.Update(crc32.Checksum(lengths, table), table, body)
}

// fits reports whether so many more bytes of the stream belong into the pack.
func (p *pack) fits(name string, n int) bool {
	e := p.index[name]
	if e == nil {
		return n <= packLimit
	}
	return e.size+uint64(n) <= packLimit && len(e.parts) < packParts
}

// add appends one record, whole or not at all.
func (p *pack) add(name string, data []byte) error {
	if p.f == nil {
		f, err := createIn(p.dir, p.path())
		if err != nil {
			return err
		}
		p.f = f
	}
	record := make([]byte, packHeader, packHeader+len(name)+len(data))
	binary.LittleEndian.PutUint32(record, packMagic)
	binary.LittleEndian.PutUint32(record[8:], uint32(len(name)))
	binary.LittleEndian.PutUint32(record[12:], uint32(len(data)))
	record = append(append(record, name...), data...)
	binary.LittleEndian.PutUint32(record[4:], packSum(record[8:packHeader], record[packHeader:]))
	if _, err := p.f.WriteAt(record, p.end); err != nil {
		return full(err) // the next record goes over what arrived
	}
	p.note(name, p.end+packHeader+int64(len(name)), len(data))
	p.end += int64(len(record))
	return nil
}

// read is ReadAt for one stream.
func (p *pack) read(name string, offset uint64, buf []byte) (n int, err error) {
	e := p.index[name]
	if e == nil {
		return 0, ErrNotFound
	}
	for _, part := range e.parts {
		if offset >= uint64(part.n) {
			offset -= uint64(part.n)
			continue
		}
		want := min(len(buf)-n, int(part.n)-int(offset))
		m, err := p.f.ReadAt(buf[n:n+want], part.at+int64(offset))
		n += m
		if err != nil {
			return n, err
		}
		offset = 0
		if n == len(buf) {
			return n, nil
		}
	}
	if n == 0 && len(buf) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

func (p *pack) close() error {
	if p.f == nil {
		return nil
	}
	err := p.f.Close()
	p.f, p.loaded, p.index = nil, false, nil
	return full(err)
}

// createIn opens the file for writing, with its directory where needed.
func createIn(dir, path string) (*os.File, error) {
	const flags = os.O_RDWR | os.O_CREATE | unix.O_NOFOLLOW
	f, err := os.OpenFile(path, flags, openMode)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, full(err)
		}
		f, err = os.OpenFile(path, flags, openMode)
	}
	if err != nil {
		return nil, full(err)
	}
	return f, nil
}

// spill writes the stream's packed bytes to a file of its own, which counts from then on. It
// appears complete or not at all.
func (p *pack) spill(name, path string) (*os.File, error) {
	var content []byte
	if e := p.index[name]; e != nil {
		content = make([]byte, e.size)
		if n, err := p.read(name, 0, content); err != nil || n != len(content) {
			return nil, fmt.Errorf("read %d bytes from pack: %w", n, errors.Join(err, io.ErrUnexpectedEOF))
		}
	}
	if len(content) == 0 {
		return createIn(p.dir, path)
	}
	f, err := createIn(p.dir, path+".new")
	if err != nil {
		return nil, err
	}
	if _, err = f.WriteAt(content, 0); err == nil {
		err = f.Truncate(int64(len(content))) // an earlier try may have left more
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		f.Close()
		return nil, full(err)
	}
	return f, nil
}
