package roce_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	. "github.com/vrnic/vrnic/roce"
	"github.com/vrnic/vrnic/roce/packet"
)

func (r *raw) receive(sizes ...int) {
	for _, n := range sizes {
		r.recvs = append(r.recvs, make([]byte, n))
	}
}

// ROCE-110 to ROCE-113, 200: packets ahead are answered by one NAK for each gap.
func TestAhead(t *testing.T) {
	r := newRaw(t)
	r.receive(8, 8, 8, 8, 8)
	for _, psn := range []int{1, 2, 3, 1<<23 - 1} {
		r.in(packet.SendOnly, psn, 4, ackReq)
	}
	r.want("Acknowledge +0 NAK: PSN sequence error msn 0")
	r.in(packet.SendOnly, 9, 4, ackReq)
	r.want("")
	r.in(packet.SendOnly, 0, 4, ackReq)
	r.want("Acknowledge +0 ACK msn 1")
	r.in(packet.SendOnly, 2, 4, ackReq)
	r.want("Acknowledge +1 NAK: PSN sequence error msn 1")
	// What was missing came before the NAK could go out.
	r.in(packet.SendOnly, 1, 4)
	r.in(packet.SendOnly, 3, 4)
	r.in(packet.SendOnly, 2, 4, ackReq)
	r.want("Acknowledge +2 ACK msn 3")
	if len(r.received) != 3 {
		t.Errorf("%d messages received, want 3", len(r.received))
	}
	r.clean(3)
}

// ROCE-114 to ROCE-116, 124, 201: packets behind are acknowledged, and nothing is done again.
func TestBehind(t *testing.T) {
	r := newRaw(t)
	for _, psn := range []int{-1, -1 << 22, -1 << 23} {
		r.in(packet.SendOnly, psn, 4, ackReq)
		r.want("")
	}
	r.receive(8, 1000)
	r.in(packet.WriteOnly, 0, 4, ackReq)
	r.in(packet.SendOnly, 1, 4, ackReq)
	r.in(packet.SendFirst, 2, 256)
	r.want("Acknowledge +2 ACK msn 2")
	r.mem[0] = 0xee
	r.in(packet.WriteOnly, 0, 4, ackReq)
	r.want("Acknowledge +2 ACK msn 2")
	r.in(packet.SendOnly, 1, 4)
	r.want("Acknowledge +2 ACK msn 2")
	if r.mem[0] != 0xee || len(r.received) != 1 {
		t.Errorf("carried out again: %#x, %d received", r.mem[0], len(r.received))
	}
	r.in(packet.SendLast, 3, 4, ackReq)
	r.want("Acknowledge +3 ACK msn 3")
	r.clean(4)
}

// ROCE-062, 114: an ACK for what comes again does not name the PSN of a Read or of an atomic, for
// which rxe, as the requester, would take it as the answer.
func TestBehindAnswered(t *testing.T) {
	r := newRaw(t)
	r.in(packet.WriteOnly, 0, 4, ackReq)
	r.want("Acknowledge +0 ACK msn 1")
	r.in(packet.ReadRequest, 1, 10)
	r.want("RDMA READ Response Only +1")
	r.in(packet.WriteOnly, 0, 4, ackReq)
	r.want("Acknowledge +0 ACK msn 2")
	r.in(packet.FetchAdd, 2, 8)
	r.out()
	r.in(packet.WriteOnly, 0, 4, ackReq)
	r.want("Acknowledge +0 ACK msn 3")
	r.in(packet.WriteOnly, 3, 4, ackReq)
	r.want("Acknowledge +3 ACK msn 4")
}

// ROCE-041, 042: what counts as a message.
func TestMSN(t *testing.T) {
	r := newRaw(t)
	r.receive(1000, 8)
	r.in(packet.SendFirst, 0, 256, ackReq)
	r.want("Acknowledge +0 ACK msn 0")
	r.in(packet.SendLast, 1, 1, ackReq)
	r.want("Acknowledge +1 ACK msn 1")
	r.in(packet.ReadRequest, 2, 300)
	r.in(packet.FetchAdd, 4, 0)
	r.in(packet.WriteOnlyImm, 5, 0, ackReq)
	r.want("RDMA READ Response First +2, RDMA READ Response Last +3, ATOMIC Acknowledge +4, " +
		"Acknowledge +5 ACK msn 4")
}

// A going is a host whose regions go away while they are read.
type going struct {
	*host
	gone bool
}

func (g *going) ReadSource(key uint32, addr uint64, n uint32) (Payload, error) {
	p, err := g.host.ReadSource(key, addr, n)
	return goingSource{p, g}, err
}

type goingSource struct {
	Payload
	of *going
}

func (s goingSource) CopyOut(p []byte, off uint32) error {
	if s.of.gone {
		return errMemory
	}
	return s.Payload.CopyOut(p, off)
}

// ROCE-149: a region goes away when a part of the answer has been sent. What was sent stands, a NAK
// with the PSN of the next packet is behind it, and nothing else follows, of this Read or another.
func TestReadGone(t *testing.T) {
	r := newRaw(t)
	g := &going{host: r.host}
	r.rc = NewRC(r.cfg, g)
	r.in(packet.ReadRequest, 0, 700)
	r.in(packet.ReadRequest, 3, 10)
	b, _ := r.rc.Append(nil, r.now)
	if h, payload := read(t, b); h.Opcode != packet.ReadResponseFirst || h.PSN != r.cfg.RQPSN ||
		!bytes.Equal(payload, r.mem[:256]) {
		t.Errorf("the answer begins with %v", &h)
	}
	g.gone = true
	r.want("Acknowledge +1 NAK: remote access error msn 2")
	r.wantRefused(packet.NAKAccess, "")
	if r.sources != 0 {
		t.Errorf("%d sources are held", r.sources)
	}
}

// ROCE-117 to ROCE-119, 122, 123, 149: Reads that come again, and regions that have gone.
func TestReadAgain(t *testing.T) {
	r := newRaw(t)
	r.in(packet.ReadRequest, 0, 700)
	r.in(packet.ReadRequest, 3, 10)
	r.want("RDMA READ Response First +0, RDMA READ Response Middle +1, RDMA READ Response Last +2, " +
		"RDMA READ Response Only +3")
	r.in(packet.ReadRequest, 0, 700)
	r.want("RDMA READ Response First +0, RDMA READ Response Middle +1, RDMA READ Response Last +2")
	r.in(packet.ReadRequest, 1, 444, atAddr(base+256))
	r.want("RDMA READ Response First +1, RDMA READ Response Last +2")
	r.in(packet.ReadRequest, 1, 256, atAddr(base+256))
	r.want("RDMA READ Response Only +1")
	r.in(packet.ReadRequest, 2, 188, atAddr(base+512))
	r.want("RDMA READ Response Only +2")
	for _, bad := range []struct {
		psn, n int
		addr   uint64
		key    uint32
	}{
		{0, 701, base, rkey}, {0, 700, base + 1, rkey}, {0, 700, base, rkey + 1}, {1, 444, base, rkey},
		{1, 445, base + 256, rkey}, {0, 1 << 30, base, rkey}, {0, 0, base, rkey}, {-5, 10, base, rkey},
	} {
		r.in(packet.ReadRequest, bad.psn, bad.n, atAddr(bad.addr), key(bad.key))
		if got := r.out(); got != "" {
			t.Errorf("%+v: %q", bad, got)
		}
	}
	// Many at once begin anew, and do not queue.
	for range 1000 {
		r.in(packet.ReadRequest, 0, 700)
	}
	r.want("RDMA READ Response First +0, RDMA READ Response Middle +1, RDMA READ Response Last +2")
	r.mem = r.mem[:100]
	r.in(packet.ReadRequest, 0, 700)
	r.want("Acknowledge +0 NAK: remote access error msn 2")
	r.wantRefused(packet.NAKAccess, "")
	if r.sources != 0 {
		t.Errorf("%d sources are held", r.sources)
	}
}

// A peer that lost patience asks once more for what is on its way to it, and goes on when it has
// come: what is left of the second answers is not in the way of what it asks for then.
func TestReadAgainAndOn(t *testing.T) {
	r := newRaw(t)
	for i := range 4 { // as many as it may
		r.in(packet.ReadRequest, i, 10)
	}
	r.in(packet.ReadRequest, 4, 10)
	r.wantRefused(packet.NAKInvalid, "RDMA READ Response Only +0, RDMA READ Response Only +1, "+
		"RDMA READ Response Only +2, RDMA READ Response Only +3, "+
		"Acknowledge +4 NAK: invalid request msn 4")

	r = newRaw(t)
	for i := range 4 {
		r.in(packet.ReadRequest, i, 10)
	}
	r.want("RDMA READ Response Only +0, RDMA READ Response Only +1, RDMA READ Response Only +2, " +
		"RDMA READ Response Only +3")
	for i := range 4 {
		r.in(packet.ReadRequest, i, 10)
	}
	r.in(packet.ReadRequest, 4, 10)
	r.in(packet.ReadRequest, 5, 10)
	r.want("RDMA READ Response Only +2, RDMA READ Response Only +3, RDMA READ Response Only +4, " +
		"RDMA READ Response Only +5")
	if r.sources != 0 {
		t.Errorf("%d sources are held", r.sources)
	}
	r.clean(6)
}

// ROCE-120, 121, 122, 151: atomics that come again have the same answer, and are carried out once.
func TestAtomicAgain(t *testing.T) {
	r := newRaw(t)
	clear(r.mem[:8])
	add := func(n uint64) func(*packet.Header) { return func(h *packet.Header) { h.Swap = n } }
	answer := func() (lines string) {
		for _, b := range drain(at(r.rc, r.now)) {
			h, _ := read(t, b)
			lines += fmt.Sprintf("%+d %d ", h.PSN.Sub(r.cfg.RQPSN), h.Original)
		}
		return lines
	}
	for psn, want := range []string{"+0 0 ", "+1 5 ", "+2 10 ", "+3 15 "} {
		for range 3 {
			r.in(packet.FetchAdd, psn, 0, add(5))
			if got := answer(); got != want {
				t.Errorf("fetch & add %d: %q, want %q", psn, got, want)
			}
		}
	}
	// max_dest_rd_atomic of them
	for psn, want := range []string{"+0 0 ", "+1 5 ", "+2 10 ", "+3 15 "} {
		r.in(packet.FetchAdd, psn, 0, add(5))
		if got := answer(); got != want {
			t.Errorf("once more %d: %q, want %q", psn, got, want)
		}
	}
	r.in(packet.FetchAdd, 1, 0, add(6))
	r.in(packet.FetchAdd, 1, 0, add(5), atAddr(base+8))
	r.in(packet.CompareSwap, 1, 0, add(5))
	r.in(packet.ReadRequest, 1, 8)
	if got := answer(); got != "" {
		t.Errorf("another one: %q", got)
	}
	r.in(packet.CompareSwap, 4, 0, add(7), func(h *packet.Header) { h.Compare = 20 })
	r.in(packet.CompareSwap, 4, 0, add(7), func(h *packet.Header) { h.Compare = 20 })
	if got := answer(); got != "+4 20 " {
		t.Errorf("compare & swap: %q", got)
	}
	if got := binary.NativeEndian.Uint64(r.mem); got != 7 {
		t.Errorf("the number is %d, want 7", got)
	}
	r.in(packet.FetchAdd, 0, 0, add(5)) // no longer kept
	r.want("")
	r.clean(5)
}

// ROCE-125, 145, 146, 147, 150, 153, 159, 160: Reads and atomics that are refused, or just not.
func TestRefusedReads(t *testing.T) {
	noRights := func(c *Config) { c.Access = 0 }
	none := func(c *Config) { c.MaxDestRead = 0 }
	end := uint64(base + 1<<16)
	for name, c := range map[string]struct {
		op   packet.Opcode
		n    int
		with func(*packet.Header)
		cfg  func(*Config)
		want packet.Syndrome
	}{
		"nothing of nowhere": {packet.ReadRequest, 0, key(0), nil, packet.Unlimited},
		"the end":            {packet.ReadRequest, 16, atAddr(end - 16), nil, packet.Unlimited},
		"behind the end":     {packet.ReadRequest, 16, atAddr(end - 15), nil, packet.NAKAccess},
		"around":             {packet.ReadRequest, 32, atAddr(1<<64 - 16), nil, packet.NAKAccess},
		"another key":        {packet.ReadRequest, 4, key(rkey + 1), nil, packet.NAKAccess},
		"no right":           {packet.ReadRequest, 4, key(rkey), noRights, packet.NAKInvalid},
		"no resources":       {packet.ReadRequest, 4, key(rkey), none, packet.NAKInvalid},
		"too long":           {packet.ReadRequest, 4, dma(MaxMessage + 1), nil, packet.NAKInvalid},
		"an odd address":     {packet.FetchAdd, 0, atAddr(base + 4), nil, packet.NAKInvalid},
		"atomic, no right":   {packet.CompareSwap, 0, key(rkey), noRights, packet.NAKInvalid},
		"atomic, key":        {packet.CompareSwap, 0, key(1), nil, packet.NAKAccess},
		"atomic, none":       {packet.CompareSwap, 0, key(rkey), none, packet.NAKInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			if c.cfg == nil {
				c.cfg = func(*Config) {}
			}
			r := newRaw(t, c.cfg)
			r.in(c.op, 0, c.n, c.with)
			if c.want == packet.Unlimited {
				r.want("RDMA READ Response Only +0")
				r.clean(1)
			} else {
				r.wantRefused(c.want, fmt.Sprintf("Acknowledge +0 %v msn 0", c.want))
			}
		})
	}
	r := newRaw(t)
	for psn := range 5 {
		r.in(packet.FetchAdd, psn, 0)
	}
	r.wantRefused(packet.NAKInvalid, "ATOMIC Acknowledge +0, ATOMIC Acknowledge +1, "+
		"ATOMIC Acknowledge +2, ATOMIC Acknowledge +3, Acknowledge +4 NAK: invalid request msn 4")
	r = newRaw(t)
	r.receive(1000)
	r.in(packet.SendFirst, 0, 256)
	r.in(packet.ReadRequest, 1, 4)
	r.wantRefused(packet.NAKInvalid, "Acknowledge +1 NAK: invalid request msn 0")
}

// ROCE-126, 127, 129: one ACK may be for several, and leaves behind the answers before it.
func TestAnswerOrder(t *testing.T) {
	r := newRaw(t)
	r.receive(8, 8, 8)
	r.in(packet.WriteOnly, 0, 4)
	r.want("")
	r.in(packet.SendOnly, 1, 4, ackReq)
	r.in(packet.SendOnly, 2, 4, ackReq)
	r.want("Acknowledge +2 ACK msn 3")
	r.in(packet.ReadRequest, 3, 1000)
	r.in(packet.SendOnly, 7, 4, ackReq)
	r.want(
		"RDMA READ Response First +3, RDMA READ Response Middle +4, RDMA READ Response Middle +5, " +
			"RDMA READ Response Last +6, Acknowledge +7 ACK msn 5")
}

// ROCE-130 to ROCE-136: Sends and receives.
func TestSends(t *testing.T) {
	r := newRaw(t)
	r.in(packet.SendOnly, 0, 4, ackReq)
	r.want("Acknowledge +0 RNR NAK for 640µs msn 0")
	r.in(packet.SendOnly, 1, 4, ackReq) // ROCE-133
	r.want("")
	r.receive(1000, 8, 8)
	r.in(packet.SendOnly, 0, 4, ackReq)
	r.in(packet.SendOnlyImm, 1, 8, func(h *packet.Header) {
		h.Imm, h.Solicited = [4]byte{1, 2, 3, 4}, true
	})
	r.in(packet.SendOnlyInv, 2, 0, key(99), ackReq)
	r.want("Acknowledge +2 ACK msn 3")
	for i, want := range []Received{{Length: 4},
		{Length: 8, Immediate: true, Imm: [4]byte{1, 2, 3, 4}, Solicited: true},
		{Length: 0, Invalidate: true, RKey: 99}} {
		if got := r.received[i]; got.Received != want || !bytes.Equal(got.data,
			bytes.Repeat([]byte{0xcd}, int(want.Length))) {
			t.Errorf("message %d is %+v, want %+v", i, got, want)
		}
	}
	r.clean(3)

	for name, in := range map[string]func(r *raw) (psn int){
		"Only": func(r *raw) int { r.in(packet.SendOnly, 0, 200); return 0 },
		"Last": func(r *raw) int {
			r.in(packet.SendFirst, 0, 256)
			r.in(packet.SendLast, 1, 200)
			return 1
		},
	} {
		r := newRaw(t)
		r.receive(map[string]int{"Only": 199, "Last": 455}[name])
		psn := in(r)
		r.wantRefused(packet.NAKInvalid, fmt.Sprintf("Acknowledge %+d NAK: invalid request msn 0", psn))
		if len(r.failed) != 1 || r.failed[0] != LocalLength {
			t.Errorf("%s: the receive ends with %v, want %v", name, r.failed, LocalLength)
		}
	}
	r = newRaw(t) // ROCE-156
	r.noInv = true
	r.receive(8)
	r.in(packet.SendOnlyInv, 0, 4, ackReq)
	r.wantRefused(packet.NAKAccess, "Acknowledge +0 NAK: remote access error msn 0")
}

// ROCE-137 to ROCE-144, 157 to 160, 221: Writes.
func TestWrites(t *testing.T) {
	type step struct {
		op   packet.Opcode
		n    int
		with func(*packet.Header)
	}
	same := func(*packet.Header) {}
	end := uint64(base + 1<<16)
	noRight := func(c *Config) { c.Access = RemoteRead }
	for name, c := range map[string]struct {
		steps []step
		cfg   func(*Config)
		want  packet.Syndrome // for the last
	}{
		"Only":              {[]step{{packet.WriteOnly, 100, same}}, nil, packet.Unlimited},
		"nothing":           {[]step{{packet.WriteOnly, 0, key(0)}}, nil, packet.Unlimited},
		"nothing with data": {[]step{{packet.WriteOnly, 4, dma(0)}}, nil, packet.NAKInvalid},
		"too much data":     {[]step{{packet.WriteOnly, 8, dma(4)}}, nil, packet.NAKInvalid},
		"too little data":   {[]step{{packet.WriteOnly, 4, dma(8)}}, nil, packet.NAKInvalid},
		"the end":           {[]step{{packet.WriteOnly, 8, atAddr(end - 8)}}, nil, packet.Unlimited},
		"behind the end":    {[]step{{packet.WriteOnly, 8, atAddr(end - 7)}}, nil, packet.NAKAccess},
		"around": {[]step{{packet.WriteOnly, 32, atAddr(1<<64 - 16)}}, nil,
			packet.NAKAccess},
		"key":                 {[]step{{packet.WriteOnly, 4, key(rkey ^ 1)}}, nil, packet.NAKAccess},
		"no right":            {[]step{{packet.WriteOnly, 4, same}}, noRight, packet.NAKInvalid},
		"the whole is looked": {[]step{{packet.WriteFirst, 256, dma(1 << 20)}}, nil, packet.NAKAccess},
		"huge":                {[]step{{packet.WriteFirst, 256, dma(1<<32 - 1)}}, nil, packet.NAKInvalid},
		"three": {[]step{{packet.WriteFirst, 256, dma(600)}, {packet.WriteMiddle, 256, same},
			{packet.WriteLast, 88, same}}, nil, packet.Unlimited},
		"Last too early": {[]step{{packet.WriteFirst, 256, dma(600)}, {packet.WriteLast, 88, same}}, nil,
			packet.NAKInvalid},
		"Last too long": {[]step{{packet.WriteFirst, 256, dma(300)}, {packet.WriteLast, 48, same}}, nil,
			packet.NAKInvalid},
		"Last of nothing": {[]step{{packet.WriteFirst, 256, dma(256)}}, nil, packet.NAKInvalid},
		"Middle beyond": {[]step{{packet.WriteFirst, 256, dma(300)}, {packet.WriteMiddle, 256, same}},
			nil,
			packet.NAKInvalid},
		"short First": {[]step{{packet.WriteFirst, 252, dma(300)}}, nil, packet.NAKInvalid},
		"short Middle": {[]step{{packet.WriteFirst, 256, dma(600)}, {packet.WriteMiddle, 252, same}}, nil,
			packet.NAKInvalid},
		"long Only": {[]step{{packet.WriteOnly, 260, same}}, nil, packet.NAKInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			if c.cfg == nil {
				c.cfg = func(*Config) {}
			}
			r := newRaw(t, c.cfg)
			for psn, s := range c.steps {
				r.in(s.op, psn, s.n, s.with, ackReq)
				if psn < len(c.steps)-1 {
					r.want(fmt.Sprintf("Acknowledge %+d ACK msn 0", psn))
				}
			}
			last := len(c.steps) - 1
			if c.want == packet.Unlimited {
				r.want(fmt.Sprintf("Acknowledge %+d ACK msn 1", last))
				r.clean(last + 1)
			} else {
				r.wantRefused(c.want, fmt.Sprintf("Acknowledge %+d %v msn 0", last, c.want))
			}
			if len(r.received) > 1 {
				t.Errorf("%d receives completed", len(r.received))
			}
		})
	}
}

// ROCE-141: a Write with Immediate takes a receive at its end, and without one is carried out
// later.
func TestWriteImm(t *testing.T) {
	r := newRaw(t)
	imm := func(h *packet.Header) { h.Imm = [4]byte{9, 8, 7, 6} }
	was := r.mem[0]
	r.in(packet.WriteOnlyImm, 0, 4, imm, ackReq)
	r.want("Acknowledge +0 RNR NAK for 640µs msn 0")
	if r.mem[0] != was {
		t.Error("placed before there was a receive")
	}
	r.receive(8, 8)
	r.in(packet.WriteOnlyImm, 0, 4, imm, ackReq)
	r.want("Acknowledge +0 ACK msn 1")
	r.in(packet.WriteFirst, 1, 256, dma(300))
	r.in(packet.WriteLastImm, 2, 44, imm, ackReq)
	r.want("Acknowledge +2 ACK msn 2")
	for i, n := range []uint32{4, 300} {
		if got, want := r.received[i].Received, (Received{Length: n, Write: true, Immediate: true,
			Imm: [4]byte{9, 8, 7, 6}}); got != want {
			t.Errorf("message %d is %+v, want %+v", i, got, want)
		}
	}
	r.in(packet.WriteFirst, 3, 256, dma(300))
	r.in(packet.WriteLastImm, 4, 44, imm, ackReq)
	r.want("Acknowledge +4 RNR NAK for 640µs msn 2")
	r.receive(8)
	r.in(packet.WriteLastImm, 4, 44, imm, ackReq)
	r.want("Acknowledge +4 ACK msn 3")
	r.clean(5)
}

// ROCE-026, 048, 139, 152: which packet may follow which, and how long each is.
func TestOrder(t *testing.T) {
	requests := []packet.Opcode{packet.SendFirst, packet.SendMiddle, packet.SendLast,
		packet.SendLastImm, packet.SendOnly, packet.SendOnlyImm, packet.WriteFirst, packet.WriteMiddle,
		packet.WriteLast, packet.WriteLastImm, packet.WriteOnly, packet.WriteOnlyImm, packet.SendLastInv,
		packet.SendOnlyInv}
	isFirst := func(op packet.Opcode) bool { return op == packet.SendFirst || op == packet.WriteFirst }
	isOnly := func(op packet.Opcode) bool {
		return op >= packet.SendOnly && op <= packet.SendOnlyImm || op == packet.WriteOnly ||
			op == packet.WriteOnlyImm || op == packet.SendOnlyInv
	}
	isWrite := func(op packet.Opcode) bool {
		return op >= packet.WriteFirst && op <= packet.WriteOnlyImm
	}
	length := func(op packet.Opcode) int {
		if op.Ends() {
			return 88
		}
		return 256
	}
	for _, a := range requests {
		for _, b := range requests {
			r := newRaw(t)
			r.receive(2000, 2000)
			total := func(h *packet.Header) {
				if h.DMA = uint32(length(a)); isFirst(a) {
					h.DMA = 256 + uint32(length(b))
					if !b.Ends() {
						h.DMA += 88
					}
				}
			}
			r.in(a, 0, length(a), total)
			if good := isFirst(a) || isOnly(a); good == (r.rc.Fault() != nil) {
				t.Errorf("%v: %v", a, r.rc.Fault())
			}
			if r.rc.Fault() != nil {
				continue
			}
			r.in(b, 1, length(b), func(h *packet.Header) {
				if isFirst(b) {
					h.DMA += 88
				}
			})
			fresh := isFirst(b) || isOnly(b)
			good := isOnly(a) && fresh || isFirst(a) && !fresh && isWrite(a) == isWrite(b)
			if good == (r.rc.Fault() != nil) {
				t.Errorf("%v, %v: %v", a, b, r.rc.Fault())
			}
		}
	}
	r := newRaw(t)
	r.receive(1000)
	h := packet.Header{Opcode: packet.SendFirst, PSN: r.cfg.RQPSN, Pad: 1}
	r.rc.Receive(r.now, &h, make([]byte, 256))
	r.wantRefused(packet.NAKInvalid, "Acknowledge +0 NAK: invalid request msn 0")
}

// ROCE-018, 064, 154, 212: answers to nothing, and what is no packet of an RC, draw no answer.
func TestNoAnswer(t *testing.T) {
	r := newRaw(t)
	for op := range 256 {
		if op := packet.Opcode(op); op.IsResponse() || op.Transport() != packet.RC {
			r.in(op, 0, 4, ackReq)
			r.in(op, 0, 4, ackReq, says(packet.NAKAccess))
		}
	}
	r.want("")
	r.clean(0)
}

// ROCE-101: without a number of receives there is no limit, and with one it is said.
func TestOwnCredits(t *testing.T) {
	r := newRaw(t)
	r.srq = false
	r.receive(8, 8, 8, 8, 8, 8)
	r.in(packet.SendOnly, 0, 4, ackReq)
	r.want("Acknowledge +0 ACK with 4 credits msn 1")
}

// What is kept of a circle of PSNs ago has the same PSNs as what is asked for again, and is no
// answer to that: ROCE-117, 120, 122.
func TestAgainACircleLater(t *testing.T) {
	const circle = 1 << 24
	r := newRaw(t)
	r.in(packet.ReadRequest, 0, 10)
	r.want("RDMA READ Response Only +0")
	r.rc.Passed(circle-1, 1) // as if so many packets of Writes had come
	for range 2 {
		r.in(packet.ReadRequest, 0, 10, atAddr(base+100))
		r.want("RDMA READ Response Only +0")
	}

	r = newRaw(t)
	add := func() (original uint64) {
		r.in(packet.FetchAdd, 0, 0, func(h *packet.Header) { h.Swap = 1 })
		for _, b := range drain(at(r.rc, r.now)) {
			h, _ := read(t, b)
			original = h.Original
		}
		return original
	}
	first := add()
	r.rc.Passed(circle-1, 1)
	if got := add(); got != first+1 {
		t.Errorf("a circle later: %d, want %d", got, first+1)
	}
	if got := add(); got != first+1 {
		t.Errorf("once more: %d, want %d", got, first+1)
	}
}
