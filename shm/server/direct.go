package server

import (
	"sync"
	"syscall"

	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/ring"
	"github.com/vrnic/vrnic/shm/rpc"
)

// A self is who a client is, as far as it matters for who may exchange messages with whom without
// the daemon: docs/direct.md.
type self struct {
	uid        uint32
	label      string                         // of the kernel's security modules
	namespaces [rpc.NamespaceProcess]osmem.ID // by kind - 1; zero: not shown
}

// identify takes a descriptor of a namespace: docs/decisions.md#X8. Only who is in it, or could
// trace one that is, can have one; so of which kind it is need not be looked at, if another client
// shows the same.
func (o *operation) identify(req *rpc.IdentifyRequest) error {
	s := o.s
	if req.Kind < rpc.NamespaceUser || req.Kind > rpc.NamespaceProcess || o.fd < 0 {
		return syscall.EINVAL
	}
	if !s.direct.Load() {
		return syscall.EOPNOTSUPP
	}
	var id osmem.ID
	var err error
	if !s.foreign(func() func() { id, err = osmem.NamespaceID(o.fd); return nil }) {
		return errForeign
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at := &s.self.namespaces[req.Kind-1]
	if *at != (osmem.ID{}) {
		return syscall.EEXIST
	}
	*at = id
	// The namespace stays as long as the session: no other one has its number while it is compared.
	s.shown = append(s.shown, o.fd)
	o.fd = -1
	return nil
}

// direct gives the client the memory that one of its QPs shares with its peer.
func (o *operation) direct(req *rpc.HandleRequest) (*rpc.DirectReply, error) {
	s := o.s
	q, err := get(&s.qps, req.Handle)
	if err != nil {
		return nil, err
	}
	if !s.direct.Load() {
		return nil, syscall.EOPNOTSUPP
	}
	rep := &rpc.DirectReply{}
	fd, err := q.h.Direct(func(size int) (*osmem.Region, int, func(), error) {
		r, fd, err := s.newRing("pair", size)
		return r, fd, func() { s.releaseRing(r) }, err
	}, rep)
	if err != nil {
		return nil, err
	}
	o.send(fd)
	return rep, nil
}

// pipesToShared is how many event pipes there may be for each descriptor of TakeDescriptor: a
// program lends memory in some pieces, and has pairs and tables of keys that wait for its peers.
const pipesToShared = 4

// TakeDescriptor reports whether the daemon may keep one descriptor more of memory that the
// client's peers may map, until GiveDescriptor: all sessions together have so many, as of event
// pipes. Any goroutine may call them, and GiveDescriptor when the session is over, too.
func (s *Session) TakeDescriptor() bool {
	return s.srv.shared.take(s.account(), s.Privileged()) == nil
}

func (s *Session) GiveDescriptor() { s.srv.shared.give(s.account(), 1) }

// NewKeys makes the memory of a table of the client's keys, which peers can read: it, a descriptor
// of it, and what gives it back, which is an errand: Later. Any goroutine may call it.
func (s *Session) NewKeys(size int) (*osmem.Region, int, func(), error) {
	r, fd, err := s.newShared("keys", size, osmem.NewReadOnlyRegion)
	return r, fd, func() { s.releaseRing(r) }, err
}

// directKeys gives the client the keys of the peer of one of its QPs.
func (o *operation) directKeys(req *rpc.HandleRequest) error {
	return o.fromPeer(req.Handle, QPHandler.DirectKeys)
}

// directMem gives the client memory that the peer of one of its QPs has lent.
func (o *operation) directMem(req *rpc.DirectMemRequest) error {
	return o.fromPeer(req.QP, func(q QPHandler) (int, error) { return q.DirectMem(req.Mem) })
}

// directSleep and directWake give the client the ends by which it is woken, and wakes its peer.
func (o *operation) directSleep(req *rpc.HandleRequest) error {
	fd, err := o.askPeer(req.Handle, QPHandler.DirectSleep)
	if err == nil {
		o.sendEnd(fd)
	}
	return err
}

func (o *operation) directWake(req *rpc.HandleRequest) error {
	return o.fromPeer(req.Handle, QPHandler.DirectWake)
}

// A Bits is the bitmap of a client's CQ, which is made when the client asks for it: of the QPs with
// a direct path whose receives are to be looked at there.
type Bits struct {
	s    *Session
	ring *ring.CQProducer

	mu     sync.Mutex
	mem    *osmem.Region // +checklocks:mu
	fd     int           // +checklocks:mu
	closed bool          // +checklocks:mu
}

// Dup gives a descriptor of it; EAGAIN: its client has not asked for it, or it is gone. Any
// goroutine may call it.
func (b *Bits) Dup() (fd int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mem == nil {
		return -1, syscall.EAGAIN
	}
	return osmem.DupFD(b.fd)
}

// make makes it, if that has not been done.
func (b *Bits) make() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mem != nil || b.closed {
		return nil
	}
	if !b.s.TakeDescriptor() {
		return syscall.EAGAIN
	}
	mem, fd, err := b.s.newRing("bits", ring.BitsMemSize)
	if err != nil {
		b.s.GiveDescriptor()
		return err
	}
	b.mem, b.fd = mem, fd
	b.ring.UseBits(mem.Mem)
	return nil
}

// close gives it back, when the ring has been closed. A peer may have mapped it still. free must
// not wait.
func (b *Bits) close(free func(*osmem.Region)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	if b.mem != nil {
		free(b.mem)
		osmem.CloseFD(b.fd)
		b.s.GiveDescriptor()
		b.mem = nil
	}
}

// directBits and directPeerBits give the client the bitmap of the CQ to which the receives of one
// of its QPs come, and those of its peer.
func (o *operation) directBits(req *rpc.HandleRequest) error {
	return o.fromPeer(req.Handle, func(QPHandler) (int, error) {
		b := o.s.qps.m[req.Handle].recvCQ.bits
		if err := b.make(); err != nil {
			return -1, err
		}
		return b.Dup()
	})
}

func (o *operation) directPeerBits(req *rpc.HandleRequest) error {
	return o.fromPeer(req.Handle, QPHandler.DirectBits)
}

func (o *operation) fromPeer(qp uint32, ask func(QPHandler) (fd int, err error)) error {
	fd, err := o.askPeer(qp, ask)
	if err == nil {
		o.send(fd)
	}
	return err
}

func (o *operation) askPeer(qp uint32, ask func(QPHandler) (fd int, err error)) (int, error) {
	q, err := get(&o.s.qps, qp)
	if err != nil {
		return -1, err
	}
	if !o.s.direct.Load() {
		return -1, syscall.EOPNOTSUPP
	}
	return ask(q.h)
}

// offerDirect is for HELLO: the client has the direct path, if it may.
func (s *Session) offerDirect() (ok bool) {
	if !s.srv.cfg.Direct {
		return false
	}
	label, err := s.conn.PeerLabel()
	if err != nil {
		return false
	}
	s.mu.Lock()
	s.self.uid, s.self.label = s.peer.UID, label
	s.mu.Unlock()
	s.direct.Store(true)
	return true
}

// HasDirect reports whether the client has the direct path, and may.
func (s *Session) HasDirect() bool { return s.direct.Load() }

// MayShare reports whether the clients of s and t have the direct path and have shown that they are
// of one user, in the same namespaces and with the same security label.
func (s *Session) MayShare(t *Session) bool {
	if !s.direct.Load() || !t.direct.Load() {
		return false
	}
	a, b := s.who(), t.who()
	for _, id := range a.namespaces {
		if id == (osmem.ID{}) {
			return false
		}
	}
	return a == b
}

func (s *Session) who() self {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.self
}

// Gone reports whether the client or its session has ended. If the client has, nothing that it
// stores comes any more, also if the session has not heard of it yet: it may itself wait for who
// asks. What one stores that lives on, since it violated the ABI, comes too late to be heeded.
func (s *Session) Gone() bool { return s.ended() || s.conn.HungUp() }
