package packets

import (
	"encoding/binary"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/roce"
	"github.com/vrnic/vrnic/vnic/internal/mem"
	"github.com/vrnic/vrnic/vnic/internal/wqe"
)

// The roce.Host of a connection: what the engine asks for while it receives and sends.

// ops are the requests of verbs in the words of the engine.
var ops = map[rdma.Opcode]roce.Op{
	rdma.OpSend: roce.Send, rdma.OpSendImm: roce.SendImm, rdma.OpSendInv: roce.SendInv,
	rdma.OpWrite: roce.Write, rdma.OpWriteImm: roce.WriteImm, rdma.OpRead: roce.Read,
	rdma.OpCompareSwap: roce.CompareSwap, rdma.OpFetchAdd: roce.FetchAdd,
}

// opOf is ops as an array.
var opOf = func() (a [rdma.OpSendInv + 1]roce.Op) {
	for from, to := range ops {
		a[from] = to
	}
	return a
}()

// make makes l.request of e, whose turn it is.
func (l *Link) make(e *wqe.Request) {
	wr := &e.WR
	r := &l.request
	*r = roce.Request{
		Token: uint64(l.work.NextToken()), Op: opOf[wr.Op], Solicited: wr.Flags&rdma.Solicited != 0,
		Length: e.Total, Addr: wr.RemoteAddr, RKey: wr.RKey,
	}
	binary.BigEndian.PutUint32(r.Imm[:], wr.Imm)
	switch wr.Op {
	case rdma.OpSendInv:
		r.RKey = wr.InvKey
	case rdma.OpCompareSwap:
		r.Length, r.Swap, r.Compare = 0, wr.Atomic.Swap, wr.Atomic.CompareAdd
	case rdma.OpFetchAdd:
		r.Length, r.Swap = 0, wr.Atomic.CompareAdd
	default:
	}
	if e.Total > 0 && !wqe.IsAnswered(wr.Op) {
		e.ReadBy(&l.out)
		r.Data = e
	}
}

// Done implements roce.Host.
func (l *Link) Done(token uint64) { l.work.Finish(l.work.ByToken(uint32(token))) }

// PlaceRead implements roce.Host.
func (l *Link) PlaceRead(token uint64, off uint32, chunk []byte) error {
	e := l.work.ByToken(uint32(token))
	return l.in.answer(e, off, chunk)
}

// PlaceOriginal implements roce.Host.
func (l *Link) PlaceOriginal(token, original uint64) error {
	return l.in.original(l.work.ByToken(uint32(token)), original)
}

// BeginReceive implements roce.Host.
func (l *Link) BeginReceive() (size uint32, ok bool) {
	l.in.begin(forReceive)
	return l.work.Recv.TryBegin()
}

// PlaceReceive implements roce.Host.
func (l *Link) PlaceReceive(off uint32, chunk []byte, last bool) error {
	return l.in.receive(&l.work.Recv, off, chunk, last)
}

// EndReceive implements roce.Host.
func (l *Link) EndReceive(r roce.Received) error {
	if r.Invalidate {
		l.in.drop() // it may be of what is invalidated
	}
	if r.Write && r.Length == 0 { // no octet of it has come
		l.work.Stats.Inbound(rdma.OpWriteImm, 0)
	}
	// What the peer acknowledged before completes before: who waits for one completion at a time has
	// its own message done when the answer to that is there.
	l.work.Retire()
	l.arrival = wqe.Arrival{
		Length: r.Length, Write: r.Write, Solicited: r.Solicited, Immediate: r.Immediate,
		Imm: binary.BigEndian.Uint32(r.Imm[:]), Invalidate: r.Invalidate, Key: r.RKey,
	}
	return l.work.Recv.EndMessage(&l.arrival)
}

// FailReceive implements roce.Host.
func (l *Link) FailReceive(s roce.Status) {
	l.in.settle()
	l.work.Recv.Fail(Status(s))
}

// KeepReceive implements roce.Host.
func (l *Link) KeepReceive() {
	l.in.settle() // others may fill it next
	l.work.Recv.Return()
}

// Receives implements roce.Host. A peer that is told no number is told by RNR NAKs.
func (l *Link) Receives() (n uint32, ok bool) { return 0, false }

// BeginWrite implements roce.Host.
func (l *Link) BeginWrite(rkey uint32, addr uint64, n uint32) error {
	m, err := l.work.Memory.Find(mem.PeerWrite, rkey, addr, n)
	if err != nil {
		return err
	}
	l.in.begin(forWrite)
	l.write.m, l.write.addr = m, addr
	return nil
}

// PlaceWrite implements roce.Host.
func (l *Link) PlaceWrite(off uint32, chunk []byte, last bool) error {
	w := &l.write
	err := l.in.write(w.m, chunk, w.addr+uint64(off), last)
	w.octets += uint64(len(chunk))
	if last {
		l.work.Stats.Inbound(rdma.OpWrite, 0)
		w.m = nil
	}
	return err
}

// ReadSource implements roce.Host.
func (l *Link) ReadSource(rkey uint32, addr uint64, n uint32) (roce.Payload, error) {
	m, err := l.work.Memory.Find(mem.PeerRead, rkey, addr, n)
	if err != nil {
		return nil, err
	}
	l.work.Stats.Inbound(rdma.OpRead, n)
	return l.answers.Make(m, addr, n), nil
}

// EndReadSource implements roce.Host.
func (l *Link) EndReadSource(p roce.Payload) { l.answers.End(p) }

// atomicArgs is what memory is asked for.
type atomicArgs = iwarp.Atomic

// Atomic implements roce.Host.
func (l *Link) Atomic(a roce.Atomic) (original uint64, err error) {
	const all = ^uint64(0)
	l.atomic = atomicArgs{Op: iwarp.AtomicFetchAdd, STag: iwarp.STag(a.RKey), TO: a.Addr, Data: a.Swap}
	if a.Op == roce.CompareSwap {
		l.atomic.Op, l.atomic.Mask = iwarp.AtomicCompareSwap, all
		l.atomic.Compare, l.atomic.CompareMask = a.Compare, all
	}
	l.in.drop() // it may be this region's
	original, err = l.work.Memory.Atomic(&l.atomic)
	if err == nil {
		l.work.Stats.Inbound(rdma.OpFetchAdd, 0)
	}
	return original, err
}

// statuses are those of the engine in the words of verbs.
var statuses = [...]rdma.WCStatus{
	roce.Success: rdma.WCSuccess, roce.LocalLength: rdma.WCLocLen, roce.LocalOperation: rdma.WCLocQPOp,
	roce.LocalProtection: rdma.WCLocProt, roce.BadResponse: rdma.WCBadResp,
	roce.RemoteInvalid: rdma.WCRemInvReq, roce.RemoteAccess: rdma.WCRemAccess,
	roce.RemoteOperation: rdma.WCRemOp, roce.RetryExceeded: rdma.WCRetryExc,
	roce.RNRRetryExceeded: rdma.WCRNRRetry,
}

// Status is s in the words of verbs.
func Status(s roce.Status) rdma.WCStatus { return statuses[s] }
