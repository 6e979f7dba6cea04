package search

// Words of a key's entry, by their writer's, and the memory that it gives: two regions.
const (
	wKey    = wOpen
	wRegion = wRecvBase
	wTarget = wBuf
)

// overwriteScenario: a library writes to the same place twice, by the ring and then itself, if the
// ring is drained, else by the ring again. What it wrote last stays.
func overwriteScenario(mu directMutations) *scenario {
	drained := unless(mu.notDrained, instr{op: opLoad, a: wSQDone},
		instr{op: opIfEq, v: 1, to: "drained"}, instr{op: opGoto, to: "ring"}, "drained")
	s := []any{instr{op: opStore, a: wRing, v: 1}, instr{op: opRelease, a: wSQProd, v: 1}}
	s = append(s, drained...)
	s = append(s, mu.enter()...)
	s = append(s, instr{op: opStore, a: wTarget, v: 2})
	s = append(s, mu.leave()...)
	s = append(s, instr{op: opGoto, to: "end"},
		"ring", instr{op: opStore, a: wRing + 1, v: 2}, instr{op: opRelease, a: wSQProd, v: 2}, "end")
	posted := func(n int8) instr {
		return instr{op: opWhen, when: func(m *machine, _ *thread) bool { return m.mem[wSQProd] >= n }}
	}
	place := []any{instr{op: opLoad, a: wRing}, instr{op: opStore, r: 0, a: wTarget, v: -1}}
	d := append([]any{posted(1)}, swapped(mu.doneEarly, place,
		[]any{instr{op: opRelease, a: wSQDone, v: 1}})...)
	d = append(d, posted(2), instr{op: opLoad, a: wRing + 1},
		instr{op: opStore, r: 0, a: wTarget, v: -1})
	return &scenario{
		progs:   []program{prog(s), prog(), prog(d)},
		writers: directWriters(),
		rest: func(m *machine, at func(int, string) bool) string {
			if !at(sender, "end") || m.mem[wTarget] != 2 {
				return "an older Write has come last"
			}
			return ""
		},
	}
}

// toldScenario: a library writes with immediate data, itself if it may, else by the ring; the
// daemon takes the direction from it at any time. Where there is the message, there is the Write.
func toldScenario(mu directMutations) *scenario {
	const written = 1
	stamp := instr{op: opRelease, a: wStamp, v: 1}
	if mu.stampPlain {
		stamp.op = opStore
	}
	s := append(mu.enter(), instr{op: opLoad, a: wOpen}, instr{op: opIfEq, v: 0, to: "closed"},
		instr{op: opLoad, a: wRoom}, instr{op: opIfEq, v: 0, to: "closed"})
	s = append(s, swapped(mu.toldFirst, []any{instr{op: opStore, a: wTarget, v: written}},
		[]any{stamp})...)
	s = append(append(s, instr{op: opStore, a: wRecvDone, v: 1}), mu.leave()...)
	s = append(append(s, instr{op: opGoto, to: "end"}, "closed"), mu.leave()...)
	s = append(s, instr{op: opStore, a: wRing, v: written}, instr{op: opRelease, a: wSQProd, v: 1},
		"end")

	come := func(m *machine) bool { return m.mem[wStamp] != 0 || m.mem[wCQPush] != 0 }
	r := append(mu.postRecv(0, 1),
		instr{op: opWhen, when: func(m *machine, _ *thread) bool { return come(m) }},
		instr{op: opLoad, a: wTarget}, instr{op: opIfEq, v: written, to: "there"},
		instr{op: opFail, to: "a message tells of a Write that is not there"}, "there")

	d := []any{instr{op: opRelease, a: wOpen, v: 1}, instr{op: opChoose, to: "close"},
		instr{op: opGoto, to: "carry"}, "close", instr{op: opStore, a: wOpen, v: 0}}
	d = append(append(d, mu.await()...), "carry",
		instr{op: opWhen, when: func(m *machine, _ *thread) bool { return m.mem[wSQProd] == 1 }},
		instr{op: opLoad, a: wRing}, instr{op: opStore, r: 0, a: wTarget, v: -1},
		instr{op: opRelease, a: wCQPush, v: 1})
	return &scenario{
		progs:   []program{prog(s), prog(r), prog(d)},
		writers: directWriters(),
		rest: func(m *machine, at func(int, string) bool) string {
			if !at(sender, "end") || !at(receiver, "there") {
				return "the message is not there"
			}
			return ""
		},
	}
}

// keyScenario: a library writes by one key, twice, and by a later one, while the daemon ends the
// first and uses its entry again for the other. The first region is its owner's again then, who
// writes there.
func keyScenario(mu directMutations) *scenario {
	const owner, rWhere = 9, 1
	write := func(name string, key int8, blind bool) []any {
		look := []any{instr{op: opLoad, a: wKey}, instr{op: opIfEq, v: key, to: name + "found"},
			instr{op: opGoto, to: name + "leave"}, name + "found"}
		p := swapped(mu.regionFirst, look, []any{instr{op: opLoad, r: rWhere, a: wRegion}})
		if blind {
			p = nil
		}
		p = swapped(mu.keyFirst, mu.enter(), p)
		p = append(p, instr{op: opStoreAt, q: rWhere, a: wTarget, v: key}, name+"leave")
		return append(p, mu.leave()...)
	}
	first := write("first", 1, false)
	if mu.oneLook { // then there is no more if the first found nothing
		first = append(first, instr{op: opIfEq, v: 1, to: "more"}, instr{op: opGoto, to: "end"}, "more")
	}
	s := prog(first, write("more", 1, mu.oneLook), write("last", 2, false), "end")

	revoke := append([]any{instr{op: opStore, a: wKey, v: 0}}, mu.await()...)
	region := []any{instr{op: opStore, a: wRegion, v: 1}}
	publish := instr{op: opRelease, a: wKey, v: 2}
	if mu.sold {
		publish.op = opStore
	}
	d := append([]any{instr{op: opRelease, a: wKey, v: 1}}, swapped(mu.reuse, revoke, region)...)
	return &scenario{
		progs:   []program{s, prog(), prog(d, instr{op: opStore, a: wTarget, v: owner}, publish)},
		writers: directWriters(),
		rest: func(m *machine, at func(int, string) bool) string {
			switch {
			case !at(sender, "end"):
				return "the sender is stuck"
			case m.mem[wTarget] != owner:
				return "a store has come after its key has gone"
			case m.mem[wTarget+1] != 0 && m.mem[wTarget+1] != 2:
				return "a key gave what is another's"
			}
			return ""
		},
	}
}
