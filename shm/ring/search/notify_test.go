package search

import (
	"fmt"

	"github.com/vrnic/vrnic/shm/abi"
)

// This file has how a receiver hears of messages that the daemon does not see.

// notifyScenario: a library sends, and has the daemon wake who has armed the CQ: armScenario, with
// stamps in place of completions.
func notifyScenario(mu directMutations, n int8) *scenario {
	const wWant = wRoom // as this, on a line of the receiver's
	var s []any
	for i := int8(1); i <= n; i++ {
		next := fmt.Sprint("sent", i)
		notify := []any{instr{op: opAddTo, r: 2, v: 1}, instr{op: opStore, r: 2, a: wNotify, v: -1}}
		s = append(s, instr{op: opRelease, a: wStamp, v: i})
		s = append(s, unless(mu.stampFence, instr{op: opFence})...)
		s = append(s, instr{op: opLoad, a: wWant},
			instr{op: opIfBit, v: abi.ArmNext, to: next + "wanted"},
			instr{op: opGoto, to: next}, next+"wanted")
		s = append(s, swapped(mu.notifyLate, notify, ring(mu.mutations, 1, next+"rung"))...)
		s = append(s, next)
	}
	d := append(awaitBell("idle", "look"),
		"look",
		instr{op: opLoad, a: wNotify},
		instr{op: opIfReg, q: 3, to: "idle"},
		instr{op: opSync, r: 3, q: 0})
	d = append(append(d, raise("idle")...), instr{op: opGoto, to: "idle"})
	poll := []any{instr{op: opLoad, a: wStamp}, instr{op: opIfEq, v: n, to: "done"}}
	r := append([]any{"loop"}, poll...)
	r = append(r, swapped(mu.wantLate, []any{instr{op: opRelease, a: wWant, v: abi.ArmNext}},
		arm(mu.mutations, abi.ArmNext, 1))...)
	r = append(r, poll...)
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

// answerScenario: one thread of a library posts a Send, to which the peer answers; another one
// polls. The program must hear of its Send first.
func answerScenario(mu directMutations) *scenario {
	const wSent, wAsked, wAnswered = wSQDone, wSQProd, wRQProd
	post := swapped(mu.sentLate, []any{instr{op: opRelease, a: wSent, v: 1}},
		[]any{instr{op: opRelease, a: wAsked, v: 1}})
	poll := swapped(mu.sendsFirst, []any{instr{op: opLoad, r: 1, a: wAnswered}},
		[]any{instr{op: opLoad, a: wSent}})
	return &scenario{
		progs: []program{prog(post),
			prog(poll, instr{op: opIfLess, r: 0, q: 1, to: "early"}, instr{op: opGoto, to: "end"},
				"early", instr{op: opFail, to: "the answer is there before the Send is over"}, "end"),
			prog(instr{op: opWhen, when: func(m *machine, _ *thread) bool { return m.mem[wAsked] != 0 }},
				instr{op: opRelease, a: wAnswered, v: 1})},
		rest: func(*machine, func(int, string) bool) string { return "" },
	}
}
