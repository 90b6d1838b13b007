package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"substrate/coordinator"
	"substrate/coordinator/config"
	"substrate/coordinator/grant"
	"substrate/coordinator/sched"
	"substrate/coordinator/spec"
	"substrate/expr"
)

// refusal says what kept a definition from a request (rule 6); the words are those of the API.
type refusal string

const (
	refusedByBackend    refusal = "backend"
	refusedByGrant      refusal = "grant"
	refusedByPolicy     refusal = "policy"
	refusedByAnnotation refusal = "annotation"
	refusedByResources  refusal = "resources"
	refusedByClass      refusal = "class"
)

// admission is which definitions a job may use, as of one version of configuration, grants and hardware.
type admission struct {
	version      uint64
	admissible   []coordinator.DefinitionID // cheapest first, as they are tried
	exclude      []coordinator.NodeID       // nodes of admissible definitions whose hardware keys differ
	unrestricted bool                       // internal and system work that grant or policies refuse everywhere
}

// admit returns the job's admission, worked out anew when something it depends on has changed.
func (s *state) admit(j *job) *admission {
	if j.admission == nil || j.admission.version != s.admission {
		j.admission = s.ask(j).admission()
		j.admission.version = s.admission
	}
	return j.admission
}

// outcomes is what every definition says to a job, with reasons, cheapest first.
func (s *state) outcomes(j *job) []DefinitionOutcome { return s.ask(j).outcomes() }

// question is one job before the definitions of a configuration. What many definitions share is judged once.
type question struct {
	*state
	job      *job
	env      *expr.RequestEnv
	keys     []string // of annotations that matching compares, sorted
	tokens   []string // sorted
	grant    grant.Document
	grantErr error
	admits   []answer // of the policies that do not read the definition, by their number
	shapes   map[shape][]sched.Lack
}

// answer is a policy's, once it was asked.
type answer uint8

const (
	notAsked answer = iota
	admits
	refuses
)

func (s *state) ask(j *job) *question {
	org := j.workflow.record.Owner.Organization
	o := s.orgs[org]
	if o == nil {
		return s.askWith(j, grant.Document{}, errors.New("the organisation does not exist any more"))
	}
	doc, err := s.grantDocument(o)
	return s.askWith(j, doc, err)
}

func (s *state) askWith(j *job, doc grant.Document, err error) *question {
	w := j.workflow
	env := config.RequestEnv(w.record.Owner, w.id, w.record.Spec.Annotations, j.spec)
	q := &question{state: s, job: j, env: env, tokens: sortedKeys(j.spec.Resources.Tokens), grant: doc, grantErr: err}
	for _, key := range sortedKeys(j.spec.Match) {
		if !slices.Contains(s.config.Scheduler.IgnoredAnnotations, key) {
			q.keys = append(q.keys, key)
		}
	}
	return q
}

// admission asks only the definitions that the organisation's grant names.
func (q *question) admission() *admission {
	a := &admission{}
	ours := q.job.spec.Kind == coordinator.KindInternal || q.job.spec.Kind == coordinator.KindSystem
	if q.grantErr != nil {
		a.unrestricted = ours && len(q.config.byCost) > 0
		return a
	}
	byPolicy := 0
	r := &q.job.spec.Resources
	plain := !r.Threads && len(r.Devices)+len(r.Tokens)+len(q.keys) == 0
	memory := r.TotalMemory()
	index := q.namedBy(q.job.workflow.record.Owner.Organization)
	key := ""
	if plain && len(index.policies) <= maxSharedPolicies {
		key = q.answers(index)
		if a.admissible = index.known[key]; a.admissible != nil {
			return a
		}
	}
	a.admissible = make([]coordinator.DefinitionID, 0, len(index.list))
	for i := range index.list {
		n := &index.list[i]
		if plain && (n.unknown || r.Cores <= n.cores && memory <= n.memory) && n.number >= 0 && q.admitted(n) {
			a.admissible = append(a.admissible, n.id)
			continue
		}
		switch by, _ := q.namedRefusal(n); by {
		case "":
			a.admissible = append(a.admissible, n.id)
			a.exclude = append(a.exclude, q.mismatched(n.Definition)...)
		case refusedByPolicy:
			byPolicy++
		}
	}
	// Of what the grant names no policy admits it. Resources still hold: a refusal because of them is none of rights.
	a.unrestricted = ours && len(q.config.byCost) > 0 && len(a.admissible) == 0 && byPolicy == len(index.list)
	slices.Sort(a.exclude)
	if key != "" && len(a.admissible) > 0 && len(index.known) < maxKnownAnswers {
		index.known[key] = a.admissible
	}
	return a
}

const (
	maxSharedPolicies = 256 // evaluated to tell whether an answer is known already
	maxKnownAnswers   = 256
)

// answers is all that an answer to a plain request depends on: what the policies say, cores and memory.
func (q *question) answers(index *namedIndex) string {
	key := make([]byte, 0, len(index.policies)+12)
	for _, n := range index.policies {
		said := byte('0')
		if q.admitted(n) {
			said = '1'
		}
		key = append(key, said)
	}
	r := &q.job.spec.Resources
	key = binary.LittleEndian.AppendUint32(key, uint32(r.Cores))
	return string(binary.LittleEndian.AppendUint64(key, uint64(r.TotalMemory())))
}

// namedIndex is what a grant lets an organisation use of one configuration, cheapest first.
type namedIndex struct {
	serial  grant.Serial
	version uint64 // of configuration and hardware
	list    []named
	// policies has one definition for each shared policy, and each whose policy is its own.
	policies []*named
	known    map[string][]coordinator.DefinitionID // answers to plain requests
}

// named is a definition with what most requests ask of it, in one place: ten thousand of them are looked
// through for each request.
type named struct {
	*coordinator.Definition
	id     coordinator.DefinitionID
	policy *expr.Policy
	number int // shared by definitions of one policy; 0 is none, -1 a policy that reads the definition
	// unknown: none of its nodes has reported. Else one of them has this much.
	unknown bool
	cores   coordinator.Cores
	memory  coordinator.Bytes
}

func (a *activeConfig) named(d *coordinator.Definition) named {
	n := named{Definition: d, id: d.ID, policy: a.policies[d.ID], unknown: true}
	if n.policy != nil {
		n.number = -1
		if number, ok := a.shared[n.policy]; ok {
			n.number = number
		}
	}
	for _, m := range a.members[d.ID] {
		if !m.known {
			continue
		}
		if n.unknown || m.capacity.Cores > n.cores {
			n.unknown, n.cores, n.memory = false, m.capacity.Cores, m.capacity.Memory
		}
	}
	return n
}

// namedBy looks through a grant once, until it or the hardware changes; a new grant has another serial.
func (q *question) namedBy(org coordinator.OrganizationID) *namedIndex {
	a, doc := q.config, q.grant
	if have, ok := a.index[org]; ok && have.serial == doc.Serial && have.version == q.state.admission {
		return have
	}
	index := &namedIndex{serial: doc.Serial, version: q.state.admission, known: map[string][]coordinator.DefinitionID{}}
	known := map[grant.Entry]bool{} // the expansions of one definition share their entry
	for _, d := range a.byCost {
		if !q.provides(d.Kind) {
			continue // no backend in this build
		}
		e := grant.Entry{ID: d.Configured, Fingerprint: d.Fingerprint}
		granted, ok := known[e]
		if !ok {
			granted = doc.Names(e.ID, e.Fingerprint)
			known[e] = granted
		}
		if granted {
			index.list = append(index.list, a.named(d))
		}
	}
	seen := map[int]bool{0: true}
	for i := range index.list {
		if n := &index.list[i]; n.number < 0 || !seen[n.number] {
			seen[n.number] = true
			index.policies = append(index.policies, n)
		}
	}
	a.index[org] = index
	return index
}

func (q *question) outcomes() []DefinitionOutcome {
	out := make([]DefinitionOutcome, 0, len(q.config.byCost))
	for _, d := range q.config.byCost {
		out = append(out, q.outcome(d))
	}
	return out
}

func (q *question) outcome(d *coordinator.Definition) DefinitionOutcome {
	out := DefinitionOutcome{Definition: d.ID, CostPerHour: d.CostPerHour}
	by, why := q.refusal(d)
	if by == "" && q.job.spec.Class == coordinator.ClassReserved {
		by, why = q.unreserved(d)
	}
	if out.Admissible = by == ""; !out.Admissible {
		out.RefusedBy, out.Reason = string(by), why()
	}
	return out
}

// unreserved is for reserved work whose owner has nothing of a definition.
func (q *question) unreserved(d *coordinator.Definition) (refusal, func() string) {
	if slices.ContainsFunc(q.servers(q.job), func(r *reservation) bool { return r.record.Definition == d.ID }) {
		return "", nil
	}
	return refusedByClass, func() string {
		return "reserved work runs in a reservation only, and its owner has none of this definition"
	}
}

// refusal asks backend, grant, policy, annotations and resources, in this order: the first that
// refuses gives the reason. Reasons cost more than answers and are put into words when somebody asks.
func (q *question) refusal(d *coordinator.Definition) (refusal, func() string) {
	j := q.job
	if !q.provides(d.Kind) {
		return refusedByBackend, func() string { return fmt.Sprintf("provisioner %s: backend not in this build", d.Kind) }
	}
	if q.grantErr != nil {
		return refusedByGrant, q.grantErr.Error
	}
	if !q.grant.Names(d.Configured, d.Fingerprint) {
		return refusedByGrant, func() string {
			return fmt.Sprintf("the grant of organisation %s (serial %d) does not name %s",
				j.workflow.record.Owner.OrganizationSlug, q.grant.Serial, d.Configured)
		}
	}
	n := q.config.named(d)
	return q.namedRefusal(&n)
}

// namedRefusal is what is left to ask of a definition that the grant names.
func (q *question) namedRefusal(n *named) (refusal, func() string) {
	d := n.Definition
	if !q.admitted(n) {
		return refusedByPolicy, func() string { return q.policyReason(n) }
	}
	if len(q.keys) > 0 {
		if why := q.annotationRefusal(d); why != "" {
			return refusedByAnnotation, func() string { return why }
		}
	}
	if why := q.resourceRefusal(d); why != nil {
		return refusedByResources, why
	}
	return "", nil
}

// admitted evaluates a policy that does not read the definition once, however many definitions share it.
func (q *question) admitted(n *named) bool {
	switch {
	case n.number == 0:
		return true
	case n.number < 0:
		ok, err := n.policy.Admit(q.about(n.Definition))
		return ok && err == nil
	}
	if q.admits == nil {
		q.admits = make([]answer, len(q.config.shared)+1)
	}
	if q.admits[n.number] == notAsked {
		q.admits[n.number] = refuses
		if ok, err := n.policy.Admit(q.env); ok && err == nil {
			q.admits[n.number] = admits
		}
	}
	return q.admits[n.number] == admits
}

// about sets what a policy sees of the definition.
func (q *question) about(d *coordinator.Definition) *expr.RequestEnv {
	q.env.Definition.ID, q.env.Definition.Annotations = string(d.ID), q.config.annotations[d.ID]
	return q.env
}

func (q *question) policyReason(n *named) string {
	env := q.about(n.Definition)
	if _, err := n.policy.Admit(env); err != nil {
		return "the policy could not be evaluated: " + err.Error()
	}
	return "the policy is false" + explainPolicy(n.policy, env)
}

// explainPolicy names the parts of a policy that were false, with what they saw.
func explainPolicy(p *expr.Policy, env *expr.RequestEnv) string {
	var parts []string
	for _, part := range p.Explain(env) {
		var seen []string
		for fact, value := range part.Seen {
			seen = append(seen, fact+" is "+value)
		}
		slices.Sort(seen)
		text := part.Source
		if len(seen) > 0 {
			text += " (" + strings.Join(seen, ", ") + ")"
		}
		parts = append(parts, text)
	}
	if len(parts) == 0 {
		return ""
	}
	return ": " + strings.Join(parts, "; ")
}

// annotationRefusal compares resource.annotations with the definition's. A key that only hardware
// can give refuses when nodes have reported and none has the value; before that it is unknown.
func (q *question) annotationRefusal(d *coordinator.Definition) string {
	for _, key := range q.keys {
		want := q.job.spec.Match[key]
		if have, ok := q.config.annotations[d.ID][key]; ok {
			if have != want {
				return fmt.Sprintf("annotation %s is %q, wanted %q", key, have, want)
			}
			continue
		}
		found, reported := false, false
		for _, n := range q.config.members[d.ID] {
			if n.known {
				reported = true
				found = found || n.hardwareKeys[key] == want
			}
		}
		if reported && !found {
			return fmt.Sprintf("neither the definition nor the hardware of its nodes has annotation %s: %q", key, want)
		}
		if !reported && !hardwareKey(key) {
			return fmt.Sprintf("the definition has no annotation %s", key)
		}
	}
	return ""
}

// hardwareKey reports whether a node's report could give this annotation: "vendor.com/device.attribute".
func hardwareKey(key string) bool {
	_, attribute, ok := strings.Cut(key, "/")
	return ok && strings.Contains(attribute, ".")
}

// mismatched lists the definition's nodes whose hardware keys do not match the job's.
func (q *question) mismatched(d *coordinator.Definition) []coordinator.NodeID {
	var out []coordinator.NodeID
	for _, key := range q.keys {
		if _, ok := q.config.annotations[d.ID][key]; ok {
			continue
		}
		for _, n := range q.config.members[d.ID] {
			if n.hardwareKeys[key] != q.job.spec.Match[key] && !slices.Contains(out, n.id) {
				out = append(out, n.id)
			}
		}
	}
	return out
}

// shape is what of a node decides whether it could ever hold a request. Nodes of one shape are asked once.
type shape struct {
	cores   coordinator.Cores
	threads uint32
	memory  coordinator.Bytes
	devices string
}

func shapeOf(n *node) shape {
	s := shape{cores: n.capacity.Cores, threads: n.capacity.Threads, memory: n.capacity.Memory}
	for _, name := range sortedKeys(n.capacity.Devices) {
		s.devices += fmt.Sprintf("%s=%d,", name, n.capacity.Devices[name])
	}
	return s
}

// missing lists what a node lacks to ever hold the request.
func (q *question) missing(n *node) []sched.Lack {
	key := shapeOf(n)
	lacks, ok := q.shapes[key]
	if !ok {
		lacks = sched.Missing(n.schedNode(), q.job.spec.Resources)
		if q.job.spec.LooseGPUs {
			lacks = slices.DeleteFunc(lacks, func(l sched.Lack) bool {
				kind, together := strings.CutSuffix(l.What, " together")
				return together && isGPU(kind)
			})
		}
		if q.shapes == nil {
			q.shapes = map[shape][]sched.Lack{}
		}
		q.shapes[key] = lacks
	}
	return lacks
}

// resourceRefusal says why no node of the definition could ever hold the request, nil when one could.
// Hardware that is not known yet never refuses.
func (q *question) resourceRefusal(d *coordinator.Definition) func() string {
	r := q.job.spec.Resources
	for _, name := range q.tokens {
		if want, have := r.Tokens[name], q.config.SoftwareTokens[name]; want > have {
			return func() string { return fmt.Sprintf("wants %d tokens %s, the cluster has %d", want, name, have) }
		}
	}
	if nodes := q.job.spec.Nodes; d.Kind != spec.KindStatic && d.MaxNodes > 0 && int(nodes) > d.MaxNodes { // static nodes are neither launched nor released
		return func() string { return fmt.Sprintf("wants %d nodes, maxNodes is %d", nodes, d.MaxNodes) }
	}
	known := false
	for _, n := range q.config.members[d.ID] {
		if known = known || n.known; n.known && (holds(&n.capacity, &r) || len(q.missing(n)) == 0) {
			return nil
		}
	}
	if !known {
		return q.promised(d)
	}
	return func() string { return q.nearest(d) }
}

// promised says what the nodes lack that would be launched for a definition, none of which has reported yet.
func (q *question) promised(d *coordinator.Definition) func() string {
	if d.Kind == spec.KindStatic || d.Hardware == nil {
		return nil
	}
	lacks := sched.Missing(launchedNode(d.ID, d.Hardware), q.job.spec.Resources)
	if len(lacks) == 0 {
		return nil
	}
	return func() string {
		why, _ := shortage(q.job.spec.Resources, lacks)
		return why + ", a node that is launched for it has less"
	}
}

// provides reports whether nodes of a kind can be here at all: static ones are, others are launched.
func (s *state) provides(kind string) bool {
	return kind == spec.KindStatic || slices.Contains(s.kinds, kind)
}

// holds is the short way to yes for requests of whole cores; no is for others to say.
func holds(has *coordinator.Hardware, r *coordinator.Resources) bool {
	if r.Threads || r.Cores > has.Cores || r.TotalMemory() > has.Memory {
		return false
	}
	for name, want := range r.Devices {
		if want > has.Devices[name] {
			return false
		}
	}
	return true
}

// nearest tells of the node that lacks least.
func (q *question) nearest(d *coordinator.Definition) string {
	text, gap := "", math.Inf(1)
	for _, n := range q.config.members[d.ID] {
		if !n.known {
			continue
		}
		if why, missing := shortage(q.job.spec.Resources, q.missing(n)); missing < gap {
			text, gap = fmt.Sprintf("%s, its largest node %s has less", why, n.id), missing
		}
	}
	return text
}

// shortage puts the first thing that a node lacks into words, and adds up how much is missing.
func shortage(r coordinator.Resources, lacks []sched.Lack) (why string, missing float64) {
	for _, l := range lacks {
		missing += l.Share()
	}
	switch l := lacks[0]; {
	case l.What == "memory":
		why = fmt.Sprintf("wants %s of memory of at most %s", coordinator.Bytes(l.Wants), coordinator.Bytes(l.Has))
	case l.What == "cores" && r.Threads:
		why = fmt.Sprintf("wants %d hardware threads, which are %d cores, of at most %d", r.Cores, l.Wants, l.Has)
	case l.What == "cores":
		why = fmt.Sprintf("wants %d cores of at most %d", l.Wants, l.Has)
	default:
		why = fmt.Sprintf("wants %d × %s of at most %d", l.Wants, l.What, l.Has)
	}
	return why, missing
}

// refuseImpossible refuses a job that no definition admits, with the reason of each (rule 6).
func (s *state) refuseImpossible(op string, j *job) error {
	if j.spec.Class == coordinator.ClassReserved {
		return s.refuseUnreserved(op, j)
	}
	a := s.admit(j)
	if len(a.admissible) > 0 || a.unrestricted {
		return nil
	}
	reasons := outcomesText(s.ask(j))
	err := coordinator.Errorf(coordinator.ErrDenied, op, "job %s fits no definition: %s", j.spec.Name, reasons)
	if len(s.config.byCost) == 0 {
		err = coordinator.Errorf(coordinator.ErrDenied, op, "job %s fits no definition: none is configured", j.spec.Name)
		return err.WithHint("set a configuration with `substrate cluster config set`")
	}
	if j.spec.Kind != coordinator.KindService && j.spec.Walltime == s.config.Scheduler.MaxWalltime[j.spec.Class] && strings.Contains(reasons, "request.job_ttl") {
		return err.WithHint("the job gives no time limit, so the longest of its class counts: set policy.timeout.execute or max-minutes")
	}
	return err.WithHint("change the job's resources or annotations, or ask an administrator for access")
}

// outcomesText lists at most ten refusals.
func outcomesText(q *question) string {
	const most = 10
	var b strings.Builder
	for i, d := range q.config.byCost {
		if i == most {
			fmt.Fprintf(&b, "; and %d more", len(q.config.byCost)-most)
			break
		}
		if i > 0 {
			b.WriteString("; ")
		}
		o := q.outcome(d)
		fmt.Fprintf(&b, "%s refused by %s: %s", o.Definition, o.RefusedBy, o.Reason)
	}
	return b.String()
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
