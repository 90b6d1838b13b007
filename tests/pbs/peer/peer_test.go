package main

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// TestNumber: what the client prints without quotes, as it was seen.
func TestNumber(t *testing.T) {
	for text, want := range map[string]bool{
		"123": true, "1e5": true, "0.50": true, "nan": true, "inf": true, "Infinity": true, "00": true, "0": true, "-0x10": true,
		"1e400": true, ".5": true, "5.": true, "+5": true, "-0": true, " 1": true, "12345678901234567890": true,
		"007": false, "0123": false, "0x1F": false, "-": false, "1_000": false, "true": false, "": false, "1 2": false, "--1": false, "e5": false, "0x": false,
	} {
		if got := number(text); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func TestEmptyTimestamp(t *testing.T) {
	for at, want := range map[int64]string{
		1796028672: "{\n    \"timestamp\":\"\",\n    \"pbs_version\":\"23.06.06\",\n    \"pbs_server\":\"vm\"\n}",
		1796028673: "{\n    \"timestamp\":1796028673,\n    \"pbs_version\":\"23.06.06\",\n    \"pbs_server\":\"vm\"\n}",
	} {
		var out bytes.Buffer
		c := &call{at: at, out: &out, cfg: config{Host: "vm"}}
		if c.json("Jobs", nil); out.String() != want {
			t.Errorf("%d: %q", at, out.String())
		}
	}
}

func TestVariables(t *testing.T) {
	for _, c := range []struct {
		list, want string
		later      bool
	}{
		{list: "A=1,B=2", want: "A=1;B=2"},
		{list: "A=,B=1,C=2", want: "A=,B=1;C=2"},
		{list: "A=,B=1", want: "A=;B=1", later: true},
		{list: `A=x\,y,B=1`, want: "A=x,y;B=1"},
		{list: "A=1,b,c=2", want: "A=1;c=2"},
		{list: "A=x=y", want: "A=x=y"},
		{list: "", want: ""},
	} {
		var got []string
		for _, v := range variables(c.list, c.later) {
			got = append(got, v.name+"="+v.value)
		}
		if strings.Join(got, ";") != c.want {
			t.Errorf("%q: %q, wanted %q", c.list, got, c.want)
		}
	}
}

// TestGuard: any value survives the way through a list of variables.
func TestGuard(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.StringMatching(`[ -~]{1,12}`).Draw(t, "a"), rapid.StringMatching(`[ -~]{1,12}`).Draw(t, "b")
		got := unguard("A=" + guard(a) + ",B=" + guard(b))
		if len(got) != 2 || got[0] != (variable{"A", a}) || got[1] != (variable{"B", b}) {
			t.Fatalf("%q", got)
		}
	})
}

func TestDirective(t *testing.T) {
	d, ok := parseDirective(`s q one max_run = [u:PBS_GENERIC=1], resources_max.walltime=1:00:00,route_destinations += x`)
	if !ok || d.verb != "set" || d.kind != "queue" || d.name != "one" || len(d.sets) != 3 {
		t.Fatalf("%+v", d)
	}
	want := []setting{{"max_run", "", "=", "[u:PBS_GENERIC=1]"}, {"resources_max", "walltime", "=", "1:00:00"}, {"route_destinations", "", "+=", "x"}}
	for i, w := range want {
		if d.sets[i] != w {
			t.Errorf("%+v, wanted %+v", d.sets[i], w)
		}
	}
}

func FuzzRequest(f *testing.F) {
	for _, r := range []request{{Op: "jobs", IDs: []string{"1"}}, {Op: "submit", Submit: &submission{Name: "x", Array: &array{First: 1, Last: 3, Step: 1}}}} {
		var b bytes.Buffer
		if err := send(&b, &r); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decodeRequest(bytes.NewReader(data))
		if err == nil && r.Op == "" {
			t.Fatal("a request without a verb")
		}
		if err == nil && r.Submit != nil && r.Submit.Array != nil && r.Submit.Array.Step < 1 {
			t.Fatal("an array without an end")
		}
	})
}

func FuzzTexts(f *testing.F) {
	for _, s := range []string{"2:ncpus=1:mem=64mb:mpiprocs=2+1:ncpus=1", "12[3-5:2].vm", "1.5gb", "01:30:00", "1-5:2%3", "A='x,y',B=1",
		"set queue q max_run = [u:PBS_GENERIC=1]", "1 (a) b) S 1 2 3 4", "203012311200", "depend=afterok:1:2,umask=077", "nan"} {
		f.Add(s)
	}
	s := &server{}
	f.Fuzz(func(t *testing.T, text string) {
		if key, ok := parseID(text, "vm"); ok && (key == "" || !strings.HasPrefix(text, key)) {
			t.Errorf("id %q became %q", text, key)
		}
		if parts, f := parseSelect(text, s.lookup); f == nil {
			n := 0
			for _, p := range parts {
				n += p.Count
			}
			if n < 1 || n > maxChunks {
				t.Errorf("%d chunks", n)
			}
		}
		if v, ok := parseSize(text); ok && (v.bytes() < 0 || v.kb() < 0) {
			t.Errorf("size %q is %d", text, v.bytes())
		}
		if d, ok := parseDuration(text); ok && d < 0 {
			t.Errorf("duration %q is %d", text, d)
		}
		if a, ok := parseArray(text); ok && (a.Step < 1 || a.First >= a.Last) {
			t.Errorf("array %q is %+v", text, a)
		}
		if m := mangle(text); utf8.ValidString(text) && len(m) < len(text) {
			t.Errorf("%q lost bytes", text)
		}
		parseDirective(text)
		parsePlace(text)
		parseDepend(text)
		variables(text, false)
		unguard(text)
		splitVars(text)
		attributeList(text)
		fields(text)
		number(text)
		laterNumber(text)
		sessionOf(text)
		startTime(text, 1796028673, zoneOf(""))
		signalNumber(text)
		getopt(strings.Fields(text), qsubSpec)
	})
}

// FuzzListing: whatever a user writes, a listing in JSON ends as one, unless the client said that it cannot print it.
func FuzzListing(f *testing.F) {
	f.Add("nan", "A=1,B=,C=2")
	f.Add(`x\"y`, "\x00\xff")
	f.Fuzz(func(t *testing.T, name, vars string) {
		j := &job{Name: name, Vars: vars, State: 'Q', Index: -1, User: "u", Host: "vm"}
		for _, client := range []string{"", master} {
			var out, errs bytes.Buffer
			c := &call{name: "qstat", at: 1, out: &out, err: &errs, cfg: config{Host: "vm", Client: client}, zone: zoneOf("")}
			ok := c.json("Jobs", []entry{j.entry("vm")})
			if ok != strings.HasSuffix(out.String(), "}\n") {
				t.Errorf("%q: %v", out.String(), ok)
			}
			c.full("Job Id", []entry{j.entry("vm")}, false)
			c.dsv("Job Id", []entry{j.entry("vm")}, "|")
		}
	})
}
