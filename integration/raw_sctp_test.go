package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"

	"github.com/vrnic/vrnic/integration/rawhost"
	"github.com/vrnic/vrnic/lab/rawpeer"
	"github.com/vrnic/vrnic/lab/rawsctp"
	"github.com/vrnic/vrnic/lab/torture"
	"github.com/vrnic/vrnic/lab/torture/sctp"
	"github.com/vrnic/vrnic/rdma"
)

// An sctpRig is a daemon with a device that speaks SCTP, a listener of it, and, beside the two
// bystanders of a rig, an honest neighbour: a session in an association of its own.
type sctpRig struct {
	*rig
	l         rdma.Listener
	newPeer   func() (*rawsctp.Peer, error)
	neighbour *sctpSession
}

// overSCTP runs f with SCTP in UDP over IPv4, on addresses of the host, and with SCTP on IPv6, on
// the daemon's own stack.
func overSCTP(t *testing.T, f func(t *testing.T, s *sctpRig)) {
	for name, newRig := range map[string]func(*testing.T) *sctpRig{"in UDP": newUDPRig,
		"IPv6": newIPv6Rig} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, newRig(t))
		})
	}
}

// newUDPRig starts everything, at addresses of 127/8 that nobody else uses.
func newUDPRig(t *testing.T) *sctpRig {
	t.Helper()
	host := netip.AddrFrom4([4]byte{127, byte(100 + rand.IntN(100)), byte(rand.IntN(256)), 2})
	s := &sctpRig{rig: &rig{rigged: &rigged{t: t, change: make(chan struct{}),
		events: map[uint32][]rdma.AsyncEvent{}}, addr: host, peer: host.Next()}}
	s.d = up(t, nil, "--device", deviceA, "--device", "vrnic1,addr=10.77.0.3/24", "--device",
		fmt.Sprintf("vrnic2,host=%v", host))
	t.Cleanup(s.empty)
	s.serve("vrnic2")
	s.newPeer = func() (*rawsctp.Peer, error) {
		udp, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(s.peer, 0)),
			net.UDPAddrFromAddrPort(netip.AddrPortFrom(s.addr, 9899)))
		if err != nil {
			return nil, err
		}
		return rawsctp.New(udp, s.l.Addr().Port()), nil
	}
	s.begun()
	return s
}

// newIPv6Rig starts everything, with the raw peers on a link of the daemon's switch.
func newIPv6Rig(t *testing.T) *sctpRig {
	t.Helper()
	s := &sctpRig{rig: newRig(t).over(1)}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	station := rawsctp.NewStation()
	station.Send = got[*rawhost.Packets](t)(s.host.Packets(ctx, s.peer, s.addr, rawsctp.Protocol,
		station.Take)).Send
	s.newPeer = func() (*rawsctp.Peer, error) { return station.Peer(s.l.Addr().Port()), nil }
	s.begun()
	return s
}

// begun listens, and has the neighbour connected.
func (s *sctpRig) begun() {
	s.t.Helper()
	s.l = got[rdma.Listener](s.t)(s.dev.Listen(netip.AddrPortFrom(s.addr, 0), 16))
	s.t.Cleanup(func() { s.l.Close() })
	s.neighbour = s.session(s.t)
}

// raw makes a peer that has no association yet.
func (s *sctpRig) raw(t testing.TB) *rawsctp.Peer {
	t.Helper()
	p := got[*rawsctp.Peer](t)(s.newPeer())
	t.Cleanup(p.Close)
	return p
}

// established makes one with an association.
func (s *sctpRig) established(t testing.TB) *rawsctp.Peer {
	t.Helper()
	p := s.raw(t)
	check(t, p.Establish())
	// It does not wait for more: the daemon keeps it for 30 s otherwise.
	t.Cleanup(func() { p.Send(rawsctp.Make(rawsctp.Abort, 0)) })
	return p
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// An sctpSession is a raw peer with an open session, and the victim at the other end of it.
type sctpSession struct {
	*rawsctp.Peer
	v      *victim
	stream uint16
	msn    uint32 // of the peer's last Send
}

// session opens a session on stream 0 of a new association.
func (s *sctpRig) session(t testing.TB) *sctpSession {
	t.Helper()
	return s.begin(t, s.established(t), 0)
}

// begin opens a session on a stream of p.
func (s *sctpRig) begin(t testing.TB, p *rawsctp.Peer, stream uint16) *sctpSession {
	t.Helper()
	x := &sctpSession{Peer: p, v: newVictim(t, s.rig, 8), stream: stream}
	t.Cleanup(x.v.close)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	x.Control(x.stream, rawsctp.Initiate, []byte("hello")...)
	req, err := s.l.Next(ctx)
	check(t, err)
	if got := string(req.Param().PrivateData); got != "hello" {
		t.Errorf("private data %q", got)
	}
	x.v.conn, err = req.Accept(ctx, x.v.qp, rdma.ConnParam{})
	check(t, err)
	check(t, x.WantControl(x.stream, 0, rawsctp.Accept))
	return x
}

// works has the session move data: a Write, and a Send that completes a receive.
func (x *sctpSession) works(t testing.TB) {
	t.Helper()
	b := octets(200, byte(x.msn))
	x.v.expect(atRW+7, b)
	x.Segment(x.stream, rawpeer.Write(x.v.rw.RKey(), x.v.rw.Addr()+7, b).ULPDU())
	x.msn++
	x.Segment(x.stream, rawpeer.Send(x.msn, 0, []byte("ping")).ULPDU())
	wc := x.v.wc("a Send")
	x.v.recvs--
	if wc.Status != rdma.WCSuccess || wc.ByteLen != 4 {
		t.Fatalf("a Send: %+v\n%s", wc, x.Transcript())
	}
	at := int(wc.ID-1) * recvLen
	x.v.expect(atRecv+at, []byte("ping"))
	x.v.unharmed()
	x.v.post(wc.ID, at, recvLen)
	// It reads what has come, too: an association whose HEARTBEATs nobody answers ends, whatever else
	// its peer sends (RFC 9260, section 8.1).
	check(t, x.Alive())
}

// A rawSCTPCase is something that no honest peer sends.
type rawSCTPCase struct {
	name string
	do   func(t *testing.T, s *sctpRig)
}

// sessionEnds sends something in a session that ends it: the daemon says Terminate on its stream.
// Another session of the association goes on.
func sessionEnds(send func(x *sctpSession)) func(*testing.T, *sctpRig) {
	return func(t *testing.T, s *sctpRig) {
		x := s.session(t)
		other := s.begin(t, x.Peer, 4)
		send(x)
		check(t, x.WantControl(x.stream, 1, rawsctp.Terminate))
		x.v.ended()
		x.v.flushed(rdma.WCFlush)
		x.v.unharmed()
		other.works(t)
		check(t, x.Alive())
	}
}

// badSegment sends a bad segment: the daemon says which cause by a Terminate of RDMAP, and then
// that of the session.
func badSegment(layer, etype, code byte, copies rawpeer.Copies,
	seg func(x *sctpSession) rawpeer.Seg) func(*testing.T, *sctpRig) {
	return func(t *testing.T, s *sctpRig) {
		x := s.session(t)
		bad := seg(x)
		x.Segment(x.stream, bad.ULPDU())
		u, err := x.WantSegment(x.stream, 1)
		check(t, err)
		got, ok := rawpeer.ParseSeg(u)
		if !ok || got.Op() != rawpeer.OpTerminate || len(got.Body) < 3 || got.Body[0] != layer<<4|etype ||
			got.Body[1] != code {
			t.Fatalf("a Terminate % x, want %d/%d/%02x\n%s", u, layer, etype, code, x.Transcript())
		}
		check(t, new(rawpeer.Checker).Check(u))
		if c := rawpeer.Copies(got.Body[2]); c != copies {
			t.Errorf("it has copies %#02x, want %#02x", c, copies)
		}
		check(t, x.WantControl(x.stream, 2, rawsctp.Terminate))
		x.v.ended()
		if layer == 1 && etype == 2 && code == 5 { // the message was too long for the first receive
			x.v.flushed(rdma.WCLocLen)
		} else {
			x.v.flushed(rdma.WCFlush)
		}
		x.v.unharmed()
		check(t, x.Alive())
	}
}

var rawSCTPCases = []rawSCTPCase{
	// Sessions: RFC 5043, sections 5.2 and 6.
	{"a second Initiate: SDDP-035", sessionEnds(func(x *sctpSession) {
		x.Control(x.stream, rawsctp.Initiate)
	})},
	{"an Accept of the active side: SDDP-035", sessionEnds(func(x *sctpSession) {
		x.Control(x.stream, rawsctp.Accept)
	})},
	{"function 9 in a session: SDDP-020",
		sessionEnds(func(x *sctpSession) { x.Control(x.stream, 9) })},
	{"PPID 50 in a session: SDDP-011", sessionEnds(func(x *sctpSession) {
		x.Send(x.Next(x.stream, 50, rawsctp.Segment(1, make([]byte, 20))))
	})},
	{"a DDP-SSN for the second time: SDDP-034", sessionEnds(func(x *sctpSession) {
		x.Send(x.Next(x.stream, rawsctp.PPIDControl, rawsctp.Control(0, rawsctp.Initiate)))
	})},
	{"a DDP-SSN far ahead: SDDP-034", sessionEnds(func(x *sctpSession) {
		x.Send(x.Next(x.stream, rawsctp.PPIDSegment, rawsctp.Segment(9000, make([]byte, 20))))
	})},
	{"a message of one octet in a session: SDDP-018", sessionEnds(func(x *sctpSession) {
		x.Send(x.Next(x.stream, rawsctp.PPIDSegment, []byte{0}))
	})},

	// Segments: RFC 5041, section 7.2; RFC 5040, section 7.2.
	{"an STag that there is not: SDDP-038", badSegment(1, 1, 0, rawpeer.WithDDP,
		func(x *sctpSession) rawpeer.Seg { return rawpeer.Write(0xdead00, 0, []byte("x")) })},
	{"beyond the end: SDDP-038", badSegment(1, 1, 1, rawpeer.WithDDP,
		func(x *sctpSession) rawpeer.Seg {
			return rawpeer.Write(x.v.rw.RKey(), x.v.rw.Addr()+4090, []byte("more than six"))
		})},
	{"another PD: SDDP-031", badSegment(1, 1, 2, rawpeer.WithDDP, func(x *sctpSession) rawpeer.Seg {
		return rawpeer.Write(x.v.foreign.RKey(), x.v.foreign.Addr(), []byte("x"))
	})},
	{"DDP version 2: SDDP-038", badSegment(1, 1, 4, rawpeer.WithDDP, func(x *sctpSession) rawpeer.Seg {
		return rawpeer.Write(x.v.rw.RKey(), x.v.rw.Addr(), []byte("x")).DDPVersion(2)
	})},
	{"queue 7: SDDP-038", badSegment(1, 2, 1, rawpeer.WithDDP, func(x *sctpSession) rawpeer.Seg {
		return rawpeer.Send(1, 0, []byte("x")).QueueNumber(7)
	})},
	{"a Send longer than its receive: SDDP-038",
		badSegment(1, 2, 5, rawpeer.WithDDP, func(x *sctpSession) rawpeer.Seg {
			return rawpeer.Send(1, 0, make([]byte, recvLen+1))
		})},
	{"RDMAP version 3: SDDP-038", badSegment(0, 2, 5, rawpeer.WithDDP,
		func(x *sctpSession) rawpeer.Seg {
			return rawpeer.Send(1, 0, []byte("x")).RDMAPVersion(3)
		})},
	{"opcode 15: SDDP-038", badSegment(0, 2, 6, rawpeer.WithDDP, func(x *sctpSession) rawpeer.Seg {
		return rawpeer.Send(1, 0, []byte("x")).Opcode(15)
	})},
}

// What no honest SCTP peer sends is answered as the RFCs say, or not at all; the daemon lives, and
// neither other associations nor other clients notice.
func TestRawSCTP(t *testing.T) {
	overSCTP(t, func(t *testing.T, s *sctpRig) {
		target := torture.Target{Addr: s.l.Addr(), Timeout: patience}
		suite := sctp.Suite(func(context.Context, torture.Target) (*rawsctp.Peer, error) {
			return s.newPeer()
		})
		for _, c := range torture.Select(suite.Cases, []string{"init/", "association/", "stream/"}) {
			t.Run(c.Name, func(t *testing.T) {
				if said, err := c.Try(t.Context(), target); err != nil {
					t.Fatalf("%v\n%s", err, said)
				}
				s.neighbour.works(t)
			})
		}
		for _, c := range rawSCTPCases {
			t.Run(c.name, func(t *testing.T) {
				c.do(t, s)
				s.neighbour.works(t)
			})
		}
		s.by.moves(t)
	})
}
