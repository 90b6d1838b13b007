// Package strictyaml reads exactly one YAML document and says, with file, line, column and
// path, what in it is not as expected. It knows no schema, opens no file and keeps no comment.
package strictyaml

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"go.yaml.in/yaml/v3"
)

// Limits bound what is read. A zero field takes the default named beside it.
type Limits struct {
	MaxBytes       int // checked before anything else; 1 MiB
	MaxNodes       int // estimated before parsing, never too low; 1,000,000
	MaxDepth       int // nested maps and lists; 32
	MaxExpansion   int // nodes that aliases may add; a long text counts once per 128 bytes; 200,000
	MaxDiagnostics int // further findings are counted only; 100
}

func (l Limits) filled() Limits {
	or := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	or(&l.MaxBytes, 1<<20)
	or(&l.MaxNodes, 1_000_000)
	or(&l.MaxDepth, 32)
	or(&l.MaxExpansion, 200_000)
	or(&l.MaxDiagnostics, 100)
	return l
}

// Document is a parsed file and what was found in it so far. It is not safe for use by
// several goroutines.
type Document struct {
	file    string
	src     []byte
	lines   []int // offset of each line's first byte
	root    *yaml.Node
	limits  Limits
	found   Diagnostics
	soft    int // warnings and notices among found
	dropped int
	quiet   bool // drop every finding
}

// Parse reads one document. The document is nil when the file cannot be used at all;
// the reasons are then in the diagnostics. Findings of decoding are added to those of
// parsing and are read with Diagnostics.
func Parse(file string, data []byte, limits Limits) (*Document, Diagnostics) {
	d := &Document{file: file, limits: limits.filled()}
	if len(data) > d.limits.MaxBytes {
		d.add(Diagnostic{Code: CodeTooLarge, Message: fmt.Sprintf("the file has %d bytes, more than the limit of %d", len(data), d.limits.MaxBytes)})
		return nil, d.Diagnostics()
	}
	d.src = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if !d.scan() || !d.load() || !d.checkTree() || !d.checkTabs() {
		return nil, d.Diagnostics()
	}
	return d, nil
}

// load parses the source into the node tree.
func (d *Document) load() bool {
	dec := yaml.NewDecoder(bytes.NewReader(d.src))
	var doc, next yaml.Node
	err := decode(dec, &doc)
	switch {
	case errors.Is(err, io.EOF):
		d.add(Diagnostic{Code: CodeEmpty, Message: "the file is empty"})
		return false
	case err != nil:
		d.syntax(err)
		return false
	}
	if err := decode(dec, &next); err == nil {
		d.add(Diagnostic{Code: CodeDocuments, Line: next.Line, Column: max(next.Column, 1),
			Message: "a second document begins here, expected exactly one", Hint: "remove the line ---"})
		return false
	} else if !errors.Is(err, io.EOF) {
		d.syntax(err)
		return false
	}
	if len(doc.Content) != 1 || isNothing(doc.Content[0]) {
		d.add(Diagnostic{Code: CodeEmpty, Message: "the file is empty", Hint: "it holds comments at most"})
		return false
	}
	d.root = doc.Content[0]
	return true
}

// decode keeps a panic of the YAML library from ending the process.
func decode(dec *yaml.Decoder, into *yaml.Node) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("yaml: %v", r)
		}
	}()
	return dec.Decode(into)
}

func isNothing(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && n.Style == 0 && n.Tag == "!!null" && n.Value == ""
}

// Root is the document's top value.
func (d *Document) Root() Value { return Value{doc: d, node: d.root} }

// File is the name that Parse was given.
func (d *Document) File() string { return d.file }

// Diagnostics is everything found so far, sorted.
func (d *Document) Diagnostics() Diagnostics {
	out := append(Diagnostics(nil), d.found...)
	out.Sort()
	if d.dropped > 0 {
		out = append(out, Diagnostic{Severity: SeverityNotice, Code: CodeTooMany, File: d.file,
			Message: fmt.Sprintf("%d more findings are not shown", d.dropped)})
	}
	return out
}

// Failed reports whether an error was found.
func (d *Document) Failed() bool {
	for _, f := range d.found {
		if f.Severity == SeverityError {
			return true
		}
	}
	return false
}

// add keeps the first MaxDiagnostics findings; an error takes the place of a kept
// warning or notice, so that a flood of those cannot make a bad file look good.
func (d *Document) add(f Diagnostic) {
	if d.quiet {
		return
	}
	f.File = d.file
	if f.Severity != SeverityError && len(d.found) < d.limits.MaxDiagnostics {
		d.soft++
	}
	if len(d.found) < d.limits.MaxDiagnostics {
		d.found = append(d.found, f)
		return
	}
	d.dropped++
	if f.Severity != SeverityError || d.soft == 0 {
		return
	}
	for i := len(d.found) - 1; i >= 0; i-- {
		if d.found[i].Severity != SeverityError {
			d.found[i] = f
			d.soft--
			return
		}
	}
}

// full reports whether further findings would only be counted.
func (d *Document) full() bool {
	return len(d.found) >= d.limits.MaxDiagnostics && d.soft == 0
}
