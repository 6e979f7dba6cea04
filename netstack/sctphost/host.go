package sctphost

import (
	cryptorand "crypto/rand"
	"io"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/vrnic/vrnic/netstack/internal/gate"
	"github.com/vrnic/vrnic/netstack/sctp"
)

// A Host is one SCTP endpoint with what drives it: a lock, a timer, and somebody who sends what it
// has to send and hands out its events. It runs over a Stack (Stack.SCTP) or over a UDP socket of
// the host (NewOverUDP). Its methods may be called from several goroutines at once.
//
// Nothing is sent and no handler is called with the lock held: what is sent may come back as input
// on the same goroutine. Whoever has changed something drains the endpoint, unless somebody is at
// it, who then goes round once more.
type Host struct {
	carrier carrier
	clock   tcpip.Clock
	start   tcpip.MonotonicTime
	gate    *gate.Gate // around Dial and Listen

	mu        sync.Mutex
	cfg       sctp.Config        // of Endpoints
	ep        *sctp.Endpoint     // guarded by mu: of what is new
	old       []*sctp.Endpoint   // of what there was before ep; +checklocks:mu
	only      [1]*sctp.Endpoint  // ep, for all; +checklocks:mu
	gone      sctp.Stats         // of Endpoints that there were; +checklocks:mu
	conns     map[*Conn]struct{} // +checklocks:mu
	listeners []*Listener        // +checklocks:mu
	timer     tcpip.Timer        // guarded by mu
	armed     time.Time          // guarded by mu: when the timer fires; zero: it does not
	ended     bool               // guarded by mu: the timer stays off, and nothing is sent
	// guarded by mu: closed when conns is empty; nil: nobody waits for that
	closing chan struct{}

	portMu sync.Mutex
	ports  map[uint16]int // guarded by portMu: users of each
	random *rand.Rand     // guarded by portMu: which ports are tried first

	token drainToken
	// What the one who drains has in hand.
	packets []outgoing
	spare   *buffer.View // for the next packet; nil: there is none
	events  []sctp.Event
	// It has brought packets, and does what it finds in deferred when there is nothing else to do.
	bring    bool
	deferred []func()
}

// A carrier takes the packets of a Host to a network.
type carrier interface {
	// headroom is how many octets transmit wants before a packet, for headers.
	headroom() int
	// transmit sends a packet, which lies in v behind the headroom, and takes v. An error is a local
	// one: there is no route. It is called by one goroutine at a time, as is forget, which gives up
	// what transmit has kept and is the last of them.
	transmit(now time.Time, d *sctp.Datagram, v *buffer.View) error
	forget()
	// local is the address that packets to remote come from.
	local(remote netip.Addr) (netip.Addr, error)
	// mtu is how large a packet to dst may be, without its IP header. The Host's lock is held.
	mtu(dst netip.Addr) int
	// usePort and leavePort say which ports are in use.
	usePort(port uint16) error
	leavePort(port uint16)
	// encap is the UDP port that peers are dialled at; 0: bare SCTP.
	encap() uint16
	// close ends the carrier, and returns when nothing comes from it any more.
	close()
}

type outgoing struct {
	d sctp.Datagram
	v *buffer.View
}

const (
	drainBatch = 32   // packets and events that are taken under the lock at once
	packetCap  = 2048 // longer packets cost one copy more

	// maxAssociations bounds what peers can make a stack keep: an association with 1024 streams
	// each way takes some 40 KiB.
	maxAssociations = 16384
)

// DefaultOptions are the defaults of associations: room for what a fast and long link has under
// way, and an RTO as short as TCP's here, since kernel peers delay SACKs by up to 200 ms. After a
// time without a network it goes on within 5 s, though nothing says that the network is back; a
// peer of which nothing is heard is given up after about a minute.
func DefaultOptions() sctp.Options {
	return sctp.Options{SendBuffer: 8 << 20, RecvBuffer: 4 << 20, RTOInitial: time.Second,
		RTOMin: 300 * time.Millisecond, RTOMax: 5 * time.Second, AssociationMaxRetrans: 14,
		UserTimeout: time.Minute}
}

// heldMost is how many octets that have come ahead of order a Host keeps: a sixteenth of the
// machine's memory, 64 MiB at least. Each association alone may have a receive buffer full of them.
func heldMost() int {
	const least = 64 << 20
	var s syscall.Sysinfo_t
	if err := syscall.Sysinfo(&s); err != nil {
		return least
	}
	return max(int(s.Totalram/16)*int(s.Unit), least)
}

// newHost needs a clock before anything else is done with it.
func newHost(carrier carrier, random io.Reader, o sctp.Options) (*Host, error) {
	if random == nil {
		random = cryptorand.Reader
	}
	cfg := sctp.Config{MTU: carrier.mtu, MaxAssociations: maxAssociations, HeldMost: heldMost(),
		Options: o, Rand: random}
	ep, err := sctp.NewEndpoint(cfg)
	if err != nil {
		return nil, err
	}
	var seed [32]byte
	if _, err := io.ReadFull(random, seed[:]); err != nil {
		return nil, err
	}
	return &Host{
		carrier: carrier, gate: gate.New(), cfg: cfg, ep: ep,
		conns: map[*Conn]struct{}{}, ports: map[uint16]int{}, random: rand.New(rand.NewChaCha8(seed)),
		packets: make([]outgoing, 0, drainBatch), events: make([]sctp.Event, 0, drainBatch),
	}, nil
}

// Options are those of associations that have none of their own.
func (s *Host) Options() sctp.Options { return s.cfg.Options }

// randomPort is the port of a range of n, from 0, to begin with.
func (s *Host) randomPort(n int) int {
	s.portMu.Lock()
	defer s.portMu.Unlock()
	return s.random.IntN(n)
}

func (s *Host) setClock(c tcpip.Clock) { s.clock, s.start = c, c.NowMonotonic() }

// now only goes forward; its date means nothing.
func (s *Host) now() time.Time { return time.Unix(0, 0).Add(s.clock.NowMonotonic().Sub(s.start)) }

// input takes a packet from the carrier, which keeps its own reference.
func (s *Host) input(p sctp.Packet) {
	s.take(p)
	s.drain()
}

// take is input without what follows from it: that is for drain.
func (s *Host) take(p sctp.Packet) {
	s.mu.Lock()
	s.of(&p).Input(s.now(), p)
	s.mu.Unlock()
}

// Settle implements ethswitch.Settler: it sends and hands out what several packets have led to.
// Then it does, on this goroutine, what handlers have left to whoever has brought the packets.
func (s *Host) Settle() {
	var room [4]func()
	for _, f := range s.drainFor(true, room[:0]) {
		f()
	}
}

// icmp takes an ICMP error.
func (s *Host) icmp(e sctp.ICMPError) {
	s.mu.Lock()
	for _, ep := range s.all() { // whose it is not, does nothing
		ep.ICMP(s.now(), e)
	}
	s.mu.Unlock()
	s.drain()
}

// LinkUp says that the link is there again after it was not: what waits for a retransmission timer
// is sent at once. It does not block.
func (s *Host) LinkUp() {
	s.mu.Lock()
	for _, ep := range s.all() {
		ep.LinkUp(s.now())
	}
	s.mu.Unlock()
	s.drain()
}

// expire is the timer's function.
func (s *Host) expire() {
	s.mu.Lock()
	s.armed = time.Time{}
	now := s.now()
	due := false
	for _, ep := range s.all() {
		if at, ok := ep.Deadline(); ok && !at.After(now) {
			due = true
			ep.Expire(now)
		}
	}
	if !due {
		s.arm(now) // it has moved on, and nobody need be taken the draining from
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	s.drain()
}

// drain sends and hands out what there is, or leaves that to whoever is at it.
func (s *Host) drain() { s.drainFor(false, nil) }

// drainFor is drain. With bring it appends what Conn.Defer was given: the caller holds no lock, and
// calls it.
func (s *Host) drainFor(bring bool, deferred []func()) []func() {
	if !s.token.take() {
		return deferred
	}
	for {
		s.bring = bring
		for s.drainOnce() {
		}
		s.bring = false
		deferred = append(deferred, s.deferred...)
		clear(s.deferred)
		s.deferred = s.deferred[:0]
		if s.token.release() {
			return deferred
		}
	}
}

// drainOnce does so for one batch; false: there was nothing.
func (s *Host) drainOnce() bool {
	s.mu.Lock()
	now := s.now()
	room := s.carrier.headroom()
	for len(s.packets) < drainBatch {
		if s.spare == nil {
			s.spare = buffer.NewViewSize(packetCap)
		}
		v := s.spare
		d, ok := s.output(now, v.AsSlice()[room:room])
		if !ok {
			break
		}
		s.spare = nil
		if n := room + len(d.Data); n <= packetCap {
			v.CapLength(n)
		} else {
			v.Release()
			v = buffer.NewViewSize(n)
			copy(v.AsSlice()[room:], d.Data)
		}
		s.packets = append(s.packets, outgoing{d, v})
	}
	for len(s.events) < drainBatch {
		e, ok := s.nextEvent()
		if !ok {
			break
		}
		s.events = append(s.events, e)
	}
	if len(s.old) > 0 {
		s.prune(now)
	}
	s.arm(now)
	ended := s.ended
	s.mu.Unlock()

	some := len(s.packets)+len(s.events) > 0
	for i := range s.packets {
		p := &s.packets[i]
		if ended {
			p.v.Release()
			continue
		}
		// What cannot be sent is lost; retransmission deals with that as with any loss.
		_ = s.carrier.transmit(now, &p.d, p.v)
	}
	if ended {
		s.carrier.forget()
		if s.spare != nil {
			s.spare.Release()
			s.spare = nil
		}
	}
	clear(s.packets)
	s.packets = s.packets[:0]
	for i := range s.events {
		s.dispatch(&s.events[i])
	}
	clear(s.events)
	s.events = s.events[:0]
	return some
}

// arm sets the timer; the lock is held. Deadlines mostly move on, and a timer that fires too early
// does no harm, so that it is only ever moved to an earlier time.
//
// +checklocks:s.mu
func (s *Host) arm(now time.Time) {
	at, ok := s.deadline()
	if !ok || s.ended || !s.armed.IsZero() && !at.Before(s.armed) {
		return
	}
	s.armed = at
	d := max(at.Sub(now), 0)
	if s.timer == nil {
		s.timer = s.clock.AfterFunc(d, s.expire)
		return
	}
	s.timer.Stop()
	s.timer.Reset(d)
}

// dispatch hands an event to whom it concerns.
func (s *Host) dispatch(e *sctp.Event) {
	c, _ := e.Assoc.User.(*Conn)
	switch {
	case e.Kind == sctp.EventUp && c == nil:
		s.accept(e.Assoc)
	case c == nil:
		// It ended before it was established.
	case e.Kind == sctp.EventUp:
		c.established()
	case e.Kind == sctp.EventMessage:
		c.handler.Message(e.Msg)
	case e.Kind == sctp.EventDown:
		s.mu.Lock()
		delete(s.conns, c)
		if len(s.conns) == 0 && s.closing != nil {
			close(s.closing)
			s.closing = nil
		}
		s.mu.Unlock()
		if !c.portless {
			s.givePort(c.local.Port())
		}
		c.down(e.Err)
	default:
		c.handler.Event(e)
	}
}

// Stats are the totals.
func (s *Host) Stats() sctp.Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum := s.gone
	for _, ep := range s.all() {
		sum.Add(ep.Stats())
	}
	return sum
}

// Associations is how many there are.
func (s *Host) Associations() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ep := range s.all() {
		n += ep.Associations()
	}
	return n
}

// closeTime is how long Close waits for peers to agree to the end.
const closeTime = time.Second

// Close ends every listener and every association: by a shutdown if the peer answers at once, else
// by an abort. Handlers hear of it.
func (s *Host) Close() error {
	if !s.gate.Shut() {
		return nil
	}
	s.gate.Wait()
	s.mu.Lock()
	done := make(chan struct{})
	if len(s.conns) > 0 {
		s.closing = done
	} else {
		close(done)
	}
	for c := range s.conns {
		_ = c.a.Shutdown(s.now()) // an error: it is ending already
	}
	for _, l := range s.listeners {
		s.stopListening(l)
	}
	s.listeners = nil // nobody takes an association whose event is still to be handed out
	s.mu.Unlock()
	s.drain()
	select {
	case <-done:
	case <-time.After(closeTime): // of the host's, whatever the clock
	}
	s.mu.Lock()
	for c := range s.conns {
		c.a.Abort(s.now(), "closed")
	}
	s.mu.Unlock()
	s.drain()
	s.mu.Lock()
	s.ended = true
	if s.timer != nil {
		s.timer.Stop()
	}
	s.mu.Unlock()
	s.drain()
	s.carrier.close()
	return nil
}

// A drainToken makes sure that one goroutine drains at a time, and that nothing is left over: idle,
// held, or held with another round to go.
type drainToken struct{ state atomic.Uint32 }

const (
	drainIdle uint32 = iota
	drainHeld
	drainAgain
)

// take reports whether the caller is the one now.
func (t *drainToken) take() bool {
	for {
		if t.state.CompareAndSwap(drainIdle, drainHeld) {
			return true
		}
		if t.state.Load() == drainAgain || t.state.CompareAndSwap(drainHeld, drainAgain) {
			return false
		}
	}
}

// release gives the token up; false: there is another round to go.
func (t *drainToken) release() bool {
	if t.state.CompareAndSwap(drainHeld, drainIdle) {
		return true
	}
	t.state.Store(drainHeld)
	return false
}
