package clouds

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"substrate/proto/apiv1"
	"substrate/tests/cluster"
	"substrate/tests/fakecloud"
	"substrate/tests/vm"
)

// Two types as EC2 has them; on machines of the second there is less memory than is sold, by more than anybody would think.
const vmConfig = `
backends:
  - {name: east, kind: aws, region: us-east-1, endpoint: %q, credentialFile: %q}
definitions:
  - {id: small, provisioner: aws, backend: east, idleTimeout: 2s, maxNodes: 2, provisionerSpec: {instanceType: t3.small, imageId: ami-1}}
  - {id: short, provisioner: aws, backend: east, idleTimeout: 2s, maxNodes: 2, provisionerSpec: {instanceType: t3.medium, imageId: ami-1}}
`

const mib = 1 << 20

// vms is a region whose instances are virtual machines.
type vms struct {
	*region
	machines *vm.Machines
}

// newVMs has virtual machines, one test at a time: each takes a processor while it boots.
func newVMs(t *testing.T, config string, metadata func(fakecloud.Instance) http.Handler) *vms {
	t.Helper()
	machines := vm.New(t, vm.Options{Other: metadata, Agent: cluster.Program("substrated"), Memory: func(typ fakecloud.Type) uint64 {
		if typ.Name == "t3.medium" {
			return 3072
		}
		return typ.Memory
	}})
	cloud := fakecloud.New(fakecloud.Options{Machine: machines, Types: []fakecloud.Type{
		{Name: "t3.small", VCPUs: 2, Cores: 1, Memory: 2048, Arch: "amd64", Spot: true, Price: 0.0208},
		{Name: "t3.medium", VCPUs: 2, Cores: 1, Memory: 4096, Arch: "amd64", Spot: true, Price: 0.0416},
	}})
	machines.Cloud = cloud
	return &vms{newRegion(t, cloud, config, machines.Consoles, "--launch-address", vm.Gateway+":AGENTS-PORT", "--host", vm.Gateway+",127.0.0.1,localhost"), machines}
}

func (v *vms) definition(id string) *apiv1.Definition {
	v.t.Helper()
	out, err := v.CLI("node", "provisioner", "describe", id, "-o", "json").Output()
	d := &apiv1.Definition{}
	if err == nil {
		err = protojson.Unmarshal(out, d)
	}
	if err != nil {
		v.t.Fatalf("%v\n%s", err, out)
	}
	return d
}

func job(memory uint64, command string) string {
	return fmt.Sprintf("version: v1\nname: story\njobs:\n  a: {command: [sh, -c, %q], resource: {cpu: {cores: 1}, memory: {size: %d}}, policy: {timeout: {execute: 5m}, restart: on-node-fault}}\n", command, memory)
}

func (v *vms) slowly(what string, done func() error) {
	v.t.Helper()
	cluster.Until(v.t, 2*time.Minute, what, func(context.Context) error { return done() })
}

// TestVMDiscovery: real machines boot, read their user data, report what they have and are terminated; what they reported replaces what was estimated,
// for work that would not have fitted the estimate and for work that fits nothing else. A workflow then runs on a machine, which goes when it is idle.
func TestVMDiscovery(t *testing.T) {
	v := newVMs(t, vmConfig, nil)
	before := map[string]uint64{}
	for _, id := range []string{"small", "short"} {
		d := v.definition(id)
		if d.GetHardwareSource() == "report" || d.GetCapacity().GetMemoryBytes() == 0 {
			t.Fatalf("before anything was launched: %v", d)
		}
		before[id] = d.GetCapacity().GetMemoryBytes()
	}
	out, err := v.CLI("node", "provisioner", "discover").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "t3.small") || !strings.Contains(string(out), "t3.medium") || !strings.Contains(string(out), "USD") {
		t.Fatalf("discover: %v\n%s", err, out)
	}
	v.slowly("both types are known and their machines gone", func() error {
		small, short := v.definition("small").GetHardwareSource(), v.definition("short").GetHardwareSource()
		if small != "report" || short != "report" || v.cloud.Live() > 0 || v.machines.Running() > 0 {
			return fmt.Errorf("%s, %s, %d instances, %d machines", small, short, v.cloud.Live(), v.machines.Running())
		}
		return nil
	})
	if made := v.cloud.Made(); made != 2 {
		t.Errorf("%d instances for two types", made)
	}
	after := map[string]uint64{}
	for id, sold := range map[string]uint64{"small": 2048 * mib, "short": 3072 * mib} {
		c := v.definition(id).GetCapacity()
		after[id] = c.GetMemoryBytes()
		if c.GetCores() != 2 || c.GetMemoryBytes() >= sold || c.GetMemoryBytes() < sold*9/10 {
			t.Errorf("%s reported %v", id, c)
		}
	}
	if after["small"] <= before["small"] || after["short"] >= before["short"] {
		t.Fatalf("reported %v, estimated %v: the first is to be more and the second less", after, before)
	}
	larger := v.StartWorkflow(job(before["small"]+(after["small"]-before["small"])/2, "grep -c ^processor /proc/cpuinfo; cat /sys/class/dmi/id/product_name"))
	lesser := filepath.Join(t.TempDir(), "lesser.yaml")
	if err := os.WriteFile(lesser, []byte(job(after["short"]+(before["short"]-after["short"])/2, "true")), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := v.CLI("workflow", "start", lesser).CombinedOutput(); err == nil || !strings.Contains(string(out), "as a node of the type has reported") {
		t.Errorf("what fitted the estimate alone: %v\n%s", err, out)
	}
	v.AwaitJob(2*time.Minute, larger, "a", "finished")
	if text, err := v.Client().Output(t.Context(), larger, "a", "stdout"); err != nil || !strings.HasPrefix(string(text), "2\nt3.") {
		t.Errorf("the job says %q, %v", text, err)
	}
	v.slowly("idle machines are terminated", v.over)
	if made := v.cloud.Made(); made != 3 {
		t.Errorf("%d instances; none is to be launched for what no machine has room for", made)
	}
}

// TestVMReclaimed: a machine hears that it is taken back, its work goes to another one before that, and it is gone. The second one goes without a word.
func TestVMReclaimed(t *testing.T) {
	notices := vm.NewSpotNotices(t, "../vm/imds")
	v := newVMs(t, strings.ReplaceAll(vmConfig, "imageId: ami-1}", "imageId: ami-1, spot: true}"), notices.Of)
	w := v.StartWorkflow(job(64*mib, "echo on $(hostname); sleep 8"))
	v.AwaitJob(2*time.Minute, w, "a", "running")
	first := v.cloud.List()[0].ID
	notices.Tell(first)
	v.slowly("the notice is heard", func() error {
		events, err := v.Client().Events(context.Background(), "")
		if err != nil {
			return err
		}
		for _, e := range events {
			if e.GetKind() == "node-taken-back" && strings.Contains(e.GetMessage(), "spot instance: terminate") {
				return nil
			}
		}
		return fmt.Errorf("%d events, none of them says so", len(events))
	})
	v.slowly("the work runs on another machine", func() error {
		j, err := v.Client().Job(context.Background(), w, "a")
		if err != nil || j.GetStatus() != "running" || v.cloud.Made() < 2 {
			return fmt.Errorf("it is %s, %d machines were made, %v", j.GetStatus(), v.cloud.Made(), err)
		}
		return nil
	})
	for _, i := range v.cloud.List() {
		v.cloud.Reclaim(i.ID)
	}
	v.AwaitJob(2*time.Minute, w, "a", "finished")
	v.slowly("idle machines are terminated", v.over)
	if made := v.cloud.Made(); made != 3 {
		t.Errorf("%d instances were made", made)
	}
}

// TestVMThatHangs: a machine that hangs while it boots is given up at the end of joinTimeout, and the work runs on another one. The one that wakes up again is gone by then.
func TestVMThatHangs(t *testing.T) {
	if !cluster.FullPeers() {
		t.Skip("takes a minute; `make test-peers` runs it")
	}
	v := newVMs(t, strings.ReplaceAll(vmConfig, "maxNodes: 2", "maxNodes: 2, joinTimeout: 45s"), nil)
	w := v.StartWorkflow(job(64*mib, "true"))
	v.slowly("a machine is on", func() error {
		if v.machines.Running() == 0 {
			return fmt.Errorf("none is")
		}
		return nil
	})
	first := v.cloud.List()[0].ID
	v.machines.Freeze(first)
	v.slowly("it is given up", func() error {
		if i, ok := v.cloud.Instance(first); ok && i.State < fakecloud.Stopping {
			return fmt.Errorf("it is %v", i.State)
		}
		return nil
	})
	v.AwaitJob(2*time.Minute, w, "a", "finished")
	v.slowly("idle machines are terminated", v.over)
}
