package runtime

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"syscall"
	"time"
)

// The agent and its keeper may be of different releases: an upgraded agent meets the keeper that
// its predecessor started. So fields are only ever added, and unknown ones are ignored; a change
// that cannot be made so raises keeperProtocol, and the agent then speaks what the keeper speaks.
const (
	keeperProtocol = 1
	maxFrame       = 8 << 20 // a script of 4 MiB fits twice
	maxBatch       = 512     // requests or statuses in a frame
)

// request is what the agent asks of the keeper. Any number of fields may be set; they are done in
// the order of the fields.
type request struct {
	Hello  *hello         `json:"hello,omitempty"`
	Start  []startRequest `json:"start,omitempty"`
	Signal *signalRequest `json:"signal,omitempty"`
	Stop   *stopRequest   `json:"stop,omitempty"`
	Forget []RunID        `json:"forget,omitempty"`
}

// reply is what the keeper tells. Snapshot ends the first statuses: what it knew when the agent came.
type reply struct {
	Hello    *hello   `json:"hello,omitempty"`
	Statuses []Status `json:"statuses,omitempty"`
	Snapshot bool     `json:"snapshot,omitempty"`
}

type hello struct {
	Protocol int      `json:"protocol"`
	PID      int      `json:"pid"`
	Warnings []string `json:"warnings,omitempty"`
}

// startRequest carries what the agent looked up, so that the keeper needs no user database.
type startRequest struct {
	Spec    Spec    `json:"spec"`
	Account account `json:"account"`
	Refusal string  `json:"refusal,omitempty"` // the run ends start-failed with this message
}

type signalRequest struct {
	ID     RunID          `json:"id"`
	Signal syscall.Signal `json:"signal"`
	Notice Notice         `json:"notice"`
}

type stopRequest struct {
	ID     RunID         `json:"id"`
	Grace  time.Duration `json:"grace"`
	Reason string        `json:"reason,omitempty"`
}

// writeFrame writes a four-byte big-endian length and v as JSON, with one Write.
func writeFrame(w io.Writer, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("cannot encode keeper message: %w", err)
	}
	if len(body) > maxFrame {
		return fmt.Errorf("cannot write keeper message: %d bytes, at most %d are allowed", len(body), maxFrame)
	}
	framed := binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(body)), uint32(len(body)))
	_, err = w.Write(append(framed, body...))
	return err
}

// readFrame reads into v what writeFrame wrote. io.EOF is returned bare, and only between frames.
func readFrame(r *bufio.Reader, v any) error {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > maxFrame {
		return fmt.Errorf("cannot read keeper message: %d bytes announced, at most %d are allowed", n, maxFrame)
	}
	// LimitReader and not make(n): a liar must send what it announces before memory is spent on it.
	body, err := io.ReadAll(io.LimitReader(r, int64(n)))
	if err != nil {
		return err
	}
	if len(body) != int(n) {
		return io.ErrUnexpectedEOF
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("cannot decode keeper message: %w", err)
	}
	return nil
}
