package engine

import (
	"context"
	"errors"
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/store"
)

// carrying begins a request of the user's on the cluster, after something has changed on the Federate.
func (a *alliance) carrying(ctx context.Context, user string, p int32) (context.Context, Caller) {
	a.t.Helper()
	a.raise("user", user, p)
	id, attrs, err := a.fed.BehalfOf(a.t.Context(), a.users[user].ID, "")
	if err != nil {
		a.t.Fatal(err)
	}
	ctx, c, err := a.engine.OnBehalf(ctx, a.peer, &id, &attrs)
	if err != nil {
		a.t.Fatal(err)
	}
	return ctx, c
}

const waits = "version: v1\nname: w\njobs: {j: {command: [x], resource: {cpu: {cores: 4}}}}\n"

// TestARefreshIsInTheWriteOfTheSubmissionThatCarriesIt: nothing is written before, and one write has both.
func TestARefreshIsInTheWriteOfTheSubmissionThatCarriesIt(t *testing.T) {
	for name, known := range map[string]bool{"of a user that is known here": true, "of one that is not": false} {
		t.Run(name, func(t *testing.T) {
			allied(t, func(t *testing.T, a *alliance) {
				a.node("n1", 4, 0)
				a.job(a.request("sam"), long) // what comes now waits, and causes no report
				a.pass(time.Second)
				st := a.engine.opt.Store.(*store.Memory)
				if known {
					a.request("rita")
				}
				ctx, c := a.carrying(t.Context(), "rita", 6)
				before := st.Commits()
				for range 2 { // asked for its score, which brings the refresh once
					v, err := a.engine.ScoreWorkflow(ctx, c, StartWorkflow{YAML: []byte(waits), File: "w"})
					if err != nil || v.Reason != "" {
						t.Fatalf("%+v, %v", v, err)
					}
					if n := st.Commits() - before; n != 1 {
						t.Fatalf("%d writes", n)
					}
				}
				a.wants("user", "rita", 6)
				ctx, c = a.carrying(t.Context(), "rita", 7)
				before = st.Commits()
				res, err := a.engine.StartWorkflow(ctx, c, StartWorkflow{YAML: []byte(waits), File: "w"})
				if err != nil {
					t.Fatal(err)
				}
				n := st.Commits() - before
				if err := errors.Join(a.engine.Carried(ctx), a.engine.view(t.Context(), func(s *state) {
					if got := s.workflows[res.Workflow.ID].record.Priorities.User; got != 7 {
						t.Errorf("submitted with %d", got)
					}
				})); err != nil {
					t.Fatal(err)
				}
				a.wants("user", "rita", 7)
				if n != 1 {
					t.Errorf("%d writes, want one", n)
				}
			})
		})
	}
}

// TestARequestThatComesToNothingRefreshesAllTheSame: refused in the loop, before it, or without asking anything.
func TestARequestThatComesToNothingRefreshesAllTheSame(t *testing.T) {
	for name, ask := range map[string]func(context.Context, *alliance, Caller) error{
		"refused": func(ctx context.Context, a *alliance, c Caller) error {
			_, err := a.engine.StartWorkflow(ctx, c, StartWorkflow{YAML: []byte(waits), File: "w", Group: "strangers"})
			return err
		},
		"not a workflow": func(ctx context.Context, a *alliance, c Caller) error {
			_, err := a.engine.StartWorkflow(ctx, c, StartWorkflow{YAML: []byte("}"), File: "w"})
			return err
		},
		"not there": func(ctx context.Context, a *alliance, c Caller) error {
			_, err := a.engine.Workflow(ctx, c, "nothing")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			allied(t, func(t *testing.T, a *alliance) {
				ctx, c := a.carrying(t.Context(), "rita", 6)
				if err := ask(ctx, a, c); err == nil {
					t.Fatal("it was not refused")
				}
				if err := a.engine.Carried(ctx); err != nil {
					t.Fatal(err)
				}
				a.wants("user", "rita", 6)
			})
		})
	}
}

// TestARequestThatMayNotCarryWhatItDoesIsNotCarriedOut: an id of the cluster's own, its owner's roles included.
func TestARequestThatMayNotCarryWhatItDoesIsNotCarriedOut(t *testing.T) {
	allied(t, func(t *testing.T, a *alliance) {
		own, err := a.engine.CreateUser(t.Context(), a.admin, NewUser{Name: "otto"})
		if err != nil {
			t.Fatal(err)
		}
		id, attrs, err := a.fed.BehalfOf(t.Context(), a.users["rita"].ID, "")
		if err != nil {
			t.Fatal(err)
		}
		id.User.ID, id.Organization.ID = string(own.ID), string(own.Organization)
		ctx, c, err := a.engine.OnBehalf(t.Context(), a.peer, &id, &attrs)
		if err != nil {
			t.Fatal(err)
		}
		_, started := a.engine.StartWorkflow(ctx, c, StartWorkflow{YAML: []byte(waits), File: "w"})
		_, _, seen := a.engine.WhoAmI(ctx, c)
		_, listed := func() (any, error) { l, _, err := a.engine.Workflows(ctx, c, "", Page{}); return l, err }()
		for what, err := range map[string]error{"start": started, "whoami": seen, "list": listed, "the request as a whole": a.engine.Carried(ctx)} {
			if coordinator.ErrorKindOf(err) != coordinator.ErrConflict {
				t.Errorf("%s: %v", what, err)
			}
		}
		if list, _, err := a.engine.Workflows(t.Context(), a.admin, "", Page{}); err != nil || len(list) != 0 {
			t.Errorf("%v, %v", list, err)
		}
	})
}

// TestARefreshIsCarriedOutAgainAfterALostWrite: a request is not answered, and the next command of it tries anew.
func TestARefreshIsCarriedOutAgainAfterALostWrite(t *testing.T) {
	allied(t, func(t *testing.T, a *alliance) {
		st := a.engine.opt.Store.(*store.Memory)
		a.request("rita")
		ctx, c := a.carrying(t.Context(), "rita", 6)
		st.FailCommit(1, store.Fault{Err: errors.New("the disk is gone")})
		if _, err := a.engine.ScoreWorkflow(ctx, c, StartWorkflow{YAML: []byte(waits), File: "w"}); coordinator.ErrorKindOf(err) != coordinator.ErrUnavailable {
			t.Errorf("%v", err)
		}
		a.wants("user", "rita", 0)
		if err := a.engine.Carried(ctx); err != nil {
			t.Fatal(err)
		}
		a.wants("user", "rita", 6)
	})
}
