package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// submission is a job on its way to the server.
type submission struct {
	User, Host, Name, Queue string
	Account, Project        string
	Out, Err, Join, Keep    string
	Mail                    string
	Priority                int
	Rerun                   string
	Resources               []pair
	Holds                   string
	Start                   int64
	Depend                  []dependency
	Umask, Shell, Users     string
	Vars, Args              string
	Argv                    []string
	Script                  []byte
	Array                   *array
	Block, Sandbox          bool
	StageIn                 string
	Unknown                 bool // an attribute that nobody knows
	Dir                     string
}

const qsubSpec = "a:A:c:C:e:fhIj:J:k:l:m:M:N:o:p:P:q:r:R:S:u:v:VW:Xz"

func qsubUsage() string {
	return `usage: qsub [-a date_time] [-A account_string] [-c interval]
	[-C directive_prefix] [-e path] [-f ] [-h ] [-I [-X]] [-j oe|eo] [-J X-Y[:Z]]
	[-k keep] [-l resource_list] [-m mail_options] [-M user_list]
	[-N jobname] [-o path] [-p priority] [-P project] [-q queue] [-r y|n]
	[-R o|e|oe] [-S path] [-u user_list] [-W otherattributes=value...]
	[-v variable_list] [-V ] [-z] [script | -- command [arg1 ...]]
       qsub --version
`
}

// sub is a qsub at work.
type sub struct {
	*call
	s       submission
	set     map[string]bool // options that the command line decided
	quiet   bool
	talk    bool
	vars    []string
	varsSet bool
}

// stop is an end of qsub with a code, after its words were printed.
type stop int

func (s stop) Error() string { return "exit " + strconv.Itoa(int(s)) }

func (c *call) qsub() int {
	q := &sub{call: c, set: map[string]bool{}}
	q.s = submission{User: c.user, Host: c.cfg.Host, Join: "n", Keep: "n", Mail: "a", Project: "_pbs_project_default", Rerun: "y"}
	code, err := q.submit()
	if err != nil {
		if s, ok := err.(stop); ok {
			return int(s)
		}
		c.eprintf("%v\n", err)
		return 1
	}
	return code
}

func (q *sub) submit() (int, error) {
	opts, rest, dashes, bad := getopt(q.args, qsubSpec)
	if len(bad) > 0 {
		q.badOptions(bad)
		q.eprintf("%s", qsubUsage())
		return 0, stop(2)
	}
	if err := q.options(opts, true); err != nil {
		return 0, err
	}
	q.s.Args = strings.TrimRight(strings.Join(q.args, " "), " ")
	for _, o := range opts {
		if o.flag == 'I' {
			q.eprintf("qsub:\tstandard input and output must be a terminal for\n\tinteractive job submission\n")
			return 0, stop(1)
		}
	}
	if dashes && len(rest) > 0 {
		q.s.Argv = rest
		if q.s.Name == "" {
			q.s.Name = "STDIN"
		}
	} else if err := q.script(rest); err != nil {
		return 0, err
	}
	if err := q.environment(); err != nil {
		return 0, err
	}
	q.paths()
	return q.send()
}

// script reads the job's script and what it says about the job.
func (q *sub) script(rest []string) error {
	if len(rest) == 0 {
		data, err := io.ReadAll(io.LimitReader(q.in, maxFile))
		if err != nil {
			return err
		}
		q.s.Script = data
		if q.s.Name == "" {
			q.s.Name = "STDIN"
		}
	} else {
		st, err := os.Stat(rest[0])
		if err != nil {
			q.eprintf("qsub: script file:: No such file or directory\n")
			return stop(1)
		}
		if !st.Mode().IsRegular() {
			q.eprintf("qsub: script not a file\n")
			return stop(1)
		}
		if q.s.Script, err = os.ReadFile(rest[0]); err != nil {
			q.eprintf("qsub: script file:: %v\n", err)
			return stop(1)
		}
	}
	given := q.s.Name
	if err := q.directives(); err != nil {
		return err
	}
	if given == "" && q.s.Name == "" {
		q.s.Name = filepath.Base(rest[0])
	}
	return nil
}

// directives are the options in the comments at the head of a script. The command line wins over them.
func (q *sub) directives() error {
	for i, line := range bytes.Split(q.s.Script, []byte("\n")) {
		text := strings.TrimRight(string(line), "\r \t")
		after, ok := strings.CutPrefix(text, "#PBS")
		if !ok {
			if text == "" || strings.HasPrefix(text, "#") || (i == 0 && strings.HasPrefix(text, ":")) {
				continue
			}
			break
		}
		words := strings.TrimSpace(after)
		opts, _, _, bad := getopt(fields(words), qsubSpec)
		if len(bad) > 0 {
			q.badOptions(bad)
			q.eprintf("qsub: directive error: %s \n", words)
			return stop(1)
		}
		if err := q.options(opts, false); err != nil {
			return err
		}
	}
	return nil
}

// fields splits a directive at blanks outside of quotes.
func fields(s string) []string {
	var out []string
	var word strings.Builder
	quote, open := byte(0), false
	for i := range len(s) {
		c := s[i]
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			word.WriteByte(c)
		case c == '"' || c == '\'':
			quote, open = c, true
		case c == ' ' || c == '\t':
			if open {
				out = append(out, word.String())
				word.Reset()
				open = false
			}
		default:
			open = true
			word.WriteByte(c)
		}
	}
	if open {
		out = append(out, word.String())
	}
	return out
}

// wrong is a value that qsub itself refuses.
func (q *sub) wrong(flag string) error {
	q.eprintf("qsub: illegal %s value\n%s", flag, qsubUsage())
	return stop(2)
}

func (q *sub) options(opts []option, line bool) error {
	for _, o := range opts {
		name := string(o.flag)
		if o.flag != 'l' && o.flag != 'W' {
			if q.set[name] && !line {
				continue
			}
			if line {
				q.set[name] = true
			}
		}
		if err := q.option(o, line); err != nil {
			return err
		}
	}
	return nil
}

func (q *sub) option(o option, line bool) error {
	switch s := &q.s; o.flag {
	case 'a':
		at, ok := startTime(o.value, q.at, q.zone)
		if !ok {
			return q.wrong("-a")
		}
		s.Start = at
	case 'A':
		s.Account = o.value
	case 'e':
		s.Err = o.value
	case 'h':
		s.Holds = "u"
	case 'j':
		if o.value != "oe" && o.value != "eo" && o.value != "n" {
			return q.wrong("-j")
		}
		s.Join = o.value
	case 'J':
		a, ok := parseArray(o.value)
		if !ok {
			return q.wrong("-J")
		}
		s.Array = a
	case 'k':
		s.Keep = o.value
	case 'l':
		return q.limits(o.value, line)
	case 'm':
		s.Mail = o.value
	case 'N':
		if len(o.value) > 236 {
			q.eprintf("qsub: Job name is too long \n")
			return stop(2)
		}
		if o.value == "" || strings.Trim(o.value, letters+"+") != "" {
			return q.wrong("-N")
		}
		s.Name = o.value
	case 'o':
		s.Out = o.value
	case 'p':
		n, err := strconv.Atoi(o.value)
		if err != nil || n < -1024 || n > 1023 {
			return q.wrong("-p")
		}
		s.Priority = n
	case 'P':
		s.Project = o.value
	case 'q':
		s.Queue = o.value
	case 'r':
		if o.value != "y" && o.value != "n" {
			return q.wrong("-r")
		}
		s.Rerun = o.value
	case 'S':
		s.Shell = o.value
	case 'u':
		s.Users = o.value
	case 'v':
		q.vars, q.varsSet = append(q.vars, o.value), true
	case 'W':
		return q.others(o.value, line)
	case 'z':
		q.quiet = true
	}
	return nil
}

// limits is -l: resources after commas, of which the first mention counts, the command line's before all.
func (q *sub) limits(text string, line bool) error {
	for _, f := range splitOutside(text) {
		name, value, ok := strings.Cut(f, "=")
		if !ok || name == "" || value == "" || strings.Trim(name, letters) != "" || strings.ContainsAny(value, " \t\n") {
			return q.wrong("-l")
		}
		if q.set["l."+name] && !line {
			continue
		}
		if line {
			q.set["l."+name] = true
		}
		q.s.Resources = setPair(q.s.Resources, name, value)
	}
	return nil
}

// splitOutside splits at commas outside of quotes.
func splitOutside(s string) []string {
	var out []string
	start, quote := 0, byte(0)
	for i := range len(s) {
		switch c := s[i]; {
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '"' || c == '\'':
			quote = c
		case c == ',':
			out, start = append(out, s[start:i]), i+1
		}
	}
	return append(out, s[start:])
}

// others is -W: attributes by their names.
func (q *sub) others(text string, line bool) error {
	for _, f := range attributeList(text) {
		name, value, ok := strings.Cut(f, "=")
		if !ok {
			return q.wrong("-W")
		}
		if q.set["W."+name] && !line {
			continue
		}
		if line {
			q.set["W."+name] = true
		}
		switch s := &q.s; name {
		case "depend":
			deps, ok := parseDepend(value)
			if !ok {
				return q.wrong("-W")
			}
			s.Depend = deps
		case "umask":
			n, err := strconv.ParseUint(value, 8, 32)
			if err != nil {
				return q.wrong("-W")
			}
			s.Umask = strconv.FormatUint(n, 8)
		case "block":
			s.Block = value == "true" || value == "True"
		case "sandbox":
			s.Sandbox = value == "PRIVATE"
		case "stagein":
			s.StageIn = value
		case "stageout", "group_list", "run_count", "no_stdio_sockets", "release_nodes_on_stageout", "pwd", "max_run_subjobs", "Hold_Types":
		default:
			s.Unknown = true
		}
	}
	return nil
}

// attributeList splits -W a=1,b=2; a comma without a name behind it belongs to the value (depend has such).
func attributeList(text string) []string {
	var out []string
	for f := range strings.SplitSeq(text, ",") {
		if name, _, ok := strings.Cut(f, "="); len(out) > 0 && (!ok || strings.ContainsAny(name, ":@/")) {
			out[len(out)-1] += "," + f
			continue
		}
		out = append(out, f)
	}
	return out
}

func parseDepend(text string) ([]dependency, bool) {
	var out []dependency
	for clause := range strings.SplitSeq(text, ",") {
		f := strings.Split(clause, ":")
		switch f[0] {
		case "after", "afterok", "afternotok", "afterany", "before", "beforeok", "beforenotok", "beforeany", "runone":
		default:
			return nil, false
		}
		if len(f) < 2 {
			return nil, false
		}
		for _, id := range f[1:] {
			key, ok := parseID(id, "")
			if !ok {
				return nil, false
			}
			out = append(out, dependency{f[0], key})
		}
	}
	return out, true
}

func parseArray(text string) (*array, bool) {
	a := &array{Step: 1}
	text, limit, limited := strings.Cut(text, "%")
	text, step, stepped := strings.Cut(text, ":")
	first, last, ok := strings.Cut(text, "-")
	var errs [4]error
	a.First, errs[0] = strconv.Atoi(first)
	a.Last, errs[1] = strconv.Atoi(last)
	if stepped {
		a.Step, errs[2] = strconv.Atoi(step)
	}
	if limited {
		a.Limit, errs[3] = strconv.Atoi(limit)
	}
	for _, err := range errs {
		if err != nil {
			return nil, false
		}
	}
	return a, ok && a.First >= 0 && a.First < a.Last && a.Step > 0 && a.Limit >= 0
}

// startTime reads [[[[CC]YY]MM]DD]hhmm[.SS] in the zone of the caller.
func startTime(text string, epoch int64, z zone) (int64, bool) {
	main, seconds, dotted := strings.Cut(text, ".")
	at := time.Unix(epoch, 0).In(z.loc)
	full := at.Format("200601021504")
	if len(main) < 4 || len(main) > 12 || len(main)%2 != 0 || strings.Trim(main, "0123456789") != "" {
		return 0, false
	}
	t, err := time.ParseInLocation("200601021504", full[:12-len(main)]+main, z.loc)
	if err != nil {
		return 0, false
	}
	if dotted {
		n, err := strconv.Atoi(seconds)
		if err != nil || n > 59 {
			return 0, false
		}
		t = t.Add(time.Duration(n) * time.Second)
	}
	if t.Unix() < epoch && len(main) == 4 {
		t = t.AddDate(0, 0, 1)
	}
	return t.Unix(), true
}

// paths fills in where the output goes, seen from the directory of the call.
func (q *sub) paths() {
	q.s.Dir = q.workdir()
	where := func(p string) string {
		if p == "" {
			return ""
		}
		host, path, ok := strings.Cut(p, ":")
		if !ok {
			host, path = q.cfg.Host, p
		}
		slash := strings.HasSuffix(path, "/")
		path = q.cfg.seen(path)
		if !filepath.IsAbs(path) {
			path = filepath.Join(q.s.Dir, path)
			if slash {
				path += "/"
			}
		}
		return host + ":" + path
	}
	q.s.Out, q.s.Err = where(q.s.Out), where(q.s.Err)
}

func (c *call) workdir() string {
	dir, err := os.Getwd()
	if err != nil {
		return "/"
	}
	return c.cfg.seen(dir)
}
