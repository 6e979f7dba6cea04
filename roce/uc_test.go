package roce_test

import (
	"errors"
	"testing"

	. "github.com/vrnic/vrnic/roce"
	"github.com/vrnic/vrnic/roce/packet"
)

// ROCE-170, 174: an unreliable connection's requests are done when they have gone out.
func TestUCSends(t *testing.T) {
	cfg := config()
	h := newHost(t, 100)
	c := NewUC(cfg, h)
	data := make(octets, 300)
	for _, q := range []Request{{Token: 1, Op: Send, Length: 300, Data: data},
		{Token: 2, Op: WriteImm, Length: 4, Data: data, Addr: 0x4000, RKey: 0x77},
		{Token: 3, Op: Send}} {
		if err := c.Post(&q); err != nil {
			t.Fatal(err)
		}
	}
	for _, op := range []Op{Read, FetchAdd, CompareSwap, SendInv} {
		if err := c.Post(&Request{Op: op}); !errors.Is(err, ErrOp) {
			t.Errorf("%v: %v", op, err)
		}
	}
	want := `UC SEND First qp 17 psn 16777214 data 256
UC SEND Last qp 17 psn 16777215 data 44
UC RDMA WRITE Only with Immediate qp 17 psn 0 va 4000 rkey 77 len 4 imm 00000000 data 4
UC SEND Only qp 17 psn 1 data 0
`
	if got := text(t, drain(c.Append)); got != want || len(h.done) != 3 {
		t.Errorf("%d are done; sent\n%s\nwant\n%s", len(h.done), got, want)
	}
	if err := c.Post(&Request{Token: 4, Op: Send, Length: 4, Data: gone{}}); err != nil {
		t.Fatal(err)
	}
	if _, ok := c.Append(nil); ok || c.Fault() == nil || c.Fault().Status != LocalProtection {
		t.Errorf("memory that is gone: %t, %v", ok, c.Fault())
	}
}

// ROCE-171 to ROCE-173, 174: a message that has lost a packet is dropped, with what cannot be
// carried out, and the next has its receive.
func TestUCReceives(t *testing.T) {
	h := newHost(t, 1000)
	c := NewUC(config(), h)
	h.recvs = [][]byte{make([]byte, 600), make([]byte, 600)}
	psn := config().RQPSN
	in := func(op packet.Opcode, skip, n int, with ...func(*packet.Header)) {
		psn = psn.Add(uint32(skip))
		p := packet.Header{Opcode: op.Of(packet.UC), PSN: psn, Addr: base, RKey: rkey, DMA: uint32(n)}
		for _, f := range with {
			f(&p)
		}
		c.Receive(&p, make([]byte, n))
		psn = psn.Add(1)
	}
	check := func(what string, received, left int) {
		t.Helper()
		if len(h.received) != received || len(h.recvs) != left || c.Fault() != nil {
			t.Errorf("%s: %d received, %d receives left, %v; want %d, %d", what, len(h.received),
				len(h.recvs),
				c.Fault(), received, left)
		}
	}
	in(packet.SendFirst, 0, 256)
	in(packet.SendLast, 1, 4) // a Middle is missing
	check("a gap", 0, 2)
	in(packet.SendOnly, 0, 700)
	in(packet.SendFirst, 0, 256)
	in(packet.SendMiddle, 0, 256)
	in(packet.SendLast, 0, 256)
	check("too long", 0, 2)
	in(packet.ReadRequest, 0, 0)
	in(packet.FetchAdd, 0, 0)
	in(packet.WriteOnly, 0, 4, key(1))
	in(packet.SendLast, 0, 4)
	in(packet.SendFirst, 0, 256)
	in(packet.WriteOnly, 5, 4)
	check("others", 0, 2)
	in(packet.SendOnly, 7, 4)
	check("another PSN", 1, 1)
	in(packet.SendFirst, 0, 256)
	in(packet.SendLastImm, 0, 4)
	check("in order", 2, 0)
	in(packet.SendOnly, 0, 4)
	in(packet.WriteOnlyImm, 0, 4)
	check("no receive", 2, 0)
	h.recvs = append(h.recvs, make([]byte, 8))
	in(packet.WriteOnlyImm, 0, 4)
	check("and one again", 3, 0)
}
