package datagrams

import (
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/roce"
	"github.com/vrnic/vrnic/roce/packet"
	"github.com/vrnic/vrnic/vnic/internal/mem"
	"github.com/vrnic/vrnic/vnic/internal/wqe"
)

// A datagram to a queue pair of this process needs no packet: whoever runs its sender copies it
// into the receive, and completes both. If anything is in the way it goes as a packet, and what
// becomes of that becomes of it.

// A door is where datagrams of this process come in. It is guarded by the lock of the receives, and
// open while Receives.OpenedLocked is its link: while nobody takes packets.
type door struct {
	qkey, mtu uint32
}

// A local is what a Link has for others in this process: the owner's, but for door.
type local struct {
	find func(qpn uint32) *Link // a queue pair where the datagram goes; nil: none is of this process

	door door
	open bool // door may be

	ip         [64]byte // scratch, as head
	head       [roce.NetworkHeaderLen]byte
	from, into mem.Hold // where a datagram takes its octets, and where it puts them
}

// openDoor lets others in. The link is that of a queue pair that takes datagrams.
func (l *Link) openDoor() {
	n := &l.local
	if n.open || l.cfg.Find == nil {
		return
	}
	r := &l.work.Recv
	r.Lock()
	n.door = door{qkey: l.ud.QKey, mtu: l.ud.MTU}
	r.OpenLocked(l)
	r.Unlock()
	n.open = true
}

// shutDoor has nobody come in.
func (l *Link) shutDoor() {
	if l.local.open {
		l.local.open = false
		l.work.Recv.Open(nil)
	}
}

// copy copies e, whose turn it is, to the queue pair that it is for; false: it has to go as a
// packet.
func (l *Link) copy(e *wqe.Request) bool {
	n := &l.local
	if n.find == nil || e.List.Blocking() {
		return false
	}
	p := n.find(e.WR.To.QPN & 0xffffff)
	if p == nil {
		return false
	}
	qkey := e.WR.To.QKey
	if qkey&roce.ControlledQKey != 0 {
		qkey = l.ud.QKey
	}
	r := &p.work.Recv
	r.Lock()
	defer r.Unlock()
	// What was sent as packets before waits in front.
	if d := &p.local.door; r.OpenedLocked() != any(p) || p.in.Some() || d.qkey != qkey ||
		e.Total > min(d.mtu, l.ud.MTU) {
		return false
	}
	if size, ok := r.TryBeginLocked(); !ok {
		return false
	} else if size < roce.NetworkHeaderLen+e.Total || !l.place(r, e) {
		r.ReturnLocked()
		return false
	}
	wc := rdma.WC{Op: rdma.WCRecv, ByteLen: roce.NetworkHeaderLen + e.Total, SrcQP: l.work.Num(),
		Flags: rdma.WCGRH}
	if e.WR.Op == rdma.OpSendImm {
		wc.Flags |= rdma.WCWithImm
		wc.Imm = e.WR.Imm
	}
	l.setPSN(l.ud.PSN.Add(1))
	l.copied++
	l.sent(e)
	l.work.Retire() // before that of an answer
	r.DeliverLocked(wc, e.Total, e.WR.Flags&rdma.Solicited != 0)
	return true
}

// place fills the receive that was begun at r.
func (l *Link) place(r *wqe.Receives, e *wqe.Request) bool {
	n := &l.local
	if sink, fault := r.ListLocked(); fault != nil || sink.Blocking() {
		return false
	}
	octets := packet.BTHLen + packet.DETHLen + int(e.Total) + int(packet.PadOf(int(e.Total)))
	if e.WR.Op == rdma.OpSendImm {
		octets += packet.ImmDtLen
	}
	roce.NetworkHeader(&n.head, l.tmpl.IP(n.ip[:0], octets))
	if r.Place(&n.into, 0, n.head[:]) != nil {
		return false
	}
	if e.Total == 0 {
		return true
	}
	own, fault := r.CopyLocked(e, 0, e.Total, roce.NetworkHeaderLen, &n.from, &n.into)
	return own == nil && fault == nil
}

// drop lets go of the memory that was copied.
func (n *local) drop() {
	n.from.Drop()
	n.into.Drop()
}
