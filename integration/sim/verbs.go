package sim

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/vrnic/vrnic/rdma"
)

// size is the length of a message: mostly short, sometimes several segments.
func (p *program) size() int {
	r := p.rng
	switch k := r.IntN(20); {
	case k == 0:
		return 0
	case k < 12:
		return 1 + r.IntN(64)
	case k < 17:
		return 1 + r.IntN(600)
	case k < 19:
		return 1 + r.IntN(3000)
	default:
		return 1 + r.IntN(maxLen)
	}
}

// sges names n octets of a slot, in one piece or two.
func (p *program) sges(m *memory, s slot, n int) []rdma.SGE {
	if n == 0 {
		return nil
	}
	g := m.sge(s, n)
	p.sge[0] = g
	if n > 1 && p.rng.IntN(4) == 0 {
		k := 1 + p.rng.IntN(n-1)
		p.sge[0].Length = uint32(k)
		p.sge[1] = rdma.SGE{Addr: g.Addr + uint64(k), Length: uint32(n - k), LKey: g.LKey}
		return p.sge[:2]
	}
	return p.sge[:1]
}

// postRecv posts a receive to e, or to its SRQ.
func (p *program) postRecv(e *end) {
	m, rs, depth := &e.memory, &e.recvs, e.qp.Config().MaxRecvWR
	if e.srq != nil {
		m, rs, depth = &e.srq.memory, &e.srq.recvs, useSlots
	}
	if m.closed || len(*rs) >= depth {
		return
	}
	if e.srq == nil && e.p.phase > connected && e.qp.State() == rdma.QPIdle {
		return // it would be for the next connection
	}
	s := m.takeSlot(useRecv)
	if s < 0 {
		return
	}
	p.lastID++
	r := &receive{id: p.lastID | recvID, n: slotLen, slot: s}
	fill(m.slot(s)[:maxLen+32], untouched)
	wr := rdma.RecvWR{ID: r.id, SGEs: p.sges(m, s, slotLen)}
	p.starving(e.p)
	*rs = append(*rs, r)
	p.call("post a receive", e)
	var err error
	if e.srq != nil {
		err = e.srq.srq.PostRecv(&wr)
	} else {
		err = e.qp.PostRecv(&wr)
	}
	if err != nil {
		*rs = (*rs)[:len(*rs)-1]
		m.giveSlot(s)
		if e.srq != nil {
			p.fail("%v: post a receive to an SRQ: %v", e, err)
		}
		p.refusedPost(e, "a receive", err)
	}
}

// usable reports whether e can post send requests.
func (e *end) usable() bool {
	return e.conn != nil && !e.gone && !e.down && !e.closed && !e.peer.closed
}

// post posts what was prepared as p.wr for r.
func (p *program) post(e *end, r *request) bool {
	wr := &p.wr
	p.lastID++
	r.id = p.lastID
	wr.ID = r.id
	cfg := e.qp.Config()
	if p.rng.IntN(3) > 0 || len(e.sends) > cfg.MaxSendWR/2 || r.key != nil || r.fault {
		wr.Flags |= rdma.Signaled
	}
	if p.rng.IntN(16) == 0 {
		wr.Flags |= rdma.Fence
	}
	r.signaled = wr.Flags&rdma.Signaled != 0 || cfg.SignalAll
	r.op = wr.Op
	r.messages, r.writes = e.messagesSent, e.writesSent
	if p.answers(r) { // itself, too
		switch r.op {
		case rdma.OpSend, rdma.OpSendImm, rdma.OpSendInv:
			r.messages++
		case rdma.OpWrite:
			r.writes++
		case rdma.OpWriteImm:
			r.messages++
			r.writes++
		default:
		}
	}
	p.starving(e.p)
	e.sends = append(e.sends, r)
	p.call("post", e)
	if p.w.trace.lines != nil {
		p.w.trace.say("%v posts %v %d of %d octets, flags %#x", e, wr.Op, r.id, r.n, wr.Flags)
	}
	if err := e.qp.PostSend(wr); err != nil {
		e.sends = e.sends[:len(e.sends)-1]
		e.giveSlot(r.src)
		e.giveSlot(r.sink)
		p.refusedPost(e, wr.Op.String(), err)
		e.down = true // what was not posted is not under way: the model goes no further
		return false
	}
	return true
}

// source gives what goes out: n octets that follow from id, in a slot or inline.
func (p *program) source(e *end, r *request, id uint64) bool {
	r.src, r.sink = -1, -1
	if limit := e.qp.Config().MaxInline; r.n <= limit && p.rng.IntN(2) == 0 {
		p.wr.Flags |= rdma.Inline
		p.wr.Inline = p.inline[:r.n]
		pattern(p.wr.Inline, id)
		return true
	}
	if r.n == 0 {
		return true
	}
	if r.src = e.takeSlot(useSource); r.src < 0 {
		return false
	}
	pattern(e.slot(r.src)[:r.n], id)
	p.wr.SGEs = p.sges(&e.memory, r.src, r.n)
	return true
}

// sink gives a slot for n octets that come.
func (p *program) sinkFor(e *end, r *request) bool {
	r.src = -1
	if r.sink = e.takeSlot(useSink); r.sink < 0 {
		return false
	}
	fill(e.slot(r.sink)[:r.n+32], untouched)
	p.wr.SGEs = p.sges(&e.memory, r.sink, r.n)
	return true
}

// postSend posts a send request of some kind.
func (p *program) postSend(e *end) {
	if !e.usable() || len(e.sends) >= e.qp.Config().MaxSendWR {
		return
	}
	p.wr = rdma.SendWR{}
	switch k := p.rng.IntN(32); {
	case k < 12:
		p.send(e, rdma.OpSend)
	case k < 14:
		p.send(e, rdma.OpSendImm)
	case k < 20:
		p.write(e, rdma.OpWrite)
	case k < 22:
		p.write(e, rdma.OpWriteImm)
	case k < 25:
		p.read(e)
	case k < 28:
		p.atomic(e)
	case k < 30:
		p.sendInv(e)
	default:
		p.keyRequest(e)
	}
}

func (p *program) newMessage(e *end, op rdma.Opcode, n int) *message {
	p.lastID++
	m := &message{id: p.lastID, op: op, n: n, writes: e.writesSent}
	p.wr.Op = op
	if p.rng.IntN(3) == 0 {
		p.wr.Flags |= rdma.Solicited
		m.solicited = true
	}
	return m
}

func (e *end) sent(m *message) {
	e.messages = append(e.messages, m)
	e.messagesSent++
}

func (p *program) send(e *end, op rdma.Opcode) {
	n := p.size()
	if op == rdma.OpSendImm && !p.w.path.roce() {
		n = 0
	}
	m := p.newMessage(e, op, n)
	r := &request{n: n}
	if !p.source(e, r, m.id) {
		return
	}
	if op == rdma.OpSendImm {
		p.immediate(m)
	}
	if p.post(e, r) {
		e.sent(m)
	}
}

// immediate gives m its immediate data, of which RoCE has half as much.
func (p *program) immediate(m *message) {
	m.imm, m.low = p.rng.Uint32(), p.rng.Uint32()
	if p.w.path.roce() {
		m.low = 0
	}
	p.wr.Imm, p.wr.ImmLow = m.imm, m.low
}

// sendInv posts a Send that ends the binding of a key of the peer.
func (p *program) sendInv(e *end) {
	k := e.peer.keys[1+p.rng.IntN(2)]
	if k == nil || k.state != bound || k.fast != nil && e.peer.srq != nil {
		p.send(e, rdma.OpSend)
		return
	}
	m := p.newMessage(e, rdma.OpSendInv, p.size())
	r := &request{n: m.n}
	if !p.source(e, r, m.id) {
		return
	}
	m.inv, m.rkey, p.wr.InvKey = k, k.rkey, k.rkey
	if p.post(e, r) {
		k.state = changing
		e.sent(m)
	}
}

// write posts a Write into a cell of the peer, by the key of its memory or by one that it has
// bound.
func (p *program) write(e *end, op rdma.Opcode) {
	q := e.peer
	n := p.size()
	p.lastID++
	w := &write{id: p.lastID, n: n}
	var m *message
	if op == rdma.OpWriteImm {
		m = p.newMessage(e, op, n)
		p.immediate(m)
	}
	p.wr.Op = op
	r := &request{n: n}
	if !p.source(e, r, w.id) {
		return
	}
	for _, k := range q.keys {
		if k != nil && k.state == bound && k.users == 0 {
			w.key, w.cell = k, k.cell
			p.wr.RKey, p.wr.RemoteAddr = k.rkey, k.base
		}
	}
	if w.key == nil {
		if w.cell = q.takeSlot(useCell); w.cell < 0 {
			e.giveSlot(r.src)
			return
		}
		p.wr.RKey, p.wr.RemoteAddr = q.mr.RKey(), q.addr(q.at(w.cell))
	}
	fill(q.slot(w.cell)[:n+32], untouched)
	if !p.post(e, r) {
		if w.key == nil {
			q.giveSlot(w.cell)
		}
		return
	}
	if w.key != nil {
		w.key.users++
	}
	e.writes = append(e.writes, w)
	e.writesSent++
	if m != nil {
		m.writes = e.writesSent
		e.sent(m)
	}
}

// read posts a Read of octets that never change, or of what was written before.
func (p *program) read(e *end) {
	q := e.peer
	r := &request{n: p.size(), read: &read{}}
	p.wr.Op = rdma.OpRead
	if n := len(e.writes); n > 0 && p.rng.IntN(2) == 0 {
		w := e.writes[p.rng.IntN(n)]
		r.n = w.n
		if w.n == 0 {
			return
		}
		r.read.w = w
		p.wr.RemoteAddr = q.addr(q.at(w.cell))
	} else {
		r.n = min(r.n, stableLen)
		r.read.stable = p.rng.IntN(stableLen - r.n + 1)
		p.wr.RemoteAddr = q.addr(r.read.stable)
	}
	p.wr.RKey = q.mr.RKey()
	if p.sinkFor(e, r) && p.post(e, r) && r.read.w != nil {
		r.read.w.pins++
	}
}

// atomic posts an atomic on a word of the peer's.
func (p *program) atomic(e *end) {
	i := p.rng.IntN(wordCount)
	w := &e.words[i]
	if len(w.may) > 32 {
		return
	}
	r := &request{n: 8, word: w, old: w.may[len(w.may)-1]}
	a := &p.wr.Atomic
	a.CompareAdd, a.Swap = p.rng.Uint64(), p.rng.Uint64()
	p.wr.Op, r.new = rdma.OpFetchAdd, r.old+a.CompareAdd
	if p.rng.IntN(2) == 0 {
		p.wr.Op, r.new = rdma.OpCompareSwap, r.old
		if p.rng.IntN(2) == 0 {
			a.CompareAdd, r.new = r.old, a.Swap
		}
	}
	p.wr.RKey, p.wr.RemoteAddr = e.peer.mr.RKey(), e.peer.addr(stableLen+8*i)
	if !p.sinkFor(e, r) {
		return
	}
	if p.post(e, r) {
		w.may = append(w.may, r.new)
	}
}

// keyRequest binds a window or registers fast, or ends that.
func (p *program) keyRequest(e *end) {
	i := p.rng.IntN(len(e.keys))
	k := e.keys[i]
	if k == nil {
		p.newKey(e, i)
		return
	}
	r := &request{src: -1, sink: -1, key: k}
	switch {
	case k.state == unbound:
		c := e.takeSlot(useCell)
		if c < 0 {
			return
		}
		p.wr.Op, p.wr.RKey = rdma.OpBindMW, rdma.NextKey(k.rkey)
		p.wr.Range = rdma.MemRange{Addr: e.addr(e.at(c)), Length: slotLen, LKey: e.mr.LKey(),
			Access: rdma.RemoteWrite}
		if k.fast != nil {
			p.wr.Op = rdma.OpRegMR
			p.wr.Range.Access |= rdma.LocalWrite
		}
		k.base = e.addr(e.at(c))
		if p.rng.IntN(2) == 0 {
			k.base = uint64(p.rng.IntN(1 << 30))
		}
		p.wr.RemoteAddr = k.base
		r.binds = true
		rkey := p.wr.RKey
		if !p.post(e, r) {
			e.giveSlot(c)
			return
		}
		k.state, k.cell, k.rkey = changing, c, rkey
	case k.state == bound && k.users == 0 && !k.type1():
		p.wr.Op, p.wr.InvKey = rdma.OpLocalInv, k.rkey
		if p.post(e, r) {
			k.state = changing
		}
	case k.state == bound && k.users == 0:
		p.wr.Op, p.wr.RKey = rdma.OpBindMW, rdma.NextKey(k.rkey)
		rkey := p.wr.RKey
		if p.post(e, r) {
			k.state, k.rkey = changing, rkey
		}
	}
}

// breakRule has e's program break a rule, once in a connection.
func (p *program) breakRule(e *end) {
	pr := e.p
	if !e.usable() || pr.fault != nil || pr.phase != connected {
		return
	}
	q := e.peer
	kinds := faultKinds
	if p.w.path.roce() {
		kinds = terminate // there is none
	}
	f := &fault{kind: faultKind(p.rng.IntN(int(kinds))), by: e}
	p.wr = rdma.SendWR{}
	r := &request{n: 1 + p.rng.IntN(64), fault: true, src: -1, sink: -1}
	room := len(e.sends) < e.qp.Config().MaxSendWR
	if !room && f.kind != deregister && f.kind != terminate {
		return
	}
	noted := func() {
		pr.causes |= causeFault
		pr.fault = f
		p.w.trace.say("%v breaks a rule: %v", e, f.kind)
	}
	switch f.kind {
	case badLKey:
		p.wr.Op = rdma.OpSend
		if p.rng.IntN(2) == 0 {
			p.wr.Op, p.wr.RKey, p.wr.RemoteAddr = rdma.OpWrite, q.mr.RKey(), q.addr(0)
		}
		s := e.sge(0, r.n)
		s.LKey ^= 0x5500
		p.wr.SGEs = append(p.sge[:0], s)
		if p.wr.Op == rdma.OpSend {
			m := p.newMessage(e, rdma.OpSend, r.n)
			m.fault = true
			e.sent(m)
		}
	case badRKeyWrite, badRKeyRead:
		p.wr.Op = rdma.OpWrite
		if f.kind == badRKeyRead {
			p.wr.Op = rdma.OpRead
			if p.rng.IntN(2) == 0 {
				p.wr.Op, r.n = rdma.OpFetchAdd, 8
			}
		} else {
			r.fault = p.w.path.roce() // else it completes before anybody knows
		}
		p.wr.RKey, p.wr.RemoteAddr = q.mr.RKey(), q.addr(0)
		switch p.rng.IntN(3) {
		case 0:
			p.wr.RKey ^= 0x5500
		case 1:
			p.wr.RemoteAddr = q.addr(0) - 8 // below the region
		default:
			p.wr.RemoteAddr = q.addr(memLen)
		}
		if f.kind == badRKeyRead {
			if !p.sinkFor(e, r) {
				return
			}
		} else if !p.source(e, r, 0) {
			return
		}
	case tooLong:
		r.n, r.fault = slotLen+1, p.w.path.roce()
		m := p.newMessage(e, rdma.OpSend, r.n)
		m.fault = true
		p.wr.SGEs = append(p.sge[:0], rdma.SGE{Addr: e.addr(0), Length: uint32(r.n), LKey: e.mr.LKey()})
		e.sent(m)
	case badInvalidate:
		m := p.newMessage(e, rdma.OpSendInv, r.n)
		m.fault, r.fault = true, p.w.path.roce()
		if !p.source(e, r, m.id) {
			return
		}
		p.wr.InvKey = q.mr.RKey() // of a region that no peer may end
		e.sent(m)
	case badBind:
		k := e.keys[1]
		if k == nil || k.state != unbound {
			return
		}
		p.wr.Op, p.wr.RKey = rdma.OpBindMW, rdma.NextKey(k.rkey)
		p.wr.Range = rdma.MemRange{Addr: e.addr(memLen), Length: 8, LKey: e.mr.LKey(),
			Access: rdma.RemoteWrite}
	case deregister:
		p.deregister(e, noted)
		return
	case terminate:
		noted()
		p.call("modify to Terminate", e)
		e.down = true
		err := p.block("modify to Terminate", func() error { return e.qp.ModifyState(rdma.QPTerminate) })
		if err != nil && pr.causes == causeFault {
			p.fail("%v: modify to Terminate: %v", e, err)
		}
		return
	}
	noted()
	p.post(e, r)
}

// deregister takes e's memory from under what is going on. It is refused while windows are bound to
// it.
func (p *program) deregister(e *end, noted func()) {
	for _, k := range e.keys {
		if k != nil && k.state != unbound {
			p.call("deregister, in use", e)
			if err := p.block("deregister", e.mr.Close); err == nil {
				if k.state == bound {
					p.fail("%v: memory is deregistered, and a window is bound to it", e)
				}
				p.memoryGone(e, noted)
			} else if !errors.Is(err, rdma.ErrBusy) {
				p.fail("%v: deregister: %v", e, err)
			}
			return
		}
	}
	p.call("deregister", e)
	p.must("deregister", p.block("deregister", e.mr.Close))
	p.memoryGone(e, noted)
}

func (p *program) memoryGone(e *end, noted func()) {
	noted()
	e.closed = true
	e.sum = octets(e.b)
}

// arm asks for an event of c, and has somebody wait for it.
func (p *program) arm(c *cq) {
	if !c.u.open || c.woken != nil {
		return
	}
	p.poll(c)
	p.call("arm a CQ")
	c.solicited = p.rng.IntN(3) == 0
	p.must("arm a CQ", c.Arm(c.solicited))
	woken := new(atomic.Bool)
	ctx, cancel := context.WithCancel(context.Background())
	c.woken, c.cancel = woken, cancel
	go func() {
		if c.Wait(ctx) == nil {
			woken.Store(true)
		}
	}()
}

// woke: if wc is what c was armed for, whoever has waited has been woken.
func (p *program) woke(c *cq, wc *rdma.WC, solicited bool) {
	if c.woken == nil || c.solicited && !solicited && wc.Status == rdma.WCSuccess {
		return
	}
	woken := c.woken.Load()
	if p.tamper.Woken != nil {
		woken = p.tamper.Woken(woken)
	}
	if !woken {
		p.fail("completion %d, %v, has woken nobody; the CQ was armed, for solicited ones only: %t",
			wc.ID&^recvID, wc.Status, c.solicited)
	}
	p.disarm(c)
}

// setLimit asks for an event of u's SRQ.
func (p *program) setLimit(u *user) {
	p.call("set the limit of an SRQ")
	u.srq.limit = true
	p.must("set the limit of an SRQ", u.srq.srq.SetLimit(1+p.rng.IntN(useSlots/2)))
}

func (p *program) disarm(c *cq) {
	if c.cancel != nil {
		c.cancel()
		c.cancel, c.woken = nil, nil
	}
}

// connect has the active end of pr connect.
func (p *program) connect(pr *pair) {
	pr.active = p.rng.IntN(2)
	e := pr.ends[pr.active]
	q := e.peer
	pr.param = rdma.ConnParam{Extensions: true, SCTP: p.w.path == overSCTP,
		IRD: uint16(1 + p.rng.IntN(8)), ORD: uint16(1 + p.rng.IntN(8))}
	for i := range pr.private {
		n := p.rng.IntN(100)
		if p.w.path.roce() {
			n %= privateRoCE - 16
		}
		b := make([]byte, 16+n)
		pattern(b, p.rng.Uint64())
		binary.BigEndian.PutUint32(b, uint32(pr.id))
		binary.BigEndian.PutUint32(b[4:], uint32(pr.rounds))
		pr.private[i] = b
	}
	pr.param.PrivateData = pr.private[pr.active]
	// An address that was not found goes on not to be found for a moment, and SCTP goes on with an
	// association that knows of losses before.
	pr.clean = time.Since(p.lost) > neighbourTime && !(p.w.path == overSCTP && !p.lost.IsZero())
	pr.to(connecting)
	to := netip.AddrPortFrom(q.u.side.addr, uint16(port+q.u.i))
	p.call("connect", e)
	p.attempt(e, func(ctx context.Context) (rdma.Conn, error) {
		return e.u.ctx.Connect(ctx, e.qp, to, pr.param)
	})
}

// attempt has somebody call f, which connects e and takes its time.
func (p *program) attempt(e *end, f func(context.Context) (rdma.Conn, error)) {
	ctx, cancel := context.WithCancel(context.Background())
	e.tries, e.cancel = true, cancel
	e.attempt.Store(nil)
	go func() {
		c, err := f(ctx)
		e.attempt.Store(&outcome{c, err})
	}()
}

// requests takes the connection requests that have come, and answers them.
func (p *program) requests() {
	for _, u := range p.users {
		if !u.open {
			continue
		}
		for _, r := range u.takeRequests() {
			p.answer(u, r)
		}
	}
}

func (p *program) answer(u *user, r rdma.ConnRequest) {
	param := r.Param()
	b := param.PrivateData
	if len(b) < 16 {
		p.fail("user %d: a connection request with %d octets of private data", u.i, len(b))
	}
	id, round := int(binary.BigEndian.Uint32(b)), int(binary.BigEndian.Uint32(b[4:]))
	var pr *pair
	for _, x := range p.pairs {
		if x.id == id && x.rounds == round && x.ends[u.i] == x.ends[x.active].peer {
			pr = x
		}
	}
	p.w.trace.say("user %d is asked by pair %d", u.i, id)
	if pr == nil || pr.phase != connecting || pr.ends[u.i].gone {
		p.call("reject")
		_ = r.Reject(nil) // whoever asked has given up
		return
	}
	e := pr.ends[u.i]
	pr.asked++
	switch {
	case pr.asked > 1:
		p.fail("%v is asked a second time", e)
	case !p.samePrivate(b, pr.private[pr.active]):
		p.fail("%v: the private data of the request are not what was sent", e)
	case param.SCTP != (p.w.path == overSCTP):
		p.fail("%v: SCTP is %t in the request", e, param.SCTP)
	}
	if p.rng.IntN(12) == 0 {
		pr.reject = pr.private[u.i]
		pr.causes |= causeSetup
		p.call("reject", e)
		if err := r.Reject(pr.reject); err != nil && pr.clean {
			p.fail("%v: reject: %v", e, err)
		}
		return
	}
	answer := rdma.ConnParam{Extensions: true, PrivateData: pr.private[u.i]}
	p.call("accept", e)
	p.attempt(e, func(ctx context.Context) (rdma.Conn, error) {
		return r.Accept(ctx, e.qp, answer)
	})
}

// privateRoCE is how many octets of a program RoCE has room for in a request.
const privateRoCE = 56

// samePrivate compares private data that have come with what was sent: on RoCE zeroes fill what is
// left of their place.
func (p *program) samePrivate(got, sent []byte) bool {
	if p.w.path.roce() {
		rest, ok := bytes.CutPrefix(got, sent)
		return ok && len(bytes.Trim(rest, "\x00")) == 0
	}
	return bytes.Equal(got, sent)
}

// attempts looks at attempts that have ended.
func (p *program) attempts(pr *pair) {
	for _, e := range pr.ends {
		o := e.attempt.Load()
		if !e.tries || o == nil {
			continue
		}
		e.tries = false
		e.cancel()
		p.w.trace.say("%v: attempt to connect: %v", e, o.err)
		if o.err == nil {
			e.conn = o.conn
			if got := o.conn.Param().PrivateData; e.i == pr.active &&
				!p.samePrivate(got, pr.private[1-e.i]) {
				p.fail("%v: the private data of the answer are not what was sent", e)
			}
			continue
		}
		var rejected *rdma.RejectedError
		if errors.As(o.err, &rejected) {
			if pr.reject == nil {
				p.fail("%v: %v, and the peer has not", e, o.err)
			}
			if !p.samePrivate(rejected.PrivateData, pr.reject) {
				p.fail("%v: rejected with %q, not with what was sent", e, rejected.PrivateData)
			}
		} else if pr.causes == 0 && pr.clean {
			p.fail("%v: does not connect: %v", e, o.err)
		}
		pr.causes |= causeSetup
		pr.to(ending)
		if q := e.peer; q.tries {
			q.cancel()
		}
	}
	if pr.phase == connecting && pr.ends[0].conn != nil && pr.ends[1].conn != nil {
		pr.to(connected)
	}
}

// end brings pr's connection to its end, when one of both ends has seen that, or asked for it.
func (p *program) end(pr *pair) {
	waited := time.Since(pr.since)
	done := true
	for _, e := range pr.ends {
		switch {
		case e.ended || e.gone:
		case e.tries:
			done = false
			if waited > time.Second {
				e.cancel()
			}
		case e.conn == nil:
			// Where no connection has come about nobody flushes what is posted.
			pr.causes |= causeAbort
			p.call("modify to Error", e)
			p.must("modify to Error", e.qp.Abort())
			e.ended = true
			done = false
		case p.w.path.roce():
			done = false
			if waited > time.Second && !e.hungUp {
				pr.causes |= causeDisconnect
				p.call("disconnect", e)
				e.down, e.hungUp = true, true
				_ = e.conn.Disconnect() // an error: it has ended
			}
		default:
			done = false
			// An end whose peer has gone need not notice, if it has nothing to say.
			if waited > p.patience {
				pr.causes |= causeAbort
				p.call("modify to Error", e)
				p.must("modify to Error", e.qp.Abort())
			}
		}
	}
	if waited > endTime {
		p.fail("pair %d does not come to its end in %v, %s: QPs %v and %v", pr.id, waited, pr.why(),
			pr.ends[0].qp.State(), pr.ends[1].qp.State())
	}
	if done {
		p.w.settle()
		p.settled(pr)
		pr.to(over)
	}
}

const (
	neighbourTime = 10 * time.Second

	receiveHold = 5 * time.Second // vnic.DefaultTimeouts
	endTime     = 3 * time.Minute
	setupTime   = 2 * time.Minute
)

var zeroTime time.Time
