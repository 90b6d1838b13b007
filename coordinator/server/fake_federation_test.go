package server

import (
	"context"
	"time"

	"substrate/coordinator/engine"
)

// fakeFederation is fakeEngine's part about other clusters.
type fakeFederation struct {
	scoreWorkflowFunc func(context.Context, engine.Caller, engine.StartWorkflow) (engine.ScoreView, error)
}

func (f *fakeFederation) ScoreWorkflow(a0 context.Context, a1 engine.Caller, a2 engine.StartWorkflow) (engine.ScoreView, error) {
	if f.scoreWorkflowFunc == nil {
		return engine.ScoreView{}, unset("ScoreWorkflow")
	}
	return f.scoreWorkflowFunc(a0, a1, a2)
}

func (f *fakeFederation) Backends(context.Context, engine.Caller) ([]engine.BackendView, error) {
	return nil, unset("Backends")
}

func (f *fakeFederation) ReopenBackend(context.Context, engine.Caller, string) error {
	return unset("ReopenBackend")
}

func (f *fakeFederation) WriteOffLaunch(context.Context, engine.Caller, string) error {
	return unset("WriteOffLaunch")
}

func (f *fakeFederation) Launches(context.Context, engine.Caller, engine.Page) ([]engine.LaunchView, string, error) {
	return nil, "", unset("Launches")
}

func (f *fakeFederation) Federate(context.Context, engine.Caller) (engine.FederateView, error) {
	return engine.FederateView{}, unset("Federate")
}

func (f *fakeFederation) CreateFederationToken(context.Context, engine.Caller, time.Duration) (string, time.Time, error) {
	return "", time.Time{}, unset("CreateFederationToken")
}

func (f *fakeFederation) ForgetFederate(context.Context, engine.Caller) error {
	return unset("ForgetFederate")
}
