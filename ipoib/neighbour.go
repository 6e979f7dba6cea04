package ipoib

import (
	"net/netip"
	"slices"
	"time"
)

// Times of resolution: as RFC 4861 has them.
const (
	reachableTime = 30 * time.Second // for which an answer holds
	retransTime   = time.Second
	maxSolicits   = 3
	// idleTime is when a neighbour that nobody sends to is forgotten.
	idleTime = 10 * time.Minute
)

type neighbourState uint8

const (
	resolving neighbourState = iota // nothing is known, what is to be sent waits
	reachable                       // until due it is, and then perhaps: whoever sends asks
	probing                         // it is asked whether it is still there
)

// A neighbour is an IP address of the link, and who has it.
type neighbour struct {
	ip      netip.Addr
	addr    LinkAddr
	peer    *peer // nil while nothing is known
	state   neighbourState
	due     time.Time // when the state has to change
	asked   int
	last    time.Time // something was sent to it
	waiting [][]byte
}

// known says that packets can go to n.
func (n *neighbour) known() bool { return n.state != resolving }

// find is the neighbour with an address, of whatever network (docs/decisions.md#I4), which is asked
// for if it is new; nil: there is no room.
func (i *Interface) find(now time.Time, ip netip.Addr) *neighbour {
	if n := i.neighbours[ip]; n != nil {
		return n
	}
	n := i.newNeighbour(now, ip)
	if n != nil {
		i.probe(now, n)
	}
	return n
}

// newNeighbour has room made by who was used longest ago.
func (i *Interface) newNeighbour(now time.Time, ip netip.Addr) *neighbour {
	if len(i.neighbours) >= maxNeighbours {
		var oldest *neighbour
		for _, n := range i.neighbours {
			if n.known() && (oldest == nil || n.last.Before(oldest.last)) {
				oldest = n
			}
		}
		if oldest == nil {
			i.stats.DropNeighbours++
			return nil
		}
		i.forget(oldest)
	}
	n := &neighbour{ip: ip}
	i.neighbours[ip] = n
	i.due(now.Add(idleTime))
	return n
}

// due has Expire called at that time at the latest.
func (i *Interface) due(at time.Time) {
	if i.wake.IsZero() || at.Before(i.wake) {
		i.wake = at
	}
}

// probe asks for n, all or the one it was.
func (i *Interface) probe(now time.Time, n *neighbour) {
	n.asked++
	n.due = now.Add(retransTime)
	i.due(n.due)
	if n.state == resolving {
		i.ask(n.ip, nil)
		return
	}
	to := n.addr.Bare()
	i.ask(n.ip, &to)
}

// used notes that something goes to n, and asks whether n is still there if it has not said so for
// long: queue pairs have other numbers when a peer begins anew (RFC 4391, section 9.4).
func (i *Interface) used(now time.Time, n *neighbour) {
	n.last = now
	if n.state == reachable && !now.Before(n.due) {
		n.state, n.asked = probing, 0
		i.probe(now, n)
	}
}

// learn notes that a has ip. Who is not a neighbour becomes one with create.
func (i *Interface) learn(now time.Time, ip netip.Addr, a LinkAddr, create bool) {
	if !i.cfg.Connected {
		a.Flags = 0
	}
	n := i.neighbours[ip]
	if n == nil {
		if !create {
			return
		}
		if n = i.newNeighbour(now, ip); n == nil {
			return
		}
	}
	if n.peer != nil && n.addr.Bare() != a.Bare() {
		i.release(n)
	}
	if n.peer == nil {
		n.peer = i.peer(a.Bare())
		n.peer.neighbours++
	}
	n.addr = a
	n.state, n.due, n.asked = reachable, now.Add(reachableTime), 0
	i.resend(now, n, i.waited(&n.waiting))
}

// release takes n from its peer. A peer that nobody sends to any more has no connection, either.
func (i *Interface) release(n *neighbour) {
	x := n.peer
	n.peer = nil
	if x == nil {
		return
	}
	if x.neighbours--; x.neighbours == 0 {
		i.disconnect(x)
	}
}

// forget gives a neighbour up, and what waits for it.
func (i *Interface) forget(n *neighbour) {
	delete(i.neighbours, n.ip)
	for _, p := range i.waited(&n.waiting) {
		h, _ := parseIP(p) // Send has looked
		i.stats.DropUnresolved++
		i.complain(p, &h, unreachable, 0)
	}
	i.release(n)
}

// Deadline is when Expire is to be called next; false: never.
func (i *Interface) Deadline() (time.Time, bool) { return i.wake, !i.wake.IsZero() }

// Expire does what is due.
func (i *Interface) Expire(now time.Time) {
	if i.wake.IsZero() || now.Before(i.wake) {
		return
	}
	i.wake = time.Time{}
	i.expireExpected(now)
	for _, n := range i.byAddress() {
		switch {
		case n.state == reachable:
			idle := n.due.Add(idleTime)
			if !now.Before(idle) {
				i.forget(n)
			} else {
				i.due(idle)
			}
		case now.Before(n.due):
			i.due(n.due)
		case n.asked < maxSolicits:
			i.probe(now, n)
		default:
			i.forget(n)
		}
	}
}

// byAddress are the neighbours in the order of their addresses.
func (i *Interface) byAddress() []*neighbour {
	all := make([]*neighbour, 0, len(i.neighbours))
	for _, n := range i.neighbours {
		all = append(all, n)
	}
	slices.SortFunc(all, func(a, b *neighbour) int { return a.ip.Compare(b.ip) })
	return all
}

// A NeighbourInfo is a neighbour as tools show it.
type NeighbourInfo struct {
	IP    netip.Addr
	Addr  LinkAddr
	State string // resolving, reachable, stale, probing
	MTU   int    // of IP packets to it
	Conn  string // none, connecting, accepting, open
}

var neighbourStates = [...]string{resolving: "resolving", reachable: "reachable",
	probing: "probing"}

// Neighbours are the neighbours, in the order of their addresses.
func (i *Interface) Neighbours(now time.Time) []NeighbourInfo {
	var infos []NeighbourInfo
	for _, n := range i.byAddress() {
		info := NeighbourInfo{IP: n.ip, Addr: n.addr, State: neighbourStates[n.state],
			MTU: i.cfg.LinkMTU, Conn: "none"}
		if n.state == reachable && !now.Before(n.due) {
			info.State = "stale"
		}
		if n.peer != nil {
			info.Conn = n.peer.connState()
			if c := n.peer.conn; c != nil && c.state == connOpen {
				info.MTU = max(info.MTU, c.mtu)
			}
		}
		infos = append(infos, info)
	}
	return infos
}
