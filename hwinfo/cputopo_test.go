package hwinfo

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// putCPU writes a CPU's place, as ids and as lists.
func putCPU(t testing.TB, root string, cpu, pkg, die, core int, lists map[string]string) {
	dir := fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology/", cpu)
	for name, id := range map[string]int{"physical_package_id": pkg, "die_id": die, "core_id": core} {
		put(t, root, dir+name, fmt.Appendln(nil, id))
	}
	for name, list := range lists {
		put(t, root, dir+name, []byte(list+"\n"))
	}
}

// TestListsEqualIDs: the lists of siblings give the counts that the ids give, with CPUs offline too.
func TestListsEqualIDs(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		sockets, dies := rapid.IntRange(1, 3).Draw(rt, "sockets"), rapid.IntRange(1, 2).Draw(rt, "dies")
		cores, threads := rapid.IntRange(1, 4).Draw(rt, "cores"), rapid.IntRange(1, 2).Draw(rt, "threads")
		type id struct{ pkg, die, core int }
		var all []id
		for th := range threads {
			for s := range sockets {
				for d := range dies {
					for c := range cores {
						all = append(all, id{s, d, c * 2})
					}
				}
			}
			_ = th
		}
		var online []int
		for n := range all {
			if n == 0 || rapid.IntRange(0, 5).Draw(rt, "online") > 0 {
				online = append(online, n)
			}
		}
		fake := fakeTree{}
		matching := func(same func(a, b id) bool, n int) string {
			var list []int
			for _, m := range online {
				if same(all[n], all[m]) {
					list = append(list, m)
				}
			}
			return formatList(list)
		}
		for _, n := range online {
			dir := fmt.Sprintf("%scpu%d/topology/", cpuDir, n)
			p := all[n]
			fake[dir+"physical_package_id"], fake[dir+"die_id"], fake[dir+"core_id"] = fmt.Sprint(p.pkg), fmt.Sprint(p.die), fmt.Sprint(p.core)
			fake[dir+"package_cpus_list"] = matching(func(a, b id) bool { return a.pkg == b.pkg }, n)
			fake[dir+"die_cpus_list"] = matching(func(a, b id) bool { return a.pkg == b.pkg && a.die == b.die }, n)
			fake[dir+"core_cpus_list"] = matching(func(a, b id) bool { return a == b }, n)
		}
		r := &reader{t: &tree{root: fake}}
		lists, ids := r.placesByList(online), r.placesByID(online, formX86)
		if len(lists) != len(online) {
			rt.Fatalf("no places from lists: %v", lists)
		}
		var a, b CPU
		a.count(len(online), lists)
		b.count(len(online), ids)
		a.Dies, b.Dies = diesOf(lists), diesOf(ids)
		if !reflect.DeepEqual(a, b) {
			rt.Fatalf("lists give %s, ids %s", asJSON(t, Facts{CPU: a}), asJSON(t, Facts{CPU: b}))
		}
	})
}

// TestListsThatLie: lists that contradict one another or unknown ids leave the word to the ids.
func TestListsThatLie(t *testing.T) {
	good := map[string]string{"package_cpus_list": "0-1", "core_cpus_list": "0-1", "die_cpus_list": "0-1"}
	tests := []struct {
		name   string
		change map[string]string // of CPU 0
		pkg    int
		cores  int
	}{
		{"right", nil, 0, 1},
		{"the CPU is not in its own list", map[string]string{"core_cpus_list": "1"}, 0, 2},
		{"not a list", map[string]string{"core_cpus_list": "zero"}, 0, 2},
		{"not symmetric", map[string]string{"core_cpus_list": "0"}, 0, 2},
		{"unknown package", nil, -1, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			put(t, root, cpuDir+"online", []byte("0-1\n"))
			lists := map[string]string{}
			for k, v := range good {
				lists[k] = v
			}
			putCPU(t, root, 1, tt.pkg, 0, 1, lists)
			for k, v := range tt.change {
				lists[k] = v
			}
			putCPU(t, root, 0, tt.pkg, 0, 0, lists)
			f, w := Read(root)
			if deref(f.CPU.Cores) != tt.cores || deref(f.CPU.Sockets) != 1 {
				t.Errorf("%d cores, %d sockets, %v", deref(f.CPU.Cores), deref(f.CPU.Sockets), w)
			}
			checkSnapshot(t, root, f)
		})
	}
}

func TestOfflineAndDies(t *testing.T) {
	root := t.TempDir()
	put(t, root, cpuDir+"online", []byte("0-2,4-6\n"))
	put(t, root, cpuDir+"present", []byte("0-7\n"))
	for n := range 8 {
		state := "1\n"
		if n == 3 {
			state = "0\n"
		}
		if n != 7 { // no directory: said to be there, and not shown
			put(t, root, fmt.Sprintf("%scpu%d/online", cpuDir, n), []byte(state))
		}
		if n != 3 && n != 7 {
			putCPU(t, root, n, n/4, n%4/2, n, nil)
		}
	}
	f, w := Read(root)
	if want := []int{3}; !reflect.DeepEqual(f.CPU.Offline, want) || deref(f.CPU.LogicalCPUs) != 6 || deref(f.CPU.Dies) != 4 || f.CPU.Kinds != nil {
		t.Errorf("got %s, %v", asJSON(t, f), w)
	}
	checkSnapshot(t, root, f)
}

func TestCoreKinds(t *testing.T) {
	x86 := func(flags string, cores ...int) string { // the core of each CPU
		var b strings.Builder
		for n, c := range cores {
			fmt.Fprintf(&b, "processor\t: %d\nvendor_id\t: GenuineIntel\nmodel name\t: X\nphysical id\t: 0\ncore id\t\t: %d\nflags\t\t: %s\n\n", n, c, flags)
		}
		return b.String()
	}
	arm := func(parts ...string) string {
		var b strings.Builder
		for n, p := range parts {
			fmt.Fprintf(&b, "processor\t: %d\nCPU implementer\t: 0x41\nCPU part\t: %s\n\n", n, p)
		}
		return b.String()
	}
	one, two := ptr(1), ptr(2)
	tests := []struct {
		name  string
		cpu   string
		files map[string]string
		want  []CoreKind
	}{
		{"by threads", x86("fpu", 0, 0, 4, 4, 8, 9, 10), nil, []CoreKind{{"", 4, two, two}, {"", 3, ptr(3), one}}},
		{"a guest's shape says nothing", x86("fpu hypervisor", 0, 0, 1), nil, nil},
		{"all alike", x86("fpu", 0, 0, 1, 1), nil, nil},
		{"hidden CPUs", x86("fpu", 0, 0, 1), map[string]string{cpuDir + "online": "0-2", cpuDir + "present": "0-3"}, nil},
		{"by counters", x86("fpu", 0, 0, 1, 2), map[string]string{cpuDir + "online": "0-3", "sys/devices/cpu_core/cpus": "0-1", "sys/devices/cpu_atom/cpus": "2-3"},
			[]CoreKind{{"performance", 2, one, two}, {"efficiency", 2, two, one}}},
		{"three kinds", x86("fpu", 0, 1, 2), map[string]string{cpuDir + "online": "0-2", "sys/devices/cpu_core/cpus": "0", "sys/devices/cpu_atom/cpus": "1", "sys/devices/cpu_lowpower/cpus": "2"},
			[]CoreKind{{"efficiency", 1, one, one}, {"low-power", 1, one, one}, {"performance", 1, one, one}}},
		{"big and little", arm("0xd05", "0xd05", "0xd05", "0xd0b"), map[string]string{cpuDir + "online": "0-3"},
			[]CoreKind{{"Cortex-A76", 1, nil, nil}, {"Cortex-A55", 3, nil, nil}}},
		{"a part without a name", arm("0xd05", "0xfff"), map[string]string{cpuDir + "online": "0-1"},
			[]CoreKind{{"0x41:0xfff", 1, nil, nil}, {"Cortex-A55", 1, nil, nil}}},
		{"numbers of a container", arm("0xd05", "0xd0b"), map[string]string{cpuDir + "online": "4-5"}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			put(t, root, "proc/cpuinfo", []byte(tt.cpu))
			for name, text := range tt.files {
				put(t, root, name, []byte(text+"\n"))
			}
			f, w := Read(root)
			if !reflect.DeepEqual(f.CPU.Kinds, tt.want) {
				t.Errorf("got %s, %v", asJSON(t, Facts{CPU: f.CPU}), w)
			}
			checkSnapshot(t, root, f)
			checkWalk(t, root, f)
		})
	}
}

func TestClusters(t *testing.T) {
	root := t.TempDir()
	put(t, root, cpuDir+"online", []byte("0-3\n"))
	put(t, root, "proc/cpuinfo", []byte("processor\t: 0\nCPU implementer\t: 0x48\nCPU part\t: 0xd01\n"))
	for n := range 4 {
		putCPU(t, root, n, n/2, -1, n, nil)
		put(t, root, fmt.Sprintf("%scpu%d/topology/cluster_id", cpuDir, n), []byte("57\n")) // repeats in each package
	}
	if f, w := Read(root); deref(f.CPU.Clusters) != 2 || f.CPU.Dies != nil {
		t.Errorf("got %s, %v", asJSON(t, f), w)
	}
}

func TestAffinity(t *testing.T) {
	tests := []struct {
		name, online, status string
		cpus                 float64 // 0: no limit
		set                  []int
	}{
		{"all", "0-3", "Cpus_allowed_list:\t0-3\n", 0, nil},
		{"more than there are", "0-3", "Cpus_allowed_list:\t0-127\n", 0, nil},
		{"some", "0-3", "Cpus_allowed_list:\t1,3\n", 2, []int{1, 3}},
		{"another numbering", "0-3", "Cpus_allowed_list:\t24-25\n", 2, nil},
		{"not a list", "0-3", "Cpus_allowed_list:\tall\n", 0, nil},
		{"not said", "0-3", "Name:\tx\n", 0, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			put(t, root, cpuDir+"online", []byte(tt.online+"\n"))
			put(t, root, statusFile, []byte(tt.status))
			f, w := Read(root)
			got := 0.0
			if f.Limits.CPUs != nil {
				got = *f.Limits.CPUs
			}
			if got != tt.cpus || !reflect.DeepEqual(f.Limits.CPUSet, tt.set) {
				t.Errorf("got %v, %v, %v", got, f.Limits.CPUSet, w)
			}
			checkSnapshot(t, root, f)
		})
	}
}

// TestMemoryElsewhere: the second places where the kernel says the same.
func TestMemoryElsewhere(t *testing.T) {
	root := t.TempDir()
	put(t, root, "proc/meminfo", []byte("MemTotal:       16384000 kB\nHugePages_Total:     512\nHugepagesize:       2048 kB\n"))
	put(t, root, "sys/devices/system/memory/block_size_bytes", []byte("8000000\n"))
	put(t, root, "sys/devices/system/memory/memory0/online", []byte("1\n"))
	put(t, root, "sys/devices/system/memory/memory1/online", []byte("0\n"))
	put(t, root, "sys/devices/system/memory/memory2/state", []byte("going-offline\n"))
	f, w := Read(root)
	m := f.Memory
	if want := []HugePages{{2 << 20, 512}}; !reflect.DeepEqual(m.HugePages, want) || *m.Usable != 16384000<<10-1<<30 {
		t.Errorf("got %s, %v", asJSON(t, f), w)
	}
	if want := (MemoryBlocks{128 << 20, 256 << 20, 128 << 20}); m.Blocks == nil || *m.Blocks != want {
		t.Errorf("blocks %+v, %v", m.Blocks, w)
	}
	checkSnapshot(t, root, f)
}

// TestNegativeTotal: a total that cannot be is no total.
func TestNegativeTotal(t *testing.T) {
	for _, text := range []string{"MemTotal: -1 kB\n", "MemTotal: 0 kB\n", "MemTotal: lots\n", "MemTotal: 18446744073709551615 kB\n", "MemFree: 1 kB\n"} {
		root := t.TempDir()
		put(t, root, "proc/meminfo", []byte(text))
		if f, w := Read(root); f.Memory.Total != nil || f.Memory.Usable != nil || len(w) == 0 {
			t.Errorf("%q gives %s, %v", text, asJSON(t, f), w)
		}
	}
}
