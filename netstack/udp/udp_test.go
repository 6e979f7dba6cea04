package udp_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/netstack"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/netstacktest"
	"github.com/vrnic/vrnic/netstack/port/porttest"
	"github.com/vrnic/vrnic/roce/packet"
	roceudp "github.com/vrnic/vrnic/roce/udp"
)

// Packets of any size that one Send makes come to the other stack as they were made, in order and
// as one batch, on either family; and from one address of a stack to another.
func TestSend(t *testing.T) {
	a, b := netstacktest.Pair(t, 9000)
	from, sink := open(t, a, 1, &sink{}), &sink{}
	open(t, b, 2, sink)
	for i, dst := range addrs(2) {
		r, err := from.Route(t.Context(), addrs(1)[i], dst)
		if err != nil || r.NextHop() != b.MAC() || r.MTU() != 9000 {
			t.Fatalf("%v: %v, over %v, MTU %d", dst, err, r.NextHop(), r.MTU())
		}
		src := newSource(addrs(1)[i], dst)
		for _, size := range []int{0, 4, 480, 484, 1024, 4096, 8900} {
			sink.finished = 0
			first := int(src.next)
			src.n, src.size = 40, size
			if err := r.Send(src); err != nil {
				t.Fatal(err)
			}
			got := sink.take()
			if len(got) != 40 || got[0] != first || got[39] != first+39 || !slices.IsSorted(got) ||
				sink.finished != 1 {
				t.Errorf("%v, %d octets: %v from %d on, %d batches", dst, size, got, first, sink.finished)
			}
		}
		src.n, src.size = 3, 9000
		if err := r.Send(src); !errors.Is(err, syscall.EMSGSIZE) || len(sink.take()) != 0 || src.n != 0 {
			t.Errorf("above the MTU: %v, %d left", err, src.n)
		}
	}
}

// What one Send makes goes as super-frames, so far as packets are alike, and comes to a port that
// takes none as the packets that were made, with checksums.
func TestSuperFrames(t *testing.T) {
	a, b := netstacktest.Pair(t, 9000)
	from, sink := open(t, a, 1, &sink{}), &sink{}
	open(t, b, 2, sink)
	for i, dst := range addrs(2) {
		way, err := from.Route(t.Context(), addrs(1)[i], dst)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct{ n, size, frames int }{
			{1, 4096, 1}, {2, 4096, 1}, {30, 4096, 2}, {200, 600, 4}, {20, 64, 1}, {7, 8900, 1},
		} {
			src := newSource(addrs(1)[i], dst)
			for k := range src.data {
				src.data[k] = byte(k)
			}
			src.n, src.size = c.n, c.size
			before := a.PortStats().RxFrames
			if err := way.Send(src); err != nil {
				t.Fatal(err)
			}
			got := sink.take()
			if n := int(a.PortStats().RxFrames - before); n != c.frames || len(got) != c.n ||
				slices.Contains(got, -1) || !slices.IsSorted(got) {
				t.Errorf("%v: %d packets of %d octets: %d frames, want %d; %v comes", dst, c.n, c.size, n,
					c.frames, got)
			}
		}
	}
}

// A port that takes no super-frames of UDP gets them cut, as Linux cuts them: each packet as it was
// made, but for the checksum of UDP, which is right.
func TestSuperFramesCut(t *testing.T) {
	r := newRig(t)
	peer := addrs(9)[0]
	others := make(chan []byte, 64)
	r.answer(peer, others)
	way, err := r.sock.Route(t.Context(), addrs(1)[0], peer)
	if err != nil {
		t.Fatal(err)
	}
	src := newSource(addrs(1)[0], peer)
	src.n, src.size = 20, 1000
	if err := way.Send(src); err != nil {
		t.Fatal(err)
	}
	for n := 0; n < 20; {
		b := <-others
		if !isUDPTo(b, peer) {
			continue
		}
		f := frame.New(b, frame.Offload{})
		var p frame.Packet
		q, err := roceudp.Parse(b[14:])
		if p.Parse(f) != nil || !f.ChecksumsValid(&p) || b[40] == 0 && b[41] == 0 {
			t.Errorf("packet %d: wrong checksums", n)
		}
		var h packet.Header
		if err != nil || !q.Valid() {
			t.Errorf("packet %d: %v, ICRC %t", n, err, q.Valid())
		} else if _, err := h.Parse(q.Datagram); err != nil || int(h.PSN) != n {
			t.Errorf("packet %d is %v, %v", n, &h, err)
		}
		f.Release()
		n++
	}
}

// Packets to an own address come back at once.
func TestOwnAddress(t *testing.T) {
	r := newRig(t)
	for _, a := range addrs(1) {
		way, err := r.sock.Route(t.Context(), a, a)
		if err != nil || way.NextHop() != (frame.MAC{}) {
			t.Fatalf("%v, over %v", err, way.NextHop())
		}
		src := newSource(a, a)
		src.n = 3
		if err := way.Send(src); err != nil || fmt.Sprint(r.sink.take()) != "[0 1 2]" {
			t.Errorf("to %v: %v", a, err)
		}
	}
}

// ROCE-002, ROCE-004 to ROCE-008, ROCE-012, ROCE-013, ROCE-015, ROCE-016, ROCE-213, ROCE-220: which
// frames come up, and with what. What does not is not answered.
func TestReceive(t *testing.T) {
	r := newRig(t)
	be := binary.BigEndian
	us, them := addrs(1), addrs(9)
	v4, v6 := newSource(them[0], us[0]).one(5), newSource(them[1], us[1]).one(5)
	// sum makes the checksum of UDP, which the ICRC does not cover.
	sum := func(b []byte, head int) {
		udp, at := b[head:], 12
		if head == 40 {
			at = 8
		}
		s := uint32(17) + uint32(len(udp))
		for _, part := range [][]byte{b[at:head], udp} {
			for i := 0; i+1 < len(part); i += 2 {
				s += uint32(be.Uint16(part[i:]))
			}
		}
		for s>>16 != 0 {
			s = s&0xffff + s>>16
		}
		be.PutUint16(udp[6:], ^uint16(s))
	}
	// ip4 makes the checksum of the header.
	ip4 := func(b []byte) []byte {
		s := uint32(0)
		b[10], b[11] = 0, 0
		for i := 0; i < int(b[0]&15)*4; i += 2 {
			s += uint32(be.Uint16(b[i:]))
		}
		be.PutUint16(b[10:], ^uint16(s&0xffff+s>>16))
		return b
	}
	asIs := func(b []byte) []byte { return b }
	for _, c := range []struct {
		name string
		ip   []byte
		do   func(b []byte) []byte
		want string // PSNs; -1: the ICRC is wrong
	}{
		{"as it is", v4, asIs, "[5]"},
		{"as it is, IPv6", v6, asIs, "[5]"},
		{"from another port", v4, func(b []byte) []byte { b[20]++; return b }, "[-1]"},
		{"right checksum", v4, func(b []byte) []byte { sum(b, 20); return b }, "[5]"},
		{"right checksum, IPv6", v6, func(b []byte) []byte { sum(b, 40); return b }, "[5]"},
		{"wrong checksum", v4, func(b []byte) []byte { sum(b, 20); b[27]++; return b }, "[]"},
		{"wrong checksum, IPv6", v6, func(b []byte) []byte { sum(b, 40); b[47]++; return b }, "[]"},
		{"wrong checksum of IPv4", v4, func(b []byte) []byte { b[10]++; return b }, "[]"},
		{"padding of Ethernet", v4, func(b []byte) []byte { return append(b, make([]byte, 20)...) },
			"[5]"},
		{"octets behind UDP", v4, func(b []byte) []byte {
			be.PutUint16(b[2:], uint16(len(b)+8))
			c, _ := packet.Start(b)
			b = c.Add(b[40 : len(b)-4]).Append(b[:len(b)-4])
			return ip4(append(b, make([]byte, 8)...))
		}, "[5]"},
		{"options", v4, func(b []byte) []byte {
			b = append(append(append([]byte(nil), b[:20]...), 1, 1, 1, 0), b[20:len(b)-4]...)
			b[0] = 0x46
			be.PutUint16(b[2:], uint16(len(b)+4))
			c, _ := packet.Start(b)
			return ip4(c.Add(b[44:]).Append(b))
		}, "[5]"},
		{"UDP length above the packet's", v4, func(b []byte) []byte { b[25]++; return b }, "[]"},
		{"UDP length 7", v4, func(b []byte) []byte { b[25] = 7; return b }, "[]"},
		{"a fragment", v4, func(b []byte) []byte { b[6] = 0x20; return ip4(b) }, "[]"},
		{"the rest of it", v4, func(b []byte) []byte {
			b = append(b[:20], b[36:]...) // from the 16th octet on
			b[6], b[7] = 0, 2
			be.PutUint16(b[2:], uint16(len(b)))
			return ip4(b)
		}, "[]"},
		{"to another address", newSource(them[0], addrs(3)[0]).one(5), asIs, "[]"},
		{"an extension header", v6, func(b []byte) []byte {
			b = append(append(append([]byte(nil), b[:40]...), 17, 0, 1, 4, 0, 0, 0, 0), b[40:]...)
			b[6] = 60
			be.PutUint16(b[4:], uint16(len(b)-40))
			return b
		}, "[]"},
		{"from a group", newSource(netip.MustParseAddr("239.1.2.3"), us[0]).one(5), asIs, "[]"},
		{"from a group, IPv6", newSource(netip.MustParseAddr("ff02::1"), us[1]).one(5), asIs, "[]"},
		{"from all", newSource(netip.MustParseAddr("255.255.255.255"), us[0]).one(5), asIs, "[]"},
		{"from nobody", newSource(netip.IPv4Unspecified(), us[0]).one(5), asIs, "[]"},
		{"from nobody, IPv6", newSource(netip.IPv6Unspecified(), us[1]).one(5), asIs, "[]"},
		{"from itself", newSource(netip.MustParseAddr("127.0.0.1"), us[0]).one(5), asIs, "[]"},
		{"from itself, IPv6", newSource(netip.IPv6Loopback(), us[1]).one(5), asIs, "[]"},
	} {
		r.send(c.do(slices.Clone(c.ip)))
		if got := fmt.Sprint(r.sink.take()); got != c.want {
			t.Errorf("%s: %v comes up, want %v", c.name, got, c.want)
		}
	}
	if n := r.stack.Stats().UDPBadChecksums; n != 3 {
		t.Errorf("%d datagrams had wrong checksums, want 3", n)
	}
	mac := r.stack.MAC()
	tagged := slices.Insert(r.frame(mac, v4), 12, 0x81, 0, 0, 1)
	other := mac
	other[5]++
	for name, b := range map[string][]byte{"tagged": tagged, "to another station": r.frame(other, v4),
		"to a group's MAC": r.frame(frame.MAC{1, 0, 0x5e, 0, 0, 1}, v4),
		"to all":           r.frame(frame.MAC{255, 255, 255, 255, 255, 255}, v4)} {
		if err := r.wire.Send(b, frame.Offload{}); err != nil {
			t.Error(err)
		}
		if got := r.sink.take(); got != nil {
			t.Errorf("%s: %v comes up", name, got)
		}
	}
	// A ping that comes behind all is answered behind all answers.
	r.send(ip4([]byte{0x45, 0, 0, 28, 0, 0, 0, 0, 64, 1, 0, 0, 10, 77, 0, 9, 10, 77, 0, 1,
		8, 0, 0xf7, 0xff, 0, 0, 0, 0}))
	others := make(chan []byte, 64)
	r.answer(them[0], others)
	for b := range others {
		if be.Uint16(b[12:]) == frame.EtherIPv4 && b[23] == 1 {
			if b[34] != 0 {
				t.Errorf("an ICMP of type %d", b[34])
			} else {
				break
			}
		}
		if be.Uint16(b[12:]) == frame.EtherIPv6 && b[20] == 58 && b[54] < 128 {
			t.Errorf("an ICMPv6 error of type %d", b[54])
		}
	}
}

// A frame whose octets lie in several pieces comes up as one.
func TestPieces(t *testing.T) {
	r := newRig(t)
	s := newSource(addrs(9)[0], addrs(1)[0])
	s.size = 1024
	octets := r.frame(r.stack.MAC(), s.one(3))
	for _, cut := range []int{20, 42, 60, 500} {
		f := frame.New(octets[:cut], frame.Offload{})
		rest := frame.New(octets[cut:], frame.Offload{})
		taken := rest.Take()
		f.Buffer.Merge(&taken)
		rest.Release()
		at, err := r.sw.Attach(ethswitch.PortOptions{Name: fmt.Sprint(cut)}, r.wire)
		if err != nil {
			t.Fatal(err)
		}
		if err := at.Input(f); err != nil {
			t.Error(err)
		}
		f.Release()
		at.Detach()
		if got := fmt.Sprint(r.sink.take()); got != "[3]" {
			t.Errorf("cut at %d: %v comes up", cut, got)
		}
	}
}

// ROCE-185: a Route waits for its neighbour, says that there is none, and follows one that moves,
// at the next Send.
func TestNeighbour(t *testing.T) {
	if netstacktest.RaceEnabled {
		needtest.Skip(t, "gVisor tells who has waited for a neighbour of it without its lock")
	}
	r := newRig(t)
	peer := addrs(9)[0]
	others := make(chan []byte, 64)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.sock.Route(ctx, addrs(1)[0], peer); !errors.Is(err, context.Canceled) {
		t.Errorf("a Route to who is silent, given up: %v", err)
	}
	r.answer(peer, others)
	way, err := r.sock.Route(t.Context(), addrs(1)[0], peer)
	if err != nil || way.NextHop() != r.mac {
		t.Fatalf("%v, over %v", err, way.NextHop())
	}
	moved := frame.MAC{2, 0, 0, 0, 0, 0x99}
	all := frame.MAC{255, 255, 255, 255, 255, 255}
	// The peer, on another card now, asks where we are.
	if err := r.wire.Send(r.arp(1, moved, peer.As4(), all, addrs(1)[0].As4()),
		frame.Offload{}); err != nil {
		t.Fatal(err)
	}
	src := newSource(addrs(1)[0], peer)
	needtest.Eventually(t, "packets go where the peer was", func() bool {
		src.n = 1
		return way.Send(src) == nil && way.NextHop() == moved
	})
	for b := range others {
		if frame.MAC(b[:6]) == moved {
			break
		}
	}
	for _, c := range []struct {
		local, remote netip.Addr
		err           error
	}{
		{addrs(1)[0], netip.MustParseAddr("192.0.2.1"), syscall.ENETUNREACH},
		{addrs(1)[0], netip.MustParseAddr("10.77.0.255"), syscall.ENETUNREACH},
		{addrs(1)[0], netip.MustParseAddr("0.0.0.0"), syscall.ENETUNREACH},
		{addrs(2)[0], peer, syscall.EADDRNOTAVAIL},
		{addrs(1)[0], addrs(9)[1], syscall.EAFNOSUPPORT},
	} {
		if _, err := r.sock.Route(t.Context(), c.local, c.remote); !errors.Is(err, c.err) {
			t.Errorf("from %v to %v: %v, want %v", c.local, c.remote, err, c.err)
		}
	}
}

// A neighbour that does not answer is EHOSTUNREACH after gVisor has asked thrice.
func TestNoNeighbour(t *testing.T) {
	clock := porttest.NewClock(t)
	s, err := netstack.NewStack(ethswitch.New(ethswitch.Config{}), netstack.Config{Name: "s",
		Addrs: netstacktest.Addresses(1), Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	sock := open(t, s, 1, &sink{})
	for i, a := range addrs(1) {
		if _, err := sock.Route(t.Context(), a, addrs(9)[i]); !errors.Is(err, syscall.EHOSTUNREACH) {
			t.Errorf("to %v: %v", addrs(9)[i], err)
		}
	}
}

// ROCE-187: packets to another network go to the gateway.
func TestGateway(t *testing.T) {
	r := &rig{t: t, sw: ethswitch.New(ethswitch.Config{}), sink: &sink{},
		mac: frame.MAC{2, 0, 0, 0, 0, 9}}
	var err error
	r.stack, err = netstack.NewStack(r.sw, netstack.Config{Name: "s", Addrs: netstacktest.Addresses(1),
		Gateways: []netip.Addr{addrs(9)[0]}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.stack.Close() })
	r.wire = porttest.NewPort(t, r.sw, "wire", false)
	r.sock = open(t, r.stack, 1, r.sink)
	others := make(chan []byte, 64)
	r.answer(addrs(9)[0], others)
	far := netip.MustParseAddr("192.0.2.1")
	way, err := r.sock.Route(t.Context(), addrs(1)[0], far)
	if err != nil || way.NextHop() != r.mac {
		t.Fatalf("%v, over %v", err, way.NextHop())
	}
	src := newSource(addrs(1)[0], far)
	src.n = 1
	if err := way.Send(src); err != nil {
		t.Fatal(err)
	}
	for b := range others {
		if isUDPTo(b, far) {
			if frame.MAC(b[:6]) != r.mac {
				t.Errorf("to %v: % x", far, b)
			}
			break
		}
	}
}

// A Socket is in so many groups, and in no more, until it has left one.
func TestGroupLimit(t *testing.T) {
	r := newRig(t)
	group := netip.MustParseAddr("239.1.0.0")
	n := 0
	for ; n < 1<<16; n++ {
		if err := r.sock.Join(group); err != nil {
			if !errors.Is(err, syscall.ENOBUFS) {
				t.Fatal(err)
			}
			break
		}
		group = group.Next()
	}
	if n != 8192 {
		t.Errorf("joined %d groups, want 8192", n)
	}
	if err := r.sock.Leave(group.Prev()); err != nil {
		t.Error(err)
	}
	if err := r.sock.Join(group); err != nil {
		t.Errorf("there is room: %v", err)
	}
}

// ROCE-189, ROCE-190, ROCE-194, ROCE-195: joining says so on the network (IGMPv3, MLDv2); frames to
// the group come up then, of this stack too, and go to the group's MAC; leaving ends it.
func TestGroups(t *testing.T) {
	r := newRig(t)
	be := binary.BigEndian
	for i, c := range []struct {
		group  netip.Addr
		mac    frame.MAC
		report func(b []byte) bool
	}{
		{netip.MustParseAddr("239.129.2.3"), frame.MAC{1, 0, 0x5e, 1, 2, 3}, func(b []byte) bool {
			return be.Uint16(b[12:]) == frame.EtherIPv4 && b[23] == 2 && b[14+int(b[14]&15)*4] == 0x22
		}},
		{netip.MustParseAddr("ff12::1:2:3"), frame.MAC{0x33, 0x33, 0, 2, 0, 3}, func(b []byte) bool {
			return be.Uint16(b[12:]) == frame.EtherIPv6 && b[20] == 0 && b[62] == 143
		}},
	} {
		them := newSource(addrs(9)[i], c.group).one(7)
		come := func() string {
			if err := r.wire.Send(r.frame(c.mac, them), frame.Offload{}); err != nil {
				t.Error(err)
			}
			return fmt.Sprint(r.sink.take())
		}
		if got := come(); got != "[]" {
			t.Errorf("%v: %v comes before the join", c.group, got)
		}
		for range 2 {
			if err := r.sock.Join(c.group); err != nil {
				t.Fatal(err)
			}
		}
		for f := range r.wire.Frames { // until there is a report
			if c.report(f.Octets) {
				break
			}
		}
		if got := come(); got != "[7]" {
			t.Errorf("%v: %v comes", c.group, got)
		}
		way, err := r.sock.Route(t.Context(), addrs(1)[i], c.group)
		if err != nil {
			t.Fatal(err)
		}
		src := newSource(addrs(1)[i], c.group)
		src.n = 1
		if err := way.Send(src); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(r.sink.take()); got != "[0]" {
			t.Errorf("%v: of what was sent %v comes back", c.group, got)
		}
		for f := range r.wire.Frames {
			if b := f.Octets; isUDPTo(b, c.group) {
				if frame.MAC(b[:6]) != c.mac {
					t.Errorf("%v: to %v", c.group, frame.MAC(b[:6]))
				}
				break
			}
		}
		for k, want := range []string{"[7]", "[]"} {
			if err := r.sock.Leave(c.group); err != nil {
				t.Error(err)
			}
			if got := come(); got != want {
				t.Errorf("%v: after Leave %d %v comes, want %v", c.group, k+1, got, want)
			}
		}
		if err := r.sock.Leave(c.group); !errors.Is(err, syscall.EADDRNOTAVAIL) {
			t.Errorf("a third Leave: %v", err)
		}
	}
	if err := r.sock.Join(addrs(9)[0]); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("joining an address: %v", err)
	}
}

// isUDPTo reports whether b is a frame with a datagram to dst.
func isUDPTo(b []byte, dst netip.Addr) bool {
	if dst.Is4() {
		return b[12] == 8 && b[13] == 0 && b[23] == 17 && netip.AddrFrom4([4]byte(b[30:34])) == dst
	}
	return b[12] == 0x86 && b[20] == 17 && netip.AddrFrom16([16]byte(b[38:54])) == dst
}

// An address has one Socket at a port; the stack's own only; and nothing comes after Close.
func TestOpen(t *testing.T) {
	r := newRig(t)
	h := r.stack.UDP()
	if _, err := h.Open(packet.Port, addrs(1)[1:], r.sink); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a second Socket: %v", err)
	}
	if _, err := h.Open(packet.Port, addrs(2), r.sink); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("a Socket of another's address: %v", err)
	}
	way, err := r.sock.Route(t.Context(), addrs(1)[0], addrs(1)[0])
	if err != nil {
		t.Fatal(err)
	}
	group := netip.MustParseAddr("239.1.2.3")
	if err := r.sock.Join(group); err != nil {
		t.Fatal(err)
	}
	if err := r.sock.Close(); err != nil {
		t.Fatal(err)
	}
	r.send(newSource(addrs(9)[0], addrs(1)[0]).one(1))
	src := newSource(addrs(1)[0], addrs(1)[0])
	src.n = 1
	if err := way.Send(src); !errors.Is(err, net.ErrClosed) || r.sink.take() != nil {
		t.Errorf("after Close: %v", err)
	}
	for _, err := range []error{r.sock.Join(group), r.sock.Leave(group), r.sock.Close()} {
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	}
	again, err := h.Open(packet.Port, addrs(1), r.sink)
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}

// Datagrams and TCP share the addresses of a stack.
func TestBesideTCP(t *testing.T) {
	a, b := netstacktest.Pair(t, 1500)
	from, to := netstacktest.Connect(t, a, b, false)
	defer from.Close()
	defer to.Close()
	sink := &sink{}
	open(t, b, 2, sink)
	way, err := open(t, a, 1, sink).Route(t.Context(), addrs(1)[0], addrs(2)[0])
	if err != nil {
		t.Fatal(err)
	}
	src := newSource(addrs(1)[0], addrs(2)[0])
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 100 {
			src.n = 10
			if err := way.Send(src); err != nil {
				t.Error(err)
			}
		}
	}()
	netstacktest.Exchange(t, from, to, 1<<20)
	<-done
	if got := sink.take(); len(got) != 1000 || slices.Contains(got, -1) {
		t.Errorf("%d packets beside TCP", len(got))
	}
}
