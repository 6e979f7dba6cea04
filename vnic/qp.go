package vnic

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/internal/cm"
	"github.com/vrnic/vrnic/vnic/internal/handle"
	"github.com/vrnic/vrnic/vnic/internal/link"
	"github.com/vrnic/vrnic/vnic/internal/llp"
	"github.com/vrnic/vrnic/vnic/internal/queue"
	"github.com/vrnic/vrnic/vnic/internal/wqe"
	"github.com/vrnic/vrnic/vnic/record"
)

// A Lingerer is told by who brings octets of the peer.
type Lingerer interface {
	// Expect is called before the QP deals with them. If it returns true, Linger is called afterwards.
	Expect() bool
	// Linger may call Ring. It returns after some microseconds, and when more, if not nil, reports
	// that the caller has more to bring.
	Linger(more func() bool)
}

// QPOptions say what a QP is made of.
type QPOptions struct {
	rdma.QPConfig // SendCQ and RecvCQ are CQs of the same context
	// SendQueue and RecvQueue are queues that somebody else fills, who calls Ring; both nil:
	// queues in this process, filled by PostSend and PostRecv. With an SRQ, which is one of the same
	// PD, RecvQueue is nil.
	SendQueue SendQueue
	RecvQueue RecvQueue
	// OnState, if set, is called on each change of state, by who runs the QP: it must not
	// block nor call this package.
	OnState func(rdma.QPState)
	// OnParted, if set, is called when Near has come to be nil although the QP is RTS, as OnState is
	// and with locks held.
	OnParted func()
	// OnCount, if set, is called before counters are read, with locks held: it tells by SentDirectly
	// and ReceivedDirectly what was done without the QP.
	OnCount func()
	// Linger, if set, is told of octets that the peer has sent: they may have an answer soon.
	Linger Lingerer
	// EndInError has a connection that ends gracefully leave the QP in Error, where what is posted
	// flushes, and not in Idle, where it could connect again: what rdma_disconnect promises to verbs
	// programs.
	EndInError bool
}

// SendMemory is how many octets, nearly, a QP of this kind takes for requests that are under way:
// by far the most of what it takes, beside its queues where those are in this process.
func SendMemory(c *rdma.QPConfig) int64 { return wqe.SendMemory(c) }

// A QP is a queue pair. It implements rdma.QP.
//
// What each message needs is in front and together, with the first slots of its queues: with many
// QPs it comes from memory, line by line.
type QP struct {
	runner
	identity
	connected
	work wqe.Requests // but for wqe.Recv the owner's

	mailbox
	options
	connection
	ending
}

// An identity is which QP it is, and in which state.
type identity struct {
	num        uint32        // set by addQP
	state      atomic.Uint32 // written by setState
	destroying atomic.Bool   // Close or Shutdown has begun
	ctx        *Context
	pd         *PD
}

// connected is what messages need of a connection: the owner's, but for seen.
type connected struct {
	eof      bool                      // the peer sends nothing more
	draining bool                      // a graceful disconnect waits for what was posted
	link     link.Link                 // nil: not connected
	seen     atomic.Pointer[link.Link] // the link, for who is not the owner: see link.Abilities
}

// options are what the QP was made with, beside its queues.
type options struct {
	dev      *Device
	packets  *packetQP // of a QP of RoCE; nil: one of iWARP
	linger   Lingerer
	endState rdma.QPState // after a graceful end
	tells    *tells
}

// tells are whom a QP tells of what no message does, and since when it is there.
type tells struct {
	onState  func(rdma.QPState)
	onParted func()
	onCount  func()
	created  time.Time
}

// A connection is what was agreed on, and what others may see of it.
type connection struct {
	bound    atomic.Pointer[cm.Attempt] // the connection manager's end
	attached bool                       // to a connection of bound; the owner's
	peek     atomic.Pointer[linkInfo]
	idleness idleness
	param    iwarp.Params // the owner's
}

// An ending is how a connection comes to its end: the owner's.
type ending struct {
	served      bool            // was connected once
	tellDrained bool            // its program has moved it to Closing
	lastWQE     bool            // in Error, with an SRQ: its end is to be told once all is flushed
	lastCall    bool            // the peer has ended behind the Send that waits for a receive
	endErr      error           // what ended the connection, nil for a graceful end
	peerCode    *iwarp.TermCode // a Terminate of the peer that ended it: what flushes tells of it
	deadlines   [nDeadlines]time.Time
	terminateBy time.Time // the latest end of QPTerminate, if the peer goes on sending
	timer       *time.Timer
}

// linkInfo describes a connection to others than the owner; it does not change.
type linkInfo struct {
	llp           llp.Properties // Memory: within the device
	since         time.Time
	local, remote netip.AddrPort
	param         iwarp.Params
	emss          int  // at the start; 0 on loopback
	roi           bool // package roi's protocol, not iWARP
}

// NewQP makes a QP in state Idle, on a device of RoCE in Reset.
func (pd *PD) NewQP(o QPOptions) (*QP, error) {
	c := pd.ctx
	cfg := o.QPConfig
	if err := c.dev.checkType(&cfg); err != nil {
		return nil, err
	}
	for _, v := range []struct {
		name string
		v    *int
		max  int
	}{
		{"MaxSendWR", &cfg.MaxSendWR, c.limits.Depth}, {"MaxRecvWR", &cfg.MaxRecvWR, c.limits.Depth},
		{"MaxSendSGE", &cfg.MaxSendSGE, c.limits.SGE}, {"MaxRecvSGE", &cfg.MaxRecvSGE, c.limits.SGE},
	} {
		if *v.v < 0 || *v.v > v.max {
			return nil, fmt.Errorf("create a QP with %s %d, possible are 1 to %d: %w", v.name, *v.v, v.max,
				rdma.ErrInvalid)
		}
		*v.v = max(*v.v, 1)
	}
	if cfg.MaxInline < 0 || cfg.MaxInline > c.limits.Inline {
		return nil, fmt.Errorf("create a QP with MaxInline %d, possible are 0 to %d: %w", cfg.MaxInline,
			c.limits.Inline, rdma.ErrInvalid)
	}
	scq, ok1 := cfg.SendCQ.(*CQ)
	rcq, ok2 := cfg.RecvCQ.(*CQ)
	if !ok1 || !ok2 || scq == nil || rcq == nil || scq.Space() != &c.queues ||
		rcq.Space() != &c.queues {
		return nil, fmt.Errorf("create a QP: SendCQ and RecvCQ must be CQs of the same device: %w",
			rdma.ErrInvalid)
	}
	var srq *SRQ
	switch {
	case cfg.SRQ != nil:
		var ok bool
		srq, ok = cfg.SRQ.(*SRQ)
		if !ok || srq == nil || srq.PD() != pd.PD {
			return nil, fmt.Errorf("create a QP: SRQ must be one of the same protection domain: %w",
				rdma.ErrInvalid)
		}
		if o.RecvQueue != nil {
			return nil, fmt.Errorf("create a QP with an SRQ and a receive queue: %w", rdma.ErrInvalid)
		}
		cfg.MaxRecvWR, cfg.MaxRecvSGE = 0, srq.Config().MaxSGE
	case (o.SendQueue == nil) != (o.RecvQueue == nil):
		return nil, fmt.Errorf("create a QP with one foreign queue of two: %w", rdma.ErrInvalid)
	}
	qp := &QP{
		identity: identity{ctx: c, pd: pd},
		mailbox:  mailbox{wakec: make(chan struct{}, 1), gone: make(chan struct{})},
		options: options{
			dev: c.dev, linger: o.Linger, endState: rdma.QPIdle,
			tells: &tells{o.OnState, o.OnParted, o.OnCount, time.Now()},
		},
	}
	if o.EndInError {
		qp.endState = rdma.QPError
	}
	if c.dev.roce != nil {
		qp.packets = newPacketQP(c)
		qp.state.Store(uint32(rdma.QPReset))
	}
	qp.work.Init((*workOwner)(qp), &queue.PairConfig{
		QPConfig: cfg, SendCQ: scq, RecvCQ: rcq, SRQ: srq, Send: o.SendQueue, Recv: o.RecvQueue,
		Wake: qp.wake,
	}, pd.PD, c.dev.roce != nil)
	if err := pd.addQP(qp); err != nil {
		return nil, err
	}
	return qp, nil
}

// addQP makes qp known and starts its goroutine.
func (pd *PD) addQP(qp *QP) error {
	c := pd.ctx
	c.dev.mu.Lock()
	defer c.dev.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.openLocked(); err != nil {
		return err
	}
	if len(c.qps) >= c.limits.QP {
		return fmt.Errorf("create a QP: %d are there: %w", len(c.qps), rdma.ErrLimit)
	}
	if err := qp.work.Queues.Add(c.dev.cfg.StrictCQ); err != nil {
		return fmt.Errorf("create a QP: %w", err)
	}
	num, err := c.dev.nameLocked(qp)
	if err == nil {
		if err = qp.work.Add(num); err != nil {
			c.dev.unnameLocked(num)
		}
	}
	if err != nil {
		qp.work.Queues.Remove()
		return fmt.Errorf("create a QP: %w", err)
	}
	qp.num = num
	if c.qps == nil {
		c.qps = make(map[uint32]*QP)
	}
	c.qps[num] = qp
	for o := range c.dev.observers {
		o.add(qp)
	}
	c.wg.Add(1)
	go func() {
		defer c.wg.Done()
		qp.run()
		qp.forget()
		close(qp.gone)
	}()
	return nil
}

// nameLocked gives qp a number. Of a QP of RoCE it is half of what a packet from anybody needs to
// reach it: those cannot be guessed from one another. So are those of iWARP on an adverse device.
func (d *Device) nameLocked(qp *QP) (uint32, error) {
	switch {
	case d.roce != nil:
		n, err := d.qps.AddFrom(d.nextQPN, qp, maxPacketQPs)
		if err == nil {
			d.roce.add(n, qp)
		}
		return n, err
	case d.qpns != nil:
		return d.qps.AddFrom(d.qpns.Next, qp, handle.Max)
	default:
		return d.qps.Add(qp, handle.Max)
	}
}

// unnameLocked takes a number back.
func (d *Device) unnameLocked(num uint32) {
	d.qps.Remove(num)
	if d.roce != nil {
		d.roce.remove(num)
	}
}

// forget takes a QP that has died out of the tables.
func (qp *QP) forget() {
	c := qp.ctx
	if r := c.dev.roce; r != nil {
		r.groups.Remove(qp)
	}
	c.dev.mu.Lock()
	defer c.dev.mu.Unlock()
	for o := range c.dev.observers {
		o.remove(qp)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.qps[qp.num] != qp {
		return // it was closed while it was lent
	}
	c.dev.unnameLocked(qp.num)
	c.dev.past.Add(qp.counted().Snapshot())
	if qp.packets != nil {
		c.dev.roce.past.Add(qp.packets.stats.Snapshot())
	}
	delete(c.qps, qp.num)
	qp.work.Memory.Remove()
	qp.work.Queues.Remove()
}

func (qp *QP) Num() uint32           { return qp.num }
func (qp *QP) State() rdma.QPState   { return rdma.QPState(qp.state.Load()) }
func (qp *QP) Config() rdma.QPConfig { return *qp.work.Config() }
func (qp *QP) PD() *PD               { return qp.pd }

func (qp *QP) log(msg string, args ...any) {
	if l := qp.dev.log; l.Enabled(context.Background(), slog.LevelDebug) {
		l.Debug(msg, append([]any{"qp", qp.num}, args...)...)
	}
}

// Ring says that something was posted to a foreign queue. It runs qp here for a bounded time, or
// wakes its goroutine if that could touch memory that can block.
func (qp *QP) Ring() { qp.RingBeside(nil) }

// RingBeside is Ring on a goroutine that others may wait for: if waiting says that they do, qp runs
// one turn here.
func (qp *QP) RingBeside(waiting func() bool) {
	qp.prefetch()
	qp.kickBeside(waiting)
}

// prefetch asks the caches for what a message from qp to its peer needs, as far as both are in this
// process. With thousands of QPs it comes from memory, and what is asked for together comes
// together; by itself the processor looks no further than a few loads that wait for one another.
func (qp *QP) prefetch() {
	if l := qp.seen.Load(); l != nil {
		(*l).Prefetch()
	}
}

// postState says whether a send request may be posted now.
func (qp *QP) postState() error {
	if qp.destroying.Load() {
		return fmt.Errorf("post to QP %d: %w", qp.num, rdma.ErrClosed)
	}
	if qp.work.Queues.Local == nil {
		return fmt.Errorf("post to QP %d, whose queues are elsewhere: %w", qp.num, rdma.ErrUnsupported)
	}
	return nil
}

// PostSend posts one request.
func (qp *QP) PostSend(wr *rdma.SendWR) error {
	if err := qp.postState(); err != nil {
		return err
	}
	qp.prefetch()
	q := qp.work.Queues.Local
	q.LockSend()
	err := qp.queueSend(wr)
	q.UnlockSend()
	if err != nil {
		return err
	}
	qp.kick()
	return nil
}

// PostSends posts wrs in order and runs the QP once.
func (qp *QP) PostSends(wrs []rdma.SendWR) (n int, err error) {
	if len(wrs) == 0 {
		return 0, nil
	}
	if err := qp.postState(); err != nil {
		return 0, err
	}
	qp.prefetch()
	q := qp.work.Queues.Local
	q.LockSend()
	for n < len(wrs) {
		if err = qp.queueSend(&wrs[n]); err != nil {
			break
		}
		n++
	}
	q.UnlockSend()
	if n > 0 {
		qp.kick()
	}
	return n, err
}

// sendsRefused are the states in which no send request is taken: docs/qp-states.md.
const sendsRefused = 1<<rdma.QPIdle | 1<<rdma.QPClosing | 1<<rdma.QPReset | 1<<rdma.QPInit |
	1<<rdma.QPRTR

// queueSend checks wr and puts it into the queue, which is locked.
func (qp *QP) queueSend(wr *rdma.SendWR) error {
	if _, err := qp.work.Check(wr); err != nil {
		return err
	}
	if s := qp.State(); 1<<s&sendsRefused != 0 {
		err := rdma.ErrNotConnected
		if qp.packets != nil {
			err = rdma.ErrInvalid
		}
		return fmt.Errorf("post a send request to QP %d in state %v: %w", qp.num, s, err)
	}
	return qp.work.Queues.Local.PostSend(wr)
}

// postRecvState says whether a receive may be posted now.
func (qp *QP) postRecvState() error {
	if err := qp.postState(); err != nil {
		return err
	}
	if t := qp.work.Queues.Tap; t != nil {
		return fmt.Errorf("post a receive to QP %d, which takes them from SRQ %d: %w",
			qp.num, t.SRQ().Num(), rdma.ErrInvalid)
	}
	if qp.State() == rdma.QPReset {
		return fmt.Errorf("post a receive to QP %d in state %v: %w", qp.num, rdma.QPReset,
			rdma.ErrInvalid)
	}
	return nil
}

// PostRecv posts one receive.
func (qp *QP) PostRecv(wr *rdma.RecvWR) error {
	if err := qp.postRecvState(); err != nil {
		return err
	}
	q := qp.work.Queues.Local
	q.LockRecv()
	err := q.PostRecv(wr)
	q.UnlockRecv()
	if err != nil {
		return err
	}
	qp.ringRecv()
	return nil
}

// PostRecvs posts wrs in order.
func (qp *QP) PostRecvs(wrs []rdma.RecvWR) (n int, err error) {
	if len(wrs) == 0 {
		return 0, nil
	}
	if err := qp.postRecvState(); err != nil {
		return 0, err
	}
	q := qp.work.Queues.Local
	q.LockRecv()
	for n < len(wrs) {
		if err = q.PostRecv(&wrs[n]); err != nil {
			break
		}
		n++
	}
	q.UnlockRecv()
	if n > 0 {
		qp.ringRecv()
	}
	return n, err
}

// ringRecv runs qp if a posted receive means work: somebody waits for it, or it flushes.
func (qp *QP) ringRecv() {
	if qp.work.Recv.Waiting() || qp.State() != rdma.QPRTS && qp.State() != rdma.QPIdle {
		qp.kick()
	}
}

// Abort moves qp to Error: Q8.
func (qp *QP) Abort() error {
	qp.call(func() { qp.toError(nil) })
	return nil
}

// ModifyState is ibv_modify_qp's part: Error aborts, Terminate sends one (0/0/FF) and closes,
// Closing disconnects as Disconnect does, Idle resets a QP in Error. RTS is entered by the
// connection manager only, and left for Idle by the end of the connection only.
func (qp *QP) ModifyState(to rdma.QPState) error {
	if qp.packets != nil {
		return qp.Modify(&rdma.QPAttr{State: to}, rdma.AttrState)
	}
	err := fmt.Errorf("modify QP %d to %v: %w", qp.num, to, rdma.ErrInvalid)
	ok := qp.do(func() {
		switch {
		case to == rdma.QPError:
			qp.toError(nil)
		case to == rdma.QPTerminate && qp.State() == rdma.QPRTS:
			qp.localError(&iwarp.LocalError{Cause: iwarp.TermLocalCatastrophic, Err: errConsumer}, link.ByQP)
		case to == rdma.QPClosing && qp.State() == rdma.QPRTS:
			qp.tellDrained = true
			qp.disconnect()
		case to == rdma.QPIdle && qp.State() == rdma.QPError:
			for qp.flushIdle() {
			}
			if qp.dead || qp.State() != rdma.QPError {
				break // the handler that was told of the end has done it
			}
			qp.mustState(rdma.QPIdle)
			qp.served, qp.endErr, qp.peerCode = false, nil, nil
		case to == qp.State():
		default:
			return
		}
		err = nil
	})
	if !ok {
		return fmt.Errorf("modify QP %d: %w", qp.num, rdma.ErrClosed)
	}
	return err
}

// Disconnect ends the connection gracefully: what was posted goes out first, for a bounded time.
// It does not wait. ErrNotConnected if there is no connection.
func (qp *QP) Disconnect() error {
	if qp.bound.Load() == nil {
		return fmt.Errorf("disconnect QP %d: %w", qp.num, rdma.ErrNotConnected)
	}
	qp.call(qp.disconnect)
	return nil
}

// Close destroys qp. When it returns no completion of it is pushed nor polled any more, and its
// queues are not touched. A handler of the connection's events may call it.
//
// A QP that is attached to multicast groups is not destroyed: rdma.ErrBusy.
func (qp *QP) Close() error {
	if err := qp.destroyDetached(); err != nil {
		return err
	}
	if qp.dieLent() {
		qp.forget()
	} else {
		<-qp.gone
	}
	return nil
}

// destroy is Close without waiting.
func (qp *QP) destroy() {
	if qp.destroying.CompareAndSwap(false, true) {
		qp.destroyed()
	}
}

// destroyed goes on with who has set destroying.
func (qp *QP) destroyed() {
	if qp.packets != nil {
		qp.packets.stop()
	}
	qp.call(qp.die)
}

// die ends qp; its owner calls it.
func (qp *QP) die() {
	qp.work.Queues.Drop()
	qp.dead = true
	qp.leave()
	qp.work.Recv.Close(true)
	if qp.timer != nil {
		qp.timer.Stop()
	}
	qp.work.DropSends()
	if qp.packets != nil {
		qp.bound.Swap(nil).Gone()
	}
	qp.ended()
	qp.close()
}

// leave ends the connection of a QP that is given up. What is complete for a program must arrive,
// also if it destroys the QP or the id right away, disconnected or not, as fio and libfabric do: so
// the FIN goes behind it if all that was posted has been handed over. A reset would overtake it,
// which is what happens if something was left, or the program has gone without a disconnect.
func (qp *QP) leave() {
	s := qp.State()
	if qp.packets == nil &&
		(s == rdma.QPRTS && !qp.ctx.gone() || s == rdma.QPClosing) && !qp.work.SendsLeft() &&
		qp.link != nil && qp.link.Idle() {
		qp.endLink(link.Link.Close)
		return
	}
	qp.abortLink()
}

// abandon takes the stream from a QP that is being destroyed and whose owner does not come back.
func (qp *QP) abandon() {
	if l := qp.seen.Load(); l != nil {
		(*l).Abandon()
	}
}

// A workOwner is a QP as its requests see it.
type workOwner QP

func (o *workOwner) Violation(err error)         { o.ctx.violation(err) }
func (o *workOwner) Wake()                       { (*QP)(o).wake() }
func (o *workOwner) Log(msg string, args ...any) { (*QP)(o).log(msg, args...) }

// A linked is a QP as its link sees it.
type linked QP

func (q *linked) Work() *wqe.Requests { return &q.work }
func (q *linked) State() rdma.QPState { return (*QP)(q).State() }
func (q *linked) Param() iwarp.Params { return q.param }

func (q *linked) Tape() *record.Tape { return q.dev.tape(q.num) }

func (q *linked) AwaitReceive() { (*QP)(q).awaitReceive() }
func (q *linked) GotReceive()   { (*QP)(q).gotReceive() }
func (q *linked) PeerEnds()     { (*QP)(q).peerEnds() }
func (q *linked) Leaving() bool { return q.draining }

func (q *linked) EOF()           { q.eof = true }
func (q *linked) Ended() bool    { return q.eof }
func (q *linked) Lost(err error) { (*QP)(q).lost(err) }

func (q *linked) Fail(e *iwarp.LocalError, by link.Origin) { (*QP)(q).localError(e, by) }

func (q *linked) PeerTerminated(code iwarp.TermCode, culprit *wqe.Request) {
	(*QP)(q).peerTerminated(code, culprit)
}

func (q *linked) Replace(l link.Link) {
	q.link = l
	q.seen.Store(&l)
}

func (q *linked) Carried(local, remote netip.AddrPort, emss int, wire bool) {
	if p := q.peek.Load(); p != nil {
		now := *p
		now.llp, now.local, now.remote, now.emss = llp.Properties{}, local, remote, emss
		if wire {
			now.param.CRC, now.param.MarkersIn, now.param.MarkersOut = true, false, false
		}
		q.peek.CompareAndSwap(p, &now) // it may be over meanwhile
	}
}

func (q *linked) Parted() {
	if f := q.tells.onParted; f != nil {
		f()
	}
}

func (q *linked) Copied(segment []byte) {
	if q.dev.copiesShown.Load() == 0 {
		return
	}
	if p := q.peek.Load(); p != nil {
		q.dev.cfg.OnCopied(p.local, p.remote, segment)
	}
}

func (q *linked) SetDeadline(d time.Duration) { (*QP)(q).setDeadline(deadlineLink, d) }
func (q *linked) Moved()                      { (*QP)(q).stillSending() }
func (q *linked) Blocking() bool              { return q.ctx.mem.Blocking() }
func (q *linked) Wake()                       { (*QP)(q).wake() }

func (q *linked) Run(more func() bool) {
	l := q.linger
	lingers := more != nil && l != nil && l.Expect()
	(*QP)(q).kickBeside(more)
	if lingers {
		l.Linger(more)
	}
}

// frontLen is how much of a QP messages need: up to what few requests have.
const frontLen = unsafe.Offsetof(QP{}.work) + wqe.FrontLen

func (q *linked) Front() []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(q)), frontLen)
}
