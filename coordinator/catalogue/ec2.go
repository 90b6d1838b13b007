package catalogue

import (
	_ "embed"
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"strings"

	"substrate/coordinator"
)

// ec2Facts is the snapshot of the EC2 catalogue; see the file's header line for its columns.
// It is written once, by the compiler.
//
//go:embed ec2.tsv
var ec2Facts string

// EC2 parses the embedded snapshot; a caller does so once and keeps the result.
func EC2() (*Catalogue, error) { return parseCatalogue(strings.NewReader(ec2Facts)) }

func parseCatalogue(r io.Reader) (*Catalogue, error) {
	cr := csv.NewReader(r)
	cr.Comma, cr.LazyQuotes, cr.ReuseRecord = '\t', true, true
	header, err := cr.Read()
	if err != nil {
		return nil, fmt.Errorf("cannot read catalogue: %w", err)
	}
	column := make(map[string]int, len(header))
	for i, name := range header {
		column[name] = i
	}
	for _, name := range []string{"type", "vcpus", "cores", "threads_per_core", "memory_mib", "architectures", "gpu_manufacturer",
		"gpu_count", "gpu_logical_count", "gpu_memory_mib", "bare_metal", "usage_classes", "usd_per_hour_us_east_1", "node_memory_shortfall_bytes_2023"} {
		if _, ok := column[name]; !ok {
			return nil, fmt.Errorf("cannot read catalogue: the column %s is missing", name)
		}
	}
	c := &Catalogue{complete: true, priced: "us-east-1"}
	var types []Type
	for len(types) < 100_000 {
		rec, err := cr.Read()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read catalogue: %w", err)
		}
		t, err := parseType(func(name string) string { return rec[column[name]] })
		if err != nil {
			return nil, err
		}
		types = append(types, t)
	}
	if err := c.add(types); err != nil {
		return nil, err
	}
	return c, nil
}

func parseType(field func(string) string) (Type, error) {
	t := Type{Name: strings.Clone(field("type")), GPUVendor: strings.Clone(field("gpu_manufacturer"))}
	var failed error
	number := func(name string) *uint64 {
		s := field(name)
		if s == "" || failed != nil {
			return nil
		}
		n, err := strconv.ParseUint(s, 10, 63)
		if err != nil {
			failed = fmt.Errorf("cannot read catalogue: type %s, column %s: %q is not a whole number", t.Name, name, s)
			return nil
		}
		return &n
	}
	count := func(name string) *uint32 {
		n := number(name)
		if n == nil || *n > 1<<31 {
			return nil
		}
		c := uint32(*n)
		return &c
	}
	t.VCPUs, t.Cores, t.ThreadsPerCore = count("vcpus"), count("cores"), count("threads_per_core")
	if m := number("memory_mib"); m != nil && *m < 1<<40 {
		b := coordinator.Bytes(*m << 20)
		t.Memory = &b
	}
	t.GPUs = count("gpu_count")
	if t.GPUs == nil || *t.GPUs == 0 { // with logical ones it is a part of a GPU; without, a number that nobody has entered
		logical := count("gpu_logical_count")
		t.GPUs, t.Fraction = nil, logical != nil && *logical > 0
	}
	if s := number("node_memory_shortfall_bytes_2023"); s != nil {
		b := coordinator.Bytes(*s)
		t.Shortfall = &b
	}
	if s := field("usd_per_hour_us_east_1"); s != "" && failed == nil {
		p, err := strconv.ParseFloat(s, 64)
		if err != nil {
			return Type{}, fmt.Errorf("cannot read catalogue: type %s: %q is not a price", t.Name, s)
		}
		t.CostPerHour = &p
	}
	t.Arch = goArch(field("architectures"))
	t.BareMetal = strings.EqualFold(field("bare_metal"), "true")
	if s := field("usage_classes"); s != "" {
		t.UsageClasses = strings.Split(strings.Clone(s), ",")
	}
	return t, failed
}

// goArch turns EC2's list of architectures into Go's name of the widest.
func goArch(list string) string {
	for _, a := range strings.Split(list, ",") {
		switch strings.TrimSuffix(a, "_mac") {
		case "x86_64":
			return "amd64"
		case "arm64":
			return "arm64"
		}
	}
	return ""
}
