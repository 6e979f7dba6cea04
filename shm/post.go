package shm

import (
	"fmt"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/abi"
)

// Errors of the fast path, made once: posting and polling do not allocate.
var (
	errCQClosed  = errClosed("CQ")
	errQPClosed  = errClosed("QP")
	errSRQClosed = errClosed("SRQ")
	errHasSRQ    = fmt.Errorf("shm: the QP takes its receives from an SRQ, post there: %w",
		rdma.ErrInvalid)
	errCQBusy = fmt.Errorf("shm: CQ has QPs: %w", rdma.ErrBusy)
	errQPIdle = fmt.Errorf("shm: QP is not connected: %w", rdma.ErrNotConnected)
	errOpcode = fmt.Errorf("shm: opcode that the device does not have: %w", rdma.ErrInvalid)
	errFlags  = fmt.Errorf("shm: unknown flag: %w", rdma.ErrInvalid)
	errSGEs   = fmt.Errorf("shm: more SGEs than QPConfig allows: %w", rdma.ErrInvalid)
	errInline = fmt.Errorf("shm: more inline octets than QPConfig allows, or inline where "+
		"nothing is sent: %w", rdma.ErrInvalid)
	errSendFull = fmt.Errorf("shm: send queue is full: %w", rdma.ErrQueueFull)
	errRecvFull = fmt.Errorf("shm: receive queue is full: %w", rdma.ErrQueueFull)
	errSendImm  = fmt.Errorf("shm: SEND_WITH_IMM with octets, iWARP has none with any: use "+
		"WRITE_WITH_IMM, or a Send: %w", rdma.ErrInvalid)
	errAtomicLen  = fmt.Errorf("shm: an atomic's old value has 8 octets: %w", rdma.ErrInvalid)
	errAtomicAddr = fmt.Errorf("shm: an atomic's address is no multiple of 8: %w", rdma.ErrInvalid)
	errQPNotRTS   = fmt.Errorf("shm: QP has not been moved to RTS: %w", rdma.ErrInvalid)
	errQPReset    = fmt.Errorf("shm: QP is in state RESET: %w", rdma.ErrInvalid)
	errNoRequest  = fmt.Errorf("shm: no work request: %w", rdma.ErrInvalid)
)

// A sendOp says what is to be known of an opcode.
type sendOp struct {
	ok     bool // the send queue takes it
	inline bool // its octets may be in the request
	sges   int  // at most, beside QPConfig's bound; -1: that alone
	wc     rdma.WCOpcode
}

// numOps is how many opcodes there are, holes included.
const numOps = rdma.OpRegMR + 1

// sendOps are all opcodes.
var sendOps = [numOps]sendOp{
	rdma.OpWrite:       {ok: true, inline: true, sges: -1, wc: rdma.WCWrite},
	rdma.OpWriteImm:    {ok: true, inline: true, sges: -1, wc: rdma.WCWrite},
	rdma.OpSend:        {ok: true, inline: true, sges: -1, wc: rdma.WCSend},
	rdma.OpSendImm:     {ok: true, inline: true, sges: -1, wc: rdma.WCSend},
	rdma.OpRead:        {ok: true, sges: -1, wc: rdma.WCRead},
	rdma.OpCompareSwap: {ok: true, sges: -1, wc: rdma.WCCompareSwap},
	rdma.OpFetchAdd:    {ok: true, sges: -1, wc: rdma.WCFetchAdd},
	rdma.OpLocalInv:    {ok: true, wc: rdma.WCLocalInv},
	rdma.OpBindMW:      {ok: true, wc: rdma.WCBindMW},
	rdma.OpSendInv:     {ok: true, inline: true, sges: -1, wc: rdma.WCSend},
	rdma.OpRegMR:       {ok: true, wc: rdma.WCRegMR},
	// Their masks are behind the one SGE.
	rdma.OpMaskedCompareSwap: {ok: true, sges: 1, wc: rdma.WCCompareSwap},
	rdma.OpMaskedFetchAdd:    {ok: true, sges: 1, wc: rdma.WCFetchAdd},
}

// iwarpOps is what a send queue of iWARP takes, roceOps, by type from RC on, one of RoCE.
var (
	iwarpOps = sendOps
	roceOps  = [...][numOps]sendOp{
		only(rdma.OpWrite, rdma.OpWriteImm, rdma.OpSend, rdma.OpSendImm, rdma.OpRead,
			rdma.OpCompareSwap, rdma.OpFetchAdd, rdma.OpLocalInv, rdma.OpBindMW, rdma.OpSendInv,
			rdma.OpRegMR),
		only(rdma.OpWrite, rdma.OpWriteImm, rdma.OpSend, rdma.OpSendImm,
			rdma.OpLocalInv, rdma.OpBindMW, rdma.OpRegMR),
		only(rdma.OpSend, rdma.OpSendImm),
	}
)

// only is sendOps, of which the send queue takes these.
func only(ops ...rdma.Opcode) (t [numOps]sendOp) {
	for _, op := range ops {
		t[op] = sendOps[op]
	}
	return t
}

// without is t, of which the opcodes of a mask are not taken.
func without(t *[numOps]sendOp, mask uint32) *[numOps]sendOp {
	left := *t
	for op := range left {
		if mask>>op&1 != 0 {
			left[op] = sendOp{}
		}
	}
	return &left
}

// sendState is the client's account of a send queue: sqMu guards it.
type sendState struct {
	wqe  abi.SendWQE
	wrs  []sentWR // those between retired and posted, by slot
	done uint32   // requests that are over as far as the program knows: free running
}

type sentWR struct {
	id       uint64
	op       rdma.Opcode
	signaled bool
}

func (s *sendState) init(size int) { s.wrs = make([]sentWR, size) }

func (s *sendState) at(i uint32) *sentWR { return &s.wrs[i&uint32(len(s.wrs)-1)] }

// PostSend implements rdma.QP.
func (q *queuePair) PostSend(wr *rdma.SendWR) error {
	if wr == nil {
		return errNoRequest
	}
	if q.directIn.Load() != 0 {
		q.tryDirectLater()
	}
	q.sqMu.Lock()
	defer q.sqMu.Unlock()
	if err := q.mayPost(); err != nil {
		return err
	}
	if err := q.putSend(wr); err != nil {
		return err
	}
	return q.commitSends()
}

// PostSends implements rdma.QP.
func (q *queuePair) PostSends(wrs []rdma.SendWR) (n int, err error) {
	if q.directIn.Load() != 0 {
		q.tryDirectLater()
	}
	q.sqMu.Lock()
	defer q.sqMu.Unlock()
	if err := q.mayPost(); err != nil {
		return 0, err
	}
	for n < len(wrs) {
		if err = q.putSend(&wrs[n]); err != nil {
			break
		}
		n++
	}
	if n != 0 {
		if e := q.commitSends(); e != nil {
			return n, e
		}
	}
	return n, err
}

// mayPost says whether the send queue takes requests at all.
func (q *queuePair) mayPost() error {
	if q.mem == nil {
		return errQPClosed
	}
	if err := q.d.c.gone(); err != nil {
		return err
	}
	if st := q.m.State(); st <= abi.StateRTR {
		if st == abi.StateReset {
			q.d.c.checkPeer() // as in State
		}
		if err := q.d.c.gone(); err != nil {
			return err
		}
		if q.d.attr.RoCE {
			return errQPNotRTS
		}
		return errQPIdle
	}
	return nil
}

// putSend checks wr and writes it into the next slot, or sends it without the daemon: sqMu is held.
// The daemon would take a request that breaks the QP's limits for an attack.
func (q *queuePair) putSend(wr *rdma.SendWR) error {
	if wr.Op >= numOps || !q.ops[wr.Op].ok {
		return errOpcode
	}
	if wr.Flags&^(rdma.Fence|rdma.Signaled|rdma.Solicited|rdma.Inline) != 0 {
		return errFlags
	}
	s := &q.sq
	w := &s.wqe
	w.WRID, w.Op, w.Flags, w.NumSGE, w.Length = wr.ID, uint8(wr.Op), 0, 0, 0
	w.RemoteAddr, w.RKey = wr.RemoteAddr, wr.RKey
	w.Imm, w.CmpAdd, w.Swap, w.CmpMask, w.SwapMask = 0, 0, 0, 0, 0
	most := q.cfg.MaxSendSGE
	if n := sendOps[wr.Op].sges; n >= 0 {
		most = n
	}
	switch {
	case wr.Flags&rdma.Inline != 0:
		if !sendOps[wr.Op].inline || len(wr.Inline) > q.cfg.MaxInline {
			return errInline
		}
		w.SetInline(wr.Inline)
	case len(wr.SGEs) > most:
		return errSGEs
	default:
		w.NumSGE = uint16(copySGEs(&w.SGE, wr.SGEs))
	}
	octets, err := q.checkLength(w)
	if err != nil {
		return err
	}
	setOperands(w, wr)
	if q.cfg.Type == rdma.UD {
		w.RemoteAddr, w.RKey, w.Swap = uint64(wr.To.AH), wr.To.QPN, uint64(wr.To.QKey)
	}
	w.Flags |= ringFlags(wr.Flags)
	if q.sendsOut() >= uint32(len(s.wrs)) {
		return errSendFull
	}
	signaled := q.cfg.SignalAll || wr.Flags&rdma.Signaled != 0
	d := q.direct
	if d != nil && d.post(w, octets, signaled) {
		return nil
	}
	i := q.m.SQ.Posted()
	if err := q.m.SQ.Put(w); err != nil {
		return q.d.putFailed(err)
	}
	*s.at(i) = sentWR{id: wr.ID, op: wr.Op, signaled: signaled}
	if d != nil && signaled {
		d.ringed = i + 1
	}
	if wr.Op == rdma.OpLocalInv {
		q.pd.regions.remove(wr.InvKey)
	}
	return nil
}

// checkLength says how many octets a message has, and checks what some operations say of it.
func (q *queuePair) checkLength(w *abi.SendWQE) (n uint64, err error) {
	n = uint64(w.Length) // of inline octets, else 0
	for i := range w.SGEs() {
		n += uint64(w.SGE[i].Length)
	}
	switch rdma.Opcode(w.Op) {
	case rdma.OpSendImm:
		if n != 0 && !q.d.attr.RoCE {
			return n, errSendImm
		}
	case rdma.OpCompareSwap, rdma.OpFetchAdd, rdma.OpMaskedCompareSwap, rdma.OpMaskedFetchAdd:
		if n != 8 {
			return n, errAtomicLen
		}
		if q.d.attr.RoCE && w.RemoteAddr%8 != 0 {
			return n, errAtomicAddr
		}
	default: // any
	}
	return n, nil
}

// setOperands fills what only some operations have: see the send WQE in shm/abi/layout.go.
func setOperands(w *abi.SendWQE, wr *rdma.SendWR) {
	switch wr.Op {
	case rdma.OpWriteImm, rdma.OpSendImm:
		w.Imm = abi.ImmWord(wr.Imm)
		w.SetImmLow(abi.ImmWord(wr.ImmLow))
	case rdma.OpSendInv, rdma.OpLocalInv:
		w.Imm = wr.InvKey
	case rdma.OpCompareSwap, rdma.OpFetchAdd, rdma.OpMaskedCompareSwap, rdma.OpMaskedFetchAdd:
		w.CmpAdd, w.Swap = wr.Atomic.CompareAdd, wr.Atomic.Swap
		w.CmpMask, w.SwapMask = wr.Atomic.CompareMask, wr.Atomic.SwapMask
	case rdma.OpBindMW, rdma.OpRegMR:
		w.NumSGE = 1
		w.SGE[0] = abi.SGE{Addr: wr.RemoteAddr, LKey: wr.Range.LKey}
		w.RemoteAddr, w.CmpAdd, w.Swap = wr.Range.Addr, wr.Range.Length, uint64(wr.Range.Access)
	default: // none
	}
}

// sendsOut is how many requests are outstanding. A request is so until its completion, or a later
// one, has been polled, so that a program that posts whenever there is room cannot overrun a CQ as
// deep as its queue. One that will not complete visibly is over when the daemon has retired it.
func (q *queuePair) sendsOut() uint32 {
	s := &q.sq
	posted := q.m.SQ.Posted()
	direct := uint32(0)
	if q.direct != nil {
		direct = q.direct.outstanding()
	}
	if n := posted - s.done + direct; n < uint32(len(s.wrs)) {
		return n
	}
	retired := q.m.SQ.Done()
	for s.done != posted && !s.at(s.done).signaled && int32(retired-s.done) > 0 {
		s.done++
	}
	return posted - s.done + direct
}

func (q *queuePair) commitSends() error {
	if d := q.direct; d != nil {
		rings := d.rings
		d.rings = false
		if !rings && q.m.SQ.Committed() {
			return nil
		}
	}
	q.m.SQ.Commit()
	return q.d.ring(q.bell)
}

// ring rings the bell of a QP or an SRQ.
func (d *Device) ring(bell uint32) error {
	if err := d.c.bell.Ring(bell); err != nil {
		return d.c.die(goneBecause(err))
	}
	return nil
}

// putFailed ends the session if a ring makes no sense.
func (d *Device) putFailed(err error) error {
	if abi.IsViolation(err) {
		return d.c.corrupt(err)
	}
	return err
}

func ringFlags(f rdma.SendFlags) (r uint8) {
	if f&rdma.Signaled != 0 {
		r |= abi.SQSignaled
	}
	if f&rdma.Solicited != 0 {
		r |= abi.SQSolicited
	}
	if f&rdma.Fence != 0 {
		r |= abi.SQFence
	}
	return r
}

func copySGEs(to *[abi.MaxSGE]abi.SGE, from []rdma.SGE) int {
	for i := range from {
		to[i] = abi.SGE{Addr: from[i].Addr, Length: from[i].Length, LKey: from[i].LKey}
	}
	return len(from)
}

// sent takes note of a completion that says that all requests before done are over; false if it
// cannot be so.
func (q *queuePair) sent(done uint32) bool {
	q.sqMu.Lock()
	defer q.sqMu.Unlock()
	if q.mem == nil {
		return true
	}
	s := &q.sq
	posted := q.m.SQ.Posted()
	if posted-done > uint32(len(s.wrs)) {
		return false
	}
	if int32(done-s.done) > 0 {
		s.done = done
	}
	return true
}

// flushSends completes what is outstanding, in order, when the session is dead: what was done
// directly behind a request that is flushed is flushed, too.
func (q *queuePair) flushSends(wc []rdma.WC) (n int) {
	q.sqMu.Lock()
	defer q.sqMu.Unlock()
	if q.mem == nil {
		return 0
	}
	s := &q.sq
	d := q.direct
	posted := q.m.SQ.Posted()
	for {
		if d != nil {
			n += d.sends(wc[n:])
		}
		if n == len(wc) || s.done == posted {
			return n
		}
		wr := s.at(s.done)
		wc[n] = rdma.WC{ID: wr.id, Status: rdma.WCFlush, Op: sendOps[wr.op].wc, QPN: q.num}
		n++
		s.done++
		if d != nil {
			d.polled, d.flushed = s.done, true
		}
	}
}
