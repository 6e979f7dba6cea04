package tcp

import (
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip/faketime"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
)

// An ackPacket is what a test has an ackDelayer look at.
type ackPacket struct {
	flow  int
	ack   uint32
	flags header.TCPFlags
	data  int
	opts  []byte

	window uint16
}

var (
	tsOption   = []byte{1, 1, 8, 10, 0, 0, 0, 0, 0, 0, 0, 0}
	sackOption = []byte{1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2} // as long as tsOption
)

// An ackRig records what an ackDelayer sends, by the order in which the packets were made.
type ackRig struct {
	ackDelayer
	conns [100]delayedAck
	clock *faketime.ManualClock
	made  []ackPacket
	sent  []int
}

const ackLimit = 2896

func newAckRig() *ackRig {
	r := &ackRig{clock: faketime.NewManualClock()}
	r.ackDelayer.clock = r.clock
	r.limit = func() uint32 { return ackLimit }
	r.send = func(f *frame.Frame, d *ethswitch.Delivery) {
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
	t := header.TCP(pkt.TransportHeader().Push(header.TCPMinimumSize + len(p.opts)))
	t.Encode(&header.TCPFields{
		SrcPort: 1, DstPort: 2, AckNum: p.ack, Flags: p.flags,
		DataOffset: uint8(header.TCPMinimumSize + len(p.opts)), WindowSize: p.window,
	})
	copy(t[header.TCPMinimumSize:], p.opts)
	f := frame.New(append(make([]byte, frame.EtherHeaderLen), t...), frame.Offload{})
	f.HdrLen = uint16(len(r.made))
	r.made = append(r.made, p)
	kept = r.sending(pkt, f, &r.conns[p.flow])
	if !kept {
		r.send(f, nil)
	}
	return kept
}

// TestHoldACK: of each run of packets, which are sent at once, and which are after two ticks.
func TestHoldACK(t *testing.T) {
	plain := func(ack uint32) ackPacket {
		return ackPacket{ack: ack, flags: header.TCPFlagAck, opts: tsOption}
	}
	data := func(ack uint32) ackPacket {
		return ackPacket{ack: ack, flags: header.TCPFlagAck | header.TCPFlagPsh, data: 1, opts: tsOption}
	}
	with := func(p ackPacket, flags header.TCPFlags, opts []byte) ackPacket {
		p.flags, p.opts = flags, opts
		return p
	}
	window := func(p ackPacket) ackPacket { p.window++; return p }
	other := func(p ackPacket) ackPacket { p.flow++; return p }
	const fin, ack = header.TCPFlagFin | header.TCPFlagAck, header.TCPFlagAck
	for name, tt := range map[string]struct {
		run   []ackPacket
		sent  []int // at once
		later []int
	}{
		"an answer carries it": {[]ackPacket{data(10), plain(20), data(20)}, []int{0, 2}, nil},
		"a later one does":     {[]ackPacket{data(10), plain(20), data(30)}, []int{0, 2}, nil},
		"no options": {[]ackPacket{data(10), with(plain(20), ack, nil), data(20)},
			[]int{0, 2}, nil},
		"alone": {[]ackPacket{data(10), plain(20)}, []int{0}, []int{1}},
		"the second is sent": {[]ackPacket{data(10), plain(20), plain(30), plain(40)}, []int{0, 2},
			[]int{3}},
		"less than two segments": {[]ackPacket{data(10), plain(10 + ackLimit - 1)}, []int{0},
			[]int{1}},
		"two segments":            {[]ackPacket{data(10), plain(10 + ackLimit)}, []int{0, 1}, nil},
		"number goes round":       {[]ackPacket{data(1<<32 - 5), plain(5), data(5)}, []int{0, 2}, nil},
		"duplicate of a sent one": {[]ackPacket{data(10), plain(10), plain(10)}, []int{0, 1, 2}, nil},
		"duplicate of a held one": {[]ackPacket{data(10), plain(20), plain(20), plain(20)},
			[]int{0, 1, 2, 3}, nil},
		"SACK": {[]ackPacket{data(10), with(plain(20), ack, sackOption)},
			[]int{0, 1}, nil},
		"SACK behind a held one": {[]ackPacket{data(10), plain(20), with(plain(30), ack, sackOption)},
			[]int{0, 1, 2}, nil},
		"a window behind a held one": {[]ackPacket{data(10), plain(20), window(plain(20)), plain(30)},
			[]int{0, 2}, []int{3}},
		"old data": {[]ackPacket{data(10), plain(20), data(15)}, []int{0, 1, 2}, nil},
		"FIN": {[]ackPacket{data(10), plain(20), with(plain(20), fin, tsOption)},
			[]int{0, 1, 2}, nil},
		"RST": {[]ackPacket{data(10), plain(20), with(plain(0), header.TCPFlagRst,
			nil)}, []int{0, 1, 2}, nil},
		"another connection's data": {[]ackPacket{data(10), plain(20), other(data(30))}, []int{0, 2},
			[]int{1}},
		"the first of a connection": {[]ackPacket{plain(10)}, []int{0}, nil},
		"after a SYN": {[]ackPacket{with(plain(0), header.TCPFlagSyn, nil), plain(10)},
			[]int{0, 1}, nil},
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
		if r.clock.Advance(10 * ackTick); r.ticking {
			t.Errorf("%s: ticks go on with nothing held", name)
		}
		r.stop()
		if n := len(r.sent); n != len(tt.sent)+len(tt.later) {
			t.Errorf("%s: stop sent something: %v", name, r.sent)
		}
	}
}

// TestGatherACK: of the ACKs of segments that are handled together the last is sent, or held as if
// it were the only one.
func TestGatherACK(t *testing.T) {
	const ack = header.TCPFlagAck
	plain := func(n uint32) ackPacket { return ackPacket{ack: n, flags: ack, opts: tsOption} }
	sack := func(n uint32) ackPacket { return ackPacket{ack: n, flags: ack, opts: sackOption} }
	data := func(n uint32) ackPacket { return ackPacket{ack: n, flags: ack, data: 1, opts: tsOption} }
	// islands says that ten octets from each of those on have come.
	islands := func(n uint32, from ...uint32) ackPacket {
		o := []byte{1, 1, 5, byte(2 + 8*len(from))}
		for _, f := range from {
			o = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(o, f), f+10)
		}
		return ackPacket{ack: n, flags: ack, opts: o}
	}
	for name, tt := range map[string]struct {
		before, run               []ackPacket
		meanwhile, settled, later []int
	}{
		"none":  {[]ackPacket{data(10)}, nil, nil, nil, nil},
		"SACKs": {[]ackPacket{data(10)}, []ackPacket{sack(10), sack(10), sack(20)}, nil, []int{3}, nil},
		"a few octets": {[]ackPacket{data(10)}, []ackPacket{plain(20), plain(30)}, nil, nil,
			[]int{2}},
		"many octets": {[]ackPacket{data(10)}, []ackPacket{plain(20), plain(10 + ackLimit)}, nil,
			[]int{2}, nil},
		"a window":       {[]ackPacket{data(10)}, []ackPacket{plain(10)}, nil, []int{1}, nil},
		"a held one":     {[]ackPacket{data(10), plain(20)}, []ackPacket{sack(20)}, nil, []int{2}, nil},
		"a hole is full": {[]ackPacket{data(10)}, []ackPacket{sack(10), plain(40)}, nil, nil, []int{2}},
		"an older one": {[]ackPacket{data(10)}, []ackPacket{plain(40), plain(30)}, []int{2}, nil,
			[]int{1}},
		"an older SACK": {[]ackPacket{data(10)}, []ackPacket{islands(40, 60), sack(30)}, []int{2},
			[]int{1}, nil},
		"data carries it": {[]ackPacket{data(10)}, []ackPacket{sack(10), data(20)}, []int{2}, nil, nil},
		"behind data": {[]ackPacket{data(10)}, []ackPacket{data(20), sack(20)}, []int{1},
			[]int{2}, nil},
		"nothing before": {nil, []ackPacket{sack(10), sack(20)}, []int{0}, []int{1}, nil},
		// What an ACK has no room for the one before it has said.
		"one island more": {[]ackPacket{data(10)}, []ackPacket{islands(10, 30), islands(10, 50, 30),
			islands(10, 70, 50, 30)}, nil, []int{3}, nil},
		"more than one ACK says": {[]ackPacket{data(10)}, []ackPacket{islands(10, 70, 50, 30),
			islands(10, 90, 70, 50), islands(10, 110, 90, 70)}, []int{1, 2}, []int{3}, nil},
		"an island is reached": {[]ackPacket{data(10)}, []ackPacket{islands(10, 70, 50, 30),
			islands(40, 90, 70, 50)}, nil, []int{2}, nil},
	} {
		r := newAckRig()
		check := func(when string, want []int) {
			t.Helper()
			if !slices.Equal(r.sent, want) {
				t.Errorf("%s: %s sent %v, want %v", name, when, r.sent, want)
			}
			r.sent = nil
		}
		for _, p := range tt.before {
			r.put(p)
		}
		r.sent = nil
		r.conns[0].gather()
		for _, p := range tt.run {
			r.put(p)
		}
		check("meanwhile", tt.meanwhile)
		r.settle(&r.conns[0])
		check("settle", tt.settled)
		r.clock.Advance(2 * ackTick)
		check("two ticks", tt.later)
		r.stop()
		check("stop", nil)
	}
	// What tells of duplicates is sent.
	r := newAckRig()
	r.put(data(10))
	r.conns[0].gather()
	r.conns[0].twice = []span{{1, 5}}
	r.conns[0].duplicates.Store(true)
	r.put(plain(10))
	r.put(sack(10))
	if !slices.Equal(r.sent, []int{0, 1}) {
		t.Errorf("sent %v", r.sent)
	}
	if r.settle(&r.conns[0]); !slices.Equal(r.sent, []int{0, 1, 2}) {
		t.Errorf("sent %v", r.sent)
	}
}

// TestGatherACKAgain: an ACK that takes the place of one that is held, or owed, waits no longer
// than that one would have: a peer that sends a few octets now and then has its ACKs within half a
// second (RFC 9293, section 3.8.6.3).
func TestGatherACKAgain(t *testing.T) {
	const ack = header.TCPFlagAck
	for name, owed := range map[string]bool{"held": false, "owed": true} {
		r := newAckRig()
		s := &r.conns[0]
		r.put(ackPacket{ack: 10, flags: ack, data: 1, opts: tsOption})
		for n := uint32(20); n < 60; n += 10 {
			s.gather()
			if !owed || n > 20 {
				r.put(ackPacket{ack: n, flags: ack, opts: tsOption})
			} else if !r.owe(s, n) {
				t.Fatal("not owed")
			}
			r.settle(s)
			r.clock.Advance(ackTick * 3 / 4)
		}
		if len(r.sent) < 2 {
			t.Errorf("%s: nothing is sent within three ticks", name)
		}
		r.stop()
	}

	// A tick may come while segments are being handled.
	r := newAckRig()
	defer r.stop()
	s := &r.conns[0]
	r.put(ackPacket{ack: 10, flags: ack, data: 1, opts: tsOption})
	r.put(ackPacket{ack: 20, flags: ack, opts: tsOption})
	r.clock.Advance(ackTick)
	s.gather()
	r.put(ackPacket{ack: 20, flags: ack, opts: sackOption})
	r.clock.Advance(ackTick)
	if r.settle(s); !slices.Equal(r.sent, []int{0, 2}) || s.quick != quickACKs || s.nblocks != 1 {
		t.Errorf("sent %v, %d ACKs and %d blocks", r.sent, s.quick, s.nblocks)
	}
}

// TestOweACK: an ACK that would be held is not even made, and owed until something is sent.
func TestOweACK(t *testing.T) {
	const ack = header.TCPFlagAck
	plain := func(n uint32) ackPacket { return ackPacket{ack: n, flags: ack, opts: tsOption} }
	sack := func(n uint32) ackPacket { return ackPacket{ack: n, flags: ack, opts: sackOption} }
	data := func(n uint32) ackPacket { return ackPacket{ack: n, flags: ack, data: 1, opts: tsOption} }
	for name, tt := range map[string]struct {
		before []ackPacket
		number uint32
		want   bool
	}{
		"a few octets":       {[]ackPacket{data(10)}, 20, true},
		"two full segments":  {[]ackPacket{data(10)}, 10 + ackLimit, false},
		"nothing new":        {[]ackPacket{data(10)}, 10, false},
		"nothing before":     {nil, 10, false},
		"one is held":        {[]ackPacket{data(10), plain(20)}, 30, false},
		"octets are missing": {[]ackPacket{data(10), sack(10)}, 20, false},
		"behind a RST": {[]ackPacket{data(10), {flags: header.TCPFlagRst}}, 20,
			false},
	} {
		r := newAckRig()
		for _, p := range tt.before {
			r.put(p)
		}
		s := &r.conns[0]
		if got := r.owe(s, tt.number); got != tt.want || s.due() != tt.want || s.due() {
			t.Errorf("%s: owed %v, want %v", name, got, tt.want)
		}
		r.stop()
	}

	r := newAckRig()
	s := &r.conns[0]
	r.put(data(10))
	if !r.owe(s, 20) || r.put(data(20)) || s.due() {
		t.Error("data do not carry it")
	}
	// What was made before may have waited for the neighbour's address.
	if !r.owe(s, 25) || r.put(data(20)) || !s.due() || r.put(data(25)) {
		t.Error("an older packet carries it")
	}
	s.quick = 0
	if !r.owe(s, 30) || r.owe(s, 40) || r.put(plain(40)) || s.due() {
		t.Error("the second is not sent")
	}
	s.gather()
	if !r.owe(s, 50) || !r.owe(s, 60) || !r.owe(s, 39+ackLimit) || r.owe(s, 40+ackLimit) {
		t.Error("segments that come together do not count as one")
	}
	if r.settle(s); len(r.sent) != 5 || !s.due() {
		t.Errorf("sent %v", r.sent)
	}
	s.quick = 0
	s.duplicates.Store(true)
	if r.owe(s, 70) {
		t.Error("nobody is told of duplicates")
	}
	s.duplicates.Store(false)
	r.clock.Advance(10 * ackTick)
	if r.stop(); r.owe(s, 80) || s.owed || s.listed {
		t.Error("one is owed after the end")
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

// TestHoldACKOfMany: each of many connections in turn has its own ACK held, so that its next octets
// carry it; those that do not come in time go out after two ticks, and what is held meanwhile a
// tick or two later.
func TestHoldACKOfMany(t *testing.T) {
	r := newAckRig()
	defer r.stop()
	n := len(r.conns)
	plain := func(flow int, ack uint32) ackPacket {
		return ackPacket{flow: flow, ack: ack, flags: header.TCPFlagAck}
	}
	data := func(flow int, ack uint32) ackPacket {
		p := plain(flow, ack)
		p.data = 1
		return p
	}
	want := 0
	check := func(when string, more int) {
		t.Helper()
		if want += more; len(r.sent) != want {
			t.Fatalf("%s: %d packets are sent, want %d", when, len(r.sent), want)
		}
	}
	for ack := range uint32(3) {
		for flow := range n {
			r.put(data(flow, ack))
		}
		check("answers", n)
		for flow := range n {
			if !r.put(plain(flow, ack+1)) {
				t.Fatalf("connection %d's ACK %d is not held", flow, ack+1)
			}
		}
		check("held", 0)
		if len(r.holders) != n {
			t.Fatalf("%d connections are looked at in a tick, want %d", len(r.holders), n)
		}
	}
	r.clock.Advance(ackTick)
	send := r.send
	r.send = func(f *frame.Frame, d *ethswitch.Delivery) {
		send(f, nil)
		flow := r.made[r.sent[len(r.sent)-1]].flow
		r.send = send
		r.put(plain(flow, 4)) // of who holds nothing any more
		r.put(data(n-1, 3))   // carries what is looked at later
		r.put(plain(n-1, 4))  // of who is still to be looked at
	}
	r.clock.Advance(ackTick)
	check("two ticks", n) // n-1 ACKs, and octets that carry one
	r.clock.Advance(ackTick)
	check("three ticks", 1) // that one was seen by the second
	r.clock.Advance(ackTick)
	check("four ticks", 1)
	if r.clock.Advance(ackTick); r.ticking || len(r.holders) != 0 {
		t.Errorf("ticks go on for %d connections that hold nothing", len(r.holders))
	}
}

// TestStopACKMeanwhile: of what connections send while stop runs nothing stays behind.
func TestStopACKMeanwhile(t *testing.T) {
	r := newAckRig()
	var released atomic.Int64
	r.send = func(f *frame.Frame, d *ethswitch.Delivery) {
		released.Add(1)
		f.Release()
	}
	var wg sync.WaitGroup
	start := make(chan struct{})
	for flow := range r.conns {
		pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{ReserveHeaderBytes: 60})
		defer pkt.DecRef()
		th := header.TCP(pkt.TransportHeader().Push(header.TCPMinimumSize))
		wg.Go(func() {
			<-start
			for ack := range uint32(10) {
				th.Encode(&header.TCPFields{AckNum: ack, Flags: header.TCPFlagAck,
					DataOffset: header.TCPMinimumSize})
				f := frame.Empty()
				if !r.sending(pkt, f, &r.conns[flow]) {
					r.send(f, nil)
				}
			}
		})
	}
	wg.Go(func() {
		<-start
		r.tick()
		r.stop()
	})
	close(start)
	wg.Wait()
	for flow := range r.conns {
		if s := &r.conns[flow]; s.holding || s.listed {
			t.Fatalf("connection %d holds %v, on the list %v", flow, s.holding, s.listed)
		}
	}
	if n := released.Load(); n > int64(10*len(r.conns)) || n < int64(5*len(r.conns)) {
		t.Errorf("%d frames are sent of %d, of which each second may be left out", n, 10*len(r.conns))
	}
}

// FuzzHoldACK: whatever a stack sends, each connection's packets leave in their order; none but
// plain ACKs of new octets are left out, each for one behind it that acknowledges as much; and no
// peer waits for the ACK of two segments.
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
