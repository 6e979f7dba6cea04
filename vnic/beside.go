package vnic

import (
	"net/netip"
	"sync"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/internal/link/datagrams"
	"github.com/vrnic/vrnic/vnic/internal/link/packets"
)

// Beside are RoCE devices of one process and one network. Messages between their QPs are copied
// where they can be. The zero value has none.
type Beside struct {
	mu sync.RWMutex
	at map[netip.Addr]*adapter // +checklocks:mu
}

// add has the device of a found at its addresses.
func (b *Beside) add(a *adapter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.at == nil {
		b.at = make(map[netip.Addr]*adapter)
	}
	for _, g := range a.gids {
		b.at[g.Addr()] = a
	}
}

func (b *Beside) remove(a *adapter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, g := range a.gids {
		if b.at[g.Addr()] == a {
			delete(b.at, g.Addr())
		}
	}
}

func (b *Beside) find(addr netip.Addr) *adapter {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.at[addr]
}

// beside is how the link of qp's peer at remote is found; nil: it is not in this process, or
// everything is to go as packets. The owner calls what is returned.
func (qp *QP) beside(remote netip.Addr) func() *packets.Link {
	if qp.dev.cfg.ForceWire {
		return nil
	}
	a := qp.dev.cfg.Beside.find(remote)
	if a == nil || qp.dev.roce.watches(a) {
		return nil
	}
	return func() *packets.Link {
		peer := a.find(qp.packets.attr.DestQPN)
		if peer == nil || peer.Type() != qp.Type() || peer.Type() == rdma.UD {
			return nil
		}
		if l := peer.packets.peer.Load(); l != nil {
			return l.Link
		}
		return nil
	}
}

// nearBeside is Near of a QP of RoCE: the other end is a QP of the same device, and each is what
// the other says of it. Of two whose first PSNs, say, are not the same the engines tell:
// docs/decisions.md#X13.
func (qp *QP) nearBeside() *QP {
	a, own := qp.dev.roce, qp.packets.shown.Load()
	l := qp.packets.peer.Load()
	if l == nil || own == nil || qp.Type() != rdma.RC || qp.dev.cfg.Beside.find(l.remote) != a ||
		a.watches(a) {
		return nil
	}
	peer := a.find(own.DestQPN)
	if peer == nil || peer.Type() != rdma.RC {
		return nil
	}
	theirs, p := peer.packets.shown.Load(), peer.packets.peer.Load()
	if p == nil || theirs == nil || theirs.DestQPN != qp.num || theirs.PathMTU != own.PathMTU ||
		theirs.RQPSN != own.SQPSN || theirs.SQPSN != own.RQPSN || p.local != l.remote ||
		p.remote != l.local || !peer.mayBeNear() || !l.MayPass(p.Link) {
		return nil
	}
	return peer
}

// Watch has messages to and from d that would be copied, also those between its own queue pairs, go
// as packets until stop is called, for who looks at these, or delays them. On iWARP so do
// connections within d that are made meanwhile; those that there are stay what they are.
func (d *Device) Watch() (stop func()) {
	change := func(n int32) {
		d.watched.Add(n)
		if d.roce != nil {
			d.roce.watched.Add(n)
			d.cfg.Beside.lookAgain(d.roce)
		}
	}
	change(1)
	return sync.OnceFunc(func() { change(-1) })
}

// lookAgain has connections of a, and those to it, find out whether their messages can be copied.
func (b *Beside) lookAgain(a *adapter) {
	b.mu.RLock()
	all := make(map[*adapter]bool)
	for _, o := range b.at {
		all[o] = true
	}
	b.mu.RUnlock()
	for o := range all {
		for _, qp := range o.connected() {
			if l := qp.packets.peer.Load(); l != nil && (o == a || b.find(l.remote) == a) {
				(*linked)(qp).Parted()
				qp.callAsync(qp.lookAgain)
			}
		}
	}
}

// connected are the QPs of a to which packets come.
func (a *adapter) connected() (all []*QP) {
	for i := range a.shards {
		s := &a.shards[i]
		s.mu.RLock()
		for _, qp := range s.m {
			all = append(all, qp)
		}
		s.mu.RUnlock()
	}
	return all
}

// lookAgain finds out whether messages to qp's peer can be copied. The owner calls it.
func (qp *QP) lookAgain() {
	if l := qp.packets.peer.Load(); l != nil {
		l.FindBy(qp.beside(l.remote))
	}
}

// watches says that somebody looks at packets between a and to.
func (a *adapter) watches(to *adapter) bool {
	return a.watched.Load() != 0 || to.watched.Load() != 0
}

// datagramsBeside is how the links of UD QPs of this process are found, by address and then by
// number; nil: everything is to go as packets. The owner calls what is returned.
func (qp *QP) datagramsBeside() func(remote netip.Addr) func(qpn uint32) *datagrams.Link {
	if qp.dev.cfg.ForceWire {
		return nil
	}
	return func(remote netip.Addr) func(qpn uint32) *datagrams.Link {
		a := qp.dev.cfg.Beside.find(remote)
		if a == nil {
			return nil
		}
		return func(qpn uint32) *datagrams.Link {
			if qp.dev.roce.watches(a) { // a sender goes one way for long, and somebody looks meanwhile
				return nil
			}
			return a.datagrams(qpn)
		}
	}
}

// datagrams is the link of the UD QP qpn; nil: there is none that takes datagrams.
func (a *adapter) datagrams(qpn uint32) *datagrams.Link {
	if qp := a.find(qpn); qp != nil {
		return qp.packets.datagrams.Load()
	}
	return nil
}
