package netstack

import (
	"testing"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/faketime"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// An ackPacket is what a test has an acks look at.
type ackPacket struct {
	flow  int
	ack   uint32
	flags header.TCPFlags
	data  int
	opts  []byte
}

var (
	tsOption   = []byte{1, 1, 8, 10, 0, 0, 0, 0, 0, 0, 0, 0}
	sackOption = []byte{1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2} // as long as tsOption
)

// An ackRig records what an acks sends, by the order in which the packets were made.
type ackRig struct {
	acks
	clock *faketime.ManualClock
	made  []ackPacket
	sent  []int
}

const ackLimit = 2896

func newAckRig() *ackRig {
	r := &ackRig{clock: faketime.NewManualClock()}
	r.acks.clock = r.clock
	r.limit = func() uint32 { return ackLimit }
	r.send = func(f *Frame) {
		r.sent = append(r.sent, int(f.HdrLen))
		f.Release()
	}
	return r
}

// put does what a link does.
func (r *ackRig) put(p ackPacket) (kept bool) {
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{
		ReserveHeaderBytes: 60, Payload: buffer.MakeWithData(make([]byte, p.data)),
	})
	defer pkt.DecRef()
	pkt.TransportProtocolNumber = tcp.ProtocolNumber
	pkt.EgressRoute.RemoteAddress = tcpip.AddrFrom4([4]byte{10, 0, 0, byte(p.flow)})
	t := header.TCP(pkt.TransportHeader().Push(header.TCPMinimumSize + len(p.opts)))
	t.Encode(&header.TCPFields{
		SrcPort: 1, DstPort: 2, AckNum: p.ack, Flags: p.flags, DataOffset: uint8(header.TCPMinimumSize + len(p.opts)),
	})
	copy(t[header.TCPMinimumSize:], p.opts)
	f := newFrame()
	f.HdrLen = uint16(len(r.made))
	r.made = append(r.made, p)
	kept, first := r.hold(pkt, f)
	if first != nil {
		r.send(first)
	}
	if kept {
		r.held()
	} else {
		r.send(f)
	}
	return kept
}

// TestHoldACK: of each run of packets, which are sent at once, and which are after two ticks.
func TestHoldACK(t *testing.T) {
	plain := func(ack uint32) ackPacket { return ackPacket{ack: ack, flags: header.TCPFlagAck, opts: tsOption} }
	data := func(ack uint32) ackPacket {
		return ackPacket{ack: ack, flags: header.TCPFlagAck | header.TCPFlagPsh, data: 1, opts: tsOption}
	}
	with := func(p ackPacket, flags header.TCPFlags, opts []byte) ackPacket {
		p.flags, p.opts = flags, opts
		return p
	}
	other := func(p ackPacket) ackPacket { p.flow++; return p }
	const fin, ack = header.TCPFlagFin | header.TCPFlagAck, header.TCPFlagAck
	for name, tt := range map[string]struct {
		run   []ackPacket
		sent  []int // at once
		later []int
	}{
		"an answer carries it":      {[]ackPacket{data(10), plain(20), data(20)}, []int{0, 2}, nil},
		"a later one does":          {[]ackPacket{data(10), plain(20), data(30)}, []int{0, 2}, nil},
		"no options":                {[]ackPacket{data(10), with(plain(20), ack, nil), data(20)}, []int{0, 2}, nil},
		"alone":                     {[]ackPacket{data(10), plain(20)}, []int{0}, []int{1}},
		"the second is sent":        {[]ackPacket{data(10), plain(20), plain(30), plain(40)}, []int{0, 2}, []int{3}},
		"less than two segments":    {[]ackPacket{data(10), plain(10 + ackLimit - 1)}, []int{0}, []int{1}},
		"two segments":              {[]ackPacket{data(10), plain(10 + ackLimit)}, []int{0, 1}, nil},
		"number goes round":         {[]ackPacket{data(1<<32 - 5), plain(5), data(5)}, []int{0, 2}, nil},
		"duplicate of a sent one":   {[]ackPacket{data(10), plain(10), plain(10)}, []int{0, 1, 2}, nil},
		"duplicate of a held one":   {[]ackPacket{data(10), plain(20), plain(20), plain(20)}, []int{0, 1, 2, 3}, nil},
		"SACK":                      {[]ackPacket{data(10), with(plain(20), ack, sackOption)}, []int{0, 1}, nil},
		"SACK behind a held one":    {[]ackPacket{data(10), plain(20), with(plain(30), ack, sackOption)}, []int{0, 1, 2}, nil},
		"old data":                  {[]ackPacket{data(10), plain(20), data(15)}, []int{0, 1, 2}, nil},
		"FIN":                       {[]ackPacket{data(10), plain(20), with(plain(20), fin, tsOption)}, []int{0, 1, 2}, nil},
		"RST":                       {[]ackPacket{data(10), plain(20), with(plain(0), header.TCPFlagRst, nil)}, []int{0, 1, 2}, nil},
		"another connection's data": {[]ackPacket{data(10), plain(20), other(data(30))}, []int{0, 1, 2}, nil},
		"the first of a connection": {[]ackPacket{plain(10)}, []int{0}, nil},
		"after a SYN":               {[]ackPacket{with(plain(0), header.TCPFlagSyn, nil), plain(10)}, []int{0, 1}, nil},
	} {
		r := newAckRig()
		check := func(when string, want []int) {
			t.Helper()
			if len(r.sent) != len(want) {
				t.Errorf("%s: %s sent %v, want %v", name, when, r.sent, want)
				return
			}
			for i := range want {
				if r.sent[i] != want[i] {
					t.Errorf("%s: %s sent %v, want %v", name, when, r.sent, want)
				}
			}
		}
		for _, p := range tt.run {
			r.put(p)
		}
		check("at once", tt.sent)
		r.clock.Advance(ackTick)
		check("after a tick", tt.sent)
		r.clock.Advance(ackTick)
		check("after two ticks", append(tt.sent, tt.later...))
		if r.clock.Advance(10 * ackTick); r.due.Load() {
			t.Errorf("%s: ticks go on with nothing held", name)
		}
		r.stop()
		if n := len(r.sent); n != len(tt.sent)+len(tt.later) {
			t.Errorf("%s: stop sent something: %v", name, r.sent)
		}
	}
}

// TestStopACK: stop sends what is held, and nothing is from then on.
func TestStopACK(t *testing.T) {
	r := newAckRig()
	p := ackPacket{ack: 1, flags: header.TCPFlagAck}
	r.put(p)
	p.ack++
	if !r.put(p) {
		t.Fatal("not held")
	}
	r.stop()
	if p.ack++; len(r.sent) != 2 || r.put(p) || len(r.sent) != 3 {
		t.Errorf("sent %v", r.sent)
	}
}

// FuzzHoldACK: whatever a stack sends, each connection's packets leave in their order; none but plain ACKs of
// new octets are left out, each for one behind it that acknowledges as much; and no peer waits for the
// ACK of two segments.
func FuzzHoldACK(f *testing.F) {
	f.Add([]byte{0, 1, 4, 1, 8, 0, 12, 1})
	f.Add([]byte{0, 0, 1, 3, 1, 3, 1, 0, 2, 9, 0, 40, 7, 5})
	f.Fuzz(func(t *testing.T, in []byte) {
		r := newAckRig()
		defer r.stop()
		last := map[int]uint32{} // number of the last packet made
		for ; len(in) >= 2; in = in[2:] {
			p := ackPacket{flow: int(in[0] & 1), flags: header.TCPFlagAck, opts: tsOption}
			switch in[0] >> 1 % 8 {
			case 0, 1, 2: // plain
			case 3, 4:
				p.data = 1
			case 5:
				p.opts = sackOption
			case 6:
				p.flags |= header.TCPFlagFin
			case 7:
				r.clock.Advance(ackTick)
				continue
			}
			p.ack = last[p.flow] + uint32(in[1])*16
			last[p.flow] = p.ack
			r.put(p)
			checkACKs(t, r, false)
		}
		r.clock.Advance(2 * ackTick)
		checkACKs(t, r, true)
	})
}

// checkACKs checks what r has sent so far, or in all.
func checkACKs(t *testing.T, r *ackRig, all bool) {
	t.Helper()
	sent := make([]bool, len(r.made))
	prev := map[int]int{}
	for _, n := range r.sent {
		flow := r.made[n].flow
		if before, ok := prev[flow]; sent[n] || ok && before > n {
			t.Fatalf("sent %v", r.sent)
		}
		sent[n], prev[flow] = true, n
	}
	for n, p := range r.made {
		if sent[n] {
			continue
		}
		isNew := true
		for i := n - 1; i >= 0; i-- {
			if r.made[i].flow == p.flow {
				isNew = r.made[i].ack != p.ack
				break
			}
		}
		if p.data > 0 || p.flags != header.TCPFlagAck || &p.opts[0] != &tsOption[0] || !isNew {
			t.Fatalf("packet %d, %+v, was left out: sent %v", n, p, r.sent)
		}
		if at, ok := prev[p.flow]; !ok || at < n && (all || p.ack-r.made[at].ack >= ackLimit) {
			t.Fatalf("nothing acknowledges as much as packet %d, %+v, does: sent %v", n, p, r.sent)
		}
	}
}
