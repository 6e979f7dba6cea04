package overroce

import (
	"time"

	"github.com/vrnic/vrnic/ipoib"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
)

// A conn is a connection, or what may become one.
type conn struct {
	c  *ipoib.Conn
	at attempt
	qp *sender // nil of a request that is not taken
}

// news is something for the goroutine that manages; one of the fields.
type news struct {
	event  *event
	heard  *conn // a packet of its peer has come
	failed *conn // its queue pair has failed
}

// +checklocks:l.mu
func (l *Link) newsLocked(n news) {
	l.news = append(l.news, n)
	l.rouse()
}

// happened takes an asynchronous event.
func (l *Link) happened(e rdma.AsyncEvent) {
	switch e.Type {
	case rdma.EventQPFatal, rdma.EventQPReqErr, rdma.EventQPAccessErr:
		l.mu.Lock()
		defer l.mu.Unlock()
		if c := l.byQPN[e.Object]; c != nil {
			l.newsLocked(news{failed: c})
		}
	default: // of no connection
	}
}

// manage does what the Interface wants done, until l ends.
func (l *Link) manage() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		for l.turn(timer) {
		}
		select {
		case <-l.wake:
		case <-timer.C:
		case <-l.life.Done():
			l.finish()
			l.shutDown()
			return
		}
	}
}

// turn does what there is to do now; false: there was nothing.
func (l *Link) turn(timer *time.Timer) bool {
	l.mu.Lock()
	all := l.news
	l.news = nil
	l.mu.Unlock()
	for i := range all {
		l.hear(&all[i])
	}
	now := time.Now()
	l.mu.Lock()
	l.iface.Expire(now)
	outputs := l.iface.Outputs()
	at, ok := l.iface.Deadline()
	l.mu.Unlock()
	if ok {
		timer.Reset(at.Sub(now))
	}
	for i := range outputs {
		l.do(&outputs[i])
	}
	return len(all)+len(outputs) > 0
}

// hear tells the Interface what has happened.
func (l *Link) hear(n *news) {
	now := time.Now()
	switch {
	case n.heard != nil:
		n.heard.at.Heard()
		return
	case n.failed != nil:
		l.over(now, n.failed)
		return
	}
	e := n.event
	if e.kind == vnic.ServiceRequest {
		c := &conn{at: e.attempt}
		l.conns[e.attempt] = c
		l.mu.Lock()
		c.c = l.iface.Requested(now, e.peer, e.private, c)
		l.mu.Unlock()
		return
	}
	c := l.conns[e.attempt]
	if c == nil { // closed meanwhile
		return
	}
	switch e.kind {
	case vnic.ServiceReplied:
		l.mu.Lock()
		l.iface.Replied(now, c.c, e.private)
		l.mu.Unlock()
	case vnic.ServiceEstablished:
		l.mu.Lock()
		l.iface.Established(now, c.c)
		l.mu.Unlock()
	default:
		if e.kind == vnic.ServiceRejected && e.reason == ipoib.ReasonConsumer {
			l.mu.Lock()
			l.iface.Refused(now, c.c)
			l.mu.Unlock()
		}
		l.log.Debug("a connection has ended", "peer", e.peer.Addr(), "event", e.kind,
			"reason", e.reason)
		l.over(now, c)
	}
}

// over ends a connection that cannot go on.
func (l *Link) over(now time.Time, c *conn) {
	l.mu.Lock()
	l.iface.Ended(now, c.c)
	l.mu.Unlock()
	l.close(c)
}

// close closes what c is made of. A second call does nothing.
func (l *Link) close(c *conn) {
	if l.conns[c.at] != c {
		return
	}
	delete(l.conns, c.at)
	c.at.Close()
	if c.qp == nil {
		return
	}
	l.unknown(c)
	if err := l.slots.close(c.qp); err != nil {
		l.log.Debug("close a queue pair", "err", err)
	}
}

// do does what the Interface wants done.
func (l *Link) do(o *ipoib.Output) {
	switch o.Kind {
	case ipoib.OutSend:
		l.sendFrame(o.Way, o.Frame)
	case ipoib.OutDeliver:
		if _, err := l.host.Write(o.Frame); err != nil {
			l.drop(func(d *Drops) { d.Host++ })
		}
	case ipoib.OutJoin:
		l.join(o.To.GID)
	case ipoib.OutLeave:
		if err := l.ud.DetachMulticast(rdma.GID(o.To.GID)); err != nil {
			l.log.Warn("leave a group", "gid", o.To.GID.Addr(), "err", err)
		}
	case ipoib.OutConnect:
		l.connect(o)
	case ipoib.OutReady, ipoib.OutAccept:
		l.agree(o)
	case ipoib.OutReject:
		c := o.Conn.Owner.(*conn)
		c.at.Reject(o.Private)
		l.close(c)
	case ipoib.OutClose:
		if c, ok := o.Conn.Owner.(*conn); ok { // else it has failed already
			l.close(c)
		}
	}
}

func (l *Link) join(g ipoib.GID) {
	if err := l.ud.AttachMulticast(rdma.GID(g)); err != nil {
		l.log.Warn("join a group", "gid", g.Addr(), "err", err) // RFC 4391, section 12
		return
	}
	if g == ipoib.BroadcastGID(l.cfg.PKey, l.cfg.Scope) {
		l.mu.Lock()
		l.iface.Joined()
		l.mu.Unlock()
		l.wg.Go(l.send)
	}
}

// connect asks a peer for a connection.
func (l *Link) connect(o *ipoib.Output) {
	c := &conn{c: o.Conn}
	err := l.newQP(c)
	if err == nil {
		l.known(c) // what comes as soon as there is a connection is of it
		c.at, err = l.carrier.connect(o, c.qp.QP)
	}
	if err != nil {
		l.log.Warn("connect", "peer", o.To.GID.Addr(), "err", err)
		if c.qp != nil {
			l.unknown(c)
			_ = c.qp.Close() // nothing was posted to it
		}
		l.mu.Lock()
		l.iface.Ended(time.Now(), o.Conn)
		l.mu.Unlock()
		return
	}
	o.Conn.Owner = c
	l.conns[c.at] = c
}

// known has what comes by c's queue pair be of c.
func (l *Link) known(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.byQPN[c.qp.Num()] = c
}

// unknown takes that back.
func (l *Link) unknown(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.byQPN, c.qp.Num())
}

// agree readies the queue pair of a connection on which the ends have agreed, and tells the peer.
// It waits for the way to the peer on a goroutine of its own.
func (l *Link) agree(o *ipoib.Output) {
	c, private := o.Conn.Owner.(*conn), o.Private
	if l.conns[c.at] != c { // its peer has given it up behind this
		return
	}
	f := func() error { return c.at.Ready(c.qp.QP, private) }
	if o.Kind == ipoib.OutAccept {
		if err := l.newQP(c); err != nil {
			l.log.Warn("accept", "peer", o.To.GID.Addr(), "err", err)
			l.over(time.Now(), c)
			return
		}
		l.known(c)
		f = func() error { return c.at.Accept(c.qp.QP, true, private) }
	}
	l.wg.Go(func() {
		if err := f(); err != nil {
			l.log.Debug("connect", "err", err)
			l.mu.Lock()
			defer l.mu.Unlock()
			l.newsLocked(news{failed: c})
		}
	})
}

// finish ends all: peers hear of it, and groups are left.
func (l *Link) finish() {
	l.mu.Lock()
	l.iface.Close()
	outputs := l.iface.Outputs()
	l.mu.Unlock()
	for i := range outputs {
		if k := outputs[i].Kind; k == ipoib.OutClose || k == ipoib.OutLeave {
			l.do(&outputs[i])
		}
	}
	for _, c := range l.conns {
		l.close(c)
	}
}
