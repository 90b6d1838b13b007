package main

import (
	"slices"
	"strconv"
	"strings"
)

// branch is a node of a listing on its way to JSON: a leaf has text, the others have branches.
type branch struct {
	key    string
	text   string
	raw    bool // text is printed as it is
	whole  bool // how text is escaped
	inside byte // '{', '[' or 0 for a leaf
	sub    []branch
}

// document is the frame of every JSON listing.
func (c *call) document(kind string, entries []entry) branch {
	stamp := branch{key: "timestamp", text: strconv.FormatInt(c.at, 10), raw: true}
	if c.at%256 == 0 && c.cfg.Client != master {
		stamp.raw, stamp.text = false, ""
	}
	doc := branch{inside: '{', sub: []branch{stamp,
		{key: "pbs_version", text: version}, {key: "pbs_server", text: c.cfg.Host}}}
	if len(entries) == 0 {
		return doc
	}
	list := branch{key: kind, inside: '{'}
	for _, e := range entries {
		list.sub = append(list.sub, c.object(e, kind == "nodes"))
	}
	doc.sub = append(doc.sub, list)
	return doc
}

// object groups the attributes of one entry: lists of resources and variables become objects of their own.
func (c *call) object(e entry, node bool) branch {
	o := branch{key: e.ID, inside: '{'}
	if e.Error != "" {
		o.sub = append(o.sub, branch{key: "Error", text: e.Error})
		return o
	}
	for i := 0; i < len(e.Attrs); i++ {
		a := e.Attrs[i]
		switch {
		case a.Name == "jobs" && node:
			o.sub = append(o.sub, jobList(e.Jobs))
		case a.Name == "Variable_List":
			vars := branch{key: a.Name, inside: '{'}
			for _, v := range variables(a.Value, c.cfg.Client == master) {
				vars.sub = append(vars.sub, c.leaf(v.name, v.value, false))
			}
			o.sub = append(o.sub, vars)
		case a.Res != "":
			list := branch{key: a.Name, inside: '{'}
			for ; i < len(e.Attrs) && e.Attrs[i].Name == a.Name; i++ {
				r := e.Attrs[i]
				if node && a.Name == "resources_assigned" && nothing(r.Value) {
					continue
				}
				list.sub = append(list.sub, c.leaf(r.Res, r.Value, node))
			}
			i--
			o.sub = append(o.sub, list)
		default:
			text := a.Value
			if !node {
				text = a.text(c.zone)
			}
			o.sub = append(o.sub, c.leaf(a.Name, text, node))
		}
	}
	return o
}

// jobList names each job of a node once, without its slot.
func jobList(jobs []string) branch {
	list := branch{key: "jobs", inside: '['}
	last := ""
	for _, j := range jobs {
		id, _, _ := strings.Cut(j, "/")
		if id != last {
			list.sub = append(list.sub, branch{text: id})
		}
		last = id
	}
	return list
}

func nothing(value string) bool { return value == "0" || value == "0kb" }

func (c *call) leaf(key, value string, whole bool) branch {
	if c.cfg.Client == master {
		return laterLeaf(key, value)
	}
	value = strings.ReplaceAll(mangle(value), `\,`, ",")
	return branch{key: key, text: value, raw: number(value), whole: whole}
}

// json prints a document as the release does: four blanks, and a newline at the end only if there was something.
// Only the later client can fail.
func (c *call) json(kind string, entries []entry) bool {
	doc := c.document(kind, entries)
	var b strings.Builder
	if c.cfg.Client == master {
		if slices.ContainsFunc(entries, unreadable) {
			c.eprintf("%s: json error\n", c.name)
			return false
		}
		later(&b, doc, 0)
		b.WriteByte('\n')
	} else {
		release(&b, doc, 0)
		if len(entries) > 0 {
			b.WriteByte('\n')
		}
	}
	_, _ = c.out.Write([]byte(b.String())) // the commands do not look at a full device either
	return true
}

// unreadable: the later client gives up at a variable without a value, such as the half of a name with a comma.
func unreadable(e entry) bool {
	for part := range strings.SplitSeq(strings.ReplaceAll(e.get("Variable_List", ""), `\,`, ""), ",") {
		if part != "" && !strings.Contains(part, "=") {
			return true
		}
	}
	return false
}

func release(b *strings.Builder, n branch, depth int) {
	b.WriteString(strings.Repeat("    ", depth))
	if n.key != "" || depth > 0 && n.inside != 0 {
		b.WriteString(`"` + escape(n.key, n.whole) + `":`)
	}
	if n.inside == 0 {
		if n.raw {
			b.WriteString(n.text)
		} else {
			b.WriteString(`"` + escape(n.text, n.whole) + `"`)
		}
		return
	}
	b.WriteByte(n.inside)
	b.WriteByte('\n')
	for i, s := range n.sub {
		release(b, s, depth+1)
		if i < len(n.sub)-1 {
			b.WriteByte(',')
		}
		b.WriteByte('\n')
	}
	b.WriteString(strings.Repeat("    ", depth))
	b.WriteByte(n.inside + 2) // } and ] lie two behind
}

// folded prints an attribute of a full listing, broken at column 79 unless wide.
func folded(b *strings.Builder, a attr, value string, wide bool) {
	const limit, indent = 79, 8
	name := a.Name
	if a.Res != "" {
		name += "." + a.Res
	}
	b.WriteString("    " + name + " = ")
	if wide {
		b.WriteString(value)
		b.WriteByte('\n')
		return
	}
	column, first := 4+len(name)+3, true
	for part := range strings.SplitSeq(value, ",") {
		if !first {
			b.WriteByte(',')
			column++
		}
		if column+len(part) >= limit {
			if !first {
				b.WriteString("\n\t")
				column = indent + 1 // the comma is counted with this line
			}
			for i := range len(part) {
				b.WriteByte(part[i])
				column++
				if column == limit && i < len(part)-1 {
					b.WriteString("\n\t")
					column = indent
				}
			}
		} else {
			b.WriteString(part)
			column += len(part)
		}
		first = false
	}
	b.WriteByte('\n')
}

// textValue is a value as the text and dsv forms show it.
func (c *call) textValue(a attr) string {
	if c.cfg.Client == master {
		return a.text(c.zone)
	}
	return mangle(a.text(c.zone))
}

func (c *call) full(kind string, entries []entry, wide bool) {
	var b strings.Builder
	for _, e := range entries {
		b.WriteString(kind + ": " + e.ID + "\n")
		for _, a := range e.Attrs {
			var one strings.Builder
			folded(&one, a, a.text(c.zone), wide) // lines are broken before bytes are mangled
			if c.cfg.Client == master {
				b.WriteString(one.String())
			} else {
				b.WriteString(mangle(one.String()))
			}
		}
		b.WriteByte('\n')
	}
	_, _ = c.out.Write([]byte(b.String()))
}

func (c *call) dsv(kind string, entries []entry, delimiter string) {
	var b strings.Builder
	escapes := strings.NewReplacer(delimiter, `\`+delimiter, "\n", `\n`, `\`, `\\`)
	for _, e := range entries {
		b.WriteString(kind + ": " + e.ID)
		for _, a := range e.Attrs {
			name := a.Name
			if a.Res != "" {
				name += "." + a.Res
			}
			v := escapes.Replace(c.textValue(a))
			b.WriteString(delimiter + name + "=" + v)
		}
		b.WriteByte('\n')
	}
	_, _ = c.out.Write([]byte(b.String()))
}
