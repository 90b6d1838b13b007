package runtime

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync"
	"syscall"
)

// journal is what a keeper must still know when it was killed: one file to which it appends, because
// appending costs a tenth of making a file. Each entry is four bytes of length, four of CRC-32C, both
// little-endian, and JSON. It does not sync: losing power is losing the node.
type journal struct {
	path string

	mu      sync.Mutex
	f       *os.File
	size    int64
	dead    int64 // bytes of entries that newer ones replaced
	live    map[RunID]liveRun
	compact int64   // size from which the next try to compact is due
	owed    []entry // could not be written, and go before all that is written later
}

const (
	journalHead    = 8
	compactFrom    = 1 << 20
	maxJournalBody = maxFrame
)

// entry tells one thing about a run. A run begins with its specification; of records the newest counts.
type entry struct {
	ID     RunID       `json:"id"`
	Spec   *storedSpec `json:"spec,omitempty"`
	Record *record     `json:"record,omitempty"`
	Gone   bool        `json:"gone,omitempty"`
}

// storedSpec is what starts a run.
type storedSpec struct {
	Spec    Spec    `json:"spec"`
	Account account `json:"account"`
}

// record is a run's status and what finds its process again.
type record struct {
	Status Status `json:"status"`
	PID    int    `json:"pid,omitempty"`
	Start  uint64 `json:"start_ticks,omitempty"`
	BootID string `json:"boot_id,omitempty"`
	Group  string `json:"group,omitempty"` // control group name, "" for none
}

// kept is a run as the journal knows it.
type kept struct {
	storedSpec
	record *record // nil: it was not running yet
}

type extent struct{ at, n int64 }

type liveRun struct{ spec, record extent }

// openJournal reads what is there and makes ready to append. What a killed writer left half-way is cut off, what
// is damaged is passed over up to the next whole entry; lost says how many bytes of either.
func openJournal(path string) (j *journal, runs map[RunID]*kept, lost int64, err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, nil, 0, fmt.Errorf("cannot open journal: %w", err)
	}
	j = &journal{path: path, f: f, live: map[RunID]liveRun{}}
	runs, lost, err = j.read()
	if err != nil {
		f.Close()
		return nil, nil, 0, fmt.Errorf("cannot read journal %s: %w", path, err)
	}
	return j, runs, lost, nil
}

func (j *journal) read() (map[RunID]*kept, int64, error) {
	info, err := j.f.Stat()
	if err != nil {
		return nil, 0, err
	}
	runs := map[RunID]*kept{}
	var lost int64
	for j.size < info.Size() {
		body, n, err := j.entryAt(j.size, info.Size())
		if errors.Is(err, errTorn) || errors.Is(err, errDamaged) { // then its length is not to be trusted either
			next, err := j.nextEntry(j.size+1, info.Size())
			if err != nil {
				return nil, 0, err
			}
			if next < 0 {
				break
			}
			lost += next - j.size
			j.dead += next - j.size
			j.size = next
			continue
		}
		if err != nil {
			return nil, 0, err
		}
		var e entry
		at := extent{j.size, n}
		j.size += n
		if json.Unmarshal(body, &e) != nil || CheckRunID(e.ID) != nil {
			lost += n
			j.dead += n
			continue
		}
		j.note(e, at)
		keep(runs, e)
	}
	if j.size == info.Size() {
		return runs, lost, nil
	}
	return runs, lost + info.Size() - j.size, j.f.Truncate(j.size)
}

// entryMark begins the body of every entry; inside strings of JSON it cannot stand.
const entryMark = `{"id":"`

// nextEntry finds where the next whole entry begins, -1 if there is none.
func (j *journal) nextEntry(from, end int64) (int64, error) {
	const window = 64 << 10
	buf := make([]byte, window)
	for at := from + journalHead; at < end; at += window - int64(len(entryMark)) + 1 {
		n, err := j.f.ReadAt(buf[:min(window, end-at)], at)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		for seen := 0; ; seen++ {
			found := bytes.Index(buf[seen:n], []byte(entryMark))
			if found < 0 {
				break
			}
			seen += found
			start := at + int64(seen) - journalHead
			switch _, _, err := j.entryAt(start, end); {
			case err == nil:
				return start, nil
			case !errors.Is(err, errTorn) && !errors.Is(err, errDamaged):
				return 0, err
			}
		}
	}
	return -1, nil
}

var (
	errTorn    = errors.New("the entry is cut off")
	errDamaged = errors.New("the entry's checksum is wrong")
)

// entryAt reads one entry; n is its whole length.
func (j *journal) entryAt(at, end int64) (body []byte, n int64, err error) {
	var head [journalHead]byte
	if at+journalHead > end {
		return nil, 0, errTorn
	}
	if _, err := j.f.ReadAt(head[:], at); err != nil {
		return nil, 0, err
	}
	length := int64(binary.LittleEndian.Uint32(head[:4]))
	if length == 0 || length > maxJournalBody || at+journalHead+length > end {
		return nil, 0, errTorn
	}
	body = make([]byte, length)
	if _, err := j.f.ReadAt(body, at+journalHead); err != nil {
		return nil, 0, err
	}
	n = journalHead + length
	if crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)) != binary.LittleEndian.Uint32(head[4:]) {
		return nil, n, errDamaged
	}
	return body, n, nil
}

func keep(runs map[RunID]*kept, e entry) {
	switch r := runs[e.ID]; {
	case e.Gone:
		delete(runs, e.ID)
	case e.Spec != nil:
		runs[e.ID] = &kept{storedSpec: *e.Spec}
	case e.Record != nil && r != nil:
		r.record = e.Record
	}
}

// note keeps the accounts of what is live and what is dead.
func (j *journal) note(e entry, at extent) {
	l, known := j.live[e.ID]
	switch {
	case e.Gone || !known && e.Spec == nil:
		j.dead += at.n + l.spec.n + l.record.n
		delete(j.live, e.ID)
		return
	case e.Spec != nil:
		j.dead += l.spec.n + l.record.n
		l = liveRun{spec: at}
	default:
		j.dead += l.record.n
		l.record = at
	}
	j.live[e.ID] = l
}

// append makes an entry known to the next keeper. After an error the journal is as it was; what tells of a run
// that it knows is then written before anything else.
func (j *journal) append(e entry) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	err := j.settle()
	if err == nil {
		err = j.write(e)
	}
	if err != nil && e.Spec == nil {
		j.owed = append(slices.DeleteFunc(j.owed, func(o entry) bool { return o.ID == e.ID }), e)
	}
	return err
}

// retry writes what could not be written before, and reports whether nothing is left of it.
func (j *journal) retry() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.settle() == nil
}

func (j *journal) settle() error {
	for len(j.owed) > 0 {
		if err := j.write(j.owed[0]); err != nil {
			return err
		}
		j.owed = j.owed[1:]
	}
	j.owed = nil
	return nil
}

func (j *journal) write(e entry) error {
	body, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("cannot encode journal entry: %w", err)
	}
	if len(body) > maxJournalBody {
		return fmt.Errorf("cannot write journal entry: %d bytes, at most %d are allowed", len(body), maxJournalBody)
	}
	framed := binary.LittleEndian.AppendUint32(make([]byte, 0, journalHead+len(body)), uint32(len(body)))
	framed = binary.LittleEndian.AppendUint32(framed, crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)))
	framed = append(framed, body...)
	if _, err := j.f.WriteAt(framed, j.size); err != nil {
		return errors.Join(fmt.Errorf("cannot write journal: %w", err), j.f.Truncate(j.size))
	}
	j.note(e, extent{j.size, int64(len(framed))})
	j.size += int64(len(framed))
	return j.tidy()
}

// tidy empties a journal that tells nothing any more, and rewrites one that is mostly dead: a byte is copied at
// most once for each byte appended. A rewriting that fails leaves the old file in use.
func (j *journal) tidy() error {
	if len(j.live) == 0 {
		if err := j.f.Truncate(0); err == nil {
			j.size, j.dead, j.compact = 0, 0, 0
		}
		return nil
	}
	if j.size < max(compactFrom, j.compact) || j.dead < j.size/2 {
		return nil
	}
	if err := j.rewrite(); err != nil {
		j.compact = 2 * j.size
	}
	return nil
}

func (j *journal) rewrite() error {
	tmp := j.path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	live, size, err := j.copyTo(f)
	if err == nil {
		err = os.Rename(tmp, j.path)
	}
	if err != nil {
		f.Close()
		return errors.Join(err, removeFile(tmp))
	}
	j.f.Close()
	j.f, j.size, j.dead, j.live, j.compact = f, size, 0, live, 0
	return nil
}

func (j *journal) copyTo(f *os.File) (map[RunID]liveRun, int64, error) {
	live := make(map[RunID]liveRun, len(j.live))
	w := io.NewOffsetWriter(f, 0)
	var size int64
	move := func(from extent) (extent, error) {
		n, err := io.Copy(w, io.NewSectionReader(j.f, from.at, from.n))
		to := extent{size, n}
		size += n
		return to, err
	}
	for id, l := range j.live {
		spec, err := move(l.spec)
		if err != nil {
			return nil, 0, err
		}
		rec, err := move(l.record)
		if err != nil {
			return nil, 0, err
		}
		live[id] = liveRun{spec, rec}
	}
	return live, size, nil
}

func (j *journal) close() error { return j.f.Close() }

func removeFile(path string) error {
	if err := syscall.Unlink(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot remove %s: %w", path, err)
	}
	return nil
}
