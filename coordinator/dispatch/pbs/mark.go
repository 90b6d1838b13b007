package pbs

import (
	"encoding/base64"
	"strconv"
	"strings"
	"unicode/utf8"

	"substrate/coordinator/dispatch"
)

const (
	// markVariable is the variable of a job that holds its mark. The Variable_List is the one text of an ordinary account that PBS keeps for the
	// life of a job, returns in listings, and neither charges nor schedules by.
	markVariable = dispatch.EnvPrefix + "MARK"
	markForm     = "v1_"
	// nameLimit is below the 236 that PBS takes for a name.
	nameLimit = 200
)

// mark is the Ref with name and note in letters, digits, - and _: nothing of it is quoted, folded, split or taken for a number on its way.
func mark(ref dispatch.Ref, name, note string, keeps bool) string {
	if name == "" {
		name = string(ref.Job)
	}
	kept := ""
	if keeps {
		kept = "output"
	}
	text := strings.Join([]string{string(ref.Job), strconv.FormatUint(uint64(ref.Submission), 10), strconv.FormatUint(uint64(ref.Attempt), 10), name, note, kept}, "\x00")
	return markForm + base64.RawURLEncoding.EncodeToString([]byte(text))
}

// marked is what a mark says.
type marked struct {
	ref        dispatch.Ref
	name, note string
	keeps      bool // what it writes
}

// unmark reads a mark; what we have not written says nothing.
func unmark(text string) marked {
	encoded, ok := strings.CutPrefix(text, markForm)
	if !ok {
		return marked{}
	}
	data, err := base64.RawURLEncoding.Strict().DecodeString(encoded)
	parts := strings.Split(string(data), "\x00")
	if err != nil || len(parts) != 6 || !utf8.Valid(data) {
		return marked{}
	}
	submission, err1 := strconv.ParseUint(parts[1], 10, 32)
	attempt, err2 := strconv.ParseUint(parts[2], 10, 32)
	ref := dispatch.Ref{Job: dispatch.JobID(parts[0]), Submission: uint32(submission), Attempt: uint32(attempt)}
	if err1 != nil || err2 != nil || ref.Check() != nil {
		return marked{}
	}
	return marked{ref: ref, name: parts[3], note: parts[4], keeps: parts[5] == "output"}
}

// showName is a name as -N takes it, and as no reader of JSON takes it for a number.
func showName(name string) string {
	var b strings.Builder
	for _, r := range name {
		if b.Len() == nameLimit {
			break
		}
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		switch {
		case !letter && b.Len() == 0:
			b.WriteString("j")
			fallthrough
		case !letter && (r < '0' || r > '9') && r != '.' && r != '_' && r != '-':
			if r < '0' || r > '9' {
				r = '_'
			}
		}
		b.WriteRune(r)
	}
	shown := b.String()
	switch strings.ToLower(shown) {
	case "", "nan", "inf", "infinity", "true", "false", "null":
		return "j_" + shown
	}
	return shown
}
