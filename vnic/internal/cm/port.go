package cm

import (
	"math/rand/v2"
	"net/netip"
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

// A portTable holds which ID has which address and port of a device. All users share it.
type portTable struct {
	mu sync.Mutex
	// ids has those of each port.
	ids map[portKey][]portEntry // +checklocks:mu
}

type portKey struct {
	space PortSpace
	port  uint16
}

type portEntry struct {
	addr netip.Addr
	id   *ID
}

// The range that free ports are taken from: that of Linux.
const (
	firstFree = 32768
	lastFree  = 60999
)

// overlap reports whether a connection could be for both addresses. The unspecified IPv6 address
// stands for IPv4 too.
func overlap(a, b netip.Addr) bool {
	covers := func(w, x netip.Addr) bool {
		return w.IsUnspecified() && (w.Is6() || x.Is4())
	}
	return a == b || covers(a, b) || covers(b, a)
}

// +checklocks:t.mu
func (t *portTable) takenLocked(s PortSpace, ap netip.AddrPort) bool {
	for _, e := range t.ids[portKey{s, ap.Port()}] {
		if overlap(e.addr, ap.Addr()) {
			return true
		}
	}
	return false
}

// bind gives ap to id; port 0 becomes a free one.
func (t *portTable) bind(id *ID, ap netip.AddrPort) (netip.AddrPort, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ids == nil {
		t.ids = make(map[portKey][]portEntry)
	}
	if ap.Port() == 0 {
		const n = lastFree - firstFree + 1
		start := rand.IntN(n)
		for i := range n {
			try := netip.AddrPortFrom(ap.Addr(), uint16(firstFree+(start+i)%n))
			if !t.takenLocked(id.space, try) {
				ap = try
				break
			}
		}
		if ap.Port() == 0 {
			return ap, errno(syscall.EADDRNOTAVAIL, "no port of %v is free", ap.Addr())
		}
	} else if t.takenLocked(id.space, ap) {
		return ap, errno(syscall.EADDRINUSE, "%v is taken", ap)
	}
	key := portKey{id.space, ap.Port()}
	t.ids[key] = append(t.ids[key], portEntry{ap.Addr(), id})
	return ap, nil
}

func (t *portTable) unbind(id *ID, ap netip.AddrPort) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := portKey{id.space, ap.Port()}
	es := t.ids[key]
	for i, e := range es {
		if e.id == id {
			es[i] = es[len(es)-1]
			es = es[:len(es)-1]
			break
		}
	}
	if len(es) == 0 {
		delete(t.ids, key)
		return
	}
	t.ids[key] = es
}

// listener returns who listens for streams to ap, nil if nobody does.
func (t *portTable) listener(ap netip.AddrPort) *ID {
	t.mu.Lock()
	es := append([]portEntry(nil), t.ids[portKey{PortSpaceTCP, ap.Port()}]...)
	t.mu.Unlock()
	for _, e := range es {
		if overlap(e.addr, ap.Addr()) && e.id.listening() {
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
