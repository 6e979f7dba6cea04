package ipoib

import (
	"net/netip"
	"slices"
	"time"
)

// A Config describes an Interface.
type Config struct {
	QPN uint32 // of the UD queue pair
	GID GID    // of the port: its subnet prefix and its GUID
	// Addrs are the addresses that the interface answers for; the first of each family asks.
	Addrs []netip.Prefix
	// PKey and Scope make the groups of the link. LinkMTU is the longest IP packet in a datagram: that
	// of the broadcast group, less the encapsulation.
	PKey    uint16
	Scope   uint8
	LinkMTU int
	// Connected has it make and take connections, with neighbours that do; MTU is the longest IP
	// packet at all then.
	Connected bool
	MTU       int
}

// Bounds of what an Interface keeps for others.
const (
	maxNeighbours = 4096
	maxConns      = 1024
	maxConnsOfGID = 16 // one port can have several interfaces
	// Requests that are taken, and not ready yet, of one network's ports, and in all: fewer than who
	// carries them lets through.
	maxHalfOpen      = 128
	maxHalfOpenInAll = 512
	maxWaiting       = 64       // packets that wait for a neighbour
	maxKept          = 16 << 20 // octets of all packets that wait
	maxOutputs       = 4096     // frames that nobody has taken yet
)

// An OutputKind says what is to be done.
type OutputKind uint8

const (
	OutSend    OutputKind = iota // send Frame the Way
	OutDeliver                   // Frame is an IP packet for the host
	OutJoin                      // the group To.GID, and tell by Joined if it is the broadcast group
	OutLeave
	OutConnect // ask To for a connection at Service, which is Conn
	OutReady   // the peer's answer is taken: ready the queue pair of Conn, and tell the peer
	OutAccept  // the peer's request is taken
	OutReject  // it is not, or its answer is not: reason 28; nothing more is heard of Conn
	OutClose   // end Conn
)

// An Output is what an Interface wants done.
type Output struct {
	Kind    OutputKind
	Way     // of OutSend
	Frame   []byte
	Service uint64
	Private []byte // of messages of connection management
}

// A Way is how a frame goes: over Conn, or if that is nil as a datagram to To, whose QPN is MaxQPN
// if its GID is a group.
type Way struct {
	Conn *Conn
	To   LinkAddr
}

// Stats count packets, and what was dropped by kind.
type Stats struct {
	TxDatagrams, TxConnected, TxGroups   uint64
	RxDatagrams, RxConnected             uint64
	Solicits                             uint64
	Connects, Accepts, Rejects, Failures uint64

	DropUnknownType uint64 // an EtherType that is neither IP nor ARP
	DropMalformed   uint64 // headers that contradict themselves
	DropTooBig      uint64 // longer than the way to the neighbour takes
	DropUnresolved  uint64 // nobody has answered for the address
	DropWaiting     uint64 // too many wait, for the neighbour or in all
	DropNotJoined   uint64 // before the broadcast group is joined
	DropConnected   uint64 // ARP, ND, multicast on a connection
	DropForeign     uint64 // who claims to have what is ours
	DropNeighbours  uint64 // too many neighbours
	DropGroups      uint64 // too many groups
}

// An Interface is one IP interface of a link. It has one owner at a time. Who has called it takes
// what has come of it by Outputs.
type Interface struct {
	cfg       Config
	own       LinkAddr
	broadcast LinkAddr
	up        bool // the broadcast group is joined

	neighbours map[netip.Addr]*neighbour
	peers      map[LinkAddr]*peer // by their addresses without flags
	conns      int
	kept       int // octets of packets that wait
	groups     groups
	wake       time.Time // zero: nothing is to be done
	outputs    []Output
	stats      Stats
}

// New makes an Interface, which wants to join its broadcast group.
func New(cfg Config) *Interface {
	cfg.Addrs = slices.Clone(cfg.Addrs)
	i := &Interface{
		cfg: cfg, own: LinkAddr{QPN: cfg.QPN, GID: cfg.GID},
		broadcast:  LinkAddr{QPN: MaxQPN, GID: BroadcastGID(cfg.PKey, cfg.Scope)},
		neighbours: map[netip.Addr]*neighbour{}, peers: map[LinkAddr]*peer{},
		groups: groups{always: map[netip.Addr]bool{}, host: map[netip.Addr]bool{},
			joined: map[GID]int{}},
	}
	if cfg.Connected {
		i.own.Flags = FlagRC
	}
	i.join(limitedBroadcast, true)
	return i
}

// Addr is the link-layer address of i.
func (i *Interface) Addr() LinkAddr { return i.own }

// Joined says that the broadcast group is joined: the interface begins, and joins the groups that
// each node is in.
func (i *Interface) Joined() {
	if i.up {
		return
	}
	i.up = true
	for _, p := range i.cfg.Addrs {
		if p.Addr().Is4() {
			i.join(allSystems, true)
			continue
		}
		i.join(allNodes, true)
		i.join(solicitedNode(p.Addr()), true)
	}
}

// Outputs takes what is to be done, in order.
func (i *Interface) Outputs() []Output {
	o := i.outputs
	i.outputs = nil
	return o
}

// Pending reports whether there are Outputs.
func (i *Interface) Pending() bool { return len(i.outputs) > 0 }

// Stats is what i has counted.
func (i *Interface) Stats() Stats { return i.stats }

func (i *Interface) output(o Output) { i.outputs = append(i.outputs, o) }

// datagram sends a packet by the UD queue pair.
func (i *Interface) datagram(to LinkAddr, t Type, packet []byte) {
	i.send(Way{To: to}, frame(t, packet))
}

func (i *Interface) send(w Way, f []byte) {
	if len(i.outputs) >= maxOutputs {
		i.stats.DropWaiting++
		return
	}
	i.count(&w)
	i.output(Output{Kind: OutSend, Way: w, Frame: f})
}

func (i *Interface) count(w *Way) {
	switch {
	case w.Conn != nil:
		i.stats.TxConnected++
	case w.To.QPN == MaxQPN:
		i.stats.TxGroups++
	default:
		i.stats.TxDatagrams++
	}
}

func (i *Interface) groupAddr(ip netip.Addr) LinkAddr {
	return LinkAddr{QPN: MaxQPN, GID: i.groupOf(ip)}
}

func (i *Interface) owns(ip netip.Addr) bool {
	for _, p := range i.cfg.Addrs {
		if p.Addr() == ip {
			return true
		}
	}
	return false
}

// source is the own address that looks for ip: one of its network if there is one, else the first
// of its family.
func (i *Interface) source(ip netip.Addr) (from netip.Addr) {
	for _, p := range i.cfg.Addrs {
		switch {
		case p.Contains(ip):
			return p.Addr()
		case p.Addr().Is4() == ip.Is4() && !from.IsValid():
			from = p.Addr()
		}
	}
	if !from.IsValid() && ip.Is4() {
		return netip.IPv4Unspecified() // RFC 5227: nobody learns it
	}
	if !from.IsValid() {
		return netip.IPv6Unspecified()
	}
	return from
}

// toAll says whether a packet goes to a group: IPv4's broadcast goes to all.
func (i *Interface) toAll(ip netip.Addr) (LinkAddr, bool) {
	if ip.IsMulticast() {
		return i.groupAddr(ip), true
	}
	if ip == limitedBroadcast {
		return i.broadcast, true
	}
	for _, p := range i.cfg.Addrs {
		if ip.Is4() && p.Bits() < 31 && p.Contains(ip) && ip == lastOf(p) {
			return i.broadcast, true
		}
	}
	return LinkAddr{}, false
}

// lastOf is the broadcast address of an IPv4 network.
func lastOf(p netip.Prefix) netip.Addr {
	if !p.Addr().Is4() {
		return netip.Addr{}
	}
	b := p.Masked().Addr().As4()
	for n := p.Bits(); n < 32; n++ {
		b[n/8] |= 0x80 >> (n % 8)
	}
	return netip.AddrFrom4(b)
}

// Send says how an IP packet of the host's goes, if it goes at once and as it is: the caller
// prepends PutHeader's octets. False: it waits, in a copy, or goes by Outputs, or not at all.
func (i *Interface) Send(now time.Time, p []byte) (Way, bool) {
	h, ok := parseIP(p)
	if !ok || h.length != len(p) {
		i.stats.DropMalformed++
		return Way{}, false
	}
	if !i.up {
		i.stats.DropNotJoined++
		return Way{}, false
	}
	to, all := i.toAll(h.dst)
	if !all {
		return i.sendTo(now, p, &h)
	}
	i.watchHost(&h, h.body(p))
	w := Way{To: to}
	if len(p) > i.cfg.LinkMTU {
		i.tooBig(w, p, &h, i.cfg.LinkMTU)
		return Way{}, false
	}
	i.count(&w)
	return w, true
}

// sendTo is Send to one neighbour.
func (i *Interface) sendTo(now time.Time, p []byte, h *ipHeader) (Way, bool) {
	n := i.find(now, h.dst)
	if n == nil {
		return Way{}, false
	}
	if !n.known() {
		i.wait(&n.waiting, p)
		return Way{}, false
	}
	i.used(now, n)
	return i.way(now, n, p, h)
}

// way is how p goes to a neighbour: over its connection if that takes it, else as a datagram.
func (i *Interface) way(now time.Time, n *neighbour, p []byte, h *ipHeader) (Way, bool) {
	x := n.peer
	nd := h.typ == IPv6 && isND(h, h.body(p))
	mtu := i.cfg.LinkMTU
	if i.cfg.Connected && !nd { // resolution is in datagrams only
		if c := x.conn; c.takes(p, h) {
			i.stats.TxConnected++
			return Way{Conn: c}, true
		}
		i.mayConnect(now, n)
		if len(p) > mtu && x.deciding() {
			i.wait(&x.waiting, p)
			return Way{}, false
		}
		if c := x.conn; c != nil && c.state == connOpen && (h.typ == IPv4 || c.mtu >= minMTU6) {
			mtu = max(mtu, c.mtu)
		}
	}
	w := Way{To: n.addr.Bare()}
	if len(p) > mtu {
		i.tooBig(w, p, h, mtu)
		return Way{}, false
	}
	i.stats.TxDatagrams++
	return w, true
}

// takes says whether p goes over c, nil of no connection.
func (c *Conn) takes(p []byte, h *ipHeader) bool {
	return c != nil && c.state == connOpen && len(p) <= c.mtu &&
		(h.typ == IPv4 || c.mtu >= minMTU6)
}

// tooBig cuts a packet that is longer than its way takes, or tells the host how long it may be
// (docs/decisions.md#I6).
func (i *Interface) tooBig(w Way, p []byte, h *ipHeader, mtu int) {
	if h.dontCut {
		i.stats.DropTooBig++
		i.complain(p, h, tooBig, mtu)
		return
	}
	for _, f := range cut(p, h, min(mtu, i.cfg.LinkMTU)) {
		i.send(w, frame(IPv4, f))
	}
}

func (i *Interface) complain(p []byte, h *ipHeader, e icmpError, mtu int) {
	if len(i.outputs) >= maxOutputs {
		return
	}
	if b := complain(p, h, e, mtu); b != nil {
		i.output(Output{Kind: OutDeliver, Frame: b})
	}
}

// wait keeps a copy of p.
func (i *Interface) wait(queue *[][]byte, p []byte) {
	if len(*queue) >= maxWaiting || i.kept+len(p) > maxKept {
		i.stats.DropWaiting++
		return
	}
	i.kept += len(p)
	*queue = append(*queue, slices.Clone(p))
}

// waited takes what has waited.
func (i *Interface) waited(queue *[][]byte) [][]byte {
	q := *queue
	*queue = nil
	for _, p := range q {
		i.kept -= len(p)
	}
	return q
}

// resend sends what has waited, now that there is something new to say of it.
func (i *Interface) resend(now time.Time, n *neighbour, queue [][]byte) {
	for _, p := range queue {
		h, _ := parseIP(p) // Send has looked
		if w, ok := i.way(now, n, p, &h); ok {
			i.output(Output{Kind: OutSend, Way: w, Frame: frame(h.typ, p)})
		}
	}
}

// ReceiveDatagram takes a frame that has come by the UD queue pair, with its Q_Key, from that of a
// port. It returns the IP packet in it that the host gets, or nil.
func (i *Interface) ReceiveDatagram(now time.Time, src GID, qpn uint32, b []byte) []byte {
	if !i.up || src == i.own.GID && qpn == i.own.QPN { // our own, from a group
		return nil
	}
	i.stats.RxDatagrams++
	t, p, ok := ParseHeader(b)
	switch {
	case !ok:
		i.stats.DropMalformed++
		return nil
	case t == ARP:
		i.receiveARP(now, p)
		return nil
	case t != IPv4 && t != IPv6: // RARP has no answer here
		i.stats.DropUnknownType++
		return nil
	}
	h, ok := i.received(t, p)
	if !ok {
		return nil
	}
	if h.typ == IPv6 {
		if body := h.body(p); isND(&h, body) && !i.receiveND(now, &h, body) {
			return nil
		}
	}
	return p[:h.length]
}

// received reads the header of an IP packet that should be of type t.
func (i *Interface) received(t Type, p []byte) (h ipHeader, ok bool) {
	h, ok = parseIP(p)
	if !ok || h.typ != t {
		i.stats.DropMalformed++
		return h, false
	}
	return h, true
}

// ReceiveConnected is ReceiveDatagram of a frame that has come over c, whose peer is ready then.
func (i *Interface) ReceiveConnected(now time.Time, c *Conn, b []byte) []byte {
	if c.state == connAccepting {
		i.Established(now, c)
	}
	i.stats.RxConnected++
	t, p, ok := ParseHeader(b)
	switch {
	case !ok:
		i.stats.DropMalformed++
		return nil
	case t == ARP:
		i.stats.DropConnected++
		return nil
	case t != IPv4 && t != IPv6:
		i.stats.DropUnknownType++
		return nil
	}
	h, ok := i.received(t, p)
	if !ok {
		return nil
	}
	if _, all := i.toAll(h.dst); all || h.typ == IPv6 && isND(&h, h.body(p)) {
		i.stats.DropConnected++
		return nil
	}
	return p[:h.length]
}
