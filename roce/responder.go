package roce

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vrnic/vrnic/roce/packet"
)

// A resource is a Read or an atomic of the peer, kept so that it can be answered once more.
type resource struct {
	op   packet.Opcode // of its request; noMessage: there is none here
	psn  packet.PSN
	n    uint32 // packets of the answer
	rkey uint32
	addr uint64

	length        uint32 // of a Read
	swap, compare uint64 // of an atomic
	original      uint64

	// What is to be answered: packets [next, end) of the answer, which are the Read's octets [from,
	// to).
	queued    bool
	again     bool // the peer has asked for it more than once
	next, end uint32
	from, to  uint32
	source    Payload // while it is queued, once it was found
}

// A responder is the answering half of an RC. Answers leave in the order of the requests: those of
// Reads and atomics, then the ACK or NAK, which is for all that came before.
type responder struct {
	assembly assembly
	expected packet.PSN
	msn      uint32
	started  bool // a request was carried out

	ring   []resource // of the last Reads and atomics
	newest int        // in ring
	queue  []int      // in ring: what is to be answered, the oldest first; capacity len(ring)

	ackDue  bool            // an ACK is to go out
	acks    packet.PSN      // which it is for: the newest that was carried out, see appendAnswer
	nak     packet.Syndrome // a NAK is to go out, if nakDue
	nakPSN  packet.PSN
	nakDue  bool
	nakSent bool // for what is missing: once until it has come
	waiting bool // for what found no receive: silent until it comes again (docs/decisions.md#R7)
}

func (r *responder) init(cfg *Config, h Host) {
	*r = responder{expected: cfg.RQPSN, acks: cfg.RQPSN.Add(allBack),
		ring:  make([]resource, cfg.MaxDestRead),
		queue: make([]int, 0, cfg.MaxDestRead)}
	for i := range r.ring {
		r.ring[i].op = noMessage
	}
	r.assembly.init(h, cfg.MTU, cfg.Access)
}

// resize has n Reads and atomics kept from now on: those that are there stay as far as there is
// room, the latest first, and those of the others that are to be answered are answered no more.
func (r *responder) resize(n int) {
	old, newest, queue := r.ring, r.newest, r.queue
	r.ring, r.newest = make([]resource, n), max(n-1, 0)
	r.queue = make([]int, 0, n)
	for i := range r.ring {
		r.ring[i].op = noMessage
	}
	moved := make([]int, len(old)) // where in the new ring, one more
	for k := range min(n, len(old)) {
		from := (newest - k + len(old)) % len(old)
		r.ring[n-1-k] = old[from]
		moved[from] = n - k
	}
	for _, i := range queue {
		if moved[i] > 0 {
			r.queue = append(r.queue, moved[i]-1)
		} else if src := old[i].source; src != nil {
			r.assembly.host.EndReadSource(src)
		}
	}
}

// reading reports whether the answer to a Read is being sent.
func (r *responder) reading() bool {
	return len(r.queue) > 0 && r.ring[r.queue[0]].op == packet.ReadRequest
}

// request takes a request of the peer.
func (c *RC) request(h *packet.Header, payload []byte) {
	r := &c.rq
	d := h.PSN.Sub(r.expected)
	if d > 0 {
		c.counts.Ahead++
	}
	switch {
	case d < 0:
		c.counts.Duplicates++
		c.duplicate(h)
	case d == 0:
		r.nakSent, r.waiting, r.nakDue = false, false, false
		c.carryOut(h, payload)
	case !r.nakSent && !r.waiting:
		r.nakSent = true
		r.refuse(packet.NAKSequence)
	}
}

// refuse has a NAK go out for the PSN that is expected, in place of an ACK.
func (r *responder) refuse(s packet.Syndrome) {
	r.nak, r.nakPSN, r.nakDue = s, r.expected, true
}

// carryOut does what the expected packet asks for.
func (c *RC) carryOut(h *packet.Header, payload []byte) {
	r := &c.rq
	var ref *refusal
	took := uint32(1)
	ended := true
	if kind(h.Opcode) != noMessage {
		ended, ref = r.assembly.take(h, payload)
	} else {
		took, ref = c.serve(h)
	}
	switch {
	case ref == errNoReceive:
		r.waiting = true
		c.counts.RNRSent++
		r.refuse(packet.RNR(c.cfg.MinRNRTimer))
		return
	case ref != nil:
		if made := NAK(0); errors.As(ref.err, &made) {
			ref = &refusal{packet.Syndrome(made), ref.status, ref.err}
		}
		status := ref.status
		if status == Success {
			status = RemoteInvalid
		}
		r.assembly.abandon(status)
		r.refuse(ref.syndrome)
		c.fail(&Fault{Status: status, Sent: ref.syndrome, Err: ref.err})
		return
	}
	r.started = true
	if kind(h.Opcode) != noMessage {
		r.acks = r.expected
	}
	r.expected = r.expected.Add(took)
	if ended {
		r.msn = (r.msn + 1) & 0xffffff
	}
	if h.AckReq && kind(h.Opcode) != noMessage {
		r.ackDue = true
	}
}

// serve takes a Read or an atomic; took is how many PSNs it has.
func (c *RC) serve(h *packet.Header) (took uint32, ref *refusal) {
	r := &c.rq
	if r.assembly.inside() {
		return 0, refuse(packet.NAKInvalid, errOrder)
	}
	right := RemoteAtomic
	if h.Opcode == packet.ReadRequest {
		right = RemoteRead
	}
	switch {
	case c.cfg.Access&right == 0:
		return 0, refuse(packet.NAKInvalid, errRights)
	case len(r.ring) == 0, r.ring[r.after()].queued && !r.ring[r.after()].again:
		return 0, refuse(packet.NAKInvalid, errResources)
	case h.DMA > MaxMessage:
		return 0, refuse(packet.NAKInvalid, errLength)
	case right == RemoteAtomic && h.Addr%8 != 0:
		return 0, refuse(packet.NAKInvalid, errMisaligned)
	}
	e := resource{op: h.Opcode, psn: h.PSN, n: 1, rkey: h.RKey, addr: h.Addr, end: 1}
	if right == RemoteRead {
		e.length, e.n = h.DMA, packets(h.DMA, c.cfg.MTU)
		e.end, e.to = e.n, e.length
		if e.length > 0 {
			var err error
			if e.source, err = c.host.ReadSource(e.rkey, e.addr, e.length); err != nil {
				return 0, refuse(packet.NAKAccess, err)
			}
		}
	} else {
		e.swap, e.compare = h.Swap, h.Compare
		var err error
		if e.original, err = c.host.Atomic(e.atomic()); err != nil {
			return 0, refuse(packet.NAKAccess, err)
		}
	}
	r.newest = r.after()
	r.forget(c.host, r.newest)
	r.ring[r.newest] = e
	r.enqueue(r.newest)
	r.ackDue = false // the answer acknowledges all before it
	return e.n, nil
}

func (r *responder) after() int { return (r.newest + 1) % len(r.ring) }

func (r *responder) enqueue(i int) {
	r.ring[i].queued = true
	r.queue = append(r.queue, i)
}

// forget gives up what resource i is still to be answered. The peer asks for something new in its
// place, so it has had the answer that was on its way when it asked once more.
func (r *responder) forget(h Host, i int) {
	e := &r.ring[i]
	if !e.queued {
		return
	}
	if e.source != nil {
		h.EndReadSource(e.source)
	}
	r.queue = slices.DeleteFunc(r.queue, func(k int) bool { return k == i })
}

func (e *resource) atomic() Atomic {
	a := Atomic{Op: FetchAdd, RKey: e.rkey, Addr: e.addr, Swap: e.swap, Compare: e.compare}
	if e.op == packet.CompareSwap {
		a.Op = CompareSwap
	}
	return a
}

// duplicate takes a request that was carried out before: nothing is done twice.
func (c *RC) duplicate(h *packet.Header) {
	r := &c.rq
	if kind(h.Opcode) != noMessage {
		// Whatever was carried out is acknowledged, and before anything was nothing is:
		// docs/decisions.md#R6.
		r.ackDue = r.ackDue || r.started
		return
	}
	// The latest first: what is kept can be of a circle of PSNs ago, and have the same ones.
	for k := range r.ring {
		i := (r.newest - k + len(r.ring)) % len(r.ring)
		if e := &r.ring[i]; e.op == h.Opcode {
			if at := h.PSN.Sub(e.psn); at >= 0 && at < int(e.n) {
				c.repeat(i, uint32(at), h)
				return
			}
		}
	}
}

// repeat has a Read or an atomic answered once more, if h asks for the same, or for a Read's part
// from packet at on. What is on its way begins again there.
func (c *RC) repeat(i int, at uint32, h *packet.Header) {
	r := &c.rq
	e := &r.ring[i]
	from := at * c.cfg.MTU
	switch {
	case h.RKey != e.rkey, h.Addr != e.addr+uint64(from):
		return
	case e.op != packet.ReadRequest:
		if h.Swap != e.swap || h.Compare != e.compare {
			return
		}
	case h.DMA > e.length-from, h.DMA == 0 && e.length != 0:
		return
	}
	e.from, e.to = from, from+h.DMA
	e.next, e.end = at, at+packets(h.DMA, c.cfg.MTU)
	if e.op != packet.ReadRequest {
		e.next, e.end = 0, 1
	}
	e.again = true
	if !e.queued {
		r.enqueue(i)
	}
}

// appendAnswer adds the next packet of what the peer is answered.
func (c *RC) appendAnswer(b []byte) ([]byte, bool) {
	r := &c.rq
	for len(r.queue) > 0 {
		i := r.queue[0]
		e := &r.ring[i]
		out, err := c.appendResource(b, e)
		if err == nil {
			if e.next++; e.next == e.end {
				c.finish(e)
			}
			return out, true
		}
		// The region has gone meanwhile. What was sent is right, and nothing follows it.
		c.finish(e)
		for len(r.queue) > 0 {
			c.finish(&r.ring[r.queue[0]])
		}
		r.ackDue = false
		if c.fault == nil {
			r.nak, r.nakPSN, r.nakDue = packet.NAKAccess, e.psn.Add(e.next), true
			c.fail(&Fault{Status: RemoteAccess, Sent: packet.NAKAccess, Err: err})
		}
	}
	switch {
	case r.nakDue:
		r.nakDue, r.ackDue = false, false
		return c.appendACK(b, r.nakPSN, r.nak), true
	case r.ackDue:
		// A Read or an atomic is never told of by an ACK, not even where it is the newest: rxe takes that
		// for the whole answer.
		r.ackDue = false
		return c.appendACK(b, r.acks, c.credits()), true
	}
	return b, false
}

// finish takes the resource at the head of the queue off it.
func (c *RC) finish(e *resource) {
	if e.source != nil {
		c.host.EndReadSource(e.source)
		e.source = nil
	}
	e.queued = false
	r := &c.rq
	r.queue = r.queue[:copy(r.queue, r.queue[1:])]
}

// allBack added to a PSN is the one before it.
const allBack = 1<<24 - 1

var errGone = errors.New("the region that is read is not there any more")

// appendResource adds packet e.next of the answer.
func (c *RC) appendResource(b []byte, e *resource) ([]byte, error) {
	if e.op != packet.ReadRequest {
		h := c.header(packet.AtomicAcknowledge, e.psn)
		h.Syndrome, h.MSN, h.Original = c.credits(), c.rq.msn, e.original
		return h.Append(b), nil
	}
	if e.source == nil && e.length > 0 {
		var err error
		if e.source, err = c.host.ReadSource(e.rkey, e.addr, e.length); err != nil {
			return b, fmt.Errorf("%w: %w", errGone, err)
		}
	}
	mtu := c.cfg.MTU
	first := e.from / mtu
	off := e.next * mtu
	h := c.header(opcodeAt(Read, e.next-first, e.end-first), e.psn.Add(e.next))
	h.Syndrome, h.MSN = c.credits(), c.rq.msn
	return appendPacket(b, &h, e.source, off, min(e.to-off, mtu))
}

// appendACK adds an ACK or a NAK.
func (c *RC) appendACK(b []byte, psn packet.PSN, s packet.Syndrome) []byte {
	h := c.header(packet.Acknowledge, psn)
	h.Syndrome, h.MSN = s, c.rq.msn
	return h.Append(b)
}

// credits is the ACK that says how many receives there are: docs/decisions.md#R5.
func (c *RC) credits() packet.Syndrome {
	if n, ok := c.host.Receives(); ok {
		return packet.CreditsFor(n)
	}
	return packet.Unlimited
}
