package search

import (
	"strings"
	"testing"

	"github.com/vrnic/vrnic/shm/abi"
)

// This file adds to search_test.go the direct path (docs/direct.md): what the sender's library, the
// receiver's and the daemon do of a direction of a pair. Threads are the sender, the receiver and
// the daemon. That loads may go ahead of loads where nothing holds them, which the model does not
// do, is here as two steps that have changed places.

// The words of a direction, and what it has to do with of the rings and of the program's memory.
const (
	wOpen int8 = iota
	wRecvBase
	wSeq
	wRecvDone
	wNotify
	wSQDone
	wSQProd
	wRQProd
	wRoom // how many receives the sender knows of
	wCQPush
	wStamp // of two slots
	_
	wBuf // what two receives get, in their slots or from the daemon: the number of a message
	_
	wRing // two slots of the send queue: the same
	_
	wIndex // the receive, and one, of the last completion that the daemon has pushed
)

// The threads of each scenario.
const (
	sender = iota
	receiver
	daemon
)

// dirSlots is where the slots of a direction with two begin.
var dirSlots = int(abi.DirSlots(2))

// directWords says where the layout has each word of the model, and who writes it.
var directWords = [numMem]struct {
	off    int // within a direction; below 0: in memory that there is without the direct path
	writer writer
}{
	wOpen:      {abi.DirOpen, daemon + 1},
	wRecvBase:  {abi.DirRecvBase, daemon + 1},
	wSeq:       {abi.DirSeq, sender + 1},
	wRecvDone:  {abi.DirRecvDone, sender + 1},
	wNotify:    {abi.DirNotify, sender + 1},
	wSQDone:    {-1, daemon + 1},
	wSQProd:    {-1, sender + 1},
	wRQProd:    {-1, receiver + 1},
	wRoom:      {abi.DirRooms, receiver + 1},
	wCQPush:    {-1, daemon + 1},
	wStamp:     {dirSlots + abi.SlotStamp, sender + 1},
	wStamp + 1: {dirSlots + abi.SlotLen + abi.SlotStamp, sender + 1},
	wBuf:       {-1, 0},
	wBuf + 1:   {-1, 0},
	wRing:      {-1, sender + 1},
	wRing + 1:  {-1, sender + 1},
	wIndex:     {-1, daemon + 1},
}

func directWriters() *[numMem]writer {
	var w [numMem]writer
	for i := range directWords {
		w[i] = directWords[i].writer
	}
	return &w
}

// docs/direct.md#layout: a line of a direction has one writer.
func TestDirectLines(t *testing.T) {
	lines := map[int]writer{}
	for i, w := range directWords {
		if w.off < 0 {
			continue
		}
		if was, ok := lines[w.off/64]; ok && was != w.writer {
			t.Errorf("word %d of the model, at %d, is on a line of thread %d", i, w.off, was-1)
		}
		lines[w.off/64] = w.writer
	}
}

type directMutations struct {
	mutations
	seqFence, seqPlain, openFirst               bool // seq
	baseEarly, baseFirst, baseLate, headKept    bool // whose the receives are
	stampPlain, doneLate, notDrained            bool // a message
	closeFence, closeBlind, noCount             bool // the daemon's close, and the end
	cqeFirst, postEarly, roomFirst              bool // the receiver
	keyFirst, regionFirst, oneLook, reuse, sold bool // keys
	stampFence, notifyLate, wantLate            bool // events
	orFirst, orSkipped, clearAfter, noHangup    bool // the bitmap
	evenSilent, orLate, lookOnce                bool // its bits and the daemon, and events
	sentLate, sendsFirst                        bool // answers
	stale, openBlind, heedLate                  bool // the making of a pair
	leaveBlind, lookFirst                       bool // the next one
	doneEarly                                   bool // Writes by both ways
	toldFirst                                   bool // Writes with immediate data
	heardFence, heardLate, wantOnce             bool // a sender that wakes
	withdrawFence, sameWord, leaveDeaf          bool // who sleeps

	// What is no mutation: the daemon does not wait for a sender as long as that takes; and one: who
	// receives does not expect that.
	impatient, overTwice bool
}

// swapped has the second of two parts first when a mutation says so.
func swapped(mutant bool, first, second []any) []any {
	if mutant {
		first, second = second, first
	}
	return append(append([]any{}, first...), second...)
}

// Registers, beside 0.
const (
	// of the sender
	rMessage = 1 // the next
	rRecv    = 2 // the receive for it
	rPosted  = 3 // to the ring
	rTook    = 4 // receives, that is the one behind the last that it has used itself
	rSeq     = 5
	rBase    = 6 // recv_base, as last seen (docs/decisions.md#X6)

	// of the receiver
	rNext  = 1 // receive
	rCons  = 2 // of the CQ
	rLast  = 3 // message
	rPlace = 4

	// of the daemon
	rDone = 1 // requests of the ring
	rHead = 2 // receives that are taken
	rPush = 3 // completions
	rTold = 4 // it has closed the direction once
	rWas  = 6 // recv_done, as last seen

	rScrap = 5 // of the receiver and of the daemon
)

// foreign is a message of the daemon's own.
const foreign = 100

// enter makes the sender's word odd, so that who takes something from it waits.
func (mu *directMutations) enter() []any {
	odd := []any{instr{op: opAddTo, r: rSeq, v: 1}, instr{op: opStore, r: rSeq, a: wSeq, v: -1}}
	return append(odd, unless(mu.seqFence, instr{op: opFence})...)
}

// leave makes it even again.
func (mu *directMutations) leave() []any {
	even := instr{op: opRelease, r: rSeq, a: wSeq, v: -1}
	if mu.seqPlain {
		even.op = opStore
	}
	return []any{instr{op: opAddTo, r: rSeq, v: 1}, even}
}

// await is the daemon's, which has taken something: it waits for a sender that may not have seen
// it, until that goes on (docs/decisions.md#X5) or its socket has hung up.
func (mu *directMutations) await() []any {
	p := unless(mu.closeFence, instr{op: opFence})
	return append(p, unless(mu.closeBlind,
		instr{op: opLoad, a: wSeq},
		instr{op: opIfBit, v: 1, to: "odd"},
		instr{op: opGoto, to: "even"},
		"odd",
		unless(!mu.impatient, instr{op: opChoose, to: "even"}),
		instr{op: opWhen, when: func(m *machine, t *thread) bool {
			return m.mem[wSeq] != t.regs[0] || m.tokens[1] != 0
		}},
		"even")...)
}

// directSend is a library that sends times messages: itself where it may, else by the ring, which
// has no index for the others (docs/decisions.md#X2). Before each it does what is asked of it.
func directSend(mu directMutations, times int8, ask ...any) program {
	drained := []any{
		instr{op: opLoad, a: wSQDone},
		instr{op: opIfReg, r: rPosted, q: 0, to: "drained"},
		instr{op: opGoto, to: "ring"},
		"drained"}
	if mu.notDrained {
		drained = nil
	}
	// docs/decisions.md#X1
	base := []any{instr{op: opLoad, a: wRecvBase}, instr{op: opIfReg, r: rBase, q: 0, to: "own"},
		instr{op: opSync, r: rBase, q: 0}, instr{op: opSync, r: rTook, q: 0},
		"own", instr{op: opSync, r: rRecv, q: rTook}}
	open := []any{instr{op: opLoad, a: wOpen}, instr{op: opIfEq, v: 0, to: "closed"}}
	if mu.openFirst {
		open[1] = instr{op: opIfEq, v: 0, to: "ring"}
	}
	stamp := instr{op: opReleaseAt, r: rRecv, q: 0, a: wStamp, v: -1}
	if mu.stampPlain {
		stamp.op = opStoreAt
	}
	done := []any{instr{op: opSync, r: rTook, q: rRecv},
		instr{op: opStore, r: rTook, a: wRecvDone, v: -1}}

	p := []any{instr{op: opAddTo, r: rMessage, v: 1}, "next",
		instr{op: opIfEq, r: rMessage, v: times + 1, to: "end"}}
	p = append(p, ask...)
	p = append(p, drained...)
	if mu.baseEarly {
		p = append(p, swapped(false, base, swapped(false, mu.enter(), open))...)
	} else {
		p = append(p, swapped(mu.openFirst, mu.enter(), swapped(mu.baseFirst, open, base))...)
	}
	p = append(p, instr{op: opLoad, a: wRoom}, instr{op: opIfLess, r: rRecv, q: 0, to: "posted"},
		"closed")
	p = append(p, mu.leave()...)
	p = append(p, instr{op: opGoto, to: "ring"}, "posted",
		instr{op: opMask, r: 0, q: rRecv, v: 1},
		instr{op: opStoreAt, r: rMessage, q: 0, a: wBuf, v: -1},
		instr{op: opAddTo, r: rRecv, v: 1},
		stamp)
	p = append(p, swapped(mu.doneLate, done, mu.leave())...)
	return prog(p, instr{op: opAddTo, r: rMessage, v: 1}, instr{op: opGoto, to: "next"},
		"ring",
		instr{op: opWhen, when: func(m *machine, t *thread) bool {
			return t.regs[rPosted]-m.mem[wSQDone] < 2
		}},
		instr{op: opMask, r: 0, q: rPosted, v: 1},
		instr{op: opStoreAt, r: rMessage, q: 0, a: wRing, v: -1},
		instr{op: opAddTo, r: rPosted, v: 1},
		instr{op: opRelease, r: rPosted, a: wSQProd, v: -1},
		instr{op: opSignal, a: 0}, // the bell
		instr{op: opAddTo, r: rMessage, v: 1}, instr{op: opGoto, to: "next"},
		"dead",
		instr{op: opSignal, a: 1}, // the socket hangs up, and all stores have landed
		"end")
}

// postRecv posts a receive: the daemon, which hears from the sender that it is used, finds it.
func (mu *directMutations) postRecv(r, n int8) []any {
	return swapped(mu.roomFirst, []any{instr{op: opRelease, r: r, a: wRQProd, v: n}},
		[]any{instr{op: opRelease, r: r, a: wRoom, v: n}})
}

// got is what the receiver does when its next receive has completed: it reads the message, and may
// post another receive then, up to posts in all.
func (mu *directMutations) got(posts int8) []any {
	read := []any{
		instr{op: opMask, r: rPlace, q: rNext, v: 1},
		instr{op: opLoadAt, q: rPlace, a: wBuf},
		instr{op: opIfEq, v: foreign, to: "read"},
		instr{op: opAddTo, r: rLast, v: 1},
		instr{op: opIfReg, r: rLast, q: 0, to: "read"},
		instr{op: opFail, to: "a message is lost, torn or doubled"},
		"read"}
	post := []any{
		instr{op: opLoad, r: rScrap, a: wRQProd},
		instr{op: opIfEq, r: rScrap, v: posts, to: "enough"},
		instr{op: opAddTo, r: rScrap, v: 1}}
	post = append(append(post, mu.postRecv(rScrap, -1)...), "enough")
	return append(swapped(mu.postEarly, read, post), instr{op: opAddTo, r: rNext, v: 1},
		instr{op: opGoto, to: "poll"})
}

// lookAt goes on at to if the next receive has its message, in the two slots with stamps at stamp.
// rPlace is what that is stamped with.
func lookAt(stamp int8, to string) []any {
	return []any{
		instr{op: opMask, r: rPlace, q: rNext, v: 1},
		instr{op: opLoadAt, q: rPlace, a: stamp},
		instr{op: opSync, r: rPlace, q: rNext},
		instr{op: opAddTo, r: rPlace, v: 1},
		instr{op: opIfReg, q: rPlace, to: to}}
}

// directReceive is a library with a receive queue of two, that posts so many receives in all.
func directReceive(mu directMutations, posts int8) program {
	stamped := func(m *machine, t *thread) bool {
		return m.mem[wStamp+t.regs[rNext]&1] == t.regs[rNext]+1
	}
	return prog(mu.postRecv(0, 2), // two in one call
		instr{op: opGoto, to: "poll"},
		"wait",
		instr{op: opWhen, when: func(m *machine, t *thread) bool {
			return stamped(m, t) || m.mem[wCQPush] != t.regs[rCons]
		}},
		"poll",
		lookAt(wStamp, "got"),
		instr{op: opLoad, a: wCQPush},
		instr{op: opIfReg, q: rCons, to: "wait"},
		instr{op: opLoad, a: wIndex},
		instr{op: opIfReg, q: rPlace, to: "completion"},
		instr{op: opIfLess, r: 0, q: rPlace, to: "twice"},
		unless(!mu.cqeFirst, instr{op: opFail, to: "a later receive has completed first"}),
		instr{op: opWhen, when: stamped}, instr{op: opGoto, to: "got"},
		"twice",
		unless(!mu.impatient || mu.overTwice, // it has come late, and has been flushed, too
			instr{op: opAddTo, r: rCons, v: 1}, instr{op: opGoto, to: "poll"}),
		instr{op: opFail, to: "a receive has completed twice"},
		"completion", instr{op: opAddTo, r: rCons, v: 1},
		"got", mu.got(posts))
}

// deliver has the daemon put the message in register 0 into the next receive. It retires the
// request before the completion shows (docs/abi.md#waking).
func deliver(retire ...any) []any {
	p := []any{
		instr{op: opWhen, when: func(m *machine, t *thread) bool { // the model has a CQ of one
			return m.mem[wRQProd] > t.regs[rHead] && m.th[receiver].regs[rCons] == t.regs[rPush]
		}},
		instr{op: opMask, r: rScrap, q: rHead, v: 1},
		instr{op: opStoreAt, r: 0, q: rScrap, a: wBuf, v: -1},
		instr{op: opAddTo, r: rHead, v: 1}}
	return append(append(p, retire...),
		instr{op: opStore, r: rHead, a: wIndex, v: -1},
		instr{op: opAddTo, r: rPush, v: 1},
		instr{op: opRelease, r: rPush, a: wCQPush, v: -1})
}

// deliverForeign is deliver of a message of the daemon's own.
func deliverForeign() []any {
	return append([]any{instr{op: opMask, v: 0}, instr{op: opAddTo, v: foreign}},
		deliver(instr{op: opRelease, r: rHead, a: wRecvBase, v: -1})...)
}

// shut is how the daemon takes a direction from its sender.
func (mu *directMutations) shut() []any {
	p := append([]any{instr{op: opStore, a: wOpen, v: 0}}, mu.await()...)
	return append(p, takeOver("shut")...)
}

// takeOver is how the daemon goes on behind the receives that the sender has used, which it checks.
func takeOver(name string) []any {
	return []any{
		instr{op: opLoad, a: wRecvDone},
		instr{op: opLoad, r: rScrap, a: wRQProd},
		instr{op: opIfLess, r: rScrap, q: 0, to: name + "wrong"},
		instr{op: opIfReg, r: rWas, q: 0, to: name + "over"},
		instr{op: opSync, r: rWas, q: 0}, instr{op: opSync, r: rHead, q: 0},
		instr{op: opGoto, to: name + "over"},
		name + "wrong", instr{op: opFail, to: "the sender has used a receive that there is not"},
		name + "over"}
}

// handoverScenario: a library sends, by the ring where it must; the daemon closes the direction
// once for a message of its own, and opens it again.
func handoverScenario(mu directMutations, times int8) *scenario {
	retire := swapped(mu.baseLate, []any{instr{op: opRelease, r: rHead, a: wRecvBase, v: -1}},
		[]any{instr{op: opRelease, r: rDone, a: wSQDone, v: -1}})
	d := []any{instr{op: opRelease, a: wOpen, v: 1},
		"idle",
		instr{op: opIfEq, r: rTold, v: 1, to: "blocked"},
		instr{op: opChoose, to: "close"},
		"blocked",
		instr{op: opWait, a: 0},
		"look",
		instr{op: opLoad, a: wSQProd},
		instr{op: opIfReg, r: rDone, q: 0, to: "idle"}}
	d = append(d, unless(mu.headKept, takeOver("look")...)...)
	d = append(d,
		instr{op: opMask, r: rScrap, q: rDone, v: 1},
		instr{op: opLoadAt, q: rScrap, a: wRing},
		instr{op: opAddTo, r: rDone, v: 1})
	d = append(d, deliver(retire...)...)
	d = append(d, instr{op: opGoto, to: "look"}, "close", instr{op: opAddTo, r: rTold, v: 1})
	d = append(d, mu.shut()...)
	d = append(d, deliverForeign()...)
	d = append(d, instr{op: opRelease, a: wOpen, v: 1}, instr{op: opGoto, to: "look"})
	return &scenario{
		progs:   []program{directSend(mu, times), directReceive(mu, times+1), prog(d)},
		writers: directWriters(),
		rest: func(m *machine, at func(int, string) bool) string {
			switch {
			case !at(sender, "end") || !at(daemon, "blocked"):
				return "the sender or the daemon is stuck"
			case m.th[receiver].regs[rLast] != times:
				return "a message is not there"
			case m.th[receiver].regs[rNext] != times+m.th[daemon].regs[rTold]:
				return "the daemon's message is not there"
			}
			return ""
		},
	}
}

// countStamped is how the daemon goes on behind the receives that are stamped, when a sender has
// ended: they have come, whether it got to say so or not.
func countStamped() []any {
	return []any{"count",
		instr{op: opMask, r: rScrap, q: rHead, v: 1},
		instr{op: opLoadAt, q: rScrap, a: wStamp},
		instr{op: opSync, r: rScrap, q: rHead},
		instr{op: opAddTo, r: rScrap, v: 1},
		instr{op: opIfReg, q: rScrap, to: "counted"},
		instr{op: opGoto, to: "uncounted"},
		"counted",
		instr{op: opSync, r: rHead, q: rScrap},
		instr{op: opGoto, to: "count"},
		"uncounted"}
}

// endScenario: the daemon ends the connection at any time, and flushes the receives that are left;
// the sender may die, wherever it is, or stand still for so long that it is waited for no more:
// then one message that it sends is lost with its receive (docs/direct.md#death).
func endScenario(mu directMutations, times int8) *scenario {
	d := append([]any{instr{op: opRelease, a: wOpen, v: 1}}, mu.shut()...)
	d = append(d, "flush")
	d = append(d, unless(mu.noCount, countStamped()...)...)
	d = append(d, deliverForeign()...)
	d = append(d, instr{op: opGoto, to: "flush"})
	posts := times + 1
	come := func(s *thread) int8 { // how many messages at least
		if mu.impatient {
			return s.regs[rMessage] - 1 - s.regs[rPosted] - 1
		}
		return s.regs[rTook]
	}
	return &scenario{
		progs:   []program{directSend(mu, times), directReceive(mu, posts), prog(d)},
		writers: directWriters(),
		mortal:  sender + 1,
		rest: func(m *machine, at func(int, string) bool) string {
			switch {
			case !at(sender, "end"):
				return "the sender is stuck"
			case m.th[receiver].regs[rNext] != posts:
				return "a receive has not completed"
			case m.th[receiver].regs[rLast] < come(&m.th[sender]):
				return "a message that was sent has not come"
			}
			return ""
		},
	}
}

// docs/direct.md: as written nothing is lost, torn, doubled or left to wait, and each change for
// the worse is found.
func TestDirectSearch(t *testing.T) {
	const (
		missing = "a message is not there"
		torn    = "a message is lost, torn or doubled"
		twice   = "a receive has completed twice"
		lost    = "a message that was sent has not come"
		late    = "a store has come after its key has gone"
		others  = "a key gave what is another's"
		older   = "an older Write has come last"
		untold  = "a message tells of a Write that is not there"
		asleep  = "the receiver waits for an event although"
		unseen  = "nobody looks for a message"
		early   = "the answer is there before the Send is over"
		gone    = "a message is not there when its pair is left"
	)
	type (
		sc = func(directMutations) *scenario
		mu = directMutations
	)
	handover := func(n int8) sc { return func(m mu) *scenario { return handoverScenario(m, n) } }
	notify := func(n int8) sc { return func(m mu) *scenario { return notifyScenario(m, n) } }
	wake := func(m mu) *scenario { return wakeScenario(m, 2) } // 3: half a minute, some gigabytes
	end := func(m mu) *scenario { return endScenario(m, 2) }
	dirty := func(m mu) *scenario { return dirtyScenario(m, 3) }
	shut := func(m mu) *scenario { return dirtyCloseScenario(m, 3) }
	dirtyNotify := func(m mu) *scenario { return dirtyNotifyScenario(m, 2) }
	making := func(n int8) sc { return func(m mu) *scenario { return makingScenario(m, n) } }
	for _, tt := range []struct {
		name string
		sc   sc
		mu   mu
		want string // how the fault begins; "": none
	}{
		{"hand-over 2", handover(2), mu{}, ""},
		{"hand-over 3", handover(3), mu{}, ""},
		{"end", end, mu{}, ""},
		{"stands still", end, mu{impatient: true}, ""},
		{"keys", keyScenario, mu{}, ""},
		{"overwrite", overwriteScenario, mu{}, ""},
		{"told", toldScenario, mu{}, ""},
		{"notify 2", notify(2), mu{}, ""},
		{"notify 3", notify(3), mu{}, ""},
		{"wake", wake, mu{}, ""},
		{"bitmap", dirty, mu{}, ""},
		{"bitmap and close", shut, mu{}, ""},
		{"bitmap and close, stands still", shut, mu{impatient: true}, ""},
		{"bitmap and events", dirtyNotify, mu{}, ""},
		{"bitmap and the daemon's messages", dirtyBesideScenario, mu{}, ""},
		{"answer", answerScenario, mu{}, ""},
		{"making", making(2), mu{}, ""},
		{"next pair", nextScenario, mu{}, ""},

		{"seq without fence", handover(2), mu{seqFence: true}, missing},
		{"seq even without release", handover(2), mu{seqPlain: true}, missing},
		{"open looked at before seq only", handover(2), mu{openFirst: true}, missing},
		{"recv_base read before seq", handover(2), mu{baseEarly: true}, missing},
		{"recv_base read before open", handover(2), mu{baseFirst: true}, missing},
		{"recv_base stored after sq_done", handover(2), mu{baseLate: true}, missing},
		{"recv_done not taken over", handover(2), mu{headKept: true}, twice},
		{"recv_done stored after seq", handover(2), mu{doneLate: true}, twice},
		{"stamp without release", handover(2), mu{stampPlain: true}, torn},
		{"direct with requests in the ring", handover(2), mu{notDrained: true}, missing},
		{"close without fence", handover(2), mu{closeFence: true}, missing},
		{"close without waiting for seq", handover(2), mu{closeBlind: true}, missing},
		{"completion of a later receive first", handover(2), mu{cqeFirst: true},
			"a later receive has completed first"},
		{"receive posted before its slot is read", handover(3), mu{postEarly: true}, torn},

		{"room stored before rq_prod", handover(2), mu{roomFirst: true},
			"the sender has used a receive that there is not"},

		{"end: seq without fence", end, mu{seqFence: true}, lost},
		{"end without fence", end, mu{closeFence: true}, lost},
		{"end without waiting for seq", end, mu{closeBlind: true}, lost},
		{"end: stamps not counted", end, mu{noCount: true}, twice},
		{"stands still: a late message and its flush", end, mu{impatient: true, overTwice: true}, twice},
		{"stands still: without fence", end, mu{impatient: true, seqFence: true}, lost},

		{"key looked up before seq", keyScenario, mu{keyFirst: true}, late},
		{"key: seq without fence", keyScenario, mu{seqFence: true}, others},
		{"key: seq even without release", keyScenario, mu{seqPlain: true}, late},
		{"key: region read before the key", keyScenario, mu{regionFirst: true}, late},
		{"key not looked up again", keyScenario, mu{oneLook: true}, late},
		{"revocation without fence", keyScenario, mu{closeFence: true}, others},
		{"revocation without waiting for seq", keyScenario, mu{closeBlind: true}, others},
		{"entry written again before seq", keyScenario, mu{reuse: true}, others},
		{"key published before its region", keyScenario, mu{sold: true}, late},

		{"overwrite: direct with a Write in the ring", overwriteScenario, mu{notDrained: true}, older},
		{"overwrite: retired before it is placed", overwriteScenario, mu{doneEarly: true}, older},

		{"told: stamp without release", toldScenario, mu{stampPlain: true}, untold},
		{"told: stamp before the Write", toldScenario, mu{toldFirst: true}, untold},

		{"stamp without fence", notify(2), mu{stampFence: true}, asleep},
		{"bell before notify", notify(2), mu{notifyLate: true}, asleep},
		{"want stored behind the fence", notify(2), mu{wantLate: true}, asleep},
		{"notify: no fence behind the bell", notify(2), mu{mutations: mutations{postFence: true}},
			asleep},
		{"arm without fence", notify(2), mu{mutations: mutations{armFence: true}}, asleep},

		{"wake: no fence behind what is counted", wake, mu{heardFence: true}, asleep},
		{"wake: counted behind the octet", wake, mu{heardLate: true}, asleep},
		{"wake: want read before the count alone", wake, mu{wantOnce: true}, asleep},
		{"wake: no fence behind the sleep", wake, mu{withdrawFence: true}, asleep},
		{"wake: one sleep like another", wake, mu{sameWord: true}, asleep},
		{"wake: an interrupted sleep passes nothing on", wake, mu{leaveDeaf: true}, asleep},
		{"wake: arm without fence", wake, mu{mutations: mutations{armFence: true}}, asleep},

		{"bit before stamp", dirty, mu{orFirst: true}, unseen},
		{"OR skipped when the bit looks set", dirty, mu{orSkipped: true}, unseen},
		{"bit cleared after the look", dirty, mu{clearAfter: true}, unseen},
		{"nobody looks when a sender has died", dirty, mu{noHangup: true}, unseen},
		{"close: no bit for a sender that had left", shut, mu{evenSilent: true}, unseen},
		{"close: bit without waiting for seq", shut, mu{closeBlind: true}, unseen},
		{"close: without fence", shut, mu{closeFence: true}, unseen},
		{"close: seq even without release", shut, mu{seqPlain: true}, unseen},
		{"no look behind the daemon's message", dirtyBesideScenario, mu{lookOnce: true}, unseen},
		{"events: want read before the bit is set", dirtyNotify, mu{orLate: true}, asleep},
		{"events: no fence behind the bit", dirtyNotify, mu{stampFence: true}, asleep},
		{"events: arm without fence", dirtyNotify, mu{mutations: mutations{armFence: true}}, asleep},

		{"Send recorded after its stamp", answerScenario, mu{sentLate: true}, early},
		{"Sends looked at before receives", answerScenario, mu{sendsFirst: true}, early},

		{"making: a stamp like that of a receive that is not polled", making(2), mu{stale: true}, twice},
		{"making: open with recv_base as it was", making(3), mu{openBlind: true}, missing},
		{"making: recv_done heeded after open", making(2), mu{heedLate: true}, missing},

		{"next pair: a stamp like that of a receive that is not polled", nextScenario, mu{stale: true},
			twice},
		{"next pair: the old one left with a message", nextScenario, mu{leaveBlind: true}, gone},
		{"next pair: the old one looked at before there is another", nextScenario, mu{lookFirst: true},
			gone},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fault, states := tt.sc(tt.mu).explore()
			t.Logf("%d states", states)
			if fault == "" != (tt.want == "") || !strings.HasPrefix(fault, tt.want) {
				t.Errorf("the search found %q, want %q", fault, tt.want)
			}
		})
	}
}
