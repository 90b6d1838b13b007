// Package access says which owners reach which definitions of a configuration, through which grant and policy, and where
// that is easier than it looks. It takes values and gives values; placement asks each request anew.
package access

import (
	"slices"
	"strings"

	"substrate/coordinator"
	"substrate/coordinator/config"
	"substrate/expr"
)

// Owner is a group of an organisation: work always counts for one.
type Owner struct {
	Organization     coordinator.OrganizationID
	OrganizationSlug string
	Group            coordinator.GroupID
	GroupSlug        string
}

// Grants answers for one organisation: why its grant does not name a definition, "" where it does.
type Grants func(coordinator.OrganizationID, *coordinator.Definition) (refusal string)

// Reach is how far an owner gets with a definition.
type Reach string

const (
	Always  Reach = "always"  // every request that fits
	Depends Reach = "depends" // on what the request says, see Row.On
	Never   Reach = "never"   // grant or policy refuse whatever is asked
)

// Codes of findings; append only.
const (
	OpenAndCostly  = "open-and-costly"  // no policy on a definition over lints.costPerHour
	AlwaysTrue     = "always-true"      // a policy that refuses nobody
	FreeAnnotation = "free-annotation"  // any member opens it by writing an annotation
	GrantedInVain  = "granted-in-vain"  // the grant names it, the policy never admits
	PolicyFails    = "policy-fails"     // the policy cannot be evaluated
	AdmittedInVain = "admitted-in-vain" // the policy names the owner, the grant does not name the definition
)

// Finding is something to look at, with what helps.
type Finding struct{ Code, Message, Fix string }

// Row is one owner and one definition.
type Row struct {
	Owner       Owner
	Definition  coordinator.DefinitionID
	CostPerHour *float64 // USD; nil is unknown
	Reach       Reach
	Grant       string // why the grant refuses, "" where it names the definition
	Policy      string // "none", or what the policy says of the owner: always, depends, never, fails
	On          []string
	Findings    []Finding
}

// Filter leaves rows out. The zero value leaves out none.
type Filter struct {
	Definition coordinator.DefinitionID
	Reachable  bool // rows that are not Never
	Flagged    bool // rows with findings
}

// Audit holds a configuration against owners.
type Audit struct {
	Config *config.Checked
	Grants Grants
	anyone map[coordinator.DefinitionID]expr.Truth // what a policy says of everybody
	about  map[coordinator.DefinitionID]*expr.RequestDefinition
}

// New prepares an audit.
func New(c *config.Checked, g Grants) *Audit {
	a := &Audit{Config: c, Grants: g, anyone: map[coordinator.DefinitionID]expr.Truth{},
		about: map[coordinator.DefinitionID]*expr.RequestDefinition{}}
	for i := range c.Config.Definitions {
		d := &c.Config.Definitions[i]
		if p := c.Policies[d.ID]; p != nil {
			a.about[d.ID] = &expr.RequestDefinition{ID: string(d.ID), Annotations: c.Config.DefinitionAnnotations(d)}
			a.anyone[d.ID] = p.Reach(nil, a.about[d.ID]).Truth
		}
	}
	return a
}

// Rows looks at an owner's definitions in file order from a place on, at most as many as said, and returns where it
// stopped: the number of definitions when it is through.
func (a *Audit) Rows(o Owner, from, most int, f Filter) (rows []Row, next int) {
	defs := a.Config.Config.Definitions
	for next = from; next < len(defs) && next-from < most; next++ {
		d := &defs[next]
		if f.Definition != "" && d.ID != f.Definition && d.Configured != string(f.Definition) {
			continue
		}
		row := a.row(o, d)
		if f.Reachable && row.Reach == Never || f.Flagged && len(row.Findings) == 0 {
			continue
		}
		rows = append(rows, row)
	}
	return rows, next
}

func (a *Audit) row(o Owner, d *coordinator.Definition) Row {
	row := Row{Owner: o, Definition: d.ID, CostPerHour: d.CostPerHour, Grant: a.Grants(o.Organization, d), Policy: "none", Reach: Always}
	if p := a.Config.Policies[d.ID]; p != nil {
		said := p.Reach(&expr.RequestOwner{OrganizationID: string(o.Organization), OrganizationName: o.OrganizationSlug,
			GroupID: string(o.Group), GroupName: o.GroupSlug, AccountID: string(o.Group)}, a.about[d.ID])
		switch said.Truth {
		case expr.True:
			row.Policy = string(Always)
		case expr.False:
			row.Policy, row.Reach = string(Never), Never
		case expr.Failed:
			row.Policy, row.Reach = "fails", Never
		default:
			row.Policy, row.Reach, row.On = string(Depends), Depends, said.Depends
		}
	}
	row.Findings = a.findings(&row, d)
	if row.Grant != "" {
		row.Reach = Never
	}
	return row
}

func (a *Audit) findings(row *Row, d *coordinator.Definition) []Finding {
	var out []Finding
	add := func(code, message, fix string) { out = append(out, Finding{code, message, fix}) }
	granted := row.Grant == ""
	costly := d.CostPerHour != nil && *d.CostPerHour > a.Config.Lints.CostPerHour
	anyone, hasPolicy := a.anyone[d.ID]
	switch {
	case granted && !hasPolicy && costly:
		add(OpenAndCostly, "no policy, and it is expensive", "add a policy, or take it out of the grant")
	case granted && anyone == expr.True:
		add(AlwaysTrue, "the policy admits everybody whatever is asked", "remove it, or say in it who may")
	}
	if granted && row.Reach == Depends {
		if keys := annotations(row.On); len(keys) > 0 {
			add(FreeAnnotation, "the policy depends on "+strings.Join(keys, " and ")+", which whoever submits writes",
				"decide by request.owner instead, or by what the job asks for")
		}
	}
	switch {
	case row.Policy == "fails":
		add(PolicyFails, "the policy cannot be evaluated for this owner", "try it with `substrate cluster config test`")
	case granted && row.Policy == string(Never):
		add(GrantedInVain, "the grant names it, and the policy never admits this owner", "take it out of the grant, or change the policy")
	case !granted && anyone == expr.Unknown && row.Policy == string(Always):
		add(AdmittedInVain, "the policy names this owner, and the grant does not name the definition", "`substrate grant append`")
	}
	return out
}

// annotations are the inputs that whoever submits writes freely.
func annotations(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool {
		return !strings.HasPrefix(n, "request.job_annotations[") && !strings.HasPrefix(n, "request.workflow_annotations[")
	})
}
