package sched

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"substrate/coordinator"
)

// coreDomains are as many domains as sockets are given; their ids are not their indexes.
func coreDomains(sockets ...int) []Domain {
	domains := make([]Domain, len(sockets))
	for i, s := range sockets {
		domains[i] = Domain{ID: 2 * i, Socket: s, Cores: 64, Memory: 1 << 40}
	}
	return domains
}

func TestPickCores(t *testing.T) {
	const none, core, socket, numa = coordinator.AffinityNone, coordinator.AffinityCore, coordinator.AffinitySocket, coordinator.AffinityNUMA
	four := coreDomains(0, 0, 1, 1)
	type memory = []coordinator.Bytes
	for _, c := range []struct {
		name    string
		domains []Domain
		free    []uint32
		memory  memory
		ask     coreAsk
		want    []uint32
		no      bool
	}{
		{"one domain, the tightest", four, []uint32{8, 5, 4, 9}, nil, coreAsk{want: 4}, []uint32{0, 0, 4, 0}, false},
		{"the first of equals", four, []uint32{8, 5, 5, 9}, nil, coreAsk{want: 4, affinity: numa}, []uint32{0, 4, 0, 0}, false},
		{"near its GPUs", four, []uint32{8, 5, 4, 9}, nil, coreAsk{want: 4, near: []int{6, 0}}, []uint32{0, 0, 0, 4}, false},
		{"near, second choice", four, []uint32{8, 5, 4, 3}, nil, coreAsk{want: 4, near: []int{6, 0}}, []uint32{4, 0, 0, 0}, false},
		{"NUMA holds it nowhere", four, []uint32{8, 8, 8, 8}, nil, coreAsk{want: 9, affinity: numa}, nil, true},
		{"SOCKET, the tighter one", four, []uint32{8, 8, 8, 4}, nil, coreAsk{want: 10, affinity: socket}, []uint32{0, 0, 8, 2}, false},
		{"SOCKET, near", four, []uint32{8, 8, 8, 4}, nil, coreAsk{want: 10, affinity: socket, near: []int{0}}, []uint32{8, 2, 0, 0}, false},
		{"SOCKET holds it nowhere", four, []uint32{8, 8, 8, 4}, nil, coreAsk{want: 17, affinity: socket}, nil, true},
		{"none goes over both", four, []uint32{8, 8, 8, 4}, nil, coreAsk{want: 17}, []uint32{8, 8, 0, 1}, false},
		{"CORE is like none", four, []uint32{8, 8, 8, 4}, nil, coreAsk{want: 17, affinity: core}, []uint32{8, 8, 0, 1}, false},
		{"two sockets of three, the largest is left", coreDomains(0, 1, 2), []uint32{9, 7, 8}, nil, coreAsk{want: 15}, []uint32{0, 7, 8}, false},
		{"more than there are", four, []uint32{8, 8, 8, 4}, nil, coreAsk{want: 29}, nil, true},
		{"nothing wanted", four, []uint32{0, 0, 0, 0}, nil, coreAsk{affinity: numa}, []uint32{0, 0, 0, 0}, false},
		{"two sockets", four, []uint32{8, 8, 8, 8}, nil, coreAsk{want: 8, sockets: 2}, []uint32{4, 0, 4, 0}, false},
		{"two sockets, odd", four, []uint32{1, 2, 2, 2}, nil, coreAsk{want: 7, sockets: 2}, []uint32{1, 2, 2, 2}, false},
		{"two sockets, NUMA", four, []uint32{3, 3, 5, 5}, nil, coreAsk{want: 8, sockets: 2, affinity: numa}, nil, true},
		{"two sockets, NUMA, fits", four, []uint32{3, 4, 5, 5}, nil, coreAsk{want: 8, sockets: 2, affinity: numa}, []uint32{0, 4, 4, 0}, false},
		{"three sockets of two", four, []uint32{8, 8, 8, 8}, nil, coreAsk{want: 8, sockets: 3}, nil, true},
		{"more sockets than cores", coreDomains(0, 1), []uint32{8, 8}, nil, coreAsk{want: 1, sockets: 2}, nil, true},
		{"one socket is SOCKET", four, []uint32{8, 8, 8, 4}, nil, coreAsk{want: 17, sockets: 1}, nil, true},
		{"unknown domains, NUMA", nil, nil, nil, coreAsk{want: 2, affinity: numa}, nil, true},
		{"unknown domains, sockets", nil, nil, nil, coreAsk{want: 2, sockets: 1}, nil, true},
		{"unknown domains, one core", nil, nil, nil, coreAsk{want: 1, affinity: numa}, nil, false},
		{"unknown domains, none", nil, nil, nil, coreAsk{want: 99}, nil, false},
		{"unknown socket, NUMA", coreDomains(-1), []uint32{8}, nil, coreAsk{want: 2, affinity: numa}, []uint32{2}, false},
		{"unknown socket, SOCKET", coreDomains(-1), []uint32{8}, nil, coreAsk{want: 2, affinity: socket}, nil, true},
		{"unknown socket, one core", coreDomains(-1), []uint32{8}, nil, coreAsk{want: 1, affinity: socket, sockets: 1}, []uint32{1}, false},
		{"unknown socket, none", coreDomains(-1, -1), []uint32{8, 4}, nil, coreAsk{want: 12}, []uint32{8, 4}, false},
		{"memory keeps NUMA off", four, []uint32{4, 8, 8, 8}, memory{9, 10, 9, 9}, coreAsk{want: 4, affinity: numa, memory: 10}, []uint32{0, 4, 0, 0}, false},
		{"memory is in no domain", four, []uint32{8, 8, 8, 8}, memory{9, 9, 9, 9}, coreAsk{want: 4, affinity: numa, memory: 10}, nil, true},
		{"memory is for one core, too", four, []uint32{8, 8, 8, 8}, memory{9, 9, 9, 9}, coreAsk{want: 1, affinity: numa, memory: 10}, nil, true},
		{"memory by parts in a socket", four, []uint32{8, 8, 8, 8}, memory{9, 9, 7, 3}, coreAsk{want: 4, affinity: socket, memory: 10}, []uint32{3, 1, 0, 0}, false},
		{"memory is a wish", four, []uint32{4, 8, 8, 8}, memory{1, 1, 1, 1}, coreAsk{want: 4, memory: 10}, []uint32{4, 0, 0, 0}, false},
		{"memory past 64 bits", coreDomains(0), []uint32{8}, memory{1 << 63}, coreAsk{want: 8, affinity: numa, memory: 1 << 63}, []uint32{8}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, ok := pickCores(c.domains, c.free, c.memory, c.ask)
			if ok == c.no || !slices.Equal(got, c.want) {
				t.Errorf("got %v %v, want %v", got, ok, c.want)
			}
		})
	}
}

func TestUnknowable(t *testing.T) {
	for _, c := range []struct {
		name    string
		domains []Domain
		ask     coreAsk
		want    bool
	}{
		{"NUMA without domains", nil, coreAsk{want: 2, affinity: coordinator.AffinityNUMA}, true},
		{"NUMA with domains", coreDomains(-1), coreAsk{want: 2, affinity: coordinator.AffinityNUMA}, false},
		{"NUMA, one core", nil, coreAsk{want: 1, affinity: coordinator.AffinityNUMA, sockets: 1}, false},
		{"SOCKET, one of them unknown", coreDomains(0, -1), coreAsk{want: 2, affinity: coordinator.AffinitySocket}, true},
		{"SOCKET, known", coreDomains(0, 1), coreAsk{want: 2, affinity: coordinator.AffinitySocket}, false},
		{"sockets without domains", nil, coreAsk{want: 2, sockets: 1}, true},
		{"none without domains", nil, coreAsk{want: 2}, false},
		{"CORE without domains", nil, coreAsk{want: 2, affinity: coordinator.AffinityCore}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := c.ask.unknowable(c.domains); got != c.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

// coreTwin tries every way to take the cores.
type coreTwin struct {
	domains []Domain
	free    []uint32
	memory  []coordinator.Bytes
	ask     coreAsk
}

func (tw coreTwin) strict() bool {
	return tw.ask.affinity == coordinator.AffinityNUMA || tw.ask.affinity == coordinator.AffinitySocket
}

// room is the free cores that have memory, if that is looked at.
func (tw coreTwin) room(memory bool) []uint32 {
	room := slices.Clone(tw.free)
	for i := range room {
		for memory && room[i] > 0 && uint64(room[i])*uint64(tw.ask.memory) > uint64(tw.memory[i])*uint64(tw.ask.want) {
			room[i]--
		}
	}
	return room
}

func (tw coreTwin) each(room []uint32, see func(take []uint32)) {
	take := make([]uint32, len(room))
	var next func(i int, rest uint32)
	next = func(i int, rest uint32) {
		if i == len(room) {
			if rest == 0 {
				see(take)
			}
			return
		}
		for take[i] = 0; take[i] <= min(rest, room[i]); take[i]++ {
			next(i+1, rest-take[i])
		}
		take[i] = 0
	}
	next(0, tw.ask.want)
}

// name of a domain's socket; those that are unknown differ.
func (tw coreTwin) socket(i int) int {
	if s := tw.domains[i].Socket; s >= 0 {
		return s
	}
	return -1 - i
}

// bySocket sums by socket, in the order of their first domains.
func (tw coreTwin) bySocket(of []uint32) (names []int, sums []uint32) {
	for i, n := range of {
		k := slices.Index(names, tw.socket(i))
		if k < 0 {
			k = len(names)
			names, sums = append(names, tw.socket(i)), append(sums, 0)
		}
		sums[k] += n
	}
	return names, sums
}

func usedParts(take []uint32) (n int) {
	for _, x := range take {
		if x > 0 {
			n++
		}
	}
	return n
}

func (tw coreTwin) legal(take []uint32) bool {
	if tw.ask.want <= 1 && tw.ask.sockets <= 1 {
		return true
	}
	names, sums := tw.bySocket(take)
	bounded := tw.ask.sockets > 0 || tw.ask.affinity == coordinator.AffinitySocket
	used, least, most := 0, ^uint32(0), uint32(0)
	for k, n := range sums {
		if n == 0 {
			continue
		}
		if used++; bounded && names[k] < 0 {
			return false
		}
		least, most = min(least, n), max(most, n)
	}
	numa := tw.ask.affinity == coordinator.AffinityNUMA
	if tw.ask.sockets > 0 {
		return used == int(tw.ask.sockets) && most-least <= 1 && (!numa || usedParts(take) == used)
	}
	return (!numa || usedParts(take) == 1) && (!bounded || used == 1)
}

func (tw coreTwin) far(i int) int {
	if k := slices.Index(tw.ask.near, tw.domains[i].ID); k >= 0 {
		return k
	}
	return len(tw.ask.near)
}

// key holds the preferences of pickCores where sockets are not asked for, the smaller the better.
func (tw coreTwin) key(room, take []uint32) []int {
	names, takes := tw.bySocket(take)
	_, rooms := tw.bySocket(room)
	nearest := func(socket int) int {
		best := len(tw.ask.near)
		for i := range room {
			if tw.socket(i) == names[socket] && room[i] > 0 {
				best = min(best, tw.far(i))
			}
		}
		return best
	}
	key := []int{min(usedParts(take), 2), usedParts(takes)}
	if usedParts(take) == 1 {
		key = append(key, spreadKey(room, take, tw.far)...)
	}
	key = append(key, spreadKey(rooms, takes, nearest)...)
	for s := range names {
		var r, x []uint32
		var at []int
		for i := range room {
			if tw.socket(i) == names[s] {
				r, x, at = append(r, room[i]), append(x, take[i]), append(at, i)
			}
		}
		key = append(key, usedParts(x))
		key = append(key, spreadKey(r, x, func(i int) int { return tw.far(at[i]) })...)
	}
	return key
}

// spreadKey: if one gives all, near, little room, early; else large rests, then early.
func spreadKey(room, take []uint32, far func(int) int) []int {
	if usedParts(take) == 1 {
		i := slices.IndexFunc(take, func(n uint32) bool { return n > 0 })
		return append([]int{far(i), int(room[i]), i}, make([]int, 2*len(room))...)
	}
	key := make([]int, 3, 3+2*len(room))
	for i := range room {
		key = append(key, -int(room[i]-take[i]))
	}
	slices.Sort(key[3:])
	for i := range take {
		key = append(key, -int(take[i]))
	}
	return key
}

func (tw coreTwin) best(room []uint32) ([]uint32, bool) {
	var best []uint32
	var bestKey []int
	tw.each(room, func(take []uint32) {
		if !tw.legal(take) {
			return
		}
		if key := tw.key(room, take); best == nil || slices.Compare(key, bestKey) < 0 {
			best, bestKey = slices.Clone(take), key
		}
	})
	return best, best != nil
}

func drawCores(t *rapid.T) coreTwin {
	draw := func(label string, low, high int) int { return rapid.IntRange(low, high).Draw(t, label) }
	sockets := make([]int, draw("domains", 1, 5))
	for i := range sockets {
		sockets[i] = draw("socket", 0, 2)
		if draw("unknown", 0, 9) == 0 {
			sockets[i] = -1
		}
	}
	tw := coreTwin{domains: coreDomains(sockets...)}
	for range sockets {
		tw.free = append(tw.free, uint32(draw("free", 0, 5)))
		tw.memory = append(tw.memory, coordinator.Bytes(draw("memory", 0, 8)))
	}
	tw.ask = coreAsk{
		want: uint32(draw("want", 1, 12)), affinity: coordinator.Affinity(draw("affinity", 0, 3)),
		sockets: uint32(max(0, draw("sockets", -2, 3))),
	}
	if draw("needs memory", 0, 2) == 0 {
		tw.ask.memory = coordinator.Bytes(draw("bytes", 1, 20))
	}
	if draw("near", 0, 1) == 0 {
		tw.ask.near = []int{2 * draw("first", 0, 4), 2 * draw("second", 0, 4)}
	}
	return tw
}

// TestPickCoresIsBest: found when there is one, within what is free, true to what was asked, and where
// sockets are not asked for the twin's very choice.
func TestPickCoresIsBest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tw := drawCores(t)
		room := tw.room(tw.ask.memory > 0)
		want, can := tw.best(room)
		if !can && !tw.strict() {
			room = tw.free
			want, can = tw.best(room)
		}
		free := slices.Clone(tw.free)
		got, ok := pickCores(tw.domains, free, tw.memory, tw.ask)
		if ok != can {
			t.Fatalf("%+v: got %v %v, the twin %v %v", tw, got, ok, want, can)
		}
		if !slices.Equal(free, tw.free) {
			t.Fatal("the caller's figures changed")
		}
		if !ok {
			return
		}
		sum := uint32(0)
		for i, n := range got {
			if sum += n; n > room[i] {
				t.Fatalf("%+v: %v is more than %v", tw, got, room)
			}
		}
		if sum != tw.ask.want || !tw.legal(got) {
			t.Fatalf("%+v: %v is not what was asked", tw, got)
		}
		if tw.ask.sockets == 0 && !slices.Equal(got, want) {
			t.Fatalf("%+v: got %v, the twin %v", tw, got, want)
		}
	})
}

// TestEvenLeavesLargeSockets: where sockets are asked for, none that is used could be changed for one that has less
// room and is no farther.
func TestEvenLeavesLargeSockets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tw := drawCores(t)
		tw.ask.sockets, tw.ask.near, tw.ask.memory = max(tw.ask.sockets, 1), nil, 0
		if tw.ask.affinity == coordinator.AffinityNUMA || tw.ask.want <= 1 {
			return
		}
		got, ok := pickCores(tw.domains, tw.free, nil, tw.ask)
		if !ok {
			return
		}
		names, takes := tw.bySocket(got)
		_, rooms := tw.bySocket(tw.free)
		for i, part := range takes {
			for j := range takes {
				if part > 0 && takes[j] == 0 && names[j] >= 0 && rooms[j] >= part && rooms[j] < rooms[i] {
					t.Fatalf("%+v: %v, but socket %d would do for %d", tw, got, names[j], names[i])
				}
			}
		}
	})
}

// TestCoresAndGPUsMeet: GPUs chosen by links, cores near them, then GPUs near those cores where links leave a
// choice. It ends with both in one domain, where that is possible.
func TestCoresAndGPUsMeet(t *testing.T) {
	for _, c := range []struct {
		name, machine string
		gpus          []int
		n             int
		cores         []uint32
		wantGPUs      []int
		wantCores     []uint32
	}{
		{"all free", "nvswitch", upTo(0, 8), 2, []uint32{8, 8}, []int{0, 1}, []uint32{4, 0}},
		{"no core near the first", "nvswitch", upTo(0, 8), 2, []uint32{2, 8}, []int{4, 5}, []uint32{0, 4}},
		{"no GPU in the fuller domain", "nvswitch", upTo(4, 8), 2, []uint32{5, 8}, []int{4, 5}, []uint32{0, 4}},
		{"links come first", "pairs", []int{0, 1, 2, 3, 4, 6, 7}, 1, []uint32{8, 2}, []int{4}, []uint32{4, 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			top := machines()[c.machine].topology()
			domains := []Domain{{ID: 0, Socket: 0, Cores: 8}, {ID: 1, Socket: 1, Cores: 8}}
			set, _ := top.pick(testKind, gpusAt(c.gpus), c.n, nil, false)
			cores, ok := pickCores(domains, c.cores, nil, coreAsk{want: 4, near: top.home(set)})
			if !ok || !slices.Equal(cores, c.wantCores) {
				t.Fatalf("cores %v", cores)
			}
			var near []int
			for i, n := range cores {
				if n > 0 {
					near = append(near, domains[i].ID)
				}
			}
			if set, ok = top.pick(testKind, gpusAt(c.gpus), c.n, near, false); !ok || !slices.Equal(set.indexes(), c.wantGPUs) {
				t.Errorf("GPUs %v", set.indexes())
			}
		})
	}
}

func BenchmarkPickCores(b *testing.B) {
	eight := coreDomains(0, 0, 0, 0, 1, 1, 1, 1)
	free := []uint32{16, 12, 3, 16, 9, 16, 16, 2}
	memory := slices.Repeat([]coordinator.Bytes{64 << 30}, 8)
	for _, c := range []struct {
		name    string
		domains []Domain
		free    []uint32
		ask     coreAsk
	}{
		{"numa/two", coreDomains(0, 1), []uint32{20, 32}, coreAsk{want: 8, affinity: coordinator.AffinityNUMA, near: []int{2}}},
		{"none/two", coreDomains(0, 1), []uint32{20, 32}, coreAsk{want: 40}},
		{"numa/eight", eight, free, coreAsk{want: 8, affinity: coordinator.AffinityNUMA}},
		{"socket/eight", eight, free, coreAsk{want: 24, affinity: coordinator.AffinitySocket, memory: 32 << 30}},
		{"none/eight", eight, free, coreAsk{want: 60}},
		{"sockets/eight", eight, free, coreAsk{want: 20, sockets: 2}},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, ok := pickCores(c.domains, c.free, memory[:len(c.free)], c.ask); !ok {
					b.Fatal("does not fit")
				}
			}
		})
	}
}
