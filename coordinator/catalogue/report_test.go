package catalogue

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"substrate/coordinator"
)

func report(node string, cores int, memory coordinator.Bytes, gpus uint32) Report {
	r := Report{Key: Key{Kind: "aws", Type: "t"}, Arch: "amd64", Cores: coordinator.Cores(cores), Threads: uint32(2 * cores), Memory: memory,
		Node: coordinator.NodeID(node), Last: time.Unix(1_000_000, 0).UTC()}
	if gpus > 0 {
		r.Devices = map[string]uint32{coordinator.DeviceNVIDIA: gpus}
	}
	return r
}

func TestMerge(t *testing.T) {
	const gib = 1 << 30
	first := report("a", 8, 100*gib, 8)
	for name, tt := range map[string]struct {
		next    Report
		cores   coordinator.Cores
		memory  coordinator.Bytes
		gpus    uint32
		nodes   uint32
		differs string
	}{
		"alike":                 {report("b", 8, 100*gib, 8), 8, 100 * gib, 8, 2, ""},
		"a little less memory":  {report("b", 8, 99*gib, 8), 8, 99 * gib, 8, 2, ""},
		"much less memory":      {report("b", 8, 90*gib, 8), 8, 90 * gib, 8, 2, "90 GiB of memory, others have 100 GiB"},
		"more memory":           {report("b", 8, 110*gib, 8), 8, 100 * gib, 8, 2, "110 GiB of memory, others have 100 GiB"},
		"fewer cores":           {report("b", 4, 100*gib, 8), 4, 100 * gib, 8, 2, "4 cores, others have 8; 8 threads, others have 16"},
		"a GPU is missing":      {report("b", 8, 100*gib, 7), 8, 100 * gib, 8, 2, "7 nvidia.com/gpu, others have 8"},
		"all GPUs are missing":  {report("b", 8, 100*gib, 0), 8, 100 * gib, 8, 2, "0 nvidia.com/gpu, others have 8"},
		"the same, once more":   {report("a", 8, 98*gib, 4), 8, 98 * gib, 4, 1, ""},
		"more GPUs than before": {report("b", 8, 100*gib, 9), 8, 100 * gib, 9, 2, "9 nvidia.com/gpu, others have 8"},
	} {
		one, _ := (*Report)(nil).Merge(first)
		got, differs := one.Merge(tt.next)
		if got.Cores != tt.cores || got.Memory != tt.memory || got.Devices[coordinator.DeviceNVIDIA] != tt.gpus || got.Nodes != tt.nodes || differs != tt.differs {
			t.Errorf("%s: %+v, %q", name, got, differs)
		}
	}
}

// TestMergeProperty: in whatever order nodes report, what fits the type fits each of them, but for devices that a broken one lacks; and nothing but the
// order of attributes' agreement is lost.
func TestMergeProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(t, "nodes")
		var list []Report
		for i := range n {
			list = append(list, report(string(rune('a'+i)), rapid.IntRange(1, 4).Draw(t, "cores"), coordinator.Bytes(rapid.IntRange(90, 100).Draw(t, "memory")),
				uint32(rapid.IntRange(0, 8).Draw(t, "gpus"))))
		}
		order := rapid.Permutation(list).Draw(t, "order")
		merge := func(list []Report) *Report {
			var r *Report
			for _, next := range list {
				out, _ := r.Merge(next)
				r = &out
			}
			return r
		}
		a, b := merge(list), merge(order)
		if !reflect.DeepEqual(a.Hardware(), b.Hardware()) || a.Nodes != uint32(n) {
			t.Fatalf("%+v in one order, %+v in another", a, b)
		}
		most := uint32(0)
		for _, r := range list {
			if r.Cores < a.Cores || r.Memory < a.Memory || r.Threads < a.Threads {
				t.Fatalf("%+v promises more than %+v has", a, r)
			}
			most = max(most, r.Devices[coordinator.DeviceNVIDIA])
		}
		if a.Devices[coordinator.DeviceNVIDIA] != most {
			t.Fatalf("%d GPUs, the most was %d", a.Devices[coordinator.DeviceNVIDIA], most)
		}
	})
}

// TestPrecedence: the first source that says something counts.
func TestPrecedence(t *testing.T) {
	r := report("a", 1, 1, 0)
	claim, estimate, word := &coordinator.Hardware{Cores: 2}, &coordinator.Hardware{Cores: 3, Estimated: true}, &coordinator.Hardware{Cores: 4}
	for want, k := range map[Source]Known{
		SourceReport: {&r, claim, word, SourceListed}, SourceConfigured: {nil, claim, word, SourceConfigured}, SourceProvider: {nil, estimate, word, SourceListed},
		SourceListed: {nil, estimate, nil, SourceListed}, SourceEstimate: {Configured: estimate}, "": {},
	} {
		if h, source := k.Hardware(); source != want || (h == nil) != (want == "") {
			t.Errorf("%s instead of %s", source, want)
		}
	}
	one, two, three, nothing := 1.0, 2.0, 3.0, 0.0
	for _, tt := range []struct{ configured, provider, listed, want *float64 }{
		{&one, &two, &three, &one}, {nil, &two, &three, &two}, {nil, nil, &three, &three}, {nil, nil, nil, nil}, {&nothing, &two, nil, &nothing},
	} {
		if got := Price(tt.configured, tt.provider, tt.listed); got != tt.want {
			t.Errorf("%v", tt)
		}
	}
}

// TestGPUsOfACatalogue: a count of 0 with GPU memory is a number that nobody has entered, and a fraction is not a whole one.
func TestGPUsOfACatalogue(t *testing.T) {
	head, _, _ := strings.Cut(ec2Facts, "\n")
	row := func(name, gpus, logical string) string {
		return name + "\t16\t8\t2\t262144\tx86_64\tNVIDIA\tH100\t" + gpus + "\t" + logical + "\t81920\t\tFalse\tFalse\ton-demand\t\t\n"
	}
	c, err := parseCatalogue(strings.NewReader(head + "\n" + row("a.none", "0", "0") + row("b.blank", "", "") + row("c.part", "0", "1") + row("d.whole", "1", "1")))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]struct {
		devices  map[string]uint32
		unknown  []string
		fraction bool
	}{
		"a.none": {nil, []string{coordinator.DeviceNVIDIA}, false}, "b.blank": {nil, []string{coordinator.DeviceNVIDIA}, false},
		"c.part": {nil, nil, true}, "d.whole": {map[string]uint32{coordinator.DeviceNVIDIA: 1}, nil, false},
	} {
		ty, _ := c.Type(name)
		if h := ty.Hardware(); !reflect.DeepEqual(h.Devices, want.devices) || !reflect.DeepEqual(h.Unknown, want.unknown) || ty.Fraction != want.fraction {
			t.Errorf("%s: %+v, fraction %t", name, h, ty.Fraction)
		}
	}
}
