package dispatch

import (
	"fmt"
	"strconv"
	"strings"
)

const (
	// Namespace begins every mark that this contract leaves in a batch system.
	Namespace = "dispatch"
	// EnvPrefix begins the variables that a script is told about itself with. No spec may set one.
	EnvPrefix = "DISPATCH_"
	// EpochBound is the exclusive bound of submissions, attempts, executions and hold instances.
	EpochBound = 1_000_000
	// JobIDLimit is the length of a job id in bytes.
	JobIDLimit = 200
)

// Variables of a job's environment.
const (
	EnvJob        = EnvPrefix + "JOB"
	EnvSubmission = EnvPrefix + "SUBMISSION"
	EnvAttempt    = EnvPrefix + "ATTEMPT"
	EnvExecution  = EnvPrefix + "EXECUTION"
	EnvEpoch      = EnvPrefix + "EPOCH"  // <submission>.<execution>: rises with each start of the job
	EnvObject     = EnvPrefix + "OBJECT" // the batch system's id
)

// JobID is a job's name in its owner's books: letters, digits and . _ - / : up to JobIDLimit bytes, the first a letter or digit, the last not /.
type JobID string

// Ref is what an object is found again by.
type Ref struct {
	Job        JobID
	Submission uint32 // from 1
	Attempt    uint32 // from 1
}

func (r Ref) String() string { return fmt.Sprintf("%s/%d.%d", r.Job, r.Submission, r.Attempt) }

// Check returns an error for a Ref that cannot be written into an object.
func (r Ref) Check() error {
	switch {
	case !validJob(string(r.Job)):
		return fmt.Errorf("the job id %q is not 1 to %d letters, digits and . _ - / : that begin with a letter or digit and do not end in /", r.Job, JobIDLimit)
	case r.Submission < 1 || r.Submission >= EpochBound:
		return fmt.Errorf("submission %d is outside 1 to %d", r.Submission, EpochBound-1)
	case r.Attempt < 1 || r.Attempt >= EpochBound:
		return fmt.Errorf("attempt %d is outside 1 to %d", r.Attempt, EpochBound-1)
	}
	return nil
}

// Matches reports whether r is one of those that want looks for: a job that ends in / stands for all whose ids begin so, and numbers that are 0
// match all.
func (r Ref) Matches(want Ref) bool {
	under := strings.HasSuffix(string(want.Job), "/") && strings.HasPrefix(string(r.Job), string(want.Job))
	return (r.Job == want.Job || under) && r.Job != "" &&
		(want.Submission == 0 || r.Submission == want.Submission) && (want.Attempt == 0 || r.Attempt == want.Attempt)
}

func validJob(s string) bool {
	if len(s) == 0 || len(s) > JobIDLimit || s[len(s)-1] == '/' {
		return false
	}
	for i := range len(s) {
		c := s[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && (i == 0 || !strings.ContainsRune("._-/:", rune(c))) {
			return false
		}
	}
	return true
}

// Mark is the Ref as text of plain words, followed by the note if there is one: what systems with a comment for each object keep.
func (r Ref) Mark(note string) string {
	mark := Namespace + "/1 job=" + string(r.Job) + " sub=" + strconv.FormatUint(uint64(r.Submission), 10) + " att=" + strconv.FormatUint(uint64(r.Attempt), 10)
	if note != "" {
		mark += " note=" + note
	}
	return mark
}

// ParseMark reads a Mark. Anything else, as what people write into comments, is not ok.
func ParseMark(text string) (r Ref, note string, ok bool) {
	rest, ok := strings.CutPrefix(text, Namespace+"/1 job=")
	job, rest, ok1 := strings.Cut(rest, " sub=")
	submission, rest, ok2 := strings.Cut(rest, " att=")
	attempt, note, _ := strings.Cut(rest, " note=")
	sub, err1 := strconv.ParseUint(submission, 10, 32)
	att, err2 := strconv.ParseUint(attempt, 10, 32)
	r = Ref{Job: JobID(job), Submission: uint32(sub), Attempt: uint32(att)}
	// There is one way to write each, so that what is read is all that was written.
	if !ok || !ok1 || !ok2 || err1 != nil || err2 != nil || r.Check() != nil || r.Mark(note) != text {
		return Ref{}, "", false
	}
	return r, note, true
}
