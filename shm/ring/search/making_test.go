package search

// This file has how two queue pairs that exchange messages by the daemon come to have a pair, and
// how they come to another one when they are connected again.

const (
	// wMade says that there is a pair to be had.
	wMade = wNotify
	// rAware is a program's register that says that it has it.
	rAware = 7
)

// emptyStamps has two slots, the first at a, hold no message: neither one to come, nor one for a
// receive that is used, as register used says, and not polled yet.
func (mu *directMutations) emptyStamps(used, a int8) []any {
	p := append([]any{instr{op: opSync, q: used}}, unless(mu.stale, instr{op: opAddTo, v: -2})...)
	return append(p, instr{op: opStore, a: a, v: -1}, instr{op: opStore, a: a + 1, v: -1})
}

// makingScenario: a library sends by the ring until it has a pair. The daemon makes one and opens
// it, while it brings messages that the receiver has not polled. When who asks is open.
func makingScenario(mu directMutations, times int8) *scenario {
	ask := []any{
		instr{op: opIfEq, r: rAware, v: 1, to: "aware"},
		instr{op: opChoose, to: "ask"},
		instr{op: opGoto, to: "ring"},
		"ask",
		instr{op: opLoad, a: wMade},
		instr{op: opIfEq, v: 0, to: "ring"},
		instr{op: opAddTo, r: rAware, v: 1},
		instr{op: opLoad, a: wRecvBase},
		instr{op: opSync, r: rBase, q: 0}, instr{op: opSync, r: rTook, q: 0},
		"aware"}
	writers := directWriters()
	writers[wMade] = daemon + 1
	for _, w := range []int8{wRecvDone, wStamp, wStamp + 1} {
		writers[w] = 0 // the daemon's until there is a pair
	}
	return &scenario{
		progs:   []program{directSend(mu, times, ask...), makingReceive(mu, times), makingDaemon(mu)},
		writers: writers,
		rest: func(m *machine, at func(int, string) bool) string {
			switch {
			case !at(sender, "end") || !at(daemon, "blocked"):
				return "the sender or the daemon is stuck"
			case m.th[receiver].regs[rLast] != times:
				return "a message is not there"
			case m.th[receiver].regs[rNext] != times:
				return "a receive has completed twice"
			}
			return ""
		},
	}
}

// makingDaemon takes a step towards a pair when it has brought all: it reads how many receives are
// used; the pair is there; it is open.
func makingDaemon(mu directMutations) program {
	const rStep, read, made, opened = rTold, 1, 2, 3
	last, heeds := int8(opened), int8(made) // heeds: it looks at what the sender has used
	if mu.heedLate {
		last, heeds = opened+1, opened+1
	}
	take := []any{
		instr{op: opMask, r: rScrap, q: rDone, v: 1},
		instr{op: opLoadAt, q: rScrap, a: wRing},
		instr{op: opAddTo, r: rDone, v: 1}}
	done := instr{op: opRelease, r: rDone, a: wSQDone, v: -1}
	p := []any{"idle",
		instr{op: opIfEq, r: rStep, v: last, to: "blocked"},
		instr{op: opChoose, to: "step"},
		"blocked",
		instr{op: opWait, a: 0},
		"look",
		instr{op: opLoad, a: wSQProd},
		instr{op: opIfReg, r: rDone, q: 0, to: "idle"}}
	for i := range heeds {
		p = append(p, instr{op: opIfEq, r: rStep, v: i, to: "alone"})
	}
	p = append(append(p, takeOver("look")...), take...)
	p = append(p, deliver(instr{op: opRelease, r: rHead, a: wRecvBase, v: -1}, done)...)
	p = append(append(p, instr{op: opGoto, to: "look"}, "alone"), take...)
	p = append(append(p, deliver(done)...), instr{op: opGoto, to: "look"},
		"step",
		instr{op: opAddTo, r: rStep, v: 1},
		instr{op: opIfEq, r: rStep, v: read, to: "read"},
		instr{op: opIfEq, r: rStep, v: made, to: "make"},
		instr{op: opIfEq, r: rStep, v: opened, to: "open"},
		instr{op: opGoto, to: "look"},
		"read",
		instr{op: opSync, r: rWas, q: rHead},
		instr{op: opGoto, to: "look"},
		"make",
		instr{op: opStore, r: rWas, a: wRecvBase, v: -1},
		instr{op: opStore, r: rWas, a: wRecvDone, v: -1})
	p = append(append(p, mu.emptyStamps(rWas, wStamp)...), instr{op: opRelease, a: wMade, v: 1},
		instr{op: opGoto, to: "look"}, "open")
	p = append(p, unless(mu.openBlind, instr{op: opRelease, r: rHead, a: wRecvBase, v: -1})...)
	return prog(p, instr{op: opRelease, a: wOpen, v: 1}, instr{op: opGoto, to: "look"})
}

// makingReceive is directReceive of a library that has a pair from some time on: its sender knows
// then of all receives that are posted.
func makingReceive(mu directMutations, posts int8) program {
	stamped := func(m *machine, t *thread) bool {
		return t.regs[rAware] == 1 && m.mem[wStamp+t.regs[rNext]&1] == t.regs[rNext]+1
	}
	return prog(instr{op: opRelease, a: wRQProd, v: 2},
		instr{op: opGoto, to: "poll"},
		"wait",
		instr{op: opWhen, when: func(m *machine, t *thread) bool {
			return stamped(m, t) || m.mem[wCQPush] != t.regs[rCons]
		}},
		"poll",
		instr{op: opIfEq, r: rAware, v: 1, to: "aware"},
		instr{op: opChoose, to: "ask"},
		instr{op: opGoto, to: "ring"},
		"ask",
		instr{op: opLoad, a: wMade},
		instr{op: opIfEq, v: 0, to: "ring"},
		instr{op: opAddTo, r: rAware, v: 1},
		instr{op: opLoad, r: rScrap, a: wRQProd},
		instr{op: opRelease, r: rScrap, a: wRoom, v: -1},
		"aware",
		lookAt(wStamp, "read"),
		"ring",
		instr{op: opLoad, a: wCQPush},
		instr{op: opIfReg, q: rCons, to: "wait"},
		instr{op: opSync, r: rPlace, q: rNext},
		instr{op: opAddTo, r: rPlace, v: 1},
		instr{op: opLoad, a: wIndex},
		instr{op: opIfReg, q: rPlace, to: "completion"},
		instr{op: opIfLess, r: 0, q: rPlace, to: "twice"},
		instr{op: opWhen, when: stamped}, // the daemon's is of a later receive
		instr{op: opGoto, to: "read"},
		"twice", instr{op: opFail, to: "a receive has completed twice"},
		"completion", instr{op: opAddTo, r: rCons, v: 1},
		"read",
		instr{op: opMask, r: rPlace, q: rNext, v: 1},
		instr{op: opLoadAt, q: rPlace, a: wBuf},
		instr{op: opAddTo, r: rLast, v: 1},
		instr{op: opIfReg, r: rLast, q: 0, to: "right"},
		instr{op: opFail, to: "a message is lost, torn or doubled"},
		"right",
		instr{op: opAddTo, r: rNext, v: 1},
		instr{op: opLoad, r: rScrap, a: wRQProd},
		instr{op: opIfEq, r: rScrap, v: posts, to: "poll"},
		instr{op: opAddTo, r: rScrap, v: 1},
		instr{op: opIfEq, r: rAware, v: 1, to: "tell"},
		instr{op: opRelease, r: rScrap, a: wRQProd, v: -1},
		instr{op: opGoto, to: "poll"},
		"tell",
		mu.postRecv(rScrap, -1),
		instr{op: opGoto, to: "poll"})
}

// Words of a second pair, beside those of the first.
const (
	wOpen2  = wSQDone
	wRoom2  = wSQProd
	wStamp2 = wRing
)

// nextScenario: a library sends by a pair, twice if it can, while the daemon ends that connection.
// Then the two are connected again, with another pair, by which it sends once. The receiver leaves
// the first one when it has that and has polled all of the first.
func nextScenario(mu directMutations) *scenario {
	writers := directWriters()
	writers[wMade], writers[wRoom2] = daemon+1, receiver+1
	for _, w := range []int8{wStamp2, wStamp2 + 1} {
		writers[w] = 0
	}
	return &scenario{
		progs:   []program{nextSend(mu), nextReceive(mu), nextDaemon(mu)},
		writers: writers,
		rest: func(m *machine, at func(int, string) bool) string {
			if m.th[receiver].regs[rNext] != 3 || !at(sender, "end") ||
				m.th[receiver].regs[rLast] != m.th[sender].regs[rMessage] {
				return "a message is not there when its pair is left"
			}
			return ""
		},
	}
}

func nextSend(mu directMutations) program {
	direct := func(name string, open, room, stamp int8, base, done []any) []any {
		p := append(mu.enter(), instr{op: opLoad, a: open}, instr{op: opIfEq, v: 0, to: name})
		p = append(append(p, base...), instr{op: opLoad, a: room},
			instr{op: opIfLess, r: rRecv, q: 0, to: name + "posted"},
			instr{op: opGoto, to: name},
			name+"posted",
			instr{op: opMask, q: rRecv, v: 1},
			instr{op: opAddTo, r: rRecv, v: 1},
			instr{op: opReleaseAt, r: rRecv, q: 0, a: stamp, v: -1},
			instr{op: opAddTo, r: rMessage, v: 1})
		return append(append(append(p, done...), name), mu.leave()...)
	}
	done := []any{instr{op: opStore, r: rRecv, a: wRecvDone, v: -1}}
	return prog(direct("first", wOpen, wRoom, wStamp, nil, done),
		direct("second", wOpen, wRoom, wStamp, nil, done),
		instr{op: opWhen, when: func(m *machine, _ *thread) bool { return m.mem[wRoom2] == 3 }},
		direct("third", wOpen2, wRoom2, wStamp2,
			[]any{instr{op: opLoad, a: wRecvBase}, instr{op: opSync, r: rRecv, q: 0}}, nil),
		"end")
}

func nextDaemon(mu directMutations) program {
	d := append([]any{instr{op: opRelease, a: wOpen, v: 1}}, mu.shut()...)
	d = append(append(d, countStamped()...),
		"flush",
		instr{op: opIfEq, r: rHead, v: 2, to: "over"})
	d = append(append(d, deliverForeign()...), instr{op: opGoto, to: "flush"},
		"over")
	return prog(d, mu.emptyStamps(rHead, wStamp2), instr{op: opRelease, a: wOpen2, v: 1},
		instr{op: opRelease, a: wMade, v: 1})
}

func nextReceive(mu directMutations) program {
	made := []any{instr{op: opLoad, a: wMade}, instr{op: opIfEq, v: 0, to: "ring"}}
	look := lookAt(wStamp, "message")
	if mu.lookFirst {
		look = append([]any{instr{op: opLoad, a: wOpen}, instr{op: opIfBit, v: 1, to: "poll first"}},
			look...)
	}
	leave := swapped(mu.lookFirst, made, unless(mu.leaveBlind, look...))
	return prog(instr{op: opRelease, a: wRQProd, v: 2},
		instr{op: opRelease, a: wRoom, v: 2},
		"poll",
		instr{op: opIfEq, r: rNext, v: 3, to: "end"},
		instr{op: opIfEq, r: rAware, v: 1, to: "second"},
		leave,
		instr{op: opAddTo, r: rAware, v: 1},
		instr{op: opIfEq, r: rNext, v: 0, to: "poll"}, // there is no place for another receive
		"post",
		instr{op: opRelease, a: wRQProd, v: 3},
		instr{op: opRelease, a: wRoom2, v: 3},
		instr{op: opGoto, to: "poll"},
		"second",
		lookAt(wStamp2, "message"),
		instr{op: opGoto, to: "completions"},
		"poll first", // as far as the first pair goes
		"ring",
		lookAt(wStamp, "message"),
		"completions",
		instr{op: opLoad, a: wCQPush},
		instr{op: opIfReg, q: rCons, to: "poll"},
		instr{op: opSync, r: rPlace, q: rNext},
		instr{op: opAddTo, r: rPlace, v: 1},
		instr{op: opLoad, a: wIndex},
		instr{op: opIfReg, q: rPlace, to: "completion"},
		instr{op: opIfLess, r: 0, q: rPlace, to: "twice"},
		instr{op: opIfEq, r: rAware, v: 0, to: "poll"}, // what comes before it is in its slot
		instr{op: opFail, to: "a message is not there when its pair is left"},
		"twice", instr{op: opFail, to: "a receive has completed twice"},
		"completion",
		instr{op: opAddTo, r: rCons, v: 1},
		instr{op: opGoto, to: "taken"},
		"message",
		instr{op: opAddTo, r: rLast, v: 1},
		"taken",
		instr{op: opAddTo, r: rNext, v: 1},
		instr{op: opIfEq, r: rNext, v: 1, to: "first"},
		instr{op: opGoto, to: "poll"},
		"first",
		instr{op: opIfEq, r: rAware, v: 1, to: "post"},
		instr{op: opGoto, to: "poll"},
		"end")
}
