package spec

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"substrate/strictyaml"
)

var update = flag.Bool("update", false, "rewrite the expected part of testdata")

// read decodes `kind: {…}` or `backend: {…}`.
func read(t testing.TB, in string) (*Decoded, *Backend, strictyaml.Diagnostics) {
	t.Helper()
	doc, ds := strictyaml.Parse("in.yaml", []byte(in), strictyaml.Limits{})
	if doc == nil {
		return nil, nil, ds
	}
	entries, ok := doc.Root().Entries()
	if !ok || len(entries) != 1 {
		return nil, nil, doc.Diagnostics()
	}
	if entries[0].Name == "backend" {
		b, _ := DecodeBackend(entries[0].Value)
		return nil, &b, doc.Diagnostics()
	}
	d := Decode(entries[0].Name, entries[0].Value)
	return d, nil, doc.Diagnostics()
}

// TestStories decodes each `in` of testdata and compares result and findings with `want`.
func TestStories(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no testdata: %v", err)
	}
	for _, f := range files {
		ar, err := txtar.ParseFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i+1 < len(ar.Files); i += 2 {
			in, want := ar.Files[i], &ar.Files[i+1]
			t.Run(in.Name, func(t *testing.T) {
				got := describe(read(t, string(in.Data)))
				if *update {
					want.Data = []byte(got)
				} else if got != string(want.Data) {
					t.Errorf("got\n%swant\n%s", got, want.Data)
				}
			})
		}
		if *update {
			if err := os.WriteFile(f, txtar.Format(ar), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func describe(d *Decoded, b *Backend, ds strictyaml.Diagnostics) string {
	var out strings.Builder
	for _, f := range ds {
		fmt.Fprintf(&out, "%s %s\n", f.Severity, f)
	}
	if ds.Err() != nil {
		return out.String()
	}
	if b != nil {
		text, _ := json.Marshal(b)
		fmt.Fprintf(&out, "%s\n", text)
		return out.String()
	}
	text, _ := json.Marshal(d.Spec)
	fmt.Fprintf(&out, "%T %s\n", d.Spec, text)
	if d.CostPerHour != nil {
		fmt.Fprintf(&out, "cost %v\n", *d.CostPerHour)
	}
	if d.Hardware != nil {
		fmt.Fprintf(&out, "hardware %+v\n", *d.Hardware)
	}
	fmt.Fprintf(&out, "placeholders %v\n", d.Placeholders())
	return out.String()
}

func TestFingerprint(t *testing.T) {
	print := func(in string, b Backend) string {
		d, _, ds := read(t, in)
		if ds.Err() != nil {
			t.Fatal(ds)
		}
		return Fingerprint(d, b)
	}
	base := print("aws: {instanceType: t3.*}", Backend{Kind: KindAWS, Name: "a", Region: "eu-west-1"})
	same := print("aws: {instanceType: t3.*, costPerHour: 2, spot: true}", Backend{Kind: KindAWS, Name: "b", Region: "eu-west-1", CredentialFile: "/k"})
	if base != same {
		t.Error("names, credentials and costs must not count")
	}
	for name, other := range map[string]string{
		"type":   print("aws: {instanceType: p5.*}", Backend{Kind: KindAWS, Region: "eu-west-1"}),
		"region": print("aws: {instanceType: t3.*}", Backend{Kind: KindAWS, Region: "eu-west-2"}),
		"zone":   print("aws: {instanceType: t3.*, zone: eu-west-1a}", Backend{Kind: KindAWS, Region: "eu-west-1"}),
		"kind":   print("coreweave: {instanceType: t3.x}", Backend{Kind: KindCoreWeave, Region: "eu-west-1"}),
	} {
		if other == base {
			t.Errorf("another %s gives the same fingerprint", name)
		}
	}
	local := print("slurm: {cpu: 1, memory: 1GiB}", Implicit(KindSlurm))
	remote := print("slurm: {cpu: 1, memory: 1GiB}", Backend{Kind: KindSlurm, Transport: Transport{SSH: &SSH{Host: "h", Port: 22}}})
	if local == remote || local != print("slurm: {cpu: 64, memory: 2GiB}", Backend{Kind: KindSlurm, Name: "here"}) {
		t.Error("slurm targets")
	}
}

func TestWithType(t *testing.T) {
	d, _, _ := read(t, "aws: {instanceType: t3.*, spot: true}")
	if got := d.WithType("t3.nano").(AWS); got.InstanceType != "t3.nano" || !got.Spot || d.Spec.(AWS).InstanceType != "t3.*" {
		t.Errorf("%+v", got)
	}
	if Decode("docker", strictyaml.Value{}) != nil {
		t.Error("an unknown kind must give nil")
	}
}

func FuzzDecode(f *testing.F) {
	f.Add("aws", "instanceType: t3.*\nspot: true\n")
	f.Add("slurm", "cpu: 1\nmemory: 1GiB\nextraDirectives: ['--x']\n")
	f.Add("backend", "name: a\nkind: slurm\ntransport: {ssh: {host: h}}\n")
	f.Add("oci", "shape: VM.Flex\nocpus: 0.5\nmemory: 1\n")
	f.Fuzz(func(t *testing.T, kind, text string) {
		doc, _ := strictyaml.Parse("f.yaml", []byte(text), strictyaml.Limits{})
		if doc == nil {
			return
		}
		if kind == "backend" {
			DecodeBackend(doc.Root())
			return
		}
		if d := Decode(kind, doc.Root()); d != nil && !doc.Failed() {
			if d.TypeKey != "" && d.Type == "" {
				t.Fatal("accepted without a type")
			}
			Fingerprint(d, Implicit(kind))
		}
	})
}
