package netstack_test

import (
	"encoding/binary"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/netstack/netstacktest"
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
		binary.BigEndian.PutUint16(b[l3+10:], inetChecksum(b[l3:l3+24]))
	case b[12] == 0x86 && b[l3+6] == 6:
		b = slices.Insert(b, l3+40, 6, 0, 1, 4, 0, 0, 0, 0) // PadN
		b[l3+6] = 0
		binary.BigEndian.PutUint16(b[l3+4:], binary.BigEndian.Uint16(b[l3+4:])+8)
	}
	return b
}

// Octets go both ways, whatever is around the segments: some go straight to their connection, others past IP.
func TestOddFrames(t *testing.T) {
	for i, change := range []func([]byte) []byte{padded, optioned} {
		var turn atomic.Int64
		s1, s2 := outside(t, func(to *outsidePort, f *netstack.Frame, _ int) {
			n := turn.Add(1)
			if n%3 != 0 {
				g := netstack.NewFrame(change(f.AppendTo(nil)), netstack.Offload{})
				f.Release()
				f = g
			}
			to.at.Arrive(f, n%2 == 0)
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
	s := netstacktest.NewStack(t, netstack.NewSwitch(netstack.SwitchConfig{}), 1, 1500)
	for _, v6 := range []bool{false, true} {
		a, b := netstacktest.Connect(t, s, s, v6)
		if a.Direct() || b.Direct() {
			t.Errorf("v6=%v: segments come straight to it", v6)
		}
		a.Close()
		b.Close()
	}
}
