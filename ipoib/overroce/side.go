package overroce

import (
	"github.com/vrnic/vrnic/ipoib"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
)

// A side is what an interface has of a device. One has two of them if its connections are another
// device's than its datagrams.
type side struct {
	ctx      *vnic.Context
	pd       rdma.PD
	sendCQ   rdma.CQ
	recvCQ   rdma.CQ
	slots    rdma.MR
	receives []*receives // that complete on recvCQ
}

// openSide opens a device for depth receives; happened may be nil.
func (l *Link) openSide(d *vnic.Device, depth int, happened func(rdma.AsyncEvent)) (*side, error) {
	ctx, err := d.Open(vnic.ContextConfig{Comm: "ipoib " + l.cfg.Name, Privileged: true,
		OnAsync: happened})
	if err != nil {
		return nil, err
	}
	s := &side{ctx: ctx}
	l.sides = append(l.sides, s)
	if s.pd, err = ctx.AllocPD(); err != nil {
		return nil, err
	}
	if s.sendCQ, err = ctx.CreateCQ(l.slots.n); err != nil {
		return nil, err
	}
	if s.recvCQ, err = ctx.CreateCQ(depth); err != nil {
		return nil, err
	}
	return s, l.slots.register(s)
}

// open makes the queues and the memory.
func (l *Link) open() error {
	c := &l.cfg
	l.slots = newSlots(ipoib.HeaderLen + c.MTU)
	size := rdma.NetworkHeaderLen + ipoib.HeaderLen + c.LinkMTU
	connectedSize := ipoib.HeaderLen + c.MTU
	depth, happened := room(size), l.happened
	switch {
	case c.Streams != nil:
		happened = nil // the numbers of its queue pairs are other ones
	case c.Connected:
		depth += room(connectedSize)
	}
	ud, err := l.openSide(c.Device, depth, happened)
	if err != nil {
		return err
	}
	l.connSide = ud
	if c.Streams != nil && c.Connected {
		if l.connSide, err = l.openSide(c.Streams, room(connectedSize), l.happened); err != nil {
			return err
		}
	}
	if c.Connected {
		if err := l.openSRQ(connectedSize); err != nil {
			return err
		}
	}
	return l.openUD(ud, size)
}

// openSRQ makes the receives of connections.
func (l *Link) openSRQ(size int) (err error) {
	s := l.connSide
	if l.connected, err = newReceives(s.pd, size, connectedID); err != nil {
		return err
	}
	l.srq, err = s.pd.CreateSRQ(rdma.SRQConfig{MaxWR: l.connected.n, MaxSGE: 1})
	if err != nil {
		return err
	}
	s.receives = append(s.receives, l.connected)
	return l.connected.postAll(l.srq)
}

// openUD makes the UD queue pair.
func (l *Link) openUD(s *side, size int) (err error) {
	if l.datagrams, err = newReceives(s.pd, size, 0); err != nil {
		return err
	}
	s.receives = append(s.receives, l.datagrams)
	qp, err := s.pd.CreateQP(rdma.QPConfig{Type: rdma.UD, SendCQ: s.sendCQ, RecvCQ: s.recvCQ,
		MaxSendWR: l.slots.n, MaxRecvWR: l.datagrams.n, MaxSendSGE: 1, MaxRecvSGE: 1, SignalAll: true})
	if err != nil {
		return err
	}
	l.ud = &sender{QP: qp, slots: s.slots}
	for _, step := range []struct {
		to   rdma.QPState
		mask rdma.QPAttrMask
	}{
		{rdma.QPInit, rdma.AttrPKeyIndex | rdma.AttrPort | rdma.AttrQKey},
		{rdma.QPRTR, 0},
		{rdma.QPRTS, rdma.AttrSQPSN},
	} {
		a := rdma.QPAttr{State: step.to, Port: 1, QKey: l.cfg.QKey}
		if err := qp.Modify(&a, rdma.AttrState|step.mask); err != nil {
			return err
		}
		if step.to == rdma.QPInit {
			if err := l.datagrams.postAll(qp); err != nil {
				return err
			}
		}
	}
	return nil
}

// newQP makes the queue pair of a connection.
func (l *Link) newQP(c *conn) error {
	s := l.connSide
	qp, err := s.pd.CreateQP(rdma.QPConfig{Type: rdma.RC, SendCQ: s.sendCQ, RecvCQ: s.recvCQ,
		SRQ: l.srq, MaxSendWR: l.slots.n, MaxSendSGE: 1, SignalAll: true})
	if err != nil {
		return err
	}
	c.qp = &sender{QP: qp, slots: s.slots, conn: c}
	return nil
}
