package roce_test

import (
	"errors"
	"testing"

	. "github.com/vrnic/vrnic/roce"
	"github.com/vrnic/vrnic/roce/packet"
)

// A longHost is one end of a Read of MaxMessage octets, which are in no memory.
type longHost struct {
	*host
	placed uint32 // octets of the answer, in order
}

func (h *longHost) PlaceRead(_ uint64, off uint32, chunk []byte) error {
	if off != h.placed {
		h.t.Fatalf("octets at %d, want %d", off, h.placed)
	}
	h.placed += uint32(len(chunk))
	return nil
}

func (h *longHost) ReadSource(_ uint32, _ uint64, n uint32) (Payload, error) {
	if n != MaxMessage {
		h.t.Errorf("%d octets are asked for", n)
	}
	return nothing{}, nil
}

// nothing is a Payload that takes no time.
type nothing struct{}

func (nothing) CopyOut([]byte, uint32) error { return nil }

// ROCE-038: a Read has up to 2^31 octets, and as many answers as they need.
func TestLongRead(t *testing.T) {
	const answers = MaxMessage / MaxMTU
	cfg := config()
	cfg.MTU, cfg.Window = MaxMTU, 2*answers // so that one message asks for all
	x, y := &longHost{host: newHost(t, 8)}, &longHost{host: newHost(t, 8)}
	a, b := NewRC(cfg, x), NewRC(mirror(cfg), y)
	if err := a.Post(&Request{Op: Read, Length: MaxMessage + 1}); !errors.Is(err, ErrLength) {
		t.Errorf("a Read of 2^31 + 1 octets: %v", err)
	}
	for i, r := range []Request{{Op: Read, Length: MaxMessage, Addr: base, RKey: rkey},
		{Op: Write, Length: 8, Addr: base, RKey: rkey, Data: octets(make([]byte, 8))}} {
		r.Token = uint64(i)
		if err := a.Post(&r); err != nil {
			t.Fatal(err)
		}
	}
	var h packet.Header
	icrc := []byte{0, 0, 0, 0}
	buf := make([]byte, 0, MaxMTU+packet.MaxHeaderLen+packet.ICRCLen)
	move := func(from, to *RC) (n int) {
		for {
			p, ok := from.Append(buf, epoch)
			if !ok {
				return n
			}
			payload, err := h.Parse(append(p, icrc...))
			if err != nil {
				t.Fatal(err)
			}
			if h.Opcode == packet.ReadRequest && h.DMA != MaxMessage {
				t.Errorf("%v asks for another length", &h)
			}
			to.Receive(epoch, &h, payload)
			n++
		}
	}
	if n := move(a, b); n != 2 {
		t.Fatalf("%d packets ask for a Read and a Write, want 2", n)
	}
	if n := move(b, a); n != answers+1 || x.placed != MaxMessage || len(x.done) != 2 {
		t.Errorf("%d answers, with %d octets; done %v; want %d, and an ACK", n, x.placed, x.done,
			answers)
	}
	if sq, _ := a.PSNs(); sq != cfg.SQPSN.Add(answers+1) {
		t.Errorf("the next PSN is %d behind the first one, want %d", sq.Sub(cfg.SQPSN), answers+1)
	}
}
