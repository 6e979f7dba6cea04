package vnic

import (
	"sync"
	"sync/atomic"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/roce/mad"
	"github.com/vrnic/vrnic/roce/packet"
)

// Packets are for QPs by the number in their BTH: whoever brings one finds the QP here, by one map
// of many, so that QPs do not meet on one lock.
const qpShards = 64

type qpShard struct {
	mu sync.RWMutex
	m  map[uint32]*QP // +checklocks:mu
}

func (a *adapter) shard(n uint32) *qpShard { return &a.shards[n%qpShards] }

func (a *adapter) add(n uint32, qp *QP) {
	s := a.shard(n)
	s.mu.Lock()
	s.m[n] = qp
	s.mu.Unlock()
}

func (a *adapter) remove(n uint32) {
	s := a.shard(n)
	s.mu.Lock()
	delete(s.m, n)
	s.mu.Unlock()
}

func (a *adapter) find(n uint32) *QP {
	s := a.shard(n)
	s.mu.RLock()
	qp := s.m[n]
	s.mu.RUnlock()
	return qp
}

// findFor is find for p: the QP of the packet before it, if both have its number.
func (a *adapter) findFor(n uint32, p *RoCEPacket) *QP {
	if k, ok := p.Deferred().(*keptQP); ok && k.num == n && k.dev.roce == a {
		return (*QP)(k)
	}
	return a.find(n)
}

// drops count packets of which nothing comes.
type drops struct {
	unknown atomic.Uint64 // for a QP that is not there, or takes none in its state
	foreign atomic.Uint64 // for a QP whose peer somebody else is
	icrc    atomic.Uint64 // with a wrong ICRC
	full    atomic.Uint64 // for a QP that has enough of them
}

// PacketDrops count packets to a RoCE device of which nothing came.
type PacketDrops struct {
	Unknown uint64 `json:"unknown_qp"`   // for a QP that is not there, or takes none in its state
	Foreign uint64 `json:"foreign_peer"` // for a QP whose peer somebody else is
	ICRC    uint64 `json:"bad_icrc"`
	Full    uint64 `json:"full"` // for a QP that has enough of them
}

func (d *drops) snapshot() *PacketDrops {
	return &PacketDrops{d.unknown.Load(), d.foreign.Load(), d.icrc.Load(), d.full.Load()}
}

// ReceiveRoCE implements RoCEReceiver. The ICRC is checked before anything is touched but counters.
func (a *adapter) ReceiveRoCE(p *RoCEPacket) {
	d := p.Datagram
	n := uint32(d[5])<<16 | uint32(d[6])<<8 | uint32(d[7])
	switch n {
	case uint32(packet.Multicast):
		a.takeGroup(p)
		return
	case mad.QPN:
		a.manage(p)
		return
	}
	qp := a.findFor(n, p)
	switch {
	case qp == nil:
		a.drops.unknown.Add(1)
		return
	case qp.Type() == rdma.UD:
		a.takeDatagram(qp, p)
		return
	}
	l := qp.packets.peer.Load()
	switch {
	case l == nil:
		a.drops.unknown.Add(1)
	case p.Src != l.remote || p.Dst != l.local:
		a.drops.foreign.Add(1)
	case !p.Valid():
		a.drops.icrc.Add(1)
	default:
		qp.bring(l, p)
	}
}

// A taker is the link of a QP that takes packets.
type taker interface {
	// Begin is called by who has got the QP's run token before the first TakePacket, which takes a
	// packet whose ICRC is right. A Step has to follow.
	Begin()
	TakePacket(p *RoCEPacket)
	// Put has p wait for who runs the QP; false: there is no room. Any goroutine may call it.
	Put(p *RoCEPacket) bool
}

// taker is the link that takes packets now, nil: there is none.
func (p *packetQP) taker() taker {
	if l := p.peer.Load(); l != nil {
		return l
	}
	if l := p.datagrams.Load(); l != nil {
		return l
	}
	return nil
}

// bring has qp take p: here, if nobody runs qp and its memory cannot block, else by who runs it. A
// QP that is run for a packet of a batch is kept for those that follow it, so that one answer is
// enough, but not while another QP is run: a peer chooses how many of others' come between.
func (qp *QP) bring(l taker, p *RoCEPacket) {
	kept := (*keptQP)(qp)
	if k, ok := p.Deferred().(*keptQP); ok && k != kept {
		k.giveUp(p)
	} else if ok && !qp.ctx.mem.Blocking() {
		kept.take(l, p)
		return
	}
	if !qp.ctx.mem.Blocking() && qp.token.CompareAndSwap(tokenIdle, tokenRunning) {
		// It may have another link by now, or memory that can block.
		if qp.packets.taker() == l && !qp.ctx.mem.Blocking() {
			deferred := p.Defer(kept)
			if deferred {
				kept.expect(p)
			}
			l.Begin()
			qp.packets.inline = inlineOctets
			kept.take(l, p)
			if deferred {
				return
			}
		}
		qp.drain(false, nil)
		return
	}
	if !l.Put(p) {
		qp.dev.roce.drops.full.Add(1)
		return
	}
	if qp.ctx.mem.Blocking() {
		qp.wake()
	} else {
		qp.kick()
	}
}

// A keptQP is a QP whose run token is kept for what follows of a batch.
type keptQP QP

// inlineOctets is how much of what another goroutine of this process sends it takes itself: the
// rest is for the QP's own, so that one processor sends while the other receives.
const inlineOctets = 32 << 10

// take has l take the next packet of a batch, here or by the QP's goroutine.
func (k *keptQP) take(l taker, p *RoCEPacket) {
	r := k.packets
	if r.inline -= len(p.Datagram); r.inline < 0 && p.Batch != nil && p.Batch.Local() {
		if l.Put(p) {
			r.handed = true
			return
		}
		l.Begin() // there are enough of them: those that wait are taken here
	}
	l.TakePacket(p)
}

// expect tells who looks for the program's answers of p, the first packet of a batch, if p may have
// one and who brings p can wait for it.
func (k *keptQP) expect(p *RoCEPacket) {
	op := packet.Opcode(p.Datagram[0])
	if k.linger == nil || !mayHaveAnswer(op) {
		return
	}
	if more := p.More(); more != nil && k.linger.Expect() {
		k.packets.more = more
		// A Send's ACK would go before its answer anyway: it does while the program makes that.
		k.packets.answer.Store(op == packet.WriteOnly || op == packet.WriteLast)
	}
}

// mayHaveAnswer reports whether a packet of op tells the program something that it may answer; an
// ACK has something complete, and an answer of the peer's may be right behind it.
func mayHaveAnswer(op packet.Opcode) bool {
	switch op.Operation() {
	case packet.ReadRequest, packet.CompareSwap, packet.FetchAdd:
		return false
	default:
		return op.Ends()
	}
}

// giveUp finishes k before p, which is for another QP.
func (k *keptQP) giveUp(p *RoCEPacket) {
	if k.packets.more != nil { // nobody waits for an answer with a packet in hand
		k.packets.more = func() bool { return true }
	}
	p.Batch.FinishEarly()
}

// Finish runs the QP and gives its token back. Where an answer to a Write is expected the ACK waits
// for it.
func (k *keptQP) Finish() {
	qp := (*QP)(k)
	more := k.packets.more
	k.packets.more = nil
	if k.packets.handed {
		k.packets.handed = false
		qp.passOn()
		return
	}
	qp.drain(false, more)
	if more == nil {
		return
	}
	k.linger.Linger(more)
	if k.packets.answer.Swap(false) {
		qp.kick()
	}
}
