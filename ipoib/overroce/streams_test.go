package overroce

import (
	"fmt"
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

// newStreamEnd makes 10.1.0.n whose connections are streams of a device of iWARP, which has the
// addresses of the one of RoCE.
func newStreamEnd(t *testing.T, net *vnictest.Net, n byte, change func(*Config)) *end {
	t.Helper()
	addrs := []string{fmt.Sprintf("10.0.0.%d/24", n), fmt.Sprintf("fd00::%d/64", n)}
	mac := func(c *vnic.Config) { c.MAC = [6]byte{2, 0, 0, 0, 0, n} }
	dev := net.Device(t, fmt.Sprintf("rocep%d", n), addrs, vnictest.RoCE, mac)
	iw := net.Device(t, fmt.Sprintf("iw%d", n), addrs, mac)
	e := newEnd(t, dev, n, func(c *Config) {
		c.Streams = iw
		if change != nil {
			change(c)
		}
	})
	return e
}

func (e *end) streams() int { return e.cfg.Streams.DevInfo().QPs }

// Two interfaces whose connections are streams of iWARP, over TCP and over SCTP: the GID is an
// address that streams go to, long packets go by the stream, all else is as over RoCE. What one end
// has begun ends with the other. IPOIB-036, IPOIB-041.
func TestStreams(t *testing.T) {
	for _, sctp := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			net := vnictest.NewNet()
			change := func(c *Config) { c.SCTP = sctp }
			a, b := newStreamEnd(t, net, 1, change), newStreamEnd(t, net, 2, change)
			if got := a.Info().Addr.GID.Addr().String(); got != "fd00::1" {
				t.Errorf("the GID is %s", got)
			}
			a.sends("the first packet", b, 100, 1)
			a.sends("the longest", b, MaxMTU, 3)
			b.sends("back", a, MaxMTU, 5)
			for n := range 300 {
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
			if a.streams() != 1 || b.streams() != 1 || a.dev.DevInfo().QPs != 1 {
				t.Errorf("%d and %d streams", a.streams(), b.streams())
			}
			all := a.packet(netip.MustParseAddr("10.1.0.255"), 100, 1)
			a.host.in <- all
			b.wants("to all", all)
			b.close()
			synctest.Wait()
			time.Sleep(time.Second)
			if n := a.neighbour(b); n.Conn != "none" || a.streams() != 0 || b.streams() != 0 {
				t.Errorf("%+v; %d and %d streams", n, a.streams(), b.streams())
			}
			a.close()
		})
	}
}

// A slowCarrier asks later than it is told to.
type slowCarrier struct {
	carrier
	asked *atomic.Int32
	after time.Duration
}

func (c slowCarrier) connect(o *ipoib.Output, qp rdma.QP) (attempt, error) {
	c.asked.Add(1)
	time.Sleep(c.after)
	defer time.Sleep(c.after) // what the peer sends meanwhile is not lost
	return c.carrier.connect(o, qp)
}

// Both ends begin a stream before they hear of the other's: their requests cross, and that of the
// larger address stands, whichever comes first. IPOIB-033.
func TestStreamsCrossing(t *testing.T) {
	for _, first := range []int{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			net := vnictest.NewNet()
			net.RoCE.Delay = time.Millisecond
			ends := []*end{newStreamEnd(t, net, 1, nil), newStreamEnd(t, net, 2, nil)}
			var asked atomic.Int32
			for n, e := range ends {
				after := 100 * time.Millisecond
				if n != first {
					after *= 2
				}
				e.carrier = slowCarrier{e.carrier, &asked, after}
			}
			a, b := ends[first], ends[1-first]
			p, q := a.packet(b.ip, 3000, 1), b.packet(a.ip, 3000, 2)
			a.host.in <- p
			b.host.in <- q
			time.Sleep(50 * time.Millisecond)
			if asked.Load() != 2 {
				t.Fatalf("%d ends ask", asked.Load())
			}
			b.wants("one way", p)
			a.wants("the other way", q)
			time.Sleep(time.Minute)
			for _, e := range ends {
				if e.streams() != 1 {
					t.Errorf("%d streams: %+v", e.streams(), e.Info())
				}
			}
			small, large := ends[0].Info(), ends[1].Info()
			if small.Addr.Compare(large.Addr) > 0 {
				small, large = large, small
			}
			if small.Stats.Connects != 1 || large.Stats.Connects != 1 || small.Stats.Accepts != 1 ||
				large.Stats.Accepts != 0 || large.Stats.Rejects != 1 || small.Stats.Rejects != 0 ||
				small.Stats.Failures+large.Stats.Failures != 0 {
				t.Errorf("the smaller address: %+v\nthe larger one: %+v", small.Stats, large.Stats)
			}
			a.close()
			b.close()
		})
	}
}

// A caller asks for streams with private data of its own.
type caller struct {
	*liar
	own netip.Addr
}

// asks asks e, and returns what comes of it.
func (x *caller) asks(e *end, private []byte) (vnic.CMEvent, *vnic.CMID, rdma.QP) {
	x.t.Helper()
	qp, err := x.pd.CreateQP(rdma.QPConfig{Type: rdma.RC, SendCQ: x.cq, RecvCQ: x.cq, MaxSendWR: 8,
		SignalAll: true})
	if err != nil {
		x.t.Fatal(err)
	}
	events := make(chan vnic.CMEvent, 8)
	id, err := x.ctx.NewCMID(func(e vnic.CMEvent) { events <- e })
	if err != nil {
		x.t.Fatal(err)
	}
	next := func(f func() error) vnic.CMEvent {
		if err := f(); err != nil {
			x.t.Fatal(err)
		}
		return <-events
	}
	next(func() error {
		return id.ResolveAddr(x.own, netip.AddrPortFrom(e.Info().Addr.GID.Addr(), StreamPort), 0)
	})
	next(func() error { return id.ResolveRoute(0) })
	ev := next(func() error {
		return id.Connect(qp.(vnic.Connectable), rdma.ConnParam{PrivateData: private})
	})
	return ev, id, qp
}

// Requests for streams that are not as they must be are refused, for the reason that messages of
// RoCE's connection manager would have: another service, another port than the one that asks, no
// private data, a second one. What has no place on a connection is dropped. IPOIB-029, IPOIB-030,
// IPOIB-031, IPOIB-037.
func TestStreamRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := vnictest.NewNet()
		a := newStreamEnd(t, net, 1, nil)
		iw := net.Device(t, "iw9", []string{"10.0.0.9/24", "fd00::9/64"})
		x := &caller{newCaller(t, iw), netip.MustParseAddr("fd00::9")}
		own := a.Info().Addr
		good := ipoib.StreamPrivate{Private: ipoib.Private{QPN: 0x900, MTU: MaxMTU + 4},
			Service: ipoib.ServiceID(own.QPN), GID: x.own.As16()}
		with := func(change func(*ipoib.StreamPrivate)) []byte {
			p := good
			change(&p)
			return p.Append(nil)
		}
		for name, tt := range map[string]struct {
			private []byte
			reason  uint16
		}{
			"nothing":           {nil, 28},
			"too little":        {good.Append(nil)[:35], 28},
			"a small MTU":       {with(func(p *ipoib.StreamPrivate) { p.MTU = 71 }), 28},
			"no queue pair":     {with(func(p *ipoib.StreamPrivate) { p.QPN = 0 }), 28},
			"another's GID":     {with(func(p *ipoib.StreamPrivate) { p.GID[15]++ }), 28},
			"the service's own": {with(func(p *ipoib.StreamPrivate) { p.GID = own.GID }), 28},
			"another service":   {with(func(p *ipoib.StreamPrivate) { p.Service ^= 1 }), 8},
			"another type":      {with(func(p *ipoib.StreamPrivate) { p.Service |= 1 << 48 }), 8},
		} {
			e, id, _ := x.asks(a, tt.private)
			p, ok := ipoib.ParseStreamPrivate(e.Param.PrivateData)
			if e.Type != vnic.CMRejected || !ok || p.Reason != tt.reason || p.GID != own.GID ||
				p.QPN != own.QPN || p.MTU != MaxMTU+4 {
				t.Errorf("%s: %v, %+v", name, e.Type, p)
			}
			id.Close()
		}
		e, id, qp := x.asks(a, good.Append(nil))
		p, ok := ipoib.ParseStreamPrivate(e.Param.PrivateData)
		if e.Type != vnic.CMEstablished || !ok || p.Reason != 0 || p.Service != good.Service ||
			p.GID != own.GID || p.QPN != own.QPN {
			t.Fatalf("%v, %v, %+v", e.Type, e.Err, p)
		}
		if e, second, _ := x.asks(a, good.Append(nil)); e.Type != vnic.CMRejected {
			t.Errorf("a second one: %v", e.Type)
		} else {
			second.Close()
		}
		x.lies(a, qp)
		id.Close()
		time.Sleep(10 * time.Second)
		if n := a.streams(); n != 0 {
			t.Errorf("%d streams are left", n)
		}
		a.close()
	})
}

// Who answers a request for a stream in another's name, or with nothing, is hung up on, and asked a
// bounded number of times; datagrams go. IPOIB-044.
func TestFalseStreams(t *testing.T) {
	for name, answer := range map[string]func(p *ipoib.StreamPrivate) []byte{
		"nothing":           func(*ipoib.StreamPrivate) []byte { return nil },
		"another GID":       func(p *ipoib.StreamPrivate) []byte { p.GID[15]++; return p.Append(nil) },
		"another service":   func(p *ipoib.StreamPrivate) []byte { p.Service ^= 1; return p.Append(nil) },
		"another interface": func(p *ipoib.StreamPrivate) []byte { p.QPN ^= 1; return p.Append(nil) },
		"a small MTU":       func(p *ipoib.StreamPrivate) []byte { p.MTU = 71; return p.Append(nil) },
	} {
		synctest.Test(t, func(t *testing.T) {
			net := vnictest.NewNet()
			a := newStreamEnd(t, net, 1, nil)
			b := newStreamEnd(t, net, 2, nil)
			b.carrier.close() // b's place is taken by who lies
			x := newCaller(t, b.cfg.Streams)
			asked := 0
			l, err := x.ctx.NewCMID(func(e vnic.CMEvent) {
				if e.Type != vnic.CMConnectRequest {
					return
				}
				asked++
				p, _ := ipoib.ParseStreamPrivate(e.Param.PrivateData)
				p = ipoib.StreamPrivate{Private: ipoib.Private{QPN: b.ud.Num(), MTU: MaxMTU + 4},
					Service: p.Service, GID: b.Info().Addr.GID}
				qp, err := x.pd.CreateQP(rdma.QPConfig{Type: rdma.RC, SendCQ: x.cq, RecvCQ: x.cq,
					MaxSendWR: 1})
				if err == nil {
					err = e.ID.Accept(qp.(vnic.Connectable), rdma.ConnParam{PrivateData: answer(&p)})
				}
				if err != nil {
					t.Error(err)
				}
			})
			if err == nil {
				err = l.Bind(netip.AddrPortFrom(b.Info().Addr.GID.Addr(), StreamPort))
			}
			if err == nil {
				err = l.Listen(8)
			}
			if err != nil {
				t.Fatal(err)
			}
			for range 100 {
				a.sends("a datagram", b, 1000, 1)
				time.Sleep(5 * time.Second)
			}
			if n := a.neighbour(b); n.Conn != "none" || asked == 0 || asked > 5 || a.streams() != 0 {
				t.Errorf("%s: asked %d times, %d streams: %+v", name, asked, a.streams(), n)
			}
			a.close()
			b.close()
		})
	}
}
