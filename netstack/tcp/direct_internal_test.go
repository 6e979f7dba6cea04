package tcp

import (
	"bytes"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/header/parse"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
)

// FuzzStrip: of a packet that is stripped gVisor's IP would find nothing wrong, and would give the
// same headers and octets to TCP; another one is as it was.
func FuzzStrip(f *testing.F) {
	tcp := []byte("\x00\x01\x00\x02\x00\x00\x00\x00\x00\x00\x00\x00\x50\x10\x00\x00\x00\x00\x00\x00")
	v4 := []byte(
		"\x08\x00\x45\x00\x00\x2b\x00\x00\x00\x00\x40\x06\x26\xcb\x0a\x00\x00\x01\x0a\x00\x00\x02")
	v6 := append(append([]byte("\x86\xdd\x60\x00\x00\x00\x00\x17\x06\x40"), make([]byte, 31)...), 1)
	for _, ip := range [][]byte{v4, v6} {
		segment := func(change func(ip, tcp []byte)) {
			ip, tcp := bytes.Clone(ip), bytes.Clone(tcp)
			change(ip[2:], tcp)
			f.Add(append(append(ip, tcp...), "octpadding"...))
		}
		segment(func(_, tcp []byte) {})
		segment(func(_, tcp []byte) { tcp[13] |= 4 })   // RST
		segment(func(_, tcp []byte) { tcp[12] = 0x60 }) // options that are not there
		segment(func(ip, _ []byte) { ip[0]++ })         // IPv4: options
		// IPv4: a fragment; IPv6: another protocol
		segment(func(ip, _ []byte) { ip[6] ^= 0x20 })
		segment(func(ip, _ []byte) { ip[6] ^= 6 })                // IPv6: hop-by-hop options
		segment(func(ip, _ []byte) { ip[3], ip[5] = 0xff, 0xff }) // longer than the frame
	}
	f.Fuzz(func(t *testing.T, octets []byte) {
		all := append(make([]byte, 12), octets...)
		fr := frame.New(all, frame.Offload{})
		defer fr.Release()
		var p frame.Packet
		if p.Parse(fr) != nil || p.L3 != frame.EtherHeaderLen {
			return
		}
		pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: fr.Take()})
		defer pkt.DecRef()
		pkt.LinkHeader().Consume(frame.EtherHeaderLen)
		want := pkt.Clone()
		defer want.DecRef()
		parts := func(pkt *stack.PacketBuffer) [3][]byte {
			return [3][]byte{pkt.NetworkHeader().Slice(), pkt.TransportHeader().Slice(),
				pkt.Data().AsRange().ToSlice()}
		}
		if strip(&p, pkt) {
			n := want.Data().Size()
			if p.EtherType == frame.EtherIPv4 {
				if !parse.IPv4(want) {
					t.Fatalf("not IPv4: %x", octets)
				}
				if h := header.IPv4(want.NetworkHeader().Slice()); !h.IsValid(n) || h.More() ||
					h.FragmentOffset() != 0 ||
					len(h.Options()) != 0 || h.Protocol() != frame.ProtoTCP {
					t.Fatalf("IP has to do with it: %x", octets)
				}
			} else if proto, id, offset, more, ok := parse.IPv6(want); !ok || proto != frame.ProtoTCP ||
				id != 0 || offset != 0 || more ||
				!header.IPv6(want.NetworkHeader().Slice()).IsValid(n) ||
				len(want.NetworkHeader().Slice()) != frame.IPv6Len {
				t.Fatalf("IP has to do with it: %x", octets)
			}
			const synRST = header.TCPFlagSyn | header.TCPFlagRst
			if !parse.TCP(want) || header.TCP(want.TransportHeader().Slice()).Flags()&synRST != 0 {
				t.Fatalf("not a segment in a connection: %x", octets)
			}
			if pkt.TransportProtocolNumber != want.TransportProtocolNumber {
				t.Fatalf("protocol %d, want %d", pkt.TransportProtocolNumber, want.TransportProtocolNumber)
			}
		}
		for i, got := range parts(pkt) {
			if want := parts(want)[i]; !bytes.Equal(got, want) {
				t.Fatalf("part %d of %x: %x, want %x", i, octets, got, want)
			}
		}
	})
}

// What a sender guesses is believed of the stack that the frame has come to only: two may have the
// same address, one after the other.
func TestGuess(t *testing.T) {
	fr := frame.New([]byte("\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"+
		"\x08\x00\x45\x00\x00\x28\x00\x00\x00\x00\x40\x06\x26\xce\x0a\x00\x00\x01\x0a\x00\x00\x02"+
		"\x00\x01\x00\x02\x00\x00\x00\x00\x00\x00\x00\x00\x50\x10\x00\x00\x00\x00\x00\x00"),
		frame.Offload{})
	defer fr.Release()
	var p frame.Packet
	if err := p.Parse(fr); err != nil {
		t.Fatal(err)
	}
	var here, there connTable
	for _, tt := range []struct {
		name  string
		guess *Conn
		known bool
	}{
		{"none", nil, true},
		{"right", &Conn{flow: flowOf(&p), conns: &here}, false},
		{"another connection of this stack", &Conn{conns: &here}, true},
		{"one of the same name of another stack", &Conn{flow: flowOf(&p), conns: &there}, true},
	} {
		want := tt.guess
		here = connTable{}
		if tt.known {
			want = &Conn{flow: flowOf(&p), conns: &here}
			here.add(want)
		}
		var sender Conn
		sender.peer.Store(tt.guess)
		if got := here.of(&ethswitch.Delivery{Sender: (*receiver)(&sender)}, &p); got != want {
			t.Errorf("%s: %p, want %p", tt.name, got, want)
		}
	}
}
