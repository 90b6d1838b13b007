package config

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/spec"
	"substrate/expr"
	"substrate/strictyaml"
)

// Codes of the lints that need no fleet; those of package expr come on top.
const (
	LintShortTTL     = "short-ttl"
	LintServiceTTL   = "job-ttl-and-services"
	LintOpenCostly   = "open-and-costly"
	LintFolded       = "comment-in-folded-text"
	LintRoutedBy     = "routed-by-matched-annotation"
	LintNoEffect     = "no-effect"
	LintUnknownType  = "unknown-type"
	LintSharedID     = "shared-id"
	LintMixedArch    = "mixed-architecture"
	LintLossWindow   = "node-loss-window-short"
	shortestBatchTTL = 24000 * time.Second
	// shortestLossWindow leaves an agent its longest wait between two tries, and the time to connect.
	shortestLossWindow = 20 * time.Second
)

// Codes of the lints that need the known nodes, or the grants; package fleet and the engine find them.
const (
	LintNeverTrue  = "true-on-no-node"
	LintAlwaysTrue = "true-on-every-node"
	LintOverlap    = "overlap"
	LintMixed      = "mixed-hardware"
	LintUngranted  = "granted-to-nobody"
)

// LintCodes lists every code that `lints.silence` may name, sorted.
func LintCodes() []string {
	codes := []string{LintShortTTL, LintServiceTTL, LintOpenCostly, LintFolded, LintRoutedBy,
		LintNoEffect, LintUnknownType, LintSharedID, LintMixedArch, LintLossWindow, LintNeverTrue, LintAlwaysTrue, LintOverlap, LintMixed,
		LintUngranted, strictyaml.CodeOldKey}
	for _, r := range expr.LintRules() {
		codes = append(codes, r.Code)
	}
	sort.Strings(codes)
	return slices.Compact(codes)
}

// warn adds a lint unless its code is silenced.
func (p *parser) warn(v strictyaml.Value, code, message, hint string) {
	if !slices.Contains(p.out.Lints.Silence, code) {
		v.Report(strictyaml.SeverityWarning, code, message, hint)
	}
}

func (p *parser) warnIn(v strictyaml.Value, line, column int, code, message, hint string) {
	if !slices.Contains(p.out.Lints.Silence, code) {
		v.ReportIn(line, column, strictyaml.SeverityWarning, code, message, hint)
	}
}

func (p *parser) lints() {
	if window := p.out.Config.Scheduler.NodeLossWindow; p.window.Valid() && window < shortestLossWindow {
		p.warn(p.window, LintLossWindow, fmt.Sprintf("agents wait up to 10s between two tries to reach the coordinator; after %s a short outage already costs a node its work", window),
			"set 20s or more, or shorten --reconnect-max at the agents")
	}
	carried := p.carriedAnnotations()
	for _, d := range p.drafts {
		if ttl := d.def.TTL; spec.Batch(d.def.Kind) && !spec.Native(&coordinator.Definition{Spec: d.spec.Spec}) && ttl > 0 && ttl < shortestBatchTTL {
			p.warn(d.ttl, LintShortTTL, fmt.Sprintf("ttl is the walltime of the %s job; %d s leaves it little time for work", d.def.Kind, int(ttl.Seconds())),
				"set 24000 or more")
		}
		p.openAndCostly(d)
		if d.def.Policy != "" {
			code := codeOnly(d.def.Policy)
			p.serviceTTL(d, code)
			p.routed(d, code, carried)
		}
	}
	p.sharedTemplates()
}

// openAndCostly names a definition that everybody may use although it is expensive.
func (p *parser) openAndCostly(d *draft) {
	if policy := strings.TrimSpace(codeOnly(d.def.Policy)); policy != "" && policy != "true" {
		return
	}
	worst := instance{}
	for _, t := range d.types {
		if t.cost != nil && *t.cost > p.out.Lints.CostPerHour && (worst.cost == nil || *t.cost > *worst.cost) {
			worst = t
		}
	}
	if worst.cost == nil {
		return
	}
	place := d.id
	if d.policy.Valid() {
		place = d.policy
	}
	p.warn(place, LintOpenCostly, fmt.Sprintf("everybody may use %s, which costs %.2f USD per hour", worst.id, *worst.cost),
		fmt.Sprintf("add a policy, or raise lints.costPerHour above %.2f", *worst.cost))
}

// serviceTTL: services have no walltime, so job_ttl is +Inf for them.
func (p *parser) serviceTTL(d *draft, code string) {
	const name = "request.job_ttl"
	at := strings.Index(code, name)
	if at < 0 || strings.Contains(code, "request.job_kind") {
		return
	}
	line, column := lineColumn(d.def.Policy, at)
	after := strings.TrimSpace(code[at+len(name):])
	before := strings.TrimSpace(code[:at])
	upper := strings.HasPrefix(after, "<") || strings.HasSuffix(before, ">") || strings.HasSuffix(before, ">=")
	lower := strings.HasPrefix(after, ">") || strings.HasSuffix(before, "<") || strings.HasSuffix(before, "<=")
	switch {
	case upper:
		p.warnIn(d.policy, line, column, LintServiceTTL, "services have no walltime, so a limit on job_ttl keeps every service out",
			`if services may run here, add || request.job_kind == "service"; if not, add && request.job_kind == "job"`)
	case lower:
		p.warnIn(d.policy, line, column, LintServiceTTL, "services have no walltime, so every service passes this test and stays without limit",
			`add && request.job_kind == "job" if services should not run here`)
	}
}

// carriedAnnotations are the keys that nodes carry by configuration, so that matching
// compares them.
func (p *parser) carriedAnnotations() map[string]string {
	out := map[string]string{}
	for k := range p.out.Config.NodeAnnotations {
		out[k] = "nodeAnnotations"
	}
	for _, d := range p.drafts {
		for k := range d.def.Annotations {
			if _, ok := out[k]; !ok {
				out[k] = "the definition " + d.def.Configured
			}
		}
	}
	for _, k := range p.out.Config.Scheduler.IgnoredAnnotations {
		delete(out, k)
	}
	return out
}

// routed: a policy that routes by an annotation which nodes carry too. A user who writes it
// under resource.annotations, where it looks at home, is matched against the nodes as well.
func (p *parser) routed(d *draft, code string, carried map[string]string) {
	for _, from := range []string{"job_annotations[", "workflow_annotations["} {
		for at := 0; at < len(code); {
			i := strings.Index(code[at:], from)
			if i < 0 {
				break
			}
			at += i + len(from)
			key, ok := literal(d.def.Policy[at:])
			if !ok {
				continue
			}
			if where := carried[key]; where != "" {
				line, column := lineColumn(d.def.Policy, at)
				p.warnIn(d.policy, line, column, LintRoutedBy,
					fmt.Sprintf("the policy routes by the annotation %s, which %s carries too: annotation matching compares it as well", key, where),
					"add "+key+" to scheduler.ignoredAnnotations, or route by a key of its own")
			}
		}
	}
}

// literal reads the quoted text that an expression begins with; escapes are left alone,
// annotation keys have none.
func literal(s string) (string, bool) {
	s = strings.TrimLeft(s, " ")
	if s == "" || s[0] != '"' && s[0] != '\'' {
		return "", false
	}
	end := strings.IndexByte(s[1:], s[0])
	if end < 0 || strings.Contains(s[1:1+end], `\`) {
		return "", false
	}
	return s[1 : 1+end], true
}

// swallowed warns when folding put code behind a // comment: YAML joins the lines, and the
// comment takes in all that follows.
func (p *parser) swallowed(v strictyaml.Value, text string) bool {
	for at := 0; at < len(text); {
		i := commentAt(text, at)
		if i < 0 {
			return false
		}
		end := len(text)
		if n := strings.IndexByte(text[i:], '\n'); n >= 0 {
			end = i + n
		}
		line, column := lineColumn(text, i)
		lastLine, lastColumn := lineColumn(text, end-1)
		from, _ := v.PositionIn(line, column)
		to, _ := v.PositionIn(lastLine, lastColumn)
		if to > from {
			p.warnIn(v, line, column, LintFolded,
				fmt.Sprintf("the lines of this text are joined, so the comment takes in all up to line %d", to), "use |- instead of >-, or /* */")
			return true
		}
		at = end
	}
	return false
}

// commentAt finds the next // outside texts and /* */, from at on; -1 without one.
func commentAt(text string, at int) int {
	if !strings.Contains(text[at:], "//") {
		return -1
	}
	code := codeOf(text, false)
	i := strings.Index(code[at:], "//")
	if i < 0 {
		return -1
	}
	return at + i
}

// codeOnly blanks texts and comments, byte for byte, so that what remains is code.
func codeOnly(text string) string { return codeOf(text, true) }

func codeOf(text string, blankLineComments bool) string {
	b := []byte(text)
	blank := func(i, end int) int {
		for ; i < end && i < len(b); i++ {
			if b[i] != '\n' {
				b[i] = ' '
			}
		}
		return end
	}
	for i := 0; i < len(b); {
		switch {
		case b[i] == '"' || b[i] == '\'' || b[i] == '`':
			quote, end := b[i], i+1
			for end < len(b) && b[end] != quote {
				if b[end] == '\\' && quote != '`' {
					end++
				}
				end++
			}
			i = blank(i, min(end+1, len(b)))
		case strings.HasPrefix(text[i:], "/*"):
			end := len(b)
			if n := strings.Index(text[i+2:], "*/"); n >= 0 {
				end = i + 4 + n
			}
			i = blank(i, end)
		case strings.HasPrefix(text[i:], "//"):
			end := len(b)
			if n := strings.IndexByte(text[i:], '\n'); n >= 0 {
				end = i + n
			}
			if blankLineComments {
				blank(i, end)
			}
			i = end
		default:
			i++
		}
	}
	return string(b)
}

// lineColumn turns a byte offset into line and column in characters, from 1.
func lineColumn(text string, off int) (line, column int) {
	off = max(0, min(off, len(text)))
	line = 1 + strings.Count(text[:off], "\n")
	start := strings.LastIndexByte(text[:off], '\n') + 1
	return line, 1 + len([]rune(text[start:off]))
}
