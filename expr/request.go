package expr

// RequestEnv is what a policy sees of one allocation request and the definition asked for.
// The caller fills it; NewRequestEnv allocates every level. A policy never changes it, so many
// may read it at once. Exported methods would become part of the language, so it has none.
type RequestEnv struct {
	Request    *Request           `expr:"request"`
	Definition *RequestDefinition `expr:"definition"`
}

// Request is request.*.
type Request struct {
	Owner               *RequestOwner     `expr:"owner"`
	JobResource         *RequestResource  `expr:"job_resource"`
	JobAnnotations      map[string]string `expr:"job_annotations"` // the workflow's, overlaid by the job's
	WorkflowAnnotations map[string]string `expr:"workflow_annotations"`
	JobTTL              float64           `expr:"job_ttl"`  // seconds; +Inf for services
	JobKind             string            `expr:"job_kind"` // job, service, internal, system
	JobName             string            `expr:"job_name"`
	WorkflowID          string            `expr:"workflow_id"`
	JobClass            string            `expr:"job_class"` // reserved, on-demand, batch
	Preemptible         bool              `expr:"preemptible"`
	Nodes               uint32            `expr:"nodes"`
	MultinodeJob        bool              `expr:"multinode_job"`
	TaskArrayJob        bool              `expr:"task_array_job"`
}

// RequestOwner is request.owner.*. The ids are UUIDs and the names slugs; comparing
// organization_id, group_id or account_id with either of the two is true.
type RequestOwner struct {
	OrganizationID   string `expr:"organization_id"`
	OrganizationName string `expr:"organization_name"`
	GroupID          string `expr:"group_id"`
	GroupName        string `expr:"group_name"`
	UserID           string `expr:"user_id"`
	Email            string `expr:"email"`
	AccountID        string `expr:"account_id"` // = GroupID
}

// RequestResource is request.job_resource.*: what one node must give.
type RequestResource struct {
	CPU       *RequestCPU       `expr:"cpu"`
	Mem       *RequestMem       `expr:"mem"`
	Devices   map[string]uint32 `expr:"devices"` // absent reads as 0
	Exclusive bool              `expr:"exclusive"`
	Tokens    map[string]uint32 `expr:"tokens"`
}

// RequestCPU is request.job_resource.cpu.*.
type RequestCPU struct {
	Cores    uint32 `expr:"cores"`
	Sockets  uint32 `expr:"sockets"`
	Threads  bool   `expr:"threads"`
	Affinity string `expr:"affinity"`
}

// RequestMem is request.job_resource.mem.*.
type RequestMem struct {
	Bytes  uint64 `expr:"bytes"`
	ByCore bool   `expr:"by_core"`
}

// RequestDefinition is definition.*.
type RequestDefinition struct {
	ID          string            `expr:"id"`
	Annotations map[string]string `expr:"annotations"`
}

// NewRequestEnv is an empty request with every level allocated.
func NewRequestEnv() *RequestEnv {
	return &RequestEnv{
		Request: &Request{
			Owner: &RequestOwner{},
			JobResource: &RequestResource{
				CPU: &RequestCPU{}, Mem: &RequestMem{},
				Devices: map[string]uint32{}, Tokens: map[string]uint32{},
			},
			JobAnnotations:      map[string]string{},
			WorkflowAnnotations: map[string]string{},
		},
		Definition: &RequestDefinition{Annotations: map[string]string{}},
	}
}

// nameOf is the field that holds the slug of an id field of request.owner, "" for other fields.
func nameOf(id string) string {
	switch id {
	case "organization_id":
		return "organization_name"
	case "group_id", "account_id":
		return "group_name"
	}
	return ""
}
