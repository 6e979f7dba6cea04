package vnic

import (
	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/internal/cm"
	"github.com/vrnic/vrnic/vnic/internal/link"
	"github.com/vrnic/vrnic/vnic/internal/link/loop"
	"github.com/vrnic/vrnic/vnic/internal/llp"
	"github.com/vrnic/vrnic/vnic/internal/mem"
	"github.com/vrnic/vrnic/vnic/internal/wqe"
)

// Copy stands for a copy of another QP's owner that is under way in m until end is called.
func Copy(m *MR) (end func(), ok bool) {
	if !m.Pin() {
		return nil, false
	}
	return m.Unpin, true
}

// HandOver has what is connected within c's device handed over, as the first request that needs
// memory that can block does. It waits until nobody copies for both ends any more.
func (c *Context) HandOver() error {
	for _, qp := range c.qpList() {
		var done <-chan struct{}
		qp.do(func() {
			if l, ok := qp.link.(*loop.End); ok {
				done = l.HandOver()
			}
		})
		if done == nil {
			continue
		}
		select {
		case <-done:
		case <-c.stop:
			return rdma.ErrClosed
		}
	}
	return nil
}

// HandedOver reports whether qp was connected within its device and is no more.
func (qp *QP) HandedOver() (yes bool) {
	qp.do(func() {
		_, stays := qp.link.(*loop.End)
		yes = qp.link != nil && !stays && qp.peek.Load().llp.Transport == llp.Memory
	})
	return yes
}

const (
	LongMessage  = mem.LongMessage
	StepMessages = wqe.StepMessages
)

// Feed has qp, which is connected within its device, look for the receive that its peer's Send
// waits for.
func (qp *QP) Feed() { qp.do(func() { qp.link.(*loop.End).Feed() }) }

// Counted is what qp has counted.
func (qp *QP) Counted() Counters { return qp.work.Stats.Snapshot() }

// Join joins a and b, which are Idle, by links of the caller's, as the connection manager does.
func Join(a, b *QP, links func(a, b link.QP) (x, y link.Link)) {
	x, y := links((*linked)(a), (*linked)(b))
	join := func(qp *QP, l link.Link) {
		qp.do(func() {
			qp.bound.Store(new(cm.Attempt))
			qp.param = iwarp.Params{IRD: 8, ORD: 8}
			(*linked)(qp).Replace(l)
			qp.work.Begin(true, true)
			qp.mustState(rdma.QPRTS)
			l.Open()
		})
	}
	join(a, x)
	join(b, y)
}

// Receiver is what takes the packets of a RoCE device.
func (d *Device) Receiver() RoCEReceiver { return d.roce }

// Hold has nobody run qp while f does.
func (qp *QP) Hold(f func()) { qp.do(f) }
