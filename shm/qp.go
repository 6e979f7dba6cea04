package shm

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/abi"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/ring"
	"github.com/vrnic/vrnic/shm/rpc"
)

// A queuePair implements rdma.QP. Lock order: compQueue.mu, then sqMu or that of a receiver; sqMu
// before rq.mu.
type queuePair struct {
	d              *Device
	pd             *protDomain
	sendCQ, recvCQ *compQueue
	srq            *sharedQueue // or nil
	handle         uint32
	num            uint32
	bell           uint32
	cfg            rdma.QPConfig
	ops            *[numOps]sendOp // what a send queue of this kind takes

	closeMu sync.Mutex // serialises Close
	done    bool

	// mem is set to nil with both locks held, and used with either.
	mem  *osmem.Region
	m    *ring.ClientQP
	sqMu sync.Mutex
	sq   sendState
	rq   receiver // of no use with an SRQ

	direct *directPath // or nil
	// directIn is after how many posts one asks for a direct path, 0: none, and directEvery from that
	// to the next. Who asks has directMu.
	directIn, directEvery atomic.Uint32
	directMu              sync.Mutex

	connMu sync.Mutex
	conn   *conn // the connection it has or had
}

// CreateQP implements rdma.PD.
func (pd *protDomain) CreateQP(cfg rdma.QPConfig) (rdma.QP, error) {
	d := pd.d
	if err := d.usable(); err != nil {
		return nil, err
	}
	scq, ok1 := cfg.SendCQ.(*compQueue)
	rcq, ok2 := cfg.RecvCQ.(*compQueue)
	if !ok1 || !ok2 || scq == nil || rcq == nil || scq.d != d || rcq.d != d {
		return nil, errInvalid("QP whose CQs are not of this device")
	}
	switch cfg.Type {
	case 0, rdma.RC:
		cfg.Type = rdma.RC
	case rdma.UC, rdma.UD:
		if err := d.roceOnly(fmt.Sprintf("create a QP of type %v", cfg.Type)); err != nil {
			return nil, err
		}
	default:
		return nil, errInvalid("create a QP of type %d", uint32(cfg.Type))
	}
	var srq *sharedQueue
	if cfg.SRQ != nil {
		var ok bool
		if srq, ok = cfg.SRQ.(*sharedQueue); !ok || srq == nil || srq.pd != pd {
			return nil, errInvalid("QP whose SRQ is not of its PD")
		}
		cfg.MaxRecvWR, cfg.MaxRecvSGE = 0, 0
	}
	for _, n := range []int{cfg.MaxSendWR, cfg.MaxRecvWR, cfg.MaxSendSGE, cfg.MaxRecvSGE,
		cfg.MaxInline} {
		if n < 0 || n > abi.MaxDepth {
			return nil, errInvalid("QP with a count of %d", n)
		}
	}
	req := &rpc.CreateQPRequest{PD: pd.handle, SendCQ: scq.handle, RecvCQ: rcq.handle,
		Caps: rpc.QPCaps{
			MaxSendWR: uint32(max(cfg.MaxSendWR, 1)), MaxRecvWR: uint32(max(cfg.MaxRecvWR, 1)),
			MaxSendSGE: uint32(max(cfg.MaxSendSGE, 1)), MaxRecvSGE: uint32(max(cfg.MaxRecvSGE, 1)),
			MaxInline: uint32(cfg.MaxInline),
		}}
	if srq != nil {
		req.SRQ, req.Caps.MaxRecvWR, req.Caps.MaxRecvSGE = srq.handle, 0, 0
	}
	if cfg.SignalAll {
		req.Flags |= rpc.CreateQPSigAll
	}
	if cfg.Type != rdma.RC { // 0 is RC to daemons of any version
		req.Type = uint32(cfg.Type)
	}
	pd.mu.Lock() // so that the PD cannot go meanwhile
	defer pd.mu.Unlock()
	if pd.closed || pd.ending {
		return nil, errClosed("PD")
	}
	var rep rpc.CreateQPReply
	fds, err := d.c.rpc(rpc.OpCreateQP, "create QP", req, &rep, -1)
	if err != nil {
		return nil, err
	}
	mem, err := osmem.MapSealed(fds[0], abi.QPHeaderLen)
	if err != nil {
		return nil, d.c.die(goneBecause(err))
	}
	q, err := newQueuePair(pd, scq, rcq, srq, cfg, req, &rep, mem)
	if err != nil {
		mem.Release()
		return nil, d.c.die(goneBecause(err))
	}
	if err := q.publish(); err != nil {
		q.Close() // err says more
		return nil, err
	}
	return q, nil
}

// newQueuePair checks what the daemon has made against what was asked for.
func newQueuePair(pd *protDomain, scq, rcq *compQueue, srq *sharedQueue, cfg rdma.QPConfig,
	req *rpc.CreateQPRequest, rep *rpc.CreateQPReply, mem *osmem.Region) (*queuePair, error) {
	m, err := ring.OpenClientQP(mem.Mem)
	if err != nil {
		return nil, err
	}
	l := &m.Layout
	if m.QPN != rep.QPN || rep.Bell >= pd.d.c.bell.Bells() ||
		l.SQSize < req.Caps.MaxSendWR || l.RQSize < req.Caps.MaxRecvWR ||
		l.MaxInline < req.Caps.MaxInline ||
		l.SQMaxSGE() < req.Caps.MaxSendSGE || l.RQMaxSGE() < req.Caps.MaxRecvSGE ||
		(l.RQSize == 0) != (srq != nil) {
		return nil, errCorrupt("QP %d with bell %d and %+v, asked for %+v", rep.QPN, rep.Bell, *l,
			req.Caps)
	}
	pd.d.mu.Lock()
	_, again := pd.d.qps[rep.QP]
	pd.d.mu.Unlock()
	if again {
		return nil, errCorrupt("QP handle %d a second time", rep.QP)
	}
	cfg.MaxSendWR, cfg.MaxRecvWR, cfg.MaxInline = int(l.SQSize), int(l.RQSize), int(l.MaxInline)
	cfg.MaxSendSGE, cfg.MaxRecvSGE = int(l.SQMaxSGE()), int(l.RQMaxSGE())
	if pd.d.card { // memory is had in steps, and a card of others has no more than it says
		a := &pd.d.attr
		cfg.MaxInline = min(cfg.MaxInline, a.MaxInline)
		cfg.MaxSendSGE, cfg.MaxRecvSGE = min(cfg.MaxSendSGE, a.MaxSGE), min(cfg.MaxRecvSGE, a.MaxSGE)
	}
	q := &queuePair{
		d: pd.d, pd: pd, sendCQ: scq, recvCQ: rcq, srq: srq, handle: rep.QP, num: rep.QPN, bell: rep.Bell,
		cfg: cfg, mem: mem, m: m,
	}
	q.sq.init(int(l.SQSize))
	q.rq.init(pd.d, rep.Bell, &m.RQ, errQPClosed)
	q.rq.maxSGE = cfg.MaxRecvSGE
	if pd.d.attr.RoCE {
		q.rq.of, q.ops = m, &roceOps[cfg.Type-rdma.RC]
	} else {
		q.ops = &iwarpOps
	}
	if refused := pd.d.refusedOps; refused != 0 {
		q.ops = without(q.ops, refused)
	}
	return q, nil
}

// publish lets completions and events find q.
func (q *queuePair) publish() error {
	if err := add(q.d, q.d.qps, q.handle, q); err != nil {
		return err
	}
	if err := q.sendCQ.attach(q); err != nil {
		return err
	}
	return q.recvCQ.attach(q)
}

// Num implements rdma.QP.
func (q *queuePair) Num() uint32 { return q.num }

// Config implements rdma.QP.
func (q *queuePair) Config() rdma.QPConfig { return q.cfg }

// State implements rdma.QP. The QPs of a dead session are in Error, and so are closed ones.
func (q *queuePair) State() rdma.QPState {
	q.sqMu.Lock()
	defer q.sqMu.Unlock()
	if q.mem == nil || q.d.c.gone() != nil {
		return rdma.QPError
	}
	st := q.m.State()
	if st == abi.StateReset {
		// So it is, too, when the session has ended and the daemon has emptied the memory.
		if q.d.c.checkPeer(); q.d.c.gone() != nil {
			return rdma.QPError
		}
	}
	return q.stateOf(st)
}

// stateOf is a state of q's by the number that the ring has for it.
func (q *queuePair) stateOf(s uint32) rdma.QPState {
	if !q.d.attr.RoCE && s < uint32(len(iwarpStates)) {
		return iwarpStates[s]
	}
	if st, ok := abi.RoCEState(s); ok {
		return st
	}
	return rdma.QPError
}

// iwarpStates are the states by their numbers. The first three are one on iWARP, whose number for
// MODIFY_QP is that of the first.
var iwarpStates = [...]rdma.QPState{
	abi.StateReset: rdma.QPIdle,
	abi.StateInit:  rdma.QPIdle,
	abi.StateRTR:   rdma.QPIdle,
	abi.StateRTS:   rdma.QPRTS,
	abi.StateSQD:   rdma.QPClosing,
	abi.StateSQE:   rdma.QPTerminate,
	abi.StateErr:   rdma.QPError,
}

// Abort implements rdma.QP.
func (q *queuePair) Abort() error {
	req := &rpc.ModifyQPRequest{QP: q.handle, Mask: rpc.ModifyQPState, State: abi.StateErr}
	return q.d.c.call(rpc.OpModifyQP, "abort QP", req, &rpc.Empty{})
}

// Close implements rdma.QP. Completions that have not been polled are lost; a connection ends.
func (q *queuePair) Close() error {
	q.closeMu.Lock()
	defer q.closeMu.Unlock()
	if q.done {
		return nil
	}
	q.connMu.Lock()
	cn := q.conn
	q.connMu.Unlock()
	if cn != nil {
		cn.closing.Store(true)
	}
	if err := q.d.c.destroy(rpc.OpDestroyQP, "destroy QP", q.handle); err != nil {
		return err
	}
	q.done = true
	q.sendCQ.detach(q)
	q.recvCQ.detach(q)
	remove(q.d, q.d.qps, q.handle)
	q.leaveDirect()
	q.sqMu.Lock()
	q.rq.mu.Lock()
	q.mem.Release()
	q.mem, q.rq.ring = nil, nil
	q.rq.mu.Unlock()
	q.sqMu.Unlock()
	if cn != nil {
		cn.finish(errClosed("QP"))
	}
	return nil
}
