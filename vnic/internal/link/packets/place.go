package packets

import (
	"github.com/vrnic/vrnic/vnic/internal/mem"
	"github.com/vrnic/vrnic/vnic/internal/wqe"
)

// Memory that is reached by calls costs a call for each copy, and a packet has few octets: what
// packets of a message bring one behind the other is collected, and placed together at the end of
// the message or before anything is sent, so that what is acknowledged is there.

// A use is what octets are for that are collected.
type use uint8

const (
	forWrite   use = iota // a peer's Write
	forReceive            // its Send
	forAnswer             // of our oldest Read
	uses
)

// A placing is where octets of the peer go: the owner's.
type placing struct {
	hold mem.Hold
	use  use // of what is collected
	// Why what was collected could not be placed, of messages that go on: the next packet of one is
	// refused for it.
	failed [uses]error
}

func newPlacing() placing {
	var p placing
	p.hold.SetCollect(true)
	return p
}

// begin has a message begin. What is still collected for u is of one that has lost its end.
func (p *placing) begin(u use) {
	if p.use == u {
		p.settle()
	}
	p.failed[u] = nil
}

// goOn has octets for u collected from now on; an error: some before them could not be placed.
func (p *placing) goOn(u use) error {
	if p.use != u {
		p.settle()
		p.use = u
	}
	return p.failed[u]
}

// settle places what was collected.
func (p *placing) settle() {
	if err := p.hold.Flush(); err != nil {
		p.failed[p.use] = err
	}
}

// drop lets go of the memory that is held, behind settle.
func (p *placing) drop() {
	p.settle()
	p.hold.Drop()
}

// release also gives back the room for what is collected.
func (p *placing) release() {
	p.drop()
	p.hold.Release()
}

// abandon forgets what was collected: nobody has been told of it.
func (p *placing) abandon() {
	p.hold.Drop()
	p.hold.Release()
}

// write writes octets of the peer's Write to m.
func (p *placing) write(m *mem.MR, chunk []byte, addr uint64, last bool) error {
	if err := p.goOn(forWrite); err != nil {
		return err
	}
	return p.hold.Write(m, chunk, addr, last)
}

// receive puts octets of a Send into the receive under way.
func (p *placing) receive(r *wqe.Receives, off uint32, chunk []byte, last bool) error {
	err := p.goOn(forReceive)
	if err == nil {
		if err := r.Place(&p.hold, off, chunk); err != nil {
			return err
		}
		if last {
			err = p.hold.Flush()
		}
	}
	if err != nil {
		return r.PlaceFailed(err)
	}
	return nil
}

// answer puts octets of the answer to e into its memory.
func (p *placing) answer(e *wqe.Request, off uint32, chunk []byte) error {
	if off == 0 {
		p.begin(forAnswer)
	}
	if err := p.goOn(forAnswer); err != nil {
		return err
	}
	if err := e.List.CopyIn(&p.hold, chunk, off); err != nil {
		return err
	}
	if off+uint32(len(chunk)) == e.Total {
		return p.hold.Flush()
	}
	return nil
}

// original puts what an atomic operation found into the memory of e.
func (p *placing) original(e *wqe.Request, old uint64) error {
	p.begin(forAnswer)
	if err := p.goOn(forAnswer); err != nil {
		return err
	}
	if err := e.PutOld(&p.hold, old); err != nil {
		return err
	}
	return p.hold.Flush()
}
