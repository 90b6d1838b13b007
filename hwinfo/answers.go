package hwinfo

import (
	"encoding/json"
	"strings"
)

// Answers are texts of programs that know what no file tells, by name. Read finds the same names as files below
// run/substrate/probe, where a snapshot keeps them.
type Answers map[string][]byte

// Names of the answers, best first. What a better one tells is not looked for in the others.
const (
	AnswerNVML   = "nvml.json"         // printed by substrate-probe
	AnswerGPUs   = "nvidia-smi-gpus"   // nvidia-smi --format=csv,noheader,nounits --query-gpu= and GPUQuery
	AnswerList   = "nvidia-smi-list"   // nvidia-smi -L: which GPUs are split, and into what
	AnswerTopo   = "nvidia-smi-topo"   // nvidia-smi topo -m
	AnswerRemote = "nvidia-smi-nvlink" // nvidia-smi nvlink -R
)

// GPUQuery names the columns of AnswerGPUs.
const GPUQuery = "index,pci.bus_id,name,memory.total,mig.mode.current"

const (
	probeDir  = "run/substrate/probe"
	maxAnswer = 1 << 20
	maxGPUs   = 256
)

// ReadWith is Read with answers in place of the files that a snapshot has for them.
func ReadWith(root string, answers Answers) (Facts, []Warning) {
	return read(root, answers)
}

// Askable tells whether root shows the running kernel and an NVIDIA driver in it, so that asking programs of this
// machine tells something about that root.
func Askable(root string) bool {
	t, err := openTree(root, nil)
	if err != nil {
		return false
	}
	names, err := t.list(nvidiaDir)
	askable := err == nil && len(names) > 0 && t.live()
	return t.close() == nil && askable
}

// answer returns a program's text and where it is from; "" when there is none.
func (r *reader) answer(name string) (data []byte, source string) {
	source = probeDir + "/" + name
	if data, ok := r.answers[name]; ok {
		if len(data) > maxAnswer {
			r.warn(source, tooLong(maxAnswer))
			return nil, ""
		}
		if r.t.rec != nil {
			r.t.rec.files[source] = scrub(source, data)
		}
		return data, source
	}
	data, err := r.t.read(source, maxAnswer)
	if err != nil {
		if !absent(err) {
			r.warn(source, err)
		}
		return nil, ""
	}
	return data, source
}

// scrubAnswer takes the UUIDs of boards and instances out of a program's text: "(UUID: GPU-…)". Of JSON only what is
// known stays, of what is no such JSON nothing.
func scrubAnswer(name string, data []byte) []byte {
	if !strings.HasPrefix(name, probeDir+"/") {
		return data
	}
	if strings.HasSuffix(name, "/"+AnswerNVML) {
		var report NVMLReport
		if json.Unmarshal(data, &report) != nil {
			return []byte("{\n")
		}
		data, err := json.Marshal(report)
		if err != nil {
			return []byte("{\n")
		}
		return append(data, '\n')
	}
	var b strings.Builder
	rest := string(data)
	for {
		i := strings.Index(rest, "(UUID:")
		if i < 0 {
			break
		}
		b.WriteString(strings.TrimRight(rest[:i], " "))
		rest = rest[i:]
		end := strings.IndexAny(rest, ")\n")
		switch {
		case end < 0:
			rest = ""
		case rest[end] == ')':
			rest = rest[end+1:]
		default:
			rest = rest[end:]
		}
	}
	b.WriteString(rest)
	return []byte(b.String())
}
