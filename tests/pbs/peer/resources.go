package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// kind is what a resource holds.
type kind byte

const (
	kindNone kind = iota
	kindLong
	kindFloat
	kindSize
	kindTime
	kindString
)

// resource is a name that jobs may ask for. Consumable ones are counted on nodes, or at the server.
type resource struct {
	Name  string
	Kind  kind
	Flags string
}

func (r resource) consumable() bool { return strings.ContainsAny(r.Flags, "nfq") }

// predefined are the resources that need not be created; ngpus is not among them.
func predefined(name string) (resource, bool) {
	switch name {
	case "ncpus", "mpiprocs", "ompthreads", "naccelerators", "nodect", "nice":
		return resource{name, kindLong, "hn"}, true
	case "mem", "vmem", "pmem", "pvmem", "file", "hbmem", "accelerator_memory":
		return resource{name, kindSize, "hn"}, true
	case "walltime", "cput", "pcput", "max_walltime", "min_walltime", "soft_walltime":
		return resource{name, kindTime, ""}, true
	case "host", "vnode", "arch", "nodes", "software", "select", "place", "accelerator_model", "aoe", "eoe", "exec_vnode", "site":
		return resource{name, kindString, "h"}, true
	}
	return resource{}, false
}

// parse checks and normalises a value.
func (r resource) parse(value string) (string, bool) {
	switch r.Kind {
	case kindLong:
		n, err := strconv.ParseInt(value, 10, 64)
		return strconv.FormatInt(n, 10), err == nil && n >= 0
	case kindFloat:
		f, err := strconv.ParseFloat(value, 64)
		return strconv.FormatFloat(f, 'g', -1, 64), err == nil && f >= 0 && !math.IsInf(f, 0)
	case kindSize:
		s, ok := parseSize(value)
		return s.String(), ok
	case kindTime:
		d, ok := parseDuration(value)
		return clockForm(d), ok
	}
	return value, value != ""
}

// size is an amount of memory in the unit it was given in.
type size struct {
	n     int64
	shift uint // 0 b, 10 kb, 20 mb ...
	words bool
}

func (s size) String() string {
	unit := string("\x00kmgtp"[s.shift/10])
	if s.shift == 0 {
		unit = ""
	}
	if s.words {
		return strconv.FormatInt(s.n, 10) + unit + "w"
	}
	return strconv.FormatInt(s.n, 10) + unit + "b"
}

// bytes is the size in bytes; a word has eight.
func (s size) bytes() int64 {
	n := s.n << s.shift
	if s.words {
		n *= 8
	}
	return n
}

// kb rounds up to kilobytes, the unit of nodes.
func (s size) kb() int64 { return (s.bytes() + 1023) >> 10 }

func parseSize(v string) (size, bool) {
	v = strings.ToLower(v)
	i := 0
	for i < len(v) && v[i] >= '0' && v[i] <= '9' {
		i++
	}
	n, err := strconv.ParseInt(v[:i], 10, 64)
	if err != nil {
		return size{}, false
	}
	s, unit := size{n: n}, v[i:]
	if unit != "" {
		if at := strings.IndexByte("kmgtp", unit[0]); at >= 0 {
			s.shift = uint(at+1) * 10
			unit = unit[1:]
		}
	}
	switch unit {
	case "", "b":
	case "w":
		s.words = true
	default:
		return size{}, false
	}
	return s, n <= math.MaxInt64>>(s.shift+3)
}

// add keeps the finer unit of the two.
func (s size) add(o size) size {
	if s.words != o.words || s.n == 0 {
		if s.n == 0 {
			return o
		}
		return size{n: s.bytes() + o.bytes()}
	}
	for s.shift > o.shift {
		s.n, s.shift = s.n<<10, s.shift-10
	}
	for o.shift > s.shift {
		o.n, o.shift = o.n<<10, o.shift-10
	}
	s.n += o.n
	return s
}

// parseDuration reads [[hours:]minutes:]seconds[.fraction]; a fraction rounds up.
func parseDuration(v string) (int64, bool) {
	whole, fraction, dotted := strings.Cut(v, ".")
	parts := strings.Split(whole, ":")
	if len(parts) > 3 {
		return 0, false
	}
	var total int64
	for _, p := range parts {
		n, err := strconv.ParseUint(p, 10, 31)
		if err != nil {
			return 0, false
		}
		total = total*60 + int64(n)
	}
	if dotted {
		if strings.Trim(fraction, "0123456789") != "" {
			return 0, false
		}
		if strings.Trim(fraction, "0") != "" {
			total++
		}
	}
	return total, true
}

// clockForm is hours, minutes and seconds, with as many digits of hours as it takes.
func clockForm(seconds int64) string {
	return fmt.Sprintf("%02d:%02d:%02d", seconds/3600, seconds/60%60, seconds%60)
}

// pair is a resource with its value.
type pair struct {
	Name  string
	Value string
}

// part is a chunk of a selection with how many of it are wanted.
type part struct {
	Count int
	Wants []pair
}

func (p part) get(name string) string {
	for _, w := range p.Wants {
		if strings.EqualFold(w.Name, name) {
			return w.Value
		}
	}
	return ""
}

const maxChunks = 1 << 16

// parseSelect reads a selection. lookup knows the resources of the complex.
func parseSelect(text string, lookup func(string) (resource, bool)) ([]part, *fail) {
	broken := &fail{Code: badValue, Extra: "Resource_List.select"}
	var out []part
	total := 0
	for chunk := range strings.SplitSeq(text, "+") {
		fields := strings.Split(chunk, ":")
		p := part{Count: 1}
		if n, err := strconv.Atoi(fields[0]); err == nil {
			p.Count, fields = n, fields[1:]
			if n == 0 {
				return nil, &fail{Code: badValue}
			}
		}
		if total += p.Count; p.Count < 0 || total > maxChunks {
			return nil, broken
		}
		for _, f := range fields {
			name, value, ok := strings.Cut(f, "=")
			if !ok || name == "" || strings.Trim(name, letters) != "" {
				return nil, broken
			}
			r, known := lookup(strings.ToLower(name))
			if !known {
				return nil, &fail{Code: unknownResource, Whole: "Unknown resource: " + name}
			}
			if p.get(name) != "" {
				return nil, &fail{Code: duplicateInPart, Whole: "duplicated resource within a section of a select specification, resource is: " + name}
			}
			if r.Kind == kindString && value != "" {
				p.Wants = append(p.Wants, pair{r.Name, value})
				continue
			}
			v, ok := r.parse(value)
			if !ok {
				return nil, &fail{Code: badValue, Extra: "select." + name}
			}
			p.Wants = append(p.Wants, pair{r.Name, v})
		}
		out = append(out, p)
	}
	return out, nil
}

const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-."

// placement is what a job says about where its chunks may lie.
type placement struct {
	arrange string // free, pack, scatter, vscatter
	sharing string // "", excl, exclhost, shared
}

func parsePlace(text string) (placement, bool) {
	p := placement{arrange: "free"}
	for f := range strings.SplitSeq(text, ":") {
		switch {
		case f == "free" || f == "pack" || f == "scatter" || f == "vscatter":
			p.arrange = f
		case f == "excl" || f == "exclhost" || f == "shared":
			p.sharing = f
		case strings.HasPrefix(f, "group="):
		default:
			return p, false
		}
	}
	return p, true
}

// totals are what a selection sums to: the consumable resources, and how many chunks.
func totals(parts []part, lookup func(string) (resource, bool)) []pair {
	sums, sizes, chunks := map[string]float64{}, map[string]size{}, 0
	for _, p := range parts {
		chunks += p.Count
		wants := p.Wants
		if p.get("ncpus") == "" {
			wants = append(slices.Clone(wants), pair{"ncpus", "1"})
		}
		for _, w := range wants {
			r, _ := lookup(strings.ToLower(w.Name))
			if !r.consumable() {
				continue
			}
			name := strings.ToLower(w.Name)
			if r.Kind == kindSize {
				s, _ := parseSize(w.Value)
				s.n *= int64(p.Count)
				sizes[name] = sizes[name].add(s)
				continue
			}
			n, _ := strconv.ParseFloat(w.Value, 64)
			sums[name] += n * float64(p.Count)
		}
	}
	var out []pair
	for n, v := range sums {
		out = append(out, pair{n, strconv.FormatFloat(v, 'f', -1, 64)})
	}
	for n, s := range sizes {
		out = append(out, pair{n, s.String()})
	}
	return append(out, pair{"nodect", strconv.Itoa(chunks)})
}

// setPair puts a value under its name, keeping the list in order of names.
func setPair(list []pair, name, value string) []pair {
	i, found := slices.BinarySearchFunc(list, name, func(p pair, n string) int { return strings.Compare(p.Name, n) })
	if found {
		list[i].Value = value
		return list
	}
	return slices.Insert(list, i, pair{name, value})
}

func getPair(list []pair, name string) string {
	for _, p := range list {
		if p.Name == name {
			return p.Value
		}
	}
	return ""
}
