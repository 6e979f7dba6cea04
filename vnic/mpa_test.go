package vnic_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic"
	"github.com/vrnic/vrnic/vnic/vnictest"
)

// What can be set of MPA, for each end on its own: what comes out of it, and that data goes both
// ways. MPA-007, 019, 020, 031, 038, 069; EMPA-036, 039, 042, 044.
func TestMPAParams(t *testing.T) {
	clients := []rdma.MPAParam{
		{}, {Revision: 1}, {Markers: true}, {CRC: rdma.CRCOff}, {CRC: rdma.CRCRequired},
		{ClientServer: true}, {RTR: rdma.RTRRead},
		{RTR: rdma.RTRSend, Markers: true, CRC: rdma.CRCOff}, {MULPDU: 64768},
		{Revision: 1, Markers: true, MULPDU: 128},
	}
	servers := []rdma.MPAParam{
		{}, {Markers: true}, {CRC: rdma.CRCOff}, {Markers: true, CRC: rdma.CRCOff, MULPDU: 128},
		{MULPDU: 9000, RTR: rdma.RTRRead | rdma.RTRSend},
	}
	for _, c := range clients {
		for _, s := range servers {
			if c.RTR&s.RTR == 0 && c.RTR != 0 && s.RTR != 0 {
				continue // TestMPANoRTR
			}
			t.Run(fmt.Sprintf("%+v to %+v", c, s), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					a, b := vnictest.Pair(t)
					x := vnictest.NewPeer(t, vnictest.Open(t, a, vnic.ContextConfig{}), vnictest.PeerConfig{
						Param: rdma.ConnParam{MPA: c}})
					y := vnictest.NewPeer(t, vnictest.Open(t, b, vnic.ContextConfig{}), vnictest.PeerConfig{
						Param: rdma.ConnParam{MPA: s}})
					y.Recv(1, 0, 100) // for an RTR Send too
					y.Recv(2, 0, 100)
					vnictest.Connect(t, x, y)
					synctest.Wait()

					marks := map[[2]bool]string{{true, true}: "both", {true, false}: "in", {false, true}: "out"}
					rev, rtr := uint8(2), "write"
					switch {
					case c.Revision == 1:
						rev, rtr = 1, ""
					case c.ClientServer:
						rtr = ""
					case c.RTR == rdma.RTRSend:
						rtr = "send"
					case c.RTR == rdma.RTRRead || s.RTR != 0:
						rtr = "read"
					}
					i, j := x.QP.Info(), y.QP.Info()
					if crc := c.CRC != rdma.CRCOff || s.CRC != rdma.CRCOff; i.CRC != crc || j.CRC != crc {
						t.Errorf("CRC %t and %t, want %t", i.CRC, j.CRC, crc)
					}
					if i.Markers != marks[[2]bool{c.Markers, s.Markers}] ||
						j.Markers != marks[[2]bool{s.Markers, c.Markers}] {
						t.Errorf("markers %q and %q", i.Markers, j.Markers)
					}
					if i.MPA != rev || j.MPA != rev || i.RTR != rtr || i.Enhanced != (rev == 2) {
						t.Errorf("revision %d and %d, want %d; RTR %q, want %q", i.MPA, j.MPA, rev, i.RTR, rtr)
					}

					fill(x.Buf, 1)
					if rtr == "send" { // it takes a receive: RFC 5040, section 5.3
						if wc := y.WantRecv("the RTR", is(1, ok)); wc[0].ByteLen != 0 {
							t.Errorf("the RTR has %d octets", wc[0].ByteLen)
						}
					} else {
						y.WantNone("the RTR is no message") // EMPA-044
						x.Send(3, 0, 50)
						y.WantRecv("a Send", is(1, ok))
						x.WantSend("a Send", is(3, ok))
					}
					x.Write(4, 0, 30_000, y, 1000)
					x.Send(5, 30_000, 100)
					x.WantSend("all", is(4, ok), is(5, ok))
					y.WantRecv("a Send", is(2, ok))
					if !bytes.Equal(y.Buf[1000:31_000], x.Buf[:30_000]) || !bytes.Equal(y.Buf[:100],
						x.Buf[30_000:30_100]) {
						t.Error("the data differs")
					}
					x.Read(6, 32_000, 30_000, y, 1000)
					x.WantSend("a Read", is(6, ok))
					if !bytes.Equal(x.Buf[32_000:62_000], x.Buf[:30_000]) {
						t.Error("what was read differs")
					}
				})
			})
		}
	}
}

// EMPA-018, EMPA-019: a peer offers more Reads than this end has. A program that accepts with what
// it was offered, as most do, agrees on what there is.
func TestAcceptWithOffer(t *testing.T) {
	onPaths(t, func(t *testing.T, e *env) {
		few := vnictest.Open(t, e.b.Device(), vnic.ContextConfig{Limits: vnic.Limits{IRD: 4, ORD: 2}})
		y := vnictest.NewPeer(t, few, vnictest.PeerConfig{})
		x := vnictest.NewPeer(t, e.a, vnictest.PeerConfig{})
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		l, err := few.Listen(addr(few, 7), 0)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		accepted := make(chan error, 1)
		go func() {
			r, err := l.Next(ctx)
			if err == nil {
				p := r.Param()
				y.Conn, err = r.Accept(ctx, y.QP, rdma.ConnParam{IRD: p.ORD, ORD: p.IRD})
			}
			accepted <- err
		}()
		x.Conn, err = e.a.Connect(ctx, x.QP, l.Addr(), rdma.ConnParam{IRD: 100, ORD: 120, SCTP: e.sctp})
		if err := errors.Join(err, <-accepted); err != nil {
			t.Fatal(err)
		}
		if p, q := y.Conn.Param(), x.Conn.Param(); p.IRD != 4 || p.ORD != 2 || q.ORD != 4 {
			t.Errorf("agreed on IRD %d, ORD %d here, ORD %d there; want 4, 2, 4", p.IRD, p.ORD, q.ORD)
		}
		var done []want
		for i := range uint64(8) {
			x.Read(i, 0, 100, y, 0)
			y.Read(i, 200, 100, x, 100) // not what x reads into
			done = append(done, is(i, ok))
		}
		x.WantSend("more than may be outstanding", done...)
		y.WantSend("more than may be outstanding", done...)
	})
}

// The same for what no end of ours would offer.
func TestAcceptWithHugeOffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := vnictest.NewNet()
		c := vnictest.Open(t, n.Device(t, "vnic0", []string{"10.0.0.1/24"}), vnic.ContextConfig{})
		l, lr := listen(t, c, 0)
		s := rawStream(t, n, l.Local())
		f := iwarp.StartFrame{Revision: 2, Enhanced: true, CRC: true, Data: iwarp.EnhancedData{
			PeerToPeer: true, RTR: iwarp.RTRWrite, IRD: 0x3ffe, ORD: 0x3ffd,
		}}
		b, err := f.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		writeAll(t, s, b)
		ev := lr.want("a request", vnic.CMConnectRequest)[0]
		if ev.Param.IRD != 0x3ffe || ev.Param.ORD != 0x3ffd {
			t.Errorf("the request offers IRD %d, ORD %d", ev.Param.IRD, ev.Param.ORD)
		}
		y := vnictest.NewPeer(t, c, vnictest.PeerConfig{})
		ev.ID.SetHandler(nil)
		if err := ev.ID.Accept(y.QP, rdma.ConnParam{IRD: ev.Param.ORD, ORD: ev.Param.IRD}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		y.WantState("accepted", rdma.QPRTS)
		var in sink
		s.ReadInto(&in)
		reply, _, err := iwarp.ParseStartFrame(in.b)
		if err != nil || !reply.Reply || reply.Rejected || reply.Data.IRD != 128 ||
			reply.Data.ORD != 128 {
			t.Errorf("the reply is %+v, %v; want IRD and ORD 128", reply, err)
		}
	})
}

// No kind in common: 2/0/7 on both ends. EMPA-038, 040.
func TestMPANoRTR(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := vnictest.Pair(t)
		x := vnictest.NewPeer(t, vnictest.Open(t, a, vnic.ContextConfig{}), vnictest.PeerConfig{})
		y := vnictest.NewPeer(t, vnictest.Open(t, b, vnic.ContextConfig{}), vnictest.PeerConfig{})
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		l, err := y.Ctx.Listen(netip.MustParseAddrPort("10.0.0.2:7"), 0)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		accepted := make(chan rdma.Conn, 1)
		go func() {
			r, err := l.Next(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			c, err := r.Accept(ctx, y.QP, rdma.ConnParam{MPA: rdma.MPAParam{RTR: rdma.RTRSend,
				Markers: true}})
			if err != nil {
				t.Error(err)
			}
			accepted <- c
		}()
		_, err = x.Ctx.Connect(ctx, x.QP, l.Addr(), rdma.ConnParam{
			MPA: rdma.MPAParam{RTR: rdma.RTRWrite | rdma.RTRRead, Markers: true}})
		var le *iwarp.LocalError
		if !errors.As(err, &le) || le.Cause != iwarp.TermNoRTR {
			t.Errorf("connect: %v", err)
		}
		if c := <-accepted; c != nil {
			<-c.Done()
			var te *rdma.TerminateError
			if !errors.As(c.Err(), &te) || te.Layer != 2 || te.Type != 0 || te.Code != 7 {
				t.Errorf("the other end: %v", c.Err())
			}
		}
	})
}

// Values that are none. Private data is as long as the revision lets it be: MPA-071, 074, EMPA-008.
func TestMPAChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := vnictest.Pair(t)
		ca, cb := vnictest.Open(t, a, vnic.ContextConfig{}), vnictest.Open(t, b, vnic.ContextConfig{})
		x := vnictest.NewPeer(t, ca, vnictest.PeerConfig{})
		id, err := ca.NewCMID(nil)
		if err != nil {
			t.Fatal(err)
		}
		defer id.Close()
		at := netip.MustParseAddrPort("10.0.0.2:7")
		for _, p := range []rdma.MPAParam{{Revision: 3}, {CRC: 4}, {RTR: 8}, {MULPDU: 127},
			{MULPDU: 64769}} {
			if _, err := ca.Connect(context.Background(), x.QP, at, rdma.ConnParam{MPA: p}); !errors.Is(err,
				rdma.ErrInvalid) {
				t.Errorf("connect with %+v: %v", p, err)
			}
			if err := id.SetMPA(p); !errors.Is(err, rdma.ErrInvalid) {
				t.Errorf("set %+v: %v", p, err)
			}
		}
		for rev, limit := range map[uint8]int{1: 512, 2: 508} {
			p := rdma.ConnParam{PrivateData: make([]byte, limit+1), MPA: rdma.MPAParam{Revision: rev}}
			if _, err := ca.Connect(context.Background(), x.QP, at, p); !errors.Is(err, rdma.ErrInvalid) {
				t.Errorf("revision %d, %d octets: %v", rev, limit+1, err)
			}
			for _, n := range []int{0, 1, limit} {
				x, y := vnictest.NewPeer(t, ca, vnictest.PeerConfig{}),
					vnictest.NewPeer(t, cb, vnictest.PeerConfig{})
				x.Config.Param = rdma.ConnParam{PrivateData: make([]byte, n), MPA: rdma.MPAParam{Revision: rev}}
				y.Config.Param = rdma.ConnParam{PrivateData: make([]byte, n)}
				fill(x.Config.Param.PrivateData, 1)
				fill(y.Config.Param.PrivateData, 2)
				vnictest.Connect(t, x, y)
				if !bytes.Equal(x.Conn.Param().PrivateData, y.Config.Param.PrivateData) ||
					!bytes.Equal(y.Conn.Param().PrivateData, x.Config.Param.PrivateData) {
					t.Errorf("revision %d, %d octets: got %d and %d", rev, n, len(x.Conn.Param().PrivateData),
						len(y.Conn.Param().PrivateData))
				}
			}
		}
	})
}

// What goes over a network since its device is impaired says what is there: of two queue pairs that
// copied, what they have agreed on; of those that went through memory, CRCs and no markers.
func TestMPAMoved(t *testing.T) {
	for _, p := range paths {
		if !p.moved {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEnv(t, p)
				x, y := e.pair(vnictest.PeerConfig{Param: rdma.ConnParam{MPA: rdma.MPAParam{Markers: true}}},
					vnictest.PeerConfig{})
				y.Recv(2, 0, 100)
				x.Send(1, 0, 50)
				y.WantRecv("what the network brings", is(2, ok))
				markers := []string{"in", "out"}
				if p.pipe {
					markers = []string{"", ""}
				}
				for n, i := range []vnic.QPInfo{x.QP.Info(), y.QP.Info()} {
					if i.Transport != "tcp" || i.Markers != markers[n] || !i.CRC {
						t.Errorf("%s, CRC %t, markers %q, want %q", i.Transport, i.CRC, i.Markers, markers[n])
					}
				}
			})
		})
	}
}
