package vnic_test

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// A town is a device with a listener, and peers that connect to it by hand.
type town struct {
	t  *testing.T
	n  *vnictest.Net
	d  *vnic.Device
	c  *vnic.Context
	l  *vnic.CMID
	lr *recorder
}

func newTown(t *testing.T, backlog int, opts ...vnictest.Option) *town {
	w := &town{t: t, n: vnictest.NewNet()}
	w.d = w.n.Device(t, "vnic0", []string{"10.0.0.1/24", "fd00::1/64"}, opts...)
	w.c = vnictest.Open(t, w.d, vnic.ContextConfig{})
	w.l, w.lr = newID(t, w.c) // of all addresses
	if err := w.l.Listen(backlog); err != nil {
		t.Fatal(err)
	}
	return w
}

// call connects from an address and, if ask is set, sends a whole Request; open says whether the
// connection is still there then.
func (w *town) call(from string, ask bool) (s iwarp.Stream, open bool) {
	w.t.Helper()
	a := netip.MustParseAddr(from)
	to := netip.MustParseAddr("10.0.0.1")
	if a.Is6() {
		to = netip.MustParseAddr("fd00::1")
	}
	s, err := w.n.Host(a).Dial(context.Background(), a, netip.AddrPortFrom(to, w.l.Local().Port()))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { s.Close() })
	synctest.Wait()
	if ask {
		m, err := iwarp.NewInitiator(iwarp.DefaultStartConfig(), nil)
		if err != nil {
			w.t.Fatal(err)
		}
		n, _ := s.WriteFrom(m)
		m.Commit(n)
		synctest.Wait()
	}
	_, err = s.ReadInto(&sink{})
	return s, err == nil
}

func (w *town) flood(n int, from string, ask bool) (open int) {
	w.t.Helper()
	for range n {
		if _, ok := w.call(from, ask); ok {
			open++
		}
	}
	return open
}

// Peers that flood a device with connections, silent or well-formed, from one address or from all
// of an IPv6 network, get their share and no more: another peer is served, the flooder's own
// established connection too, and all of it is counted and given back. SEC-024.
func TestFloodOfOnePeer(t *testing.T) {
	for _, tt := range []struct {
		name    string
		ask     bool
		from    func(i int) string
		share   int // of the flooder, at the backlog of 6
		refused func(r vnic.Refusals) uint64
	}{
		{"silent", false, func(int) string { return "10.0.0.66" }, 4,
			func(r vnic.Refusals) uint64 { return r.Peer }},
		{"asking", true, func(int) string { return "10.0.0.66" }, 6,
			func(r vnic.Refusals) uint64 { return r.Backlog }},
		{"silent from an IPv6 network", false, func(i int) string {
			a := netip.MustParseAddr("fd00:0:0:66::").As16()
			a[15] = byte(i + 1)
			return netip.AddrFrom16(a).String()
		}, 4, func(r vnic.Refusals) uint64 { return r.Peer }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTown(t, 6, func(c *vnic.Config) { c.MaxHalfOpenPerPeer, c.MaxHalfOpen = 4, 8 })
				// The flooder has a connection already, which is to live on.
				mine, _ := w.call(tt.from(0), true)
				y := vnictest.NewPeer(t, w.c, vnictest.PeerConfig{})
				req := w.lr.want("the first", vnic.CMConnectRequest)[0]
				req.ID.SetHandler(nil)
				if err := req.ID.Accept(y.QP, rdma.ConnParam{}); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				open := 0
				for i := range 50 {
					open += w.flood(1, tt.from(i), tt.ask)
				}
				if open != tt.share {
					t.Errorf("the flooder has %d connections, want %d", open, tt.share)
				}
				i := w.d.DevInfo()
				if got := tt.refused(i.Refused); got != uint64(50-tt.share) || i.Pending != int64(tt.share) {
					t.Errorf("%d were refused; %+v", got, i)
				}
				ps := w.d.Peers()
				if len(ps) != 1 || ps[0].Refused != uint64(50-tt.share) || ps[0].Conns != 1 ||
					ps[0].Pending != tt.share {
					t.Errorf("peers %+v", ps)
				}
				if !tt.ask {
					w.lr.want("no request")
				}
				w.lr.mu.Lock()
				w.lr.evs = nil
				w.lr.mu.Unlock()
				if _, ok := w.call("10.0.0.2", true); !ok {
					t.Fatal("another peer was kept out")
				}
				if ev := w.lr.want("its request", vnic.CMConnectRequest)[0]; ev.ID.Remote().Addr() !=
					netip.MustParseAddr("10.0.0.2") {
					t.Errorf("a request of %v", ev.ID.Remote())
				}
				y.WantState("the flooder's first connection", rdma.QPRTS)
				time.Sleep(10 * time.Second) // silent ones are gone then
				synctest.Wait()
				if want := int64(1); !tt.ask && w.d.DevInfo().Pending != want {
					t.Errorf("%+v are left", w.d.DevInfo())
				}
				mine.Close()
				w.c.Close()
				synctest.Wait()
				if ps, i := w.d.Peers(), w.d.DevInfo(); len(ps) != 0 || i.Pending != 0 || i.HalfOpen != 0 {
					t.Errorf("places are left: %+v, %+v", ps, i)
				}
			})
		})
	}
}

// Each of the limits by itself. SEC-024, SEC-023.
func TestAdmission(t *testing.T) {
	for _, tt := range []struct {
		name  string
		ask   bool
		limit vnictest.Option
		peers int // that each call ten times
		open  int
		count func(r vnic.Refusals) uint64
	}{
		{"pending of a peer", true, func(c *vnic.Config) { c.MaxPendingPerPeer = 3 }, 2, 6,
			func(r vnic.Refusals) uint64 { return r.Peer }},
		{"pending in all", true, func(c *vnic.Config) { c.MaxPending = 13 }, 3, 13,
			func(r vnic.Refusals) uint64 { return r.Pending }},
		{"pending of a user", true, func(c *vnic.Config) { c.Limits.Pending = 7 }, 3, 7,
			func(r vnic.Refusals) uint64 { return r.Context }},
		{"half open of a peer", false, func(c *vnic.Config) { c.MaxHalfOpenPerPeer = 3 }, 2, 6,
			func(r vnic.Refusals) uint64 { return r.Peer }},
		{"half open in all", false, func(c *vnic.Config) { c.MaxHalfOpen = 13 }, 3, 13,
			func(r vnic.Refusals) uint64 { return r.HalfOpen }},
		{"half open, but they ask", true, func(c *vnic.Config) {
			c.MaxHalfOpen, c.MaxHalfOpenPerPeer = 1, 1
		}, 2, 20, func(vnic.Refusals) uint64 { return 0 }},
		{"connections of a peer", true, func(c *vnic.Config) { c.MaxConnsPerPeer = 4 }, 2, 8,
			func(r vnic.Refusals) uint64 { return r.Peer }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTown(t, 100, tt.limit)
				open := 0
				for i := range tt.peers {
					open += w.flood(10, netip.AddrFrom4([4]byte{10, 0, 0, byte(50 + i)}).String(), tt.ask)
				}
				r := w.d.DevInfo().Refused
				if refused := 10*tt.peers - open; open != tt.open || tt.count(r) != uint64(refused) {
					t.Errorf("%d are open, want %d; refused %+v", open, tt.open, r)
				}
			})
		})
	}
}

// A connection holds its peer's place until it is over, however it ends.
func TestPlaceOfConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 10, func(c *vnic.Config) { c.MaxConnsPerPeer = 1 })
		for i, end := range []func(y *vnictest.Peer, s iwarp.Stream){
			func(y *vnictest.Peer, _ iwarp.Stream) { y.QP.Close() },
			func(y *vnictest.Peer, _ iwarp.Stream) { y.QP.Abort() },
			func(_ *vnictest.Peer, s iwarp.Stream) { s.Abort() },
			func(_ *vnictest.Peer, s iwarp.Stream) { s.Close() },
		} {
			s, ok := w.call("10.0.0.2", true)
			if !ok {
				t.Fatalf("call %d was refused", i)
			}
			req := w.lr.want("a request", vnic.CMConnectRequest)[0]
			req.ID.SetHandler(nil)
			y := vnictest.NewPeer(t, w.c, vnictest.PeerConfig{})
			if err := req.ID.Accept(y.QP, rdma.ConnParam{}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if _, ok := w.call("10.0.0.2", true); ok {
				t.Error("a second connection of one peer")
			}
			end(y, s)
			synctest.Wait()
			if ps := w.d.Peers(); len(ps) != 0 {
				t.Errorf("end %d: peers %+v", i, ps)
			}
		}
	})
}

// Within a device a user that floods a listener does not keep another user out. SEC-024.
func TestFloodWithinDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 4)
		to := netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), w.l.Local().Port())
		connect := func(c *vnic.Context) *recorder {
			id, r := routed(t, c, to)
			if err := id.Connect(vnictest.NewPeer(t, c, vnictest.PeerConfig{}).QP,
				rdma.ConnParam{}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			return r
		}
		bad, good := vnictest.Open(t, w.d, vnic.ContextConfig{}),
			vnictest.Open(t, w.d, vnic.ContextConfig{})
		for range 4 {
			connect(bad)
		}
		w.lr.want("the backlog is full", vnic.CMConnectRequest, vnic.CMConnectRequest,
			vnic.CMConnectRequest, vnic.CMConnectRequest)
		connect(bad).want("refused", vnic.CMRejected)
		connect(good)
		w.lr.want("another user", vnic.CMConnectRequest)
		bad.Close()
		good.Close()
		w.c.Close()
		synctest.Wait()
		if ps := w.d.Peers(); len(ps) != 0 {
			t.Errorf("peers %+v", ps)
		}
	})
}

// Behind a rejection TCP stays open until the program closes its id; it holds a place as long.
// MPA-078.
func TestRejectLeavesTCP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 4)
		s, _ := w.call("10.0.0.2", true)
		req := w.lr.want("a request", vnic.CMConnectRequest)[0]
		if err := req.ID.Reject([]byte("no")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		var in sink
		if _, err := s.ReadInto(&in); err != nil || len(in.b) < 20 || in.b[16]&0x20 == 0 {
			t.Fatalf("a Reply with R set: % x, %v", in.b, err)
		}
		if _, err := s.ReadInto(&in); err != nil {
			t.Fatalf("TCP was closed: %v", err)
		}
		writeAll(t, s, []byte("streaming octets"))
		synctest.Wait()
		if s.(interface{ InFlight() int }).InFlight() != 16 {
			t.Error("MPA took what is not for it")
		}
		if ps := w.d.Peers(); len(ps) != 1 || ps[0].Conns != 1 || ps[0].Pending != 0 {
			t.Errorf("peers %+v", ps)
		}
		req.ID.Close()
		synctest.Wait()
		if _, err := s.ReadInto(&in); err == nil {
			t.Error("TCP is open behind the end of the id")
		}
		if ps := w.d.Peers(); len(ps) != 0 {
			t.Errorf("peers %+v", ps)
		}
	})
}
