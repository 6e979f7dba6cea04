package session

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/sctpddp"
	"github.com/vrnic/vrnic/vnic/record"
)

// An Association is an SCTP association with a peer that speaks DDP, as a Network gives it. Its
// methods may be called from several goroutines at once, do not block, and call no handler, but for
// Flush and Abort.
type Association interface {
	sctpddp.Association // what Send and Shutdown ask for is done by Flush
	Flush()
	// Release gives a message back; Flush tells the peer. Its data is not used any more.
	Release(token any)
	Abort(reason string)
	LocalAddr() netip.AddrPort
	RemoteAddr() netip.AddrPort
}

// A Deferrer is an Association that can have the goroutine that brings packets do more for them.
type Deferrer interface {
	// Defer, called by Handler.Message or Handler.Notify, has f called when all messages that have
	// come together are handed out. false: it is not called.
	Defer(f func()) bool
}

// A Handler hears of what happens to an Association. It is called by one goroutine at a
// time, with no lock held, and does not block.
type Handler interface {
	// Message gives a message, whose data is good until Association.Release(token).
	Message(m sctpddp.Message, token any)
	// Notify says that something was acknowledged, that there is more room, or that MaxPayload has
	// changed.
	Notify()
	// Down is the last call.
	Down(kind sctpddp.LossKind, err error)
}

// An association has the DDP streams of an Association: those that QPs have, and by its Mux the
// others. QPs of all users of the device share it. Its lock is below none, and has Stream.mu below
// it; neither is held while a Listener or who owns a Stream is called.
type association struct {
	in   *Incoming                     // of one that the peer has set up; nil: we have
	out  *Pool                         // of one that we have set up
	key  key                           // in out
	use  Use                           // what its sessions carry
	tape func(qpn uint32) *record.Tape // as Pool.Tape
	up   chan struct{}                 // closed once it is up, or has failed

	mu       sync.Mutex
	a        Association        // guarded by mu until up is closed
	deferrer Deferrer           // guarded as a: a, or nil
	err      error              // guarded by mu until up is closed: why it did not come up
	givenUp  bool               // guarded as err: only because who set it up waited no longer
	mux      *sctpddp.Mux       // guarded by mu; nil before it is up
	streams  map[uint16]*Stream // guarded by mu: those that the Mux has given out
	waiting  []*Stream          // guarded by mu: those to be told when something changes
	early    []inbound          // guarded by mu: what came before it was up
	timer    *time.Timer        // +checklocks:mu
	loss     *sctpddp.LostError // guarded by mu: it is down
}

// An inbound is a message that has not been taken yet.
type inbound struct {
	m     sctpddp.Message
	token any
}

// holdOf is how many octets an association may keep of what has come ahead of order: 16 MiB, but
// for those of a peer that has others less and less, so that many are of no use to it.
func holdOf(nth int) int {
	const most, least = 16 << 20, 1 << 20
	return max(most/max(nth, 1), least)
}

func newAssociation() *association {
	return &association{up: make(chan struct{}), streams: map[uint16]*Stream{}}
}

// A Listener takes the requests for sessions that come in an association.
type Listener interface {
	// Backlog is how many of them an association may have unanswered.
	Backlog() int
	// StartConfig is what this end can do, for requests that are refused for it.
	StartConfig() iwarp.StartConfig
	// Asked is called for each request, with no lock held: st is answered by Accept, Reject or Refuse.
	Asked(st *Stream)
	// Current is who listens at local now: the Listener itself while it does.
	Current(local netip.AddrPort) Listener
}

// An Incoming describes an association that a peer has set up.
type Incoming struct {
	Listener Listener
	Nth      int                           // it is the peer's Nth, counted from 1
	Ended    func()                        // called once, when it is over
	Tape     func(qpn uint32) *record.Tape // as that of a Pool
}

// Accept begins DDP on a; nil: it was refused, and is over.
func (in *Incoming) Accept(a Association) Handler {
	as := newAssociation()
	as.in, as.tape = in, in.Tape
	as.use = useOf(a)
	if as.established(a) != nil {
		in.Ended()
		return nil
	}
	return as
}

// failed ends the wait for as.
func (as *association) failed(err error, givenUp bool) {
	if as.out != nil {
		as.out.forget(as)
	}
	as.mu.Lock()
	as.err, as.givenUp = err, givenUp
	as.mu.Unlock()
	close(as.up)
}

// established begins DDP on a, or aborts it.
func (as *association) established(a Association) error {
	cfg := sctpddp.Config{Initiator: as.in == nil, HoldAll: holdOf(0), Opaque: as.use != DDP}
	if in := as.in; in != nil {
		cfg.HoldAll, cfg.Backlog, cfg.Start = holdOf(in.Nth), in.Listener.Backlog(),
			in.Listener.StartConfig()
	}
	if j := as.journal(a); j != nil {
		cfg.Journal = j
	}
	as.mu.Lock()
	mux, err := sctpddp.NewMux(as.use.of(a), cfg, time.Now())
	as.a, as.mux = a, mux
	as.deferrer, _ = a.(Deferrer)
	early := as.early
	as.early = nil
	if mux != nil && as.loss != nil {
		mux.Down() // it was lost before we came to know it
	}
	as.mu.Unlock()
	if err != nil {
		for _, in := range early {
			a.Release(in.token)
		}
		a.Abort("no DDP")
		err = fmt.Errorf("%w: %w", syscall.ECONNREFUSED, err)
		as.failed(err, false)
		return err
	}
	close(as.up)
	for _, in := range early {
		if st := as.take(in.m, in.token); st != nil {
			st.notify() // this goroutine has brought nothing
		}
	}
	as.changed()
	return nil
}

// journal records the sessions of a from its beginning on; nil: nobody wants that.
func (as *association) journal(a Association) *record.DDP {
	if as.tape == nil {
		return nil
	}
	t := as.tape(0) // it is of many queue pairs
	if t == nil {
		return nil
	}
	t.Between("sctp", a.LocalAddr().String(), a.RemoteAddr().String())
	return record.NewDDP(t)
}

// open begins a session on a free stream. sctpddp.ErrNoStream, ErrDown: another association is
// needed.
func (as *association) open(c *Call) (*Stream, error) {
	as.mu.Lock()
	s, err := as.mux.Open(c.Start, c.PrivateData)
	var st *Stream
	if err == nil {
		st = as.giveLocked(s)
		st.Belongs(c.QPN)
	}
	as.mu.Unlock()
	as.a.Flush()
	return st, err
}

// giveLocked makes a stream of a session that the Mux has given out.
func (as *association) giveLocked(s *sctpddp.Session) *Stream {
	st := as.newStream(s)
	as.streams[s.Stream()] = st
	return st
}

func (as *association) newStream(s *sctpddp.Session) *Stream {
	st := &Stream{as: as, s: s}
	st.tell = st.run
	return st
}

// Message implements Handler.
func (as *association) Message(m sctpddp.Message, token any) {
	m.PPID = as.use.fromWire(m.PPID)
	if st := as.take(m, token); st != nil {
		st.brought()
	}
}

// take takes a message whose PPID is that of RFC 5043. The owner of what it returns, unless that is
// nil, is to look at it.
func (as *association) take(m sctpddp.Message, token any) *Stream {
	as.mu.Lock()
	if as.mux == nil {
		as.early = append(as.early, inbound{m, token})
		as.mu.Unlock()
		return nil
	}
	if st := as.streams[m.Stream]; st != nil {
		st.push(inbound{m, token})
		as.mu.Unlock()
		return st
	}
	as.mux.Input(time.Now(), m)
	as.mu.Unlock()
	as.a.Release(token)
	as.changed()
	return nil
}

// Notify implements Handler.
func (as *association) Notify() { as.look((*Stream).brought) }

// expired is the timer's function.
func (as *association) expired() { as.look((*Stream).notify) }

// look has streams that wait look, by tell, for what may have changed.
func (as *association) look(tell func(*Stream)) {
	as.mu.Lock()
	if as.mux == nil {
		as.mu.Unlock()
		return
	}
	as.mux.Step(time.Now())
	waiting := as.waiting
	as.waiting = nil
	for _, st := range waiting {
		st.waits = false
	}
	as.mu.Unlock()
	for _, st := range waiting {
		tell(st)
	}
	as.changed()
}

// wait has st told of the next change.
func (as *association) wait(st *Stream) {
	as.mu.Lock()
	if !st.waits {
		st.waits = true
		as.waiting = append(as.waiting, st)
	}
	as.mu.Unlock()
}

// changed sends what the Mux has to say, gives the peer's requests out, and sets the timer.
func (as *association) changed() {
	as.mu.Lock()
	var asked []*Stream
	for {
		s, ok := as.mux.Request()
		if !ok {
			break
		}
		asked = append(asked, as.giveLocked(s))
	}
	if at, ok := as.mux.Deadline(); ok {
		d := max(time.Until(at), 0)
		if as.timer == nil {
			as.timer = time.AfterFunc(d, as.expired)
		} else {
			as.timer.Reset(d)
		}
	}
	as.mu.Unlock()
	as.a.Flush()
	for _, st := range asked {
		as.in.Listener.Current(unmap(as.a.LocalAddr())).Asked(st)
	}
}

// release gives the session of st back. What st has not taken it takes before, so that whatever
// comes next is for the Mux.
func (as *association) release(st *Stream) {
	as.mu.Lock()
	left := st.rest()
	for _, in := range left {
		st.s.Input(in.m)
	}
	if as.streams[st.s.Stream()] == st {
		delete(as.streams, st.s.Stream())
	}
	if as.loss == nil {
		as.mux.Release(time.Now(), st.s)
	} else {
		st.s.Lost(as.loss.Kind, as.loss.Err) // it may not have heard, and holds nothing then
	}
	as.mu.Unlock()
	for _, in := range left {
		as.a.Release(in.token)
	}
	as.changed()
}

// abandon is Stream.Abandon.
func (as *association) abandon(st *Stream) {
	as.mu.Lock()
	st.abandoned = true
	alone := as.loss == nil
	as.mux.Sessions(func(s *sctpddp.Session) {
		other := as.streams[s.Stream()]
		alone = alone && (other != nil && other.abandoned || other == nil &&
			s.State() == sctpddp.StateIdle)
	})
	as.mu.Unlock()
	if alone {
		as.a.Abort("the program is gone")
	}
}

// Down implements Handler.
func (as *association) Down(kind sctpddp.LossKind, err error) {
	if as.in != nil {
		as.in.Ended()
	} else {
		as.out.forget(as)
	}
	as.mu.Lock()
	as.loss = &sctpddp.LostError{Kind: kind, Err: err}
	if as.mux != nil {
		as.mux.Down()
	}
	if as.timer != nil {
		as.timer.Stop()
	}
	streams := as.streams
	as.streams = map[uint16]*Stream{}
	as.mu.Unlock()
	for _, n := range slices.Sorted(maps.Keys(streams)) {
		st := streams[n]
		st.lost.Store(as.loss)
		st.notify()
	}
}
