package record

import (
	"time"

	"github.com/vrnic/vrnic/roce"
	"github.com/vrnic/vrnic/roce/packet"
)

// Packets is a roce.Engine whose calls are recorded. What only asks it is not.
type Packets struct {
	roce.Engine
	t     *Tape
	began time.Time
	held  bool
	ids   uint64 // of payloads
	told  bool   // of the fault that has ended it
}

// NewRC and NewUC are roce's, recorded by t; NewUC's is made like an RC.
func NewRC(t *Tape, cfg roce.Config, h roce.Host) *Packets {
	t.about.RC = &cfg
	p := newPackets(t)
	p.Engine = roce.NewRC(cfg, packetHost{p, h})
	return p
}

func NewUC(t *Tape, cfg roce.Config, h roce.Host) *Packets {
	t.about.UC = &cfg
	p := newPackets(t)
	p.Engine = roce.Unreliable{UC: roce.NewUC(cfg, packetHost{p, h})}
	return p
}

func newPackets(t *Tape) *Packets {
	t.id = t.r.open(t.about)
	return &Packets{t: t, began: t.r.began}
}

// at is a time as Steps have it. It may be one from before the recording began.
func (p *Packets) at(now time.Time) uint64 { return uint64(now.Sub(p.began)) }

// done ends a call.
func (p *Packets) done(n uint64, octets []byte, err error) {
	if f := p.Fault(); f != nil && !p.told {
		p.told = true
		p.t.step(opEnded, nil, f.Error())
	}
	p.t.done(n, octets, err)
}

func (p *Packets) Post(r *roce.Request) error {
	if p.t.off() {
		return p.Engine.Post(r)
	}
	c := *r
	var id uint64
	c.Data, id = p.payload(r.Data)
	p.t.call(opPost, nil, "", r.Token, uint64(r.Op), bit(r.Solicited), bit(r.Fence), uint64(r.Length),
		id, r.Addr, uint64(r.RKey), immOf(r.Imm), r.Swap, r.Compare)
	err := p.Engine.Post(&c)
	p.done(0, nil, err)
	return err
}

func immOf(b [packet.ImmDtLen]byte) uint64 {
	return uint64(b[0])<<24 | uint64(b[1])<<16 | uint64(b[2])<<8 | uint64(b[3])
}

// immOctets is what immOf is the number of.
func immOctets(n uint64) [packet.ImmDtLen]byte {
	return [packet.ImmDtLen]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}
}

func (p *Packets) payload(d roce.Payload) (roce.Payload, uint64) {
	if d == nil {
		return nil, 0
	}
	p.ids++
	return &payload{d, p.t, p.ids}, p.ids
}

func (p *Packets) Append(b []byte, now time.Time) ([]byte, bool) {
	if p.t.off() {
		return p.Engine.Append(b, now)
	}
	p.t.call(opAppend, nil, "", p.at(now))
	out, ok := p.Engine.Append(b, now)
	var made []byte
	if ok {
		made = out[len(b):]
	}
	p.done(bit(ok), made, nil)
	return out, ok
}

func (p *Packets) Receive(now time.Time, h *packet.Header, octets []byte) {
	if p.t.off() {
		p.Engine.Receive(now, h, octets)
		return
	}
	// The packet as it came, but for its ICRC: what h has is all that matters of its headers.
	b, octets := wholePacket(nil, h, octets)
	p.t.call(opReceive, b, "", p.at(now))
	p.Engine.Receive(now, h, octets)
	p.done(0, nil, nil)
}

// wholePacket is the packet that has h and these octets, behind what is in front of it, and the
// octets in it.
func wholePacket(front []byte, h *packet.Header, octets []byte) (b, in []byte) {
	b = make([]byte, 0, len(front)+packet.MaxHeaderLen+packet.AETHLen+len(octets)+3)
	b = append(h.Append(append(b, front...)), octets...)
	n := len(b) - len(octets)
	return append(b, make([]byte, h.Pad)...), b[n:]
}

func (p *Packets) Expire(now time.Time) {
	if p.t.off() {
		p.Engine.Expire(now)
		return
	}
	p.t.call(opExpire, nil, "", p.at(now))
	p.Engine.Expire(now)
	p.done(0, nil, nil)
}

func (p *Packets) Start(cfg roce.Config) {
	if p.t.off() {
		p.Engine.Start(cfg)
		return
	}
	p.t.call(opStart, nil, asText(&cfg))
	p.Engine.Start(cfg)
	p.done(0, nil, nil)
}

func (p *Packets) Update(cfg roce.Config) {
	if p.t.off() {
		p.Engine.Update(cfg)
		return
	}
	p.t.call(opUpdate, nil, asText(&cfg))
	p.Engine.Update(cfg)
	p.done(0, nil, nil)
}

// plain records a call that has nothing but numbers.
func (p *Packets) plain(f func(), op Op, args ...uint64) {
	if p.t.off() {
		f()
		return
	}
	p.t.call(op, nil, "", args...)
	f()
	p.done(0, nil, nil)
}

func (p *Packets) Drain()  { p.plain(p.Engine.Drain, opDrain) }
func (p *Packets) Resume() { p.plain(p.Engine.Resume, opResumeSends) }

// Hold is called for each packet, and seldom changes anything.
func (p *Packets) Hold(on bool) {
	if on == p.held {
		p.Engine.Hold(on)
		return
	}
	p.held = on
	p.plain(func() { p.Engine.Hold(on) }, opHold, bit(on))
}

func (p *Packets) Pass(psns uint32) {
	p.plain(func() { p.Engine.Pass(psns) }, opPass, uint64(psns))
}

func (p *Packets) Passed(psns, requests uint32) {
	p.plain(func() { p.Engine.Passed(psns, requests) }, opPassed, uint64(psns), uint64(requests))
}

// Refuse is an RC's, and Recover a UC's.
func (p *Packets) Refuse(s packet.Syndrome) {
	if c, ok := p.Engine.(*roce.RC); ok {
		p.plain(func() { c.Refuse(s) }, opRefuse, uint64(s))
	}
}

func (p *Packets) Recover() {
	if u, ok := p.Engine.(roce.Unreliable); ok {
		p.plain(u.Recover, opRecover)
		p.told = false
	}
}

// A packetHost is the roce.Host of Packets: what its own is asked is recorded.
type packetHost struct {
	p *Packets
	h roce.Host
}

func (h packetHost) Done(token uint64) {
	h.h.Done(token)
	h.p.t.step(opDone, nil, "", token)
}

func (h packetHost) PlaceRead(token uint64, off uint32, chunk []byte) error {
	err := h.h.PlaceRead(token, off, chunk)
	h.p.t.step(opPlaceAnswer, chunk, textOf(err), token, uint64(off), codeOf(err))
	return err
}

func (h packetHost) PlaceOriginal(token, original uint64) error {
	err := h.h.PlaceOriginal(token, original)
	h.p.t.step(opPlaceOriginal, nil, textOf(err), token, original, codeOf(err))
	return err
}

func (h packetHost) BeginReceive() (size uint32, ok bool) {
	size, ok = h.h.BeginReceive()
	h.p.t.step(opTakeReceive, nil, "", uint64(size), bit(ok))
	return size, ok
}

func (h packetHost) PlaceReceive(off uint32, chunk []byte, last bool) error {
	err := h.h.PlaceReceive(off, chunk, last)
	h.p.t.step(opFillReceive, chunk, textOf(err), uint64(off), bit(last), codeOf(err))
	return err
}

func (h packetHost) EndReceive(r roce.Received) error {
	err := h.h.EndReceive(r)
	h.p.t.step(opFinishReceive, nil, textOf(err), receivedArgs(&r, err)...)
	return err
}

// receivedArgs are those of an EndReceive that has returned err.
func receivedArgs(r *roce.Received, err error) []uint64 {
	return []uint64{uint64(r.Length), bit(r.Write), bit(r.Solicited), bit(r.Immediate), immOf(r.Imm),
		bit(r.Invalidate), uint64(r.RKey), uint64(r.Source), codeOf(err)}
}

func (h packetHost) FailReceive(s roce.Status) {
	h.h.FailReceive(s)
	h.p.t.step(opFailReceive, nil, "", uint64(s))
}

func (h packetHost) KeepReceive() {
	h.h.KeepReceive()
	h.p.t.step(opKeepReceive, nil, "")
}

func (h packetHost) Receives() (n uint32, ok bool) {
	n, ok = h.h.Receives()
	h.p.t.step(opReceives, nil, "", uint64(n), bit(ok))
	return n, ok
}

func (h packetHost) BeginWrite(rkey uint32, addr uint64, n uint32) error {
	err := h.h.BeginWrite(rkey, addr, n)
	h.p.t.step(opBeginWrite, nil, textOf(err), uint64(rkey), addr, uint64(n), codeOf(err))
	return err
}

func (h packetHost) PlaceWrite(off uint32, chunk []byte, last bool) error {
	err := h.h.PlaceWrite(off, chunk, last)
	h.p.t.step(opFillWrite, chunk, textOf(err), uint64(off), bit(last), codeOf(err))
	return err
}

func (h packetHost) ReadSource(rkey uint32, addr uint64, n uint32) (roce.Payload, error) {
	d, err := h.h.ReadSource(rkey, addr, n)
	d, id := h.p.payload(d)
	h.p.t.step(opFindSource, nil, textOf(err), uint64(rkey), addr, uint64(n), id, codeOf(err))
	return d, err
}

func (h packetHost) EndReadSource(d roce.Payload) {
	of, id := unwrap(d)
	h.h.EndReadSource(of)
	h.p.t.step(opEndReadSource, nil, "", id)
}

func (h packetHost) Atomic(a roce.Atomic) (original uint64, err error) {
	original, err = h.h.Atomic(a)
	h.p.t.step(opCarryOut, nil, textOf(err), uint64(a.Op), uint64(a.RKey), a.Addr, a.Swap, a.Compare,
		original, codeOf(err))
	return original, err
}
