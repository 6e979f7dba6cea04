package search

import (
	"fmt"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/shm/abi"
)

// This file walks through every interleaving of the steps by which the two sides wake each other
// (docs/abi.md#waking), on a machine with store buffers that is weaker than amd64: a thread's
// stores and result-less read-modify-writes wait in its buffer while later loads go ahead, as on
// arm64; plain stores leave the buffer in any order, releases in program order behind all before
// them. A fence empties the buffer, and so do a read-modify-write with a result and a system call.
//
// The programs below are the functions of package ring, step by step: change the search first, then
// the code. A wake-up is lost if everything has come to rest and work is still there.

// op is an instruction of the model.
type op uint8

const (
	opLoad    op = iota // r = mem[a]
	opStore             // mem[a] = v, or r if v < 0
	opRelease           // the same, behind all earlier stores
	opOr                // mem[a] |= v, buffered like a release
	opXchg              // r = mem[a]; mem[a] = v
	opAnd               // r = mem[a]; mem[a] &= v
	opFence
	opIfEq  // if r == v goto to
	opIfBit // if r & v != 0 goto to
	opIfReg // if r == q, another register, goto to
	opGoto
	opAddTo  // r += v
	opSync   // r = q, another register: take what the ring has
	opSignal // tokens[a]++
	opWait   // block until tokens[a] > 0; an eventfd: all of them are taken
	opToken  // block until tokens[a] > 0; a pipe: one is taken
	opLock   // block until mem[a] is 0, and make it 1
	opCheck  // r must be at least register q: the content of what the index shows is there
	opEnd

	// of direct_test.go
	opLoadAt    // r = mem[a + q], q a register
	opStoreAt   // mem[a + q] = r
	opReleaseAt // the same, behind all earlier stores
	opMask      // r = q & v
	opIfLess    // if r < q goto to
	opWhen      // block until when says so
	opChoose    // goto to, or go on
	opFail      // this must not be reached: to says why
)

type instr struct {
	op   op
	r, q int8
	a    int8
	v    int8
	to   string
	when func(m *machine, t *thread) bool
}

// alone reports whether in touches nothing but its thread's registers, so that it makes no
// difference when others see it done.
func (in *instr) alone() bool {
	switch in.op {
	case opIfEq, opIfBit, opIfReg, opIfLess, opGoto, opAddTo, opSync, opMask, opCheck, opFail:
		return true
	}
	return false
}

type program struct {
	code   []instr
	labels map[string]int8
}

// prog assembles; a string is a label.
func prog(parts ...any) program {
	p := program{labels: map[string]int8{}}
	p.add(parts)
	p.code = append(p.code, instr{op: opEnd})
	return p
}

func (p *program) add(part any) {
	switch x := part.(type) {
	case string:
		p.labels[x] = int8(len(p.code))
	case instr:
		p.code = append(p.code, x)
	case []any:
		for _, y := range x {
			p.add(y)
		}
	default:
		panic(x)
	}
}

// unless leaves an instruction out when a mutation says so.
func unless(mutant bool, x ...any) []any {
	if mutant {
		return nil
	}
	return x
}

const (
	maxThreads = 3
	maxBuf     = 4
	numRegs    = 8
	numMem     = 17
	numTokens  = 2
)

type pending struct {
	set     bool
	or      bool
	release bool
	a, v    int8
}

type thread struct {
	pc   int8
	regs [numRegs]int8
	buf  [maxBuf]pending
	n    int8
}

// machine is a state of the model; it is comparable, so that states can be remembered.
type machine struct {
	mem    [numMem]int8
	tokens [numTokens]int8
	th     [maxThreads]thread
}

type scenario struct {
	progs []program
	// rest says what is wrong with a state in which nothing can move; "" if nothing is.
	rest func(m *machine, at func(thread int, label string) bool) string
	// mortal, if not 0, is a thread and one, that may go to its label "dead" from wherever it is.
	mortal int
	// writers says whose each word is that has one writer; nil: no matter.
	writers *[numMem]writer
}

// writes reports whether in changes memory.
func (in *instr) writes() bool {
	switch in.op {
	case opStore, opRelease, opOr, opXchg, opAnd, opLock, opStoreAt, opReleaseAt:
		return true
	}
	return false
}

// A writer is a thread and one, or 0 for a word with several.
type writer int8

// explore returns the first fault found, and how many states there were.
func (s *scenario) explore() (fault string, states int) {
	seen := map[machine]struct{}{}
	stack := []machine{{}}
	seen[machine{}] = struct{}{}
	for len(stack) > 0 {
		m := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		moved := false
		next := func(n machine) {
			moved = true
			if _, ok := seen[n]; !ok {
				seen[n] = struct{}{}
				stack = append(stack, n)
			}
		}
		for i := range s.progs {
			s.flushes(&m, i, next)
			if i+1 == s.mortal && m.th[i].pc < s.progs[i].labels["dead"] {
				n := m
				n.th[i].pc = s.progs[i].labels["dead"]
				next(n)
			}
			if f := s.step(&m, i, next); f != "" {
				return f, len(seen)
			}
		}
		if !moved {
			at := func(t int, label string) bool { return m.th[t].pc == s.progs[t].labels[label] }
			if f := s.rest(&m, at); f != "" {
				return fmt.Sprintf("%s: %+v", f, m), len(seen)
			}
		}
	}
	return "", len(seen)
}

// flushes tries every buffered store of thread i that may become visible now.
func (s *scenario) flushes(m *machine, i int, next func(machine)) {
	t := &m.th[i]
	for k := int8(0); k < t.n; k++ {
		e := t.buf[k]
		blocked := e.release && k > 0
		for j := int8(0); j < k; j++ { // same address in order; nothing passes a release
			blocked = blocked || t.buf[j].a == e.a || t.buf[j].or
		}
		if blocked {
			continue
		}
		n := *m
		if e.or {
			n.mem[e.a] |= e.v
		} else {
			n.mem[e.a] = e.v
		}
		nt := &n.th[i]
		copy(nt.buf[k:], nt.buf[k+1:])
		nt.n--
		nt.buf[nt.n] = pending{}
		next(n)
	}
}

// step executes the next instruction of thread i, if it can go now, and those behind it that are
// the thread's alone.
func (s *scenario) step(m *machine, i int, next func(machine)) (fault string) {
	t := &m.th[i]
	p := &s.progs[i]
	in := &p.code[t.pc]
	n := *m
	nt := &n.th[i]
	empty := t.n == 0
	value := in.v
	if value < 0 {
		value = t.regs[in.r]
	}
	a := in.a
	switch in.op {
	case opLoadAt, opStoreAt, opReleaseAt:
		a += t.regs[in.q]
	}
	buffer := func(e pending) bool {
		if nt.n == maxBuf {
			return false // full: flush first
		}
		e.set = true
		nt.buf[nt.n] = e
		nt.n++
		return true
	}
	if in.writes() && s.writers != nil && s.writers[a] != 0 && s.writers[a] != writer(i+1) {
		return fmt.Sprintf("thread %d writes word %d", i, a)
	}
	if !in.alone() {
		nt.pc++
	}
	switch in.op {
	case opLoad, opLoadAt:
		v := m.mem[a]
		for k := int8(0); k < t.n; k++ {
			if e := t.buf[k]; e.a == a {
				if e.or {
					return "" // its own read-modify-write must be done first
				}
				v = e.v
			}
		}
		nt.regs[in.r] = v
	case opStore, opStoreAt:
		if !buffer(pending{a: a, v: value}) {
			return ""
		}
	case opRelease, opReleaseAt:
		if !buffer(pending{a: a, v: value, release: true}) {
			return ""
		}
	case opOr:
		if !buffer(pending{a: a, v: in.v, or: true, release: true}) {
			return ""
		}
	case opXchg, opAnd:
		if !empty {
			return ""
		}
		nt.regs[in.r] = m.mem[a]
		if in.op == opXchg {
			n.mem[a] = in.v
		} else {
			n.mem[a] &= in.v
		}
	case opFence:
		if !empty {
			return ""
		}
	case opSignal:
		if !empty {
			return ""
		}
		n.tokens[a]++
	case opWait, opToken:
		if !empty || m.tokens[a] == 0 {
			return ""
		}
		if in.op == opWait {
			n.tokens[a] = 0
		} else {
			n.tokens[a]--
		}
	case opLock:
		if !empty || m.mem[a] != 0 {
			return ""
		}
		n.mem[a] = 1
	case opWhen:
		if !in.when(m, t) {
			return ""
		}
	case opChoose:
		other := n
		other.th[i].pc = p.labels[in.to]
		if fault := p.alone(i, &other.th[i]); fault != "" {
			return fault
		}
		next(other)
	case opEnd:
		return ""
	}
	if fault := p.alone(i, nt); fault != "" {
		return fault
	}
	next(n)
	return ""
}

// alone executes what comes next of thread i and touches nothing but its registers.
func (p *program) alone(i int, t *thread) (fault string) {
	for {
		in := &p.code[t.pc]
		if !in.alone() {
			return ""
		}
		t.pc++
		jump := false
		switch r, q := &t.regs[in.r], t.regs[in.q]; in.op {
		case opIfEq:
			jump = *r == in.v
		case opIfBit:
			jump = *r&in.v != 0
		case opIfReg:
			jump = *r == q
		case opIfLess:
			jump = *r < q
		case opGoto:
			jump = true
		case opAddTo:
			*r += in.v
		case opSync:
			*r = q
		case opMask:
			*r = q & in.v
		case opCheck:
			if *r < q {
				return fmt.Sprintf("thread %d sees index %d but content %d", i, q, *r)
			}
		case opFail:
			return in.to
		}
		if jump {
			t.pc = p.labels[in.to]
		}
	}
}

// Words of the doorbell scenarios.
const (
	wBell int8 = iota
	wSleeping
	wProd0
	wProd1
	wData0
	wData1
	wStarved
	wHead0
)

type mutations struct {
	postFence, sleepFence, clearLate, skipOr bool // doorbell
	recvFence, starveFence                   bool // receives
	pushFence, armFence, armSplit, ackClears bool // completions
	plainProd                                bool // prod stored without release
	giveFence, giveBlind, keeps              bool // Linger
	sateInNext, sateBlind, wakeOne, lookOnce bool // SRQs
}

// ring is BellRinger.Ring.
func ring(mu mutations, bit int8, done string) []any {
	var p []any
	if mu.skipOr {
		p = append(p, instr{op: opLoad, r: 1, a: wBell}, instr{op: opIfBit, r: 1, v: bit,
			to: done + "rung"})
	}
	p = append(p, instr{op: opOr, a: wBell, v: bit}, done+"rung")
	p = append(p, unless(mu.postFence, instr{op: opFence})...)
	return append(p,
		instr{op: opLoad, r: 1, a: wSleeping},
		instr{op: opIfEq, r: 1, v: 0, to: done},
		instr{op: opXchg, r: 1, a: wSleeping, v: 0},
		instr{op: opIfEq, r: 1, v: 0, to: done},
		instr{op: opSignal, a: 0},
		done)
}

// post is SendProducer.Put, Commit and Ring, times times.
func post(mu mutations, data, prod, bit int8, times int) program {
	var p []any
	for i := 1; i <= times; i++ {
		commit := instr{op: opRelease, a: prod, v: int8(i)}
		if mu.plainProd {
			commit.op = opStore
		}
		p = append(p, instr{op: opStore, a: data, v: int8(i)}, commit)
		p = append(p, ring(mu, bit, fmt.Sprint("posted", i))...)
	}
	return prog(p)
}

// take is the daemon's look at one ring: content must be there up to the index.
func take(head, prod, data int8) []any {
	return []any{
		instr{op: opLoad, r: head, a: prod},
		instr{op: opLoad, r: 2, a: data},
		instr{op: opCheck, r: 2, q: head},
	}
}

// bellLoop is Session.bellLoop with SessionPage.Collect and Sleep; registers 0 and 1 are the heads.
func bellLoop(mu mutations) program {
	var p []any
	p = append(p, "loop")
	collect := instr{op: opXchg, r: 2, a: wBell, v: 0}
	if mu.clearLate {
		collect = instr{op: opLoad, r: 2, a: wBell}
	}
	p = append(p, collect, instr{op: opIfEq, r: 2, v: 0, to: "idle"})
	p = append(p, take(0, wProd0, wData0)...)
	p = append(p, take(1, wProd1, wData1)...)
	if mu.clearLate {
		p = append(p, instr{op: opXchg, r: 2, a: wBell, v: 0})
	}
	p = append(p, instr{op: opGoto, to: "loop"}, "idle", instr{op: opStore, a: wSleeping, v: 1})
	p = append(p, unless(mu.sleepFence, instr{op: opFence})...)
	p = append(p,
		instr{op: opLoad, r: 2, a: wBell},
		instr{op: opIfBit, r: 2, v: 3, to: "awake"},
		"blocked",
		instr{op: opWait, a: 0},
		"awake",
		instr{op: opStore, a: wSleeping, v: 0},
		instr{op: opGoto, to: "loop"})
	return prog(p)
}

// postScenario: two programs' threads post on two QPs of one session.
func postScenario(mu mutations) *scenario {
	return &scenario{
		progs: []program{bellLoop(mu), post(mu, wData0, wProd0, 1, 2), post(mu, wData1, wProd1, 2, 1)},
		rest: func(m *machine, at func(int, string) bool) string {
			if !at(0, "blocked") {
				return "the daemon is stuck elsewhere"
			}
			if m.th[0].regs[0] != m.mem[wProd0] || m.th[0].regs[1] != m.mem[wProd1] {
				return "the daemon sleeps on posted requests"
			}
			return ""
		},
	}
}

// lingerScenario: a program posts, and Session.Linger takes the bells over from the thread that
// waits for them, or not.
func lingerScenario(mu mutations) *scenario {
	p := []any{ // first without them
		instr{op: opXchg, r: 2, a: wBell, v: 0},
		instr{op: opIfEq, r: 2, v: 0, to: "take"},
	}
	p = append(p, take(0, wProd0, wData0)...)
	p = append(p,
		"take",
		instr{op: opXchg, r: 2, a: wSleeping, v: 0},
		instr{op: opIfEq, r: 2, v: 0, to: "over"},
		instr{op: opXchg, r: 2, a: wBell, v: 0},
		instr{op: opIfEq, r: 2, v: 0, to: "give"})
	p = append(p, take(0, wProd0, wData0)...)
	p = append(p, "give")
	p = append(p, unless(mu.keeps, instr{op: opStore, a: wSleeping, v: 1})...)
	p = append(p, unless(mu.giveFence, instr{op: opFence})...)
	p = append(p, unless(mu.giveBlind,
		instr{op: opLoad, r: 2, a: wBell},
		instr{op: opIfEq, r: 2, v: 0, to: "over"},
		instr{op: opGoto, to: "take"})...)
	p = append(p, "over")
	return &scenario{
		progs: []program{bellLoop(mu), post(mu, wData0, wProd0, 1, 2), prog(p)},
		rest: func(m *machine, at func(int, string) bool) string {
			if !at(0, "blocked") || !at(2, "over") {
				return "the daemon is stuck elsewhere"
			}
			if max(m.th[0].regs[0], m.th[2].regs[0]) != m.mem[wProd0] {
				return "the daemon sleeps on posted requests"
			}
			return ""
		},
	}
}

// awaitBell is the daemon's, which has nothing to do: it goes to found when the bell rings.
func awaitBell(name, found string) []any {
	return []any{name,
		instr{op: opXchg, r: 2, a: wBell, v: 0},
		instr{op: opIfBit, r: 2, v: 1, to: found},
		instr{op: opStore, a: wSleeping, v: 1},
		instr{op: opFence},
		instr{op: opLoad, r: 2, a: wBell},
		instr{op: opIfBit, r: 2, v: 1, to: "awake"},
		"blocked",
		instr{op: opWait, a: 0},
		"awake",
		instr{op: opStore, a: wSleeping, v: 0},
		instr{op: opGoto, to: name}}
}

// recvScenario: RecvProducer.Commit against RecvConsumer.Next and Starve, with the bell behind
// them.
func recvScenario(mu mutations) *scenario {
	var p []any
	for i := int8(1); i <= 2; i++ {
		done := fmt.Sprint("posted", i)
		p = append(p, instr{op: opStore, a: wData0, v: i}, instr{op: opRelease, a: wProd0, v: i})
		p = append(p, unless(mu.recvFence, instr{op: opFence})...)
		p = append(p, instr{op: opLoad, r: 1, a: wStarved}, instr{op: opIfEq, r: 1, v: 0, to: done})
		p = append(p, ring(mu, 1, done)...)
	}
	// Register 0 is the head; the QP takes all there is whenever it looks, and starves.
	var d []any
	d = append(d, "look", instr{op: opSync, r: 1, q: 0})
	d = append(d, take(0, wProd0, wData0)...)
	// Next has taken something, or nothing changes
	d = append(d, instr{op: opStore, a: wStarved, v: 0})
	d = append(d, instr{op: opStore, a: wStarved, v: 1})
	d = append(d, unless(mu.starveFence, instr{op: opFence})...)
	d = append(d, instr{op: opSync, r: 1, q: 0}, instr{op: opLoad, r: 1, a: wProd0})
	for v := int8(0); v <= 2; v++ { // r1 != r0: look again
		l := fmt.Sprint("head", v)
		d = append(d, instr{op: opIfEq, r: 0, v: v, to: l})
	}
	for v := int8(0); v <= 2; v++ {
		d = append(d, fmt.Sprint("head", v), instr{op: opIfEq, r: 1, v: v, to: "idle"},
			instr{op: opGoto, to: "look"})
	}
	d = append(d, awaitBell("idle", "look")...)
	return &scenario{
		progs: []program{prog(d), prog(p)},
		rest: func(m *machine, at func(int, string) bool) string {
			if !at(0, "blocked") {
				return "the daemon is stuck elsewhere"
			}
			if m.th[0].regs[0] != m.mem[wProd0] {
				return "the daemon waits for a receive that is posted"
			}
			return ""
		},
	}
}

// Words of the completion scenario.
const (
	wCQProd int8 = iota
	wCQE
	wArm
	wChanProd
)

// push is CQProducer.Push, under the CQ lock (there is one producer).
func push(mu mutations, times int8) program {
	var p []any
	for i := int8(1); i <= times; i++ {
		next := fmt.Sprint("pushed", i)
		p = append(p, instr{op: opStore, a: wCQE, v: i}, instr{op: opRelease, a: wCQProd, v: i})
		p = append(p, unless(mu.pushFence, instr{op: opFence})...)
		p = append(append(p, raise(next)...), next)
	}
	return prog(p)
}

// raise has the daemon tell the program that its CQ has something, if that is armed for what is not
// solicited; else it goes on at to.
func raise(to string) []any {
	return []any{
		instr{op: opLoad, a: wArm},
		instr{op: opIfBit, v: abi.ArmNext, to: to + "wanted"},
		instr{op: opGoto, to: to},
		to + "wanted",
		instr{op: opXchg, a: wArm, v: abi.ArmQueued},
		instr{op: opIfBit, v: abi.ArmQueued, to: to},
		instr{op: opLoad, r: 1, a: wChanProd},
		instr{op: opAddTo, r: 1, v: 1},
		instr{op: opRelease, r: 1, a: wChanProd, v: -1},
		instr{op: opSignal, a: 1}}
}

// arm is CQConsumer.Arm.
func arm(mu mutations, want int8, r int8) []any {
	if mu.armSplit {
		// Every value that can be there, as the model has no arithmetic on two registers.
		var p []any
		name := fmt.Sprint("arm", want)
		p = append(p, instr{op: opLoad, r: r, a: wArm})
		for v := int8(0); v < 8; v++ {
			l := fmt.Sprint(name, "is", v)
			p = append(p, instr{op: opIfEq, r: r, v: v, to: l})
		}
		for v := int8(0); v < 8; v++ {
			p = append(p, fmt.Sprint(name, "is", v), instr{op: opRelease, a: wArm, v: v | want},
				instr{op: opGoto, to: name + "done"})
		}
		return append(p, name+"done", instr{op: opFence})
	}
	return append([]any{instr{op: opOr, a: wArm, v: want}}, unless(mu.armFence, instr{op: opFence})...)
}

// pollAll takes everything; register 0 is cons.
func pollAll() []any {
	return []any{
		instr{op: opLoad, r: 0, a: wCQProd},
		instr{op: opLoad, r: 2, a: wCQE},
		instr{op: opCheck, r: 2, q: 0},
	}
}

// armScenario: a thread polls, arms, polls again and waits, until it has all n completions; another
// arms the same CQ for solicited ones meanwhile.
func armScenario(mu mutations, n int8) *scenario {
	var w []any
	w = append(w, "loop")
	w = append(w, pollAll()...)
	w = append(w, instr{op: opIfEq, r: 0, v: n, to: "done"})
	w = append(w, arm(mu, abi.ArmNext, 1)...)
	w = append(w, instr{op: opSync, r: 1, q: 0})
	w = append(w, pollAll()...)
	w = append(w, instr{op: opIfEq, r: 0, v: n, to: "done"})
	if mu.ackClears {
		// The program has used the event, polled and armed; now the acknowledgement.
		w = append(w, instr{op: opAnd, r: 1, a: wArm, v: 7 &^ abi.ArmQueued})
	}
	// Pop, under the channel lock
	w = append(w, "wait", instr{op: opToken, a: 1}, instr{op: opLoad, r: 1, a: wChanProd})
	if !mu.ackClears {
		w = append(w, instr{op: opAnd, r: 1, a: wArm, v: 7 &^ abi.ArmQueued}) // TakeEvent
	}
	w = append(w, instr{op: opGoto, to: "loop"}, "done")
	return &scenario{
		progs: []program{push(mu, n), prog(w), prog(arm(mu, abi.ArmSolicited, 0))},
		rest: func(m *machine, at func(int, string) bool) string {
			if at(1, "wait") {
				return "the program waits for an event although completions came after it had armed"
			}
			if !at(1, "done") {
				return "the program is stuck elsewhere"
			}
			return ""
		},
	}
}

// docs/abi.md#waking: as written no wake-up is lost, and each change for the worse is found.
func TestWakeUpSearch(t *testing.T) {
	type sc = func(mutations) *scenario
	arm2 := func(mu mutations) *scenario { return armScenario(mu, 2) }
	arm3 := func(mu mutations) *scenario { return armScenario(mu, 3) }
	for _, tt := range []struct {
		name string
		sc   sc
		mu   mutations
		want string // part of the fault; "": none
	}{
		{"post", postScenario, mutations{}, ""},
		{"recv", recvScenario, mutations{}, ""},
		{"arm 2", arm2, mutations{}, ""},
		{"arm 3", arm3, mutations{}, ""},
		{"SRQ", srqScenario, mutations{}, ""},
		{"linger", lingerScenario, mutations{}, ""},

		{"post without fence behind the bell", postScenario, mutations{postFence: true},
			"the daemon sleeps on posted requests"},
		{"sleep without fence", postScenario, mutations{sleepFence: true},
			"the daemon sleeps on posted requests"},
		{"bell cleared after reading prod", postScenario, mutations{clearLate: true},
			"the daemon sleeps on posted requests"},
		{"OR skipped when the bit looks set", postScenario, mutations{skipOr: true},
			"the daemon sleeps on posted requests"},
		{"bells given back without fence", lingerScenario, mutations{giveFence: true},
			"the daemon sleeps on posted requests"},
		{"bells given back without another look", lingerScenario, mutations{giveBlind: true},
			"the daemon sleeps on posted requests"},
		{"bells taken and not given back", lingerScenario, mutations{keeps: true},
			"the daemon sleeps on posted requests"},
		{"linger: post without fence behind the bell", lingerScenario, mutations{postFence: true},
			"the daemon sleeps on posted requests"},
		{"prod stored without release", postScenario, mutations{plainProd: true}, "sees index"},
		{"receive without fence", recvScenario, mutations{recvFence: true},
			"the daemon waits for a receive that is posted"},
		{"receive without fence behind the bell", recvScenario, mutations{postFence: true},
			"the daemon waits for a receive that is posted"},
		{"starve without fence", recvScenario, mutations{starveFence: true},
			"the daemon waits for a receive that is posted"},
		{"SRQ: receive without fence", srqScenario, mutations{recvFence: true},
			"a QP waits for a receive that is posted"},
		{"SRQ: receive without fence behind the bell", srqScenario, mutations{postFence: true},
			"a QP waits for a receive that is posted"},
		{"SRQ: starve without fence", srqScenario, mutations{starveFence: true},
			"a QP waits for a receive that is posted"},
		{"SRQ: taking a receive ends the hunger of all", srqScenario, mutations{sateInNext: true},
			"a QP waits for a receive that is posted"},
		{"SRQ: who waits no more ends the hunger of all", srqScenario, mutations{sateBlind: true},
			"a QP waits for a receive that is posted"},
		{"SRQ: a bell wakes one", srqScenario, mutations{wakeOne: true},
			"a QP waits for a receive that is posted"},
		{"SRQ: no second look", srqScenario, mutations{lookOnce: true},
			"a QP waits for a receive that is posted"},
		{"completion without fence", arm2, mutations{pushFence: true},
			"the program waits for an event although"},
		{"arm without fence", arm2, mutations{armFence: true}, "the program waits for an event although"},
		{"arm as load and store", arm2, mutations{armSplit: true},
			"the program waits for an event although"},
		{"event cleared in ack", arm2, mutations{ackClears: true},
			"the program waits for an event although"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fault, states := tt.sc(tt.mu).explore()
			t.Logf("%d states", states)
			if fault == "" != (tt.want == "") || !strings.Contains(fault, tt.want) {
				t.Errorf("the search found %q, want %q", fault, tt.want)
			}
		})
	}
}
