package main

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"substrate/hwinfo"
)

// thisMachine is a configuration whose one definition is true on the machine under root and says
// of it what distinguishes it. Facts that the machine does not tell are left out.
func thisMachine(root string) []byte {
	facts, _ := hwinfo.Read(root) // what could not be read is absent
	return machineConfig(facts)
}

func machineConfig(facts hwinfo.Facts) []byte {
	var parts []string
	equal := func(name, value string) {
		if value != "" {
			parts = append(parts, fmt.Sprintf("%s == %s", name, exprString(value)))
		}
	}
	equal("cpuinfo.vendor_id", facts.CPU.VendorID)
	equal("cpuinfo.arch", facts.CPU.Arch)
	if n := facts.CPU.Cores; n != nil {
		parts = append(parts, fmt.Sprintf("cpuinfo.cpu_cores == %d", *n))
	}
	equal("osrelease.id", facts.OSRelease.ID)
	for _, p := range facts.PCI {
		if glob := deviceGlob(p.Modalias); glob != "" {
			parts = append(parts, fmt.Sprintf("modalias.match(%s)", exprString(glob)))
			break
		}
	}
	if len(parts) == 0 {
		parts = []string{"true"}
	}
	condition := strings.Join(parts, " &&\n")
	type spec struct {
		Condition yaml.Node `yaml:"condition"`
	}
	type definition struct {
		ID          string `yaml:"id"`
		Provisioner string `yaml:"provisioner"`
		Spec        spec   `yaml:"provisionerSpec"`
	}
	doc := struct {
		Definitions []definition `yaml:"definitions"`
	}{[]definition{{"this-machine", "static", spec{yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Style: yaml.LiteralStyle, Value: condition}}}}}
	data, err := yaml.Marshal(doc)
	if err != nil {
		panic("cannot encode the generated configuration: " + err.Error()) // plain strings always encode
	}
	return append([]byte("# Written by `substrate dev` from what this machine tells of itself.\n"), data...)
}

// deviceGlob matches every function of the vendor and device of a modalias, "" where it has none.
func deviceGlob(modalias string) string {
	// pci:vVVVVVVVVdDDDDDDDDsv…
	if !strings.HasPrefix(modalias, "pci:v") {
		return ""
	}
	head, _, found := strings.Cut(modalias, "sv")
	if !found || len(head) != len("pci:v00000000d00000000") || strings.ContainsAny(head, `*?[\`) {
		return ""
	}
	return head + "*"
}

// exprString quotes a string for the expression language.
func exprString(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		if r == '"' || r == '\\' {
			b.WriteByte('\\')
		}
		if r >= ' ' {
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}
