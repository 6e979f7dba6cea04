package direct

import (
	"sync"
	"syscall"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/ring"
	"github.com/vrnic/vrnic/shm/server"
	"github.com/vrnic/vrnic/vnic"
)

// A Domain is a protection domain, as far as the peers of its queue pairs use its memory without
// the daemon. Nothing of it is there until one asks.
type Domain struct {
	pd      *vnic.PD
	program *server.Session
	access  func(rdma.Access) uint32

	mu     sync.Mutex
	keys   *ring.KeyTable // +checklocks:mu
	fd     int            // +checklocks:mu
	free   func()         // +checklocks:mu
	closed bool           // +checklocks:mu
}

// NewDomain is that of pd, which program has; access translates rights for the table.
func NewDomain(pd *vnic.PD, program *server.Session, access func(rdma.Access) uint32) *Domain {
	return &Domain{pd: pd, program: program, access: access, fd: -1}
}

// join gives a descriptor of the domain's keys, for the sender of d.
func (m *Domain) join(d *ring.Direction) (fd int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return -1, syscall.EAGAIN
	}
	if m.keys == nil {
		if !m.program.TakeDescriptor() {
			return -1, syscall.EAGAIN
		}
		mem, fd, free, err := m.program.NewKeys(ring.KeyTableLen)
		if err != nil {
			m.program.GiveDescriptor()
			return -1, err
		}
		m.keys, m.fd, m.free = ring.NewKeyTable(mem.Mem), fd, free
		m.pd.Publish(publisher{m.keys, m.access})
	}
	m.keys.Join(d)
	return osmem.DupFD(m.fd)
}

// mem gives a descriptor of memory n of the program's, if a key of the domain opens some of it.
func (m *Domain) mem(n uint32) (fd int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.keys == nil || !m.keys.Opens(n) {
		return -1, syscall.ENOENT
	}
	return m.program.LentMem(n)
}

// leave is for when d has ended.
func (m *Domain) leave(d *ring.Direction) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.keys != nil {
		m.keys.Leave(d)
	}
}

// MemGone says that the program has taken memory back, which peers may have mapped.
func (m *Domain) MemGone() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.keys != nil {
		m.keys.MemGone()
	}
}

// Close is for when nothing is registered in the domain any more.
func (m *Domain) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed = true; m.keys != nil {
		osmem.CloseFD(m.fd)
		m.program.GiveDescriptor()
		m.program.Later(m.free)
		m.keys = nil
	}
}

// A publisher has a domain's keys found in its table.
type publisher struct {
	keys   *ring.KeyTable
	access func(rdma.Access) uint32
}

// Publish implements vnic.Publisher.
func (p publisher) Publish(g *vnic.Grant) (place uint32, ok bool) {
	return p.keys.Publish(&ring.Key{Key: g.Key, Access: p.access(rdma.Access(g.Access)), QPN: g.QPN,
		Mem: g.Lent.Mem, Addr: g.Addr, Length: g.Length, Offset: g.Lent.Offset})
}

// End implements vnic.Publisher.
func (p publisher) End(place uint32, done func()) { p.keys.End(place, done) }

// Keys gives a descriptor of the keys of the peer's domain; EAGAIN: there is no direct path now.
func (e *End) Keys() (fd int, err error) {
	return e.ofPeer(func(p *pair, peer *End) (int, error) {
		return peer.Domain.join(&p.ring.Dirs[p.side(e)])
	})
}

// Mem gives a descriptor of memory that the peer's program has lent, and that a key of the peer's
// domain opens some of; EAGAIN as Keys.
func (e *End) Mem(n uint32) (fd int, err error) {
	return e.ofPeer(func(_ *pair, peer *End) (int, error) { return peer.Domain.mem(n) })
}

// PeerBits gives a descriptor of the bitmap of the CQ to which the peer's receives come; EAGAIN as
// Keys, or the peer's program has none.
func (e *End) PeerBits() (fd int, err error) {
	return e.ofPeer(func(_ *pair, peer *End) (int, error) { return peer.Bits.Dup() })
}

func (e *End) ofPeer(ask func(*pair, *End) (int, error)) (fd int, err error) {
	d := e.dir
	if d == nil {
		return -1, syscall.EAGAIN
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	p := e.pair.Load()
	if p == nil || p.over.Load() || !p.has[p.side(e)] {
		return -1, syscall.EAGAIN
	}
	peer := p.ends[1-p.side(e)]
	if d.ends[peer.qp.Num()] != peer {
		return -1, syscall.EAGAIN
	}
	return ask(p, peer)
}
