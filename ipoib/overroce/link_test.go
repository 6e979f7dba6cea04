package overroce

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/ipoib"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// A memHost is a host in memory.
type memHost struct {
	in   chan []byte
	out  chan []byte
	done chan struct{}
	full atomic.Bool // it takes nothing
}

func newHost() *memHost {
	return &memHost{in: make(chan []byte, 256), out: make(chan []byte, 4096),
		done: make(chan struct{})}
}

func (h *memHost) Read(b []byte) (int, error) {
	select {
	case p := <-h.in:
		return copy(b, p), nil
	case <-h.done:
		return 0, io.EOF
	}
}

func (h *memHost) More() bool { return len(h.in) > 0 }

func (h *memHost) Write(p []byte) (int, error) {
	if h.full.Load() {
		return 0, io.ErrShortWrite
	}
	h.out <- bytes.Clone(p)
	return len(p), nil
}

func (h *memHost) Close() error {
	close(h.done)
	return nil
}

// An end is an interface over a device of its own.
type end struct {
	*Link
	t    *testing.T
	dev  *vnic.Device
	host *memHost
	ip   netip.Addr
}

// device makes device n on net, whose MAC ends in n.
func device(t *testing.T, net *vnictest.Net, n byte, opts ...vnictest.Option) *vnic.Device {
	t.Helper()
	return net.Device(t, fmt.Sprintf("rocep%d", n),
		[]string{fmt.Sprintf("10.0.0.%d/24", n), fmt.Sprintf("fe80::ff:fe00:%x/64", n)},
		append(opts, vnictest.RoCE, func(c *vnic.Config) { c.MAC = [6]byte{2, 0, 0, 0, 0, n} })...)
}

// newEnd makes 10.1.0.n over dev; change may be nil.
func newEnd(t *testing.T, dev *vnic.Device, n byte, change func(*Config)) *end {
	t.Helper()
	ip := netip.AddrFrom4([4]byte{10, 1, 0, n})
	c := Config{Name: fmt.Sprintf("ib%d", n), Device: dev, Connected: true, MTU: MaxMTU,
		LinkMTU: DefaultMTU, PKey: DefaultPKey, QKey: DefaultQKey, Scope: DefaultScope,
		Addrs: []netip.Prefix{netip.PrefixFrom(ip, 24)}}
	if change != nil {
		change(&c)
	}
	e := &end{t: t, dev: dev, host: newHost(), ip: ip}
	l, err := New(c, e.host)
	if err != nil {
		t.Fatal(err)
	}
	e.Link = l
	synctest.Wait() // the broadcast group is joined
	return e
}

func (e *end) close() {
	e.t.Helper()
	if err := e.Close(); err != nil {
		e.t.Error(err)
	}
}

// packet is a packet of IPv4 with n octets that depend on seed.
func (e *end) packet(to netip.Addr, n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i) * seed
	}
	copy(b, []byte{0x45, 0, 0, 0, 0, seed, 0x40, 0, 64, 17, 0, 0})
	binary.BigEndian.PutUint16(b[2:], uint16(n))
	copy(b[12:], e.ip.AsSlice())
	copy(b[16:], to.AsSlice())
	return b
}

// sends has e's host send a packet to f's, and wants it to come.
func (e *end) sends(why string, f *end, n int, seed byte) {
	e.t.Helper()
	p := e.packet(f.ip, n, seed)
	e.host.in <- p
	f.wants(why, p)
}

// wants wants the host of e to get p.
func (e *end) wants(why string, p []byte) {
	e.t.Helper()
	select {
	case got := <-e.host.out:
		if !bytes.Equal(got, p) {
			e.t.Fatalf("%s: %d octets, % x; want %d, % x", why, len(got), got[:20], len(p), p[:20])
		}
	case <-time.After(time.Minute):
		e.t.Fatalf("%s: nothing has come: %+v", why, e.Info())
	}
}

// wantsNothing wants nothing to have come.
func (e *end) wantsNothing(why string) {
	e.t.Helper()
	synctest.Wait()
	select {
	case got := <-e.host.out:
		e.t.Fatalf("%s: % x", why, got)
	default:
	}
}

// neighbour is what e knows of f.
func (e *end) neighbour(f *end) ipoib.NeighbourInfo {
	for _, n := range e.Info().Neighbours {
		if n.IP == f.ip {
			return n
		}
	}
	return ipoib.NeighbourInfo{}
}

// Two interfaces by their own queue pairs: datagrams, then a connection, which a packet waits for
// that is longer than they are. What is longer still is cut by nobody. When one ends the other has
// no connection left, and devices nothing. IPOIB-013, IPOIB-024, IPOIB-036, IPOIB-041.
func TestLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := vnictest.NewNet()
		a := newEnd(t, device(t, net, 1), 1, nil)
		b := newEnd(t, device(t, net, 2), 2, nil)
		if got := a.Info().Addr.GID.Addr().String(); got != "fe80::ff:fe00:1" {
			t.Errorf("the GID is %s", got)
		}
		a.sends("the first packet", b, 100, 1)
		a.sends("the longest", b, MaxMTU, 3)
		b.sends("back", a, MaxMTU, 5)
		for n := range 300 { // more than there are buffers
			a.sends("one of many", b, 1000+200*n, byte(n))
		}
		ia, ib := a.Info(), b.Info()
		if n := a.neighbour(b); n.Conn != "open" || n.MTU != MaxMTU || n.Addr.Flags != ipoib.FlagRC {
			t.Errorf("%+v", n)
		}
		if ia.Stats.TxConnected < 300 || ib.Stats.RxConnected != ia.Stats.TxConnected ||
			ia.Stats.Connects != 1 || ib.Stats.Accepts != 1 || ia.Drops != (Drops{}) {
			t.Errorf("%+v\n%+v", ia, ib)
		}
		qps := func(e *end) int { return e.dev.DevInfo().QPs }
		if qps(a) != 2 || qps(b) != 2 {
			t.Errorf("%d and %d queue pairs, want one of datagrams and one of a connection", qps(a), qps(b))
		}
		b.close()
		synctest.Wait()
		if n := a.neighbour(b); n.Conn != "none" || qps(a) != 1 || qps(b) != 0 {
			t.Errorf("%+v; %d and %d queue pairs", n, qps(a), qps(b))
		}
		a.close()
		if n := qps(a); n != 0 {
			t.Errorf("%d queue pairs are left", n)
		}
	})
}

// Packets that come together go together, to whom each is for, in datagrams and over connections,
// in their order.
func TestTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := vnictest.NewNet()
		a := newEnd(t, device(t, net, 1), 1, nil)
		ends := []*end{newEnd(t, device(t, net, 2), 2, nil),
			newEnd(t, device(t, net, 3), 3, func(c *Config) { c.Connected, c.MTU = false, DefaultMTU })}
		for _, e := range ends {
			a.sends("the first packet", e, 100, 1)
		}
		time.Sleep(time.Second)
		var sent [2][][]byte
		for n := range 200 {
			to := n / 7 % 2
			p := a.packet(ends[to].ip, 1000+n, byte(n))
			sent[to] = append(sent[to], p)
			a.host.in <- p
		}
		for i, e := range ends {
			for _, p := range sent[i] {
				e.wants("one of many", p)
			}
		}
		s, d := a.Info().Stats, a.Info().Drops
		if s.TxConnected < 100 || s.TxDatagrams < 96 || d != (Drops{}) {
			t.Errorf("%+v, %+v", s, d)
		}
		a.close()
		for _, e := range ends {
			e.close()
		}
	})
}

// Interfaces of other P_Keys or Q_Keys, on the same network, do not hear each other; programs
// without privilege cannot have the Q_Key. IPOIB-009, IPOIB-010, IPOIB-014, IPOIB-022.
func TestKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := vnictest.NewNet()
		devs := []*vnic.Device{device(t, net, 1), device(t, net, 2), device(t, net, 3), device(t, net, 4)}
		a, b := newEnd(t, devs[0], 1, nil), newEnd(t, devs[1], 2, nil)
		same := func(c *Config) { c.Addrs = b.cfg.Addrs }
		other := newEnd(t, devs[2], 3, func(c *Config) { same(c); c.PKey = 0x8001 })
		wrong := newEnd(t, devs[3], 4, func(c *Config) { same(c); c.QKey = 0x80000b1c })
		all := a.packet(netip.MustParseAddr("10.1.0.255"), 100, 1)
		a.host.in <- all
		b.wants("of the same keys", all)
		other.wantsNothing("of another P_Key")
		wrong.wantsNothing("of another Q_Key")
		if n := devs[3].DevInfo().Packets.WrongQKey; n != 1 {
			t.Errorf("%d packets with a wrong Q_Key are counted", n)
		}
		if n := wrong.Info().Stats.RxDatagrams + other.Info().Stats.RxDatagrams; n != 0 {
			t.Errorf("%d have come", n)
		}
		c := vnictest.Open(t, devs[0], vnic.ContextConfig{})
		pd, err := c.AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		cq, err := c.CreateCQ(1)
		if err != nil {
			t.Fatal(err)
		}
		qp, err := pd.CreateQP(rdma.QPConfig{Type: rdma.UD, SendCQ: cq, RecvCQ: cq})
		if err != nil {
			t.Fatal(err)
		}
		attr := rdma.QPAttr{State: rdma.QPInit, Port: 1, QKey: DefaultQKey}
		if qp.Modify(&attr, rdma.AttrState|rdma.AttrPKeyIndex|rdma.AttrPort|rdma.AttrQKey) == nil {
			t.Error("a program without privilege has the Q_Key of the link")
		}
		for _, e := range []*end{a, b, other, wrong} {
			e.close()
		}
	})
}

// A peer that begins anew has another queue pair: what goes to it comes again soon. IPOIB-018.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := vnictest.NewNet()
		dev := device(t, net, 2)
		a, b := newEnd(t, device(t, net, 1), 1, nil), newEnd(t, dev, 2, nil)
		a.sends("at first", b, 5000, 1)
		b.close()
		b = newEnd(t, dev, 2, nil)
		start := time.Now()
		p := a.packet(b.ip, 1000, 2)
		for len(b.host.out) == 0 && time.Since(start) < 5*time.Minute {
			a.host.in <- p
			time.Sleep(time.Second)
			synctest.Wait()
		}
		if took := time.Since(start); took > 40*time.Second {
			t.Errorf("it takes %v", took)
		}
		b.wants("behind the restart", p)
		time.Sleep(2 * time.Second)
		a.sends("over a connection again", b, MaxMTU, 3)
		a.close()
		b.close()
	})
}

// Both ends begin at once, over a network that takes its time: their requests cross, and there is
// one connection. IPOIB-033.
func TestLinkCrossing(t *testing.T) {
	for _, first := range []int{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			net := vnictest.NewNet()
			net.RoCE.Delay = time.Millisecond
			ends := []*end{newEnd(t, device(t, net, 1), 1, nil), newEnd(t, device(t, net, 2), 2, nil)}
			a, b := ends[first], ends[1-first]
			p, q := a.packet(b.ip, 3000, 1), b.packet(a.ip, 3000, 2)
			a.host.in <- p
			b.host.in <- q
			b.wants("one way", p)
			a.wants("the other way", q)
			time.Sleep(time.Second)
			for _, e := range ends {
				if n := e.dev.DevInfo().QPs; n != 2 {
					t.Errorf("%d queue pairs: %+v", n, e.Info())
				}
			}
			sa, sb := a.Info().Stats, b.Info().Stats
			if sa.Connects+sb.Connects != 2 || sa.Accepts+sb.Accepts != 1 || sa.Rejects+sb.Rejects != 1 {
				t.Errorf("%d requests, of which %d are accepted: %+v\n%+v", sa.Connects+sb.Connects,
					sa.Accepts+sb.Accepts, sa, sb)
			}
			a.close()
			b.close()
		})
	}
}

// A packet of a connection that is lost is sent again before TCP would, whose shortest time is
// 200 ms. IPOIB-043.
func TestLostPacket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := vnictest.NewNet()
		var lose atomic.Int64
		net.RoCE.Lost = func(ip []byte) bool { return len(ip) > 2000 && lose.Add(-1) >= 0 }
		a, b := newEnd(t, device(t, net, 1), 1, nil), newEnd(t, device(t, net, 2), 2, nil)
		a.sends("the connection is made", b, 5000, 1)
		for _, n := range []int{3000, 60000} { // the only packet, and the first one
			lose.Store(1)
			start := time.Now()
			a.sends("with a loss", b, n, 2)
			if took := time.Since(start); took >= 200*time.Millisecond || lose.Load() >= 0 {
				t.Errorf("%d octets take %v; %d are still to be lost", n, took, lose.Load())
			}
		}
		// A network that loses all: datagrams go again when it is back.
		lose.Store(1 << 30)
		a.host.in <- a.packet(b.ip, 60000, 3)
		time.Sleep(10 * time.Second)
		lose.Store(0)
		if n := a.neighbour(b); n.Conn != "none" {
			t.Errorf("%+v", n)
		}
		a.sends("as a datagram", b, 1000, 4)
		a.close()
		b.close()
	})
}
