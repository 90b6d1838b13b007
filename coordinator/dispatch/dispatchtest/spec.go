package dispatchtest

import (
	"errors"
	"fmt"
	"strings"

	"substrate/coordinator/dispatch"
)

// specChecks are about what is submitted.
func specChecks() []check {
	reads := implements(dispatch.InterfaceOutputReader)
	return []check{
		{name: "spec/refused", run: specRefused},
		{name: "spec/image", run: imageRefused},
		{name: "spec/names", run: func(s *session) { s.textComesBack("name") }},
		{name: "spec/notes", run: func(s *session) { s.textComesBack("note") }},
		{name: "spec/job ids", run: jobIDsComeBack},
		{name: "spec/about itself", needs: []need{reads, capable(dispatch.AttemptInjection)}, run: knowsItself},
		{name: "spec/environment", needs: []need{reads}, run: environmentReaches},
		{name: "spec/directory", needs: []need{reads, capable(dispatch.WorkingDirectory), given("Workdir", func(s System) bool { return s.Workdir != "" })}, run: worksInDirectory},
		{name: "spec/processes", needs: []need{reads, capable(dispatch.ProcsPerNode), given("Launcher", func(s System) bool { return s.Launcher != "" })}, run: launchesProcesses},
	}
}

// specRefused: what no system is given is refused before anything is made.
func specRefused(s *session) {
	for name, change := range map[string]func(*dispatch.Spec){
		"no job":                     func(p *dispatch.Spec) { p.Ref.Job = "" },
		"a job id with a blank":      func(p *dispatch.Spec) { p.Ref.Job = "a b" },
		"submission 0":               func(p *dispatch.Spec) { p.Ref.Submission = 0 },
		"attempt beyond the bound":   func(p *dispatch.Spec) { p.Ref.Attempt = dispatch.EpochBound },
		"no script":                  func(p *dispatch.Spec) { p.Script = "" },
		"no interpreter line":        func(p *dispatch.Spec) { p.Script = "exit 0\n" },
		"CR LF":                      func(p *dispatch.Spec) { p.Script = "#!/bin/sh\r\nexit 0\r\n" },
		"a NUL in the script":        func(p *dispatch.Spec) { p.Script += "\x00" },
		"a variable of the contract": func(p *dispatch.Spec) { p.Env = map[string]string{dispatch.EnvJob: "x"} },
		"a variable with a blank":    func(p *dispatch.Spec) { p.Env = map[string]string{"A B": "x"} },
		"a variable with =":          func(p *dispatch.Spec) { p.Env = map[string]string{"A=B": "x"} },
		"a variable with code":       func(p *dispatch.Spec) { p.Env = map[string]string{"A;id": "x"} },
		"a NUL in a value":           func(p *dispatch.Spec) { p.Env = map[string]string{"A": "\x00"} },
		"a relative directory":       func(p *dispatch.Spec) { p.Workdir = "tmp" },
		"no nodes":                   func(p *dispatch.Spec) { p.Nodes = 0 },
		"a name that is no text":     func(p *dispatch.Spec) { p.Name = "\xff" },
		"a note that is too long":    func(p *dispatch.Spec) { p.Note = strings.Repeat("n", dispatch.TextLimit+1) },
	} {
		spec := s.long()
		change(&spec)
		id, err := s.b.Submit(s.Context(), spec)
		s.wants(name, err, dispatch.ErrRefused)
		if err == nil {
			s.refs[id] = spec.Ref
		}
		if spec.Ref.Check() == nil {
			if list := s.find(spec.Ref); len(list) > 0 {
				s.Errorf("%s: it was refused and %s is there", name, list[0].Object)
			}
		}
	}
}

func imageRefused(s *session) {
	spec := s.long()
	spec.Image = &dispatch.Image{Reference: "registry.example.org/tool:1"}
	id, err := s.b.Submit(s.Context(), spec)
	if s.can[dispatch.ContainerImage].Answer == dispatch.Yes {
		s.must("submit with an image", err)
		s.refs[id] = spec.Ref
		return
	}
	s.wants("submit with an image", err, dispatch.ErrRefused)
	if list := s.find(spec.Ref); len(list) > 0 {
		s.Errorf("it was refused and %s is there", list[0].Object)
	}
}

// oddTexts are what people write, and what breaks quoting, columns, comments and JSON.
func oddTexts() map[string]string {
	return map[string]string{
		"plain": "a job", "single quote": "it's", "double quote": `say "yes"`, "backslash": `c:\dir\n`, "newline": "one\ntwo", "tab": "a\tb",
		"pipe": "a|b|c", "comma and equals": "a=1,b=2", "dollar": "$HOME $(id) `id`", "percent": "%j %s %n", "UTF-8": "Größe 漢字 🙂",
		"number": "123", "nan": "nan", "like an exponent": "1e5", "begins with a dash": "--help", "blanks around": "  x  ",
		"like a mark": dispatch.Ref{Job: "other", Submission: 1, Attempt: 1}.Mark(""), "semicolon": "; rm -r x", "hash": "# no comment",
		"json": `{"a":[1,null]}`, "long": strings.Repeat("n", dispatch.TextLimit), "long UTF-8": strings.Repeat("ü", dispatch.TextLimit/2),
	}
}

// textComesBack: a name or note is read back as it was given, or refused with a reason, and never changed.
func (s *session) textComesBack(noun string) {
	accepted := 0
	for kind, text := range oddTexts() {
		spec := s.long()
		if noun == "name" {
			spec.Name = text
		} else {
			spec.Note = text
		}
		id, err := s.b.Submit(s.Context(), spec)
		if errors.Is(err, dispatch.ErrRefused) {
			if kind == "plain" && !strings.Contains(text, " ") || !strings.Contains(err.Error(), ":") {
				s.Errorf("%s: refused with no reason: %v", kind, err)
			}
			continue
		}
		if err != nil {
			s.Errorf("%s: %v", kind, err)
			continue
		}
		accepted++
		s.refs[id] = spec.Ref
		o := s.inspect(id)
		found := s.find(spec.Ref)
		if len(found) != 1 {
			s.Errorf("%s: %d are found", kind, len(found))
			continue
		}
		for _, o := range []dispatch.Observation{o, found[0]} {
			got := o.Note
			if noun == "name" {
				got = o.Name
			}
			if got != text || o.Ref != spec.Ref || noun == "name" && o.Note != "" {
				s.Errorf("%s: %q comes back as %q, of %v with note %q", kind, text, got, o.Ref, o.Note)
			}
		}
	}
	if accepted == 0 {
		s.Errorf("every %s is refused", noun)
	}
}

func jobIDsComeBack(s *session) {
	for _, tail := range []string{"", "a", "-a.b_c/d:e", "/" + strings.Repeat("x", 100)} {
		spec := s.long()
		spec.Ref.Job += dispatch.JobID(tail)
		spec.Ref.Submission, spec.Ref.Attempt = dispatch.EpochBound-1, dispatch.EpochBound-1
		id := s.submit(spec)
		if o := s.inspect(id); o.Ref != spec.Ref {
			s.Errorf("%v comes back as %v", spec.Ref, o.Ref)
		}
		if list := s.find(spec.Ref); len(list) != 1 || list[0].Object != id {
			s.Errorf("%v finds %v", spec.Ref, objects(list))
		}
	}
}

// output runs lines to the end and returns what they have written.
func (s *session) output(spec dispatch.Spec) (dispatch.ObjectID, string) {
	s.Helper()
	id := s.start(spec)
	o := s.await(id, s.Wait, "over", isEnded)
	if o.State != dispatch.StateSucceeded {
		s.Fatalf("%s is %s, and wrote %q", id, show(o), s.read(id, dispatch.Stderr))
	}
	return id, s.read(id, dispatch.Stdout)
}

func knowsItself(s *session) {
	names := []string{dispatch.EnvJob, dispatch.EnvSubmission, dispatch.EnvAttempt, dispatch.EnvExecution, dispatch.EnvEpoch, dispatch.EnvObject}
	var lines []string
	for _, n := range names {
		lines = append(lines, fmt.Sprintf(`echo "%s=$%s"`, n, n))
	}
	spec := s.spec(lines...)
	spec.Ref.Submission, spec.Ref.Attempt = 12, 7
	id, got := s.output(spec)
	want := fmt.Sprintf("DISPATCH_JOB=%s\nDISPATCH_SUBMISSION=12\nDISPATCH_ATTEMPT=7\nDISPATCH_EXECUTION=0\nDISPATCH_EPOCH=12.0\nDISPATCH_OBJECT=%s\n", spec.Ref.Job, id)
	if got != want {
		s.Errorf("the script sees\n%s\nwant\n%s", got, want)
	}
}

func environmentReaches(s *session) {
	spec := s.spec()
	spec.Env = map[string]string{}
	var want strings.Builder
	i := 0
	for _, text := range []string{"plain", "it's", `a "b"`, `c:\dir\n`, "one\ntwo", "$HOME $(id) `id`", "Größe 漢字", " x ", "a,b=c", "", "%s"} {
		name := fmt.Sprintf("V%d", i)
		spec.Env[name] = text
		spec.Script += fmt.Sprintf(`printf '%%s|' "$%s"`, name) + "\n"
		want.WriteString(text + "|")
		i++
	}
	if _, got := s.output(spec); got != want.String() {
		s.Errorf("the script sees\n%q, want\n%q", got, want.String())
	}
}

func worksInDirectory(s *session) {
	spec := s.spec("pwd")
	spec.Workdir = s.sys.Workdir
	if _, got := s.output(spec); strings.TrimSpace(got) != s.sys.Workdir {
		s.Errorf("it works in %q, want %q", got, s.sys.Workdir)
	}
}

func launchesProcesses(s *session) {
	for _, procs := range []uint32{0, 1, 3} {
		spec := s.spec(s.sys.Launcher + " echo here")
		spec.ProcsPerNode = procs
		_, got := s.output(spec)
		if want := strings.Repeat("here\n", int(max(procs, 1)*spec.Nodes)); got != want {
			s.Errorf("%d processes on each of %d nodes write %q", procs, spec.Nodes, got)
		}
	}
}
