package search

// Words of a key's entry, by their writer's, and the memory that it gives: two regions.
const (
	wKey    = wOpen
	wRegion = wRecvBase
	wTarget = wBuf
)

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
