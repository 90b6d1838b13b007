package simulate

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"substrate/coordinator"
)

func seconds1(n int) *time.Duration {
	d := time.Duration(n) * time.Second
	return &d
}

func TestReadSWF(t *testing.T) {
	const head = "; Computer: x\n; MaxProcs: 240\n;\n"
	for name, c := range map[string]struct {
		text string
		want []Job
		skip map[string]int
		err  string
	}{
		"record": {head + "7 100 5 60 4 -1 -1 8 3600 2048 1 3 2 -1 1 -1 -1 -1\n", []Job{{ID: "7", Line: 4, Submit: 100 * time.Second, Run: time.Minute,
			Walled: time.Hour, Waited: seconds1(5), Procs: 8, Memory: 2 << 20, Queue: "1", Class: coordinator.ClassOnDemand, User: "user-3", Group: "group-2"}}, nil, ""},
		"unknown fields": {"1 0 -1 10 2 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1\n", []Job{{ID: "1", Line: 1, Run: 10 * time.Second, Procs: 2, Queue: "-1",
			Class: coordinator.ClassOnDemand}}, nil, ""},
		"later first": {"2 9 0 1 1 1 -1 1 1 -1 1 1 1 -1 1 -1 -1 -1\n1 3 0 1 1 1 -1 1 1 -1 1 1 1 -1 1 -1 -1 -1\n", []Job{
			{ID: "1", Line: 2, Submit: 3 * time.Second, Run: time.Second, Walled: time.Second, Waited: seconds1(0), Procs: 1, Queue: "1", Class: 2, User: "user-1", Group: "group-1"},
			{ID: "2", Line: 1, Submit: 9 * time.Second, Run: time.Second, Walled: time.Second, Waited: seconds1(0), Procs: 1, Queue: "1", Class: 2, User: "user-1", Group: "group-1"}}, nil, ""},
		"never ran":     {"1 0 0 -1 1 1 -1 1 1 -1 1 1 1 -1 1 -1 -1 -1\n", nil, map[string]int{"its run time is not known": 1}, ""},
		"no processors": {"1 0 0 5 -1 1 -1 -1 1 -1 1 1 1 -1 1 -1 -1 -1\n", nil, map[string]int{"its number of processors is not known": 1}, ""},
		"fields":        {"; x\n1 0 0\n", nil, nil, "f.swf:2: 3 fields, a record has 18"},
		"word":          {"1 soon 0 5 1 1 -1 1 1 -1 1 1 1 -1 1 -1 -1 -1\n", nil, nil, `f.swf:1: field 2: "soon" is not a number`},
		"not a number":  {"1 NaN 0 5 1 1 -1 1 1 -1 1 1 1 -1 1 -1 -1 -1\n", nil, nil, `f.swf:1: field 2: "NaN" is not a number`},
		"before time":   {"1 -5 0 5 1 1 -1 1 1 -1 1 1 1 -1 1 -1 -1 -1\n", nil, nil, "f.swf:1: field 2 (submit time): a time must lie between"},
		"for ever":      {"1 0 0 1e300 1 1 -1 1 1 -1 1 1 1 -1 1 -1 -1 -1\n", nil, nil, "f.swf:1: field 4 (run time): a time must lie between"},
		"endless":       {"; x\n" + strings.Repeat("1", maxLine+1), nil, nil, "f.swf:2: the line is longer than 1048576 bytes"},
		"too wide":      {"1 0 0 5 1 1 -1 2e9 1 -1 1 1 1 -1 1 -1 -1 -1\n", nil, nil, "f.swf:1: field 8: 2e+09 processors, at most 1000000"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ReadSWF("f.swf", strings.NewReader(c.text))
			read(t, got, err, c.want, c.skip, c.err)
		})
	}
}

func read(t *testing.T, got *Trace, err error, want []Job, skip map[string]int, wrong string) {
	t.Helper()
	if wrong != "" {
		var at *InputError
		if err == nil || !errors.As(err, &at) || !strings.HasPrefix(err.Error(), wrong) {
			t.Fatalf("got %v, wanted %s", err, wrong)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got.Jobs, want) || !reflect.DeepEqual(got.Skipped, skip) {
		t.Errorf("got  %+v, skipped %v\nwant %+v, skipped %v", got.Jobs, got.Skipped, want, skip)
	}
}

func TestReadCSV(t *testing.T) {
	const pods = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
	for name, c := range map[string]struct {
		text string
		want []Job
		skip map[string]int
		err  string
	}{
		"marked": {"\ufeffsubmit,run\n5,1h30m\n", []Job{{ID: "2", Line: 2, Submit: 5 * time.Second, Run: 90 * time.Minute, Class: coordinator.ClassOnDemand}}, nil, ""},
		"least":  {"submit,run\n5,1h30m\n", []Job{{ID: "2", Line: 2, Submit: 5 * time.Second, Run: 90 * time.Minute, Class: coordinator.ClassOnDemand}}, nil, ""},
		"all": {"id,submit,run,walltime,nodes,cores,gpus,memory,class,queue,user,group,priority,preemptible,service\na,0,10,7d,2,4,1,2GiB,batch,q,ann,vision,-3,true,false\n",
			[]Job{{ID: "a", Line: 2, Run: 10 * time.Second, Walled: 7 * 24 * time.Hour, Nodes: 2, Cores: 4, GPUs: 1, Memory: 2 << 30, Class: coordinator.ClassBatch,
				Queue: "q", User: "ann", Group: "vision", Priority: -3, Preemptible: true}}, nil, ""},
		"pod": {pods + "p,12500,1024,2,1000,,BE,Running,10,100,40\n", []Job{{ID: "p", Line: 2, Submit: 10 * time.Second, Run: time.Minute, Waited: seconds1(30), Nodes: 1, Cores: 13,
			GPUs: 2, Memory: 1 << 30, Queue: "BE", Class: coordinator.ClassBatch, Group: "be"}}, nil, ""},
		"pod that never ran":   {pods + "p,1,1,1,1,,LS,Pending,10,100,\n", nil, map[string]int{"it never ran": 1}, ""},
		"pod that runs before": {pods + "p,1,1,1,1,,LS,Running,10,100,5\n", nil, map[string]int{"its times are out of order": 1}, ""},
		"pod of no class":      {pods + "p,1,1,1,1,,Gold,Running,10,100,20\n", nil, nil, `f.csv:2: qos: "Gold" is none of`},
		"empty":                {"", nil, nil, "f.csv:1: the file is empty"},
		"unknown column":       {"submit,run,core\n", nil, nil, `f.csv:1: unknown column "core", did you mean cores?`},
		"twice":                {"submit,run,run\n", nil, nil, `f.csv:1: column "run" is there twice`},
		"missing column":       {"submit,cores\n", nil, nil, `f.csv:1: column "run" is missing`},
		"no time":              {"submit,run\n1,2\n3,soon\n", nil, nil, `f.csv:3: run: "soon" is neither a number of seconds nor`},
		"negative":             {"submit,run\n1,-2\n", nil, nil, "f.csv:2: run: a time must lie between"},
		"missing value":        {"submit,run\n1,\n", nil, nil, "f.csv:2: submit and run are needed in each record"},
		"fields":               {"submit,run\n1,2\n1,2,3\n", nil, nil, "f.csv:3: wrong number of fields"},
		"quotes":               {"submit,run\n1,\"2\n", nil, nil, "f.csv:2: extraneous or missing"},
		"class":                {"submit,run,class\n1,2,fast\n", nil, nil, "f.csv:2: class: "},
		"truth":                {"submit,run,preemptible\n1,2,yes\n", nil, nil, `f.csv:2: preemptible: "yes" is neither true nor false`},
		"memory":               {"submit,run,memory\n1,2,much\n", nil, nil, "f.csv:2: memory: "},
		"priority":             {"submit,run,priority\n1,2,3\n", nil, nil, `f.csv:2: priority: "3" is not a whole number of at most 0`},
		"name":                 {"submit,run,user\n1,2,Ann B\n", nil, nil, `f.csv:2: user: "Ann B" is not a name`},
		"procs and cores":      {"submit,run,procs,cores\n1,2,8,4\n", nil, nil, "f.csv:2: procs: "},
		"service with an end":  {"submit,run,walltime,service\n1,2,3,true\n", nil, nil, "f.csv:2: walltime: a service has none"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ReadCSV("f.csv", strings.NewReader(c.text))
			read(t, got, err, c.want, c.skip, c.err)
		})
	}
}

func TestBetween(t *testing.T) {
	trace := &Trace{}
	for i := range 10 {
		trace.Jobs = append(trace.Jobs, Job{Line: i, Submit: time.Duration(i) * time.Hour})
	}
	trace.Between(3*time.Hour, 5*time.Hour)
	if len(trace.Jobs) != 2 || trace.Jobs[0].Line != 3 || trace.Jobs[0].Submit != 0 || trace.Jobs[1].Submit != time.Hour {
		t.Errorf("got %+v", trace.Jobs)
	}
	trace.Between(100*time.Hour, 0)
	if len(trace.Jobs) != 0 {
		t.Errorf("got %+v", trace.Jobs)
	}
}

// FuzzTraces: whatever a file says is read or refused with its line.
func FuzzTraces(f *testing.F) {
	f.Add("; MaxProcs: 240\n7 100 5 60 4 -1 -1 8 3600 2048 1 3 2 -1 1 -1 -1 -1\n", true)
	f.Add("1 0 -1 -1 2 552.21 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1", true)
	f.Add("submit,run,walltime,class,memory\n5,1h30m,7d,batch,2GiB\n", false)
	f.Add("name,cpu_milli,memory_mib,num_gpu,qos,creation_time,deletion_time,scheduled_time\np,12500,1024,2,BE,10,100,40\n", false)
	f.Fuzz(func(t *testing.T, text string, swf bool) {
		reader := ReadCSV
		if swf {
			reader = ReadSWF
		}
		trace, err := reader("f", strings.NewReader(text))
		if err != nil {
			if !strings.HasPrefix(err.Error(), "f:") {
				t.Errorf("%v names no line", err)
			}
			return
		}
		for i, j := range trace.Jobs {
			if j.Submit < 0 || j.Run < 0 || j.Walled < 0 || j.Submit > maxTime || j.Run > maxTime || i > 0 && j.Submit < trace.Jobs[i-1].Submit {
				t.Errorf("%+v", j)
			}
		}
	})
}

func TestParseNodes(t *testing.T) {
	file := func(string) ([]byte, error) {
		return []byte(`{"facts":{"hostname":"x","cpu":{"cpu_cores":6,"logical_cpus":12},"memory":{"total_bytes":1073741824}}}`), nil
	}
	nodes, err := ParseNodes("2x8gpu,64c,1TiB,2numa,4linked+1xkind.json", file)
	if err != nil || len(nodes) != 3 {
		t.Fatalf("%d nodes, %v", len(nodes), err)
	}
	f := nodes[0].Facts
	if *f.CPU.Cores != 64 || *f.Memory.Total != 1<<40 || len(f.GPUs) != 8 || len(f.NUMA) != 2 || len(f.GPULinks) != 12 || *f.GPUs[7].NUMANode != 1 {
		t.Errorf("the first node is %+v", f)
	}
	if nodes[0].ID == nodes[1].ID || nodes[1].Facts.Hostname == nodes[0].Facts.Hostname || *nodes[2].Facts.CPU.Cores != 6 {
		t.Errorf("got %+v", nodes)
	}
	for spec, want := range map[string]string{
		"8gpu":         "expected COUNTxPARTS",
		"0x1c":         "expected COUNTxPARTS",
		"20001x1c":     "more than 20000",
		"1x9fast":      `unknown part "9fast"`,
		"1x0c":         "expected a number from 1 to 4096 before c",
		"1x99gpu":      "expected a number from 1 to 64 before gpu",
		"1x10c,3numa":  "10 cores are not divided by 3 NUMA domains",
		"1xempty.json": "the facts tell no cores or no memory",
		"1xnone.json":  "no such file",
	} {
		_, err := ParseNodes(spec, func(name string) ([]byte, error) {
			if name == "empty.json" {
				return []byte("{}"), nil
			}
			return nil, errors.New("no such file")
		})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, wanted %s", spec, err, want)
		}
	}
}

// FuzzParseNodes: a description gives nodes that the coordinator takes, or an error.
func FuzzParseNodes(f *testing.F) {
	for _, s := range []string{"240x1c", "9x8gpu,128c,1TiB,2numa,4linked+4x64c", "1xa.json", "x", "1x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, spec string) {
		nodes, err := ParseNodes(spec, func(string) ([]byte, error) { return nil, errors.New("no files here") })
		for i := range nodes[:min(len(nodes), 3)] {
			if err := nodes[i].Facts.Check(); err != nil {
				t.Error(err)
			}
		}
		if err == nil && len(nodes) == 0 {
			t.Error("no nodes and no error")
		}
	})
}

// A quote that is never closed must not have the whole file read into memory.
func TestReadCSVUnclosedQuote(t *testing.T) {
	endless := strings.NewReader("submit,run\n1,\"" + strings.Repeat("x", 4*maxLine))
	_, err := ReadCSV("f.csv", endless)
	if err == nil || !strings.Contains(err.Error(), "cannot read f.csv: a record is longer than 1048576 bytes") {
		t.Errorf("got %v", err)
	}
	if endless.Len() < 2*maxLine {
		t.Errorf("%d bytes were left of %d", endless.Len(), 4*maxLine)
	}
	long := "submit,run\n" + strings.Repeat("1,2\n", maxLine/2) // many records are longer than one may be
	if got, err := ReadCSV("f.csv", strings.NewReader(long)); err != nil || len(got.Jobs) != maxLine/2 {
		t.Errorf("many short records: %v", err)
	}
}
