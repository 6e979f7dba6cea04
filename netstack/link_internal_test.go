package netstack

import (
	"bytes"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/internal/gvisor"
	"github.com/vrnic/vrnic/netstack/tcp"
	"github.com/vrnic/vrnic/netstack/udp"
)

// A dispatcher is gVisor's side of a link.
type dispatcher struct {
	stack.NetworkDispatcher
	got []byte
}

func (d *dispatcher) DeliverNetworkPacket(_ tcpip.NetworkProtocolNumber, pkt *stack.PacketBuffer) {
	d.got = pkt.Data().AsRange().ToSlice()
}

// FuzzFrames sends any octets through a switch to a stack's link: what the switch admits arrives as
// it was; only TCP is delivered on the spot; what claims to be unverified has right checksums when
// it arrives; path MTUs are sensible.
func FuzzFrames(f *testing.F) {
	tcp4 := []byte(
		"\x08\x00\x45\x00\x00\x28\x00\x00\x00\x00\x40\x06\x26\xce\x0a\x00\x00\x01\x0a\x00\x00\x02" +
			"\x00\x01\x00\x02\x00\x00\x00\x00\x00\x00\x00\x00\x50\x10\x00\x00\x00\x00\x00\x00")
	f.Add(tcp4, uint8(0), uint8(0), uint16(0), uint16(0), uint16(0), false)
	f.Add(append(tcp4, 1, 2, 3), uint8(1), uint8(2), uint16(2), uint16(34), uint16(16), false)
	f.Add([]byte{0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1}, uint8(0), uint8(0), uint16(0), uint16(0),
		uint16(0), true)
	f.Add(append([]byte{0x86, 0xdd, 0x60, 0, 0, 0, 0, 24, 0, 64}, make([]byte, 56)...), uint8(0),
		uint8(1), uint16(0), uint16(0), uint16(0), true)
	// behind 96 octets of destination options
	far := append([]byte("\x86\xdd\x60\x00\x00\x00\x00\x74\x3c\x40"), make([]byte, 32+96+20)...)
	far[42], far[43], far[42+96+12] = 6, 11, 0x50
	for csum := range uint8(3) {
		f.Add(far, uint8(0), csum, uint16(0), uint16(0), uint16(0), false)
	}
	f.Fuzz(func(t *testing.T, octets []byte, gso, csum uint8, gsoSize, start, offset uint16,
		group bool) {
		d := &dispatcher{}
		l := &link{mac: frame.MAC{2, 0, 0, 0, 0, 1}, tcp: new(tcp.Host),
			udp: new(udp.Host), queue: make(chan *stack.PacketBuffer, 1)}
		l.Attach(d)
		dst := l.mac
		if group {
			dst[0] |= 1
		}
		sent := append(append(append([]byte(nil), dst[:]...), 2, 0, 0, 0, 0, 9), octets...)
		fr := frame.New(sent, frame.Offload{GSO: frame.GSO(gso), Csum: frame.CsumState(csum % 3),
			GSOSize: gsoSize, CsumStart: start, CsumOffset: offset})
		defer fr.Release()
		if fr.Check() != nil || fr.GSO == frame.GSOUDP { // that one comes in pieces
			return
		}
		whole := frame.New(sent, fr.Offload)
		defer whole.Release()
		ok := l.Transmit(fr, nil)
		inline := d.got != nil
		if len(l.queue) > 0 {
			l.deliver(<-l.queue)
		}
		if got := d.got; ok && !bytes.Equal(got, sent[frame.EtherHeaderLen:]) || !ok && got != nil {
			t.Fatalf("ok=%v, but %x arrived of %x", ok, got, sent)
		}
		if !ok {
			return
		}
		var p frame.Packet
		if err := p.Parse(whole); err != nil {
			t.Fatal(err)
		}
		if inline != (p.L4 != 0 && p.Protocol == frame.ProtoTCP && !p.Fragment) {
			t.Fatalf("delivered on the spot: %v; %+v", inline, p)
		}
		if gvisor.AbsurdPathMTU(&p) || !whole.ChecksumsValid(&p) {
			t.Fatalf("let in: %x", sent)
		}
	})
}
