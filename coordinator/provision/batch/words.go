package batch

import (
	"context"
	"errors"
	"strings"

	"substrate/coordinator/dispatch"
	"substrate/coordinator/provision"
)

const (
	// wordsEach is of how many pilots the last words are read in one list; the others' are read in the next.
	wordsEach = 4
	// wordsRead is how much of a pilot's output is gone through for its last line.
	wordsRead = 1 << 20
	// wordsLimit is how much of that line is told, in bytes.
	wordsLimit = 300
)

var errRead = errors.New("enough was read")

// hear adds what pilots have said before their agents ended: why an agent could not start stands there and nowhere else.
func (p *Provisioner) hear(ctx context.Context, list []provision.Instance) []provision.Instance {
	reader, ok := p.opt.Backend.(dispatch.OutputReader)
	for i, left := 0, wordsEach; ok && i < len(list) && left > 0; i++ {
		id := dispatch.ObjectID(list[i].Handle)
		p.mu.Lock()
		one := p.pilots[id]
		deaf := one == nil || one.heard || list[i].Failed != provision.FaultUnreachable
		p.mu.Unlock()
		if deaf {
			continue
		}
		left--
		words := lastWords(ctx, reader, dispatch.OutputRequest{Object: id, Ref: dispatch.Ref{Job: p.job(list[i].ID), Submission: 1, Attempt: 1}})
		p.mu.Lock()
		one.heard, one.words = true, words
		list[i] = p.instance(id, one)
		p.mu.Unlock()
	}
	return list
}

// lastWords is the last line of an output that says anything; "" when there is none, or it cannot be read.
func lastWords(ctx context.Context, reader dispatch.OutputReader, want dispatch.OutputRequest) string {
	var tail []byte
	read := 0
	err := reader.Output(ctx, want, func(piece dispatch.OutputPiece) error {
		tail = append(tail, piece.Data...)
		tail = tail[max(0, len(tail)-4*wordsLimit):]
		if read += len(piece.Data); read > wordsRead {
			return errRead
		}
		return nil
	})
	if err != nil && !errors.Is(err, errRead) {
		return ""
	}
	text := strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' {
			return ' '
		}
		return r
	}, string(tail)))
	text = text[strings.LastIndexByte(text, '\n')+1:]
	return strings.ToValidUTF8(text[:min(len(text), wordsLimit)], "")
}
