package overroce

import (
	"time"

	"github.com/vrnic/vrnic/ipoib"
	"github.com/vrnic/vrnic/rdma"
)

// send reads the host's packets and sends them until l ends, those that have come together at once.
// It begins when the broadcast group is joined.
func (l *Link) send() {
	var p postings
	stuck := time.NewTimer(stuckTime)
	defer stuck.Stop()
	for {
		i := l.takeSlot(stuck)
		if i < 0 {
			return
		}
		b := l.slots.buffer(i)
		n, err := l.host.Read(b[ipoib.HeaderLen:])
		if err != nil {
			if l.life.Err() == nil {
				l.log.Warn("the host sends nothing any more", "err", err)
			}
			l.slots.drop(i)
			return
		}
		l.pass(&p, i, n)
		if !l.host.More() || !l.slots.plenty() {
			l.flush(&p)
		}
	}
}

// pass adds the packet of n octets in a slot to p, or has it go otherwise.
func (l *Link) pass(p *postings, i, n int) {
	b := l.slots.buffer(i)
	packet := b[ipoib.HeaderLen : ipoib.HeaderLen+n]
	l.mu.Lock()
	w, ok := l.iface.Send(time.Now(), packet)
	l.pendingLocked()
	l.mu.Unlock()
	if !ok {
		l.slots.drop(i)
		return
	}
	ipoib.PutHeader(b, ipoib.TypeOf(packet))
	qp, to, ok := l.route(i, ipoib.HeaderLen+n, w)
	if !ok {
		return
	}
	if p.qp != qp || p.n == len(p.wrs) {
		l.flush(p)
	}
	p.qp = qp
	p.wrs[p.n] = *l.slots.request(i, ipoib.HeaderLen+n, qp, to)
	p.n++
}

// postings are requests for one queue pair.
type postings struct {
	qp  *sender
	wrs [batch]rdma.SendWR
	n   int
}

// flush posts p.
func (l *Link) flush(p *postings) {
	if p.n == 0 {
		return
	}
	if lost := p.n - l.slots.post(p.qp, p.wrs[:p.n]); lost > 0 {
		l.drop(func(d *Drops) { d.Refused += uint64(lost) })
	}
	p.n, p.qp = 0, nil
}

// stuckTime is for how long nothing is sent before connections end that hold all slots: their peers
// take nothing, and neither streams nor RNR retries need have an end.
const stuckTime = 10 * time.Second

// takeSlot waits for a slot; -1: l ends. stuck is for it alone.
func (l *Link) takeSlot(stuck *time.Timer) int {
	for {
		if i := l.trySlot(); i >= 0 {
			return i
		}
		for _, s := range l.sides {
			if s.sendCQ.Arm(false) != nil {
				return -1
			}
		}
		if i := l.trySlot(); i >= 0 { // what was sent before the CQs were armed
			return i
		}
		stuck.Reset(stuckTime)
		select {
		case <-l.slots.freed:
		case <-stuck.C:
			l.failed(l.slots.holders())
		case <-l.life.Done():
			return -1
		}
	}
}

// trySlot is a slot, -1: there is none.
func (l *Link) trySlot() int {
	i, failed := l.slots.take()
	l.failed(failed)
	return i
}

// complete takes back what has been sent where nobody else does: what has failed, and what there
// are no other buffers for.
func (l *Link) complete(s *side) {
	for {
		err := s.sendCQ.Arm(true)
		l.failed(l.slots.reap())
		if err == nil {
			err = s.sendCQ.Wait(l.life)
		}
		if err != nil {
			return
		}
	}
}

// failed has the connections of queue pairs end.
func (l *Link) failed(qps []*sender) {
	if len(qps) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, qp := range qps {
		if qp.conn != nil {
			l.newsLocked(news{failed: qp.conn})
		}
	}
}

// route is whose queue pair sends n octets of a slot, and to whom; false: it has to be found out,
// and the slot is free.
func (l *Link) route(i, n int, w ipoib.Way) (*sender, rdma.Datagram, bool) {
	if w.Conn != nil {
		return w.Conn.Owner.(*conn).qp, rdma.Datagram{}, true
	}
	ah := l.ways.find(w.To.GID)
	if ah == 0 {
		l.ways.look(w, l.slots.buffer(i)[:n])
		l.slots.drop(i)
		return nil, rdma.Datagram{}, false
	}
	return l.ud, rdma.Datagram{AH: ah, QPN: w.To.QPN, QKey: ownQKey}, true
}

// post sends n octets of a slot, or drops them.
func (l *Link) post(i, n int, w ipoib.Way) {
	qp, to, ok := l.route(i, n, w)
	if !ok {
		return
	}
	l.slots.request(i, n, qp, to)
	if l.slots.post(qp, l.slots.wrs[i:i+1]) == 0 {
		l.drop(func(d *Drops) { d.Refused++ })
	}
}

// ownQKey has a datagram carry the queue pair's own Q_Key.
const ownQKey = 1 << 31

func (l *Link) drop(count func(*Drops)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	count(&l.lost)
}

// sendFrame sends a frame that the Interface has made.
func (l *Link) sendFrame(w ipoib.Way, frame []byte) {
	i := l.trySlot()
	if i < 0 {
		l.drop(func(d *Drops) { d.NoBuffer++ })
		return
	}
	l.post(i, copy(l.slots.buffer(i), frame), w)
}
