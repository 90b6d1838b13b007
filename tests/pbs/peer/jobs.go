package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// job is what the server knows of a job, an array or a subjob. A file each: jobs/KEY.job.
type job struct {
	Seq   int
	Array *array
	Index int // of a subjob; -1 otherwise

	Name, User, Host    string
	State               byte
	Substate            int
	Queue               string
	Account, Project    string
	Ctime, Mtime, Qtime int64
	Etime, Stime, Obit  int64
	History             int64
	Start               int64 // not before
	Depend              []dependency
	OutPath, ErrPath    string
	ExecHost, ExecVnode string
	Places              []place
	Holds               string // of u, o, s
	Join, Keep, Mail    string
	Priority            int
	Rerunnable          bool
	Resources           []pair
	Shell               string
	StageIn             string
	Session             int
	JobDir              string
	Vars                string
	Comment             string
	Umask               string
	RunCount            int
	Stageout, Exit      known
	SubmitArgs          string
	Exec, Args          string // the XML that listings show
	Argv                []string
	Usage               *usage
	Block               bool
	Sandbox             bool
	Rank                int // order among the queued
	Deleted             string
	Deleting            int64 // milliseconds: when TERM went out
	Killed              bool
	Limit               string // the resource that was exceeded
	Failed              int    // starts in a row that failed
	Suspended           bool
	Started             int64 // milliseconds
	Ran                 int   // names the directory of a run
	Over                bool  // the parent is through with its subjobs
	Placeholder         bool
	Doomed              int64 // milliseconds: when a dependency failed for good
}

// known is a number that may be absent, which is not zero.
type known struct {
	Set bool
	N   int
}

func is(n int) known { return known{true, n} }

// usage is what the mom reported last.
type usage struct {
	CPU, Wall int64
	Mem, Virt int64 // kB
	CPUs      int
	Bare      bool // the job never started: walltime only
}

// array is what an array job has beside a job.
type array struct {
	First, Last, Step int
	Limit             int // subjobs at once; 0: any
	Remaining         []int
	Ended             map[int]int // index to exit status
}

// dependency is one clause of depend, on either side.
type dependency struct {
	Type string
	Key  string // of the other job
}

// place is where one chunk lies.
type place struct {
	Vnode, Host string
	Slot        int
	Uses        []pair // consumable, sizes in kB
	Procs       int    // lines in the node file
}

func (j *job) key() string {
	switch {
	case j.Index >= 0:
		return fmt.Sprintf("%d[%d]", j.Seq, j.Index)
	case j.Array != nil:
		return fmt.Sprintf("%d[]", j.Seq)
	}
	return strconv.Itoa(j.Seq)
}

func (j *job) active() bool { return j.State != 'F' && j.State != 'X' }

// running: it holds places on nodes.
func (j *job) running() bool { return j.State == 'R' || j.State == 'S' || j.State == 'E' }

func (j *job) res(name string) string { return getPair(j.Resources, name) }

// jobOrder is how the server encodes a job.
func jobOrder() []string {
	return []string{"Job_Name", "Job_Owner", "resources_used", "job_state", "queue", "server", "Account_Name",
		"Checkpoint", "ctime", "depend", "Error_Path", "Execution_Time", "exec_host", "exec_vnode", "Hold_Types",
		"Join_Path", "Keep_Files", "Mail_Points", "mtime", "Output_Path", "Priority", "qtime", "Rerunable",
		"Resource_List", "stagein", "stime", "obittime", "Shell_Path_List", "session_id", "jobdir", "substate",
		"Variable_List", "comment", "etime", "umask", "eligible_time", "run_count", "Stageout_status", "Exit_status",
		"Submit_arguments", "executable", "argument_list", "array", "array_id", "array_state_count", "array_index",
		"array_indices_submitted", "array_indices_remaining", "history_timestamp", "project", "Submit_Host", "max_run_subjobs"}
}

// listing collects attributes, leaving out what is absent.
type listing struct{ attrs []attr }

func (l *listing) text(name, value string) {
	if value != "" {
		l.attrs = append(l.attrs, attr{Name: name, Value: value})
	}
}

func (l *listing) time(name string, epoch int64) {
	if epoch != 0 {
		l.attrs = append(l.attrs, attr{Name: name, Value: strconv.FormatInt(epoch, 10), Epoch: true})
	}
}

func (l *listing) number(name string, n int) {
	l.attrs = append(l.attrs, attr{Name: name, Value: strconv.Itoa(n)})
}

func (l *listing) res(name string, pairs []pair) {
	for _, p := range pairs {
		l.attrs = append(l.attrs, attr{Name: name, Res: p.Name, Value: p.Value})
	}
}

// entry is the job as listings show it.
func (j *job) entry(host string) entry {
	l := &listing{}
	l.text("Job_Name", j.Name)
	l.text("Job_Owner", j.User+"@"+j.Host)
	l.text("job_state", string(j.State))
	l.text("queue", j.Queue)
	l.text("server", host)
	l.text("Account_Name", j.Account)
	l.time("ctime", j.Ctime)
	l.text("depend", dependText(j.Depend, host))
	l.text("Error_Path", j.ErrPath)
	l.time("Execution_Time", j.Start)
	l.text("exec_host", j.ExecHost)
	l.text("exec_vnode", j.ExecVnode)
	if j.Index < 0 || j.Placeholder {
		l.text("Checkpoint", "u")
		l.text("Hold_Types", holdText(j.Holds))
	}
	l.text("Join_Path", j.Join)
	l.text("Keep_Files", j.Keep)
	l.text("Mail_Points", j.Mail)
	l.time("mtime", j.Mtime)
	l.text("Output_Path", j.OutPath)
	l.number("Priority", j.Priority)
	l.time("qtime", j.Qtime)
	l.text("Rerunable", boolText(j.Rerunnable))
	l.res("Resource_List", j.Resources)
	l.text("stagein", j.StageIn)
	l.time("stime", j.Stime)
	l.time("obittime", j.Obit)
	l.text("Shell_Path_List", j.Shell)
	if j.Session > 0 {
		l.number("session_id", j.Session)
	}
	l.text("jobdir", j.JobDir)
	l.number("substate", j.Substate)
	l.text("Variable_List", j.Vars)
	l.text("comment", j.Comment)
	l.time("etime", j.Etime)
	l.text("umask", j.Umask)
	j.lateAttrs(l, host)
	e := entry{ID: j.key() + "." + host, Attrs: order(l.attrs, jobOrder())}
	e.Keys = rank{State: j.State, Owner: j.User, Queue: j.Queue, Sub: j.Index >= 0}
	return e
}

// lateAttrs are those that come with a run and with arrays.
func (j *job) lateAttrs(l *listing, host string) {
	if j.Usage != nil {
		l.res("resources_used", j.Usage.pairs())
	}
	if j.RunCount > 0 {
		l.number("run_count", j.RunCount)
	}
	if j.Stageout.Set {
		l.number("Stageout_status", j.Stageout.N)
	}
	if j.Exit.Set {
		l.number("Exit_status", j.Exit.N)
	}
	if j.Index < 0 || j.Placeholder {
		l.text("Submit_arguments", j.SubmitArgs)
	}
	l.text("executable", j.Exec)
	l.text("argument_list", j.Args)
	if j.Placeholder {
		return
	}
	if j.Index >= 0 {
		l.text("array_id", fmt.Sprintf("%d[].%s", j.Seq, host))
		l.number("array_index", j.Index)
	}
	if j.History != 0 {
		l.attrs = append(l.attrs, attr{Name: "history_timestamp", Value: strconv.FormatInt(j.History, 10), Epoch: true, Plain: true})
	}
	l.text("project", j.Project)
	l.text("Submit_Host", j.Host)
	if j.Array != nil {
		j.Array.attrs(l)
	}
}

func (a *array) attrs(l *listing) {
	l.text("array", "True")
	l.text("array_indices_submitted", a.submitted())
	l.text("array_indices_remaining", a.remaining())
	if a.Limit > 0 {
		l.number("max_run_subjobs", a.Limit)
	}
}

func (a *array) submitted() string { return span(a.First, a.Last, a.Step) }

func span(first, last, step int) string {
	s := strconv.Itoa(first)
	if last > first {
		s += "-" + strconv.Itoa(last)
		if step != 1 {
			s += ":" + strconv.Itoa(step)
		}
	}
	return s
}

// remaining joins runs of queued indices.
func (a *array) remaining() string {
	if len(a.Remaining) == 0 {
		return "-"
	}
	var out []string
	for i := 0; i < len(a.Remaining); {
		k := i
		for k+1 < len(a.Remaining) && a.Remaining[k+1] == a.Remaining[k]+a.Step {
			k++
		}
		last := a.Remaining[k]
		if k == len(a.Remaining)-1 && last+a.Step > a.Last {
			last = a.Last
		}
		out = append(out, span(a.Remaining[i], last, a.Step))
		i = k + 1
	}
	return strings.Join(out, ",")
}

func (a *array) indices() []int {
	var out []int
	for i := a.First; i <= a.Last; i += a.Step {
		out = append(out, i)
	}
	return out
}

func (a *array) has(i int) bool { return i >= a.First && i <= a.Last && (i-a.First)%a.Step == 0 }

func (u *usage) pairs() []pair {
	if u.Bare {
		return []pair{{"walltime", clockForm(u.Wall)}}
	}
	percent := int64(0)
	if u.CPU > 0 {
		percent = min(100, u.CPU*100/max(u.Wall, 1))
	}
	return []pair{{"cpupercent", strconv.FormatInt(percent, 10)}, {"cput", clockForm(u.CPU)}, {"mem", fmt.Sprintf("%dkb", u.Mem)},
		{"ncpus", strconv.Itoa(u.CPUs)}, {"vmem", fmt.Sprintf("%dkb", u.Virt)}, {"walltime", clockForm(u.Wall)}}
}

func dependText(deps []dependency, host string) string {
	var out []string
	for _, d := range deps {
		out = append(out, d.Type+":"+d.Key+"."+host+"@"+host)
	}
	return strings.Join(out, ",")
}

func holdText(holds string) string {
	if holds == "" {
		return "n"
	}
	return holds
}

func boolText(b bool) string {
	if b {
		return "True"
	}
	return "False"
}

// hold adds kinds in the order that listings use.
func addHold(holds, more string) string {
	var out []byte
	for _, k := range []byte("uos") {
		if strings.IndexByte(holds+more, k) >= 0 {
			out = append(out, k)
		}
	}
	return string(out)
}

func dropHold(holds, less string) string {
	return string(slices.DeleteFunc([]byte(holds), func(k byte) bool { return strings.IndexByte(less, k) >= 0 }))
}
