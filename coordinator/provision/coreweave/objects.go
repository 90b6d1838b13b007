package coreweave

import (
	"fmt"
	"maps"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"substrate/coordinator"
	"substrate/coordinator/provision"
	"substrate/coordinator/provision/cloud"
	"substrate/coordinator/spec"
)

// markOver is on the secret of a launch that is over, whose token is gone.
const markOver = "substrate-over"

type object = map[string]any

// labels are the launch's marks as labels: values of those begin and end with a letter or digit.
func labels(cluster string, r provision.Request) object {
	out := object{}
	for key, value := range cloud.Marks(cluster, r) {
		out[key] = strings.Trim(value, "-_")
	}
	return out
}

func made(version, kind string, metadata object, rest object) *unstructured.Unstructured {
	out := object{"apiVersion": version, "kind": kind, "metadata": metadata}
	maps.Copy(out, rest)
	return &unstructured.Unstructured{Object: out}
}

// poolOf is the node pool of a launch. Nothing but the launch's pod and what every node carries goes to its node.
func poolOf(cluster, name string, r provision.Request, s spec.CoreWeave) *unstructured.Unstructured {
	return made("compute.coreweave.com/v1alpha1", "NodePool",
		object{"name": name, "labels": labels(cluster, r), "annotations": object{"substrate-node": r.Boot.Node}},
		object{"spec": object{
			"computeClass": "default", "instanceType": s.InstanceType, "targetNodes": int64(1), "autoscaling": false,
			"nodeLabels": labels(cluster, r),
			"nodeTaints": []any{object{"key": cloud.MarkLaunch, "value": string(r.ID), "effect": "NoSchedule"}},
			// With IdleOnly a pod of the system's would keep the node.
			"lifecycle": object{"scaleDownStrategy": "PreferIdle"},
		}})
}

const tokenKey = "token"

// secretOf holds the launch's token, and stays when the launch is over.
func secretOf(cluster, name string, r provision.Request) *unstructured.Unstructured {
	return made("v1", "Secret", object{"name": name, "labels": labels(cluster, r)}, object{"type": "Opaque", "stringData": object{tokenKey: r.Boot.Token}})
}

// podOf starts the agent on the pool's node, and ends with the pool, whose it is.
func (p *Provisioner) podOf(name, poolUID string, r provision.Request) *unstructured.Unstructured {
	return made("v1", "Pod",
		object{"name": name, "labels": labels(p.opt.Cluster, r), "ownerReferences": []any{object{
			"apiVersion": "compute.coreweave.com/v1alpha1", "kind": "NodePool", "name": name, "uid": poolUID}}},
		object{"spec": object{
			"nodeSelector":       object{cloud.MarkLaunch: string(r.ID)},
			"tolerations":        []any{object{"operator": "Exists"}},
			"restartPolicy":      "Never",
			"hostNetwork":        true,
			"hostPID":            true,
			"hostIPC":            true,
			"dnsPolicy":          "Default", // the node's
			"enableServiceLinks": false,
			// What runs on the node has no business with the cluster's API.
			"automountServiceAccountToken": false,
			"containers": []any{object{
				"name": "agent", "image": p.image, "command": []any{"/bin/sh", "-c", p.script(r, hostRoot)},
				"env":                      []any{object{"name": "SUBSTRATED_JOIN_TOKEN", "valueFrom": object{"secretKeyRef": object{"name": name, "key": tokenKey}}}},
				"securityContext":          object{"privileged": true, "runAsUser": int64(0)},
				"terminationMessagePolicy": "FallbackToLogsOnError",
				"volumeMounts":             []any{object{"name": "node", "mountPath": hostRoot, "mountPropagation": "HostToContainer"}},
			}},
			"volumes": []any{object{"name": "node", "hostPath": object{"path": "/", "type": "Directory"}}},
		}})
}

// hostRoot is where the pod has the node's files.
const hostRoot = "/node"

// script is what the pod runs: it copies the agent to the node and starts it there, with the node's files as its own. One that is killed is started again, as
// jobs of the node outlive it; when it ends by itself the pod is over, which is seen in the list.
func (p *Provisioner) script(r provision.Request, root string) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	state := p.agent.StateDir
	bin := state + "/bin"
	line("set -eu")
	line("umask 077")
	line("agent=$(command -v %s)", coordinator.ShellWord(p.agent.Program))
	line("mkdir -p %s", coordinator.ShellWord(root+bin))
	for _, program := range []string{"substrated", "substrate-probe"} {
		from := `"$agent"`
		if program != "substrated" { // it lies beside the agent, where there is one
			from = `"${agent%/*}/` + program + `"`
		}
		to := coordinator.ShellWord(root + bin + "/" + program)
		line(`[ ! -e %s ] || { cp %s %s.new; chmod 755 %s.new; mv %s.new %s; }`, from, from, to, to, to, to)
	}
	line("run() {")
	line("  chroot %s %s run --coordinator %s --node %s --launch %s --state-dir %s --join-within %s", coordinator.ShellWord(root), coordinator.ShellWord(bin+"/substrated"),
		coordinator.ShellWord(r.Boot.Coordinator), coordinator.ShellWord(r.Boot.Node), coordinator.ShellWord(string(r.ID)), coordinator.ShellWord(state), p.agent.JoinWithin)
	line("}")
	line("while code=0; run || code=$?; [ $code -gt 128 ]; do sleep 2; done")
	line("exit $code")
	return b.String()
}
