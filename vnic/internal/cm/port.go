package cm

import (
	"crypto/rand"
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"
	"syscall"
)

// A PortSpace is a space of port numbers of its own. The numbers are enum rdma_port_space's.
type PortSpace uint32

// The port spaces: of connections, and of datagrams, which only RoCE has.
const (
	PortSpaceTCP PortSpace = 0x0106
	PortSpaceUDP PortSpace = 0x0111
)

// String is the name of s as `rdma resource` of iproute2 has it.
func (s PortSpace) String() string {
	if s == PortSpaceUDP {
		return "UDP"
	}
	return "TCP"
}

// A portTable holds which ID has which address and port of a device. All users share it.
type portTable struct {
	mu sync.Mutex
	// ids has those of each port.
	ids map[portKey][]portEntry // +checklocks:mu
	// shares is how many ports of those that are chosen from each user has.
	shares map[portOwner]int // +checklocks:mu
}

// A portOwner is whom a port counts for.
type portOwner struct {
	owner any
	space PortSpace
}

type portKey struct {
	space PortSpace
	port  uint16
}

type portEntry struct {
	binding
	id *ID
}

// A binding is an address as an ID has it.
type binding struct {
	addr netip.Addr
	Sharing
}

// Sharing is how an ID has its port: as sockets with the options SO_REUSEADDR and IPV6_V6ONLY.
type Sharing struct {
	Reuse bool // with others that have said so, of which none listens
	Only6 bool // the unspecified IPv6 address does not stand for IPv4
}

// The range that free ports are taken from: that of Linux.
const (
	firstFree = 32768
	lastFree  = 60999
	allFree   = lastFree - firstFree + 1
)

// overlaps reports whether a connection could be for both. The unspecified IPv6 address stands for
// IPv4 too, if it has not been said to be for IPv6 only.
func (b binding) overlaps(o binding) bool {
	return b.addr == o.addr || b.covers(o.addr) || o.covers(b.addr)
}

func (b binding) covers(a netip.Addr) bool {
	return b.addr.IsUnspecified() && (b.addr.Is4() == a.Is4() || b.addr.Is6() && !b.Only6)
}

// takenLocked reports whether somebody else than id has what overlaps b, and does not share it.
//
// +checklocks:t.mu
func (t *portTable) takenLocked(id *ID, port uint16, b binding) bool {
	return slices.ContainsFunc(t.ids[portKey{id.space, port}], func(e portEntry) bool {
		return e.id != id && !(e.Reuse && b.Reuse) && e.overlaps(b)
	})
}

// countLocked counts one port more, or less, for the user of id, if it is one of those that are
// chosen from, and none of the user's ids has it.
//
// +checklocks:t.mu
func (t *portTable) countLocked(id *ID, port uint16, n int) {
	o := portOwner{id.user.cfg.Owner, id.space}
	if !t.isNewLocked(id, port) {
		return
	}
	if t.shares[o] += n; t.shares[o] == 0 {
		delete(t.shares, o)
	}
}

// isNewLocked reports whether a port would be one more of those that count for the user of id.
//
// +checklocks:t.mu
func (t *portTable) isNewLocked(id *ID, port uint16) bool {
	return port >= firstFree && port <= lastFree &&
		!slices.ContainsFunc(t.ids[portKey{id.space, port}], func(e portEntry) bool {
			return e.id.user.cfg.Owner == id.user.cfg.Owner
		})
}

// bind gives ap to id; port 0 becomes a free one, which is not shared.
func (t *portTable) bind(id *ID, ap netip.AddrPort, s Sharing) (netip.AddrPort, error) {
	b := binding{ap.Addr(), s}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ids == nil {
		t.ids, t.shares = make(map[portKey][]portEntry), make(map[portOwner]int)
	}
	full := id.user.cfg.HalfPorts && t.shares[portOwner{id.user.cfg.Owner, id.space}] >= allFree/2
	if full && (ap.Port() == 0 || t.isNewLocked(id, ap.Port())) {
		return ap, errno(syscall.ENOMEM, "%d of the device's %d free ports are the user's, as many as "+
			"one may have", allFree/2, allFree)
	}
	if ap.Port() == 0 {
		var any [2]byte
		_, _ = rand.Read(any[:]) // it never fails
		start := int(binary.BigEndian.Uint16(any[:])) % allFree
		for i := range allFree {
			try := netip.AddrPortFrom(ap.Addr(), uint16(firstFree+(start+i)%allFree))
			if !t.takenLocked(id, try.Port(), binding{ap.Addr(), Sharing{Only6: s.Only6}}) {
				ap = try
				break
			}
		}
		if ap.Port() == 0 {
			return ap, errno(syscall.EADDRNOTAVAIL, "no port of %v is free", ap.Addr())
		}
	} else if t.takenLocked(id, ap.Port(), b) {
		return ap, errno(syscall.EADDRINUSE, "%v is taken", ap)
	}
	key := portKey{id.space, ap.Port()}
	t.countLocked(id, ap.Port(), 1)
	t.ids[key] = append(t.ids[key], portEntry{b, id})
	return ap, nil
}

// share changes how id has port ap. Who does not share it any more must have it alone: EADDRINUSE.
func (t *portTable) share(id *ID, ap netip.AddrPort, s Sharing) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !s.Reuse && t.takenLocked(id, ap.Port(), binding{ap.Addr(), s}) {
		return errno(syscall.EADDRINUSE, "%v is shared", ap)
	}
	es := t.ids[portKey{id.space, ap.Port()}]
	if i := slices.IndexFunc(es, func(e portEntry) bool { return e.id == id }); i >= 0 {
		es[i].Sharing = s
	}
	return nil
}

func (t *portTable) unbind(id *ID, ap netip.AddrPort) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := portKey{id.space, ap.Port()}
	es := t.ids[key]
	i := slices.IndexFunc(es, func(e portEntry) bool { return e.id == id })
	if i < 0 {
		return
	}
	es[i] = es[len(es)-1]
	if t.ids[key] = es[:len(es)-1]; len(es) == 1 {
		delete(t.ids, key)
	}
	t.countLocked(id, ap.Port(), -1)
}

// listener returns who listens for streams to ap, nil if nobody does.
func (t *portTable) listener(ap netip.AddrPort) *ID {
	t.mu.Lock()
	es := append([]portEntry(nil), t.ids[portKey{PortSpaceTCP, ap.Port()}]...)
	t.mu.Unlock()
	for _, e := range es {
		if e.overlaps(binding{addr: ap.Addr()}) && e.id.listening() {
			return e.id
		}
	}
	return nil
}

// len is how many ports are taken.
func (t *portTable) len() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, es := range t.ids {
		n += len(es)
	}
	return n
}
