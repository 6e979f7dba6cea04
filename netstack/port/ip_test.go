package port_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"sync"
	"testing"

	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/netstacktest"
	"github.com/vrnic/vrnic/netstack/port"
)

// ipStack is stack n on a switch of its own, and the port that takes its packets.
func ipStack(t *testing.T, n, mtu int) (*netstack.Stack, *ethswitch.Switch, *port.IP) {
	t.Helper()
	sw := ethswitch.New(ethswitch.Config{})
	s := netstacktest.NewStack(t, sw, n, mtu)
	p, err := port.AttachIP(sw, port.IPConfig{Name: "ip", Stack: s.MAC(), Addrs: s.Addrs()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return s, sw, p
}

// Stacks talk over a link that has no frames: each packet is one of IP, and neither ARP nor
// neighbour discovery is among them.
func TestIPTransfer(t *testing.T) {
	for _, mtu := range []int{1500, 65520} {
		a, _, pa := ipStack(t, 1, mtu)
		b, _, pb := ipStack(t, 2, mtu)
		carry := func(from, to *port.IP) {
			packet := make([]byte, mtu+1)
			for {
				n, err := from.Read(packet)
				if err != nil {
					if !errors.Is(err, io.EOF) {
						t.Error(err)
					}
					return
				}
				if v := packet[0] >> 4; n > mtu || v != 4 && v != 6 ||
					v == 6 && packet[6] == frame.ProtoICMPv6 && packet[40] >= 133 && packet[40] <= 137 {
					t.Errorf("a packet of %d octets: % x", n, packet[:min(n, 60)])
				}
				if _, err := to.Write(packet[:n]); err != nil {
					t.Error(err)
				}
			}
		}
		var carriers sync.WaitGroup
		carriers.Go(func() { carry(pa, pb) })
		carriers.Go(func() { carry(pb, pa) })
		for _, v6 := range []bool{false, true} {
			from, to := netstacktest.Connect(t, a, b, v6)
			netstacktest.Exchange(t, from, to, 1<<20)
		}
		pa.Close()
		pb.Close()
		carriers.Wait()
	}
}

// Nobody is told to have an address of the stack's own, nor is who has no address yet answered;
// what is neither IP nor a question is dropped. A group keeps its address.
func TestIPAnswers(t *testing.T) {
	sw := ethswitch.New(ethswitch.Config{})
	own := netip.MustParsePrefix("10.0.0.1/24")
	own6 := netip.MustParsePrefix("fd00::1/64")
	stack := frame.MAC{2, 0, 0, 0, 0, 1}
	p, err := port.AttachIP(sw, port.IPConfig{Name: "ip", Stack: stack,
		Addrs: []netip.Prefix{own, own6}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	tap := &frameSink{}
	at, err := sw.Attach(ethswitch.PortOptions{Name: "stack", Kind: "memory"}, tap)
	if err != nil {
		t.Fatal(err)
	}
	defer at.Detach()
	asks := func(b []byte) []byte {
		tap.last = nil
		f := frame.New(b, frame.Offload{})
		defer f.Release()
		_ = at.Input(f)
		return tap.last
	}
	head := func(t uint16) []byte {
		return binary.BigEndian.AppendUint16([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1},
			t)
	}
	arp := func(op byte, from, to string) []byte {
		b := append(head(frame.EtherARP), 0, 1, 8, 0, 6, 4, 0, op)
		b = append(append(b, stack[:]...), netip.MustParseAddr(from).AsSlice()...)
		return append(append(b, make([]byte, 6)...), netip.MustParseAddr(to).AsSlice()...)
	}
	nd := func(kind byte, from, to string) []byte {
		b := append(head(frame.EtherIPv6), 0x60, 0, 0, 0, 0, 24, frame.ProtoICMPv6, 255)
		b = append(b, netip.MustParseAddr(from).AsSlice()...)
		b = append(b, netip.MustParseAddr("ff02::1:ff00:2").AsSlice()...)
		return append(append(b, kind, 0, 0, 0, 0, 0, 0, 0), netip.MustParseAddr(to).AsSlice()...)
	}
	if r := asks(arp(1, "10.0.0.1", "10.0.0.2")); len(r) != 42 || r[21] != 2 ||
		!bytes.Equal(r[:6], stack[:]) || !bytes.Equal(r[22:28], r[6:12]) ||
		!bytes.Equal(r[28:42], []byte{10, 0, 0, 2, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1}) {
		t.Errorf("ARP: % x", r)
	}
	if r := asks(nd(135, "fd00::1", "fd00::2")); len(r) != 86 || r[54] != 136 || r[58] != 0x60 ||
		!bytes.Equal(r[62:78], netip.MustParseAddr("fd00::2").AsSlice()) ||
		!bytes.Equal(r[80:86], r[6:12]) {
		t.Errorf("ND: % x", r)
	}
	for name, b := range map[string][]byte{
		"one's own address":        arp(1, "10.0.0.1", "10.0.0.1"),
		"by who has no address":    arp(1, "0.0.0.0", "10.0.0.2"),
		"a reply of ARP":           arp(2, "10.0.0.1", "10.0.0.2"),
		"half a request":           arp(1, "10.0.0.1", "10.0.0.2")[:30],
		"one's own address, of v6": nd(135, "fd00::1", "fd00::1"),
		"a duplicate":              nd(135, "::", "fd00::2"),
		"a router":                 nd(133, "fd00::1", "fd00::2"),
		"half a solicitation":      nd(135, "fd00::1", "fd00::2")[:60],
		"something else":           append(head(0x88cc), make([]byte, 60)...),
	} {
		if r := asks(b); r != nil {
			t.Errorf("%s is answered: % x", name, r)
		}
	}
	for _, packet := range [][]byte{
		append([]byte{0x45, 15: 0, 16: 224, 17: 129, 18: 2, 19: 3}, make([]byte, 9)...),
		append([]byte{0x60, 24: 0xff, 25: 2, 36: 1, 37: 2, 38: 3, 39: 4}, make([]byte, 9)...),
		append([]byte{0x45, 16: 10, 17: 0, 18: 0, 19: 1}, make([]byte, 9)...),
		{0x45}, {0x60},
	} {
		tap.last = nil
		if _, err := p.Write(packet); err != nil {
			t.Error(err)
		}
		want := stack[:]
		switch {
		case len(packet) == 1:
		case packet[0] == 0x60:
			want = []byte{0x33, 0x33, 1, 2, 3, 4}
		case packet[16] == 224:
			want = []byte{1, 0, 0x5e, 1, 2, 3}
		}
		if len(tap.last) < 14 || !bytes.Equal(tap.last[:6], want) ||
			!bytes.Equal(tap.last[14:], packet) {
			t.Errorf("% x\n as % x", packet, tap.last)
		}
	}
	if _, err := p.Write(nil); err == nil {
		t.Error("no packet at all is taken")
	}
}

// What nobody reads is dropped at some point, Close ends who reads, and what waits then is given
// back: TestMain looks for what is not.
func TestIPQueue(t *testing.T) {
	sw := ethswitch.New(ethswitch.Config{})
	p, err := port.AttachIP(sw, port.IPConfig{Name: "ip"})
	if err != nil {
		t.Fatal(err)
	}
	packet := make([]byte, 60014)
	packet[12], packet[13], packet[14] = 8, 0, 0x45
	packet[16], packet[17] = 60000>>8, 60000&0xff
	taken := 0
	for range 100 {
		f := frame.New(packet, frame.Offload{})
		if p.Transmit(f, nil) {
			taken++
		}
		f.Release()
	}
	if taken < 60 || taken > 70 {
		t.Errorf("%d packets of 60000 octets wait", taken)
	}
	b := make([]byte, 65535)
	for range taken {
		if n, err := p.Read(b); n != 60000 || err != nil {
			t.Fatal(n, err)
		}
	}
	ended := make(chan error, 1)
	go func() {
		_, err := p.Read(b)
		ended <- err
	}()
	p.Close()
	if err := <-ended; !errors.Is(err, io.EOF) {
		t.Error(err)
	}

	if p, err = port.AttachIP(sw, port.IPConfig{Name: "ip"}); err != nil {
		t.Fatal(err)
	}
	f := frame.New(packet, frame.Offload{})
	if !p.Transmit(f, nil) {
		t.Error("the first packet is not taken")
	}
	f.Release()
	p.Close()
}

// A frameSink keeps the last frame.
type frameSink struct{ last []byte }

func (s *frameSink) Transmit(f *frame.Frame, _ *ethswitch.Delivery) bool {
	s.last = f.AppendTo(nil)
	return true
}

func (*frameSink) Offloads(frame.GSO) bool { return false }
func (*frameSink) String() string          { return "a sink" }
