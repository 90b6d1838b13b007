package simulate

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"substrate/coordinator"
	"substrate/strictyaml"
)

// columns are the names that the first line of a CSV trace may have.
func columns() []string {
	return []string{"id", "submit", "run", "walltime", "procs", "nodes", "cores", "gpus", "memory", "class", "queue", "user", "group", "priority", "preemptible", "service"}
}

// podColumns tell a table of pods apart: cpu_milli, memory_mib, num_gpu and so on, as in Alibaba's GPU traces.
func podColumns() []string {
	return []string{"name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "qos", "pod_phase", "creation_time", "deletion_time", "scheduled_time"}
}

// ReadCSV reads a trace with a first line of column names: our own, or those of a table of pods.
func ReadCSV(file string, r io.Reader) (*Trace, error) {
	record := &bounded{r: unmarked(r), left: maxLine}
	in := csv.NewReader(record)
	in.ReuseRecord = true
	head, err := in.Read()
	if errors.Is(err, io.EOF) {
		return nil, &InputError{file, 1, errors.New("the file is empty")}
	} else if err != nil {
		return nil, csvError(file, err)
	}
	head = slices.Clone(head)
	pods := slices.Contains(head, "creation_time")
	if err := checkHead(head, pods); err != nil {
		return nil, &InputError{file, 1, err}
	}
	t := &Trace{Name: file}
	for {
		record.left = maxLine
		words, err := in.Read()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, csvError(file, err)
		}
		line, _ := in.FieldPos(0)
		row := row{head: head, words: words}
		if pods {
			err = t.pod(line, &row)
		} else {
			err = t.row(line, &row)
		}
		if err != nil {
			return nil, &InputError{file, line, err}
		}
		if len(t.Jobs) > maxJobs {
			return nil, &InputError{file, line, fmt.Errorf("more than %d jobs", maxJobs)}
		}
	}
	t.sorted()
	return t, nil
}

// bounded refuses a record that does not end, such as one whose quote is never closed.
type bounded struct {
	r    io.Reader
	left int
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left < 0 {
		return 0, fmt.Errorf("a record is longer than %d bytes; is there a quote that is not closed?", maxLine)
	}
	n, err := b.r.Read(p)
	b.left -= n
	return n, err
}

// unmarked leaves out the mark with which some spreadsheets begin a table.
func unmarked(r io.Reader) io.Reader {
	const mark = "\ufeff"
	in := bufio.NewReader(r)
	if head, err := in.Peek(len(mark)); err == nil && string(head) == mark {
		_, _ = in.Discard(len(mark)) // it is in the buffer
	}
	return in
}

func csvError(file string, err error) error {
	var parse *csv.ParseError
	if errors.As(err, &parse) {
		return &InputError{file, parse.Line, parse.Err}
	}
	return fmt.Errorf("cannot read %s: %w", file, err)
}

func checkHead(head []string, pods bool) error {
	known, needed := columns(), []string{"submit", "run"}
	if pods {
		known, needed = podColumns(), []string{"creation_time", "deletion_time", "scheduled_time", "num_gpu", "qos"}
	}
	for i, name := range head {
		if !slices.Contains(known, name) {
			hint := ""
			if near := strictyaml.Nearest(name, known, 1); len(near) > 0 {
				hint = ", did you mean " + near[0] + "?"
			}
			return fmt.Errorf("unknown column %q%s", name, hint)
		}
		if slices.Contains(head[:i], name) {
			return fmt.Errorf("column %q is there twice", name)
		}
	}
	for _, name := range needed {
		if !slices.Contains(head, name) {
			return fmt.Errorf("column %q is missing", name)
		}
	}
	return nil
}

// row reads words by the names of their columns and keeps the first error.
type row struct {
	head, words []string
	err         error
}

func (r *row) text(column string) string {
	if i := slices.Index(r.head, column); i >= 0 && i < len(r.words) {
		return strings.TrimSpace(r.words[i])
	}
	return ""
}

func (r *row) fail(column string, err error) {
	if r.err == nil && err != nil {
		r.err = fmt.Errorf("%s: %w", column, err)
	}
}

// duration is a number of seconds, or such as 1h30m or 7d; absent is 0.
func (r *row) duration(column string) time.Duration {
	text := r.text(column)
	if text == "" {
		return 0
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		d, derr := strictyaml.ParseDuration(text)
		if derr != nil {
			r.fail(column, fmt.Errorf("%q is neither a number of seconds nor a duration such as 1h30m or 7d", text))
			return 0
		}
		v = d.Seconds()
	}
	d, err := seconds(v)
	r.fail(column, err)
	return d
}

func (r *row) count(column string, otherwise int) int {
	text := r.text(column)
	if text == "" {
		return otherwise
	}
	v, err := strconv.Atoi(text)
	if err != nil || v < 0 || v > maxCount {
		r.fail(column, fmt.Errorf("%q is not a whole number from 0 to %d", text, maxCount))
	}
	return v
}

// truth is true or false; absent is false.
func (r *row) truth(column string) bool {
	text := r.text(column)
	if text != "" && text != "true" && text != "false" {
		r.fail(column, fmt.Errorf("%q is neither true nor false", text))
	}
	return text == "true"
}

// row takes one record of our own columns.
func (t *Trace) row(line int, r *row) error {
	j := Job{ID: r.text("id"), Line: line, Submit: r.duration("submit"), Run: r.duration("run"), Walled: r.duration("walltime"),
		Procs: r.count("procs", 0), Nodes: r.count("nodes", 0), Cores: r.count("cores", 0), GPUs: r.count("gpus", 0), Queue: r.text("queue"),
		Class: coordinator.ClassOnDemand, User: r.text("user"), Group: r.text("group"), Preemptible: r.truth("preemptible"), Service: r.truth("service")}
	if j.ID == "" {
		j.ID = fmt.Sprint(line)
	}
	if r.text("submit") == "" || r.text("run") == "" {
		return errors.New("submit and run are needed in each record")
	}
	if text := r.text("class"); text != "" {
		r.fail("class", j.Class.UnmarshalText([]byte(text)))
	}
	if j.Service && j.Walled > 0 {
		r.fail("walltime", errors.New("a service has none"))
	}
	if text := r.text("memory"); text != "" {
		v, err := strictyaml.ParseSize(text)
		r.fail("memory", err)
		j.Memory = coordinator.Bytes(v)
	}
	if text := r.text("priority"); text != "" {
		v, err := strconv.ParseInt(text, 10, 32)
		if err != nil || v > 0 {
			r.fail("priority", fmt.Errorf("%q is not a whole number of at most 0", text))
		}
		j.Priority = int32(v)
	}
	if j.Procs > 0 && j.Cores > 0 {
		r.fail("procs", errors.New("cores of each node and processors in all exclude each other"))
	}
	for _, column := range [...]string{"user", "group"} {
		if name := r.text(column); name != "" && slug("", name) != name {
			r.fail(column, fmt.Errorf("%q is not a name of lower-case letters, digits, '-', '_' and '.'", name))
		}
	}
	if r.err == nil {
		t.Jobs = append(t.Jobs, j)
	}
	return r.err
}

// pod takes one record of a table of pods. Its quality of service decides what it is: latency-sensitive pods are on-demand
// services, best-effort ones batch jobs, those with a guarantee services with something reserved.
func (t *Trace) pod(line int, r *row) error {
	if r.text("scheduled_time") == "" || r.text("deletion_time") == "" {
		t.skip("it never ran")
		return nil
	}
	j := Job{ID: r.text("name"), Line: line, Submit: r.duration("creation_time"), Queue: r.text("qos"), Group: strings.ToLower(r.text("qos")),
		GPUs: r.count("num_gpu", 0), Nodes: 1}
	milli := r.count("cpu_milli", 1000)
	j.Cores = max(int(math.Ceil(float64(milli)/1000)), 1)
	if mib := r.text("memory_mib"); mib != "" {
		v, err := strconv.ParseUint(mib, 10, 40)
		r.fail("memory_mib", err)
		j.Memory = coordinator.Bytes(v) << 20
	}
	class, ok := map[string]coordinator.Class{"LS": coordinator.ClassOnDemand, "BE": coordinator.ClassBatch,
		"Burstable": coordinator.ClassReserved, "Guaranteed": coordinator.ClassReserved}[j.Queue]
	if !ok {
		r.fail("qos", fmt.Errorf("%q is none of LS, BE, Burstable, Guaranteed", j.Queue))
	}
	j.Class, j.Service = class, class != coordinator.ClassBatch
	scheduled, deleted := r.duration("scheduled_time"), r.duration("deletion_time")
	if r.err != nil {
		return r.err
	}
	if scheduled < j.Submit || deleted < scheduled {
		t.skip("its times are out of order")
		return nil
	}
	waited := scheduled - j.Submit
	j.Run, j.Waited = deleted-scheduled, &waited
	t.Jobs = append(t.Jobs, j)
	return nil
}
