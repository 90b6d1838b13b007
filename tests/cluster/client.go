package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"substrate/proto/apiv1"
)

// Client is a gRPC connection with a user's token.
type Client struct {
	Config    apiv1.ConfigClient
	Nodes     apiv1.NodesClient
	Workflows apiv1.WorkflowsClient
	Identity  apiv1.IdentityClient

	conn *grpc.ClientConn
}

type bearer string

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}
func (bearer) RequireTransportSecurity() bool { return false }

// Dial makes a client for an address in clear text, host:port. It reconnects soon.
func Dial(address, token string) (*Client, error) {
	const most = 64 << 20
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithPerRPCCredentials(bearer(token)),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: 5 * time.Second,
			Backoff: backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.3, Jitter: 0.2, MaxDelay: 200 * time.Millisecond}}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(most)))
	if err != nil {
		return nil, fmt.Errorf("cannot make a client: %w", err)
	}
	return &Client{conn: conn, Config: apiv1.NewConfigClient(conn), Nodes: apiv1.NewNodesClient(conn),
		Workflows: apiv1.NewWorkflowsClient(conn), Identity: apiv1.NewIdentityClient(conn)}, nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

// SetConfig sets a configuration, grants its definitions to every organisation, and returns its revision.
func (c *Cluster) SetConfig(yaml string) uint64 {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), UpWithin)
	defer cancel()
	r, err := c.Client().Config.SetConfig(ctx, &apiv1.SetConfigRequest{Yaml: []byte(yaml), File: "cluster.yaml", AppendGrants: true})
	if err != nil {
		c.t.Fatalf("cannot set the configuration: %v", err)
	}
	return r.GetRevision().GetRevision()
}

// StartWorkflow submits a file and returns the workflow's id.
func (c *Cluster) StartWorkflow(yaml string) string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), UpWithin)
	defer cancel()
	r, err := c.Client().Workflows.StartWorkflow(ctx, &apiv1.StartWorkflowRequest{Yaml: []byte(yaml), File: "workflow.yaml"})
	if err != nil {
		c.t.Fatalf("cannot start the workflow: %v", err)
	}
	return r.GetWorkflow().GetId()
}

// Job is the current state of one job of a workflow ("name", or "name/3" for a task).
func (c *Client) Job(ctx context.Context, workflow, job string) (*apiv1.Job, error) {
	w, err := c.Workflows.GetWorkflow(ctx, &apiv1.GetWorkflowRequest{Id: workflow})
	if err != nil {
		return nil, err
	}
	for _, j := range w.GetJobs() {
		if j.GetName() == job {
			return j, nil
		}
	}
	return nil, fmt.Errorf("cannot find job %s of workflow %s", job, workflow)
}

// AwaitJob waits until a job has one of the statuses.
func (c *Cluster) AwaitJob(within time.Duration, workflow, job string, statuses ...string) *apiv1.Job {
	c.t.Helper()
	var found *apiv1.Job
	Until(c.t, within, fmt.Sprintf("job %s to be %v", job, statuses), func(ctx context.Context) error {
		j, err := c.Client().Job(ctx, workflow, job)
		if err != nil {
			return err
		}
		for _, s := range statuses {
			if j.GetStatus() == s {
				found = j
				return nil
			}
		}
		return fmt.Errorf("it is %s, attempt %d, %s%s", j.GetStatus(), j.GetAttempt(), j.GetMessage(), j.GetReason().GetText())
	})
	return found
}

// Output is what is stored of a stream of a job's newest attempt.
func (c *Client) Output(ctx context.Context, workflow, job, stream string) ([]byte, error) {
	return c.AttemptOutput(ctx, workflow, job, 0, stream)
}

// AttemptOutput is Output of one attempt.
func (c *Client) AttemptOutput(ctx context.Context, workflow, job string, attempt uint32, stream string) ([]byte, error) {
	s, err := c.Workflows.ReadLog(ctx, &apiv1.ReadLogRequest{Workflow: workflow, Job: job, Attempt: attempt, Stream: stream})
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return out.Bytes(), nil
		}
		if err != nil {
			return nil, err
		}
		out.Write(m.GetData())
	}
}

// Events are all past events of a workflow, "" for those of the whole cluster.
func (c *Client) Events(ctx context.Context, workflow string) ([]*apiv1.Event, error) {
	s, err := c.Workflows.WatchEvents(ctx, &apiv1.WatchEventsRequest{Workflow: workflow})
	if err != nil {
		return nil, err
	}
	var out []*apiv1.Event
	for {
		ev, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		out = append(out, ev)
	}
}
