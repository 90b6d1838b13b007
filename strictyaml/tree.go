package strictyaml

import (
	"bytes"
	"fmt"
	"slices"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// checkTree refuses deep nesting, tags, merge keys, cycles and alias bombs. After it any
// walk over the values, aliases followed, is bounded.
func (d *Document) checkTree() bool {
	type item struct {
		node  *yaml.Node
		depth int
	}
	aliases := false
	todo := []item{{d.root, 0}}
	for len(todo) > 0 {
		it := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		n := it.node
		deep := it.depth
		switch {
		case n.Kind == yaml.AliasNode:
			aliases = true
			continue
		case n.Style&yaml.TaggedStyle != 0:
			d.at(n, CodeTag, "the tag "+n.Tag+" is not supported", "remove it; quote a text that looks like a number")
		case n.Kind == yaml.MappingNode || n.Kind == yaml.SequenceNode:
			deep++
		}
		if deep > d.limits.MaxDepth {
			d.at(n, CodeNesting, fmt.Sprintf("maps and lists are nested more than %d deep", d.limits.MaxDepth), "")
			return false
		}
		for i, c := range n.Content {
			if n.Kind == yaml.MappingNode && i%2 == 0 && c.Tag == "!!merge" {
				d.at(c, CodeMerge, "the merge key << is not supported", "write the keys out, or share a whole value with an alias")
			}
			todo = append(todo, item{c, deep})
		}
	}
	if aliases && !d.Failed() {
		d.checkAliases()
	}
	return !d.Failed()
}

func (d *Document) at(n *yaml.Node, code, message, hint string) {
	d.add(Diagnostic{Code: code, Line: n.Line, Column: n.Column, Message: message, Hint: hint})
}

// checkAliases measures each value with its aliases written out.
func (d *Document) checkAliases() {
	m := &meter{doc: d, weight: map[*yaml.Node]int{}, open: map[*yaml.Node]bool{}, depth: map[*yaml.Node]int{}}
	_, ok := m.measure(d.root)
	if !ok {
		return
	}
	if m.depth[d.root] > d.limits.MaxDepth {
		d.at(d.root, CodeNesting, fmt.Sprintf("with aliases written out, maps and lists are nested more than %d deep", d.limits.MaxDepth), "")
	}
}

// meter weighs nodes; maps are by node so that a shared value is measured once.
type meter struct {
	doc    *Document
	weight map[*yaml.Node]int
	depth  map[*yaml.Node]int
	open   map[*yaml.Node]bool
	added  int
}

func (m *meter) measure(n *yaml.Node) (int, bool) {
	if n.Kind == yaml.AliasNode {
		return m.alias(n)
	}
	if w, ok := m.weight[n]; ok {
		return w, true
	}
	m.open[n] = true
	w, deep := 1+len(n.Value)/128, 0
	for _, c := range n.Content {
		cw, ok := m.measure(c)
		if !ok {
			return 0, false
		}
		w += cw
		deep = max(deep, m.depth[target(c)])
	}
	delete(m.open, n)
	if n.Kind != yaml.ScalarNode {
		deep++
	}
	m.weight[n], m.depth[n] = w, deep
	return w, true
}

func (m *meter) alias(n *yaml.Node) (int, bool) {
	if m.open[n.Alias] {
		m.doc.at(n, CodeAlias, "the alias *"+n.Value+" stands inside the value that it names", "")
		return 0, false
	}
	w, ok := m.measure(n.Alias)
	if !ok {
		return 0, false
	}
	m.added += w
	if m.added > m.doc.limits.MaxExpansion {
		m.doc.at(n, CodeAlias, fmt.Sprintf("aliases would add more than %d values to the file", m.doc.limits.MaxExpansion), "write fewer or smaller aliases")
		return 0, false
	}
	return w, true
}

func target(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// checkTabs refuses a tab that is neither inside a block scalar nor in a comment. The YAML
// library lets some through that other readers refuse.
func (d *Document) checkTabs() bool {
	off := bytes.IndexByte(d.src, '\t')
	if off < 0 {
		return true
	}
	blocks := d.blockLines()
	for off >= 0 {
		i, exact := slices.BinarySearch(d.lines, off)
		if !exact {
			i--
		}
		n, b := i+1, 0
		for b < len(blocks) && blocks[b].end < n {
			b++
		}
		blocks = blocks[b:] // lines come in order: never look back
		inside := len(blocks) > 0 && blocks[0].begin <= n
		line := d.line(n)
		at := off - d.lines[i]
		if !inside && !commentBefore(line, at) {
			d.add(Diagnostic{Code: CodeTab, Line: n, Column: 1 + utf8.RuneCount(line[:at]),
				Message: "a tab may stand only in a block text", Hint: `use spaces, or \t in double quotes`})
			return false
		}
		next := d.lines[i] + len(line)
		rel := bytes.IndexByte(d.src[next:], '\t')
		if rel < 0 {
			return true
		}
		off = next + rel
	}
	return true
}

func commentBefore(line []byte, at int) bool {
	for i := 0; i < at; i++ {
		if line[i] == '#' && (i == 0 || line[i-1] == ' ') {
			return true
		}
	}
	return false
}

// span is a range of lines, both ends included.
type span struct{ begin, end int }

// blockLines lists the content lines of all block scalars in order.
func (d *Document) blockLines() []span {
	var out []span
	todo := []*yaml.Node{d.root}
	for len(todo) > 0 {
		n := todo[len(todo)-1]
		todo = append(todo[:len(todo)-1], n.Content...)
		if n.Kind != yaml.ScalarNode || n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) == 0 {
			continue
		}
		if end := d.blockEnd(n); end > n.Line {
			out = append(out, span{n.Line + 1, end})
		}
	}
	slices.SortFunc(out, func(a, b span) int { return a.begin - b.begin })
	return out
}
