package ipoib

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"
)

// A world is interfaces on a link, in the test's time. What they send is kept until run.
type world struct {
	t     *testing.T
	now   time.Time
	nodes []*node
	queue []func()
	cut   bool // nothing arrives
}

// A node is an interface, and what its host has got.
type node struct {
	*Interface
	w      *world
	host   [][]byte
	sent   []Output // OutSend, in order
	groups map[GID]bool
	tries  []*try // connections that it has part in, the oldest first
}

// A try is the messages of one connection.
type try struct {
	from, to *node
	a, p     *Conn // of who asks, and who is asked
	request  []byte
	answer   []byte // of REP or REJ
	rejected bool
}

func newWorld(t *testing.T) *world {
	return &world{t: t, now: time.Unix(1e9, 0)}
}

// gid is a port's: link-local.
func gid(n byte) GID { return GID{0: 0xfe, 1: 0x80, 8: 2, 15: n} }

// add makes node n, 10.0.0.n and fd00::n, with UD queue pair n<<8.
func (w *world) add(n byte, change func(*Config)) *node {
	w.t.Helper()
	c := Config{QPN: uint32(n) << 8, GID: gid(n), PKey: 0xffff, Scope: 2, LinkMTU: 2044,
		Connected: true, MTU: 65520, Addrs: []netip.Prefix{
			netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, n}), 24),
			netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 15: n}), 64),
		}}
	if change != nil {
		change(&c)
	}
	x := &node{Interface: New(c), w: w, groups: map[GID]bool{}}
	w.nodes = append(w.nodes, x)
	w.run()
	return x
}

func (n *node) ip4() netip.Addr { return n.cfg.Addrs[0].Addr() }
func (n *node) ip6() netip.Addr { return n.cfg.Addrs[1].Addr() }

// run has all arrive that is on its way, and what that leads to.
func (w *world) run() {
	w.t.Helper()
	for range 10000 {
		for _, n := range w.nodes {
			n.take()
		}
		if len(w.queue) == 0 {
			return
		}
		f := w.queue[0]
		w.queue = w.queue[1:]
		f()
	}
	w.t.Fatal("it does not come to rest")
}

// pass lets time go by, with what is due in it.
func (w *world) pass(d time.Duration) {
	w.t.Helper()
	end := w.now.Add(d)
	for {
		next := end
		for _, n := range w.nodes {
			if at, ok := n.Deadline(); ok && at.Before(next) {
				next = at
			}
		}
		if next.After(w.now) {
			w.now = next
		}
		for _, n := range w.nodes {
			n.Expire(w.now)
		}
		w.run()
		if !w.now.Before(end) {
			return
		}
	}
}

// take has the outputs of n be on their way.
func (n *node) take() {
	for n.Pending() {
		for _, o := range n.Outputs() {
			n.do(o)
		}
	}
}

func (n *node) do(o Output) {
	w := n.w
	switch o.Kind {
	case OutSend:
		n.transmit(o.Way, o.Frame)
	case OutDeliver:
		n.host = append(n.host, o.Frame)
	case OutJoin:
		n.groups[o.To.GID] = true
		if o.To.GID == n.broadcast.GID {
			n.Joined()
		}
	case OutLeave:
		delete(n.groups, o.To.GID)
	case OutConnect:
		x := &try{from: n, a: o.Conn, request: o.Private}
		o.Conn.Owner = x
		n.tries = append(n.tries, x)
		if o.Service != ServiceID(o.To.QPN) {
			w.t.Errorf("service %#x for queue pair %#x", o.Service, o.To.QPN)
		}
		w.queue = append(w.queue, func() { w.ask(x, o.To) })
	case OutAccept, OutReady, OutReject, OutClose:
		n.answer(o)
	}
}

// ask brings a request to who serves.
func (w *world) ask(x *try, to LinkAddr) {
	for _, n := range w.nodes {
		if n.own.Bare() == to && !w.cut {
			x.to = n
			n.tries = append(n.tries, x)
			x.p = n.Requested(w.now, x.from.cfg.GID, x.request, x)
			return
		}
	}
	x.from.Ended(w.now, x.a) // nobody answers
}

func (n *node) answer(o Output) {
	w, x := n.w, o.Conn.Owner.(*try)
	if o.Kind != OutClose {
		p, ok := ParsePrivate(o.Private)
		if !ok || p.QPN != n.cfg.QPN || p.MTU != uint32(n.cfg.MTU)+4 || len(o.Private) != 8 {
			w.t.Errorf("private data % x of a message of %v", o.Private, n.own)
		}
	}
	other, theirs := x.to, x.p
	if o.Conn == x.p {
		other, theirs = x.from, x.a
	}
	switch o.Kind {
	case OutAccept:
		x.answer = o.Private
		w.queue = append(w.queue, func() { x.from.Replied(w.now, x.a, o.Private) })
	case OutReady:
		w.queue = append(w.queue, func() {
			x.from.Established(w.now, x.a)
			x.to.Established(w.now, x.p)
		})
	default: // OutReject, OutClose
		x.answer, x.rejected = o.Private, true
		w.queue = append(w.queue, func() { other.Refused(w.now, theirs) })
	}
}

// transmit has a frame be on its way.
func (n *node) transmit(way Way, frame []byte) {
	w := n.w
	n.sent = append(n.sent, Output{Kind: OutSend, Way: way, Frame: frame})
	w.queue = append(w.queue, func() {
		for _, m := range w.nodes {
			var p []byte
			switch {
			case w.cut:
			case way.Conn != nil:
				x := way.Conn.Owner.(*try)
				if m == x.to && way.Conn == x.a {
					p = m.ReceiveConnected(w.now, x.p, frame)
				} else if m == x.from && way.Conn == x.p {
					p = m.ReceiveConnected(w.now, x.a, frame)
				}
			case way.To.QPN == MaxQPN && m.groups[way.To.GID],
				way.To.GID == m.cfg.GID && way.To.QPN == m.cfg.QPN:
				p = m.ReceiveDatagram(w.now, n.cfg.GID, n.cfg.QPN, frame)
			}
			if p != nil {
				m.host = append(m.host, bytes.Clone(p))
			}
		}
	})
}

// sends has the host of n send p.
func (n *node) sends(p []byte) {
	if way, ok := n.Send(n.w.now, p); ok {
		n.transmit(way, frame(TypeOf(p), p))
	}
}

// packet is an IP packet of n octets: UDP's protocol number, and nothing of it.
func packet(src, dst netip.Addr, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)
	}
	if src.Is4() {
		copy(b, []byte{0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 17, 0, 0})
		binary.BigEndian.PutUint16(b[2:], uint16(n))
		copy(b[12:], src.AsSlice())
		copy(b[16:], dst.AsSlice())
		binary.BigEndian.PutUint16(b[10:], sum(0, b[:20]))
		return b
	}
	copy(b, []byte{0x60, 0, 0, 0, 0, 0, 17, 64})
	binary.BigEndian.PutUint16(b[4:], uint16(n-40))
	copy(b[8:], src.AsSlice())
	copy(b[24:], dst.AsSlice())
	return b
}

// wantHost wants the host of n to have got packets, and takes them.
func (n *node) wantHost(why string, want ...[]byte) {
	n.w.t.Helper()
	n.w.run()
	if len(n.host) != len(want) {
		n.w.t.Fatalf("%s: %d packets, want %d: %x", why, len(n.host), len(want), n.host)
	}
	for i := range want {
		if !bytes.Equal(n.host[i], want[i]) {
			n.w.t.Fatalf("%s: packet %d is\n% x, want\n% x", why, i, n.host[i], want[i])
		}
	}
	n.host = nil
}

// last is what n has sent last.
func (n *node) last() Output {
	n.w.t.Helper()
	if len(n.sent) == 0 {
		n.w.t.Fatal("nothing was sent")
	}
	return n.sent[len(n.sent)-1]
}
