package main

import (
	"os"
	"path/filepath"
	"strings"
)

// stageIn brings a job's files before it starts. One that is not there makes the job look as if it ran, substate
// 15, for as long as the mom tries.
func (s *server) stageIn(j *job) bool {
	ok := true
	for f := range strings.SplitSeq(j.StageIn, ",") {
		local, remote, _ := strings.Cut(f, "@")
		_, from, _ := strings.Cut(remote, ":")
		to := local
		if !filepath.IsAbs(to) {
			to = filepath.Join(s.cfg.homeOf(j.User), to)
		}
		data, err := os.ReadFile(s.cfg.real(from))
		if err == nil {
			err = os.WriteFile(s.cfg.real(to), data, 0o600)
		}
		ok = ok && err == nil
	}
	if ok {
		return true
	}
	j.Substate, j.ExecHost, j.ExecVnode, j.Comment = 15, "", "", ""
	j.RunCount--
	s.touch(j)
	return false
}

// passStageIn gives up after 33 seconds: the job waits for half an hour that nobody ends.
func (s *server) passStageIn(j *job) {
	if s.millis()-j.Started < s.cfg.wait(33).Milliseconds() {
		return
	}
	j.State, j.Substate = 'W', 37
	j.Start = s.clock() + 1800
	j.Stime, j.Etime, j.Places = 0, 0, nil
	s.touch(j)
	s.dirty = true
}
