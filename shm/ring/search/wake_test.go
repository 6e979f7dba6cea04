package search

import (
	"fmt"

	"github.com/vrnic/vrnic/shm/abi"
)

// This file has how a sender wakes who sleeps in the receiver's library, without the daemon.

// wakeScenario: a library sends n messages, to a program that arms its CQ and then sleeps in its
// library, or looks at the channel's descriptor itself. A sleep may be interrupted. To send an
// octet by the socket between the two is a system call, and the socket is a word.
func wakeScenario(mu directMutations, n int8) *scenario {
	const (
		wHeard, wSocket, wPassed, wWant = wSQDone, wSQProd, wRQProd, wRoom

		rNotify, rHeard, rKicked = 2, 3, 4 // of the sender
		rSeen, rWord, rAsked     = 2, 3, 4 // of the receiver
		rNotified, rTaken        = 3, 4    // of the daemon

		wants = abi.ArmNext | abi.ArmSolicited
		gen   = 1 << 3
	)
	var s []any
	for i := int8(1); i <= n; i++ {
		next := fmt.Sprint("sent", i)
		count := []any{instr{op: opAddTo, r: rHeard, v: 1},
			instr{op: opRelease, r: rHeard, a: wHeard, v: -1}}
		s = append(s, instr{op: opRelease, a: wStamp, v: i}, instr{op: opFence},
			instr{op: opLoad, a: wWant},
			instr{op: opIfBit, v: abi.ArmNext, to: next + "wanted"},
			instr{op: opGoto, to: next},
			next+"wanted",
			instr{op: opIfBit, v: abi.WantAsleep, to: next + "asleep"},
			instr{op: opGoto, to: next + "bell"},
			next+"asleep")
		s = append(s, unless(mu.heardLate, count...)...)
		s = append(s, unless(mu.heardFence, instr{op: opFence})...)
		s = append(s, unless(mu.wantOnce, instr{op: opLoad, a: wWant})...)
		s = append(s, instr{op: opIfBit, v: abi.WantAsleep, to: next + "kick"},
			instr{op: opGoto, to: next + "bell"},
			next+"kick",
			instr{op: opIfReg, r: rKicked, q: 0, to: next},
			instr{op: opSync, r: rKicked, q: 0},
			instr{op: opXchg, r: 0, a: wSocket, v: 1})
		if mu.heardLate {
			s = append(s, count...)
		}
		s = append(s, instr{op: opGoto, to: next},
			next+"bell",
			instr{op: opAddTo, r: rNotify, v: 1},
			instr{op: opRelease, r: rNotify, a: wNotify, v: -1})
		s = append(s, ring(mu.mutations, 1, next)...)
	}

	d := append(awaitBell("idle", "look"),
		"look",
		instr{op: opLoad, a: wNotify},
		instr{op: opLoad, r: 1, a: wPassed},
		instr{op: opIfReg, q: rNotified, to: "same"},
		instr{op: opSync, r: rNotified, q: 0},
		instr{op: opGoto, to: "raise"},
		"same",
		instr{op: opIfReg, r: 1, q: rTaken, to: "idle"},
		"raise",
		instr{op: opSync, r: rTaken, q: 1})
	d = append(append(d, raise("idle")...), instr{op: opGoto, to: "idle"})

	poll := []any{instr{op: opLoad, a: wStamp}, instr{op: opIfEq, v: n, to: "done"}}
	withdraw := []any{instr{op: opRelease, a: wWant, v: abi.ArmNext}}
	withdraw = append(withdraw, unless(mu.withdrawFence, instr{op: opFence})...)
	r := []any{instr{op: opAddTo, r: rWord, v: abi.ArmNext | abi.WantAsleep}, "loop"}
	r = append(r, poll...)
	r = append(r, instr{op: opLoad, r: rSeen, a: wHeard},
		instr{op: opRelease, a: wWant, v: abi.ArmNext})
	r = append(r, arm(mu.mutations, abi.ArmNext, 1)...)
	r = append(r, poll...)
	r = append(r, instr{op: opChoose, to: "token"}, "sleep",
		instr{op: opRelease, r: rWord, a: wWant, v: -1})
	r = append(r, unless(mu.sameWord, instr{op: opAddTo, r: rWord, v: gen})...)
	r = append(r, instr{op: opFence}, // a system call
		instr{op: opChoose, to: "interrupted"},
		"asleep",
		instr{op: opWhen, when: func(m *machine, _ *thread) bool {
			return m.tokens[1] != 0 || m.mem[wSocket] != 0
		}})
	r = append(r, withdraw...)
	r = append(r, instr{op: opXchg, r: 1, a: wSocket, v: 0},
		instr{op: opLoad, a: wHeard},
		instr{op: opIfReg, q: rSeen, to: "unheard"},
		instr{op: opSync, r: rSeen, q: 0},
		instr{op: opAnd, a: wArm, v: 7 &^ wants},
		instr{op: opIfBit, v: abi.ArmQueued, to: "token"},
		instr{op: opIfBit, v: abi.ArmNext, to: "used"},
		instr{op: opGoto, to: "token"},
		"unheard", // the daemon's token, or an octet that came late
		instr{op: opIfEq, r: 1, v: 1, to: "sleep"},
		instr{op: opGoto, to: "token"},
		"interrupted")
	r = append(r, withdraw...)
	pass := append([]any{instr{op: opLoad, a: wHeard},
		instr{op: opIfReg, q: rSeen, to: "token"},
		instr{op: opSync, r: rSeen, q: 0},
		instr{op: opAddTo, r: rAsked, v: 1},
		instr{op: opRelease, r: rAsked, a: wPassed, v: -1}}, ring(mu.mutations, 1, "passed")...)
	r = append(r, unless(mu.leaveDeaf, pass...)...)
	r = append(r, "token", instr{op: opToken, a: 1}, instr{op: opLoad, r: 1, a: wChanProd},
		instr{op: opAnd, r: 1, a: wArm, v: 7 &^ abi.ArmQueued},
		"used", instr{op: opRelease, a: wWant, v: 0}, instr{op: opGoto, to: "loop"}, "done")
	return &scenario{
		progs: []program{prog(s), prog(r), prog(d)},
		rest: func(_ *machine, at func(int, string) bool) string {
			if at(receiver, "asleep") || at(receiver, "token") {
				return "the receiver waits for an event although messages came after it had armed"
			}
			if !at(receiver, "done") || !at(daemon, "blocked") {
				return "the receiver or the daemon is stuck elsewhere"
			}
			return ""
		},
	}
}
