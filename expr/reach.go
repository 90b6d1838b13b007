package expr

import (
	"slices"
	"strings"
)

// Reach is what a policy says of an owner's requests, whatever they ask for.
type Reach struct {
	Truth Truth // True: every request is admitted; False: none; Unknown: it depends; Failed: the policy fails
	// Depends are the inputs that decide where it depends, sorted; of the others the value does not matter.
	Depends []string
}

// Reach evaluates the policy for an organisation, a group and a definition alone: all else of the request is
// unknown, who submits too. A nil owner stands for anybody.
func (p *Policy) Reach(owner *RequestOwner, def *RequestDefinition) Reach {
	env := NewRequestEnv()
	if owner != nil {
		env.Request.Owner = owner
	}
	if def != nil {
		env.Definition = def
	}
	r := p.language.evaluation(p.formula, env, 0)
	defer r.end()
	values := make([]Truth, len(p.formula.leaves))
	for i, l := range p.formula.leaves {
		if !slices.ContainsFunc(l.names, func(n *name) bool { return !given(n.text, owner != nil) }) {
			values[i] = r.leafValue(int32(i))
		}
	}
	r.values = values
	out := Reach{Truth: r.eval(&p.formula.root)}
	if out.Truth == Unknown {
		seen := map[string]bool{}
		r.open(&p.formula.root, owner != nil, seen)
		for text := range seen {
			out.Depends = append(out.Depends, text)
		}
		slices.Sort(out.Depends)
	}
	return out
}

// given reports whether an input is known without the request.
func given(name string, owner bool) bool {
	if strings.HasPrefix(name, "definition.") {
		return true
	}
	field, ok := strings.CutPrefix(name, "request.owner.")
	return ok && owner && field != "user_id" && field != "email"
}

// open collects what an undecided part depends on.
func (r *evaluation) open(l *logic, owner bool, seen map[string]bool) {
	switch {
	case l.op == opLeaf:
		for _, n := range r.formula.leaves[l.leaf].names {
			if !given(n.text, owner) {
				seen[n.text] = true
			}
		}
		return
	case l.op == opIf:
		switch r.eval(&l.kids[0]) {
		case True:
			r.open(&l.kids[1], owner, seen)
			return
		case False:
			r.open(&l.kids[2], owner, seen)
			return
		}
	}
	for i := range l.kids {
		if r.eval(&l.kids[i]) == Unknown {
			r.open(&l.kids[i], owner, seen)
		}
	}
}
