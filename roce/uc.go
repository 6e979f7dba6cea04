package roce

import (
	"errors"

	"github.com/vrnic/vrnic/roce/packet"
)

// A UC is one end of an unreliable connection: Sends and Writes that nobody acknowledges. Of a
// message that has lost a packet nothing is completed, and the next begins anew. It has one owner
// at a time, and no deadline. That it is there: docs/decisions.md#R4.
type UC struct {
	cfg   Config // Timeout and what is of Reads, retries and RNR means nothing
	host  Host
	fault *Fault

	ring       []Request
	mask       uint32
	head, tail uint32
	off        uint32 // packets of the request at head that have gone out
	psn        packet.PSN
	held       bool // see Hold
	draining   bool // no message begins

	expected packet.PSN
	assembly assembly
}

// NewUC makes an end of a connection of cfg, whose values have been checked.
func NewUC(cfg Config, h Host) *UC {
	n := 1
	for n < cfg.SendQueue {
		n *= 2
	}
	c := &UC{cfg: cfg, host: h, ring: make([]Request, n), mask: uint32(n) - 1, psn: cfg.SQPSN,
		expected: cfg.RQPSN}
	c.assembly.init(h, cfg.MTU, cfg.Access)
	return c
}

// ErrOp says that an unreliable connection has Sends and Writes only, without invalidation.
var ErrOp = errors.New("an unreliable connection has no such operation")

// Post adds a copy of r to what is to be sent. An error says that it is none that can be.
func (c *UC) Post(r *Request) error {
	switch {
	case c.tail-c.head > c.mask:
		return ErrQueueFull
	case r.Op.answered(), r.Op == SendInv:
		return ErrOp
	case r.Length > MaxMessage:
		return ErrLength
	}
	c.ring[c.tail&c.mask] = *r
	c.tail++
	return nil
}

// Start begins the sending half with cfg's SQPSN, for who knows it when packets of the peer are
// taken already.
func (c *UC) Start(cfg Config) { c.psn = cfg.SQPSN }

// Update changes what the peer may do.
func (c *UC) Update(cfg Config) {
	c.cfg.Access, c.assembly.access = cfg.Access, cfg.Access
}

// Drain has no message begin that has not begun, Resume takes it back, and Drained reports that no
// message is in its midst.
func (c *UC) Drain()        { c.draining = true }
func (c *UC) Resume()       { c.draining = false }
func (c *UC) Drained() bool { return c.off == 0 }

// Recover has a queue pair that has failed to send go on, with what is posted from now on.
func (c *UC) Recover() {
	for ; c.head != c.tail; c.head++ {
		c.ring[c.head&c.mask].Data = nil
	}
	c.off, c.fault = 0, nil
}

// Hold has Append give nothing.
func (c *UC) Hold(on bool) { c.held = on }

// PSNs are those of the next packet of each side: what goes out, and what is expected.
func (c *UC) PSNs() (sq, rq packet.PSN) { return c.psn, c.expected }

// Fault is why the queue pair sends nothing more, nil: it does. What the peer does is never why.
func (c *UC) Fault() *Fault { return c.fault }

// Pending reports whether Append may have a packet now: false is sure.
func (c *UC) Pending() bool { return c.head != c.tail }

// Append adds the next packet that goes out to b, as RC's does. A request is done once its last
// packet has been appended.
func (c *UC) Append(b []byte) ([]byte, bool) {
	if c.held || c.head == c.tail || c.fault != nil || c.draining && c.off == 0 {
		return b, false
	}
	e := &c.ring[c.head&c.mask]
	mtu := c.cfg.MTU
	n := packets(e.Length, mtu)
	h := packet.Header{Opcode: opcodeAt(e.Op, c.off, n).Of(packet.UC), Migrated: true,
		PKey: c.cfg.PKey,
		Dest: c.cfg.Dest, PSN: c.psn, RKey: e.RKey, Addr: e.Addr, DMA: e.Length, Imm: e.Imm}
	off := c.off * mtu
	last := c.off+1 == n
	h.Solicited = last && e.Solicited && e.Op != Write
	b, err := appendPacket(b, &h, e.Data, off, min(e.Length-off, mtu))
	if err != nil {
		c.fault = &Fault{Requester: true, Token: e.Token, Status: LocalProtection, Err: err}
		return b, false
	}
	c.psn = c.psn.Add(1)
	if c.off++; last {
		token := e.Token
		e.Data = nil
		c.off = 0
		c.head++
		c.host.Done(token)
	}
	return b, true
}

// Receive takes a packet in that is for c, from its peer, and whose ICRC is right. payload is good
// for the call only. What cannot be carried out is dropped, with the rest of its message.
func (c *UC) Receive(h *packet.Header, payload []byte) {
	op := h.Opcode
	if op.Transport() != packet.UC {
		return
	}
	if h.PSN != c.expected || begins(op.Operation()) {
		c.assembly.abandon(Success) // a message that has not ended will not
	}
	whole := h.PSN == c.expected
	c.expected = h.PSN.Add(1)
	if !whole && !begins(op.Operation()) || !c.assembly.inside() && !begins(op.Operation()) {
		return
	}
	if _, r := c.assembly.take(h, payload); r != nil {
		c.assembly.abandon(Success)
	}
}
