package roce

import (
	"time"

	"github.com/vrnic/vrnic/roce/packet"
)

// A Config is the attributes of a connection, as ibv_modify_qp has them.
type Config struct {
	MTU          uint32 // path MTU: 256, 512, 1024, 2048 or 4096
	PKey         uint16
	Dest         packet.QPN
	SQPSN, RQPSN packet.PSN
	Access       Access

	MaxRead     int   // Reads and atomics under way at once (max_rd_atomic); 0: there can be none
	MaxDestRead int   // of the peer's (max_dest_rd_atomic)
	Timeout     uint8 // code of the local ACK timeout; 0: none
	Retries     uint8 // retry_cnt, up to 7, which is 7: docs/decisions.md#R8
	RNRRetries  uint8 // rnr_retry; RNRForever: without end
	MinRNRTimer uint8 // code of what the peer is asked to wait for a receive

	// LastMoment has each answer waited for as long as one may be before it is taken for lost, and
	// a peer that lacks a receive left alone for longer than it asks to be.
	LastMoment bool `json:",omitempty"`

	SendQueue int // requests that are posted and not done, at most
	Window    int // packets of Sends and Writes sent and not acknowledged, at most; 0: WindowOf(MTU)
}

// RNRForever as Config.RNRRetries sends again however often there was no receive.
const RNRForever = 7

// WindowOf is how many packets may be under way if nobody says: 1 MiB, or 1024 packets.
func WindowOf(mtu uint32) int { return int(min(1024, 1<<20/mtu)) }

// Counters count what a connection has seen that is not as it should be.
type Counters struct {
	Duplicates    uint64 // requests that were carried out before
	Ahead         uint64 // requests behind one that is missing
	RNRSent       uint64 // requests that found no receive
	RNRReceived   uint64 // RNR NAKs of the peer
	SequenceNAKs  uint64 // NAKs of the peer that missed a request
	Again         uint64 // times that all from the oldest unanswered request on went out again
	RetryExceeded uint64 // requests that failed since nobody answered
	RNRExceeded   uint64 // and since there was no receive
}

// An RC is one end of a reliable connection. It has one owner at a time.
type RC struct {
	cfg  Config
	host Host

	fault *Fault
	// toggle has the peer's Reads and our requests take turns. behind says that a request has gone
	// before the ACK that is due.
	toggle, behind bool
	held           bool // see Hold

	rq responder
	sq requester

	counts Counters
}

// Counters are those of c.
func (c *RC) Counters() *Counters { return &c.counts }

// NewRC makes an end of a connection of cfg, whose values have been checked.
func NewRC(cfg Config, h Host) *RC {
	if cfg.Window <= 0 {
		cfg.Window = WindowOf(cfg.MTU)
	}
	c := &RC{cfg: cfg, host: h}
	c.sq.init(&c.cfg)
	c.rq.init(&c.cfg, h)
	return c
}

// Start begins the sending half, with cfg's SQPSN, MaxRead, Timeout and counts of retries: for who
// knows them when packets of the peer are taken already. Nothing was posted before.
func (c *RC) Start(cfg Config) {
	c.cfg.SQPSN = cfg.SQPSN
	c.Update(cfg)
	c.sq.init(&c.cfg)
}

// Update changes what can change while packets are under way: cfg's Access, MinRNRTimer, MaxRead,
// MaxDestRead, Timeout, Retries and RNRRetries.
func (c *RC) Update(cfg Config) {
	to := &c.cfg
	to.Access, to.MinRNRTimer, to.Timeout = cfg.Access, cfg.MinRNRTimer, cfg.Timeout
	to.MaxRead, to.Retries, to.RNRRetries = cfg.MaxRead, cfg.Retries, cfg.RNRRetries
	c.sq.retries = min(c.sq.retries, to.Retries)
	c.sq.rnrRetries = min(c.sq.rnrRetries, to.RNRRetries)
	c.rq.assembly.access = to.Access
	if to.MaxDestRead != cfg.MaxDestRead {
		to.MaxDestRead = cfg.MaxDestRead
		c.rq.resize(cfg.MaxDestRead)
	}
}

// Hold has Append give nothing but ACKs and NAKs that no data go before.
func (c *RC) Hold(on bool) { c.held = on }

// PSNs are those of the next packet of each side: what goes out, and what is expected.
func (c *RC) PSNs() (sq, rq packet.PSN) { return c.sq.high, c.rq.expected }

// Fault is why the connection is over, nil: it is not. What the peer is told of it goes out all
// the same: Append is called until it has nothing more.
func (c *RC) Fault() *Fault { return c.fault }

func (c *RC) fail(f *Fault) {
	if c.fault == nil {
		c.fault = f
	}
}

// Receive takes a packet in that is for c, from its peer, and whose ICRC is right. payload is good
// for the call only.
func (c *RC) Receive(now time.Time, h *packet.Header, payload []byte) {
	switch {
	case c.fault != nil, h.Opcode.Transport() != packet.RC:
	case h.Opcode.IsResponse():
		c.answered(now, h, payload)
	default:
		c.request(h, payload)
	}
}

// Append adds the next packet that goes out to b: BTH, extension headers, payload and padding;
// false: there is none at present. It has no more than packet.MaxHeaderLen + MTU octets.
func (c *RC) Append(b []byte, now time.Time) ([]byte, bool) {
	if c.held {
		if len(c.rq.queue) > 0 {
			return b, false // an ACK would go out before the answers to what came before it
		}
		return c.appendAnswer(b)
	}
	if c.rq.reading() && c.toggle {
		c.toggle = false
		if b, ok := c.appendRequest(b, now); ok {
			return b, true
		}
	}
	// What a program answers is what its peer waits for; the ACK goes right behind its first packet.
	// But what takes a receive completes something there, and what it answers completes before: there
	// are programs that wait for ever else.
	if c.ackOnly() && !c.behind && !c.sq.takesReceive() {
		c.behind = true
		if b, ok := c.appendRequest(b, now); ok {
			return b, true
		}
	}
	c.behind = false
	if b, ok := c.appendAnswer(b); ok {
		c.toggle = true
		return b, true
	}
	return c.appendRequest(b, now)
}

// ackOnly reports whether all that the peer is to be answered is an ACK.
func (c *RC) ackOnly() bool { return c.rq.ackDue && len(c.rq.queue) == 0 && !c.rq.nakDue }

// OnlyACK reports whether Append would give an ACK and nothing else, for sure.
func (c *RC) OnlyACK() bool { return c.ackOnly() && c.sq.next == c.sq.tail }

// Pending reports whether Append may have a packet now: false is sure.
func (c *RC) Pending() bool {
	return c.sq.next != c.sq.tail || len(c.rq.queue) > 0 || c.rq.ackDue || c.rq.nakDue
}

// header begins a packet to the peer.
func (c *RC) header(op packet.Opcode, psn packet.PSN) packet.Header {
	return packet.Header{Opcode: op, Migrated: true, PKey: c.cfg.PKey, Dest: c.cfg.Dest, PSN: psn}
}

// Deadline is when Expire wants to be called; ok is false if there is no such time.
func (c *RC) Deadline() (at time.Time, ok bool) {
	s := &c.sq
	switch {
	case c.fault != nil:
		return time.Time{}, false
	case !s.rnrUntil.IsZero():
		return s.rnrUntil, true
	}
	return s.ackDue, !s.ackDue.IsZero()
}

// Expire does what was to be done by now.
func (c *RC) Expire(now time.Time) {
	s := &c.sq
	switch {
	case c.fault != nil:
	case !s.rnrUntil.IsZero():
		if !now.Before(s.rnrUntil) {
			s.rnrUntil = time.Time{} // and requests go out again, from the one that was refused
		}
	case !s.ackDue.IsZero() && !now.Before(s.ackDue):
		s.ackDue = time.Time{}
		c.retry(now, errNoAnswer)
	}
}
