package strictyaml

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Severity says what a diagnostic does to the file.
type Severity uint8

const (
	SeverityError   Severity = iota // the file is refused
	SeverityWarning                 // accepted, likely not what was meant
	SeverityNotice                  // accepted, worth knowing
)

func (s Severity) String() string {
	switch s {
	case SeverityError:
		return "error"
	case SeverityWarning:
		return "warning"
	case SeverityNotice:
		return "notice"
	}
	return "severity(" + strconv.Itoa(int(s)) + ")"
}

// MarshalText gives the word that String gives.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Codes of the diagnostics that this package itself reports.
const (
	CodeTooLarge   = "file-too-large"
	CodeEncoding   = "encoding"
	CodeEmpty      = "empty-file"
	CodeSyntax     = "syntax"
	CodeTab        = "tab"
	CodeDocuments  = "several-documents"
	CodeNesting    = "nesting"
	CodeAlias      = "alias"
	CodeTag        = "tag"
	CodeMerge      = "merge-key"
	CodeUnknownKey = "unknown-key"
	CodeDuplicate  = "duplicate-key"
	CodeMissing    = "missing-key"
	CodeType       = "wrong-type"
	CodeValue      = "bad-value"
	CodeOldKey     = "old-spelling"
	CodeTooMany    = "too-many-diagnostics"
)

// Diagnostic is one finding about a file. Line and Column count from 1, columns in
// characters; 0 means that the finding is about the file as a whole.
type Diagnostic struct {
	Severity Severity `json:"severity"`
	Code     string   `json:"code"`
	File     string   `json:"file"`
	Line     int      `json:"line,omitempty"`
	Column   int      `json:"column,omitempty"`
	Path     string   `json:"path,omitempty"`
	Message  string   `json:"message"`
	Hint     string   `json:"hint,omitempty"`
}

// String is `file:line:col: path: message (hint)`; what is unknown is left out.
func (d Diagnostic) String() string {
	var b strings.Builder
	b.WriteString(d.File)
	if d.Line > 0 {
		fmt.Fprintf(&b, ":%d", d.Line)
		if d.Column > 0 {
			fmt.Fprintf(&b, ":%d", d.Column)
		}
	}
	b.WriteString(": ")
	if d.Path != "" {
		b.WriteString(d.Path + ": ")
	}
	b.WriteString(d.Message)
	if d.Hint != "" {
		b.WriteString(" (" + d.Hint + ")")
	}
	return b.String()
}

// Diagnostics is a sorted list of findings. It is an error value with one line each;
// use Err to get nil when nothing in it refuses the file.
type Diagnostics []Diagnostic

func (ds Diagnostics) Error() string {
	lines := make([]string, len(ds))
	for i, d := range ds {
		lines[i] = d.String()
	}
	return strings.Join(lines, "\n")
}

// Errors is the part that refuses the file.
func (ds Diagnostics) Errors() Diagnostics { return ds.only(SeverityError) }

// Warnings is the part with SeverityWarning.
func (ds Diagnostics) Warnings() Diagnostics { return ds.only(SeverityWarning) }

func (ds Diagnostics) only(s Severity) Diagnostics {
	var out Diagnostics
	for _, d := range ds {
		if d.Severity == s {
			out = append(out, d)
		}
	}
	return out
}

// Err is nil unless there is an error among the findings; the error holds the errors alone.
func (ds Diagnostics) Err() error {
	if errs := ds.Errors(); len(errs) > 0 {
		return errs
	}
	return nil
}

// Sort orders by file, place, severity, code, path and text.
func (ds Diagnostics) Sort() {
	slices.SortStableFunc(ds, func(a, b Diagnostic) int {
		return cmp.Or(
			cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column),
			cmp.Compare(a.Severity, b.Severity), cmp.Compare(a.Code, b.Code),
			cmp.Compare(a.Path, b.Path), cmp.Compare(a.Message, b.Message), cmp.Compare(a.Hint, b.Hint))
	})
}
