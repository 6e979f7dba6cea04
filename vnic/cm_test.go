package vnic_test

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/iwarp/iwarptest"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// A recorder keeps the events of CMIDs.
type recorder struct {
	t   *testing.T
	mu  sync.Mutex
	evs []vnic.CMEvent
}

func (r *recorder) handle(ev vnic.CMEvent) {
	r.mu.Lock()
	r.evs = append(r.evs, ev)
	r.mu.Unlock()
}

// want waits until nothing moves, and takes the events that came: exactly these.
func (r *recorder) want(why string, types ...vnic.CMEventType) []vnic.CMEvent {
	r.t.Helper()
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	got := r.evs
	r.evs = nil
	var have []vnic.CMEventType
	for _, ev := range got {
		have = append(have, ev.Type)
	}
	if !slices.Equal(have, types) {
		r.t.Fatalf("%s: events %v, want %v", why, have, types)
	}
	return got
}

func newID(t *testing.T, c *vnic.Context) (*vnic.CMID, *recorder) {
	t.Helper()
	r := &recorder{t: t}
	id, err := c.NewCMID(r.handle)
	if err != nil {
		t.Fatal(err)
	}
	return id, r
}

// addr is an address of c's device.
func addr(c *vnic.Context, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(c.Attr().Addrs[0].Addr(), port)
}

// listen makes a listener on c.
func listen(t *testing.T, c *vnic.Context, backlog int) (*vnic.CMID, *recorder) {
	t.Helper()
	id, r := newID(t, c)
	if err := id.Bind(addr(c, 0)); err != nil {
		t.Fatal(err)
	}
	if id.Local().Port() == 0 {
		t.Fatal("T4: the port is not known after Bind")
	}
	if err := id.Listen(backlog); err != nil {
		t.Fatal(err)
	}
	return id, r
}

// routed makes an id of c that is ready to connect to ap.
func routed(t *testing.T, c *vnic.Context, ap netip.AddrPort) (*vnic.CMID, *recorder) {
	t.Helper()
	id, r := newID(t, c)
	if err := id.ResolveAddr(netip.Addr{}, ap, time.Second); err != nil {
		t.Fatal(err)
	}
	r.want("resolved", vnic.CMAddrResolved)
	if err := id.ResolveRoute(time.Second); err != nil {
		t.Fatal(err)
	}
	r.want("resolved", vnic.CMRouteResolved)
	return id, r
}

// An id has a port to connect from as soon as its address is resolved, which is also what the peer
// sees; if the port is taken below, another is found, and both ends know it.
func TestPortOnceResolved(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		for _, lingering := range []bool{false, true} {
			e.net.Lingering.Store(lingering)
			x, y := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{}), vnictest.NewPeer(t, e.b,
				vnictest.PeerConfig{})
			l, lr := listen(t, e.b, 0)
			id, r := routed(t, e.a, l.Local())
			had := id.Local()
			if had.Port() == 0 {
				t.Error("no port after ADDR_RESOLVED")
			}
			other, _ := newID(t, e.a)
			if err := other.Bind(had); !errors.Is(err, syscall.EADDRINUSE) {
				t.Errorf("the port is another's, too: %v", err)
			}
			other.Close()
			if err := id.Connect(x.QP, rdma.ConnParam{SCTP: e.sctp}); err != nil {
				t.Fatal(err)
			}
			req := lr.want("a request", vnic.CMConnectRequest)[0]
			if err := req.ID.Accept(y.QP, rdma.ConnParam{}); err != nil {
				t.Fatal(err)
			}
			r.want("accepted", vnic.CMEstablished)
			if id.Local() != req.ID.Remote() {
				t.Errorf("lingering %v: the initiator is at %v, the responder says %v", lingering, id.Local(),
					req.ID.Remote())
			}
			if got := id.Local() == had; !e.sctp && got != (!lingering || e.loop || e.pipe || e.moved) {
				t.Errorf("lingering %v: was at %v, is at %v", lingering, had, id.Local())
			}
			id.Close()
			req.ID.Close()
			l.Close()
			again, _ := newID(t, e.a) // the port is free again
			if err := again.Bind(had); err != nil {
				t.Error(err)
			}
			again.Close()
		}
	})
}

// The whole life of a connection as rdma_cm users see it: V3, V4, V12, V19, Q1.
func TestCMLife(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		x, y := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{}), vnictest.NewPeer(t, e.b,
			vnictest.PeerConfig{})
		l, lr := listen(t, e.b, 0)
		id, r := routed(t, e.a, l.Local())
		if err := id.Connect(x.QP, rdma.ConnParam{PrivateData: []byte("hello"), IRD: 4,
			ORD: 6}); err != nil {
			t.Fatal(err)
		}
		req := lr.want("a request", vnic.CMConnectRequest)[0]
		if req.Listener != l || string(req.Param.PrivateData) != "hello" || req.Param.IRD != 4 ||
			req.Param.ORD != 6 {
			t.Fatalf("request %+v", req)
		}
		r.want("not yet")
		if got := req.ID.Local(); got != l.Local() {
			t.Errorf("the child is at %v, the listener at %v", got, l.Local())
		}
		child := &recorder{t: t}
		req.ID.SetHandler(child.handle)
		y.Recv(1, 0, 10)
		if err := req.ID.Accept(y.QP, rdma.ConnParam{PrivateData: []byte("welcome"), IRD: 3,
			ORD: 9}); err != nil {
			t.Fatal(err)
		}
		up := r.want("accepted", vnic.CMEstablished)[0]
		// RFC 6581, section 9.1: the responder raises its IRD to our ORD and lowers its ORD to our IRD.
		if string(up.Param.PrivateData) != "welcome" || up.Param.IRD != 4 || up.Param.ORD != 6 {
			t.Errorf("the initiator's end: %+v", up.Param)
		}
		down := child.want("accepted", vnic.CMEstablished)[0]
		if down.Param.IRD != 8 || down.Param.ORD != 4 { // a power of two
			t.Errorf("the responder's end: %+v", down.Param)
		}
		if req.ID.Remote() != id.Local() || id.Remote() != req.ID.Local() {
			t.Errorf("ends %v-%v and %v-%v", id.Local(), id.Remote(), req.ID.Local(), req.ID.Remote())
		}
		x.WantState("", rdma.QPRTS)
		y.WantState("", rdma.QPRTS)
		x.Send(2, 0, 10)
		y.WantRecv("data", is(1, ok))
		if err := id.Disconnect(); err != nil {
			t.Fatal(err)
		}
		for _, ev := range append(r.want("once on this side", vnic.CMDisconnected),
			child.want("once on that side", vnic.CMDisconnected)...) {
			if ev.Err != nil || ev.Status != 0 {
				t.Errorf("a graceful end: %+v", ev)
			}
		}
		if err := id.Disconnect(); !isErr(err, rdma.ErrNotConnected) {
			t.Errorf("disconnect twice: %v", err)
		}
		id.Close()
		req.ID.Close()
		l.Close()
		r.want("nothing more")
		child.want("nothing more")
		if i := e.b.Device().DevInfo(); i.CMIDs != 0 || i.Pending != 0 {
			t.Errorf("something is left: %+v", i)
		}
	})
}

// V12: DISCONNECTED comes once per side, however the connection ends; also for a QP that is
// destroyed first (V10).
func TestDisconnectedOnce(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(x *vnictest.Peer, id *vnic.CMID)
		here bool // an event comes on this side, too
	}{
		{"disconnect", func(_ *vnictest.Peer, id *vnic.CMID) { id.Disconnect() }, true},
		{"abort", func(x *vnictest.Peer, _ *vnic.CMID) { x.QP.Abort() }, true},
		{"terminate", func(x *vnictest.Peer, _ *vnic.CMID) { x.QP.ModifyState(rdma.QPTerminate) }, true},
		{"destroy the QP", func(x *vnictest.Peer, _ *vnic.CMID) { x.QP.Close() }, true},
		{"destroy the id", func(_ *vnictest.Peer, id *vnic.CMID) { id.Close() }, false},
		{"close the context", func(x *vnictest.Peer, _ *vnic.CMID) { x.Ctx.Close() }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onPaths(t, func(t *testing.T, e *env) {
				x, y := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{}), vnictest.NewPeer(t, e.b,
					vnictest.PeerConfig{})
				l, lr := listen(t, e.b, 0)
				id, r := routed(t, e.a, l.Local())
				id.Connect(x.QP, rdma.ConnParam{})
				lr.want("", vnic.CMConnectRequest)[0].ID.Accept(y.QP, rdma.ConnParam{})
				r.want("", vnic.CMEstablished)
				lr.want("", vnic.CMEstablished)
				tt.end(x, id)
				time.Sleep(10 * time.Second)
				if tt.here {
					r.want("once here", vnic.CMDisconnected)
				} else {
					r.want("none: it is gone")
				}
				lr.want("once there", vnic.CMDisconnected)
			})
		})
	}
}

// V20: how attempts fail, as the kernel reports it. The QP is in Error then, whatever the reason,
// and its receives flush (Q2).
func TestConnectErrors(t *testing.T) {
	unreached := func(e *env) netip.Addr { // beside b, where nobody is
		a := e.b.Attr().Addrs[0].Addr().AsSlice()
		a[len(a)-1] = 99
		free, _ := netip.AddrFromSlice(a)
		return free
	}
	for _, tt := range []struct {
		name   string
		to     func(t *testing.T, e *env) netip.AddrPort
		typ    vnic.CMEventType
		status syscall.Errno
		within time.Duration
	}{
		{"refused", func(t *testing.T, e *env) netip.AddrPort { return addr(e.b, 9) }, vnic.CMRejected,
			syscall.ECONNREFUSED, 0},
		{"no answer to TCP", func(t *testing.T, e *env) netip.AddrPort {
			e.net.Host(unreached(e))
			e.net.Blackhole(unreached(e))
			return netip.AddrPortFrom(unreached(e), 1)
		}, vnic.CMUnreachable, syscall.ETIMEDOUT, 10 * time.Second},
		{"no host", func(t *testing.T, e *env) netip.AddrPort {
			return netip.AddrPortFrom(unreached(e), 1)
		}, vnic.CMUnreachable, syscall.EHOSTUNREACH, 0},
		{"no answer to MPA", func(t *testing.T, e *env) netip.AddrPort {
			l, _ := listen(t, e.b, 0) // nobody accepts
			return l.Local()
		}, vnic.CMUnreachable, syscall.ETIMEDOUT, 10 * time.Second},
		{"rejected", func(t *testing.T, e *env) netip.AddrPort {
			l, _ := listen(t, e.b, 0)
			l.SetHandler(func(ev vnic.CMEvent) { ev.ID.Reject([]byte("no")) })
			return l.Local()
		}, vnic.CMRejected, syscall.ECONNRESET, 0},
		{"closed unanswered", func(t *testing.T, e *env) netip.AddrPort {
			l, _ := listen(t, e.b, 0)
			l.SetHandler(func(ev vnic.CMEvent) { go ev.ID.Close() })
			return l.Local()
		}, vnic.CMRejected, syscall.ECONNRESET, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onPaths(t, func(t *testing.T, e *env) {
				x := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{})
				x.Recv(1, 0, 10)
				id, r := routed(t, e.a, tt.to(t, e))
				start := time.Now()
				if err := id.Connect(x.QP, rdma.ConnParam{}); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if tt.within > 0 {
					time.Sleep(tt.within - time.Nanosecond)
					r.want("not before the timeout")
					time.Sleep(time.Nanosecond)
				}
				ev := r.want(time.Since(start).String(), tt.typ)[0]
				if ev.Status != -int32(tt.status) {
					t.Errorf("status %d (%v), want %v", ev.Status, ev.Err, tt.status)
				}
				if tt.name == "rejected" && string(ev.Param.PrivateData) != "no" {
					t.Errorf("private data %q", ev.Param.PrivateData)
				}
				x.WantState("afterwards", rdma.QPError)
				x.WantRecv("posted before", is(1, flush))
				x.Recv(2, 0, 10)
				x.WantRecv("posted behind it", is(2, flush))
				if err := x.QP.ModifyState(rdma.QPIdle); err != nil {
					t.Errorf("to use the QP again: %v", err)
				}
			})
		})
	}
}

// ResolveAddr: no route or a source that is not ours is ADDR_ERROR (V4, V20).
func TestResolveErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _ := vnictest.Pair(t)
		c := vnictest.Open(t, a, vnic.ContextConfig{})
		for _, tt := range []struct {
			src, dst string
			want     syscall.Errno
		}{
			{"", "192.0.2.1:5", syscall.ENETUNREACH},
			{"10.0.0.77", "10.0.0.2:5", syscall.EADDRNOTAVAIL},
			{"10.0.0.1", "[fd00::2]:5", syscall.EAFNOSUPPORT},
			{"", "0.0.0.0:5", syscall.EINVAL},
			{"", "10.0.0.2:0", syscall.EINVAL},
		} {
			id, r := newID(t, c)
			var src netip.Addr
			if tt.src != "" {
				src = netip.MustParseAddr(tt.src)
			}
			id.ResolveAddr(src, netip.MustParseAddrPort(tt.dst), time.Second)
			if ev := r.want(tt.dst, vnic.CMAddrError)[0]; ev.Status != -int32(tt.want) {
				t.Errorf("%s from %q: %v, want %v", tt.dst, tt.src, ev.Err, tt.want)
			}
			// And the id can try again.
			id.ResolveAddr(netip.Addr{}, netip.MustParseAddrPort("10.0.0.2:5"), time.Second)
			r.want("second try", vnic.CMAddrResolved)
		}
	})
}

// Ports are the device's: EADDRINUSE across contexts, wildcards overlap, port 0 finds a free one.
func TestPorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _ := vnictest.Pair(t)
		c, d := vnictest.Open(t, a, vnic.ContextConfig{}), vnictest.Open(t, a, vnic.ContextConfig{})
		bind := func(c *vnic.Context, ap string) (*vnic.CMID, error) {
			id, _ := newID(t, c)
			return id, id.Bind(netip.MustParseAddrPort(ap))
		}
		for _, tt := range []struct {
			first, second string
			want          error
		}{
			{"10.0.0.1:100", "10.0.0.1:100", syscall.EADDRINUSE},
			{"0.0.0.0:101", "10.0.0.1:101", syscall.EADDRINUSE},
			{"10.0.0.1:102", "0.0.0.0:102", syscall.EADDRINUSE},
			{"[::]:103", "10.0.0.1:103", syscall.EADDRINUSE},
			{"[::]:104", "0.0.0.0:104", syscall.EADDRINUSE},
			{"0.0.0.0:105", "[fd00::1]:105", nil},
			{"10.0.0.1:106", "[fd00::1]:106", nil},
			{"10.0.0.1:107", "10.0.0.1:108", nil},
		} {
			one, err := bind(c, tt.first)
			if err != nil {
				t.Fatal(err)
			}
			two, err := bind(d, tt.second)
			if !errors.Is(err, tt.want) {
				t.Errorf("%s, then %s: %v, want %v", tt.first, tt.second, err, tt.want)
			}
			one.Close()
			two.Close()
			if one, err = bind(d, tt.first); err != nil {
				t.Errorf("%s is not free after Close: %v", tt.first, err)
			}
			one.Close()
		}
		if _, err := bind(c, "10.0.0.2:1"); !errors.Is(err, syscall.EADDRNOTAVAIL) {
			t.Errorf("an address of somebody else: %v", err)
		}
		seen := map[uint16]bool{}
		for range 50 {
			id, err := bind(c, "10.0.0.1:0")
			if err != nil || seen[id.Local().Port()] || id.Local().Port() == 0 {
				t.Fatalf("port 0: %v, %v", id.Local(), err)
			}
			seen[id.Local().Port()] = true
		}
	})
}

// A wildcard listener takes connections to each address, IPv6 too.
func TestWildcardListener(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		l, err := e.b.Listen(netip.MustParseAddrPort("[::]:0"), 0)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		for _, p := range e.b.Attr().Addrs {
			x, y := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{}), vnictest.NewPeer(t, e.b,
				vnictest.PeerConfig{})
			var wg sync.WaitGroup
			wg.Go(func() {
				r, err := l.Next(context.Background())
				if err == nil {
					_, err = r.Accept(context.Background(), y.QP, rdma.ConnParam{})
				}
				if err != nil {
					t.Error(err)
				}
			})
			c, err := e.a.Connect(context.Background(), x.QP, netip.AddrPortFrom(p.Addr(), l.Addr().Port()),
				rdma.ConnParam{})
			if err != nil {
				t.Fatal(err)
			}
			wg.Wait()
			if c.RemoteAddr().Addr() != p.Addr() {
				t.Errorf("connected to %v, not %v", c.RemoteAddr(), p.Addr())
			}
		}
	})
}

// SEC-024: requests beyond the backlog are refused, and room comes back when one is answered.
func TestBacklog(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		l, lr := listen(t, e.b, 2)
		var qps []*vnictest.Peer
		var rs []*recorder
		for range 4 {
			x := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{})
			id, r := routed(t, e.a, l.Local())
			id.Connect(x.QP, rdma.ConnParam{})
			synctest.Wait()
			qps, rs = append(qps, x), append(rs, r)
		}
		reqs := lr.want("two wait", vnic.CMConnectRequest, vnic.CMConnectRequest)
		rs[0].want("waits")
		rs[1].want("waits")
		rs[2].want("refused", vnic.CMRejected)
		rs[3].want("refused", vnic.CMRejected)
		reqs[0].ID.Reject(nil)
		rs[0].want("answered", vnic.CMRejected)
		x := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{})
		id, _ := routed(t, e.a, l.Local())
		id.Connect(x.QP, rdma.ConnParam{})
		lr.want("there is room again", vnic.CMConnectRequest)
		_ = qps
	})
}

// Quotas of CM ids hold for children too, and nobody else is harmed: SEC-002, SEC-023.
func TestLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := vnictest.Pair(t)
		lim := vnic.Limits{PD: 2, MR: 3, CQ: 4, QP: 2, CMID: 2, Depth: 64, CQDepth: 128, SGE: 3,
			Inline: 32, MRLen: 1 << 20, MRTotal: 1<<20 + 5}
		c := vnictest.Open(t, b, vnic.ContextConfig{Limits: lim})
		pd, _ := c.NewPD()
		cq, _ := c.NewCQ(vnic.CQOptions{Depth: 64})
		exhaust := func(name string, n int, make func() error) {
			t.Helper()
			for i := range n {
				if err := make(); err != nil {
					t.Fatalf("%s %d of %d: %v", name, i, n, err)
				}
			}
			if err := make(); !errors.Is(err, rdma.ErrLimit) {
				t.Errorf("one %s too many: %v", name, err)
			}
		}
		exhaust("PD", 1, func() error { _, err := c.NewPD(); return err })
		exhaust("CQ", 3, func() error { _, err := c.NewCQ(vnic.CQOptions{Depth: 1}); return err })
		exhaust("QP", 2, func() error {
			_, err := pd.CreateQP(rdma.QPConfig{SendCQ: cq, RecvCQ: cq})
			return err
		})
		big, err := pd.RegisterMemory(make([]byte, 1<<20), rdma.LocalWrite)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := pd.RegisterMemory(make([]byte, 6), 0); !errors.Is(err, rdma.ErrLimit) {
			t.Errorf("more octets than the context may have: %v", err)
		}
		if _, err := pd.RegisterMemory(make([]byte, 1<<20+1), 0); !errors.Is(err, rdma.ErrLimit) {
			t.Errorf("more octets than an MR may have: %v", err)
		}
		big.Close()
		exhaust("MR", 3, func() error { _, err := pd.RegisterMemory(make([]byte, 1), 0); return err })

		l, lr := listen(t, c, 0)
		connect := func() *recorder {
			x := vnictest.NewPeer(t, vnictest.Open(t, a, vnic.ContextConfig{}), vnictest.PeerConfig{})
			id, r := routed(t, x.Ctx, l.Local())
			id.Connect(x.QP, rdma.ConnParam{})
			return r
		}
		connect()
		lr.want("the second id", vnic.CMConnectRequest)
		connect().want("a third is refused", vnic.CMRejected)
		for name, err := range map[string]error{
			"CQ depth": func() error { _, err := c.NewCQ(vnic.CQOptions{Depth: 129}); return err }(),
			"depth": func() error {
				_, err := pd.CreateQP(rdma.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSendWR: 65})
				return err
			}(),
			"SGEs": func() error {
				_, err := pd.CreateQP(rdma.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSendSGE: 4})
				return err
			}(),
			"inline": func() error {
				_, err := pd.CreateQP(rdma.QPConfig{SendCQ: cq, RecvCQ: cq, MaxInline: 33})
				return err
			}(),
		} {
			if !errors.Is(err, rdma.ErrInvalid) {
				t.Errorf("%s over the limit: %v", name, err)
			}
		}
	})
}

// The start-up's timers, and what ends it: M2, M16. A peer that says nothing,
// or half a Request, is dropped after 5 s; a malformed frame closes TCP at once.
func TestStartTimers(t *testing.T) {
	for _, tt := range []struct {
		name   string
		send   string
		within time.Duration
	}{
		{"silence", "", 5 * time.Second},
		{"half a Request", "MPA ID Req Frame\x40\x02\x00", 5 * time.Second},
		{"not MPA", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 0},
		{"revision 3", "MPA ID Req Frame\x40\x03\x00\x00", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := vnictest.NewNet()
				d := n.Device(t, "vnic0", []string{"10.0.0.1/24"})
				c := vnictest.Open(t, d, vnic.ContextConfig{})
				l, lr := listen(t, c, 0)
				s, err := n.Host(netip.MustParseAddr("10.0.0.2")).Dial(context.Background(),
					netip.MustParseAddr("10.0.0.2"), l.Local())
				if err != nil {
					t.Fatal(err)
				}
				writeAll(t, s, []byte(tt.send))
				synctest.Wait()
				if tt.within > 0 {
					time.Sleep(tt.within - 1)
					if d.DevInfo().Pending != 1 {
						t.Fatal("given up before its time")
					}
					time.Sleep(time.Nanosecond)
				}
				lr.want("no request")
				if d.DevInfo().Pending != 0 {
					t.Fatal("still pending")
				}
				if _, err := s.ReadInto(&sink{}); err == nil {
					t.Fatal("TCP is still open")
				}
				s.Close()
			})
		})
	}
}

// sink keeps what it is given.
type sink struct{ b []byte }

func (s *sink) Write(p []byte) (int, error) { s.b = append(s.b, p...); return len(p), nil }

// writeAll sends b over s, which has room for it.
func writeAll(t *testing.T, s iwarp.Stream, b []byte) {
	t.Helper()
	if len(b) == 0 {
		return
	}
	n, err := s.WriteFrom(bytes.NewReader(b))
	if n != len(b) || err != nil {
		t.Fatalf("wrote %d of %d: %v", n, len(b), err)
	}
}

// A connection can be canceled while it is being made, from both sides, and leaves nothing.
func TestConnectCanceled(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		l, lr := listen(t, e.b, 0)
		x := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{})
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if _, err := e.a.Connect(ctx, x.QP, l.Local(), rdma.ConnParam{}); !errors.Is(err,
			context.DeadlineExceeded) {
			t.Fatalf("connect: %v", err)
		}
		req := lr.want("it was asked", vnic.CMConnectRequest)[0]
		y := vnictest.NewPeer(t, e.b, vnictest.PeerConfig{})
		err := req.ID.Accept(y.QP, rdma.ConnParam{})
		synctest.Wait()
		time.Sleep(20 * time.Second)
		evs := lr.evs
		if err == nil && len(evs) == 0 || y.QP.State() == rdma.QPRTS {
			t.Errorf("accepting a peer that has gone: %v, events %v, state %v", err, evs, y.QP.State())
		}
		req.ID.Close()
		l.Close()
		time.Sleep(time.Second)
		if i := e.a.Device().DevInfo(); i.CMIDs != 0 || i.Pending != 0 {
			t.Errorf("something is left: %+v", i)
		}
	})
}

// V14: the responder sends first; its data waits for the initiator's RTR, on any MPA revision.
func TestResponderFirst(t *testing.T) {
	for rev := uint8(1); rev <= 2; rev++ {
		onPaths(t, func(t *testing.T, e *env) {
			x, y := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{
				Param: rdma.ConnParam{MPA: rdma.MPAParam{Revision: rev}}}), vnictest.NewPeer(t, e.b,
				vnictest.PeerConfig{})
			x.Recv(1, 0, 10)
			vnictest.Connect(t, x, y)
			y.Send(2, 0, 10)
			if rev == 1 && !e.local() && !e.moved {
				// Plain MPA has no RTR: the initiator has to speak first (RFC 5044, section 7.1.2).
				y.Recv(3, 0, 10)
				x.Send(4, 0, 10)
			}
			x.WantRecv("delivered", is(1, ok))
			if i := x.QP.Info(); i.MPA != rev && !e.local() && !e.moved {
				t.Errorf("revision %d, want %d", i.MPA, rev)
			}
		})
	}
}

// The transport breaks: Q10. All flushes, the cause is the transport's.
func TestConnectionLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := vnictest.NewNet()
		a, b := n.Device(t, "a", []string{"10.0.0.1/24"}), n.Device(t, "b", []string{"10.0.0.2/24"})
		x, y := vnictest.NewQPs(t, vnictest.Open(t, a, vnic.ContextConfig{}),
			vnictest.Open(t, b, vnic.ContextConfig{}), vnictest.PeerConfig{}, vnictest.PeerConfig{})
		y.Recv(1, 0, 1)
		x.Recv(2, 0, 1)
		n.Streams()[0].Abort()
		for _, p := range []*vnictest.Peer{x, y} {
			if err := p.WantDone("lost"); !errors.Is(err, iwarptest.ErrReset) {
				t.Errorf("the cause is %v", err)
			}
			p.WantState("Q10", rdma.QPError)
		}
		y.WantRecv("flushed", is(1, flush))
		x.WantRecv("flushed", is(2, flush))
	})
}

// A corrupted FPDU: Terminate 2/0/02, GENERAL_ERR on the oldest request of who noticed.
func TestCRCError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := vnictest.NewNet()
		a, b := n.Device(t, "a", []string{"10.0.0.1/24"}), n.Device(t, "b", []string{"10.0.0.2/24"})
		x, y := vnictest.NewQPs(t, vnictest.Open(t, a, vnic.ContextConfig{}),
			vnictest.Open(t, b, vnic.ContextConfig{}), vnictest.PeerConfig{}, vnictest.PeerConfig{})
		e := &env{t: t}
		s := n.Streams()[0]
		synctest.Wait()
		y.Recv(1, 0, 100)
		n.Streams()[1].Hold() // so that y's Read stays open
		y.Read(5, 0, 10, x, 0)
		at, _ := s.Sent()
		s.Corrupt(at+30, 0x40)
		x.Send(2, 0, 100)
		n.Streams()[1].Release()
		y.WantSend("who noticed", is(5, rdma.WCGeneral))
		y.WantRecv("", is(1, flush))
		e.wantTerm("here", y.WantDone("over"), false, term{2, 0, 2})
		e.wantTerm("there", x.WantDone("over"), true, term{2, 0, 2})
	})
}

// The handshake goes on, too, where the stream has no room for all of a Request or a Reply at once.
func TestNarrowHandshake(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		e.net.Link.Buffer = 11
		data := func(seed byte) rdma.ConnParam {
			p := rdma.ConnParam{PrivateData: make([]byte, 100), SCTP: e.sctp}
			fill(p.PrivateData, seed)
			return p
		}
		x, y := e.pair(vnictest.PeerConfig{Param: data(1)}, vnictest.PeerConfig{Param: data(2)})
		if got := x.Conn.Param().PrivateData; !bytes.Equal(got, data(2).PrivateData) {
			t.Errorf("the Reply brought %x", got)
		}
		y.Recv(1, 0, 1000)
		x.Send(2, 0, 1000)
		y.WantRecv("a Send", is(1, ok))
		x.WantSend("a Send", is(2, ok))
	})
}

// The panic of a handler reaches who calls it in its own words, and leaves the id as it was: its
// next event is delivered, and Close does not wait for a handler that is no more.
func TestHandlerPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := vnictest.NewNet().Device(t, "vnic0", []string{"10.0.0.1/24"})
		c := vnictest.Open(t, d, vnic.ContextConfig{InlineEvents: true})
		var told []vnic.CMEventType
		id, err := c.NewCMID(func(ev vnic.CMEvent) {
			told = append(told, ev.Type)
			panic(ev.Type.String())
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range []struct {
			call func() error
			want vnic.CMEventType
		}{
			{func() error { return id.ResolveAddr(netip.Addr{}, addr(c, 7), time.Second) },
				vnic.CMAddrResolved},
			{func() error { return id.ResolveRoute(time.Second) }, vnic.CMRouteResolved},
		} {
			told = nil
			func() {
				defer func() {
					if got := recover(); got != step.want.String() {
						t.Errorf("the panic says %v, want %v", got, step.want)
					}
				}()
				t.Errorf("returned %v from a handler that panics", step.call())
			}()
			if !slices.Equal(told, []vnic.CMEventType{step.want}) {
				t.Errorf("told %v, want %v", told, step.want)
			}
		}
		if err := id.Close(); err != nil {
			t.Error(err)
		}
	})
}
