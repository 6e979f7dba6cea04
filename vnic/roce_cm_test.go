package vnic_test

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/roce/mad"
	"github.com/vrnic/vrnic/roce/packet"
	"github.com/vrnic/vrnic/roce/udp"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// A rocePair is two contexts of RoCE that reach each other.
type rocePair struct{ a, b *vnic.Context }

// onRoCE runs f with contexts of one device, and of two.
func onRoCE(t *testing.T, f func(t *testing.T, e rocePair)) {
	t.Run("one device", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d := newRoCENet().Device(t, "rocep0", []string{"10.0.0.1/24", "fd00::1/64"}, vnictest.RoCE)
			f(t, rocePair{vnictest.Open(t, d, vnic.ContextConfig{}), vnictest.Open(t, d,
				vnic.ContextConfig{})})
		})
	})
	t.Run("two devices", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newRoCENet()
			x := n.Device(t, "rocep0", []string{"10.0.0.1/24", "fd00::1/64"}, vnictest.RoCE)
			y := n.Device(t, "rocep1", []string{"10.0.0.2/24", "fd00::2/64"}, vnictest.RoCE)
			f(t, rocePair{vnictest.Open(t, x, vnic.ContextConfig{}), vnictest.Open(t, y,
				vnic.ContextConfig{})})
		})
	})
}

// dial makes an ID of a that knows the way to a listener of b.
func (e rocePair) dial(t *testing.T, to netip.AddrPort) (*vnic.CMID, *recorder) {
	t.Helper()
	id, r := newID(t, e.a)
	r.resolve(id, to)
	return id, r
}

// ask has x connect to the listener l, and returns what both ends have of it.
func (e rocePair) ask(t *testing.T, l *vnic.CMID, lr *recorder, x *vnictest.Peer) (id *vnic.CMID,
	r *recorder, child *vnic.CMID) {
	t.Helper()
	id, r = e.dial(t, l.Local())
	if err := id.Connect(x.QP, rdma.ConnParam{}); err != nil {
		t.Fatal(err)
	}
	return id, r, lr.want("asked", vnic.CMConnectRequest)[0].ID
}

// connect is ask, and y accepts.
func (e rocePair) connect(t *testing.T, l *vnic.CMID, lr *recorder,
	x, y *vnictest.Peer) *vnic.CMID {
	t.Helper()
	id, r, child := e.ask(t, l, lr, x)
	if err := child.Accept(y.QP, rdma.ConnParam{}); err != nil {
		t.Fatal(err)
	}
	y.WantState("accepted", rdma.QPRTS) // it can send at once
	r.want("accepted", vnic.CMEstablished)
	return id
}

func (r *recorder) resolve(id *vnic.CMID, to netip.AddrPort) {
	r.t.Helper()
	if err := id.ResolveAddr(netip.Addr{}, to, time.Second); err != nil {
		r.t.Fatal(err)
	}
	r.want("resolved", vnic.CMAddrResolved)
	if err := id.ResolveRoute(time.Second); err != nil {
		r.t.Fatal(err)
	}
	r.want("resolved", vnic.CMRouteResolved)
}

func attrs(t *testing.T, qp *vnic.QP) rdma.QPAttr {
	t.Helper()
	a, err := qp.Query()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// Two programs connect with the calls that they use on iWARP: what they ask for and give is in the
// attributes of their QPs. RCM-013, 026, 028, 030, 056 to 059, 063, 064.
func TestRoCEConnect(t *testing.T) {
	onRoCE(t, func(t *testing.T, e rocePair) {
		x := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{})
		y := vnictest.NewPeer(t, e.b, vnictest.PeerConfig{})
		l, err := e.b.Listen(addr(e.b, 7471), 0)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		var asked rdma.ConnRequest
		done := make(chan error, 1)
		go func() {
			var err error
			if asked, err = l.Next(t.Context()); err == nil {
				y.Conn, err = asked.Accept(t.Context(), y.QP, rdma.ConnParam{IRD: 3, ORD: 2,
					PrivateData: []byte("yes"), RoCE: rdma.RoCEParam{RNRRetry: 4}})
			}
			done <- err
		}()
		x.Conn, err = e.a.Connect(t.Context(), x.QP, l.Addr(), rdma.ConnParam{
			IRD: 5, ORD: 6, PrivateData: []byte("please"), RoCE: rdma.RoCEParam{RetryCount: 5, RNRRetry: 2,
				ACKTimeout: 17, TrafficClass: 0x20},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		p := asked.Param()
		if len(p.PrivateData) != 56 || !bytes.HasPrefix(p.PrivateData, []byte("please\x00")) ||
			p.IRD != 5 || p.ORD != 6 || p.RoCE.RetryCount != 5 || p.RoCE.RNRRetry != 2 {
			t.Errorf("asked with %+v", p)
		}
		if p := x.Conn.Param(); len(p.PrivateData) != 196 ||
			!bytes.HasPrefix(p.PrivateData, []byte("yes\x00")) || p.IRD != 2 || p.ORD != 3 {
			t.Errorf("agreed on %+v", p)
		}
		if p := y.Conn.Param(); p.IRD != 3 || p.ORD != 2 {
			t.Errorf("agreed on %+v", p)
		}
		if x.Conn.RemoteAddr() != l.Addr() || y.Conn.RemoteAddr() != x.Conn.LocalAddr() ||
			x.Conn.LocalAddr().Port() == 0 {
			t.Errorf("%v to %v, %v to %v", x.Conn.LocalAddr(), x.Conn.RemoteAddr(), y.Conn.LocalAddr(),
				y.Conn.RemoteAddr())
		}
		a, b := attrs(t, x.QP), attrs(t, y.QP)
		if a.RQPSN != b.SQPSN || a.SQPSN != b.RQPSN || a.DestQPN != y.QP.Num() ||
			b.DestQPN != x.QP.Num() || a.Path.GID.Addr() != l.Addr().Addr() ||
			b.Path.GID.Addr() != x.Conn.LocalAddr().Addr() {
			t.Errorf("the ends are %+v and %+v", a, b)
		}
		const all = rdma.RemoteWrite | rdma.RemoteRead | rdma.RemoteAtomic
		for i, q := range []rdma.QPAttr{a, b} {
			if q.State != rdma.QPRTS || q.Access != all || q.MinRNRTimer != 0 || q.Timeout != 17 ||
				q.RetryCount != 5 || q.PathMTU != e.a.Attr().ActiveMTU || q.Path.TrafficClass != 0x20 ||
				q.MaxRead != []uint8{3, 2}[i] || q.MaxDestRead != []uint8{2, 3}[i] ||
				q.RNRRetry != []uint8{4, 2}[i] || q.Port != 1 || q.Path.HopLimit != 64 {
				t.Errorf("end %d is %+v", i, q)
			}
		}
		if err := x.Conn.Disconnect(); err != nil {
			t.Fatal(err)
		}
		for i, p := range []*vnictest.Peer{x, y} {
			<-p.Conn.Done()
			if err := p.Conn.Err(); err != nil || p.QP.State() != rdma.QPError {
				t.Errorf("end %d: %v, %v", i, err, p.QP.State())
			}
		}
	})
}

// No Reads asked for: no rights for them. RCM-057.
func TestRoCEAccess(t *testing.T) {
	onRoCE(t, func(t *testing.T, e rocePair) {
		none := vnictest.PeerConfig{Param: rdma.ConnParam{IRD: rdma.NoReads, ORD: rdma.NoReads,
			RoCE: rdma.RoCEParam{RetryCount: rdma.NoRetry, RNRRetry: rdma.NoRetry}}}
		x, y := vnictest.NewQPs(t, e.a, e.b, none, none)
		for i, qp := range []*vnic.QP{x.QP, y.QP} {
			if a := attrs(t, qp); a.Access != rdma.RemoteWrite || a.MaxRead != 0 || a.MaxDestRead != 0 ||
				a.Timeout != 19 || a.RetryCount != 0 || a.RNRRetry != 0 {
				t.Errorf("end %d is %+v", i, a)
			}
		}
	})
}

// disconnect ends a connection, of which both ends are told: what its QPs do is the caller's.
func disconnect(t *testing.T, id *vnic.CMID, r, peer *recorder) {
	t.Helper()
	if err := id.Disconnect(); err != nil {
		t.Fatal(err)
	}
	r.want("the peer has heard it", vnic.CMDisconnected)
	peer.want("the peer disconnects", vnic.CMDisconnected)
}

// What the ids of a connection are told, and what their QPs do: RCM-040, 041, 045, 048.
func TestRoCEDisconnect(t *testing.T) {
	onRoCE(t, func(t *testing.T, e rocePair) {
		l, lr := listen(t, e.b, 0)
		x := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{})
		y := vnictest.NewPeer(t, e.b, vnictest.PeerConfig{})
		id, r := e.dial(t, l.Local())
		connect := func() *vnic.CMID {
			t.Helper()
			if err := id.Connect(x.QP, rdma.ConnParam{}); err != nil {
				t.Fatal(err)
			}
			child := lr.want("asked", vnic.CMConnectRequest)[0].ID
			r.want("not answered")
			if err := child.Accept(y.QP, rdma.ConnParam{}); err != nil {
				t.Fatal(err)
			}
			r.want("accepted", vnic.CMEstablished)
			lr.want("accepted", vnic.CMEstablished)
			return child
		}
		child := connect()
		disconnect(t, id, r, lr)
		if x.QP.State() != rdma.QPError || y.QP.State() != rdma.QPRTS {
			t.Errorf("the QPs are %v and %v", x.QP.State(), y.QP.State())
		}
		if err := child.Disconnect(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if y.QP.State() != rdma.QPError {
			t.Errorf("the QP is %v", y.QP.State())
		}
		time.Sleep(2 * time.Second)
		r.want("4.096 us * 2^19 are 2.1 s")
		time.Sleep(time.Second)
		r.want("over", vnic.CMTimewaitExit)
		lr.want("over", vnic.CMTimewaitExit)

		for _, qp := range []*vnic.QP{x.QP, y.QP} {
			if err := qp.Modify(&rdma.QPAttr{State: rdma.QPReset}, rdma.AttrState); err != nil {
				t.Fatal(err)
			}
		}
		id, r = e.dial(t, l.Local()) // both at once
		child = connect()
		if err := errors.Join(id.Disconnect(), child.Disconnect()); err != nil {
			t.Fatal(err)
		}
		r.want("once", vnic.CMDisconnected)
		lr.want("once", vnic.CMDisconnected)
	})
}

// What becomes of a request that is not accepted: RCM-014, 034, 035.
func TestRoCERefused(t *testing.T) {
	onRoCE(t, func(t *testing.T, e rocePair) {
		x := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{})
		to := addr(e.b, 9)
		_, err := e.a.Connect(t.Context(), x.QP, to, rdma.ConnParam{})
		if !errors.Is(err, syscall.ECONNREFUSED) || x.QP.State() != rdma.QPReset {
			t.Errorf("nobody listens: %v, the QP is %v", err, x.QP.State())
		}
		l, lr := listen(t, e.b, 0)
		for _, program := range []bool{true, false} {
			x := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{})
			_, r, child := e.ask(t, l, lr, x)
			if program {
				err = child.Reject([]byte("no"))
			} else {
				err = child.Close()
			}
			if err != nil {
				t.Fatal(err)
			}
			ev := r.want("rejected", vnic.CMRejected)[0]
			var rej *rdma.RejectedError
			if ev.Status != 28 || len(ev.Param.PrivateData) != 148 || !errors.As(ev.Err, &rej) ||
				program != bytes.HasPrefix(rej.PrivateData, []byte("no\x00")) {
				t.Errorf("%+v", ev)
			}
		}
	})
}

// How many octets of private data there are: RCM-012.
func TestRoCEPrivateData(t *testing.T) {
	onRoCE(t, func(t *testing.T, e rocePair) {
		l, lr := listen(t, e.b, 0)
		x := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{})
		y := vnictest.NewPeer(t, e.b, vnictest.PeerConfig{})
		id, r := e.dial(t, l.Local())
		param := func(n int) rdma.ConnParam { return rdma.ConnParam{PrivateData: make([]byte, n)} }
		if err := id.Connect(x.QP, param(57)); !errors.Is(err, rdma.ErrInvalid) {
			t.Errorf("57 octets: %v", err)
		}
		if err := id.Connect(x.QP, param(56)); err != nil {
			t.Fatal(err)
		}
		child := lr.want("asked", vnic.CMConnectRequest)[0].ID
		if err := child.Accept(y.QP, param(197)); !errors.Is(err, rdma.ErrInvalid) {
			t.Errorf("197 octets: %v", err)
		}
		if err := child.Reject(make([]byte, 149)); !errors.Is(err, rdma.ErrInvalid) {
			t.Errorf("149 octets: %v", err)
		}
		if err := child.Accept(y.QP, param(196)); err != nil {
			t.Fatal(err)
		}
		r.want("accepted", vnic.CMEstablished)
	})
}

// The peer learns of whatever ends a program's side: RCM-046.
func TestRoCEGone(t *testing.T) {
	for name, end := range map[string]func(x *vnictest.Peer, id *vnic.CMID){
		"QP":      func(x *vnictest.Peer, _ *vnic.CMID) { x.QP.Close() },
		"id":      func(_ *vnictest.Peer, id *vnic.CMID) { id.Close() },
		"program": func(x *vnictest.Peer, _ *vnic.CMID) { x.Ctx.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			onRoCE(t, func(t *testing.T, e rocePair) {
				l, lr := listen(t, e.b, 0)
				x := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{})
				y := vnictest.NewPeer(t, e.b, vnictest.PeerConfig{})
				id := e.connect(t, l, lr, x, y)
				lr.want("accepted", vnic.CMEstablished)
				end(x, id)
				lr.want("the peer is gone", vnic.CMDisconnected)
			})
		})
	}
}

// A peer that does not answer is given up: RCM-024.
func TestRoCEUnreachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := vnictest.NewNet()
		x := vnictest.NewPeer(t, vnictest.Open(t, n.Device(t, "rocep0", []string{"10.0.0.1/24"},
			vnictest.RoCE),
			vnic.ContextConfig{}), vnictest.PeerConfig{})
		n.Blackhole(netip.MustParseAddr("10.0.0.9"))
		from := time.Now()
		_, err := x.Ctx.Connect(context.Background(), x.QP, netip.MustParseAddrPort("10.0.0.9:1"),
			rdma.ConnParam{})
		if !errors.Is(err, syscall.ETIMEDOUT) || x.QP.State() != rdma.QPReset ||
			time.Since(from) < 100*time.Second || time.Since(from) > 105*time.Second {
			t.Errorf("%v after %v, the QP is %v", err, time.Since(from), x.QP.State())
		}
		if err := x.Ctx.Close(); err != nil { // in the middle of the next one
			t.Error(err)
		}
	})
}

// A QP is found by its service, and what that tells is what datagrams need: RCM-051 to 053, 055.
func TestRoCELookup(t *testing.T) {
	onRoCE(t, func(t *testing.T, e rocePair) {
		newUD := func(c *vnic.Context) (*vnic.CMID, *recorder) {
			r := &recorder{t: t}
			id, err := c.NewDatagramCMID(r.handle)
			if err != nil {
				t.Fatal(err)
			}
			return id, r
		}
		stream, _ := newID(t, e.b)
		l, lr := newUD(e.b)
		if err := errors.Join(stream.Bind(addr(e.b, 7471)), l.Bind(addr(e.b, 7471))); err != nil {
			t.Fatalf("the same port of two spaces: %v", err)
		}
		if err := l.Listen(0); err != nil {
			t.Fatal(err)
		}
		y := vnictest.NewPeer(t, e.b, vnictest.PeerConfig{QP: rdma.QPConfig{Type: rdma.UD}})
		for _, qkey := range []uint32{0, 7} {
			id, r := newUD(e.a)
			r.resolve(id, l.Local())
			if err := id.Connect(nil, rdma.ConnParam{PrivateData: []byte("who")}); err != nil {
				t.Fatal(err)
			}
			ev := lr.want("asked", vnic.CMConnectRequest)[0]
			if len(ev.Param.PrivateData) != 180 || !bytes.HasPrefix(ev.Param.PrivateData,
				[]byte("who\x00")) {
				t.Errorf("%+v", ev.Param)
			}
			if err := ev.ID.Accept(y.QP, rdma.ConnParam{PrivateData: []byte("me"),
				RoCE: rdma.RoCEParam{QKey: qkey}}); err != nil {
				t.Fatal(err)
			}
			p := r.want("found", vnic.CMEstablished)[0].Param
			if qkey == 0 {
				qkey = 0x01234567
			}
			if p.RoCE.QPN != y.QP.Num() || p.RoCE.QKey != qkey || len(p.PrivateData) != 136 ||
				p.RoCE.Path.GID.Addr() != l.Local().Addr() || !p.RoCE.Path.Global {
				t.Errorf("%+v", p)
			}
			lr.want("there is no connection")
		}
		id, r := newUD(e.a)
		r.resolve(id, l.Local())
		if err := id.Connect(nil, rdma.ConnParam{}); err != nil {
			t.Fatal(err)
		}
		if err := lr.want("asked", vnic.CMConnectRequest)[0].ID.Reject(nil); err != nil {
			t.Fatal(err)
		}
		if ev := r.want("refused", vnic.CMUnreachable)[0]; ev.Status != 2 {
			t.Errorf("%+v", ev)
		}
		id, r = newUD(e.a)
		r.resolve(id, addr(e.b, 9))
		if err := id.Connect(nil, rdma.ConnParam{}); err != nil {
			t.Fatal(err)
		}
		if ev := r.want("nobody listens", vnic.CMUnreachable)[0]; ev.Status != 1 {
			t.Errorf("%+v", ev)
		}
	})
}

// A packet of the peer shows that it is ready, when its word for that is lost: RCM-031.
func TestRoCEFirstPacket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := vnictest.NewNet()
		n.RoCE.Lost = func(ip []byte) bool {
			_, m := messageOf(ip)
			_, rtu := m.(*mad.RTU)
			return rtu
		}
		open := func(name, a string) *vnic.Context {
			return vnictest.Open(t, n.Device(t, name, []string{a}, vnictest.RoCE), vnic.ContextConfig{})
		}
		e := rocePair{open("rocep0", "10.0.0.1/24"), open("rocep1", "10.0.0.2/24")}
		l, lr := listen(t, e.b, 0)
		x := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{})
		y := vnictest.NewPeer(t, e.b, vnictest.PeerConfig{})
		e.connect(t, l, lr, x, y)
		lr.want("the RTU is lost")
		y.Recv(1, 0, 64)
		x.Send(2, 0, 64)
		x.WantSend("sent", vnictest.Want{ID: 2})
		lr.want("data have come", vnic.CMEstablished)
	})
}

// Who is not to wait connects all the same to a peer that takes long to be found, and accepts what
// comes from there: neither of his calls waits for that.
func TestRoCEConnectImpatient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := vnictest.NewNet()
		n.RoCE.Find = 50 * time.Millisecond
		open := func(name, a string) *vnic.Context {
			return vnictest.Open(t, n.Device(t, name, []string{a}, vnictest.RoCE),
				vnic.ContextConfig{Impatient: true})
		}
		e := rocePair{open("rocep0", "10.0.0.1/24"), open("rocep1", "10.0.0.2/24")}
		l, lr := listen(t, e.b, 0)
		x := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{})
		y := vnictest.NewPeer(t, e.b, vnictest.PeerConfig{})
		id, r := e.dial(t, l.Local())
		begun := time.Now()
		if err := id.Connect(x.QP, rdma.ConnParam{}); err != nil {
			t.Fatal(err)
		}
		connecting := time.Since(begun)
		time.Sleep(n.RoCE.Find)
		child := lr.want("asked", vnic.CMConnectRequest)[0].ID
		begun = time.Now()
		if err := child.Accept(y.QP, rdma.ConnParam{}); err != nil {
			t.Fatal(err)
		}
		if took := max(connecting, time.Since(begun)); took > n.RoCE.Find/10 {
			t.Errorf("a call has waited for %v", took)
		}
		time.Sleep(4 * n.RoCE.Find)
		r.want("accepted", vnic.CMEstablished)
		lr.want("accepted", vnic.CMEstablished)
		y.Recv(1, 0, 64)
		x.Send(2, 0, 64)
		x.WantSend("sent", vnictest.Want{ID: 2})
	})
}

// messageOf is the message of connection management that a packet is; nil: it is none.
func messageOf(ip []byte) (transaction uint64, m mad.Message) {
	p, err := udp.Parse(ip)
	if err != nil {
		return 0, nil
	}
	var h packet.Header
	payload, err := h.Parse(p.Datagram)
	if err != nil || h.Dest != mad.QPN {
		return 0, nil
	}
	transaction, m, _ = mad.Parse(payload)
	return transaction, m
}

// An id is closed, or its QP destroyed, when the peer's answer has come and nobody has been told of
// that: the device is busy telling somebody else. The answer is for nobody then, and the peer hears
// that it is over.
func TestRoCEGoneBehindReply(t *testing.T) {
	for name, end := range map[string]func(x *vnictest.Peer, id *vnic.CMID) error{
		"id": func(_ *vnictest.Peer, id *vnic.CMID) error { return id.Close() },
		"QP": func(x *vnictest.Peer, _ *vnic.CMID) error { return x.QP.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newRoCENet()
				x := n.Device(t, "rocep0", []string{"10.0.0.1/24"}, vnictest.RoCE)
				y := n.Device(t, "rocep1", []string{"10.0.0.2/24"}, vnictest.RoCE)
				e := rocePair{vnictest.Open(t, x, vnic.ContextConfig{}), vnictest.Open(t, y,
					vnic.ContextConfig{})}
				l, lr := listen(t, e.b, 0)
				px := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{})
				py := vnictest.NewPeer(t, e.b, vnictest.PeerConfig{})
				id, _, child := e.ask(t, l, lr, px)

				told := make(chan struct{})
				slow, err := e.a.NewCMID(func(ev vnic.CMEvent) {
					if ev.Type == vnic.CMConnectRequest {
						<-told
					}
				})
				if err != nil {
					t.Fatal(err)
				}
				if err := slow.Bind(addr(e.a, 7000)); err != nil {
					t.Fatal(err)
				}
				if err := slow.Listen(0); err != nil {
					t.Fatal(err)
				}
				back, br := newID(t, e.b)
				br.resolve(back, slow.Local())
				if err := back.Connect(vnictest.NewPeer(t, e.b, vnictest.PeerConfig{}).QP,
					rdma.ConnParam{}); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()

				if err := child.Accept(py.QP, rdma.ConnParam{}); err != nil {
					t.Fatal(err)
				}
				synctest.Wait() // the answer is there
				if err := end(px, id); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				close(told)
				synctest.Wait()
				lr.want("the peer is gone", vnic.CMRejected)
			})
		})
	}
}
