package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"substrate/coordinator"
	"substrate/coordinator/config"
	"substrate/coordinator/grant"
	"substrate/coordinator/provision/native"
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
	// awaitsReport: nobody knows before a node of the type has reported. Such work waits.
	awaitsReport refusal = "hardware-unknown"
)

// admission is which definitions a job may use, as of one version of configuration, grants and hardware.
type admission struct {
	version      uint64
	admissible   []coordinator.DefinitionID // cheapest first, as they are tried
	exclude      []coordinator.NodeID       // nodes of admissible definitions whose hardware keys differ
	awaits       bool                       // of others only a node's report tells
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
	q := &question{state: s, job: j, env: env, tokens: slices.Sorted(maps.Keys(j.spec.Resources.Tokens)), grant: doc, grantErr: err}
	for _, key := range slices.Sorted(maps.Keys(j.spec.Match)) {
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
	plain = plain && !index.native // which more is asked of
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
		case awaitsReport:
			a.awaits = true
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
	native   bool                                  // one of them hands jobs over to a batch system
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

func (s *state) toAsk(d *coordinator.Definition) named {
	a := s.config
	n := named{Definition: d, id: d.ID, policy: a.policies[d.ID], unknown: true}
	if n.policy != nil {
		n.number = -1
		if number, ok := a.shared[n.policy]; ok {
			n.number = number
		}
	}
	for _, m := range a.nodesOf[d.ID] {
		if !m.known {
			continue
		}
		if n.unknown || m.capacity.Cores > n.cores {
			n.unknown, n.cores, n.memory = false, m.capacity.Cores, m.capacity.Memory
		}
	}
	if d.Kind != spec.KindStatic {
		if h, _ := s.expected(d); h != nil && (n.unknown || h.Cores > n.cores) {
			n.unknown, n.cores, n.memory = false, h.Cores, h.Memory
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
			index.list = append(index.list, q.state.toAsk(d))
			index.native = index.native || spec.Native(d)
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
	n := q.state.toAsk(d)
	return q.namedRefusal(&n)
}

// namedRefusal is what is left to ask of a definition that the grant names.
func (q *question) namedRefusal(n *named) (refusal, func() string) {
	d := n.Definition
	var unknown func() string
	if spec.Native(d) {
		if why := native.Refusal(q.job.spec); why != "" {
			return refusedByBackend, func() string { return why }
		}
	}
	if !q.admitted(n) {
		return refusedByPolicy, func() string { return q.policyReason(n) }
	}
	if len(q.keys) > 0 {
		open, text := q.annotationRefusal(d)
		switch {
		case open:
			unknown = func() string { return text }
		case text != "":
			return refusedByAnnotation, func() string { return text }
		}
	}
	switch open, why := q.resourceRefusal(d); {
	case why != nil && !open:
		return refusedByResources, why
	case unknown != nil:
		return awaitsReport, unknown
	case why != nil:
		return awaitsReport, why
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
