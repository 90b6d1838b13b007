package catalogue

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"substrate/coordinator"
)

func named(names ...string) []Type {
	var out []Type
	for _, name := range names {
		out = append(out, Type{Name: name, Arch: "amd64"})
	}
	return out
}

func nothing(string) bool { return false }

func day(n int) time.Time { return time.Unix(1_700_000_000, 0).UTC().AddDate(0, 0, n) }

func (p *Provided) names() string {
	var out []string
	for _, t := range p.Types {
		name := t.Name
		if !t.Missing.IsZero() {
			name += "!"
		}
		out = append(out, name)
	}
	return strings.Join(out, " ")
}

// TestProvided: what an answer lacks stays for a while, and longer where it is needed; an answer that says nothing new is the same version.
func TestProvided(t *testing.T) {
	needed := nothing
	var p *Provided
	for i, tt := range []struct {
		day    int
		answer []Type
		needed string
		want   string
		change string
		v      uint64
	}{
		{0, named("b", "a"), "", "a b", "2 new (a, b)", 1},
		{1, named("a", "b"), "", "a b", "nothing differs", 1},
		{2, named("a", "c"), "", "a b! c", "1 new (c), 1 no longer told of (b)", 2},
		{3, named("a", "c"), "", "a b! c", "nothing differs", 2},
		{4, named("a", "b", "c"), "", "a b c", "1 new (b)", 3},
		{5, named("a", "c"), "", "a b! c", "1 no longer told of (b)", 4},
		{12, named("a", "c"), "b", "a b! c", "nothing differs", 4},
		{13, named("a", "c"), "", "a c", "1 forgotten (b)", 5},
		{14, []Type{{Name: "a", Arch: "arm64"}, {Name: "c", Arch: "amd64", UsageClasses: []string{}, Zones: []string{}}}, "", "a c", "1 with other facts (a)", 6},
	} {
		needed = func(name string) bool { return name == tt.needed }
		next, change, err := p.Merge(tt.answer, nil, needed, day(tt.day))
		if err != nil || next.names() != tt.want || change.String() != tt.change || next.Version != tt.v || !next.Asked.Equal(day(tt.day)) {
			t.Fatalf("answer %d: %q, %q, version %d, %v", i, next.names(), change.String(), next.Version, err)
		}
		text, err := json.Marshal(next)
		if err != nil {
			t.Fatal(err)
		}
		p = &Provided{}
		if err := json.Unmarshal(text, p); err != nil || !reflect.DeepEqual(p, next) {
			t.Fatalf("stored and read it is %+v, %v", p, err)
		}
	}
	if _, _, err := p.Merge(named("a", "a"), nil, nothing, day(20)); err == nil {
		t.Error("a type that is told of twice is taken")
	}
}

// TestProvidedProperty: whatever providers tell, nothing that they tell of now is missing, nothing that is needed is lost, and the version moves with
// what is known alone.
func TestProvidedProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p *Provided
		for n := range rapid.IntRange(1, 12).Draw(t, "answers") {
			answer := named(rapid.SliceOfDistinct(rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}), rapid.ID[string]).Draw(t, "answer")...)
			keep := rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(t, "needed")
			next, change, err := p.Merge(answer, nil, func(name string) bool { return name == keep }, day(n*rapid.IntRange(1, 5).Draw(t, "days")))
			if err != nil {
				t.Fatal(err)
			}
			c, err := next.Catalogue(nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range answer {
				if known, ok := c.Type(a.Name); !ok || !known.Missing.IsZero() {
					t.Fatalf("%s is told of and is %+v", a.Name, known)
				}
			}
			if p != nil {
				for _, old := range p.Types {
					if _, ok := c.Type(old.Name); !ok && (old.Name == keep || old.Missing.IsZero()) {
						t.Fatalf("%s is lost", old.Name)
					}
				}
				if change.None() != (next.Version == p.Version) {
					t.Fatalf("version %d after %d: %s", next.Version, p.Version, change.String())
				}
			}
			p = next
		}
	})
}

func TestDoubtful(t *testing.T) {
	p, _, err := (*Provided)(nil).Merge(named("a", "b", "c", "d"), nil, nothing, day(0))
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int]bool{0: true, 1: true, 2: false, 4: false, 100: false, most + 1: true} {
		var answer []Type
		for i := range n {
			answer = append(answer, Type{Name: fmt.Sprint(i)})
		}
		if got := p.Doubtful(answer); (got != "") != want {
			t.Errorf("%d of 4 types: %q", n, got)
		}
	}
	if (*Provided)(nil).Doubtful(named("a")) != "" || (*Provided)(nil).Doubtful(nil) == "" {
		t.Error("a first answer")
	}
}

// TestProvidedWithListed: what was measured and what costs are known are added where they are of the same thing.
func TestProvidedWithListed(t *testing.T) {
	listed := ec2(t)
	cpus, memory, other := uint32(2), coordinator.Bytes(1<<30), coordinator.Bytes(2<<30)
	answer := []Type{
		{Name: "t3.micro", VCPUs: &cpus, Cores: &cpus, Memory: &memory, Zones: []string{"us-east-1a", "us-east-1b"}},
		{Name: "t3.nano", VCPUs: &cpus, Cores: &cpus, Memory: &other, Zones: []string{"us-east-1a"}}, {Name: "c5.large", Zones: []string{"us-east-2a"}}, {Name: "m5.large", Zones: []string{"us-east-1-atl-1a"}},
	}
	p, _, err := (*Provided)(nil).Merge(answer, listed, func(name string) bool { return name == "p5.48xlarge" }, day(0))
	if err != nil {
		t.Fatal(err)
	}
	p.Kind, p.Target = "aws", "x"
	embedded, err := Embedded()
	if err != nil {
		t.Fatal(err)
	}
	set, err := embedded.With(p)
	if err != nil {
		t.Fatal(err)
	}
	c := set.At("aws", "x")
	if set.At("aws", "y").Len() != 1373 || embedded.At("aws", "x").Len() != 1373 || c.Len() != 5 || c.Told() != p || set.At("gcp", "x") != nil {
		t.Fatalf("%d types", c.Len())
	}
	for name, want := range map[string]string{"t3.micro": "0.0104 true", "t3.nano": "0.0052 false", "c5.large": "0.085 false", "m5.large": "0.096 false", "p5.48xlarge": "55.04 false"} {
		typ, _ := c.Type(name)
		price := "?"
		if typ.CostPerHour != nil {
			price = fmt.Sprint(*typ.CostPerHour)
		}
		if got := fmt.Sprintf("%s %t", price, typ.Measured()); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	for name, want := range map[string]bool{"t3.micro": false, "t3.nano": false, "c5.large": true, "m5.large": true} {
		if typ, _ := c.Type(name); strings.Contains(fmt.Sprint(typ.Flags(false)), "price of us-east-1") != want {
			t.Errorf("%s: %v", name, typ.Flags(false))
		}
	}
	if gone, _ := c.Type("p5.48xlarge"); gone.Gone() == "" || !strings.Contains(fmt.Sprint(gone.Flags(false)), "has not told of it since") {
		t.Errorf("%+v", gone)
	}
}

// FuzzProvided: whatever stands in the store, it is a catalogue or an error, and what is one is written and read as it is.
func FuzzProvided(f *testing.F) {
	p, _, err := (*Provided)(nil).Merge(named("a", "b"), nil, nothing, day(0))
	if err != nil {
		f.Fatal(err)
	}
	text, err := json.Marshal(p)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"types":"H4sIAAAAAAAA/4qOBQAAAP//"}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var p Provided
		if json.Unmarshal(text, &p) != nil {
			return
		}
		again, err := json.Marshal(&p)
		if err != nil {
			t.Fatal(err)
		}
		var q Provided
		if err := json.Unmarshal(again, &q); err != nil || len(q.Types) != len(p.Types) {
			t.Fatalf("%v", err)
		}
	})
}

// TestProvidedIsSmall: the largest cloud's types are one small record.
func TestProvidedIsSmall(t *testing.T) {
	types := ec2(t).All()
	for i := range types {
		types[i].Zones = []string{"us-east-1a", "us-east-1b", "us-east-1c", "us-east-1d", "us-east-1f"}
	}
	p, _, err := (*Provided)(nil).Merge(types, nil, nothing, day(0))
	if err != nil {
		t.Fatal(err)
	}
	if text, err := json.Marshal(p); err != nil || len(text) > 64<<10 {
		t.Errorf("%d bytes, %v", len(text), err)
	}
}
