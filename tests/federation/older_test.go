package federation

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// olderRelease is what a release of before the attributes does not do, as changes of this one's source: it sends none,
// reads none, and says of none that it understands them.
func olderRelease() map[string][][2]string {
	return map[string][][2]string{
		"coordinator/server/federate.go": {
			{"scheduling, err := proto.Marshal(attributesToProto(attrs))", "_, err = proto.Marshal(attributesToProto(attrs))"},
			{"string(behalf), schedulingMetadata, string(scheduling))", "string(behalf))"},
			{"&apiv1.DescribeRequest{AttributesSchema: federation.Schema}", "&apiv1.DescribeRequest{}"},
		},
		"coordinator/server/federation.go": {
			{"if present, err = header(md, schedulingMetadata, &scheduling); err != nil", "if present = false; err != nil"},
			{"AttributesSchema: d.Schema, PrioritySha256: d.PrioritySHA256, Priority: d.Priority,", ""},
		},
	}
}

const olderVersion = "v0.0.1-older"

// buildOlder builds a coordinator of before the attributes.
func buildOlder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	replace := map[string]string{}
	for name, edits := range olderRelease() {
		path := filepath.Join(root, name)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		changed := string(text)
		for _, e := range edits {
			if strings.Count(changed, e[0]) != 1 {
				t.Fatalf("%s has not one line of which an older release differs: %s", name, e[0])
			}
			changed = strings.Replace(changed, e[0], e[1], 1)
		}
		replace[path] = filepath.Join(dir, filepath.Base(name))
		write(t, replace[path], changed)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "overlay.json"), string(overlay))
	program := filepath.Join(dir, "substrate-coordinator")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w -X main.version="+olderVersion, "-overlay", filepath.Join(dir, "overlay.json"),
		"-o", program, "substrate/cmd/substrate-coordinator")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cannot build the older release: %v\n%s", err, out)
	}
	return program
}
