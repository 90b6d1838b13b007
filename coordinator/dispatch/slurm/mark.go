package slurm

import (
	"fmt"
	"strconv"
	"strings"

	"substrate/coordinator/dispatch"
)

const (
	// commentLimit is Slurm's for a comment.
	commentLimit = 1024
	// nameLimit is below what accounting keeps of a name.
	nameLimit = 200
)

// mark is a job's comment and name. Databases of accounting keep only some character sets, and change quotes in names; what they would not
// give back stands encoded in the comment: first the name, if the one that Slurm shows is not exactly it, after a ~ and before a blank,
// then the note.
func mark(ref dispatch.Ref, name, note string) (comment, shown string, err error) {
	if name == "" {
		name = string(ref.Job)
	}
	shown = showName(name)
	text := encode(note)
	if shown != name {
		text = "~" + strings.ReplaceAll(encode(name), " ", "%20") + " " + text
	}
	comment = ref.Mark(text)
	if len(comment) > commentLimit {
		return "", "", fmt.Errorf("job id, name and note need %d bytes of comment, and Slurm takes %d", len(comment), commentLimit)
	}
	return comment, shown, nil
}

// unmark reads them back. What we have not written has no Ref.
func unmark(comment, shown string) (ref dispatch.Ref, name, note string) {
	ref, text, ok := dispatch.ParseMark(comment)
	if !ok {
		return dispatch.Ref{}, shown, ""
	}
	name = shown
	if rest, has := strings.CutPrefix(text, "~"); has {
		encoded, after, _ := strings.Cut(rest, " ")
		name, text = decode(encoded), after
	}
	return ref, name, decode(text)
}

// showName is a name as lists of jobs can show it.
func showName(name string) string {
	var b strings.Builder
	for _, r := range name {
		if b.Len() == nameLimit {
			break
		}
		if r < ' ' || r > '~' || r == '"' || r == '\'' {
			r = '_'
		}
		b.WriteRune(r)
	}
	if b.Len() == 0 || strings.TrimSpace(b.String()) == "" {
		return "_"
	}
	return b.String()
}

func encode(text string) string {
	var b strings.Builder
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == '%' || c == '~' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// decode leaves alone what encode has not written: people can edit comments.
func decode(text string) string {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '%' && i+2 < len(text) {
			if n, err := strconv.ParseUint(text[i+1:i+3], 16, 8); err == nil {
				b.WriteByte(byte(n))
				i += 2
				continue
			}
		}
		b.WriteByte(text[i])
	}
	return b.String()
}
