package search

import (
	"fmt"

	"github.com/vrnic/vrnic/shm/abi"
)

// This file has the bitmap by which a receiver finds those of many direct paths that have something
// (docs/direct.md#many).

// mark is how a sender says in the bitmap where to look, and goes on at next.
func (mu *directMutations) mark(dirty, bit int8, next string) []any {
	or := []any{instr{op: opOr, a: dirty, v: bit}, next}
	if mu.orSkipped {
		return append([]any{instr{op: opLoad, a: dirty}, instr{op: opIfBit, v: bit, to: next}}, or...)
	}
	return or
}

// dirtyScenario: a library says in the bitmap of the peer's CQ where to look, and may die before it
// does; then the daemon says so.
func dirtyScenario(mu directMutations, n int8) *scenario {
	const wDirty, bit, rSeen = wNotify, 1, 1
	var s []any
	for i := int8(1); i <= n; i++ {
		next := fmt.Sprint("sent", i)
		s = append(s, swapped(mu.orFirst, []any{instr{op: opRelease, a: wStamp, v: i}},
			mu.mark(wDirty, bit, next))...)
	}
	s = append(s, instr{op: opGoto, to: "end"}, "dead", instr{op: opSignal, a: 1}, "end")
	r := append([]any{"poll",
		instr{op: opWhen, when: func(m *machine, _ *thread) bool { return m.mem[wDirty] != 0 }}},
		swapped(mu.clearAfter, []any{instr{op: opXchg, a: wDirty, v: 0}},
			[]any{instr{op: opLoad, r: rSeen, a: wStamp}})...)
	d := append([]any{instr{op: opToken, a: 1}},
		unless(mu.noHangup, instr{op: opOr, a: wDirty, v: bit})...)
	return &scenario{
		progs:  []program{prog(s), prog(r, instr{op: opGoto, to: "poll"}), prog(d)},
		mortal: sender + 1,
		rest: func(m *machine, at func(int, string) bool) string {
			if !at(sender, "end") || m.th[receiver].regs[rSeen] != m.mem[wStamp] {
				return "nobody looks for a message"
			}
			return ""
		},
	}
}

// dirtyCloseScenario: the sender says where to look when it has left, and may die before that; the
// daemon says so, too, whenever it has closed the direction, and then no more. If it does not wait
// for a sender as long as that takes, one message may be lost with its receive
// (docs/direct.md#death).
func dirtyCloseScenario(mu directMutations, n int8) *scenario {
	const wDirty, bit, rSeen = wNotify, 1, 1
	var s []any
	for i := int8(1); i <= n; i++ {
		s = append(s, mu.enter()...)
		s = append(s, instr{op: opLoad, a: wOpen}, instr{op: opIfEq, v: 1, to: "shut"},
			instr{op: opRelease, a: wStamp, v: i})
		s = append(s, mu.leave()...)
		s = append(s, mu.mark(wDirty, bit, fmt.Sprint("sent", i))...)
	}
	s = append(s, instr{op: opGoto, to: "end"}, "shut")
	s = append(s, mu.leave()...)
	s = append(s, instr{op: opGoto, to: "end"}, "dead", instr{op: opSignal, a: 1}, "end")
	r := []any{"poll",
		instr{op: opWhen, when: func(m *machine, _ *thread) bool { return m.mem[wDirty] != 0 }},
		instr{op: opXchg, a: wDirty, v: 0}, instr{op: opLoad, r: rSeen, a: wStamp},
		instr{op: opGoto, to: "poll"}}
	d := []any{instr{op: opStore, a: wOpen, v: 1}} // 0 is open here
	if mu.evenSilent {
		d = append(d, instr{op: opFence}, instr{op: opLoad, a: wSeq},
			instr{op: opIfBit, v: 1, to: "wait"}, instr{op: opGoto, to: "quiet"}, "wait")
	}
	d = append(d, mu.await()...)
	d = append(d, instr{op: opOr, a: wDirty, v: bit}, "quiet")
	return &scenario{
		progs:  []program{prog(s), prog(r), prog(d)},
		mortal: sender + 1,
		rest: func(m *machine, at func(int, string) bool) string {
			seen := m.th[receiver].regs[rSeen]
			if mu.impatient {
				seen++
			}
			if !at(sender, "end") || !at(daemon, "quiet") || seen < m.mem[wStamp] {
				return "nobody looks for a message"
			}
			return ""
		},
	}
}

// dirtyBesideScenario: a receive gets the daemon's message, and the next one the sender's. Whose
// bit is taken has been looked at for the first of the two alone, and is so again behind that one.
func dirtyBesideScenario(mu directMutations) *scenario {
	const wDirty, bit = wNotify, 1
	opened := func(m *machine, _ *thread) bool { return m.mem[wOpen] != 0 }
	come := func(m *machine, t *thread) bool {
		return m.mem[wDirty] != 0 || m.mem[wCQPush] != t.regs[rCons]
	}
	s := append([]any{instr{op: opWhen, when: opened}, instr{op: opRelease, a: wStamp + 1, v: 2}},
		mu.mark(wDirty, bit, "end")...)
	d := []any{instr{op: opRelease, a: wCQPush, v: 1}, instr{op: opRelease, a: wOpen, v: 1}}
	return &scenario{
		progs: []program{prog(s), prog("poll",
			instr{op: opWhen, when: come},
			instr{op: opXchg, a: wDirty, v: 0},
			lookAt(wStamp, "got"),
			instr{op: opLoad, a: wCQPush},
			instr{op: opIfReg, q: rCons, to: "poll"},
			instr{op: opAddTo, r: rCons, v: 1},
			unless(mu.lookOnce, instr{op: opOr, a: wDirty, v: bit}),
			"got", instr{op: opAddTo, r: rNext, v: 1}, instr{op: opGoto, to: "poll"}), prog(d)},
		rest: func(m *machine, at func(int, string) bool) string {
			if !at(sender, "end") || m.th[receiver].regs[rNext] != 2 {
				return "nobody looks for a message"
			}
			return ""
		},
	}
}

// dirtyNotifyScenario is notifyScenario with a receiver that looks where the bitmap says.
func dirtyNotifyScenario(mu directMutations, n int8) *scenario {
	const wDirty, wWant, bit = wSQDone, wRoom, 1
	var s []any
	for i := int8(1); i <= n; i++ {
		next := fmt.Sprint("sent", i)
		s = append(s, instr{op: opRelease, a: wStamp, v: i})
		want := []any{instr{op: opLoad, a: wWant}}
		s = append(s, swapped(mu.orLate,
			append(mu.mark(wDirty, bit, next+"marked"), unless(mu.stampFence, instr{op: opFence})...),
			want)...)
		s = append(s, instr{op: opIfBit, v: abi.ArmNext, to: next + "wanted"},
			instr{op: opGoto, to: next}, next+"wanted",
			instr{op: opAddTo, r: 2, v: 1}, instr{op: opStore, r: 2, a: wNotify, v: -1})
		s = append(append(s, ring(mu.mutations, 1, next+"rung")...), next)
	}
	d := append(awaitBell("idle", "look"),
		"look",
		instr{op: opLoad, a: wNotify},
		instr{op: opIfReg, q: 3, to: "idle"},
		instr{op: opSync, r: 3, q: 0})
	d = append(append(d, raise("idle")...), instr{op: opGoto, to: "idle"})
	poll := func(none string) []any {
		return []any{instr{op: opLoad, a: wDirty}, instr{op: opIfEq, v: 0, to: none},
			instr{op: opXchg, a: wDirty, v: 0},
			instr{op: opLoad, a: wStamp}, instr{op: opIfEq, v: n, to: "done"}, none}
	}
	r := append([]any{"loop"}, poll("none")...)
	r = append(r, instr{op: opRelease, a: wWant, v: abi.ArmNext})
	r = append(r, arm(mu.mutations, abi.ArmNext, 1)...)
	r = append(r, poll("nothing")...)
	r = append(r, "wait", instr{op: opToken, a: 1}, instr{op: opLoad, r: 1, a: wChanProd},
		instr{op: opAnd, r: 1, a: wArm, v: 7 &^ abi.ArmQueued}, instr{op: opRelease, a: wWant, v: 0},
		instr{op: opGoto, to: "loop"}, "done")
	return &scenario{
		progs: []program{prog(s), prog(r), prog(d)},
		rest: func(_ *machine, at func(int, string) bool) string {
			if at(receiver, "wait") {
				return "the receiver waits for an event although messages came after it had armed"
			}
			if !at(receiver, "done") || !at(daemon, "blocked") {
				return "the receiver or the daemon is stuck elsewhere"
			}
			return ""
		},
	}
}
