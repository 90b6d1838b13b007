package server

import (
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"

	"substrate/coordinator/engine"
	"substrate/proto/agentv1"
)

// TestWhatANodeSaysIsBounded: ids, states, causes, numbers and texts of a hostile agent.
func TestWhatANodeSaysIsBounded(t *testing.T) {
	long := strings.Repeat("ä", 1<<20)
	for name, tt := range map[string]struct {
		report *agentv1.RunStatus
		ok     bool
		cause  engine.Cause
		code   int32
		signal int32
	}{
		"no id":                {&agentv1.RunStatus{State: "ended"}, false, "", 0, 0},
		"long id":              {&agentv1.RunStatus{RunId: long, State: "ended"}, false, "", 0, 0},
		"unknown state":        {&agentv1.RunStatus{RunId: "w/j#1", State: "dancing"}, false, "", 0, 0},
		"unknown cause":        {&agentv1.RunStatus{RunId: "w/j#1", State: "ended", Cause: long}, true, engine.CauseLostStatus, 0, 0},
		"negative code":        {&agentv1.RunStatus{RunId: "w/j#1", State: "ended", Cause: "exited", ExitCode: -7}, true, engine.CauseExited, 249, 0},
		"impossible signal":    {&agentv1.RunStatus{RunId: "w/j#1", State: "ended", Cause: "signalled", Signal: 1 << 20}, true, engine.CauseSignalled, 0, 64},
		"running has no cause": {&agentv1.RunStatus{RunId: "w/j#1", State: "running", Cause: "oom", Message: long}, true, "", 0, 0},
	} {
		st, ok := runStatusFromProto(tt.report)
		if ok != tt.ok {
			t.Errorf("%s: accepted %v", name, ok)
			continue
		}
		if !ok {
			continue
		}
		if st.Cause != tt.cause || st.ExitCode != tt.code || st.Signal != tt.signal {
			t.Errorf("%s: %+v", name, st)
		}
		if len(st.Message) > maxNodeText+4 || !utf8.ValidString(st.Message) {
			t.Errorf("%s: message of %d bytes", name, len(st.Message))
		}
	}
	hello := helloFromProto(&agentv1.Hello{Version: long, BootId: long, Runs: []*agentv1.RunStatus{{RunId: long, State: "ended"}, {RunId: "w/j#1", State: "ended", Cause: "exited"}}})
	if len(hello.Version) > maxNodeWord+4 || len(hello.BootID) > maxNodeWord+4 || len(hello.Runs) != 1 {
		t.Errorf("hello with %d, %d bytes and %d runs", len(hello.Version), len(hello.BootID), len(hello.Runs))
	}
}

// TestPathsAndQueriesAreText: what is not UTF-8 is the caller's mistake, not a failure of ours.
func TestPathsAndQueriesAreText(t *testing.T) {
	a := startAPI(t, &fakeEngine{}, true)
	for _, path := range []string{"/v1/workflows/%ff%fe", "/v1/workflows?page_token=%ff", "/v1/workflows?page_token=%zz"} {
		if res, body := a.do("GET", path, "", asMember); res.StatusCode != http.StatusBadRequest || !strings.Contains(body, "not UTF-8") {
			t.Errorf("%s: %d %s", path, res.StatusCode, body)
		}
	}
}
