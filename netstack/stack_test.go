package netstack_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/frame/frametest"
	"github.com/vrnic/vrnic/netstack/netstacktest"
	"github.com/vrnic/vrnic/netstack/port/porttest"
)

// TestStackCloseEndsWaiting: Accept and Dial that wait return when the stack is closed.
func TestStackCloseEndsWaiting(t *testing.T) {
	sw := ethswitch.New(ethswitch.Config{})
	s := netstacktest.NewStack(t, sw, 1, 1500)
	// A neighbour that answers nothing lets the dial wait.
	l, err := s.TCP().Listen(netip.MustParseAddrPort("10.77.0.1:7"), 1)
	if err != nil {
		t.Fatal(err)
	}
	errc := make(chan error)
	port := porttest.NewPort(t, sw, "silent", false)
	go func() { _, err := l.Accept(); errc <- err }()
	go func() {
		_, err := s.TCP().Dial(context.Background(), netip.Addr{}, netip.MustParseAddrPort("10.77.0.9:7"))
		errc <- err
	}()
	for f := range port.Frames { // until its ARP request is out
		if f.Octets[12] == 0x08 && f.Octets[13] == 0x06 {
			break
		}
	}
	s.Close()
	for range 2 {
		if err := <-errc; err == nil {
			t.Error("no error")
		}
	}
}

// TestStackChecksChecksums: gVisor is told that checksums were checked; so they must have been.
func TestStackChecksChecksums(t *testing.T) {
	sw := ethswitch.New(ethswitch.Config{})
	s := netstacktest.NewStack(t, sw, 1, 1500)
	in := porttest.NewPort(t, sw, "in", true)
	dropped := func() uint64 { return sw.Ports()[0].TxDrops }
	for _, v6 := range []bool{false, true} {
		b, _ := frametest.Super(v6, 101, 1000)
		m := s.MAC()
		copy(b, m[:])
		l4 := len(b) - 121
		good := bytes.Clone(b)
		good[l4+16], good[l4+17] = 0, 0
		sum := uint32(^frametest.PseudoSum(good, l4)) + uint32(
			^frametest.InetChecksum(frametest.Even(good[l4:])))
		binary.BigEndian.PutUint16(good[l4+16:], ^uint16(sum&0xffff+sum>>16))
		before := dropped()
		if err := in.Send(good, frame.Offload{}); err != nil || dropped() != before {
			t.Errorf("v6=%v: right checksums: %v, %d drops", v6, err, dropped()-before)
		}
		if err := in.Send(append(bytes.Clone(good), 0, 1, 2), frame.Offload{}); err != nil ||
			dropped() != before {
			t.Errorf("v6=%v: right checksums before padding: %v, %d drops", v6, err, dropped()-before)
		}
		for _, off := range []int{l4 + 4, l4 - 1, len(b) - 1} { // TCP header, IP address, payload
			bad := bytes.Clone(good)
			bad[off] ^= 1
			before := dropped()
			if err := in.Send(bad, frame.Offload{}); err != nil || dropped() != before+1 {
				t.Errorf("v6=%v: octet %d changed: %v, %d drops", v6, off, err, dropped()-before)
			}
		}
		before = dropped()
		bad := bytes.Clone(good)
		bad[len(bad)-1] ^= 1
		if err := in.Send(bad, frame.Offload{Csum: frame.CsumValid}); err != nil || dropped() != before {
			t.Errorf("v6=%v: declared valid: %v, %d drops", v6, err, dropped()-before)
		}
	}
}

// TestConfigErrors: what cannot be is refused, and nothing is left.
func TestConfigErrors(t *testing.T) {
	sw := ethswitch.New(ethswitch.Config{})
	porttest.NewPort(t, sw, "taken", false)
	addrs := netstacktest.Addresses(1)
	for name, c := range map[string]netstack.Config{
		"no name":       {Addrs: addrs},
		"name taken":    {Name: "taken", Addrs: addrs},
		"MTU too small": {Name: "v", MTU: 1000},
		"MTU too large": {Name: "v", MTU: 65536},
		"group MAC":     {Name: "v", MAC: frame.MAC{1}},
		"multicast":     {Name: "v", Addrs: []netip.Prefix{netip.MustParsePrefix("224.0.0.1/4")}},
		"address twice": {Name: "v", Addrs: append(addrs, addrs[0])},
		"gateway beyond": {Name: "v", Addrs: addrs, Gateways: []netip.Addr{
			netip.MustParseAddr("192.0.2.1")}},
		"tiny buffer": {Name: "v", SendBuffer: 1},
	} {
		s, err := netstack.NewStack(sw, c)
		if err == nil {
			s.Close()
			t.Errorf("%s: no error", name)
		}
		if n := len(sw.Ports()); n != 1 {
			t.Errorf("%s: %d ports", name, n)
		}
	}
}
