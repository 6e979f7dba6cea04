package load

import (
	"context"
	"errors"
	"fmt"

	"github.com/vrnic/vrnic/cmd/vrnic-bench/internal/hist"
	"github.com/vrnic/vrnic/rdma"
)

// A Local is an End on a device of this process.
type Local struct {
	spec   Spec
	role   Role
	dev    rdma.Device
	layout layout
	buf    rdma.Buffer
	pd     rdma.PD
	mr     rdma.MR
	sendCQ rdma.CQ
	recvCQ rdma.CQ
	lanes  []*lane
	byQPN  map[uint32]*lane
	listen rdma.Listener
	seed   uint64

	sendIdle, recvIdle idler
	drained            int // completions that drain has polled and nobody has asked for

	// Room that calls through interfaces would otherwise allocate. The goroutine that sends uses
	// the first, the one that receives the second.
	sendWC, recvWC [64]rdma.WC
	send           sendBatch
	recv           recvBatch
	notice         rdma.SendWR
}

// A lane is one QP of an end, and what is known of the peer's.
type lane struct {
	e     *Local
	n     int // its number, the same at both ends
	base  int // where its memory begins
	qp    rdma.QP
	conn  rdma.Conn
	there remote
	quiet int // requests posted by postQuiet since the lane last settled

	free    []int    // slots of a stream
	touched bool     // a slot came free since the last post
	values  []uint64 // of atomics: what the peer's targets hold
}

// IDs of work requests are lane and slot, but for the notice.
const (
	laneShift = 32
	slotMask  = 1<<31 - 1
	idNotice  = 1 << 31
)

func (l *lane) id(slot int) uint64 { return uint64(l.n)<<laneShift | uint64(slot) }

// unsignaled is how many requests of a ping-pong go without a completion before one with.
const unsignaled = 32

// NewLocal makes all that spec needs on dev.
func NewLocal(dev rdma.Device, spec Spec, role Role) (e *Local, err error) {
	if err := spec.Check(); err != nil {
		return nil, err
	}
	e = &Local{spec: spec, role: role, dev: dev, layout: layoutOf(spec), byQPN: make(map[uint32]*lane)}
	e.sendIdle, e.recvIdle = newIdler(spec), newIdler(spec)
	defer func() {
		if err != nil {
			e.Close()
			err = e.fail(err)
		}
	}()
	if e.buf, err = dev.AllocBuffer(spec.memory()); err != nil {
		return nil, err
	}
	if e.pd, err = dev.AllocPD(); err != nil {
		return nil, err
	}
	access := rdma.LocalWrite | rdma.RemoteWrite | rdma.RemoteRead
	if spec.Op.Atomic() {
		access |= rdma.RemoteAtomic
	}
	if e.mr, err = e.pd.RegisterMemory(e.buf.Bytes(), access); err != nil {
		return nil, err
	}
	// Each slot and a notice; of a ping-pong those without a completion keep their places until a
	// later one has been polled.
	sends := spec.Depth + 1
	if spec.Pattern == PingPong {
		sends = 2*unsignaled + 8
	}
	if e.sendCQ, err = dev.CreateCQ(spec.QPs*(spec.Depth+1) + sends); err != nil {
		return nil, err
	}
	if e.recvCQ, err = dev.CreateCQ(spec.QPs*e.layout.recvs + 8); err != nil {
		return nil, err
	}
	for n := range spec.QPs {
		l := &lane{e: e, n: n, base: n * e.layout.total()}
		if l.qp, err = e.pd.CreateQP(rdma.QPConfig{SendCQ: e.sendCQ, RecvCQ: e.recvCQ, MaxSendWR: sends,
			MaxRecvWR: e.layout.recvs}); err != nil {
			return nil, fmt.Errorf("QP %d of %d: %w", n+1, spec.QPs, err)
		}
		if spec.RoCE {
			if err := l.takeReceives(); err != nil {
				return nil, err
			}
		}
		e.lanes = append(e.lanes, l)
		e.byQPN[l.qp.Num()] = l
		for slot := range spec.Depth {
			l.free = append(l.free, slot)
		}
		if spec.Op.Atomic() {
			l.values = make([]uint64, spec.Depth)
		}
		for i := range e.layout.recvs {
			if err := e.postRecv(l, i); err != nil {
				return nil, err
			}
		}
	}
	return e, nil
}

// takeReceives has the QP, which is one of RoCE, take receives: it does not before INIT.
func (l *lane) takeReceives() error {
	err := l.qp.Modify(&rdma.QPAttr{State: rdma.QPInit, Port: 1, Access: rdma.RemoteWrite},
		rdma.AttrState|rdma.AttrPKeyIndex|rdma.AttrPort|rdma.AttrAccess)
	if err != nil {
		return fmt.Errorf("QP %d to INIT: %w", l.n+1, err)
	}
	return nil
}

// fail says at which end err happened.
func (e *Local) fail(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("end %s: %w", e.role, err)
}

// over ends e's connections if err is one, for the other end's sake.
func (e *Local) over(err error) error {
	if err != nil {
		e.Abort()
	}
	return e.fail(err)
}

// Abort ends all connections; another goroutine may call it.
func (e *Local) Abort() {
	for _, l := range e.lanes {
		_ = l.qp.Abort() // it is being given up
	}
}

// Close gives everything back.
func (e *Local) Close() {
	if e.listen != nil {
		e.listen.Close()
	}
	for _, l := range e.lanes {
		l.qp.Close()
	}
	if e.mr != nil {
		e.mr.Close()
	}
	for _, cq := range []rdma.CQ{e.sendCQ, e.recvCQ} {
		if cq != nil {
			cq.Close()
		}
	}
	if e.pd != nil {
		e.pd.Close()
	}
	if e.buf != nil {
		e.buf.Close()
	}
}

// sends says whether e's program sends, in a stream, and takes whether something comes for it.
func (e *Local) sends() bool { return e.role == A || e.spec.Bidir }
func (e *Local) takes() bool { return (e.role == B || e.spec.Bidir) && !e.spec.Op.twoWay() }

// Run implements End.
func (e *Local) Run(ctx context.Context, a Amount) (Result, error) {
	if err := a.Check(); err != nil {
		return Result{}, e.fail(err)
	}
	r := Result{Times: hist.New(), Start: clock()}
	var err error
	switch {
	case e.spec.Pattern == Stream:
		err = e.stream(ctx, a, &r)
	case e.role == A:
		err = e.ping(ctx, a, &r)
	default:
		err = e.pong(ctx)
	}
	r.End = clock()
	return r, e.over(err)
}

func (l *lane) bytes(off int) []byte {
	off += l.base
	return l.e.buf.Bytes()[off : off+l.e.layout.size]
}

// sge makes the one SGE of a request, in space that is there already.
func (l *lane) sge(s *[1]rdma.SGE, off int) []rdma.SGE {
	e := l.e
	s[0] = rdma.SGE{Addr: e.mr.Addr() + uint64(l.base+off), Length: uint32(e.layout.size),
		LKey: e.mr.LKey()}
	return s[:]
}

// peerAddr is the address of what is at off in the peer's lane.
func (l *lane) peerAddr(off int) uint64 { return l.there.addr + uint64(l.base+off) }

// slotWR makes wr the request for a slot.
func (l *lane) slotWR(wr *rdma.SendWR, s *[1]rdma.SGE, slot int) {
	*wr = rdma.SendWR{ID: l.id(slot), Flags: rdma.Signaled, RKey: l.there.rkey}
	at := l.e.layout
	switch l.e.spec.Op {
	case Write:
		wr.Op, wr.SGEs, wr.RemoteAddr = rdma.OpWrite, l.sge(s, at.source(slot)),
			l.peerAddr(at.target(slot))
	case WriteImm:
		wr.Op, wr.SGEs, wr.RemoteAddr = rdma.OpWriteImm, l.sge(s, at.source(slot)),
			l.peerAddr(at.target(slot))
		wr.Imm = uint32(slot)
	case Read:
		wr.Op, wr.SGEs, wr.RemoteAddr = rdma.OpRead, l.sge(s, at.target(slot)),
			l.peerAddr(at.source(slot))
	case Send:
		wr.Op, wr.SGEs, wr.RKey = rdma.OpSend, l.sge(s, at.source(slot)), 0
	case FetchAdd, CompareSwap:
		wr.Op, wr.Atomic = l.atomicArgs(slot)
		wr.SGEs, wr.RemoteAddr = l.sge(s, at.source(slot)), l.peerAddr(at.target(slot))
	}
}

// drain takes n completions of e's send queue, waiting for them.
func (e *Local) drain(ctx context.Context, n int) error {
	for e.drained < n {
		wcs, err := e.poll(ctx, e.sendCQ, &e.sendIdle, e.sendWC[:])
		if err != nil {
			return err
		}
		e.drained += len(wcs)
	}
	e.drained -= n
	return nil
}

// notify sends a notice on each lane: a Send of nothing, so that the other end knows that all
// before it has arrived.
func (e *Local) notify(ctx context.Context) error {
	for _, l := range e.lanes {
		if err := l.notify(); err != nil {
			return err
		}
	}
	return e.drain(ctx, len(e.lanes))
}

func (l *lane) notify() error {
	wr := &l.e.notice
	*wr = rdma.SendWR{ID: l.id(idNotice), Op: rdma.OpSend, Flags: rdma.Signaled}
	if err := l.qp.PostSend(wr); err != nil {
		return fmt.Errorf("post notice: %w", err)
	}
	return nil
}

// isNotice says whether a receive took a notice.
func isNotice(wc *rdma.WC) bool { return wc.Op == rdma.WCRecv && wc.ByteLen == 0 }

// both is the errors of both ends: the one's may only be a consequence of the other's.
func both(a, b error) error {
	if a != nil && b != nil {
		return fmt.Errorf("%w; %w", a, b)
	}
	return errors.Join(a, b)
}

var errData = errors.New("the data arrived changed")
