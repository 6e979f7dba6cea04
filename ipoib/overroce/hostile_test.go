package overroce

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/ipoib"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// A liar is a peer that says what it is told: a UD queue pair with the link's Q_Key, and the
// messages of connections.
type liar struct {
	t      *testing.T
	ctx    *vnic.Context
	pd     rdma.PD
	cq     rdma.CQ
	ud     rdma.QP
	mr     rdma.MR
	buf    []byte
	gid    ipoib.GID
	events chan vnic.ServiceEvent
}

// newCaller is one without datagrams.
func newCaller(t *testing.T, dev *vnic.Device) *liar {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	x := &liar{t: t, events: make(chan vnic.ServiceEvent, 100), buf: make([]byte, 4096),
		ctx: vnictest.Open(t, dev, vnic.ContextConfig{Privileged: true})}
	var err error
	x.pd, err = x.ctx.AllocPD()
	must(err)
	x.cq, err = x.ctx.CreateCQ(100)
	must(err)
	x.mr, err = x.pd.RegisterMemory(x.buf, rdma.LocalWrite)
	must(err)
	return x
}

func newLiar(t *testing.T, dev *vnic.Device) *liar {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	x := newCaller(t, dev)
	var err error
	x.ud, err = x.pd.CreateQP(rdma.QPConfig{Type: rdma.UD, SendCQ: x.cq, RecvCQ: x.cq, MaxSendWR: 8,
		SignalAll: true})
	must(err)
	a := rdma.QPAttr{State: rdma.QPInit, Port: 1, QKey: DefaultQKey}
	must(x.ud.Modify(&a, rdma.AttrState|rdma.AttrPKeyIndex|rdma.AttrPort|rdma.AttrQKey))
	a.State = rdma.QPRTR
	must(x.ud.Modify(&a, rdma.AttrState))
	a.State = rdma.QPRTS
	must(x.ud.Modify(&a, rdma.AttrState|rdma.AttrSQPSN))
	e, err := dev.GID(0)
	must(err)
	x.gid = ipoib.GID(e.GID)
	return x
}

// sends sends a frame to a queue pair of e's device, with a Q_Key.
func (x *liar) sends(e *end, qpn, qkey uint32, frame []byte) {
	x.t.Helper()
	ah, err := x.pd.CreateAH(rdma.AHAttr{GID: rdma.GID(e.Info().Addr.GID), Port: 1, Global: true})
	if err != nil {
		x.t.Fatal(err)
	}
	defer ah.Close()
	n := copy(x.buf, frame)
	if err := x.ud.PostSend(&rdma.SendWR{Op: rdma.OpSend, To: rdma.Datagram{AH: ah.Handle(), QPN: qpn,
		QKey: qkey}, SGEs: []rdma.SGE{{Addr: x.mr.Addr(), Length: uint32(n), LKey: x.mr.LKey()}},
	}); err != nil {
		x.t.Fatal(err)
	}
	synctest.Wait()
	var wc [1]rdma.WC
	if n, err := x.cq.Poll(wc[:]); n != 1 || err != nil || wc[0].Status != rdma.WCSuccess {
		x.t.Fatalf("%d, %v, %+v", n, err, wc)
	}
}

// asks asks e for a connection, with private data, and returns what comes of it.
func (x *liar) asks(e *end, service uint64, private []byte) (vnic.ServiceEvent, *vnic.ServiceConn,
	rdma.QP) {
	x.t.Helper()
	qp, err := x.pd.CreateQP(rdma.QPConfig{Type: rdma.RC, SendCQ: x.cq, RecvCQ: x.cq, MaxSendWR: 8,
		SignalAll: true})
	if err != nil {
		x.t.Fatal(err)
	}
	c, err := x.ctx.ConnectService(&vnic.ServiceConnect{From: netip.AddrFrom16(x.gid),
		To: e.Info().Addr.GID.Addr(), ID: service, QP: qp, PrivateData: private,
	}, func(e vnic.ServiceEvent) { x.events <- e })
	if err != nil {
		x.t.Fatal(err)
	}
	select {
	case ev := <-x.events:
		return ev, c, qp
	case <-time.After(time.Minute):
		x.t.Fatal("no answer")
	}
	panic("unreachable")
}

func encapsulated(t ipoib.Type, p []byte) []byte {
	b := make([]byte, ipoib.HeaderLen)
	ipoib.PutHeader(b, t)
	return append(b, p...)
}

// Only frames to the queue pair that the interface tells of, with the link's Q_Key, come to it.
// IPOIB-005, IPOIB-012, IPOIB-014.
func TestForeignFrames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := vnictest.NewNet()
		a := newEnd(t, device(t, net, 1), 1, nil)
		x := newLiar(t, device(t, net, 9))
		own := a.Info().Addr.QPN
		from := &end{ip: netip.MustParseAddr("10.1.0.9")}
		f := encapsulated(ipoib.IPv4, from.packet(a.ip, 100, 1))
		x.sends(a, own, ownQKey, f)
		a.wants("as it must be", f[4:])
		x.sends(a, own, DefaultQKey&^(1<<31), f)
		a.wantsNothing("another Q_Key")
		x.sends(a, own^1, ownQKey, f)
		a.wantsNothing("another queue pair")
		if s := a.Info().Stats; s.RxDatagrams != 1 {
			t.Errorf("%+v", s)
		}
		// The header of IPv4, which a datagram from an IPv4 GID has, names its source, too.
		head := make([]byte, rdma.NetworkHeaderLen)
		head[20] = 0x45
		copy(head[32:], []byte{10, 0, 0, 9})
		if got := source(head).Addr().Unmap(); got != netip.MustParseAddr("10.0.0.9") {
			t.Errorf("the source is %v", got)
		}
		a.close()
	})
}

// ARP that names ports which nobody has: the ways that are looked for are bounded, and honest
// neighbours are found meanwhile. IPOIB-044.
func TestFalsePorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := vnictest.NewNet()
		a := newEnd(t, device(t, net, 1), 1, nil)
		b := newEnd(t, device(t, net, 2), 2, nil)
		x := newLiar(t, device(t, net, 9))
		net.Blackhole(netip.MustParseAddr("fe80::bad"))
		own := a.Info().Addr.QPN
		for n := range 2 * maxLooking {
			arp := []byte{0, 32, 8, 0, 20, 4, 0, 1}
			g := netip.MustParseAddr("fe80::bad").As16()
			g[12] = byte(n) // some hang, some fail at once
			if n%2 == 0 {
				g[12] = 0
			}
			arp = ipoib.LinkAddr{QPN: 0x700 + uint32(n), GID: g}.Append(arp)
			arp = append(arp, 10, 1, 1, byte(n))
			arp = append(arp, make([]byte, ipoib.LinkAddrLen)...)
			arp = append(arp, a.ip.AsSlice()...)
			x.sends(a, own, ownQKey, encapsulated(ipoib.ARP, arp))
		}
		if n := a.Info().Drops.NoRoute; n < maxLooking {
			t.Errorf("%d are dropped", n)
		}
		b.sends("an honest neighbour", a, 100, 1)
		a.sends("back", b, 100, 2)
		a.close()
		b.close()
	})
}

// A neighbour with many link-local addresses, all of which ask for connections and get none ready,
// does not keep an honest one of the same network from having one: those that have given way are
// not in the way, though they are more than the network may have. IPOIB-044.
func TestManyAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := vnictest.NewNet()
		const ports, each, most = 24, 16, 256
		a := newEnd(t, device(t, net, 1, func(c *vnic.Config) { c.MaxConnsPerPeer = most }), 1, nil)
		b := newEnd(t, device(t, net, 2), 2, nil)
		var addrs []string
		for n := range ports {
			addrs = append(addrs, fmt.Sprintf("fe80::bad:%x/64", n))
		}
		x := newCaller(t, net.Device(t, "liar", addrs, vnictest.RoCE))
		to, start := a.Info().Addr, time.Now()
		for n := range ports * each {
			qp, err := x.pd.CreateQP(rdma.QPConfig{Type: rdma.RC, SendCQ: x.cq, RecvCQ: x.cq})
			if err != nil {
				t.Fatal(err)
			}
			heard := make(chan vnic.ServiceEvent, 8) // the answer, and that it is over
			_, err = x.ctx.ConnectService(&vnic.ServiceConnect{
				From: netip.MustParsePrefix(addrs[n%ports]).Addr(), To: to.GID.Addr(),
				ID: ipoib.ServiceID(to.QPN), QP: qp,
				PrivateData: ipoib.Private{QPN: uint32(0x900 + n), MTU: MaxMTU}.Append(nil),
			}, func(e vnic.ServiceEvent) { heard <- e })
			if err != nil {
				t.Fatal(err)
			}
			if e := <-heard; e.Kind != vnic.ServiceReplied {
				t.Fatalf("request %d: %+v", n, e)
			}
		}
		b.sends("over a connection", a, MaxMTU, 1)
		if n := b.neighbour(a); n.Conn != "open" || time.Since(start) != 0 {
			t.Errorf("behind %v: %+v", time.Since(start), n)
		}
		a.close()
		b.close()
	})
}

// Requests that are not as they must be are refused by the word of a program, with the private data
// of the one who refuses; a service that is nobody's, by the connection manager. IPOIB-029,
// IPOIB-030, IPOIB-031.
func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := vnictest.NewNet()
		a := newEnd(t, device(t, net, 1), 1, nil)
		off := newEnd(t, device(t, net, 2), 2, func(c *Config) { c.Connected, c.MTU = false, DefaultMTU })
		x := newLiar(t, device(t, net, 9))
		qpn := a.Info().Addr.QPN
		service := ipoib.ServiceID(qpn)
		good := ipoib.Private{QPN: 0x900, MTU: MaxMTU + 4}.Append(nil)
		want := ipoib.Private{QPN: qpn, MTU: MaxMTU + 4}.Append(nil)
		// What a request does not give is 0.
		for name, private := range map[string][]byte{"nothing": nil,
			"a small MTU": ipoib.Private{QPN: 0x900, MTU: 71}.Append(nil)} {
			e, _, _ := x.asks(a, service, private)
			if e.Kind != vnic.ServiceRejected || e.Reason != 28 || !bytes.HasPrefix(e.PrivateData, want) {
				t.Errorf("%s: %+v", name, e)
			}
		}
		for _, tt := range []struct {
			e       *end
			service uint64
		}{{a, service ^ 1}, {a, service | 1<<48}, {off, ipoib.ServiceID(off.Info().Addr.QPN)}} {
			if e, _, _ := x.asks(tt.e, tt.service, good); e.Kind != vnic.ServiceRejected || e.Reason != 8 {
				t.Errorf("service %#x: %+v", tt.service, e)
			}
		}
		e, c, qp := x.asks(a, service, good)
		if e.Kind != vnic.ServiceReplied || !bytes.HasPrefix(e.PrivateData, want) {
			t.Fatalf("%+v", e)
		}
		if err := c.Ready(qp, good); err != nil {
			t.Fatal(err)
		}
		if e := <-x.events; e.Kind != vnic.ServiceEstablished {
			t.Fatalf("%+v", e)
		}
		if e, _, _ := x.asks(a, service, good); e.Kind != vnic.ServiceRejected || e.Reason != 28 {
			t.Errorf("a second one: %+v", e)
		}
		x.lies(a, qp)
		c.Close()
		time.Sleep(time.Second)
		if n := a.dev.DevInfo().QPs; n != 1 {
			t.Errorf("%d queue pairs are left", n)
		}
		a.close()
		off.close()
	})
}

// lies sends over a connection what has no place there, and what has. IPOIB-037.
func (x *liar) lies(a *end, qp rdma.QP) {
	x.t.Helper()
	from := &end{ip: netip.MustParseAddr("10.1.0.9")}
	good := from.packet(a.ip, 3000, 1)
	arp := make([]byte, 56)
	binary.BigEndian.PutUint16(arp, 32)
	at := 0 // each has octets of its own
	for _, f := range [][]byte{encapsulated(ipoib.ARP, arp), encapsulated(0x88cc, arp), {8, 0},
		encapsulated(ipoib.IPv4, good)} {
		n := copy(x.buf[at:], f)
		if err := qp.PostSend(&rdma.SendWR{Op: rdma.OpSend, SGEs: []rdma.SGE{{
			Addr: x.mr.Addr() + uint64(at), Length: uint32(n), LKey: x.mr.LKey()}}}); err != nil {
			x.t.Fatal(err)
		}
		at += n
		time.Sleep(time.Second) // fake: until it has come
	}
	a.wants("what has its place", good)
	s := a.Info().Stats
	if s.DropConnected != 1 || s.DropUnknownType != 1 || s.DropMalformed != 1 || s.RxConnected != 4 {
		x.t.Errorf("%+v", s)
	}
}

// A neighbour that gives up each connection as soon as it has asked for it leaves no queue pair
// behind.
func TestGivenUpAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := vnictest.NewNet()
		a := newEnd(t, device(t, net, 1), 1, nil)
		const from = "fe80::bad:1"
		x := newCaller(t, net.Device(t, "liar", []string{from + "/64"}, vnictest.RoCE))
		to, was := a.Info().Addr, a.dev.DevInfo().QPs
		for n := range 200 {
			qp, err := x.pd.CreateQP(rdma.QPConfig{Type: rdma.RC, SendCQ: x.cq, RecvCQ: x.cq})
			if err != nil {
				t.Fatal(err)
			}
			c, err := x.ctx.ConnectService(&vnic.ServiceConnect{From: netip.MustParseAddr(from),
				To: to.GID.Addr(), ID: ipoib.ServiceID(to.QPN), QP: qp,
				PrivateData: ipoib.Private{QPN: uint32(0x900 + n), MTU: MaxMTU}.Append(nil),
			}, func(vnic.ServiceEvent) {})
			if err != nil {
				t.Fatal(err)
			}
			c.Close()
			if err := qp.Close(); err != nil {
				t.Fatal(err)
			}
			if n%4 == 0 { // so that a turn of a's hears several, and both of one
				synctest.Wait()
			}
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n := a.dev.DevInfo().QPs; n != was {
			t.Errorf("%d queue pairs, were %d", n, was)
		}
		a.close()
	})
}
