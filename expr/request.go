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
	JobAnnotations      map[string]string `expr:"job_annotations" doc:"the workflow's annotations, overlaid by the job's"`
	WorkflowAnnotations map[string]string `expr:"workflow_annotations" doc:"the workflow's alone"`
	JobTTL              float64           `expr:"job_ttl" doc:"walltime in seconds; endless for services"`
	JobKind             string            `expr:"job_kind" doc:"'job', 'service'; 'internal' and 'system' are set by the coordinator alone"`
	JobName             string            `expr:"job_name" doc:"as in the workflow file"`
	WorkflowID          string            `expr:"workflow_id" doc:"UUID; empty while a file is only checked"`
	JobClass            string            `expr:"job_class" doc:"'reserved', 'on-demand', 'batch'"`
	Preemptible         bool              `expr:"preemptible" doc:"the job may be stopped for others"`
	Nodes               uint32            `expr:"nodes" doc:"how many the job runs on"`
	MultinodeJob        bool              `expr:"multinode_job" doc:"the job asks for 'multinode'"`
	TaskArrayJob        bool              `expr:"task_array_job" doc:"the job is part of a task array"`
}

// RequestOwner is request.owner.*. The ids are UUIDs and the names slugs; comparing
// organization_id, group_id or account_id with either of the two is true.
type RequestOwner struct {
	OrganizationID   string `expr:"organization_id" doc:"UUID; compares with the name too"`
	OrganizationName string `expr:"organization_name" doc:"name"`
	GroupID          string `expr:"group_id" doc:"UUID of the group the work counts for; compares with the name too"`
	GroupName        string `expr:"group_name" doc:"its name"`
	UserID           string `expr:"user_id" doc:"of who submitted"`
	Email            string `expr:"email" doc:"of who submitted"`
	AccountID        string `expr:"account_id" doc:"the same as 'group_id'"`
}

// RequestResource is request.job_resource.*: what one node must give.
type RequestResource struct {
	CPU       *RequestCPU       `expr:"cpu"`
	Mem       *RequestMem       `expr:"mem"`
	Devices   map[string]uint32 `expr:"devices" doc:"devices of one node by resource name, 'nvidia.com/gpu'; 0 where the job asks for none"`
	Exclusive bool              `expr:"exclusive" doc:"no other work beside it: 'job' or 'workflow'"`
	Tokens    map[string]uint32 `expr:"tokens" doc:"licences by name; 0 where the job asks for none"`
}

// RequestCPU is request.job_resource.cpu.*.
type RequestCPU struct {
	Cores    uint32 `expr:"cores" doc:"of one node"`
	Sockets  uint32 `expr:"sockets" doc:"of one node"`
	Threads  bool   `expr:"threads" doc:"cores are hardware threads"`
	Affinity string `expr:"affinity" doc:"'none', 'core', 'socket', 'numa'"`
}

// RequestMem is request.job_resource.mem.*.
type RequestMem struct {
	Bytes  uint64 `expr:"bytes" doc:"as the file gives it"`
	ByCore bool   `expr:"by_core" doc:"'bytes' is for each core"`
}

// RequestDefinition is definition.*.
type RequestDefinition struct {
	ID          string            `expr:"id" doc:"after expansion"`
	Annotations map[string]string `expr:"annotations" doc:"of the definition, over 'nodeAnnotations'"`
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
