package search

import "fmt"

// This file adds to search_test.go what is new with an SRQ: several QPs wait for one ring. The
// daemon's side is that of vnic.SRQ over a RecvConsumer: all that touches the ring is done under
// the SRQ's lock, and a bell wakes every QP that waits.

// Words of the SRQ scenario, beside those of the doorbell.
const (
	wWaiting = wProd1 // the QPs that wait, a bit each
	wLock    = wData1 // the SRQ's
)

// srqTake takes one receive for the QP with this bit, and goes to got or to wait; labels begin with
// name. Register 2 is kept.
func srqTake(mu mutations, name string, bit int8, got, wait string) []any {
	next := func(look, empty string) []any { // RecvConsumer.Next
		p := []any{
			look,
			instr{op: opLock, a: wLock},
			instr{op: opLoad, r: 0, a: wHead0},
			instr{op: opLoad, r: 1, a: wProd0},
			instr{op: opIfReg, r: 0, q: 1, to: look + "none"},
			instr{op: opAddTo, r: 0, v: 1},
			instr{op: opStore, a: wHead0, v: -1},
		}
		if mu.sateInNext {
			p = append(p, instr{op: opStore, a: wStarved, v: 0})
		}
		return append(p,
			instr{op: opRelease, a: wLock, v: 0},
			instr{op: opGoto, to: name + "got"},
			look+"none",
			instr{op: opRelease, a: wLock, v: 0},
			instr{op: opGoto, to: empty})
	}
	var p []any
	p = append(p, next(name+"look", name+"starve")...)
	p = append(p, name+"starve", // RecvConsumer.Starve
		instr{op: opLock, a: wLock},
		instr{op: opOr, a: wWaiting, v: bit},
		instr{op: opStore, a: wStarved, v: 1})
	if !mu.starveFence {
		p = append(p, instr{op: opFence})
	} else { // the lock orders the daemon's threads, not this store and the load behind it
		p = append(p, instr{op: opLoad, r: 0, a: wHead0}, instr{op: opLoad, r: 1, a: wProd0},
			instr{op: opFence})
	}
	p = append(p, instr{op: opRelease, a: wLock, v: 0})
	switch {
	case mu.lookOnce:
		p = append(p, instr{op: opGoto, to: wait})
	case mu.starveFence:
		p = append(p, instr{op: opIfReg, r: 0, q: 1, to: wait}, instr{op: opGoto, to: name + "again"})
	}
	p = append(p, next(name+"again", wait)...)
	p = append(p, name+"got", // waits no more: RecvConsumer.Sate if that was the last
		instr{op: opLock, a: wLock},
		instr{op: opAnd, r: 0, a: wWaiting, v: ^bit},
		instr{op: opLoad, r: 0, a: wWaiting})
	if !mu.sateBlind {
		p = append(p, instr{op: opIfBit, r: 0, v: 3, to: name + "others"})
	}
	return append(p,
		instr{op: opStore, a: wStarved, v: 0},
		name+"others",
		instr{op: opRelease, a: wLock, v: 0},
		instr{op: opGoto, to: got})
}

// srqScenario: two QPs want a receive each of an SRQ, and the program posts two. The first is run
// by the doorbell's thread, the other by one that a message from the network has brought.
func srqScenario(mu mutations) *scenario {
	const first, second = 1, 2
	var d []any
	d = append(d, srqTake(mu, "first", first, "loop", "loop")...)
	d = append(d, awaitBell("loop", "ring")...)
	d = append(d,
		"ring", // SRQ.Ring
		instr{op: opLock, a: wLock},
		instr{op: opLoad, r: 2, a: wWaiting},
		instr{op: opRelease, a: wLock, v: 0})
	if mu.wakeOne {
		d = append(d, instr{op: opIfBit, r: 2, v: first, to: "firstlook"})
	}
	d = append(d,
		instr{op: opIfBit, r: 2, v: second, to: "wake"},
		instr{op: opGoto, to: "woken"},
		"wake",
		instr{op: opSignal, a: 1},
		"woken",
		instr{op: opIfBit, r: 2, v: first, to: "firstlook"},
		instr{op: opGoto, to: "loop"})

	var s []any
	s = append(s, srqTake(mu, "second", second, "done", "wait")...)
	s = append(s, "wait", instr{op: opToken, a: 1}, instr{op: opGoto, to: "secondlook"}, "done")

	var c []any
	for i := int8(1); i <= 2; i++ { // RecvProducer.Commit
		done := fmt.Sprint("posted", i)
		c = append(c, instr{op: opRelease, a: wProd0, v: i})
		c = append(c, unless(mu.recvFence, instr{op: opFence})...)
		c = append(c, instr{op: opLoad, r: 1, a: wStarved}, instr{op: opIfEq, r: 1, v: 0, to: done})
		c = append(c, ring(mu, 1, done)...)
	}
	return &scenario{
		progs: []program{prog(d), prog(s), prog(c)},
		rest: func(m *machine, at func(int, string) bool) string {
			if !at(0, "blocked") {
				return "the daemon is stuck elsewhere"
			}
			if m.mem[wHead0] != m.mem[wProd0] {
				return "a QP waits for a receive that is posted"
			}
			return ""
		},
	}
}
