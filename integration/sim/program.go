package sim

import (
	"io"
	"math/rand/v2"
	"time"

	"github.com/vrnic/vrnic/rdma"
)

// Options say what kind of run a seed is.
type Options struct {
	Seed uint64
	// Steps is after how many steps the program ends what it has under way; it takes some more.
	Steps uint64
	// Verbose keeps the last lines of the trace.
	Verbose bool
	// Failed, if set, is told at once of what may not be, as what goes on may not come to an end.
	Failed func(err error, last string)
	Each   func(line string) // is told each line of the trace at once
	Tamper Tamper
	// Record, if set, gets a recording of both devices.
	Record io.Writer

	path     path
	v6       bool
	couriers bool
	srq      bool
	pairs    int  // at the same time
	depth    int  // of queues, at most
	calm     bool // the wire is good, and nobody breaks rules

	datagrams bool // the users have mailboxes
}

// A Tamper changes what the model is shown: tests of the model have it lie.
type Tamper struct {
	Completions func([]rdma.WC) []rdma.WC
	Datagrams   func([]rdma.WC) []rdma.WC // completions of mailboxes
	Events      func([]rdma.AsyncEvent) []rdma.AsyncEvent
	Octets      func([]byte)    // that a message has brought
	Woken       func(bool) bool // whether a completion has woken who waited
}

// options are those that follow from a seed. Two of five are of RoCE.
func options(seed, steps uint64) Options {
	r := rand.New(rand.NewPCG(seed, 1))
	way := path(r.IntN(int(overRoCE)))
	if k := seed % 5; k == 1 || k == 2 {
		way = overRoCE + way%2
	}
	return Options{
		Seed: seed, Steps: steps,
		path: way, v6: r.IntN(3) == 0, couriers: r.IntN(2) == 0,
		srq: r.IntN(3) == 0, pairs: 1 + r.IntN(4), depth: 1 + r.IntN(useSlots),
		calm: r.IntN(4) == 0, datagrams: seed%5 == 2,
	}
}

// A program is what the users call, one thing after the other, and what they know.
type program struct {
	w      *world
	opt    *Options
	tamper *Tamper
	rng    *rand.Rand
	users  [2]*user
	pairs  []*pair

	byQP   [2]map[uint32]*end
	closed [2]map[uint32]bool // numbers of QPs that are closed

	// mailed are the datagrams of each user, doubled says that the wire has carried frames twice.
	mailed  [2]map[uint64]*datagram
	doubled bool

	lost     time.Time // when the wire has lost frames last
	lastPair int
	lastID   uint64
	patience time.Duration // until an end whose peer has gone is ended by its program

	wr     rdma.SendWR
	sge    [2]rdma.SGE
	inline [256]byte
	wcs    [16]rdma.WC
	// Reads and atomics that have their answers: see checkOrder.
	answered []answered
}

type answered struct {
	e *end
	r *request
}

func newProgram(w *world, o *Options) *program {
	p := &program{w: w, opt: o, tamper: &o.Tamper, rng: rand.New(rand.NewPCG(o.Seed, 2)),
		patience: 20 * time.Second}
	for i := range p.users {
		p.users[i] = &user{side: w.sides[i], i: i}
		p.byQP[i], p.closed[i] = map[uint32]*end{}, map[uint32]bool{}
		p.mailed[i] = map[uint64]*datagram{}
	}
	return p
}

// call counts a call of verbs.
func (p *program) call(what string, e ...*end) {
	p.w.trace.step(kindCall, uint64(len(what)))
	if p.w.trace.lines != nil && what != "post" {
		if len(e) > 0 {
			p.w.trace.say("%v: %s", e[0], what)
		} else {
			p.w.trace.say("%s", what)
		}
	}
}

// run is the program.
func (p *program) run() {
	for _, u := range p.users {
		p.start(u)
	}
	for p.w.trace.steps() < p.opt.Steps {
		p.next()
	}
	p.finish()
}

// next lets one thing happen.
func (p *program) next() {
	r := p.rng
	if r.IntN(512) == 0 {
		p.change()
	}
	if r.IntN(5) < 3 {
		time.Sleep(time.Nanosecond) // so that no two calls set timers for the same time
		p.w.settle()                // a timer may be due right now
		p.act()
		p.w.settle()
	} else {
		// Most of the time only what is under way comes; now and then it takes long.
		d := 5 * time.Millisecond
		switch r.IntN(200) {
		case 0:
			d = time.Second
		case 1:
			d = 20 * time.Second
		}
		p.w.pass(d)
	}
	p.look()
}

// look takes note of what has happened.
func (p *program) look() {
	if p.w.weather.loss > 0 || !p.w.up {
		p.lost = time.Now()
	}
	p.requests()
	for _, pr := range p.pairs {
		if pr.phase == connecting || pr.phase == ending {
			p.attempts(pr)
		}
	}
	p.events()
	for _, pr := range p.pairs {
		p.watch(pr)
	}
	if p.opt.datagrams {
		for _, u := range p.users {
			p.checkMail(u.box)
		}
	}
}

// change changes the weather.
func (p *program) change() {
	r := p.rng
	if p.opt.calm {
		return
	}
	wt := weather{delay: time.Duration(1+r.IntN(200)) * time.Microsecond}
	if r.IntN(8) == 0 {
		wt.delay = time.Duration(1+r.IntN(30)) * time.Millisecond
	}
	for _, x := range []*float64{&wt.loss, &wt.double, &wt.late} {
		if r.IntN(3) == 0 {
			*x = float64(1+r.IntN(8)) / 100
		}
	}
	wt.lateness = time.Duration(r.IntN(2000)) * time.Microsecond
	p.w.set(wt)
	p.doubled = p.doubled || wt.double > 0
	p.w.trace.say("weather: %+v", wt)
	if p.w.path.wired() && p.w.up && r.IntN(4) == 0 {
		d := time.Duration(r.IntN(1000)) * time.Millisecond
		if r.IntN(4) == 0 {
			d = time.Duration(1+r.IntN(40)) * time.Second
		}
		p.w.cut(d)
	}
	for _, pr := range p.pairs {
		if wt.loss > 0 || !p.w.up {
			pr.clean = false
		}
		if !p.w.up && time.Until(p.w.upAgain) > time.Second {
			pr.causes |= causeCut
		}
	}
}

// act calls one thing.
func (p *program) act() {
	r := p.rng
	for _, u := range p.users {
		if !u.open {
			if len(p.pairs) == 0 {
				p.start(u)
			} else if pr := p.pairs[r.IntN(len(p.pairs))]; pr.phase == fresh {
				pr.to(ending)
			}
		}
	}
	if p.opt.datagrams && r.IntN(4) == 0 {
		if u := p.users[r.IntN(2)]; u.open {
			p.mail(u.box)
			return
		}
	}
	both := p.users[0].open && p.users[1].open
	if both && len(p.pairs) < p.opt.pairs && r.IntN(8) == 0 {
		p.newPair()
		return
	}
	if len(p.pairs) == 0 {
		return
	}
	pr := p.pairs[r.IntN(len(p.pairs))]
	e := pr.ends[r.IntN(2)]
	switch pr.phase {
	case fresh:
		switch {
		case !both:
		case r.IntN(6) == 0:
			p.connect(pr)
		default:
			p.postRecv(e)
		}
	case connecting:
		switch k := r.IntN(400); {
		case k == 0 && e.tries:
			pr.causes |= causeAbort
			p.call("give up to connect", e)
			e.cancel()
		case k < 200:
			p.work(e)
		}
		if time.Since(pr.since) > setupTime {
			p.fail("pair %d neither connects nor fails in %v", pr.id, time.Since(pr.since))
		}
	case connected:
		p.work(e)
	case ending:
		if r.IntN(4) > 0 {
			p.end(pr)
		} else if !e.gone && e.u.open {
			p.work(e)
		}
	case over:
		if r.IntN(3) > 0 || !p.recycle(pr) {
			p.destroy(pr)
		}
	}
}

// work calls something that has to do with e's connection.
func (p *program) work(e *end) {
	r, pr := p.rng, e.p
	if e.gone || !e.u.open {
		return
	}
	short := len(e.peer.messages) >= len(e.recvs)
	switch k := r.IntN(2048); {
	case k < 700 || k < 1200 && short:
		p.postRecv(e)
	case k < 1700:
		p.postSend(e)
	case k < 1980:
		p.poll(e.scq)
		p.poll(e.rcq)
	case k < 2000:
		p.arm([]*cq{e.scq, e.rcq}[r.IntN(2)])
	case k < 2027:
		p.objects(e.u)
	case k == 2027 && e.srq != nil && !e.u.srq.limit:
		p.setLimit(e.u)
	case p.opt.calm && k < 2044, pr.phase != connected:
	case k < 2034:
		p.breakRule(e)
	case k < 2040:
		p.call("disconnect", e)
		pr.causes |= causeDisconnect
		e.down, e.hungUp = true, true
		if err := e.conn.Disconnect(); err != nil && pr.causes == causeDisconnect {
			p.fail("%v: disconnect: %v", e, err)
		}
		pr.to(ending)
	case k < 2043:
		pr.causes |= causeAbort
		p.call("modify to Error", e)
		p.must("modify to Error", e.qp.Abort())
		e.down = true
		pr.to(ending)
	case k < 2046:
		pr.causes |= causeAbort
		p.closeQP(e)
		pr.to(ending)
	case k == 2047 && r.IntN(8) == 0:
		p.closeUser(e.u)
	}
}

// finish ends what is under way: what can be done is done, and then everything is closed.
func (p *program) finish() {
	w := p.w
	w.set(weather{delay: 50 * time.Microsecond})
	w.heal()
	p.drain()
	for _, pr := range p.pairs {
		if pr.phase == connected {
			p.call("disconnect", pr.ends[0])
			pr.causes |= causeDisconnect
			if !pr.ends[0].gone {
				_ = pr.ends[0].conn.Disconnect() // an error: it has ended
			}
			pr.to(ending)
		} else if pr.phase == fresh || pr.phase == connecting {
			for _, e := range pr.ends {
				if e.tries {
					e.cancel()
				}
			}
			pr.causes |= causeAbort
			pr.to(ending)
		}
	}
	w.settle()
	for len(p.pairs) > 0 {
		w.pass(time.Second)
		p.look()
		for _, pr := range append([]*pair(nil), p.pairs...) {
			switch pr.phase {
			case ending:
				p.end(pr)
			case over:
				p.destroy(pr)
			}
		}
	}
	if p.opt.datagrams {
		for began := time.Now(); time.Since(began) <= mailTime; {
			w.pass(time.Second)
			p.look()
		}
	}
	for _, u := range p.users {
		if u.open {
			p.closeUser(u)
		}
	}
}

// drain: with a good network and receives enough all that was asked for is done, on connections
// that nothing has happened to.
func (p *program) drain() {
	left := func() *end {
		for _, pr := range p.pairs {
			if pr.phase != connected || pr.causes != 0 {
				continue
			}
			for _, e := range pr.ends {
				p.poll(e.scq)
				p.poll(e.rcq)
				if len(e.peer.messages) > 0 {
					for range 4 {
						p.postRecv(e)
					}
					return e
				}
			}
			for _, e := range pr.ends {
				for _, r := range e.sends {
					if r.signaled {
						return e
					}
				}
			}
		}
		return nil
	}
	began := time.Now()
	for {
		e := left()
		if e == nil {
			return
		}
		p.w.pass(time.Second)
		p.look()
		if time.Since(began) > drainTime {
			p.fail("%v has %d requests under way that are not done in %v, and its peer %d messages", e,
				len(e.sends), drainTime, len(e.peer.messages))
		}
	}
}

// drainTime is longer than any timer of a connection that lives.
const drainTime = 5 * time.Minute
