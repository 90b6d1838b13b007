package hwinfo

import (
	"slices"
	"strconv"
	"strings"
)

// Share is what of a machine a batch system has given to a job, as far as the job's environment tells. The control group tells of processors.
type Share struct {
	// GPUs are the numbers of those given, as the machine counts them; nil: not told, empty: none.
	GPUs []int
	// Own: programs see these GPUs only, and count them from 0.
	Own bool
}

// maxShare bounds a list of GPUs in an environment.
const maxShare = 1024

// ShareOf reads a job's environment. Slurm tells by SLURM_JOB_GPUS and, in a step, by SLURM_STEP_GPUS which GPUs of the machine it has given;
// srun passes the former on to nodes that it does not speak of. CUDA_VISIBLE_DEVICES and the like count from 0 where a control group hides the other
// GPUs. PBS sets no more than these. Names in place of numbers (GPU-…, MIG-…) tell nothing here: no report holds them.
func ShareOf(lookup func(string) (string, bool)) Share {
	visible, told := []int(nil), false
	for _, name := range []string{"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"} {
		if text, ok := lookup(name); ok && !told {
			visible, told = deviceNumbers(text)
		}
	}
	given := "SLURM_JOB_GPUS"
	if _, step := lookup("SLURM_STEP_ID"); step {
		given = "SLURM_STEP_GPUS"
	}
	text, ok := lookup(given)
	if !ok {
		if !told {
			return Share{}
		}
		return Share{GPUs: visible} // whether a control group hides others is seen by what the driver's tools show
	}
	gpus, ok := deviceNumbers(text)
	if !ok {
		return Share{}
	}
	return Share{GPUs: gpus, Own: told && !slices.Equal(gpus, visible) && slices.Equal(visible, fromZero(len(gpus)))}
}

func fromZero(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// deviceNumbers reads "2,3", and "NoDevFiles", which is Slurm's word for none.
func deviceNumbers(text string) (list []int, ok bool) {
	list = []int{}
	if text = strings.TrimSpace(text); text == "" || text == "NoDevFiles" {
		return list, true
	}
	for part := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil || n < 0 || n > maxID || len(list) == maxShare || slices.Contains(list, n) {
			return nil, false
		}
		list = append(list, n)
	}
	slices.Sort(list)
	return list, true
}

// Within narrows a machine's facts to the part that a job was given: its GPUs and the links among them, and the processors of its control group
// with their NUMA nodes. What cannot be told apart stays as it is, with a warning.
func (f Facts) Within(s Share) (Facts, []Warning) {
	var warnings []Warning
	if why := f.withinGPUs(s); why != "" {
		warnings = append(warnings, Warning{Source: ".", Message: why})
	}
	f.withinCPUs()
	return f, warnings
}

// withinGPUs keeps the GPUs of a share. It reports why it cannot.
func (f *Facts) withinGPUs(s Share) string {
	vendors, numbered := map[string]bool{}, 0
	usable := 0
	for _, g := range f.GPUs {
		if !g.Driver {
			continue
		}
		vendors[g.Vendor] = true
		if usable++; g.Index != nil {
			numbered++
		}
	}
	hidden := numbered > 0 && numbered < usable // the driver's tools see some of the functions on the bus only
	var keep func(GPU) bool
	switch {
	case usable == 0:
		return ""
	case s.GPUs != nil && len(s.GPUs) == 0:
		keep = func(GPU) bool { return false }
	case len(vendors) > 1 && (s.GPUs != nil || hidden):
		return "GPUs of several vendors are here, and which of them the batch system has given cannot be told"
	case hidden && (s.GPUs == nil || numbered == len(s.GPUs)):
		keep = func(g GPU) bool { return g.Index != nil }
	case s.GPUs == nil:
		return ""
	case s.Own && numbered == usable && numbered == len(s.GPUs): // a container has no others
		return ""
	case !s.Own && numbered == usable && s.GPUs[len(s.GPUs)-1] < usable:
		keep = func(g GPU) bool { return slices.Contains(s.GPUs, *g.Index) }
	case usable == len(s.GPUs):
		return ""
	default:
		return "which GPUs the batch system has given cannot be told: the driver's tools number " + strconv.Itoa(numbered) + " of " + strconv.Itoa(usable) +
			", and " + strconv.Itoa(len(s.GPUs)) + " are given"
	}
	mine := map[string]bool{}
	f.GPUs = slices.DeleteFunc(slices.Clone(f.GPUs), func(g GPU) bool { return !g.Driver || !keep(g) })
	for _, g := range f.GPUs {
		mine[g.Address] = true
	}
	f.GPULinks = slices.DeleteFunc(slices.Clone(f.GPULinks), func(l GPULink) bool { return !mine[l.A] || !mine[l.B] })
	if len(f.GPULinks) == 0 {
		f.GPULinks = nil
	}
	if len(f.GPUs) == 0 {
		f.GPUs = nil
	}
	return ""
}

// withinCPUs keeps the processors of the control group, as whole cores.
func (f *Facts) withinCPUs() {
	threads := 1
	if t := f.CPU.ThreadsPerCore; t != nil && *t > 1 {
		threads = *t
	}
	if len(f.Limits.CPUSet) < threads || f.CPU.Cores == nil {
		return
	}
	mine := map[int]bool{}
	for _, c := range f.Limits.CPUSet {
		mine[c] = true
	}
	cores, left := len(f.Limits.CPUSet)/threads, map[int]bool{}
	nodes := slices.Clone(f.NUMA)
	if len(nodes) > 0 {
		cores = 0
	}
	withCPUs := 0
	for i := range nodes {
		n := &nodes[i]
		had := len(n.CPUs) > 0
		n.CPUs = slices.DeleteFunc(slices.Clone(n.CPUs), func(c int) bool { return !mine[c] })
		cores += len(n.CPUs) / threads
		if len(n.CPUs) > 0 {
			withCPUs++
		}
		left[i] = len(n.CPUs) > 0 || !had && (n.GPU == "" || slices.ContainsFunc(f.GPUs, func(g GPU) bool { return g.Address == n.GPU }))
	}
	if cores == 0 || cores >= *f.CPU.Cores {
		return
	}
	f.NUMA = nil
	for i, n := range nodes {
		if !left[i] {
			continue
		}
		var distances []int
		for j, d := range n.Distances {
			if left[j] {
				distances = append(distances, d)
			}
		}
		n.Distances = distances
		f.NUMA = append(f.NUMA, n)
	}
	logical := len(f.Limits.CPUSet)
	f.CPU.Cores, f.CPU.LogicalCPUs = &cores, &logical
	if f.CPU.NUMANodes != nil {
		f.CPU.NUMANodes = &withCPUs
	}
}
