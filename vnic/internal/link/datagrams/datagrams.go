// Package datagrams is the link of an unreliable datagram queue pair: not to a peer, but to all.
// Each request names an address handle, which has the way; what comes is given to the link by who
// finds the queue pair.
package datagrams

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/roce"
	"github.com/vrnic/vrnic/roce/packet"
	"github.com/vrnic/vrnic/roce/udp"
	"github.com/vrnic/vrnic/vnic/internal/ah"
	"github.com/vrnic/vrnic/vnic/internal/datagram"
	"github.com/vrnic/vrnic/vnic/internal/link"
	"github.com/vrnic/vrnic/vnic/internal/link/inbox"
	"github.com/vrnic/vrnic/vnic/internal/mem"
	"github.com/vrnic/vrnic/vnic/internal/stats"
	"github.com/vrnic/vrnic/vnic/internal/wqe"
	"github.com/vrnic/vrnic/vnic/record"
)

// A QP is a queue pair as its Link sees it. Its methods are for the QP's owner.
type QP interface {
	Work() *wqe.Requests
	State() rdma.QPState
	// Refused says that a request could not be, and has completed with that: what is behind it
	// flushes, and receives go on.
	Refused(err error)
}

// A Config is what a Link is made of. The functions may be called at any time.
type Config struct {
	PKey uint16
	QKey uint32
	PSN  uint32 // of the first packet
	MTU  uint32 // octets that a datagram can have
	// Handle finds an address handle; nil: there is none.
	Handle func(handle uint32) *ah.AH
	// Find says how queue pairs at an address are found that are of this process; nil: none is there.
	// It is nil if all is to go as packets.
	Find  func(remote netip.Addr) func(qpn uint32) *Link
	Inbox *inbox.Inbox
	Stats *stats.Packets // the queue pair's
}

// pkeyMask has what two P_Keys of a partition have in common; the top bit is of full members.
const pkeyMask = 0x7fff

// A Link is a link.Link. It is the QP's owner's, but for Put.
type Link struct {
	link.Basic
	link.NoStream
	qp   QP
	work *wqe.Requests
	cfg  Config
	ud   roce.UD
	tape *record.Datagrams // of ud; nil: it is not recorded

	to   *ah.AH // of tmpl
	tmpl udp.Template

	// What is being sent: see NextPacket.
	src    wqe.Source
	moved  int
	count  int           // of datagrams
	copied int           // of them, those that needed no packet
	made   int           // packets, since Send was called
	dg     roce.Datagram // scratch: a local one would escape

	in     *inbox.Inbox
	taken  uint64        // packets that are not counted yet
	hold   mem.Hold      // of receives
	header packet.Header // scratch, as dg
	local  local         // for others in this process
}

// New makes the link of qp.
func New(qp QP, cfg Config) *Link {
	w := qp.Work()
	return &Link{qp: qp, work: w, cfg: cfg, in: cfg.Inbox, ud: roce.UD{
		Num: packet.QPN(w.Num()), PKey: cfg.PKey, MTU: cfg.MTU, QKey: cfg.QKey,
		PSN: packet.PSN(0).Add(cfg.PSN),
	}}
}

// Record has what makes and judges packets recorded by t from now on, if nobody does.
func (l *Link) Record(t *record.Tape) {
	if t != nil && l.recorder() == nil {
		l.tape = record.NewDatagrams(t, &l.ud)
	}
}

// recorder records what is done with ud; nil: nobody does.
func (l *Link) recorder() *record.Datagrams {
	if l.tape != nil && l.tape.Off() {
		l.tape = nil
	}
	return l.tape
}

// SetQKey has packets made and judged by another Q_Key from now on.
func (l *Link) SetQKey(k uint32) {
	l.shutDoor()
	if r := l.recorder(); r != nil {
		r.SetQKey(k)
		return
	}
	l.ud.QKey = k
}

// SetPSN sets the number of the next packet.
func (l *Link) SetPSN(n uint32) { l.setPSN(packet.PSN(0).Add(n)) }

func (l *Link) setPSN(n packet.PSN) {
	if r := l.recorder(); r != nil {
		r.SetPSN(n)
		return
	}
	l.ud.PSN = n
}

// Begin is called by who has got the QP's run token before the first TakePacket.
func (l *Link) Begin() {
	if !l.in.Some() {
		return
	}
	l.shutDoor() // before what waits is taken: who copies would be at the same receive
	came := l.in.Take()
	for i := range came {
		l.take(came[i].IP(), came[i].Octets)
		came[i].Free()
	}
}

// TakePacket takes a packet that is for the QP, and whose ICRC is right. It is good for the call
// only.
func (l *Link) TakePacket(p *datagram.Packet) {
	l.shutDoor()
	l.take(p.IP(), p.Datagram)
}

// Put has p wait for who runs the QP; false: there is no room.
func (l *Link) Put(p *datagram.Packet) bool { return l.in.Put(p) }

// take takes a packet of which ip is the IP header.
func (l *Link) take(ip, b []byte) {
	payload, err := l.header.Parse(b)
	switch {
	case err != nil:
		return
	case (l.header.PKey^l.cfg.PKey)&pkeyMask != 0: // ours is a full member's
		l.cfg.Stats.WrongPKey.Add(1)
		return
	}
	var came roce.Outcome
	if r := l.recorder(); r != nil {
		came = r.Receive((*receives)(l), &l.header, ip, payload)
	} else {
		came = l.ud.Receive((*receives)(l), &l.header, ip, payload)
	}
	if came == roce.WrongQKey {
		l.cfg.Stats.WrongQKey.Add(1)
	} else {
		l.taken++
	}
	l.hold.Drop()
}

// receives are those of a Link's QP.
type receives Link

func (i *receives) BeginReceive() (size uint32, ok bool) { return i.work.Recv.TryBegin() }
func (i *receives) KeepReceive()                         { i.work.Recv.Return() }

func (i *receives) PlaceReceive(off uint32, chunk []byte, _ bool) error {
	return i.work.Recv.Place(&i.hold, off, chunk)
}

func (i *receives) FailReceive(roce.Status) { i.work.Recv.EndFailed(rdma.WCLocProt) }

func (i *receives) EndReceive(r roce.Received) error {
	// Who is told looks at the memory: it is not held any more.
	i.hold.Drop()
	wc := rdma.WC{Op: rdma.WCRecv, ByteLen: r.Length, SrcQP: uint32(r.Source), Flags: rdma.WCGRH}
	if r.Immediate {
		wc.Flags |= rdma.WCWithImm
		wc.Imm = binary.BigEndian.Uint32(r.Imm[:])
	}
	i.work.Recv.Deliver(wc, r.Length-roce.NetworkHeaderLen, r.Solicited)
	return nil
}

// Open implements link.Link.
func (l *Link) Open() {}

var (
	errHandle = errors.New("there is no such address handle")
	errPD     = errors.New("the address handle is of another protection domain")
)

// Step takes what waits, and sends a turn of what is posted.
func (l *Link) Step() (moved int, more bool) {
	l.moved, l.count, l.copied = 0, 0, 0
	l.Begin()
	defer l.tell()
	for l.qp.State() == rdma.QPRTS {
		if l.moved >= link.TurnOctets || l.count >= wqe.StepMessages {
			return l.moved, true
		}
		e := l.next()
		if e == nil {
			break
		}
		if l.copy(e) {
			continue
		}
		l.local.drop() // Send may run others, who may deregister it
		l.made = 0
		// Packets that are lost are lost, whatever the reason: e, too, if the network is gone and has
		// not asked for it.
		switch err := l.to.Route().Send(l); {
		case errors.Is(err, net.ErrClosed):
			l.sent(e)
		case err != nil:
			l.cfg.Stats.SendErrors.Add(1)
		}
		l.work.Retire()
	}
	return l.moved, false
}

// tell has others see what was counted since the last step.
func (l *Link) tell() {
	l.openDoor()
	l.local.drop()
	if l.copied > 0 {
		l.cfg.Stats.Copied.Add(uint64(l.copied))
	}
	if n := l.count - l.copied; n > 0 {
		l.cfg.Stats.Sent.Add(uint64(n))
	}
	if l.taken > 0 {
		l.cfg.Stats.Received.Add(l.taken)
		l.taken = 0
	}
}

// next is the request whose turn it is, with l.to the way it goes; nil: there is none that can go.
// One that cannot be sent at all has failed then, when it is its turn.
func (l *Link) next() *wqe.Request {
	for {
		e := l.work.Next()
		if e == nil {
			return nil
		}
		if !e.Failed() {
			if st, err := l.prepare(e); err != nil {
				l.work.Refuse(e, st, err)
			}
		}
		ok, err := l.work.Ready(e)
		switch {
		case err != nil:
			l.qp.Refused(err)
			return nil
		case ok:
			return e
		case !e.Done():
			return nil
		}
	}
}

// prepare finds out where e goes to. On an error e fails with that status.
func (l *Link) prepare(e *wqe.Request) (rdma.WCStatus, error) {
	if l.to != nil && l.to.Handle() == e.WR.To.AH && l.cfg.Handle(e.WR.To.AH) == l.to {
		return rdma.WCSuccess, nil
	}
	to := l.cfg.Handle(e.WR.To.AH)
	switch {
	case to == nil:
		return rdma.WCLocQPOp, fmt.Errorf("%#x: %w", e.WR.To.AH, errHandle)
	case to.PD() != l.work.Memory.PD():
		return rdma.WCLocQPOp, fmt.Errorf("%#x: %w", e.WR.To.AH, errPD)
	}
	f := to.Flow(l.ud.Num)
	l.to, l.tmpl, l.local.find = to, udp.NewTemplate(f), nil
	if l.cfg.Find != nil {
		l.local.find = l.cfg.Find(f.Dst)
	}
	return rdma.WCSuccess, nil
}

// NextPacket implements datagram.Source: the next request that goes the same way as the one before.
func (l *Link) NextPacket(b []byte) ([]byte, bool) {
	to := l.to
	if l.moved >= link.TurnOctets || l.count >= wqe.StepMessages || l.qp.State() != rdma.QPRTS ||
		l.made > 0 && l.local.find != nil { // the next one may need no packet
		l.src.Hold.Drop()
		return b, false
	}
	e := l.next()
	if e == nil || l.to != to {
		l.src.Hold.Drop()
		return b, false
	}
	wr := &e.WR
	l.dg = roce.Datagram{
		Dest: packet.QPN(wr.To.QPN & 0xffffff), QKey: wr.To.QKey, Length: e.Total, Data: e,
		Solicited: wr.Flags&rdma.Solicited != 0, Immediate: wr.Op == rdma.OpSendImm,
	}
	if l.dg.Immediate {
		binary.BigEndian.PutUint32(l.dg.Imm[:], wr.Imm)
	}
	e.ReadBy(&l.src)
	out, st, err := l.append(l.tmpl.Append(b))
	l.dg.Data = nil
	if err != nil {
		l.src.Hold.Drop()
		l.work.Refuse(e, statuses[st], err)
		return b, false
	}
	out = l.tmpl.Finish(out)
	l.made++
	l.sent(e)
	return out, true
}

// append adds the packet of dg to b.
func (l *Link) append(b []byte) ([]byte, roce.Status, error) {
	if r := l.recorder(); r != nil {
		return r.Append(b, &l.dg)
	}
	return l.ud.Append(b, &l.dg)
}

// sent counts e, whose turn it was, as done: nobody answers a datagram.
func (l *Link) sent(e *wqe.Request) {
	l.moved += int(e.Total)
	l.count++
	l.work.Posted(e)
	l.work.Finish(e)
}

// statuses are how requests fail.
var statuses = [...]rdma.WCStatus{
	roce.LocalLength: rdma.WCLocLen, roce.LocalProtection: rdma.WCLocProt,
}

// Idle implements link.Link: nothing is ever under way.
func (l *Link) Idle() bool { return true }

// Expire implements link.Link: there is no deadline.
func (l *Link) Expire() {}

// Abort implements link.Link.
func (l *Link) Abort() {
	l.in.Close()
	l.cfg.Find = nil // nobody comes in any more
	l.local.drop()
	l.hold.Drop()
	l.hold.Release()
	l.src.Hold.Drop()
	l.src.Hold.Release()
}
