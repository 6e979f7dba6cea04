package sim

import (
	"encoding/binary"
	"sync/atomic"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
)

// A mailbox is a user's UD queue pair, which sends datagrams to the other user's. Datagrams may be
// lost and come in any order; those that come are as they were sent, come once, unless the wire
// doubles frames, and none is lost on a good network to a queue pair that has receives for it.
type mailbox struct {
	memory
	u     *user
	pd    rdma.PD
	cq    *cq
	qp    *vnic.QP
	ah    rdma.AH // of the other's address; nil: it is looked for, or not yet
	looks bool
	found atomic.Pointer[foundAH]

	sends  []*datagram // posted, and not known to have completed, in order
	recvs  []*receive  // the same
	coming []*datagram // sent to the other mailbox, and may take a receive there
	fails  bool        // it is in Error: what is posted is flushed
}

// A foundAH is what has come of the search for a peer's address.
type foundAH struct {
	ah  rdma.AH
	err error
}

// A datagram is one that was posted.
type datagram struct {
	id       uint64
	n        int
	from, to uint32 // QPs
	imm      bool   // its immediate data are its number; else its first octets are
	signaled bool
	src      slot
	at       time.Time
	never    bool // nobody may get it
	sure     bool // it has to come
	came     int  // how often it has
}

const (
	mailKey   = 0x11223344
	mailDepth = 12
	mailMost  = 1024            // octets: the path's MTU
	mailTime  = 5 * time.Second // by then a datagram has come, or is lost
)

// openMailbox makes u's.
func (p *program) openMailbox(u *user) {
	b := &mailbox{u: u}
	var err error
	b.pd, err = u.ctx.AllocPD()
	p.must("allocate a PD", err)
	p.register(&b.memory, b.pd)
	q, err := u.ctx.CreateCQ(64)
	p.must("create a CQ", err)
	b.cq = &cq{CQ: q, u: u}
	qp, err := b.pd.CreateQP(rdma.QPConfig{Type: rdma.UD, SendCQ: q, RecvCQ: q, MaxSendWR: mailDepth,
		MaxRecvWR: useSlots, MaxSendSGE: 2, MaxRecvSGE: 2})
	p.must("create a QP", err)
	b.qp = qp.(*vnic.QP)
	b.toRTS(p)
	u.box = b
	p.call("create a QP for datagrams")
}

// toRTS has b send and receive.
func (b *mailbox) toRTS(p *program) {
	for _, m := range []struct {
		a    rdma.QPAttr
		mask rdma.QPAttrMask
	}{
		{rdma.QPAttr{State: rdma.QPInit, Port: 1, QKey: mailKey},
			rdma.AttrPKeyIndex | rdma.AttrPort | rdma.AttrQKey},
		{rdma.QPAttr{State: rdma.QPRTR}, 0},
		{rdma.QPAttr{State: rdma.QPRTS}, rdma.AttrSQPSN},
	} {
		p.must("modify to RTS", b.qp.Modify(&m.a, m.mask|rdma.AttrState))
	}
}

// mail does something with b.
func (p *program) mail(b *mailbox) {
	switch k := p.rng.IntN(256); {
	case k < 100:
		p.postMailRecv(b)
	case k < 200:
		p.sendMail(b)
	case k < 255:
		p.pollMail(b)
	default:
		p.failMailbox(b)
	}
}

func (p *program) postMailRecv(b *mailbox) {
	s := b.takeSlot(useRecv)
	if s < 0 {
		return
	}
	p.lastID++
	r := &receive{id: p.lastID | recvID, n: slotLen, slot: s}
	fill(b.slot(s)[:rdma.NetworkHeaderLen+mailMost+32], untouched)
	p.call("post a receive for a datagram")
	p.must("post a receive for a datagram",
		b.qp.PostRecv(&rdma.RecvWR{ID: r.id, SGEs: p.sges(&b.memory, s, slotLen)}))
	b.recvs = append(b.recvs, r)
}

// good reports whether the network loses nothing, and has not for long enough that both ends know
// where the other one is.
func (p *program) good() bool {
	return !p.w.path.wired() || p.w.up && p.w.weather.loss == 0 && time.Since(p.lost) > neighbourTime
}

// findPeer has somebody look for the other mailbox's address.
func (p *program) findPeer(b *mailbox) {
	if !b.looks {
		to := p.users[1-b.u.i].side.addr
		index := uint8(1) // of the GID: those of the link are before
		if !to.Is4() {
			index = 2
		}
		b.looks = true
		good := p.good()
		p.call("create an address handle")
		go func() {
			h, err := b.pd.CreateAH(rdma.AHAttr{GID: rdma.GIDOf(to), GIDIndex: index, Port: 1,
				Global: true, HopLimit: 64})
			if !good {
				err = nil
			}
			b.found.Store(&foundAH{h, err})
		}()
		return
	}
	if f := b.found.Swap(nil); f != nil {
		p.w.trace.say("user %d has an address handle: %v, %v", b.u.i, f.ah != nil, f.err)
		if b.ah, b.looks = f.ah, false; f.err != nil && p.good() {
			p.fail("user %d: create an address handle: %v", b.u.i, f.err)
		}
	}
}

// sendMail posts a datagram.
func (p *program) sendMail(b *mailbox) {
	if b.ah == nil {
		p.findPeer(b)
		return
	}
	to := p.users[1-b.u.i].box
	if !to.u.open || len(b.sends) >= mailDepth {
		return
	}
	src := b.takeSlot(useSource)
	if src < 0 {
		return
	}
	p.lastID++
	d := &datagram{id: p.lastID, from: b.qp.Num(), to: to.qp.Num(), src: src, at: time.Now()}
	p.wr = rdma.SendWR{ID: d.id, Op: rdma.OpSend,
		To: rdma.Datagram{AH: b.ah.Handle(), QPN: d.to, QKey: mailKey}}
	if d.imm = p.rng.IntN(3) == 0; d.imm {
		p.wr.Op, p.wr.Imm = rdma.OpSendImm, uint32(d.id)
		d.n = p.rng.IntN(mailMost + 1)
	} else {
		d.n = 8 + p.rng.IntN(mailMost-7)
	}
	if d.signaled = p.rng.IntN(3) > 0 || len(b.sends) > mailDepth/2; d.signaled {
		p.wr.Flags |= rdma.Signaled
	}
	if d.never = p.rng.IntN(16) == 0; d.never {
		p.wr.To.QKey++
	}
	d.write(b.slot(src)[:d.n])
	p.wr.SGEs = p.sges(&b.memory, src, d.n)
	p.pollMail(to)
	each := p.timesEach()
	d.sure = !d.never && p.good() && len(to.recvs) > each*len(b.coming)
	p.call("post a datagram")
	p.w.trace.say("user %d posts datagram %d of %d octets, sure to come: %t", b.u.i, d.id, d.n, d.sure)
	p.must("post a datagram", b.qp.PostSend(&p.wr))
	b.sends = append(b.sends, d)
	p.mailed[b.u.i][d.id] = d
	if !d.never {
		b.coming = append(b.coming, d)
	}
	if len(to.recvs) < each*len(b.coming) { // it may overtake others, and take a receive from them
		for _, d := range b.coming {
			d.sure = false
		}
	}
}

// timesEach is how often a datagram may come.
func (p *program) timesEach() int {
	if p.doubled && p.w.path.wired() {
		return 2
	}
	return 1
}

// write makes the octets of d.
func (d *datagram) write(b []byte) {
	if !d.imm {
		binary.LittleEndian.PutUint64(b, d.id)
		b = b[8:]
	}
	pattern(b, d.id)
}

// unlike tells where b differs from the octets of d.
func (d *datagram) unlike(b []byte) (at int, bad bool) {
	if !d.imm { // by the first eight it was found
		b = b[8:]
	}
	return unlike(b, d.id)
}

// pollMail takes what b's CQ has, and holds it against the model.
func (p *program) pollMail(b *mailbox) {
	if !b.u.open {
		return
	}
	for n := len(p.wcs); n == len(p.wcs); {
		var err error
		if n, err = b.cq.Poll(p.wcs[:]); err != nil {
			p.fail("poll: %v", err)
		}
		got := p.wcs[:n]
		if p.tamper.Datagrams != nil {
			got = p.tamper.Datagrams(got)
		}
		for i := range got {
			wc := &got[i]
			p.w.trace.step(kindCompletion, uint64(b.u.i), wc.ID, uint64(wc.Status)<<32|uint64(wc.Op),
				uint64(wc.ByteLen)<<32|uint64(wc.Imm), uint64(wc.SrcQP)<<32|uint64(wc.QPN),
				uint64(wc.Flags))
			p.w.trace.say("user %d's mailbox completes %d: %v, %d octets", b.u.i, wc.ID&^recvID,
				wc.Status, wc.ByteLen)
			if wc.ID&recvID != 0 {
				p.received(b, wc)
			} else {
				p.mailSent(b, wc)
			}
		}
	}
}

// mailSent: datagrams are sent in the order of the posts.
func (p *program) mailSent(b *mailbox, wc *rdma.WC) {
	for {
		if len(b.sends) == 0 {
			p.fail("user %d: a completion of no datagram that is under way: %+v", b.u.i, *wc)
		}
		d := b.sends[0]
		b.sends = b.sends[1:]
		fill(b.slot(d.src)[:d.n], 0xee)
		b.giveSlot(d.src)
		switch {
		case d.id != wc.ID && d.signaled:
			p.fail("user %d: datagram %d completes ahead of %d", b.u.i, wc.ID, d.id)
		case d.id != wc.ID:
			continue
		case wc.Status == rdma.WCFlush && b.fails:
		case wc.Status != rdma.WCSuccess:
			p.fail("user %d: datagram %d fails: %v", b.u.i, d.id, wc.Status)
		case !d.signaled, wc.Op != rdma.WCSend, wc.QPN != b.qp.Num():
			p.fail("user %d: datagram %d completes as %+v", b.u.i, d.id, *wc)
		}
		return
	}
}

// received: a receive completes, in the order of the posts, with a datagram of the other mailbox.
func (p *program) received(b *mailbox, wc *rdma.WC) {
	if len(b.recvs) == 0 || b.recvs[0].id != wc.ID {
		p.fail("user %d: a datagram's receive completes before its turn: %+v", b.u.i, *wc)
	}
	r := b.recvs[0]
	b.recvs = b.recvs[1:]
	defer b.giveSlot(r.slot)
	if wc.Status != rdma.WCSuccess {
		if wc.Status != rdma.WCFlush || !b.fails {
			p.fail("user %d: a datagram's receive fails: %v", b.u.i, wc.Status)
		}
		return
	}
	n := int(wc.ByteLen) - rdma.NetworkHeaderLen
	if n < 0 || n > mailMost {
		p.fail("user %d: a datagram is received as %+v", b.u.i, *wc)
	}
	whole := b.slot(r.slot)
	got := whole[rdma.NetworkHeaderLen:][:n]
	if p.tamper.Octets != nil {
		p.tamper.Octets(got)
	}
	id := uint64(wc.Imm)
	if wc.Flags&rdma.WCWithImm == 0 && n >= 8 {
		id = binary.LittleEndian.Uint64(got)
	}
	d := p.mailed[1-b.u.i][id]
	if d == nil {
		p.fail("user %d: a datagram that nobody has sent: %+v", b.u.i, *wc)
	}
	want := rdma.WC{ID: r.id, Op: rdma.WCRecv, ByteLen: uint32(rdma.NetworkHeaderLen + d.n),
		QPN: d.to, SrcQP: d.from, Flags: rdma.WCGRH}
	if d.imm {
		want.Flags |= rdma.WCWithImm
		want.Imm = uint32(d.id)
	}
	switch d.came++; {
	case *wc != want:
		p.fail("user %d: datagram %d is received as %+v, want %+v", b.u.i, id, *wc, want)
	case d.never:
		p.fail("user %d: datagram %d has come, whose Q_Key is not the queue pair's", b.u.i, id)
	case d.came > p.timesEach():
		p.fail("user %d: datagram %d has come %d times", b.u.i, id, d.came)
	}
	if at, bad := d.unlike(got); bad {
		p.fail("user %d: octet %d of %d of datagram %d is not what was sent", b.u.i, at, n, id)
	}
	for i, x := range whole[rdma.NetworkHeaderLen+n:][:32] {
		if x != untouched {
			p.fail("user %d: datagram %d of %d octets has changed octet %d", b.u.i, id, n, n+i)
		}
	}
	back, err := rdma.ReplyTo(b.u.ctx, whole[:rdma.NetworkHeaderLen])
	if from := p.users[1-b.u.i].side.addr; err != nil || back.GID.Addr() != from {
		p.fail("user %d: datagram %d is from %v (%v), not from %v", b.u.i, id, back.GID.Addr(), err,
			from)
	}
}

// failMailbox takes b to Error, where all that is posted completes, and back.
func (p *program) failMailbox(b *mailbox) {
	p.pollMail(b)
	b.fails = true
	for _, d := range p.users[1-b.u.i].box.coming {
		d.sure = false
	}
	for _, d := range b.sends {
		d.sure = false
	}
	p.call("modify a QP for datagrams to Error")
	modify := func(to rdma.QPState) {
		p.must("modify", p.block("modify", func() error { return b.qp.ModifyState(to) }))
	}
	modify(rdma.QPError)
	p.w.settle()
	p.pollMail(b)
	if len(b.recvs) > 0 {
		p.fail("user %d: a datagram's receive has never completed", b.u.i)
	}
	for _, d := range b.sends {
		if d.signaled {
			p.fail("user %d: datagram %d has never completed", b.u.i, d.id)
		}
		b.giveSlot(d.src)
	}
	b.sends, b.fails = nil, false
	modify(rdma.QPReset)
	b.toRTS(p)
}

// checkMail: what had to come has.
func (p *program) checkMail(b *mailbox) {
	p.pollMail(b)
	from := p.users[1-b.u.i].box
	left := from.coming[:0]
	for _, d := range from.coming {
		switch {
		case d.came == p.timesEach():
		case time.Since(d.at) < mailTime:
			left = append(left, d)
		case d.sure && d.came == 0:
			p.fail("user %d: datagram %d was sent %v ago over a good network, with a receive for it, "+
				"and has not come", b.u.i, d.id, time.Since(d.at))
		}
	}
	from.coming = left
}

// closedMailbox: b's device is closed.
func (p *program) closedMailbox(b *mailbox) {
	for _, u := range p.users {
		for _, d := range u.box.coming {
			d.sure = false
		}
	}
	p.w.pool.give(b.b)
}
