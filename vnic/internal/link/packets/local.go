package packets

import (
	"net/netip"
	"sync/atomic"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/roce"
	"github.com/vrnic/vrnic/roce/packet"
	"github.com/vrnic/vrnic/vnic/internal/link"
	"github.com/vrnic/vrnic/vnic/internal/mem"
	"github.com/vrnic/vrnic/vnic/internal/wqe"
)

// Two queue pairs of one process need no packets: whoever runs the requester copies a message from
// one memory to the other, and completes it at both ends. But only a message with which all is well
// goes so. If anything at all is in the way, a right that is missing, no receive, a region that
// goes, the message goes as packets, from its beginning, and the engines do what they do to packets
// of anybody: so of faults, RNR NAKs, timers, retries and states there is one kind.
//
// A peer copies into a link whose door is open. That is the owner's to open and to shut:
//
//	door     who comes in          until
//	open     the peer, by copies   packets come or go, or what was agreed on changes
//	shut     packets only          the end of a step behind which nothing is under way of either end,
//	                               if the peer has been heard
//
// Behind a door that is shut are the engines only; while it is open they rest. The message whose
// turn it is goes one of two ways, and begins anew when it changes from the first to the second:
//
//	message         next                            if
//	untouched       a chunk of it is copied         nothing is under way as packets, and the door is
//	                                                open to it, at the PSN that is its next
//	partly copied   the next chunk                  that is so still; in the next turn, if this one
//	(Moved > 0)                                     is over: neither drain nor fence comes between
//	either          waits                           something is under way as packets, or these are
//	                                                being made in this turn
//	either          is posted to the engine         anything is in the way

// chunk is how many octets are copied at most while the peer's receive side is locked.
const chunk = 128 << 10

// untoldLen is how long messages can be that wait for the one behind them before the requester is
// told; how many can is wqe.DeferMost.
const untoldLen = 1024

// A door is where messages of a peer in this process come in. It is guarded by the lock of the
// receives, and open while Receives.OpenedLocked is its link.
type door struct {
	local, remote netip.Addr // it is open to who sends from remote to local
	expected      packet.PSN // of the request that comes next
	access        roce.Access
	serves        bool // Reads and atomics

	// What has come in, and the engine does not know of: requests, and the PSNs that they had.
	requests, psns uint32
}

// A local is what a Link has for a peer in this process: the owner's, where nothing else is said.
type local struct {
	mtu  uint32 // of the path; for all, as dest, the peer's number
	dest packet.QPN
	gone atomic.Bool // the link is no more; for all
	// finds says that messages may go past packets, and first is the link that the first of them, of
	// either end, was for: that of another connection of the same queue pair is not heard; for all.
	finds atomic.Bool
	first atomic.Pointer[Link]

	path   Path
	access roce.Access
	serves bool  // Reads and atomics
	peer   *Link // nil: it has not been found

	door door
	open bool // door may be

	untold int    // messages that are done and not retired
	copied uint64 // messages that are not counted yet

	from, into mem.Hold // where a Send takes its octets, and where it puts them
}

// A way is how messages may go at present.
type way int

const (
	eitherWay way = iota
	asPackets     // packets are being made: what could be copied waits for the next turn
	asCopies      // nothing is to go as packets
)

// partlyCopied reports whether a part of the message whose turn it is has been copied.
func (l *Link) partlyCopied() bool {
	e := l.work.Current()
	return e != nil && e.Moved > 0
}

// findPeer is the peer, if messages can be copied to it; nil: they cannot.
func (l *Link) findPeer() *Link {
	n := &l.local
	if n.peer != nil && n.peer.local.gone.Load() {
		n.peer = nil
		if l.partlyCopied() {
			return nil // whoever has its number now has nothing of that message
		}
	}
	if n.peer == nil && n.path.Peer != nil {
		// With other numbers, or packets of other lengths, they do not understand each other.
		if p := n.path.Peer(); p != nil && p.local.dest == packet.QPN(l.work.Num()) &&
			p.local.mtu == n.mtu {
			n.peer = p
			l.isWith(p)
		}
	}
	return n.peer
}

// FindBy has the peer found by find from now on; nil: all is to go as packets.
func (l *Link) FindBy(find func() *Link) {
	l.shutDoor()
	l.local.path.Peer, l.local.peer = find, nil
	l.local.finds.Store(find != nil)
}

// isWith reports whether nothing has been sent but between l and p, and has it be so from now on.
func (l *Link) isWith(p *Link) bool {
	l.local.first.CompareAndSwap(nil, p)
	p.local.first.CompareAndSwap(nil, l)
	return l.local.first.Load() == p && p.local.first.Load() == l
}

// MayPass reports whether messages between l and p, the other end of its connection, may go past
// packets. Any goroutine may call it.
func (l *Link) MayPass(p *Link) bool {
	return l.local.finds.Load() && p.local.finds.Load() && !l.local.gone.Load() &&
		!p.local.gone.Load() && l.isWith(p)
}

// openDoor lets the peer in, if it may be.
func (l *Link) openDoor() {
	n := &l.local
	if n.open || n.path.Peer == nil || !l.heard || !l.eng.Serves() || !l.eng.Rests() {
		return
	}
	_, expected := l.eng.PSNs()
	r := &l.work.Recv
	r.Lock()
	n.door = door{local: n.path.Local, remote: n.path.Remote, expected: expected,
		access: n.access, serves: n.serves}
	r.OpenLocked(l)
	r.Unlock()
	n.open = true
}

// shutDoor has nobody come in, and the engine know who has.
func (l *Link) shutDoor() {
	n := &l.local
	if !n.open {
		return
	}
	n.open = false
	r := &l.work.Recv
	r.Lock()
	r.OpenLocked(nil)
	psns, requests := n.door.psns, n.door.requests
	r.Unlock()
	l.eng.Passed(psns, requests)
}

// What has become of a request that was to be copied.
type carried int

const (
	copied  carried = iota
	waits           // for what is under way, or for the next turn
	refused         // it has to go as packets
)

// carry copies e, whose turn it is, to the peer, as much of it as the turn allows, if it may go so.
func (l *Link) carry(e *wqe.Request, w way) carried {
	p := l.findPeer()
	switch {
	case p == nil || e.WR.Op == rdma.OpSendInv || e.List.Blocking():
		return l.leave(e)
	case !l.eng.Rests():
		return waits
	case w == asPackets:
		l.more = true
		return waits
	}
	for l.left > 0 {
		before := e.Moved
		if !l.copyTo(p, e) {
			return l.leave(e)
		}
		l.moved += int(e.Moved - before)
		l.left -= int(e.Moved - before)
		if e.Done() || e.Failed() {
			return copied
		}
	}
	l.more = true
	return waits
}

// SendMapped implements link.Link: what can be copied is.
func (l *Link) SendMapped() bool {
	if l.local.path.Peer == nil || l.Inbox.Some() || !l.eng.Rests() || l.eng.Pending() {
		return false
	}
	l.left, l.more = link.TurnOctets, false
	l.fill(asCopies)
	l.settle()
	l.count()
	return !l.over && !l.more && l.work.Current() == nil
}

// leave has e begin as packets.
func (l *Link) leave(e *wqe.Request) carried {
	e.Moved = 0
	l.settle()
	return refused
}

// settle retires what was copied.
func (l *Link) settle() {
	n := &l.local
	if n.untold > 0 {
		n.untold = 0
		l.work.Retire()
	}
	n.drop()
}

// drop lets go of the memory that was copied.
func (n *local) drop() {
	n.from.Drop()
	n.into.Drop()
}

// copyTo copies the next chunk of e to p, and completes e with the last; false: it cannot be.
func (l *Link) copyTo(p *Link, e *wqe.Request) bool {
	n := &l.local
	sq, _ := l.eng.PSNs()
	k := min(e.Total-e.Moved, chunk)
	r := &p.work.Recv
	r.Lock()
	defer r.Unlock()
	d := &p.local.door
	if r.OpenedLocked() != any(p) || d.expected != sq || d.remote != n.path.Local ||
		d.local != n.path.Remote {
		return false
	}
	last := e.Moved+k == e.Total
	var ok bool
	switch e.WR.Op {
	case rdma.OpSend, rdma.OpSendImm:
		ok = l.copySend(r, e, k)
	case rdma.OpWrite, rdma.OpWriteImm:
		ok = d.access&roce.RemoteWrite != 0 && l.copyWrite(p, e, k)
		if ok && last && e.WR.Op == rdma.OpWriteImm {
			_, ok = r.TryBeginLocked()
		}
	case rdma.OpRead:
		ok = d.access&roce.RemoteRead != 0 && d.serves && l.copyRead(p, e, k)
	case rdma.OpCompareSwap, rdma.OpFetchAdd:
		ok = d.access&roce.RemoteAtomic != 0 && d.serves && l.copyAtomic(p, e)
	default:
	}
	if !ok {
		return false
	}
	if e.Failed() {
		return true
	}
	if e.Moved += k; last {
		psns := roce.Packets(e.Total, n.mtu)
		d.expected = d.expected.Add(psns)
		d.psns += psns
		d.requests++
		l.eng.Pass(psns)
		l.end(p, e)
	}
	return true
}

// end completes e at both ends. The lock of p's receives is held.
func (l *Link) end(p *Link, e *wqe.Request) {
	n := &l.local
	l.work.Posted(e)
	l.work.Finish(e)
	n.copied++
	n.untold++
	op := e.WR.Op
	if !wqe.IsImmediate(op) && op != rdma.OpSend {
		p.work.Stats.Inbound(op, e.Total)
		if e.Total > untoldLen || n.untold >= wqe.DeferMost {
			n.untold = 0
			l.work.Retire()
		}
		return
	}
	// The completion of a Send comes before that of the answer to it, on which programs rely, and the
	// answer can be under way as soon as the peer knows.
	n.untold = 0
	l.work.Retire()
	if op == rdma.OpWriteImm {
		p.work.Stats.Inbound(op, e.Total)
	}
	l.arrival = wqe.Arrival{Length: e.Total, Write: op == rdma.OpWriteImm,
		Solicited: e.WR.Flags&rdma.Solicited != 0, Immediate: wqe.IsImmediate(op), Imm: e.WR.Imm}
	_ = p.work.Recv.EndMessageLocked(&l.arrival) // only an invalidation can fail
}

// copySend copies k octets of e into the receive that it has, or takes.
func (l *Link) copySend(r *wqe.Receives, e *wqe.Request, k uint32) bool {
	size, ok := r.TryBeginLocked()
	if !ok {
		return false
	}
	if e.Total <= size && k > 0 {
		own, fault := r.CopyLocked(e, e.Moved, k, 0, &l.local.from, &l.local.into)
		ok = own == nil && fault == nil
	}
	if !ok || e.Total > size {
		r.ReturnLocked()
		return false
	}
	return true
}

// copyWrite copies k octets of e to where it writes.
func (l *Link) copyWrite(p *Link, e *wqe.Request, k uint32) bool {
	if e.Total == 0 {
		return true // no key is looked at
	}
	dst, err := p.work.Memory.Find(mem.PeerWrite, e.WR.RKey, e.WR.RemoteAddr, e.Total)
	if err != nil || dst.Blocking() {
		return false
	}
	own, peers := e.CopyTo(dst, e.WR.RemoteAddr+uint64(e.Moved), e.Moved, k)
	return own == nil && peers == nil
}

// copyRead copies k octets of what e reads.
func (l *Link) copyRead(p *Link, e *wqe.Request, k uint32) bool {
	if e.Total == 0 {
		return true
	}
	src, err := p.work.Memory.Find(mem.PeerRead, e.WR.RKey, e.WR.RemoteAddr, e.Total)
	if err != nil || src.Blocking() {
		return false
	}
	own, peers := e.CopyFrom(src, e.WR.RemoteAddr+uint64(e.Moved), e.Moved, k)
	return own == nil && peers == nil
}

// copyAtomic carries e out. If the place of the answer has gone meanwhile e fails, as it does on a
// wire.
func (l *Link) copyAtomic(p *Link, e *wqe.Request) bool {
	l.atomic = e.Atomic()
	m, err := p.work.Memory.Find(mem.PeerAtomic, uint32(l.atomic.STag), l.atomic.TO, mem.AtomicLen)
	if err != nil || m.Blocking() {
		return false
	}
	old, err := p.work.Memory.Atomic(&l.atomic)
	if err != nil {
		return false
	}
	if err := e.PutOld(&l.local.into, old); err != nil {
		l.work.Refuse(e, rdma.WCLocProt, err)
	}
	return true
}

// allow takes note of what the peer may do by cfg.
func (l *Link) allow(cfg *roce.Config) {
	l.local.access, l.local.serves = cfg.Access, cfg.MaxDestRead > 0
}
