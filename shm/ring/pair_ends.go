package ring

import (
	"sync/atomic"

	"github.com/vrnic/vrnic/shm/abi"
)

// This file has a program's ends of a pair: docs/direct.md, whose numbers of steps stand here. They
// know no verbs: what is above says which receive is posted, and where octets are.
//
// The other program may have written anything into the memory: each word is loaded once, into a
// private copy, and what the other wrote decides about nothing but its own messages.

const (
	// inSlot is how many octets a slot holds; longer messages are in the slab.
	inSlot = abi.SlotLen - abi.SlotData
	// knownFlags are what a slot may say of its message.
	knownFlags = abi.SQSolicited | abi.SlotImm | abi.SlotWrite
)

// A PairOut is what goes out. Calls must not overlap.
type PairOut struct {
	// Wake wakes the peer, if it sleeps: false if it cannot, and the daemon has to. nil: never.
	Wake func() bool
	// Bits gives the bitmap of the peer's CQ: nil if it cannot be had, and then messages are the
	// daemon's, where the peer wants a bit to be set. It is asked once. nil: it never can be.
	Bits func() *PairBits

	open, base, seq, done, notify, solicited, own, slabCons, want *atomic.Uint32
	heard, heardAsked, takes, bitWord                             *atomic.Uint32

	peer               uint32 // the number of the QP at the other end
	reach              uint32 // what keys may be asked for, of enum ibv_access_flags
	counts             []byte // the sender's own lines: see count
	rooms, slots, slab []byte
	mask               uint32 // slots - 1
	slabProd           uint32
	odd                uint32 // DirSeq
	used               uint32 // receives
	was                uint32 // DirRecvBase, as last seen
	slabOff            uint32 // of the message between Begin and End
	slabEnd            uint32
	woken              uint32 // DirWant of the last sleep that has been ended

	bit     bit    // that is set behind each message, if its word is not nil
	roomBit uint32 // abi.RoomBit then, else 0
	noBits  bool   // it has been asked for in vain
}

// A PairIn is what comes in. Calls of Room must not overlap each other, those of Want not, and the
// rest not.
type PairIn struct {
	rooms, slots, slab []byte
	slabCons, want     *atomic.Uint32
	spoiled            *atomic.Uint32
	heard, heardAsked  *atomic.Uint32
	bit                *atomic.Uint32
	roomBit            uint32 // abi.RoomBit if the sender sets a bit
	mask               uint32
	taken              uint32 // octets out of the slab
}

// A PairHead is what a message says of itself, as it stands in a slot: octets of it there are none
// with abi.SlotWrite, and immediate data, by its words in a WQE, only with abi.SlotImm.
type PairHead struct {
	Length, Flags uint32
	Imm, ImmLow   uint32
}

// octets is how many a message takes of its receive.
func (h *PairHead) octets() uint32 {
	if h.Flags&abi.SlotWrite != 0 {
		return 0
	}
	return h.Length
}

// immLen is how many it takes beside them for immediate data.
func (h *PairHead) immLen() uint32 {
	if h.Flags&abi.SlotImm != 0 {
		return abi.ImmLen
	}
	return 0
}

// A PairMessage is one that has come.
type PairMessage struct {
	PairHead        // a private copy
	Octets   []byte // the other program may still write there
	slabOff  uint32
}

// OpenPair finds both directions in mem: that from side (0 or 1), and that to it, where there are
// so many receives. An error is a *ProtocolError.
func OpenPair(mem []byte, side int, receives uint32) (*PairOut, *PairIn, error) {
	if len(mem) < abi.PairHeaderLen {
		return nil, nil, abi.Violation("pair of %d octets", len(mem))
	}
	if m := abi.Word(mem, abi.PairMagic).Load(); m != abi.MagicPair {
		return nil, nil, abi.Violation("pair has magic %#x", m)
	}
	out, err := findDirection(mem, side)
	if err != nil {
		return nil, nil, err
	}
	in, err := findDirection(mem, 1-side)
	if err != nil {
		return nil, nil, err
	}
	if in.n != receives {
		return nil, nil, abi.Violation("pair with %d slots for %d receives", in.n, receives)
	}
	p := out.out()
	p.peer = abi.Word(mem, uint32(abi.PairQPN+4*(1-side))).Load()
	p.reach = abi.Word(mem, uint32(abi.PairReach+4*side)).Load()
	return p, in.in(), nil
}

// A dirMem is where a direction lies.
type dirMem struct {
	n                       uint32
	mem, rooms, slots, slab []byte
}

func findDirection(mem []byte, side int) (*dirMem, error) {
	word := func(off int) uint32 { return abi.Word(mem, uint32(off+4*side)).Load() }
	off, n, slab := word(abi.PairOff), word(abi.PairSlots), word(abi.PairSlab)
	if off%64 != 0 || uint64(off) > uint64(len(mem)) || !abi.IsPow2(n) || n > abi.MaxDepth ||
		!abi.IsPow2(slab) || slab > abi.MaxSlab {
		return nil, abi.Violation("direction at %d of %d octets with %d slots and %d octets of slab", off,
			len(mem), n, slab)
	}
	d := &dirMem{mem: mem[off:], n: n}
	at := abi.DirSlots(n)
	if uint64(at)+uint64(n)*abi.SlotLen+uint64(slab) > uint64(len(d.mem)) {
		return nil, abi.Violation("direction of %d octets with %d slots and %d octets of slab",
			len(d.mem), n, slab)
	}
	d.rooms = d.mem[abi.DirRooms:][:n*abi.RoomLen]
	d.slots = d.mem[at : at+n*abi.SlotLen]
	d.slab = d.mem[at+n*abi.SlotLen:][:slab]
	return d, nil
}

func (d *dirMem) out() *PairOut {
	word := func(off uint32) *atomic.Uint32 { return abi.Word(d.mem, off) }
	p := &PairOut{open: word(abi.DirOpen), base: word(abi.DirRecvBase), seq: word(abi.DirSeq),
		done: word(abi.DirRecvDone), notify: word(abi.DirNotify), solicited: word(abi.DirSolicited),
		own: word(abi.DirOwn), slabCons: word(abi.DirSlabCons), want: word(abi.DirWant),
		heard: word(abi.DirHeard), heardAsked: word(abi.DirHeardAsked), takes: word(abi.DirTakes),
		bitWord: word(abi.DirBit),
		counts:  d.mem[abi.DirSeq:abi.DirRooms],
		rooms:   d.rooms, slots: d.slots, slab: d.slab, mask: d.n - 1}
	p.was = p.base.Load()
	p.used = p.was
	return p
}

func (d *dirMem) in() *PairIn {
	abi.Word(d.mem, abi.DirTakes).Store(abi.TakesImm) // before any room
	return &PairIn{rooms: d.rooms, slots: d.slots, slab: d.slab, mask: d.n - 1,
		slabCons: abi.Word(d.mem, abi.DirSlabCons), want: abi.Word(d.mem, abi.DirWant),
		spoiled: abi.Word(d.mem, abi.DirSpoiled), bit: abi.Word(d.mem, abi.DirBit),
		heard: abi.Word(d.mem, abi.DirHeard), heardAsked: abi.Word(d.mem, abi.DirHeardAsked)}
}

// IsOpen reports whether the sender may try at all.
func (p *PairOut) IsOpen() bool { return p.open.Load() != 0 }

func (p *PairOut) room(i uint32) []byte { return p.rooms[(i&p.mask)*abi.RoomLen:][:abi.RoomLen] }

// next is which receive the next message seems to be for.
func (p *PairOut) next() uint32 {
	if base := p.base.Load(); base != p.was {
		return base
	}
	return p.used
}

// posted reports whether receive i is, as far as messages may go there.
func (p *PairOut) posted(i uint32) bool {
	return abi.Word(p.room(i), abi.RoomStamp).Load() == (i+1)^p.roomBit
}

// HasRoom reports whether a receive seems to be posted. It may call Bits.
func (p *PairOut) HasRoom() bool {
	i := p.next()
	return p.posted(i) || p.wantsBit() && p.posted(i)
}

// wantsBit finds out which bit the peer wants to be set behind each message, if it has not been
// found yet: false if there is none. The peer has said so before the first room.
func (p *PairOut) wantsBit() bool {
	if p.roomBit != 0 || p.noBits || p.Bits == nil {
		return false
	}
	n := p.bitWord.Load()
	if n == 0 {
		return false
	}
	if b := p.Bits(); b != nil {
		p.bit, _ = b.at(n - 1)
		p.want = b.want
	}
	if p.bit.word == nil {
		p.noBits = true
		return false
	}
	p.roomBit = abi.RoomBit
	return true
}

// takesNext reports whether the next receive seems to take a message here: else all that is done
// before it is in vain.
func (p *PairOut) takesNext(h *PairHead) bool { return p.takesAt(p.next(), h) }

func (p *PairOut) takesAt(i uint32, h *PairHead) bool {
	if !p.posted(i) {
		return false
	}
	r := p.room(i)
	if length := abi.Word(r, abi.RoomLength).Load(); length == abi.NoRoom || h.octets() > length {
		return false
	}
	// Behind the room, before which the receiver has said it.
	return h.immLen() == 0 || p.takes.Load()&abi.TakesImm != 0
}

// Begin has steps 2 to 4, for a message: where its octets go, or nil and it is the daemon's. After
// the copy, and when the request is recorded as complete, End has steps 5 and 6; Cancel takes it
// back instead.
func (p *PairOut) Begin(h *PairHead) []byte {
	if !p.enter() {
		return nil
	}
	to := p.place(h)
	if to == nil {
		p.leave()
	}
	return to
}

// Cancel is End of what was not sent.
func (p *PairOut) Cancel() { p.leave() }

// enter has steps 2 and 3: false, and the direction is the daemon's. Until leave, step 6, what a
// key gives stays there.
func (p *PairOut) enter() bool {
	p.odd++
	p.seq.Swap(p.odd) // a full fence
	if p.open.Load() == 0 {
		p.leave()
		return false
	}
	return true
}

func (p *PairOut) leave() {
	p.odd++
	p.seq.Store(p.odd)
}

// place has step 4, and what of step 3 is about receives.
func (p *PairOut) place(h *PairHead) []byte {
	// The daemon has used some, behind all that were used here, if it is another than before.
	if base := p.base.Load(); base != p.was {
		p.was, p.used = base, base
	}
	if !p.takesAt(p.used, h) {
		return nil
	}
	n, imm := h.octets(), h.immLen()
	p.slabOff, p.slabEnd = abi.NoSlab, p.slabProd
	var to []byte
	switch {
	case n <= inSlot-imm:
		to = p.slot()[abi.SlotData:][:imm+n]
	case p.slabRoom(imm + n):
		to = p.slab[p.slabOff:][:imm+n]
	default:
		return nil
	}
	if imm != 0 {
		abi.Order.PutUint32(to, h.Imm)
		abi.Order.PutUint32(to[4:], h.ImmLow)
	}
	return to[imm:]
}

// slabRoom finds where in the slab a message of n octets goes, in one piece: false if there is no
// room now.
func (p *PairOut) slabRoom(n uint32) bool {
	size, begin := uint32(len(p.slab)), p.slabProd
	used := begin - p.slabCons.Load()
	if used > size || n > size {
		return false
	}
	if begin&(size-1)+n > size {
		begin = (begin + size - 1) &^ (size - 1)
	}
	if begin-p.slabProd+used+n > size {
		return false
	}
	p.slabOff, p.slabEnd = begin&(size-1), begin+n
	return true
}

// slot is that of the next receive.
func (p *PairOut) slot() []byte { return p.slots[(p.used&p.mask)*abi.SlotLen:][:abi.SlotLen] }

// End has steps 5 and 6 of what Begin has begun.
func (p *PairOut) End(h *PairHead) {
	slot := p.slot()
	abi.Order.PutUint32(slot[abi.SlotLength:], h.Length)
	abi.Order.PutUint32(slot[abi.SlotFlags:], h.Flags)
	abi.Order.PutUint32(slot[abi.SlotSlabOff:], p.slabOff)
	p.slabProd = p.slabEnd
	p.used++
	abi.Word(slot, abi.SlotStamp).Store(p.used)
	p.done.Store(p.used)
	p.count(abi.DirMessages, 1)
	p.count(abi.DirOctets, uint64(h.octets()))
	if h.Flags&abi.SQSolicited != 0 {
		p.count(abi.DirAsked, 1)
	}
	if h.Flags&abi.SlotImm != 0 {
		p.count(abi.DirImms, 1)
	}
	p.leave()
	if p.bit.word != nil { // always, also if it looks set
		p.bit.word.Or(p.bit.mask)
	}
}

// count adds to a count of the sender's. Nothing is decided by it, and the store of DirSeq
// shows it: a fence of its own would cost as much as the message.
func (p *PairOut) count(off int, n uint64) {
	b := p.counts[off-abi.DirSeq:][:8]
	abi.Order.PutUint64(b, abi.Order.Uint64(b)+n)
}

// Wrote counts a Write of n octets, before the message that tells of it has its End.
func (p *PairOut) Wrote(n uint64) {
	p.count(abi.DirWrites, 1)
	p.count(abi.DirOctets, n)
}

// WroteNothing is Wrote of no octets; sent: it would be a message of its own on a wire.
func (p *PairOut) WroteNothing(sent bool) {
	p.count(abi.DirWrites, 1)
	if !sent {
		p.count(abi.DirUnsent, 1)
	}
}

// Reaches reports whether keys may give the sender a right, of enum ibv_access_flags.
func (p *PairOut) Reaches(right uint32) bool { return p.reach&right != 0 }

// Wanted has step 7: true if the QP's bell is to be rung, since the peer waits for an event, or who
// posted waits for its own completion (own).
func (p *PairOut) Wanted(solicited, own bool) bool {
	want := p.want.Load()
	rings := want&abi.ArmNext != 0 || want&abi.ArmSolicited != 0 && solicited
	if rings && want&abi.WantAsleep != 0 && p.Wake != nil {
		rings = !p.wake(solicited)
	}
	if rings {
		if solicited {
			p.solicited.Store(p.solicited.Load() + 1)
		} else {
			p.notify.Store(p.notify.Load() + 1)
		}
	}
	if own {
		p.Own()
	}
	return rings || own
}

// Own has of step 7 what is about the own completion alone: the bell is to be rung.
func (p *PairOut) Own() { p.own.Store(p.own.Load() + 1) }

// wake is for a peer that seems to sleep: false, and the daemon has to tell it.
func (p *PairOut) wake(solicited bool) bool {
	heard := p.heard
	if solicited {
		heard = p.heardAsked
	}
	heard.Store(heard.Load() + 1)
	want := p.want.Load() // behind it: who has woken meanwhile may not have seen it
	if want&abi.WantAsleep == 0 {
		return false
	}
	if want != p.woken {
		if !p.Wake() {
			return false
		}
		p.woken = want
	}
	return true
}

// Room tells the sender that receive i is posted, and takes so many octets; abi.NoRoom or more:
// what is for it is the daemon's.
func (p *PairIn) Room(i uint32, octets uint64) {
	r := p.rooms[(i&p.mask)*abi.RoomLen:][:abi.RoomLen]
	abi.Order.PutUint32(r[abi.RoomLength:], uint32(min(octets, abi.NoRoom)))
	abi.Word(r, abi.RoomStamp).Store((i + 1) ^ p.roomBit)
}

// WantBit has the sender set a bit of the CQ's bitmap behind each message. It comes before the
// first Room.
func (p *PairIn) WantBit(n int) {
	p.bit.Store(uint32(n) + 1)
	p.roomBit = abi.RoomBit
}

// Want tells the sender what the receiver's CQ is armed for.
func (p *PairIn) Want(arm uint32) { p.want.Store(arm) }

// Heard is how many messages the sender has counted for who sleeps, and how many solicited ones
// beside them.
func (p *PairIn) Heard() (plain, asked uint32) { return p.heard.Load(), p.heardAsked.Load() }

// Spoil says that what has come makes no sense: the daemon ends the connection when it hears the
// QP's bell.
func (p *PairIn) Spoil() { p.spoiled.Store(1) }

func (p *PairIn) slot(i uint32) []byte { return p.slots[(i&p.mask)*abi.SlotLen:][:abi.SlotLen] }

// Stamped reports whether receive i has its message.
func (p *PairIn) Stamped(i uint32) bool { return abi.Word(p.slot(i), abi.SlotStamp).Load() == i+1 }

// Message is that of receive i, which is stamped; false if it makes no sense.
func (p *PairIn) Message(i uint32) (m PairMessage, ok bool) {
	slot := p.slot(i)
	m.Length = abi.Word(slot, abi.SlotLength).Load()
	m.Flags = abi.Word(slot, abi.SlotFlags).Load()
	m.slabOff = abi.Word(slot, abi.SlotSlabOff).Load()
	if m.Flags&^knownFlags != 0 || m.Flags&abi.SlotWrite != 0 && m.Flags&abi.SlotImm == 0 {
		return m, false
	}
	n, imm := m.octets(), m.immLen()
	from := slot[abi.SlotData:]
	if m.slabOff != abi.NoSlab {
		if m.slabOff >= uint32(len(p.slab)) {
			return m, false
		}
		from = p.slab[m.slabOff:]
	}
	if size := uint32(len(from)); imm > size || n > size-imm {
		return m, false
	}
	if imm != 0 {
		m.Imm, m.ImmLow = abi.Order.Uint32(from), abi.Order.Uint32(from[4:])
	}
	m.Octets = from[imm:][:n]
	return m, true
}

// Taken says that m has been copied: its place in the slab is free.
func (p *PairIn) Taken(m *PairMessage) {
	if m.slabOff == abi.NoSlab {
		return
	}
	p.taken += (m.slabOff-p.taken)&(uint32(len(p.slab))-1) + m.immLen() + m.octets()
	p.slabCons.Store(p.taken)
}
