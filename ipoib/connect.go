package ipoib

import "time"

// Attempts to connect: what an impostor's flags cost (docs/decisions.md#I5).
const (
	maxAttempts = 5 // in vain, behind which a peer is sent datagrams only
	firstPause  = time.Second
)

type connState uint8

const (
	connAsking    connState = iota // a REQ is out
	connReadying                   // its REP is taken
	connAccepting                  // the peer's REQ is taken
	connOpen
	connOver
)

// A Conn is a connection with a peer, or what is to become one.
type Conn struct {
	// Owner is the caller's.
	Owner any

	peer    *peer
	state   connState
	asked   bool   // by this end
	yielded bool   // the peer's request, which has crossed this one, is taken in its place
	mtu     int    // of IP packets
	number  uint64 // of the peers' requests that were taken
}

// MTU is the longest IP packet that c carries, as both ends have agreed; 0 before.
func (c *Conn) MTU() int { return c.mtu }

// Open reports whether packets go over c.
func (c *Conn) Open() bool { return c.state == connOpen }

// A peer is an interface of somebody else's, with as many IP addresses as it has. It has one
// connection at most, of which asking is what this end has begun, and conn what there is.
type peer struct {
	addr       LinkAddr // without flags
	neighbours int      // that it is
	conn       *Conn    // readying, accepting or open
	asking     *Conn    // asking
	failed     int      // attempts in a row
	retry      time.Time
	expected   time.Time // until then its own request may come, for which it has refused one; or zero
	waiting    [][]byte  // too long for datagrams, for as long as there may be a connection
}

// peer is the peer with an address.
func (i *Interface) peer(a LinkAddr) *peer {
	x := i.peers[a]
	if x == nil {
		x = &peer{addr: a}
		i.peers[a] = x
	}
	return x
}

// deciding says that there may be a connection soon.
func (x *peer) deciding() bool {
	return x.asking != nil || x.conn != nil && x.conn.state != connOpen || !x.expected.IsZero()
}

func (x *peer) connState() string {
	switch {
	case x.conn != nil && x.conn.state == connOpen:
		return "open"
	case x.conn != nil && x.conn.state == connAccepting:
		return "accepting"
	case x.deciding():
		return "connecting"
	}
	return "none"
}

// private is what each message that makes a connection says of this end (docs/decisions.md#I7).
func (i *Interface) private() []byte {
	return Private{QPN: i.cfg.QPN, MTU: uint32(i.cfg.MTU + HeaderLen)}.Append(nil)
}

// mayConnect asks n for a connection, if it takes any and there is none.
func (i *Interface) mayConnect(now time.Time, n *neighbour) {
	x := n.peer
	if n.addr.Flags&FlagRC == 0 || x.conn != nil || x.asking != nil || x.failed >= maxAttempts ||
		now.Before(x.retry) {
		return
	}
	if !i.room(now, x) {
		x.retry = now.Add(firstPause)
		return
	}
	c := &Conn{peer: x, state: connAsking, asked: true}
	x.asking = c
	i.conns++
	i.stats.Connects++
	i.output(Output{Kind: OutConnect, Way: Way{Conn: c, To: x.addr}, Service: ServiceID(x.addr.QPN),
		Private: i.private()})
}

// room says whether there may be one more connection, with x. Where there is no more room in all
// the oldest one that is half open makes some.
func (i *Interface) room(now time.Time, x *peer) bool {
	same := 0
	for _, other := range i.peers {
		if other.addr.GID == x.addr.GID && (other.conn != nil || other.asking != nil) {
			same++
		}
	}
	if same >= maxConnsOfGID {
		return false
	}
	if i.conns >= maxConns {
		if _, oldest := i.halfOpen(nil); oldest != nil {
			i.giveWay(now, oldest)
		}
	}
	return i.conns < maxConns
}

// Requested takes a peer's request for a connection, which is owner's. OutAccept or OutReject
// answers it.
func (i *Interface) Requested(now time.Time, gid GID, private []byte, owner any) *Conn {
	c := &Conn{Owner: owner, state: connOver}
	p, ok := ParsePrivate(private)
	from := LinkAddr{QPN: p.QPN, GID: gid}
	if !ok || !from.valid() || from == i.own.Bare() || p.MTU < minMTU4+HeaderLen || !i.up ||
		!i.cfg.Connected || !i.takes(now, from) {
		i.stats.Rejects++
		i.output(Output{Kind: OutReject, Way: Way{Conn: c}, Private: i.private()})
		return c
	}
	x := i.peer(from)
	if x.asking != nil {
		x.asking.yielded = true
	}
	c.peer, c.state, c.mtu = x, connAccepting, i.agreed(p.MTU)
	x.conn, x.expected = c, time.Time{}
	i.conns++
	i.stats.Accepts++
	c.number = i.stats.Accepts
	i.output(Output{Kind: OutAccept, Way: Way{Conn: c, To: from}, Private: i.private()})
	return c
}

// takes says whether a request of from is taken: there is no connection (docs/decisions.md#I3), and
// one that this end has asked for gives way if its address is the smaller one (RFC 4755, section
// 3.3). Where as many are half open as may be, of the network or in all, the oldest makes room
// (docs/decisions.md#I10).
func (i *Interface) takes(now time.Time, from LinkAddr) bool {
	x := i.peers[from]
	if x == nil {
		x = &peer{addr: from}
	}
	if x.conn != nil || x.asking != nil && i.own.Compare(from) >= 0 || !i.room(now, x) {
		return false
	}
	network := from.GID.network()
	if n, oldest := i.halfOpen(&network); n >= maxHalfOpen {
		i.giveWay(now, oldest)
	} else if n, oldest := i.halfOpen(nil); n >= maxHalfOpenInAll {
		i.giveWay(now, oldest)
	}
	return true
}

// halfOpen is how many requests are taken, and not ready yet, and the oldest one: of the ports of a
// network, or if it is nil of all. A network is an IPv6 network of 64 bits, whose addresses a host
// chooses freely, or an IPv4 address.
func (i *Interface) halfOpen(network *GID) (n int, oldest *Conn) {
	for _, x := range i.peers {
		c := x.conn
		if c == nil || c.state != connAccepting || network != nil && x.addr.GID.network() != *network {
			continue
		}
		if n++; oldest == nil || c.number < oldest.number {
			oldest = c
		}
	}
	return n, oldest
}

// giveWay ends one that is half open.
func (i *Interface) giveWay(now time.Time, c *Conn) {
	i.stats.Failures++
	i.output(Output{Kind: OutClose, Way: Way{Conn: c}})
	i.over(now, c)
}

// agreed is the MTU of a connection with a peer of some Receive MTU: the smaller one of both ends,
// less the encapsulation (RFC 4755, section 5.1).
func (i *Interface) agreed(receive uint32) int {
	return int(min(uint32(i.cfg.MTU+HeaderLen), receive)) - HeaderLen
}

// Replied says that the peer has accepted c, with its private data. OutReady or OutReject answers.
func (i *Interface) Replied(now time.Time, c *Conn, private []byte) {
	if c.state != connAsking {
		return
	}
	x := c.peer
	p, ok := ParsePrivate(private)
	if !ok || p.QPN != x.addr.QPN || p.MTU < minMTU4+HeaderLen || x.conn != nil {
		// It is somebody else, or the peer's own request has been taken in place of this one.
		i.stats.Rejects++
		i.output(Output{Kind: OutReject, Way: Way{Conn: c}, Private: i.private()})
		i.over(now, c)
		return
	}
	x.asking, x.conn = nil, c
	c.state, c.mtu = connReadying, i.agreed(p.MTU)
	i.output(Output{Kind: OutReady, Way: Way{Conn: c}, Private: i.private()})
}

// Established says that both ends of c are ready.
func (i *Interface) Established(now time.Time, c *Conn) {
	if c.state != connReadying && c.state != connAccepting {
		return
	}
	c.state = connOpen
	c.peer.failed = 0
	i.resendWaiting(now, c.peer)
}

// resendWaiting sends what has waited for whether there is a connection.
func (i *Interface) resendWaiting(now time.Time, x *peer) {
	for _, p := range i.waited(&x.waiting) {
		h, _ := parseIP(p) // Send has looked
		if n := i.neighbours[h.dst]; n != nil && n.peer == x {
			i.resend(now, n, [][]byte{p})
		} else {
			i.stats.DropUnresolved++
		}
	}
}

// Refused says that the peer does not want c, for reason 28. If its address is the larger one it
// may have asked as well, and where each has a stream of its own the refusal may come before that
// request (RFC 4755, section 3.3).
func (i *Interface) Refused(now time.Time, c *Conn) {
	x := c.peer
	if c.state != connAsking || c.yielded || i.own.Compare(x.addr) > 0 {
		i.Ended(now, c)
		return
	}
	x.over(now, true)
	i.drop(c)
	x.expected = now.Add(firstPause)
	i.due(x.expected)
}

// Ended says that c is over: it was rejected, nobody has answered, it is disconnected, or its queue
// pair has failed.
func (i *Interface) Ended(now time.Time, c *Conn) {
	if c.state == connOver {
		return
	}
	if c.state == connAsking && !c.yielded {
		i.stats.Failures++
	}
	i.over(now, c)
}

// over takes c from its peer.
func (i *Interface) over(now time.Time, c *Conn) {
	x := c.peer
	if !c.yielded { // what a peer has asked for in vain says nothing of it
		x.over(now, c.asked && c.state != connOpen)
	}
	i.drop(c)
	i.undecided(now, x)
}

// over notes that an attempt, or a connection, is over, and when there may be another one.
func (x *peer) over(now time.Time, failed bool) {
	if failed {
		x.failed++
	}
	x.retry = now.Add(firstPause << min(x.failed, maxAttempts))
}

// undecided sends as datagrams what has waited for a connection that does not come.
func (i *Interface) undecided(now time.Time, x *peer) {
	if !x.deciding() {
		i.resendWaiting(now, x)
	}
	i.tidy(x)
}

// expireExpected gives up waiting for peers' requests.
func (i *Interface) expireExpected(now time.Time) {
	for _, x := range i.peers {
		switch {
		case x.expected.IsZero():
		case now.Before(x.expected):
			i.due(x.expected)
		default:
			x.expected = time.Time{}
			i.stats.Failures++
			i.undecided(now, x)
		}
	}
}

// drop ends c in the tables.
func (i *Interface) drop(c *Conn) {
	x := c.peer
	c.state = connOver
	if x.asking == c {
		x.asking = nil
	}
	if x.conn == c {
		x.conn = nil
	}
	i.conns--
}

// tidy forgets a peer that there is nothing to know of.
func (i *Interface) tidy(x *peer) {
	if x.neighbours == 0 && x.conn == nil && x.asking == nil {
		delete(i.peers, x.addr)
	}
}

// disconnect ends what there is with a peer.
func (i *Interface) disconnect(x *peer) {
	for _, c := range []*Conn{x.asking, x.conn} {
		if c != nil {
			i.drop(c)
			i.output(Output{Kind: OutClose, Way: Way{Conn: c}})
		}
	}
	x.expected = time.Time{}
	i.stats.DropUnresolved += uint64(len(i.waited(&x.waiting)))
	i.tidy(x)
}

// Close ends all connections and leaves all groups: the interface is no more.
func (i *Interface) Close() {
	i.up = false
	for _, x := range i.peers {
		i.disconnect(x)
	}
	for _, n := range i.neighbours {
		i.stats.DropUnresolved += uint64(len(i.waited(&n.waiting)))
	}
	clear(i.neighbours)
	clear(i.peers)
	for id := range i.groups.joined {
		i.output(Output{Kind: OutLeave, Way: Way{To: LinkAddr{GID: id}}})
	}
	clear(i.groups.joined)
}
