package port

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/internal/needtest"
	"github.com/vrnic/vrnic/netstack/ethswitch"
	"github.com/vrnic/vrnic/netstack/frame"
	"github.com/vrnic/vrnic/netstack/port/porttest"
)

// A far is another end of a segment, a plain socket.
type far struct {
	*net.UDPConn
	t *testing.T
}

// newFar makes one at an address of the loopback interface.
func newFar(t *testing.T, addr string, port uint16) *far {
	t.Helper()
	c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(
		netip.MustParseAddr(addr), port)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &far{c, t}
}

func (f *far) at() netip.AddrPort { return f.LocalAddr().(*net.UDPAddr).AddrPort() }

// vxlanOf is the port's end.
func vxlanOf(v *VXLAN) netip.AddrPort { return v.conn.LocalAddr().(*net.UDPAddr).AddrPort() }

func (f *far) send(v *VXLAN, datagram []byte) {
	f.t.Helper()
	if _, err := f.WriteToUDPAddrPort(datagram, vxlanOf(v)); err != nil {
		f.t.Fatal(err)
	}
}

// gets wants a frame next.
func (f *far) gets(what string, want []byte) {
	f.t.Helper()
	b := make([]byte, 4096)
	if err := f.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		f.t.Fatal(err)
	}
	n, _, err := f.ReadFromUDPAddrPort(b)
	if err != nil || !bytes.Equal(b[:n], datagram(7, want)) {
		f.t.Errorf("%s: %x, %v; want %x", what, b[:n], err, want)
	}
}

func datagram(vni uint32, inner []byte) []byte {
	var h [vxlanHeaderLen]byte
	putVXLAN(&h, vni)
	return append(h[:], inner...)
}

// ether is a frame of an experiment's EtherType.
func ether(to, from byte, text string) []byte {
	b := make([]byte, 0, 64)
	b = append(b, to, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from, 0x88, 0xb5)
	return append(b, text...)
}

const everybody = 0xff // a group

// segment is a port with remote ends, and a port in memory beside it.
func segment(t *testing.T, remotes ...*far) (*VXLAN, *porttest.Port) {
	t.Helper()
	sw := ethswitch.New(ethswitch.Config{})
	c := VXLANConfig{VNI: 7, Local: netip.MustParseAddrPort("127.0.0.1:0")}
	for _, r := range remotes {
		c.Remotes = append(c.Remotes, r.at())
	}
	v, err := OpenVXLAN(sw, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	return v, porttest.NewPort(t, sw, "near", true)
}

func arrives(t *testing.T, near *porttest.Port, want []byte) {
	t.Helper()
	select {
	case got := <-near.Frames:
		if !bytes.Equal(got.Octets, want) {
			t.Errorf("%x has come, want %x", got.Octets, want)
		}
	case <-time.After(time.Minute):
		t.Fatalf("%x does not come", want)
	}
}

// RFC 7348, section 5: the header by its octets.
func TestVXLANHeader(t *testing.T) {
	var h [vxlanHeaderLen]byte
	if putVXLAN(&h, 0x123456); h != [8]byte{8, 0, 0, 0, 0x12, 0x34, 0x56, 0} {
		t.Errorf("the header is %x", h)
	}
	inner := ether(2, 2, "x")
	for _, tt := range []struct {
		what string
		b    []byte
		ok   bool
	}{
		{"what is sent", datagram(7, inner), true},
		{"reserved bits", append([]byte{0xff, 1, 2, 3, 0, 0, 7, 9}, inner...), true},
		{"nothing", nil, false},
		{"half a header", datagram(7, inner)[:7], false},
		{"no frame", datagram(7, nil), false},
		{"half a frame's header", datagram(7, inner[:13]), false},
		{"a frame's header", datagram(7, inner[:14]), true},
		{"no VNI", append([]byte{0xf7, 0, 0, 0, 0, 0, 7, 0}, inner...), false},
		{"another VNI", datagram(8, inner), false},
		{"a VNI in other octets", append([]byte{8, 0, 0, 7, 0, 0, 0, 7}, inner...), false},
		{"a VLAN", datagram(7, append(inner[:12:12], 0x81, 0, 0, 1, 8, 0)), false},
		{"a provider's VLAN", datagram(7, append(inner[:12:12], 0x88, 0xa8, 0, 1, 8, 0)), false},
	} {
		got, ok := parseVXLAN(tt.b, 7)
		if ok != tt.ok || ok && !bytes.Equal(got, tt.b[8:]) {
			t.Errorf("%s: %x, %v", tt.what, got, ok)
		}
	}
}

func FuzzVXLAN(f *testing.F) {
	f.Add(datagram(7, ether(2, 2, "x")), uint32(7))
	f.Add([]byte{8, 0, 0, 0}, uint32(0))
	f.Fuzz(func(t *testing.T, b []byte, vni uint32) {
		inner, ok := parseVXLAN(b, vni)
		if !ok {
			return
		}
		if b[0]&8 == 0 || binary.BigEndian.Uint32(b[4:])>>8 != vni || len(inner) != len(b)-8 ||
			len(inner) < frame.EtherHeaderLen || tagged(binary.BigEndian.Uint16(inner[12:])) {
			t.Errorf("%x is taken as %x of %d", b, inner, vni)
		}
	})
}

// What others send, or what is of no such segment, does not reach the switch, and is counted.
func TestVXLANHostile(t *testing.T) {
	other := newFar(t, "127.0.0.2", 0)
	v, near := segment(t, other)
	good := ether(everybody, 2, "good")
	bad := [][]byte{{}, {8}, datagram(7, nil), datagram(8, good), datagram(7, good[:13]),
		append([]byte{0, 0, 0, 0, 0, 0, 7, 0}, good...),
		datagram(7, append(good[:12:12], 0x81, 0, 0, 1, 8, 0))}
	for _, b := range bad {
		other.send(v, b)
	}
	stranger := newFar(t, "127.0.0.3", other.at().Port())
	stranger.send(v, datagram(7, good))
	group := ether(everybody, 2, "from a group") // the switch's to refuse
	group[6] |= 1
	other.send(v, datagram(7, group))
	newFar(t, "127.0.0.2", 0).send(v, datagram(7, good)) // any port is the remote's
	arrives(t, near, good)
	if s := v.Stats(); s.RxFrames != 1 || s.RxDrops != uint64(len(bad)+2) {
		t.Errorf("it has counted %+v", s)
	}
	want := "VNI 7 at 127.0.0.1:0, with " + other.at().String() + ", IP packets of 65485 octets (8 " +
		"datagrams of others, or of another segment)"
	if s := v.String(); s != want {
		t.Errorf("it says %q, want %q", s, want)
	}
	if len(near.Frames) != 0 {
		t.Errorf("%d frames more have come", len(near.Frames))
	}
}

// Groups, and stations that nobody has heard of, are at all remote ends; one that has sent is where
// it has sent from, also when it has moved. What comes from one remote end does not go to others.
func TestVXLANLearning(t *testing.T) {
	a := newFar(t, "127.0.0.2", 0)
	b := newFar(t, "127.0.0.3", 0)
	v, near := segment(t, a, b)
	out := func(f []byte, to ...*far) {
		t.Helper()
		if err := near.Send(f, frame.Offload{}); err != nil {
			t.Fatal(err)
		}
		for _, r := range to {
			r.gets("from the switch", f)
		}
	}
	out(ether(everybody, 1, "all"), a, b)
	out(ether(4, 1, "anybody"), a, b)
	for _, r := range []*far{a, b, a} {
		in := ether(0, 4, "here I am")
		copy(in, ether(everybody, 0, "")[:6])
		r.send(v, datagram(7, in))
		arrives(t, near, in)
		to := []byte{2, 0, 0, 0, 0, 4, 2, 0, 0, 0, 0, 1, 0x88, 0xb5, 'o'}
		out(to, r)
	}
	out(ether(everybody, 1, "last"), a, b) // and nothing in between
	if err := near.Send(append(ether(everybody, 1, "")[:12], 0x81, 0, 0, 1, 8, 0),
		frame.Offload{}); err != nil {
		t.Fatal(err)
	}
	if s := v.Stats(); s.TxDrops != 1 {
		t.Errorf("a frame of a VLAN: %+v", s)
	}
}

// In a flood of a stranger's datagrams what a remote end has sent arrives before it is over.
func TestVXLANFlood(t *testing.T) {
	a, stranger := newFar(t, "127.0.0.2", 0), newFar(t, "127.0.0.3", 0)
	v, near := segment(t, a)
	in := newFar(t, "127.0.0.1", 0) // a socket that the port's own goroutine does not read
	r := &vxlanReader{v: v, courier: ethswitch.NewCourier(v.at), buf: make([]byte, vxlanRead)}
	raw, err := in.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	send := func(f *far, text string) []byte {
		frame := ether(everybody, 2, text)
		if _, err := f.WriteToUDPAddrPort(datagram(7, frame), in.at()); err != nil {
			t.Fatal(err)
		}
		return frame
	}
	first := send(a, "first")
	for range 2 * maxBrought {
		send(stranger, "flood")
	}
	last := send(a, "last")
	bring := func() {
		t.Helper()
		if err := raw.Read(r.bring); err != nil {
			t.Fatal(err)
		}
	}
	bring()
	arrives(t, near, first)
	if n := v.refused.Load(); n != maxBrought-1 || len(near.Frames) != 0 {
		t.Errorf("%d of the flood are looked at, and %d frames more have come", n, len(near.Frames))
	}
	bring()
	bring()
	arrives(t, near, last)
	if n := v.refused.Load(); n != 2*maxBrought {
		t.Errorf("%d of the flood are counted, want %d", n, 2*maxBrought)
	}
}

// A port is closed under a flood of a stranger's and a remote end's datagrams.
func TestVXLANFloodClose(t *testing.T) {
	a, stranger := newFar(t, "127.0.0.2", 0), newFar(t, "127.0.0.3", 0)
	v, near := segment(t, a)
	to := vxlanOf(v)
	var stop atomic.Bool
	var wg sync.WaitGroup
	for _, f := range []*far{a, stranger} {
		wg.Go(func() {
			b := datagram(7, ether(everybody, 2, "flood"))
			for !stop.Load() {
				_, _ = f.WriteToUDPAddrPort(b, to) // refused when the port is closed
			}
		})
	}
	arrives(t, near, ether(everybody, 2, "flood"))
	needtest.Eventually(t, "a refusal", func() bool { return v.refused.Load() > 0 })
	if err := v.Close(); err != nil {
		t.Error(err)
	}
	stop.Store(true)
	wg.Wait()
}

// Stations are forgotten, and no remote end fills the table for good, or has all of it looked
// through for each frame.
func TestVXLANBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &behind{now: time.Now, at: make(map[frame.MAC]place)}
		mac := func(n int) (m frame.MAC) {
			binary.BigEndian.PutUint32(m[2:], uint32(n))
			return m
		}
		b.learn(frame.MAC{1}, 0)
		for n := range maxBehind + 1 {
			b.learn(mac(n), n%2)
		}
		if to, known := b.find(mac(1)); to != 1 || !known || len(b.at) != maxBehind {
			t.Errorf("of %d it finds %d, %v", len(b.at), to, known)
		}
		if _, known := b.find(mac(maxBehind)); known {
			t.Error("there is room for more than there is")
		}
		time.Sleep(behindTime)
		b.learn(mac(maxBehind), 1) // nothing is old enough
		time.Sleep(sweepEvery / 2)
		b.learn(mac(maxBehind), 1)
		if _, known := b.find(mac(maxBehind)); known {
			t.Error("a full table is looked through again at once")
		}
		time.Sleep(sweepEvery / 2)
		if _, known := b.find(mac(1)); known {
			t.Error("it remembers one that has long been silent")
		}
		b.learn(mac(maxBehind), 1)
		if to, known := b.find(mac(maxBehind)); to != 1 || !known || len(b.at) != 1 {
			t.Errorf("of %d it finds %d, %v", len(b.at), to, known)
		}
	})
}

// What cannot be is refused, and nothing is left of it.
func TestVXLANRefused(t *testing.T) {
	sw := ethswitch.New(ethswitch.Config{})
	ends := func(s ...string) (all []netip.AddrPort) {
		for _, a := range s {
			all = append(all, netip.MustParseAddrPort(a))
		}
		return all
	}
	taken := newFar(t, "127.0.0.1", 0)
	for words, c := range map[string]VXLANConfig{
		"is larger than":   {VNI: 1 << 24, Remotes: ends("127.0.0.2:1")},
		"no remote end":    {},
		"not of one kind":  {Remotes: ends("[::1]:1")},
		"at both ends":     {Remotes: ends("127.0.0.1:9")},
		"is given twice":   {Remotes: ends("127.0.0.2:1", "127.0.0.2:2")},
		"Linux's own":      {Local: taken.at(), Remotes: ends("127.0.0.2:1")},
		"cannot assign":    {Local: ends("192.0.2.1:0")[0], Remotes: ends("127.0.0.2:1")},
		"a port vxlan:100": {VNI: 100, Remotes: ends("127.0.0.2:1")},
	} {
		if !c.Local.IsValid() {
			c.Local = netip.MustParseAddrPort("127.0.0.1:0")
		}
		if c.VNI == 100 {
			porttest.NewPort(t, sw, "vxlan:100", false)
		}
		if v, err := OpenVXLAN(sw, c); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%+v: %v, %v; want %q", c, v, err, words)
		}
	}
}
