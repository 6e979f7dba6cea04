package tcp_test

import (
	"encoding/binary"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/frame/frametest"
	"github.com/vrnic/vrnic/netstack/netstacktest"
	"github.com/vrnic/vrnic/netstack/port/porttest"
)

// padded has octets behind the IP packet, as short frames of Ethernet do.
func padded(b []byte) []byte { return append(b, "padding"...) }

// optioned has options in the IP header, or behind it.
func optioned(b []byte) []byte {
	const l3 = 14
	switch {
	case b[12] == 0x08 && b[13] == 0 && b[l3+9] == 6:
		b = slices.Insert(b, l3+20, 1, 1, 1, 0) // NOP, NOP, NOP, end
		b[l3]++
		binary.BigEndian.PutUint16(b[l3+2:], binary.BigEndian.Uint16(b[l3+2:])+4)
		b[l3+10], b[l3+11] = 0, 0
		binary.BigEndian.PutUint16(b[l3+10:], frametest.InetChecksum(b[l3:l3+24]))
	case b[12] == 0x86 && b[l3+6] == 6:
		b = slices.Insert(b, l3+40, 6, 0, 1, 4, 0, 0, 0, 0) // PadN
		b[l3+6] = 0
		binary.BigEndian.PutUint16(b[l3+4:], binary.BigEndian.Uint16(b[l3+4:])+8)
	}
	return b
}

// Octets go both ways, whatever is around the segments: some go straight to their connection,
// others past IP.
func TestOddFrames(t *testing.T) {
	for i, change := range []func([]byte) []byte{padded, optioned} {
		var turn atomic.Int64
		s1, s2 := outside(t, func(to *outsidePort, f *frame.Frame, _ int) {
			n := turn.Add(1)
			if n%3 != 0 {
				g := frame.New(change(f.AppendTo(nil)), frame.Offload{})
				f.Release()
				f = g
			}
			ethswitch.NewCourier(to.at).Bring(f, n%2 == 0, nil)
		}, new(atomic.Bool))
		for _, v6 := range []bool{false, true} {
			a, b := netstacktest.Connect(t, s1, s2, v6)
			if !a.Direct() || !b.Direct() {
				t.Errorf("%d, v6=%v: segments go no way of their own in this gVisor", i, v6)
			}
			var prompts atomic.Int64
			bothInTurn(t, a, b, &prompts)
		}
	}
}

// A connection of a stack with itself takes nothing from outside.
func TestDirectNotToItself(t *testing.T) {
	s := netstacktest.NewStack(t, ethswitch.New(ethswitch.Config{}), 1, 1500)
	for _, v6 := range []bool{false, true} {
		a, b := netstacktest.Connect(t, s, s, v6)
		if a.Direct() || b.Direct() {
			t.Errorf("v6=%v: segments come straight to it", v6)
		}
		a.Close()
		b.Close()
	}
}

// A TCP header behind more extension headers than are looked at is of no connection that is known.
func TestTCPBehindLongExtensions(t *testing.T) {
	sw := ethswitch.New(ethswitch.Config{})
	s := netstacktest.NewStack(t, sw, 1, 1500)
	in := porttest.NewPort(t, sw, "in", false)
	m := s.MAC()
	for units := range 256 { // of 8 octets, behind the first
		for _, n := range []int{2, 4, 20} { // of TCP
			b := make([]byte, 14+40+8*(units+1)+n)
			copy(b, m[:])
			b[6], b[12], b[13], b[14] = 2, 0x86, 0xdd, 0x60
			binary.BigEndian.PutUint16(b[18:], uint16(len(b)-54))
			b[20], b[21], b[54], b[55] = 60, 64, 6, byte(units) // destination options, all Pad1; TCP
			b[22], b[23], b[37], b[38], b[39], b[53] = 0xfd, 0x77, 9, 0xfd, 0x77, 1
			tcp := b[len(b)-n:]
			if n == 20 {
				tcp[12] = 0x50
			}
			pseudo := append(append([]byte{}, b[22:54]...), 0, byte(n), 0, 6)
			sum := frametest.InetChecksum(append(pseudo, tcp...))
			if at := min(n-2, 16); at >= 0 {
				binary.BigEndian.PutUint16(tcp[at:], sum)
			}
			drops := s.PortStats().TxDrops
			if err := in.Send(b, frame.Offload{}); err != nil || s.PortStats().TxDrops != drops {
				t.Fatalf("%d octets of options: %v, or the checksum", 8*(units+1), err)
			}
		}
	}
}
