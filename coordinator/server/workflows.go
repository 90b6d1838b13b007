package server

import (
	"context"

	"google.golang.org/grpc"

	"substrate/coordinator"
	"substrate/coordinator/engine"
	"substrate/proto/apiv1"
)

const maxIdempotencyKey = 256

type workflowService struct {
	apiv1.UnimplementedWorkflowsServer
	engine  workflowAPI
	queue   queueAPI
	streams streamAPI
	scores  scoreAPI
}

func (s workflowService) StartWorkflow(ctx context.Context, r *apiv1.StartWorkflowRequest) (*apiv1.StartWorkflowResponse, error) {
	key, err := onceKey(ctx, r.GetIdempotencyKey(), "start the workflow")
	if err != nil {
		return nil, err
	}
	res, err := s.engine.StartWorkflow(ctx, callerOf(ctx), startFromProto(r, key))
	if err != nil {
		return nil, err
	}
	out := &apiv1.StartWorkflowResponse{Workflow: workflowToProto(res.Workflow), Existed: res.Existed}
	for _, w := range res.Warnings {
		out.Warnings = append(out.Warnings, w.String())
	}
	return out, nil
}

func startFromProto(r *apiv1.StartWorkflowRequest, key string) engine.StartWorkflow {
	return engine.StartWorkflow{
		YAML: r.GetYaml(), File: r.GetFile(), Name: r.GetName(), Preemptible: r.Preemptible,
		Priority: r.GetPriority(), Group: r.GetGroup(), IdempotencyKey: key, ID: coordinator.WorkflowID(r.GetId()),
	}
}

func (s workflowService) ScoreWorkflow(ctx context.Context, r *apiv1.StartWorkflowRequest) (*apiv1.ScoreWorkflowResponse, error) {
	v, err := s.scores.ScoreWorkflow(ctx, callerOf(ctx), startFromProto(r, ""))
	if err != nil {
		return nil, err
	}
	return scoreToProto(v), nil
}

func (s workflowService) ValidateWorkflow(ctx context.Context, r *apiv1.ValidateWorkflowRequest) (*apiv1.ValidateWorkflowResponse, error) {
	ds := s.engine.ValidateWorkflow(ctx, callerOf(ctx), r.GetFile(), r.GetYaml())
	return &apiv1.ValidateWorkflowResponse{Diagnostics: each(ds, validationToProto)}, nil
}

func (s workflowService) ListWorkflows(ctx context.Context, r *apiv1.ListWorkflowsRequest) (*apiv1.ListWorkflowsResponse, error) {
	ws, next, err := s.engine.Workflows(ctx, callerOf(ctx), r.GetStatus(), pageOf(r.GetPageSize(), r.GetPageToken()))
	if err != nil {
		return nil, err
	}
	return &apiv1.ListWorkflowsResponse{Workflows: each(ws, workflowToProto), NextPageToken: next}, nil
}

func (s workflowService) GetWorkflow(ctx context.Context, r *apiv1.GetWorkflowRequest) (*apiv1.Workflow, error) {
	w, err := s.engine.Workflow(ctx, callerOf(ctx), r.GetId())
	if err != nil {
		return nil, err
	}
	return workflowToProto(w), nil
}

func (s workflowService) CancelWorkflow(ctx context.Context, r *apiv1.CancelWorkflowRequest) (*apiv1.Workflow, error) {
	w, err := s.engine.CancelWorkflow(ctx, callerOf(ctx), r.GetId(), r.GetJob())
	if err != nil {
		return nil, err
	}
	return workflowToProto(w), nil
}

func (s workflowService) ExplainWorkflow(ctx context.Context, r *apiv1.ExplainWorkflowRequest) (*apiv1.ExplainWorkflowResponse, error) {
	jobs, err := s.queue.ExplainWorkflow(ctx, callerOf(ctx), r.GetId(), r.GetJob())
	if err != nil {
		return nil, err
	}
	return &apiv1.ExplainWorkflowResponse{Jobs: each(jobs, jobExplanationToProto)}, nil
}

func (s workflowService) WatchEvents(r *apiv1.WatchEventsRequest, out grpc.ServerStreamingServer[apiv1.Event]) error {
	ctx := out.Context()
	after := r.GetAfter()
	if n, ok := lastEventID(ctx); ok && n > after {
		after = n
	}
	return s.streams.Events(ctx, callerOf(ctx), r.GetWorkflow(), after, r.GetFollow(), func(events []engine.Event) error {
		for _, e := range events {
			if err := out.Send(eventToProto(e)); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s workflowService) ReadLog(r *apiv1.ReadLogRequest, out grpc.ServerStreamingServer[apiv1.LogData]) error {
	switch r.GetStream() {
	case "", "stdout", "stderr":
	default:
		return coordinator.Errorf(coordinator.ErrInvalid, "read the log", "unknown stream %q, expected stdout or stderr", r.GetStream())
	}
	req := engine.LogRequest{
		Workflow: r.GetWorkflow(), Job: r.GetJob(), Attempt: r.GetAttempt(), Stream: r.GetStream(), Follow: r.GetFollow(),
	}
	return s.streams.Log(out.Context(), callerOf(out.Context()), req, func(p engine.LogPart) error {
		return out.Send(&apiv1.LogData{Job: p.Job, Stream: p.Stream, Data: p.Data, Rank: p.Rank, Ranks: p.Ranks})
	})
}

func (s workflowService) ShowQueue(ctx context.Context, r *apiv1.ShowQueueRequest) (*apiv1.ShowQueueResponse, error) {
	class, err := classOf(r.GetClass())
	if err != nil {
		return nil, err
	}
	jobs, total, next, err := s.queue.Queue(ctx, callerOf(ctx), r.GetMine(), class, pageOf(r.GetPageSize(), r.GetPageToken()))
	if err != nil {
		return nil, err
	}
	return &apiv1.ShowQueueResponse{Jobs: each(jobs, jobToProto), Total: count(total), NextPageToken: next}, nil
}

func (s workflowService) GetCapacity(ctx context.Context, _ *apiv1.GetCapacityRequest) (*apiv1.GetCapacityResponse, error) {
	c, err := s.queue.Capacity(ctx, callerOf(ctx))
	if err != nil {
		return nil, err
	}
	return capacityViewToProto(c), nil
}

func (s workflowService) GetJob(ctx context.Context, r *apiv1.GetJobRequest) (*apiv1.Job, error) {
	j, err := s.queue.Job(ctx, callerOf(ctx), coordinator.AllocationID(r.GetId()))
	if err != nil {
		return nil, err
	}
	return jobToProto(j), nil
}
