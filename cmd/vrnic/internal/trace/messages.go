package trace

import (
	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/roce/packet"
)

// ulpdu shows a DDP segment, behind what comes before it.
func (t *Tracer) ulpdu(way int, b []byte, before string) {
	l := &Line{Event: wayName(way), Text: before + iwarp.DescribeSegment(b)}
	if len(b) >= iwarp.TaggedHeaderLen {
		l.WRID = t.ofSegment(way, b)
	}
	t.line(l)
}

// ofSegment is the request that a DDP segment is of.
func (t *Tracer) ofSegment(way int, b []byte) *uint64 {
	ddp, op := iwarp.DDPControl(b[0]), iwarp.RDMAPControl(b[1]).Opcode()
	if way == 1 {
		switch op {
		case iwarp.OpReadResponse:
			return t.requests.answer(read, ddp.Last())
		case iwarp.OpAtomicResponse:
			return t.requests.answer(atomic, true)
		default:
			return nil
		}
	}
	first := !ddp.Tagged() && len(b) >= iwarp.UntaggedHeaderLen && iwarp.UntaggedHeader(b).MO() == 0
	switch {
	case op == iwarp.OpWrite:
		if !t.writing {
			t.current, t.behindWrite = t.requests.beginWrite()
		}
		t.writing = !ddp.Last()
	case op == iwarp.OpReadRequest:
		t.current = t.requests.begin(read)
	case op == iwarp.OpAtomicRequest:
		t.current = t.requests.begin(atomic)
	case op == iwarp.OpImmediate || op == iwarp.OpImmediateSE:
		if !t.behindWrite {
			t.current = t.requests.begin(send)
		}
		t.behindWrite = false
	case op.IsSend():
		if first {
			t.current = t.requests.begin(send)
		}
	default: // answers to the peer, a Terminate
		return nil
	}
	return t.current
}

// A psns has which requests the last packets of RoCE were of.
type psns struct {
	began  bool
	newest packet.PSN
	last   [1024]struct {
		psn packet.PSN
		of  *uint64
	}
}

// find is the request of which the packet with that PSN was.
func (p *psns) find(psn packet.PSN) *uint64 {
	if e := &p.last[int(psn)%len(p.last)]; e.psn == psn {
		return e.of
	}
	return nil
}

// add notes a packet that has not been sent before.
func (p *psns) add(psn packet.PSN, of *uint64) {
	e := &p.last[int(psn)%len(p.last)]
	e.psn, e.of = psn, of
}

// ofPacket is the request that a packet of RoCE is of.
func (t *Tracer) ofPacket(way int, h *packet.Header) *uint64 {
	op := h.Opcode.Operation()
	switch {
	case h.Opcode == packet.CNP:
		return nil
	case way == 1 && h.Opcode.IsResponse():
		switch op {
		case packet.Acknowledge:
			return t.psns.find(h.PSN)
		case packet.AtomicAcknowledge:
			return t.requests.answer(atomic, true)
		default:
			last := op == packet.ReadResponseLast || op == packet.ReadResponseOnly
			return t.requests.answer(read, last)
		}
	case way == 1 || h.Opcode.IsResponse():
		return nil
	case h.PSN == packet.PSN(t.peer.first) && !t.requests.waits():
		t.psns = psns{} // the first of another connection: nothing is left that could come again
	case t.psns.began && h.PSN.Sub(t.psns.newest) <= 0: // again
		return t.psns.find(h.PSN)
	}
	t.psns.began, t.psns.newest = true, h.PSN
	switch op {
	case packet.SendFirst, packet.SendOnly, packet.SendOnlyImm, packet.SendOnlyInv:
		t.current = t.requests.begin(send)
	case packet.WriteFirst, packet.WriteOnly, packet.WriteOnlyImm:
		t.current = t.requests.begin(write)
	case packet.ReadRequest:
		t.current = t.requests.begin(read)
	case packet.CompareSwap, packet.FetchAdd:
		t.current = t.requests.begin(atomic)
	default: // a message goes on
	}
	t.psns.add(h.PSN, t.current)
	return t.current
}
