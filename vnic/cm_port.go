package vnic

import (
	"math/rand/v2"
	"net/netip"
	"syscall"
)

// A portTable holds which CMID has which address and port of a device. All contexts share it.
type portTable map[uint16][]portEntry

type portEntry struct {
	addr netip.Addr
	id   *CMID
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

func (t portTable) taken(ap netip.AddrPort) bool {
	for _, e := range t[ap.Port()] {
		if overlap(e.addr, ap.Addr()) {
			return true
		}
	}
	return false
}

// bind gives ap to id; port 0 becomes a free one.
func (d *Device) bind(id *CMID, ap netip.AddrPort) (netip.AddrPort, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ports == nil {
		d.ports = make(portTable)
	}
	if ap.Port() == 0 {
		const n = lastFree - firstFree + 1
		start := rand.IntN(n)
		for i := range n {
			try := netip.AddrPortFrom(ap.Addr(), uint16(firstFree+(start+i)%n))
			if !d.ports.taken(try) {
				ap = try
				break
			}
		}
		if ap.Port() == 0 {
			return ap, errno(syscall.EADDRNOTAVAIL, "no port of %v is free", ap.Addr())
		}
	} else if d.ports.taken(ap) {
		return ap, errno(syscall.EADDRINUSE, "%v is taken", ap)
	}
	d.ports[ap.Port()] = append(d.ports[ap.Port()], portEntry{ap.Addr(), id})
	return ap, nil
}

func (d *Device) unbind(id *CMID, ap netip.AddrPort) {
	d.mu.Lock()
	defer d.mu.Unlock()
	es := d.ports[ap.Port()]
	for i, e := range es {
		if e.id == id {
			es[i] = es[len(es)-1]
			es = es[:len(es)-1]
			break
		}
	}
	if len(es) == 0 {
		delete(d.ports, ap.Port())
		return
	}
	d.ports[ap.Port()] = es
}

// listener returns who listens for connections to ap, nil if nobody does.
func (d *Device) listener(ap netip.AddrPort) *CMID {
	d.mu.Lock()
	es := append([]portEntry(nil), d.ports[ap.Port()]...)
	d.mu.Unlock()
	for _, e := range es {
		if overlap(e.addr, ap.Addr()) && e.id.listening() {
			return e.id
		}
	}
	return nil
}
