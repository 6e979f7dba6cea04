package sim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/vrnic/vrnic/rdma"
)

// A Violation says what may not be.
type Violation struct{ What string }

func (v *Violation) Error() string { return v.What }

// fail ends the run: something is not as it may be.
func (p *program) fail(format string, args ...any) {
	panic(&Violation{fmt.Sprintf(format, args...)})
}

func (e *end) String() string { return fmt.Sprintf("%d.%d (QP %d)", e.p.id, e.i, e.qp.Num()) }

// recvID marks the numbers of receives.
const recvID = 1 << 63

// poll takes what c has, and holds it against the model.
func (p *program) poll(c *cq) {
	if !c.u.open {
		return
	}
	wcs := &p.wcs
	if now := time.Now(); now != c.last {
		c.before, c.last = c.last, now
	}
	for {
		n, err := c.Poll(wcs[:])
		if err != nil {
			p.fail("poll: %v", err)
		}
		got := wcs[:n]
		if p.tamper.Completions != nil {
			got = p.tamper.Completions(got)
		}
		for i := range got {
			p.complete(c, &got[i])
		}
		if n < len(wcs) {
			break
		}
	}
	for len(p.answered) > 0 {
		a := p.answered[0]
		p.answered = p.answered[1:]
		p.checkOrder(a.e, a.r)
	}
}

// checkOrder: the peer has dealt with what was sent ahead of a request that it has answered:
// messages have been delivered (RDMAP-091).
func (p *program) checkOrder(e *end, r *request) {
	q := e.peer
	if q.gone || !q.u.open {
		return
	}
	p.poll(q.rcq)
	if q.delivered < r.messages {
		p.fail("%v: %v %d has its answer, and of %d messages before it %d have been received", e,
			r.op, r.id, r.messages, q.delivered)
	}
}

// complete holds a completion against the model.
func (p *program) complete(c *cq, wc *rdma.WC) {
	p.w.trace.step(kindCompletion, uint64(c.u.i), wc.ID, uint64(wc.Status)<<32|uint64(wc.Op),
		uint64(wc.ByteLen)<<32|uint64(wc.Imm), uint64(wc.ImmLow)<<32|uint64(wc.QPN), uint64(wc.Flags))
	e := p.byQP[c.u.i][wc.QPN]
	if e == nil {
		p.fail("a completion of QP %d, which is closed: %+v", wc.QPN, *wc)
	}
	p.w.trace.say("%v completes %d: %v op %d, %d octets", e, wc.ID&^recvID, wc.Status, wc.Op,
		wc.ByteLen)
	if wc.ID&recvID != 0 {
		if c != e.rcq {
			p.fail("%v: a receive completes on the CQ for sends: %+v", e, *wc)
		}
		p.completeRecv(e, wc)
	} else {
		if c != e.scq {
			p.fail("%v: a send request completes on the CQ for receives: %+v", e, *wc)
		}
		p.completeSend(e, wc)
	}
}

var wcOps = map[rdma.Opcode]rdma.WCOpcode{
	rdma.OpWrite: rdma.WCWrite, rdma.OpSend: rdma.WCSend, rdma.OpRead: rdma.WCRead,
	rdma.OpLocalInv: rdma.WCLocalInv, rdma.OpSendInv: rdma.WCSend, rdma.OpSendImm: rdma.WCSend,
	rdma.OpWriteImm: rdma.WCWrite, rdma.OpCompareSwap: rdma.WCCompareSwap,
	rdma.OpFetchAdd: rdma.WCFetchAdd, rdma.OpBindMW: rdma.WCBindMW, rdma.OpRegMR: rdma.WCRegMR,
}

// completeSend: requests complete once, in the order of the posts, and none with success behind one
// that has failed (RFC 5040, section 5.5; RFC 4296, section 5.3; RVB-028).
func (p *program) completeSend(e *end, wc *rdma.WC) {
	p.woke(e.scq, wc, false)
	i := slices.IndexFunc(e.sends, func(r *request) bool { return r.id == wc.ID })
	if i < 0 {
		p.fail("%v: a completion of no request that is under way: %+v", e, *wc)
	}
	for _, r := range e.sends[:i] {
		switch {
		case r.signaled:
			p.fail("%v: %v %d completes ahead of %v %d", e, e.sends[i].op, wc.ID, r.op, r.id)
		case e.failedSend:
			p.fail("%v: %v %d has no completion, behind a request that failed", e, r.op, r.id)
		}
		p.succeed(e, r)
	}
	r := e.sends[i]
	e.sends = slices.Delete(e.sends, 0, i+1)
	if wc.Status != rdma.WCSuccess {
		p.failedSend(e, r, wc)
		return
	}
	switch {
	case e.failedSend:
		p.fail("%v: %v %d succeeds behind a request that has failed", e, r.op, r.id)
	case !r.signaled:
		p.fail("%v: %v %d completes with success, and is not signaled", e, r.op, r.id)
	case r.fault:
		p.fail("%v: %v %d succeeds, though it may not (%v)", e, r.op, r.id, e.p.fault.kind)
	case wc.Op != wcOps[r.op] || wc.Flags != 0:
		p.fail("%v: %v %d completes as %+v", e, r.op, r.id, *wc)
	}
	want := 0
	if r.read != nil || r.word != nil {
		want = r.n
	}
	if int(wc.ByteLen) != want {
		p.fail("%v: %v %d of %d octets completes with %d", e, r.op, r.id, r.n, wc.ByteLen)
	}
	p.succeed(e, r)
}

// answers reports whether the peer has answered r if it has completed: RoCE acknowledges each
// request.
func (p *program) answers(r *request) bool {
	switch r.op {
	case rdma.OpBindMW, rdma.OpRegMR, rdma.OpLocalInv:
		return false
	default:
		return p.w.path.roce() || r.read != nil || r.word != nil
	}
}

// succeed: r has completed with success.
func (p *program) succeed(e *end, r *request) {
	q := e.peer
	if p.answers(r) {
		p.answered = append(p.answered, answered{e, r})
		p.verifyWrites(e, r.writes)
	}
	switch {
	case r.read != nil:
		p.checkRead(e, r)
		if w := r.read.w; w != nil {
			w.pins--
			p.freeCell(q, w)
		}
	case r.word != nil:
		got := binary.NativeEndian.Uint64(e.slot(r.sink))
		if got != r.old {
			p.fail("%v: %v %d brings %#x, and there was %#x", e, r.op, r.id, got, r.old)
		}
		i := slices.Index(r.word.may, r.new)
		r.word.may = r.word.may[max(i, 0):]
	case r.key != nil && r.binds:
		r.key.state = bound
	case r.key != nil && r.op != rdma.OpSendInv:
		r.key.state = unbound
		e.giveSlot(r.key.cell)
	}
	p.release(e, r)
}

// release gives back what r has held: its octets are its program's again, who changes them.
func (p *program) release(e *end, r *request) {
	if r.src >= 0 && !e.closed {
		fill(e.slot(r.src)[:r.n], 0xee)
	}
	e.giveSlot(r.src)
	e.giveSlot(r.sink)
}

// checkRead: a Read brings the octets that were there.
func (p *program) checkRead(e *end, r *request) {
	got := e.slot(r.sink)
	if p.tamper.Octets != nil {
		p.tamper.Octets(got[:r.n])
	}
	if w := r.read.w; w != nil {
		if at, bad := unlike(got[:r.n], w.id); bad {
			p.fail("%v: octet %d of %d of Read %d is not what was written there", e, at, r.n, r.id)
		}
	} else if !slices.Equal(got[:r.n], e.peer.b[r.read.stable:][:r.n]) {
		p.fail("%v: the %d octets of Read %d are not those at %d", e, r.n, r.id, r.read.stable)
	}
	p.checkBehind(e, got, r.n, "Read", r.id)
}

// checkBehind: what is behind the octets that came has not changed.
func (p *program) checkBehind(e *end, b []byte, n int, what string, id uint64) {
	for i, x := range b[n : n+32] {
		if x != untouched {
			p.fail("%v: %s %d of %d octets has changed octet %d", e, what, id, n, n+i)
		}
	}
}

// verifyWrites: the first n Writes of e are in the peer's memory.
func (p *program) verifyWrites(e *end, n int) {
	first := e.writesSent - len(e.writes)
	for ; first < n; first++ {
		w := e.writes[0]
		e.writes = e.writes[1:]
		q := e.peer
		got := q.slot(w.cell)[:w.n]
		if p.tamper.Octets != nil {
			p.tamper.Octets(got)
		}
		if at, bad := unlike(got, w.id); bad {
			p.fail("%v: octet %d of %d of Write %d is not there, and what was sent behind it is", e, at,
				w.n, w.id)
		}
		p.checkBehind(q, q.slot(w.cell), w.n, "Write", w.id)
		w.done = true
		p.freeCell(q, w)
	}
}

// freeCell frees the cell of a Write that nobody needs any more.
func (p *program) freeCell(q *end, w *write) {
	switch {
	case !w.done || w.pins > 0:
	case w.key != nil:
		w.key.users--
	default:
		q.giveSlot(w.cell)
	}
}

// failedSend: r has failed, and may.
func (p *program) failedSend(e *end, r *request, wc *rdma.WC) {
	pr := e.p
	first := !e.failedSend
	e.failedSend = true
	// An answer ahead of what is refused may be lost: that is told as what it is.
	if first && !r.fault && pr.causes == causeFault && p.blames(e) && wc.Status != rdma.WCRetryExc {
		p.fail("%v: %v %d fails first: %v, %s", e, r.op, r.id, wc.Status, pr.why())
	}
	if ok := p.mayFail(e, r, wc.Status); !ok {
		p.fail("%v: %v %d fails: %v, %s", e, r.op, r.id, wc.Status, pr.why())
	}
	if r.read != nil && r.read.w != nil {
		r.read.w.pins--
	}
	p.release(e, r)
}

// blames reports whether the fault of e's connection is a request of e whose completion tells of
// it, and is the first that does (RDMAP-106; RVB-028).
func (p *program) blames(e *end) bool {
	f := e.p.fault
	if p.w.path.roce() {
		return f.by == e && f.kind != deregister
	}
	// A Terminate does not wait for receives: answers behind the peer's Sends are dropped then.
	return f.is(e, badRKeyRead) && len(e.peer.messages) == 0
}

// mayFail reports whether r of e may fail with status s.
func (p *program) mayFail(e *end, r *request, s rdma.WCStatus) bool {
	pr := e.p
	f := pr.fault
	if p.w.path.roce() {
		own := r.fault && f.by == e
		switch s {
		case rdma.WCRemAccess:
			return own && f.is(e, badRKeyWrite, badRKeyRead, badInvalidate) || f.is(e.peer, deregister)
		case rdma.WCRemInvReq:
			return own && f.is(e, tooLong)
		case rdma.WCRemOp:
			return f.is(e.peer, deregister)
		case rdma.WCRetryExc:
			return pr.causes&^(causeStarved|causeSetup) != 0
		default:
		}
	}
	switch s {
	case rdma.WCFlush:
		return pr.causes != 0
	case rdma.WCLocProt:
		return r.fault && f.is(e, badLKey) || f.is(e, deregister)
	case rdma.WCMWBind:
		return r.fault && f.is(e, badBind) || f.is(e, deregister)
	case rdma.WCRemAccess:
		e.refused++
		return e.refused == 1 && (f.is(e, badRKeyWrite) || f.is(e.peer, deregister) ||
			r.fault && f.is(e, badRKeyRead))
	default:
		return false
	}
}

// why says what has happened to a pair that may end it.
func (p *pair) why() string {
	if p.causes == 0 {
		return "and nothing has happened to the connection"
	}
	s := "after"
	for i, name := range []string{"abort", "disconnect", "fault", "no receive", "cut", "set-up"} {
		if p.causes&(1<<i) != 0 {
			s += " " + name
		}
	}
	if p.fault != nil {
		s += fmt.Sprintf(" (%v by %d)", p.fault.kind, p.fault.by.i)
	}
	return s
}

// completeRecv: a receive completes once, in the order of the posts, with the next message of the
// peer.
func (p *program) completeRecv(e *end, wc *rdma.WC) {
	rs, m := &e.recvs, &e.memory
	if e.srq != nil {
		rs, m = &e.srq.recvs, &e.srq.memory
	}
	i := slices.IndexFunc(*rs, func(r *receive) bool { return r.id == wc.ID })
	switch {
	case i < 0:
		p.fail("%v: a completion of no receive that is posted: %+v", e, *wc)
	case i > 0 && e.srq == nil:
		p.fail("%v: receive %d completes ahead of %d", e, wc.ID&^recvID, (*rs)[0].id&^recvID)
	}
	r := (*rs)[i]
	*rs = slices.Delete(*rs, i, i+1)
	defer m.giveSlot(r.slot)
	if wc.Status != rdma.WCSuccess {
		p.woke(e.rcq, wc, true)
		p.failedRecv(e, r, wc)
		return
	}
	if e.failedRecv {
		p.fail("%v: receive %d succeeds behind one that has failed", e, r.id&^recvID)
	}
	if len(e.peer.messages) == 0 {
		p.fail("%v: a receive completes, and no message is under way: %+v", e, *wc)
	}
	msg := e.peer.messages[0]
	e.peer.messages = e.peer.messages[1:]
	e.delivered++
	want := rdma.WC{ID: r.id, Op: rdma.WCRecv, ByteLen: uint32(msg.n), QPN: wc.QPN}
	switch msg.op {
	case rdma.OpSendInv:
		want.Flags, want.Imm = rdma.WCWithInv, msg.rkey
	case rdma.OpSendImm, rdma.OpWriteImm:
		want.Flags, want.Imm, want.ImmLow = rdma.WCWithImm, msg.imm, msg.low
		if msg.op == rdma.OpWriteImm || !p.w.path.roce() {
			want.Op = rdma.WCRecvImm
		}
		if !p.w.path.roce() {
			want.ByteLen = 0
		}
	default:
	}
	switch {
	case msg.fault:
		p.fail("%v: %v %d is received, though it may not be (%v)", e, msg.op, msg.id, e.p.fault.kind)
	case *wc != want:
		p.fail("%v: %v %d is received as %+v, want %+v", e, msg.op, msg.id, *wc, want)
	}
	p.woke(e.rcq, wc, msg.solicited)
	got := m.slot(r.slot)
	placed := int(want.ByteLen)
	if want.Op == rdma.WCRecvImm {
		placed = 0
	}
	if p.tamper.Octets != nil {
		p.tamper.Octets(got[:placed])
	}
	if at, bad := unlike(got[:placed], msg.id); bad {
		p.fail("%v: octet %d of %d of %v %d is not what was sent", e, at, msg.n, msg.op, msg.id)
	}
	if e.srq == nil { // a QP that was closed in the midst of a Send has given its receive back
		p.checkBehind(e, got, placed, "message", msg.id)
	}
	p.verifyWrites(e.peer, msg.writes)
	if k := msg.inv; k != nil {
		k.state = unbound
		e.giveSlot(k.cell)
	}
}

// failedRecv: a receive has failed, and may.
func (p *program) failedRecv(e *end, r *receive, wc *rdma.WC) {
	pr := e.p
	e.failedRecv = true
	msg := &message{}
	if len(e.peer.messages) > 0 {
		msg = e.peer.messages[0]
	}
	ok := false
	switch wc.Status {
	case rdma.WCFlush:
		ok = pr.causes != 0
	case rdma.WCLocLen:
		ok = msg.fault && pr.fault.is(e.peer, tooLong)
	case rdma.WCRemInvReq: // on RoCE also of a Write with immediate data, for its octets
		ok = msg.fault && pr.fault.is(e.peer, badInvalidate) ||
			p.w.path.roce() && msg.op == rdma.OpWriteImm && pr.fault.is(e, deregister)
	case rdma.WCLocProt:
		ok = pr.fault.is(e, deregister)
	}
	if !ok {
		p.fail("%v: receive %d fails: %v, %s", e, r.id&^recvID, wc.Status, pr.why())
	}
}

// events holds the events that have come against the model.
func (p *program) events() {
	for _, u := range p.users {
		evs := u.takeEvents()
		if p.tamper.Events != nil {
			evs = p.tamper.Events(evs)
		}
		for _, ev := range evs {
			p.event(u, ev)
		}
	}
}

func (p *program) event(u *user, ev rdma.AsyncEvent) {
	p.w.trace.step(kindEvent, uint64(u.i), uint64(ev.Type), uint64(ev.Object))
	p.w.trace.say("event of %d: %v of %d", u.i, ev.Type, ev.Object)
	if ev.Type == rdma.EventSRQLimitReached {
		if u.srq == nil || ev.Object != u.srq.srq.Num() || !u.srq.limit {
			p.fail("user %d: %v of SRQ %d, which has no limit", u.i, ev.Type, ev.Object)
		}
		u.srq.limit = false
		return
	}
	e := p.byQP[u.i][ev.Object]
	if e == nil {
		if !p.closed[u.i][ev.Object] {
			p.fail("user %d: %v of %d, which is none of its QPs", u.i, ev.Type, ev.Object)
		}
		return
	}
	p.starving(e.p)
	switch ev.Type {
	case rdma.EventQPFatal, rdma.EventQPAccessErr, rdma.EventQPReqErr:
		e.fatal++
		if e.fatal > 1 || !e.p.may(causeFault|causeStarved) {
			p.fail("%v: %v (%v), event %d of this connection's end, %s", e, ev.Type, ev.Cause, e.fatal,
				e.p.why())
		}
	case rdma.EventCommEst: // the peer was ahead of the last message of the set-up
		e.commEst++
		if e.commEst > 1 || !p.w.path.roce() || e.i == e.p.active {
			p.fail("%v: %v, event %d", e, ev.Type, e.commEst)
		}
	case rdma.EventSQDrained:
		e.drained++
		if e.drained > 1 || e.p.causes == 0 {
			p.fail("%v: %v, event %d, %s", e, ev.Type, e.drained, e.p.why())
		}
	case rdma.EventLastWQEReached:
		e.lastWQE++
		if e.lastWQE > 1 || e.srq == nil || e.p.causes == 0 {
			p.fail("%v: %v, event %d, %s", e, ev.Type, e.lastWQE, e.p.why())
		}
	default:
		p.fail("%v: %v", e, ev.Type)
	}
}

// starving notes where a peer's messages may have waited for a receive for too long: they are more
// than the receives that are known to be there, and none was received meanwhile.
func (p *program) starving(pr *pair) {
	if p.w.path.roce() {
		return // a message waits without end
	}
	for _, e := range pr.ends {
		short := len(e.peer.messages) - len(e.recvs)
		if e.srq != nil {
			short = p.sharedShort(e.u)
		}
		switch {
		case short <= 0 || e.starved.IsZero():
			e.starved, e.starvedOf = time.Now(), e.delivered
		case e.starvedOf != e.delivered: // since when is not known: it was seen only now
			e.starved, e.starvedOf = e.rcq.before, e.delivered
		}
		if time.Since(e.starved) >= receiveHold && short > 0 {
			pr.causes |= causeStarved
		}
	}
}

// sharedShort is how many messages are under way to the users of u's SRQ beyond its receives.
func (p *program) sharedShort(u *user) int {
	if u.srq == nil {
		return 0
	}
	n := -len(u.srq.recvs)
	for _, pr := range p.pairs {
		if e := pr.ends[u.i]; e.srq != nil {
			n += len(e.peer.messages)
		}
	}
	return n
}

// watch looks at what a connection says of itself.
func (p *program) watch(pr *pair) {
	p.starving(pr)
	if pr.phase != connected && pr.phase != ending {
		return
	}
	for _, e := range pr.ends {
		if e.gone || e.conn == nil || e.ended {
			continue
		}
		select {
		case <-e.conn.Done():
			e.ended = true
			p.w.trace.say("%v has ended: %v", e, e.conn.Err())
			if pr.causes == 0 {
				p.fail("%v has ended, %s: %v", e, pr.why(), e.conn.Err())
			}
			pr.to(ending)
		default:
			s := e.qp.State()
			if s != rdma.QPRTS && pr.causes == 0 {
				p.fail("%v is in state %v, %s", e, s, pr.why())
			}
			if p.w.path.roce() && s == rdma.QPError {
				pr.to(ending) // nobody is told but the program, which has to disconnect
			}
		}
	}
}

// settled is called when both ends have ended: nothing that was posted is left over.
func (p *program) settled(pr *pair) {
	for _, e := range pr.ends {
		if e.gone || !e.u.open {
			continue
		}
		p.poll(e.scq)
		p.poll(e.rcq)
	}
	p.events()
	for _, e := range pr.ends {
		if e.gone || !e.u.open {
			continue
		}
		for _, r := range e.sends {
			if r.signaled || e.failedSend {
				p.fail("%v: %v %d has never completed, %s", e, r.op, r.id, pr.why())
			}
		}
		if len(e.recvs) > 0 {
			p.fail("%v: receive %d has never completed, %s", e, e.recvs[0].id&^recvID, pr.why())
		}
		p.checkFaultEvent(e)
		p.checkMemory(e)
	}
}

// checkFaultEvent: whoever finds a fault has an event, if nothing else has happened.
func (p *program) checkFaultEvent(e *end) {
	f := e.p.fault
	if f == nil || e.p.causes != causeFault || f.kind == deregister {
		return
	}
	here := f.is(e, badLKey, badBind, terminate)
	there := f.is(e.peer, badRKeyWrite, badRKeyRead, tooLong, badInvalidate)
	if p.w.path.roce() { // else completions tell
		here, there = false, f.is(e.peer, badRKeyWrite, badRKeyRead, badInvalidate)
	}
	if (here || there) && e.fatal == 0 {
		p.fail("%v: no event, %s", e, e.p.why())
	}
}

// checkMemory: what nobody may change has not changed.
func (p *program) checkMemory(e *end) {
	if e.closed {
		if octets(e.b) != e.sum {
			p.fail("%v: memory has changed that is not registered any more", e)
		}
		return
	}
	if at, bad := unlike(e.b[:stableLen], stableID(e)); bad {
		p.fail("%v: octet %d has changed, which nobody writes", e, at)
	}
	for i := range e.peer.words {
		v := binary.NativeEndian.Uint64(e.b[stableLen+8*i:])
		if may := e.peer.words[i].may; !slices.Contains(may, v) {
			p.fail("%v: word %d is %#x after atomics that leave one of %#x", e, i, v, may)
		}
	}
}

// refusedPost: a post was refused, and may be, if the connection ends.
func (p *program) refusedPost(e *end, what string, err error) {
	want := rdma.ErrNotConnected
	if p.w.path.roce() {
		want = rdma.ErrInvalid
	}
	if e.p.causes == 0 || !errors.Is(err, want) {
		p.fail("%v: post %s: %v, %s", e, what, err, e.p.why())
	}
}
