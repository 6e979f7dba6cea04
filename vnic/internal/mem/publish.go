package mem

// A Publisher shows keys to those who use what they give without the device: docs/direct.md#keys.
type Publisher interface {
	// Publish has g found, at a place of its own, until End; false: it is for the device alone.
	Publish(g *Grant) (place uint32, ok bool)
	// End has what is at place found no more. It calls done when nobody uses it any more, on any
	// goroutine; it does not wait for that. Any lock may be held.
	End(place uint32, done func())
}

// A Grant is what a key gives to peers.
type Grant struct {
	Key    uint32
	Access uint32 // an rdma.Access
	QPN    uint32 // of the only QP whose peer it serves; 0: all of the domain
	Addr   uint64 // of the first octet, as peers count
	Length uint64
	Lent   Lent
}

// A Lent says where in what its owner has lent a region is; Mem 0: nowhere that others could find.
type Lent struct {
	Mem    uint32
	Offset uint64
}

// published says where an MR is found. While it is, the MR is pinned.
type published struct {
	by    Publisher
	place uint32
}

// Publish has p show what the keys of pd give and will give. It is called once.
func (pd *PD) Publish(p Publisher) {
	pd.space.mu.Lock()
	pd.publisher.Store(&p)
	mrs := pd.space.mrs.Slice()
	pd.space.mu.Unlock()
	for _, m := range mrs {
		if m.pd == pd {
			m.publish()
		}
	}
	pd.keyMu.Lock()
	defer pd.keyMu.Unlock()
	for _, s := range pd.byKey {
		if s.cur != nil {
			s.cur.publish()
		}
	}
}

// publish has m, which its key gives by now, be found by others, if it is to be.
func (m *MR) publish() {
	p := m.pd.publisher.Load()
	if p == nil || m.lent.Mem == 0 || m.access&remoteRights == 0 || m.shown.Load() != nil || !m.Pin() {
		return
	}
	g := Grant{Key: m.stag, Access: uint32(m.access), QPN: m.QPN(), Addr: m.base, Length: m.length,
		Lent: m.lent}
	place, ok := (*p).Publish(&g)
	if !ok {
		m.Unpin()
		return
	}
	if was := m.shown.Swap(&published{*p, place}); was != nil { // by two at once
		was.by.End(was.place, m.Unpin)
	}
	if m.Revoked() { // meanwhile: who did it may have found nothing to end
		m.unpublish()
	}
}

// unpublish has m, which is revoked, be found no more.
func (m *MR) unpublish() {
	if s := m.shown.Swap(nil); s != nil {
		s.by.End(s.place, m.Unpin)
	}
}
