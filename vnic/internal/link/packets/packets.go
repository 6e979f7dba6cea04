// Package packets is the Link of a queue pair of RoCE that is connected: it drives roce's RC and UC
// with the requests and receives of the QP.
//
// A packet of the peer is taken by whoever brings it, if nobody runs the QP: Offer says what the
// rest of the QP has to do. If somebody does, it waits in an Inbox, which is bounded, and the
// QP's owner takes it.
package packets

import (
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/roce"
	"github.com/vrnic/vrnic/roce/packet"
	"github.com/vrnic/vrnic/roce/udp"
	"github.com/vrnic/vrnic/vnic/internal/datagram"
	"github.com/vrnic/vrnic/vnic/internal/link"
	"github.com/vrnic/vrnic/vnic/internal/link/inbox"
	"github.com/vrnic/vrnic/vnic/internal/mem"
	"github.com/vrnic/vrnic/vnic/internal/stats"
	"github.com/vrnic/vrnic/vnic/internal/wqe"
	"github.com/vrnic/vrnic/vnic/record"
)

// A QP is a queue pair as its Link sees it, beside its Requests. All is for the QP's owner.
type QP interface {
	Work() *wqe.Requests
	State() rdma.QPState
	// Tape records what is made for the connection now; nil: nobody wants that.
	Tape() *record.Tape
	// Established says that the first request of the peer has come.
	Established()
	// Drained says that all that was begun before SQD is over.
	Drained()
	// Failed says that the connection is over, or that a UC sends nothing more. What the peer is told
	// has been sent.
	Failed(f *roce.Fault)
	// Refused says that a request could not be, and has completed with that.
	Refused(err error)
	// AnswerExpected says that somebody looks for what the program answers, for some microseconds,
	// and runs the QP then in any case: an ACK can wait, and go with it.
	AnswerExpected() bool
	// SetDeadline has Expire called in d, and takes back what was set before; 0: not at all.
	SetDeadline(d time.Duration)
}

// A Path is where packets go to and from which they come.
type Path struct {
	Local, Remote netip.Addr
	Route         datagram.Route
	// Peer finds the link of the QP there if it is one of this process; it says nil while there is
	// none. nil: it is elsewhere.
	Peer         func() *Link
	TrafficClass uint8
	HopLimit     uint8 // 0: the default; docs/decisions.md#R13
	FlowLabel    uint32
}

// A Link is a link.Link over packets. It is the roce.Host of its engine, and makes the packets that
// its route sends.
type Link struct {
	link.Basic
	link.NoStream
	qp   QP
	work *wqe.Requests
	eng  roce.Engine
	// transport is that of the engine's packets.
	transport packet.Transport
	route     datagram.Route
	head      udp.Template
	now       time.Time // of the step

	Inbox   *inbox.Inbox
	control control

	out   wqe.Source // what is sent is read by it; within send
	in    placing    // what is received is placed by it
	write struct {   // the peer's, under way
		m      *mem.MR
		addr   uint64
		octets uint64 // not counted yet: an atomic operation waits for all that was copied before it
	}
	answers wqe.Answers
	acks    ackWait
	local   local // for a peer in this process

	over     bool // Abort was called
	failed   bool // a fault was told of
	heard    bool // a packet has come
	begun    bool // Begin was called, and no Step since
	sending  bool // RTS or SQD: requests are taken
	draining bool // SQD
	told     bool // that it has drained
	more     bool // the turn was over before all was sent
	left     int  // octets of the turn
	moved    int  // octets, in this step
	armed    time.Time

	stats          *stats.Packets
	sent, received uint64        // not counted yet
	counted        roce.Counters // of the engine, that are

	header  packet.Header // scratch, as those below: local ones would escape
	request roce.Request
	arrival wqe.Arrival
	atomic  atomicArgs
}

// A Device is what the links of a device have in common.
type Device struct {
	Congestion *Congestion // nil: there is no congestion control
	crowd      crowd
}

// queueMost is how many requests the engine has at most: those behind them wait in the queue.
const queueMost = 256

// New makes a link of qp, which is RC or UC, on p; cfg has what is known of the connection in RTR.
func New(qp QP, typ rdma.QPType, p Path, cfg roce.Config, s *stats.Packets, d *Device,
	in *inbox.Inbox) *Link {
	l := &Link{qp: qp, work: qp.Work(), Inbox: in, stats: s, control: newFlow(d.Congestion, cfg.Dest),
		transport: packet.RC, in: newPlacing()}
	l.local.mtu, l.local.dest = cfg.MTU, cfg.Dest
	l.answers.Init(&l.out, 0)
	cfg.SendQueue = min(l.work.Depth(), queueMost)
	l.eng = newEngine(qp.Tape(), typ, &p, cfg, l)
	if typ == rdma.UC {
		l.transport = packet.UC
		if d.Congestion == nil {
			among := &d.crowd
			if p.Peer != nil {
				among = nil
			}
			l.control = newPace(cfg.Dest, cfg.MTU, among)
		}
	}
	l.allow(&cfg)
	l.SetPath(p)
	return l
}

// newEngine is the engine of a connection on p, recorded by t, if that is not nil.
func newEngine(t *record.Tape, typ rdma.QPType, p *Path, cfg roce.Config, h roce.Host) roce.Engine {
	if t != nil {
		t.Between("RoCE "+typ.String(), p.Local.String(), p.Remote.String())
	}
	switch {
	case t != nil && typ == rdma.UC:
		return record.NewUC(t, cfg, h)
	case t != nil:
		return record.NewRC(t, cfg, h)
	case typ == rdma.UC:
		return roce.Unreliable{UC: roce.NewUC(cfg, h)}
	}
	return roce.NewRC(cfg, h)
}

// SetPath has packets go by p from now on.
func (l *Link) SetPath(p Path) {
	l.shutDoor()
	l.local.path, l.local.peer = p, nil
	l.local.finds.Store(p.Peer != nil)
	l.route = p.Route
	l.head = udp.NewTemplate(udp.Flow{
		Src: p.Local, Dst: p.Remote, SrcPort: udp.SourcePort(packet.QPN(l.work.Num())),
		TrafficClass: l.control.ecn(p.TrafficClass), HopLimit: p.HopLimit, FlowLabel: p.FlowLabel,
	})
}

// Open implements link.Link.
func (l *Link) Open() {}

// Start begins to send, with what cfg has of the sending half: the QP goes from RTR to RTS.
func (l *Link) Start(cfg roce.Config) {
	l.shutDoor()
	l.eng.Start(cfg)
	l.allow(&cfg)
	l.sending = true
}

// Update changes what can change of a connection.
func (l *Link) Update(cfg roce.Config) {
	l.shutDoor()
	l.eng.Update(cfg)
	l.allow(&cfg)
}

// Drain has no message begin: the QP goes to SQD. Resume takes that back.
func (l *Link) Drain() {
	l.draining, l.told = true, false
	l.eng.Drain()
}

func (l *Link) Resume() {
	l.draining = false
	l.eng.Resume()
}

// Drained reports that nothing is under way of what was begun before Drain.
func (l *Link) Drained() bool { return l.eng.Drained() && !l.partlyCopied() }

// Refuse has the next request of the peer of an RC answered with a NAK. It comes as a packet, also
// from a peer of this process.
func (l *Link) Refuse(s packet.Syndrome) {
	if c, ok := l.eng.(interface{ Refuse(packet.Syndrome) }); ok {
		l.FindBy(nil)
		c.Refuse(s)
	}
}

// Recover has a UC that has failed to send go on.
func (l *Link) Recover() {
	if u, ok := l.eng.(interface{ Recover() }); ok {
		u.Recover()
		l.failed, l.sending = false, true
	}
}

// PSNs are those of the next packet of each side.
func (l *Link) PSNs() (sq, rq packet.PSN) {
	l.shutDoor()
	return l.eng.PSNs()
}

// Idle implements link.Link.
func (l *Link) Idle() bool { return !l.work.SendsLeft() }

// Abort implements link.Link: nobody is told. But an ACK that waits for an answer goes, as what it
// is for was carried out, and will not be again.
func (l *Link) Abort() {
	if !l.over && l.eng.Fault() == nil && l.eng.OnlyACK() {
		l.sending, l.left = false, link.TurnOctets
		_ = l.route.Send(l) // else the peer asks in vain, as of a packet that is lost
	}
	if !l.over {
		l.control.end()
	}
	l.over = true
	l.local.gone.Store(true)
	l.local.peer = nil
	l.local.drop()
	l.Inbox.Close()
	l.in.abandon()
	l.out.Hold.Drop()
	l.out.Hold.Release()
}

// Begin is called by who has got the QP's run token before the first Take.
func (l *Link) Begin() {
	l.begun, l.now = true, time.Now()
	l.takeWaiting()
}

// Take takes a packet of the peer, from the BTH on, whose ICRC and addresses are right; marked: it
// has experienced congestion. A Step has to follow.
func (l *Link) Take(b []byte, marked bool) {
	if l.over {
		return
	}
	l.shutDoor()
	payload, err := l.header.Parse(b)
	if err != nil {
		return
	}
	if !pkeyMatches(l.header.PKey) {
		l.stats.WrongPKey.Add(1)
		return
	}
	if !l.heard && l.begins() {
		l.heard = true
		l.qp.Established()
	}
	if op := l.header.Opcode; op != packet.CNP && !op.IsResponse() {
		l.acks.came(op, l.now)
	}
	l.moved += len(payload)
	l.received++
	l.control.arrived(l.header.Opcode, marked, l.now)
	l.eng.Receive(l.now, &l.header, payload)
}

// begins reports whether the packet is a request that is due: others may be late ones of a
// connection that these two queue pairs had before, and say nothing of this one.
func (l *Link) begins() bool {
	_, due := l.eng.PSNs()
	op := l.header.Opcode
	return op.Transport() == l.transport && !op.IsResponse() && l.header.PSN == due
}

// pkeyMatches reports whether a packet's partition is that of the only P_Key there is, of which the
// queue pair is a full member.
func pkeyMatches(k uint16) bool { return k&0x7fff == packet.DefaultPKey&0x7fff }

// takeWaiting takes what has come while the QP was run.
func (l *Link) takeWaiting() {
	came := l.Inbox.Take()
	for i := range came {
		l.Take(came[i].Octets, came[i].Congested)
		came[i].Free()
	}
}

// Step implements link.Link.
func (l *Link) Step() (moved int, more bool) {
	if !l.begun {
		l.now = time.Now()
	}
	l.begun = false
	// Some may have come since Begin, too, and who put them there does not come again.
	l.takeWaiting()
	l.in.release()
	if l.over {
		return l.count(), false
	}
	l.work.Retire()
	more = l.send()
	if f := l.eng.Fault(); f != nil && !more && !l.failed {
		l.failed, l.sending = true, false
		l.work.Retire() // all that ended well
		l.qp.Failed(f)
	}
	if l.over {
		return l.count(), false
	}
	if l.draining && !l.told && l.Drained() {
		l.told = true
		l.work.Retire()
		l.qp.Drained()
	}
	l.openDoor()
	l.arm()
	return l.count(), more // who puts a packet into the Inbox has the QP run once more
}

// count is what this step has moved; others see what was counted.
func (l *Link) count() int {
	n := l.moved
	l.moved = 0
	if w := &l.write; w.octets > 0 {
		l.work.Stats.RecvOctets.Add(w.octets)
		w.octets = 0
	}
	if l.sent > 0 {
		l.stats.Sent.Add(l.sent)
		l.sent = 0
	}
	if l.received > 0 {
		l.stats.Received.Add(l.received)
		l.received = 0
	}
	if n := &l.local; n.copied > 0 {
		l.stats.Copied.Add(n.copied)
		n.copied = 0
	}
	if c := l.eng.Counters(); *c != l.counted {
		was := l.counted
		l.counted = *c
		s := l.stats
		s.Duplicates.Add(c.Duplicates - was.Duplicates)
		s.OutOfSequence.Add(c.Ahead - was.Ahead)
		s.RNRReceived.Add(c.RNRReceived - was.RNRReceived)
		s.RNRSent.Add(c.RNRSent - was.RNRSent)
		s.SequenceNAKs.Add(c.SequenceNAKs - was.SequenceNAKs)
		s.RetryExceeded.Add(c.RetryExceeded - was.RetryExceeded)
		s.RNRExceeded.Add(c.RNRExceeded - was.RNRExceeded)
		s.Again.Add(c.Again - was.Again)
	}
	return n
}

// send sends what is to be sent. true: there is more.
func (l *Link) send() (more bool) {
	l.left, l.more = link.TurnOctets, false
	for l.fill(eitherWay) && l.eng.Fault() == nil {
		// requests that need no packet are done meanwhile
	}
	l.settle()
	if told := l.control.begin(l.now); l.over || !told && (!l.eng.Pending() ||
		l.eng.OnlyACK() && (l.acks.waits(l.now) || l.qp.AnswerExpected())) {
		return l.more && !l.over
	}
	if err := l.route.Send(l); err != nil && !errors.Is(err, net.ErrClosed) {
		l.stats.SendErrors.Add(1)
		l.work.Log("send packets", "err", err)
	}
	if !l.more {
		l.out.Hold.Release()
	}
	return l.more
}

// NextPacket implements datagram.Source. Behind the last packet no memory is held: sending them may
// run others, who may deregister it.
func (l *Link) NextPacket(b []byte) ([]byte, bool) {
	out, ok := l.makePacket(b)
	if !ok {
		l.out.Hold.Drop()
	}
	return out, ok
}

// makePacket puts the next packet behind b; false: there is none.
func (l *Link) makePacket(b []byte) ([]byte, bool) {
	if l.left <= 0 {
		l.more = true
		return nil, false
	}
	b = l.head.Append(b)
	if out, ok := l.control.notice(b, l.now); ok {
		return l.head.Finish(out), true
	}
	for {
		l.eng.Hold(l.control.holds(l.now) && l.eng.Fault() == nil)
		out, ok := l.eng.Append(b, l.now)
		if ok {
			l.control.sent(l.now, out)
			l.left -= len(out)
			l.sent++
			l.moved += len(out)
			return l.head.Finish(out), true
		}
		if l.eng.Fault() != nil || !l.fill(asPackets) {
			return nil, false
		}
	}
}

// fill posts requests to the engine, and copies those that need no packet, as far as they may go
// that way; true: it has posted some.
func (l *Link) fill(w way) (posted bool) {
	some := false // was copied
	for range wqe.StepMessages {
		if l.over || !l.sending || l.draining && !l.partlyCopied() {
			return false
		}
		e := l.work.Next()
		if e == nil {
			return posted
		}
		if e.Moved == 0 {
			if op := e.WR.Op; e.Failed() || op == rdma.OpLocalInv || op == rdma.OpBindMW ||
				op == rdma.OpRegMR {
				l.settle() // what was copied may be of what ends
			}
			if ok, err := l.work.Ready(e); err != nil {
				l.sending = false
				l.qp.Refused(err)
				return false
			} else if !ok {
				if e.Done() {
					continue // it needed no packet
				}
				return posted
			}
		}
		switch l.carry(e, w) {
		case copied:
			some = true
			continue
		case waits:
			return posted
		}
		if w == asCopies {
			return false
		}
		l.make(e)
		l.shutDoor() // what the peer copied would overtake the ACK
		if err := l.eng.Post(&l.request); err != nil {
			if errors.Is(err, roce.ErrQueueFull) {
				return posted
			}
			l.work.Refuse(e, rdma.WCLocQPOp, err)
			continue
		}
		l.work.Posted(e)
		l.acks.replied(l.now)
		posted = true
	}
	l.more = l.more || some
	return posted
}

// Expire implements link.Link: the step that follows sends what is to be sent again. What waits to
// be taken may be the answer, where this goroutine is late and not the peer.
func (l *Link) Expire() {
	l.armed = time.Time{}
	l.Begin()
	l.eng.Expire(l.now)
}

// arm has Expire called when the engine wants it, or an ACK that waits. A timer that runs out too
// early is set again then: most are never heard of, and setting one for each message would cost
// more than the rest of a short one.
func (l *Link) arm() {
	at, ok := l.control.deadline(l.eng.Deadline())
	at, ok = earlier(l.acks.until, at, ok)
	if !ok || !l.armed.IsZero() && !at.Before(l.armed) {
		return
	}
	l.armed = at
	l.qp.SetDeadline(max(at.Sub(l.now), 1))
}
